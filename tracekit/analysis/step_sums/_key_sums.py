"""Counts and times of a run's GPU ops, summed by keys in each time window, in one pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import polars as pl

from tracekit.analysis.calls import process_ranks
from tracekit.analysis.facts import (
    OF_PROCESSES,
    OF_WINDOWS,
    columns_of,
    dividing,
    is_by_stage,
    is_by_steps,
    step_phases,
    work_of,
)
from tracekit.engine import (
    Counted,
    GroupTally,
    GroupTotals,
    Named,
    Receivers,
    StageSums,
    StageTally,
    Summed,
    Work,
    by_host,
    counted_steps,
    kept_sums,
    named_ranges,
    run_windows,
    sum_up,
    with_steps,
)
from tracekit.model import Trace

_OWNER = ("process", "device")
_SUMMED = pl.col("ops", "total_ns", "busy_ns").sum()


@dataclass(frozen=True)
class KeySums:
    """Counts and times of ops by key, and the time windows (steps, or the run) that they cover."""

    stages: StageSums | None
    """Sums by stage; None if not computed."""
    grouped: GroupTotals | None
    """Sums by other keys; None if there are none."""
    whole: StageSums | None
    """Sums by stage over each GPU's whole recording; None if not computed."""
    windows: pl.DataFrame
    """The time windows per GPU: ``window`` (number), ``process, device, start, end`` (ns),
    others."""
    with_durations: bool = False
    """Whether durations of single ops were kept, from which medians can be computed."""

    @property
    def of_all(self) -> StageSums:
        """Sums by stage over each GPU's whole recording; an error if `whole` is None."""
        return _there(self.whole)

    @property
    def sums(self) -> GroupTotals | StageSums:
        """The sums by other keys if there are any, else those by stage."""
        return self.grouped or _there(self.stages)


def _there(sums: StageSums | None) -> StageSums:
    if sums is None:
        raise AssertionError("stages are added up where this is asked")
    return sums


def sums_by_keys(
    work: Work, keys: Sequence[str], *, skip: int, with_stages: bool = False,
    with_whole: bool = False, with_durations: bool = False,
) -> KeySums:  # fmt: skip
    """Add up the counts and times of a run's ops by keys, in one pass.

    Parameters
    ----------
    work
        Ops (or ranges) to add up, and their windows.
    keys
        Keys to group by; with ``iteration`` each step is a window.
    skip
        Number of iterations to leave out at the beginning.
    with_stages
        Whether to add up by stage too, if the keys are others.
    with_whole
        Whether to add up by stage over each GPU's whole recording, too.
    with_durations
        Whether to keep the durations of single ops of each group.
    """
    per_iteration = is_by_steps(keys)
    is_whole = with_whole and not per_iteration
    of_windows = is_by_stage(keys) or list(keys) == dividing(keys)
    needs_stages = of_windows or with_stages or is_whole
    # What was added up when the run was ingested is that of its devices as a whole.
    is_all = not skip and work.trace.stretch.is_all
    kept = kept_sums(work.trace) if is_all and not work.is_host else None
    if kept is not None and of_windows and not per_iteration:
        return KeySums(kept, None, kept, kept.windows)
    columns = [name for name in columns_of(keys) if name not in OF_WINDOWS]
    wanted = _Wanted(
        of_pieces=work.is_host,
        columns=None if of_windows else columns,
        named={name: _of_process(work.trace, name) for name in columns if name in _OF_PROCESS},
        with_durations=with_durations,
        stages=needs_stages and (per_iteration or kept is None),
        of_stages_alone=not is_whole,
        whole=with_whole and per_iteration and kept is None,
    )
    if per_iteration and not skip and wanted == _STAGES:  # as several questions about steps ask
        found = work.trace.once(_stages_of_steps)
    else:
        found = sum_up(
            work.trace,
            wanted,
            skip=skip,
            per_iteration=per_iteration,
            cutter=by_host(work.cutter) if per_iteration else work.cutter,
            with_paths="range" in columns,
        )
    sums = iter(found.sweeps)
    stages = next(sums) if wanted.stages else kept if needs_stages else None
    whole = next(iter(found.whole), kept) if with_whole and per_iteration else None
    windows = with_steps(found.windows) if per_iteration else found.windows
    if "phase" in keys:
        windows = windows.join(
            step_phases(work.trace), on=["process", "iteration"], how="left", maintain_order="left"
        )
    return KeySums(stages, next(sums, None), stages if is_whole else whole, windows, with_durations)


@dataclass(frozen=True)
class _Wanted:
    """The sums to compute from each part of a run; a part is one or several of its trace files."""

    of_pieces: bool
    """Whether rows are pieces of NVTX ranges instead of ops; then only a range's first piece
    counts."""
    columns: Sequence[str] | None
    """Keys that ops are grouped by; None if only stages are summed."""
    named: Mapping[str, Named] = field(repr=False)  # which `columns` say of a run
    """Key -> its value for each process, for keys that belong to processes, such as ``rank``."""
    with_durations: bool
    """Whether to keep the durations of single ops."""
    stages: bool
    of_stages_alone: bool
    whole: bool
    """Whether to sum by stage per window; whether stage is the only key there; and whether to sum
    by stage over whole recordings."""

    @property
    def of_sweeps(self) -> Sequence[type[StageSums | GroupTotals]]:
        """Classes of the sums to compute per window: by stage, by other keys, or both."""
        return [*[StageSums] * self.stages, *[GroupTotals] * (self.columns is not None)]

    @property
    def of_whole(self) -> Sequence[type[StageSums]]:
        """Classes of the sums over whole recordings: by stage, or none."""
        return [StageSums] * self.whole

    def __call__(self, part: Trace) -> Receivers:
        """Return new, empty accumulators for the ops of one part (some files) of the run."""
        sweeps: list[StageTally | GroupTally] = []
        if self.stages:
            sweeps.append(
                StageTally(of_pieces=self.of_pieces, of_stages_alone=self.of_stages_alone)
            )
        if self.columns is not None:
            ranges = {"range": named_ranges(part)} if "range" in self.columns else {}
            sweeps.append(
                GroupTally(
                    self.columns, {**self.named, **ranges},
                    keeps_durations=self.with_durations, of_pieces=self.of_pieces,
                )
            )  # fmt: skip
        whole = [StageTally(of_pieces=self.of_pieces)] if self.whole else []
        return Receivers(sweeps=sweeps, whole=whole)


_STAGES = _Wanted(
    of_pieces=False, columns=None, named={}, with_durations=False, stages=True,
    of_stages_alone=True, whole=False,
)  # fmt: skip
"""Sums of ops by stage alone."""


def _stages_of_steps(trace: Trace) -> Summed:
    return sum_up(trace, _STAGES, skip=0, per_iteration=True, cutter=by_host(run_windows))


_OF_PROCESS = ("pid", *OF_PROCESSES)


def _of_process(trace: Trace, name: str) -> Named:
    if name == "pid":
        pids = trace["processes"].select("process", "pid").sort("process").collect()["pid"]
        return Named(("process",), pl.col("process"), pids)
    return Named(("process",), pl.col("process"), process_ranks(trace)[name])


def grouped_sums(keys: Sequence[str], found: KeySums) -> pl.DataFrame:
    """Return each group's number of ops and times, added over the time windows.

    A group is a combination of values of `keys`.
    """
    columns = columns_of(keys)
    known = [name for name in OF_WINDOWS if name in found.windows.columns]
    of_windows = found.windows.select("window", *known)
    if is_by_stage(keys):
        stages = _there(found.stages).stages.join(of_windows, on="window", how="left")
        sums = stages.group_by(columns).agg(pl.col("ops", "busy_ns", "exposed_ns").sum())
        return sums.with_columns(overlap_ns=pl.col("busy_ns") - pl.col("exposed_ns"))
    groups = found.sums.groups.lazy().join(
        of_windows.lazy(), on="window", how="left", maintain_order="left"
    )
    if found.grouped is None or not found.with_durations:
        # Of steps nearly each row is a group of its own: no list is made of the rows of each.
        return groups.group_by(columns).agg(_SUMMED).collect(engine="streaming")
    return _with_durations(groups.collect(), found.grouped, columns)


def _with_durations(
    groups: pl.DataFrame, totals: GroupTotals, columns: Sequence[str]
) -> pl.DataFrame:
    """Sum the rows of all windows by group (`columns`); add statistics of the ops' durations.

    They are mean, median, minimum and maximum.
    """
    rows = groups.with_row_index("row").group_by(columns).agg(_SUMMED, "row")
    numbers = rows.select("row").with_row_index("number").explode("row").sort("row")["number"]
    return pl.concat([rows.drop("row"), totals.durations(numbers)], how="horizontal").with_columns(
        mean_ns=pl.when(pl.col("ops") > 0).then(pl.col("total_ns") / pl.col("ops"))
    )


@dataclass(frozen=True)
class StepTimes:
    """Times of the steps of a run on its GPUs, by keys and by stage."""

    groups: pl.DataFrame
    """The keys' columns, ``iteration, ops, length_ns``: exposed time by stage, else busy time,
    added over devices. A group that does not occur in a step has no row for it; `iteration` is null
    outside of the windows `counted`."""
    stages: pl.DataFrame
    """``window, stage, busy_ns, exposed_ns``."""
    windows: pl.DataFrame
    """``window, process, device, iteration, start, end`` (ns), ``on_host`` (whether the host is in
    an iteration). If the whole run is one window, `iteration` and `process` are null."""
    counted: Counted
    """The windows of steps that are neither skipped nor incomplete, and how many others were left
    out, by reason."""


def step_times(trace: Trace, keys: Sequence[str], *, skip: int, as_one: bool) -> StepTimes:
    """Return a run's GPU times by keys, per step after the first `skip`.

    With `as_one` the run as a whole counts as one step.
    """
    work, names = work_of(trace, keys), ("window", *_OWNER, "iteration", "start", "end", "on_host")
    if as_one:
        found = sums_by_keys(work, keys, skip=0, with_stages=True)
        windows = found.windows.with_columns(process=pl.lit(None, pl.Int32), on_host=True)
        counted = Counted(windows.select(names), 0, 0, 0)
        return StepTimes(group_lengths(keys, found), stages_of(found), counted.windows, counted)
    found = sums_by_keys(work, [*keys, "iteration"], skip=0, with_stages=True)
    counted = counted_steps(found.windows, work.trace.read("iterations"), skip)
    numbered = replace(found, windows=counted.windows)
    windows = counted.windows.select(names)
    return StepTimes(group_lengths(keys, numbered), stages_of(found), windows, counted)


def stages_of(found: KeySums) -> pl.DataFrame:
    """Return the sums by stage and window: ``window, stage, busy_ns, exposed_ns``."""
    return _there(found.stages).stages.select("window", "stage", "busy_ns", "exposed_ns")


def group_lengths(keys: Sequence[str], found: KeySums) -> pl.DataFrame:
    """Return ``ops, length_ns`` (exposed time by stage, else busy time) per group and step."""
    part = "exposed_ns" if is_by_stage(keys) else "busy_ns"
    each = grouped_sums([*keys, "iteration"], found)
    return each.select(*columns_of(keys), "iteration", "ops", length_ns=part)
