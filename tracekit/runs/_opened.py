"""An opened run of a store: its tables, machine and traffic."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from copy import copy
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self
from weakref import WeakValueDictionary

from tracekit import analysis, attribution, engine, model
from tracekit import machine as machines
from tracekit.analysis import communication
from tracekit.analysis.communication.questions import read_log
from tracekit.errors import UnknownRunError, UsageError
from tracekit.store import Kept, OnMissing, RunRecord, Store, SummaryValue, Workers
from tracekit.support.files import StrPath
from tracekit.support.memory import is_in_parts, require

if TYPE_CHECKING:
    import polars as pl

    from tracekit.attribution import Rules
    from tracekit.machine import Machine, Placed
    from tracekit.model import Trace

_BESIDE = 2
"""Number of neighbouring steps read beside those requested: see `some_steps`."""
_SHORT = 100_000
"""Number of ops below which a run is short: its traffic takes little memory."""
_LONG = ("ops", "calls", "ranges")
_GROWS = {"memory": ("memory",)}
"""Tables whose longest one determines the memory of a question; by default `_LONG`."""


class OpenedRun:
    """A run of a store, opened: its tables, its machine, and the traffic between its GPUs.

    Parameters
    ----------
    record, store
        Catalogue entry of the run, and its store.
    rules
        Rules with which to derive the stages of its ops anew; None keeps the stored stages.
    memory
        Limit of memory for an analysis, bytes; None for the free memory.
    workers
        Processes or cluster that compute results of parts of the run; None for this process only.
    on_missing
        How to treat reports (trace files) whose stored tables are missing or damaged: see
        `tracekit.open`.
    only_ranks
        Ranks whose reports are used; None for all.
    """

    def __init__(
        self,
        record: RunRecord,
        store: Store,
        rules: Rules | None = None,
        memory: int | None = None,
        workers: Workers | None = None,
        on_missing: OnMissing = "stop",
        only_ranks: str | Sequence[int] | None = None,
    ) -> None:
        self.record, self._reports = store.open_reports(record, on_missing)
        self._workers = workers
        self._rules = rules
        self._allowed = memory
        self._store = store
        if only_ranks is not None:
            self._choose(only_ranks)

    def __repr__(self) -> str:
        numbers = self.record.summary
        parts = [f"{numbers.get(key)} {key}" for key in ("devices", "ops", "iterations")]
        return f"<Run {self.name!r} ({self.id}): {', '.join(parts)}>"

    @property
    def reports(self) -> Sequence[Trace]:
        """Tables of each report (trace file) of the run, as stored."""
        return self._reports

    @property
    def id(self) -> str:
        """Id of the run, 12 hexadecimal digits."""
        return self.record.id

    @property
    def name(self) -> str:
        """Name of the run in its store."""
        return self.record.name

    @property
    def labels(self) -> Mapping[str, str]:
        """Labels of the run: name -> value."""
        return self.record.labels

    @property
    def created(self) -> datetime:
        """Time at which the run was ingested, UTC."""
        return self.record.created

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about this run, one sentence each."""
        return self.trace.warnings

    @property
    def warnings_beside_stages(self) -> list[str]:
        """The warnings that are not about stages and steps, as `info` tells them."""
        of_stages = tuple(text for each in self._reports for text in _of_stages(each))
        return [text for text in self.warnings if not text.endswith(of_stages)]

    @cached_property
    def trace(self) -> Trace:
        """Tables of the run, its trace files together; with rules, stages are derived anew."""
        if self._rules is None:
            trace = replace(
                model.combine(self._reports), warnings=self.record.warnings, keeper=self.kept
            )
            return replace(trace, spread=self._workers) if self._workers else trace
        self.require_memory("attribution")
        # By report, as ingest does: numbers follow time within a report and not throughout a run.
        trace = model.combine(
            [attribution.attribute(report, self._rules) for report in self._reports]
        )
        # An attribution that is done again warns again of what still holds.
        earlier = set(_found_in(self._reports))
        lasting = tuple(text for text in self.record.warnings if text not in earlier)
        return replace(trace, warnings=tuple(dict.fromkeys(lasting + trace.warnings)))

    @cached_property
    def kept(self) -> Kept | None:
        """Cache of values computed from the stored tables.

        None if the run is opened with other rules, or without some of its files.
        """
        is_as_stored = self._rules is None and len(self._reports) == len(self.record.files)
        return self._store.kept(self.record) if is_as_stored else None

    def with_trace(self, trace: Trace) -> Self:
        """Return a copy of the run with other tables."""
        other = copy(self)
        other.trace, other.kept = trace, None
        other.__dict__.pop("_traffic", None)
        return other

    def of_steps(self, iterations: tuple[int, int] | None) -> Self:
        """Return the run limited to steps, first and last included; None for all steps."""
        if iterations is None:
            return self
        return self.with_trace(engine.some_steps(self.trace, *iterations))

    def within(
        self,
        *,
        iterations: tuple[int, int] | None = None,
        between: str | tuple[int, int] | None = None,
    ) -> Self:
        """Return the run limited to steps or to a time span; see `tracekit.engine.within`.

        `iterations` are the first and last step, `between` the start and end of the span.
        """
        if iterations is None and between is None:
            return self
        return self.with_trace(engine.within(self.trace, iterations=iterations, between=between))

    def _choose(self, ranks: str | Sequence[int]) -> None:
        """Keep the trace files of these ranks only; warn of the number of files left out."""
        import polars as pl

        from tracekit.analysis.calls import process_ranks
        from tracekit.engine import parse_ranks

        trace = model.combine(self._reports) if self._rules else self.trace
        reports = trace.read("processes").select("process", "report")
        known = process_ranks(trace).join(reports, on="process").drop_nulls("rank")
        spans = parse_ranks(ranks)
        there = known["rank"].sort()
        chosen = known.filter(pl.any_horizontal(pl.col("rank").is_between(*span) for span in spans))
        wanted = ranks if isinstance(ranks, str) else ", ".join(map(str, ranks))
        if chosen.is_empty():
            raise UsageError(
                f"the run has no rank {wanted}",
                f"there are {there[0]} to {there[-1]}" if len(there) else "none is known",
            )
        numbers = chosen["report"].unique().sort()
        warning = (
            f"looked at are {len(numbers)} of {len(self._reports)} reports, those of ranks "
            f"{wanted}: what other ranks did is not known, and nobody is seen to wait for them"
        )
        others = trace.read("reports").filter(~pl.col("report").is_in(numbers.implode()))
        left_out, earlier = {*others["file"]}, {*_found_in(self._reports)}
        lasting = (text for text in self.record.warnings
                   if text not in earlier and text.partition(": ")[0] not in left_out)  # fmt: skip
        self._reports = [self._reports[number] for number in numbers]
        warnings = (*lasting, *_found_in(self._reports), warning)
        self.record = replace(self.record, warnings=warnings)
        for of_all in ("trace", "kept"):
            self.__dict__.pop(of_all, None)

    def require_memory(self, question: str, *, iterations: tuple[int, int] | None = None) -> None:
        """Raise `UsageError` if an analysis would need more memory than available.

        The estimate is made from stored row counts; no table is read.

        Parameters
        ----------
        question
            Command of the analysis (question).
        iterations
            First and last step that the analysis is limited to; None for the whole run.
        """
        rows = [
            max(report.height(table) for table in _GROWS.get(question, _LONG))
            for report in self._reports
        ]
        largest = None
        if is_in_parts(question) and self._rules is None and len(rows) > 1:
            parts = [sum(rows[report] for report in part) for part in self.trace.reports_of_parts()]
            at_once = self._workers.processes if self._workers else 1
            largest = sum(sorted(parts)[-at_once:]) if parts else None
        steps = int(self.record.summary.get("iterations") or 0)
        some = steps if iterations is None else iterations[1] - iterations[0] + 1 + _BESIDE
        share = min(some / steps, 1) if steps else 1
        require(question, sum(rows), self._allowed, share, largest)

    def table(self, name: str) -> pl.LazyFrame:
        """Return a canonical table as a lazy frame; ``docs/tables.md`` lists them.

        Raises
        ------
        UnknownRunError
            If no table has this name.
        """
        derived = self.derived()
        if name in derived:
            return derived[name]().lazy()
        if name not in self.trace.tables:
            names = ", ".join((*self.trace.tables, *derived))
            raise UnknownRunError(f"no table {name!r}", f"there are {names}")
        return self.trace[name]

    def machine(self, topology: StrPath | None = None) -> Machine:
        """Return the machine that the run used; see `traffic` for the meaning of `topology`."""
        return self._placed(topology).machine

    def _placed(self, topology: StrPath | None) -> Placed:
        chosen = None if topology is None else os.fspath(topology)
        recorded = self.trace.read("machine")["description"].to_list()
        hosts = self.trace.read("reports").select("report", "host")
        devices = self.trace.read("devices").join(hosts, on="report", how="left")
        return machines.machine_of(devices, chosen, recorded)

    def traffic(
        self,
        *,
        topology: StrPath | None = None,
        nccl_log: Sequence[StrPath] = (),
        sizes: Mapping[str, int] | None = None,
        ranks: int | None = None,
    ) -> communication.Traffic:
        """Return the bytes moved between the run's GPUs, and over each link of the machine.

        The result is cached per combination of options; for a long run, only while a caller uses
        it.

        Parameters
        ----------
        topology
            A topology file or the name of a preset; by default the machine that was recorded (by
            nvprof), or else one inferred from the names of the GPUs.
        nccl_log
            Logs that NCCL wrote during the run with ``NCCL_DEBUG=INFO``.
        sizes
            Bytes of collectives whose size was not recorded: name, such as ``all_reduce`` -> bytes.
        ranks
            Number of ranks of a communicator, if it was not recorded.

        Raises
        ------
        UsageError
            If the topology has fewer GPUs than the run used.
        InputError
            If the topology or a log cannot be read as one.
        """
        paths = [Path(each) for each in (*nccl_log, *([] if topology is None else [topology]))]
        files = (each for path in paths for each in (path, *path.glob("*")))
        written = ((each, each.stat().st_mtime_ns) for each in files if each.exists())
        key = (len(nccl_log), *paths, *written, *sorted((sizes or {}).items()), ranks)
        found = self._traffic.get(key)
        if found is None:
            placed, log = self._placed(topology), read_log(nccl_log)
            found = communication.Traffic(self.trace, placed, log, sizes, ranks)
            self._traffic[key] = found
        return found

    @cached_property
    def _traffic(self) -> MutableMapping[tuple[object, ...], communication.Traffic]:
        """Cached results of `traffic` by options; for a long run only weak references."""
        ops = sum(report.height("ops") for report in self._reports)
        return {} if ops < _SHORT else WeakValueDictionary()

    def summary(self) -> Mapping[str, SummaryValue]:
        """Return, by name, counts (GPUs, ops ...) and shares of ops with known launch or stage."""
        return analysis.summarise(self.trace)

    def export(
        self, path: StrPath, *, to: str = "perfetto", iterations: tuple[int, int] | None = None
    ) -> None:
        """Write the run, or some of its steps, for Perfetto or Chrome; see `tracekit.export`."""
        from tracekit.export import export

        self.require_memory("export", iterations=iterations)
        export(self.trace, Path(path), to, iterations)

    def derived(self) -> dict[str, Callable[[], pl.DataFrame]]:
        """Return the tables that are computed on demand: name -> function that computes it."""
        return {
            "transfers": lambda: self.traffic().transfers,
            "collectives": lambda: communication.collective_calls(self.trace),
            "path_texts": lambda: engine.range_paths(self.trace),
        }


def _found_in(reports: Sequence[Trace]) -> tuple[str, ...]:
    """Return the warnings stored with a run's files: about stages, and about combining files."""
    return model.combine([replace(each, warnings=_of_stages(each)) for each in reports]).warnings


def _of_stages(report: Trace) -> tuple[str, ...]:
    """Return the stored warnings of a report about stages and steps."""
    names = ("verdicts", "opinions", "processes", "iterations")
    return attribution.stored_findings({name: report.read(name) for name in names})
