"""Which range was open where and when.

A program pushes and pops the ranges of each domain on each thread as a stack. So the ranges of a
thread form a tree, except where domains interleave. They are laid into lanes, each of which nests
properly: one lane for a thread where all ranges nest, else a lane per domain. In a lane, each start
or end of a range begins a segment in which one range is the innermost, so that the innermost range
at any time is an as-of join. What holds for the thread as a whole is the latest-started of what its
lanes say.
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
        Per lane, of which there is at least one: ``thread, time, range``, by time: from `time` on,
        `range` is the innermost.
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
    stacked = ranges.filter(pl.col("style") == "push_pop").select(
        "range", "thread", "domain", "start", "end"
    )
    laid = _laid(stacked)
    lanes = range(max(laid["lane"].n_unique(), 1))
    joined = ranges.select("range", "thread", "start", "end").join(
        laid.select("range", "lane", lane_parent="parent"),
        on="range",
        how="left",
        maintain_order="left",
    )
    unused = stacked.height - laid.height
    warnings = (f"{unused:,} ranges nest in no order and were not used",) if unused else ()
    segments = tuple(_segments(laid.filter(pl.col("lane") == lane)) for lane in lanes)
    return Nesting(joined, segments), warnings


def _laid(ranges: pl.DataFrame) -> pl.DataFrame:
    """Add ``lane`` and ``parent``, the range around each one in its lane."""
    laid = _with_parents(ranges.with_columns(lane=pl.lit(0, pl.Int32)))
    for lanes in (_lane_per_domain, _first_fit):
        tangled = _tangled(laid)
        if not tangled.any():
            break
        threads = laid.filter(tangled)["thread"].unique()
        apart = ranges.filter(pl.col("thread").is_in(threads.implode()))
        apart = apart.with_columns(lane=lanes(apart)).drop_nulls("lane")
        laid = pl.concat([laid.filter(~tangled), _with_parents(apart)])
    return laid


def _tangled(laid: pl.DataFrame) -> pl.Series:
    """Tell of each range whether any range of its thread crosses the end of the one around it."""
    outer = laid.select(parent="range", outer_end="end")
    crosses = (pl.col("outer_end") < pl.col("end")).fill_null(value=False)
    return (
        laid.join(outer, on="parent", how="left", maintain_order="left")
        .select(crosses.any().over("thread"))
        .to_series()
    )


def _lane_per_domain(ranges: pl.DataFrame) -> pl.Series:
    number = pl.col("domain").fill_null("").rank("dense").over("thread")
    return ranges.select(number.cast(pl.Int32) - 1).to_series()


def _first_fit(ranges: pl.DataFrame) -> pl.Series:
    """Return for each range the first lane of its thread in which it crosses none.

    Row by row, for only a damaged recording comes to this: ranges of one domain that cross cannot
    have been pushed and popped.
    """
    threads: dict[int, list[list[int]]] = {}
    chosen: list[int | None] = []
    for thread, start, end in ranges.select("thread", "start", "end").iter_rows():
        lanes = threads.setdefault(thread, [])
        lane = next((n for n, ends in enumerate(lanes) if _fits(ends, start, end)), len(lanes))
        if lane == len(lanes) < _MAX_LANES:
            lanes.append([])
        if lane < len(lanes):
            lanes[lane].append(end)
        chosen.append(lane if lane < len(lanes) else None)
    return pl.Series("lane", chosen, pl.Int32)


def _fits(ends: list[int], start: int, end: int) -> bool:
    while ends and ends[-1] <= start:
        ends.pop()
    return not ends or ends[-1] >= end


def _events(ranges: pl.DataFrame) -> pl.DataFrame:
    """Return the starts and ends of ranges in the order in which they happened.

    At one instant, what began earlier ends first, inner before outer; then ranges start, outer
    before inner, and one without length ends before the next one starts.
    """
    empty = pl.col("start") == pl.col("end")
    keys = ("thread", "lane", "range")
    starts = ranges.select(*keys, time="start", phase=1, order="range", last=0, opens=1)
    ends = ranges.select(
        *keys,
        time="end",
        phase=empty.cast(pl.Int32),
        order=pl.when(empty).then("range").otherwise(-pl.col("range")),
        last=1,
        opens=-1,
    )
    return pl.concat([starts, ends]).sort("thread", "lane", "time", "phase", "order", "last")


def _with_parents(ranges: pl.DataFrame) -> pl.DataFrame:
    """Add the range around each one in its lane: the last that was opened one level up."""
    events = (
        _events(ranges)
        .with_columns(level=pl.col("opens").cum_sum().over("thread", "lane"))
        .with_row_index("position")
        .filter(pl.col("opens") == 1)
        .select("thread", "lane", "range", "position", "level")
    )
    above = events.select("thread", "lane", "position", parent="range", level=pl.col("level") + 1)
    parents = events.join_asof(
        above, on="position", by=["thread", "lane", "level"], check_sortedness=False
    ).select("range", "parent")
    return ranges.join(parents, on="range", how="left", maintain_order="left")


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
