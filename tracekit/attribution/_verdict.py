"""Decide on each process whether it runs training, inference or something else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from tracekit.attribution._arrays import Array, NamedOps
from tracekit.attribution._names import classify_kernels, codes_of
from tracekit.attribution._op_loops import count_kinds
from tracekit.attribution._rules import Rules
from tracekit.attribution._thresholds import THRESHOLDS
from tracekit.model import KINDS, OPS, VERDICT, Stream
from tracekit.support.compiled import compiled, given
from tracekit.support.wording import count

LAYERS = (
    r"(?i)gemm|gemv|Cijk_|mat_?mul|conv(ol|fwd|[^a-z]|$)|xmma|cutlass|winograd|fmha|flash|attention|nvjet"
    r"|softmax|batch_?norm|bn_fw|layer_?norm|rms_?norm|pool"
)
"""Patterns of kernels that run the layers of a network, in training as in inference."""

_OPERATOR = (
    r"(?i)\bat::|cub::|thrust::|rocprim|cudnn|cublas|cute::|triton_(poi|per|red|tem|mm|for)_|ck_tile|_ZN2ck"
    r"|elementwise|reduce|concat|CatArray|copy|fill|memset|transpose|embedding|index|gather|scatter"
    r"|sort|top_?k|relu|gelu|silu|swiglu|act_and_mul|dropout|rope|rotary|loss|quant|kv_?cache|moe_|rng|random"
    r"|im2d2col|col2im|SubTensorOp|nvinfer|__myl|generatedNative|dali"
)
"""Patterns of kernel names that show the operation, by the name or its library. Other kernels, such
as those of compilers (`fusion_3` of XLA, `triton__0d1d2d`), may belong to a backward pass."""

_COMPILED = r"(^|_)fusion(_|$)|^triton__\d|^[rE](_\d+)+(n\d+)?$"
"""Patterns of kernels that network compilers (XLA, Triton, tinygrad) generate, if their names tell
no more."""

_DATA_GRADIENT = r"(?i)dgrad|igemm_bwd|bwd_data"
"""Gradients of a convolution's input: a transposed convolution's forward pass is the same."""

_WEIGHT_GRADIENT = r"(?i)wgrad|_wrw|bwd_weight|bwd_filter|grad_?weight|weight_?grad"
"""Gradients of weights, which nothing but a backward pass computes."""

_FOREACH = r"^triton_for_"
"""Kernels that PyTorch's compiler makes of lists of tensors, as optimizers have them."""

HINTS = {
    f"is_{hint}": pl.col("name_text").str.contains(pattern).fill_null(value=False)
    for hint, pattern in {
        "layer": LAYERS, "operator": _OPERATOR, "compiled": _COMPILED, "foreach": _FOREACH,
        "data_gradient": _DATA_GRADIENT, "weight_gradient": _WEIGHT_GRADIENT,
    }.items()
}  # fmt: skip
"""Columns that mark kernels by name, for `classify_kernels`."""

_FEWEST_LAYERS = 2
"""Least number of distinct layer kernels of a network: a single one is an operator, or its
benchmark."""

_DENSE = 1 << 22
"""Largest number of combinations that are counted in a table of all possible ones."""
_PARTS = 32
"""Number of chunks whose counts are kept apart before they are added up."""

_SIGNS = dict.fromkeys(
    ("optimizer", "backward", "data_gradients", "weight_gradients", "layers", "exchanges",
     "compiled", "unnamed", "kernels", "kinds"),
    pl.Int64,
)  # fmt: skip
_WORDS = {
    "FP": "forward range", "BP": "backward range", "WU": "weight update range",
    "autograd": "autograd thread", "optimizer": "kernel of optimizers (by name)",
    "backward": "kernel of backward passes (by name)",
    "exchanges": "collective of data parallelism", "serves": "range of a server",
    "layers": "kernel of layers", "unnamed": "kernel of unknown purpose",
}  # fmt: skip
"""Noun for each sign in the evidence, in the singular."""
_TELLS = {"layers": ("inference", "unknown"), "unnamed": ("unknown",)}
"""Sign -> verdicts that it is evidence for, if not for all."""
_OF_TRAINING = {"exchanges": "collective"}
"""Noun for these signs in other verdicts than training: any program may sum over GPUs."""


def kernel_hints(counted: pl.DataFrame, rules: Rules) -> pl.DataFrame:
    """Count per process the kernels whose names hint at training or inference.

    `counted` are ops by process, name and kind, from `count_names`; `rules` give names a meaning.

    Returns
    -------
    ``process, ops``; ``optimizer, backward, data_gradients, weight_gradients, layers``: number of
    kernels with such a name; ``exchanges``: collectives that the rules classify as an exchange of
    gradients; ``compiled``: kernels of a compiler; ``unnamed``: kernels whose names reveal no
    operation, such as a CUDA graph recorded as a whole; ``kernels``: all kernels; ``kinds``:
    distinct names of layer kernels.
    """
    if counted.is_empty():
        return pl.DataFrame(schema={"process": pl.Int32, "ops": pl.Int64, **_SIGNS})
    classified = classify_kernels(counted, rules, HINTS)
    return classified.group_by("process").agg(rules.made(("hints",), lambda: _sums(rules)))


def _sums(rules: Rules) -> list[pl.Expr]:
    """Return the columns of `kernel_hints`, summed over the kernels of a process."""
    gradients = [
        word for entry in rules["exchange"] if entry.get("stage") == "WU"
        for word in entry.get("collective", [])
    ]  # fmt: skip
    computes, is_graph = pl.col("kind") == "compute", pl.col("kind") == "graph"
    stage = pl.col("kernel_stage")
    tells = pl.col("is_layer") | pl.col("is_operator") | stage.is_not_null()
    signs = {
        "optimizer": computes & ((stage == "WU") | pl.col("is_foreach")),
        "backward": computes & (stage == "BP") & ~pl.col("is_data_gradient"),
        "data_gradients": computes & (stage == "BP") & pl.col("is_data_gradient"),
        "weight_gradients": computes & (stage == "BP") & pl.col("is_weight_gradient"),
        "layers": computes & pl.col("is_layer"),
        "exchanges": pl.col("collective").is_in(gradients),
        "compiled": computes & pl.col("is_compiled"),
        "unnamed": is_graph | (computes & ~tells),
        "kernels": is_graph | computes,
    }
    ops_of = pl.col("ops").cast(pl.Int64)
    kinds = pl.col("name").filter(signs["layers"]).n_unique().cast(pl.Int64)
    counts = (ops_of.filter(sign).sum().alias(name) for name, sign in signs.items())
    return [ops_of.sum(), *counts, kinds.alias("kinds")]


def count_names(ops: Stream) -> pl.DataFrame:
    """Return the number of ops (``ops``) by ``process, name, kind``.

    Ops are counted by the codes of name and kind; the texts are then read from one op of each
    combination.
    """
    columns = ("process", "name", "kind")
    parts: list[pl.DataFrame] = []
    for number in range(len(ops)):
        if len(parts) > _PARTS:  # names of all chunks would grow with the trace
            parts = [summed(parts, columns, "ops")]
        chunk = ops.read(number, *columns)
        rows = NamedOps(
            given(chunk["process"]), codes_of(chunk["name"]), given(chunk["kind"].to_physical())
        )
        example, counts = _distinct(rows)
        parts.append(chunk[example].with_columns(ops=pl.Series(counts)))
    if not parts:
        return OPS.empty().select(*columns, ops=pl.lit(0, pl.Int64)).clear()
    return summed(parts, columns, "ops")


def summed(parts: Sequence[pl.DataFrame], keys: Sequence[str], column: str) -> pl.DataFrame:
    """Sum `column` by `keys` over parts, each of which has a combination of keys at most once."""
    if len(parts) == 1:
        return parts[0]
    return pl.concat(parts).group_by(keys).agg(pl.col(column).sum())


def _distinct(ops: NamedOps) -> tuple[Array, Array]:
    """Return an op of each combination of process, name and kind, and the number of such ops."""
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
    serving: pl.DataFrame,
    signs: pl.DataFrame,
    claims: Mapping[int, bool],
    rules: Rules,
) -> pl.DataFrame:
    """Return the verdict on each process: training, inference, unknown or other.

    Training: ranges mark backward passes, or both forward passes and weight updates; or a thread
    runs backward passes; or `claims` says so; or kernels named after gradients run beside kernels
    of an optimizer or an exchange of gradients, or compute gradients of weights. Inference: the
    process serves requests, marks forward passes, or runs layers of several names, and nothing can
    be part of training: no kernel is named after gradients or an optimizer, and (unless it serves
    requests) nearly all kernel names are known. Otherwise a process that runs a network is
    `unknown`, and one without a network is `other`.

    Parameters
    ----------
    processes
        Numbers of the processes in the recording.
    passes
        ``process, stage, count``: number of ranges of passes on training threads, without those in
        evaluation.
    autograd
        ``process, count``: number of threads that run backward passes.
    serving
        ``process, count``: number of ranges typical of model servers.
    signs
        Hints in kernel names, from `kernel_hints`.
    claims
        Process -> whether threads and launch order indicate training; processes that were not
        examined this way are absent.
    rules
        The rules, with the user's verdict if there is one.

    Returns
    -------
    ``process, verdict``; ``given``, whether the user stated the verdict; ``evidence``, the counts
    it rests on, in words; ``trains`` and ``infers``, whether it is training or inference.
    """
    counts = _counts(processes, passes, {"autograd": autograd, "serves": serving}, signs)
    claimed = pl.DataFrame(
        {"process": list(claims), "claimed": list(claims.values())},
        schema={"process": pl.Int32, "claimed": pl.Boolean},
    )
    known = counts.join(claimed, on="process", how="left").with_columns(
        pl.col("claimed").fill_null(value=False)
    )
    has = {name: pl.col(name) > 0 for name in (*_WORDS, *_SIGNS)}
    gradients = has["backward"] | has["data_gradients"]
    by_names = (
        (gradients & has["optimizer"]) | (has["backward"] & has["exchanges"])
        | has["weight_gradients"]
    )  # fmt: skip
    by_ranges = has["BP"] | (has["FP"] & has["WU"])
    trains = by_ranges | has["autograd"] | pl.col("claimed") | by_names
    may_train = has["backward"] | has["optimizer"]
    named = pl.col("unnamed") <= THRESHOLDS.unnamed * pl.col("kernels")
    network = has["FP"] | has["layers"]
    # Of a process without kernels, beside one with some, forward ranges may be a data loader's.
    kernels = pl.col("kernels")
    forward = has["FP"] & ((kernels > 0) | (kernels.max() == 0))
    runs = forward | (pl.col("kinds") >= _FEWEST_LAYERS)
    infers = has["serves"] | (runs & named)
    found = (
        pl.when(trains).then(pl.lit("training"))
        .when(infers & ~may_train).then(pl.lit("inference"))
        .when(may_train | network | has["compiled"]).then(pl.lit("unknown"))
        .otherwise(pl.lit("other"))
    )  # fmt: skip
    verdict = found if rules.verdict is None else pl.lit(rules.verdict)
    # Of training these are a sign as well.
    of_inputs = pl.when(trains).then("data_gradients").otherwise(0)
    known = known.with_columns(backward=pl.col("backward") + of_inputs)
    judged = known.select(
        "process", verdict=verdict, given=pl.lit(rules.verdict is not None), found=found,
        evidence=pl.struct(*_WORDS, "claimed"),
    ).sort("process")  # fmt: skip
    worded = map(_worded, judged["found"], judged["evidence"])
    return judged.select(
        "process", pl.col("verdict").cast(VERDICT), "given",
        evidence=pl.Series(list(worded), dtype=pl.String),
        trains=pl.col("verdict") == "training", infers=pl.col("verdict") == "inference",
    )  # fmt: skip


def with_places(verdicts: pl.DataFrame, counts: pl.DataFrame) -> pl.DataFrame:
    """Add to each verdict's evidence how many collectives are part of passes or move weights.

    Parameters
    ----------
    verdicts
        What each process does (``verdict``), and why (``evidence``, text).
    counts
        The numbers of collectives, from `Places.counts`.
    """
    if counts.is_empty():
        return verdicts
    texts = [
        ", ".join(count(n, noun) for n, noun in zip(numbers, _PLACES, strict=True) if n)
        for numbers in counts.select("own", "weights").iter_rows()
    ]
    counted_places = counts.select("process", said=pl.Series(texts, dtype=pl.String))
    evidence = pl.concat_str("evidence", "said", separator="; by place ", ignore_nulls=True)
    joined = verdicts.join(counted_places, on="process", how="left", maintain_order="left")
    return joined.with_columns(evidence=evidence).drop("said")


_PLACES = ("collective of passes (tensor parallelism)", "collective of weights")
"""Noun for collectives by purpose, in the singular."""


def _counts(
    processes: pl.Series,
    passes: pl.DataFrame,
    others: Mapping[str, pl.DataFrame],
    signs: pl.DataFrame,
) -> pl.DataFrame:
    """Return one row per process, one column per hint to its activity: how often the hint occurs.

    Hints are ranges of passes (`passes`), kernel names (`signs`), and others by column name.
    """
    counts = {
        stage: pl.when(pl.col("stage") == stage).then("count") for stage in ("FP", "BP", "WU")
    }
    shown = [signs, passes.select("process", **counts)]
    shown += [found.rename({"count": name}) for name, found in others.items()]
    sums = pl.concat(shown, how="diagonal_relaxed").group_by("process").agg(pl.all().sum())
    table = pl.DataFrame({"process": processes.cast(pl.Int32)}).join(sums, on="process", how="left")
    return table.with_columns(pl.exclude("process").fill_null(0).cast(pl.Int64))


def _worded(found: str, signs: Mapping[str, Any]) -> str:
    """Return as text why a process got the verdict `found` (such as training): counts of hints."""
    words = _WORDS if found == "training" else _WORDS | _OF_TRAINING
    parts = [
        count(signs[name], word)
        for name, word in words.items()
        if signs[name] and found in _TELLS.get(name, (found,))
    ]
    if signs["claimed"]:
        parts.append("the structure of its GPU work")
    return ", ".join(parts) or "no sign of a network"
