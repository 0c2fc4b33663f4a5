"""Check a store: its runs, catalogue, id, and leftover folders."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tracekit.model import damaged_files, missing_files
from tracekit.store._rows import Known, read_run
from tracekit.store._run_record import Entry
from tracekit.support.files import status_of

_SHOWN = 5


@dataclass(frozen=True)
class Finding:
    """A fault in a store."""

    what: str
    """Faulty object: ``store``, ``catalogue``, ``run``, or ``folder`` (a leftover)."""
    name: str
    """File, run name or folder that is faulty."""
    fault: str
    """Description of the fault."""
    mended: bool
    """Whether the fault has been repaired."""
    todo: str | None
    """Instruction for the user; None if it is repaired."""


def whole_reports(folder: Path, reports: int) -> list[int]:
    """Return the indices of a run's trace files whose tables are complete and unchanged."""
    return [number for number in range(reports) if not any(_faulty(folder / str(number)))]


def faults(folder: Path, reports: int, *, thorough: bool = False) -> list[str]:
    """Return the faults in the stored tables of a run, one clause each.

    Parameters
    ----------
    folder
        The run's folder.
    reports
        Number of trace files ("reports") of the run.
    thorough
        Whether to read every file. Otherwise only files whose size or modification time has changed
        are read.
    """
    faulty = {str(n): _faulty(folder / str(n), thorough=thorough) for n in range(reports)}
    found = {
        "lacks": [f"{n}/{name}" for n, (missing, _) in faulty.items() for name in missing],
        "has a damaged": [f"{n}/{name}" for n, (_, damaged) in faulty.items() for name in damaged],
    }
    return [f"{verb} {listed(names)}" for verb, names in found.items() if names]


def _faulty(folder: Path, *, thorough: bool = False) -> tuple[list[str], list[str]]:
    """Return the missing and the damaged files in a folder of tables.

    `thorough`: read all files, not only those whose size or time differs.
    """
    status = cache(status_of)
    missing = missing_files(folder, status)
    damaged = damaged_files(folder, status, thorough=thorough)
    return missing, [name for name in damaged if name not in missing]


def run_finding(entry: Entry, folder: Path) -> Finding | None:
    """Read all files of a run; return the fault found, or None if there is none."""
    found = faults(folder, len(entry.record.files), thorough=True)
    if not found:
        return None
    return Finding(
        "run", entry.record.name, " and ".join(found), mended=False, todo=again(entry)
    )  # fmt: skip


def again(entry: Entry) -> str:
    """Return an instruction to ingest a run's trace files again, to restore its tables."""
    return f"ingest {listed(entry.record.files)} again"


def unmarked(folder: Path) -> Finding:
    """Return the finding for a folder named like a run's that lacks tracekit's marker file."""
    fault, todo = "is of no run, and has no mark of tracekit", "look into it, and delete it"
    return Finding("folder", folder.name, fault, mended=False, todo=todo)


def whole_run(folder: Path) -> Known | None:
    """Return a folder's run, from the copy of its catalogue row; None if the folder is faulty.

    The folder is faulty if this copy or a file of the tables is missing or damaged.
    """
    known = read_run(folder)
    if known is None or faults(folder, len(known.entry.record.files), thorough=True):
        return None
    return known


def listed(names: Collection[str]) -> str:
    """Return names as text: the first few, and the number of the others."""
    more = len(names) - _SHOWN
    return ", ".join(list(names)[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
