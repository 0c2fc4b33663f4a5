"""A disk that is full, and files that may not grow: one line, and what is whole stays so."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from store_helpers import left_over
from typer.testing import CliRunner, Result

from tracekit.cli import app
from tracekit.store import Store

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "sample_traces"
OTHER = SAMPLES / "p2p_4gpu_star.sqlite"
KIB = 1 << 10
DISK = 8 << 20
FILES = 1000
FREE = (0, 4 * KIB, 24 * KIB, 64 * KIB, 128 * KIB, 256 * KIB)
"""What is left on the disk, from nothing to what an ingest takes."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own, in memory."""
    place = tmp_path / "disk"
    place.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", f"size={DISK},nr_inodes={FILES}", "tmpfs", place]
    try:
        mounted = subprocess.run(words, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount")
    if mounted.returncode:
        pytest.skip(f"no disk can be mounted here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", place], check=True)


def fill(disk: Path, left: int) -> Path:
    """Leave so many bytes of a disk."""
    filler = disk / "filler"
    filler.unlink(missing_ok=True)
    state = os.statvfs(disk)
    with filler.open("wb") as file:
        file.write(bytes(max(0, state.f_bavail * state.f_frsize - left)))
    return filler


def asked(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def assert_told(done: Result) -> None:
    assert done.exit_code in (0, 2), done.output
    assert "Traceback" not in done.output
    if done.exit_code:
        assert len(done.stderr.splitlines()) == 1, done.stderr
        assert "No space left on device" in done.stderr or "full" in done.stderr, done.stderr


@pytest.fixture
def store(disk: Path) -> Path:
    assert asked("ingest", SAMPLES / "p2p_2gpu_start_end.sqlite", "--name", "kept",
                 "--store", disk / "store").exit_code == 0  # fmt: skip
    return disk / "store"


def assert_whole(store: Path) -> None:
    assert [run.name for run in Store(store).runs()][:1] == ["kept"]
    assert Store(store).check() == []
    trace = Store(store).open(Store(store).find("kept"))
    assert all(trace.read(table).width for table in trace.tables)


@pytest.mark.slow
@pytest.mark.parametrize(
    "left", [FREE[1], *(pytest.param(n, marks=pytest.mark.nightly) for n in FREE)]
)
def test_an_ingest_into_a_full_disk_is_told_and_leaves_nothing(
    disk: Path, store: Path, left: int
) -> None:
    filler = fill(disk, left)
    done = asked("ingest", OTHER, "--store", store)
    assert_told(done)
    assert done.exit_code == 2 or left > FREE[1]
    assert left_over(Store(store)) == []
    assert_whole(store)
    filler.unlink()
    assert asked("ingest", OTHER, "--store", store).exit_code == 0
    assert_whole(store)


@pytest.mark.slow
@pytest.mark.parametrize(
    "left", [20, *(pytest.param(n, marks=pytest.mark.nightly) for n in range(9))]
)
def test_a_disk_that_takes_no_more_files_is_told_and_leaves_nothing(
    disk: Path, store: Path, left: int
) -> None:
    filler = disk / "filler"
    filler.mkdir()
    for number in range(os.statvfs(disk).f_ffree - left):
        (filler / str(number)).touch()
    done = asked("ingest", OTHER, "--store", store)
    assert_told(done)
    assert done.exit_code == 2
    assert_whole(store)
    assert asked("runs", "gc", "--store", store).exit_code == 0
    assert left_over(Store(store)) == []
    shutil.rmtree(filler)
    assert asked("ingest", OTHER, "--store", store).exit_code == 0
    assert left_over(Store(store)) == []
    assert_whole(store)


@pytest.mark.slow
def test_pages_and_exports_are_whole_or_not_there(disk: Path, store: Path) -> None:
    fill(disk, 16 * KIB)
    for words in (
        ("report", "kept", "-o", disk / "page.html"),
        ("export", "kept", "-o", disk / "kept.json.gz"),
        ("sql", "kept", "SELECT * FROM ops", "-o", disk / "ops.parquet"),
        ("sql", "kept", "SELECT * FROM ops", "-o", disk / "ops.csv"),
        ("breakdown", "kept", "--figure", disk / "stages.html"),
    ):
        done = asked(*words, "--store", store)
        assert done.exit_code == 2, words
        assert_told(done)
        assert sorted(path.name for path in disk.iterdir()) == ["filler", "store"], words


@pytest.mark.slow
def test_a_full_disk_is_emptied_by_removing_a_run(disk: Path, store: Path) -> None:
    assert asked("ingest", OTHER, "--name", "other", "--store", store).exit_code == 0
    fill(disk, 0)
    assert asked("runs", "gc", "--store", store).exit_code == 0
    assert asked("runs", "remove", "other", "--store", store).exit_code == 0
    assert left_over(Store(store)) == []
    assert_whole(store)


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv.pop(1)),) * 2)
from tracekit.cli import main
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "most", [8 * KIB, *(pytest.param(n * KIB, marks=pytest.mark.nightly) for n in (0, 1, 3, 30))]
)
def test_files_that_may_not_grow_are_told(tmp_path: Path, most: int) -> None:
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    store = tmp_path / "store"
    assert asked("ingest", SAMPLES / "p2p_2gpu_start_end.sqlite", "--name", "kept",
                 "--store", store).exit_code == 0  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(most), "ingest", OTHER, "--store", store],
        capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "ulimit -f" in done.stderr
    assert [run.name for run in Store(store).runs()] == ["kept"]
    # Where the catalogue itself could not be asked, what is left over waits for the next ingest.
    assert asked("ingest", OTHER, "--store", store).exit_code == 0
    assert left_over(Store(store)) == []
    assert_whole(store)
