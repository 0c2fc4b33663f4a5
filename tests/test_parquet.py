"""Files that this package writes itself, read by polars."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from effort import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from tracekit.model import TABLES
from tracekit.support import parquet
from tracekit.support.compiled import ALWAYS, compiled
from tracekit.support.parquet import _encoding_loops as _loops
from tracekit.support.parquet import _file

pytestmark = pytest.mark.slow

COLOURS = pl.Enum(["red", "green", "", "blue \U0001f7e6", "never"])
TEXTS = st.sampled_from(["", "a", "ä\0b", "kernel<float>(int)", "x" * 300]) | st.text(max_size=5)
VALUES: dict[pl.DataType, st.SearchStrategy[object]] = {
    pl.Int32(): st.sampled_from([-(2**31), 2**31 - 1, 0, 1]) | st.integers(-(2**31), 2**31 - 1),
    pl.Int64(): st.sampled_from([-(2**63), 2**63 - 1, 0, 1]) | st.integers(-(2**63), 2**63 - 1),
    pl.Boolean(): st.booleans(),
    pl.String(): TEXTS,
    pl.Categorical(): TEXTS,
    COLOURS: st.sampled_from(["red", "green", "", "blue \U0001f7e6"]),
}
# A block has 128 differences in parts of 32, and flags come by eight.
HEIGHTS = st.sampled_from([1, 2, 7, 8, 9, 32, 33, 34, 128, 129, 130, 257, 1000])


@st.composite
def columns(draw: st.DrawFn, height: int) -> pl.Series:
    dtype = draw(st.sampled_from(list(VALUES)))
    some = draw(st.lists(VALUES[dtype], min_size=1, max_size=40))
    some += draw(st.sampled_from([[], [None], [None] * 40]))
    picked = draw(st.sampled_from(["random", "sorted", "all null"]))
    random = np.random.default_rng(draw(st.integers(0, 99)))
    places = random.integers(0, len(some), height)
    values = [None if picked == "all null" else some[place] for place in places]
    column = pl.Series(values, dtype=dtype)
    return column.sort() if picked == "sorted" else column


@st.composite
def frames(draw: st.DrawFn) -> pl.DataFrame:
    height = draw(HEIGHTS)
    number = draw(st.integers(1, 8))
    return pl.DataFrame([draw(columns(height)).alias(f"c {n}") for n in range(number)])


@settings(
    max_examples=examples(50),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    frame=frames(),
    rows=st.sampled_from([100, _file.GROUP_ROWS]),
    page=st.sampled_from([8, 40, _file.PAGE_ROWS]),
    some=st.integers(0, 999),
)
def test_what_is_written_is_read_back(
    frame: pl.DataFrame, rows: int, page: int, some: int, tmp_path: Path
) -> None:
    path = tmp_path / "file.parquet"
    assert parquet.can_write(frame)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_file, "GROUP_ROWS", rows)
        patch.setattr(_file, "PAGE_ROWS", page)
        checksum = parquet.write(frame, path)
    assert checksum == zlib.crc32(path.read_bytes())
    assert_frame_equal(pl.read_parquet(path), frame)
    assert_frame_equal(pl.read_parquet(path, columns=[0]), frame[:, :1])
    one = some % frame.height
    assert_frame_equal(pl.scan_parquet(path).slice(one, 3).collect(), frame[one : one + 3])
    is_first = frame[:, 0].eq_missing(frame[one, 0])
    is_same = pl.col("c 0").eq_missing(frame[one, 0])
    assert_frame_equal(pl.scan_parquet(path).filter(is_same).collect(), frame.filter(is_first))
    assert pl.read_parquet_schema(path) == frame.schema


@settings(
    max_examples=examples(20),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(texts=st.lists(st.none() | TEXTS, min_size=1, max_size=300))
def test_texts_that_come_as_categories_are_written_as_texts(
    texts: list[str | None], tmp_path: Path
) -> None:
    frame, path = pl.Series("t", texts, pl.String).to_frame(), tmp_path / "file"
    parquet.write(frame, path, [frame["t"].cast(pl.Categorical)])
    assert_frame_equal(pl.read_parquet(path), frame)


@pytest.mark.parametrize("dtype", [pl.Int32, pl.Int64])
@pytest.mark.parametrize("spread", [0, 1, 40, 1 << 20, 1 << 31])
def test_all_widths_of_differences(dtype: pl.DataType, spread: int, tmp_path: Path) -> None:
    random = np.random.default_rng(spread)
    values = random.integers(-spread - 1, spread, 5_000).clip(-(2**31), 2**31 - 1)
    if dtype == pl.Int64:
        values = values * (1 << 31) + values
    frame = pl.DataFrame({"a": values, "sorted": np.sort(values)}).cast(dtype)
    parquet.write(frame, tmp_path / "file")
    assert_frame_equal(pl.read_parquet(tmp_path / "file"), frame)


@pytest.mark.parametrize("size", [1, 31, 32, 33, 95])
@pytest.mark.parametrize("width", [1, 2, 3, 5, 8, 11, 16, 17, 21, 31])
def test_numbers_are_packed_bit_by_bit(width: int, size: int) -> None:
    values = np.random.default_rng(width).integers(0, 1 << width, size).astype(np.int32)
    out = np.full(3 * _loops.PART * width // 8, 255, np.uint8)
    room = np.empty(_loops.PART, np.uint64)
    end = compiled(_loops.pack, ALWAYS)(values, width, room, out)
    bits = sum(int(value) << width * row for row, value in enumerate(values))
    assert out[:end].tobytes() == bits.to_bytes(-(-size // _loops.PART) * 4 * width, "little")


def test_texts_of_all_sizes(tmp_path: Path) -> None:
    sizes = [0, 1, 255, 256, 257, 65_535, 65_536]
    texts = [letter * size for size in sizes for letter in ("a", "\xe4", "\U0001f7e6")]
    frame = pl.DataFrame({"a": [*texts, None, *texts]})
    frame = frame.with_columns(b=pl.col("a").cast(pl.Categorical))
    parquet.write(frame, tmp_path / "file")
    assert_frame_equal(pl.read_parquet(tmp_path / "file"), frame)


@pytest.mark.parametrize("rows", [1, 2, 128, 129, 130, 1000])
def test_one_number_throughout(rows: int, tmp_path: Path) -> None:
    numbers = {pl.Int32(): (-(2**31), -1, 0, 2**31 - 1), pl.Int64(): (-(2**63), 0, 2**63 - 1)}
    frame = pl.DataFrame(
        pl.repeat(number, rows, dtype=dtype, eager=True).alias(f"{dtype} {number}")
        for dtype, some in numbers.items() for number in some
    )  # fmt: skip
    frame = frame.with_columns(nulls=pl.when(pl.int_range(rows) % 3 == 0).then(7))
    parquet.write(frame, tmp_path / "file")
    assert_frame_equal(pl.read_parquet(tmp_path / "file"), frame)


def test_other_readers_read_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrow = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(_file, "PAGE_ROWS", 8)
    # Of each column one page has all its values, the next one none, and the last one some.
    there = [True] * 8 + [False] * 8 + [True, False, True]
    frame = pl.DataFrame({"n": range(19), "b": [True] * 19, "t": [f"{n % 3}" for n in range(19)]})
    frame = frame.select(pl.when(pl.Series(there)).then(pl.all()))
    parquet.write(frame, tmp_path / "file")
    assert arrow.read_table(tmp_path / "file").to_pydict() == frame.to_dict(as_series=False)
    assert_frame_equal(pl.read_parquet(tmp_path / "file"), frame)


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_filters_find_by_the_least_and_greatest_what_is_there(
    rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_file, "GROUP_ROWS", rows)
    frame = pl.DataFrame({"a": [-5, None, 3], "b": pl.Series([7, 8, 9], dtype=pl.Int32)})
    parquet.write(frame, tmp_path / "file")
    scan = pl.scan_parquet(tmp_path / "file")
    for condition in (pl.col("a") < -5, pl.col("a") <= -5, pl.col("a") >= 3, pl.col("b") > 9,
                      pl.col("a").is_null(), pl.col("b") == 8):  # fmt: skip
        assert_frame_equal(scan.filter(condition).collect(), frame.filter(condition))


def test_a_caller_chooses_the_rows_of_a_row_group(tmp_path: Path) -> None:
    frame = pl.DataFrame({"n": range(50), "t": [f"{row % 7}" for row in range(50)]})
    for rows, groups in ((20, 3), (50, 1), (None, 1)):
        parquet.write(frame, tmp_path / "file", rows=rows)
        arrow = pytest.importorskip("pyarrow.parquet")
        assert arrow.ParquetFile(tmp_path / "file").metadata.num_row_groups == groups
        assert_frame_equal(pl.read_parquet(tmp_path / "file"), frame)


def test_parts_of_either_writer_are_one_table(tmp_path: Path) -> None:
    frame = pl.DataFrame(
        {"n": [1, 2], "k": pl.Series(["red", None], dtype=COLOURS), "t": ["x", None]}
    ).with_columns(c=pl.col("t").cast(pl.Categorical))
    parquet.write(frame, tmp_path / "0.parquet")
    frame.write_parquet(tmp_path / "1.parquet")
    both = pl.read_parquet([tmp_path / "0.parquet", tmp_path / "1.parquet"])
    assert_frame_equal(both, pl.concat([frame, frame]))


@pytest.mark.parametrize("name", ["ops", "calls", "ranges", "paths", "syncs", "memory"])
def test_the_long_tables_can_be_written(name: str) -> None:
    empty = TABLES[name].empty()
    assert not parquet.can_write(empty)
    assert parquet.can_write(empty.clear(1))


def test_other_types_are_left_to_polars() -> None:
    assert not parquet.can_write(pl.DataFrame({"a": [1], "b": [0.5]}))
    assert not parquet.can_write(pl.DataFrame({"a": [[1]]}))


def test_texts_that_fill_a_page_are_left_to_polars(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = pl.DataFrame({"a": ["long", "text"]})
    assert parquet.can_write(frame)
    monkeypatch.setattr(_file, "_MOST_BYTES_OF_TEXT", 7)
    assert not parquet.can_write(frame)
