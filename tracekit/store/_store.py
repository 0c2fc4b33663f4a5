"""A store of runs: ingest, look up, open, rename, remove.

Most commands only look up a run, and importing SQLAlchemy would take most of their time. So this
module reads an SQLite catalogue itself; `_catalogue` writes, and reads from a server.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shlex
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from tracekit.errors import NameTakenError, StoreError, UnknownRunError
from tracekit.model import Trace, combine
from tracekit.store._access import (
    ID_FILE,
    access_of,
    check_database,
    check_folder,
    check_owner,
    database_files,
    put_file,
    settings,
    settings_of,
    share,
)
from tracekit.store._cache import Kept
from tracekit.store._check import (
    Finding,
    again,
    faults,
    listed,
    run_finding,
    unmarked,
    whole_reports,
    whole_run,
)
from tracekit.store._rows import (
    COLUMNS,
    META,
    READING,
    REBUILT,
    RUNS,
    WAIT_SECONDS,
    UnreadableRowError,
    begin,
    check_tables,
    damaged,
    entry_of,
    forget_run,
    identity_of,
    read_run,
    unusable,
    write_run,
)
from tracekit.store._run_record import (
    Entry,
    RunRecord,
    SummaryValue,
    check_labels,
    check_name,
    free_name,
    known,
    resolve,
)
from tracekit.store._staging import DATABASE, FREE_SPACE, Folders, file_errors
from tracekit.support.files import StrPath
from tracekit.support.labels import MOST
from tracekit.support.lazily import load_beside
from tracekit.support.wording import percent

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from tracekit.store._catalogue import Catalogue, Rows
    from tracekit.store._reports import Made

    _Make = Callable[[Path], Made]
    _Summarise = Callable[[Trace], Mapping[str, SummaryValue]]
    _Added = tuple[RunRecord, bool]

OnMissing: TypeAlias = Literal["stop", "skip"]
"""What to do with reports that have missing or damaged files."""
_FOLDER = ".tracekit"


@dataclass(frozen=True)
class _Request:
    """A request to add a run: digest of its trace files, options, name and labels."""

    digest: str
    options: str
    name: str | None
    default_name: str
    labels: Mapping[str, str]
    files: tuple[str, ...] = ()
    size: int | None = None


@dataclass(frozen=True)
class _Columns:
    """Tables of a run that are complete on disk: folder name, warnings, labels and summary."""

    folder: str
    warnings: tuple[str, ...]
    labels: Mapping[str, str]
    summary: Mapping[str, SummaryValue]


class Store:
    """Collection of runs: a catalogue, and a folder of tables per run.

    Nothing is created on disk before a run is added.

    Parameters
    ----------
    root
        Folder of the store.
    catalog
        URL of the database with the catalogue, ``postgresql://user@host/database``; None for an
        SQLite file in `root`.
    """

    def __init__(self, root: Path, catalog: str | None = None) -> None:
        self.root = root.absolute()
        self._catalog = catalog
        self._folders = Folders(self.root)

    @classmethod
    def discover(cls, path: StrPath | None = None) -> Store:
        """Return the store that a command refers to.

        Parameters
        ----------
        path
            Folder of the store, if the user named one. Otherwise it is taken from the environment
            variable ``TRACEKIT_STORE``, else it is the nearest ``.tracekit`` upward from the
            working directory, else ``.tracekit`` in it. ``TRACEKIT_CATALOG`` moves the catalogue
            elsewhere.

        Raises
        ------
        StoreError
            If a store that was found by searching belongs to another user.
        """
        named = path or os.environ.get("TRACEKIT_STORE")
        root = Path(named) if named else _nearest(Path.cwd())
        return cls(root, os.environ.get("TRACEKIT_CATALOG") or None)

    def runs(self, labels: Mapping[str, str] | None = None) -> list[RunRecord]:
        """Return all runs, or only those that have all of these labels; oldest first."""
        wanted = (labels or {}).items()
        records = [entry.record for entry in self._entries()]
        return [record for record in records if wanted <= record.labels.items()]

    def find(self, reference: str) -> RunRecord:
        """Return the run that a user's reference denotes.

        Parameters
        ----------
        reference
            Name of a run, at least the first four digits of its id, or ``@latest`` for the run
            added last.

        Raises
        ------
        UnknownRunError
            If the reference matches no run, or several.
        """
        return resolve(self._entries(), reference, str(self.root)).record

    def may_hold(self, size: int) -> bool:
        """Test whether the store may have a run whose trace files have `size` bytes in total."""
        return any(entry.record.size in (size, None) for entry in self._entries())

    def open(self, record: RunRecord) -> Trace:
        """Open the tables of a run; nothing large is read yet.

        If the run is removed, or its tables are replaced, reading them fails; open it again.

        Raises
        ------
        UnknownRunError
            If the run has been removed.
        StoreError
            If its tables are missing, or were written by a version with different tables.
        """
        now, reports = self.open_reports(record)
        return replace(combine(reports), warnings=now.warnings)

    def open_reports(
        self, record: RunRecord, on_missing: OnMissing = "stop"
    ) -> tuple[RunRecord, list[Trace]]:
        """Open the tables of each trace file ("report") of a run; raise the errors of `open`.

        Parameters
        ----------
        record
            The run.
        on_missing
            How to treat trace files whose stored tables are missing or damaged: ``stop`` raises,
            ``skip`` leaves them out with a warning.

        Returns
        -------
        The run's current entry, and the tables of each of its trace files.
        """
        entry = next((e for e in self._entries() if e.record.id == record.id), None)
        if entry is None:
            raise UnknownRunError(
                f"the run {record.name!r} is no longer in the store {self.root}",
                "`tracekit runs list` shows all",
            )
        folder = self._folders.runs / entry.folder
        check_folder(folder)
        wrong, files = self._faults(entry), entry.record.files
        complete = [*range(len(files))]
        if wrong and on_missing == "skip":
            complete = whole_reports(folder, len(files))
        if wrong and (on_missing != "skip" or not complete):
            raise StoreError(
                f"the run {entry.record.name!r} {' and '.join(wrong)} in {folder}", again(entry)
            )
        with file_errors(self.root):
            found = [Trace.scan(folder / str(each), reports=len(complete)) for each in complete]
        missing = [file for number, file in enumerate(files) if number not in complete]
        share = percent(len(complete) / len(files))
        warning = f"{len(complete)} of {len(files)} reports answer ({share}): "
        warning += f"{listed(missing)} lack files or have damaged ones"
        warnings = entry.record.warnings + ((warning,) if missing else ())
        return replace(entry.record, warnings=warnings), found

    def rename(self, reference: str, name: str) -> RunRecord:
        """Rename a run and return its new entry.

        Raises
        ------
        UnknownRunError
            If `reference` matches no run.
        UsageError
            If the name is invalid.
        NameTakenError
            If another run has this name.
        """
        check_name(name)
        with self._writing(reference) as rows:
            entries = rows.entries()
            entry = resolve(entries, reference, str(self.root))
            self._check_free(entries, name, entry)
            renamed = replace(entry, record=replace(entry.record, name=name))
            rows.update(renamed)
        self._copy(renamed)
        return renamed.record

    def folder(self, record: RunRecord) -> Path:
        """Return the folder with the tables of a run."""
        return self._folders.runs / resolve(self._entries(), record.id, str(self.root)).folder

    def kept(self, record: RunRecord) -> Kept:
        """Return the cache of values computed from a run's tables."""
        return Kept(self.root, self.folder(record))

    def remove(self, reference: str) -> RunRecord:
        """Remove a run with its tables, and return its entry.

        Raises
        ------
        UnknownRunError
            If `reference` matches no run.
        StoreError
            If the run is removed, but the files of its tables cannot be.
        """
        entry = resolve(self._entries(), reference, str(self.root))
        try:
            self._delete(entry)
        except StoreError as error:
            if error.hint != FREE_SPACE:
                raise
            # A full disk has no room for a change of the catalogue before the columns are gone.
            self._folders.discard(entry.folder)
            self._delete(entry)
        self._forget(entry.folder)
        self._folders.discard(entry.folder)
        folder = self._folders.runs / entry.folder
        if os.path.lexists(folder):
            raise StoreError(
                f"the run {entry.record.name!r} is removed, but its columns in {folder} are not",
                "delete the folder",
            )
        return entry.record

    def _delete(self, entry: Entry) -> None:
        with self._writing(entry.record.id) as rows:
            rows.delete(entry.record)

    def strays(self) -> int:
        """Return the number of runs with a folder in ``runs/`` that are not in the catalogue."""
        return sum(read_run(folder) is not None for folder in self._strays(self._entries()))

    def _strays(self, entries: Sequence[Entry] = ()) -> list[Path]:
        """Return the folders in ``runs/`` that none of `entries` refers to."""
        named = {entry.folder for entry in entries}
        return [path for path in self._folders.published() if path.name not in named]

    def share(self, group: str | None) -> None:
        """Share the store with a group; None makes it private again.

        Raises
        ------
        UsageError
            If the group does not exist.
        StoreError
            If the store does not exist, or its files belong to another user.
        """
        with file_errors(self.root):
            if read_id(self._folders) is None:
                raise StoreError(f"there is no store {self.root}", "name one with --store")
            share(self.root, self._folders.own_files(), group)

    def check(self, *, repair: bool = False) -> list[Finding]:
        """Read all files of the store and return the faults found.

        Parameters
        ----------
        repair
            Whether to repair faults: rebuild the store's id and catalogue from the run folders, and
            add complete runs that the catalogue lacks.

        Raises
        ------
        StoreError
            If the store cannot be read, or a repaired file cannot be written.
        """
        if not self.root.is_dir():
            raise StoreError(f"there is no store {self.root}", "name one with --store")
        self._folders.check()
        found: list[Finding] = []
        for checked in (self._checked_id, self._checked_catalogue):
            found += checked(repair=repair)
            if any(not each.mended for each in found):  # nothing beyond it can be told
                return found
        entries = self._entries()
        runs_checked = [self._checked_run(entry, repair=repair) for entry in entries]
        left = [self._checked_stray(path, repair) for path in self._strays(entries)]
        named = {entry.folder for entry in entries}
        left += [unmarked(path) for path in self._folders.unmarked() if path.name not in named]
        return [*found, *(each for each in runs_checked if each), *left]

    def collect(self, *, dry_run: bool = False) -> list[Path]:
        """Remove folders without a complete run or a running ingest; return what was removed.

        Cached sums and binned data (tiles) of other versions are removed, too.

        Parameters
        ----------
        dry_run
            Whether only to return the paths, without removing them.

        Returns
        -------
        The removed folders and cache files.

        Raises
        ------
        StoreError
            If the catalogue cannot be read.
        """

        def named() -> set[str]:
            return {entry.folder for entry in self._entries()}

        named()  # raises before anything is removed
        gone = self._sweep(dry_run=dry_run)
        for path in self._strays(self._entries()):
            if path in gone or whole_run(path):
                continue
            with file_errors(self.root):
                if self._folders.discard_dead(path.name, named, dry_run=dry_run):
                    gone.append(path)
        stale = [each for name in sorted(named())
                 for each in Kept(self.root, self._folders.runs / name).stale()]  # fmt: skip
        for path in () if dry_run else stale:
            with file_errors(self.root):
                path.unlink(missing_ok=True)
        return gone + stale

    def _checked_id(self, *, repair: bool) -> list[Finding]:
        path = self.root / ID_FILE
        known = {run.store for run in map(read_run, self._strays()) if run}
        try:
            identity = read_id(self._folders)
            if not known or identity in known:
                return []
            fault = "is gone" if identity is None else "has another id than the runs here"
        except StoreError as error:
            fault = error.what
        if len(known) != 1:
            return [Finding("store", path.name, fault, mended=False, todo="restore it from a copy")]
        if repair:
            put_id(self._folders, known.pop())
        return [_mendable("store", path.name, fault, repair)]

    def _checked_catalogue(self, *, repair: bool) -> list[Finding]:
        try:
            self._entries()
        except StoreError as error:
            if self._catalog is not None or error.hint != REBUILT:
                raise
            for path in database_files(self.root / DATABASE) if repair else ():
                with file_errors(self.root), suppress(FileNotFoundError):
                    path.replace(path.with_name(path.name.replace(".sqlite", ".damaged")))
            return [_mendable("catalogue", DATABASE, error.what, repair)]
        return []

    def _checked_run(self, entry: Entry, *, repair: bool) -> Finding | None:
        folder = self._folders.runs / entry.folder
        known = read_run(folder)
        if (found := run_finding(entry, folder)) or (known and known.entry == entry):
            return found
        if repair:
            self._copy(entry)
        return _mendable("run", entry.record.name, "has no copy of its row in its folder", repair)

    def _checked_stray(self, path: Path, repair: bool) -> Finding:  # noqa: FBT001
        run = whole_run(path)
        if run is None:
            fault, todo = "is of no run", "`tracekit runs gc` removes it"
            return Finding("folder", path.name, fault, mended=False, todo=todo)
        fault = "is not in the catalogue"
        if repair:
            with self._catalogue.writing(make_id(self._folders)) as rows:
                taken = [entry.record for entry in rows.entries()]
                stray = run.entry.record
                if any(stray.digest == other.digest or stray.id == other.id for other in taken):
                    fault = "is in the catalogue with other columns"
                    todo = f"remove {path} where these are not needed"
                    return Finding("run", run.entry.record.name, fault, mended=False, todo=todo)
                name = free_name(run.entry.record.name, {record.name for record in taken})
                record = replace(run.entry.record, name=name)
                rows.insert(Entry(record, path.name))
        return _mendable("run", run.entry.record.name, fault, repair)

    def add(
        self,
        *,
        digest: str,
        options: str,
        name: str | None,
        default_name: str,
        labels: Mapping[str, str],
        make: Callable[[Path], Made],
        summarise: Callable[[Trace], Mapping[str, SummaryValue]],
    ) -> tuple[RunRecord, bool]:
        """Add a run, completely or not at all.

        If the store has a run with this content and these options, only its labels and, if given,
        its name are changed. If it has a run with this content but other options, its tables are
        replaced; it keeps its id, labels and (unless one is given) name.

        Parameters
        ----------
        digest
            Digest of the content of the run's trace files; or `NOT_YET` if the store cannot have
            the run yet (see `may_hold`) and `make` will return the digest.
        options
            Canonical JSON of the options that change the content of the tables.
        name, default_name
            Name that the user chose, or None. A new run then gets the default name, which is
            altered if it is invalid or taken.
        labels
            Labels to add to those of the run: name -> value. They replace labels of the same name
            that its program recorded.
        make
            Function that writes the run's tables into a folder, with a subfolder per trace file,
            and returns what it wrote; it may leave out files. Not called if the run exists.
        summarise
            Function of the stored tables that returns the run's summary.

        Returns
        -------
        The run, and whether its tables were written now.

        Raises
        ------
        UsageError
            If the name or a label is invalid, or (`NameTakenError`) a run of other content has the
            name.
        StoreError
            If the store or its catalogue cannot be written.
        """
        if name is not None:
            check_name(name)
        check_labels(labels)
        request = _Request(digest, options, name, default_name, labels)
        if not self.root.exists():
            return self._add_first(request, make, summarise)
        return self._add(request, make, summarise)

    def load(self) -> None:
        """Start to import, in the background, the modules that adding a run needs."""
        load_beside("tracekit.store._catalogue")

    def _add_first(self, request: _Request, make: _Make, summarise: _Summarise) -> _Added:
        """Create the store and add the first run to it; if that fails, remove the store again."""
        if self._catalog is not None:
            self._catalogue.identity()  # raises before the work where it cannot be used
        self._folders.create()
        try:
            with self._folders.claim("first-") as staged:
                made = make(staged)

                def move(folder: Path) -> Made:
                    with file_errors(self.root):
                        for path in staged.iterdir():
                            if path.is_dir():  # its mark stays
                                path.rename(folder / path.name)
                    return made

                # Another process may have added the same meanwhile.
                return self._add(replace(request, digest=made.digest), move, summarise)
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
            settled = self._settle(rows, rows.entries(), request)
            prefix = f"{rows.catalogue_id}-"
        if settled is not None:
            self._copy(settled)
            return settled.record, False
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
            done = replace(request, digest=made.digest, files=made.files, size=made.size)
            return self._commit(store, done, columns)

    def _settle(self, rows: Rows, entries: Sequence[Entry], request: _Request) -> Entry | None:
        """Update name and labels of the run that a request asks to add, if the store has it.

        None if it does not: of `entries`, the store's runs, none has the same content and options.
        """
        entry = _of_content(entries, request.digest)
        if request.name is not None:
            self._check_free(entries, request.name, entry)
        if entry is None or not self._holds(entry, request.options):
            return None
        settled = replace(entry, record=_retouched(entry.record, request))
        if settled != entry:
            rows.update(settled)
        return settled

    def _commit(self, store: str, request: _Request, columns: _Columns) -> _Added:
        """Add published tables as a run, unless another process added the same run meanwhile.

        `request` has its name, labels and options; `columns`, the folder and the summary.
        """
        with self._catalogue.writing(store) as rows:
            entries = rows.entries()
            settled = self._settle(rows, entries, request)
            if settled is not None:
                return settled.record, False
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
                size=request.size,
            )
            entry = Entry(record, columns.folder)
            (rows.insert if old is None else rows.update)(entry)
        self._copy(entry)
        if old is not None:
            self._forget(old.folder)
        return record, True

    def _copy(self, entry: Entry) -> None:
        """Write a copy of a run's catalogue row into its folder; a failure is ignored."""
        with suppress(OSError):
            access = access_of(self.root)
            write_run(self._folders.runs / entry.folder, make_id(self._folders), entry, access)

    def _forget(self, folder: str) -> None:
        with suppress(OSError):
            forget_run(self._folders.runs / folder)

    def _check_free(self, entries: Sequence[Entry], name: str, but: Entry | None) -> None:
        if any(entry.record.name == name and entry is not but for entry in entries):
            raise NameTakenError(
                f"the store {self.root} has another run {name!r}",
                f"choose another name, or `tracekit runs remove {shlex.quote(name)}` first",
            )

    def _holds(self, entry: Entry, options: str) -> bool:
        return entry.record.options == options and not self._faults(entry)

    def _faults(self, entry: Entry) -> list[str]:
        """Return the faults in the stored tables of a run."""
        with file_errors(self.root):
            return faults(self._folders.runs / entry.folder, len(entry.record.files))

    def _sweep(self, *, dry_run: bool = False) -> list[Path]:
        """Remove leftovers, or list them (`dry_run`); those that cannot be removed stay for now."""
        with suppress(StoreError), file_errors(self.root):
            identity = self._catalogue.identity()

            def needed() -> set[str]:
                return self._catalogue.folders(identity) if identity else set()

            # Where no catalogue was written yet, no folder in `runs/` can be told to be left over.
            prefix = f"{identity or 'no catalogue'}-"
            return self._folders.sweep(
                prefix, needed, lambda path: read_run(path) is not None, dry_run=dry_run
            )
        return []

    def _entries(self) -> list[Entry]:
        store = read_id(self._folders)
        if store is None:
            return []
        if self._catalog is None:
            return read_entries(self.root / DATABASE, store)
        with self._catalogue.reading(store) as rows:
            return rows.entries() if rows else []

    @contextmanager
    def _writing(self, reference: str) -> Iterator[Rows]:
        """Yield the catalogue rows in a transaction that changes the run `reference`.

        Raises `UnknownRunError` if there is no such run.
        """
        self.find(reference)
        with self._catalogue.writing(make_id(self._folders)) as rows:
            yield rows

    @cached_property
    def _catalogue(self) -> Catalogue:
        # SQLAlchemy takes long to import, and many commands only look a run up.
        from tracekit.store._catalogue import Catalogue  # noqa: PLC0415

        return Catalogue.of(self.root, self._catalog)


def _nearest(start: Path) -> Path:
    """Return the nearest ``.tracekit`` folder upward from `start`, or the path for a new one."""
    for store in (folder / _FOLDER for folder in (start, *start.parents)):
        with suppress(OSError):  # of folders that may not be looked into
            if store.is_dir():
                check_owner(store, start)
                return store
    return start / _FOLDER


def _scanned(folder: Path, warnings: Sequence[tuple[str, ...]]) -> list[Trace]:
    """Open the tables of each trace file of a run, in `folder`, with that file's warnings."""
    return [
        Trace.scan(folder / str(index), each, reports=len(warnings))
        for index, each in enumerate(warnings)
    ]


def _agreed(
    reports: Sequence[Mapping[str, str]], known: Collection[str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the labels of trace files without contradiction, and a warning on the others.

    The program recorded them in each file. Labels in `known`, which the user gave, cause no
    warning.
    """
    values: dict[str, set[str]] = {}
    for key, value in (label for labels in reports for label in labels.items()):
        values.setdefault(key, set()).add(value)
    clear = {key: next(iter(each)) for key, each in values.items() if len(each) == 1}
    unclear = [repr(key) for key, each in values.items() if len(each) > 1 and key not in known]
    warning = f"the reports disagree on the label {listed(unclear)}, so it is left out"
    return dict(list(clear.items())[:MOST]), (warning,) if unclear else ()


def _mendable(subject: str, name: str, fault: str, repaired: bool) -> Finding:  # noqa: FBT001
    todo = None if repaired else "`tracekit runs check --repair` repairs it"
    return Finding(subject, name, fault, mended=repaired, todo=todo)


def _of_content(entries: Sequence[Entry], digest: str) -> Entry | None:
    return next((entry for entry in entries if entry.record.digest == digest), None)


def _retouched(record: RunRecord, request: _Request) -> RunRecord:
    """Return an existing run's entry with the name and labels of a new ingest of its files."""
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


_FORMAT = 1
_MENDED = "`tracekit runs check --repair` makes it anew"


def read_id(folders: Folders) -> str | None:
    """Return the store's id; None if nothing has been written to it yet.

    Raises
    ------
    StoreError
        If the folder is no store, or the file with the id is missing, unreadable, invalid, or
        written by a newer tracekit.
    """
    folders.check()
    path = folders.root / ID_FILE
    with file_errors(folders.root):
        try:
            content = settings(folders.root)
            identity, version = str(content["id"]), int(content["format"])
        except FileNotFoundError as error:
            if folders.has_rows():
                raise StoreError(f"{path} is gone", _MENDED) from error
            return None
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise StoreError(f"{path} is damaged", _MENDED) from error
    if version > _FORMAT:
        raise StoreError(
            f"the store {folders.root} was written by a newer tracekit", "upgrade tracekit"
        )
    return identity


def make_id(folders: Folders) -> str:
    """Return the store's id, creating one if it has none; its folders exist already."""
    identity = read_id(folders)
    if identity is not None:
        return identity
    with folders.claim("store-") as staged, file_errors(folders.root):
        content = json.dumps({"format": _FORMAT, "id": secrets.token_hex(16)}) + "\n"
        put_file(staged, ID_FILE, content.encode(), access_of(folders.root))
        # A link appears whole or not at all, and fails where another process was first.
        with contextlib.suppress(FileExistsError):
            (folders.root / ID_FILE).hardlink_to(staged / ID_FILE)
    return make_id(folders)


def put_id(folders: Folders, identity: str) -> None:
    """Write the store's previous id again, after its file was lost or damaged."""
    with file_errors(folders.root):
        content, access = settings_of(folders.root, identity, _FORMAT)
        put_file(folders.root, ID_FILE, content, access)


def read_entries(path: Path, store: str) -> list[Entry]:
    """Return the runs of a store, oldest first; empty if no catalogue was written yet.

    Raises
    ------
    StoreError
        If the file is unreadable, invalid, or written by a newer tracekit.
    """
    with _errors(str(path)):
        check_database(path, REBUILT)
        if not path.exists():
            return []  # where connecting would create the file
        connection = sqlite3.connect(path, timeout=WAIT_SECONDS, isolation_level=None)
        try:
            connection.row_factory = sqlite3.Row
            begin(connection, READING, str(path), WAIT_SECONDS)
            return _entries(connection, store, str(path))
        finally:
            connection.close()


def _entries(connection: sqlite3.Connection, store: str, where: str) -> list[Entry]:
    kinds = connection.execute("SELECT name, type FROM sqlite_master")
    if not check_tables(dict(map(tuple, kinds)), where):
        return []
    identity_of(dict(map(tuple, connection.execute(f"SELECT key, value FROM {META}"))), where)  # noqa: S608
    query = f"SELECT {', '.join(COLUMNS)} FROM {RUNS} WHERE store = ? ORDER BY number"  # noqa: S608 - our own names
    return [entry_of(row) for row in connection.execute(query, (store,))]


@contextmanager
def _errors(where: str) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise unusable(where, error) from error
    except UnreadableRowError as error:
        raise damaged(where) from error
