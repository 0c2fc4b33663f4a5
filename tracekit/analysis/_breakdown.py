"""Where GPU time goes, by any of several keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import polars as pl

from tracekit.analysis._device_sums import KeptSums, kept_sums
from tracekit.analysis._group_tally import GroupTally
from tracekit.analysis._keys import (
    OF_PROCESSES,
    OF_WINDOWS,
    columns_of,
    dividing,
    is_by_stage,
    share_meaning,
)
from tracekit.analysis._outside import named_ranges
from tracekit.analysis._pieces import Receivers, hand_out
from tracekit.analysis._range_paths import shown, sorting, with_path_texts
from tracekit.analysis._ranks import outlier_ranks, process_ranks, with_devices
from tracekit.analysis._stage_tally import StageSums, StageTally
from tracekit.analysis._steps import (
    Counted,
    by_host,
    counted_steps,
    numbered_alike,
    with_steps,
)
from tracekit.analysis._tallies import Named
from tracekit.analysis._verdicts import unknown_passes, verdict_meta
from tracekit.analysis._views import chosen_view
from tracekit.analysis._words import OUTSIDE_STEPS
from tracekit.analysis._work import HOST, Work, work_of
from tracekit.errors import MissingDataError, UsageError
from tracekit.model import STAGES, Answer, Trace

_Some = TypeVar("_Some")
_PERCENTILES = {"p5_ns": 0.05, "median_ns": 0.5, "p95_ns": 0.95}
_OWNER = ("process", "device")
_PASSES = ("FP", "BP")
_SEVERAL = 2
_PARTS = pl.Enum([*STAGES, "idle", "between"])
_SUMS = (
    "total_ns", "busy_ns", "exposed_ns", "overlap_ns", "window_ns", "idle_ns", "between_ns",
)  # fmt: skip
_DURATIONS = ("mean_ns", "median_ns", "min_ns", "max_ns")
_LENGTH = pl.col("end") - pl.col("start")
_SUMMED = pl.col("ops", "total_ns", "busy_ns").sum()


def breakdown(
    trace: Trace,
    keys: tuple[str, ...],
    *,
    skip: int,
    per_iteration: bool,
    inclusive: bool,
    depth: int | None,
) -> Answer:
    """Answer the question `breakdown`, whose declaration says what is given and returned."""
    table, meta = _measured(
        trace, keys, skip=skip, per_iteration=per_iteration, inclusive=inclusive, depth=depth
    )
    meta["share"] = share_meaning(keys)
    within = ", with all inside" if "inclusive" in meta else ""
    return Answer(
        rows=table,
        meta=meta,
        title=f"time by {', '.join(keys)}{within}",
        people=_for_people(table, meta),
        empty="no ops in this window",
        command="breakdown",
        figures={"figure": "breakdown"},
    )


def _measured(
    trace: Trace,
    keys: tuple[str, ...],
    *,
    skip: int,
    per_iteration: bool,
    inclusive: bool,
    depth: int | None,
) -> tuple[pl.DataFrame, dict[str, Any]]:
    """Return the rows and what they are measured against; the run is read once where it can be."""
    view = chosen_view(keys, per_iteration=per_iteration, inclusive=inclusive, depth=depth)
    work = work_of(trace, keys)
    if view is not None:
        if work.is_host:
            raise MissingDataError(
                "this run holds no GPU work, so its ranges launch nothing to be counted in them",
                "ask --by range without --inclusive and --depth",
            )
        table, more = view(work, skip)
        return table, {**_whole_meta(trace, skip), **more}
    found = _found(work, keys, skip=skip, with_whole=True, with_durations="kernel" in keys)
    table = _table(work, keys, found, skip=skip, per_iteration=per_iteration)
    meta = _meta(work, found.whole, skip)
    if "iteration" in keys:
        return table, {**meta, **_denominator(meta, is_of_steps=True)}
    outliers = {"outlier_ranks": outlier_ranks(table)} if keys == ("rank",) else {}
    # By device no row is a sum over several.
    over = {} if "device" in keys else _denominator(meta, is_of_steps=False)
    if per_iteration:
        alone = "" if table["iterations"].max() != 1 else " (one step, no spread)"
        over["percentiles_per"] = _denominator(meta, is_of_steps=True)["per"] + alone
    return table, {**meta, **over, **outliers}


def _whole_meta(trace: Trace, skip: int) -> dict[str, Any]:
    """Return what the stages of a run are measured against, whatever its rows are by."""
    work = work_of(trace, ("stage",))
    return _meta(work, _found(work, ("stage",), skip=skip, with_whole=True).whole, skip)


def _denominator(meta: Mapping[str, Any], *, is_of_steps: bool) -> dict[str, str]:
    """Say whether times are of a step in the mean, or sums over the devices of a window."""
    number, noun = (meta["processes"], "process") if "basis" in meta else (meta["devices"], "GPU")
    if is_of_steps:
        return {"per": f"step/{noun}"}
    plural = "processes" if noun == "process" else "GPUs"
    return {"sum_over": f"{number} {noun if number == 1 else plural}"}


def _for_people(table: pl.DataFrame, meta: Mapping[str, Any]) -> pl.DataFrame:
    """Return a breakdown as people read it: times of steps as means over devices."""
    if "iteration_name" in table.columns:
        no_step = pl.when(pl.col("iteration").is_null()).then(pl.lit(OUTSIDE_STEPS))
        table = table.with_columns(iteration_name=pl.coalesce("iteration_name", no_step))
    if "percentiles_per" in meta:
        sums: Sequence[str] = [*_percentile_names(table).values()]
    else:
        sums = _SUMS if "per" in meta else ()
    if not sums or "devices" not in table.columns:
        return table
    means = [pl.col(name) / pl.col("devices") for name in sums if name in table.columns]
    return table.with_columns(means).drop("devices")


@dataclass(frozen=True)
class _Found:
    """What was added up, of which windows.

    Parameters
    ----------
    stages
        What was added up by stage.
    grouped
        What was added up by other keys, if there are any.
    whole
        As `stages`, of the windows that the run is measured by.
    windows
        The windows.
    """

    stages: StageSums | None
    grouped: GroupTally | None
    whole: StageSums | None
    windows: pl.DataFrame

    @property
    def sums(self) -> GroupTally | StageSums:
        """What has the sums of groups."""
        return self.grouped or _there(self.stages)


def _there(sums: StageSums | None) -> StageSums:
    if sums is None:
        raise AssertionError("stages are added up where this is asked")
    return sums


def _found(
    work: Work, keys: Sequence[str], *, skip: int, with_stages: bool = False,
    with_whole: bool = False, with_durations: bool = False,
) -> _Found:  # fmt: skip
    per_iteration = "iteration" in keys
    is_whole = with_whole and not per_iteration
    of_windows = is_by_stage(keys) or list(keys) == dividing(keys)
    # What was added up when the run was ingested is that of its devices as a whole.
    kept = None if skip or work.is_host else kept_sums(work.trace)
    grouped = None if of_windows else _group_tally(work, keys, keeps_durations=with_durations)
    stages = (
        _stage_sums(work, None if per_iteration else kept, of_stages_alone=not is_whole)
        if of_windows or with_stages or is_whole
        else None
    )
    whole = _stage_sums(work, kept) if with_whole and per_iteration else None
    if isinstance(stages, KeptSums) and grouped is None:
        return _Found(stages, None, stages, stages.windows())
    windows = hand_out(
        work.trace,
        Receivers(sweeps=[*_swept(stages), *_those(grouped)], whole=_swept(whole)),
        skip=skip,
        per_iteration=per_iteration,
        cutter=by_host(work.cutter) if per_iteration else work.cutter,
    )
    return _Found(
        stages, grouped, stages if is_whole else whole,
        with_steps(windows) if per_iteration else windows,
    )  # fmt: skip


def _stage_sums(work: Work, kept: KeptSums | None, *, of_stages_alone: bool = False) -> StageSums:
    return kept or StageTally(of_pieces=work.is_host, of_stages_alone=of_stages_alone)


def _swept(sums: StageSums | None) -> Sequence[StageTally]:
    """Return what is still to be added up."""
    return (sums,) if isinstance(sums, StageTally) else ()


def _those(one: _Some | None) -> Sequence[_Some]:
    return () if one is None else (one,)


def _group_tally(work: Work, keys: Sequence[str], *, keeps_durations: bool) -> GroupTally:
    columns = [name for name in columns_of(keys) if name not in OF_WINDOWS]
    named = {name: _named(work.trace, name) for name in columns if name in _NAMED}
    return GroupTally(
        columns, named, of_kernels="kernel" in keys, keeps_durations=keeps_durations,
        of_pieces=work.is_host,
    )  # fmt: skip


_NAMED = ("pid", "range", *OF_PROCESSES)


def _named(trace: Trace, name: str) -> Named:
    if name == "range":
        return named_ranges(trace)
    if name == "pid":
        pids = trace["processes"].select("process", "pid").sort("process").collect()["pid"]
        return Named(("process",), pl.col("process"), pids)
    return Named(("process",), pl.col("process"), process_ranks(trace)[name])


def _meta(work: Work, sums: StageSums | None, skip: int) -> dict[str, Any]:
    """Return what a breakdown is measured against."""
    found = _there(sums)
    stages, windows = found.stages(), found.windows()
    window = int((windows["end"] - windows["start"]).sum())
    busy = int(stages["exposed_ns"].sum())
    # Nothing is above FP and BP: what is exposed of them is the time in which either is busy.
    passes = stages.filter(pl.col("stage").is_in(_PASSES))
    ops = int(stages["ops"].sum())
    iterations = work.trace.read("iterations").sort("process", "start")
    owners = windows["device"].n_unique()
    launched = int(found.groups()["launched"].sum()) / ops if ops else None
    sources = found.sources().group_by("stage_source").agg(pl.col("busy_ns").sum())
    kept = iterations.filter(pl.int_range(pl.len()).over("process") >= skip)
    return {
        "window_ns": window,
        "idle_ns": window - busy,
        **_residual(work, window - int(passes["exposed_ns"].sum())),
        **({"basis": HOST, "processes": owners} if work.is_host else {"devices": owners}),
        "iterations": kept["iteration"].n_unique(),
        "skip": skip,
        **({} if work.is_host else {"launched": launched}),
        "coverage": {
            source: length / busy if busy else 0.0
            for source, length in sources.sort("stage_source").rows()
        },
        **verdict_meta(work.trace),
    }


def _residual(work: Work, length: int) -> dict[str, Any]:
    """Return the weight update as what the passes leave, where these are known; else why not."""
    unknown = None if work.is_host else unknown_passes(work.trace)
    if unknown is None:
        return {"wu_residual_ns": length}
    return {"wu_residual_ns": None, "wu_residual_unknown": unknown}


def _table(
    work: Work, keys: Sequence[str], found: _Found, *, skip: int, per_iteration: bool
) -> pl.DataFrame:
    groups = _grouped(keys, found)
    if is_by_stage(keys) and "iteration" in keys:
        groups = _with_idle(groups, found, dividing(keys))
    measured = _with_windows(keys, groups, found)
    table = _arranged(with_path_texts(work.trace, measured), keys)
    if "iteration" in keys:
        table = _with_iteration_names(work.trace, table)
    if per_iteration:
        table = _with_statistics(work, keys, table, skip)
    if work.is_host:
        table = table.rename({"ops": "ranges"}).drop("total_ns", strict=False)
    return shown(table)


def _grouped(keys: Sequence[str], found: _Found) -> pl.DataFrame:
    """Return the measures of each group, added over windows."""
    columns = columns_of(keys)
    of_windows = found.windows.select("window", *OF_WINDOWS)
    if is_by_stage(keys):
        stages = _there(found.stages).stages().join(of_windows, on="window", how="left")
        sums = stages.group_by(columns).agg(pl.col("ops", "busy_ns", "exposed_ns").sum())
        return sums.with_columns(overlap_ns=pl.col("busy_ns") - pl.col("exposed_ns"))
    groups = found.sums.groups().join(of_windows, on="window", how="left", maintain_order="left")
    if found.grouped is None or not found.grouped.keeps_durations:
        return groups.group_by(columns).agg(_SUMMED)
    return _with_durations(groups, found.grouped, columns)


def _with_durations(
    groups: pl.DataFrame, tally: GroupTally, columns: Sequence[str]
) -> pl.DataFrame:
    """Return groups of kernels, added over windows, with statistics of their durations."""
    rows = groups.with_row_index("row").group_by(columns).agg(_SUMMED, "row")
    numbers = rows.select("row").with_row_index("number").explode("row").sort("row")["number"]
    return pl.concat([rows.drop("row"), tally.durations(numbers)], how="horizontal").with_columns(
        mean_ns=pl.when(pl.col("ops") > 0).then(pl.col("total_ns") / pl.col("ops"))
    )


def _with_windows(keys: Sequence[str], table: pl.DataFrame, found: _Found) -> pl.DataFrame:
    """Add the length of each group's window, what of it is idle, and the group's share of it."""
    own, windows = dividing(keys), found.windows
    length = _LENGTH.sum().alias("window_ns")
    if not own:
        table = table.join(windows.select(length), how="cross")
    elif "iteration" in own:
        devices = pl.struct("process", "device").n_unique().cast(pl.Int64).alias("devices")
        lengths = windows.group_by(own).agg(length, devices)
        table = table.join(lengths, on=own, how="left", nulls_equal=True)
    else:
        table = table.join(windows.group_by(own).agg(length), on=own, how="left")
    if list(keys) == own and "iteration" in own:
        table = table.join(_between(found, own), on=own, how="left", nulls_equal=True)
    part = "exposed_ns" if is_by_stage(keys) else "busy_ns"
    outside = pl.col("between_ns").fill_null(0) if "between_ns" in table.columns else 0
    return table.with_columns(
        idle_ns=pl.col("window_ns") - pl.col("busy_ns") - outside,
        share=pl.when(pl.col("window_ns") > 0).then(pl.col(part) / pl.col("window_ns")),
    )


def _between(found: _Found, own: Sequence[str]) -> pl.DataFrame:
    """Return for how long nothing runs while the host is in no iteration."""
    busy = found.sums.groups().group_by("window").agg(pl.col("busy_ns").sum())
    idle = _LENGTH - pl.col("busy_ns").fill_null(0)
    return (
        found.windows.join(busy, on="window", how="left", maintain_order="left")
        .group_by(own)
        .agg(between_ns=idle.filter(~pl.col("on_host")).sum())
    )


def _with_idle(groups: pl.DataFrame, found: _Found, own: Sequence[str]) -> pl.DataFrame:
    """Add the time in which nothing runs, so that the rows of a step add up to it."""
    busy = _stages_of(found).group_by("window").agg(busy=pl.col("exposed_ns").sum())
    part = pl.when("on_host").then(pl.lit("idle")).otherwise(pl.lit("between"))
    idle = (
        found.windows.join(busy, on="window", how="left", maintain_order="left")
        .group_by(*own, stage=part.cast(_PARTS))
        .agg(exposed_ns=(_LENGTH - pl.col("busy").fill_null(0)).sum())
        .filter(pl.col("exposed_ns") > 0)
    )
    return pl.concat([groups.cast({"stage": _PARTS}), idle], how="diagonal")


def _arranged(table: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """Put columns in their documented order, and rows by window and then by what takes longest."""
    columns, divides, by_stage = columns_of(keys), dividing(keys), is_by_stage(keys)
    divides = [name for name in columns if name in divides]
    measures = ["ops", *(() if by_stage else ("total_ns",))]
    if "kernel" in keys:
        measures += _DURATIONS
    measures.append("busy_ns")
    if by_stage:
        measures += ["exposed_ns", "overlap_ns"]
    if list(keys) == divides:  # then a row is all that runs in its windows
        measures += ["window_ns", "idle_ns", *(["between_ns"] if "iteration" in keys else [])]
    rest = [name for name in columns if name not in divides]
    first = [*divides, *(name for name in rest[:1] if name == "stage")]
    order = [pl.col(first), -pl.col("busy_ns"), pl.col(sorting(rest))]
    names = dict.fromkeys([*columns, *sorting(columns)])
    counted = ["devices"] if "iteration" in keys else []
    return table.sort(order, nulls_last=True).select(*names, *measures, "share", *counted)


def _with_iteration_names(trace: Trace, table: pl.DataFrame) -> pl.DataFrame:
    names = (
        trace.read("iterations").group_by("iteration").agg(iteration_name=pl.col("name").first())
    )
    table = table.join(names, on="iteration", how="left", maintain_order="left")
    first = ("iteration", "iteration_name")
    return table.select(*first, pl.exclude(first))


def _with_statistics(
    work: Work, keys: Sequence[str], table: pl.DataFrame, skip: int
) -> pl.DataFrame:
    """Add percentiles over the steps that count; a group that a step lacks has length 0 in it.

    One step has a median alone.
    """
    if "iteration" in keys:
        raise UsageError("a breakdown by iteration has one iteration in each row", "drop either")
    columns = columns_of(keys)
    paired = replace(work, trace=numbered_alike(work.trace))
    found, _ = _found_steps(paired, keys, skip)
    inside = found.windows.drop_nulls("iteration")
    each = _lengths(keys, found).drop_nulls("iteration")
    statistics = (
        table.select(columns)
        .join(inside.select("iteration").unique(), how="cross")
        .join(each, on=[*columns, "iteration"], how="left", nulls_equal=True)
        .with_columns(pl.col("length_ns").fill_null(0))
        .group_by(columns)
        .agg(
            pl.len().cast(pl.Int64).alias("iterations"),
            *(
                pl.when(pl.len() >= (1 if name == "median_ns" else _SEVERAL))
                .then(pl.col("length_ns").quantile(q, "nearest").cast(pl.Int64))
                .alias(name)
                for name, q in _PERCENTILES.items()
            ),
        )
    )
    statistics = with_devices(work.trace, statistics, keys, inside.select(_OWNER).unique())
    # A device without steps has no statistics of them.
    known = pl.col("devices").is_not_null()
    statistics = statistics.with_columns(pl.when(known).then(name) for name in _PERCENTILES)
    statistics = statistics.rename(_percentile_names(table))
    return table.join(statistics, on=columns, how="left", nulls_equal=True, maintain_order="left")


def _percentile_names(table: pl.DataFrame) -> dict[str, str]:
    """Return what percentiles are called: by kernel, there are medians of durations beside them."""
    prefix = "iteration_" if "mean_ns" in table.columns else ""
    return {name: f"{prefix}{name}" for name in _PERCENTILES}


@dataclass(frozen=True)
class StepTimes:
    """What the steps of a run took on GPUs, read once.

    Parameters
    ----------
    groups
        The keys' columns, ``iteration, ops, length_ns``: exposed time by stage, else busy time,
        added over devices. What a group lacks is not listed; `iteration` is null for what lies
        outside of the steps that count.
    stages
        ``window, stage, busy_ns, exposed_ns``.
    windows
        ``window, process, device, iteration, start, end, on_host``. `iteration` is the step; if the
        whole run is one window it is null throughout, as `process` is.
    left_out
        How many steps do not count because not all processes have them.
    annotated, empty
        How many iterations there are but skipped ones, of processes that have steps; and in how
        many of these their process ran nothing.
    """

    groups: pl.DataFrame
    stages: pl.DataFrame
    windows: pl.DataFrame
    left_out: int = 0
    annotated: int = 0
    empty: int = 0


def step_times(trace: Trace, keys: Sequence[str], *, skip: int, whole: bool) -> StepTimes:
    """Return what each step took, or the whole run if so asked, by some keys."""
    work, names = work_of(trace, keys), ("window", *_OWNER, "iteration", "start", "end", "on_host")
    if whole:
        found = _found(work, keys, skip=0, with_stages=True)
        windows = found.windows.with_columns(process=pl.lit(None, pl.Int32), on_host=True)
        return StepTimes(_lengths(keys, found), _stages_of(found), windows.select(names))
    found, counted = _found_steps(work, keys, skip, with_stages=True)
    return StepTimes(
        _lengths(keys, found), _stages_of(found), counted.windows.select(names),
        counted.left_out, counted.annotated, counted.empty,
    )  # fmt: skip


def _stages_of(found: _Found) -> pl.DataFrame:
    return _there(found.stages).stages().select("window", "stage", "busy_ns", "exposed_ns")


def _found_steps(
    work: Work, keys: Sequence[str], skip: int, *, with_stages: bool = False
) -> tuple[_Found, Counted]:
    """Return what was added up, and the steps that count, which the windows have the numbers of."""
    found = _found(work, [*keys, "iteration"], skip=0, with_stages=with_stages)
    counted = counted_steps(found.windows, work.trace.read("iterations"), skip)
    return replace(found, windows=counted.windows), counted


def _lengths(keys: Sequence[str], found: _Found) -> pl.DataFrame:
    """Return what of each group is compared over iterations: ``ops`` and ``length_ns``."""
    part = "exposed_ns" if is_by_stage(keys) else "busy_ns"
    each = _grouped([*keys, "iteration"], found)
    return each.select(*columns_of(keys), "iteration", "ops", length_ns=part)
