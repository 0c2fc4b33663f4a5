"""What the ops of each device add up to, kept with a run since many questions need it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from tracekit.engine._stage_sums import StageTally
from tracekit.model import DEVICE_SUMS, KERNEL_KINDS

if TYPE_CHECKING:
    from tracekit.model import Trace

_IS_OF_STAGE = pl.col("stage").is_not_null()
_IS_OF_SOURCE = pl.col("stage_source").is_not_null()


class DeviceSums:
    """Adds up the ops of a report while they are written."""

    def __init__(self) -> None:
        self._tally: StageTally | None = StageTally()
        self._kernels: list[pl.DataFrame] = []

    def add(self, ops: pl.DataFrame) -> None:
        """Count the next ops of the canonical table."""
        if self._tally is None or not self._tally.add(ops):
            self._tally = None  # where they do not come by start, unions take more than one go
            return
        is_kernel = pl.col("kind").is_in(list(KERNEL_KINDS))
        self._kernels.append(ops.group_by("device").agg(is_kernel.sum().alias("kernels")))

    def table(self) -> pl.DataFrame:
        """Return the canonical table `device_sums`; without rows if ops did not come by start."""
        if self._tally is None or not self._kernels:
            return DEVICE_SUMS.empty()
        kernels = pl.concat(self._kernels).group_by("device").agg(pl.col("kernels").sum())
        edges = self._tally.windows().select("window", "device", "start", "end")
        of_all = edges.join(kernels, on="device").join(self._tally.groups(), on="window")
        parts = (of_all, self._tally.stages(), self._tally.sources())
        sums = pl.concat([_of_devices(part) for part in parts], how="diagonal_relaxed")
        return DEVICE_SUMS.conform(sums.with_columns(report=0).sort("device", maintain_order=True))


def _of_devices(sums: pl.DataFrame) -> pl.DataFrame:
    return sums.with_columns(device="window").drop("window")


@dataclass(frozen=True)
class KeptSums:
    """What was added up of a run when it was ingested, as `StageTally` tells it of devices.

    Parameters
    ----------
    table
        The canonical table `device_sums`.
    """

    table: pl.DataFrame

    def windows(self) -> pl.DataFrame:
        """Return when devices began and ended."""
        edges = self._of(~_IS_OF_STAGE & ~_IS_OF_SOURCE, "start", "end")
        iteration = pl.lit(None, pl.Int64)
        return edges.with_columns(device="window", iteration=iteration).sort("window")

    def stages(self) -> pl.DataFrame:
        """Return ``window, stage, ops, busy_ns, exposed_ns``."""
        return self._of(_IS_OF_STAGE, "stage", "ops", "busy_ns", "exposed_ns")

    def groups(self) -> pl.DataFrame:
        """Return ``window, ops, kernels, launched, total_ns, busy_ns`` of all ops."""
        names = ("ops", "kernels", "launched", "total_ns", "busy_ns")
        return self._of(~_IS_OF_STAGE & ~_IS_OF_SOURCE, *names)

    def sources(self) -> pl.DataFrame:
        """Return ``window, stage_source, ops, busy_ns``."""
        return self._of(_IS_OF_SOURCE, "stage_source", "ops", "busy_ns")

    def _of(self, rows: pl.Expr, *columns: str) -> pl.DataFrame:
        return self.table.filter(rows).select(*columns, window="device")


def kept_sums(trace: Trace) -> KeptSums | None:
    """Return what is kept of a run; None where nothing is, as of several reports."""
    table = trace.read("device_sums")
    return None if table.is_empty() else KeptSums(table)
