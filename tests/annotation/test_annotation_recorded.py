"""Unmodified programs under nsys: what their traces say, held against their own clocks."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import tracekit
from tracekit.errors import ProgramError
from tracekit.recording import Wanted, find_nsys, perform, plan, unfinished

PROGRAMS = Path(__file__).parent / "programs"
ENDS_WITH = 3
"""The exit code of each program, which is that of its recording, too."""
CLOSE, CLOSE_INPUT = 0.03, 0.1
ATTEMPTS = 4
"""Even at that priority a program may wait between its clock's reading and a range's edge."""

NEEDS = {
    "with_lightning": "lightning", "with_trainer": "transformers", "with_accelerate": "accelerate",
}  # fmt: skip
PROGRAM_NAMES = (
    "plain", "by_hand", "gan", "lbfgs", "accumulating", "ddp", "fsdp", "hogwild", *NEEDS,
)  # fmt: skip
KNOWN_BY = {"by_hand": "from passes"}


def run_program(name: str, folder: Path) -> dict:
    """Run one of the programs by itself, and return what its clock says."""
    clock = folder / "clock.json"
    done = subprocess.run([sys.executable, PROGRAMS / f"{name}.py", clock], check=False)
    assert done.returncode == ENDS_WITH
    return json.loads(clock.read_text())


def record_program(name: str, folder: Path, annotate: int | None = 1) -> tuple[Path, dict]:
    """Record one of the programs, and return its report and what its clock says."""
    clock = folder / "clock.json"
    program = [sys.executable, str(PROGRAMS / f"{name}.py"), str(clock)]
    wanted = Wanted(trace="nvtx", annotate=annotate is not None, layers=annotate or 0)
    planned = plan(program, wanted, find_nsys(), folder / "report")
    with pytest.raises(ProgramError) as ended:
        perform(planned)
    assert ended.value.exit_code == ENDS_WITH
    [report] = unfinished(planned).glob("*.nsys-rep")
    return report, json.loads(clock.read_text())


def compare(report: Path, clock: Mapping[str, int], store: Path) -> dict[str, float]:
    """Return by how much, as a part of it, each stage differs from the program's clock."""
    run = tracekit.ingest(report, store=store)[0]
    rows = run.breakdown(by="stage").iter_rows(named=True)
    traced = {row["stage"]: row["exposed_ns"] for row in rows}
    return {stage: (traced[stage] - spent) / spent for stage, spent in clock.items()}


@pytest.fixture
def _first() -> Iterator[None]:
    """Let what the test starts run before all else, where that is allowed: it is not interrupted.

    A call of NVTX wakes a thread of nsys; on a busy machine that would run first, or another
    program, between the clock's reading and the edge of the range.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except (AttributeError, OSError):
        yield
        return
    yield
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


@pytest.mark.nightly
@pytest.mark.usefixtures("_first")
@pytest.mark.parametrize("name", PROGRAM_NAMES)
def test_stages_are_those_of_the_programs_clock(name: str, tmp_path: Path) -> None:
    if shutil.which("nsys") is None:
        pytest.skip("no nsys on the path")
    if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"no {NEEDS[name]} installed")
    alone = run_program(name, tmp_path)
    found = []
    for attempt in range(ATTEMPTS):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        report, clock = record_program(name, folder)
        for result in ("steps", "weights"):  # hogwild says no weights: its processes race
            assert clock[result] == alone[result]
        off = compare(report, clock["spent"], folder / "store")
        run = tracekit.ingest(report, store=folder / "again")[0]
        steps = run.trace["iterations"].collect()
        for _, of_process in steps.group_by("process"):  # hogwild has several that train
            assert of_process["iteration"].to_list() == list(range(clock["steps"]))
        names = run.table("ranges").select("name").unique().collect()["name"].to_list()
        marks = [each for each in names if each.startswith("tracekit.steps ")]
        assert marks == [f"tracekit.steps {KNOWN_BY.get(name, 'from optimizers')}"]
        if all(abs(off[each]) < (CLOSE_INPUT if each == "IO" else CLOSE) for each in off):
            return  # in one recording: what is off for a reason is off in each
        found.append({stage: round(each, 3) for stage, each in off.items()})
    if os.getloadavg()[0] > (os.cpu_count() or 1) and not _is_first():
        pytest.skip(f"too busy a machine to compare clocks on: {found}")
    pytest.fail(f"stages are off by {found}")


def _is_first() -> bool:
    return os.sched_getscheduler(0) == os.SCHED_RR
