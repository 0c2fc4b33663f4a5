"""The installed nsys: what it can record, parsed from its help and status; its command line."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

from tracekit.annotation import WINDOW
from tracekit.errors import RecordingError, UsageError
from tracekit.recording._wanted import Wanted

VARIABLE = "TRACEKIT_NSYS"
"""Environment variable with the path of nsys, if it is not the one on the path."""
_SECONDS = 60
_OLDEST = (2020, 4)
"""First version whose exports can be read."""
_VERSION = re.compile(r"\b(20[0-9]{2})\.([0-9]+)")
_SWITCHES_ALLOWED = re.compile(r"process-tree\)?:\s*OK")
_OPTION = re.compile(r"^\s+(?:-[a-zA-Z], )?--([a-z][a-z0-9-]+)", re.MULTILINE)
_TRACE = re.compile(r"^\s+-t, --trace=(?:.|\n)*?(?=^\s+-|\Z)", re.MULTILINE)
_QUOTED = re.compile(r"'([a-z][a-z0-9-]*)'")


@dataclass(frozen=True)
class Nsys:
    """An installed nsys: its version, and what it can record."""

    program: str
    """Path of nsys."""
    version: str
    """Version, as nsys prints it."""
    options: frozenset[str]
    """Long options of ``nsys profile``, without dashes."""
    traces: frozenset[str]
    """Values of its option ``--trace``; empty if its help does not list them."""
    sees_switches: bool = False
    """Whether this machine allows it to record context switches of threads."""

    @classmethod
    def of(cls, program: str, version: str, profile_help: str, status: str = "") -> Nsys:
        """Parse from an nsys's output what it can record.

        `version`, `profile_help` and `status` are the outputs of ``nsys --version``, ``nsys profile
        --help`` and ``nsys status --environment``.
        """
        traces = _TRACE.search(profile_help)
        return cls(
            program,
            version.strip(),
            frozenset(_OPTION.findall(profile_help)),
            frozenset(_QUOTED.findall(traces[0] if traces else "")),
            bool(_SWITCHES_ALLOWED.search(status)),
        )

    def __str__(self) -> str:
        """Return path and version of this nsys."""
        number = self.version.rpartition(" ")[2]
        return f"{self.program} ({number})" if number else self.program

    def first_of(self, *options: str) -> str | None:
        """Return the first of `options` that this nsys has, or None; names differ by version."""
        return next((option for option in options if option in self.options), None)


def find_nsys(tool: str | None = None) -> Nsys:
    """Return the nsys of this name or path; by default ``TRACEKIT_NSYS``, else that on the path.

    Raises
    ------
    RecordingError
        If no nsys is found, or the one found does not run or is too old.
    """
    name = tool or os.environ.get(VARIABLE) or "nsys"
    program = shutil.which(name)
    if program is None:
        raise RecordingError(
            f"there is no {name} here to record with",
            f"install NVIDIA Nsight Systems, or name its nsys with --nsys or {VARIABLE}",
        )
    version, status = _output(program, "--version"), _output(program, "status", "--environment")
    found = Nsys.of(program, version, _output(program, "profile", "--help"), status)
    number = _VERSION.search(version)
    if number and tuple(map(int, number.groups())) < _OLDEST:
        raise RecordingError(
            f"{found} is too old to record with",
            f"install Nsight Systems {_OLDEST[0]}.{_OLDEST[1]} or later, or name it with --nsys",
        )
    return found


def _output(program: str, *arguments: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - the program that the user chose
            [program, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RecordingError(f"{program} does not run ({error})") from error
    return (done.stdout + done.stderr).decode("utf-8", "replace")


# -- command line of `nsys profile`

CUDA_RANGE = "cuda"
"""The capture range that a program marks by cudaProfilerStart and cudaProfilerStop."""
_TRACES = ("cuda", "nvtx")
_LONG_CALLS_NS = 10_000
"""Least duration of recorded system calls, ns, by default. Calls that occur
hundreds of times per step are shorter; each costs 0.4 us to write and 0.07 us to skip."""


def profile_command(nsys: Nsys, wanted: Wanted) -> list[str]:
    """Return the nsys command for a recording, without its output file.

    Raises
    ------
    UsageError
        If this nsys cannot record the data in `wanted`.
    """
    arguments = [*_traces(nsys, wanted), *_extras(nsys, wanted)]
    if not wanted.cpu_samples:
        quiet = {"sample": "none", "cpuctxsw": "process-tree" if nsys.sees_switches else "none"}
        arguments += [f"--{name}={value}" for name, value in quiet.items() if name in nsys.options]
    return [nsys.program, "profile", *arguments, *(wanted.more or ())]


def _traces(nsys: Nsys, wanted: Wanted) -> Iterator[str]:
    chosen = wanted.traces or (*_TRACES, *(("mpi",) if wanted.mpi else ()))
    if wanted.nccl is not None:
        chosen = (*chosen, "nccl")
    if wanted.why_idle:
        chosen = (*chosen, "osrt")
    if wanted.is_annotated and "nvtx" not in chosen:
        raise UsageError("annotations are NVTX ranges, which are not traced", "--trace nvtx,...")
    unknown = [each for each in chosen if nsys.traces and each not in nsys.traces]
    if unknown:
        known = ", ".join(sorted(nsys.traces))
        raise UsageError(f"{nsys} cannot trace {unknown[0]!r}", f"it traces {known}")
    yield f"--trace={','.join(dict.fromkeys(chosen))}"
    if wanted.nccl is not None:
        yield f"--{_has(nsys, 'nccl-trace')}={wanted.nccl}"
    if wanted.why_idle and "osrt-threshold" in nsys.options:
        yield f"--osrt-threshold={_LONG_CALLS_NS}"
    if wanted.mpi and "mpi" in chosen:
        yield f"--{_has(nsys, 'mpi-impl')}={wanted.mpi}"


def _extras(nsys: Nsys, wanted: Wanted) -> Iterator[str]:
    if wanted.has_windows:
        yield from _windows(nsys, wanted)
    elif wanted.capture_range is not None:
        yield from _capture_range(nsys, wanted.capture_range)
    if wanted.memory_usage:
        yield f"--{_has(nsys, 'cuda-memory-usage')}=true"
    if wanted.graph_nodes:
        yield f"--{_has(nsys, 'cuda-graph-trace')}=node"
    if wanted.gpu_metrics is not None:
        yield f"--{_has(nsys, 'gpu-metrics-devices', 'gpu-metrics-device')}={wanted.gpu_metrics}"
    if wanted.nic_metrics:
        yield f"--{_has(nsys, 'nic-metrics')}=true"


def _capture_range(nsys: Nsys, capture_range: str) -> Iterator[str]:
    """Yield nsys options to record one range of the program, which goes on after it."""
    if capture_range == CUDA_RANGE:
        yield f"--{_has(nsys, 'capture-range')}=cudaProfilerApi"
    else:
        yield f"--{_has(nsys, 'capture-range')}=nvtx"
        yield f"--{_has(nsys, 'nvtx-capture')}={capture_range}"
    if "capture-range-end" in nsys.options:
        yield "--capture-range-end=stop"
    elif "stop-on-range-end" in nsys.options:
        yield "--stop-on-range-end=false"


def _windows(nsys: Nsys, wanted: Wanted) -> Iterator[str]:
    """Yield nsys options that record each window of steps into a separate report."""
    if wanted.capture_range is not None:
        raise UsageError(
            "windows of steps are the capture range, and annotations mark the steps",
            "leave out --capture-range",
        )
    every, length = wanted.windows or (1, 0)
    if wanted.windows is not None and not 0 < length < every:
        raise UsageError(
            f"windows of {length:,} steps do not begin every {every:,} steps",
            "such as --every 1000 --for 3",
        )
    yield f"--{_has(nsys, 'capture-range')}=nvtx"
    yield f"--{_has(nsys, 'nvtx-capture')}={WINDOW}"
    yield f"--{_has(nsys, 'capture-range-end')}=repeat"


def _has(nsys: Nsys, *options: str) -> str:
    found = nsys.first_of(*options)
    if found is None:
        raise UsageError(f"{nsys} has no option --{options[0]}", "use a newer nsys")
    return found
