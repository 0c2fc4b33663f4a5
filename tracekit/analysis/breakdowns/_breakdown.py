"""Breakdown of GPU time by one or several keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import polars as pl

from tracekit.analysis.calls import with_devices
from tracekit.analysis.facts import (
    HOST,
    LEAST,
    OUTSIDE_STEPS,
    columns_of,
    dividing,
    is_by_stage,
    is_by_steps,
    leading_keys,
    most_by_share,
    share_meaning,
    unknown_passes,
    unseen,
    verdict_meta,
    work_of,
)
from tracekit.analysis.statistics import Skip, quantile
from tracekit.analysis.step_sums import (
    KeySums,
    cold_meta,
    group_lengths,
    grouped_sums,
    numbering_meta,
    skipped_of,
    stages_of,
    sums_by_keys,
)
from tracekit.engine import (
    BY_RANGE,
    BY_SEQUENCE,
    GroupTally,
    Named,
    RangeLayers,
    Receivers,
    StageSums,
    Work,
    counted_steps,
    hand_out,
    inclusive_kernels,
    inclusive_ranges,
    iterations_in,
    numbered_alike,
    range_layers,
    shown,
    sorting,
    with_path_texts,
)
from tracekit.errors import MissingDataError, UsageError
from tracekit.model import STAGES, Answer, Trace
from tracekit.support.wording import (
    count,
    duration,
    first_line,
    note,
    percent,
    shares_text,
    text_of,
    time_text,
    unsaid,
)

NO_LAYER = ("(forward, layer unknown)", "(backward, layer unknown)")
"""Work of FP and BP that is in no layer."""
LAYER_COLUMNS = (
    "layer", "fp_ops", "fp_busy_ns", "bp_ops", "bp_busy_ns", "ops", "busy_ns", "share",
)  # fmt: skip
_MOST = 0.5
_RECORD_OPERATORS = "record under torch.autograd.profiler.emit_nvtx() or torch.profiler"
_STAGE = pl.col("stage")
_PASS = Named(
    ("stage",),
    pl.when(_STAGE == "FP").then(0).when(_STAGE == "BP").then(1),
    pl.Series(["fp", "bp"]),
)
_PERCENTILES = {"p5_ns": 0.05, "median_ns": 0.5, "p95_ns": 0.95}
_OWNER = ("process", "device")
_PASSES = ("FP", "BP")
_SEVERAL = 2
_PARTS = pl.Enum([*STAGES, "idle", "between_steps"])
_SUMS = (
    "total_ns", "busy_ns", "exposed_ns", "overlap_ns", "window_ns", "idle_ns", "between_steps_ns",
)  # fmt: skip
_OF_PHASES = ("steps", "requests", "tokens", "step_ns", "token_ns")
_DURATIONS = ("mean_ns", "median_ns", "min_ns", "max_ns")
_LENGTH = pl.col("end") - pl.col("start")
_FEW, _CHANCE, _FREEDOM = 4, 0.05, 0.5
"""Largest number of ranks without outliers; how often ranks that vary alike may have one; degrees
of freedom of the median absolute deviation, per rank (from trials)."""
_DEVIATION = 1.4826
"""Ratio of standard deviation to median absolute deviation for normal values."""


def layers(work: Work, skip: int = 0) -> tuple[pl.DataFrame, dict[str, Any]]:
    """Return each layer's GPU time, in order of first forward pass, without the first `skip` steps.

    Returns
    -------
    The table with `LAYER_COLUMNS`, and metadata. For FP and BP, the metadata state the share of
    ops' time that was assigned to a layer, by method (NVTX range, sequence number), and, if the
    share is below half, the reason.
    """
    found = range_layers(work.trace)
    keys = {"layer": _layer_of(found), "pass": _PASS, "joined": _joined_by(found)}
    tallies = [
        GroupTally(by, {key: keys[key] for key in by}, of_pieces=work.is_host)
        for by in (["layer"], ["layer", "pass"], ["pass", "joined"])
    ]
    windows = hand_out(work.trace, Receivers(sweeps=tallies), skip=skip)
    both, each, joined = (tally.groups() for tally in tallies)
    window = int((windows["end"] - windows["start"]).sum())
    share = pl.when(pl.lit(window > 0)).then(pl.col("busy_ns") / window)
    table = _side_by_side(both, each).with_columns(share=share)
    names = pl.concat([found.layers, pl.Series(NO_LAYER)])
    named = table.with_columns(layer=names.gather(table["layer"]))
    shares = _shares(joined)
    return named.select(LAYER_COLUMNS), {"joined": shares, "unjoined": _unjoined(shares)}


def _unjoined(shares: Mapping[str, Mapping[str, float]]) -> dict[str, str]:
    """Return, for each pass (FP, BP) with over half its op time in no known layer, the reason."""
    why = {
        "FP": "most of it is launched outside of ranges of modules and operators"
        if BY_RANGE in shares.get("FP", ())
        else "no ranges of modules or operators were recorded: put a range around each"
        f" module, or {_RECORD_OPERATORS}",
        "BP": "most of it is launched outside of autograd's numbered ranges"
        if BY_SEQUENCE in shares.get("BP", ())
        else "autograd's numbered ranges were not recorded, and the order of kernels alone does not"
        f" show where a layer ends: {_RECORD_OPERATORS}",
    }
    return {name: why[name] for name, by in shares.items() if by.get("none", 0) > _MOST}


def _layer_of(found: RangeLayers) -> Named:
    """Return a grouping key: the number of the layer of each op in FP and BP; null for other ops.

    Ops of unknown layer sort last (`NO_LAYER`).
    """
    number, count = len(found.of_range), len(found.layers)
    values = [
        pl.concat([found.of_range, pl.Series([None], dtype=pl.Int64)]).fill_null(count + which)
        for which in range(len(NO_LAYER))
    ]
    row = pl.coalesce("range", number) + _PASS.number * (number + 1)
    return Named(("range", "stage"), row, pl.concat(values))


def _joined_by(found: RangeLayers) -> Named:
    """Return a grouping key: the method that found an op's layer (NVTX range, sequence number)."""
    values = found.joined.extend_constant(None, 1).cast(pl.String).fill_null("none")
    row = pl.when(_PASS.number.is_not_null()).then(pl.coalesce("range", len(found.joined)))
    return Named(("range", "stage"), row, values)


def _side_by_side(both: pl.DataFrame, each: pl.DataFrame) -> pl.DataFrame:
    """Return ``ops, busy_ns`` per layer: in all (`both`), and in FP and BP (`each`), by prefix.

    The prefix is ``fp_`` or ``bp_``.
    """
    sums = pl.col("ops", "busy_ns").sum()
    table = both.drop_nulls("layer").group_by("layer").agg(sums)
    for name in _PASS.values:
        of_stage = (
            each.filter(pl.col("pass") == name)
            .group_by("layer")
            .agg(
                pl.col("ops").sum().alias(f"{name}_ops"),
                pl.col("busy_ns").sum().alias(f"{name}_busy_ns"),
            )
        )
        table = table.join(of_stage, on="layer", how="left")
    return table.with_columns(pl.col("^[fb]p_.*$").fill_null(0)).sort("layer")


def _shares(joined: pl.DataFrame) -> dict[str, dict[str, float]]:
    """Return FP or BP -> method of finding an op's layer -> the share of op time it found."""
    sums = joined.drop_nulls("pass").group_by("pass", "joined").agg(pl.col("total_ns").sum())
    shares = sums.with_columns(share=pl.col("total_ns") / pl.col("total_ns").sum().over("pass"))
    return {
        name.upper(): dict(
            shares.filter(pl.col("pass") == name).sort("joined").select("joined", "share").rows()
        )
        for name in _PASS.values
        if name in shares["pass"]
    }


_View: TypeAlias = Callable[[Work, int], tuple[pl.DataFrame, dict[str, Any]]]
"""Makes a table of a run with so many iterations left out, and its metadata."""


def _chosen_view(
    keys: Sequence[str], *, per_iteration: bool, inclusive: bool, depth: int | None
) -> _View | None:
    """Return the function that breaks down by layer or by inclusive range; None for other keys.

    Raises
    ------
    UsageError
        If a breakdown by layer or by inclusive ranges is combined with other keys or options.
    """
    if inclusive or depth is not None:
        noun = "an inclusive breakdown"
        if set(keys) not in ({"range"}, {"range", "kernel"}):
            raise UsageError(f"{noun} is by range, or by range and kernel", "give --by range")
        _refuse_statistics(noun, per_iteration=per_iteration)
        return partial(inclusive_kernels if "kernel" in keys else inclusive_ranges, depth=depth)
    if "layer" in keys:
        noun = "a breakdown by layer"
        if list(keys) != ["layer"]:
            raise UsageError(f"{noun} is by layer alone", "give --by layer")
        _refuse_statistics(noun, per_iteration=per_iteration)
        return layers
    return None


def _refuse_statistics(noun: str, *, per_iteration: bool) -> None:
    if per_iteration:
        raise UsageError(f"{noun} has no statistics over iterations", "leave out --per-iteration")


def breakdown(
    trace: Trace,
    keys: tuple[str, ...],
    *,
    skip: Skip,
    per_iteration: bool,
    inclusive: bool,
    depth: int | None,
) -> Answer:
    """Return the answer of the command `breakdown`: GPU time by keys such as stage or kernel.

    Options (`skip`, `per_iteration`, `inclusive`, `depth`) are those of the command.
    """
    table, meta = _measured(
        trace, keys, skip=skip, per_iteration=per_iteration, inclusive=inclusive, depth=depth
    )
    meta |= cold_meta(trace, skip) | numbering_meta(trace, keys)
    meta["share"] = share_meaning(keys)
    within = ", with all inside" if "inclusive" in meta else ""
    return Answer(
        rows=table,
        meta=meta,
        title=f"time by {', '.join(keys)}{within}",
        readable=_readable(table, meta),
        empty="no ops in this window",
        command="breakdown",
        figures={"figure": "breakdown"},
    )


def _measured(
    trace: Trace,
    keys: tuple[str, ...],
    *,
    skip: Skip,
    per_iteration: bool,
    inclusive: bool,
    depth: int | None,
) -> tuple[pl.DataFrame, dict[str, Any]]:
    """Return a breakdown's rows and metadata, such as the share of time with a known stage.

    The arguments are the options of the command `breakdown`.
    """
    view = _chosen_view(keys, per_iteration=per_iteration, inclusive=inclusive, depth=depth)
    work, first = work_of(trace, keys), 0 if skip == "auto" else skip
    if view is not None:
        if work.is_host:
            raise MissingDataError(
                "this run has no GPU work, so its ranges launch no ops",
                "give --by range without --inclusive and --depth",
            )
        if "layer" not in keys and not trace.stretch.is_all:
            raise UsageError(
                "an inclusive breakdown counts complete ranges, which a stretch would cut",
                "leave out --between and --iterations, or --inclusive and --depth",
            )
        table, more = view(work, first)
        return table, {**_whole_meta(trace, first), **more}
    found = sums_by_keys(work, keys, skip=first, with_whole=True, with_durations="kernel" in keys)
    table = _table(work, keys, found)
    if per_iteration:
        table = _with_statistics(work, keys, table, skipped_of(trace, skip))
    if work.is_host:
        table = table.rename({"ops": "ranges"}).drop("total_ns", strict=False)
    table = shown(table)
    meta = _meta(work, found.of_all, first)
    if "iteration" in keys:
        return table, {**meta, **_denominator(meta, is_of_steps=True)}
    outliers = {"outlier_ranks": outlier_ranks(table)} if keys == ("rank",) else {}
    if is_by_stage(keys) and not is_by_steps(keys):
        outliers |= _recomputed(work, dividing(keys), first)
    # By device no row is a sum over several.
    over = {} if "device" in keys else _denominator(meta, is_of_steps=False)
    if per_iteration:
        alone = "" if table["iterations"].max() != 1 else " (one step, no spread)"
        over["percentiles_per"] = _denominator(meta, is_of_steps=True)["per"] + alone
    return table, {**meta, **over, **outliers}


def outlier_ranks(by_rank: pl.DataFrame) -> list[dict[str, float | int]]:
    """Return the ranks whose GPU busy time is far from the median over all ranks.

    Far is more than 1 % of the median, and more standard deviations (estimated by the median
    absolute deviation) than normal values reach by chance. The limit follows from Student's t: it
    is 9.9 standard deviations with 5 ranks, 3.7 with 64. With fewer than 5 ranks none is far.
    `by_rank` has ``rank`` and ``busy_ns``, one row per rank.

    Returns
    -------
    One mapping per outlier: ``rank``, and ``ratio`` (its busy time over the median of all).
    """
    known = by_rank.drop_nulls("rank").group_by("rank").agg(pl.col("busy_ns").sum())
    if known.height <= _FEW:
        return []
    busy, middle = pl.col("busy_ns"), pl.col("busy_ns").median()
    away = (busy - middle).abs()
    far = quantile(_FREEDOM * (known.height - 1), 1 - _CHANCE / 2 / known.height).item()
    limit = pl.max_horizontal(far * _DEVIATION * away.median(), middle / 100)
    return known.filter(away > limit).select("rank", ratio=busy / known["busy_ns"].median()).sort(
        "rank"
    ).to_dicts()  # fmt: skip


def _recomputed(work: Work, by: Sequence[str], skip: int) -> dict[str, Any]:
    """Return metadata ``recomputed``: forward ops that activation checkpointing repeats during BP.

    It holds their number and busy time, ns, per group of the keys `by`, after the first `skip`
    steps; without any it is empty.
    """
    if work.is_host or not work.trace.once(_runs_again, of_all=True):
        return {}
    keys = ("recomputed", *by)
    again = grouped_sums(keys, sums_by_keys(work, keys, skip=skip)).filter("recomputed")
    return {"recomputed": again.select(*by, "ops", "busy_ns").sort(*by or ["ops"]).to_dicts()}


def _runs_again(trace: Trace) -> bool:
    again = trace["ops"].select(pl.col("recomputed").any())
    return bool(again.collect(engine="streaming").item())


def _whole_meta(trace: Trace, skip: int) -> dict[str, Any]:
    """Return metadata by stage (total, idle, coverage), after `skip`, for a table by other keys."""
    work = work_of(trace, ("stage",))
    return _meta(work, sums_by_keys(work, ("stage",), skip=skip, with_whole=True).of_all, skip)


def _denominator(meta: Mapping[str, Any], *, is_of_steps: bool) -> dict[str, str]:
    """Return ``per`` (step and GPU) if times are means over steps, else ``sum_over`` (all GPUs).

    For times of the host, processes take the place of GPUs. `is_of_steps`: times are means over
    steps.
    """
    number, noun = (meta["processes"], "process") if "basis" in meta else (meta["devices"], "GPU")
    if is_of_steps:
        return {"per": f"step/{noun}"}
    plural = "processes" if noun == "process" else "GPUs"
    return {"sum_over": f"{number} {noun if number == 1 else plural}"}


def _readable(table: pl.DataFrame, meta: Mapping[str, Any]) -> pl.DataFrame:
    """Return the rows as printed: times summed over GPUs are divided by the number of GPUs."""
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


def _meta(work: Work, found: StageSums, skip: int) -> dict[str, Any]:
    """Return metadata after the first `skip` steps: total and idle time, stage sources, verdict."""
    stages, windows = found.stages, found.windows
    window = int((windows["end"] - windows["start"]).sum())
    busy = int(stages["exposed_ns"].sum())
    # Nothing is above FP and BP: what is exposed of them is the time in which either is busy.
    passes, others = (
        int(stages.filter(pl.col("stage").is_in(some))["exposed_ns"].sum())
        for some in (_PASSES, ("IO", "ME"))
    )
    ops = int(stages["ops"].sum())
    owners = windows["device"].n_unique()
    launched = int(found.groups["launched"].sum()) / ops if ops else None
    sources = found.sources.group_by("stage_source").agg(pl.col("busy_ns").sum())
    return {
        "window_ns": window,
        "idle_ns": window - busy,
        **_residual(work, window - passes, window - busy + others),
        **({"basis": HOST, "processes": owners} if work.is_host else {"devices": owners}),
        "iterations": iterations_in(work.trace, skip),
        "skip": skip,
        **({} if work.is_host else {"launched": launched}),
        "coverage": {
            source: length / busy if busy else 0.0
            for source, length in sources.sort("stage_source").rows()
        },
        **verdict_meta(work.trace),
    }


def _residual(work: Work, length: int, others: int) -> dict[str, Any]:
    """Return metadata: `length` (step time minus FP and BP, ns) as WU time, or why it is not.

    `others` is the part of it in which nothing runs, or input or evaluation does, ns.
    """
    unknown = None if work.is_host else unknown_passes(work.trace)
    if unknown is None:
        return {"wu_residual_ns": length, "wu_residual_other_ns": others}
    return {"wu_residual_ns": None, "wu_residual_unknown": unknown}


def _table(work: Work, keys: Sequence[str], found: KeySums) -> pl.DataFrame:
    groups = grouped_sums(keys, found)
    if is_by_stage(keys) and is_by_steps(keys):
        groups = _with_idle(groups, found, dividing(keys))
    measured = _with_windows(keys, groups, found)
    table = _arranged(with_path_texts(work.trace, measured), keys)
    if "iteration" in keys:
        table = _with_iteration_names(work.trace, table)
    return table


def _with_windows(keys: Sequence[str], table: pl.DataFrame, found: KeySums) -> pl.DataFrame:
    """Add ``window_ns`` (observed time of the row's GPU or step), ``idle_ns``, and ``share``."""
    by, windows = dividing(keys), found.windows
    length = _LENGTH.sum().alias("window_ns")
    if not by:
        table = table.join(windows.select(length), how="cross")
    elif is_by_steps(by):
        devices = pl.struct("process", "device").n_unique().cast(pl.Int64).alias("devices")
        lengths = windows.group_by(by).agg(length, devices)
        table = table.join(lengths, on=by, how="left", nulls_equal=True)
    else:
        lengths = windows.group_by(by).agg(length)
        if list(keys) == by == ["device"]:  # one that runs nothing in its window is a row, too
            table = lengths.select(by).join(table, on=by, how="left")
            table = table.with_columns(pl.exclude(by).fill_null(0))
        table = table.join(lengths, on=by, how="left")
    if list(keys) == by and is_by_steps(by):
        table = table.join(_between(found, by), on=by, how="left", nulls_equal=True)
    if list(keys) == by and "phase" in by:
        table = table.join(_requests(windows, by), on=by, how="left", nulls_equal=True)
    part = "exposed_ns" if is_by_stage(keys) else "busy_ns"
    outside = pl.col("between_steps_ns").fill_null(0) if "between_steps_ns" in table.columns else 0
    return table.with_columns(
        idle_ns=pl.col("window_ns") - pl.col("busy_ns") - outside,
        share=pl.when(pl.col("window_ns") > 0).then(pl.col(part) / pl.col("window_ns")),
    )


def _between(found: KeySums, window_keys: Sequence[str]) -> pl.DataFrame:
    """Return ``between_steps_ns`` by `window_keys`: GPU idle time with the host in no iteration.

    `window_keys` are the keys that group steps or GPUs, not ops.
    """
    busy = found.sums.groups.group_by("window").agg(pl.col("busy_ns").sum())
    idle = _LENGTH - pl.col("busy_ns").fill_null(0)
    return (
        found.windows.join(busy, on="window", how="left", maintain_order="left")
        .group_by(window_keys)
        .agg(between_steps_ns=idle.filter(~pl.col("on_host")).sum())
    )


def _requests(windows: pl.DataFrame, window_keys: Sequence[str]) -> pl.DataFrame:
    """Return by `window_keys` numbers of steps, requests, tokens; ns per step and per token.

    They are of serving engines' steps, by default split by phase (prefill, decode, mixed).
    """
    steps = windows.filter(pl.col("phase").is_not_null()).unique(["process", "device", "iteration"])
    length = windows.group_by(window_keys).agg(length=_LENGTH.sum())
    requests = steps.group_by(window_keys).agg(
        steps=pl.len().cast(pl.Int64),
        **{
            name: pl.when(pl.col(name).is_not_null().all()).then(pl.col(name).sum())
            for name in ("requests", "tokens")
        },
    )
    return requests.join(length, on=window_keys, how="left").select(
        *window_keys, "steps", "requests", "tokens",
        step_ns=pl.col("length") / pl.col("steps"),
        token_ns=pl.when(pl.col("tokens") > 0).then(pl.col("length") / pl.col("tokens")),
    )  # fmt: skip


def _with_idle(groups: pl.DataFrame, found: KeySums, window_keys: Sequence[str]) -> pl.DataFrame:
    """Add rows of GPU idle time: ``idle`` (host in an iteration), ``between_steps`` (in none).

    With them the rows of a step or GPU (`window_keys`) add up to its length.
    """
    busy = stages_of(found).group_by("window").agg(busy=pl.col("exposed_ns").sum())
    part = pl.when("on_host").then(pl.lit("idle")).otherwise(pl.lit("between_steps"))
    idle = (
        found.windows.join(busy, on="window", how="left", maintain_order="left")
        .group_by(*window_keys, stage=part.cast(_PARTS))
        .agg(exposed_ns=(_LENGTH - pl.col("busy").fill_null(0)).sum())
        .filter(pl.col("exposed_ns") > 0)
    )
    return pl.concat([groups.cast({"stage": _PARTS}), idle], how="diagonal")


def _arranged(table: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """Put columns in documented order; sort by step or GPU, stage, busy time (longest first)."""
    columns, divides, by_stage = columns_of(keys), dividing(keys), is_by_stage(keys)
    divides = [name for name in columns if name in divides]
    measures = ["ops", *(() if by_stage else ("total_ns",))]
    if "kernel" in keys:
        measures += _DURATIONS
    measures.append("busy_ns")
    if by_stage:
        measures += ["exposed_ns", "overlap_ns"]
    if list(keys) == divides:  # then a row is all that runs in its windows
        measures += ["window_ns", "idle_ns", *(["between_steps_ns"] if is_by_steps(keys) else [])]
        measures += _OF_PHASES if "phase" in keys else ()
    rest = [name for name in columns if name not in divides]
    first = [*divides, *(name for name in rest[:1] if name == "stage")]
    order = [pl.col(first), -pl.col("busy_ns"), pl.col(sorting(rest))]
    names = dict.fromkeys([*columns, *sorting(columns)])
    counted = ["devices"] if is_by_steps(keys) else []
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
    """Add to `table` percentiles, over steps after the first `skip`, of a group's time in one, ns.

    A step without the group counts as 0 ns. If only one step counts, only the median is set.
    """
    if is_by_steps(keys):
        raise UsageError(
            "a breakdown by iteration or phase has its iterations in each row", "drop either"
        )
    columns = columns_of(keys)
    paired = replace(work, trace=numbered_alike(work.trace))
    found = sums_by_keys(paired, [*keys, "iteration"], skip=0)
    steps = counted_steps(found.windows, paired.trace.read("iterations"), skip).windows
    inside = steps.drop_nulls("iteration")
    each = group_lengths(keys, replace(found, windows=steps)).drop_nulls("iteration")
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
    """Return percentile -> name of its column over steps, such as ``p95``.

    In a table with ``mean_ns``, ``p95`` is of durations of kernels; then it is ``iteration_p95``.
    """
    prefix = "iteration_" if "mean_ns" in table.columns else ""
    return {name: f"{prefix}{name}" for name in _PERCENTILES}


@first_line("breakdown")
def _first_line(rows: pl.DataFrame, meta: Mapping[str, Any]) -> str | None:
    keys = leading_keys(rows)
    if not keys or "share" not in rows.columns or not meta.get("window_ns"):
        return None
    of_steps = "iteration" in rows.columns and "window_ns" not in rows.columns
    # Rows lie in others, have no names, or their shares are of different steps.
    if "inclusive" in meta or keys == ["recomputed"] or of_steps:
        return None
    if keys == ["stage"]:
        texts = [most_by_share(rows.sort("exposed_ns", descending=True), keys)]
        if meta.get("idle_ns") is not None:
            rest = "in no stage" if "basis" in meta else "idle"
            texts.append(f"{rest} {percent(meta['idle_ns'] / meta['window_ns'])}")
        return f"Of the time {', '.join(filter(None, texts))}{unseen(meta)}{_doubt(rows, meta)}"
    if keys == ["iteration"] and "window_ns" in rows.columns:
        is_apart = "numbered_apart" in meta  # the same step may have several rows
        return None if is_apart else _by_steps(rows, meta.get("cold", {}).get("last"))
    if keys == ["device"]:
        return f"Busiest: {most_by_share(rows.sort('share', descending=True), keys)}"
    most = most_by_share(rows.sort("share", descending=True, nulls_last=True), keys)
    return f"Largest: {most}" if most else None


def _doubt(rows: pl.DataFrame, meta: Mapping[str, Any]) -> str:
    """Return a clause: stages with a large share of time that rest on weak evidence; else empty."""
    weak = [each["stage"] for each in meta.get("weak", ())]
    shown = rows.filter(pl.col("share") >= LEAST, pl.col("stage").is_in(weak))
    return f"; weak evidence decides {', '.join(shown['stage'])}" if shown.height else ""


def _by_steps(rows: pl.DataFrame, last_cold: int | None) -> str | None:
    """Return a sentence: number, mean and longest of the steps after step `last_cold`.

    The number and mean of the steps up to `last_cold`, which are slow (cold), follow in it.
    """
    if last_cold is not None:
        usual = _by_steps(rows.filter(pl.col("iteration") > last_cold), None)
        before = _by_steps(rows.filter(pl.col("iteration") <= last_cold), None) or ""
        return usual and f"{usual}, after {before.replace(' step', ' cold step', 1)}"
    steps = rows.drop_nulls(["iteration", "window_ns"])
    if steps.is_empty():
        return None
    number = pl.col("devices") if "devices" in steps.columns else pl.lit(1)
    steps = steps.with_columns(number=number)
    mean = duration(steps.select(pl.sum("window_ns") / pl.sum("number")).item())
    longest = steps.sort(pl.col("window_ns") / pl.col("number")).row(-1, named=True)
    length = duration(longest["window_ns"] / longest["number"])
    if steps.height == 1:
        return f"1 step of {length}"
    most = f"{length} at most (step {longest['iteration']})"
    return f"{count(steps.height, 'step')} of {mean} in the mean, {most}"


note("recomputed")(unsaid)
note("inclusive")(
    lambda _: [
        "busy: ops launched in a range or in ranges inside it; self_busy: launched in it directly"
    ]
)
note("depth")(
    lambda value: (
        [] if value is None else [f"{count(value, 'level')} of ranges; deeper ones count in these"]
    )
)
note("joined")(
    lambda passes: [
        f"layer of {text_of(name)} known by: {shares_text(shares)} of its ops' time"
        for name, shares in passes.items()
    ]
)
note("unjoined")(
    lambda passes: [
        f"layer of {text_of(name)} unknown: {text_of(why)}" for name, why in passes.items()
    ]
)
note("outlier_ranks")(
    lambda found: [
        f"rank {each['rank']} is unusual: busy {each['ratio']:.3g} times as long as the median"
        for each in found
    ]
)
note("wu_residual_ns")(
    lambda value: [f"WU as a residual (window minus FP and BP): {time_text(value)}"]
)
note("wu_residual_other_ns")(
    lambda value: [f"of that, input, evaluation or nothing runs for {time_text(value)}"]
)
note("wu_residual_unknown")(lambda why: [f"why that is unknown: {text_of(why)}"])
