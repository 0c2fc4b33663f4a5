"""The library's front door: open a run, ask it questions."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit import _questions
from tracekit._ingest import OnError, Request, add_run, content_digest
from tracekit._question import RunQuestion
from tracekit.errors import MissingDataError, UnknownRunError
from tracekit.store import DEFAULT_MEMORY, RunRecord, Store, SummaryValue
from tracekit.support.files import StrPath
from tracekit.support.progress import Progress, ReportProgress

if TYPE_CHECKING:
    import polars as pl

    from tracekit.analysis.communication import Traffic
    from tracekit.attribution import Rules
    from tracekit.machine import Machine, Placed
    from tracekit.model import Trace


def _silent(*_: object) -> None:
    """Report progress to no one."""


class Run:
    """One run of a store, and the questions that it answers.

    Made by `open` and `ingest`, not by hand.
    """

    def __init__(self, record: RunRecord, store: Store, rules: Rules | None = None) -> None:
        self.record, self._reports = store.open_reports(record)
        self._rules = rules

    def __repr__(self) -> str:
        numbers = self.record.summary
        parts = [f"{numbers.get(key)} {key}" for key in ("devices", "ops", "iterations")]
        return f"<Run {self.name!r} ({self.id}): {', '.join(parts)}>"

    def _repr_html_(self) -> str | None:
        try:
            return self.breakdown.answer()._repr_html_()
        except MissingDataError:
            return self.info.answer()._repr_html_()

    breakdown = RunQuestion(_questions.breakdown)
    idle = RunQuestion(_questions.idle)
    critical_path = RunQuestion(_questions.critical_path)
    whatif = RunQuestion(_questions.whatif)
    diagnose = RunQuestion(_questions.diagnose)
    stragglers = RunQuestion(_questions.stragglers)
    flops = RunQuestion(_questions.flops)
    links = RunQuestion(_questions.links)
    collectives = RunQuestion(_questions.collectives)
    latency = RunQuestion(_questions.latency)
    info = RunQuestion(_questions.info)
    confusion = RunQuestion(_questions.confusion)
    clocks = RunQuestion(_questions.clocks)
    memory = RunQuestion(_questions.memory)
    overhead = RunQuestion(_questions.overhead)
    sql = RunQuestion(_questions.sql)

    @property
    def reports(self) -> Sequence[Trace]:
        """The run's tables by report, as they were stored."""
        return self._reports

    @property
    def id(self) -> str:
        """The run's id, 12 hexadecimal digits."""
        return self.record.id

    @property
    def name(self) -> str:
        """The run's name in its store."""
        return self.record.name

    @property
    def labels(self) -> Mapping[str, str]:
        """Labels that the run was given."""
        return self.record.labels

    @property
    def created(self) -> datetime:
        """When the run was ingested, UTC."""
        return self.record.created

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a user should know about this run, one sentence each."""
        return self.trace.warnings

    @cached_property
    def trace(self) -> Trace:
        """The run's tables; attributed anew if rules were given when it was opened."""
        from tracekit.model import combine

        if self._rules is None:
            return replace(combine(self._reports), warnings=self.record.warnings)
        from tracekit.attribution import attribute

        # By report, as ingest does: numbers follow time within a report and not throughout a run.
        trace = combine([attribute(report, self._rules) for report in self._reports])
        # An attribution that is done again warns again of what still holds.
        stored = [replace(report, warnings=_found_in(report)) for report in self._reports]
        earlier = set(combine(stored).warnings)
        lasting = tuple(text for text in self.record.warnings if text not in earlier)
        return replace(trace, warnings=tuple(dict.fromkeys(lasting + trace.warnings)))

    def table(self, name: str) -> pl.LazyFrame:
        """Return a canonical table as a lazy frame; ``docs/tables.md`` lists them.

        Raises
        ------
        UnknownRunError
            If there is no such table.
        """
        derived = self.derived()
        if name in derived:
            return derived[name]().lazy()
        if name not in self.trace.tables:
            names = ", ".join((*self.trace.tables, *derived))
            raise UnknownRunError(f"no table {name!r}", f"there are {names}")
        return self.trace[name]

    def machine(self, topology: StrPath | None = None) -> Machine:
        """Return the machine that the run used; see `traffic` for `topology`."""
        return self._placed(topology).machine

    def _placed(self, topology: StrPath | None) -> Placed:
        from tracekit.machine import machine_of

        chosen = None if topology is None else os.fspath(topology)
        recorded = self.trace.read("machine")["description"].to_list()
        hosts = self.trace.read("reports").select("report", "host")
        devices = self.trace.read("devices").join(hosts, on="report", how="left")
        return machine_of(devices, chosen, recorded)

    def traffic(
        self,
        *,
        topology: StrPath | None = None,
        nccl_log: Sequence[StrPath] = (),
        sizes: Mapping[str, int] | None = None,
        ranks: int | None = None,
    ) -> Traffic:
        """Return what the run moved between GPUs, and over which links.

        Parameters
        ----------
        topology
            A topology file or the name of a preset; by default the machine is what a report holds
            (nvprof), else told by the names of the GPUs.
        nccl_log
            Logs of the run that NCCL wrote with ``NCCL_DEBUG=INFO``.
        sizes
            Bytes of collectives whose size was not recorded, by name, such as ``all_reduce``.
        ranks
            Number of ranks of communicators of which it was not recorded.

        Raises
        ------
        UsageError
            If the topology has fewer GPUs than ran.
        InputError
            If the topology or a log cannot be read as one.
        """
        from tracekit.analysis.communication import Traffic

        return Traffic(
            self.trace, self._placed(topology), _questions.read_log(nccl_log), sizes, ranks
        )

    def summary(self) -> Mapping[str, SummaryValue]:
        """Return the run's size and how much of it is explained."""
        from tracekit.analysis import summarise

        return summarise(self.trace)

    def report(
        self, path: StrPath, *, against: Run | None = None, beside: Sequence[Run] = ()
    ) -> None:
        """Write a page about the run, what differs from another, or a study: ``docs/report.md``.

        Parameters
        ----------
        path
            The file to write, one page that loads nothing.
        against
            The run to compare with.
        beside
            The other runs of the study that the page is about.
        """
        from tracekit._reports import report_of
        from tracekit.support.files import write_whole

        write_whole(Path(path), report_of([self, *beside], against=against).encode())

    def export(
        self, path: StrPath, *, to: str = "perfetto", iterations: tuple[int, int] | None = None
    ) -> None:
        """Write the run, or its steps from one to another, for Perfetto or Chrome.

        See `tracekit.export.export`.
        """
        from tracekit.export import export

        export(self.trace, Path(path), to, iterations)

    def derived(self) -> dict[str, Callable[[], pl.DataFrame]]:
        """Return what makes the tables that are worked out of the stored ones, by name."""
        from tracekit.analysis import range_paths
        from tracekit.analysis.communication import collective_calls

        return {
            "transfers": lambda: self.traffic().transfers,
            "collectives": lambda: collective_calls(self.trace),
            "path_texts": lambda: range_paths(self.trace),
        }


def _found_in(report: Trace) -> tuple[str, ...]:
    """Return what was found when a report was attributed."""
    from tracekit.attribution import stored_findings

    return stored_findings(
        {name: report.read(name) for name in ("verdicts", "opinions", "processes")}
    )


def ingest(
    path: StrPath | Sequence[StrPath],
    *,
    name: str | None = None,
    labels: Mapping[str, str] | None = None,
    rules: StrPath | None = None,
    iteration: str | None = None,
    verdict: str | None = None,
    store: StrPath | None = None,
    progress: Progress | None = None,
    report_progress: ReportProgress | None = None,
    memory: int = DEFAULT_MEMORY,
    nsys: StrPath | None = None,
    processes: int | None = None,
    dask: str | None = None,
    clocks: Mapping[str, int] | None = None,
    force: bool = False,
    on_error: OnError = "stop",
) -> tuple[Run, bool]:
    """Make a run of a trace file, or one run of several, in the store.

    Parameters
    ----------
    path
        The file, or the folder of a columnar export; or several that are the reports of one run,
        such as those of its ranks. They are put in order of their names, with ``rank10`` after
        ``rank2``.
    name
        Name of the run; the file's by default, or that of the folder of several.
    labels
        Labels to give it.
    rules
        A rules file, in addition to the default rules.
    iteration
        A pattern of the ranges that are training steps.
    verdict
        What the processes do (``training``, ``inference`` or ``other``), in place of what is found.
    store
        Folder of the store; by default ``TRACEKIT_STORE``, else the nearest ``.tracekit`` upward
        from the working directory, else a new one there.
    progress
        Told what is being done, how much of it is done, and how much there is.
    report_progress
        Of several files, told of each one: the file, and the same; at its end, an empty step.
    memory
        How much memory the work may use on a machine, bytes.
    nsys
        The nsys that exports ``.nsys-rep`` and ``.qdrep`` files; by default ``TRACEKIT_NSYS``, else
        the one on the path.
    processes
        How many of several files are read at once, each in a process; by default as many as there
        are cores.
    dask
        Address of a Dask scheduler, on whose workers they are read instead. Workers have to reach
        the files and the store by the same paths.
    clocks
        What is known of the clocks of several reports: what to add to the times of some, in ns,
        after the starts of their sessions have set them apart, by ``rank3`` or the file's name.
        Where nothing is given, it is found out: see ``docs/clocks.md``.
    force
        Whether several reports are taken for one run even where something says that they are not
        of one execution of one job.
    on_error
        What a file of several does that cannot be read, or is of another job than the first: it
        ends everything (``stop``), or is left out with a warning (``skip``, or a function that is
        told the file and the error).

    Returns
    -------
    The run, and whether it is new. The same content with the same rules makes no second run; with
    other rules it takes the place of the first.

    Raises
    ------
    InputError
        If a file cannot be read as a trace, or two are not of one run; the store is unchanged then.
    UsageError
        If the name, a rule or an option is wrong, or a path is given twice.
    StoreError
        If the store cannot be written.
    """
    from tracekit.attribution import Rules

    is_many = not isinstance(path, (str, os.PathLike))
    files: Sequence[StrPath] = path if not isinstance(path, (str, os.PathLike)) else [path]
    request = Request(
        files=[Path(file) for file in files],
        is_many=is_many,
        name=name,
        labels=labels or {},
        rules=Rules.load(None if rules is None else Path(rules), iteration, verdict),
        memory=memory,
        nsys=None if nsys is None else os.fspath(nsys),
        processes=processes,
        dask=dask,
        clocks=clocks or {},
        force=force,
        on_error=on_error,
        progress=progress or _silent,
        report_progress=report_progress or _silent,
    )
    place = Store.discover(None if store is None else Path(store))
    record, is_new = add_run(place, request)
    return Run(record, place), is_new


def open(  # noqa: A001 - the word that users of a library expect, as in tracekit.open(...)
    reference: StrPath = "@latest",
    *,
    store: StrPath | None = None,
    rules: StrPath | None = None,
    iteration: str | None = None,
    verdict: str | None = None,
    progress: Progress | None = None,
) -> Run:
    """Open a run by name, by the beginning of its id, ``@latest``, or the path of a trace file.

    A file that no run was made of is ingested on the way. With `rules`, `iteration` or
    `verdict`, stages and iterations are found anew for this `Run`, and the store keeps what it has.

    Raises
    ------
    UnknownRunError
        If there is no such run.
    InputError, UsageError, StoreError
        As for `ingest`.
    """
    place = Store.discover(None if store is None else Path(store))
    record = _find(place, reference, progress or _silent)
    chosen = None
    if rules is not None or iteration is not None or verdict is not None:
        from tracekit.attribution import Rules

        chosen = Rules.load(None if rules is None else Path(rules), iteration, verdict)
    return Run(record, place, chosen)


def _find(place: Store, reference: StrPath, progress: Progress) -> RunRecord:
    path = Path(reference)
    if not path.exists() and not _looks_like_path(reference):
        return place.find(str(reference))
    from tracekit.sources import check_readable

    check_readable(path)
    digest = content_digest(path, progress)
    known = next((record for record in place.runs() if record.digest == digest), None)
    return known or ingest(path, store=place.root, progress=progress)[0].record


def _looks_like_path(reference: StrPath) -> bool:
    """Tell whether someone who wrote this meant a file, even if there is none."""
    text = str(reference)
    return (
        not isinstance(reference, str)
        or os.sep in text
        or text.endswith((".sqlite", ".db", ".nsys-rep", ".qdrep"))
    )
