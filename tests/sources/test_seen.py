"""What is noticed of rows on the way in: against polars."""

from __future__ import annotations

import polars as pl
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from tracekit.sources._launch_size import LAUNCH_SIZE, launch_size
from tracekit.sources._seen import OPEN, WHO, Seen
from tracekit.support.spool import Workspace

GREATEST = (1 << 63) - 1
IDS = st.sampled_from([None, 0, -1, 1, 1 << 24, (1 << 24) + 1, 1 << 32, GREATEST, ~GREATEST])
PAIRS = st.lists(st.tuples(IDS, IDS | st.integers(0, 200)), max_size=60)


@settings(max_examples=examples(100), deadline=None)
@given(batches=st.lists(PAIRS, max_size=4))
def test_distinct_identities_are_all_there(batches: list[list[tuple[int, int]]]) -> None:
    schema = {"process_gid": pl.Int64, "ordinal": pl.Int64}
    frames = [pl.DataFrame(batch, schema, orient="row") for batch in batches]
    rows = (frame.with_columns(start=pl.lit(0, pl.Int64), end=1) for frame in frames)
    found = Seen(rows, Workspace(), "process_gid", "ordinal", "never there").distinct
    wanted = pl.concat([pl.DataFrame(schema=schema), *frames]).unique()
    assert found["never there"].null_count() == found.height
    assert_frame_equal(found.select(list(schema)), wanted, check_row_order=False)


@settings(max_examples=examples(100), deadline=None)
@given(batches=st.lists(PAIRS, max_size=4))
def test_numbers_stand_for_identities(batches: list[list[tuple[int, int]]]) -> None:
    schema = {"process_gid": pl.Int64, "ordinal": pl.Int64}
    whole = pl.DataFrame([row for batch in batches for row in batch], schema, orient="row")
    times = iter(range(whole.height))
    frames = [pl.DataFrame(batch, schema, orient="row") for batch in batches]
    timed = [
        frame.with_columns(pl.Series("start", [next(times) for _ in range(frame.height)], pl.Int64))
        for frame in frames
    ]
    rows = (frame.with_columns(end="start") for frame in timed)
    seen = Seen(rows, Workspace(), *schema, "never there", numbered=True)
    assert seen.last == (whole.height - 1 if whole.height else None)
    assert seen.distinct.height == seen.distinct.unique().height == whole.unique().height
    read = [seen.rows.read(number) for number in range(len(seen.rows.heights))]
    assert all(set(chunk.columns) == {"start", "end", WHO} for chunk in read)
    found = [seen.distinct.select(list(schema))[chunk[WHO]] for chunk in read]
    assert_frame_equal(pl.concat([whole.clear(), *found]), whole)


def test_an_open_end_is_not_the_latest_time() -> None:
    rows = pl.DataFrame({"start": [1, 4, 2], "end": [OPEN, OPEN, 3], "process_gid": 0})
    assert Seen([rows], Workspace(), "process_gid").last == 4
    assert Seen([rows.filter(pl.col("end") == OPEN)], Workspace(), "process_gid").last == 4
    assert Seen([rows[2:], rows[:1]], Workspace(), "process_gid").last == 3
    assert Seen([rows[:0]], Workspace(), "process_gid").last is None


SIZES = st.sampled_from([None, -1, 0, 1, 2, 1 << 10, 1 << 21, 1 << 62, GREATEST])


def _size(numbers: tuple[int | None, ...]) -> int | None:
    product = 1
    for number in numbers:
        if number is None:
            return None
        product *= number
    return product if 1 <= product <= 1 << 62 else None


@settings(max_examples=examples(100), deadline=None)
@given(rows=st.lists(st.tuples(*[SIZES | st.integers(1, 64)] * len(LAUNCH_SIZE)), max_size=5))
def test_launch_sizes_are_products_that_can_be(rows: list[tuple[int | None, ...]]) -> None:
    kernels = pl.DataFrame(rows, dict.fromkeys(LAUNCH_SIZE, pl.Int64), orient="row")
    assert launch_size(kernels).to_list() == [_size(row) for row in rows]


@pytest.mark.parametrize("dtype", [pl.Int8, pl.Int64])
@pytest.mark.parametrize(
    "rows",
    [
        [(1,) * 6] * 2,
        [(1,) * 6, (1, 1, None, 1, 1, 1)],
        [(1, 3, 1, 32, 1, 1), (1, 5, 1, 64, 1, 1)],
        [(127,) * 6],
        [(64, 64, 64, 64, 64, 1), (64, 64, 64, 64, 127, 1)],
    ],
    ids=["ones", "one unknown", "few", "beyond 32 bits", "around 32 bits"],
)
def test_launch_sizes_of_numbers_in_few_bits(
    rows: list[tuple[int | None, ...]], dtype: type[pl.DataType]
) -> None:
    kernels = pl.DataFrame(rows, dict.fromkeys(LAUNCH_SIZE, dtype), orient="row")
    assert launch_size(kernels).to_list() == [_size(row) for row in rows]
