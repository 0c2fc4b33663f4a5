"""Make runs of one or several trace files; digests of the files are computed in parallel."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import polars as pl

from tracekit import analysis, engine, model, sources
from tracekit.errors import DamagedTraceError, InputError, UsageError
from tracekit.store import (
    NOT_YET,
    Made,
    ReportOptions,
    RunRecord,
    Store,
    file_digest,
    file_size,
    file_state,
    make_reports,
    open_executor,
    run_digest,
)
from tracekit.support.ahead import cores
from tracekit.support.progress import Progress, ReportProgress

if TYPE_CHECKING:
    from tracekit.analysis.clocks import Calls
    from tracekit.attribution import Rules
    from tracekit.model import GivenClock, Trace
    from tracekit.runs._foreign import Said
    from tracekit.store import Executor

OnError = str | Callable[[Path, InputError], None]

_FORMAT = 6
"""Version of the content of a run's folder; runs of another version are made again."""
_FOLDER_ENDING = re.compile("_(pqt|arw)dir$")
"""Suffix that nsys adds to a report's name in the folder name of an export."""
_SMALL = 4 << 20
"""Bytes of a file whose digest is computed in milliseconds."""
_WORTH_A_PROCESS = 16 << 20
"""Bytes of traces read in the time that a process takes to start."""


@dataclass(frozen=True)
class Request:
    """Files to ingest, with options; those that are not described are as in `tracekit.ingest`."""

    files: Sequence[Path]
    """Files of the run, in the given order."""
    is_many: bool
    """Whether the files were given as a sequence, even if it has one file only."""
    name: str | None
    labels: Mapping[str, str]
    rules: Rules
    """Rules that derive stages and iterations from names, such as those of ranges."""
    memory: int
    nsys: str | None
    captures: Sequence[Path]
    processes: int | None
    dask: str | None
    clocks: Mapping[str, GivenClock]
    force: bool
    on_error: OnError
    progress: Progress
    report_progress: ReportProgress


def check(request: Request) -> None:
    """Raise `UsageError` for an ingest with contradictory options."""
    if not request.files:
        raise UsageError("a run of no reports", "give at least one file")
    if request.memory <= 0:
        raise UsageError(f"{request.memory} bytes of memory", "give at least some")
    check_workers(request.processes, request.dask)
    for each in request.captures:
        sources.check_readable(each)
    if request.captures and request.is_many:
        raise UsageError(
            "captures of CUDA graphs are of one file", "give --capture with one FILE, without --run"
        )
    if isinstance(request.on_error, str) and request.on_error not in ("stop", "skip"):
        raise UsageError(f"on_error {request.on_error!r} is not known", "choose stop or skip")


def check_workers(processes: int | None, dask: str | None) -> None:
    """Raise `UsageError` if `processes` is below 1, or if both arguments are given."""
    if processes is not None and processes < 1:
        raise UsageError(f"{processes} processes cannot work", "give 1 or more")
    if processes is not None and dask is not None:
        raise UsageError(
            "a Dask cluster has processes of its own", "give either processes or dask, not both"
        )


def add_run(store: Store, request: Request) -> tuple[RunRecord, bool]:
    """Ingest files as a run unless the store has it; return the run and whether it is new."""
    check(request)
    request = replace(request, files=sorted(request.files, key=_natural))
    # Of some damaged Parquet files polars asks for more memory than there is, and ends its process.
    apart = any(path.is_dir() for path in request.files)
    with open_executor(_processes(request), request.dask, apart=apart) as executor:
        return _add(store, request, executor)


def _add(store: Store, request: Request, executor: Executor) -> tuple[RunRecord, bool]:
    failures = _Failures(request.on_error)
    twice = [path for path, number in Counter(request.files).items() if number > 1]
    if twice:
        raise UsageError(f"{twice[0]} is given twice", "give each report of a run once")
    states = {path: file_state(path) for path in request.files}
    ingest = _Ingest(store, request, executor, failures, states)
    if request.is_many:
        store.load()
        if not store.may_hold(_size(request.files)):
            executor.prepare(len(request.files))
        return ingest.of(_distinct(_digests(request, failures), failures))
    [path] = request.files
    return _add_one(ingest, path)


def _add_one(ingest: _Ingest, path: Path) -> tuple[RunRecord, bool]:
    """Make a run of a single file.

    If the file is small, or a stored run may have the same content, its digest is computed first,
    else while the file is read.
    """
    sources.check_readable(path)
    ingest.store.load()
    with Digests([path], ingest.request.progress) as digest:
        try:
            size = file_size(path)
            if size <= _SMALL or ingest.store.may_hold(size):
                return ingest.of({path: digest.wait()})
            ingest.executor.prepare(1)
            return ingest.of({path: NOT_YET}, digest)
        except InputError:
            digest.wait()  # that a file cannot be read to its end says more than what came of it
            raise


@dataclass(frozen=True)
class _Ingest:
    """One ingest, which makes a run of files: its store, options and executor."""

    store: Store
    request: Request
    executor: Executor
    failures: _Failures
    states: Mapping[Path, object]

    def of(
        self, digests: Mapping[Path, str], beside: Digests | None = None
    ) -> tuple[RunRecord, bool]:
        """Make a run of the files in `digests` (file -> digest), unless the store has an equal run.

        The digest of a single file may be computed by `beside` while the file is read.
        """
        return self.store.add(
            digest=run_digest(list(digests.values())),
            options=options_text(self.request.rules, self.request.clocks, self.request.captures),
            name=self.request.name,
            default_name=_default_name(self.request),
            labels=self.request.labels,
            make=lambda folder: self._make(folder, digests, beside),
            summarise=analysis.summarise,
        )

    def _make(self, folder: Path, digests: Mapping[Path, str], beside: Digests | None) -> Made:
        request = self.request
        options = ReportOptions(
            request.rules, NOT_YET, request.memory, request.nsys, request.captures,
            engine.DeviceSums,
            _seen if len(digests) > 1 else None,
        )  # fmt: skip
        share = [(path, replace(options, digest=digest)) for path, digest in digests.items()]
        tell = _Overall(request, list(digests)).tell if request.is_many else _single(request)
        made = make_reports(
            folder, share, self.executor, self.failures.add, tell, self._foreign,
            partial(self._settle, beside),
        )  # fmt: skip
        digest = beside.wait() if beside else made.digest
        _check_unchanged({path: self.states[path] for path in digests})
        return replace(made, digest=digest, left_out=tuple(self.failures.sentences))

    def _foreign(self, seen: Sequence[_Seen]) -> Mapping[int, str]:
        """Return the trace files that are of another job or execution: index -> reason."""
        if len(seen) == 1:
            return {}
        from tracekit.runs._foreign import foreign, unconnected

        reports = [each.said for each in seen]
        found = foreign(reports)
        self.failures.sentences += unconnected(
            [each for number, each in enumerate(reports) if number not in found]
        )
        if not self.request.force:
            return found
        self.failures.sentences += [f"these reports were forced to be one run: {why}"
                                    for why in found.values()]  # fmt: skip
        return {}

    def _settle(
        self, beside: Digests | None, folders: Sequence[Path], seen: Sequence[_Seen]
    ) -> None:
        """Align the files' clocks; write the corrections, and a file's digest, to their tables."""
        if len(folders) > 1 or self.request.clocks:
            from tracekit.analysis.clocks import aligned

            traces = [model.Trace.scan(folder) for folder in folders]
            named = _named_reports(traces, self.request.clocks)
            calls = [each.calls for each in seen] if len(folders) > 1 else None
            for folder, trace in zip(folders, aligned(traces, named, calls), strict=True):
                model.replace_table(folder, "reports", trace.read("reports"))
        if beside:
            _put_digest(folders[0], beside.wait())


def _check_unchanged(states: Mapping[Path, object]) -> None:
    """Raise an error if a file has changed since its content was read."""
    for path, state in states.items():
        if file_state(path) != state:
            raise DamagedTraceError(
                f"{path} was changed while it was read",
                "ingest it again when nothing writes to it any more",
            )


def options_text(
    rules: Rules,
    clocks: Mapping[str, GivenClock] | None = None,
    captures: Sequence[Path] = (),
) -> str:
    """Return as canonical JSON the options of an ingest that change values in a run's tables."""
    digest = hashlib.sha256(rules.canonical().encode()).hexdigest()
    known: dict[str, Any] = {"clocks": dict(sorted(clocks.items()))} if clocks else {}
    if captures:
        known["captures"] = sorted(file_digest(each) for each in captures)
    return json.dumps({"format": _FORMAT, "rules": digest, **known})


@dataclass
class _Failures:
    """How to treat files that cannot be part of the run: raise, or skip them with a warning."""

    policy: OnError
    sentences: list[str] = field(default_factory=list)

    def add(self, path: Path, error: InputError) -> None:
        if self.policy == "stop":
            raise error
        self.sentences.append(f"{path.name} is left out: {error}")
        if callable(self.policy):
            self.policy(path, error)


def _digests(request: Request, failures: _Failures) -> dict[Path, str]:
    """Return the SHA-256 of each file's content, in order; unreadable files go to `failures`."""
    found: dict[Path, str] = {}
    with Digests(request.files, request.progress) as digests:
        for number, path in enumerate(request.files):
            try:
                found[path] = digests.wait(number)
            except InputError as error:
                failures.add(path, error)
    if not found:
        raise InputError(f"none of the {len(request.files)} reports could be read")
    return found


def _distinct(digests: Mapping[Path, str], failures: _Failures) -> dict[Path, str]:
    """Leave out files with the same content as an earlier file, as they would count twice."""
    first: dict[str, Path] = {}
    for path, digest in digests.items():
        other = first.setdefault(digest, path)
        if other is not path:
            what = f"{other} and {path} have the same content"
            failures.add(path, InputError(what, "give each report of a run once"))
    return {path: digest for digest, path in first.items()}


@dataclass(frozen=True)
class _Seen:
    """Facts on a trace file to compare with other files: its job, and its collective calls."""

    said: Said
    calls: Calls


def _seen(path: Path, trace: model.Trace) -> _Seen:
    """Return the facts about a trace file's job, and its collective calls."""
    from tracekit.analysis.clocks import clock_calls
    from tracekit.runs._foreign import said

    return _Seen(said(trace, path.absolute().name), clock_calls(trace))


def _put_digest(folder: Path, digest: str) -> None:
    """Write the content digest (SHA-256) of a trace file into its tables."""
    reports = model.Trace.scan(folder).read("reports")
    model.replace_table(folder, "reports", reports.with_columns(digest=pl.lit(digest)))


def _named_reports(
    traces: Sequence[Trace], clocks: Mapping[str, GivenClock]
) -> dict[int, GivenClock]:
    """Return the clock corrections that the user gave, by index of the trace file."""
    rows = [trace.read("reports").row(0, named=True) for trace in traces]
    names: dict[str, list[int]] = {}
    for index, row in enumerate(rows):
        own = {row["file"], Path(row["file"]).stem, f"report{index}", f"rank{row['rank']}"}
        for name in own:
            names.setdefault(name, []).append(index)
    found = {}
    for who, offset in clocks.items():
        if len(names.get(who, [])) != 1:
            there = ", ".join(row["file"] for row in rows)
            raise UsageError(
                f"no one report is {who!r}", f"give rankN, or the name of a file out of {there}"
            )
        found[names[who][0]] = offset
    return found


class _Overall:
    """Passes on progress to callbacks: of each trace file, and the number of finished files."""

    def __init__(self, request: Request, files: Sequence[Path]) -> None:
        self._request = request
        self._files = files
        self._through = 0

    def tell(self, number: int, step: str, done: int, total: int) -> None:
        self._request.report_progress(self._files[number], step, done, total)
        self._through += not step
        self._request.progress("reports", self._through, len(self._files))


def _single(request: Request) -> Callable[[int, str, int, int], None]:
    def tell(_number: int, step: str, done: int, total: int) -> None:
        if step:
            request.progress(step, done, total)

    return tell


def _processes(request: Request) -> int:
    """Return the number of processes that read files: as requested, else by cores and sizes."""
    if not request.is_many:
        return 1
    most = request.processes or min(cores(), 1 + _size(request.files) // _WORTH_A_PROCESS)
    return min(most, len(request.files))


def _size(files: Sequence[Path]) -> int:
    return sum(map(file_size, files))


def _default_name(request: Request) -> str:
    """Return the default name of a run: that of its file, or the first file's folder if several."""
    first = request.files[0].absolute()
    if request.is_many:
        return first.parent.name
    return _FOLDER_ENDING.sub("", first.name) if first.is_dir() else first.stem


def _natural(path: Path) -> list[str | int]:
    """Return the sort key that puts ``rank2`` before ``rank10``."""
    pieces = re.split("([0-9]+)", str(path))
    return [int(piece) if index % 2 else piece for index, piece in enumerate(pieces)]


_STEP = "check content"
_SECONDS = 0.1
"""Seconds between messages about the progress of a digest."""


class Digests:
    """Digests of traces, computed in threads, such as while a trace is read.

    It is a context manager; leaving it ends the threads, whether or not digests are complete.

    Parameters
    ----------
    files
        The traces.
    progress
        Called with the total number of bytes read so far, while `wait` waits.
    """

    def __init__(self, files: Sequence[Path], progress: Progress) -> None:
        self._files = files
        self._progress = progress
        self._size = _size(files)
        self._done = dict.fromkeys(files, 0)
        self._is_wanted = True

    def __enter__(self) -> Self:
        self._pool = ThreadPoolExecutor(min(cores(), len(self._files)), "digest")
        self._digests = [self._pool.submit(self._digest, path) for path in self._files]
        return self

    def __exit__(self, *_: object) -> None:
        self._is_wanted = False
        self._pool.shutdown(cancel_futures=True)

    def wait(self, number: int = 0) -> str:
        """Wait for the digest of the trace with this index and return it.

        Raises
        ------
        InputError
            If the trace cannot be read.
        """
        while wait([self._digests[number]], _SECONDS).not_done:
            self._progress(_STEP, sum(self._done.values()), self._size)
        digest = self._digests[number].result()
        self._progress(_STEP, sum(self._done.values()), self._size)
        return digest

    def _digest(self, path: Path) -> str:
        sources.check_readable(path)  # to open a pipe may take for ever
        return file_digest(path, partial(self._note, path))

    def _note(self, path: Path, done: int) -> None:
        if not self._is_wanted:
            raise InputError(f"{path} was not read to its end")
        self._done[path] = done
