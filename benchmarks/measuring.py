"""Whole processes, what they cost, and on which machine."""

from __future__ import annotations

import os
import platform
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from resource import struct_rusage

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
    ended
        False if it took longer than it was given, and what it would have cost is not known.
    """

    wall_s: float
    cpu_s: float
    peak_bytes: int
    output: str | None = None
    ended: bool = True


def run(
    command: Sequence[str | Path],
    *,
    output: bool = False,
    limit_s: float = threading.TIMEOUT_MAX,
    environment: Mapping[str, str] | None = None,
) -> Cost:
    """Run a command from the root of the repository to its end.

    The peak of a process cannot be less than what the process that starts it holds, so this module
    and its callers load no large package and keep no output but what is small.

    Parameters
    ----------
    command
        Program and arguments.
    output
        Whether to keep what it prints.
    limit_s
        After so many seconds it is ended, with all that it started.
    environment
        Variables to set besides those that are set.

    Raises
    ------
    RuntimeError
        If it fails.
    """
    variables = {**_ENVIRONMENT, **(environment or {})}
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        began = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=ROOT, env=variables, stdout=out, stderr=err, start_new_session=True
        )
        usage, ended = _awaited(process, limit_s)
        wall = time.perf_counter() - began
        out.seek(0)
        err.seek(0)
        if ended and process.returncode:
            raise RuntimeError(f"{command[0]} failed ({process.returncode}): {err.read()[-2000:]}")
        cpu = usage.ru_utime + usage.ru_stime
        peak = usage.ru_maxrss * 1024
        return Cost(wall, cpu, peak, out.read() if output else None, ended)


def _awaited(process: subprocess.Popen[bytes], limit_s: float) -> tuple[struct_rusage, bool]:
    """Wait for a process that leads a session: what it took, and whether it came to its end."""
    late = threading.Event()

    def stop() -> None:
        late.set()
        os.killpg(process.pid, signal.SIGKILL)

    timer = threading.Timer(limit_s, stop)
    timer.start()
    try:
        _, status, usage = os.wait4(process.pid, 0)
    except BaseException:
        stop()  # an interrupt does not reach what has a session of its own
        raise
    finally:
        timer.cancel()
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage, not late.is_set()


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
