"""Sums by stage, found in one go over ops by start, against every nanosecond of every window."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import polars as pl
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_builder import TraceBuilder

from tracekit.analysis import breakdown
from tracekit.engine import NEEDED, Lines, StageTally
from tracekit.engine._launch_groups import thinned
from tracekit.engine._windows import iteration_windows
from tracekit.model import STAGE, STAGE_SOURCE, STAGES
from tracekit.support import compiled as _compiled

Op = tuple[int, int, int, str, str, bool]
"""Process, start, end, stage, source, and whether its launch is known."""
SOURCES = ("nvtx", "gradient_exchange", "none")
OPS = st.lists(
    st.builds(
        lambda process, start, length, stage, source, known: (
            process, start, start + length, stage, source, known,
        ),
        st.integers(0, 1), st.integers(0, 30), st.sampled_from((0, 1, 3, 15)),
        st.sampled_from(STAGES), st.sampled_from(SOURCES), st.booleans(),
    ),
    min_size=1, max_size=20,
).map(lambda ops: sorted(ops, key=lambda op: op[1]))  # fmt: skip
EDGES = st.sets(st.integers(-3, 40), min_size=2, max_size=6).map(sorted)
LOOPS = pytest.mark.parametrize("rows", [0, 1 << 30], ids=["compiled", "as it stands"])


def _frame(ops: list[Op]) -> pl.DataFrame:
    rows = [(p, p, start, end, stage, source, 7 if known else None)
            for p, start, end, stage, source, known in ops]  # fmt: skip
    schema = {
        "process": pl.Int32, "device": pl.Int32, "start": pl.Int64, "end": pl.Int64,
        "stage": STAGE, "stage_source": STAGE_SOURCE, "launch_thread": pl.Int32,
    }  # fmt: skip
    return pl.DataFrame(rows, schema=schema, orient="row")


def _naive(ops: list[Op], windows: list[tuple[int, int, int]]) -> dict[tuple[int, str], list[int]]:
    """Return ops, busy and exposed time of each window and stage that occur together."""
    found: dict[tuple[int, str], list[int]] = defaultdict(lambda: [0, 0, 0])
    for number, (process, begin, until) in enumerate(windows):
        own = [op for op in ops if op[0] == process]
        is_last = until == max(end for owner, _, end in windows if owner == process)
        for _, start, end, stage, _, _ in own:
            if begin <= start < until or (is_last and start == end == until):
                found[number, stage][0] += 1
        for now in range(begin, until):
            running = sorted({STAGES.index(op[3]) for op in own if op[1] <= now < op[2]})
            for place, stage_place in enumerate(running):
                found[number, STAGES[stage_place]][1] += 1
                found[number, STAGES[stage_place]][2] += place == 0
    return found


@LOOPS
@settings(max_examples=examples(60), deadline=None)
@given(ops=OPS, edges=EDGES, size=st.integers(1, 20))
def test_stages_in_windows(rows: int, ops: list[Op], edges: list[int], size: int) -> None:
    windows = [(process, begin, end) for process in (0, 1) for begin, end in pairwise(edges)]
    table = pl.DataFrame(windows, ["process", "start", "end"], orient="row").with_columns(
        pl.col("process").cast(pl.Int32)
    )
    table = table.with_columns(device="process").with_row_index("window")
    frame, tally = _frame(ops), StageTally()
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(_compiled, "FEW_ROWS", rows)
        changed.setattr(_compiled, "FEWEST_ROWS", rows)
        tally.begin(table)
        assert all(tally.add(frame[at : at + size]) for at in range(0, len(ops), size))
    naive = _naive(ops, windows)
    found = {(window, stage): list(rest) for window, stage, *rest in tally.stages().rows()}
    assert found == dict(naive)
    whole = {window: rest for window, *rest in tally.groups().rows()}
    for window in {window for window, _ in naive}:
        own = [sums for (number, _), sums in naive.items() if number == window]
        assert whole[window][0] == sum(sums[0] for sums in own)
        assert whole[window][3] == sum(sums[2] for sums in own)


@settings(max_examples=examples(40), deadline=None)
@given(ops=OPS)
def test_without_windows_each_device_is_one(ops: list[Op]) -> None:
    tally = StageTally()
    assert tally.add(_frame(ops))
    own = {p: [op for op in ops if op[0] == p] for p in sorted({op[0] for op in ops})}
    windows = [(p, min(op[1] for op in of), max(op[2] for op in of)) for p, of in own.items()]
    assert tally.windows().select("device", "start", "end").rows() == windows
    launched = dict(tally.groups().select("window", "launched").rows())
    assert launched == {p: sum(op[5] for op in of) for p, of in own.items()}
    sources = {
        (p, source): (
            sum(op[4] == source for op in of),
            len({t for op in of if op[4] == source for t in range(op[1], op[2])}),
        )
        for p, of in own.items()
        for source in SOURCES
        if any(op[4] == source for op in of)
    }
    assert {tuple(row[:2]): tuple(row[2:]) for row in tally.sources().rows()} == sources


def test_ops_out_of_order_are_noticed() -> None:
    ops = [(0, 5, 9, "FP", "nvtx", True), (0, 4, 6, "FP", "nvtx", True)]
    assert not StageTally().add(_frame(ops))
    assert StageTally().add(_frame([ops[0], (1, *ops[1][1:])]))


@pytest.mark.parametrize("by", ["stage", "iteration", "kernel"])
def test_rows_that_cannot_be_read_are_no_shorter_time(
    by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = TraceBuilder()
    builder.iteration(0, 0, 100)
    for at in (5, 15, 25):
        builder.op("gemm", at, iteration=0)
    trace = builder.trace()
    whole = pl.LazyFrame.collect_batches
    monkeypatch.setattr(
        pl.LazyFrame, "collect_batches", lambda frame, **_: (b[:2] for b in whole(frame))
    )
    with pytest.raises(pl.exceptions.ComputeError, match="1 of its 3 rows cannot be read"):
        breakdown(trace, by)


def test_more_devices_than_there_is_room_for_at_first() -> None:
    ops = [(n, n, n + 2, "FP", "nvtx", True) for n in range(300)]
    tally = StageTally()
    assert all(tally.add(_frame(ops[at : at + 7])) for at in range(0, 300, 7))
    assert tally.groups().rows() == [(n, 1, 1, 2, 2) for n in range(300)]
    assert tally.windows().height == 300


OWNERS = st.lists(st.tuples(*[st.sampled_from([0, 1, 2, -7, 2**31 - 1])] * 2), max_size=20)


@LOOPS
@settings(max_examples=examples(60), deadline=None)
@given(owners=OWNERS, known=st.none() | OWNERS)
def test_lines(
    rows: int, owners: list[tuple[int, int]], known: list[tuple[int, int]] | None
) -> None:
    schema = {"process": pl.Int32, "device": pl.Int32}
    frame = pl.DataFrame(owners, schema=schema, orient="row")
    first = None if known is None else pl.DataFrame(known, schema=schema, orient="row").unique(
        maintain_order=True
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(_compiled, "FEW_ROWS", rows)
        changed.setattr(_compiled, "FEWEST_ROWS", rows)
        lines = Lines(["process", "device"], first)
        found = [*lines.of(frame[:5]), *lines.of(frame[5:])]
    order = list(dict.fromkeys(owners)) if known is None else list(dict.fromkeys(known))
    assert found == [order.index(one) if one in order else -1 for one in owners]
    assert lines.owners.rows() == order


@pytest.mark.parametrize("known", [None, 600])
def test_thousands_of_lines_are_found_without_comparing_all(known: int | None) -> None:
    schema = {"process": pl.Int32, "device": pl.Int32}
    owners = [(n % 70, (7 * n) % 1100) for n in range(1000)] * 2
    order = list(dict.fromkeys(owners))[:known]
    listed = pl.DataFrame(order, schema=schema, orient="row")
    frame = pl.DataFrame(owners, schema=schema, orient="row")
    lines = Lines(["process", "device"], None if known is None else listed)
    found = [line for at in range(0, 2000, 90) for line in lines.of(frame[at : at + 90])]
    assert found == [order.index(one) if one in order else -1 for one in owners]
    assert lines.owners.rows() == order


LAUNCHED = st.lists(
    st.tuples(
        st.integers(0, 1), st.integers(0, 1), st.integers(0, 60), st.sampled_from((0, 2, 9)),
        st.none() | st.integers(0, 60), st.sampled_from(STAGES), st.none() | st.integers(0, 3),
    ),
    min_size=1, max_size=25,
)  # fmt: skip


@settings(max_examples=examples(40, thorough=1000), deadline=None)
@given(ops=LAUNCHED, size=st.integers(1, 25), starts=st.sets(st.integers(0, 50), min_size=1))
def test_thinned_ops_have_the_same_windows(
    ops: list[tuple[int, int, int, int, int | None, str, int | None]], size: int, starts: set[int]
) -> None:
    schema = dict.fromkeys(NEEDED, pl.Int64) | {
        "process": pl.Int32, "device": pl.Int32, "launch_thread": pl.Int32, "stage": STAGE,
    }  # fmt: skip
    frame = pl.DataFrame(
        [(p, d, start, start + length, at, start % 2, stage, own)
         for p, d, start, length, at, stage, own in ops], schema=schema, orient="row",
    )  # fmt: skip
    steps = pl.DataFrame(
        [(p, n, begin, begin + 6, 0, "host", "ranges" if p else "structure")
         for p in (0, 1) for n, begin in enumerate(sorted(starts))],
        ["process", "iteration", "start", "end", "thread", "clock", "source"], orient="row",
    ).cast({"process": pl.Int32})  # fmt: skip
    batches = (frame[at : at + size] for at in range(0, len(ops), size))
    few = thinned(batches, steps)
    by = ["process", "device", "start", "end", "iteration"]
    found, expected = (iteration_windows(some, steps).sort(by) for some in (few, frame))
    assert found.equals(expected)
