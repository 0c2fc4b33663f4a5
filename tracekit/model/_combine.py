"""One run of several reports.

Nothing large is read: the tables of the run are those of the reports one after another, with
numbers that are the run's. Only which GPUs are the same physical one has to be found out.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from tracekit.model._clocks import Clock, clock_warnings, with_clock
from tracekit.model._paths import combine_paths
from tracekit.model._tables import TABLES
from tracekit.model._trace import Trace

_REFERENCES = {
    "report": ("report",),
    "process": ("process",),
    "thread": ("thread", "launch_thread", "end_thread"),
    "device": ("device", "src_device", "dst_device"),
    "op": ("op",),
    "call": ("call",),
    "range": ("range", "parent"),
}
"""What is numbered throughout a run, and the columns of any table that hold such a number."""
_OF_COLUMN = {column: what for what, columns in _REFERENCES.items() for column in columns}
_NUMBERED = {"report": "reports", "process": "processes", "thread": "threads"}
_COUNTED = {"op": "ops", "call": "calls", "range": "ranges"}

UNMATCHED = "nothing recorded matches "
"""How the warning begins that says so of an entry of a user's rules."""

Gpu = tuple[int, int]
"""A trace, and the number of a GPU in it."""


def combine(traces: Sequence[Trace]) -> Trace:
    """Return one run of several reports; a single one is returned as it is.

    Numbers of processes, threads, ops, calls, ranges and reports continue from one report to the
    next; equal paths of ranges are one. A GPU that several reports saw is one device: the one of
    the same UUID, else the one at the same PCI bus location of the same host. Times are put on the
    clocks that the reports say.

    Parameters
    ----------
    traces
        The reports, in their order in the run.
    """
    if len(traces) == 1:
        return traces[0]
    small = [{name: trace.read(name) for name in (*_NUMBERED.values(), "devices")}
             for trace in traces]  # fmt: skip
    firsts = _firsts(traces, small)
    devices, numbers = _combined_devices(small, firsts)
    clocks = [_clock(tables["reports"], index) for index, tables in enumerate(small)]
    for tables, clock in zip(small, clocks, strict=True):
        tables["reports"] = _told(tables["reports"], clock, small[0]["reports"])
    own = [
        _renumbered(
            with_clock({**trace.tables, **{n: f.lazy() for n, f in tables.items()}}, clock),
            first, mapping,
        )
        for trace, tables, first, mapping, clock in zip(
            traces, small, firsts, numbers, clocks, strict=True
        )
    ]  # fmt: skip
    paths, renumbered = _with_one_tree(traces, own)
    whole = {name: pl.concat([each[name] for each in renumbered]) for name in TABLES}
    # Several reports may have seen a device at the same time, and clocks stretch what they saw.
    sums = TABLES["device_sums"].empty()
    whole |= {"devices": devices.lazy(), "paths": paths.lazy(), "device_sums": sums.lazy()}
    return Trace(whole, _warnings(traces, [tables["reports"] for tables in small], clocks))


def with_one_tree(traces: Sequence[Trace]) -> list[Trace]:
    """Return traces in which equal paths of ranges have the same number."""
    paths, tables = _with_one_tree(traces, [trace.tables for trace in traces])
    return [
        replace(trace, tables={**of_trace, "paths": paths.lazy()})
        for trace, of_trace in zip(traces, tables, strict=True)
    ]


def _with_one_tree(
    traces: Sequence[Trace], tables: Sequence[Mapping[str, pl.LazyFrame]]
) -> tuple[pl.DataFrame, list[Mapping[str, pl.LazyFrame]]]:
    """Return the paths of all traces, and their tables with the numbers of these."""
    paths, numbers = combine_paths([trace.read("paths") for trace in traces])
    return paths, [
        {**each, "ranges": each["ranges"].with_columns(_in_tree(number))} if len(number) else each
        for each, number in zip(tables, numbers, strict=True)
    ]


def _in_tree(numbers: pl.Series) -> pl.Expr:
    """Return the numbers of paths in a tree, given that of each one."""
    own = pl.Series(range(len(numbers)), dtype=numbers.dtype)
    return pl.col("path").replace_strict(own, numbers, default=None, return_dtype=numbers.dtype)


def _clock(reports: pl.DataFrame, index: int) -> Clock:
    """Return the clock that a trace says it is on; what has several reports has been aligned."""
    return Clock.of(reports.row(0, named=True) if reports.height == 1 else {}, index)


def _told(reports: pl.DataFrame, clock: Clock, first: pl.DataFrame) -> pl.DataFrame:
    """Say in a table of reports which clock they are on."""
    if reports.height != 1:
        return reports.with_columns(clock=pl.lit(None, pl.String))
    start = pl.col("session_start") - clock.offset
    if clock.source in ("collectives", "given"):  # the hosts' own clocks are not what counts
        start = pl.lit(first["session_start"][0], pl.Int64)
    return clock.told(reports.with_columns(start.alias("session_start")))


def _firsts(
    traces: Sequence[Trace], small: Sequence[Mapping[str, pl.DataFrame]]
) -> list[dict[str, int]]:
    """Return by how much the numbers of each trace are raised."""
    counts = pl.collect_all(
        [trace[table].select(pl.len()) for trace in traces for table in _COUNTED.values()]
    )
    heights = iter(frame.item() for frame in counts)
    running = dict.fromkeys((*_NUMBERED, *_COUNTED), 0)
    firsts = []
    for tables in small:
        firsts.append(dict(running))
        for key, table in _NUMBERED.items():
            highest: Any = tables[table][key].max()
            running[key] += 0 if highest is None else highest + 1
        running["report"] = max(running["report"], firsts[-1]["report"] + 1)
        for key in _COUNTED:
            running[key] += next(heights)
    return firsts


def _renumbered(
    tables: Mapping[str, pl.LazyFrame], first: Mapping[str, int], devices: Mapping[int, int]
) -> dict[str, pl.LazyFrame]:
    """Return the tables of a trace with the numbers that things have in the run."""
    return {
        name: tables[name].with_columns(
            _raised(column, dtype, first, devices)
            for column, dtype in table.schema.items()
            if column in _OF_COLUMN
        )
        for name, table in TABLES.items()
    }


def _raised(
    column: str, dtype: Any, first: Mapping[str, int], devices: Mapping[int, int]
) -> pl.Expr:
    what = _OF_COLUMN[column]
    if what != "device":
        return (pl.col(column) + pl.lit(first[what], dtype)).alias(column)
    steps = {new - old for old, new in devices.items()}
    if len(steps) <= 1:
        return (pl.col(column) + pl.lit(next(iter(steps), 0), dtype)).alias(column)
    return pl.col(column).replace_strict(devices, return_dtype=dtype)


@dataclass(frozen=True)
class _Seen:
    """A GPU as one trace describes it, and the host that the trace was recorded on."""

    gpu: Gpu
    host: str | None
    row: Mapping[str, Any]

    @property
    def place(self) -> tuple[str, str] | None:
        """Where it sits, if that is known."""
        bus = self.row["pci_bus"]
        # The domain is written with four digits, with eight, or not at all.
        return None if self.host is None or not bus else (self.host, bus.lower().lstrip("0:"))


def _combined_devices(
    small: Sequence[Mapping[str, pl.DataFrame]], firsts: Sequence[Mapping[str, int]]
) -> tuple[pl.DataFrame, list[dict[int, int]]]:
    """Return the run's devices, and for each trace the run's numbers of its devices."""
    seen = [each for index, tables in enumerate(small) for each in _seen(index, tables)]
    physical: dict[object, list[_Seen]] = defaultdict(list)
    for each, identity in zip(seen, _identities(seen), strict=True):
        physical[identity].append(each)
    numbered = _numbers(list(physical.values()))
    numbers: list[dict[int, int]] = [{} for _ in small]
    for number, gpus in numbered.items():
        for each in gpus:
            numbers[each.gpu[0]][each.gpu[1]] = number
    rows = [_described(number, gpus, firsts) for number, gpus in sorted(numbered.items())]
    return pl.DataFrame(rows, schema=TABLES["devices"].schema), numbers


def _seen(index: int, tables: Mapping[str, pl.DataFrame]) -> list[_Seen]:
    hosts = dict(tables["reports"].select("report", "host").rows())
    return [
        _Seen((index, row["device"]), hosts.get(row["report"]), row)
        for row in tables["devices"].to_dicts()
    ]


def _identities(seen: Sequence[_Seen]) -> list[object]:
    """Return for each GPU what it shares with all that are the same physical one."""
    uuids: dict[object, set[str]] = defaultdict(set)
    for each in seen:
        if each.row["uuid"]:
            uuids[each.place].add(each.row["uuid"])
    found = [_identity(each, uuids) for each in seen]
    # One report never names a GPU twice: what two of its rows share tells neither.
    times = Counter((each.gpu[0], identity) for each, identity in zip(seen, found, strict=True))
    vague = {identity for (_, identity), number in times.items() if number > 1}
    return [
        each.gpu if identity in vague else identity
        for each, identity in zip(seen, found, strict=True)
    ]


def _identity(each: _Seen, uuids: Mapping[object, set[str]]) -> object:
    uuid, place = each.row["uuid"], each.place
    # Ops are on it, but not known to be: it only stands for an ordinal of a process.
    if each.row["identity"] == "unknown" and each.row["active"]:
        return each.gpu
    if uuid:
        return uuid
    there = uuids.get(place, set())
    if place is None or len(there) > 1:
        return each.gpu
    return next(iter(there), place)


def _numbers(physical: list[list[_Seen]]) -> dict[int, list[_Seen]]:
    """Give each physical GPU a number: its own where no two reports mean different GPUs by one.

    Else they are numbered host by host, as the reports come, and by PCI bus location.
    """
    own = [{each.gpu[1] for each in gpus} for gpus in physical]
    if all(len(numbers) == 1 for numbers in own) and len(set.union(set(), *own)) == len(own):
        return {numbers.pop(): gpus for numbers, gpus in zip(own, physical, strict=True)}
    everything = sorted((each for gpus in physical for each in gpus), key=lambda each: each.gpu)
    hosts = {each.host: each.gpu for each in reversed(everything)}

    def order(gpus: list[_Seen]) -> tuple[object, ...]:
        place = next((each.place for each in gpus if each.place), None)
        return hosts[gpus[0].host], place is None, place or (), gpus[0].gpu

    return dict(enumerate(sorted(physical, key=order)))


def _described(
    number: int, gpus: Sequence[_Seen], firsts: Sequence[Mapping[str, int]]
) -> dict[str, Any]:
    """Return the row of a device: what the first report says that says anything."""
    told = sorted(gpus, key=lambda each: not each.row["active"])
    row = {
        name: next((each.row[name] for each in told if each.row[name] is not None), None)
        for name in TABLES["devices"].schema
    }
    reports = [firsts[each.gpu[0]]["report"] + each.row["report"] for each in gpus]
    return {**row, "device": number, "report": min(reports)}


def _warnings(
    traces: Sequence[Trace], reports: Sequence[pl.DataFrame], clocks: Sequence[Clock]
) -> tuple[str, ...]:
    """Return the warnings of all reports, each with the name of its file."""
    files = [", ".join(frame["file"]) for frame in reports]
    named = [
        file if file and files.count(file) == 1 else f"report {index} {file}".rstrip()
        for index, file in enumerate(files)
    ]
    warnings = [
        f"{name}: {warning}"
        for name, trace in zip(named, traces, strict=True)
        for warning in trace.warnings
        if not warning.startswith(UNMATCHED)
    ]
    # What one report does not match another one may, such as that of the first rank.
    unmatched = [
        warning
        for warning in traces[0].warnings
        if warning.startswith(UNMATCHED) and all(warning in each.warnings for each in traces)
    ]
    return (*warnings, *unmatched, *clock_warnings(clocks, named))
