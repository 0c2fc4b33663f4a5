"""Busy time, exposed time and op counts by stage and window (time interval), in one pass by start.

The sums per device of a report are computed while it is ingested, and stored with the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracekit.engine._lines import LinesInWindows, extended
from tracekit.engine._sweep_loops import Ops, Reached, Sums, sweep
from tracekit.model import DEVICE_SUMS, KERNEL_KINDS, STAGE, STAGE_SOURCE, STAGE_SOURCES, STAGES
from tracekit.support.compiled import compiled, given

if TYPE_CHECKING:
    from tracekit.model import Frames, Trace

Array: TypeAlias = NDArray[Any]

_IS_OF_STAGE = pl.col("stage").is_not_null()
_IS_OF_SOURCE = pl.col("stage_source").is_not_null()
_NO_STEP = pl.lit(None, pl.Int64)
_SUMMED = ("window", "ops", "busy_ns")


class DeviceSums:
    """Adds up ops by device and stage while a trace file is ingested and its tables are written."""

    def __init__(self) -> None:
        self._tally: StageTally | None = StageTally()
        self._kernels: list[pl.DataFrame] = []

    def add(self, ops: pl.DataFrame) -> None:
        """Add the next chunk of ops to the sums; ops come ordered by start."""
        if self._tally is None or not self._tally.add(ops):
            self._tally = None  # where they do not come by start, unions take more than one go
            return
        is_kernel = pl.col("kind").is_in(list(KERNEL_KINDS))
        self._kernels.append(ops.group_by("device").agg(is_kernel.sum().alias("kernels")))

    def table(self) -> pl.DataFrame:
        """Return the canonical table `device_sums`; empty if ops were not ordered by start."""
        if self._tally is None or not self._kernels:
            return DEVICE_SUMS.empty()
        kernels = pl.concat(self._kernels).group_by("device").agg(pl.col("kernels").sum())
        edges = self._tally.windows().select("window", "device", "start", "end")
        of_all = edges.join(kernels, on="device").join(self._tally.groups(), on="window")
        parts = (of_all, self._tally.stages(), self._tally.sources())
        sums = pl.concat(parts, how="diagonal_relaxed").with_columns(device="window", report=0)
        return DEVICE_SUMS.conform(sums.sort("device", maintain_order=True))


@dataclass(frozen=True)
class StageSums:
    """Op counts, busy time and exposed time by stage (such as FP, BP, WU) and window.

    A window is an interval of a device's time, such as a step. Busy time is the length of the union
    of the ops' intervals; exposed time is the part of it in which no stage of higher precedence
    runs.
    """

    windows: pl.DataFrame
    """The windows; with one window per device, it spans the device's first op to its last."""
    stages: pl.DataFrame
    """``window, stage, ops, busy_ns, exposed_ns``."""
    groups: pl.DataFrame
    """``window, ops, launched`` (with a known call), ``total_ns, busy_ns`` of each window's ops."""
    sources: pl.DataFrame
    """``window, stage_source, ops, busy_ns`` by the evidence that the stage was derived from."""

    def frames(self) -> Frames:
        """Return the sums as frames by name."""
        return vars(self)

    @classmethod
    def merged(cls, parts: Sequence[Frames]) -> StageSums:
        """Concatenate the sums (`frames`) of parts of a run; each window is in one part."""
        return cls(**{name: pl.concat([part[name] for part in parts]) for name in parts[0]})


def kept_sums(trace: Trace) -> StageSums | None:
    """Return the sums by device and stage that were stored at ingest; None if they cannot be used.

    Each device is one window. The field `groups` has a further column ``kernels``, the number of
    kernels. The stored sums cannot be used if a GPU was recorded in two files, as busy times then
    do not add up.
    """
    table = trace.read("device_sums").rename({"device": "window"})
    if table.is_empty():
        return None
    of_all = table.filter(~_IS_OF_STAGE & ~_IS_OF_SOURCE)
    edges = of_all.select("window", "start", "end", device="window", iteration=_NO_STEP)
    return StageSums(
        windows=edges.sort("window"),
        stages=table.filter(_IS_OF_STAGE).select(*_SUMMED, "stage", "exposed_ns"),
        groups=of_all.select(*_SUMMED, "kernels", "launched", "total_ns"),
        sources=table.filter(_IS_OF_SOURCE).select(*_SUMMED, "stage_source"),
    )


_EVER = 1 << 62
_STAGES = pl.Series(STAGES, dtype=STAGE)
_SOURCES = pl.Series(STAGE_SOURCES, dtype=STAGE_SOURCE)


class StageTally:
    """Adds up ops (GPU work) by window: by stage, by evidence for the stage, and in total.

    A window is an interval of a device's time, such as a step. The evidence is the column
    ``stage_source``, such as a range name.

    Parameters
    ----------
    of_pieces
        Whether the rows are not GPU ops, but pieces of NVTX ranges (host time). Each range then
        adds 1 to the number of ops, at its first piece (`is_first`).
    of_stages_alone
        Whether to add up stages only: sources and launches are not read.
    values
        Possible values of the columns ``stage`` (in order of precedence) and ``stage_source``: for
        a caller that puts other classes of ops than stages into these columns.
    """

    def __init__(
        self, *, of_pieces: bool = False, of_stages_alone: bool = False,
        values: tuple[pl.Series, pl.Series] = (_STAGES, _SOURCES),
    ) -> None:  # fmt: skip
        self._of_pieces = of_pieces
        self._of_stages_alone = of_stages_alone
        self._stages, self._sources = values
        self.begin(None)

    @property
    def columns(self) -> Sequence[str]:
        """Names of the columns of ops that this aggregator reads."""
        pieces = ("is_first",) if self._of_pieces else ()
        others = () if self._of_stages_alone else ("stage_source", "launch_thread")
        return (*self._lines.columns, "stage", *others, *pieces)

    def begin(self, windows: pl.DataFrame | None) -> None:
        """Zero all sums; set the time windows to sum over (None: one window per device)."""
        self._lines = LinesInWindows(windows)
        self._reached, self._sums = self._nothing()

    def add(self, rows: pl.DataFrame) -> bool:
        """Add up ops; return False if the ops of a device or process are not ordered by start."""
        lines = self._lines.of(rows)
        self._make_room()
        counted = given(rows["is_first"]) if self._of_pieces else np.ones(rows.height, np.bool_)
        if self._of_stages_alone:
            sources, launched = np.zeros(rows.height, np.uint8), np.zeros(rows.height, np.bool_)
        else:
            sources = given(rows["stage_source"].to_physical())
            launched = given(rows["launch_thread"].is_not_null())
        ops = Ops(
            lines,
            given(rows["start"]),
            given(rows["end"]),
            given(rows["stage"].to_physical()),
            sources,
            counted,
            launched,
        )
        run = compiled(sweep, rows.height)
        return bool(run(ops, self._lines.cut, self._lines.course, self._reached, self._sums))

    def _make_room(self) -> None:
        if self._lines.count > len(self._reached.stages):
            reached, sums = self._nothing()
            self._reached = extended(self._reached, reached)
            self._sums = extended(self._sums, sums)

    def _nothing(self) -> tuple[Reached, Sums]:
        """Return the state before the first op, and sums of zero, for the known windows."""
        windows, stages, sources = (
            self._lines.cut.begins.size,
            len(self._stages),
            len(self._sources),
        )
        of_window, of_stage, of_source = windows, (windows, stages), (windows, sources)
        shapes = (of_window, of_window, *[of_stage] * 3, *[of_source] * 2)
        reached = (np.full((self._lines.count, each), -_EVER) for each in (stages, sources))
        return Reached(*reached), Sums(*(np.zeros(shape, np.int64) for shape in shapes))

    def sums(self) -> StageSums:
        """Return the windows (intervals) with sums by stage, in total, and by ``stage_source``."""
        return StageSums(self.windows(), self.stages(), self.groups(), self.sources())

    def windows(self) -> pl.DataFrame:
        """Return the given windows, or else one per device, from its first op to its last."""
        return self._lines.windows()

    def stages(self) -> pl.DataFrame:
        """Return ``window, stage, ops, busy_ns, exposed_ns``: sums over the ops of each stage.

        Exposed time is busy time in which no stage of higher precedence runs.
        """
        ops, busy, exposed = self._sums.ops, self._sums.busy, self._sums.exposed
        window, stage = np.nonzero((ops > 0) | (busy > 0))
        return pl.DataFrame(
            {
                "window": self._lines.window_of(window),
                "stage": self._stages.gather(stage),
                "ops": ops[window, stage],
                "busy_ns": busy[window, stage],
                "exposed_ns": exposed[window, stage],
            }
        )

    def groups(self) -> pl.DataFrame:
        """Return ``window, ops, launched, total_ns, busy_ns`` of all ops in each window (interval).

        ``launched`` is the number of ops whose launching call is known; 0 if only stages are added
        up.
        """
        ops, busy = self._sums.ops.sum(axis=1), self._sums.exposed.sum(axis=1)
        window = np.flatnonzero((ops > 0) | (busy > 0))
        return pl.DataFrame(
            {
                "window": self._lines.window_of(window),
                "ops": ops[window],
                "launched": self._sums.launched[window],
                "total_ns": self._sums.total[window],
                "busy_ns": busy[window],
            }
        )

    def sources(self) -> pl.DataFrame:
        """Return ``window, stage_source, ops, busy_ns``: sums by evidence for the stage.

        Not valid with `of_stages_alone`.
        """
        ops, busy = self._sums.seen, self._sums.sources
        window, source = np.nonzero((ops > 0) | (busy > 0))
        return pl.DataFrame(
            {
                "window": self._lines.window_of(window),
                "stage_source": self._sources.gather(source),
                "ops": ops[window, source],
                "busy_ns": busy[window, source],
            }
        )
