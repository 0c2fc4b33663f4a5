"""Combine the trace files ("reports") of a run into one trace.

A table of the run concatenates the tables of the files, renumbered so that ids are unique in the
run. Each table is combined on first use; large tables are then read a few files at a time. Only
GPUs are matched beforehand: entries of several files may be the same physical GPU.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, compress
from typing import Any

import numpy as np
import polars as pl
from polars.io.plugins import register_io_source

from tracekit.model._clocks import Clock, clock_warnings, clocks_applied, on_clock
from tracekit.model._paths import combine_paths
from tracekit.model._tables import TABLES
from tracekit.model._trace import LaterTables, Trace, read_each, read_together

_REFERENCES = {
    "report": ("report",),
    "process": ("process",),
    "thread": ("thread", "launch_thread", "end_thread"),
    "device": ("device", "src_device", "dst_device"),
    "op": ("op",),
    "call": ("call",),
    "range": ("range", "parent"),
}
"""Numbers that are unique in a run, and the columns of any table with them: name ->
columns."""
_OF_COLUMN = {column: noun for noun, columns in _REFERENCES.items() for column in columns}
_NUMBERED = {"report": "reports", "process": "processes", "thread": "threads"}
_COUNTED = {"op": "ops", "call": "calls", "range": "ranges"}

_FEW, _FEW_OF_EACH = 100_000, 500
"""Maximum rows of a table (and more per report) that are read and renumbered at once."""
_SCANS = 32
"""Maximum number of reports that are planned as one scan each. Of more, polars' streaming engine
starts all at once, and a thousand take it a minute."""
_READ_TOGETHER = 250_000
"""Number of rows that are read at a time from more reports than `_SCANS`."""
_OF_PART = 1_000_000
"""Maximum number of ops in a part of a run, which one process reads; a part has several reports."""
_CARRIED = {"devices", "iterations", "device_sums"}
"""Tables that may be replaced in a run without preventing its division into parts."""
_BITS = 32
"""Bits of a number within a report; the number of the report is above them."""

_NAMED = 3
"""Number of reports that a merged warning names."""
_NUMBER = re.compile(r"[-+]?\d[\d,.]*")

UNMATCHED = "nothing recorded matches "
"""Begin of the warning about an entry of a user's rules that matches nothing."""

_STEPLESS = "no steps are known of its GPU work: tables of steps leave it out"
_HARDLY = 0.01
"""Share of the ops of the largest file up to which one without steps gives no warning."""

Gpu = tuple[int, int]
"""Index of a report, and number of a GPU in it."""


def combine(traces: Sequence[Trace]) -> Trace:
    """Combine the tables of trace files into one run; those of a single file are returned as is.

    The ids of processes, threads, ops, calls, ranges and files continue from one file to the next;
    equal paths of ranges get one id. A GPU that occurs in several files becomes one device: GPUs
    are matched by UUID, or else by host and PCI bus location. Times are corrected by the clock in
    each file's row of the table `reports`.

    Parameters
    ----------
    traces
        The tables of each file, in the order of the run.
    """
    if len(traces) == 1:
        return traces[0]
    read = {name: read_each(traces, name) for name in (*_NUMBERED.values(), "devices")}
    small = [dict(zip(read, tables, strict=True)) for tables in zip(*read.values(), strict=True)]
    firsts = _firsts(traces, small)
    devices, numbers = _combined_devices(small, firsts)
    clocks = [_clock(tables["reports"], index) for index, tables in enumerate(small)]
    read["reports"] = _corrected(read["reports"], clocks)
    changes = _Changes.of(firsts, numbers, clocks)
    combined = _CombinedTables(traces, changes, read, {"devices": devices})
    return Trace(combined, _warnings(traces, read["reports"], clocks))


@dataclass(frozen=True)
class _Changes:
    """Renumbering and clock correction of each trace file ("report").

    `added` has one row per file: ``offset, drift, since`` of its clock; the amount to add to each
    kind of id; and for each of up to `steps` jumps of the clock time and offset, ns (``at0, by0``
    for the first). `devices` maps the device numbers of each file to those of the run.
    """

    added: pl.DataFrame
    devices: Sequence[Mapping[int, int]]
    steps: int

    @classmethod
    def of(
        cls,
        firsts: Sequence[Mapping[str, int]],
        devices: Sequence[Mapping[int, int]],
        clocks: Sequence[Clock],
    ) -> _Changes:
        most = max(len(clock.steps) for clock in clocks)
        rows = [
            {"offset": clock.offset, "drift": clock.drift, "since": clock.since, **first}
            | {name: value for number in range(most) for name, value in _step(clock, number)}
            for first, clock in zip(firsts, clocks, strict=True)
        ]
        return cls(pl.DataFrame(rows), devices, most)

    def of_part(self, reports: Sequence[int], heights: Mapping[str, Sequence[int]]) -> _Changes:
        """Return renumbering and clock correction for a part of the run: the files `reports`.

        Ops, calls and ranges are numbered within the part; `heights` has their counts per file.
        """
        counted = {
            name: pl.Series([0, *accumulate(heights[name])][: len(reports)]) for name in _COUNTED
        }
        devices = [self.devices[number] for number in reports]
        return _Changes(self.added[reports].with_columns(**counted), devices, self.steps)

    @property
    def keeps_lengths(self) -> bool:
        """True if no clock drifts or jumps, so that durations stay as recorded."""
        return not self.steps and not (self.added["drift"] != 0).any()

    def columns(self, table: str, which: pl.Series) -> list[pl.Expr]:
        """Return expressions for those columns of a table that combining changes: ids and times.

        Parameters
        ----------
        table
            The canonical table.
        which
            For each row the number of its trace file; or one number, if all rows are of one file.
        """
        added = self.added[which]
        values = {name: _literal(added[name]) for name in added.columns}
        drift = values["drift"] if (added["drift"] != 0).any() else None
        steps = [(values[f"at{number}"], values[f"by{number}"]) for number in range(self.steps)]
        is_moved = drift is not None or steps or (added["offset"] != 0).any()
        times = on_clock(table, values["offset"], drift, values["since"], steps) if is_moved else []
        numbered = {
            column: dtype for column, dtype in TABLES[table].schema.items() if column in _OF_COLUMN
        }
        return times + [
            # A device that is not listed keeps its number.
            _mapped(column, self.devices, which, pl.col(column))
            if _OF_COLUMN[column] == "device"
            else pl.col(column) + values[_OF_COLUMN[column]].cast(dtype)
            for column, dtype in numbered.items()
        ]


def _step(clock: Clock, number: int) -> list[tuple[str, int]]:
    """Return jump `number` of a clock: the file's time at the jump, and the further offset, ns.

    They are (column name, value) pairs, such as ``at0`` and ``by0``; the values are 0 without a
    jump.
    """
    at, by = clock.steps[number] if number < len(clock.steps) else (0, 0)
    return [(f"at{number}", at), (f"by{number}", by)]


def _literal(values: pl.Series) -> pl.Expr:
    return pl.lit(values[0], values.dtype) if len(values) == 1 else pl.lit(values)


def _mapped(
    column: str,
    numbers: Sequence[Mapping[int, int]],
    which: pl.Series,
    others: pl.Expr | None = None,
) -> pl.Expr:
    """Map a column of ids of trace files to ids of the run; `which` is the file of each row.

    Ids that are not in the mapping become `others`, by default null.
    """
    mapped = {
        (trace << _BITS) + ids: new
        for trace in which.unique().to_list()
        for ids, new in numbers[trace].items()
    }
    key = _literal(which.cast(pl.Int64) * (1 << _BITS)) + pl.col(column)
    known = {"old": list(mapped), "new": list(mapped.values())}
    return key.replace_strict(**known, default=others, return_dtype=pl.Int32).alias(column)


class _CombinedTables(LaterTables):
    """The tables of a run, each combined from its trace files on first use.

    Parameters
    ----------
    traces
        The tables of each file.
    changes
        Their renumbering and clock correction.
    read
        Tables of the files that have been read already.
    opened
        Tables of the run that have been combined already.
    """

    def __init__(
        self,
        traces: Sequence[Trace],
        changes: _Changes,
        read: Mapping[str, Sequence[pl.DataFrame]],
        opened: Mapping[str, pl.DataFrame],
    ) -> None:
        super().__init__({name: frame.lazy() for name, frame in opened.items()})
        self._traces = traces
        self._changes = changes
        self._read = read
        self._is_part = False
        self._name = ""
        self._of_run: dict[str, pl.DataFrame] = {}

    @cached_property
    def _tree(self) -> tuple[pl.DataFrame, list[pl.Series]]:
        """Return the run's range paths, and for each file a map from its path ids to these."""
        if self._is_part:
            raise AssertionError("a part knows the run's paths only where they were asked for")
        return combine_paths(read_each(self._traces, "paths"))

    @cached_property
    def _paths(self) -> list[dict[int, int]]:
        return [dict(enumerate(numbers)) for numbers in self._tree[1]]

    def parts(
        self, *, with_paths: bool, together: Sequence[tuple[int, int]] = ()
    ) -> Sequence[LaterTables]:
        """Return the tables of each part of the run: some of its files; see `Trace.parts`.

        One part if the run is not divided.
        """
        parts = self.reports_of_parts(together)
        return [self] if len(parts) <= 1 else [self._part(each, with_paths) for each in parts]

    @property
    def name(self) -> str:
        """Name of this part of a run: the indices of its trace files."""
        return self._name

    def own_ops(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Keep rows whose `op` is in this part of the run, with `op` numbered as in the part."""
        if not self._is_part:
            return rows
        spans = self._of_run["op"].cast(rows.schema["op"])
        known = rows.sort("op").join_asof(spans, left_on="op", right_on="_first")
        place = pl.col("op") - pl.col("_first")
        kept = known.filter(place < pl.col("_height"))
        return kept.with_columns(op=place + pl.col("_own")).select(rows.columns)

    def in_run(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Convert the ids in columns `op` and `range` to the run's; see `Trace.in_run`."""
        for name, spans in self._of_run.items():
            if name in rows.columns:
                # Of reports without rows, which begin where the next one does, the last counts.
                place = spans["_own"].search_sorted(rows[name].fill_null(0), side="right") - 1
                raised = (spans["_first"] - spans["_own"]).gather(place)
                rows = rows.with_columns((rows[name] + raised).cast(rows.schema[name]))
        return rows

    def reports_of_parts(self, together: Sequence[tuple[int, int]] = ()) -> list[list[int]]:
        """Return the indices of the trace files in each part; empty if the run is not divided."""
        if self._is_part or not self._lazy.keys() <= _CARRIED:
            return []
        ops = [trace.height("ops") for trace in self._traces]
        # A report lists all GPUs of its host; others may have used those that it did not.
        used = [
            [numbers[gpus] for gpus in listed["device"].filter(listed["active"])]
            for listed, numbers in zip(self._read["devices"], self._changes.devices, strict=True)
        ]
        for numbers in used:
            numbers += [other for device, other in together if device in numbers]
        return _bundles(_sharing(used), ops)

    def _part(self, reports: Sequence[int], with_paths: bool) -> LaterTables:  # noqa: FBT001
        traces = [self._traces[number] for number in reports]
        heights = {name: [trace.height(table) for trace in traces]
                   for name, table in _COUNTED.items()}  # fmt: skip
        changes = self._changes.of_part(reports, heights)
        read = {name: [frames[number] for number in reports] for name, frames in self._read.items()}
        part = _CombinedTables(traces, changes, read, {})
        devices = {device for numbers in changes.devices for device in numbers.values()}
        conditions = {"devices": pl.col("device").is_in(devices)}
        if "iterations" in self._lazy:
            processes = part["processes"].select("process").collect()["process"]
            conditions["iterations"] = pl.col("process").is_in(processes.implode())
        if with_paths:
            tree, numbers = self._tree
            part._tree = tree, [numbers[number] for number in reports]
        part._is_part = True
        part._of_run = {
            name: pl.DataFrame({
                "_first": self._changes.added[name][reports], "_own": changes.added[name],
                "_height": heights[name],
            }).sort("_first")
            for name in ("op", "range")
        }  # fmt: skip
        part._name = f"{[*reports]} {with_paths}"
        # What is sent elsewhere is these rows, not all of the run's.
        return part.but({name: self[name].filter(rows).collect().lazy()
                         for name, rows in conditions.items()})  # fmt: skip

    def _open(self, name: str) -> pl.LazyFrame:
        if name == "paths":
            return self._tree[0].lazy()
        if name == "device_sums":
            return self._device_sums().lazy()
        heights = [trace.height(name) for trace in self._traces]
        if not any(heights):
            return TABLES[name].empty().lazy()
        if name in self._read or sum(heights) <= _FEW + _FEW_OF_EACH * len(heights):
            rows, heights = self._concatenated(name)
            which = np.repeat(np.arange(len(heights)), heights)
            return rows.with_columns(self._columns(name, pl.Series(which))).lazy()
        if len(heights) > _SCANS:
            return self._in_groups(name, heights)
        return pl.concat(
            trace[name].with_columns(self._columns(name, pl.Series([number])))
            for number, trace in enumerate(self._traces)
        )

    def _device_sums(self) -> pl.DataFrame:
        """Return the run's stored sums by device, from those of its files; empty if not usable.

        They are not usable if a trace file with ops has no sums, if a clock's drift changes
        durations, or if a device occurs in several files: its ops there may overlap, so busy times
        cannot be added.
        """
        none = TABLES["device_sums"].empty()
        if not self._changes.keeps_lengths or any(
            trace.height("ops") and not trace.height("device_sums") for trace in self._traces
        ):
            return none
        rows, heights = read_together(self._traces, "device_sums")
        which = pl.Series(np.repeat(np.arange(len(heights)), heights))
        sums = rows.with_columns(self._columns("device_sums", which)) if rows.height else none
        of_all = sums.filter(pl.col("stage").is_null(), pl.col("stage_source").is_null())
        return none if of_all["device"].is_duplicated().any() else sums

    def _in_groups(self, name: str, heights: Sequence[int]) -> pl.LazyFrame:
        """Return a lazy table that reads and renumbers a few trace files at a time."""

        def read(
            columns: list[str] | None, predicate: pl.Expr | None, most: int | None, _: int | None
        ) -> Iterator[pl.DataFrame]:
            left = sum(heights) if most is None else most
            for group in _groups(heights):
                rows = self._of_group(name, group, columns or list(TABLES[name].schema)).head(left)
                left -= rows.height
                yield rows if predicate is None else rows.filter(predicate)
                if not left:
                    return

        return register_io_source(read, schema=TABLES[name].schema, is_pure=True)

    def _of_group(self, name: str, group: slice, columns: Sequence[str]) -> pl.DataFrame:
        """Return columns of a table for some trace files, with ids and times of the run."""
        traces = self._traces[group]
        rows, heights = read_together(traces, name, columns)
        which = pl.Series(np.repeat(np.arange(group.start, group.start + len(traces)), heights))
        changes = self._columns(name, which) if rows.height else []
        return rows.with_columns(each for each in changes if each.meta.output_name() in columns)

    def _concatenated(self, name: str) -> tuple[pl.DataFrame, list[int]]:
        """Return a table of all files, concatenated as recorded, and the row count of each file."""
        if read := self._read.get(name):
            return pl.concat(read), [frame.height for frame in read]
        return read_together(self._traces, name)

    def _columns(self, name: str, which: pl.Series) -> list[pl.Expr]:
        columns = self._changes.columns(name, which)
        if name == "ranges":
            columns.append(_mapped("path", self._paths, which))
        return columns


def _sharing(devices: Sequence[Sequence[int]]) -> list[list[int]]:
    """Group trace files that share a device (GPU).

    `devices` has the run's numbers of the devices in each file.

    Files without a known device form one group, since they may share one.
    """
    leaders = list(range(len(devices)))

    def leader(report: int) -> int:
        while leaders[report] != report:
            report = leaders[report]
        return report

    first: dict[int | None, int] = {}
    for report, numbers in enumerate(devices):
        for device in numbers or (None,):
            one, other = leader(first.setdefault(device, report)), leader(report)
            leaders[max(one, other)] = min(one, other)
    groups: dict[int, list[int]] = defaultdict(list)
    for report in range(len(devices)):
        groups[leader(report)].append(report)
    return list(groups.values())


def _bundles(groups: Sequence[list[int]], ops: Sequence[int]) -> list[list[int]]:
    """Merge groups of trace files into parts of the run, up to a limit of ops per part.

    `ops` is the number of ops in each file.
    """
    bundles: list[list[int]] = []
    rows = 0
    for group in groups:
        ops_of_group = sum(ops[report] for report in group)
        if not bundles or rows + ops_of_group > _OF_PART:
            bundles.append([])
            rows = 0
        bundles[-1] = sorted([*bundles[-1], *group])
        rows += ops_of_group
    return bundles


def _groups(heights: Sequence[int]) -> Iterator[slice]:
    """Yield slices of files to read together.

    `heights` is the row count of each file; those of a slice sum up to a limit.
    """
    first, rows = 0, 0
    for number, height in enumerate(heights):
        if rows and rows + height > _READ_TOGETHER:
            yield slice(first, number)
            first, rows = number, 0
        rows += height
    yield slice(first, len(heights))


def with_one_tree(traces: Sequence[Trace]) -> list[Trace]:
    """Return traces in which equal paths of ranges have the same id."""
    paths, numbers = combine_paths(read_each(traces, "paths"))
    in_tree = (_mapped("path", [dict(enumerate(ids))], pl.Series([0])) for ids in numbers)
    return [
        trace.with_lazy({"paths": paths.lazy(), "ranges": trace["ranges"].with_columns(path)})
        for trace, path in zip(traces, in_tree, strict=True)
    ]


def _clock(reports: pl.DataFrame, index: int) -> Clock:
    """Return a trace's clock correction from its table `reports`; none for a combined trace."""
    return Clock.of(reports.row(0, named=True) if reports.height == 1 else {}, index)


def _corrected(reports: Sequence[pl.DataFrame], clocks: Sequence[Clock]) -> list[pl.DataFrame]:
    """Return the files' tables `reports`, with the clock corrections written into them."""
    single = [each.height == 1 for each in reports]
    none = TABLES["reports"].empty()
    rows = pl.concat([none, *compress(reports, single)], how="diagonal_relaxed")
    # Where calls or the user say it, the hosts' own clocks are not what counts.
    is_set = pl.col("clock_source").is_in(["collectives", "messages", "given"])
    first = pl.lit(reports[0]["session_start"].first(), pl.Int64)
    own_start = pl.col("session_start") - pl.col("clock_offset")
    described = clocks_applied(rows, list(compress(clocks, single))).with_columns(
        session_start=pl.when(is_set).then(first).otherwise(own_start)
    )
    singles = (described[row : row + 1] for row in range(described.height))
    return [
        next(singles) if is_one else each.with_columns(clock=pl.lit(None, pl.String))
        for each, is_one in zip(reports, single, strict=True)
    ]


def _firsts(
    traces: Sequence[Trace], small: Sequence[Mapping[str, pl.DataFrame]]
) -> list[dict[str, int]]:
    """Return for each trace file the offset of its ids (of ops, ranges, processes) in the run.

    A file's ids continue those of the files before it.
    """
    running = dict.fromkeys((*_NUMBERED, *_COUNTED), 0)
    firsts = []
    for trace, tables in zip(traces, small, strict=True):
        firsts.append(dict(running))
        for key, table in _NUMBERED.items():
            highest: Any = tables[table][key].max()
            running[key] += 0 if highest is None else highest + 1
        running["report"] = max(running["report"], firsts[-1]["report"] + 1)
        for key, table in _COUNTED.items():
            running[key] += trace.height(table)
    return firsts


@dataclass(frozen=True)
class _Seen:
    """A GPU as one trace file describes it, with the host of that file."""

    gpu: Gpu
    host: str | None
    row: Mapping[str, Any]

    @property
    def place(self) -> tuple[str, str] | None:
        """Host and PCI bus location, if known."""
        bus = self.row["pci_bus"]
        # The domain is written with four digits, with eight, or not at all.
        return None if self.host is None or not bus else (self.host, bus.lower().lstrip("0:"))


def _combined_devices(
    small: Sequence[Mapping[str, pl.DataFrame]], firsts: Sequence[Mapping[str, int]]
) -> tuple[pl.DataFrame, list[dict[int, int]]]:
    """Return the run's devices, and for each file a map from its device numbers to the run's."""
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
    reports = tables["reports"]
    hosts = dict(zip(reports["report"].to_list(), reports["host"].to_list(), strict=True))
    return [
        _Seen((index, row["device"]), hosts.get(row["report"]), row)
        for row in tables["devices"].to_dicts()
    ]


def _identities(seen: Sequence[_Seen]) -> list[object]:
    """Return a key for each GPU that a trace file lists; equal keys mean the same physical GPU."""
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
    """Assign numbers to the physical GPUs: the recorded numbers if they are unique in the run.

    Otherwise GPUs are numbered by host, in the order of the trace files, and by PCI bus
    location.
    """
    sets = [{each.gpu[1] for each in gpus} for gpus in physical]
    if all(len(numbers) == 1 for numbers in sets) and len(set.union(set(), *sets)) == len(sets):
        return {numbers.pop(): gpus for numbers, gpus in zip(sets, physical, strict=True)}
    everything = sorted((each for gpus in physical for each in gpus), key=lambda each: each.gpu)
    hosts = {each.host: each.gpu for each in reversed(everything)}

    def order(gpus: list[_Seen]) -> tuple[object, ...]:
        place = next((each.place for each in gpus if each.place), None)
        return hosts[gpus[0].host], place is None, place or (), gpus[0].gpu

    return dict(enumerate(sorted(physical, key=order)))


def _described(
    number: int, gpus: Sequence[_Seen], firsts: Sequence[Mapping[str, int]]
) -> dict[str, Any]:
    """Return the table row of a device; each value is from the first file that has the value."""
    active_first = sorted(gpus, key=lambda each: not each.row["active"])
    row = {
        name: next((each.row[name] for each in active_first if each.row[name] is not None), None)
        for name in TABLES["devices"].schema
    }
    reports = [firsts[each.gpu[0]]["report"] + each.row["report"] for each in gpus]
    return {**row, "device": number, "report": min(reports)}


def _warnings(
    traces: Sequence[Trace], reports: Sequence[pl.DataFrame], clocks: Sequence[Clock]
) -> tuple[str, ...]:
    """Return the warnings of all files, prefixed by file name; those of one cause are merged."""
    files = [", ".join(frame["file"]) for frame in reports]
    times = Counter(files)
    named = [
        file if file and times[file] == 1 else f"report {index} {file}".rstrip()
        for index, file in enumerate(files)
    ]
    of_reports = [
        (name, warning)
        for name, trace in zip(named, traces, strict=True)
        for warning in trace.warnings
        if not warning.startswith(UNMATCHED)
    ]
    of_reports += [(named[number], _STEPLESS) for number in _without_steps(traces)]
    # What one report does not match another one may, such as that of the first rank.
    unmatched = [
        warning
        for warning in traces[0].warnings
        if warning.startswith(UNMATCHED) and all(warning in each.warnings for each in traces)
    ]
    of_clocks, of_all = [], []
    for text in clock_warnings(clocks, named):
        name = next((name for name in named if text.startswith(f"{name}: ")), None)
        if name is None:
            of_all.append(text)
        else:
            of_clocks.append((name, text.removeprefix(f"{name}: ")))
    number = len(traces)
    return (*_by_cause(of_reports, number), *unmatched, *_by_cause(of_clocks, number), *of_all)


def _without_steps(traces: Sequence[Trace]) -> list[int]:
    """Return the files without steps, if others have some; not those with hardly any ops."""
    steps, ops = ([trace.height(name) for trace in traces] for name in ("iterations", "ops"))
    least = _HARDLY * max(ops) if any(steps) else math.inf
    return [number for number, own in enumerate(steps) if not own and ops[number] > least]


def _by_cause(warnings: Sequence[tuple[str, str]], reports: int) -> list[str]:
    """Merge warnings of trace files that differ only in digits into one text that names the files.

    `warnings` are pairs of file name and text; `reports` is the number of files of the run.
    """
    causes: dict[str, list[tuple[str, str]]] = {}
    for name, text in warnings:
        causes.setdefault(_NUMBER.sub("#", text), []).append((name, text))
    found = []
    for each in causes.values():
        name, text = each[0]
        names = list(dict.fromkeys(name for name, _ in each))
        if len(names) == 1:
            found += [f"{name}: {text}" for _, text in each]
            continue
        shown = ", ".join(names[:_NAMED]) + ", ..." * (len(names) > _NAMED)
        of_first = "" if len({text for _, text in each}) == 1 else "; of the first"
        found.append(f"{len(names)} of {reports} reports ({shown}){of_first}: {text}")
    return found
