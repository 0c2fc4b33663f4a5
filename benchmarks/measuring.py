"""Whole processes, what they cost, and on which machine."""

from __future__ import annotations

import os
import platform
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parents[1]
_PACKAGES = ("tracekit", "polars", "adbc-driver-sqlite", "numpy", "numba", "duckdb")
# What the user has set for tracekit must not decide what is measured.
_ENVIRONMENT = {key: value for key, value in os.environ.items() if not key.startswith("TRACEKIT_")}


@dataclass(frozen=True)
class Cost:
    """What a process and its children took.

    Parameters
    ----------
    wall_s, cpu_s
        Seconds from start to end, and seconds of processors.
    peak_bytes
        Largest resident memory of any one of them.
    output
        What was printed on stdout, if it was asked for.
    """

    wall_s: float
    cpu_s: float
    peak_bytes: int
    output: str | None = None


def run(command: Sequence[str | Path], *, output: bool = False) -> Cost:
    """Run a command from the root of the repository to its end.

    The peak of a process cannot be less than what the process that starts it holds, so this module
    and its callers load no large package and keep no output but what is small.

    Raises
    ------
    RuntimeError
        If it fails.
    """
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        began = time.perf_counter()
        process = subprocess.Popen(command, cwd=ROOT, env=_ENVIRONMENT, stdout=out, stderr=err)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        if process.returncode:
            raise RuntimeError(f"{command[0]} failed ({process.returncode}): {err.read()[-2000:]}")
        cpu = usage.ru_utime + usage.ru_stime
        peak = usage.ru_maxrss * 1024
        return Cost(wall, cpu, peak, out.read() if output else None)


def machine() -> dict[str, str]:
    """Describe the machine and the versions in use; not whose it is, nor what it is called."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    described = {
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{memory / 2**30:.0f} GiB",
        "processor": _processor(),
        "load": f"{os.getloadavg()[0]:.1f}",
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
    }
    for package in _PACKAGES:
        try:
            described[package] = version(package)
        except PackageNotFoundError:
            continue
    return described


def nsys_version() -> str:
    """Return the version of the nsys on PATH.

    Raises
    ------
    SystemExit
        If there is none.
    """
    if shutil.which("nsys") is None:
        sys.exit("--nsys: there is no nsys on PATH")
    return str(run(["nsys", "--version"], output=True).output).split()[-1]


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
