"""Ingesting trace files, and opening and choosing runs."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from tracekit import attribution, sources
from tracekit.errors import UnknownRunError, UsageError
from tracekit.model import GivenClock
from tracekit.runs._new_runs import Digests, OnError, Request, add_run, check_workers
from tracekit.runs._run import Run
from tracekit.store import (
    DEFAULT_MEMORY,
    OnMissing,
    RunRecord,
    Store,
    Workers,
    file_size,
    is_named_as_file,
)
from tracekit.support.files import StrPath
from tracekit.support.memory import free
from tracekit.support.progress import Progress, ReportProgress

_LOG = logging.getLogger("tracekit")


def _silent(*_: object) -> None:
    """Ignore a progress report."""


def ingest(
    path: StrPath | Sequence[StrPath],
    *,
    name: str | None = None,
    labels: Mapping[str, str] | None = None,
    rules: StrPath | None = None,
    iteration: str | None = None,
    verdict: str | None = None,
    step: str | None = None,
    store: StrPath | None = None,
    progress: Progress | None = None,
    report_progress: ReportProgress | None = None,
    memory: int | None = None,
    nsys: StrPath | None = None,
    captures: Sequence[StrPath] = (),
    processes: int | None = None,
    dask: str | None = None,
    clocks: Mapping[str, GivenClock] | None = None,
    force: bool = False,
    on_error: OnError = "stop",
) -> tuple[Run, bool]:
    """Make a run of a trace file, or one run of several, in the store.

    Parameters
    ----------
    path
        The file, or the folder of a columnar export; or several files that are the reports of one
        run, such as those of its ranks. They are ordered by name, with ``rank10`` after ``rank2``.
    name
        Name of the run; by default the name of the file, or of the folder of several files.
    labels
        Labels of the run: name -> value.
    rules
        A rules file, used in addition to the default rules.
    iteration
        Pattern for the names of ranges that are training steps.
    verdict
        What the processes do (``training``, ``inference`` or ``other``); None detects it.
    step
        How to divide steps found by the order of launches: a step ends with a weight ``update``,
        begins with new ``input``, or is a ``period`` of updates; None detects it.
    store
        Folder of the store; by default ``TRACEKIT_STORE``, else the nearest ``.tracekit`` upward
        from the working directory, else a new one there.
    progress
        Called with the progress of the work: its phase, the amount done and the total.
    report_progress
        For several files, called with the progress of each: the file, the phase, the amount done
        and the total. The phase is empty once the file is done.
    memory
        Limit of memory for the work on a machine, bytes; by default 4 GiB, or the free memory of
        machine and cgroup if that is less.
    nsys
        Path of the nsys that exports ``.nsys-rep`` and ``.qdrep`` files; by default
        ``TRACEKIT_NSYS``, else the one on the path.
    captures
        Traces of PyTorch's profiler with the capture of CUDA graphs. `path` is then one file that
        replays these graphs; its kernels get the operators and ranges of their capture.
    processes
        Number of files read at once, each in a process; by default the number of cores.
    dask
        Address of a Dask scheduler whose workers read the files instead. Workers have to reach the
        files and the store by the same paths.
    clocks
        Corrections of clocks: report (``rank3`` or file name) -> ns to add to the report's times,
        which session starts have aligned. ``(1_500_000, 20e-6, 10_000_000_000)`` adds a drift: 1.5
        ms at 10 s of the report's time, and 20 us more per later second. Reports without a
        correction are aligned automatically: see ``docs/clocks.md``.
    force
        Whether to combine files into one run even if they seem to be of different executions or
        jobs.
    on_error
        What to do with a file, among several, that cannot be read or is of another job than the
        first: raise an error (``stop``), or leave it out with a warning (``skip``, or a function
        that is called with the file and the error).

    Returns
    -------
    The run, and whether it is new. The same content with the same rules is not stored twice; with
    other rules it replaces the earlier run.

    Raises
    ------
    InputError
        If a file cannot be read as a trace, or two are not of one run; the store is unchanged then.
    UsageError
        If the name, a rule or an option is wrong, or a path is given twice.
    StoreError
        If the store cannot be written.
    """
    is_many = not isinstance(path, (str, os.PathLike))
    files: Sequence[StrPath] = path if not isinstance(path, (str, os.PathLike)) else [path]
    request = Request(
        files=[Path(file) for file in files],
        is_many=is_many,
        name=name,
        labels=labels or {},
        rules=attribution.Rules.load(rules, iteration, verdict, step),
        memory=min(DEFAULT_MEMORY, max(free(), 1)) if memory is None else memory,
        nsys=None if nsys is None else os.fspath(nsys),
        captures=[Path(each) for each in captures],
        processes=processes,
        dask=dask,
        clocks=clocks or {},
        force=force,
        on_error=on_error,
        progress=progress or _silent,
        report_progress=report_progress or _silent,
    )
    place = Store.discover(store)
    record, is_new = add_run(place, request)
    return Run(record, place), is_new


def open(  # noqa: A001 - the word that users of a library expect, as in tracekit.open(...)
    reference: StrPath = "@latest",
    *,
    store: StrPath | None = None,
    rules: StrPath | None = None,
    iteration: str | None = None,
    verdict: str | None = None,
    step: str | None = None,
    progress: Progress | None = None,
    memory: int | None = None,
    processes: int = 1,
    dask: str | None = None,
    on_missing: OnMissing = "stop",
    only_ranks: str | Sequence[int] | None = None,
) -> Run:
    """Open a run by name, by the start of its id, ``@latest``, or the path of a trace file.

    A reference with a slash is a file, and so is an existing file with the extension of a trace.
    Any other word is looked up as a run first. A file that has no run is ingested. With `rules`,
    `iteration`, `verdict` or `step`, stages and iterations are found again for this `Run` only; the
    store is not changed.

    A question that would take more than `memory` bytes, by default the free memory of machine and
    cgroup, is refused before it starts: see ``docs/evidence/performance.md``.

    Sums over several reports are computed by `processes` processes, or by the workers of the Dask
    scheduler at the address `dask`, if the question allows it: see ``docs/cluster.md``. Answers do
    not change. With `on_missing` ``skip``, reports with missing or damaged files are left out, and
    a warning gives the share of reports that is left. With `only_ranks`, such as ``0-3, 8``, only
    the reports of these ranks are used, as for a critical path across ranks of a large job.

    Raises
    ------
    UnknownRunError
        If there is no such run.
    InputError, UsageError, StoreError
        As for `ingest`.
    """
    if on_missing not in ("stop", "skip"):
        raise UsageError(f"on_missing {on_missing!r} is not known", "choose stop or skip")
    place = Store.discover(store)
    record = _find(place, reference, progress or _silent, memory)
    workers = _workers(processes, dask, progress)
    chosen = None
    if any(option is not None for option in (rules, iteration, verdict, step)):
        if workers is not None:
            raise UsageError(
                "other processes read what is stored, which other rules would change",
                "ingest the trace again with these rules",
            )
        chosen = attribution.Rules.load(rules, iteration, verdict, step)
    return Run(record, place, chosen, memory, workers, on_missing, only_ranks)


def _workers(processes: int, dask: str | None, progress: Progress | None) -> Workers | None:
    """Return the workers that answer about parts of a run; None: this process does it alone."""
    if processes == 1 and dask is None:
        return None
    check_workers(processes if dask is None or processes != 1 else None, dask)
    return Workers(processes, dask, progress or _silent)


def _find(place: Store, reference: StrPath, progress: Progress, memory: int | None) -> RunRecord:
    """Return the run that `reference` names; a run's name or id goes before a file's path."""
    path = Path(reference)
    is_word = isinstance(reference, str) and "/" not in reference and os.sep not in reference
    if is_word and not (is_named_as_file(str(reference)) and path.exists()):
        try:
            found = place.find(str(reference))
        except UnknownRunError:
            if not path.exists() and not is_named_as_file(str(reference)):
                raise
        else:
            if path.exists():
                text = "tracekit: %r is a run and a file: the run is meant, ./%s would be the file"
                _LOG.warning(text, reference, reference)
            return found
    sources.check_readable(path)
    if place.may_hold(file_size(path)):
        with Digests([path], progress) as digests:
            digest = digests.wait()
        known = next((record for record in place.runs() if record.digest == digest), None)
        if known is not None:
            return known
    return ingest(path, store=place.root, progress=progress, memory=memory)[0].record


Reference = StrPath | Run
"""Ways to refer to a run."""


def select_runs(
    references: Sequence[Reference] = (),
    *,
    where: Mapping[str, str] | None = None,
    store: StrPath | None = None,
    dask: str | None = None,
) -> list[Run]:
    """Return the runs given by reference, followed by the runs with certain labels.

    Parameters
    ----------
    references
        Runs; or their names, starts of ids, ``@latest``, or trace files.
    where
        Labels of the runs to add: name -> value. Without references and labels, all runs of the
        store are returned.
    dask
        Address of a Dask scheduler whose workers compute sums over the runs' files: see `open`.

    Raises
    ------
    UsageError
        If there is no such run.
    """
    place = Store.discover(store)
    workers = _workers(1, dask, None)
    named = [
        reference
        if isinstance(reference, Run)
        else Run(_find(place, reference, _silent, None), place, workers=workers)
        for reference in references
    ]
    if references and not where:
        return named
    known = {run.id for run in named}
    labelled = [
        Run(record, place, workers=workers)
        for record in place.runs(where)
        if record.id not in known
    ]
    if not named and not labelled:
        wanted = ", ".join(f"{key}={value}" for key, value in (where or {}).items())
        raise UsageError(
            f"no run with {wanted}" if wanted else "the store has no runs",
            "`tracekit runs` lists runs and labels; `tracekit ingest FILE --label KEY=VALUE` adds",
        )
    return [*named, *labelled]
