"""Find the ranges that are passes: forward, backward and weight update."""

from __future__ import annotations

import polars as pl

PASSES = ("FP", "BP", "WU")


def passes_of(ranges: pl.DataFrame, training: pl.DataFrame) -> pl.DataFrame:
    """Return the ranges that mark passes on training threads, without those that enclose passes.

    An update range that contains a forward or backward pass (a closure, or a whole step that a rule
    calls an update) is no pass itself: the ranges inside are the passes, and the end of the update
    range is kept as the end of a step. A forward range that contains another forward range, and
    next to that one a backward pass or an update, is a step, not a pass. `ranges` are those that
    may mark steps, passes or evaluation; `training` is the training thread of each process.
    """
    passes = _passes_on(ranges, training)
    containers = _containers(passes)
    if containers.is_empty():
        return passes.filter(~pl.col("covered"))
    is_container = pl.col("range").is_in(containers.implode())
    in_container = pl.col("around").is_in(containers.implode()).fill_null(value=False)
    marked = passes.filter(~is_container & (~pl.col("covered") | in_container))
    ended = passes.filter(is_container & (pl.col("stage") == "WU") & ~pl.col("covered"))
    return pl.concat([_without_clearing(marked, in_container), ended.with_columns(start="end")])


def ranges_around_passes(ranges: pl.DataFrame, training: pl.DataFrame) -> pl.Series:
    """Return the ranges named after a pass that enclose other passes; see `passes_of`."""
    return _containers(_passes_on(ranges, training))


def _passes_on(ranges: pl.DataFrame, training: pl.DataFrame) -> pl.DataFrame:
    """Return the ranges named after passes on training threads, with the update range around each.

    The name implies forward, backward or update; the ranges need not be passes (see `passes_of`).
    """
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
    """Drop update ranges followed by a forward pass inside the same enclosing range.

    They only clear gradients, as an optimizer's closure does on each call, and end no step.
    `in_container` is true for ranges inside a range that is named after a pass but encloses passes.
    """
    forward = pl.when(pl.col("stage") == "FP").then("start").max().over("around")
    clears = in_container & (pl.col("stage") == "WU") & (pl.col("start") < forward)
    return passes.filter(~clears.fill_null(value=False))


def _containers(passes: pl.DataFrame) -> pl.Series:
    """Return ranges named after a pass that enclose other passes, and so are not passes."""
    if passes["around"].null_count() == passes.height:
        return passes["around"].clear()
    containers = passes.select(around="range", own="stage")
    inside = passes.join(containers, on="around").group_by("around", "own").agg(
        pl.col("stage").unique().alias("inside")
    )  # fmt: skip
    holds = {stage: pl.col("inside").list.contains(stage) for stage in PASSES}
    forward_holds_a_step = holds["FP"] & (holds["BP"] | holds["WU"])
    return inside.filter(
        ((pl.col("own") == "WU") & (holds["FP"] | holds["BP"]))
        | ((pl.col("own") == "FP") & forward_holds_a_step)
    )["around"]


def outermost(ranges: pl.DataFrame) -> pl.DataFrame:
    """Drop ranges that end no later than a range of their process that started before them.

    Weight updates of zero length are kept, as they mark the end of a step.
    """
    return ranges.filter(_OUTERMOST).sort("start", "range")


_BEFORE = pl.col("end").cum_max().shift(1).over("process", order_by=["start", "range"])
_ENDS_A_STEP = (pl.col("stage") == "WU") & (pl.col("start") == pl.col("end"))
_OUTERMOST = (pl.col("end") > _BEFORE).fill_null(value=True) | _ENDS_A_STEP.fill_null(value=False)
