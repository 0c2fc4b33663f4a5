"""Sort the events of a trace into GPU work, calls and ranges while they are read."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import polars as pl

from tracekit.sources._kernel_names import KernelNames
from tracekit.sources._ordering import Ordered
from tracekit.sources._seen import OPEN
from tracekit.sources._syncs import by_call
from tracekit.sources._times import Times
from tracekit.sources.kineto._events import OF_NO_USE
from tracekit.sources.kineto._host import HostRanges, cuda_calls
from tracekit.sources.kineto._work import counted_in_threads, gpu_work, records, waits
from tracekit.support.spool import Workspace

_GROUPS = {
    "kernel": ("kernel", "concurrent_kernel", "mtia_ccp_events", "hpu_op"),
    "copy": ("memcpy", "gpu_memcpy"),
    "memset": ("memset", "gpu_memset"),
    "call": (
        "runtime",
        "driver",
        *(
            f"{device}_{api}"
            for device in ("cuda", "hip", "mtia", "xpu", "privateuse1")
            for api in ("runtime", "driver")
        ),
        "glow_runtime",
    ),
    "operator": ("operator", "cpu_op"),
    "annotation": ("user_annotation",),
    "python": ("python_function",),
    "span": ("trace",),
    "sync": ("cuda_sync",),
    "event_record": ("cuda_event",),
}
"""Category in lower case -> group of events: categories of NVIDIA's and AMD's GPUs, and of
accelerators with categories of their own in Kineto (MTIA, Gaudi, XPU)."""
_GROUP_OF = {name: group for group, names in _GROUPS.items() for name in names}
_GPU, _RANGES = ("kernel", "copy", "memset"), ("operator", "annotation")
_KEPT = (*_GPU, *_RANGES, "call", "span", "sync")
_STREAM = r"^stream \d+\s*$"
_THREAD = r"^thread -?\d+ \((.*)\)\s*$"


class Gathered:
    """Rows of a trace, with times in ns of the trace's own clock, and counts of what was dropped.

    Parameters
    ----------
    path
        The trace.
    workspace
        Folder and memory budget for the rows.
    rank
        Rank of the process in the job; None if unknown.
    """

    def __init__(self, path: Path, workspace: Workspace, rank: int | None) -> None:
        self.ops, self.calls, self.ranges, self.syncs, self.event_records = (
            Ordered(workspace) for _ in range(5)
        )
        self.counts: Counter[str] = Counter()
        """Number of events by group (`_GROUPS`), and of events that were dropped."""
        self.unknown: Counter[str] = Counter()
        """Number of events by unknown category."""
        self.first: int | None = None
        """Start of the first event, ns."""
        self.last: int | None = None
        """End of the last event, ns."""
        self.recorded: int | None = None
        """End of the recording, ns; None if the trace does not give it."""
        self.devices: set[int] = set()
        self.active: set[int] = set()
        """CUDA ordinals that occur, and those that ran an op."""
        self.counted_in_threads: list[pl.Series] = []
        """Correlation ids of launches whose grid counts threads instead of blocks."""
        self._callers: Counter[int] = Counter()
        self.host = HostRanges(rank)
        self._names = KernelNames()
        self._threads: set[tuple[int, int]] = set()
        self._labels: dict[tuple[str, str, str], str] = {}
        self._path = path
        self._times: Times | None = None
        self._endless = 0

    def add(self, events: pl.DataFrame) -> None:
        """Add a frame of events."""
        self._learn_names(events.filter(pl.col("ph") == "M"))
        whole = with_groups(events.filter(pl.col("ph") == "X"))
        for cat, group, count in whole.group_by("cat", "group").len().iter_rows():
            if group is not None:
                self.counts[group] += count
            elif cat is not None and cat.lower() not in OF_NO_USE:
                self.unknown[cat] += count
        timed = self._timed(whole.filter(pl.col("group").is_in(_KEPT)))
        self._add_work(timed.filter(pl.col("group").is_in(_GPU)))
        self.syncs.add(waits(timed.filter(pl.col("group") == "sync")))
        self.event_records.add(by_call(records(whole.filter(pl.col("group") == "event_record"))))
        host = self._on_threads(timed.filter(pl.col("group").is_in((*_RANGES, "call"))))
        calls = self._add_host(host)
        self.counted_in_threads.append(counted_in_threads(calls))
        self._callers.update(dict(calls["pid"].value_counts().iter_rows()))
        spans = timed.filter((pl.col("group") == "span") & (pl.col("end") != OPEN))
        self.recorded = _most(self.recorded, spans["end"].max())

    def add_captured(self, host: pl.DataFrame) -> None:
        """Add host events of graph captures, with ``group, pid, tid, start, end``."""
        self._add_host(host)
        self.first = _least(self.first, host["start"].min())

    def _add_host(self, host: pl.DataFrame) -> pl.DataFrame:
        """Add calls and ranges; return the calls."""
        is_call = pl.col("group") == "call"
        calls, ranges = cuda_calls(host.filter(is_call)), self.host.of(host.filter(~is_call))
        for rows, frame in ((self.calls, calls), (self.ranges, ranges)):
            self._threads.update(frame.select("pid", "tid").unique().iter_rows())
            rows.add(frame)
        return calls

    def _timed(self, events: pl.DataFrame) -> pl.DataFrame:
        """Add ``start`` and ``end``; drop events without a start, or with an invalid length."""
        timed = events.with_columns(end=pl.col("start") + pl.col("length").clip(0))
        known = self._within(timed.filter(pl.col("start").is_not_null() & ~pl.col("mistimed")))
        self.counts["untimed"] += timed.height - known.height
        self.counts["backward"] += int((known["length"] < 0).sum())
        known = known.drop("length").with_columns(pl.col("end").fill_null(OPEN))
        self.first = _least(self.first, known["start"].min())
        closed = pl.when(pl.col("end") != OPEN).then("end")
        self.last = _most(self.last, known.select(closed.max()).item(), known["start"].max())
        return known

    def _within(self, events: pl.DataFrame) -> pl.DataFrame:
        """Drop events whose times are far from those of the first events."""
        if self._times is None and events.height:
            self._times = Times(self._path, events["start"].to_list())
            self._held = self._times.within("events")
        if self._times is None:
            return events
        held = self._held(events)
        self._endless += held["end"].null_count()
        self._times.check_endless("events", self._endless)
        return held

    def _add_work(self, events: pl.DataFrame) -> None:
        ended = events.filter(pl.col("end") != OPEN)
        ops = gpu_work(ended, self._names)
        placed = ops.filter(pl.col("device").is_not_null())
        self.counts["untimed"] += events.height - ended.height
        self.counts["unplaced"] += ops.height - placed.height
        endless = pl.any_horizontal(pl.col("src_device", "dst_device").is_null())
        self.counts["endless"] += placed.filter(endless, pl.col("kind") == "p2p").height
        self.active.update(placed["device"].unique().to_list())
        for name in ("device", "src_device", "dst_device"):
            self.devices.update(placed[name].drop_nulls().unique().to_list())
        self.ops.add(placed)

    def _on_threads(self, events: pl.DataFrame) -> pl.DataFrame:
        ids = events.with_columns(pl.col("pid", "tid").cast(pl.Int64, strict=False))
        known = ids.filter(pl.all_horizontal(pl.col("pid", "tid").is_not_null()))
        self.counts["threadless"] += ids.height - known.height
        return known

    def _learn_names(self, events: pl.DataFrame) -> None:
        named = events.select("name", "pid", "tid", "label").drop_nulls("label")
        for what, pid, tid, label in named.unique(maintain_order=True).iter_rows():
            self._labels[what, pid, tid] = label

    @property
    def pid(self) -> int:
        """Process id of the GPU work: the process with most calls."""
        known = self._callers or Counter(pid for pid, _ in self._threads)
        return max(sorted(known), key=known.__getitem__, default=0)

    @property
    def processes(self) -> pl.DataFrame:
        """``process, pid, name`` of the processes."""
        pids = sorted({self.pid, *(pid for pid, _ in self._threads)})
        names = {
            pid: label for (what, pid, _), label in self._labels.items() if what == "process_name"
        }
        rows = [(number, pid, names.get(str(pid))) for number, pid in enumerate(pids)]
        schema = {"process": pl.Int32, "pid": pl.Int64, "name": pl.String}
        return pl.DataFrame(rows, schema=schema, orient="row")

    @property
    def threads(self) -> pl.DataFrame:
        """``thread, pid, tid, name`` of the threads with calls or ranges."""
        named = pl.DataFrame(
            [
                (pid, tid, label)
                for (what, pid, tid), label in self._labels.items()
                if what == "thread_name"
            ],
            schema=dict.fromkeys(("pid", "tid", "name"), pl.String),
            orient="row",
        )
        # Streams are shown as threads too.
        names = named.filter(~pl.col("name").str.contains(_STREAM)).with_columns(
            pl.col("pid", "tid").cast(pl.Int64, strict=False),
            name=pl.coalesce(pl.col("name").str.extract(_THREAD), "name"),
        )
        names = names.unique(["pid", "tid"], keep="last", maintain_order=True)
        threads = pl.DataFrame(
            sorted(self._threads), schema={"pid": pl.Int64, "tid": pl.Int64}, orient="row"
        )
        joined = threads.join(names, on=["pid", "tid"], how="left", maintain_order="left")
        return joined.with_row_index("thread").cast({"thread": pl.Int32})


def with_groups(events: pl.DataFrame) -> pl.DataFrame:
    """Add ``group``: the group of events that the category belongs to; null if none."""
    found = {each: _GROUP_OF.get(each.lower()) for each in events["cat"].drop_nulls().unique()}
    group = pl.col("cat").replace_strict(found, default=None, return_dtype=pl.String)
    return events.with_columns(group=group)


def _least(*times: object) -> int | None:
    return min((time for time in times if isinstance(time, int)), default=None)


def _most(*times: object) -> int | None:
    return max((time for time in times if isinstance(time, int)), default=None)
