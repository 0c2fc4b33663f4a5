"""GPU memory in nsys exports: allocations and releases per process and GPU, and bytes in use."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from tracekit.sources._identities import small
from tracekit.sources._seen import Seen
from tracekit.sources.nsys._ids import Export
from tracekit.sources.nsys._metadata import shifted
from tracekit.sources.nsys._places import Places
from tracekit.support.spool import Workspace

MEMORY_USAGE = "CUDA_GPU_MEMORY_USAGE_EVENTS"

# Kinds of memory that lie on the GPU they are recorded for: device, array, static. Managed memory
# (4, 6) moves between GPUs and host as it is used, so an allocation of it occupies none yet.
_ON_GPU = (2, 3, 5)
_ALLOCATION, _RELEASE = 0, 1
_LARGEST = 1 << 50
"""More bytes than any GPU has; larger sizes are damaged."""

_COLUMNS = (
    "start", "globalPid", "deviceId", "address", "bytes", "memKind", "memoryOperationType",
)  # fmt: skip
_EVENT = {
    "start": pl.Int64, "process_gid": pl.Int64, "ordinal": pl.Int64, "address": pl.Int64,
    "bytes": pl.Int64,
}  # fmt: skip
_ADDRESS = ["process_gid", "address"]
_GPU = ["process_gid", "ordinal"]


class GpuMemory:
    """Allocations and releases of GPU memory that the program requested from the CUDA driver.

    A framework with a memory pool requests large blocks; how it uses them is not recorded.

    Parameters
    ----------
    workspace
        Folder and memory budget for events until they are sorted.
    """

    def __init__(self, export: Export, workspace: Workspace) -> None:
        self._export = export
        self._unclear = 0
        seen = Seen(self._events(workspace.rows), workspace, *_GPU)
        self._rows = seen.rows
        self.distinct = seen.distinct.drop_nulls()
        """``process_gid, ordinal``: processes and the GPUs on which they allocated."""

    def _events(self, rows: int) -> Iterator[pl.DataFrame]:
        """Yield allocations and releases of GPU memory; ``bytes`` is null for a release."""
        file, metadata = self._export.file, self._export.metadata
        for batch in file.batches(MEMORY_USAGE, dict.fromkeys(_COLUMNS, "int"), rows):
            on_gpu = batch.filter(pl.col("memKind").is_in(_ON_GPU))
            allocates = pl.col("memoryOperationType") == _ALLOCATION
            placed = pl.all_horizontal(pl.col("start", "globalPid", "address").is_not_null())
            releases = pl.col("memoryOperationType") == _RELEASE
            has_gpu = small(pl.col("deviceId")).is_not_null()
            sized = has_gpu & pl.col("bytes").is_between(0, _LARGEST)
            clear = on_gpu.filter(placed & (releases | (allocates & sized)))
            self._unclear += on_gpu.height - clear.height
            yield shifted(clear, metadata, "start").select(
                "start",
                "address",
                end="start",
                process_gid="globalPid",
                ordinal=pl.when(allocates).then("deviceId"),
                bytes=pl.when(allocates).then("bytes"),
            )

    def _changes(self) -> Iterator[pl.DataFrame]:
        """Yield the changes of GPU memory in use (each allocation and release), in order of time.

        An address is unique in a process, whatever the GPU, so any event at an address ends the
        allocation that was there before; an allocation then starts a new one.

        Returns
        -------
        ``process_gid`` (global id), ``ordinal`` (GPU), ``time`` (ns), ``change, in_use`` (bytes),
        ``recorded``. `ordinal` and `change` are null for releases without a recorded allocation;
        `recorded` is false for a release that must have happened before an allocation at the same
        address.
        """
        allocations = pl.DataFrame(schema=_EVENT)
        totals = pl.DataFrame(schema=dict.fromkeys((*_GPU, "total"), pl.Int64))
        for chunk in self._rows.chunks(_EVENT):
            before = allocations.with_columns(start=pl.lit(None, pl.Int64))
            events = pl.concat([before, chunk]).with_row_index("at")
            events = events.with_columns(
                pl.col("ordinal", "bytes").shift(1).over(_ADDRESS).name.prefix("last_")
            ).filter(pl.col("start").is_not_null())
            changes = (
                pl.concat([_released(events), _allocated(events)])
                .sort("at", "is_allocation")
                .join(totals, on=_GPU, how="left", nulls_equal=True, maintain_order="left")
                .with_columns(
                    in_use=pl.col("change").cum_sum().over(_GPU) + pl.col("total").fill_null(0)
                )
            )
            yield changes.select(*_GPU, "time", "change", "in_use", "recorded")
            latest = pl.concat([allocations, chunk]).unique(
                _ADDRESS, keep="last", maintain_order=True
            )
            allocations = latest.drop_nulls("bytes")
            totals = _latest(totals, changes)

    def batches(self, places: Places) -> Iterator[pl.DataFrame]:
        """Yield the table ``memory``: changes of GPU memory in use, sorted by time."""
        for changes in self._changes():
            yield _placed(changes, places).select("process", "device", "time", "change", "in_use")

    def losses(self, places: Places) -> tuple[str, ...]:
        """Warnings, one sentence each, on allocations and releases left out or incomplete."""
        unheld = unrecorded = unplaced = 0
        for changes in self._changes():
            known = changes.drop_nulls("change")
            unheld += changes.height - known.height
            unrecorded += int((~known["recorded"]).sum())
            unplaced += known.height - _placed(known, places).height
        losses = (
            (self._unclear, "are incomplete and were left out"),
            (unheld, "are releases of what was allocated before recording began"),
            (unrecorded, "are releases that were not recorded, but must have happened"),
            (unplaced, "are on a GPU that is not known, and were left out"),
        )
        return tuple(f"{count:,} GPU memory events {problem}" for count, problem in losses if count)


def _released(events: pl.DataFrame) -> pl.DataFrame:
    """Return the releases of GPU memory, recorded or implied, one row each.

    A release is implied (``recorded`` is false) where an allocation follows another one at the same
    address. ``change`` is minus the size of the allocation that ends, bytes; null if that is
    unknown.
    """
    is_release = pl.col("bytes").is_null()
    return events.filter(is_release | pl.col("last_bytes").is_not_null()).select(
        "at",
        "process_gid",
        pl.col("last_ordinal").alias("ordinal"),
        pl.col("start").alias("time"),
        change=-pl.col("last_bytes"),
        is_allocation=pl.lit(value=False),
        recorded=is_release,
    )


def _allocated(events: pl.DataFrame) -> pl.DataFrame:
    return events.drop_nulls("bytes").select(
        "at",
        *_GPU,
        pl.col("start").alias("time"),
        change="bytes",
        is_allocation=pl.lit(value=True),
        recorded=pl.lit(value=True),
    )


def _latest(totals: pl.DataFrame, changes: pl.DataFrame) -> pl.DataFrame:
    """Return the memory in use, bytes, by process and GPU: `totals` updated by `changes`."""
    now = changes.drop_nulls("change").select(*_GPU, total="in_use")
    return pl.concat([totals, now]).unique(_GPU, keep="last", maintain_order=True)


def _placed(changes: pl.DataFrame, places: Places) -> pl.DataFrame:
    """Return the changes of memory whose process and GPU are known, with the indices of both."""
    known = changes.drop_nulls("change")
    process = places.process(known["process_gid"])
    return known.with_columns(
        process.alias("process"), places.device(process, known["ordinal"]).alias("device")
    ).drop_nulls(["process", "device"])
