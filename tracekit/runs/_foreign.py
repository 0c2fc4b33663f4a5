"""Detects reports (trace files) that cannot belong to the same execution of the same job.

Reports of one execution overlap in time, agree on ranks and communicators, and state the same
launcher job. They were recorded by one tool, unless each states its rank, the number of ranks and
the time. Programs, GPUs and sizes of communicators may differ between the ranks of one job:
different programs count as a contradiction only if no other fact connects two reports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import polars as pl

from tracekit.analysis.calls import (
    annotated_calls,
    communicators,
    process_ranks,
    read_calls,
)
from tracekit.model import Trace, same_machine
from tracekit.runs._question import listed

SKEW = 60_000_000_000
"""Largest difference of the clocks of two hosts, ns: sessions further apart are of two executions.
Hosts with network time differ by milliseconds, others by seconds."""
_LATE = 1_000_000_000
"""Largest time between sessions on one machine, ns; they share a clock, but their ends are
approximate."""
_TOOLS = {"PyTorch": "torch.profiler", "nvprof": "nvprof", "nsys": "nsys"}
"""Recorders, by the begin of the name of a format."""


@dataclass(frozen=True)
class Said:
    """Facts that a report (trace file) states about its job, to detect reports of other jobs."""

    name: str
    """Name of its file."""
    tool: str | None
    """Recorder that wrote the report; None if not known."""
    host: str | None
    """Host name of the recorded machine; None if not known."""
    uuids: frozenset[str]
    """UUIDs of the GPUs that the report lists."""
    ranks: frozenset[int]
    """Ranks of the report's processes in the job."""
    size: int | None
    """Number of ranks of the job; None if not known."""
    jobs: Mapping[str, str]
    """Job ids that launchers set: environment variable -> value."""
    session: tuple[int, int] | None
    """Begin and end of recording, Unix time, ns; None if not known."""
    work: tuple[int, int] | None
    """First start and last end of the recorded work, Unix time, ns; None if not known."""
    busy: frozenset[tuple[int, str]]
    """Pairs of the id of a process that used a GPU and the UUID of this GPU."""
    programs: frozenset[str]
    """Names of the executables of the report's processes."""
    members: Mapping[str, frozenset[int]]
    """Ranks of the report's processes in each NCCL communicator: id -> ranks."""
    sizes: Mapping[str, int]
    """Number of ranks of each NCCL communicator: id -> number."""
    named: frozenset[str]
    """Ids of all NCCL communicators in the report, also those without known ranks."""
    ties: frozenset[str]
    """What reports of one job share: its id, ``ranks`` where any is known (if only from the name of
    a file), NCCL communicators, and, in a report without these, operations of NCCL and MPI."""

    @property
    def worlds(self) -> set[str]:
        """Ids of the NCCL communicators that have all ranks of the job."""
        return {name for name, size in self.sizes.items() if size == self.size}


def foreign(reports: Sequence[Said]) -> dict[int, str]:
    """Return the reports (trace files) that belong to another job: index -> reason.

    Such a report contradicts an earlier one, or lacks NCCL's communicator of all ranks.
    """
    accepted: list[Said] = []
    found: dict[int, str] = {}
    for number, report in enumerate(reports):
        tried = (test(other, report) for other in accepted for test in _TESTS)
        why = next(filter(None, tried), None)
        if why is None:
            accepted.append(report)
        else:
            found[number] = why
    return found | _outside_of_the_world(reports, found)


def unconnected(reports: Sequence[Said]) -> list[str]:
    """Return warnings on reports (trace files) that nothing recorded shows to be of one job.

    Also on work on one machine that ends in one report before it begins in another.
    """
    parts: dict[int, frozenset[str]] = {}
    for number, report in enumerate(reports):
        joined = [first for first, ties in parts.items() if ties & report.ties]
        ties = report.ties.union(*map(parts.pop, joined))
        parts[min(joined, default=number)] = ties
    text = (
        f"nothing recorded shows that {listed([reports[first].name for first in sorted(parts)])} "
        "are of one job: launcher's job id, ranks, NCCL's communicators or, in a report without "
        "these, collective operations"
    )
    found = [text] * (len(parts) > 1)
    for one, other in pairwise(sorted(reports, key=lambda each: each.work or ())):
        if one.work and other.work and _on_one_machine(one, other):
            apart = _apart(one.work, other.work)
            ended = f"the work of {one.name} ends {apart / 1e6:,.3f} ms before that of"
            text = f"{ended} {other.name} begins, so that neither waits for the other"
            found += [text] * (apart > 0)
    return found


def _outside_of_the_world(reports: Sequence[Said], left_out: Mapping[int, str]) -> dict[int, str]:
    """Return reports (trace files) that use NCCL but not the communicator of all ranks.

    Returns index -> reason, without the reports in `left_out`.

    The largest communicator is taken for that of all ranks. The result is empty if it has fewer
    ranks than there are reports or than the job has, or if at most half of the reports that use
    NCCL mention it.
    """
    seen = {n: report for n, report in enumerate(reports) if n not in left_out and report.named}
    sizes = {name: size for report in seen.values() for name, size in report.sizes.items()}
    largest = max(sizes.values(), default=0)
    job = max((report.size or 0 for report in reports), default=0)
    if largest < max(len(reports), job):
        return {}
    worlds = {
        name: [n for n, report in seen.items() if name in report.named]
        for name, size in sizes.items()
        if size == largest
    }
    world, members = max(worlds.items(), key=lambda each: (len(each[1]), each[0]))
    if len(members) * 2 <= len(seen):
        return {}
    return {
        number: (
            f"NCCL's communicator {world} of {largest} ranks is in {len(members)} of"
            f" {len(reports)} reports, and not in {report.name}, which names others"
        )
        for number, report in seen.items()
        if world not in report.named
    }


def _tools(one: Said, other: Said) -> str | None:
    if one.tool is None or other.tool is None or one.tool == other.tool:
        return None
    both = (one, other)
    if all(each.ranks and each.size is not None and each.session is not None for each in both):
        return None  # then ranks, sizes and times say whether these are of one job
    return (
        f"{one.name} was recorded by {one.tool}, and {other.name} by {other.tool}, and not both say"
        " which rank of how many they are, and when"
    )


def _ranks(one: Said, other: Said) -> str | None:
    if same := one.ranks & other.ranks:
        return f"{one.name} and {other.name} are both rank {min(same)}"
    if one.size is None or other.size is None or one.size == other.size:
        return None
    return f"{one.name} is of a job of {one.size} ranks, and {other.name} of one of {other.size}"


def _jobs(one: Said, other: Said) -> str | None:
    shared = one.jobs.keys() & other.jobs.keys()
    differ = sorted(name for name in shared if one.jobs[name] != other.jobs[name])
    if not differ:
        return None
    return f"{one.name} and {other.name} have different {' and '.join(differ)}"


def _communicators(one: Said, other: Said) -> str | None:
    for name in one.members.keys() & other.members.keys():
        if same := one.members[name] & other.members[name]:
            return (
                f"{one.name} and {other.name} are both rank {min(same)} of NCCL's communicator"
                f" {name}"
            )
    for name in one.sizes.keys() & other.sizes.keys():
        if one.sizes[name] != other.sizes[name]:
            return (
                f"NCCL's communicator {name} has {one.sizes[name]} ranks in {one.name}, and"
                f" {other.sizes[name]} in {other.name}"
            )
    if one.worlds and other.worlds and not one.worlds & other.worlds:
        return (
            f"NCCL's communicator of all {one.size} ranks is {min(one.worlds)} in {one.name}, and"
            f" {min(other.worlds)} in {other.name}"
        )
    return None


def _work(one: Said, other: Said) -> str | None:
    if not _on_one_machine(one, other) or one.work is None or other.work is None:
        return None
    same = one.busy & other.busy
    if _apart(one.work, other.work) >= 0 or not same:
        return None
    pid, uuid = min(same)
    where = f" of {one.host}" if one.host else ""
    return f"{one.name} and {other.name} have the same work: of process {pid} on GPU {uuid}{where}"


def _sessions(one: Said, other: Said) -> str | None:
    if one.session is None or other.session is None:
        return None
    here = _on_one_machine(one, other)
    apart = _apart(one.session, other.session)
    if apart <= (_LATE if here else SKEW):
        return None
    where = f" on {one.host}" if here and one.host else ""
    room = "" if here else f", more than clocks of two hosts may differ ({SKEW / 1e9:.0f} s)"
    days = apart // 86_400_000_000_000
    far = f"{days:,} days" if days > 1 else f"{apart / 1e9:,.0f} s"
    return f"{one.name} and {other.name} were recorded{where} {far} apart{room}"


def _programs(one: Said, other: Said) -> str | None:
    if not one.programs or not other.programs or one.programs & other.programs:
        return None
    related = one.sizes.keys() & other.sizes.keys() or one.jobs.keys() & other.jobs.keys()
    if related or (one.ranks and other.ranks and one.size is not None and one.size == other.size):
        return None
    mine, others = (", ".join(sorted(each.programs)) for each in (one, other))
    return (
        f"{one.name} is of {mine}, {other.name} of {others}, and neither ranks nor groups say that"
        " these are one job"
    )


_TESTS: tuple[Callable[[Said, Said], str | None], ...] = (
    _tools, _ranks, _jobs, _communicators, _work, _sessions, _programs,
)  # fmt: skip


def _apart(one: tuple[int, int], other: tuple[int, int]) -> int:
    """Return the time from one interval (start, end) to the other, ns; negative if they overlap."""
    return max(one[0], other[0]) - min(one[1], other[1])


def _on_one_machine(one: Said, other: Said) -> bool:
    return same_machine((one.host, one.uuids), (other.host, other.uuids))


def said(trace: Trace, name: str) -> Said:
    """Read from the tables of a report the facts about its job; `name` is the report's file."""
    reports = trace.read("reports")
    # Names that PyTorch gives its groups are those of every job.
    nccl = communicators(trace).filter(pl.col("communicator").str.starts_with("0x"))
    called = read_calls(trace)["communicator"].drop_nulls().unique()
    named = frozenset(nccl["communicator"]) | {*called.filter(called.str.starts_with("0x"))}
    members = nccl.drop_nulls("rank").group_by("communicator").agg(pl.col("rank").unique())
    sizes = nccl.drop_nulls("ranks").unique("communicator").select("communicator", "ranks")
    recorder, job = (_only(reports[column]) or "" for column in ("format", "job"))
    is_numbered = bool(process_ranks(trace)["rank"].count())
    began, duration = (_only(reports[column]) for column in ("session_start", "duration"))
    work = _span(trace, began)
    ranks = trace["host"].drop_nulls("rank").group_by("process").agg(pl.col("rank").unique())
    of_mpi = ranks.filter(pl.col("rank").list.len() == 1).collect()
    return Said(
        name,
        next((tool for start, tool in _TOOLS.items() if recorder.startswith(start)), None),
        _only(reports["host"]),
        frozenset(trace.read("devices")["uuid"]) - {None},
        frozenset(reports["rank"]) - {None} | frozenset(of_mpi["rank"].explode()),
        _only(reports["ranks"]),
        dict(each.split("=", 1) for each in job.split()),
        _session(work, began, duration),
        work,
        _busy(trace),
        frozenset(map(_program, trace.read("processes")["name"].drop_nulls())),
        {each: frozenset(ranks) for each, ranks in members.rows()},
        dict(sizes.rows()),
        named,
        frozenset({*job.split(), *["ranks"] * is_numbered, *(named or _operations(trace))}),
    )


def _operations(trace: Trace) -> frozenset[str]:
    """Return the operations of a trace file's collectives and messages, of NCCL and MPI."""
    mpi = trace["host"].filter(pl.col("library") == "mpi").select("name")
    named = [trace["ops"].select("collective"), mpi, annotated_calls(trace).select("name")]
    columns = [each.cast(pl.String).unique().collect().to_series() for each in named]
    return frozenset(pl.concat(columns).drop_nulls())


def _program(name: str) -> str:
    """Return an executable's name without folder and version, which may differ between ranks."""
    return name.rpartition("/")[2].rstrip("0123456789.-") or name


def _only(values: pl.Series) -> Any:
    known = {*values} - {None}
    return known.pop() if len(known) == 1 else None


def _span(trace: Trace, began: int | None) -> tuple[int, int] | None:
    """Return first start and last end of GPU work (else of ranges), Unix time, ns.

    None if the trace file has neither, or does not state when recording began.
    """
    for table in ("ops", "ranges"):
        ends = trace[table].select(pl.col("start").min(), pl.col("end").max())
        first, last = ends.collect().row(0)
        if began is not None and first is not None:
            return began + first, began + last
    return None


def _session(
    work: tuple[int, int] | None, began: int | None, duration: int | None
) -> tuple[int, int] | None:
    """Return start and end of the recording, Unix time, ns; if unknown, of the recorded `work`.

    `began` is the start, `duration` the length of the recording.
    """
    if began is None or duration is None:
        return work
    first, last = work or (began, began)
    return min(began, first), max(began + duration, last)


def _busy(trace: Trace) -> frozenset[tuple[int, str]]:
    pairs = trace["ops"].select("process", "device").unique().collect()
    pids = trace.read("processes").select("process", "pid")
    gpus = trace.read("devices").select("device", "uuid").drop_nulls()
    named = pairs.join(pids, on="process").join(gpus, on="device")
    return frozenset(named.select("pid", "uuid").rows())
