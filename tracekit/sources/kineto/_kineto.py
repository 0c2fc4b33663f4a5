"""Convert a PyTorch trace to tracekit's tables of GPU work (ops), calls and ranges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from tracekit.errors import MissingDataError
from tracekit.model import NO_KERNELS, Maker, Recording, Stream
from tracekit.sources._amd import WITHIN
from tracekit.sources._identities import HostColumns, contents, report
from tracekit.sources._json_values import integer, mapping, text_of
from tracekit.sources._seen import NO_CALLS, absences, counted
from tracekit.sources._syncs import chunks
from tracekit.sources.kineto._captures import Joined, joined
from tracekit.sources.kineto._document import Document, Piece, head_of
from tracekit.sources.kineto._event_frame import read_events
from tracekit.sources.kineto._gathered import Gathered
from tracekit.support.ahead import ahead
from tracekit.support.progress import Progress
from tracekit.support.spool import Workspace

FORMAT = "PyTorch Kineto JSON"
_MOST_RANKS = 1 << 30
_MOST_UNKNOWN = 5
_TELLING = (b'"traceEvents"', b'"schemaVersion"', b'"deviceProperties"')
"""Texts of which one is in the head of every trace of Kineto."""
_HIP = "hip_runtime_version"
_ROCPROF = b'CPU HIP API"'
"""Texts in the head of JSON of rocprof, AMD's recorder before rocprofv3, which looks alike."""
_REPORT = pl.lit(0, pl.Int32).alias("report")
_PROFILE = "torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])"
_RECORD = f"record with {_PROFILE}"
_SYNC_EVENTS = (
    "experimental_config=torch._C._profiler._ExperimentalConfig(enable_cuda_sync_events=True)"
)
_YEAR_2001, _YEAR_2096 = 10**18, 4 * 10**18
"""Unix times, ns: times between them are Unix times, others are of a clock of their own."""
_WAITING = 1
"""Number of pieces of text queued per thread; pieces are large."""

_ROWS = 1 << 16
"""Least number of events to sort at once."""

_CONTENTS = (
    ("kernels", "kernel", "kernel", "GPU time by stage and kernel", _PROFILE),
    ("copies", "gpu_memcpy", "copy", "input data and peer copies", _PROFILE),
    ("memsets", "gpu_memset", "memset", "GPU time of memsets", _PROFILE),
    ("API calls", "cuda_runtime, cuda_driver", "call",
     "which thread launched an op, and when", _PROFILE),
    ("operators", "cpu_op", "operator", "layers, and which forward op a backward op is of",
     _PROFILE),
    ("annotations", "user_annotation", "annotation", "stages and iterations",
     "torch.profiler.record_function, and profiler.step() in each iteration"),
    ("collective sizes", "record_param_comms", "sized",
     "communicators and message sizes of NCCL calls", "PyTorch 2.2 or newer"),
    ("waits for GPU work", "cuda_sync", "sync",
     "when the host waited for which stream, event or context", _SYNC_EVENTS),
    ("records of CUDA events", "cuda_event", "event_record",
     "which stream waits for which other one", _SYNC_EVENTS),
    ("Python functions", "python_function", "python", "nothing that is read yet",
     "torch.profiler.profile(with_stack=True)"),
)  # fmt: skip


def is_kineto(path: Path) -> bool:
    """Test whether a file, gzipped or not, begins like a trace of PyTorch's profiler."""
    head = head_of(path).removeprefix(b"\xef\xbb\xbf").lstrip()
    return head.startswith(b"{") and any(key in head for key in _TELLING) and _ROCPROF not in head


def read(
    path: Path,
    workspace: Workspace,
    progress: Progress = lambda *_: None,
    captures: Sequence[Path] = (),
) -> Recording:
    """Read a PyTorch trace into tracekit's tables; stages and launching calls of ops come later.

    Times begin at the trace's first event. Operators and annotations become ranges, named as
    PyTorch names them for NVTX (``aten::mm, seq = 7``). If the arguments of collectives were
    recorded, each collective becomes a range of the domain NCCL with a payload, as NCCL itself
    makes them. `captures` are traces of the capture of the CUDA graphs that this trace replays.
    Host events of a capture are moved to before the first event of this trace.

    Raises
    ------
    MissingDataError
        If the trace contains no GPU work and no operators or annotations, or one of `captures`
        contains no capture of a graph.
    DamagedTraceError
        If it is cut short or corrupt.
    NotATraceError
        If it is other JSON.
    """
    with closing(Document(path)) as document:
        gathered = Gathered(path, workspace, _job_number(document.before(), "rank"))
        _gather(document, gathered, progress)
        around = document.around
    if not gathered.ops.height and not gathered.ranges.height:
        lost = "".join(f"; {loss}" for loss in _losses(gathered, is_amd=False))
        hint = f"{_RECORD}; of JAX give the .xplane.pb beside it"
        raise MissingDataError(f"no GPU work and no operators in {path}{lost}", hint)
    graphs = joined(captures, gathered) if captures else None
    return _recording(path, gathered, around, graphs)


def _gather(document: Document, gathered: Gathered, progress: Progress) -> None:
    size = document.path.stat().st_size
    parse: Callable[[Piece], pl.DataFrame] = partial(read_events, path=document.path)
    progress("read events", 0, size)
    for events in _together(ahead(parse, document.pieces(), _WAITING)):
        gathered.add(events)
        progress("read events", min(document.done, size), size)
    progress("read events", size, size)


def _together(frames: Iterator[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    """Concatenate small frames of events into larger ones, since each frame has a fixed cost."""
    waiting: list[pl.DataFrame] = []
    for piece in frames:
        waiting.append(piece)
        if sum(each.height for each in waiting) >= _ROWS:
            yield pl.concat(waiting)
            waiting.clear()
    if waiting:
        yield pl.concat(waiting)


def _job_number(around: Mapping[str, Any], key: str) -> int | None:
    """Return ``rank`` or ``world_size`` of the job from the trace; None if it is not recorded."""
    return integer(mapping(around.get("distributedInfo")).get(key), _MOST_RANKS)


def _recording(
    path: Path, gathered: Gathered, around: Mapping[str, Any], graphs: Joined | None
) -> Recording:
    processes, threads = gathered.processes, gathered.threads
    number_of = dict(processes.select("pid", "process").iter_rows())
    owners = threads["pid"].replace_strict(number_of, return_dtype=pl.Int32)
    origin = gathered.first or 0
    columns = HostColumns(processes, threads, origin, gathered.last or origin)
    whose = _REPORT, pl.lit(number_of[gathered.pid], pl.Int32).alias("process")
    moved = pl.col("start", "end") - origin
    counts = gathered.counts | Counter(sized=gathered.host.sized)
    return Recording(
        tables={
            "processes": processes.with_columns(_REPORT, global_id="pid"),
            "threads": threads.with_columns(_REPORT, process=owners, global_id="tid"),
            "devices": _devices(gathered, around).with_columns(_REPORT),
            "reports": _report(path, gathered, around),
            "contents": contents(
                [(feature, source, tells, how) for feature, source, _, tells, how in _CONTENTS],
                {feature: counts[group] for feature, _, group, *_ in _CONTENTS},
            ),
            **({"graph_nodes": _graph_nodes(graphs, threads, owners, origin)} if graphs else {}),
        },
        streams={
            "ops": Stream(
                "ops",
                "op",
                gathered.ops,
                _op_columns(columns, number_of[gathered.pid], gathered) | _replayed(graphs),
            ),
            "calls": Stream("calls", "call", gathered.calls, columns.calls()),
            "ranges": Stream("ranges", "range", gathered.ranges, columns.ranges()),
        },
        passing={
            "syncs": lambda: (
                each.with_columns(*whose, moved) for each in chunks(gathered.syncs, "syncs")
            ),
            "event_records": lambda: (
                each.with_columns(whose) for each in chunks(gathered.event_records, "event_records")
            ),
        },
        warnings=(
            *absences(
                gathered.ops.height, 0, _RECORD,
                (gathered.counts["kernel"], NO_KERNELS, _RECORD),
                (gathered.calls.height, NO_CALLS, _RECORD),
                (gathered.ranges.height, _NO_OPERATORS, _RECORD),
            ),
            *_losses(gathered, is_amd=_HIP in around), *(graphs.warnings if graphs else ()),
        ),
    )  # fmt: skip


_NO_OPERATORS = (
    "no operators or annotations were recorded, so only structure and names can show stages"
)


def _graph_nodes(
    graphs: Joined, threads: pl.DataFrame, owners: pl.Series, origin: int
) -> pl.DataFrame:
    """Return the table ``graph_nodes``: time and thread of the capture of each CUDA graph node."""
    numbered = threads.select("pid", "tid", "thread", process=owners)
    placed = graphs.nodes.join(numbered, on=["pid", "tid"], maintain_order="left")
    return placed.select(
        _REPORT, "process", "thread", "graph_node", time=pl.col("time") - origin
    )  # fmt: skip


def _replayed(graphs: Joined | None) -> dict[str, Maker]:
    """Return ``graph_node`` with its function, which looks up the graph node that an op replays."""
    if graphs is None:
        return {}
    key = ("correlation", "start", "stream")

    def node(rows: pl.DataFrame) -> pl.Series:
        found = rows.join(graphs.ops, on=list(key), how="left", maintain_order="left")
        recorded = "graph_node" if "graph_node" in rows.columns else pl.lit(None, pl.Int64)
        return found.select(graph_node=pl.coalesce("node", recorded)).to_series()

    return {"graph_node": Maker((*key, "graph_node"), node)}


def _op_columns(columns: HostColumns, process: int, gathered: Gathered) -> dict[str, Maker]:
    in_threads = pl.concat([pl.Series([], dtype=pl.Int64), *gathered.counted_in_threads])
    needs = ("launch_size", "block_size", "correlation")
    sized = {"launch_size": Maker(needs, partial(_threads, in_threads))} if len(in_threads) else {}
    of_all = pl.Series([process], dtype=pl.Int32)
    # The time of a row is there to say how many rows there are.
    owner = Maker(("start",), lambda rows: of_all.new_from_index(0, rows.height))
    return {**columns.times(), **sized, "process": owner}


def _threads(counted: pl.Series, ops: pl.DataFrame) -> pl.Series:
    """Return the number of threads of each kernel launch.

    `counted` has the correlation ids of launches whose grid counts threads instead of blocks.
    """
    twice = ops["correlation"].is_in(counted.implode()).fill_null(value=False)
    size = pl.when(twice).then(pl.col("launch_size") // pl.col("block_size"))
    return ops.select(launch_size=size.otherwise("launch_size")).to_series()


def _devices(gathered: Gathered, around: Mapping[str, Any]) -> pl.DataFrame:
    """Return the table of the GPUs that ops run on; others in the trace belong to other ranks.

    Ops on AMD's GPUs carry the driver's index, which also counts CPUs, so it is not known which
    description belongs to which GPU: they are described only if all descriptions are alike.
    """
    properties = around.get("deviceProperties")
    described = {
        each["id"]: each
        for each in (properties if isinstance(properties, list) else ())
        if isinstance(each, dict) and isinstance(each.get("id"), int)
    }
    how = "ordinal"
    if _HIP in around:
        alike = {tuple(_described(each).items()) for each in described.values()}
        any_one = next(iter(described.values())) if len(alike) == 1 else None
        how, described = "assumed", dict.fromkeys(gathered.devices, any_one) if any_one else {}
    rows = [
        {
            "device": device,
            "active": device in gathered.active,
            "identity": how if device in described else "unknown",
            **_described(described.get(device, {})),
        }
        for device in sorted(gathered.devices)
    ]
    columns = {
        "device": pl.Int32, "name": pl.String, "memory_bytes": pl.Int64, "sm_count": pl.Int32,
        "compute_capability": pl.String, "active": pl.Boolean, "identity": pl.String,
    }  # fmt: skip
    return pl.DataFrame(rows, schema=columns)


def _described(properties: Mapping[str, Any]) -> dict[str, object]:
    name = properties.get("name")
    capability = [integer(properties.get(key)) for key in ("computeMajor", "computeMinor")]
    return {
        "name": text_of(name) if isinstance(name, str) and name else None,
        "memory_bytes": integer(properties.get("totalGlobalMem"), 1 << 63),
        "sm_count": integer(properties.get("numSms"), 1 << 31),
        "compute_capability": None if None in capability else "{}.{}".format(*capability),
    }


def _report(path: Path, gathered: Gathered, around: Mapping[str, Any]) -> pl.DataFrame:
    version = around.get("schemaVersion")
    origin = gathered.first or 0
    end = gathered.recorded
    is_complete = end is not None and end >= (gathered.last or 0)
    return report(
        path, FORMAT, product="PyTorch",
        schema_version=text_of(version) if isinstance(version, int | float | str) else None,
        session_start=_session_start(origin, around.get("baseTimeNanoseconds")),
        rank=_job_number(around, "rank"), ranks=_job_number(around, "world_size"),
        duration=end - origin if end is not None and is_complete else None,
    )  # fmt: skip


def _session_start(origin: int, base: object) -> int | None:
    """Return the Unix time of the first event, ns; None if the trace does not record it.

    Times of old traces are Unix times; times of newer traces count from a recorded base time.
    """
    begun = base if isinstance(base, int) else 0
    candidates = (origin, origin + begun)
    return next((time for time in candidates if _YEAR_2001 <= time <= _YEAR_2096), None)


def _losses(gathered: Gathered, *, is_amd: bool) -> tuple[str, ...]:
    losses = {
        "untimed": "events have no valid times and were left out",
        "unplaced": "GPU ops have no device and were left out",
        "threadless": "calls and operators have no thread and were left out",
        "backward": "events end before they begin, and were taken to last 0 ns",
        "endless": "copies between GPUs lack their source or target",
        **({"within": WITHIN} if is_amd and len(gathered.active) > 1 else {}),
        "merged": "processes have calls in one trace, which does not record whose its GPU work is: "
        f"all of it is taken to be of {gathered.pid}, and launches and stages may be wrong",
    }
    gathered.counts["merged"] = len(gathered.callers) * (len(gathered.callers) > 1)
    unknown = sorted(gathered.unknown.items())
    return (
        *counted(gathered.counts, losses),
        *(f"{count:,} events of the category {name!r} are not known and were left out"
          for name, count in unknown[:_MOST_UNKNOWN]),
    )  # fmt: skip
