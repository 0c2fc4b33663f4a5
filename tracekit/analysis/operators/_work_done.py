"""Operators with their kernels, and kernels that multiply without an operator."""

from __future__ import annotations

import polars as pl

from tracekit.analysis.operators._bytes import element_bytes, with_bytes
from tracekit.analysis.operators._counted import counted_operators
from tracekit.analysis.operators._formulas import GRADIENTS, MULTIPLYING_FORMS
from tracekit.analysis.operators._kernel_names import (
    multiplies,
    of_input,
    of_weight,
    on_tensor_cores,
    precision_by_name,
    precision_by_type,
)
from tracekit.analysis.operators._recorded import (
    backward_graphs,
    backward_nodes,
    named_operators,
    operand_types,
    recorded_operators,
)
from tracekit.model import Trace

_LENGTH = pl.col("end") - pl.col("start")
_OF_KERNEL = ("process", "device", "iteration", "stage", "kernel")
_COLUMNS = (
    "range", *_OF_KERNEL, "operator", "sizes", "types", "form", "precision", "flops", "bytes",
    "kernels", "kernel_ns", "recomputed",
    "tensor_core_ns", "untold_ns",
)  # fmt: skip
_NO_TYPES = ("", "Scalar", "ScalarList")
_ON_TENSOR_CORES = {
    "tensor_core_ns": pl.when("is_on_tensor_cores").then(_LENGTH).otherwise(0),
    "untold_ns": pl.when(pl.col("is_on_tensor_cores").is_null()).then(_LENGTH).otherwise(0),
}
_MULTIPLYING = pl.col("form").is_in(list(MULTIPLYING_FORMS))


def work_done(trace: Trace, *, causal: bool = False, moving: bool = False) -> pl.DataFrame:
    """Return a row per operator that multiplies on a GPU, and per such kernel without one.

    Parameters
    ----------
    causal
        Count half the FLOPs of attention that was recorded as causal, and not all.
    moving
        Return all other operators and kernels that compute, too.

    Returns
    -------
    ``range`` (of the operator), ``process, device, iteration, stage, kernel`` (of the kernel that
    took longest), ``operator, sizes, types, dtype, form, precision, flops, bytes`` (null where
    unknown), ``kernels`` and ``kernel_ns``: how many it launched, and how long they ran, added
    up; ``tensor_core_ns`` and ``untold_ns``: how long on Tensor Cores, and of how much of it names
    do not tell that; and ``recomputed``, see `counted_operators`.
    """
    counted = counted_operators(
        recorded_operators(trace), backward_nodes(trace), backward_graphs(trace)
    )
    owned = _owned(_kernels(trace), counted)
    own = _of_operators(owned.filter(pl.col("range").is_not_null()), counted, causal=causal)
    others = owned.filter(pl.col("range").is_null(), *(() if moving else ("multiplies",)))
    alone = _of_others(trace, others) if moving else others
    told = {name: pl.lit(None, own.schema[name])
            for name in {*_COLUMNS, "types"}.difference(alone.columns)}  # fmt: skip
    alone = alone.with_columns(
        **told
        | {"precision": precision_by_name(pl.col("name")), "kernel_ns": _LENGTH,
           "kernels": pl.lit(1, pl.UInt32), **_ON_TENSOR_CORES},
    )  # fmt: skip
    chosen = own if moving else own.filter(_MULTIPLYING)
    both = operand_types(pl.concat([each.select(_COLUMNS) for each in (chosen, alone)]))
    shown = pl.col("types").list.eval(pl.element().filter(~pl.element().is_in(_NO_TYPES)))
    return both.with_columns(types=pl.when(shown.list.len() > 0).then(shown.list.join(", ")))


def _kernels(trace: Trace) -> pl.DataFrame:
    """Return the kernels that compute, and what their names say."""
    name = pl.col("name").cast(pl.String)
    kernels = (
        trace["ops"].filter(pl.col("kind") == "compute")
        .select("process", "device", "iteration", "stage", "launch_thread", "launch_start", "start",
                "end", "graph_node", innermost="range", name=name,
                kernel=pl.coalesce(pl.col("short_name").cast(pl.String), name))
        .collect()
    )  # fmt: skip
    kernels = _with_captures(trace, kernels)
    name = pl.col("name")
    told = kernels.select("name").unique().with_columns(
        multiplies=multiplies(name), is_on_tensor_cores=on_tensor_cores(name)
    )  # fmt: skip
    return kernels.join(told, on="name", how="left", nulls_equal=True, maintain_order="left")


def _with_captures(trace: Trace, kernels: pl.DataFrame) -> pl.DataFrame:
    """Add where an operator launched each kernel: ``asked_thread, asked_start``, and ``replay``.

    A kernel that a CUDA graph replays is of the operator that its node was captured in, once for
    each replay: ``replay`` is the time of that, null of other kernels.
    """
    node = ["process", "graph_node"]
    nodes = trace.read("graph_nodes").sort("time").unique(node, keep="first", maintain_order=True)
    found = kernels.join(
        nodes.select(*node, "thread", "time"), on=node, how="left", maintain_order="left"
    )
    return found.with_columns(
        asked_thread=pl.coalesce("thread", "launch_thread"),
        asked_start=pl.coalesce("time", "launch_start"),
        replay=pl.when(pl.col("time").is_not_null()).then("launch_start"),
    ).drop("graph_node", "thread", "time", "launch_thread", "launch_start")


def _of_others(trace: Trace, kernels: pl.DataFrame) -> pl.DataFrame:
    """Add the operator that launched a kernel, and the sizes and types of its arguments."""
    named = named_operators(trace).rename({"range": "innermost"})
    return kernels.join(named, on="innermost", how="left").with_columns(range="innermost")


def _owned(kernels: pl.DataFrame, counted: pl.DataFrame) -> pl.DataFrame:
    """Add ``range``: the operator in which its thread launched a kernel, or captured its node."""
    spans = counted.select("range", asked_thread="thread", begun="start", until="end")
    found = kernels.sort("asked_start").join_asof(
        spans.sort("begun"), left_on="asked_start", right_on="begun", by="asked_thread",
        check_sortedness=False,
    )  # fmt: skip
    inside = pl.col("asked_start") <= pl.col("until")
    return found.with_columns(range=pl.when(inside).then("range")).drop("begun", "until")


def _of_operators(kernels: pl.DataFrame, counted: pl.DataFrame, *, causal: bool) -> pl.DataFrame:
    """Return the operators that launched a kernel, with what its kernels tell."""
    longest = kernels.with_columns(precision=precision_by_name(pl.col("name"))).sort(
        "multiplies", _LENGTH, "start", descending=[True, True, False]
    )
    name = pl.col("name")
    told = longest.group_by("range", "replay", maintain_order=True).agg(
        *(pl.col(column).first() for column in _OF_KERNEL),
        by_name=_by_what_multiplies(),
        kernels=pl.len(),
        kernel_ns=_LENGTH.sum(),
        **{name: each.sum() for name, each in _ON_TENSOR_CORES.items()},
        element_bytes=_only(element_bytes(name)),
        weight=of_weight(name).any(),
        input=of_input(name).any(),
        others=(pl.col("multiplies") & ~of_weight(name) & ~of_input(name)).any(),
    )
    rows = (
        counted.drop("process")
        .join(told, on="range")
        .with_columns(
            precision=pl.coalesce("by_name", precision_by_type(pl.col("types"))), **_wanted()
        )
    )
    wanted = pl.col("wants_input").cast(pl.Int64) + pl.col("wants_weight").cast(pl.Int64)
    is_backward = pl.col("form").is_in(GRADIENTS)
    factor = pl.when(is_backward).then(pl.coalesce("gradients", wanted)).otherwise(1)
    found = with_bytes(rows.with_columns(flops=pl.col("flops") * factor))
    if not causal:
        return found
    return found.with_columns(flops=pl.col("flops") // pl.when("causal").then(2).otherwise(1))


def _by_what_multiplies() -> pl.Expr:
    """Return the precision that kernels' names tell: of those that multiply, if there are any.

    A transpose of two bytes an element is named after halves, whatever it moves.
    """
    own = pl.col("precision").filter(pl.col("multiplies")).drop_nulls().first()
    every = pl.col("precision").drop_nulls().first()
    return pl.when(pl.col("multiplies").any()).then(own).otherwise(every)


def _only(values: pl.Expr) -> pl.Expr:
    """Return the value that all rows share which have one."""
    known = values.drop_nulls()
    return pl.when(known.n_unique() == 1).then(known.first())


def _wanted() -> dict[str, pl.Expr]:
    """Return which gradients a backward convolution finds: an argument says it, or its kernels."""
    told = [pl.col("mask").list.get(place, null_on_oob=True) for place in (0, 1)]
    by_kernels = pl.when(pl.col("weight") & ~pl.col("others"))
    unsaid = pl.col("gradients").is_null()
    return {
        "wants_input": pl.when(unsaid).then(by_kernels.then("input")).otherwise(told[0]),
        "wants_weight": pl.when(unsaid).then(by_kernels.then("weight")).otherwise(told[1]),
    }
