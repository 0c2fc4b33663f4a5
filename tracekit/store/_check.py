"""Check a store: its runs, its catalogue, its id, and leftovers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracekit.model import damaged_files, is_checked, missing_files
from tracekit.store._rows import Known, read_run

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from tracekit.store._record import Entry

_SHOWN = 5


@dataclass(frozen=True)
class Finding:
    """A fault in a store.

    Parameters
    ----------
    what
        ``store``, ``catalogue``, ``run``, or ``folder`` (which no run needs).
    name
        Its file, name or folder.
    fault
        What is wrong with it.
    mended
        Whether it is right by now.
    todo
        What is left to do; None where it is mended.
    """

    what: str
    name: str
    fault: str
    mended: bool
    todo: str | None


def whole_reports(folder: Path, reports: int) -> list[int]:
    """Return the numbers of the reports of a run whose files are all there and as written."""
    return [
        number
        for number in range(reports)
        if not missing_files(folder / str(number)) and not damaged_files(folder / str(number))
    ]


def faults(folder: Path, reports: int, *, thorough: bool = False) -> list[str]:
    """Return the faults in the columns of a run, one clause each.

    Parameters
    ----------
    folder
        The run's folder.
    reports
        How many reports it has.
    thorough
        Whether to read every file, and not only those whose size or time has changed; and to miss
        checksums, of which earlier versions wrote none.
    """
    numbers = [str(number) for number in range(reports)]
    gone = [f"{n}/{name}" for n in numbers for name in missing_files(folder / n)]
    bad = [
        f"{n}/{name}" for n in numbers for name in damaged_files(folder / n, thorough=thorough)
    ]  # fmt: skip
    bare = [n for n in numbers if thorough and not is_checked(folder / n)]
    found = {
        "lacks": gone,
        "has a damaged": [name for name in bad if name not in gone],
        "has no checksums of report": bare,
    }
    return [f"{verb} {listed(names)}" for verb, names in found.items() if names]


def run_finding(entry: Entry, folder: Path) -> Finding | None:
    """Read all files of a run, and return what is wrong; None if nothing."""
    found = faults(folder, len(entry.record.files), thorough=True)
    if not found:
        return None
    return Finding(
        "run", entry.record.name, " and ".join(found), mended=False, todo=again(entry)
    )  # fmt: skip


def again(entry: Entry) -> str:
    """Say how to make the columns of a run again."""
    return f"ingest {listed(entry.record.files)} again"


def unmarked(folder: Path) -> Finding:
    """Report a folder that has a run's name and no mark."""
    fault, todo = "is of no run, and has no mark of tracekit", "look into it, and delete it"
    return Finding("folder", folder.name, fault, mended=False, todo=todo)


def whole_run(folder: Path) -> Known | None:
    """Return the run that a folder holds; None where it says of none, or its columns are faulty."""
    known = read_run(folder)
    if known is None or faults(folder, len(known.entry.record.files), thorough=True):
        return None
    return known


def listed(names: Collection[str]) -> str:
    """Return some names in words, the first few of many."""
    more = len(names) - _SHOWN
    return ", ".join(list(names)[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
