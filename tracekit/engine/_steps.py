"""Steps: windows by step, parts of a run inside some of them, and where the host was.

A step takes until the next one begins, so the time after an iteration is its own. What lies before
the first step of a device and after its last one is outside of all steps.
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
from tracekit.engine._launch_groups import host_marks
from tracekit.engine._windows import Cutter, chosen_windows, cut, first_iterations
from tracekit.errors import MissingDataError, UsageError
from tracekit.model import Stretch, Trace, with_clocks

_OWNER = ["process", "device"]


def step_windows(trace: Trace, ops: pl.DataFrame, skip: int = 0) -> pl.DataFrame:
    """Return the windows of each device; without iterations, from its first op to its last one.

    Parameters
    ----------
    trace
        The run, its iterations numbered alike.
    ops
        Its ops: ``process, device, start, end, launch_start, launch_thread, stage, iteration``.
    skip
        How many iterations to leave out at the beginning.

    Returns
    -------
    ``process, device, iteration, start, end, counts``: whether it is part of a step that counts, or
    the whole of a run without any.
    """
    columns = [*_OWNER, "iteration", "start", "end", "counts"]
    iterations = trace.read("iterations")
    if iterations.is_empty() and not skip:
        whole = ops.group_by(_OWNER).agg(pl.col("start").min(), pl.col("end").max()).sort(_OWNER)
        return whole.with_columns(
            iteration=pl.lit(None, pl.Int64), counts=pl.lit(value=True)
        ).select(columns)
    windows = chosen_windows(trace, ops, skip=0, per_iteration=True)
    steps = counted_steps(with_steps(windows), iterations, skip).windows
    return steps.with_columns(counts=pl.col("iteration").is_not_null()).select(columns)


def inside_steps(spans: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    """Return the pieces of spans that lie in windows that count.

    Parameters
    ----------
    spans
        ``process, device, start, end``, and others.
    windows
        As `step_windows` returns them.
    """
    counted = windows.with_row_index("window").filter("counts")["window"]
    pieces = cut(spans, windows.drop("counts"))
    return pieces.filter(pl.col("window").is_in(counted.implode()))


AskedSteps: TypeAlias = str | int | Sequence[int]
AskedTimes: TypeAlias = str | Sequence[str | int]


def parse_iterations(asked: AskedSteps) -> tuple[int, int]:
    """Return the first and the last step that are meant by ``10:12``, ``7``, 7 or (10, 12).

    Raises
    ------
    UsageError
        If none are.
    """
    text = ":".join(map(str, asked if isinstance(asked, list | tuple) else [asked]))
    found = re.fullmatch(r"\s*([0-9]{1,18})\s*(?::\s*([0-9]{1,18}))?\s*", text)
    first = int(found[1]) if found else 1
    last = int(found[2] or found[1]) if found else 0
    if first > last:
        raise UsageError(f"{text!r} names no steps", "write --iterations 10:12, both included")
    return first, last


def parse_ranks(asked: str | Sequence[int]) -> list[tuple[int, int]]:
    """Return the spans of ranks that are meant by ``0-3, 8`` or [0, 1, 2, 3, 8].

    Raises
    ------
    UsageError
        If none are.
    """
    spans = []
    for text in asked.split(",") if isinstance(asked, str) else map(str, asked):
        found = re.fullmatch(r"\s*([0-9]{1,9})\s*(?:-\s*([0-9]{1,9}))?\s*", text)
        if found is None or int(found[2] or found[1]) < int(found[1]):
            raise UsageError(f"{text!r} names no ranks", "write --only-ranks 0-3,8")
        spans.append((int(found[1]), int(found[2] or found[1])))
    return spans


_UNITS = {"ns": 0, "us": 3, "ms": 6, "s": 9}
_WRITE_TIMES = "write --between 12.3s:12.9s, with units ns, us, ms or s"


def parse_between(asked: AskedTimes) -> tuple[int, int]:
    """Return the two times, in ns, that are meant by ``12.3s:12.9s`` or by two numbers of ns.

    Raises
    ------
    UsageError
        If none are.
    """
    if isinstance(asked, list | tuple):
        if [isinstance(each, Integral) for each in asked] == [True, True]:
            return int(asked[0]), int(asked[1])
        asked = ":".join(map(str, asked))
    text = str(asked)
    time = r"\s*([0-9]{1,12}(?:\.[0-9]{1,9})?)\s*(ns|us|ms|s)\s*"
    found = re.fullmatch(f"{time}:{time}", text)
    if found is None:
        raise UsageError(f"{text!r} says no two times", _WRITE_TIMES)
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
    """Return a run limited to a stretch; ``docs/breakdown.md`` says what that means.

    Parameters
    ----------
    trace
        The run.
    between
        From which time to which, such as ``12.3s:12.9s`` or in ns; they count from the start of the
        recording, as those in the run's tables do.
    iterations
        The first and the last step, such as ``10:12``.

    Raises
    ------
    UsageError
        If both are given, a text says neither, the end is not after the start, or nothing was
        recorded there.
    MissingDataError
        If the times of the run's reports cannot be compared.
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
    """Return when the first op or range begins, and the last one ends, ns."""
    work = trace["ops"] if has_ops(trace) else trace["ranges"]
    edges = work.select(first=pl.col("start").min(), last=pl.col("end").max())
    first, last = edges.collect(engine="streaming").row(0)  # whose memory is that of a few batches
    return first, last


def _seconds(time: int) -> str:
    return f"{Decimal(time).scaleb(-9).normalize():f}s"


def chosen_steps(steps: pl.DataFrame, first: int, last: int) -> pl.DataFrame:
    """Return the rows of steps from one to another.

    Raises
    ------
    UsageError
        If there are none.
    """
    found = steps.filter(pl.col("iteration").is_between(first, last))
    if found.is_empty():
        known = steps["iteration"].drop_nulls().sort()
        hint = f"there are {known[0]} to {known[-1]}" if known.len() else "it has no steps"
        raise UsageError(f"the run has no step from {first} to {last}", hint)
    return found


def some_steps(trace: Trace, first: int, last: int) -> Trace:
    """Return a run with the ops and calls of some steps, and of those next to them, alone.

    What a step waited for may lie in the one before it, and it ends where the next one begins.
    Times of all processes have to be on one clock.

    Raises
    ------
    UsageError
        If it has none of these steps.
    """
    trace = numbered_alike(trace)
    iterations = trace.read("iterations")
    chosen_steps(iterations, first, last)
    near = iterations.filter(pl.col("iteration").is_between(first - 1, last + 1))
    begin, end = near.select(pl.col("start").min(), pl.col("end").max()).row(0)
    in_step = pl.col("iteration").is_between(first - 1, last + 1)
    launch = pl.coalesce("launch_start", "start")
    return trace.with_lazy(
        {
            "ops": trace["ops"].filter(in_step | launch.is_between(begin, end, closed="left")),
            "calls": trace["calls"].filter(pl.col("start").is_between(begin, end, closed="left")),
        }
    )


_NUMBER = pl.col("iteration")


def by_host(cutter: Cutter) -> Cutter:
    """Return what cuts time into iterations, and these where the host enters or leaves its own."""

    def cut(ops: pl.DataFrame, iterations: pl.DataFrame) -> pl.DataFrame:
        marks = host_marks(iterations).select("process", "time", on_host=_NUMBER.is_not_null())
        cut_too = split(cutter(ops, iterations), marks, "on_host")
        return cut_too.with_columns(pl.col("on_host").fill_null(value=False))

    return cut


def split(windows: pl.DataFrame, marks: pl.DataFrame, state: str) -> pl.DataFrame:
    """Cut windows where the state of their process's host changes.

    Parameters
    ----------
    windows
        ``process, device, start, end``.
    marks
        ``process, time``, and the column `state`: what the state is from then on; by time.
    state
        Name of the column.

    Returns
    -------
    The columns of `windows`, and `state`: what it is meanwhile, null before the first mark.
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
    """Give windows the number of the step that they belong to, in place of their iteration.

    It is null outside of all steps: of a last step of which the end is not known, and of a device
    that works in less than half as many steps as another one, such as a stray context or a process
    that validates now and then.

    Parameters
    ----------
    windows
        ``process, device, iteration, is_open``, in order of time on each device.
    """
    used = _NUMBER.drop_nulls().n_unique().over(_OWNER)
    step = _NUMBER.forward_fill().over(_OWNER)
    later = _NUMBER.backward_fill().over(_OWNER)
    is_step = later.is_not_null() & ~pl.col("is_open") & (2 * used >= used.max())
    return windows.with_columns(iteration=pl.when(is_step).then(step))


@dataclass(frozen=True)
class Counted:
    """The steps that count.

    Parameters
    ----------
    windows
        The windows, of which `iteration` is null outside of these steps.
    left_out
        How many steps are left out that not all processes have.
    annotated, empty
        How many iterations there are but skipped and cut ones, of processes that have steps; and in
        how many of these their process ran nothing.
    """

    windows: pl.DataFrame
    left_out: int
    annotated: int
    empty: int


def counted_steps(windows: pl.DataFrame, iterations: pl.DataFrame, skip: int) -> Counted:
    """Give windows the numbers of the steps that count, which are those of all processes.

    Left out are the first `skip` iterations of each process, those that an edge of the recording
    cut, and steps that not all processes have.

    Parameters
    ----------
    windows
        As `with_steps` numbers them.
    iterations
        The canonical table.
    skip
        How many iterations to leave out at the beginning.
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
    common = _common(windows)
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
    """Return the iterations whose GPU work was recorded only in part."""
    return iterations.filter((pl.col("ops") > 0) & ~pl.col("whole"))


def numbered_alike(trace: Trace) -> Trace:
    """Return a run whose processes number their iterations alike.

    Where they number them so differently that none is common, their order tells which belong
    together.
    """
    iterations = trace.read("iterations")
    if iterations.is_empty() or not _common(iterations).is_empty():
        return trace
    order = pl.int_range(pl.len(), dtype=pl.Int64).over("process", order_by="start")
    key = ["process", "iteration"]
    numbers = iterations.select(*key, number=order).unique(key, keep="first").lazy()
    ops = trace["ops"].join(numbers, on=key, how="left", maintain_order="left")
    renumbered = {
        "iterations": iterations.with_columns(iteration=order).lazy(),
        "ops": ops.with_columns(iteration=pl.col("number")).drop("number"),
    }
    return trace.with_lazy(renumbered)


def _common(rows: pl.DataFrame) -> pl.Series:
    """Return the numbers of iterations that all processes have.

    A process with less than half as many as another one is a bystander, and has no say.
    """
    seen = rows.drop_nulls("iteration").select("process", "iteration").unique()
    of_each = seen.group_by("process").len()
    takes_part = of_each.filter(2 * pl.col("len") >= pl.col("len").max()).select("process")
    holders = seen.join(takes_part, on="process", how="semi").group_by("iteration").len()
    return holders.filter(pl.col("len") == takes_part.height)["iteration"].sort()
