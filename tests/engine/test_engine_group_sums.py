"""Sums by group, found in one go over ops by start, against every nanosecond of every window."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from statistics import median

import numpy as np
import polars as pl
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.engine import (
    GroupTally,
    GroupTotals,
    Named,
    _group_sums,
    _lines,
    median_lengths,
)
from tracekit.engine._group_sums import Durations
from tracekit.engine._lines import Numbers
from tracekit.model import KIND
from tracekit.support import compiled as _compiled

Op = tuple[int, int, int, str, str, int | None]
"""Process, start, end, kind, name, and the range, 0 to 2, or none."""
PATHS = ("a", "b", "a")
KINDS = ("compute", "collective", "h2d")
OPS = st.lists(
    st.builds(
        lambda process, start, length, *rest: (process, start, start + length, *rest),
        st.integers(0, 1), st.integers(0, 30), st.sampled_from((0, 1, 3, 15)),
        st.sampled_from(KINDS), st.sampled_from(("x", "y")), st.none() | st.integers(0, 2),
    ),
    min_size=1, max_size=20,
).map(lambda ops: sorted(ops, key=lambda op: op[1]))  # fmt: skip
EDGES = st.sets(st.integers(-3, 40), min_size=2, max_size=6).map(sorted)
LOOPS = pytest.mark.parametrize("rows", [0, 1 << 30], ids=["compiled", "as it stands"])
RANGE = Named(("range",), pl.col("range"), pl.Series(PATHS))
Key = tuple[str, str | None]


def _frame(ops: list[Op]) -> pl.DataFrame:
    rows = [(process, process, *rest) for process, *rest in ops]
    schema = {
        "process": pl.Int32, "device": pl.Int32, "start": pl.Int64, "end": pl.Int64, "kind": KIND,
        "name": pl.Categorical, "range": pl.Int64,
    }  # fmt: skip
    return pl.DataFrame(rows, schema=schema, orient="row")


def _windows(edges: list[int]) -> list[tuple[int, int, int]]:
    return [(process, begin, end) for process in (0, 1) for begin, end in pairwise(edges)]


def _key(op: Op) -> Key:
    return op[4], None if op[5] is None else PATHS[op[5]]


def _naive(
    ops: list[Op], windows: list[tuple[int, int, int]]
) -> tuple[dict[tuple[int, Key], list[int]], dict[Key, list[int]]]:
    """Return ops, total and busy time of each group in each window, and durations of groups."""
    sums: dict[tuple[int, Key], list[int]] = defaultdict(lambda: [0, 0, 0])
    durations: dict[Key, list[int]] = defaultdict(list)
    for number, (process, begin, until) in enumerate(windows):
        own = [op for op in ops if op[0] == process]
        is_last = until == max(end for owner, _, end in windows if owner == process)
        for op in own:
            _, start, end, *_ = op
            if begin <= start < until or (is_last and start == end == until):
                sums[number, _key(op)][0] += 1
                sums[number, _key(op)][1] += end - start
                durations[_key(op)].append(end - start)
        for now in range(begin, until):
            for key in {_key(op) for op in own if op[1] <= now < op[2]}:
                sums[number, key][2] += 1
    return dict(sums), dict(durations)


def _added(groups: pl.DataFrame) -> dict[tuple[int, Key], list[int]]:
    found: dict[tuple[int, Key], list[int]] = defaultdict(lambda: [0, 0, 0])
    for window, name, path, *sums in groups.rows():
        own = found[window, (name, path)]
        own[:] = [one + other for one, other in zip(own, sums, strict=True)]
    return dict(found)


@LOOPS
@settings(max_examples=examples(20, thorough=400), deadline=None)
@given(ops=OPS, edges=EDGES, size=st.integers(1, 20))
def test_groups_in_windows(rows: int, ops: list[Op], edges: list[int], size: int) -> None:
    windows = _windows(edges)
    table = pl.DataFrame(windows, ["process", "start", "end"], orient="row").with_columns(
        pl.col("process").cast(pl.Int32)
    )
    table = table.with_columns(device="process").with_row_index("window")
    frame = _frame(ops)
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(_compiled, "FEW_ROWS", rows)
        changed.setattr(_compiled, "FEWEST_ROWS", rows)
        changed.setattr(_group_sums, "_ROOM", 1)
        changed.setattr(_lines, "_ROOM", 1)
        tally = GroupTally(["name", "range"], {"range": RANGE}, keeps_durations=True)
        tally.begin(table)
        assert all(tally.add(frame[at : at + size]) for at in range(0, len(ops), size))
    sums, durations = _naive(ops, windows)
    groups = tally.groups()
    assert _added(groups) == sums
    keys = list(dict.fromkeys(groups.select("name", "range").rows()))
    numbers = pl.Series(map(keys.index, groups.select("name", "range").rows()), dtype=pl.Int32)
    whole = tally.sums()
    # As two parts of a run of which one process went over each.
    parts = [GroupTotals.merged([whole.frames()] * number) for number in (1, 2)]
    for sums_of, times in ((whole, 1), (parts[0], 1), (parts[1], 2)):
        some = pl.concat([numbers] * times)
        found = dict(zip(keys, sums_of.durations(some).rows(), strict=True))
        assert found == {key: _statistics(durations.get(key, []) * times)[2:] for key in keys}


def _statistics(lengths: list[int]) -> tuple[float | None, ...]:
    middle = (median(lengths), min(lengths), max(lengths)) if lengths else (None, None, None)
    return (len(lengths), sum(lengths), *middle)


@LOOPS
@given(
    st.lists(
        st.lists(
            st.integers(0, 9) | st.integers(0, 1 << 20) | st.integers(0, 1 << 50), max_size=40
        ),
        min_size=1, max_size=5,
    ),
    st.integers(1, 50),
)  # fmt: skip
def test_the_middle_of_lengths(rows: int, groups: list[list[int]], size: int) -> None:
    lengths = np.array([length for group in groups for length in group], np.int64)
    owners = np.repeat(np.arange(len(groups), dtype=np.int32), [*map(len, groups)])
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(_compiled, "FEW_ROWS", rows)
        changed.setattr(_compiled, "FEWEST_ROWS", rows)
        kept = Durations()
        for at in range(0, lengths.size, size):
            kept.add(owners[at : at + size], lengths[at : at + size])
        numbers = np.arange(len(groups), dtype=np.int32)[::-1].copy()
        found = [each.of(numbers)
                 for each in (kept, Durations.merged([kept.frame()], [len(groups)]))]  # fmt: skip
    assert [each.rows() for each in found] == [[*map(_statistics, reversed(groups))]] * 2


def test_pieces_count_once_and_a_duration_may_be_long() -> None:
    ops = [(0, 0, 5, "compute", "x", 0), (0, 7, 7 + (1 << 33), "compute", "x", 2)]
    pieces = _frame(ops).with_columns(is_first=pl.Series([True, False]))  # type: ignore[arg-type]
    tally = GroupTally(["range"], {"range": RANGE}, of_pieces=True)
    assert tally.add(pieces)
    assert tally.groups().rows() == [(0, "a", 1, 5, 5 + (1 << 33))]
    whole = GroupTally(["name"], {}, keeps_durations=True)
    assert whole.add(_frame(ops))  # type: ignore[arg-type]
    found = whole.sums().durations(pl.Series([0], dtype=pl.Int32))
    assert found.rows() == [((5 + (1 << 33)) / 2, 5, 1 << 33)]


def test_ops_out_of_order_are_noticed() -> None:
    ops: list[Op] = [(0, 5, 9, "compute", "x", None), (0, 4, 6, "compute", "x", None)]
    assert not GroupTally(["name"], {}).add(_frame(ops))
    assert GroupTally(["name"], {}).add(_frame([ops[0], (1, *ops[1][1:])]))


@LOOPS
def test_pairs_of_any_numbers_are_told_apart(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_compiled, "FEW_ROWS", rows)
    monkeypatch.setattr(_compiled, "FEWEST_ROWS", rows)
    # Numbers that differ in the highest or the lowest bits alone, and ids as drivers give them.
    edges = [0, 1, -1, 1 << 62, -(1 << 62), (1 << 63) - 1, -(1 << 63), 1 << 32, (1 << 32) - 1]
    last = np.array([*edges, *(0x7F00_0000_0000 + 4096 * n for n in range(1000))] * 2, np.int64)
    first = np.array([0, -(1 << 31), (1 << 31) - 1] * last.size, np.int32)[: last.size]
    numbers, order = Numbers(), dict[tuple[int, int], int]()
    for at in range(0, last.size, 300):
        some, others = first[at : at + 300], last[at : at + 300]
        before = len(order)
        found, new = numbers.of(some, others)
        pairs = list(zip(some.tolist(), others.tolist(), strict=True))
        for pair in pairs:
            order.setdefault(pair, len(order))
        assert found.tolist() == [order[pair] for pair in pairs]
        assert [pairs[row] for row in new] == list(order)[before:]
    assert len(numbers) == len(order)
    assert list(zip(*(known.tolist() for known in numbers.known), strict=True)) == list(order)


def test_median_lengths_by_several_keys() -> None:
    ops = pl.DataFrame(
        [(0, "x", 4, 0, 3), (1, "x", 4, 0, 9), (0, "x", 4, 5, 6), (0, "x", None, 6, 8),
         (0, None, 4, 8, 8), (0, "x", 4, 9, 19)],
        schema={"device": pl.Int32, "name": pl.Categorical, "launch_size": pl.Int64,
                "start": pl.Int64, "end": pl.Int64},
        orient="row",
    )  # fmt: skip
    found = median_lengths(ops.lazy(), ["device", "name", "launch_size"])
    assert found.rows() == [
        (0, "x", 4, 3.0, 3, 14),
        (1, "x", 4, 9.0, 1, 9),
        (0, "x", None, 2.0, 1, 2),
        (0, None, 4, 0.0, 1, 0),
    ]
    assert median_lengths(ops.clear().lazy(), ["device"]).is_empty()
