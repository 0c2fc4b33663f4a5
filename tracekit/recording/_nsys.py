"""Abilities of the installed nsys, parsed from its help and its status output."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass

from tracekit.errors import RecordingError

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
    """An installed nsys and its abilities.

    Parameters
    ----------
    program
        Path of nsys.
    version
        Version, as nsys prints it.
    options
        Long options of ``nsys profile``, without dashes.
    traces
        Values of its option ``--trace``; empty if its help does not list them.
    sees_switches
        Whether this machine allows it to record context switches of threads.
    """

    program: str
    version: str
    options: frozenset[str]
    traces: frozenset[str]
    sees_switches: bool = False

    @classmethod
    def of(cls, program: str, version: str, profile_help: str, status: str = "") -> Nsys:
        """Parse the abilities of an nsys from its outputs.

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
        """Return path and version."""
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
    version, status = _said(program, "--version"), _said(program, "status", "--environment")
    found = Nsys.of(program, version, _said(program, "profile", "--help"), status)
    number = _VERSION.search(version)
    if number and tuple(map(int, number.groups())) < _OLDEST:
        raise RecordingError(
            f"{found} is too old to record with",
            f"install Nsight Systems {_OLDEST[0]}.{_OLDEST[1]} or later, or name it with --nsys",
        )
    return found


def _said(program: str, *arguments: str) -> str:
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
