"""Time lines in segments: nothing is lost, nothing crosses an edge, lengths add up."""

from __future__ import annotations

import polars as pl
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_builder import TraceBuilder

from tracekit.analysis import breakdown
from tracekit.engine import union_length
from tracekit.engine._stream import feed
from tracekit.model import Trace
from tracekit.support import batches

Row = tuple[int, int, int]
"""Line, start and end."""

ROWS = st.lists(
    st.builds(
        lambda line, start, length: (line, start, start + length),
        st.integers(0, 2),
        st.integers(-30, 30),
        st.sampled_from((0, 1, 2, 3, 20)),
    ),
    max_size=25,
)


def _frame(rows: list[Row]) -> pl.DataFrame:
    schema = {"line": pl.Int32, "start": pl.Int64, "end": pl.Int64}
    return pl.DataFrame(rows, schema=schema, orient="row").with_row_index("row")


def _segments(rows: list[Row], size: int) -> tuple[list[pl.DataFrame], pl.DataFrame | None]:
    frame, taken = _frame(rows), list[pl.DataFrame]()
    edges = feed((frame[at : at + size] for at in range(0, len(rows), size)), "line", taken.append)
    return taken, edges


def _overlaps(row: Row, other: Row) -> bool:
    return row[0] == other[0] and row[1] < other[2] and other[1] < row[2]


@settings(max_examples=examples(200), deadline=None)
@given(rows=ROWS.map(lambda rows: sorted(rows, key=lambda row: row[1])), size=st.integers(1, 30))
def test_segments(rows: list[Row], size: int) -> None:
    taken, edges = _segments(rows, size)
    assert edges is not None
    assert edges.rows() == [
        (line, min(start for _, start, _ in own), max(end for _, _, end in own))
        for line in range(3)
        if (own := [row for row in rows if row[0] == line])
    ]
    assert sorted(row for part in taken for row in part["row"]) == list(range(len(rows)))
    for part in taken:
        assert part["line"].n_unique() == 1
        assert part["start"].is_sorted()
        inside = set(part["row"])
        for number, crowded in part.select("row", "crowded").rows():
            others = {
                n for n, row in enumerate(rows) if n != number and _overlaps(row, rows[number])
            }
            assert others <= inside
            assert crowded or not others
    whole = dict(union_length(_frame(rows), ["line"]).rows())
    added = dict.fromkeys(whole, 0)
    for part in taken:
        added[part["line"][0]] += union_length(part, []).item()
    assert added == whole


def test_most_intervals_that_overlap_nothing_are_known_to() -> None:
    rows = [(0, 10 * n, 10 * n + 10) for n in range(100)]
    taken, _ = _segments(rows, 1000)
    assert sum(part["crowded"].sum() for part in taken) == 1


def test_what_never_ends_is_handed_on_as_one() -> None:
    rows = [(0, 0, 1000), *((0, n, n + 1) for n in range(1, 100))]
    taken, _ = _segments(rows, 7)
    assert [part.height for part in taken] == [100]
    assert union_length(taken[0], []).item() == 1000


@settings(max_examples=examples(100), deadline=None)
@given(rows=ROWS, size=st.integers(1, 30))
def test_intervals_out_of_order_are_noticed(rows: list[Row], size: int) -> None:
    starts = [[start for line, start, _ in rows if line == number] for number in range(3)]
    _, edges = _segments(rows, size)
    assert (edges is None) == any(own != sorted(own) for own in starts)


def _trace(rows: list[Row]) -> Trace:
    builder = TraceBuilder()
    stages, sources = ("FP", "BP", "WU", "OTHER"), ("nvtx", "gradient_exchange", "none")
    for number, (device, start, end) in enumerate(rows):
        builder.op(
            f"kernel {number % 5}", start - 1, device=device, start=start, end=end,
            stage=stages[number * 7 % 4], stage_source=sources[number % 3], stream=number % 2,
            kind="collective" if number % 5 == 2 else "compute",
        )  # fmt: skip
    return builder.trace()


BYS = st.sampled_from(("stage", "kernel", "kind", "range", "stream", "device", "stage,device"))


@settings(max_examples=examples(20, thorough=400), deadline=None)
@given(rows=ROWS.filter(bool), by=BYS, size=st.integers(1, 12), in_order=st.booleans())
def test_neither_batches_nor_the_order_of_ops_matter(
    rows: list[Row], by: str, size: int, in_order: bool
) -> None:
    trace = _trace(rows)
    table, meta = breakdown(trace, by).rows, breakdown(trace).meta
    ops = trace.read("ops")
    # Two reports of one device: the ops of each by start, one after the other.
    other = ops if in_order else pl.concat([ops[::2], ops[1::2]])
    mixed = Trace({**trace.tables, "ops": other.lazy()})
    before, batches.ROWS = batches.ROWS, size
    try:
        found = breakdown(mixed, by)
    finally:
        batches.ROWS = before
    assert found.rows.equals(table)
    ours = {"share", "per", "sum_over"}
    assert {k: v for k, v in found.meta.items() if k not in ours} == {
        k: v for k, v in meta.items() if k not in ours
    }


def test_by_iteration_comes_with_what_the_run_is_measured_by() -> None:
    builder = TraceBuilder()
    for number in range(3):
        builder.iteration(number, 100 * number, 100 * number + 90)
        builder.op("gemm", 100 * number, stage="FP", stage_source="nvtx")
    trace = builder.trace()
    answer = breakdown(trace, "iteration", skip=1)
    table, meta = answer.rows, answer.meta
    assert table.equals(breakdown(trace, "iteration", skip=1).rows)
    whole = dict(breakdown(trace, skip=1).meta)
    del whole["sum_over"]
    share = "busy_ns / window_ns of the iteration"
    assert meta == {**whole, "per": "step/GPU", "share": share}
