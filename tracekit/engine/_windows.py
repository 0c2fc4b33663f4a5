"""Windows: the intervals of each device's time that an analysis covers.

Each device has separate windows. A window is [start, end) on the GPU's time line.

A step ends on a device where the next one begins there. The last step has no next one, and the
device's own last op may be too early an end: other devices may go on, such as a GPU that updates
the weights while the GPUs it serves wait. So the last step ends with the last op of that step on
any device of its job, input for a later step excluded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from numbers import Integral
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracekit.engine._launch_groups import NEEDED, LaunchGroups, launch_groups
from tracekit.engine._lines import owners_of
from tracekit.engine._sweep_loops import find_latest
from tracekit.errors import UsageError
from tracekit.model import Frames, Stretch, Trace, with_clocks
from tracekit.support.compiled import compiled, given

_OWNER = ["process", "device"]
_NUMBER = pl.col("iteration")


def with_step_ends(
    windows: pl.DataFrame, launched: pl.DataFrame, unlaunched: pl.DataFrame, clocks: pl.DataFrame
) -> pl.DataFrame:
    """End the last step of each device when the job's last step ends; later time is in no step.

    Evaluation (stage ``ME``) is not part of a step here, nor is input (``IO``) after a step's other
    work: it is for a later step. Ops without a known launch belong to the step in which they start.

    Parameters
    ----------
    windows
        ``process, device, iteration, start, next, last`` (ns): on each device one row per iteration
        and per gap after an iteration (`iteration` is null). ``start`` is the start of the first op
        launched in it, ``next`` the start of the following row, ``last`` the end of its last op.
    launched
        Ops: ``process, iteration, stage, end``.
    unlaunched
        Ops without a known launch: ``process, device, stage, start, end``.
    clocks
        ``process, clock``: times on different clocks cannot be compared.

    Returns
    -------
    ``process, device, iteration, start, end, is_open``. ``is_open`` is true for the last step of a
    device if the step's devices are not on one clock: it ends with the device's own last op, and
    its real end is not known.
    """
    later = _NUMBER.backward_fill().over(_OWNER)
    earlier = _NUMBER.forward_fill().over(_OWNER)
    last = windows.filter(_NUMBER.is_not_null()).group_by(_OWNER, maintain_order=True).last()
    ends = _ends(last, launched, unlaunched, clocks)
    known_end = pl.coalesce("ended", "next", "last")
    ordered = (
        windows.with_columns(is_after=later.is_null() & earlier.is_not_null())
        .filter(~pl.col("is_after"))
        .join(ends, on=[*_OWNER, "iteration"], how="left", maintain_order="left")
        .with_columns(end=pl.max_horizontal("start", known_end))
    )
    tails = (
        ordered.join(ends.select(_OWNER), on=_OWNER, how="semi")
        .group_by(_OWNER, maintain_order=True)
        .agg(pl.col("last").first(), start=pl.col("end").last())
        .filter(pl.col("last") > pl.col("start"))
        .with_columns(iteration=pl.lit(None, pl.Int64), end="last")
    )
    columns = [*_OWNER, "iteration", "start", "end", "is_open"]
    open_tails = tails.with_columns(is_open=pl.lit(value=False))
    closed = ordered.with_columns(pl.col("is_open").fill_null(value=False))
    return pl.concat([closed.select(columns), open_tails.select(columns)])


def _ends(
    last: pl.DataFrame, launched: pl.DataFrame, unlaunched: pl.DataFrame, clocks: pl.DataFrame
) -> pl.DataFrame:
    """Return ``process, device, iteration, ended, is_open``: the end of each device's last step.

    The last step ends with its last op on any device of the job; `with_step_ends` explains the
    arguments and ``is_open``.
    """
    lone = unlaunched.join(last.select(*_OWNER, "iteration", "next", begin="start"), on=_OWNER)
    inside = (pl.col("start") >= pl.col("begin")) & (
        pl.col("next").is_null() | (pl.col("start") < pl.col("next"))
    )
    is_work = pl.col("stage") != "IO"
    ops = pl.concat(
        [
            some.filter(pl.col("stage") != "ME").select(
                *_OWNER, "iteration", "end", is_work=is_work
            )
            for some in (launched, lone.filter(inside))
        ]
    )
    of_work = pl.col("end").filter("is_work").max()
    on_device = ops.group_by(*_OWNER, "iteration").agg(own=of_work, fed=pl.col("end").max())
    # A job has one process on a GPU: those that share one are jobs of their own.
    shared = last.filter(pl.col("process").n_unique().over("device") > 1)["process"]
    job = pl.when(pl.col("process").is_in(shared.unique().implode())).then("process")
    found = last.select(*_OWNER, "iteration", job=job).join(
        on_device, on=[*_OWNER, "iteration"], how="left"
    )
    whose = on_device.join(found.select(*_OWNER, "job"), on=_OWNER).join(
        clocks, on="process", how="left"
    )
    of_job = whose.group_by("job", "iteration").agg(
        ended=pl.coalesce(pl.col("own").max(), pl.col("fed").max()),
        is_open=pl.col("clock").n_unique() > 1,
    )
    ended = pl.when("is_open").then(pl.coalesce("own", "fed")).otherwise("ended")
    return found.join(of_job, on=["job", "iteration"], how="left", nulls_equal=True).select(
        *_OWNER, "iteration", ended.alias("ended"), "is_open"
    )


_LONG_BEFORE = -(1 << 62)
Cutter = Callable[["Trace"], pl.DataFrame]
"""Function that cuts the time of a run into iterations, as `run_windows` does."""


def run_windows(trace: Trace) -> pl.DataFrame:
    """Return each device's time cut into iterations (`iteration_windows`) for a run; cached."""
    return trace.once(_run_windows, of_all=True)


def _run_windows(trace: Trace) -> pl.DataFrame:
    whole = trace.limited_to(Stretch())
    if len(trace.reports_of_parts()) > 1:  # the cache is one of parts
        return _windows(whole)["windows"]
    return whole.sums_of_parts([partial(_windows, whole)])[0]["windows"]


def _windows(trace: Trace) -> Frames:
    iterations = with_clocks(trace.read("iterations"), trace.read("reports"))
    return {"windows": iteration_windows(launch_groups(trace), iterations)}


def iteration_windows(ops: pl.DataFrame, iterations: pl.DataFrame) -> pl.DataFrame:
    """Cut each device's time into iterations and the gaps between them.

    An op belongs to the iteration that its process was in at the launch; if several threads of the
    process train, to the iteration that the launching thread was in. Windows follow these rules:

    - An iteration begins on a device with its first op there. Two kinds of ops are not taken for
      the first op: input copies of prefetching threads; and requests to a model, that is, ops of
      other threads on a device where the threads that run iterations launch forward passes. Input
      copies launched by the thread that runs the iteration, in it or since the previous iteration,
      are taken for the first op if all earlier work has ended when they start.
    - An iteration ends when the next one begins, or where the first op (other than input or
      requests) launched between the two starts.
    - The last iteration ends with the step's last op on any device (`with_step_ends`).
    - The first window begins with the first op that the process launches on the device; the last
      one ends no earlier than its last op.
    - Ops before all launched ones get a window outside of all iterations, as does a process without
      any known launch.

    Parameters
    ----------
    ops
        ``process, device, start, end, launch_start, launch_thread, stage, iteration`` (times in
        ns).
    iterations
        The canonical table, with ``clock``, the name of the clock of each row's times.

    Returns
    -------
    ``process, device, iteration, start, end, is_open`` (see `with_step_ends`), ordered by start;
    `iteration` is null for windows between iterations, before the first and after the last one.
    """
    groups = LaunchGroups(iterations)
    groups.add(ops.select(NEEDED).drop_nulls("launch_start"))
    launched = groups.table()
    unlaunched = ops.filter(pl.col("launch_start").is_null()).drop("iteration")
    first = pl.col("start").min()
    edges = ops.group_by(_OWNER).agg(first=first, last=pl.col("end").max())
    windows = (
        _begins(launched, unlaunched)
        .join(edges, on=_OWNER, how="left", maintain_order="left")
        .join(launched.group_by(_OWNER).agg(first_launched=first), on=_OWNER, how="left")
        .sort(*_OWNER, "part")
        .with_columns(is_first=pl.int_range(pl.len()).over(_OWNER) == 0)
        .with_columns(pl.col("start").cum_max().over(_OWNER))
        .with_columns(
            start=pl.when(pl.col("is_first") & (pl.col("first_launched") >= pl.col("lost")))
            .then("first_launched")
            .otherwise("start")
        )
        .with_columns(next=pl.col("start").shift(-1).over(_OWNER))
    )
    ahead = windows.filter("is_first", pl.col("first") < pl.col("start")).with_columns(
        pl.lit(None, pl.Int64).alias("iteration"), next="start", start="first", part=-2
    )
    windows = pl.concat([ahead.cast(windows.schema), windows]).sort(*_OWNER, "part")
    clocks = iterations.group_by("process").agg(pl.col("clock").first())
    unknown = edges.join(windows, on=_OWNER, how="anti").select(
        *_OWNER, iteration=pl.lit(None, pl.Int64), start="first", end="last", is_open=False
    )
    return pl.concat([with_step_ends(windows, launched, unlaunched, clocks), unknown])


def _begins(launched: pl.DataFrame, unlaunched: pl.DataFrame) -> pl.DataFrame:
    """Return ``process, device, part, iteration, start`` (ns): where each iteration or gap begins.

    ``part`` numbers the iterations and gaps of a device. A further column ``lost`` is the end of
    the work that runs on the device before all ops with a known launch.

    Parameters
    ----------
    launched
        Groups of launched ops, see `LaunchGroups`.
    unlaunched
        Ops without a known launch.
    """
    start, end, is_input = pl.col("start"), pl.col("end"), pl.col("stage") == "IO"
    is_own, is_work = pl.col("is_own"), pl.col("is_work")
    is_forward, is_evaluation = pl.col("stage") == "FP", pl.col("stage") == "ME"
    # On a device where the steps' own threads run forward passes, those of others are requests.
    leads = (is_forward & is_own).any().over(_OWNER)
    is_pass = pl.col("stage").is_in(["BP", "WU"]) | (is_forward & (is_own | ~leads))
    trainers = launched.filter(is_pass)["launch_thread"].unique().implode()
    by_trainer = ~is_input & (is_own | pl.col("launch_thread").is_in(trainers))
    told = launched.with_columns(is_work=is_pass | by_trainer).with_columns(
        of_step=is_work | (~is_input & (is_evaluation | ~leads | (pl.col("part") < 0)))
    )
    passed = pl.col("done").cum_max().shift(1).forward_fill().over(_OWNER)
    # Evaluation or a checkpoint that another thread runs beside earlier passes begins no step.
    is_beside = pl.col("first_own") > pl.when(pl.col("work") < passed).then("work")
    parts = (
        told.group_by(*_OWNER, "part")
        .agg(
            pl.col("iteration").first(),
            work=start.filter("of_step").min(),
            work_ends=end.filter("of_step").max(),
            first_own=start.filter(is_work).min(),
            done=end.filter(is_work).max(),
            own=start.filter(is_input & is_own).min(),
            other=start.filter(is_input & ~is_own).min(),
        )
        .sort(*_OWNER, "part")
        .with_columns(
            work=pl.when(is_beside).then("first_own").otherwise("work"),
            work_ends=pl.when(is_beside).then("done").otherwise("work_ends"),
        )
    )
    lost = (
        unlaunched.join(parts.group_by(_OWNER).agg(pl.col("work").min()), on=_OWNER)
        .filter(start < pl.col("work"))
        .group_by(_OWNER)
        .agg(lost=end.max())
    )
    earlier = pl.col("work_ends").cum_max().shift(1).forward_fill().over(_OWNER)
    is_step = pl.col("iteration").is_not_null()
    # Input that is launched between two iterations is the next one's.
    handed = pl.when(is_step & ~is_step.shift(1).over(_OWNER)).then(
        pl.col("own").shift(1).over(_OWNER)
    )
    ended = pl.max_horizontal("earlier", "lost")
    known = (
        parts.join(lost, on=_OWNER, how="left", maintain_order="left")
        .with_columns(pl.col("lost").fill_null(_LONG_BEFORE), earlier=earlier, handed=handed)
        .with_columns(
            handed=pl.when(pl.col("handed") >= ended).then("handed"),
            begun=pl.when(is_step & (pl.col("own") >= ended)).then("own"),
        )
    )
    # Between two iterations input alone begins nothing.
    input_alone = pl.when(is_step | (pl.col("part") < 0)).then(pl.min_horizontal("own", "other"))
    begins = pl.min_horizontal("work", "handed", "begun")
    return known.select(
        *_OWNER, "part", "iteration", "lost",
        start=pl.coalesce(begins, input_alone),
    ).drop_nulls("start")  # fmt: skip


def chosen_windows(
    trace: Trace, *, skip: int, per_iteration: bool, cutter: Cutter = run_windows
) -> pl.DataFrame:
    """Return the windows of an analysis: ``process, device, iteration, start, end`` (ns).

    A window is an interval of a device's time. Windows are clipped to the time span or steps that
    the run is limited to. A step that an edge of the span cuts does not count as a step. If no
    argument or limit asks for steps, each device is one window, whose process is null.

    Parameters
    ----------
    skip
        Number of iterations to leave out at the beginning of each process. If above 0, the windows
        begin with the first iteration that is kept and end with the last one.
    per_iteration
        Whether each iteration is a window of its own.
    cutter
        Function that cuts the run's time into iterations.

    Raises
    ------
    UsageError
        If steps are asked for and the run has none, or `skip` leaves none.
    """
    stretch = trace.stretch
    if not skip and not per_iteration and stretch.iterations is None:
        return _cut_to(stretch, _of_devices(launch_groups(trace)))
    iterations = trace.read("iterations")
    if iterations.is_empty():
        raise UsageError(
            "this run has no iterations", "name or record ranges of steps: --iteration REGEX"
        )
    windows = cutter(trace)
    if skip:  # less than 0 is refused there
        windows = _without_first(windows, iterations, skip)
    windows = _cut_to(stretch, windows)
    if per_iteration:
        return windows
    return windows.group_by(_OWNER, maintain_order=True).agg(
        pl.col("start").min(), pl.col("end").max(), iteration=pl.lit(None, pl.Int64)
    )


def _of_devices(ops: pl.DataFrame) -> pl.DataFrame:
    """Return one window per device, from its first op to its last."""
    edges = ops.group_by("device").agg(pl.col("start").min(), pl.col("end").max()).sort("device")
    return edges.select(
        "device", "start", "end", process=pl.lit(None, pl.Int32), iteration=pl.lit(None, pl.Int64)
    )


def _cut_to(stretch: Stretch, windows: pl.DataFrame) -> pl.DataFrame:
    """Clip windows to the run's time span or steps; mark a step cut by an edge with ``is_open``."""
    step = _NUMBER.forward_fill().over(_OWNER)  # which takes until the next one begins
    is_step = _NUMBER.backward_fill().over(_OWNER).is_not_null()
    if stretch.iterations is not None:
        # What comes after a step is in it; without the next one nothing else would say so.
        chosen = windows.with_columns(iteration=pl.when(is_step).then(step))
        windows = chosen.filter(_NUMBER.is_between(*stretch.iterations))
    if stretch.between is None:
        return windows
    begin, end = stretch.between
    if "is_open" in windows.columns:
        is_cut = is_step & ((pl.col("start") < begin) | (pl.col("end") > end))
        windows = (
            windows.with_columns(is_cut=is_cut, step=step)
            .with_columns(is_open=pl.col("is_open") | pl.col("is_cut").any().over("step"))
            .drop("is_cut", "step")
        )
    return windows.filter((pl.col("start") < end) & (pl.col("end") > begin)).with_columns(
        pl.col("start").clip(lower_bound=begin), pl.col("end").clip(upper_bound=end)
    )


def numbered_alike(trace: Trace) -> Trace:
    """Return the trace with iterations numbered by time, so that all processes number them alike.

    A trace in which some recorded number occurs in all processes is returned unchanged.
    """
    if (iterations := trace.once(_renumbered)) is None:
        return trace
    key = ["process", "iteration"]
    numbers = iterations.lazy().select(*key, "number").unique(key, keep="first")
    ops = trace["ops"].join(numbers, on=key, how="left", maintain_order="left")
    renumbered = {
        "iterations": iterations.lazy().with_columns(iteration="number").drop("number"),
        "ops": ops.with_columns(iteration="number").drop("number"),
    }
    return trace.with_lazy(renumbered)


def _renumbered(trace: Trace) -> pl.DataFrame | None:
    """Return the iterations with a ``number`` by time; None if they are numbered alike."""
    iterations = trace.read("iterations")
    if iterations.is_empty() or not common_numbers(iterations).is_empty():
        return None
    order = pl.int_range(pl.len(), dtype=pl.Int64).over("process", order_by="start")
    return iterations.with_columns(number=order)


def common_numbers(rows: pl.DataFrame) -> pl.Series:
    """Return the iteration ids that occur in all processes.

    A process with fewer than half as many iterations as another process is ignored.
    """
    seen = rows.drop_nulls("iteration").select("process", "iteration").unique()
    if seen["process"].n_unique() == 1:
        return seen["iteration"].sort()
    of_each = seen.group_by("process").len()
    takes_part = of_each.filter(2 * pl.col("len") >= pl.col("len").max()).select("process")
    holders = seen.join(takes_part, on="process", how="semi").group_by("iteration").len()
    return holders.filter(pl.col("len") == takes_part.height)["iteration"].sort()


def iterations_in(trace: Trace, skip: int) -> int:
    """Count the iterations in the run's time span, without the first `skip`.

    An iteration counts if it begins in the time span that the run is limited to.
    """
    iterations = numbered_alike(trace).read("iterations").sort("process", "start")
    kept = iterations.filter(pl.int_range(pl.len()).over("process") >= skip)
    return kept.filter(trace.stretch.holds())["iteration"].n_unique()


def first_iterations(iterations: pl.DataFrame, skip: int) -> pl.DataFrame:
    """Return the first `skip` iterations of each process.

    Raises
    ------
    UsageError
        If `skip` is below zero or no integer, or no iterations would be left.
    """
    if not isinstance(skip, Integral) or skip < 0:
        raise UsageError(f"{skip} iterations cannot be skipped", "give 0 or more")
    ordered = iterations.sort("process", "start")
    first = ordered.filter(pl.int_range(pl.len()).over("process") < skip)
    if first.height == iterations.height:
        most = iterations.group_by("process").len()["len"].to_list()
        raise UsageError(
            f"all iterations would be skipped ({skip} of {max(most)})",
            "give --skip a smaller number",
        )
    return first


def _without_first(windows: pl.DataFrame, iterations: pl.DataFrame, skip: int) -> pl.DataFrame:
    """Keep each device's windows from its first iteration that is not skipped up to its last one.

    `skip` is the number of iterations to leave out at the beginning of each process.
    """
    skipped = first_iterations(iterations, skip)
    kept = iterations.join(skipped, on=["process", "iteration"], how="anti")
    edges = (
        windows.join(kept, on=["process", "iteration"], how="semi")
        .group_by(_OWNER)
        .agg(first=pl.col("start").min(), last=pl.col("end").max())
    )
    return (
        windows.join(skipped, on=["process", "iteration"], how="anti")
        .join(edges, on=_OWNER)
        .filter((pl.col("start") >= pl.col("first")) & (pl.col("end") <= pl.col("last")))
        .drop("first", "last")
        .sort(*_OWNER, "start")
    )


def cut(ops: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    """Split ops (GPU work) at the borders of windows (time intervals); drop parts outside of these.

    Returns
    -------
    The columns of `ops`, with ``start`` (ns) and ``end`` clipped; ``duration_ns``, the length of
    the whole op; ``window``, the row of the window; ``counts``, true for the one piece that counts
    as the op: the piece in the window where the op starts.
    """
    # Of windows that begin together all but the last are empty.
    numbered = windows.with_row_index("window").sort("start", "end")
    owners = owners_of(windows)
    spans = numbered.select(*owners, "window", window_start="start", window_end="end")
    begun = spans.rename({"window_start": "time"})
    first, final = (latest(ops, edge, begun, owners) for edge in ("start", "end"))
    alone = (first == final).fill_null(value=False)
    own = spans.select(pl.col("window", "window_end").gather(first.filter(alone)))
    within = _clipped(ops.filter(alone), own)
    if alone.all():
        return within
    return pl.concat([within, _spread(ops.filter(~alone), spans, owners)])


def _clipped(ops: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    """Clip ops that each overlap one window only, and begin in or after it, to that window."""
    begin, end, until = pl.col("start"), pl.col("end"), pl.col("window_end")
    return (
        ops.with_columns(spans)
        .with_columns(
            duration_ns=end - begin,
            # An op without length may lie at the very end of the last window.
            counts=(begin < until) | ((begin == end) & (end == until)),
            end=pl.min_horizontal("end", "window_end"),
        )
        .filter((pl.col("end") > pl.col("start")) | pl.col("counts"))
        .drop("window_end")
    )


def _spread(ops: pl.DataFrame, spans: pl.DataFrame, owners: list[str]) -> pl.DataFrame:
    """Split ops that overlap several windows, or begin before the first one, at window borders.

    `spans` has the windows of each owner: the columns `owners` identify device or process.
    """
    order = spans.with_columns(turn=pl.int_range(pl.len()).over(owners))
    first = order.select(*owners, time="window_start", first="turn")
    located = (
        ops.sort("start")
        .join_asof(
            first, left_on="start", right_on="time", by=owners, check_sortedness=False,
        )
        .sort("end")
        .join_asof(
            first.rename({"first": "final"}), left_on="end", right_on="time", by=owners,
            check_sortedness=False,
        )
        .with_columns(turn=pl.int_ranges(pl.col("first").fill_null(0), pl.col("final") + 1))
        .drop("time", "time_right", "final", strict=False)
        .explode("turn")
        .drop_nulls("turn")
    )  # fmt: skip
    begin, end = pl.col("start"), pl.col("end")
    return (
        located.join(order, on=[*owners, "turn"], how="left", maintain_order="left")
        .with_columns(
            duration_ns=end - begin,
            # An op that begins before all windows has no first one.
            counts=pl.col("turn").eq_missing(pl.col("first"))
            # An op without length may lie at the very end of the last window.
            & ((begin < pl.col("window_end")) | ((begin == end) & (end == pl.col("window_end")))),
            start=pl.max_horizontal(begin, "window_start"),
            end=pl.min_horizontal(end, "window_end"),
        )
        .filter((pl.col("end") > pl.col("start")) | pl.col("counts"))
        .drop("turn", "first", "window_start", "window_end")
    )


# -- the latest of some marks ------------------------------------------------------------------
# A join would sort both sides, and carry all columns along; marks are few, and times that follow
# each other have mostly the same one.

_Ints = NDArray[np.int64]


def latest(rows: pl.DataFrame, time: str, marks: pl.DataFrame, owners: Sequence[str]) -> pl.Series:
    """Find for each row the latest mark at or before its time, among marks with the same `owners`.

    Parameters
    ----------
    rows, time
        The rows, and the name of their column of times, which has no nulls.
    marks
        ``time``, without nulls; of several marks at one time the last one is taken.
    owners
        Integer columns, such as process and device, that must be equal in row and mark; a row with
        null has no mark.

    Returns
    -------
    The row of the mark in `marks`, null if there is none.
    """
    if rows.is_empty() or marks.is_empty():
        return pl.repeat(None, rows.height, dtype=pl.Int64, eager=True)
    known = [np.unique(marks[name].drop_nulls().to_numpy()) for name in owners]
    lines = _lines(marks, owners, known)
    order = np.lexsort((marks["time"].to_numpy(), lines))
    order = order[lines[order] >= 0]
    first = np.searchsorted(lines[order], np.arange(math.prod(map(len, known)) + 1))
    found = np.empty(rows.height, np.int64)
    compiled(find_latest, rows.height)(
        _lines(rows, owners, known), given(rows[time]), first, marks["time"].to_numpy()[order],
        first[:-1].copy(), found,
    )  # fmt: skip
    there = found >= 0
    if not order.size or not there.any():
        return pl.repeat(None, rows.height, dtype=pl.Int64, eager=True)
    places = pl.Series(order[np.maximum(found, 0)])
    return places if there.all() else places.set(pl.Series(~there), None)


def _lines(frame: pl.DataFrame, owners: Sequence[str], known: Sequence[NDArray[Any]]) -> _Ints:
    """Return for each row an integer that stands for its values of `owners` (such as device).

    Equal integers mean equal values; -1: a value is null, or not in `known`, which lists per column
    the sorted values that occur.
    """
    line = np.zeros(frame.height, np.int64)
    unknown = np.zeros(frame.height, np.bool_)
    for name, numbers in zip(owners, known, strict=True):
        column = frame[name]
        if column.null_count():
            unknown |= column.is_null().to_numpy()
            column = column.fill_null(0)
        place, is_none = _places(column.to_numpy(), numbers)
        unknown |= is_none
        line *= len(numbers)
        line += place
    line[unknown] = -1
    return line


def _places(values: NDArray[Any], known: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return the index of each value in the sorted array `known`, and whether it is not there."""
    count = known.size
    if count and known[0] == 0 and known[-1] == count - 1:  # as devices and processes mostly are
        return values, (values < 0) | (values >= count)
    place = np.minimum(np.searchsorted(known, values), max(count - 1, 0))
    return place, (known[place] != values) if count else np.ones(values.size, np.bool_)
