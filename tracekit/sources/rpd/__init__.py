"""RPD (ROCm Profile Data): the SQLite files of ``runTracer.sh`` and ``rpd_tracer``, ``*.rpd``.

An op (``rocpd_op``) is tied to the HIP call that launched it (``rocpd_api_ops``); markers of roctx
and PyTorch's operators are rows of the table of calls (``rocpd_api``). Not to be confused with
rocpd, the SQLite files of rocprofv3, whose tables begin with the same word.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import polars as pl

from tracekit.model import RANGE_STYLE, Recording
from tracekit.sources._amd import (
    BLOCK,
    COUNT_THREADS,
    GRID,
    LOST,
    absent,
    copies,
    kernels,
    nothing,
    of_host,
    threads_launched,
)
from tracekit.sources._copies import memsets
from tracekit.sources._export_tables import Strings, check_columns, coercions
from tracekit.sources._identities import HOST, OPS, Identities, contents, report, small, steps
from tracekit.sources._kernel_names import KernelNames
from tracekit.sources._seen import Seen, counted
from tracekit.sources._times import Times
from tracekit.sources.sqlite import SqliteFile, SqlType
from tracekit.support.progress import Progress
from tracekit.support.spool import Workspace

__all__ = ["is_rpd", "read"]

_STRINGS, _OP = "rocpd_string", "rocpd_op"
_API, _LINKS = "rocpd_api", "rocpd_api_ops"
_KERNELS, _COPIES, OPERATORS = "rocpd_kernelapi", "rocpd_copyapi", "ext_autogradapi"
_CALL = r"^(hip|hsa_|cuda|cu[A-Z])"
_TRACER = r"^(\w+::writeRows|rpdflush|hcc_activity_callback|rpd_\w+)$"
_MARKER = "UserMarker"
_HEAD: dict[str, SqlType] = dict.fromkeys(("id", "pid", "tid", "start", "end", "apiName_id"), "int")
_FORMAT = "RPD SQLite"
_RECORD = "runTracer.sh -o run.rpd PROGRAM"
_MARK = "roctx or rpdTracerControl in the program; PyTorch: torch.autograd.profiler.emit_nvtx()"
_REQUIRED = {
    _API: ("id", "start", "end", "pid", "tid", "apiName_id"),
    _OP: ("id", "start", "end", "gpuId", "opType_id"),
}
_FEATURES = (
    ("kernels", _OP, "GPU time by stage and kernel", _RECORD),
    ("copies", _OP, "input data and peer copies", _RECORD),
    ("memsets", _OP, "GPU time of memsets", _RECORD),
    ("HIP calls", _API, "which thread launched an op, and when", _RECORD),
    ("markers", _API, "stages, layers and iterations", _MARK),
    ("operators", OPERATORS, "which forward op a backward op is of", _MARK),
    ("clock rates", "rocpd_monitor", "nothing that is read yet", _RECORD),
)


class _Host:
    """Host rows of an RPD file (table ``rocpd_api``): HIP calls, markers, the tracer's own work.

    Parameters
    ----------
    file
        The database.
    strings
        Texts of the database.
    """

    def __init__(self, file: SqliteFile, strings: Strings) -> None:
        self._file, self.strings = file, strings
        self._calls, self._own = (strings.like(pattern) for pattern in (_CALL, _TRACER))
        self._lost: Counter[str] = Counter()
        self._sequence = self._sequence_numbers()
        self.operators = 0
        """Number of markers that are operators of PyTorch."""

    def calls(self, rows: int) -> Iterator[pl.DataFrame]:
        """Yield ``start, end, pid, tid, name, correlation`` (times in ns) of HIP calls."""
        for batch in self._file.batches(_API, _HEAD, rows):
            calls = batch.filter(pl.col("apiName_id").is_in(self._calls.implode()))
            name = self.strings.of(calls["apiName_id"]).cast(pl.Categorical()).alias("name")
            yield of_host(calls.with_columns(name), self._lost).select(
                "start", "end", "pid", "tid", "name", correlation="id"
            )

    def markers(self, rows: int) -> Iterator[pl.DataFrame]:
        """Yield roctx markers and PyTorch's operators as ranges, about `rows` rows at a time.

        Columns: ``start, end`` (ns), ``pid, tid, name, style`` (push/pop), ``payload`` (arguments).
        """
        for batch in self._file.batches(_API, {**_HEAD, "args_id": "int"}, rows):
            other = pl.concat([self._calls, self._own]).implode()
            is_other = pl.col("apiName_id").is_in(other).fill_null(value=False)
            marked = batch.filter(~is_other)
            function, text = (self.strings.of(marked[n]) for n in ("apiName_id", "args_id"))
            marked = of_host(
                marked.with_columns(function.alias("name"), text.alias("text")), self._lost
            )
            marked = marked.join(self._sequence, on="id", how="left", maintain_order="left")
            self.operators += marked["sequence"].count()
            is_marker = pl.col("name") == _MARKER
            numbered = pl.format("{}, seq = {}", "text", "sequence")
            yield marked.select(
                "start", "end", "pid", "tid",
                name=pl.when(is_marker).then(pl.coalesce(numbered, "text")).otherwise("name"),
                payload=pl.when(~is_marker & (pl.col("text") != "")).then("text"),
                style=pl.lit("push_pop", RANGE_STYLE),
            )  # fmt: skip

    def launching(self, rows: int) -> Iterator[pl.DataFrame]:
        """Yield ``id, pid, apiName_id`` of all host rows, to find the calls that launched ops.

        Rows without times are included.
        """
        columns: dict[str, SqlType] = dict.fromkeys(("id", "pid", "apiName_id"), "int")
        return self._file.batches(_API, columns, rows)

    def _sequence_numbers(self) -> pl.DataFrame:
        """Return ``id, sequence``: the sequence number of each row that is a PyTorch operator."""
        found = self._file.read(OPERATORS, {"api_ptr_id": "int", "seq": "int"})
        self._file.coerced.pop(f"{OPERATORS}.seq", None)
        known = found.drop_nulls().filter(pl.col("seq") >= 0)
        once = known.unique("api_ptr_id", keep="first", maintain_order=True)
        return once.rename({"api_ptr_id": "id", "seq": "sequence"})

    @property
    def losses(self) -> tuple[str, ...]:
        """Warnings, one sentence each, on calls and markers that were left out."""
        return counted(self._lost, LOST)


class _Launches:
    """Lookup of the HIP call that launched each op of an RPD file, with the call's arguments.

    Parameters
    ----------
    file
        The database.
    host
        Calls of the database.
    rows
        Number of rows to process at once.
    """

    def __init__(self, file: SqliteFile, host: _Host, rows: int) -> None:
        links = file.read(_LINKS, {"api_id": "int", "op_id": "int"}).drop_nulls()
        self._links = links.unique("op_id", keep="first", maintain_order=True)
        launching = self._links["api_id"].unique().implode()
        counting = host.strings.like(f"^({'|'.join(COUNT_THREADS)})$").implode()
        callers = [pl.DataFrame(schema={"id": pl.Int64, "pid": pl.Int64, "counting": pl.Boolean})]
        callers += [
            batch.filter(pl.col("id").is_in(launching)).select(
                "id", "pid", counting=pl.col("apiName_id").is_in(counting)
            )
            for batch in host.launching(rows)
        ]
        self._callers = pl.concat(callers).unique("id", keep="first", maintain_order=True)
        self._sizes = self._launch_sizes(file)
        self._copies = self._copied(file)

    @property
    def pid(self) -> int:
        """Process id for ops without a recorded call: the one that launched most other ops."""
        pids = self._callers["pid"].drop_nulls()
        return int(pids.mode().min() or 0)  # type: ignore[arg-type]

    def of(self, ops: pl.DataFrame) -> pl.DataFrame:
        """Join ops (by ``id``) with the call that launched each.

        Added are ``correlation`` (the call's row id), ``pid``, stream, launch size, bytes, kernel.
        """
        linked = ops.join(
            self._links, left_on="id", right_on="op_id", how="left", maintain_order="left"
        )
        for known in (self._callers, self._sizes, self._copies):
            linked = linked.join(
                known, left_on="api_id", right_on="id", how="left", maintain_order="left"
            )
        return linked.rename({"api_id": "correlation"})

    def _launch_sizes(self, file: SqliteFile) -> pl.DataFrame:
        """Return ``id, kernel_stream, kernel_name_id, launch_size`` of kernel launches."""
        names = ("gridX", "gridY", "gridZ", "workgroupX", "workgroupY", "workgroupZ")
        known: dict[str, SqlType] = dict.fromkeys(("api_ptr_id", *names, "kernelName_id"), "int")
        found = file.read(_KERNELS, {**known, "stream": "text"})
        found = found.rename(dict(zip(names, (*GRID, *BLOCK), strict=True)))
        found = self._once(found).join(self._callers, on="id", how="left", maintain_order="left")
        size = threads_launched(found, pl.col("counting").fill_null(value=False))
        return found.select(
            "id", size, _stream().alias("kernel_stream"), kernel_name_id="kernelName_id"
        )

    def _copied(self, file: SqliteFile) -> pl.DataFrame:
        """Return ``id, copy_stream, bytes, between`` of HIP calls that copy.

        ``between``: whether source and target are different GPUs. If a call has several ops, its
        bytes are null, since their split among ops is not recorded.
        """
        columns: dict[str, SqlType] = dict.fromkeys(
            ("api_ptr_id", "size", "srcDevice", "dstDevice"), "int"
        )
        found = self._once(file.read(_COPIES, {**columns, "stream": "text"}))
        several = self._links.group_by("api_id").len().filter(pl.col("len") > 1)["api_id"]
        return found.select(
            "id",
            _stream().alias("copy_stream"),
            bytes=pl.when(~pl.col("id").is_in(several.implode()) & (pl.col("size") >= 0)).then(
                "size"
            ),
            between=pl.col("srcDevice") != pl.col("dstDevice"),
        )

    def _once(self, rows: pl.DataFrame) -> pl.DataFrame:
        known = rows.rename({"api_ptr_id": "id"}).drop_nulls("id")
        return known.unique("id", keep="first", maintain_order=True)


def _stream() -> pl.Expr:
    """Return the stream of each row, whose handle is a hexadecimal text, as an integer."""
    digits = pl.col("stream").str.extract(r"^0x([0-9a-fA-F]{1,15})$")
    return digits.str.to_integer(base=16, strict=False, dtype=pl.Int64)


def is_rpd(file: SqliteFile) -> bool:
    """Test whether an SQLite file is a recording of RPD."""
    return file.has(_STRINGS, "id", "string") and (file.has(_API, "id") or file.has(_OP, "id"))


def read(file: SqliteFile, workspace: Workspace, progress: Progress = lambda *_: None) -> Recording:
    """Read an RPD file into tracekit's tables; ops get their stage and launching call later.

    Times are ns since the first event of the file, on a clock of the machine; Unix time is unknown.
    An op's correlation id is the row id of the call that launched it.

    Raises
    ------
    MissingDataError
        If the file contains no GPU work and no markers.
    DamagedTraceError
        If a table cannot be read.
    """
    check_columns(file, _REQUIRED, f"record again with {_RECORD}")
    file.times = Times(file.path, file.first_times({_OP: "start", _API: "start"}))
    rows = workspace.rows
    stages = steps(progress, "HIP calls", "markers", "GPU work")
    next(stages)
    host = _Host(file, Strings(file, _STRINGS, "id", "string"))
    calls = Seen(host.calls(rows), workspace, *HOST)
    next(stages)
    ranges = Seen(host.markers(rows), workspace, *HOST)
    next(stages)
    work = _GpuWork(file, host.strings, _Launches(file, host, rows))
    ops = Seen(work.batches(rows), workspace, *OPS)
    next(stages)
    if not len(ops) and not len(ranges):
        raise nothing(file.path, "RPD", calls, work.lost["untimed"], file.times, _RECORD)
    identities = Identities(ops, calls, ranges)
    counts = {
        **work.counts,
        "HIP calls": len(calls),
        "markers": len(ranges),
        "operators": host.operators,
        "clock rates": file.count("rocpd_monitor") if file.has("rocpd_monitor") else 0,
    }
    versions = file.read("rocpd_metadata", {"tag": "text", "value": "text"})
    version = versions.filter(pl.col("tag") == "schema_version")["value"]
    return Recording(
        tables={
            "processes": identities.processes({}),
            "threads": identities.threads(),
            "devices": identities.devices(ops.distinct.select("device").drop_nulls(), "assumed"),
            "reports": report(
                file.path, _FORMAT,
                product="rocmProfileData", schema_version=version[0] if len(version) else None,
            ),
            "contents": contents(_FEATURES, counts),
        },
        streams=identities.streams(),
        warnings=(
            *absent(ops, calls, ranges, _RECORD, _MARK),
            *counted(work.lost, _LOST),
            *host.losses,
            *coercions(file),
            *file.times.losses,
            *file.warnings,
        ),
    )  # fmt: skip


_COLUMNS: dict[str, SqlType] = dict.fromkeys(
    ("id", "gpuId", "queueId", "start", "end", "description_id", "opType_id"), "int"
)
_KEPT = (
    "start", "end", "pid", "device", "stream", "correlation", "name", "short_name", "kind",
    "bytes", "copy_kind", "src_device", "dst_device", "launch_size",
)  # fmt: skip
_LOST = {
    **LOST,
    "barriers": "barriers were left out: they do no GPU work",
    "alone": "GPU ops have no call, and were taken to be of the process that launched most others",
    "endless": "copies between GPUs lack their source or target",
}


class _GpuWork:
    """All GPU work of an RPD file, as ops.

    Parameters
    ----------
    file
        The database.
    strings
        Texts of the database.
    launches
        Launching call of each op.
    """

    def __init__(self, file: SqliteFile, strings: Strings, launches: _Launches) -> None:
        self._file, self._strings, self._launches = file, strings, launches
        self._names = KernelNames()
        self.counts: Counter[str] = Counter()
        """Number of kernels, of copies and of memsets."""
        self.lost: Counter[str] = Counter()
        """Reason -> number of ops that were left out, or lack an attribute."""

    def batches(self, rows: int) -> Iterator[pl.DataFrame]:
        """Yield the ops (kernels, copies, memsets) with a time and a GPU."""
        for batch in self._file.batches(_OP, _COLUMNS, rows):
            ops = self._placed(batch)
            for feature, part in self._parts(ops):
                self.counts[feature] += part.height
                yield part.select(name for name in _KEPT if name in part.columns)

    def _placed(self, batch: pl.DataFrame) -> pl.DataFrame:
        texts = [self._strings.of(batch[f"{n}_id"]).alias(n) for n in ("description", "opType")]
        ops = batch.with_columns(texts)
        work = ops.filter(~pl.col("opType").str.contains("(?i)barrier").fill_null(value=False))
        timed = work.filter((pl.col("start") > 0) & (pl.col("end") >= pl.col("start")))
        placed = timed.filter(small(pl.col("gpuId")).is_not_null())
        self.lost["barriers"] += ops.height - work.height
        self.lost["untimed"] += work.height - timed.height
        self.lost["unplaced"] += timed.height - placed.height
        known = self._launches.of(placed)
        self.lost["alone"] += known["pid"].null_count()
        return known.with_columns(
            pl.col("pid").fill_null(self._launches.pid),
            device=pl.col("gpuId").cast(pl.Int32),
            stream=pl.coalesce("kernel_stream", "copy_stream", "queueId"),
        )

    def _parts(self, ops: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame]]:
        is_copy = pl.col("opType").str.starts_with("Copy").fill_null(value=False)
        is_memset = (pl.col("opType") == "FillBuffer").fill_null(value=False)
        yield "copies", self._copies(ops.filter(is_copy))
        yield "memsets", memsets(ops.filter(is_memset))
        yield "kernels", self._kernels(ops.filter(~is_copy & ~is_memset))

    def _copies(self, ops: pl.DataFrame) -> pl.DataFrame:
        # Calls number GPUs otherwise than ops do, so that an end on another GPU is not known.
        none = pl.lit(None, pl.Int32)
        made = copies(ops.with_columns(src_device=none, dst_device=none), pl.col("opType"))
        between = (pl.col("kind") == "d2d") & pl.col("between").fill_null(value=False)
        self.lost["endless"] += made.filter(between).height
        ends = [pl.when(~between).then(end).alias(end) for end in ("src_device", "dst_device")]
        kind = pl.when(between).then(pl.lit("p2p")).otherwise(pl.col("kind").cast(pl.String))
        return made.with_columns(*ends, kind=kind.cast(made.schema["kind"]))

    def _kernels(self, ops: pl.DataFrame) -> pl.DataFrame:
        recorded_names = self._strings.of(ops["kernel_name_id"]).alias("given")
        described = pl.when(pl.col("description") != "").then("description")
        named = ops.with_columns(recorded_names).with_columns(name=pl.coalesce(described, "given"))
        return kernels(named.drop("bytes"), self._names)
