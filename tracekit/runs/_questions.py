"""The questions that a run answers: each names the run, and says what is to be known of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracekit.errors import UsageError
from tracekit.runs._facts import called, facts_of, of_run, require_known, verdicts_of
from tracekit.runs._gate import diagnosed_against
from tracekit.runs._memory_answers import check_what, memory_answer, remembered
from tracekit.runs._opened import OpenedRun, read_log
from tracekit.runs._study_answers import (
    api_answer,
    overhead_answer,
    profiler_answer,
    studied,
)
from tracekit.support.files import StrPath

if TYPE_CHECKING:
    from tracekit.analysis.communication import Buckets, Measure, Traffic
    from tracekit.analysis.comparison import Skip
    from tracekit.analysis.studies import Along
    from tracekit.model import Answer


def diagnose(
    run: OpenedRun,
    /,
    *,
    top: int | None = 5,
    only: Sequence[str] | None = None,
    price: bool = False,
    against: OpenedRun | None = None,
    topology: StrPath | None = None,
) -> Answer:
    """Say what takes time that a run need not take; see `tracekit.analysis.diagnosis.diagnose`.

    Parameters
    ----------
    top
        How many findings to list; None lists all.
    only
        Names of the rules to ask; all by default.
    price
        Whether to say by replay how long a step is where a finding is mended, if `whatif` can.
    against
        A base: say of each finding whether it is new, grown, shrunk, unchanged or gone since
        (`tracekit.analysis.diagnosis.against`), outliers left out of both.
    topology
        The machine, as for `Run.traffic`.
    """
    from tracekit.analysis.diagnosis import diagnose

    traffic = run.traffic(topology=topology)
    if against is None:
        found = diagnose(run.trace, top=top, rules=only, traffic=traffic)
    else:
        found = diagnosed_against([run], [against], top=top, only=only, topology=topology)
    if price:
        run.require_memory("whatif")
    replays = _replays(run, found.rows["rule"], traffic, price=price)
    return of_run(run, _with_replays(found, replays)).warning(run.warnings)


def _replays(
    run: OpenedRun, rules: Iterable[str], traffic: Traffic, *, price: bool
) -> dict[str, str]:
    """Return for each rule the `whatif` that prices it, and its answer."""
    from tracekit.analysis.dependencies import CHANGES, price_of

    named = {rule: f"`tracekit whatif {CHANGES[rule][0]}`" for rule in rules if rule in CHANGES}
    if not price:
        return named
    priced = {rule: price_of(rule, run.trace, traffic) for rule in named}
    return {rule: found.text for rule, found in priced.items() if found is not None}


def _with_replays(answer: Answer, replays: Mapping[str, str]) -> Answer:
    """Add to each finding its price by replay."""
    import polars as pl

    told = pl.col("rule").replace_strict(replays, default=None, return_dtype=pl.String)
    named = {name: table.with_columns(whatif=told) for name, table in answer.tables.items()}
    replay = pl.format("By replay: {}.", told)
    advice = pl.concat_str("advice", replay, separator=" ", ignore_nulls=True)
    people = answer.for_people.with_columns(advice=advice)
    return replace(answer, rows=answer.rows.with_columns(whatif=told), tables=named, people=people)


def latency(
    run: OpenedRun,
    /,
    against: OpenedRun | None = None,
    *,
    what: str = "latency",
    buckets: Buckets = "power2",
    measure: Measure = "osu_mean",
    library: str | None = None,
    nccl_log: Sequence[StrPath] = (),
    sizes: Mapping[str, int] | None = None,
) -> Answer:
    """Say how long operations take by the size of their messages.

    Parameters
    ----------
    against
        List how much faster `run` is than this run, size by size.
    what
        ``latency`` (see `analysis.communication.latency`), ``histogram`` (`message_histogram`),
        ``pointer-queries`` (`pointer_queries`) or ``staging`` (`staging`).
    buckets, measure, library, sizes
        As for `tracekit.analysis.communication.latency`.
    nccl_log
        Logs of the run that NCCL wrote with ``NCCL_DEBUG=INFO``.

    Raises
    ------
    UsageError
        If an option is unknown, or two do not go together.
    """
    from tracekit.analysis import communication

    calls: dict[str, Any] = {"library": library, "log": read_log(nccl_log), "sizes": sizes}
    asked = {
        "latency": lambda: _latency(run, against, buckets=buckets, measure=measure, **calls),
        "histogram": lambda: communication.message_histogram(run.trace, **calls),
        "pointer-queries": lambda: communication.pointer_queries(run.trace),
        "staging": lambda: communication.staging(run.trace),
    }
    require_known(what, "latency", asked)
    if against is not None and what != "latency":
        raise UsageError("--against compares latencies", "leave out --what, or --against")
    chosen = [run] if against is None else [run, against]
    found = of_run(run, asked[what]()).saying(**facts_of(chosen))
    if against is None:
        return found
    return replace(found, title=f"{called(run)} against {called(against)} · latency by size")


def _latency(run: OpenedRun, against: OpenedRun | None, **options: Any) -> Answer:
    from tracekit.analysis.communication import latency, latency_speedup

    own = latency(run.trace, **options)
    if against is None:
        return replace(own, tables={run.name: own.rows})
    if against.id == run.id:
        raise UsageError(f"{run.name} and {against.name} are the same run", "give two runs")
    base = latency(against.trace, **options)
    rows = latency_speedup(base.rows, own.rows)
    return replace(own, rows=rows, tables={against.name: base.rows, run.name: own.rows})


def info(run: OpenedRun, /) -> Answer:
    """Say what the run holds and lacks; see `tracekit.analysis.features` and `identify`."""
    from tracekit.analysis import features

    return _described(run, features(run.trace), "what it holds")


def confusion(run: OpenedRun, /) -> Answer:
    """Say what sources of stages say of the same ops; see `tracekit.analysis.confusion`."""
    from tracekit.analysis import confusion

    found = confusion(run.trace)
    return replace(
        _described(run, found, "what sources of stages say, by GPU time"), empty="no ops"
    )


def _described(run: OpenedRun, rows: Any, title: str) -> Answer:
    from tracekit.analysis import identify, verdict_evidence
    from tracekit.model import Answer

    evidence = verdict_evidence(run.trace)
    meta = {
        **identify(run.trace),
        **verdicts_of(run),
        **({"evidence": evidence} if evidence else {}),
    }
    found = Answer(rows=rows, meta=meta, title=title, command="info")
    return of_run(run, found).warning(run.warnings)


def clocks(run: OpenedRun, /) -> Answer:
    """Say how it is known whose times can be compared; see `analysis.clocks.clock_evidence`."""
    from tracekit.analysis.clocks import clock_evidence
    from tracekit.model import Answer

    found = Answer(
        rows=clock_evidence(run.reports),
        title="clocks of its reports",
        as_records=True,
        command="info clocks",
    )
    return of_run(run, found)


def memory(
    run: OpenedRun,
    /,
    what: str = "use",
    *,
    smi: StrPath | None = None,
    root: int = 0,
    capacity: int | None = None,
    margin: float = 0.1,
) -> Answer:
    """Say how much memory the run takes; see `tracekit.memory`."""
    from tracekit.sources import read_smi

    check_what(what)
    of = remembered([run], None if smi is None else read_smi(Path(smi)))
    return memory_answer(of, what=what, root=root, capacity=capacity, margin=margin)


def overhead(
    run: OpenedRun,
    /,
    *,
    baseline: str = "p2p",
    as_matrix: bool = False,
    api: bool = False,
    profiler: bool = False,
    crossover: Along | None = None,
    skip: Skip = "auto",
) -> Answer:
    """Say what the run's ways to communicate, calls or profiler cost; see `tracekit.overhead`."""
    if api or profiler:
        return api_answer([run]) if api else profiler_answer([run])
    of = studied([run], skip=skip)
    return overhead_answer(of, baseline=baseline, as_matrix=as_matrix, crossover=crossover)


def sql(run: OpenedRun, /, query: str) -> Answer:
    """Run a reading SQL statement over the canonical tables.

    Raises
    ------
    UsageError
        If the statement is wrong, or does more than read.
    """
    from tracekit.analysis import query as run_query
    from tracekit.model import Answer

    rows = run_query(run.trace, query, run.derived())
    found = of_run(run, Answer(rows=rows, meta={"query": query}, command="sql"))
    return replace(found, title="")
