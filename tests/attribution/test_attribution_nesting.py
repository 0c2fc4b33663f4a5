"""Which range was open where and when: literal cases, and against looking at every range."""

from __future__ import annotations

import time
from collections.abc import Sequence

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_builder import TraceBuilder, stages

from tracekit.attribution._nesting import nest, parents_and_depths

Range = tuple[int, int, int]
"""Thread, start, end."""


def _frame(ranges: Sequence[Range], domains: Sequence[str | None] = ()) -> pl.DataFrame:
    """Number ranges; `domains` are those of the ranges in the order of their numbers."""
    numbered = sorted(ranges, key=lambda row: (row[1], -row[2]))
    return pl.DataFrame(
        numbered,
        schema={"thread": pl.Int32, "start": pl.Int64, "end": pl.Int64},
        orient="row",
    ).select(
        pl.int_range(pl.len()).alias("range"),
        pl.all(),
        pl.Series("domain", domains or [None] * len(ranges), pl.String),
        pl.lit("push_pop").alias("style"),
    )


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        ([], []),
        ([(0, 0, 9)], [None]),
        ([(0, 0, 9), (0, 1, 5), (0, 2, 3), (0, 5, 9)], [None, 0, 1, 0]),
        ([(0, 0, 5), (0, 5, 9)], [None, None]),
        ([(0, 0, 9), (1, 1, 5)], [None, None]),
        ([(0, 0, 9), (0, 0, 9), (0, 0, 9)], [None, 0, 1]),
        ([(0, 0, 9), (0, 0, 5), (0, 0, 3)], [None, 0, 1]),
        ([(0, 0, 9), (0, 4, 9), (0, 7, 9)], [None, 0, 1]),
        # A range without length is inside what is open at its time, and nothing is inside it.
        ([(0, 0, 9), (0, 4, 6), (0, 4, 4), (0, 4, 4)], [None, 0, 1, 1]),
        ([(0, 0, 4), (0, 4, 4)], [None, None]),
        # Crossing: 1 outlives 0, so it is inside none; 2 is inside both and nearer to 1.
        ([(0, 0, 10), (0, 5, 15), (0, 6, 9)], [None, None, 1]),
        # 2 comes after 0 has ended, inside 1 alone.
        ([(0, 0, 10), (0, 5, 15), (0, 12, 14)], [None, None, 1]),
        # 2 outlives 0 but not 1.
        ([(0, 0, 10), (0, 5, 15), (0, 6, 12)], [None, None, 1]),
        # 2 is inside 0 but outlives 1.
        ([(0, 0, 10), (0, 1, 5), (0, 4, 8)], [None, 0, 0]),
    ],
    ids=str,
)
def test_parents(ranges: list[Range], expected: list[int | None]) -> None:
    nesting, warnings = nest(_frame(ranges))
    assert warnings == ()
    assert parents_and_depths(nesting)["parent"].to_list() == expected


def _open_at(frame: pl.DataFrame, thread: int, at: int) -> list[int]:
    return [
        number
        for number, owner, start, end, *_ in frame.rows()
        if owner == thread and start <= at < end
    ]


def _naive_parents(frame: pl.DataFrame) -> list[int | None]:
    rows = frame.rows()
    return [
        max(
            (
                other
                for other, owner, begin, finish, *_ in rows[:number]
                if owner == thread and begin <= start < finish and end <= finish
            ),
            default=None,
        )
        for number, thread, start, end, *_ in rows
    ]


def _naive_depth(parents: list[int | None], number: int) -> int:
    above = parents[number]
    return 0 if above is None else 1 + _naive_depth(parents, above)


RANGES = st.lists(
    st.builds(
        lambda thread, start, length: (thread, start, start + length),
        st.integers(0, 1),
        st.integers(-3, 12),
        st.integers(0, 12),
    ),
    max_size=12,
)


DOMAINS = st.lists(st.sampled_from((None, "NCCL", "DALI")), min_size=12, max_size=12)


@settings(max_examples=150, deadline=None)
@given(ranges=RANGES, domains=DOMAINS)
def test_nesting_is_that_of_every_range_and_instant(
    ranges: list[Range], domains: list[str | None]
) -> None:
    frame = _frame(ranges, domains[: len(ranges)])
    nesting, warnings = nest(frame)
    assert warnings == ()
    moments = [(thread, at) for thread in (0, 1, 2) for at in range(-5, 26)]
    queries = pl.DataFrame(
        moments, schema={"thread": pl.Int32, "time": pl.Int64}, orient="row"
    )  # fmt: skip
    lanes = nesting.innermost(queries)
    found = nesting.latest(lanes).to_list() if lanes else [None] * len(moments)
    assert found == [max(_open_at(frame, *moment), default=None) for moment in moments]
    parents = _naive_parents(frame)
    tree = parents_and_depths(nesting)
    assert tree["parent"].to_list() == parents
    assert tree["depth"].to_list() == [_naive_depth(parents, n) for n in range(len(ranges))]


NAMES = ("forward", "backward", "optimizer", "validation", "some layer", "aten::mm")
MEANS = {"forward": "FP", "backward": "BP", "optimizer": "WU"}


@settings(max_examples=60, deadline=None)
@given(
    ranges=st.lists(
        st.tuples(
            st.sampled_from((0, 10)),
            st.integers(0, 40),
            st.integers(0, 40),
            st.sampled_from(NAMES),
        ),
        max_size=10,
    ),
    launches=st.lists(
        st.tuples(st.sampled_from((0, 10)), st.integers(-2, 70)), min_size=1, max_size=12
    ),
)
def test_stage_is_that_of_the_nearest_open_range(
    ranges: list[tuple[int, int, int, str]], launches: list[tuple[int, int]]
) -> None:
    builder = TraceBuilder()
    for thread, start, length, name in ranges:
        builder.range(start, start + length, name, thread=thread)
    for number, (thread, at) in enumerate(launches):
        builder.op(f"op {number}", at, thread=thread)
    numbered = sorted(ranges, key=lambda row: (row[1], -row[1] - row[2]))
    expected = {}
    for number, (thread, at) in enumerate(launches):
        near = [name for own, s, n, name in numbered if own == thread and s <= at < s + n]
        known = [MEANS[name] for name in near if name in MEANS]
        stage = "ME" if "validation" in near else known[-1] if known else None
        expected[f"op {number}"] = (stage or "OTHER", "nvtx" if stage else "none")
    assert stages(builder.attributed()) == expected


def test_start_end_ranges_nest_in_nothing() -> None:
    frame = _frame([(0, 0, 9), (0, 1, 8), (0, 2, 7)]).with_columns(
        style=pl.Series(["push_pop", "start_end", "push_pop"])
    )
    nesting, _ = nest(frame)
    assert parents_and_depths(nesting).rows() == [(0, None, 0), (1, None, None), (2, 0, 1)]


def test_a_deep_stack() -> None:
    depth = 700
    nesting, warnings = nest(_frame([(0, n, 2 * depth - n) for n in range(depth)]))
    assert warnings == ()
    tree = parents_and_depths(nesting)
    assert tree["parent"].to_list() == [None, *range(depth - 1)]
    assert tree["depth"].to_list() == list(range(depth))
    assert nesting.inherited(pl.Series([7] + [None] * (depth - 1))).to_list() == [7] * depth


def test_ranges_that_all_cross_each_other_end_in_a_warning() -> None:
    began = time.monotonic()
    frame = _frame([(0, n, 400 + n) for n in range(300)])
    nesting, warnings = nest(frame)
    tree = parents_and_depths(nesting)
    assert time.monotonic() - began < 20
    assert warnings == ("236 ranges nest in no order and were not used",)
    assert tree["parent"].to_list() == [None] * 300
    assert tree["depth"].to_list() == [0] * 64 + [None] * 236
    assert nesting.inherited(pl.Series(range(300))).to_list() == list(range(300))


@pytest.mark.parametrize("domains", [(None, "profiler"), (None, None)])
def test_a_long_chain_of_crossings(domains: tuple[str | None, str | None]) -> None:
    # Each range outlives the one before it by a little.
    count = 3000
    frame = _frame([(0, 10 * n, 10 * n + 12) for n in range(count)], domains * (count // 2))
    began = time.monotonic()
    nesting, warnings = nest(frame)
    assert time.monotonic() - began < 5
    assert warnings == ()
    assert len(nesting.segments) == 2
    assert parents_and_depths(nesting)["parent"].null_count() == count


def test_domains_that_interleave_have_a_lane_each() -> None:
    ranges = [(0, 0, 40), (1, 0, 40), (0, 10, 50), (1, 10, 30), (0, 20, 30), (0, 25, 45)]
    domains = ["a", "a", "b", "a", "c", "b"]
    frame = _frame(ranges, domains)
    nesting, warnings = nest(frame)
    assert warnings == ()
    assert nesting.ranges["lane"].to_list() == [0, 0, 1, 0, 2, 1]
    assert parents_and_depths(nesting)["parent"].to_list() == [None, None, None, 1, 2, 2]
