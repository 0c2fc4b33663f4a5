"""What is grouped by the path of a range goes by the path, and shows its text."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
from compared_traces import compare
from polars.testing import assert_frame_equal
from trace_builder import TraceBuilder

from tracekit.analysis import breakdown
from tracekit.analysis.overview import query
from tracekit.engine import range_paths
from tracekit.model import PATH_TEXTS, Trace, combine

NO_CALL = "(no launching call)"


def _nested(*chains: Sequence[str], length: int = 10) -> Trace:
    """A trace in which the innermost range of each chain launches an op of `length`."""
    builder = TraceBuilder()
    for number, names in enumerate(chains):
        at = 1000 * number
        for depth, name in enumerate(names):
            builder.range(at + depth, at + 900 - depth, name)
        builder.op("gemm", at + 100, start=at + 110, end=at + 110 + length)
    builder.op("alone", start=900, end=903)
    return builder.attributed()


def _busy(table: pl.DataFrame) -> list[tuple[str | None, int]]:
    return table.select("range", "busy_ns").rows()


def test_equal_paths_are_one_and_rows_are_sorted_by_text() -> None:
    trace = _nested(("fit", "b"), ("fit", "a"), ("fit", "b"), ("c",), ("fit",))
    assert _busy(breakdown(trace, "range").rows) == [
        ("fit > b", 20), ("c", 10), ("fit", 10), ("fit > a", 10), (NO_CALL, 3),
    ]  # fmt: skip


def test_paths_of_the_same_text_are_not_one() -> None:
    # A name may hold what stands between labels, and deep paths are not shown in full.
    trace = _nested(("a", "b"), ("a > b",))
    assert _busy(breakdown(trace, "range").rows)[:2] == [("a > b", 10), ("a > b", 10)]
    odd, even = (["x"] * 8 + ["middle", f"m{n}"] + ["x"] * 24 for n in range(2))
    found = _busy(breakdown(_nested(odd, even, odd), "range").rows)[:2]
    assert found[0][0] == found[1][0] == " > ".join(["x"] * 8 + ["... (2 more)"] + ["x"] * 24)
    assert [busy for _, busy in found] == [20, 10]


def test_statistics_over_iterations_are_of_the_same_paths() -> None:
    builder = TraceBuilder()
    for number in range(3):
        at = 100 * number
        builder.range(at, at + 90, f"step {number}")
        for place, names in enumerate((("a", "b"), ("a > b",))):
            begin = at + 30 * place + 1
            for depth, name in enumerate(names):
                builder.range(begin + depth, begin + 25, name)
            took = 5 + place + number
            builder.op("gemm", begin + 5, start=begin + 6, end=begin + 6 + took)
    table = breakdown(builder.attributed(), "range", per_iteration=True).rows
    assert table.select("range", "busy_ns", "p5_ns", "median_ns", "p95_ns").rows() == [
        ("step N > a > b", 21, 6, 7, 8), ("step N > a > b", 18, 5, 6, 7),
    ]  # fmt: skip


def test_paths_of_two_runs_are_compared_whatever_their_numbers() -> None:
    a = _nested(("fit", "forward"), ("other",))
    b = _nested(("before",), ("fit", "forward"), length=15)
    table = compare(a, b, "range").table
    assert table.select("range", "a_ns", "b_ns", "only_in").rows() == [
        ("before", 0.0, 15.0, "B"), ("other", 10.0, 0.0, "A"), ("fit > forward", 10.0, 15.0, None),
        (NO_CALL, 3.0, 3.0, None),
    ]  # fmt: skip


def test_paths_of_several_reports_are_one() -> None:
    both = combine([_nested(("x",), ("fit", "forward")), _nested(("fit", "forward"), ("y",))])
    assert sorted(breakdown(both, "range").rows.select("range", "ops").rows()) == [
        (NO_CALL, 2), ("fit > forward", 2), ("x", 1), ("y", 1),
    ]  # fmt: skip


def test_texts_can_be_queried() -> None:
    trace = _nested(("fit", "b"), ("fit", "a"), ("fit", "b"))
    texts = range_paths(trace)
    assert texts.schema == PATH_TEXTS.schema
    assert_frame_equal(texts, PATH_TEXTS.conform(pl.DataFrame(
        {"path": [0, 1, 2], "text": ["fit", "fit > b", "fit > a"]}
    )))  # fmt: skip
    found = query(
        trace,
        "SELECT text, count(*) AS times FROM ranges JOIN path_texts USING (path) "
        "GROUP BY path, text ORDER BY times DESC, text",
        {"path_texts": lambda: range_paths(trace)},
    )
    assert found.rows() == [("fit", 3), ("fit > b", 2), ("fit > a", 1)]
