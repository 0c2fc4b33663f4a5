"""Operators with the kernels that they launched, and kernels that multiply without an operator."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.analysis.arithmetic._precision import (
    multiplies,
    of_input,
    of_weight,
    precision_by_name,
    precision_by_type,
)
from tracekit.analysis.operators import backward_nodes, counted_operators, recorded_operators

if TYPE_CHECKING:
    from tracekit.model import Trace

_LENGTH = pl.col("end") - pl.col("start")
_OF_KERNEL = ("process", "device", "iteration", "stage", "kernel")
_COLUMNS = (
    "range", *_OF_KERNEL, "operator", "sizes", "precision", "flops", "kernel_ns",
)  # fmt: skip


def work_done(trace: Trace) -> pl.DataFrame:
    """Return a row per operator that multiplies on a GPU, and per such kernel without one.

    Returns
    -------
    ``range`` (of the operator), ``process, device, iteration, stage, kernel`` (of the kernel that
    took longest), ``operator, sizes, precision, flops`` (null where they are not known), and
    ``kernel_ns``: how long its kernels ran, added up.
    """
    counted = counted_operators(recorded_operators(trace), backward_nodes(trace))
    kernels = _kernels(trace)
    owned = _owned(kernels, counted)
    placed = owned.filter(pl.col("range").is_not_null())
    own = _of_operators(placed, counted)
    others = owned.filter(pl.col("range").is_null() & pl.col("multiplies"))
    alone = others.with_columns(
        precision=precision_by_name(pl.col("name")), kernel_ns=_LENGTH,
        operator=pl.lit(None, pl.String), sizes=pl.lit(None, pl.String),
        flops=pl.lit(None, pl.Int64),
    )  # fmt: skip
    return pl.concat([own.select(_COLUMNS), alone.select(_COLUMNS)])


def _kernels(trace: Trace) -> pl.DataFrame:
    """Return the kernels that compute, and what their names say."""
    name = pl.col("name").cast(pl.String)
    return (
        trace["ops"].filter(pl.col("kind") == "compute")
        .select("process", "device", "iteration", "stage", "launch_thread", "launch_start", "start",
                "end", name=name, kernel=pl.coalesce(pl.col("short_name").cast(pl.String), name))
        .with_columns(multiplies=multiplies(pl.col("name")))
        .collect()
    )  # fmt: skip


def _owned(kernels: pl.DataFrame, counted: pl.DataFrame) -> pl.DataFrame:
    """Add ``range``: the operator in which its thread launched a kernel."""
    spans = counted.select("range", launch_thread="thread", begun="start", until="end")
    found = kernels.sort("launch_start").join_asof(
        spans.sort("begun"), left_on="launch_start", right_on="begun", by="launch_thread",
        check_sortedness=False,
    )  # fmt: skip
    inside = pl.col("launch_start") <= pl.col("until")
    return found.with_columns(range=pl.when(inside).then("range")).drop("begun", "until")


def _of_operators(kernels: pl.DataFrame, counted: pl.DataFrame) -> pl.DataFrame:
    """Return the operators that launched a kernel, with what its kernels tell."""
    longest = kernels.with_columns(precision=precision_by_name(pl.col("name"))).sort(
        "multiplies", _LENGTH, "start", descending=[True, True, False]
    )
    name = pl.col("name")
    told = longest.group_by("range", maintain_order=True).agg(
        *(pl.col(column).first() for column in _OF_KERNEL),
        by_name=pl.col("precision").drop_nulls().first(),
        kernel_ns=_LENGTH.sum(),
        weight=of_weight(name).any(),
        input=of_input(name).any(),
        others=(pl.col("multiplies") & ~of_weight(name) & ~of_input(name)).any(),
    )
    rows = counted.drop("process").join(told, on="range")
    return rows.with_columns(
        flops=_whole(), precision=pl.coalesce("by_name", precision_by_type(pl.col("types")))
    )


def _whole() -> pl.Expr:
    """Return the FLOPs; of a backward convolution those of its gradients.

    Which are wanted is an argument, or the names of the kernels tell.
    """
    by_kernels = pl.when(pl.col("weight") & ~pl.col("others")).then(
        1 + pl.col("input").cast(pl.Int64)
    )
    factor = pl.when(pl.col("form") == "convolution_backward").then(
        pl.coalesce("gradients", by_kernels)
    )
    return pl.col("flops") * factor.when(pl.col("form") != "convolution_backward").then(1)
