"""Tiles: every level adds up to what a plain loop finds of the spans."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.view._tiles import LOOKS, Covered, Spans, Summing, Tiles

TIMES = st.integers(0, 40_000)
SPANS = st.lists(st.tuples(TIMES, st.integers(0, 9_000), st.integers(0, 3)), max_size=30)


def spans(rows: list[tuple[int, int, int]]) -> Spans:
    """Spans of start, length and look."""
    columns = np.array(rows, np.int64).reshape(-1, 3).T
    return Spans(columns[0], columns[0] + columns[1], columns[2])


def tiles_of(lane: Spans, busy: dict[str, Covered], origin: int, *times: int) -> Tiles:
    """Tiles of a lane that is added up from each time to the next; the last one is the end."""
    sums = Summing(len(lane.start), origin, times[-1])
    for begin, until in pairwise([origin, *times[:-1], times[-1] + 1]):
        sums.add(lane, busy, begin, until)
    return sums.tiles()


def covered_ns(rows: list[tuple[int, int, int]], looks: set[int]) -> set[int]:
    return {
        t for start, length, look in rows if look in looks for t in range(start, start + length)
    }


def test_by_hand() -> None:
    rows = [(0, 10, 0), (5, 10, 1), (20, 5, 2), (22, 8, 1)]
    lane = spans(rows)
    exposed = lane.exposed()
    by_stage = exposed.by_look()
    assert list(zip(exposed.start, exposed.end, exposed.look, strict=True)) == [
        (0, 10, 0), (10, 15, 1), (20, 22, 2), (22, 30, 1),
    ]  # fmt: skip
    tiles = tiles_of(lane, by_stage, 0, 9, 22, 30)
    (level,) = tiles.levels
    assert (level.width, level.count.tolist(), level.longest.tolist()) == (1024, [4], [10])
    assert {look: each.tolist() for look, each in level.busy.items()} == {
        "FP": [10], "BP": [13], "WU": [2],
    }  # fmt: skip


@given(SPANS, st.lists(TIMES, max_size=5))
def test_time_that_is_covered(rows: list[tuple[int, int, int]], times: list[int]) -> None:
    lane = spans(rows)
    covered = Covered(lane.start, lane.end)
    moments = covered_ns(rows, {0, 1, 2, 3})
    until = covered.until(np.array(times, np.int64)).tolist()
    assert until == [sum(moment < time for moment in moments) for time in times]
    assert covered.holds(np.array(times, np.int64)).tolist() == [time in moments for time in times]


@given(SPANS)
def test_exposed_time_is_of_the_first_stage(rows: list[tuple[int, int, int]]) -> None:
    found = spans(rows).exposed()
    by_stage = found.by_look()
    assert (found.start[1:] >= found.end[:-1]).all()
    above: set[int] = set()
    for look, name in enumerate(LOOKS[:4]):
        own = covered_ns(rows, {look})
        end = np.array([50_000])
        length = int(by_stage[name].until(end)[0]) if name in by_stage else 0
        assert length == len(own - above)
        above |= own


@settings(max_examples=examples(60))
@given(SPANS, st.integers(1, 64), st.integers(0, 4_000_000), st.lists(TIMES, max_size=4))
def test_sums_of_all_levels_are_those_of_the_spans(
    rows: list[tuple[int, int, int]], stretched: int, origin: int, times: list[int]
) -> None:
    rows = [(origin + start * stretched, length * stretched, look) for start, length, look in rows]
    lane = spans(rows)
    end = max([origin + 1, *lane.end.tolist()])
    cuts = {min(origin + time * stretched, end) for time in times}
    tiles = tiles_of(lane, lane.by_look(), origin, *sorted({*cuts, end}))
    assert [level.width for level in tiles.levels] == [
        tiles.first.width * 4**n for n in range(len(tiles.levels))
    ]
    for level in tiles.levels:
        assert level.count.sum() == len(rows)
        assert level.longest.max() == max([0, *(length for _, length, _ in rows)])
        for look, each in lane.by_look().items():
            assert level.busy[look].sum() == each.until(np.array([end]))[0]
    level = tiles.levels[-1]
    for number in range(len(level.count)):
        begin = origin + number * level.width
        inside = [row for row in rows if begin <= row[0] < begin + level.width]
        assert level.count[number] == len(inside)
        assert level.longest[number] == max([0, *(length for _, length, _ in inside)])


@pytest.mark.parametrize(("spans_of_lane", "width"), [(3, 1 << 24), (4_000, 1 << 20)])
def test_bins_are_full_in_the_mean(spans_of_lane: int, width: int) -> None:
    start = np.linspace(0, 999_999_000, spans_of_lane).astype(np.int64)
    lane = Spans(start, start + 1_000, np.zeros(spans_of_lane, np.int64))
    tiles = tiles_of(lane, lane.by_look(), 0, 1_000_000_000)
    assert tiles.first.width == width
    assert tiles.level(width - 1) is None
    assert tiles.count(0, 1_000_000_000) == spans_of_lane
