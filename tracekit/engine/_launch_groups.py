"""Group ops by the iteration of their launch: the input for cutting device time into iterations."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracekit.engine._lines import Lines
from tracekit.engine._sweep_loops import (
    NONE,
    SORTS,
    Groups,
    Launched,
    Marks,
    group,
)
from tracekit.model import STAGE, STAGES, Stretch, Trace
from tracekit.support.batches import at_least_one
from tracekit.support.compiled import compiled, given

Array: TypeAlias = NDArray[Any]
_NEVER = 1 << 62
_NO_THREAD, _NOBODY = -1, -2
"""Values for an unknown thread of an op, and of an iteration; they are different."""
_STAGES = pl.Series(STAGES, dtype=STAGE)
_OWNER = ["process", "device"]
NEEDED = (*_OWNER, "start", "end", "launch_start", "launch_thread", "stage", "iteration")
"""Columns of ops that are read."""


def launch_groups(trace: Trace) -> pl.DataFrame:
    """Return a run's ops merged by device, stage and iteration of launch, as `LaunchGroups` does.

    From these groups, each device's time is cut into iterations.

    The columns are `NEEDED`. The result is cached with the run.
    """
    return trace.once(_launch_groups, of_all=True)


def _launch_groups(trace: Trace) -> pl.DataFrame:
    return pl.concat(groups_of_parts(trace))


def groups_of_parts(trace: Trace) -> list[pl.DataFrame]:
    """Return for each part of a run its ops, grouped by launch as `launch_groups` does; cached."""
    return trace.once(_groups_of_parts, of_all=True)


def _groups_of_parts(trace: Trace) -> list[pl.DataFrame]:
    whole = trace.limited_to(Stretch())  # so that questions about any time share the cache
    found = whole.sums_of_parts([partial(_of_part, part) for part in whole.parts()])
    return [each["groups"] for each in found]


def _of_part(trace: Trace) -> dict[str, pl.DataFrame]:
    ops = at_least_one(trace["ops"].select(NEEDED))
    return {"groups": thinned(ops, trace.read("iterations"))}


def thinned(batches: Iterable[pl.DataFrame], iterations: pl.DataFrame) -> pl.DataFrame:
    """Merge ops of equal device, stage and iteration (or gap between two) of launch into one row.

    Ops without a known launch are kept as they are. The rows have the columns `NEEDED`. `batches`
    are frames of ops with the columns `NEEDED`; `iterations` is the canonical table.
    """
    groups, rest = LaunchGroups(iterations), []
    for batch in batches:
        is_launched = batch["launch_start"].is_not_null()
        if is_launched.all():
            groups.add(batch)
            continue
        groups.add(batch.filter(is_launched))
        rest.append(batch.filter(~is_launched).select(NEEDED))
    launched = groups.table().with_columns(iteration="own")
    return pl.concat([launched.select(NEEDED), *rest])


class LaunchGroups:
    """Groups ops by device, stage, and the iteration (or gap between two) of their launch.

    Ops launched by the iteration's thread (the thread that runs it) form separate groups from ops
    of other threads; in a gap, the next iteration's thread counts. Input copies launched by the
    thread that runs forward passes on the device count as launched by the iteration's thread.

    An op belongs to the iteration whose range its launching thread is in at the launch; or, if that
    thread is in none, to the iteration that its process is in at that time.

    Parameters
    ----------
    iterations
        The table `iterations`.
    """

    def __init__(self, iterations: pl.DataFrame) -> None:
        self._table = host_marks(iterations).sort("process", "time", maintain_order=True)
        owners = self._table["process"].to_numpy()
        self._processes = np.unique(owners)
        self._marks = _marks(self._table, iterations, self._processes)
        self._lines = Lines(_OWNER)
        self._begins = np.zeros(1, np.int64)
        self._near, self._drivers = np.zeros((0, 2), np.int64), np.empty(0, np.int64)
        self._groups = _unused(0)

    def add(self, launched: pl.DataFrame) -> None:
        """Add ops whose launch is known, with the columns `NEEDED`."""
        lines = self._lines.of(launched)
        processes = self._places()
        self._make_room(processes)
        ops = Launched(
            lines,
            given(launched["start"]),
            given(launched["end"]),
            given(launched["launch_start"]),
            given(launched["iteration"], null=NONE),
            given(launched["stage"].cast(STAGE).to_physical()),
            given(launched["launch_thread"], null=_NO_THREAD),
        )
        run = compiled(group, launched.height)
        near = self._near, self._drivers
        run(ops, processes, self._marks, *near, self._begins, self._groups)

    def _places(self) -> Array:
        """Return for each device (or process on a device) its process's index in `_processes`.

        These are the processes with iterations; for any other process the index is one past the
        last.
        """
        owners = self._lines.owners["process"].to_numpy()
        return _place(self._processes, owners)

    def _make_room(self, processes: Array) -> None:
        known = self._begins.size - 1
        if processes.size == known:
            return
        count = np.diff(self._marks.first)[processes[known:]] + 1
        self._begins = np.append(self._begins, self._begins[-1] + np.cumsum(count))
        self._near = np.zeros((processes.size, 2), np.int64)
        new = np.full(processes.size - known, _NOBODY)
        self._drivers = np.append(self._drivers, new)
        more = _unused(int(count.sum()))
        self._groups = Groups(*map(np.concatenate, zip(self._groups, more, strict=True)))

    def table(self) -> pl.DataFrame:
        """Return the groups that contain ops.

        Returns
        -------
        ``process, device, stage``; ``is_own``, whether the iteration's thread launches the group;
        ``iteration``, null for ops between or before iterations; ``part``, the number of the
        iteration or gap, -1 before all iterations; ``start, end`` (ns), first start and last end of
        the ops. For one op of the group: ``launch_start, launch_thread``, and ``own``, the
        iteration that this thread is in.
        """
        groups = self._groups
        used = np.flatnonzero(groups.starts < _NEVER)
        place, sort = np.divmod(used, SORTS)
        stage, is_own = np.divmod(sort, 2)
        line = np.searchsorted(self._begins, place, side="right") - 1
        part = place - self._begins[line] - 1
        mark = pl.Series(self._marks.first[self._places()[line]] + part)
        own = pl.Series(groups.own[used])
        return pl.DataFrame(
            {
                **{name: self._lines.owners[name].gather(line) for name in _OWNER},
                "stage": _STAGES.gather(stage),
                "is_own": is_own.astype(np.bool_),
                "iteration": self._table["iteration"].gather(mark.set(pl.Series(part < 0), None)),
                "part": part,
                "start": groups.starts[used],
                "end": groups.ends[used],
                "launch_start": groups.launches[used],
                "launch_thread": groups.threads[used].astype(np.int32),
                "own": own.set(own == NONE, None),
            }
        )


def host_marks(iterations: pl.DataFrame) -> pl.DataFrame:
    """Return ``process, time, iteration`` (null: a gap), ``part``: host times when these begin."""
    return (
        pl.concat(
            [
                iterations.select("process", "iteration", time="start", begins=1),
                iterations.select(
                    "process", iteration=pl.lit(None, pl.Int64), time="end", begins=0
                ),
            ]
        )
        .sort("process", "time", "begins")
        # Where one iteration ends as the next begins, nothing lies between them.
        .unique(["process", "time"], keep="last", maintain_order=True)
        .with_columns(part=pl.int_range(pl.len()).over("process"))
        .sort("time")
        .select("process", "time", "iteration", "part")
    )


def _marks(table: pl.DataFrame, iterations: pl.DataFrame, processes: Array) -> Marks:
    """Convert `host_marks` to arrays for loops; an extra entry serves processes without marks."""
    recorded = iterations.filter(pl.col("source") == "ranges").select("process", "iteration")
    by_own_thread = (
        table.with_row_index("mark")
        .join(recorded, on=["process", "iteration"], how="semi")
        .sort("process", "iteration", "mark")
    )
    first, first_host_mark = (
        np.append(np.searchsorted(rows["process"].to_numpy(), processes), [rows.height] * 2)
        for rows in (table, by_own_thread)
    )
    threads = table.join(
        iterations.select("process", "iteration", "thread").unique(["process", "iteration"]),
        on=["process", "iteration"], how="left", maintain_order="left",
    ).select(pl.col("thread").backward_fill().over("process").fill_null(_NOBODY))  # fmt: skip
    return Marks(
        first, table["time"].to_numpy(), first_host_mark, by_own_thread["iteration"].to_numpy(),
        by_own_thread["mark"].to_numpy().astype(np.int64), threads.to_series().to_numpy(),
    )  # fmt: skip


def _place(processes: Array, owners: Array) -> Array:
    place = np.searchsorted(processes, owners)
    known = np.append(processes, -1)[place] == owners
    return np.where(known & (place < processes.size), place, processes.size)


def _unused(count: int) -> Groups:
    size = count * SORTS
    never = np.full(size, _NEVER)
    return Groups(never, -never, *np.zeros((3, size), np.int64))
