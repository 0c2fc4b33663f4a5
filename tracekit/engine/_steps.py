"""Cut time into steps, limit a run to some steps, and split steps by the iteration the host is in.

A step lasts until the next one begins, so the time after an iteration belongs to it. Time before
the first step of a device and after its last one belongs to no step.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from numbers import Integral
from typing import TypeAlias

import polars as pl

from tracekit.engine._host_time import has_ops
from tracekit.engine._launch_groups import host_marks, launch_groups
from tracekit.engine._windows import (
    Cutter,
    chosen_windows,
    common_numbers,
    cut,
    first_iterations,
    numbered_alike,
    run_windows,
)
from tracekit.errors import MissingDataError, UsageError
from tracekit.model import Stretch, Trace, with_clocks

_OWNER = ["process", "device"]


def step_windows(trace: Trace, skip: int = 0, cutter: Cutter = run_windows) -> pl.DataFrame:
    """Return each device's time cut into iterations (training steps) and the gaps between them.

    Without iterations, each device has one window from its first op to its last.

    Parameters
    ----------
    trace
        The run; an iteration must have the same id in all processes (`numbered_alike`).
    skip
        Number of iterations to leave out at the beginning.
    cutter
        Function that cuts the run's time into iterations.

    Returns
    -------
    ``process, device, iteration, start, end, counts`` (times in ns); ``counts`` is true for a
    window of a step that `counted_steps` keeps, and for the only window of a device in a run
    without iterations.
    """
    columns = [*_OWNER, "iteration", "start", "end", "counts"]
    iterations = trace.read("iterations")
    if iterations.is_empty() and not skip:
        by_device = launch_groups(trace).group_by(_OWNER)
        recorded = by_device.agg(pl.col("start").min(), pl.col("end").max()).sort(_OWNER)
        return recorded.with_columns(
            iteration=pl.lit(None, pl.Int64), counts=pl.lit(value=True)
        ).select(columns)
    windows = chosen_windows(trace, skip=0, per_iteration=True, cutter=cutter)
    steps = counted_steps(with_steps(windows), iterations, skip).windows
    return steps.with_columns(counts=pl.col("iteration").is_not_null()).select(columns)


def inside_steps(spans: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    """Clip intervals to the windows whose column ``counts`` is true; drop what lies outside.

    Parameters
    ----------
    spans
        ``process, device, start, end`` (ns), and further columns, which are kept.
    windows
        Windows, as `step_windows` returns them.
    """
    counted = windows.with_row_index("window").filter("counts")["window"]
    clipped = cut(spans, windows.drop("counts"))
    return clipped.filter(pl.col("window").is_in(counted.implode()))


def begun_in_steps(spans: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    """Return the intervals that begin in windows whose ``counts`` is true, with ``iteration``."""
    begun = inside_steps(spans.drop("iteration", strict=False), windows).filter("counts")
    return begun.with_columns(iteration=windows["iteration"].gather(begun["window"]))


AskedSteps: TypeAlias = str | int | Sequence[int]
AskedTimes: TypeAlias = str | Sequence[str | int]


def parse_iterations(steps: AskedSteps) -> tuple[int, int]:
    """Return the first and the last step of ``10:12``, ``7``, 7 or (10, 12).

    Raises
    ------
    UsageError
        If the value does not name steps.
    """
    text = ":".join(map(str, steps if isinstance(steps, list | tuple) else [steps]))
    found = re.fullmatch(r"\s*([0-9]{1,18})\s*(?::\s*([0-9]{1,18}))?\s*", text)
    first = int(found[1]) if found else 1
    last = int(found[2] or found[1]) if found else 0
    if first > last:
        raise UsageError(f"{text!r} names no steps", "write --iterations 10:12, both included")
    return first, last


def parse_ranks(ranks: str | Sequence[int]) -> list[tuple[int, int]]:
    """Parse rank spans, ``0-3, 8`` or [0, 1, 2, 3, 8], into pairs of first and last rank.

    Raises
    ------
    UsageError
        If the value does not name ranks.
    """
    spans = []
    for text in ranks.split(",") if isinstance(ranks, str) else map(str, ranks):
        found = re.fullmatch(r"\s*([0-9]{1,9})\s*(?:-\s*([0-9]{1,9}))?\s*", text)
        if found is None or int(found[2] or found[1]) < int(found[1]):
            raise UsageError(f"{text!r} names no ranks", "write --only-ranks 0-3,8")
        spans.append((int(found[1]), int(found[2] or found[1])))
    return spans


_UNITS = {"ns": 0, "us": 3, "ms": 6, "s": 9}
_WRITE_TIMES = "write --between 12.3s:12.9s, with units ns, us, ms or s"


def parse_between(times: AskedTimes) -> tuple[int, int]:
    """Return the two times, in ns, of ``12.3s:12.9s`` or of two numbers of ns.

    Raises
    ------
    UsageError
        If the value does not name two times.
    """
    if isinstance(times, list | tuple):
        if [isinstance(each, Integral) for each in times] == [True, True]:
            return int(times[0]), int(times[1])
        times = ":".join(map(str, times))
    text = str(times)
    time = r"\s*(-?[0-9]{1,12}(?:\.[0-9]{1,9})?)\s*(ns|us|ms|s)\s*"
    found = re.fullmatch(f"{time}:{time}", text)
    if found is None:
        raise UsageError(f"{text!r} has no two times", _WRITE_TIMES)
    first, first_unit, last, last_unit = found.groups()
    return (
        int(Decimal(first).scaleb(_UNITS[first_unit])), int(Decimal(last).scaleb(_UNITS[last_unit]))
    )  # fmt: skip


def within(
    trace: Trace,
    *,
    between: AskedTimes | None = None,
    iterations: AskedSteps | None = None,
) -> Trace:
    """Return a run limited to a time span or to steps.

    Analyses of it count the work inside the span only, as ``docs/breakdown.md`` defines.

    Parameters
    ----------
    between
        Start and end, such as ``12.3s:12.9s`` or two numbers of ns, counted from the start of the
        recording as in the run's tables; None for no limit in time.
    iterations
        First and last step, such as ``10:12``; None for no limit in steps.

    Raises
    ------
    UsageError
        If both are given, a text cannot be parsed, the end is not after the start, or the span is
        outside of the recording.
    MissingDataError
        If the reports (trace files) of the run have clocks that cannot be compared.
    """
    if between is None and iterations is None:
        return trace
    if between is not None and iterations is not None:
        raise UsageError("a stretch is of times or of steps", "give --between or --iterations")
    if iterations is not None:
        first, last = parse_iterations(iterations)
        trace = numbered_alike(trace)
        chosen_steps(trace.read("iterations"), first, last)
        return trace.limited_to(Stretch(iterations=(first, last)))
    begin, end = parse_between(between or "")
    _check_times(trace, begin, end)
    return trace.limited_to(Stretch(between=(begin, end)))


def _check_times(trace: Trace, begin: int, end: int) -> None:
    if begin >= end:
        raise UsageError(f"nothing is between {_seconds(begin)} and {_seconds(end)}", _WRITE_TIMES)
    reports = trace.read("reports")
    if (clocks := with_clocks(reports.select("report"), reports)["clock"].n_unique()) > 1:
        raise MissingDataError(
            f"the reports of this run are on {clocks} clocks, so no time is the same in all",
            "choose steps with --iterations, or set clocks (docs/clocks.md)",
        )
    first, last = trace.once(_edges, of_all=True)
    if first is not None and last is not None and (begin >= last or end <= first):
        raise UsageError(
            f"nothing was recorded between {_seconds(begin)} and {_seconds(end)}",
            f"the run is from {_seconds(first)} to {_seconds(last)}",
        )


def _edges(trace: Trace) -> tuple[int | None, int | None]:
    """Return when the first op or range of a run starts, and when the last one ends, ns."""
    work = launch_groups(trace).lazy() if has_ops(trace) else trace["ranges"]
    edges = work.select(first=pl.col("start").min(), last=pl.col("end").max())
    first, last = edges.collect(engine="streaming").row(0)  # whose memory is that of a few batches
    return first, last


def _seconds(time: int) -> str:
    return f"{Decimal(time).scaleb(-9).normalize():f}s"


def chosen_steps(steps: pl.DataFrame, first: int, last: int) -> pl.DataFrame:
    """Return the rows with a step number from `first` to `last`.

    Raises
    ------
    UsageError
        If there are no such rows.
    """
    found = steps.filter(pl.col("iteration").is_between(first, last))
    if found.is_empty():
        known = steps["iteration"].drop_nulls().sort()
        hint = f"there are {known[0]} to {known[-1]}" if known.len() else "it has no steps"
        raise UsageError(f"the run has no step from {first} to {last}", hint)
    return found


def some_steps(trace: Trace, first: int, last: int) -> Trace:
    """Return a run with only the ops and host calls of steps `first` to `last`, and of two more.

    The step before and the step after are kept as well: a step may wait for something in the
    previous one, and ends where the next begins. All processes have to be on one clock.

    Raises
    ------
    UsageError
        If the run has none of these steps.
    """
    trace = numbered_alike(trace)
    iterations = trace.read("iterations")
    chosen_steps(iterations, first, last)
    near = iterations.filter(pl.col("iteration").is_between(first - 1, last + 1))
    begin, end = near.select(pl.col("start").min(), pl.col("end").max()).row(0)
    in_step = pl.col("iteration").is_between(first - 1, last + 1)
    starts = pl.col("start").is_between(begin, end, closed="left")
    launched = pl.col("launch_start").is_between(begin, end, closed="left")
    unlaunched = pl.col("launch_start").is_null() & starts
    ops, calls = trace["ops"].filter(in_step | launched | unlaunched), trace["calls"].filter(starts)
    # They are read many times.
    return trace.with_lazy({"ops": ops.collect().lazy(), "calls": calls.collect().lazy()})


_NUMBER = pl.col("iteration")


def by_host(cutter: Cutter) -> Cutter:
    """Return a function that cuts a run's time as `cutter` does, and also by the host's iterations.

    The function also cuts each device's time where its process enters or leaves an iteration on the
    host. It adds the column ``on_host``: whether the host is in an iteration during the window.
    """

    def cut(trace: Trace) -> pl.DataFrame:
        begun = host_marks(trace.read("iterations"))
        marks = begun.select("process", "time", on_host=_NUMBER.is_not_null())
        cut_too = split(cutter(trace), marks, "on_host")
        return cut_too.with_columns(pl.col("on_host").fill_null(value=False))

    return cut


def split(windows: pl.DataFrame, marks: pl.DataFrame, state: str) -> pl.DataFrame:
    """Split windows (intervals of device time) where a state of their process on the host changes.

    Parameters
    ----------
    windows
        ``process, device, start, end`` (ns).
    marks
        ``process, time`` and the column `state`, ordered by time: the state from that time on.
    state
        Name of the column with the state.

    Returns
    -------
    The columns of `windows`, and `state`; null before the first mark.
    """
    numbered = windows.with_row_index("turn")
    spans = numbered.select(*_OWNER, "turn", begin="start", until="end").sort("begin", "until")
    begun = spans.join_asof(
        marks, left_on="begin", right_on="time", by="process", check_sortedness=False
    ).select("turn", state, start="begin")
    owners = windows.select(_OWNER).unique(maintain_order=True)
    within = (
        owners.join(marks, on="process").sort("time")
        .join_asof(spans, left_on="time", right_on="begin", by=_OWNER, check_sortedness=False)
        .filter((pl.col("time") > pl.col("begin")) & (pl.col("time") < pl.col("until")))
        .select("turn", state, start="time")
    )  # fmt: skip
    return (
        pl.concat([begun, within])
        .sort("turn", "start")
        .join(numbered.drop("start"), on="turn", maintain_order="left")
        .with_columns(
            end=pl.coalesce(pl.col("start").shift(-1).over("turn"), "end"),
        )
        .select(*windows.columns, state)
    )


def with_steps(windows: pl.DataFrame) -> pl.DataFrame:
    """Replace the iteration of each window (time interval) by the number of its step.

    A step has the number of an iteration, and lasts until the next iteration begins: it includes
    the window between the two, whose iteration is null. The number is null outside of all steps,
    for a last step whose end is not known, and for a device with fewer than half as many steps as
    another one, such as a stray context or a process that validates now and then. `windows` has
    ``process, device, iteration, is_open`` (whether the end of the window is unknown), by time on
    each device.
    """
    used = _NUMBER.drop_nulls().n_unique().over(_OWNER)
    step = _NUMBER.forward_fill().over(_OWNER)
    later = _NUMBER.backward_fill().over(_OWNER)
    is_step = later.is_not_null() & ~pl.col("is_open") & (2 * used >= used.max())
    return windows.with_columns(iteration=pl.when(is_step).then(step))


@dataclass(frozen=True)
class Counted:
    """Windows of the steps that an analysis covers, and how many steps it leaves out."""

    windows: pl.DataFrame
    """The windows; `iteration` is null outside of the covered steps."""
    left_out: int
    """Number of steps left out because not all processes have them."""
    annotated: int
    """Number of iterations in processes that have steps, without iterations that are skipped or cut
    by the recording."""
    empty: int
    """Number of iterations in `annotated` during which their process has no GPU work."""


def counted_steps(windows: pl.DataFrame, iterations: pl.DataFrame, skip: int) -> Counted:
    """Set the step number (`iteration`) of windows to null, except for steps in all processes.

    The first `skip` steps of each process, and steps cut by the start or end of the recording, are
    set to null as well.

    Parameters
    ----------
    windows
        Windows, as `with_steps` numbers them.
    iterations
        The table `iterations`.
    skip
        Number of iterations to leave out at the beginning.
    """
    key = ["process", "iteration"]
    skipped = (
        pl.concat([first_iterations(iterations, skip), torn(iterations)])
        .select(*key, is_skipped=True)
        .unique(key)
    )
    windows = windows.join(skipped, on=key, how="left", maintain_order="left").with_columns(
        iteration=pl.when(pl.col("is_skipped").is_null()).then(_NUMBER)
    )
    common = common_numbers(windows)
    seen = windows.drop_nulls("iteration").select(key).unique()
    known = pl.concat([skipped.select(key), windows.filter("is_open").select(key), seen])
    annotated = iterations.join(skipped, on=key, how="anti").join(seen, on="process", how="semi")
    counted = pl.when(_NUMBER.is_in(common.implode())).then(_NUMBER)
    return Counted(
        windows.with_columns(iteration=counted).drop("is_skipped"),
        seen["iteration"].n_unique() - common.len(),
        annotated.height,
        annotated.join(known, on=key, how="anti").height,
    )


def torn(iterations: pl.DataFrame) -> pl.DataFrame:
    """Return the iterations (training steps) whose GPU work was recorded only in part."""
    return iterations.filter((pl.col("ops") > 0) & ~pl.col("whole"))
