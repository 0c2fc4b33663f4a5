"""The work of each process of a trace, as structure reads it: launches, and never a range."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracekit.attribution.structure import Work
from tracekit.model import COLLECTIVES, KINDS, STAGES, Trace

BY_RANGES = ("nvtx", "process_range", "backward_thread", "autograd", "gradient_exchange")
"""How a stage is found where ranges or what they imply decide it."""


@dataclass(frozen=True)
class Known:
    """The work of one process, and what ranges say of it."""

    work: Work
    stage: NDArray[Any]
    """The stage's place where ranges name it, else -1."""
    step: NDArray[Any]
    """The iteration, else -1."""


def works_of(trace: Trace) -> Iterator[Known]:
    """Yield the work of each process of an attributed trace, in order of launch."""
    ops = trace.read("ops")
    processes = trace.read("processes")
    threads = trace.read("threads")
    pids = dict(processes.select("process", "pid").rows())
    for (process,), mine in sorted(ops.group_by("process")):
        own = threads.filter((pl.col("process") == process) & (pl.col("tid") == pids[process]))
        main = own["thread"].to_list()
        yield _known(mine, main[0] if main else None)


def _known(ops: pl.DataFrame, main: int | None) -> Known:
    ops = ops.with_columns(at=pl.coalesce("launch_start", "start")).sort("at", "start")
    names = ops["name"].cast(pl.String).rank("dense").cast(pl.Int32) - 1
    kernel = ops["kind"].cast(pl.String).is_in(["compute", "collective", "graph"])
    distinct = ops.select(pl.col("name").cast(pl.String), code=names).unique().sort("code")
    text = distinct.filter(pl.col("code").is_not_null())["name"].to_list()
    context = ops.select(pl.struct("context", "stream").rank("dense").cast(pl.Int64))
    work = Work(
        kind=ops["kind"].to_physical().cast(pl.Int8).to_numpy(),
        device=ops["device"].cast(pl.Int32).to_numpy(),
        start=ops["start"].to_numpy(),
        end=ops["end"].to_numpy(),
        launch=ops["at"].to_numpy(),
        thread=ops["launch_thread"].fill_null(-1).to_numpy(),
        context_stream=context.to_series().fill_null(-1).to_numpy(),
        name=names.fill_null(-1)
        .zip_with(kernel, pl.repeat(-1, len(ops), dtype=pl.Int32, eager=True))
        .to_numpy(),
        size=ops["launch_size"].fill_null(-1).to_numpy(),
        bytes=ops["bytes"].fill_null(-1).to_numpy(),
        names=text,
        collective=(ops["collective"].to_physical().cast(pl.Int8) + 1).fill_null(0).to_numpy(),
        main_thread=main,
    )
    ranged = ops["stage_source"].cast(pl.String).is_in(BY_RANGES)
    stage = ops["stage"].to_physical().cast(pl.Int8).to_numpy().copy()
    stage[~ranged.to_numpy() | (stage == STAGES.index("OTHER"))] = -1
    return Known(work, stage, ops["iteration"].fill_null(-1).to_numpy())


def taken(known: Known, rows: NDArray[Any]) -> Known:
    """Return some of the ops, by place or mask."""
    columns = {
        name: value[rows]
        for name, value in vars(known.work).items()
        if isinstance(value, np.ndarray)
    }
    return Known(replace(known.work, **columns), known.stage[rows], known.step[rows])


def busy_ms(work: Work, chosen: NDArray[Any]) -> float:
    """Return the milliseconds in which any of the chosen ops runs, summed over devices."""
    total = 0
    for device in np.unique(work.device[chosen]):
        rows = chosen & (work.device == device)
        order = np.argsort(work.start[rows], kind="stable")
        start, end = work.start[rows][order], work.end[rows][order]
        until = np.maximum.accumulate(end)
        before = np.concatenate((start[:1], until[:-1]))
        total += int(np.maximum(0, end - np.maximum(start, before)).sum())
    return total / 1e6


COMPUTE = KINDS.index("compute")
ALL_REDUCE = COLLECTIVES.index("all_reduce") + 1
