"""A store of runs: ingest, look up, open, rename, remove."""

from __future__ import annotations

import os
import secrets
import shlex
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.errors import NameTakenError, StoreError, UnknownRunError
from tracekit.model import Trace, combine, missing_files
from tracekit.store._identity import make_id, read_id
from tracekit.store._reader import read_entries
from tracekit.store._record import (
    Entry,
    RunRecord,
    SummaryValue,
    check_labels,
    check_name,
    free_name,
    known,
    resolve,
)
from tracekit.store._rows import FILE
from tracekit.store._staging import Folders, file_errors
from tracekit.support.labels import MOST

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from tracekit.store._catalogue import Catalogue, Rows
    from tracekit.store._reports import Made

    _Make = Callable[[Path], Made]
    _Summarise = Callable[[Trace], Mapping[str, SummaryValue]]
    _Added = tuple[RunRecord, bool]

_FOLDER = ".tracekit"
_SHOWN = 5


@dataclass(frozen=True)
class _Request:
    """What an ingest was asked to add."""

    digest: str
    options: str
    files: tuple[str, ...]
    name: str | None
    default_name: str
    labels: Mapping[str, str]


@dataclass(frozen=True)
class _Columns:
    """Columns that are complete on disk, and what is known of them."""

    folder: str
    warnings: tuple[str, ...]
    labels: Mapping[str, str]
    summary: Mapping[str, SummaryValue]


class Store:
    """A catalogue of runs and the folders of their columns.

    Nothing is created on disk before a run is added.

    Parameters
    ----------
    root
        The store's folder.
    catalog
        URL of the database that holds the catalogue, ``postgresql://user@host/database``; by
        default it is a SQLite file in `root`.
    """

    def __init__(self, root: Path, catalog: str | None = None) -> None:
        self.root = root.absolute()
        self._catalog = catalog
        self._folders = Folders(self.root)

    @classmethod
    def discover(cls, path: Path | None = None, start: Path | None = None) -> Store:
        """Return the store that a command means.

        Parameters
        ----------
        path
            The store's folder, where the user named one. Else it is the one that the environment
            variable ``TRACEKIT_STORE`` names, else the nearest ``.tracekit`` upward from `start`,
            else ``.tracekit`` in `start`. ``TRACEKIT_CATALOG`` puts the catalogue elsewhere.
        start
            Where to begin looking, by default the working directory.
        """
        named = path or os.environ.get("TRACEKIT_STORE")
        root = Path(named) if named else _nearest((start or Path.cwd()).absolute())
        return cls(root, os.environ.get("TRACEKIT_CATALOG") or None)

    def runs(self, labels: Mapping[str, str] | None = None) -> list[RunRecord]:
        """Return the runs, oldest first: all, or those that carry all the given labels."""
        wanted = (labels or {}).items()
        records = [entry.record for entry in self._entries()]
        return [record for record in records if wanted <= record.labels.items()]

    def find(self, reference: str) -> RunRecord:
        """Return the run that a user means.

        Parameters
        ----------
        reference
            The name of a run, at least four digits that begin its id, or ``@latest`` for the run
            that was added last.

        Raises
        ------
        UnknownRunError
            If no run, or more than one, is meant.
        """
        return resolve(self._entries(), reference, str(self.root)).record

    def find_content(self, digest: str, options: str) -> RunRecord | None:
        """Return the run of this content and these options whose columns are there, if any."""
        entry = _of_content(self._entries(), digest)
        return entry.record if entry and self._holds(entry, options) else None

    def open(self, record: RunRecord) -> Trace:
        """Open the columns of a run; nothing large is read yet.

        Reading fails once the run has been removed or its columns replaced: open it again.

        Raises
        ------
        UnknownRunError
            If the run has been removed.
        StoreError
            If its columns are not there, or were written by a tracekit with other tables.
        """
        now, reports = self.open_reports(record)
        return replace(combine(reports), warnings=now.warnings)

    def open_reports(self, record: RunRecord) -> tuple[RunRecord, list[Trace]]:
        """Open the columns of each report of a run by itself, without warnings; else as `open`.

        Returns
        -------
        The run as the catalogue now has it, and its reports.
        """
        entry = next((e for e in self._entries() if e.record.id == record.id), None)
        if entry is None:
            raise UnknownRunError(
                f"the run {record.name!r} is no longer in the store {self.root}",
                "`tracekit runs list` shows all",
            )
        folder = self._folders.runs / entry.folder
        missing = self._missing(entry)
        if missing:
            raise StoreError(
                f"the run {entry.record.name!r} lacks {_listed(missing)} in {folder}",
                f"ingest {', '.join(entry.record.files)} again",
            )
        with file_errors(self.root):
            return entry.record, _scanned(folder, [()] * len(entry.record.files))

    def rename(self, reference: str, name: str) -> RunRecord:
        """Give a run another name and return it.

        Raises
        ------
        UnknownRunError
            If `reference` means no run.
        UsageError
            If no run may have that name.
        NameTakenError
            If another run has it.
        """
        check_name(name)
        with self._writing(reference) as rows:
            entries = rows.entries()
            entry = resolve(entries, reference, str(self.root))
            self._check_free(entries, name, entry)
            renamed = replace(entry, record=replace(entry.record, name=name))
            rows.update(renamed)
        return renamed.record

    def remove(self, reference: str) -> RunRecord:
        """Remove a run with its columns and return what it was.

        Raises
        ------
        UnknownRunError
            If `reference` means no run.
        StoreError
            If the run is removed, but its columns could not be.
        """
        with self._writing(reference) as rows:
            entry = resolve(rows.entries(), reference, str(self.root))
            rows.delete(entry.record)
        self._folders.discard(entry.folder)
        folder = self._folders.runs / entry.folder
        if folder.exists():
            raise StoreError(
                f"the run {entry.record.name!r} is removed, but its columns in {folder} are not",
                "delete the folder",
            )
        return entry.record

    def add(
        self,
        *,
        digest: str,
        options: str,
        files: Sequence[str],
        name: str | None,
        default_name: str,
        labels: Mapping[str, str],
        make: Callable[[Path], Made],
        summarise: Callable[[Trace], Mapping[str, SummaryValue]],
    ) -> tuple[RunRecord, bool]:
        """Add a run: all of it or, where anything fails or interrupts, nothing.

        A run of this content and these options is not made again: it gets the labels, and the name
        if one is given. The columns of a run of this content with other options are replaced; it
        keeps its id, its labels, and its name unless one is given.

        Parameters
        ----------
        digest
            Digest of the content of the run's reports.
        options
            Canonical JSON of the options that shape the columns.
        files
            Names of the report files, without folders.
        name, default_name
            The name that the user chose, and the one of a new run where the user chose none, which
            is altered where it is invalid or taken.
        labels
            Labels, added to those that the run has. They win over those that its program gave it.
        make
            Makes the run's tables in a folder, one folder in it per report, and says what was made,
            which may be less than what was asked for. It is not called where the run is there
            already.
        summarise
            Makes a summary of the tables as they are in the store.

        Returns
        -------
        tuple
            The run, and whether its columns were made now.

        Raises
        ------
        UsageError
            If no run may have that name or those labels, or (`NameTakenError`) a run of other
            content has it.
        StoreError
            If the store or its catalogue cannot be written.
        """
        if name is not None:
            check_name(name)
        check_labels(labels)
        request = _Request(digest, options, tuple(files), name, default_name, labels)
        if not self.root.exists():
            return self._add_first(request, make, summarise)
        return self._add(request, make, summarise)

    def _add_first(self, request: _Request, make: _Make, summarise: _Summarise) -> _Added:
        """Make a store for a run, once it turns out that there is a run."""
        self._catalogue.identity()  # raises before the work where it cannot be used
        self._folders.create()
        try:
            with self._folders.claim("first-") as staged:
                made = make(staged)

                def move(folder: Path) -> Made:
                    with file_errors(self.root):
                        for path in staged.iterdir():
                            path.rename(folder / path.name)
                    return made

                return self._add(request, move, summarise)
        except BaseException:
            self._folders.drop_empty()
            raise

    def _add(self, request: _Request, make: _Make, summarise: _Summarise) -> _Added:
        self._folders.create()
        store = make_id(self._folders)
        self._sweep()
        try:
            return self._ingest(store, request, make, summarise)
        finally:
            # What this ingest replaced or did not finish is left over by now.
            self._sweep()

    def _ingest(self, store: str, request: _Request, make: _Make, summarise: _Summarise) -> _Added:
        with self._catalogue.writing(store) as rows:
            settled = self._settle(rows, request)
            prefix = f"{rows.catalogue_id}-"
        if settled is not None:
            return settled, False
        # The claim outlasts the commit, so that no sweep comes between publishing and committing.
        with self._folders.claim(prefix) as staged:
            made = make(staged)
            with file_errors(self.root):
                trace = combine(_scanned(staged, made.warnings))
            labels, unclear = _agreed(made.labels, request.labels)
            warnings = (*trace.warnings, *made.left_out, *unclear)
            summary = summarise(replace(trace, warnings=warnings))
            columns = _Columns(staged.name, warnings, labels, summary)
            self._folders.publish(staged)
            done = replace(request, digest=made.digest, files=made.files)
            return self._commit(store, done, columns)

    def _settle(self, rows: Rows, request: _Request) -> RunRecord | None:
        """Return the run that is there already, with its new labels and name; else None."""
        entries = rows.entries()
        entry = _of_content(entries, request.digest)
        if request.name is not None:
            self._check_free(entries, request.name, entry)
        if entry is None or not self._holds(entry, request.options):
            return None
        settled = replace(entry, record=_retouched(entry.record, request))
        if settled != entry:
            rows.update(settled)
        return settled.record

    def _commit(self, store: str, request: _Request, columns: _Columns) -> _Added:
        """Make published columns a run, unless another process has made the same meanwhile."""
        with self._catalogue.writing(store) as rows:
            settled = self._settle(rows, request)
            if settled is not None:
                return settled, False
            entries = rows.entries()
            old = _of_content(entries, request.digest)
            record = (
                _new_record(entries, request) if old is None else _retouched(old.record, request)
            )
            record = replace(
                record,
                labels={**columns.labels, **record.labels},
                options=request.options,
                files=request.files,
                warnings=columns.warnings,
                summary=known(columns.summary),
            )
            (rows.insert if old is None else rows.update)(Entry(record, columns.folder))
        return record, True

    def _check_free(self, entries: Sequence[Entry], name: str, but: Entry | None) -> None:
        if any(entry.record.name == name and entry is not but for entry in entries):
            raise NameTakenError(
                f"the store {self.root} has another run {name!r}",
                f"choose another name, or `tracekit runs remove {shlex.quote(name)}` first",
            )

    def _holds(self, entry: Entry, options: str) -> bool:
        return entry.record.options == options and not self._missing(entry)

    def _missing(self, entry: Entry) -> list[str]:
        """Return the files that a run's folder lacks."""
        folder = self._folders.runs / entry.folder
        with file_errors(self.root):
            return [
                f"{index}/{name}"
                for index in range(len(entry.record.files))
                for name in missing_files(folder / str(index))
            ]

    def _sweep(self) -> None:
        """Remove what is left over; what cannot be removed now stays until the next time."""
        with suppress(StoreError), file_errors(self.root):
            identity = self._catalogue.identity()
            if identity is not None:
                needed = partial(self._catalogue.folders, identity)
                self._folders.sweep(f"{identity}-", needed)

    def _entries(self) -> list[Entry]:
        store = read_id(self._folders)
        if store is None:
            return []
        if self._catalog is None:
            return read_entries(self.root / FILE, store)
        with self._catalogue.reading(store) as rows:
            return rows.entries() if rows else []

    @contextmanager
    def _writing(self, reference: str) -> Iterator[Rows]:
        """Yield the rows to change a run in; a store without that run is left untouched."""
        self.find(reference)
        with self._catalogue.writing(make_id(self._folders)) as rows:
            yield rows

    @cached_property
    def _catalogue(self) -> Catalogue:
        # SQLAlchemy takes long to import, and many commands only look a run up.
        from tracekit.store._catalogue import Catalogue  # noqa: PLC0415

        return Catalogue.of(self.root, self._catalog)


def _nearest(start: Path) -> Path:
    stores = (folder / _FOLDER for folder in (start, *start.parents))
    return next((store for store in stores if store.is_dir()), start / _FOLDER)


def _scanned(folder: Path, warnings: Sequence[tuple[str, ...]]) -> list[Trace]:
    """Open the reports of a run, each with its warnings."""
    return [Trace.scan(folder / str(index), each) for index, each in enumerate(warnings)]


def _agreed(
    reports: Sequence[Mapping[str, str]], given: Collection[str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the labels on which all reports agree that have them, and say on which some do not.

    Nothing is said of those that the user has `given`.
    """
    values: dict[str, set[str]] = {}
    for key, value in (label for labels in reports for label in labels.items()):
        values.setdefault(key, set()).add(value)
    clear = {key: next(iter(each)) for key, each in values.items() if len(each) == 1}
    unclear = [repr(key) for key, each in values.items() if len(each) > 1 and key not in given]
    what = f"the reports disagree on the label {_listed(unclear)}, so none is taken from them"
    return dict(list(clear.items())[:MOST]), (what,) if unclear else ()


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _of_content(entries: Sequence[Entry], digest: str) -> Entry | None:
    return next((entry for entry in entries if entry.record.digest == digest), None)


def _retouched(record: RunRecord, request: _Request) -> RunRecord:
    """Return a run with the name and labels that a new ingest of its content gives it."""
    return replace(
        record, name=request.name or record.name, labels={**record.labels, **request.labels}
    )


def _new_record(entries: Sequence[Entry], request: _Request) -> RunRecord:
    taken = {entry.record.name for entry in entries}
    return RunRecord(
        id=secrets.token_hex(6),
        name=request.name or free_name(request.default_name, taken),
        created=datetime.now(UTC),
        digest=request.digest,
        options=request.options,
        labels=dict(request.labels),
        files=request.files,
        warnings=(),
        summary={},
    )
