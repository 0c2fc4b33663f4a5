"""GPU work: kernels, copies, memsets and whole CUDA graphs as one table of ops.

Every frame here still speaks of processes by global id (``process_gid``) and of GPUs by the
process's own CUDA ordinal (``ordinal``, ``src_ordinal``, ``dst_ordinal``).
"""

from __future__ import annotations

import polars as pl

from tracekit.sources._sqlite import SqliteFile, SqlType
from tracekit.sources.nsys._ids import Strings, given, small
from tracekit.sources.nsys._metadata import Metadata, shifted

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
MEMCPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSET = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPH = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
GPU_TABLES = (KERNEL, MEMCPY, MEMSET, GRAPH)

_HEAD: dict[str, SqlType] = {
    "start": "int",
    "end": "int",
    "deviceId": "int",
    "contextId": "int",
    "streamId": "int",
    "correlationId": "int",
    "globalPid": "int",
}

# What ENUM_CUDA_MEMCPY_OPER means in every version; the table itself may be absent or empty.
_COPY_KINDS = {
    0: ("Unknown", "unknown"),
    1: ("HtoD", "h2d"),
    2: ("DtoH", "d2h"),
    3: ("HtoA", "h2d"),
    4: ("AtoH", "d2h"),
    5: ("AtoA", "d2d"),
    6: ("AtoD", "d2d"),
    7: ("DtoA", "d2d"),
    8: ("DtoD", "d2d"),
    9: ("HtoH", "h2h"),
    10: ("PtoP", "p2p"),
    11: ("Unified HtoD", "h2d"),
    12: ("Unified DtoH", "d2h"),
    13: ("Unified DtoD", "d2d"),
}
_HOST_MEMORY = (0, 1)  # pageable, pinned
_DEVICE_MEMORY = (2, 3, 5)  # device, array, device static


def read_ops(file: SqliteFile, metadata: Metadata, strings: Strings) -> pl.DataFrame:
    """Return all GPU work of the export, without the launching calls."""
    parts = [_kernels(file, strings), _copies(file), _memsets(file), _graphs(file)]
    ops = pl.concat(parts, how="diagonal").rename(
        {
            "deviceId": "ordinal",
            "contextId": "context",
            "streamId": "stream",
            "correlationId": "correlation",
            "globalPid": "process_gid",
        }
    )
    return shifted(ops, metadata, "start", "end")


def _head(file: SqliteFile, table: str, extra: dict[str, SqlType]) -> pl.DataFrame:
    return file.read(table, {**_HEAD, **extra}).with_columns(
        small(pl.col("deviceId", "contextId")), given(pl.col("streamId"))
    )


def _kernels(file: SqliteFile, strings: Strings) -> pl.DataFrame:
    names = {"demangledName": "name", "shortName": "short_name"}
    extra: dict[str, SqlType] = dict.fromkeys([*names, "graphNodeId"], "int")
    frame = _head(file, KERNEL, extra)
    for ids, text in names.items():
        frame = strings.resolve(frame, ids, text)
    return frame.with_columns(
        kind=pl.lit("compute"),
        name=pl.coalesce("name", "short_name"),
        short_name=pl.coalesce("short_name", "name"),
    ).rename({"graphNodeId": "graph_node"})


def _copies(file: SqliteFile) -> pl.DataFrame:
    extra: dict[str, SqlType] = dict.fromkeys(
        ("bytes", "copyKind", "srcKind", "dstKind", "srcDeviceId", "dstDeviceId", "graphNodeId"),
        "int",
    )
    frame = _head(file, MEMCPY, extra)
    codes = list(_COPY_KINDS)
    name, kind = (
        pl.col("copyKind").replace_strict(
            codes,
            [row[i] for row in _COPY_KINDS.values()],
            default=_COPY_KINDS[0][i],
            return_dtype=pl.String,
        )
        for i in (0, 1)
    )
    return (
        frame.with_columns(
            copy_kind=name,
            kind=_kind_by_memory(kind),
            src_ordinal=small(pl.col("srcDeviceId")),
            dst_ordinal=small(pl.col("dstDeviceId")),
        )
        .with_columns(_copy_ends())
        .with_columns(kind=_kind_by_ends())
        .with_columns(name=pl.format("[CUDA memcpy {}]", "copy_kind"))
        .with_columns(short_name="name")
        .rename({"graphNodeId": "graph_node"})
        .drop("copyKind", "srcKind", "dstKind", "srcDeviceId", "dstDeviceId")
    )


def _kind_by_memory(kind: pl.Expr) -> pl.Expr:
    """Take the kind of a copy of unknown direction from the kinds of memory at its ends."""
    from_host, to_host = (
        pl.col("srcKind").is_in(_HOST_MEMORY),
        pl.col("dstKind").is_in(_HOST_MEMORY),
    )
    from_gpu = pl.col("srcKind").is_in(_DEVICE_MEMORY)
    to_gpu = pl.col("dstKind").is_in(_DEVICE_MEMORY)
    return (
        pl.when(kind != "unknown").then(kind)
        .when(from_host & to_gpu).then(pl.lit("h2d"))
        .when(from_gpu & to_host).then(pl.lit("d2h"))
        .when(from_gpu & to_gpu).then(pl.lit("d2d"))
        .when(from_host & to_host).then(pl.lit("h2h"))
        .otherwise(kind)
    )  # fmt: skip


def _copy_ends() -> list[pl.Expr]:
    """Fill in the GPU at the ends of a copy that names none: it is the one that ran the copy."""
    kind, here = pl.col("kind"), pl.col("deviceId")
    return [
        pl.when(kind == "p2p").then("src_ordinal")
        .when(kind.is_in(("d2h", "d2d"))).then(pl.coalesce("src_ordinal", here))
        .alias("src_ordinal"),
        pl.when(kind == "p2p").then("dst_ordinal")
        .when(kind.is_in(("h2d", "d2d"))).then(pl.coalesce("dst_ordinal", here))
        .alias("dst_ordinal"),
    ]  # fmt: skip


def _kind_by_ends() -> pl.Expr:
    """Call a device copy between two GPUs what it is."""
    between = (pl.col("kind") == "d2d") & (pl.col("src_ordinal") != pl.col("dst_ordinal"))
    return pl.when(between).then(pl.lit("p2p")).otherwise("kind")


def _memsets(file: SqliteFile) -> pl.DataFrame:
    frame = _head(file, MEMSET, {"bytes": "int", "graphNodeId": "int"})
    name = pl.lit("[CUDA memset]")
    return frame.with_columns(
        kind=pl.lit("memset"), name=name, short_name=name, dst_ordinal="deviceId"
    ).rename({"graphNodeId": "graph_node"})


def _graphs(file: SqliteFile) -> pl.DataFrame:
    frame = _head(file, GRAPH, {"graphId": "int"})
    name = pl.format("[CUDA graph {}]", pl.col("graphId").fill_null(0))
    return frame.with_columns(kind=pl.lit("graph"), name=name, short_name=name).drop("graphId")


def drop_unplaced(ops: pl.DataFrame, metadata: Metadata) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Drop ops that say not when, where or for whom they ran, and say how many."""
    # Times that are not known are 0, whether or not the exporter shifted that as well.
    unknown = (pl.col("start") == pl.col("end")) & pl.col("start").is_in((0, -metadata.time_shift))
    timed = ops.filter((pl.col("end") >= pl.col("start")) & ~unknown)
    placed = timed.drop_nulls(["ordinal", "process_gid"])
    losses = (
        (ops.height - timed.height, "valid times"),
        (timed.height - placed.height, "device or process"),
    )
    return placed, tuple(
        f"{count:,} GPU ops have no {what} and were left out" for count, what in losses if count
    )
