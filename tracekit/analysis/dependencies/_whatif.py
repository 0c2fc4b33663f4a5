"""How long steps would take with something changed: the dependency graph, replayed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from tracekit.analysis.dependencies._buckets import Bucket, bucketed, exchanged_bytes
from tracekit.analysis.dependencies._changes import Change, Overlap
from tracekit.analysis.dependencies._graph import Graph
from tracekit.analysis.dependencies._job import TRUSTED, Job, distrust, job_of
from tracekit.analysis.dependencies._links_of import UNTOLD
from tracekit.analysis.dependencies._moments import LANE
from tracekit.analysis.dependencies._paths_back import path_segments
from tracekit.analysis.idle_time._timeline import merged
from tracekit.model import Answer

if TYPE_CHECKING:
    from tracekit.analysis.communication._traffic import Traffic
    from tracekit.analysis.dependencies._sweeps import Array
    from tracekit.model import Trace

MEASURED, UNCHANGED, ALL = "measured", "unchanged, replayed", "all of these"
_ROWS = pl.Schema(
    {"change": pl.String(), "edges": pl.Int64(), "step_ns": pl.Float64(), "error_ns": pl.Float64(),
     "saved_ns": pl.Float64(), "saved_share": pl.Float64(), "speedup": pl.Float64(),
     "unexplained_share": pl.Float64()}
)  # fmt: skip


def whatif(
    trace: Trace,
    traffic: Traffic,
    changes: Sequence[Change],
    *,
    skip: int = 0,
    iterations: tuple[int, int] | None = None,
) -> Answer:
    """Say how long steps would take with something changed.

    The dependency graph of the run is replayed: each call and op comes when what it waits for has
    come, and nothing else of the recorded times is used. ``docs/whatif.md`` says what a replay
    knows, and how well replays agreed with what really came of a change.

    Parameters
    ----------
    trace
        The run.
    traffic
        What it moved.
    changes
        As `parse_changes` returns them.
    skip
        How many iterations to leave out at the beginning.
    iterations
        The first and the last step to look at, where `trace` is that of `some_steps`.

    Returns
    -------
    A row for the steps as measured, for the unchanged replay, for each change alone and, of
    several, for all of them together:

    ================  ==============================================================
    ``change``        what is changed
    ``edges``         how many dependencies get another length
    ``step_ns``       a step, mean over the steps that count
    ``error_ns``      how wrong that may be: by as much of it as the unchanged replay
                      of a step is off, in the median; null for the measured one
    ``saved_ns``      how much shorter a step is than in the unchanged replay
    ``saved_share``   the same over a step of the unchanged replay
    ``speedup``       a step of the unchanged replay over this one
    ``unexplained_share``  of the path of these steps, what nothing explains
    ================  ==============================================================

    ``meta`` holds ``steps, skip``, ``replay_error_share`` (that of the unchanged replay of a step,
    absolute, over its length, in the median), ``unexplained_share`` (of the recorded path) and
    ``trusted``: whether that is no more than a tenth.

    Raises
    ------
    UsageError
        If iterations are skipped that the run has not.
    MissingDataError
        As `critical_path`.
    """
    job = job_of(trace, traffic, skip, iterations)
    base = _replayed(job, UNCHANGED, [])
    error = _error(job, base)
    measured = _Replay(MEASURED, 0, job.bounds, job.unexplained)
    replays = [measured, base, *(_replayed(job, each.label, [each]) for each in changes)]
    if len(changes) > 1:
        replays.append(_replayed(job, ALL, changes))
    share = job.unexplained
    warnings = [*distrust(share), *_unmatched(job, changes, replays)]
    return Answer(
        rows=pl.DataFrame([_row(each, base, error) for each in replays], schema=_ROWS),
        meta={
            "steps": job.bounds.height,
            "skip": skip,
            "replay_error_share": error,
            "unexplained_share": share,
            "trusted": share is not None and share <= TRUSTED,
            "warnings": warnings,
        },
        title="steps with something changed, by replay",
        command="whatif",
        figures={"figure": "whatif"},
    )


@dataclass(frozen=True)
class _Replay:
    """Steps under some changes."""

    label: str
    edges: int
    bounds: pl.DataFrame
    unexplained: float | None
    least_ns: float = 0.0

    @property
    def lengths(self) -> pl.Series:
        """How long each step takes."""
        return self.bounds["end"] - self.bounds["start"]

    @property
    def step_ns(self) -> float:
        """How long a step takes in the mean."""
        mean: Any = self.lengths.mean()
        return max(float(mean), self.least_ns)


def _replayed(job: Job, label: str, changes: Sequence[Change]) -> _Replay:
    """Replay a job's graph with some changes."""
    number = 0
    for change in changes:
        if isinstance(change, Bucket):
            job, number = bucketed(job, change.size)
    edges = job.edges if changes else job.graph.edges
    touched = pl.lit(value=False)
    for change in changes:
        edges = edges.with_columns(
            weight=pl.when(change.touches()).then(change.length()).otherwise("weight")
        )
        touched |= change.touches().fill_null(value=False)
    if changes:
        number += edges.select(touched.sum()).item()
    time = job.graph.replayed(edges["weight"])
    bounds = job.steps(time)
    overlaps = any(isinstance(each, Overlap) for each in changes)
    least = _least_ns(job, edges) if overlaps else 0.0
    return _Replay(label, number, bounds, _unexplained(job, edges, time, bounds), least)


def _unexplained(job: Job, edges: pl.DataFrame, time: Array, bounds: pl.DataFrame) -> float | None:
    """Return what of replayed steps nothing explains."""
    graph = job.graph
    changed = edges.select(graph.edges.columns)
    replayed = Graph(graph.moments, changed, time, graph.carried, graph.order, graph.contradicted)
    total = int((bounds["end"] - bounds["start"]).sum())
    late = int(path_segments(replayed, bounds)["late"].sum())
    return late / total if total else None


def _least_ns(job: Job, edges: pl.DataFrame) -> float:
    """Return what a step takes at least, however well communication overlaps with other work.

    That is the work of the stream that has most of it, and for how long bytes move between GPUs on
    the GPU where that is longest.
    """
    first, last = job.bounds["start"].min(), job.bounds["end"].max()
    done = edges.filter(pl.col("kind").cast(pl.String).is_in(["work", "transfer"]))
    took = done.group_by("op").agg(took=pl.col("weight").max())
    ops = job.graph.moments.ops.filter((pl.col("start") >= first) & (pl.col("start") < last))
    spans = ops.join(took, on="op").with_columns(start=pl.col("end") - pl.col("took"))
    length = (pl.col("end") - pl.col("start")).sum()
    moving = merged(spans.filter(pl.col("work") == "comm"), ["device"])
    of_devices = moving.group_by("device").agg(length=length)["length"]
    of_streams = spans.group_by(LANE).agg(pl.col("took").sum())["took"]
    most: Any = pl.concat([of_devices, of_streams.rename("length")]).max() or 0
    return float(most) / job.bounds.height


def _error(job: Job, base: _Replay) -> float | None:
    """Return by how much the unchanged replay of a step is off, in the median."""
    measured = _Replay(MEASURED, 0, job.bounds, None).lengths
    median: Any = ((base.lengths - measured).abs() / measured).median()
    return None if median is None else float(median)


def _row(replay: _Replay, base: _Replay, error: float | None) -> dict[str, Any]:
    step, unchanged = replay.step_ns, base.step_ns
    is_measured = replay.label == MEASURED
    compared = not is_measured and bool(unchanged)
    return {
        "change": replay.label,
        "edges": replay.edges,
        "step_ns": step,
        "error_ns": None if is_measured or error is None else step * error,
        "saved_ns": unchanged - step if compared else None,
        "saved_share": 1 - step / unchanged if compared else None,
        "speedup": unchanged / step if compared and step else None,
        "unexplained_share": replay.unexplained,
    }


def _unmatched(job: Job, changes: Sequence[Change], replays: Sequence[_Replay]) -> list[str]:
    """Say which changes there is nothing for in this run."""
    alone = replays[2 : 2 + len(changes)]
    texts = [f"{each.label}: there is nothing in this run that it changes"
             for each in alone if not each.edges]  # fmt: skip
    asked = [(each.size, found.edges) for each, found in zip(changes, alone, strict=True)
             if isinstance(each, Bucket)]  # fmt: skip
    texts += [_unsplit(job, size, edges) for size, edges in asked]
    untold = job.edges.filter(pl.col("link") == UNTOLD)["op"].n_unique()
    if untold and any("bandwidth" in each.label for each in changes):
        texts.append(
            f"{untold} transfers cross links that are not known: name the machine (--topology), or"
            " ask for --bandwidth collective=2x"
        )
    return [text for text in texts if text]


def _unsplit(job: Job, size: int, edges: int) -> str:
    """Say what of the all-reduces no bucket of a size changes, and why."""
    sizes = exchanged_bytes(job)
    larger = sizes.filter(sizes > size)
    if larger.len():
        return (
            f"bucket {size / 1e6:g}MB: {larger.len()} of {sizes.len()} all-reduces of known size "
            "are larger and stay as they are; of which tensors a bucket is, and when each of "
            "these is ready, is not recorded: record with the buckets that you mean"
        )
    if not edges:
        return (
            "no all-reduces that follow each other are smaller, or their sizes were not recorded"
            " (--bytes all_reduce=25MB gives them)"
        )
    return ""
