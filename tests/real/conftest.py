"""Runs and exports of the real traces, each made once, by whichever process asks first."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from nsys_stats import NsysFailedError

import tracekit as tk

HERE = Path(__file__).parent
REPORTS = (".nsys-rep", ".qdrep")
"""What only nsys reads."""


MANY, SHARE = 5, 3
"""Of the cases of a test that has so many or more, one in so many runs by day, all at night."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of real traces, and leave two thirds of those of many traces to the night.

    Each test of a file begins with another trace, so that every trace has some tests by day, the
    same each day.
    """
    files: dict[Path, dict[str, list[pytest.Item]]] = {}
    for item in items:
        if item.path.parent == HERE:
            item.add_marker(pytest.mark.real)
            if item.get_closest_marker("nightly") is None:
                tests = files.setdefault(item.path, {})
                tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for tests in files.values():
        many = [cases for cases in tests.values() if len(cases) >= MANY]
        for first, cases in enumerate(many):
            for number, item in enumerate(cases):
                if (number - first) % SHARE:
                    item.add_marker(pytest.mark.nightly)


@contextmanager
def _alone(folder: Path, name: str) -> Iterator[None]:
    """Wait for the others that make the same, to find what they have made."""
    with (folder / f"{name.replace('/', '-')}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _nsys(path: Path) -> str:
    return shutil.which("nsys") or pytest.skip(f"no nsys on the path to export {path.name} with")


@pytest.fixture
def by_nsys() -> Callable[[Callable[[Path], Any], Path], Any]:
    """Have `nsys stats` read a file; the test is skipped where there is none, or it cannot."""
    if shutil.which("nsys") is None:
        pytest.skip("nsys is not installed")

    def read(how: Callable[[Path], Any], path: Path) -> Any:
        try:
            return how(path)
        except NsysFailedError as error:
            pytest.skip(f"nsys stats cannot read {path.name}: {error}")

    return read


@pytest.fixture(scope="session")
def real_run(real_trace: Callable[[str], Path], shared_folder: Path) -> Callable[[str], tk.Run]:
    """Give the run of a real trace by the trace's name; the test is skipped where it is absent.

    The ending may be left out, of a report only where there is no export beside it.
    """
    runs: dict[str, tk.Run] = {}

    def open_run(name: str) -> tk.Run:
        path = real_trace(name)
        if path.suffix in REPORTS:
            _nsys(path)
        if name not in runs:
            with _alone(shared_folder, path.name):
                runs[name] = tk.ingest(path, store=shared_folder / "real")[0]
        return runs[name]

    return open_run


@pytest.fixture(scope="session")
def dlrm_run(real_trace: Callable[[str], Path], shared_folder: Path) -> tk.Run:
    """The run of the eight ranks of DLRM that PyTorch's profiler recorded."""
    folder = real_trace("ddp_unet_4xa100_rank0").with_name("kineto_dlrm_8xv100")
    if not (paths := sorted(folder.glob("*.json"))):
        pytest.skip(f"no {folder}")
    with _alone(shared_folder, folder.name):
        return tk.ingest(paths, name="dlrm", store=shared_folder / "real")[0]


@pytest.fixture(scope="session")
def nsys_export(real_trace: Callable[[str], Path], shared_folder: Path) -> Callable[[str], Path]:
    """Give an export of nsys, or the one that nsys makes of a report; it is not to be written.

    The test is skipped without nsys, or the report, or where this nsys cannot export it.
    """

    def export(name: str) -> Path:
        report = real_trace(name)
        if report.suffix not in REPORTS:
            return report
        made = shared_folder / "exports" / f"{report.stem}.sqlite"
        made.parent.mkdir(exist_ok=True)
        command = [_nsys(report), "export", "--type", "sqlite", "--output", made, report]
        with _alone(shared_folder, f"export of {name}"):
            if not made.is_file():
                done = subprocess.run(command, check=False, capture_output=True, timeout=300)
                if done.returncode or not made.is_file():
                    made.unlink(missing_ok=True)
                    pytest.skip(f"this nsys cannot export {name}: {done.stderr[-200:]!r}")
        return made

    return export
