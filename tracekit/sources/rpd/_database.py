"""From a database's tables to the canonical ones."""

from __future__ import annotations

import polars as pl

from tracekit.model import Recording
from tracekit.sources._amd import absences, nothing
from tracekit.sources._identities import HOST, OPS, Identities, contents, report, steps
from tracekit.sources._seen import Seen
from tracekit.sources._tables import check_columns, coercions
from tracekit.sources._times import Times
from tracekit.sources.rpd._gpu import GpuWork
from tracekit.sources.rpd._host import API, OPERATORS, Host, Launches
from tracekit.sources.rpd._input import OP, STRINGS, Strings
from tracekit.sources.sqlite import SqliteFile
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
