"""Rows in the order of time: against a stable sort of all of them at once."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from tracekit.model import Stream
from tracekit.sources import _ordering
from tracekit.sources._ordering import Ordered, in_order, merged
from tracekit.support.spool import Workspace

SCHEMA = {"start": pl.Int64, "end": pl.Int64, "row": pl.Int64, "name": pl.String, "bytes": pl.Int64}


@contextmanager
def _small(sampled: int, rows: int, *, disk: bool) -> Iterator[Workspace]:
    """Yield a workspace of which many chunks are made."""
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder:
        patch.setattr(_ordering, "_SAMPLED", sampled)
        workspace = Workspace(Path(folder), memory=1) if disk else Workspace()
        workspace.rows = rows
        yield workspace
        if not disk:
            assert not list(Path(folder).iterdir())


Batch = tuple[list[tuple[int, int]], bool, bool, bool]
"""Starts and lengths; whether it has either extra column; whether its rows come in order."""

LEAST, GREATEST = -(1 << 63), (1 << 63) - 1
TIMES = st.one_of(st.integers(-3, 6), st.integers(-(1 << 62), 1 << 62))
BATCHES = st.lists(
    st.tuples(
        st.lists(st.tuples(TIMES, st.integers(0, 3)), max_size=14),
        st.booleans(),
        st.booleans(),
        st.booleans(),
    ),
    max_size=7,
)


def _frames(batches: list[Batch]) -> list[pl.DataFrame]:
    frames, count = [], 0
    for times, named, sized, is_in_order in batches:
        spans = [(start, start + length) for start, length in times]
        rows = sorted(spans, key=lambda span: (span[0], -span[1])) if is_in_order else spans
        frame = pl.DataFrame(rows, schema={"start": pl.Int64, "end": pl.Int64}, orient="row")
        frame = frame.with_columns(row=pl.int_range(count, count + len(rows), dtype=pl.Int64))
        count += len(rows)
        # Every other row repeats the name of the one before it.
        extra = {"name": pl.format("n{}", pl.col("row") // 2), "bytes": pl.col("row") * 8}
        kept = {key: extra[key] for key, has in (("name", named), ("bytes", sized)) if has}
        frames.append(frame.with_columns(**kept))
    return frames


def ordered(frames: Iterable[pl.DataFrame], workspace: Workspace) -> Ordered:
    rows = Ordered(workspace)
    for frame in frames:
        rows.add(frame)
    return rows


RANGES = st.lists(
    st.tuples(st.integers(0, 12), st.sampled_from([0, 0, 1, 5, GREATEST - 12])),
    min_size=1,
    max_size=12,
)


@settings(max_examples=examples(100), deadline=None)
@given(parts=st.lists(RANGES, min_size=1, max_size=5))
def test_merged_parts_are_sorted_rows(parts: list[list[tuple[int, int]]]) -> None:
    """Also of rows that are alike, and where one part lacks a column."""
    frames, count = [], 0
    for number, times in enumerate(parts):
        rows = [(start, start + length) for start, length in times]
        frame = pl.DataFrame(rows, {"start": pl.Int64, "end": pl.Int64}, orient="row")
        numbers = pl.int_range(count, count + len(rows), dtype=pl.Int64, eager=True)
        extra = {"even": numbers * 2} if number % 2 else {}
        frames.append(in_order(frame).with_columns(row=numbers, **extra))
        count += len(rows)
    wanted = pl.concat(frames, how="diagonal").sort(
        "start", "end", descending=[False, True], maintain_order=True
    )
    assert_frame_equal(merged(frames), wanted)


@settings(max_examples=examples(100), deadline=None)
@given(times=RANGES)
def test_rows_in_order_are_sorted_rows(times: list[tuple[int, int]]) -> None:
    rows = [(start, start + length) for start, length in times]
    frame = pl.DataFrame(rows, {"start": pl.Int64, "end": pl.Int64}, orient="row")
    frame = frame.with_row_index("row")
    found = in_order(frame)
    wanted = frame.sort("start", "end", descending=[False, True], maintain_order=True)
    assert_frame_equal(found, wanted)
    assert (found is frame) == (wanted["row"].is_sorted())


@pytest.mark.parametrize("apart", [0, 1, MANY_ROWS := 40_000], ids=["in turn", "partly", "apart"])
def test_many_rows_of_two_parts(apart: int) -> None:
    start = pl.int_range(0, 2 * MANY_ROWS, 2, eager=True, dtype=pl.Int64).alias("start")
    one = pl.DataFrame([start, (start + 5).alias("end"), start.alias("row")])
    other = one.with_columns(pl.col("start") + 1 + (MANY_ROWS if apart == 1 else 2 * apart))
    wanted = pl.concat([one, other]).sort("start", "end", descending=[False, True])
    assert_frame_equal(merged([one, other]), wanted)


def _read(rows: Ordered) -> list[pl.DataFrame]:
    return [rows.read(number) for number in range(len(rows.heights))]


def _expected(frames: list[pl.DataFrame]) -> pl.DataFrame:
    whole = pl.concat([pl.DataFrame(schema=SCHEMA), *frames], how="diagonal")
    return whole.sort("start", "end", descending=[False, True], maintain_order=True)


def _whole(rows: Ordered) -> pl.DataFrame:
    chunks = _read(rows)
    assert [chunk.height for chunk in chunks] == list(rows.heights)
    assert all(chunk.height for chunk in chunks)
    return pl.concat([pl.DataFrame(schema=SCHEMA), *chunks], how="diagonal")


@pytest.mark.parametrize("disk", [False, True], ids=["memory", "disk"])
@settings(max_examples=examples(40), deadline=None)
@given(batches=BATCHES, sampled=st.integers(1, 4), rows=st.integers(1, 9))
def test_random_batches(batches: list[Batch], sampled: int, rows: int, disk: bool) -> None:
    frames = _frames(batches)
    with _small(sampled, rows, disk=disk) as workspace:
        found = ordered(frames, workspace)
        assert found.height == sum(frame.height for frame in frames)
        assert_frame_equal(_whole(found), _expected(frames))
        assert_frame_equal(_whole(found), _expected(frames))  # read again


@settings(max_examples=examples(40), deadline=None)
@given(
    batches=BATCHES,
    rows=st.integers(1, 9),
    columns=st.lists(st.sampled_from(list(SCHEMA)), min_size=1, max_size=4, unique=True),
    disk=st.booleans(),
)
def test_some_columns(batches: list[Batch], rows: int, columns: list[str], disk: bool) -> None:
    frames = _frames(batches)
    with _small(1, rows, disk=disk) as workspace:
        found = ordered(frames, workspace)
        for number in range(len(found.heights)):
            some, whole = found.read(number, *columns), found.read(number)
            present = [name for name in columns if name in whole.columns]
            assert_frame_equal(some.select(present), whole.select(present))
            assert some.height == whole.height


@settings(max_examples=examples(40), deadline=None)
@given(batches=BATCHES, rows=st.integers(1, 9))
def test_rows_that_start_together_are_in_one_chunk(batches: list[Batch], rows: int) -> None:
    with _small(2, rows, disk=False) as workspace:
        chunks = _read(ordered(_frames(batches), workspace))
    for one, other in itertools.pairwise(chunks):
        assert one["start"][-1] < other["start"][0]


@pytest.mark.parametrize("rows", [4, 16])
def test_chunks_are_of_about_the_size_that_is_asked_for(rows: int) -> None:
    frame = pl.DataFrame({"start": range(1000), "end": range(1, 1001)})
    with _small(2, rows, disk=False) as workspace:
        pieces = [frame[part::3].sample(fraction=1, shuffle=True, seed=part) for part in range(3)]
        heights = ordered(pieces, workspace).heights
    assert sum(heights) == 1000
    # Each of three pieces may be off by what lies between two of its samples.
    assert max(heights) <= rows + 3 * 2


def test_pieces_that_do_not_overlap_are_chunks_as_they_are() -> None:
    frame = pl.DataFrame({"start": range(100), "end": range(100)})
    with _small(1, 2, disk=False) as workspace:
        found = ordered([frame[60:], frame[:20], frame[20:60]], workspace)
        assert found.heights == [20, 40, 40]
        assert_frame_equal(_whole(found).select("start", "end"), frame)


def test_a_chunk_begins_with_a_piece_where_that_is_near() -> None:
    frame = pl.DataFrame({"start": range(1000), "end": range(1000)})
    late = frame[205:207]  # two rows of the third piece come with the first one
    pieces = [
        pl.concat([frame[:90], late]),
        frame[90:180],
        pl.concat([frame[180:205], frame[207:]]),
    ]
    with _small(1, 100, disk=False) as workspace:
        found = ordered(pieces, workspace)
        assert found.heights == [90, 90, *[100] * 8, 20]
        assert_frame_equal(_whole(found).select("start", "end"), frame)


def test_nothing() -> None:
    found = ordered([pl.DataFrame(schema=SCHEMA)] * 2, Workspace())
    assert (found.height, list(found.heights), _read(found)) == (0, [], [])


def test_a_stream_has_all_rows_of_columns_that_no_piece_has() -> None:
    frame = pl.DataFrame({"start": range(9), "end": range(1, 10), "process": 0, "kind": "compute"})
    for pieces in ([frame], [frame[::2], frame[1::2]]):
        with _small(1, 4, disk=False) as workspace:
            stream = Stream("ops", "op", ordered(pieces, workspace))
            for columns in (("bytes",), ("bytes", "op"), ("op", "process", "bytes")):
                table = pl.concat(stream.read(n, *columns) for n in range(len(stream)))
                assert table.columns == list(columns)
                assert table.height == 9
                assert table["bytes"].null_count() == 9
                if "op" in columns:
                    assert table["op"].to_list() == list(range(9))


@settings(max_examples=examples(40), deadline=None)
@given(batches=BATCHES, rows=st.integers(1, 9), named=st.booleans())
def test_chunks_of_some_columns(batches: list[Batch], rows: int, named: bool) -> None:
    frames = _frames(batches)
    columns = {name: SCHEMA[name] for name in ("row", "bytes", *(["name"] if named else []))}
    with _small(1, rows, disk=False) as workspace:
        chunks = list(ordered(frames, workspace).chunks(columns))
    found = pl.concat([pl.DataFrame(schema=columns), *chunks])
    assert_frame_equal(found, _expected(frames).select(*columns))


def _halved(rows: pl.DataFrame) -> Iterator[pl.Series]:
    assert set(rows.schema.items()) <= set(SCHEMA.items())
    yield (rows["row"] // 2).cast(pl.Int32).alias("half")
    yield pl.Series("absent", [None], dtype=pl.Int64).new_from_index(0, rows.height)


@settings(max_examples=examples(40), deadline=None)
@given(batches=BATCHES, rows=st.integers(1, 9), disk=st.booleans())
def test_settled_rows_are_the_same(batches: list[Batch], rows: int, disk: bool) -> None:
    frames = _frames(batches)
    with _small(2, rows, disk=disk) as workspace:
        found, kept = (ordered(frames, workspace) for _ in range(2))
        found.settle(("row", "not there"), _halved)
        assert list(found.heights) == list(kept.heights)
        assert found.height == kept.height
        for number in range(len(found.heights)):
            assert not {"row", "absent"} & set(found.read(number).columns)
            assert found.read(0, "half").columns == ["half"]
        columns = {"start": pl.Int64, "half": pl.Int64, "name": pl.String, "bytes": pl.Int64}
        chunks = [pl.DataFrame(schema=columns), *found.chunks(columns)]
    wanted = _expected(frames).with_columns(half=pl.col("row") // 2).select(list(columns))
    assert_frame_equal(pl.concat(chunks), wanted)


MANY = 200_000


def _quick(frames: list[pl.DataFrame], workspace: Workspace) -> Ordered:
    began = time.process_time()  # of this process alone, however busy the machine is
    found = ordered(frames, workspace)
    assert sum(found.heights) == sum(frame.height for frame in frames)
    assert time.process_time() - began < 3
    return found


@pytest.mark.parametrize("others", [0, 2 * MANY], ids=["all", "some"])
@pytest.mark.parametrize("step", [-1, 0, 1], ids=["descending", "equal", "ascending"])
def test_many_rows_that_start_together(others: int, step: int) -> None:
    apart = pl.select(start=pl.int_range(others), end=pl.int_range(1, others + 1))
    ends = 2 * MANY + step * pl.int_range(MANY)
    tied = pl.select(start=pl.repeat(7, MANY, dtype=pl.Int64), end=ends)
    frames = [pl.concat([tied, apart]).with_row_index("row").cast(pl.Int64)]
    found = _whole(_quick(frames, Workspace()))
    assert_frame_equal(found.select("start", "end", "row"), _expected(frames).drop("name", "bytes"))


@pytest.mark.slow
def test_many_pieces_that_overlap() -> None:
    rows = pl.DataFrame({"start": range(MANY // 2), "end": range(MANY // 2)})
    pieces = 2000
    with _small(1, MANY // 2 // pieces, disk=False) as workspace:
        found = _quick([rows[piece::pieces] for piece in range(pieces)], workspace)
        whole = MANY // 2 // pieces
        assert [height for height in found.heights if height != whole] == [whole - 1, 1]
        assert found.read(3)["start"].to_list() == list(range(150, 200))


def test_the_latest_and_the_earliest_end() -> None:
    ends = [-1, LEAST, GREATEST, 0, LEAST, GREATEST, LEAST + 1]
    frames = [pl.DataFrame({"start": 5, "end": ends, "row": range(len(ends))})]
    found = ordered(frames, Workspace()).read(0)
    assert found["row"].to_list() == [2, 5, 3, 0, 6, 1, 4]
    assert ordered(frames * 2, Workspace()).read(0)["row"].to_list() == [
        2, 5, 2, 5, 3, 3, 0, 0, 6, 6, 1, 4, 1, 4,
    ]  # fmt: skip
