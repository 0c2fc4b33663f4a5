"""Read reports of nsys (.nsys-rep) by exporting them with the installed nsys."""

from __future__ import annotations

import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import polars as pl

from tracekit.errors import InputError, UnsupportedTraceError
from tracekit.model import Recording
from tracekit.sources import nsys
from tracekit.sources.sqlite import SqliteFile
from tracekit.support.progress import Progress
from tracekit.support.spool import Workspace

REPORT_MAGIC = b"NVIDIA Tegra Profiler Report"
"""First bytes of ``.nsys-rep`` and ``.qdrep`` files."""
VARIABLE = "TRACEKIT_NSYS"
"""Environment variable with the nsys to use, if it is not the one on PATH."""

TABLES = (
    "StringIds", "ThreadNames", "PROCESSES", "ANALYSIS_DETAILS", "GENERIC_EVENT.*",
    "CUPTI_ACTIVITY_.*", "CUDA_GPU_.*", "CUDA_GRAPH.*", "NVTX_.*", "MPI_.*", "UCP_.*",
    "GPU_METRICS.*", "NET_.*", "NIC_.*", "OSRT_API", "PROFILER_OVERHEAD", "TARGET_INFO_.*",
    "META_DATA_.*", "EXPORT_META_DATA", "DIAGNOSTIC_EVENT", "SCHED_EVENTS", "COMPOSITE_EVENTS",
    "SAMPLING_CALLCHAINS",
)  # fmt: skip
"""Patterns of the tables to export; tables of other libraries are most of some reports."""
_OPTIONS = ("--lazy=true", "--include-blobs=true", "--tables=" + ",".join(TABLES))
"""Options for the export, each used if this nsys has it."""

_SILENCE = 1800.0
"""Seconds without output, printed or written, after which nsys is stopped."""
_LOOK = 0.5
_HELP_SECONDS = 60
_LONGEST = 300
"""Largest number of characters of nsys's output that are repeated."""
_REPORT_VERSION = re.compile(re.escape(REPORT_MAGIC) + rb" (20[0-9]{2})@([0-9]+)@")
"""Pattern of the version in reports newer than 2022."""
_TOOL_VERSION = re.compile(r"\b(20[0-9]{2})\.([0-9]+)")
_PERCENT = re.compile(rb"([0-9]{1,3})%")


def is_report(path: Path) -> bool:
    """Test whether a file is a report of nsys."""
    with path.open("rb") as file:
        return file.read(len(REPORT_MAGIC)) == REPORT_MAGIC


def read_report(
    path: Path, workspace: Workspace, progress: Progress, tool: str | None = None
) -> Recording:
    """Export a report with nsys, and read the export as `tracekit.sources.nsys.read` does.

    Parameters
    ----------
    path
        The report.
    workspace
        Folder for the export.
    progress
        Callback that receives progress.
    tool
        The nsys program; None: ``TRACEKIT_NSYS``, else the one on PATH.

    Raises
    ------
    UnsupportedTraceError
        If no nsys is found.
    InputError
        If nsys cannot export the report, or the export cannot be read.
    """
    exported = export_report(path, workspace.new_folder(), tool, progress)
    try:
        recording = nsys.read(SqliteFile(exported), workspace, progress, is_ours=True)
    except InputError as error:
        raise type(error)(error.what.replace(str(exported), str(path)), error.hint) from error
    reports = recording.tables["reports"].with_columns(
        file=pl.lit(os.fsencode(path.name).decode("utf-8", "replace")),
        format=pl.lit("nsys report"),
        size=pl.lit(path.stat().st_size),
    )
    return replace(
        recording,
        tables={**recording.tables, "reports": reports},
        warnings=tuple(each.replace(str(exported), str(path)) for each in recording.warnings),
    )


def export_report(
    path: Path, folder: Path, tool: str | None = None, progress: Progress = lambda *_: None
) -> Path:
    """Export an nsys report to SQLite in `folder`, by the nsys `tool` if given; return its path.

    Raises
    ------
    UnsupportedTraceError
        If no nsys is found.
    InputError
        If nsys cannot export the report.
    """
    program = _find(path, tool)
    exported = folder / "report.sqlite"
    command = [
        program, "export", "--type=sqlite", f"--output={exported.absolute()}",
        *_known(path, program), str(path.absolute()),
    ]  # fmt: skip
    progress("export with nsys", 0, 100)
    with (folder / "said").open("w+b") as output, _running(path, command, output) as process:
        _follow(path, process, exported, progress)
        output.seek(0)
        if process.returncode or not exported.is_file():
            said = " ".join(output.read().decode("utf-8", "replace").split())[-_LONGEST:]
            why = said or f"nsys gave up with code {process.returncode}"
            raise _too_new(path, program) or _failed(path, why)
    progress("export with nsys", 100, 100)
    return exported


def _find(path: Path, tool: str | None) -> str:
    name = tool or os.environ.get(VARIABLE) or "nsys"
    found = shutil.which(name)
    if found is None:
        raise UnsupportedTraceError(
            f"{path} is an Nsight Systems report, and {name} was not found to export it",
            f"name an nsys with --nsys or {VARIABLE}, or export it where nsys is installed:"
            f" {_by_hand(path)}",
        )
    return found


def _by_hand(path: Path) -> str:
    return f"nsys export --type sqlite {shlex.quote(str(path))}"


def _failed(path: Path, why: str) -> InputError:
    return InputError(
        f"nsys cannot export {path} ({why})",
        f"export it where the nsys is installed that recorded it, or a newer one: {_by_hand(path)}",
    )


def _too_new(path: Path, program: str) -> InputError | None:
    """Return the error for a report recorded by a newer nsys than the installed one.

    None if the installed nsys is new enough, or a version is unknown.
    """
    with path.open("rb") as file:
        recorded = _REPORT_VERSION.match(file.read(_LONGEST))
    known = _TOOL_VERSION.search(_output(path, program, "--version"))
    if not recorded or not known or _numbers(recorded) <= _numbers(known):
        return None
    installed, needed = (".".join(map(str, _numbers(each))) for each in (known, recorded))
    return UnsupportedTraceError(
        f"{path} was recorded by Nsight Systems {needed}; {program} is {installed}, which is older",
        f"export it where it was recorded: {_by_hand(path)}",
    )


def _numbers(version: re.Match[Any]) -> tuple[int, int]:
    return int(version[1]), int(version[2])


def _known(path: Path, program: str) -> list[str]:
    """Return those options of ``nsys export`` in `_OPTIONS` that this version of nsys has."""
    text = _output(path, program, "export", "--help")
    return [option for option in _OPTIONS if option.partition("=")[0] in text]


def _output(path: Path, program: str, *words: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - the program that the user chose
            [program, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_HELP_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _failed(path, f"{program} does not run: {error}") from error
    return (done.stdout + done.stderr).decode("utf-8", "replace")


@contextmanager
def _running(
    path: Path, command: Sequence[str], output: IO[bytes]
) -> Iterator[subprocess.Popen[bytes]]:
    """Start `command`; yield its process, and when the caller is done kill it and its children."""
    try:
        process = subprocess.Popen(  # noqa: S603 - a list, and no shell
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=output,
            start_new_session=True,
        )
    except OSError as error:
        raise _failed(path, f"{command[0]} does not run: {error.strerror}") from error
    with process:
        try:
            yield process
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


def _follow(
    path: Path, process: subprocess.Popen[bytes], exported: Path, progress: Progress
) -> None:
    """Report the progress that nsys prints, until it has ended; raise an error if it hangs."""
    assert process.stdout is not None  # noqa: S101 - it was asked for
    number, rest, size, alive = process.stdout.fileno(), b"", 0, time.monotonic()
    while True:
        if select.select([number], [], [], _LOOK)[0]:
            more = os.read(number, 1 << 16)
            if not more:
                break
            rest = (rest + more)[-(1 << 10) :]
            percents = [int(each) for each in _PERCENT.findall(rest)]
            progress("export with nsys", min(percents[-1], 100) if percents else 0, 100)
            alive = time.monotonic()
        elif (grown := _size(exported)) != size:
            size, alive = grown, time.monotonic()
        elif time.monotonic() - alive > _SILENCE:
            raise _failed(path, f"it did nothing for {_SILENCE:.0f} seconds")
    try:
        process.wait(_SILENCE)
    except subprocess.TimeoutExpired as error:
        raise _failed(path, f"it did not end within {_SILENCE:.0f} seconds") from error


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
