"""Time lines in segments: what runs on one device, cut where nothing runs.

No interval crosses an edge of a segment. Lengths of unions, of whatever groups, can therefore be
found of each segment by itself and added up, and a run never needs to be in memory as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import polars as pl


@dataclass
class _Line:
    """What is known of one line while its intervals come in, by start."""

    first: int
    """Where its first interval starts."""
    furthest: int
    """The furthest end so far."""
    latest: int
    """The latest start so far."""
    running: list[pl.DataFrame] = field(default_factory=list)
    """What came since the last lull: it may go on."""
    short: list[pl.DataFrame] = field(default_factory=list)
    """Segments that lie across two batches. They are small and many, and handed on together."""


def feed(
    batches: Iterable[pl.DataFrame], line: str, take: Callable[[pl.DataFrame], None]
) -> pl.DataFrame | None:
    """Hand intervals on in segments.

    Parameters
    ----------
    batches
        ``start, end``, an integer column `line`, and others; on each line by start.
    line
        Column that says on which line an interval lies.
    take
        Is given one or more segments of a line at a time, with a column ``crowded``: false where
        an interval certainly overlaps none other of its line.

    Returns
    -------
    `line`, ``start, end``: where each line begins and ends, in order; or nothing, if the intervals
    of a line turned out not to come by start, and what was handed on is of no use.
    """
    lines: dict[int, _Line] = {}
    for batch in batches:
        for number in batch[line].unique().to_list():
            rows = batch.filter(pl.col(line) == number)
            begin = rows["start"][0]
            known = lines.setdefault(number, _Line(begin, begin, begin))
            if begin < known.latest or not rows["start"].is_sorted():
                return None
            _add(known, rows, take)
        if batch.is_empty():  # so that what adds up knows what it adds up
            take(batch.with_columns(crowded=pl.lit(value=False)))
    for known in lines.values():
        take(pl.concat([*known.short, *known.running]))
    edges = [(number, known.first, known.furthest) for number, known in sorted(lines.items())]
    return pl.DataFrame(edges, [line, "start", "end"], orient="row").cast(pl.Int64)


def _add(line: _Line, rows: pl.DataFrame, take: Callable[[pl.DataFrame], None]) -> None:
    """Hand on what lies between the first and the last lull in `rows`, and keep the rest."""
    begin, furthest = rows["start"][0], line.furthest
    reached = pl.col("end").cum_max().shift(1, fill_value=furthest)
    if begin < furthest:
        reached = pl.max_horizontal(reached, pl.lit(furthest))
    # A lull is before an interval that starts when all earlier ones have ended.
    lull = rows.select(pl.col("start") >= reached).to_series()
    alone = lull & lull.shift(-1, fill_value=False)
    marked = rows.with_columns(crowded=~alone)
    line.furthest = max(furthest, rows["end"].max())  # type: ignore[type-var, assignment]
    line.latest = rows["start"][-1]
    first, last = lull.index_of(element=True), lull.reverse().index_of(element=True)
    if first is None or last is None:
        line.running.append(marked)
        return
    last = rows.height - 1 - last
    line.short += [*line.running, marked[:first]]
    line.running = [marked[last:]]
    if last > first:
        take(marked[first:last])
