"""Reports that cannot be of one execution of one job, and how that is known.

Only what no job can be is held against a report: programs, GPUs and sizes of groups may well differ
between the ranks of one job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from tracekit.analysis import communicators
from tracekit.model import Trace

_FAR = 60_000_000_000
"""Recordings of one host that are further apart than this, ns, and than they are long, are not of
one execution."""


@dataclass(frozen=True)
class _Report:
    """What a report says of its job.

    Parameters
    ----------
    name
        Name of its file.
    host
        The host it was recorded on.
    ranks
        The ranks of its processes in the job.
    size
        Number of ranks of the job.
    span
        When its work began and ended, Unix time, ns.
    busy
        Process ids, and UUIDs of the GPUs that these used.
    members
        Ranks of its processes by communicator of NCCL.
    sizes
        Number of ranks by communicator.
    """

    name: str
    host: str | None
    ranks: frozenset[int]
    size: int | None
    span: tuple[int, int] | None
    busy: frozenset[tuple[int, str]]
    members: Mapping[str, frozenset[int]]
    sizes: Mapping[str, int]


def foreign(traces: Sequence[Trace], names: Sequence[str]) -> dict[int, str]:
    """Return the reports that contradict an earlier one, by number, and why.

    Parameters
    ----------
    traces
        The reports.
    names
        Names of their files.
    """
    accepted: list[_Report] = []
    found: dict[int, str] = {}
    for number, (trace, name) in enumerate(zip(traces, names, strict=True)):
        report = _read(trace, name)
        why = next((why for other in accepted if (why := _contradiction(other, report))), None)
        if why is None:
            accepted.append(report)
        else:
            found[number] = why
    return found


def _contradiction(one: _Report, other: _Report) -> str | None:
    """Say why two reports cannot be of one execution; None where they can."""
    both = f"{one.name} and {other.name}"
    if same := one.ranks & other.ranks:
        return f"{both} are both rank {min(same)}"
    if one.size is not None and other.size is not None and one.size != other.size:
        return (
            f"{one.name} is of a job of {one.size} ranks, and {other.name} of one of {other.size}"
        )
    for name in one.members.keys() & other.members.keys():
        if same := one.members[name] & other.members[name]:
            return f"{both} are both rank {min(same)} of NCCL's communicator {name}"
    for name in one.sizes.keys() & other.sizes.keys():
        if one.sizes[name] != other.sizes[name]:
            return (
                f"NCCL's communicator {name} has {one.sizes[name]} ranks in {one.name}, and"
                f" {other.sizes[name]} in {other.name}"
            )
    return _on_one_host(one, other, both)


def _on_one_host(one: _Report, other: _Report, both: str) -> str | None:
    if one.host is None or one.host != other.host or one.span is None or other.span is None:
        return None
    apart = max(one.span[0], other.span[0]) - min(one.span[1], other.span[1])
    if apart < 0 and (same := one.busy & other.busy):
        pid, uuid = min(same)
        return f"{both} hold the same work: of process {pid} on GPU {uuid} of {one.host}"
    longest = max(end - start for start, end in (one.span, other.span))
    if apart > max(_FAR, longest):
        return f"{both} were recorded on {one.host} {apart / 1e9:,.0f} s apart"
    return None


def _read(trace: Trace, name: str) -> _Report:
    reports = trace.read("reports")
    # Names that PyTorch gives its groups are those of every job.
    told = communicators(trace).filter(pl.col("communicator").str.starts_with("0x"))
    members = told.drop_nulls("rank").group_by("communicator").agg(pl.col("rank").unique())
    sizes = told.drop_nulls("ranks").unique("communicator").select("communicator", "ranks")
    return _Report(
        name,
        _only(reports["host"]),
        frozenset(reports["rank"].drop_nulls()) | _mpi_ranks(trace),
        _only(reports["ranks"]),
        _span(trace, _only(reports["session_start"])),
        _busy(trace),
        {each: frozenset(ranks) for each, ranks in members.rows()},
        dict(sizes.rows()),
    )


def _only(values: pl.Series) -> Any:
    known = values.drop_nulls().unique()
    return known.item() if len(known) == 1 else None


def _mpi_ranks(trace: Trace) -> frozenset[int]:
    """Return the ranks in the world communicator of processes that have one."""
    told = trace["host"].drop_nulls("rank").group_by("process").agg(pl.col("rank").unique())
    return frozenset(told.filter(pl.col("rank").list.len() == 1).collect()["rank"].explode())


def _span(trace: Trace, began: int | None) -> tuple[int, int] | None:
    """Return when the GPU work of a report began and ended; without any, its ranges."""
    for table in ("ops", "ranges"):
        ends = trace[table].select(pl.col("start").min(), pl.col("end").max())
        first, last = ends.collect().row(0)
        if began is not None and first is not None:
            return began + first, began + last
    return None


def _busy(trace: Trace) -> frozenset[tuple[int, str]]:
    pairs = trace["ops"].select("process", "device").unique().collect()
    pids = trace.read("processes").select("process", "pid")
    gpus = trace.read("devices").select("device", "uuid").drop_nulls()
    named = pairs.join(pids, on="process").join(gpus, on="device")
    return frozenset(named.select("pid", "uuid").rows())
