"""What each process does with its GPUs: train, infer, or something else; and what says so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracekit.attribution._names import classify_kernels
from tracekit.attribution._rules import Rules
from tracekit.model import KINDS, OPS, VERDICT, Stream

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
        name, kind = (chunk[of].to_physical().cast(pl.Int64) for of in ("name", "kind"))
        names = name.fill_null(-1).to_numpy() + 1
        keys = chunk["process"].to_numpy() * np.int64(names.max(initial=0) + 1) + names
        keys = keys * len(KINDS) + kind.to_numpy()
        example, counts = _distinct(keys)
        parts.append(chunk[example].with_columns(ops=pl.Series(counts)))
    columns = ("process", "name", "kind")
    empty = OPS.empty().select(*columns, pl.lit(0, pl.Int64).alias("ops")).clear()
    return pl.concat([empty, *parts]).group_by(columns).agg(pl.col("ops").sum())


def _distinct(keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where one of each distinct number from 0 on is, and how often it comes."""
    if int(keys.max(initial=0)) > _DENSE:  # a table of all that could be would be too large
        _, first, times = np.unique(keys, return_index=True, return_counts=True)
        return first, times
    counts = np.bincount(keys)
    example = np.empty(counts.size, np.int64)
    example[keys] = np.arange(keys.size)
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
