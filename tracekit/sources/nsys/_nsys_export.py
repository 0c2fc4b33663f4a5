"""Convert an nsys export to tracekit's tables of GPU work (ops), calls and ranges.

Also reads nsys's messages about lost events, and when and on which thread each node of a CUDA
graph was captured.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import polars as pl

from tracekit.errors import MissingDataError
from tracekit.model import NO_KERNELS, TABLES, PolarsType, Recording, Stream
from tracekit.sources._export_tables import ExportFile, Feature, coercions, read_contents
from tracekit.sources._identities import report
from tracekit.sources._seen import NO_CALLS, NO_RANGES, Seen, absences, no_work
from tracekit.sources._times import Times
from tracekit.sources.nsys._gpu_work import (
    EVENT_RECORD,
    GPU_TABLES,
    GRAPH,
    KERNEL,
    MEMCPY,
    MEMSET,
    SYNC,
    GpuWork,
    Syncs,
)
from tracekit.sources.nsys._host_events import NVTX, RUNTIME, CudaCalls, Nvtx, thread_names
from tracekit.sources.nsys._ids import Export, pid_of, process_of, tid_of
from tracekit.sources.nsys._memory import MEMORY_USAGE, GpuMemory
from tracekit.sources.nsys._metadata import Metadata, shifted
from tracekit.sources.nsys._metrics import GENERIC_EVENTS, GPU_METRICS, NIC_METRICS, Metrics
from tracekit.sources.nsys._mpi import MPI_TABLES, UCX_TABLES, MpiCalls
from tracekit.sources.nsys._places import Places, map_devices
from tracekit.sources.nsys._thread_activity import (
    FRAMES,
    OVERHEAD_TABLES,
    SWITCHES,
    OsWaits,
    Overhead,
    off_cpu,
    samples,
)
from tracekit.support.progress import Progress
from tracekit.support.spool import Workspace

_REQUIRED = {
    **dict.fromkeys(GPU_TABLES, ("start", "end", "deviceId", "globalPid")),
    RUNTIME: ("start", "end", "globalTid", "correlationId"),
    NVTX: ("start", "end", "globalTid", "eventType"),
}
_TIMED = dict.fromkeys((*_REQUIRED, *MPI_TABLES, *UCX_TABLES), "start")
"""Tables whose first rows give the approximate time of the recording."""
_NO_KEYS = pl.DataFrame(schema={"correlation": pl.Int64, "process": pl.Int32})
_OPS = ("process_gid", "ordinal", "src_ordinal", "dst_ordinal")
_CALLS = ("thread_gid",)
_RANGES = ("thread_gid", "end_thread_gid")
"""Columns of ranges that identify threads."""


def is_nsys(file: ExportFile) -> bool:
    """Test whether a file or folder is an export of Nsight Systems, whole or trimmed."""
    return file.has("StringIds", "id", "value")


def read(
    file: ExportFile,
    workspace: Workspace,
    progress: Progress = lambda *_: None,
    *,
    is_ours: bool = False,
) -> Recording:
    """Read an nsys export into tracekit's tables; ops get stage and launching call only later.

    Parameters
    ----------
    file
        The export.
    workspace
        Folder and memory budget for its tables.
    progress
        Callback that receives progress.
    is_ours
        Whether tracekit made the export from a report, so that everything it lacks was not
        recorded.

    Raises
    ------
    MissingDataError
        If the export contains no GPU work, NVTX ranges or MPI calls, or a table lacks a necessary
        column.
    DamagedTraceError
        If a table cannot be read.
    """
    file.times = Times(file.path, file.first_times(_TIMED))
    export, rows = Export.of(file), workspace.rows
    metadata = export.metadata
    _check_content(file, metadata)
    work, cuda, nvtx = GpuWork(export), CudaCalls(export), Nvtx(export)
    wanted: dict[str, Callable[[], Seen]] = {
        "GPU work": lambda: Seen(work.batches(rows), workspace, *_OPS, numbered=True),
        "CUDA calls": lambda: Seen(cuda.batches(rows), workspace, *_CALLS, numbered=True),
        "NVTX ranges": lambda: Seen(nvtx.batches(rows), workspace, *_RANGES, numbered=True),
    }
    ops, calls, ranges = _at_once(wanted, progress)
    mpi, overhead, os_waits = MpiCalls(export), Overhead(export), OsWaits(export)
    if not len(ops) and not len(ranges) and not mpi:
        raise _nothing_recorded(file, metadata, work.lost["untimed"])
    memory, syncs = GpuMemory(export, workspace), Syncs(export, workspace)
    names = thread_names(export, nvtx.thread_names())
    threads = _threads(calls, ranges, mpi, names)
    processes = _processes(file, ops, memory, threads)
    devices = map_devices(file, ops.distinct, metadata, memory.distinct)
    places = Places(processes, threads, devices)
    ends = (metadata.duration, ops.last, calls.last, ranges.last, mpi.last)
    last = max((end for end in ends if end), default=0)
    range_columns = places.ranges(nvtx.domains(ranges), nvtx.categories(), last, metadata.duration)
    places.settle(ops, calls, ranges)
    metrics = Metrics(file, metadata, devices.numbers)
    file.times.check_endless("NVTX ranges", nvtx.endless)
    file.times.check_endless("calls of MPI and UCX", mpi.endless)
    lost = file.times.losses
    counted = {**work.rows, **syncs.rows, RUNTIME: len(calls), NVTX: nvtx.rows}
    counted[PAYLOADS] = nvtx.extended
    return Recording(
        tables={
            "processes": processes,
            "threads": threads.with_columns(process=places.process_of_thread),
            "devices": devices.devices,
            "reports": _report(file, metadata),
            "graph_nodes": graph_nodes(export, places),
            "contents": read_contents(file, _FEATURES, counted),
        },
        streams={
            "ops": Stream("ops", "op", ops.rows),
            "calls": Stream("calls", "call", calls.rows),
            "ranges": Stream("ranges", "range", ranges.rows, range_columns),
        },
        passing={
            "host": lambda: itertools.chain(
                mpi.batches(places, last, rows),
                overhead.batches(places, rows),
                os_waits.batches(places, rows),
                off_cpu(export, places, workspace),
                samples(export, places, rows),
            ),
            "memory": lambda: memory.batches(places),
            "metrics": lambda: metrics.batches(rows),
            "syncs": lambda: syncs.waits(places),
            "event_records": lambda: syncs.records(places),
        },
        warnings=(
            *(() if is_ours else metadata.warnings),
            *absences(
                len(ops), work.lost["untimed"], _how_to_record_work(metadata),
                (work.has_kernels, NO_KERNELS, _RECORD_BOTH),
                (len(calls), NO_CALLS, _RECORD_BOTH),
                (len(ranges), NO_RANGES, _how_to_record_ranges(metadata)),
            ),
            *lost_events(file),
            *work.losses,
            *nvtx.losses,
            *metrics.losses,
            *memory.losses(places),
            *syncs.losses(places),
            *overhead.losses,
            *coercions(file),
            *lost,
            *file.warnings,
            *_unrecorded_graphs(ops, calls, cuda.graph_launches),
        ),
        labels=nvtx.labels.labels,
        late=lambda: tuple(text for text in file.times.losses if text not in lost),
    )  # fmt: skip


def _at_once(parts: Mapping[str, Callable[[], Seen]], progress: Progress) -> list[Seen]:
    """Read tables in parallel, one with each function of `parts`; return them in order."""
    with ThreadPoolExecutor(len(parts), "read") as threads:
        reading = [threads.submit(read) for read in parts.values()]
        seen = []
        for number, (name, part) in enumerate(zip(parts, reading, strict=True)):
            progress(f"read {name}", number, len(parts))
            seen.append(part.result())
    progress(f"read {list(parts)[-1]}", len(parts), len(parts))
    return seen


def _check_content(file: ExportFile, metadata: Metadata) -> None:
    if not any(map(file.has, (*GPU_TABLES, NVTX, *MPI_TABLES))):
        raise _nothing_recorded(file, metadata)
    for table, columns in _REQUIRED.items():
        absent = [column for column in columns if not file.has(table, column)]
        if file.has(table) and absent:
            raise MissingDataError(
                f"{table} has no column {', '.join(absent)} in {file.path} ({_schema(metadata)})",
                "export the report again with a current nsys: nsys export --type sqlite REPORT",
            )


def _nothing_recorded(file: ExportFile, metadata: Metadata, untimed: int = 0) -> MissingDataError:
    how = dict.fromkeys([_how_to_record_work(metadata), _how_to_record_ranges(metadata)])
    return MissingDataError(
        f"{no_work(untimed)} and no NVTX ranges in {file.path} ({_schema(metadata)})"
        f"{file.times.why_nothing}",
        "; ".join(how),
    )


_RECORD_BOTH = "record with `nsys profile -t cuda,nvtx`"


def _how_to_record_work(metadata: Metadata) -> str:
    """Return the hint for an export without GPU work: that no GPU was used, or how to trace it."""
    if "Cuda" in metadata.traced:
        return "CUDA was traced: the program used none while it was recorded"
    return _RECORD_BOTH


def _how_to_record_ranges(metadata: Metadata) -> str:
    if "NvtxEvents" in metadata.traced:
        return "NVTX was traced: `tracekit record --annotate` has PyTorch programs write ranges"
    return _RECORD_BOTH


def _schema(metadata: Metadata) -> str:
    return f"schema {metadata.schema_version}" if metadata.schema_version else "no schema version"


def _processes(
    file: ExportFile, ops: Seen, memory: GpuMemory, threads: pl.DataFrame
) -> pl.DataFrame:
    owners = threads.select(process_of(pl.col("thread_gid"))).to_series()
    seen = {*ops.distinct["process_gid"], *memory.distinct["process_gid"], *owners} - {None}
    known = file.read("PROCESSES", {"globalPid": "int", "name": "text"})
    known = known.unique("globalPid", keep="first", maintain_order=True)
    return (
        pl.DataFrame({"process_gid": sorted(seen)}, schema={"process_gid": pl.Int64})
        .with_row_index("process")
        .join(known, left_on="process_gid", right_on="globalPid", how="left", maintain_order="left")
        .with_columns(pid=pid_of(pl.col("process_gid")), global_id="process_gid")
    )


def _threads(calls: Seen, ranges: Seen, mpi: MpiCalls, names: pl.DataFrame) -> pl.DataFrame:
    began, ended = process_of(pl.col("thread_gid")), process_of(pl.col("end_thread_gid"))
    of_ranges = ranges.distinct.filter(ended == began)["end_thread_gid"]
    each = (calls.distinct["thread_gid"], mpi.distinct["thread_gid"], ranges.distinct["thread_gid"])
    seen = {*of_ranges, *itertools.chain(*each)} - {None}
    return (
        pl.DataFrame({"thread_gid": sorted(seen)}, schema={"thread_gid": pl.Int64})
        .with_row_index("thread")
        .join(names, on="thread_gid", how="left", maintain_order="left")
        .with_columns(tid=tid_of(pl.col("thread_gid")), global_id="thread_gid")
    )


def _unrecorded_graphs(ops: Seen, calls: Seen, launching: pl.Series) -> tuple[str, ...]:
    """Return a warning if launches of CUDA graphs left no GPU work in the export.

    `launching` has the names of the functions that launch graphs.
    """
    if launching.is_empty():
        return ()
    named: dict[str, PolarsType] = {"name": pl.Categorical(), **_NO_KEYS.schema}
    launches = pl.col("name").is_in(launching.implode())
    chunks = (chunk.filter(launches).select(_NO_KEYS.columns) for chunk in calls.rows.chunks(named))
    silent = launched = pl.concat([_NO_KEYS, *chunks])
    for chunk in ops.rows.chunks(_NO_KEYS.schema) if silent.height else ():
        silent = silent.join(chunk, on=_NO_KEYS.columns, how="anti")
    if silent.is_empty():
        return ()
    lost = f"GPU time of {silent.height:,} CUDA graph launches was not recorded"
    if told := launched.height - silent.height:
        return (f"{lost}, though that of {told:,} was",)
    return (f"{lost}: record with `--cuda-graph-trace=node`",)


def _report(file: ExportFile, metadata: Metadata) -> pl.DataFrame:
    return report(
        file.path.absolute(), f"nsys {file.kind}", product=metadata.product,
        schema_version=metadata.schema_version, size=file.size, host=metadata.host,
        rank=metadata.rank, ranks=metadata.ranks, job=metadata.job,
        session_start=metadata.session_start, duration=metadata.duration,
    )  # fmt: skip


DIAGNOSTICS = "DIAGNOSTIC_EVENT"
_LOST = (
    r"(?i)\b(lost|drop(ped|ping)?|discard(ed|ing)?|overflow\w*|overwritten|incomplete|ran out of"
    r"|not all|might have not been started)\b"
)
_MOST = 3
_LENGTH = 200


def lost_events(file: ExportFile) -> tuple[str, ...]:
    """Return the recorder's first messages about lost events, and how many more there are.

    Messages are free text, and most are harmless (buffers flushed, counts of events, libraries not
    traced), so only messages that speak of a loss are returned.
    """
    if not file.has(DIAGNOSTICS, "text"):
        return ()
    texts = file.read(DIAGNOSTICS, {"text": "text"})["text"].drop_nulls()
    lost = texts.filter(texts.str.contains(_LOST)).unique(maintain_order=True)
    first = lost.str.split("\n").list.first().str.strip_chars().str.slice(0, _LENGTH)
    messages = tuple(f"nsys reports: {text}" for text in first.head(_MOST))
    more = len(lost) - _MOST
    return (*messages, f"nsys reports {more} more losses") if more > 0 else messages


GRAPH_NODES = ("CUDA_GRAPH_NODE_EVENTS", "CUDA_GRAPH_EVENTS")
"""Tables of graph nodes; until 2023.4 the second one, which has whole graphs since then."""
_MOST_COPIES = 8
"""Largest number of copies in a chain: a node is copied when its graph is cloned and when it is
instantiated, rarely more often."""
_NODE = ["process_gid", "graph_node"]


def graph_nodes(export: Export, places: Places) -> pl.DataFrame:
    """Return the table ``graph_nodes``: when and on which thread each graph node was captured."""
    made = _made(export)
    if made.is_empty():
        return TABLES["graph_nodes"].empty()
    first = _first(made).join(
        made.select("process_gid", "time", "thread_gid", first="graph_node"),
        on=["process_gid", "first"], maintain_order="left",
    )  # fmt: skip
    return first.select(
        places.process(first["process_gid"]).alias("process"),
        places.thread(first["thread_gid"]).alias("thread"),
        "graph_node",
        "time",
    ).drop_nulls()


def _made(export: Export) -> pl.DataFrame:
    """Return created graph nodes: ``process_gid, graph_node, original, thread_gid, time`` (ns).

    A ``gid`` is nsys's global id; `original` is the node that a node was copied from, null if none.
    """
    columns = ("start", "globalTid", "graphNodeId", "originalGraphNodeId")
    table = next((name for name in GRAPH_NODES if export.file.has(name, "graphNodeId")), None)
    if table is None:
        return pl.DataFrame(
            schema=dict.fromkeys((*_NODE, "original", "thread_gid", "time"), pl.Int64)
        )
    rows = export.file.read(table, dict.fromkeys(columns, "int"))
    made = shifted(rows, export.metadata, "start").select(
        process_of(pl.col("globalTid")).alias("process_gid"),
        graph_node="graphNodeId",
        original=pl.when(pl.col("originalGraphNodeId") != 0).then("originalGraphNodeId"),
        thread_gid="globalTid",
        time="start",
    )
    known = made.drop_nulls(["process_gid", "graph_node", "time"])
    # A copy has two rows: that it is made, and then of which node.
    firsts = known.sort(pl.col("original").is_null(), "time")
    return firsts.unique(_NODE, keep="first", maintain_order=True)


def _first(made: pl.DataFrame) -> pl.DataFrame:
    """Return graph nodes with ``first``: the captured node that each was copied from.

    A copy may be of another copy: ``first`` is where the chain begins. For a node that is no copy
    it is the node itself.
    """
    copies = made.select("process_gid", "original", first="graph_node")
    found = made.select(*_NODE, first=pl.coalesce("original", "graph_node"))
    for _ in range(_MOST_COPIES):
        copied = found.join(copies, on=["process_gid", "first"], how="left", maintain_order="left")
        if copied["original"].null_count() == copied.height:
            break
        found = copied.select(*_NODE, first=pl.coalesce("original", "first"))
    return found


# -- tables of an export: what they tell, and how to record them


PAYLOADS = "NVTX payloads"
"""Feature whose rows are a part of a table's rows, and counted by the reader of that table."""
_ALWAYS = "nsys profile, whatever is traced"


_FEATURES = (
    Feature("kernels", (KERNEL,), "GPU time by stage and kernel", "nsys profile -t cuda"),
    Feature("copies", (MEMCPY,), "input data and peer copies", "nsys profile -t cuda"),
    Feature("memsets", (MEMSET,), "GPU time of memsets", "nsys profile -t cuda"),
    Feature(
        "whole CUDA graphs",
        (GRAPH,),
        "GPU time of CUDA graphs, not of their nodes",
        "nsys profile -t cuda --cuda-graph-trace=node (records the nodes instead)",
    ),
    Feature(
        "CUDA calls", (RUNTIME,), "which thread launched an op, and when", "nsys profile -t cuda"
    ),
    Feature("NVTX events", (NVTX,), "stages, layers and iterations", "nsys profile -t nvtx"),
    Feature(
        PAYLOADS,
        (NVTX,),
        "communicators, peers and message sizes of NCCL calls",
        "nsys export --type sqlite --include-blobs=true",
        part=" (binaryData)",
    ),
    Feature("thread names", ("ThreadNames",), "which threads load data or run backward", _ALWAYS),
    Feature("GPU descriptions", ("TARGET_INFO_GPU",), "which physical GPU is meant", _ALWAYS),
    Feature(
        "GPU memory events",
        (MEMORY_USAGE,),
        "GPU memory that each process allocated and had in use",
        "nsys profile -t cuda --cuda-memory-usage=true",
    ),
    Feature(
        "GPU metrics",
        (GPU_METRICS, GENERIC_EVENTS),
        "counted NVLink and PCIe throughput, and active multiprocessors",
        "nsys profile --gpu-metrics-devices=all",
        counted=False,
    ),
    Feature(
        "NIC metrics",
        (NIC_METRICS,),
        "counted network throughput",
        "nsys profile --nic-metrics=true",
        counted=False,
    ),
    Feature(
        "MPI calls",
        MPI_TABLES,
        "MPI calls, their sizes, and between which ranks",
        "nsys profile -t mpi --mpi-impl=openmpi",
    ),
    Feature(
        "UCX calls",
        UCX_TABLES,
        "messages below MPI, with their sizes",
        "nsys profile -t ucx",
    ),
    Feature(
        "waits for GPU work",
        (SYNC,),
        "when the host waited for which stream, event or context",
        "nsys profile -t cuda",
    ),
    Feature(
        "records of CUDA events",
        (EVENT_RECORD,),
        "which stream waits for which other one",
        "nsys profile -t cuda",
    ),
    Feature(
        "making of CUDA graph nodes",
        ("CUDA_GRAPH_NODE_EVENTS",),
        "in which ranges the ops of a graph were captured",
        "nsys profile -t cuda --cuda-graph-trace=node",
    ),
    Feature("profiler overhead", OVERHEAD_TABLES, "time that the profiler itself took", _ALWAYS),
    Feature(
        "OS runtime calls",
        ("OSRT_API",),
        "what the host waited for",
        "nsys profile -t osrt",
        counted=False,
    ),
    Feature(
        "context switches",
        (SWITCHES,),
        "when a thread was off the CPU",
        "nsys profile --cpuctxsw=process-tree",
        counted=False,
    ),
    Feature(
        "samples of call stacks",
        (FRAMES,),
        "the host's code while it launched nothing",
        "nsys profile --sample=process-tree --backtrace=fp",
        counted=False,
    ),
)
