"""Sort the events of a PyTorch trace into tables of GPU work, calls, ranges and waits."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import polars as pl

from tracekit.model import HOST_MEMORY, KIND
from tracekit.sources._amd import COUNT_THREADS, kernel_kind
from tracekit.sources._copies import COPY_KINDS
from tracekit.sources._identities import small
from tracekit.sources._kernel_names import KernelNames
from tracekit.sources._launch_size import LAUNCH_SIZE, launch_size
from tracekit.sources._ordering import Ordered
from tracekit.sources._seen import OPEN
from tracekit.sources._syncs import by_call, sync_type
from tracekit.sources._times import Times
from tracekit.sources.kineto._event_frame import OF_NO_USE
from tracekit.sources.kineto._host_ranges import HostRanges, cuda_calls
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
    """The events of a PyTorch trace by kind, with times in ns, and counts of dropped events.

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
        self.callers: Counter[int] = Counter()
        """Number of calls of CUDA or HIP by each process."""
        self.host = HostRanges(rank)
        self._names = KernelNames()
        self._threads: set[tuple[int, int]] = set()
        self._labels: dict[tuple[str, str, str], str] = {}
        self._path = path
        self._times: Times | None = None
        self._endless = 0

    def add(self, events: pl.DataFrame) -> None:
        """Add a frame of parsed events to the tables of their kinds."""
        self._learn_names(events.filter(pl.col("ph") == "M"))
        complete = with_groups(events.filter(pl.col("ph") == "X"))
        for cat, group, count in complete.group_by("cat", "group").len().iter_rows():
            if group is not None:
                self.counts[group] += count
            elif cat is not None and cat.lower() not in OF_NO_USE:
                self.unknown[cat] += count
        timed = self._timed(complete.filter(pl.col("group").is_in(_KEPT)))
        self._add_work(timed.filter(pl.col("group").is_in(_GPU)))
        self.syncs.add(waits(timed.filter(pl.col("group") == "sync")))
        self.event_records.add(by_call(records(complete.filter(pl.col("group") == "event_record"))))
        host = self._on_threads(timed.filter(pl.col("group").is_in((*_RANGES, "call"))))
        calls = self._add_host(host)
        self.counted_in_threads.append(counted_in_threads(calls))
        self.callers.update(dict(calls["pid"].value_counts().iter_rows()))
        spans = timed.filter((pl.col("group") == "span") & (pl.col("end") != OPEN))
        self.recorded = _most(self.recorded, spans["end"].max())

    def add_captured(self, host: pl.DataFrame) -> None:
        """Add host events from graph captures in other traces, moved to before this trace's events.

        `host` has the columns ``group, pid, tid, start, end`` (times in ns).
        """
        self._add_host(host)
        self.first = _least(self.first, host["start"].min())

    def _add_host(self, host: pl.DataFrame) -> pl.DataFrame:
        """Add CUDA calls, and operators and annotations (as ranges); return the calls."""
        is_call = pl.col("group") == "call"
        calls, ranges = cuda_calls(host.filter(is_call)), self.host.of(host.filter(~is_call))
        for rows, frame in ((self.calls, calls), (self.ranges, ranges)):
            self._threads.update(frame.select("pid", "tid").unique().iter_rows())
            rows.add(frame)
        return calls

    def _timed(self, events: pl.DataFrame) -> pl.DataFrame:
        """Add ``start`` and ``end`` in ns; drop events without a start or with invalid length."""
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
        """Drop events over 52 days from the median time of the first frame of events."""
        if self._times is None and events.height:
            self._times = Times(self._path, events["start"].to_list())
            self._held = self._times.within("events")
        if self._times is None:
            return events
        possible = self._held(events)
        self._endless += possible["end"].null_count()
        self._times.check_endless("events", self._endless)
        return possible

    def _add_work(self, events: pl.DataFrame) -> None:
        ended = events.filter(pl.col("end") != OPEN)
        ops = gpu_work(ended, self._names)
        placed = ops.filter(pl.col("device").is_not_null())
        self.counts["untimed"] += events.height - ended.height
        self.counts["unplaced"] += ops.height - placed.height
        endless = pl.any_horizontal(pl.col("src_device", "dst_device").is_null())
        self.counts["endless"] += placed.filter(endless, pl.col("kind") == "p2p").height
        self.counts["within"] += placed.filter(pl.col("kind") == "d2d").height
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
        for entry, pid, tid, label in named.unique(maintain_order=True).iter_rows():
            self._labels[entry, pid, tid] = label

    @property
    def pid(self) -> int:
        """Process id of the process with most CUDA calls, which is taken to own all GPU work."""
        known = self.callers or Counter(pid for pid, _ in self._threads)
        return max(sorted(known), key=known.__getitem__, default=0)

    @property
    def processes(self) -> pl.DataFrame:
        """Table of the trace's processes: ``process`` (index), ``pid, name``."""
        pids = sorted({self.pid, *(pid for pid, _ in self._threads)})
        names = {
            pid: label for (entry, pid, _), label in self._labels.items() if entry == "process_name"
        }
        rows = [(number, pid, names.get(str(pid))) for number, pid in enumerate(pids)]
        schema = {"process": pl.Int32, "pid": pl.Int64, "name": pl.String}
        return pl.DataFrame(rows, schema=schema, orient="row")

    @property
    def threads(self) -> pl.DataFrame:
        """Table of threads with calls or ranges: ``thread`` (index), ``pid, tid, name``."""
        named = pl.DataFrame(
            [
                (pid, tid, label)
                for (entry, pid, tid), label in self._labels.items()
                if entry == "thread_name"
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
    """Add ``group``: each event's kind (such as ``operator``); null for unknown categories."""
    found = {each: _GROUP_OF.get(each.lower()) for each in events["cat"].drop_nulls().unique()}
    group = pl.col("cat").replace_strict(found, default=None, return_dtype=pl.String)
    return events.with_columns(group=group)


def _least(*times: object) -> int | None:
    return min((time for time in times if isinstance(time, int)), default=None)


def _most(*times: object) -> int | None:
    return max((time for time in times if isinstance(time, int)), default=None)


_COPY = r"^Memcpy (?P<copy_kind>\w+)(?: \((?P<source>[\w ]+) -> (?P<target>[\w ]+)\))?"
_KIND_OF = {name: kind for name, kind in COPY_KINDS.values() if kind != "unknown"}
_DEVICE_MEMORY = ("Device", "Array", "Device Static")
_HOST_MEMORY = ("Pageable", "Pinned", "Host")
_FIRST_NUMBER = r"(\d+)"
_SIZES = {
    given: r"^\[\s*" + r"\s*,\s*".join(rf"(?P<{name}>\d{{1,10}})" for name in names) + r"\s*\]$"
    for given, names in (("grid", LAUNCH_SIZE[:3]), ("block", LAUNCH_SIZE[3:]))
}


def gpu_work(events: pl.DataFrame, names: KernelNames) -> pl.DataFrame:
    """Convert events of GPU work (kernels, copies, memsets) to ops; devices are CUDA ordinals.

    Parameters
    ----------
    events
        Kernels, copies and memsets with ``group, start, end``.
    names
        Short names of kernels.
    """
    integer_columns = {
        name: pl.col(name).cast(pl.Int64, strict=False)
        for name in ("device", "in_device", "from_device", "to_device", "context", "in_context",
                     "stream", "correlation", "bytes", "graph_node")
    }  # fmt: skip
    ops = events.select(
        "group", "name", "pid", "tid", "start", "end", "grid", "block", **integer_columns
    ).with_columns(
        # Old traces name the GPU and its stream as process and thread alone.
        device=_first("device", "in_device", pl.col("pid").cast(pl.Int64, strict=False)),
        context=_first("context", "in_context"),
        stream=pl.coalesce(
            "stream", pl.col("tid").str.extract(_FIRST_NUMBER).cast(pl.Int64, strict=False)
        ),
        graph_node=pl.when(pl.col("graph_node") != 0).then("graph_node"),
    )
    copied = pl.when(pl.col("group") == "copy").then("name")
    ops = ops.with_columns(copied.str.extract_groups(_COPY).struct.unnest())
    ops = ops.with_columns(_copied()).with_columns(*_ends(), _of_host())
    return ops.with_columns(*_named(ops, names), *_launch_sizes(ops)).select(
        "start", "end", "device", "context", "stream", "correlation", "graph_node",
        "name", "short_name", "kind", "copy_kind", "host_memory", "src_device", "dst_device",
        "launch_size", "block_size", bytes=pl.when(pl.col("group") != "kernel").then("bytes"),
    )  # fmt: skip


def _launch_sizes(ops: pl.DataFrame) -> tuple[pl.Series, pl.Series]:
    """Return threads per launch and per block of kernels, from texts such as ``[512, 1, 1]``."""
    of_kernels = ops.select(pl.when(pl.col("group") == "kernel").then(pl.col(*_SIZES)))
    distinct = of_kernels.unique()
    sizes = distinct.select(
        pl.col(name).str.extract_groups(numbers).struct.unnest().cast(pl.Int64)
        for name, numbers in _SIZES.items()
    )
    grid = [pl.lit(1, pl.Int64).alias(name) for name in LAUNCH_SIZE[:3]]
    blocks = launch_size(sizes.with_columns(grid)).alias("block_size")
    made = distinct.with_columns(launch_size(sizes), blocks)
    found = of_kernels.join(
        made, on=list(_SIZES), how="left", nulls_equal=True, maintain_order="left"
    )
    return found["launch_size"], found["block_size"]


def counted_in_threads(calls: pl.DataFrame) -> pl.Series:
    """Return the correlation ids of kernel launches whose grid counts threads instead of blocks.

    HIP's function for kernels of a loaded module takes its grid in threads, and AMD's profiler
    records the function's arguments.
    """
    of = calls.filter(pl.col("name").cast(pl.String).is_in(COUNT_THREADS))
    return of["correlation"].drop_nulls()


def _first(*names: str | pl.Expr) -> pl.Expr:
    return small(pl.coalesce(*names)).cast(pl.Int32)


def _copied() -> pl.Expr:
    """Return the kind of each op: compute, memset, or for copies h2d, d2h, d2d, p2p or staged.

    A copy between GPUs through host memory has two events, to the host and from it: both are
    `staged`.
    """
    halves = pl.col("copy_kind").is_in(("HtoD", "DtoH")) & pl.all_horizontal(
        pl.col("source", "target").is_in(_DEVICE_MEMORY)
    )
    from_gpu, to_gpu = (pl.col(name).is_in(_DEVICE_MEMORY) for name in ("source", "target"))
    from_host, to_host = (pl.col(name).is_in(_HOST_MEMORY) for name in ("source", "target"))
    kind = pl.col("copy_kind").replace_strict(_KIND_OF, default=None, return_dtype=pl.String)
    between = (kind == "d2d") & (pl.col("from_device") != pl.col("to_device"))
    return (
        pl.when(pl.col("group") == "kernel").then(kernel_kind())
        .when(pl.col("group") == "memset").then(pl.lit("memset"))
        .when(halves).then(pl.lit("staged"))
        .when(between).then(pl.lit("p2p"))
        .when(kind.is_not_null()).then(kind)
        .when(from_host & to_gpu).then(pl.lit("h2d"))
        .when(from_gpu & to_host).then(pl.lit("d2h"))
        .when(from_gpu & to_gpu).then(pl.lit("d2d"))
        .otherwise(pl.lit("unknown"))
        .cast(KIND).alias("kind")
    )  # fmt: skip


def _of_host() -> pl.Expr:
    """Return the type of a copy's host memory (such as pinned), which the event's name contains."""
    kind = pl.col("kind").cast(pl.String)
    side = pl.when(kind == "h2d").then("source").when(kind == "d2h").then("target")
    return side.str.to_lowercase().cast(HOST_MEMORY, strict=False).alias("host_memory")


def _ends() -> list[pl.Expr]:
    """Return source and target GPU of copies.

    If the event does not name it, it is the GPU that ran the copy (for copies between GPUs: null).
    """
    kind, here = pl.col("kind").cast(pl.String), pl.col("device")
    source, target = (_first(name) for name in ("from_device", "to_device"))
    return [
        pl.when(kind == "p2p").then(source)
        .when(kind.is_in(("d2h", "d2d"))).then(pl.coalesce(source, here)).alias("src_device"),
        pl.when(kind == "p2p").then(target)
        .when(kind.is_in(("h2d", "d2d", "memset"))).then(pl.coalesce(target, here))
        .alias("dst_device"),
    ]  # fmt: skip


def _named(ops: pl.DataFrame, names: KernelNames) -> list[pl.Expr]:
    """Return full and short names of ops; copies and memsets are named as in other formats."""
    short = names.short(ops["name"].set(ops["group"] != "kernel", None))
    group = pl.col("group")
    copy = pl.format("[CUDA memcpy {}]", pl.col("copy_kind").fill_null("Unknown"))
    other = pl.when(group == "copy").then(copy).otherwise(pl.lit("[CUDA memset]"))
    is_kernel = group == "kernel"
    return [
        pl.when(is_kernel).then("name").otherwise(other).cast(pl.Categorical()).alias("name"),
        pl.when(is_kernel).then(short).otherwise(other).cast(pl.Categorical()).alias("short_name"),
    ]


def waits(events: pl.DataFrame) -> pl.DataFrame:
    """Return the host's synchronising calls that ended; stream and event ids -1 become null."""
    ended = events.filter(pl.col("end") != OPEN)
    return ended.select(
        "start", "end", *_place(), _id("wait_event").alias("event"),
        _id("wait_record").alias("recorded_by"),
    ).with_columns(sync_type())  # fmt: skip


def records(events: pl.DataFrame) -> pl.DataFrame:
    """Return CUDA event records; times are left out, as their meaning differs between versions."""
    return events.select(*_place(), _id("event_id").alias("event"))


def _place() -> list[pl.Expr]:
    places = [small(_id(name)).cast(pl.Int32) for name in ("device", "context")]
    return [*places, _id("stream"), pl.col("correlation").cast(pl.Int64, strict=False)]


def _id(name: str) -> pl.Expr:
    number = pl.col(name).cast(pl.Int64, strict=False)
    return pl.when(number >= 0).then(number).alias(name)
