"""Which range was open where and when.

The push/pop ranges of a thread form a tree, except where domains interleave. They are laid into
lanes, each of which nests properly: the first lane takes every range unless it crosses the end of
the range around it; those that do form the next lane, and so on. In a lane, each start or end of a
range begins a segment in which one range is the innermost, so that the innermost range at any time
is an as-of join. What holds for the thread as a whole is the latest-started of what its lanes say.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

_MAX_LANES = 64


@dataclass(frozen=True)
class Nesting:
    """The open ranges of all threads.

    Parameters
    ----------
    ranges
        All ranges in the order of their number, which is their row; ``thread, start, end, lane``
        (null for a range that does not nest) and ``lane_parent``, the tightest range around it in
        its lane.
    segments
        Per lane: ``thread, time, range``, by time: from `time` on, `range` is the innermost.
    """

    ranges: pl.DataFrame
    segments: tuple[pl.DataFrame, ...]

    def innermost(self, queries: pl.DataFrame) -> list[pl.Series]:
        """Return, lane by lane, the innermost range on each query's ``thread`` at its ``time``."""
        keyed = queries.select("thread", "time").with_row_index("row").sort("time")
        return [
            keyed.join_asof(segments, on="time", by="thread", check_sortedness=False).sort("row")[
                "range"
            ]
            for segments in self.segments
        ]

    def inherited(self, own: pl.Series) -> pl.Series:
        """Return for each range the first non-null of its own value and those around it."""
        return inherited(own, self.ranges["lane_parent"])

    def latest(self, candidates: list[pl.Series]) -> pl.Series:
        """Return, row by row, which of some ranges started last."""
        # Numbers follow start times, outer ranges first, so the largest number is the latest.
        if not candidates:
            return pl.Series("range", [], pl.Int64)
        return pl.select(pl.max_horizontal(*candidates)).to_series()


def inherited(own: pl.Series, above: pl.Series) -> pl.Series:
    """Return, row by row, the first non-null of the own value, that of the row above, and so on."""
    # Pointer doubling: after k rounds each row knows its nearest 2^k ancestors.
    frame = pl.DataFrame({"value": own, "above": above})
    while frame["above"].null_count() < frame.height:
        frame = frame.select(
            value=pl.coalesce("value", pl.col("value").gather("above")),
            above=pl.col("above").gather("above"),
        )
    return frame["value"]


def nest(ranges: pl.DataFrame) -> tuple[Nesting, tuple[str, ...]]:
    """Lay the push/pop ranges of each thread into lanes that nest.

    Parameters
    ----------
    ranges
        The canonical table in the order of its numbers: by start, and of those that start
        together the one that ends last first.
    """
    remaining = ranges.filter(pl.col("style") == "push_pop").select(
        "range", "thread", "start", "end"
    )
    placed: list[pl.DataFrame] = []
    segments: list[pl.DataFrame] = []
    while remaining.height and len(segments) < _MAX_LANES:
        lane, crossing = _lane(remaining)
        placed.append(lane.select("range", "parent", lane=pl.lit(len(segments), pl.Int32)))
        segments.append(_segments(lane))
        remaining = crossing
    columns = {"range": pl.Int64, "parent": pl.Int64, "lane": pl.Int32}
    found = pl.concat([pl.DataFrame(schema=columns), *placed]).rename({"parent": "lane_parent"})
    joined = ranges.select("range", "thread", "start", "end").join(
        found, on="range", how="left", maintain_order="left"
    )
    warnings = (
        (f"{remaining.height:,} ranges nest in no order and were not used",)
        if remaining.height
        else ()
    )
    return Nesting(joined, tuple(segments)), warnings


def _lane(ranges: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Split off the ranges that cross the end of the one around them, until the rest nests."""
    kept, crossing = ranges, ranges.clear()
    while True:
        kept = _with_parents(kept)
        outer = kept.select("range", outer_end="end").rename({"range": "parent"})
        checked = kept.join(outer, on="parent", how="left", maintain_order="left")
        inside = (pl.col("outer_end") >= pl.col("end")).fill_null(value=True)
        if checked.select(inside.all()).item():
            return kept, crossing
        # A range that merely follows one that crossed finds its place when that one is gone.
        crosses = ~inside & (pl.col("start") < pl.col("outer_end"))
        crossing = pl.concat([crossing, checked.filter(crosses).select(crossing.columns)])
        kept = checked.filter(~crosses).select(ranges.columns)


def _events(ranges: pl.DataFrame) -> pl.DataFrame:
    """Return the starts and ends of ranges in the order in which they happened.

    At one instant, what began earlier ends first, inner before outer; then ranges start, outer
    before inner, and one without length ends before the next one starts.
    """
    empty = pl.col("start") == pl.col("end")
    starts = ranges.select("thread", "range", time="start", phase=1, order="range", last=0, opens=1)
    ends = ranges.select(
        "thread",
        "range",
        time="end",
        phase=empty.cast(pl.Int32),
        order=pl.when(empty).then("range").otherwise(-pl.col("range")),
        last=1,
        opens=-1,
    )
    return pl.concat([starts, ends]).sort("thread", "time", "phase", "order", "last")


def _with_parents(ranges: pl.DataFrame) -> pl.DataFrame:
    """Add the range around each one: the last that was opened one level up."""
    events = (
        _events(ranges.drop("parent", strict=False))
        .with_columns(level=pl.col("opens").cum_sum().over("thread"))
        .with_row_index("position")
        .filter(pl.col("opens") == 1)
        .select("thread", "range", "position", "level")
    )
    above = events.select("thread", "position", parent="range", level=pl.col("level") + 1)
    parents = events.join_asof(
        above, on="position", by=["thread", "level"], check_sortedness=False
    ).select("range", "parent")
    return ranges.drop("parent", strict=False).join(
        parents, on="range", how="left", maintain_order="left"
    )


def _segments(lane: pl.DataFrame) -> pl.DataFrame:
    """Return from when on which range of a lane is the innermost."""
    events = _events(lane).join(lane.select("range", "parent"), on="range", maintain_order="left")
    return (
        events.select(
            "thread",
            "time",
            range=pl.when(pl.col("opens") == 1).then("range").otherwise("parent"),
        )
        .unique(["thread", "time"], keep="last", maintain_order=True)
        .sort("time")
    )


def parents_and_depths(nesting: Nesting) -> pl.DataFrame:
    """Return ``range, parent, depth``: the tightest range around each one on its thread.

    In a thread of one lane that is the lane's own tree.
    """
    ranges = nesting.ranges
    parent = _parents_over_lanes(nesting) if len(nesting.segments) > 1 else ranges["lane_parent"]
    frame = pl.DataFrame({"depth": parent.is_not_null().cast(pl.Int32), "above": parent})
    while frame["above"].null_count() < frame.height:
        frame = frame.select(
            depth=pl.col("depth") + pl.col("depth").gather("above").fill_null(0),
            above=pl.col("above").gather("above"),
        )
    nests = ranges["lane"].is_not_null()
    return pl.DataFrame({"range": ranges["range"], "parent": parent}).with_columns(
        depth=pl.select(pl.when(nests).then(frame["depth"])).to_series()
    )


def _parents_over_lanes(nesting: Nesting) -> pl.Series:
    ranges = nesting.ranges
    lanes = nesting.innermost(ranges.select("thread", time="start"))
    candidates = [ranges["lane_parent"], *(_containing(ranges, lane) for lane in lanes)]
    nests = ranges["lane"].is_not_null()
    return pl.select(pl.when(nests).then(nesting.latest(candidates))).to_series()


def _containing(ranges: pl.DataFrame, innermost: pl.Series) -> pl.Series:
    """Climb from each range's candidate to the first one above that contains the range."""
    frame = ranges.select("range", "end", "lane_parent", found=innermost)
    # A range that comes later in the order may have the same times, but is never around this one.
    wrong = (pl.col("found") >= pl.col("range")) | (pl.col("end").gather("found") < pl.col("end"))
    while frame.select(wrong.any()).item():
        climbed = pl.when(wrong).then(pl.col("lane_parent").gather("found")).otherwise("found")
        frame = frame.with_columns(found=climbed)
    return frame["found"]
