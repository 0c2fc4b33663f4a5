"""Time lines, against what they are at every nanosecond."""

from __future__ import annotations

import polars as pl
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.analysis.idle_account import covered, merged, merged_in_batches
from tracekit.analysis.idle_account._timeline import split_at, states
from tracekit.support import batches

INTERVALS = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 30), st.integers(0, 8)), max_size=8
)
SCHEMA = {"key": pl.Int32, "start": pl.Int64, "end": pl.Int64}


def _frame(rows: list[tuple[int, int, int]]) -> pl.DataFrame:
    ends = [(key, start, start + length) for key, start, length in rows]
    return pl.DataFrame(ends, schema=SCHEMA, orient="row")


def test_what_began_last_is_what_is_open() -> None:
    opened = pl.DataFrame(
        {"key": [0, 0, 0], "start": [2, 4, 9], "end": [8, 6, 10], "name": ["a", "b", "c"]}
    )
    marks = states(opened, "key", "name")
    assert marks.rows() == [
        (0, 2, "a"), (0, 4, "b"), (0, 6, "b"), (0, 8, None), (0, 9, "c"), (0, 10, None),
    ]  # fmt: skip
    pieces = pl.DataFrame({"key": [0, 1], "start": [0, 0], "end": [9, 3]})
    assert split_at(pieces, marks, "key", "name").rows() == [
        (0, 0, 2, None), (0, 2, 4, "a"), (0, 4, 6, "b"), (0, 6, 8, "b"), (0, 8, 9, None),
        (1, 0, 3, None),
    ]  # fmt: skip


@settings(max_examples=examples(60), deadline=None)
@given(INTERVALS, INTERVALS)
def test_pieces_are_cut_where_something_opens_or_closes(
    intervals: list[tuple[int, int, int]], pieces: list[tuple[int, int, int]]
) -> None:
    opened = _frame(intervals).with_columns(name=pl.lit("open"))
    whole = _frame(pieces).filter(pl.col("end") > pl.col("start"))
    cut = split_at(whole.with_row_index("number"), states(opened, "key", "name"), "key", "name")
    found = {
        (piece, t, name)
        for piece, _, start, end, name in cut.rows()
        for t in range(start, end)
    }  # fmt: skip
    expected = {
        (piece, t, "open" if any(k == key and s <= t < e for k, s, e, _ in opened.rows()) else None)
        for piece, (key, start, end) in enumerate(whole.rows())
        for t in range(start, end)
    }
    assert found == expected
    assert (cut["end"] - cut["start"]).sum() == len(expected)


def test_intervals_are_merged_by_several_keys_of_any_kind() -> None:
    rows = [
        (None, "a", 1 << 40, 0, 4), (7, "a", 1 << 40, 1, 3), (7, "b", 0, 1, 2),
        (7, "b", 1 << 60, 2, 9), (7, "a", 1 << 40, 3, 5), (None, "a", 1 << 40, 6, 6),
    ]  # fmt: skip
    names = ["device", "stage", "thread", "start", "end"]
    found = merged(pl.DataFrame(rows, names, orient="row"), names[:3])
    assert found.rows() == [*rows[:1], (7, "a", 1 << 40, 1, 5), *rows[2:4], rows[5]]
    stages = pl.DataFrame(rows, names, orient="row").with_columns(
        pl.col("stage").cast(pl.Enum(["b", "a"]))
    )
    assert merged(stages, names[:3]).cast({"stage": pl.String}).equals(found)


@settings(max_examples=examples(60), deadline=None)
@given(INTERVALS, INTERVALS)
def test_what_is_covered(
    intervals: list[tuple[int, int, int]], rows: list[tuple[int, int, int]]
) -> None:
    blocks = merged(_frame(intervals), ["key"])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(batches, "ROWS", 2)
        assert (
            merged_in_batches(_frame(intervals).lazy(), ["key"])
            .sort("key", "start")
            .equals(blocks.sort("key", "start"))
        )
    inside = {(key, t) for key, start, end in _frame(intervals).rows() for t in range(start, end)}
    asked = _frame(rows)
    found = covered(asked, blocks, ["key"], "length")
    assert found.drop("length").rows() == asked.rows()
    assert found["length"].to_list() == [
        len({(key, t) for t in range(start, end)} & inside) for key, start, end in asked.rows()
    ]


def test_what_follows_each_other_says_the_same_as_among_others() -> None:
    """Intervals of which none overlaps another are looked at another way."""
    alone = pl.DataFrame(
        {
            "key": [0, 0, 0, 1],
            "start": [2, 4, 9, 1],
            "end": [4, 6, 10, 2],
            "name": ["a", "b", "c", "d"],
        }
    )
    twice = pl.concat([alone, alone])
    assert states(alone, "key", "name").rows() == states(twice, "key", "name").rows() == [
        (0, 2, "a"), (0, 4, "b"), (0, 6, None), (0, 9, "c"), (0, 10, None), (1, 1, "d"),
        (1, 2, None),
    ]  # fmt: skip
