"""What each process does with its GPUs: train, infer, or something else; and what says so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from tracekit.attribution._columns import Array, NamedOps
from tracekit.attribution._names import classify_kernels, codes_of
from tracekit.attribution._op_loops import count_kinds
from tracekit.attribution._rules import Rules
from tracekit.model import KINDS, OPS, VERDICT, Stream
from tracekit.support.compiled import compiled, given

_LAYER = (
    r"(?i)gemm|gemv|conv(ol|fwd|[^a-z]|$)|xmma|cutlass|winograd|fmha|flash|attention|nvjet|softmax|batch_norm"
    r"|bn_fw|layer_?norm|rms_?norm|pool"
)
"""Kernels that the layers of a network run, in training as in inference."""

_DENSE = 1 << 22
"""Up to how large numbers are counted in a table of all that could be."""

_SIGNS = {"optimizer": pl.Int64, "backward": pl.Int64, "layers": pl.Int64, "exchanges": pl.Int64}
_WORDS = {
    "FP": "forward range", "BP": "backward range", "WU": "weight update range",
    "autograd": "autograd thread", "optimizer": "optimizer kernel", "backward": "backward kernel",
    "exchanges": "collective of data parallelism", "layers": "kernel of layers",
}  # fmt: skip
"""What the signs are called, one of each."""


def kernel_signs(counted: pl.DataFrame, rules: Rules) -> pl.DataFrame:
    """Count by process what the names of its kernels are signs of.

    Parameters
    ----------
    counted
        What `count_names` returned.
    rules
        What names mean.

    Returns
    -------
    ``process, ops``; ``optimizer, backward, layers``, kernels that are named so; ``exchanges``,
    collectives that exchange gradients under the rules.
    """
    if counted.is_empty():
        return pl.DataFrame(schema={"process": pl.Int32, "ops": pl.Int64, **_SIGNS})
    meant = classify_kernels(counted.with_columns(collective=pl.lit(None, pl.String)), rules)
    gradients = [
        word for entry in rules["exchange"] if entry.get("stage") == "WU"
        for word in entry.get("collective", [])
    ]  # fmt: skip
    computes, stage = pl.col("kind") == "compute", pl.col("kernel_stage")
    signs = {
        "optimizer": computes & (stage == "WU"),
        "backward": computes & (stage == "BP"),
        "layers": computes & pl.col("name").cast(pl.String).str.contains(_LAYER),
        "exchanges": pl.col("collective").is_in(gradients),
    }
    ops_of = pl.col("ops").cast(pl.Int64)
    return meant.group_by("process").agg(
        ops_of.sum(), *(ops_of.filter(sign).sum().alias(name) for name, sign in signs.items())
    )


def count_names(ops: Stream) -> pl.DataFrame:
    """Count ops by ``process, name, kind``: ``ops``.

    These are few against ops, so numbers are counted, and looked up in one op of each.
    """
    parts = []
    for number in range(len(ops)):
        chunk = ops.read(number, "process", "name", "kind")
        rows = NamedOps(
            given(chunk["process"]), codes_of(chunk["name"]), given(chunk["kind"].to_physical())
        )
        example, counts = _distinct(rows)
        parts.append(chunk[example].with_columns(ops=pl.Series(counts)))
    columns = ("process", "name", "kind")
    empty = OPS.empty().select(*columns, pl.lit(0, pl.Int64).alias("ops")).clear()
    return pl.concat([empty, *parts]).group_by(columns).agg(pl.col("ops").sum())


def _distinct(ops: NamedOps) -> tuple[Array, Array]:
    """Return where one op of each process, name and kind is, and how many there are."""
    names = int(ops.name.max(initial=-1)) + 2
    kinds = len(KINDS)
    size = (int(ops.process.max(initial=-1)) + 1) * names * kinds
    if size > _DENSE:  # a table of all that could be would be too large
        keys = ((ops.process * np.int64(names)) + ops.name + 1) * kinds + ops.kind
        _, first, times = np.unique(keys, return_index=True, return_counts=True)
        return first, times
    counts, example = np.zeros(size, np.int64), np.empty(size, np.int64)
    compiled(count_kinds, ops.name.size)(ops, names, kinds, counts, example)
    found = np.flatnonzero(counts)
    return example[found], counts[found]


def judge(
    processes: pl.Series,
    passes: pl.DataFrame,
    autograd: pl.DataFrame,
    signs: pl.DataFrame,
    claims: Mapping[int, bool],
    rules: Rules,
) -> pl.DataFrame:
    """Say of each process what it does.

    It trains if it marks its backward passes, or both forward passes and weight updates; if a
    thread runs backward passes; if the structure of its work says so; or if kernels named after
    backward propagation run beside an optimizer's or the exchange of gradients. Else it infers if
    it marks forward passes, or runs layers of networks.

    Parameters
    ----------
    processes
        The processes that were seen.
    passes
        ``process, stage, count``: ranges of passes on training threads, evaluation aside.
    autograd
        ``process, count``: threads that run backward passes.
    signs
        What `kernel_signs` returned.
    claims
        By process, whether the structure of its work says that it trains.
    rules
        The rules, with the verdict of the user if there is one.

    Returns
    -------
    ``process, verdict, given, evidence`` and ``trains``.
    """
    counts = _counts(processes, passes, autograd, signs)
    claimed = pl.DataFrame(
        {"process": list(claims), "claimed": list(claims.values())},
        schema={"process": pl.Int32, "claimed": pl.Boolean},
    )
    known = counts.join(claimed, on="process", how="left").with_columns(
        pl.col("claimed").fill_null(value=False)
    )
    by_names = (pl.col("backward") > 0) & ((pl.col("optimizer") > 0) | (pl.col("exchanges") > 0))
    by_ranges = (pl.col("BP") > 0) | ((pl.col("FP") > 0) & (pl.col("WU") > 0))
    trains = by_ranges | (pl.col("autograd") > 0) | pl.col("claimed") | by_names
    infers = (pl.col("FP") > 0) | (pl.col("layers") > 0)
    found = (
        pl.when(trains).then(pl.lit("training"))
        .when(infers).then(pl.lit("inference"))
        .otherwise(pl.lit("other"))
    )  # fmt: skip
    verdict = found if rules.verdict is None else pl.lit(rules.verdict)
    judged = known.select(
        "process", verdict=verdict, given=pl.lit(rules.verdict is not None), found=found,
        evidence=pl.struct(*_WORDS, "claimed"),
    ).sort("process")  # fmt: skip
    worded = [_worded(*row) for row in judged.select("found", "evidence").iter_rows()]
    return judged.select(
        "process", pl.col("verdict").cast(VERDICT), "given",
        evidence=pl.Series(worded, dtype=pl.String),
        trains=pl.col("verdict") == "training",
    )  # fmt: skip


def _counts(
    processes: pl.Series, passes: pl.DataFrame, autograd: pl.DataFrame, signs: pl.DataFrame
) -> pl.DataFrame:
    """Return a row per process with how many of each sign it shows."""
    table = pl.DataFrame({"process": processes.cast(pl.Int32)})
    for stage in ("FP", "BP", "WU"):
        own = passes.filter(pl.col("stage") == stage).select(
            "process", pl.col("count").alias(stage)
        )
        table = table.join(own, on="process", how="left")
    table = table.join(
        autograd.rename({"count": "autograd"}), on="process", how="left"
    ).join(signs, on="process", how="left")  # fmt: skip
    return table.with_columns(pl.exclude("process").fill_null(0).cast(pl.Int64))


def _worded(found: str, signs: Mapping[str, Any]) -> str:
    """Return in words what speaks for a verdict."""
    told = [
        counted(signs[name], word)
        for name, word in _WORDS.items()
        if signs[name] and (name != "layers" or found == "inference")
    ]
    if signs["claimed"]:
        told.append("the structure of its GPU work")
    return ", ".join(told) or "no sign of a network"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as ``1 autograd thread`` or ``59 backward ranges``."""
    if number == 1:
        return f"1 {noun}"
    first, *rest = noun.split(" of ")
    return f"{number:,} {' of '.join((f'{first}s', *rest))}"
