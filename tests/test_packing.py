"""Columns of whole numbers in as few bytes as hold them."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_series_equal

from tracekit.support.arrays import Bits, packed
from tracekit.support.spool import Spool, Workspace

SIGNED: dict[type[pl.DataType], int] = {pl.Int8: 8, pl.Int16: 16, pl.Int32: 32, pl.Int64: 64}
UNSIGNED: dict[type[pl.DataType], int] = {
    pl.UInt8: 8, pl.UInt16: 16, pl.UInt32: 32, pl.UInt64: 64,
}  # fmt: skip


@st.composite
def columns(draw: st.DrawFn) -> pl.Series:
    """Draw whole numbers of any type, which may lie close together anywhere, and nulls."""
    dtype = draw(st.sampled_from([*SIGNED, *UNSIGNED]))
    least = -(1 << SIGNED[dtype] - 1) if dtype in SIGNED else 0
    most = least + (1 << (SIGNED | UNSIGNED)[dtype]) - 1
    first = draw(st.sampled_from([least, most]) | st.integers(least, most))
    width = draw(st.sampled_from([0, 1, 254, 255, 256, 65_535, 65_536, (1 << 32) - 1, 1 << 32]))
    numbers = st.integers(max(least, first - width), min(most, first + width))
    some = numbers | st.none() if draw(st.booleans()) else numbers
    return pl.Series("n", draw(st.lists(some, max_size=20)), dtype=dtype)


def _size(column: pl.Series, least_gain: int = 0) -> int:
    made = packed(column, least_gain)
    assert made is not None
    return made.size


def _undone(column: pl.Series, least_gain: int, rows: slice) -> pl.Series | None:
    made = packed(column, least_gain)
    first, end, _ = rows.indices(len(column))
    return made.slice(column.name, first, max(end - first, 0)) if made else None


@settings(max_examples=examples(300), deadline=None)
@given(column=columns())
def test_numbers_are_as_they_were(column: pl.Series) -> None:
    for least_gain in (0, 1, 4):
        for rows in (slice(None), slice(1, 3)):
            found = _undone(column, least_gain, rows)
            assert found is not None or least_gain
            if found is not None:
                assert_series_equal(found, column[rows])
                width = len(column) * column.to_numpy().itemsize
                assert least_gain * _size(column, least_gain) <= width


@pytest.mark.parametrize("first", [-(1 << 63), -5, 0, (1 << 63) - 1 - (1 << 32)])
@pytest.mark.parametrize(
    ("most", "bytes_"),
    [(0, 1), (255, 1), (256, 2), (65_535, 2), (65_536, 4), ((1 << 32) - 1, 4), (1 << 32, 8)],
)
def test_numbers_take_as_many_bytes_as_their_differences(
    first: int, most: int, bytes_: int
) -> None:
    column = pl.Series([first, first + most, first], dtype=pl.Int64)
    assert _size(column) == 3 * bytes_
    for least_gain in (2, 4, 8):
        made = packed(column, least_gain)
        assert (made is None) == (least_gain * bytes_ > 8)


def test_of_a_column_that_is_mostly_null_little_is_kept() -> None:
    column = pl.Series([None] * 98 + [1 << 40, None, -7])
    assert _size(column) == 2 * 4 + 2 * 8
    found = _undone(column, 4, slice(97, 101))
    assert found is not None
    assert_series_equal(found, column[97:101])


def _kinds() -> list[pl.Series]:
    texts = pl.Series("t", ["a", "b", None, "a", "c"])
    return [
        texts,
        texts.cast(pl.Categorical),
        texts.drop_nulls().cast(pl.Categorical),
        texts.cast(pl.Enum(["c", "b", "a"])),
        pl.Series("t", [1.5, float("nan"), None, -0.0]),
        pl.Series("t", [True, None, False]),
        pl.Series("t", [None, None], dtype=pl.Int64),
        pl.Series("t", [None, None], dtype=pl.Categorical),
        pl.Series("t", [[1], [], None]),
    ]


@pytest.mark.parametrize("memory", [1, 1 << 30], ids=["file", "memory"])
@pytest.mark.parametrize("column", _kinds(), ids=lambda column: str(column.dtype))
def test_columns_of_all_kinds_are_as_they_were(
    column: pl.Series, memory: int, tmp_path: Path
) -> None:
    spool = Spool(Workspace(tmp_path, memory))
    spool.append(pl.DataFrame([column, pl.int_range(len(column), eager=True).alias("row")]))
    assert_series_equal(spool.read(0, "t").to_series(), column)
    assert_series_equal(spool.read(0, "t", rows=slice(1, 3)).to_series(), column[1:3])


@settings(max_examples=examples(60), deadline=None)
@given(column=columns())
def test_numbers_in_files_are_as_they_were(
    tmp_path_factory: pytest.TempPathFactory, column: pl.Series
) -> None:
    spool = Spool(Workspace(tmp_path_factory.mktemp("spool"), 1))
    spool.append(column.to_frame())
    assert_series_equal(spool.read(0).to_series(), column)


def test_texts_of_few_kinds_are_not_forgotten(tmp_path: Path) -> None:
    """Polars forgets what texts stand for that no column has."""
    dtype = pl.Categorical(pl.Categories("of this test"))
    spool = Spool(Workspace(tmp_path, 1))
    spool.append(pl.DataFrame({"t": ["first", "second"]}, {"t": dtype}))
    gc.collect()
    others = pl.Series(["other", "one", "more"], dtype=dtype)
    assert spool.read(0)["t"].to_list() == ["first", "second"]
    assert others.to_list() == ["other", "one", "more"]


def test_numbers_that_a_file_has_lost_are_an_error(tmp_path: Path) -> None:
    spool = Spool(Workspace(tmp_path, 1))
    spool.append(pl.DataFrame({"n": range(100)}))
    [file] = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(OSError, match="it has become shorter"):
        spool.read(0)
    assert spool.read(0, rows=slice(0, 99)).height == 99


@pytest.mark.parametrize("column", [pl.Series(["a"]), pl.Series([True]), pl.Series([[1]])])
def test_what_is_no_number_is_not_packed(column: pl.Series) -> None:
    assert packed(column) is None


def test_bits_are_read_as_they_were_written() -> None:
    bits = Bits([0, 3, 17])
    assert [each.tolist() for each in bits] == [[], [False] * 3, [False] * 17]
    marked = bits[2]
    marked[[0, 8, 16]] = True
    assert not bits[2].any()  # what is read is a copy
    bits[2] = marked
    assert np.flatnonzero(bits[2]).tolist() == [0, 8, 16]
    assert (len(bits), bits[1].dtype) == (3, np.bool_)
