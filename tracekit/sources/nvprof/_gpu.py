"""GPU work: kernels, copies, memsets and whole CUDA graphs as one table of ops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import polars as pl

from tracekit.model import KIND
from tracekit.sources._copies import graphs, memsets
from tracekit.sources._export_tables import Strings
from tracekit.sources._identities import small
from tracekit.sources._kernel_names import KernelNames
from tracekit.sources._launch_size import LAUNCH_SIZE, launch_size
from tracekit.sources._seen import counted
from tracekit.sources.nvprof._input import COPIES, TABLE, owned, timed
from tracekit.sources.sqlite import SqliteFile

CONCURRENT, SERIAL = f"{TABLE}CONCURRENT_KERNEL", f"{TABLE}KERNEL"
MEMCPY, PEER_COPY = f"{TABLE}MEMCPY", f"{TABLE}MEMCPY2"
MEMSET, GRAPH = f"{TABLE}MEMSET", f"{TABLE}GRAPH_TRACE"
KERNEL_TABLES = (CONCURRENT, SERIAL)
GPU_TABLES = (*KERNEL_TABLES, MEMCPY, PEER_COPY, MEMSET, GRAPH)
GPU_COLUMNS = ("start", "end", "deviceId", "correlationId")

_HEAD = (*GPU_COLUMNS, "contextId", "streamId", "graphNodeId")
_IDENTITY = ("start", "end", "deviceId", "streamId", "correlationId")

_LOST = {
    "untimed": "GPU ops have no valid times and were left out",
    "unplaced": "GPU ops have no device and were left out",
    "twice": "kernels are in two tables and were counted once",
    "ownerless": "GPU ops could be of several of the processes in the file and were left out: "
    "record each process in a file of its own (`nvprof -o run_%p.nvvp`)",
}


class GpuWork:
    """All GPU work of a database, not yet joined with launching calls.

    Parameters
    ----------
    file
        The database.
    strings
        Strings of the database.
    owners
        Process of the ops: one process id for all, or ``correlation, pid``.
    """

    def __init__(self, file: SqliteFile, strings: Strings, owners: int | pl.DataFrame) -> None:
        self._file = file
        self._strings, self._names = strings, KernelNames()
        self._owners = owners
        self.rows: dict[str, int] = dict.fromkeys(GPU_TABLES, 0)
        """Table -> number of rows read."""
        self._kept: dict[str, int] = dict.fromkeys(GPU_TABLES, 0)
        self._lost: Counter[str] = Counter()

    def batches(self, rows: int) -> Iterator[pl.DataFrame]:
        """Yield the ops that have a time, a device and a process, table by table."""
        for table, (extra, make) in _TABLES.items():
            for batch in self._file.batches(table, dict.fromkeys((*_HEAD, *extra), "int"), rows):
                self.rows[table] += batch.height
                placed = self._placed(self._once(batch, table))
                self._kept[table] += placed.height
                made = make(self, placed)
                yield made.select(name for name in _KEPT if name in made.columns)

    @property
    def has_kernels(self) -> bool:
        """True if there is any kernel, or CUDA graph recorded as a whole."""
        return any(self._kept[table] for table in (*KERNEL_TABLES, GRAPH))

    @property
    def untimed(self) -> int:
        """Number of ops left out because they have no valid times."""
        return self._lost["untimed"]

    @property
    def losses(self) -> tuple[str, ...]:
        """Sentences on ops that were left out."""
        return counted(self._lost, _LOST)

    def _once(self, batch: pl.DataFrame, table: str) -> pl.DataFrame:
        """Drop kernels that the other table of kernels contains as well."""
        if table != SERIAL or not self.rows[CONCURRENT]:
            return batch
        others = self._file.read(CONCURRENT, dict.fromkeys(_IDENTITY, "int"))
        once = batch.join(others, on=_IDENTITY, how="anti", maintain_order="left")
        self._lost["twice"] += batch.height - once.height
        return once

    def _placed(self, ops: pl.DataFrame) -> pl.DataFrame:
        valid = timed(ops)
        placed = valid.rename(_RENAMED).with_columns(
            device=small(pl.col("deviceId")).cast(pl.Int32)
        )
        placed = placed.drop_nulls("device")
        known = owned(placed, self._owners)
        self._lost["untimed"] += ops.height - valid.height
        self._lost["unplaced"] += valid.height - placed.height
        self._lost["ownerless"] += placed.height - known.height
        return known.with_columns(
            context=small(pl.col("contextId")).cast(pl.Int32),
            graph_node=pl.when(pl.col("graphNodeId") != 0).then("graphNodeId"),
        )

    def kernels(self, ops: pl.DataFrame) -> pl.DataFrame:
        """Add kind, full name, short name and launch size to kernels."""
        ids = ops["name"].unique()
        names = pl.DataFrame([ids.alias("id"), *self._names.of(self._strings.of(ids))])
        named = ops.rename({"name": "id"}).join(names, on="id", how="left", maintain_order="left")
        return named.with_columns(kind=pl.lit("compute", KIND), launch_size=launch_size(ops))


def _copies(_work: GpuWork, ops: pl.DataFrame) -> pl.DataFrame:
    none = pl.lit(None, pl.Int32)
    return _classified(ops.with_columns(src_device=none, dst_device=none))


def _peer_copies(_work: GpuWork, ops: pl.DataFrame) -> pl.DataFrame:
    return _classified(
        ops.with_columns(
            src_device=small(pl.col("srcDeviceId")).cast(pl.Int32),
            dst_device=small(pl.col("dstDeviceId")).cast(pl.Int32),
        )
    )


def _classified(copies: pl.DataFrame) -> pl.DataFrame:
    return COPIES.ended(COPIES.directed(copies))


_COPY = ("bytes", "copyKind", "srcKind", "dstKind")
_TABLES: dict[str, tuple[tuple[str, ...], Callable[[GpuWork, pl.DataFrame], pl.DataFrame]]] = {
    CONCURRENT: (("name", *LAUNCH_SIZE), GpuWork.kernels),
    SERIAL: (("name", *LAUNCH_SIZE), GpuWork.kernels),
    MEMCPY: (_COPY, _copies),
    PEER_COPY: ((*_COPY, "srcDeviceId", "dstDeviceId"), _peer_copies),
    MEMSET: (("bytes",), lambda _, ops: memsets(ops)),
    GRAPH: (("graphId",), lambda _, ops: graphs(ops)),
}
"""Table -> columns that are read beside the common ones, and the function that makes ops."""
_RENAMED = {"correlationId": "correlation", "streamId": "stream"}
_KEPT = (
    "start", "end", "pid", "device", "context", "stream", "correlation", "graph_node", "name",
    "short_name", "kind", "bytes", "copy_kind", "host_memory", "src_device",
    "dst_device", "launch_size",
)  # fmt: skip
