"""What takes processes of its own: kills, readers beside a writer, a disk that fails below all."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

pytestmark = pytest.mark.slow


def told(*words: object, **environment: str) -> Any:
    """Run a script, and return what it says as JSON."""
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "tests", HERE)))
    done = subprocess.run(
        [sys.executable, *map(str, words)], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": paths, **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("cases", "commands"), [(2, "runs re"), pytest.param(500, "", marks=pytest.mark.nightly)]
)
def test_a_command_that_is_killed_loses_nothing(cases: int, commands: str) -> None:
    found = told(ROOT / "benchmarks" / "kills.py", cases, commands)
    assert sum(each["times"] for each in found) == cases
    assert sum(each["times"] for each in found if each["ended"] == "killed") >= cases / 4


@pytest.mark.parametrize("rounds", [2, pytest.param(200, marks=pytest.mark.nightly)])
def test_eight_readers_beside_a_writer_read_what_is_whole(rounds: int, tmp_path: Path) -> None:
    found = told(HERE / "readers.py", tmp_path, rounds)
    assert len(found) == 8
    assert all(each["kept"] for each in found)


@pytest.fixture(scope="session")
def failing_disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("gcc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("there is no gcc, or no Linux to preload a library on")
    library = tmp_path_factory.mktemp("library") / "failing_disk.so"
    words = [compiler, "-shared", "-fPIC", "-O1", "-o", library, HERE / "failing_disk.c", "-ldl"]
    subprocess.run(words, check=True, capture_output=True)
    return library


@pytest.mark.parametrize(
    ("how", "which"),
    [
        ("ENOSPC", "+200"),
        *(pytest.param(how, "+1", marks=pytest.mark.nightly) for how in ("EIO", "ENOSPC")),
    ],
)
def test_a_disk_that_fails_below_all_is_told_and_leaves_nothing_half(
    how: str, which: str, failing_disk: Path, tmp_path: Path
) -> None:
    found = told(HERE / "failing_disk.py", tmp_path, how, which, LD_PRELOAD=str(failing_disk))
    said = [each for each in found["told"].values() if each]
    assert found["calls"] > 100
    assert len(said) >= len(found["told"]) / 3
    wanted = "Input/output error|I/O error" if how == "EIO" else "No space|full|disk I/O error"
    assert all(re.search(wanted, each) for each in said), said
