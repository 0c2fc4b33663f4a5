"""Catalogue entry of a run; rules for its name, and how to look it up."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracekit.errors import UnknownRunError, UsageError
from tracekit.support.labels import is_forbidden, label_fault
from tracekit.support.spelling import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from datetime import datetime

SummaryValue = int | float | str | None
"""A value of a run's summary."""

LATEST = "@latest"
_LONGEST_NAME = 200
_FALLBACK_NAME = "run"
_SHORTEST_PREFIX = 4  # of an id, so that a mistyped name does not mean another run
_SHOWN = 5  # runs listed where a reference is ambiguous
_FORBIDDEN_STARTS = ("@", "-")
_OF_FILES = (
    ".sqlite", ".db", ".nsys-rep", ".qdrep", ".nvvp", ".nvprof", ".json", ".json.gz", ".csv",
    "_pqtdir", "_arwdir",
)  # fmt: skip
"""File extensions of traces: a word with one of them is a file, any other word a run if there is
one."""


@dataclass(frozen=True)
class RunRecord:
    """Catalogue entry of a run.

    Parameters
    ----------
    id
        Random id of 12 hexadecimal digits; it never changes.
    name
        Its name, unique in the store.
    created
        Time of the first ingest, UTC.
    digest
        Digest of the content of its trace files; for a single file its SHA-256.
    options
        Attribution options of the ingest, as canonical JSON.
    labels
        Labels given by the user, or by the program through its recording: name -> value.
    files
        Names of its trace files, without folders.
    warnings
        Warnings about the run for users, one sentence each.
    summary
        Values shown in listings of runs: name -> number or word.
    size
        Total size of its trace files, bytes; None if an earlier version of tracekit added the run.
    """

    id: str
    name: str
    created: datetime
    digest: str
    options: str
    labels: Mapping[str, str]
    files: tuple[str, ...]
    warnings: tuple[str, ...]
    summary: Mapping[str, SummaryValue]
    size: int | None = None


@dataclass(frozen=True)
class Entry:
    """A row of the catalogue: a run, and its folder in ``runs/``."""

    record: RunRecord
    folder: str


def known(summary: Mapping[str, SummaryValue]) -> dict[str, SummaryValue]:
    """Return the values of a run's summary, with null in place of infinite or undefined ones."""
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in summary.items()
    }


def check_name(name: str) -> None:
    """Raise `UsageError` with the reason if `name` is not a valid name of a run."""
    fault = _fault(name)
    if fault is not None:
        raise UsageError(f"the run name {name!r} {fault}", "choose another name")


def check_labels(labels: Mapping[str, str]) -> None:
    """Raise `UsageError` if one of `labels` has a name or value that is not allowed."""
    for key, value in labels.items():
        fault = label_fault(key, value)
        if fault is not None:
            raise UsageError(f"the label {key!r} {fault}", "write it as gpus=4")


def is_named_as_file(name: str) -> bool:
    """Test whether a name has the file extension of a trace."""
    return name.lower().endswith(_OF_FILES)


def _fault(name: str) -> str | None:
    faults = {
        "is empty": not name.strip(),
        "begins or ends with a space": name != name.strip(),
        f"has more than {_LONGEST_NAME} characters": len(name) > _LONGEST_NAME,
        f"begins with {name[:1]!r}": name.startswith(_FORBIDDEN_STARTS),
        "has a slash": "/" in name,
        "would be taken for a file": is_named_as_file(name),
        "has a character that cannot be printed": any(map(is_forbidden, name)),
    }
    return next((fault for fault, there in faults.items() if there), None)


def free_name(wanted: str, taken: Collection[str]) -> str:
    """Return `wanted` as a valid name; if the name is taken, append a number (``-2``, ``-3``)."""
    base = _tidied(wanted)
    if base not in taken:
        return base
    numbered = (
        f"{base[: _LONGEST_NAME - len(suffix)]}{suffix}"
        for suffix in (f"-{number}" for number in itertools.count(2))
    )
    return next(name for name in numbered if name not in taken)


def _tidied(name: str) -> str:
    printable = "".join("_" if c == "/" or is_forbidden(c) else c for c in name)
    started = printable.strip().lstrip("".join(_FORBIDDEN_STARTS) + " ")
    tidied = started[:_LONGEST_NAME].strip()
    while is_named_as_file(tidied):
        ending = next(each for each in _OF_FILES if tidied.lower().endswith(each))
        tidied = tidied[: -len(ending)].strip()
    return tidied or _FALLBACK_NAME


def resolve(entries: Sequence[Entry], reference: str, where: str) -> Entry:
    """Return the entry that `reference` denotes: a name, the start of an id, or ``@latest``.

    Parameters
    ----------
    entries
        All runs of the store, oldest first.
    reference
        Text that the user wrote; the start of an id has at least four digits.
    where
        Name of the store in messages.

    Raises
    ------
    UnknownRunError
        If the reference matches no run, or several.
    """
    if not entries:
        raise UnknownRunError(
            f"no run {reference!r}, the store {where} is empty", "fill it with `tracekit ingest`"
        )
    if reference == LATEST:
        return entries[-1]
    named = [entry for entry in entries if entry.record.name == reference]
    found = named or _with_prefix(entries, reference.lower())
    if len(found) == 1:
        return found[0]
    if found:
        listed = ", ".join(f"{entry.record.id} ({entry.record.name})" for entry in found[:_SHOWN])
        more = ", ..." if len(found) > _SHOWN else ""
        raise UnknownRunError(
            f"{reference!r} begins the ids of {len(found)} runs of the store {where}",
            f"write more digits of one: {listed}{more}",
        )
    raise UnknownRunError(f"no run {reference!r} in the store {where}", _near(entries, reference))


def _with_prefix(entries: Sequence[Entry], prefix: str) -> list[Entry]:
    if len(prefix) < _SHORTEST_PREFIX:
        return []
    return [entry for entry in entries if entry.record.id.startswith(prefix)]


def _near(entries: Sequence[Entry], reference: str) -> str:
    names = [entry.record.name for entry in entries]
    return f"{did_you_mean(reference, names)}`tracekit runs list` shows all"
