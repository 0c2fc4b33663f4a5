"""Which reports are one run: of one host, of two, of another job, another day, another tool."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from nsys_builder import NsysBuilder

import tracekit
from tracekit.errors import InputError

SECOND = 1_000_000_000
MINUTE, DAY, YEAR = 60 * SECOND, 86_400 * SECOND, 31_536_000 * SECOND
NOON = 1_700_000_000 * SECOND


@dataclass(frozen=True)
class Recorded:
    """What a report of a second of recording says of itself."""

    host: str | None = "n1"
    start: int = NOON
    program: str = "python"
    pid: int = 100
    tool: str = "nsys"
    environment: dict[str, Any] = field(default_factory=dict)

    def write(self, path: Path) -> Path:
        return self._nsys(path) if self.tool == "nsys" else self._kineto(path)

    def _nsys(self, path: Path) -> Path:
        with NsysBuilder(path, schema="3.11.1") as nsys:
            nsys.process(self.pid, self.program)
            nsys.launch(100, 200, 300, pid=self.pid)
            nsys.session(self.start, SECOND)
            if self.host is not None:
                nsys.env("Hostname", self.host)
            for name, value in self.environment.items():
                nsys.capture("PROCESS_0:ENVIRONMENT_VARIABLE", f"{name}={value}")
        return path

    def _kineto(self, path: Path) -> Path:
        kernel = {
            "ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 10, "dur": 5,
            "args": {"device": 0, "stream": 7},
        }  # fmt: skip
        trace = {"schemaVersion": 1, "baseTimeNanoseconds": self.start, "traceEvents": [kernel]}
        path = path.with_suffix(".json.gz")
        path.write_bytes(gzip.compress(json.dumps(trace).encode()))
        return path


FIRST = Recorded(environment={"RANK": 0, "WORLD_SIZE": 2, "SLURM_JOB_ID": 7})
OF_JOB = {"RANK": 1, "WORLD_SIZE": 2, "SLURM_JOB_ID": 7}
PLAIN = Recorded()

MIXES = {
    "ranks of a job on one host": (FIRST, replace(FIRST, pid=101, environment=OF_JOB), None),
    "ranks of a job on two hosts": (FIRST, replace(FIRST, host="n2", environment=OF_JOB), None),
    "two hosts whose clocks are 50 s apart": (
        FIRST, replace(FIRST, host="n2", start=NOON + 51 * SECOND, environment=OF_JOB), None,
    ),
    "programs of a job of two programs": (
        FIRST, replace(FIRST, pid=101, program="server", environment=OF_JOB), None,
    ),
    "reports that say nothing of a job": (PLAIN, replace(PLAIN, pid=101), None),
    "another job of the same minute": (
        FIRST, replace(FIRST, pid=101, environment=OF_JOB | {"SLURM_JOB_ID": 8}),
        "have different SLURM_JOB_ID",
    ),
    "another run of one job": (
        FIRST, replace(FIRST, pid=101, environment=OF_JOB | {"RANK": 0}), "are both rank 0",
    ),
    "a job of another size": (
        FIRST, replace(FIRST, pid=101, environment=OF_JOB | {"WORLD_SIZE": 4}),
        "is of a job of 2 ranks, and other.sqlite of one of 4",
    ),
    "one after the other on one host": (
        PLAIN, replace(PLAIN, pid=101, start=NOON + 5 * SECOND), "were recorded on n1 4 s apart",
    ),
    "13 minutes apart on two hosts": (
        PLAIN, replace(PLAIN, host="n2", start=NOON + 13 * MINUTE), "779 s apart, more than clocks",
    ),
    "another day": (
        FIRST, replace(FIRST, start=NOON + DAY, environment=OF_JOB), "86,399 s apart",
    ),
    "2021 and 2025, no host named": (
        replace(PLAIN, host=None), replace(PLAIN, host=None, start=NOON + 4 * YEAR), "s apart",
    ),
    "another program": (
        PLAIN, replace(PLAIN, pid=101, program="jacobi"), "is of python, other.sqlite of jacobi",
    ),
    "another tool": (
        PLAIN, replace(PLAIN, tool="kineto"), "was recorded by nsys, and other.json.gz by torch",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def firsts(
    samples_read_once: None, _read_once: Any, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Recorded], Path]:
    """Write the first report of a mix; those that several have are written and read once."""
    written: list[tuple[Recorded, Path]] = []

    def write(first: Recorded) -> Path:
        for known, path in written:
            if known == first:
                return path
        _read_once.folders.append(folder := tmp_path_factory.mktemp("first"))
        written.append((first, first.write(folder / "first.sqlite")))
        return written[-1][1]

    return write


@pytest.mark.slow
@pytest.mark.parametrize("mix", MIXES)
def test_mixes_are_merged_or_refused(
    mix: str, tmp_path: Path, firsts: Callable[[Recorded], Path]
) -> None:
    first, other, why = MIXES[mix]
    files = [firsts(first), other.write(tmp_path / "other.sqlite")]
    if why is None:
        run, _ = tracekit.ingest(files, name="job")
        assert run.table("reports").collect().height == 2
        return
    with pytest.raises(InputError) as refused:
        tracekit.ingest(files, name="job")
    assert why in str(refused.value)


FORCED = [mix for mix, (*_, why) in MIXES.items() if why]


@pytest.mark.slow
@pytest.mark.parametrize(
    "mix", [FORCED[0], *(pytest.param(mix, marks=pytest.mark.nightly) for mix in FORCED[1:])]
)
def test_what_is_forced_says_why(mix: str, tmp_path: Path) -> None:
    first, other, why = MIXES[mix]
    files = [first.write(tmp_path / "first.sqlite"), other.write(tmp_path / "other.sqlite")]
    run, _ = tracekit.ingest(files, name="job", force=True)
    assert run.table("reports").collect().height == 2
    forced = [text for text in run.warnings if text.startswith("these reports were forced")]
    assert len(forced) == 1
    assert why in forced[0]


def test_what_tells_jobs_apart_is_not_stored(tmp_path: Path) -> None:
    file = replace(FIRST, environment={"SLURM_JOB_ID": "secret"}).write(tmp_path / "a.sqlite")
    job = tracekit.ingest(file)[0].table("reports").collect()["job"].item()
    assert job.startswith("SLURM_JOB_ID=")
    assert "secret" not in job
