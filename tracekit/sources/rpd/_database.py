"""From a database's tables to the canonical ones.

GPU work is kernels, copies and memsets, those of graphs among them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import polars as pl

from tracekit.model import Recording
from tracekit.sources._amd import KernelNames, absences, copies, kernels, memsets, nothing
from tracekit.sources._identities import HOST, INT32, OPS, Identities, contents, report, steps
from tracekit.sources._seen import Seen, counted
from tracekit.sources._tables import check_columns, coercions
from tracekit.sources._times import Times
from tracekit.sources.rpd._host import API, OPERATORS, Host, Launches
from tracekit.sources.rpd._input import OP, STRINGS, Strings
from tracekit.sources.sqlite import SqliteFile, SqlType
from tracekit.support.progress import Progress
from tracekit.support.spool import Workspace

FORMAT = "RPD SQLite"
_RECORD = "runTracer.sh -o run.rpd PROGRAM"
_MARK = "roctx or rpdTracerControl in the program; PyTorch: torch.autograd.profiler.emit_nvtx()"
_REQUIRED = {
    API: ("id", "start", "end", "pid", "tid", "apiName_id"),
    OP: ("id", "start", "end", "gpuId", "opType_id"),
}
_FEATURES = (
    ("kernels", OP, "GPU time by stage and kernel", _RECORD),
    ("copies", OP, "input data and peer copies", _RECORD),
    ("memsets", OP, "GPU time of memsets", _RECORD),
    ("HIP calls", API, "which thread launched an op, and when", _RECORD),
    ("markers", API, "stages, layers and iterations", _MARK),
    ("operators", OPERATORS, "which forward op a backward op is of", _MARK),
    ("clock rates", "rocpd_monitor", "nothing that is read yet", _RECORD),
)


def is_rpd(file: SqliteFile) -> bool:
    """Tell whether an SQLite file is an RPD."""
    return file.has(STRINGS, "id", "string") and (file.has(API, "id") or file.has(OP, "id"))


def read(file: SqliteFile, workspace: Workspace, progress: Progress = lambda *_: None) -> Recording:
    """Return the canonical tables of an RPD; stages and launches are not attributed yet.

    Times are of a clock of the machine and count from the first event here, and no Unix time is
    known. An op's correlation id is the number of the call that launched it.

    Raises
    ------
    MissingDataError
        If the file holds no GPU work and no markers.
    DamagedTraceError
        If a table cannot be read.
    """
    check_columns(file, _REQUIRED, f"record again with {_RECORD}")
    file.times = Times(file.path, file.first_times({OP: "start", API: "start"}))
    rows = workspace.rows
    told = steps(progress, "HIP calls", "markers", "GPU work")
    next(told)
    host = Host(file, Strings(file))
    calls = Seen(host.calls(rows), workspace, *HOST)
    next(told)
    ranges = Seen(host.markers(rows), workspace, *HOST)
    next(told)
    work = GpuWork(file, host.strings, Launches(file, host, rows))
    ops = Seen(work.batches(rows), workspace, *OPS)
    next(told)
    if not len(ops) and not len(ranges):
        raise nothing(file.path, "RPD", calls, work.lost["untimed"], _RECORD)
    who = Identities(ops, calls, ranges)
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
            "processes": who.processes({}),
            "threads": who.threads(),
            "devices": who.devices(ops.distinct.select("device").drop_nulls(), "assumed"),
            "reports": report(
                file.path, FORMAT,
                product="rocmProfileData", schema_version=version[0] if len(version) else None,
            ),
            "contents": contents(_FEATURES, counts),
        },
        streams=who.streams(),
        warnings=(
            *absences(ops, calls, ranges, _RECORD, _MARK),
            *work.losses,
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
    "untimed": "GPU ops have no valid times and were left out",
    "unplaced": "GPU ops have no device and were left out",
    "barriers": "barriers are no GPU work and were left out",
    "alone": "GPU ops have no call, and were taken to be of the process that launched most others",
    "endless": "copies between GPUs do not say between which",
}


class GpuWork:
    """All GPU work of a database.

    Parameters
    ----------
    file
        The database.
    strings
        Its texts.
    launches
        Which call launched which op.
    """

    def __init__(self, file: SqliteFile, strings: Strings, launches: Launches) -> None:
        self._file, self._strings, self._launches = file, strings, launches
        self._names = KernelNames()
        self.counts: Counter[str] = Counter()
        """How many kernels, copies and memsets there are."""
        self.lost: Counter[str] = Counter()
        """How many ops were left out, or lack something, by reason."""

    def batches(self, rows: int) -> Iterator[pl.DataFrame]:
        """Return the ops with a time and a device."""
        for batch in self._file.batches(OP, _COLUMNS, rows):
            ops = self._placed(batch)
            for feature, part in self._parts(ops):
                self.counts[feature] += part.height
                yield part.select(name for name in _KEPT if name in part.columns)

    @property
    def losses(self) -> tuple[str, ...]:
        """Ops that were left out, in words."""
        return counted(self.lost, _LOST)

    def _placed(self, batch: pl.DataFrame) -> pl.DataFrame:
        texts = [self._strings.of(batch[f"{n}_id"]).alias(n) for n in ("description", "opType")]
        ops = batch.with_columns(texts)
        work = ops.filter(~pl.col("opType").str.contains("(?i)barrier").fill_null(value=False))
        timed = work.filter((pl.col("start") > 0) & (pl.col("end") >= pl.col("start")))
        placed = timed.filter(pl.col("gpuId").is_between(0, INT32))
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
        given = self._strings.of(ops["kernel_name_id"]).alias("given")
        described = pl.when(pl.col("description") != "").then("description")
        named = ops.with_columns(given).with_columns(name=pl.coalesce(described, "given"))
        return kernels(named.drop("bytes"), self._names)
