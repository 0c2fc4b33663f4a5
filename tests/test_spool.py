"""Tables that wait in memory or in files."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from tracekit.support import spool as _spool
from tracekit.support.spool import Spool, Workspace


@pytest.fixture(autouse=True)
def compiler(monkeypatch: pytest.MonkeyPatch) -> int:
    """What Numba takes, but here: other tests may have loaded it."""
    taken = _spool._COMPILER
    monkeypatch.setattr(_spool, "_COMPILER", 0)
    return taken


def _frame(number: int, rows: int = 100) -> pl.DataFrame:
    ids = pl.int_range(number, number + rows, eager=True)
    names = pl.format("n{}", ids % 7)
    return pl.select(
        ids.alias("id"),
        name=names,
        kind=names.cast(pl.Categorical()),
        stage=pl.lit("FP", pl.Enum(["FP", "BP"])),
        some=pl.when(ids % 2 == 0).then(ids),
    )


FRAMES = [_frame(number, rows) for number, rows in enumerate((100, 1, 0, 50, 300))]
SIZE = sum(_spool._size(_spool._kept_in_memory(column)) for column in FRAMES[0])
"""What the first one takes."""


def _memory_for(size: int) -> int:
    """Return what an ingest has to be allowed for so many bytes to wait in memory."""
    return _spool._LIBRARIES + _spool._SHARE * size


def _filled(workspace: Workspace) -> Spool:
    spool = Spool(workspace)
    for frame in FRAMES:
        spool.append(frame)
    return spool


def _files(folder: Path) -> int:
    """Return how many chunks are in files."""
    return len(list(folder.glob("*.raw")))


@pytest.mark.parametrize("memory", [1, _memory_for(2 * SIZE), 1 << 30])
def test_what_was_put_in_comes_out(memory: int, tmp_path: Path) -> None:
    spool = _filled(Workspace(tmp_path, memory))
    assert len(spool) == len(FRAMES)
    assert spool.heights == [frame.height for frame in FRAMES]
    for _ in range(2):
        for found, frame in zip(spool, FRAMES, strict=True):
            assert_frame_equal(found, frame)
    for number, frame in enumerate(FRAMES):
        some = spool.read(number, "some", "id")
        assert_frame_equal(some, frame.select("some", "id"))
        for rows in (slice(2, 20), slice(0, 1), slice(90, 400), slice(5, 3)):
            assert_frame_equal(spool.read(number, rows=rows), frame[rows])


def test_files_are_made_only_of_what_does_not_fit(tmp_path: Path) -> None:
    for memory, files in ((_memory_for(SIZE) - 1, 2), (1 << 30, 0)):
        folder = tmp_path / str(memory)
        folder.mkdir()
        workspace = Workspace(folder, memory)
        spool = Spool(workspace)
        for _ in range(2):
            spool.append(FRAMES[0])
        assert _files(folder) == files


def test_what_compiles_loops_leaves_less_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: int
) -> None:
    monkeypatch.setitem(sys.modules, "numba", sys)
    for taken, files in ((0, 0), (compiler, 1)):
        monkeypatch.setattr(_spool, "_COMPILER", taken)
        for memory in (512 << 20, 4 << 30):
            folder = tmp_path / f"{taken} {memory}"
            folder.mkdir()
            Spool(Workspace(folder, memory)).append(FRAMES[0])
            assert _files(folder) == (files if memory == 512 << 20 else 0)


def test_without_a_folder_all_stays_in_memory() -> None:
    spool = _filled(Workspace(None, memory=1))
    for found, frame in zip(spool, FRAMES, strict=True):
        assert_frame_equal(found, frame)


@pytest.mark.parametrize("memory", [1, 1 << 30])
def test_columns_go_and_others_come(memory: int, tmp_path: Path) -> None:
    """Also one of a name that there was."""
    spool = _filled(Workspace(tmp_path, memory))
    for number, frame in enumerate(FRAMES):
        added = frame.select(half=pl.col("id") // 2, name=pl.lit("x"))
        spool.change(number, ("kind", "name", "absent"), added)
        wanted = frame.drop("kind", "name").hstack(added)
        assert spool.columns[number] == tuple(wanted.columns)
        assert_frame_equal(spool.read(number), wanted)
    for number in range(len(FRAMES)):
        spool.drop(number)
    assert not list(tmp_path.iterdir())


def test_what_is_dropped_makes_room(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, _memory_for(SIZE))
    spool = Spool(workspace)
    for files in (0, 1, 2):
        spool.append(FRAMES[0])
        assert _files(tmp_path) == files
    spool.drop(1)
    assert _files(tmp_path) == 1
    spool.drop(0)
    spool.drop(0)  # frees nothing more
    spool.append(FRAMES[0])
    assert _files(tmp_path) == 1
    spool.append(FRAMES[0])
    assert _files(tmp_path) == 2
    assert spool.read(0).shape == (0, 0)
    assert_frame_equal(spool.read(3), FRAMES[0])


def test_what_was_read_from_a_file_outlives_it(tmp_path: Path) -> None:
    spool = _filled(Workspace(tmp_path, 1))
    found = spool.read(4)
    spool.drop(4)
    assert_frame_equal(found, FRAMES[4])


def test_spools_of_one_workspace_share_its_memory_and_not_their_files(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, _memory_for(SIZE))
    spools = [_filled(workspace) for _ in range(3)]
    for spool in spools:
        for found, frame in zip(spool, FRAMES, strict=True):
            assert_frame_equal(found, frame)


def test_several_threads_reserve_no_more_than_there_is(tmp_path: Path) -> None:
    threads, each, fitting = 8, 50, 100
    workspace = Workspace(tmp_path, _memory_for(SIZE * fitting))
    together = threading.Barrier(threads)

    def take() -> list[Path | None]:
        together.wait()
        return [workspace.take(SIZE) for _ in range(each)]

    with ThreadPoolExecutor(threads) as pool:
        running = [pool.submit(take) for _ in range(threads)]
        taken = [path for one in running for path in one.result()]
    assert taken.count(None) == fitting
    assert len(set(taken)) == threads * each - fitting + 1
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(workspace.give_back, [SIZE] * fitting))
    assert [workspace.take(SIZE) for _ in range(fitting + 1)].count(None) == fitting


@pytest.mark.parametrize(
    ("memory", "rows"),
    [
        (1, _spool._FEWEST_ROWS),
        (_spool._LIBRARIES, _spool._FEWEST_ROWS),
        (1 << 50, _spool._MOST_ROWS),
        (_spool._LIBRARIES + 12_000 * 100_000, 100_000),
    ],
)
def test_rows_at_once(memory: int, rows: int) -> None:
    assert Workspace(None, memory).rows == rows
