"""A run as Perfetto-like tracks of slices and counters, for any export format."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from tracekit.analysis import step_detail
from tracekit.model import STAGES, Trace

_NO_NAME = "(no name)"
_SLICE = ("start", "end", "name", "category", "args", "flows_out", "flow_in")


@dataclass(frozen=True)
class Track:
    """One track of an export: slices (intervals with a name), or values of a counter."""

    group: str
    """Owner of the track: a GPU or a process."""
    name: str
    """Name of the track."""
    rows: pl.DataFrame
    """For slices ``start, end, name, category, args`` (a struct or null), ``flows_out, flow_in``,
    ordered by start, outer slices first; for a counter ``time`` (ns), ``value``."""
    unit: str | None = None
    """Unit of the counter; None for slices."""


def tracks_of(
    trace: Trace, spans: pl.DataFrame, steps: pl.DataFrame, *, is_whole: bool
) -> Iterator[Track]:
    """Yield all tracks of a run: steps, stages, idle time, streams, counters and threads.

    Parameters
    ----------
    spans
        Intervals to export: ``process, device, start, end`` (ns).
    steps
        Intervals of steps, as `step_detail.step_spans` returns them.
    is_whole
        Whether to include ranges before or after all GPU work.
    """
    ops = step_detail.ops_inside(trace, spans)
    ops = ops.with_columns(args=step_detail.details(trace, ops).to_struct())
    groups = _gpu_names(trace)
    yield from _steps(steps, groups)
    yield from _stages(step_detail.stage_spans(trace, spans), groups)
    yield from _idle(step_detail.idle_spans(trace, spans), groups)
    yield from _streams(ops, groups)
    yield from _counters(trace, spans, groups)
    ranges = trace.read("ranges") if is_whole else _open_meanwhile(trace, spans, ops)
    yield from _threads(trace, ranges, ops)


def _slices(rows: pl.DataFrame, **columns: pl.Expr) -> pl.DataFrame:
    """Return rows as slices of a track; `columns` computes some columns, all others are null."""
    absent = {
        "category": pl.lit(None, pl.String),
        "args": pl.lit(None),
        "flows_out": pl.lit(None, pl.List(pl.Int64)),
        "flow_in": pl.lit(None, pl.Int64),
    }
    made = rows.with_columns(**{**absent, **columns}).select(_SLICE)
    named = pl.col("name").cast(pl.String).fill_null(_NO_NAME)
    return made.with_columns(named).sort("start", "end", descending=[False, True])


def _gpu_names(trace: Trace) -> dict[int, str]:
    """Return the display name of each GPU, marked if its clock is not aligned with the others."""
    devices = trace.read("devices").select("device", "name", "report")
    clocks = trace.read("reports").select("report", "clock")
    several = clocks.height > 1
    known = devices.join(clocks, on="report", how="left")
    return {
        row["device"]: f"GPU {row['device']}"
        + (f" ({row['name']})" if row["name"] else "")
        + (" on a separate clock" if several and row["clock"] is None else "")
        for row in known.iter_rows(named=True)
    }


def _gpu(groups: dict[int, str], device: object) -> str:
    """Return the display name of a GPU, also of a GPU that the reports do not list."""
    number = int(str(device))
    return groups.get(number, f"GPU {number}")


def _steps(steps: pl.DataFrame, groups: dict[int, str]) -> Iterator[Track]:
    named = steps.drop_nulls("iteration").with_columns(name=pl.format("step {}", "iteration"))
    for (device,), rows in named.sort("device").group_by("device", maintain_order=True):
        yield Track(_gpu(groups, device), "steps", _slices(rows))


def _stages(spans: pl.DataFrame, groups: dict[int, str]) -> Iterator[Track]:
    order = pl.col("stage").cast(pl.Enum(STAGES))
    for (device, stage), rows in spans.sort("device", order).group_by(
        "device", "stage", maintain_order=True
    ):
        yield Track(_gpu(groups, device), f"stage {stage}", _slices(rows, name=pl.col("stage")))


def _idle(spans: pl.DataFrame, groups: dict[int, str]) -> Iterator[Track]:
    for (device,), rows in spans.group_by("device", maintain_order=True):
        yield Track(_gpu(groups, device), "idle, by cause", _slices(rows, name=pl.col("cause")))


def _streams(ops: pl.DataFrame, groups: dict[int, str]) -> Iterator[Track]:
    several = ops.group_by("device").agg(n=pl.struct("process", "context").n_unique())
    shared = set(several.filter(pl.col("n") > 1)["device"])
    keys = ["device", "process", "context", "stream"]
    ordered = ops.sort(*keys, "start", nulls_last=True)
    for (device, process, context, stream), rows in ordered.group_by(keys, maintain_order=True):
        number = "unknown" if stream is None else stream
        of = f", process {process}, context {context}" if device in shared else ""
        slices = _slices(
            rows,
            args=pl.col("args"),
            category=pl.concat_str(pl.col("stage", "kind").cast(pl.String), separator=","),
            flow_in=pl.when(pl.col("call").is_not_null()).then(pl.col("op") + 1),
        )
        yield Track(_gpu(groups, device), f"stream {number}{of}", slices)


def _counters(trace: Trace, spans: pl.DataFrame, groups: dict[int, str]) -> Iterator[Track]:
    """Yield a track for each sampled counter of a GPU or NIC, such as NVLink throughput."""
    low, high = spans["start"].min(), spans["end"].max()
    inside = (pl.col("time") >= low) & (pl.col("time") <= high)
    samples = trace["metrics"].filter(inside).collect()
    keys = ["device", "nic", "recorded_name", "unit"]
    for (device, nic, name, unit), rows in samples.sort("time").group_by(keys, maintain_order=True):
        group = f"NIC {nic}" if device is None else _gpu(groups, device)
        yield Track(group, str(name), rows.select("time", "value"), unit=str(unit or ""))


def _open_meanwhile(trace: Trace, spans: pl.DataFrame, ops: pl.DataFrame) -> pl.DataFrame:
    """Return the ranges open at some time between the first start and last end of `spans`.

    Both are per process. The first launch of the process's `ops` is the start, if it is earlier.
    """
    window = spans.group_by("process").agg(pl.col("start").min(), pl.col("end").max())
    begun = ops.group_by("process").agg(begin=pl.col("launch_start").min())
    window = window.join(begun, on="process", how="left").with_columns(
        start=pl.min_horizontal("start", "begin")
    )
    return step_detail.ranges_inside(trace, window)


def _threads(trace: Trace, ranges: pl.DataFrame, ops: pl.DataFrame) -> Iterator[Track]:
    """Yield the tracks of each thread: its ranges, and the calls that launched ops."""
    flows = ops.drop_nulls("call").group_by("call").agg(flows_out=(pl.col("op") + 1).sort())
    launches = trace["calls"].join(flows.lazy(), on="call").collect()
    category = pl.when(pl.col("stage").is_null()).then(pl.lit("range"))
    both = pl.concat(
        [
            _of_threads(ranges, category=category.otherwise(pl.col("stage").cast(pl.String))),
            _of_threads(launches, category=pl.lit("call"), flows_out=pl.col("flows_out")),
        ]
    ).sort("process", "thread", "start", "end", descending=[False, False, False, True])
    names = dict(trace.read("threads").select("thread", "name").iter_rows())
    pids = dict(trace.read("processes").select("process", "pid").iter_rows())
    for (process, thread), rows in both.group_by("process", "thread", maintain_order=True):
        name = f"thread {thread}" + (f" ({names[thread]})" if names.get(thread) else "")
        group = f"process {process} (pid {pids.get(process)})"
        yield Track(group, name, rows.select(_SLICE))


def _of_threads(rows: pl.DataFrame, **columns: pl.Expr) -> pl.DataFrame:
    # The order of `_slices` is that of its rows.
    ordered = rows.sort("start", "end", descending=[False, True])
    keyed = ordered.select("process", "thread")
    return pl.concat([keyed, _slices(ordered, **columns)], how="horizontal")


class Lanes:
    """Puts slices (by start, outer first) into display rows in which they nest or are disjoint."""

    def __init__(self) -> None:
        self._open: list[list[int]] = []

    def place(self, start: int, end: int) -> int:
        """Return the index of the display row for a slice.

        The slice goes into the first row in which no slice is open at `start`, or one encloses it.
        """
        for lane, ends in enumerate(self._open):
            while ends and ends[-1] <= start:
                ends.pop()
            if not ends or end <= ends[-1]:
                ends.append(end)
                return lane
        self._open.append([end])
        return len(self._open) - 1
