"""Find the ranges that are passes: forward, backward, and weight update."""

from __future__ import annotations

import polars as pl

PASSES = ("FP", "BP", "WU")


def passes_of(ranges: pl.DataFrame, training: pl.DataFrame) -> pl.DataFrame:
    """Return the ranges of passes of training threads; a range around passes is none itself.

    An update that holds a forward or backward pass (a closure, or a whole step that a rule calls
    so) is the end of one: what lies in it says what runs, and it ends where the update does. A
    forward range that holds another one, and a backward pass or an update beside it, is a step.

    Parameters
    ----------
    ranges
        The skeleton, or part of it.
    training
        The training threads.
    """
    passes = _passes_on(ranges, training)
    containers = _containers(passes)
    if containers.is_empty():
        return passes.filter(~pl.col("covered"))
    is_container = pl.col("range").is_in(containers.implode())
    in_container = pl.col("around").is_in(containers.implode()).fill_null(value=False)
    said = passes.filter(~is_container & (~pl.col("covered") | in_container))
    ended = passes.filter(is_container & (pl.col("stage") == "WU") & ~pl.col("covered"))
    return pl.concat([_without_clearing(said, in_container), ended.with_columns(start="end")])


def ranges_around_passes(ranges: pl.DataFrame, training: pl.DataFrame) -> pl.Series:
    """Return the ranges named after a pass that enclose passes; see `passes_of`."""
    return _containers(_passes_on(ranges, training))


def _passes_on(ranges: pl.DataFrame, training: pl.DataFrame) -> pl.DataFrame:
    """Return ranges named after passes on training threads, with the enclosing update if any."""
    passes = ranges.filter(pl.col("stage").is_in(PASSES)).join(
        training, on=["process", "thread"], how="semi"
    )
    shared = passes.filter(~pl.col("pushes") & (pl.col("stage") == "WU"))
    if shared.is_empty():
        return passes
    updates = outermost(shared).select("process", update="range", begin="start", until="end")
    found = passes.sort("start").join_asof(
        updates, left_on="start", right_on="begin", by="process", check_sortedness=False
    )
    holds = (pl.col("until") >= pl.col("end")) & (pl.col("update") != pl.col("range"))
    around = pl.coalesce("around", pl.when(holds).then("update"))
    return found.with_columns(around=around).select(passes.columns)


def _without_clearing(passes: pl.DataFrame, in_container: pl.Expr) -> pl.DataFrame:
    """Drop updates that forward passes follow in the same range: they clear gradients.

    A closure clears gradients each time that it is called, which ends no step.
    """
    forward = pl.when(pl.col("stage") == "FP").then("start").max().over("around")
    clears = in_container & (pl.col("stage") == "WU") & (pl.col("start") < forward)
    return passes.filter(~clears.fill_null(value=False))


def _containers(passes: pl.DataFrame) -> pl.Series:
    """Return the ranges around passes that say nothing of what lies in them."""
    if passes["around"].null_count() == passes.height:
        return passes["around"].clear()
    own = passes.select(around="range", own="stage")
    inside = passes.join(own, on="around").group_by("around", "own").agg(
        pl.col("stage").unique().alias("inside")
    )  # fmt: skip
    holds = {stage: pl.col("inside").list.contains(stage) for stage in PASSES}
    forward_holds_a_step = holds["FP"] & (holds["BP"] | holds["WU"])
    return inside.filter(
        ((pl.col("own") == "WU") & (holds["FP"] | holds["BP"]))
        | ((pl.col("own") == "FP") & forward_holds_a_step)
    )["around"]


def outermost(ranges: pl.DataFrame) -> pl.DataFrame:
    """Drop ranges that end no later than an earlier one of their process, but for ends of steps."""
    before = pl.col("end").cum_max().shift(1).over("process", order_by=["start", "range"])
    ends_a_step = (pl.col("stage") == "WU") & (pl.col("start") == pl.col("end"))
    kept = (pl.col("end") > before).fill_null(value=True) | ends_a_step.fill_null(value=False)
    return ranges.filter(kept).sort("start", "range")
