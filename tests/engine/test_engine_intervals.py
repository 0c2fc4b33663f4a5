"""Lengths of unions: worked by hand, and against counting every nanosecond."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from tracekit.engine import layered_lengths, union_length

BIG = 1 << 60  # a float cannot tell neighbouring integers of this size apart

Interval = tuple[int, int]


def _intervals(*pairs: Interval) -> pl.DataFrame:
    return pl.DataFrame(pairs, schema={"start": pl.Int64, "end": pl.Int64}, orient="row")


def _covered(pairs: Iterable[Interval]) -> set[int]:
    return {time for start, end in pairs for time in range(start, end)}


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ([], 0),
        ([(3, 8)], 5),
        ([(3, 3)], 0),
        ([(0, 5), (5, 9)], 9),
        ([(0, 5), (7, 9)], 7),
        ([(0, 5), (3, 9)], 9),
        ([(0, 10), (2, 4), (6, 7)], 10),
        ([(0, 10), (2, 4), (9, 12), (4, 5)], 12),
        ([(2, 6), (2, 6), (2, 6)], 4),
        ([(-7, -2), (-4, 3)], 10),
        ([(0, 5), (20, 20), (30, 31)], 6),
        ([(BIG, BIG + 1), (BIG + 2, BIG + 3)], 2),
    ],
    ids=str,
)
def test_union_length(pairs: list[Interval], expected: int) -> None:
    length = union_length(_intervals(*pairs), [])
    assert length.schema == {"length": pl.Int64}
    assert length.item() == expected


def test_union_length_keeps_groups_apart() -> None:
    intervals = pl.DataFrame(
        {
            "device": [0, 0, 1, 1, None, None],
            "stage": ["FP", "FP", "FP", "BP", "BP", "BP"],
            "start": [0, 3, 0, 1, 10, 12],
            "end": [5, 8, 4, 9, 11, 20],
        }
    )
    expected = pl.DataFrame(
        {
            "device": [0, 1, 1, None],
            "stage": ["FP", "BP", "FP", "BP"],
            "length": [8, 8, 4, 9],
        }
    )
    lengths = union_length(intervals, ["device", "stage"])
    assert_frame_equal(lengths, expected, check_row_order=False)


def test_layers_of_a_training_step() -> None:
    # One GPU, 100 us: input, forward, backward; gradients come in while backward still runs, are
    # summed and applied, and the weights go out; then the metric.
    us = pl.DataFrame(
        [
            ("IO", 0, 10), ("FP", 10, 30), ("BP", 30, 60), ("WU", 50, 70), ("WU", 70, 75),
            ("WU", 75, 80), ("WU", 80, 95), ("ME", 95, 98),
        ],
        schema=["layer", "start", "end"],
        orient="row",
    )  # fmt: skip
    lengths = layered_lengths(us, "layer", ("FP", "BP", "WU", "IO", "ME", "OTHER"), [])
    expected = pl.DataFrame(
        {
            "layer": ["FP", "BP", "WU", "IO", "ME"],
            "busy_ns": [20, 30, 45, 10, 3],
            "exposed_ns": [20, 30, 35, 10, 3],
        }
    )
    assert_frame_equal(lengths, expected, check_row_order=False)


def test_layers_where_the_group_is_unknown() -> None:
    intervals = pl.DataFrame(
        {
            "iteration": [0, 0, None, None],
            "layer": ["a", "b", "a", "b"],
            "start": [0, 3, 10, 15],
            "end": [5, 8, 20, 30],
        }
    )
    lengths = layered_lengths(intervals, "layer", ("a", "b"), ["iteration"])
    expected = pl.DataFrame(
        {
            "iteration": [0, 0, None, None],
            "layer": ["a", "b", "a", "b"],
            "busy_ns": [5, 5, 10, 15],
            "exposed_ns": [5, 3, 10, 10],
        }
    )
    assert_frame_equal(lengths, expected, check_row_order=False)


def test_a_layer_that_is_always_covered_is_exposed_for_no_time() -> None:
    intervals = pl.DataFrame({"layer": ["b", "a"], "start": [2, 0], "end": [4, 9]})
    lengths = layered_lengths(intervals, "layer", ("a", "b", "c"), [])
    expected = pl.DataFrame({"layer": ["a", "b"], "busy_ns": [9, 2], "exposed_ns": [9, 0]})
    assert_frame_equal(lengths, expected, check_row_order=False)


def test_layers_of_nothing() -> None:
    nothing = pl.DataFrame(schema={"layer": pl.String, "start": pl.Int64, "end": pl.Int64})
    assert layered_lengths(nothing, "layer", ("a", "b"), []).height == 0
    grouped = nothing.with_columns(device=pl.lit(0))
    assert layered_lengths(grouped, "layer", ("a", "b"), ["device"]).height == 0


LAYERS = ("a", "b", "c")
ROWS = st.lists(
    st.tuples(
        st.sampled_from([0, 1, None]),
        st.sampled_from(LAYERS),
        st.integers(-12, 12),
        st.integers(0, 9),
    ),
    max_size=14,
)
OFFSETS = st.sampled_from([0, BIG, -BIG])


@settings(max_examples=examples(120), deadline=None)
@given(rows=ROWS, offset=OFFSETS)
def test_lengths_count_nanoseconds(
    rows: list[tuple[int | None, str, int, int]], offset: int
) -> None:
    frame = pl.DataFrame(
        [(group, layer, offset + s, offset + s + n) for group, layer, s, n in rows],
        schema={"group": pl.Int64, "layer": pl.String, "start": pl.Int64, "end": pl.Int64},
        orient="row",
    )  # fmt: skip
    expected = set()
    for group, layer in {(row[0], row[1]) for row in rows}:
        own, above = (
            _covered((s, s + n) for g, name, s, n in rows if g == group and name in names)
            for names in ((layer,), LAYERS[: LAYERS.index(layer)])
        )
        expected.add((group, layer, len(own), len(own - above)))
    layered = layered_lengths(frame, "layer", LAYERS, ["group"])
    assert layered.columns == ["group", "layer", "busy_ns", "exposed_ns"]
    assert set(layered.rows()) == expected
    assert layered.height == len(expected)
    exposed = layered.group_by("group").agg(length=pl.col("exposed_ns").sum())
    assert_frame_equal(union_length(frame, ["group"]), exposed, check_row_order=False)
    whole = union_length(frame, []).item()
    assert whole == len(_covered((s, s + n) for _, _, s, n in rows))
    assert layered_lengths(frame, "layer", LAYERS, [])["exposed_ns"].sum() == whole
