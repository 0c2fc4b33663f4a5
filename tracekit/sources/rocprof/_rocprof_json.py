"""Convert rocprofv3's JSON to tracekit's tables of GPU work (ops), calls and ranges."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePath
from typing import Any

import polars as pl

from tracekit.errors import DamagedTraceError
from tracekit.model import Recording
from tracekit.sources._amd import (
    BLOCK,
    GRID,
    LOST,
    OP,
    PUSH_POP,
    absent,
    copies,
    is_range,
    kernels,
    nothing,
    range_style,
    threads_launched,
)
from tracekit.sources._identities import Gathered, Identities, contents, report
from tracekit.sources._json_values import integer, mapping, text_of
from tracekit.sources._seen import counted
from tracekit.sources._times import Times
from tracekit.sources.kineto._document import MOST_AROUND, Document, Piece, head_of
from tracekit.sources.kineto._event_frame import read_lines
from tracekit.sources.rocprof._agents import (
    described,
    gpu_number,
    gpus,
    handle,
)
from tracekit.support.ahead import ahead
from tracekit.support.progress import Progress
from tracekit.support.spool import Workspace

_BEGIN = re.compile(rb'^(\xef\xbb\xbf)?\s*\{\s*"rocprofiler-sdk-tool"\s*:')
# A quote within a string is escaped, so that none of these is found in one.
_ARRAY = re.compile(
    rb'"(kernel_symbols|code_objects|host_functions|kernel_dispatch|counter_collection|\w+_api'
    rb'|memory_copy|memory_allocation|scratch_memory|pc_sample_(?:host_trap|stochastic))"\s*:\s*\['
)
_PROCESS = re.compile(rb'"metadata"\s*:\s*\{\s*"node"')
_TOLD = {
    "agents": re.compile(rb'"agents"\s*:\s*(?=\[)'),
    "kinds": re.compile(rb'"strings"\s*:\s*\{.*?"buffer_records"\s*:\s*(?=\[)', re.DOTALL),
}

_ID: dict[str, Any] = {"handle": str}
_XYZ: dict[str, Any] = dict.fromkeys("xyz", str)
_HEAD: dict[str, Any] = {
    "kind": str, "operation": str, "thread_id": str,
    "start_timestamp": str, "end_timestamp": str,
    "correlation_id": {"internal": str}, "stream_id": _ID,
}  # fmt: skip
_API: dict[str, Any] = {**_HEAD, "key": str, "value": str}
FIELDS: Mapping[str, dict[str, Any]] = {
    # Of the names the first that is recorded is taken.
    "kernel_symbols": dict.fromkeys(
        ("kernel_id", "formatted_kernel_name", "demangled_kernel_name", "truncated_kernel_name",
         "kernel_name"), str,
    ),
    "kernel_dispatch": {
        **_HEAD,
        "dispatch_info": {
            "agent_id": _ID, "queue_id": _ID, "kernel_id": str,
            "workgroup_size": _XYZ, "grid_size": _XYZ,
        },
    },
    "memory_copy": {**_HEAD, "src_agent_id": _ID, "dst_agent_id": _ID, "bytes": str},
    "hip_api": _API, "rccl_api": _API, "marker_api": _API,
}  # fmt: skip
"""Array -> fields of its records that are read."""


def is_rocprof(path: Path) -> bool:
    """Test whether a file begins like JSON of rocprofv3, gzipped or not."""
    return _BEGIN.match(head_of(path)) is not None


@dataclass(frozen=True)
class Part:
    """A batch of records from rocprofv3's JSON, all of one process and kind."""

    process: int
    """Number of the process in the file, counted from 0."""
    array: str
    """Name of the JSON array that contains the records, such as kernel dispatches."""
    lists: Mapping[str, list[Any]]
    """Lists that precede the records in the file, by name: `agents` (CPUs and GPUs), and `kinds` of
    operations."""
    piece: Piece
    """Text of the records."""


class RocprofDocument(Document):
    """Text of rocprofv3's JSON, split into batches of records."""

    def parts(self) -> Iterator[Part]:
        """Yield the records of the arrays in `FIELDS` (such as kernels, copies, calls), in batches.

        Raises
        ------
        DamagedTraceError
            If the file is cut short, or contains something else among its records.
        """
        text, offset, process = b"", 0, -1
        lists: dict[str, list[Any]] = {}
        while True:
            found = _ARRAY.search(text)
            if found is None:
                more = self._read(self._block)
                text += more
                if len(self._around) + len(text) > MOST_AROUND:
                    raise DamagedTraceError(f"{self.path} has too much beside its records")
                if not more:
                    break
                continue
            before = text[: found.end()]
            self._around += before
            process += len(_PROCESS.findall(before))
            lists = {**lists, **_named_lists(before)}
            array = found[1].decode()
            for piece in self._until_closed(offset + found.end(), text[found.end() :]):
                if array in FIELDS:
                    yield Part(process, array, lists, piece)
            offset, text = self._rest
        self._around += text
        if process < 0:
            raise self._cut_short(offset + len(text))


def parsed(part: Part, path: Path) -> tuple[Part, pl.DataFrame]:
    """Parse the records of a batch into a frame with the columns in `FIELDS`, all texts.

    Raises
    ------
    DamagedTraceError
        If a record is no JSON.
    """
    fields = FIELDS[part.array]
    try:
        return part, pl.read_ndjson(part.piece.text, schema=fields_as_types(fields))
    except (pl.exceptions.PolarsError, UnicodeDecodeError):
        records = [_projected(each, fields) for each in read_lines(part.piece, path, "record")]
        return part, pl.DataFrame(records, schema=fields_as_types(fields))


def fields_as_types(fields: Mapping[str, Any]) -> dict[str, pl.DataType]:
    """Return field -> polars type; JSON objects become structs."""
    return {
        name: pl.Struct(fields_as_types(kind)) if isinstance(kind, dict) else pl.String()
        for name, kind in fields.items()
    }


def _projected(value: Any, fields: Mapping[str, Any]) -> dict[str, Any]:
    fields_given = mapping(value)
    return {
        name: _projected(fields_given.get(name), kind)
        if isinstance(kind, dict)
        else text_of(fields_given.get(name))
        for name, kind in fields.items()
    }


def _named_lists(text: bytes) -> dict[str, list[Any]]:
    """Extract the lists that `_TOLD` names (such as agents) from JSON text, by name."""
    lists = {}
    for name, pattern in _TOLD.items():
        if found := pattern.search(text):
            try:
                after = text[found.end() :].decode("utf-8", "replace")
                lists[name] = json.JSONDecoder(strict=False).raw_decode(after)[0]
            except (ValueError, RecursionError):
                continue
    return lists


FORMAT = "rocprofv3 JSON"
_RECORD = "rocprofv3 --kernel-trace --memory-copy-trace --hip-runtime-trace --marker-trace -f json"
_FEATURES = (
    ("kernels", "kernel_dispatch", "GPU time by stage and kernel", _RECORD),
    ("copies", "memory_copy", "input data and peer copies", _RECORD),
    ("HIP calls", "hip_api", "which thread launched an op, and when", _RECORD),
    ("markers", "marker_api", "stages, layers and iterations",
     f"{_RECORD}, with roctx ranges in the program"),
    ("RCCL calls", "rccl_api", "which collective a kernel is", f"{_RECORD} --rccl-trace"),
)  # fmt: skip
_WAITING = 1


def read(path: Path, workspace: Workspace, progress: Progress = lambda *_: None) -> Recording:
    """Read rocprofv3's JSON into tracekit's tables; ops get stage and launching call later.

    Times come from a clock of the machine and count from the first event. An op and the call that
    launched it share rocprofiler's internal correlation id. The stream is HIP's, not the hardware
    queue, which several streams share.

    Raises
    ------
    MissingDataError
        If the file contains no GPU work and no markers.
    DamagedTraceError
        If it is cut short or corrupt.
    """
    with closing(RocprofDocument(path)) as document:
        gathered = _Gathered(path, workspace)
        size = path.stat().st_size
        progress("read records", 0, size)
        for part, records in ahead(partial(parsed, path=path), document.parts(), _WAITING):
            gathered.add(part, records)
            progress("read records", min(document.done, size), size)
        progress("read records", size, size)
        around = document.around.get("rocprofiler-sdk-tool")
    listed = around if isinstance(around, list) else []
    return gathered.recording([mapping(each) for each in listed])


class _Gathered(Gathered):
    """Ops, calls and ranges of all processes in rocprofv3's JSON, and counts of dropped records."""

    def __init__(self, path: Path, workspace: Workspace) -> None:
        self._path = path
        super().__init__(workspace)
        self._symbols = pl.DataFrame(schema={"process": pl.Int64, "kernel": pl.Int64,
                                             "name": pl.String})  # fmt: skip
        self._texts = self._symbols.rename({"kernel": "correlation", "name": "text"})
        self._times: Times | None = None

    def add(self, part: Part, records: pl.DataFrame) -> None:
        """Add a batch of records; a process is named by its number in the file for now."""
        match part.array:
            case "kernel_symbols":
                self._learn(part.process, records)
            case "kernel_dispatch":
                self._ops.add(self._kernels(part, records))
            case "memory_copy":
                self._ops.add(self._copies(part, records))
            case "hip_api":
                self._calls.add(self._named(part, records).rename({"operation": "name"}))
            case "rccl_api":
                named = self._named(part, records).rename({"operation": "name"})
                self._ranges.add(named.with_columns(domain=pl.lit("NCCL"), style=PUSH_POP))
            case "marker_api":
                self._mark(part, records)

    def _learn(self, process: int, symbols: pl.DataFrame) -> None:
        """Store the readable name of each kernel of a process, by kernel id, from its symbols."""
        known = symbols.select(
            process=pl.lit(process, pl.Int64),
            kernel=_integers(pl.col("kernel_id")),
            name=pl.coalesce(pl.exclude("kernel_id")).str.strip_suffix(".kd"),
        ).drop_nulls()
        self._symbols = pl.concat([self._symbols, known]).unique(
            ["process", "kernel"], keep="first", maintain_order=True
        )

    def _kernels(self, part: Part, records: pl.DataFrame) -> pl.DataFrame:
        info = pl.col("dispatch_info").struct
        sizes = [
            _integers(info.field(of).struct.field(axis)).alias(name)
            for of, names in (("grid_size", GRID), ("workgroup_size", BLOCK))
            for axis, name in zip("xyz", names, strict=True)
        ]
        ops = self._timed(part, records, "kernels").with_columns(
            device=self._device(part, info.field("agent_id")),
            kernel=_integers(info.field("kernel_id")),
        )
        ops = ops.with_columns(sizes)
        ops = ops.with_columns(threads_launched(ops, pl.lit(value=True)))
        ops = self._placed(ops).join(
            self._symbols.filter(pl.col("process") == part.process).drop("process"),
            on="kernel", how="left", maintain_order="left",
        )  # fmt: skip
        self._lost["unnamed"] += ops["name"].null_count()
        return kernels(ops, self._names).select(*OP, "launch_size")

    def _copies(self, part: Part, records: pl.DataFrame) -> pl.DataFrame:
        timed = self._timed(part, records, "copies")
        ends = {f"{end}_device": self._device(part, pl.col(f"{end}_agent_id"))
                for end in ("src", "dst")}  # fmt: skip
        ops = timed.with_columns(_integers(pl.col("bytes")).alias("bytes"), **ends)
        ops = ops.with_columns(device=pl.coalesce("dst_device", "src_device"))
        made = copies(self._placed(ops), pl.col("operation"))
        return made.select(*OP, "bytes", "copy_kind", "src_device", "dst_device")

    def _device(self, part: Part, agent: pl.Expr) -> pl.Expr:
        """Return an agent's index among the machine's GPUs; null if the agent is a CPU."""
        numbers = {
            number: gpu_number(each) for each in gpus(part.lists.get("agents"))
            if (number := handle(each)) is not None
        }  # fmt: skip
        handles = _integers(agent.struct.field("handle"))
        return handles.replace_strict(numbers, default=None, return_dtype=pl.Int32)

    def _placed(self, ops: pl.DataFrame) -> pl.DataFrame:
        placed = ops.drop_nulls("device")
        self._lost["unplaced"] += ops.height - placed.height
        return placed.rename({"tid": "launched_by"})

    def _named(self, part: Part, records: pl.DataFrame) -> pl.DataFrame:
        """Return calls or markers with the function's name, from its id ``operation``."""
        noun = {"hip_api": "HIP calls", "rccl_api": "RCCL calls"}.get(part.array, "markers")
        calls = self._timed(part, records, noun)
        placed = calls.drop_nulls("tid")
        self._lost["threadless"] += calls.height - placed.height
        return placed.select("start", "end", "pid", "tid", "correlation", "operation")

    def _mark(self, part: Part, records: pl.DataFrame) -> None:
        """Add roctx markers as ranges, named by the text with the same correlation id.

        Texts are records of their own, which come first and are stored here.
        """
        texts = records.filter(pl.col("key").is_not_null()).select(
            process=pl.lit(part.process, pl.Int64),
            correlation=_integers(pl.col("key")),
            text="value",
        )
        self._texts = pl.concat([self._texts, texts.drop_nulls("correlation")]).unique(
            ["process", "correlation"], keep="first", maintain_order=True
        )
        marked = self._named(part, records.filter(pl.col("key").is_null()))
        marked = marked.filter(is_range(pl.col("operation")))
        known = self._texts.filter(pl.col("process") == part.process).drop("process")
        named = marked.join(known, on="correlation", how="left", maintain_order="left")
        self._ranges.add(named.select(
            "start", "end", "pid", "tid", name=pl.coalesce("text", "operation"),
            style=range_style(pl.col("operation")),
            domain=pl.lit(None, pl.String),
        ))  # fmt: skip

    def _timed(self, part: Part, records: pl.DataFrame, noun: str) -> pl.DataFrame:
        """Add times, process, thread, correlation id, stream and operation to records.

        Records (called `noun` in warnings) without times are dropped and counted.
        """
        self._counts[noun] += records.height
        head = records.with_columns(
            _integers(pl.col("start_timestamp")).alias("start"),
            _integers(pl.col("end_timestamp")).alias("end"),
            _integers(pl.col("thread_id")).alias("tid"),
            pl.lit(part.process, pl.Int64).alias("pid"),
            _integers(pl.col("correlation_id").struct.field("internal")).alias("correlation"),
            _integers(pl.col("stream_id").struct.field("handle")).alias("stream"),
            self._operation(part).alias("operation"),
        )
        is_gpu = part.array in ("kernel_dispatch", "memory_copy")
        known = head.filter(pl.col("start") > 0, pl.col("end").is_not_null())
        if self._times is None and known.height:
            self._times = Times(self._path, known["start"].to_list())
            self._held = self._times.within("records")
        near = self._held(known) if self._times else known
        if is_gpu:
            timed = near.filter(pl.col("end") >= pl.col("start"))
        else:
            self._lost["backward"] += near.filter(pl.col("end") < pl.col("start")).height
            timed = near.with_columns(end=pl.max_horizontal("start", "end"))
        far_off = known.height - near.height  # of what is far off `Times` tells
        self._lost["untimed" if is_gpu else "untimed calls"] += head.height - timed.height - far_off
        return timed

    def _operation(self, part: Part) -> pl.Expr:
        """Return the name of each record's operation, by its id; the file says what ids mean."""
        names = {
            f"{kind} {number}": text_of(name)
            for kind, each in enumerate(part.lists.get("kinds", ()))
            for number, name in enumerate(_operations(each))
        }
        key = pl.concat_str("kind", "operation", separator=" ")
        return key.replace_strict(names, default=None, return_dtype=pl.String)

    def recording(self, processes: list[Mapping[str, Any]]) -> Recording:
        """Return the recording (tracekit's tables) from all records added.

        `processes` has the metadata that the file gives for each process.
        """
        ops, calls, ranges = self._ops, self._calls, self._ranges
        if not len(ops) and not len(ranges):
            raise nothing(
                self._path, "rocprofv3", calls, self._lost["untimed"], self._times, _RECORD
            )
        described_processes = [mapping(each.get("metadata")) for each in processes]
        pids = {number: integer(each.get("pid")) for number, each in enumerate(described_processes)}
        identities = Identities(ops, calls, ranges)
        real = pl.col("pid").replace_strict(pids, default=None, return_dtype=pl.Int64)
        table = identities.processes(
            {number: _executable(each) for number, each in enumerate(described_processes)}
        )
        named = [mapping(each.get("node")).get("hostname") for each in described_processes]
        hosts = {name for name in named if isinstance(name, str)}
        host = next(iter(hosts)) if len(hosts) == 1 else None
        self._lost["hosts"] = len(hosts) * (len(hosts) > 1)
        warnings = (
            *absent(ops, calls, ranges, _RECORD, _RECORD),
            *counted(self._lost, LOST),
        )
        return Recording(
            tables={
                "processes": table.with_columns(pid=pl.coalesce(real, "pid"), global_id="pid"),
                "threads": identities.threads(),
                "devices": identities.devices(described(processes), "device_table"),
                "reports": report(
                    self._path, FORMAT,
                    product="rocprofv3", host=text_of(host),
                ),
                "contents": contents(_FEATURES, self._counts),
            },
            streams=identities.streams(),
            warnings=(*warnings, *(self._times.losses if self._times else ())),
        )  # fmt: skip


def _integers(number: pl.Expr) -> pl.Expr:
    return number.cast(pl.Int64, strict=False)


def _operations(kind: object) -> list[Any]:
    operations = mapping(kind).get("operations")
    return operations if isinstance(operations, list) else []


def _executable(metadata: Mapping[str, Any]) -> str | None:
    """Return the name of the program without arguments, which may be private; None if unknown."""
    command = metadata.get("command")
    first = command[0] if isinstance(command, list) and command else None
    return text_of(PurePath(first).name) if isinstance(first, str) else None
