"""Backward work launched by another thread than the one with the ranges."""

from __future__ import annotations

import polars as pl

from tracekit.attribution._chosen import CHOSEN
from tracekit.attribution._passes import outermost, passes_of


def backward_windows(
    ranges: pl.DataFrame, training: pl.DataFrame, iterations: pl.DataFrame
) -> pl.DataFrame:
    """Return when each process may be running its backward pass.

    Those are the backward ranges of its training thread. Where it has none, they are the gaps
    between the end of a forward range and the last weight update before the next forward range (or
    that range, if there is none), inside an iteration.

    Returns
    -------
    ``process, start, end, unit, ranged`` by start: `unit` numbers what one backward pass is (a
    range, or an iteration), `ranged` tells which of the two kinds a window is.
    """
    passes = passes_of(ranges.filter(~pl.col("evaluates")), training)
    marked = outermost(passes.filter(pl.col("stage") == "BP")).select(
        "process", "start", "end", unit="range", ranged=pl.lit(value=True)
    )
    silent = passes.join(marked, on="process", how="anti")
    return pl.concat([marked, _gaps(silent, iterations)]).sort("start")


def _gaps(passes: pl.DataFrame, iterations: pl.DataFrame) -> pl.DataFrame:
    steps = iterations.select("process", "iteration", "start", step_end="end").sort("start")
    forward, update = pl.col("stage") == "FP", pl.col("stage") == "WU"
    return (
        outermost(passes)
        .sort("start")
        .join_asof(steps, on="start", by="process", check_sortedness=False)
        .filter(pl.col("start") < pl.col("step_end"))
        .with_columns(turn=forward.cum_sum().over("process", "iteration"))
        .filter(pl.col("turn") > 0)
        .group_by("process", "iteration", "turn", maintain_order=True)
        .agg(
            pl.col("start", "end", "step_end").first(),
            # Gradients may be cleared before they are made, so the last update is the one.
            update=pl.col("start").filter(update).last(),
        )
        .with_columns(next=pl.col("start").shift(-1).over("process"))
        .filter(pl.col("end") <= pl.col("step_end"))
        .select(
            "process",
            start="end",
            end=pl.min_horizontal(pl.coalesce("update", "next"), "step_end"),
            unit="iteration",
            ranged=pl.lit(value=False),
        )
    )


def autograd_threads(
    launches: pl.DataFrame,
    windows: pl.DataFrame,
    threads: pl.DataFrame,
    marked: pl.Series,
    training: pl.DataFrame,
) -> pl.Series:
    """Return the threads that run backward passes: named so, marked so, or behaving so.

    Parameters
    ----------
    launches
        ``thread, during, inside, served``: how many launches each thread has between the first and
        the last window of its process, how many inside windows, and in how many units of these.
    windows
        ``process, number``: the windows that were recorded whole, with the number of their unit.
    threads
        The threads, with what their names mean.
    marked
        Threads that carry autograd markers.
    training
        The training threads, which are never autograd threads, as data loaders are not.
    """
    behaving = _behaving(launches, threads, windows)
    qualifies = (
        pl.col("autograd") | pl.col("thread").is_in(marked.implode())
        | pl.col("thread").is_in(behaving.implode())
    )  # fmt: skip
    return threads.filter(
        qualifies
        & ~pl.col("thread").is_in(training["thread"].implode())
        & pl.col("stage").is_null()
    )["thread"]


def _behaving(launches: pl.DataFrame, threads: pl.DataFrame, windows: pl.DataFrame) -> pl.Series:
    """Return threads that launch in almost every backward window, and almost only there."""
    units = windows.group_by("process").agg(units=pl.col("number").n_unique())
    units_or_none = pl.col("units").fill_null(0)
    return (
        launches.join(threads.select("thread", "process"), on="thread")
        .join(units, on="process", how="left")
        .filter(
            (pl.max_horizontal(units_or_none, "served") > 1)
            & (pl.col("during") > 0)
            & (pl.col("inside") >= CHOSEN.served * pl.col("during"))
            & (pl.col("served") >= CHOSEN.served * units_or_none)
        )["thread"]
    )
