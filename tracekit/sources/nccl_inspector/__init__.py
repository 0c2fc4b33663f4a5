"""Logs of NCCL's inspector: how long each rank spent in each collective.

Only verbose logs contain the times at which collectives ran; without these times they are no
traces. In formats 4.0 to 4.2 each line repeats the communicator. From 4.3 on a line with
``dump_stats`` names it, with the number of following lines that belong to it.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from tracekit.errors import (
    DamagedTraceError,
    InputError,
    NotATraceError,
    UnsupportedTraceError,
)
from tracekit.support.files import StrPath

__all__ = ["DROPPED_SCHEMA", "RECORD_SCHEMA", "InspectorLogs", "read_inspector_logs"]

RECORD_SCHEMA: Mapping[str, Any] = {
    "communicator": pl.String,
    "name": pl.String,
    "rank": pl.Int64,
    "ranks": pl.Int64,
    "host": pl.String,
    "pid": pl.Int64,
    "collective": pl.String,
    "sequence": pl.Int64,
    "peer": pl.Int64,
    "message_bytes": pl.Int64,
    "length": pl.Int64,
    "timing": pl.String,
    "algorithm": pl.String,
    "protocol": pl.String,
    "algorithm_bandwidth": pl.Float64,
    "bus_bandwidth": pl.Float64,
    "start": pl.Int64,
    "end": pl.Int64,
}
"""Columns. ``communicator``: its hash; ``name``: null if NCCL knows none; ``sequence``: counts the
calls of one collective in a communicator; ``peer``: null except for messages; ``message_bytes``:
per rank; ``length``: ns, in whole microseconds; ``timing``: how it was measured; bandwidths:
NCCL's, GB/s; ``start`` and ``end``: of the kernel, host's Unix time, ns, in verbose logs only."""

DROPPED_SCHEMA: Mapping[str, Any] = {
    "communicator": pl.String, "rank": pl.Int64, "dropped": pl.Int64
}  # fmt: skip
"""Columns. ``dropped``: number of collectives that the ring overwrote, as NCCL counts them."""

_COLLECTIVES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "sendrecv": "send_recv",
}
_LOG = re.compile(rb'^\s*\{.*"(coll_perf|p2p_perf|dump_stats|proxy_trace)"', re.DOTALL)
_GZIP = b"\x1f\x8b"
_HEAD = 4096
_BLOCK = 1 << 22
_MOST_LINE = 1 << 24
"""Largest length of a line, bytes; verbose lines take a few kilobytes."""
_MOST_DAMAGED = 100
_MOST_RECORDS = 1 << 25
_MOST_US = _MOST_CALLS = 1 << 52
_MOST_RANKS, _MOST_BYTES = 1 << 20, 1 << 43
"""Limits by which the sum over all ranks of a call fits into 63 bits."""

_S, _I, _F = pl.String, pl.Int64, pl.Float64
_KERNELS = pl.List(pl.Struct({"kernel_start_ts": _I, "kernel_stop_ts": _I}))
_TRACE = pl.Struct({"kernel_events": _KERNELS})


def _perf(kind: str, **more: Any) -> pl.Struct:
    types = {"sn": _I, "msg_size_bytes": _I, "exec_time_us": _F, "timing_source": _S,
           "algo": _S, "proto": _S, "algobw_gbs": _F, "busbw_gbs": _F}  # fmt: skip
    named = {f"{kind}_{name}": dtype for name, dtype in types.items()}
    return pl.Struct({kind: _S, **named, **more, "event_trace_ts": _TRACE})


_COUNTS = ("coll_records", "p2p_records", "proxy_records")
_LINE: Mapping[str, Any] = {
    "header": pl.Struct({"id": _S, "comm_name": _S, "rank": _I, "n_ranks": _I}),
    "metadata": pl.Struct({"hostname": _S, "pid": _I}),
    "coll_perf": _perf("coll"),
    "p2p_perf": _perf("p2p", p2p_peer=_I),
    "dump_stats": pl.Struct({**dict.fromkeys(_COUNTS, _I), "coll_dropped_total": _I}),
    "proxy_trace": pl.Struct({"record_sn": _I}),
}
_NOTHING = pl.DataFrame({name: [None] for name in _LINE}, schema=dict(_LINE))
_OWN = ("communicator", "name", "rank", "ranks", "host", "pid")


@dataclass(frozen=True)
class InspectorLogs:
    """Contents of the logs that NCCL's inspector wrote in one job."""

    records: pl.DataFrame
    """One row per collective or message of a rank, by `RECORD_SCHEMA`."""
    dropped: pl.DataFrame
    """Number of records that ring buffers lost, by `DROPPED_SCHEMA`; empty before format 4.2."""
    warnings: Sequence[str] = ()
    """Lines and files that were left out, one sentence each."""


def read_inspector_logs(paths: Sequence[StrPath]) -> InspectorLogs:
    """Read the logs that NCCL's inspector wrote in one job.

    Parameters
    ----------
    paths
        Files, gzipped or not, or folders, whose other files are skipped.

    Raises
    ------
    InputError
        If a file cannot be read.
    NotATraceError
        If a named file is no log, or a folder contains none.
    DamagedTraceError
        If a log contains no complete record, or more than a hundred damaged lines.
    UnsupportedTraceError
        If there are more than 2^25 records.
    """
    records, dropped, warnings, count = [], [], [], 0
    for path in _logs(paths):
        rows, notes = _with_communicators(_read_lines(path), path)
        warnings += notes
        records.append(_records(rows))
        known = rows.drop_nulls(["communicator", "rank", "dropped"])
        dropped.append(known.select(list(DROPPED_SCHEMA)))
        count += records[-1].height
        if count > _MOST_RECORDS:
            raise UnsupportedTraceError(
                f"these logs have more than {_MOST_RECORDS:,} records", "give some of them"
            )
    return InspectorLogs(
        pl.concat(records),
        pl.concat(dropped).group_by("communicator", "rank").agg(pl.col("dropped").max()),
        warnings,
    )


def _logs(paths: Sequence[StrPath]) -> Sequence[Path]:
    """Return the log files in `paths` (files or folders), each once."""
    found: dict[Path, Path] = {}
    for path in map(Path, paths):
        if path.is_dir():
            inside = [each for each in sorted(path.iterdir()) if _is_log(each)]
            if not inside:
                raise NotATraceError(f"no log of NCCL's inspector is in {path}")
        elif not path.exists():
            raise InputError(f"no file {path}", "check the path")
        elif not _is_log(path, if_damaged=True):
            raise NotATraceError(
                f"{path} has no record of NCCL's inspector",
                "its lines are JSON with coll_perf: NCCL_INSPECTOR_ENABLE=1",
            )
        else:
            inside = [path]
        found.update({each.resolve(): each for each in inside})
    if not found:
        raise InputError("no log was given", "name files, or a folder of them")
    return list(found.values())


def _is_log(path: Path, *, if_damaged: bool = False) -> bool:
    try:
        return path.is_file() and _LOG.match(next(_blocks(path, _HEAD), b"")) is not None
    except DamagedTraceError:
        return if_damaged


def _blocks(path: Path, size: int) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            packed = file.read(2) == _GZIP
        with (gzip.open if packed else open)(path, "rb") as stream:
            while block := stream.read(size):
                yield block
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DamagedTraceError(f"{path} is cut or damaged ({error})", "copy it again") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})", "check the path") from error


@dataclass
class _Lines:
    """Parsed lines of a log file, one row per line."""

    rows: list[pl.DataFrame]
    is_cut: bool = False


def _read_lines(path: Path) -> _Lines:
    parser, rest = _Parser(path), b""
    found = _Lines([_flat(_NOTHING.clear())])
    for block in _blocks(path, _BLOCK):
        complete, newline, rest_of = (rest + block).rpartition(b"\n")
        rest = rest_of
        if newline:
            found.rows.append(_flat(parser.parse(complete)))
        if len(rest) > _MOST_LINE:
            raise DamagedTraceError(f"{path}: a line is longer than {_MOST_LINE:,} bytes")
    if rest.strip():
        last = parser.parse(rest)
        found.is_cut = last.select(pl.all_horizontal(pl.all().is_null())).item()
        found.rows += [] if found.is_cut else [_flat(last)]
    return found


@dataclass
class _Parser:
    """Parses blocks of log lines; a line that cannot be parsed becomes a row of nulls."""

    path: Path
    damaged: int = 0

    def parse(self, text: bytes) -> pl.DataFrame:
        """Parse a block of lines; return a row for each line that is not blank."""
        lines = re.sub(rb"\n\s+", b"\n", text.strip()).split(b"\n")
        return pl.concat(self._parse(lines) if lines != [b""] else [_NOTHING.clear()])

    def _parse(self, lines: Sequence[bytes]) -> list[pl.DataFrame]:
        try:
            rows = pl.read_ndjson(b"\n".join(lines), schema=dict(_LINE), ignore_errors=True)
            if rows.height == len(lines):
                return [rows]
        except pl.exceptions.ComputeError:
            pass
        if len(lines) == 1:
            self.damaged += 1
            if self.damaged > _MOST_DAMAGED:
                raise DamagedTraceError(
                    f"{self.path}: more than {_MOST_DAMAGED} lines are damaged", "copy it again"
                )
            return [_NOTHING]
        half = len(lines) // 2
        return [*self._parse(lines[:half]), *self._parse(lines[half:])]


def _flat(rows: pl.DataFrame) -> pl.DataFrame:
    """Return a row per line: communicator, and its record or the number of its lines to follow."""
    header, meta = pl.col("header").struct, pl.col("metadata").struct
    stats = pl.col("dump_stats").struct

    def of(field: str) -> pl.Expr:
        kinds = [kind for kind in ("coll", "p2p") if field != "peer" or kind == "p2p"]
        return pl.coalesce(
            pl.col(f"{kind}_perf").struct.field(f"{kind}_{field}" if field else kind)
            for kind in kinds
        )

    kernels = pl.coalesce(
        pl.col(f"{kind}_perf").struct.field("event_trace_ts").struct.field("kernel_events")
        for kind in ("coll", "p2p")
    ).list
    name = of("")
    plain = name.str.to_lowercase().str.replace_all("_", "")
    is_named = ~header.field("comm_name").is_in(["", "unknown"])
    return rows.select(
        communicator=header.field("id"),
        name=pl.when(is_named).then(header.field("comm_name")),
        rank=header.field("rank"),
        ranks=header.field("n_ranks"),
        host=meta.field("hostname"),
        pid=meta.field("pid"),
        batch=pl.when(pl.col("dump_stats").is_not_null()).then(
            pl.sum_horizontal(stats.field(each).fill_null(0) for each in _COUNTS)
        ),
        dropped=stats.field("coll_dropped_total"),
        is_proxy=pl.col("proxy_trace").is_not_null(),
        collective=plain.replace(_COLLECTIVES),
        sequence=of("sn"),
        peer=of("peer"),
        is_message=pl.col("p2p_perf").is_not_null(),
        message_bytes=of("msg_size_bytes"),
        time_us=of("exec_time_us"),
        timing=of("timing_source"),
        algorithm=_lower(of("algo")),
        protocol=_lower(of("proto")),
        algorithm_bandwidth=of("algobw_gbs"),
        bus_bandwidth=of("busbw_gbs"),
        start=_time(kernels.eval(pl.element().struct.field("kernel_start_ts")).list.min()),
        end=_time(kernels.eval(pl.element().struct.field("kernel_stop_ts")).list.max()),
    )


def _lower(text: pl.Expr) -> pl.Expr:
    lower = text.str.to_lowercase()
    return pl.when(~lower.is_in(["", "unknown"])).then(lower)


def _time(us: pl.Expr) -> pl.Expr:
    return pl.when((us > 0) & (us < _MOST_US)).then(us) * 1000


def _with_communicators(lines: _Lines, path: Path) -> tuple[pl.DataFrame, list[str]]:
    """Give each line its communicator: the one it names, else that of the batch it belongs to."""
    rows = pl.concat(lines.rows).with_row_index("line", 1)
    has = pl.col("communicator").is_not_null()
    rows = rows.with_columns(at=pl.when(has).then(pl.int_range(pl.len())).forward_fill())
    batch = pl.col("batch").gather(pl.col("at")).fill_null(0)
    belongs = pl.int_range(pl.len()) - pl.col("at") <= batch
    rows = rows.with_columns(at=pl.when(has | belongs).then("at")).with_columns(
        pl.col(name).gather(pl.col("at")) for name in _OWN
    )
    rows = rows.with_columns(is_record=_is_record().fill_null(value=False))
    other = rows.filter(~pl.col("is_record"), pl.col("batch").is_null(), ~pl.col("is_proxy"))
    notes = [f"{path.name}: its last line is cut"] if lines.is_cut else []
    if other.height:
        notes.append(
            f"{path.name}: {other.height:,} of {rows.height:,} lines are incomplete and were "
            f"left out, the first is line {other['line'][0]:,}"
        )
    if not rows["is_record"].any() and rows["batch"].null_count() == rows.height:
        raise DamagedTraceError(f"{path} has no complete record of a collective", "copy it again")
    return rows, notes


def _is_record() -> pl.Expr:
    rank, time = pl.col("rank"), pl.col("time_us")
    return (
        pl.all_horizontal(pl.col("communicator", "collective").is_not_null())
        & (rank >= 0)
        & (rank < pl.col("ranks"))
        & (pl.col("ranks") <= _MOST_RANKS)
        & pl.col("sequence").is_between(0, _MOST_CALLS)
        & (pl.col("message_bytes") >= 0)
        & (pl.col("message_bytes") < _MOST_BYTES)
        & (time >= 0)
        & (time < _MOST_US)
        & (pl.col("peer").is_not_null() | ~pl.col("is_message"))
    )


def _records(rows: pl.DataFrame) -> pl.DataFrame:
    both = pl.col("start").is_not_null() & (pl.col("end") >= pl.col("start"))
    return (
        rows.filter("is_record")
        .with_columns(
            length=(pl.col("time_us") * 1000).round().cast(pl.Int64),
            start=pl.when(both).then("start"),
            end=pl.when(both).then("end"),
        )
        .select(pl.col(name).cast(dtype) for name, dtype in RECORD_SCHEMA.items())
    )
