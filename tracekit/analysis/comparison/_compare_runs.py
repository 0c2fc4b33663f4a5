"""Compare the steps of two runs, split by any key, with confidence intervals and verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from tracekit.analysis.comparison._headline import Metric, headline, length_text
from tracekit.analysis.comparison._outliers import (
    cold_notes,
    outlier_rows,
    step_notes,
    step_rows,
    without_outliers,
)
from tracekit.analysis.comparison._prepared import (
    OUTSIDE,
    Asked,
    Comparison,
    Prepared,
    Recorded,
    answered,
    prepare,
)
from tracekit.analysis.comparison._step_change import (
    TOTALS,
    VERDICT,
    Kinds,
    Steps,
    contributions,
    dependence_note,
    matrix,
    show,
    side_by_side,
    totals,
    with_small,
)
from tracekit.analysis.facts import how_to_record
from tracekit.analysis.idle_account import idle_ranges
from tracekit.analysis.statistics import METHOD, OF_ROWS, SHOW_DRIFT, Skip
from tracekit.analysis.step_sums import PARTS, Measured, peak_memory, steps_by_phase
from tracekit.engine import shown, sorting, with_path_texts
from tracekit.errors import MissingDataError, UsageError
from tracekit.model import Trace
from tracekit.support.wording import count, skipped_text, summary, text_of

_METHOD_OF_PHASES = METHOD.replace(
    OF_ROWS,
    "of each phase with its own steps, adjusted with p_value for the number of phases that both "
    "runs have (Bonferroni); a verdict where the interval excludes 0",
)
_MUCH = 0.1
"""Share of the longer recording by which times outside of steps differ that are noted."""
_PHASES = ("prefill", "decode", "mixed", None)
_SCHEMA = {
    "phase": pl.String,
    **dict.fromkeys(("a_ns", "b_ns", "a_tokens", "b_tokens", "delta_ns", "ratio"), pl.Float64),
    **dict.fromkeys(VERDICT[:3], pl.Float64),
    "verdict": pl.String,
    "only_in": pl.String,
    **dict.fromkeys((*TOTALS, "a_steps", "b_steps", "a_devices", "b_devices"), pl.Int64),
}
_COUNTS = ("a_steps", "b_steps", "a_devices", "b_devices")
_IDLE = ("idle", "between_steps")
_FEW = 4
"""Number of ranges of the host that a note names."""


def _phase_rows(found: Prepared) -> pl.DataFrame:
    """Return one row per phase (such as training), with its mean step time in runs A and B.

    Each step has one phase, so the rows do not add up to the mean step. Intervals and p values are
    adjusted for the number of phases that both runs have (Bonferroni). Steps of unknown phase, or
    with processes in several phases, form a row whose phase is null.

    Raises
    ------
    UsageError
        If a run has no steps after skipping.
    MissingDataError
        If the phases of either run are not known.
    """
    a, b = found.measured
    if not (a.iterations and b.iterations):
        raise UsageError("runs without steps have no phases", "compare by stage")
    by_run = [
        steps_by_phase(trace).filter(pl.col("iteration").is_in(run.iterations))
        for trace, run in zip(found.traces, found.measured, strict=True)
    ]
    known = [[*each["phase"]] for each in by_run]
    shared = len([phase for phase in _PHASES if all(phase in each for each in known)])
    rows = []
    for phase in _PHASES:
        steps = [each.filter(pl.col("phase").eq_missing(phase)) for each in by_run]
        if any(each.height for each in steps):
            of_a, of_b = (_only(run, rows_of) for run, rows_of in zip((a, b), steps, strict=True))
            row = _row(of_a, of_b, has_verdict=found.has_verdict, phases=shared)
            tokens = {
                f"{side}_tokens": rows_of["tokens"].mean()
                if rows_of["tokens"].null_count() == 0
                else None
                for side, rows_of in zip("ab", steps, strict=True)
            }
            rows.append({"phase": phase, **tokens, **row})
    return pl.DataFrame(rows, schema=_SCHEMA)


def _only(run: Measured, steps: pl.DataFrame) -> Measured:
    """Return the run limited to the steps in `steps`."""
    numbers = steps["iteration"]
    return replace(
        run,
        iterations=tuple(numbers.sort()),
        parts=run.parts.filter(pl.col("iteration").is_in(numbers.implode())),
    )


def _row(a: Measured, b: Measured, *, has_verdict: bool, phases: int) -> dict[str, object]:
    """Compare the steps of a phase in A and B: mean time, ns, difference, interval and verdict.

    Intervals are adjusted for the number of `phases`. If only one run has the phase, the columns of
    the other run and of the comparison are null.
    """
    sides = {"a": a, "b": b}
    counts = {
        **{f"{side}_steps": len(run.iterations) for side, run in sides.items()},
        **{f"{side}_devices": run.devices for side, run in sides.items()},
    }
    if a.iterations and b.iterations:
        steps = Steps.of(a, b)
        lengths = (steps.lengths[0][np.newaxis, :], steps.lengths[1][np.newaxis, :])
        devices = (np.full(1, steps.devices[0]), np.full(1, steps.devices[1]))
        shown = show(*lengths, devices, has_verdict=has_verdict, regular=steps.regular,
                     tables=phases)  # fmt: skip
        found = side_by_side(*lengths, devices).hstack(shown).row(0, named=True)
    else:
        side, run = ("a", a) if a.iterations else ("b", b)
        mean = int(run.parts["length_ns"].sum()) / (len(run.iterations) * max(1, run.devices))
        found = {f"{side}_ns": mean, "only_in": side.upper()}
    totals = {f"{side}_total_ns": int(run.parts["length_ns"].sum()) for side, run in sides.items()}
    return {**found, **totals, **counts}


def compare(
    a: Recorded,
    b: Recorded,
    by: str | Sequence[str] = "stage",
    *,
    skip: Skip = "auto",
    match_names: bool = False,
    anyway: bool = False,
    metric: Metric = "mean",
    least: float | None = None,
    one_run: bool = False,
) -> Comparison:
    """Compare two runs, step by step.

    Every group (value of the key `by`, such as a stage) of either run has a row. A group counts as
    0 ns in steps that lack it; time outside of steps is in separate columns. Times are those of
    `per_iteration`: exposed time by stage, sums of durations for API calls, else busy time,
    averaged over steps and devices (CUDA and MPI calls: over steps and processes; links: over
    steps). A run without iterations is compared as a whole.

    A step lasts from an iteration's first op on a device to the next iteration's first op on that
    device. The last step ends with its last op on any device (``docs/breakdown.md``). A step is
    split into the exposed time of each stage and the time in which nothing runs: ``idle`` while the
    host is in an iteration, ``between_steps`` while the host is in none. These parts add up to the
    step, and the changes of the parts add up to the change of the step.

    A row is ``faster`` or ``slower`` if the interval of its change, adjusted for the number of
    rows, excludes 0; ``meta["method"]`` names the methods. This is about these two recordings only:
    iterations of one recording vary less than recordings of one program do, so two recordings of
    the same program can differ significantly by a little.

    Parameters
    ----------
    a, b
        The runs. Those with different networks, batches or numbers of GPUs are not comparable.
    by, skip, match_names, anyway, metric, least
        As for `tracekit.compare`.
    one_run
        Whether `a` and `b` are the same run, which the headline then states.

    Returns
    -------
    Rows, tables and `meta`: see `Comparison`.

    Raises
    ------
    UsageError
        If a key is unknown, or a run has too few iterations to skip.
    MissingDataError
        If only one run has GPU work, if both lack GPU work and NVTX ranges that are stages, or, for
        a comparison by memory, if there are no events of GPU memory.
    """
    options = Asked.of(by, skip, metric, least, match_names=match_names, anyway=anyway)
    options = options.of_known_ranks([a, b])
    found = prepare([a, b], options)
    of_a, of_b = found.measured
    steps = Steps.of(of_a, of_b)
    parts, step = contributions(of_a, of_b, steps, has_verdict=found.has_verdict, names=found.parts)
    table = _rows(found, options.keys, parts, steps)
    (table, parts), step = with_small((table, parts), step, least)
    odd = outlier_rows(found.traces, found.measured, steps)
    without = without_outliers(odd, step, steps)
    of_steps = any(run.iterations for run in found.measured)
    few = min(len(run.iterations) for run in found.measured) < SHOW_DRIFT
    first = headline(
        parts, step, found.reasons, metric=metric, least=least, one_run=one_run, of_steps=of_steps,
        may_drift=few or bool(dependence_note(step, steps)),
        without=without, ops={} if found.basis else ops_of(table),
    )  # fmt: skip
    return answered(
        options, found, ([of_a], [of_b]), (a.name, b.name),
        headline=first, step=step, notes=_notes(found, options.keys, steps, step, odd),
        method=_METHOD_OF_PHASES if options.keys == ("phase",) else METHOD,
        rows=table, readable=_readable(table, of_steps=of_steps),
        tables={
            "contributions": parts,
            "devices": _by_device(of_a, of_b),
            "steps": pl.concat([step_rows(of_a, a.name, "A"), step_rows(of_b, b.name, "B")]),
            "outliers": odd,
        },
    )  # fmt: skip


def _rows(
    found: Prepared, keys: tuple[str, ...], parts: pl.DataFrame, steps: Steps
) -> pl.DataFrame:
    """Return one row per group (such as a stage): its times in A and B, and the difference."""
    if keys == ("step",):
        return parts
    if keys == ("phase",):
        return _phase_rows(found)
    if keys == ("memory",):
        sides = [
            memory_peaks(run.trace, run.name).rename({"bytes": f"{side}_bytes"})
            for side, run in zip("ab", found.runs, strict=True)
        ]
        return memory_side_by_side(*sides)
    a, b = found.measured
    table = _table(found.traces[0], a, b, steps.regular, has_verdict=found.has_verdict)
    if keys != ("stage",):
        return table
    more = {"a_steps": _steps(a), "b_steps": _steps(b)}
    devices = dict(zip(("a_devices", "b_devices"), steps.devices, strict=True))
    return with_idle(table, parts, {**more, **devices})


def _by_device(a: Measured, b: Measured) -> pl.DataFrame:
    """Return the parts of the step (stages, idle time) of A and B, per GPU that both used.

    ``device, part, a_ns, b_ns, delta_ns`` (B - A), sorted by device and part; a part that one run
    lacks has 0 ns there.
    """
    key = ["device", "part"]
    sides = [run.on_devices.rename({"mean_ns": f"{side}_ns"}) for side, run in (("a", a), ("b", b))]
    of_both = set(a.on_devices["device"]) & set(b.on_devices["device"])
    both = sides[0].join(sides[1], on=key, how="full", coalesce=True)
    order = pl.DataFrame({"part": PARTS}).with_row_index("place")
    return (
        both.filter(pl.col("device").is_in(list(of_both)))
        .with_columns(pl.col("a_ns", "b_ns").fill_null(0.0))
        .join(order, on="part")
        .sort("device", "place")
        .select(*key, "a_ns", "b_ns", delta_ns=pl.col("b_ns") - pl.col("a_ns"))
    )


def _readable(table: pl.DataFrame, *, of_steps: bool = True) -> pl.DataFrame:
    """Return the table as printed: without the columns of sums and of numbers of steps and devices.

    Time outside of steps is printed as a mean over devices; columns that are all 0 are left out.
    Whole recordings have no row of time between steps.
    """
    if not of_steps:
        table = table.filter(pl.col(table.columns[0]).cast(pl.String) != "between_steps")
    outside = [name for name in OUTSIDE[:2] if name in table.columns]
    is_some = any(table[name].sum() for name in outside)
    means = [
        (pl.col(name) / pl.col(f"{name[0]}_devices")).alias(name) for name in outside * is_some
    ]
    unread = {*TOTALS, *OUTSIDE, *_COUNTS}
    if "phase" in table.columns:  # of other rows the first line says how many steps there are
        unread -= {"a_steps", "b_steps"}
    return table.select(pl.exclude(unread & {*table.columns}), *means)


def _notes(
    found: Prepared, keys: tuple[str, ...], steps: Steps, step: Mapping[str, Any], odd: pl.DataFrame
) -> list[str]:
    """Return notes on two runs: outliers, correlated steps, missing data, host ranges when idle."""
    names = [run.name for run in found.runs]
    return [
        *_missing_notes(found),
        *_outside_notes(found.measured),
        *(_idle_notes(found) if keys in (("stage",), ("step",)) else []),
        *step_notes(steps, odd),
        *cold_notes(names, found.measured),
        *dependence_note(step, steps),
    ]


def _missing_notes(found: Prepared) -> list[str]:
    """Return notes on data that only one run has, of one format: formats name data differently."""
    if len({(*run.trace.read("reports")["format"].unique().sort(),) for run in found.runs}) > 1:
        return []
    recorded = [_recorded(run.trace) for run in found.runs]
    names = [run.name for run in found.runs]
    return [
        f"{names[other]} has no {', '.join(missing)}, but {names[this]} does"
        for this, other in ((0, 1), (1, 0))
        if (missing := sorted(recorded[this] - recorded[other]))
    ]


def _outside_notes(measured: Sequence[Measured]) -> list[str]:
    """Return a note on time outside of the steps of a GPU, if A and B differ much in it."""
    if not all(each.iterations for each in measured):
        return []
    length = pl.col("end") - pl.col("start")
    recorded, outside = zip(*(
        each.windows.select(
            length.sum() / each.devices,
            outside=length.filter(
                ~pl.col("iteration").is_in(each.iterations).fill_null(value=False)
            ).sum() / each.devices,
        ).row(0)
        for each in measured
    ), strict=True)  # fmt: skip
    if abs(outside[1] - outside[0]) < _MUCH * max(recorded):
        return []
    sides = (
        f"{length_text(out)} of {length_text(total)} in {side}"
        for side, out, total in zip("AB", outside, recorded, strict=True)
    )
    return [f"outside of these steps, and not compared: {', '.join(sides)}, mean over devices"]


def _idle_notes(found: Prepared) -> list[str]:
    """Return notes: in A and in B, which host ranges were open while GPUs idled inside steps."""
    notes = []
    for side, run, numbers in zip("AB", found.traces, found.measured, strict=True):
        if not numbers.iterations or run["ranges"].head(1).collect().is_empty():
            continue
        ranges = idle_ranges(run, numbers.windows).head(_FEW)
        over = len(numbers.iterations) * numbers.devices
        parts = [
            f"{name or 'no range'} {length_text(idle / over)}" for name, idle in ranges.iter_rows()
        ]
        if parts:
            notes.append(f"idle in {side}, by where the host was: {', '.join(parts)}")
    return notes


def _recorded(trace: Trace) -> set[str]:
    present = trace["contents"].filter("present").select("feature").collect()
    return set(present["feature"])


# -- side by side ------------------------------------------------------------------------------


def _table(
    trace: Trace, a: Measured, b: Measured, regular: Kinds, *, has_verdict: bool
) -> pl.DataFrame:
    columns = list(a.columns)
    rows = all_rows(trace, (a.values, b.values), columns)
    samples = (matrix(a, a.values, rows, columns), matrix(b, b.values, rows, columns))
    table = rows
    for side, run in (("a", a), ("b", b)):
        table = table.join(numbers_of(run, side), on=columns, how="left", nulls_equal=True)
    table = table.sort("row").with_columns(
        pl.col("a_devices").fill_null(max(1, a.devices)),
        pl.col("b_devices").fill_null(max(1, b.devices)),
        pl.col("a_count", "b_count").fill_null(0.0),
        pl.col(OUTSIDE).fill_null(0),
    )
    devices = (table["a_devices"].to_numpy(), table["b_devices"].to_numpy())
    table = pl.concat(
        [
            table.drop("row"),
            totals(*samples),
            side_by_side(*samples, devices),
            show(*samples, devices, has_verdict=has_verdict, regular=regular),
        ],
        how="horizontal",
    )
    in_a, in_b = pl.col("in_a").is_not_null(), pl.col("in_b").is_not_null()
    table = table.with_columns(
        *(
            pl.when(pl.col(f"in_{side}").is_null()).then(0.0).otherwise(f"{side}_bytes")
            .alias(f"{side}_bytes")
            for side in ("a", "b") if "bytes" in a.values.columns
        ),
        pl.lit(_steps(a), pl.Int64).alias("a_steps"),
        pl.lit(_steps(b), pl.Int64).alias("b_steps"),
        only_in=pl.when(~in_b).then(pl.lit("A")).when(~in_a).then(pl.lit("B")),
    )  # fmt: skip
    return arranged(table, columns, (*TOTALS, *OUTSIDE, *_COUNTS))


def arranged(table: pl.DataFrame, columns: list[str], last: Sequence[str]) -> pl.DataFrame:
    """Put columns in the documented order (`last` at the end), and rows by change, largest first.

    A table by stage is in the order of stages.
    """
    sized = [name for name in ("a_bytes", "b_bytes") if name in table.columns]
    order = ["stage"] if columns == ["stage"] else [-pl.col("delta_ns").abs(), *sorting(columns)]
    return shown(table.sort(order, nulls_last=True)).select(
        *columns, "a_ns", "b_ns", "a_count", "b_count", *sized, "delta_ns", "ratio", *VERDICT,
        "only_in", *last,
    )  # fmt: skip


def with_idle(
    table: pl.DataFrame, parts: pl.DataFrame, more: Mapping[str, int] | None = None
) -> pl.DataFrame:
    """Append rows of idle time to a table of stages, so that all rows add up to the step.

    `parts` compares stages and idle time; its intervals and verdicts replace those in `table`.
    `more` (column -> value) fills further columns of the appended rows.
    """
    of_a, of_b = pl.col("a_ns"), pl.col("b_ns")
    known = table.with_columns(pl.col("stage").cast(pl.String)).drop(VERDICT)
    stages = known.join(parts.select(*VERDICT, stage="part"), on="stage", how="left")
    rows = parts.filter(pl.col("part").is_in(_IDLE)).select(
        *(name for name in parts.columns if name in table.columns),
        stage="part",
        ratio=pl.when(of_a != 0).then(of_b / of_a),
        **{name: pl.lit(value, pl.Int64) for name, value in (more or {}).items()},
    )
    return pl.concat([stages.select(table.columns), rows], how="diagonal")


def ops_of(table: pl.DataFrame) -> dict[str, tuple[float, float]]:
    """Return stage -> GPU ops per step (in A, in B); empty unless there is one row per stage."""
    if table.columns[0] != "stage" or "a_ns" not in table.columns[1:2]:
        return {}
    counts = table.select("stage", "a_count", "b_count").drop_nulls()
    return {stage: (of_a, of_b) for stage, of_a, of_b in counts.iter_rows()}


def _steps(run: Measured) -> int:
    return max(1, len(run.iterations))


def all_rows(trace: Trace, runs: Sequence[pl.DataFrame], columns: list[str]) -> pl.DataFrame:
    """Return the distinct groups (values of `columns`) of all runs, numbered as ``row``."""
    groups = pl.concat([run.select(columns).unique() for run in runs]).unique()
    texts = with_path_texts(trace, groups).with_columns(pl.col(pl.Categorical).cast(pl.String))
    return texts.sort(sorting(columns), nulls_last=True).with_row_index("row")


def numbers_of(run: Measured, side: str) -> pl.DataFrame:
    """Return, by group, mean op count and bytes per step, and time and ops outside of steps.

    Names of the columns begin with `side` (``a`` or ``b``).
    """
    is_step = pl.col("iteration").is_not_null() if run.iterations else pl.lit(value=True)
    count, devices = pl.col("count"), pl.col("per").first()
    sized = pl.col("bytes").filter(is_step)
    of_bytes = pl.when(sized.count() > 0).then(sized.sum() / _steps(run)).alias(f"{side}_bytes")
    found = run.values.group_by(run.columns).agg(
        (count.filter(is_step).sum() / (_steps(run) * devices)).alias(f"{side}_count"),
        devices.cast(pl.Int64).alias(f"{side}_devices"),
        pl.col("length_ns").filter(~is_step).sum().alias(f"{side}_outside_steps_ns"),
        count.filter(~is_step).sum().alias(f"{side}_outside_steps_count"),
        pl.lit(value=True).alias(f"in_{side}"),
        *([of_bytes] if "bytes" in run.values.columns else []),
    )
    return found.with_columns(pl.col(pl.Categorical).cast(pl.String))


def memory_peaks(run: Trace, name: str) -> pl.DataFrame:
    """Return ``device, bytes``: peak memory; `MissingDataError` without memory events."""
    peaks = peak_memory(run)
    if peaks.is_empty():
        how = how_to_record(run, "memory events")
        raise MissingDataError(f"{name} has no events of GPU memory", f"record with {how}")
    return peaks


def memory_side_by_side(a: pl.DataFrame, b: pl.DataFrame) -> pl.DataFrame:
    """Join ``a_bytes`` and ``b_bytes`` by device, and add difference and ratio."""
    of_a, of_b = pl.col("a_bytes"), pl.col("b_bytes")
    return (
        a.join(b, on="device", how="full", coalesce=True)
        .with_columns(
            delta_bytes=of_b - of_a,
            ratio=pl.when(of_a != 0).then(of_b / of_a),
            only_in=pl.when(of_b.is_null()).then(pl.lit("A")).when(of_a.is_null()).then(pl.lit("B")),
        )
        .sort("device")
    )  # fmt: skip


@summary(
    "names",
    "by",
    "skip",
    "a_iterations",
    "b_iterations",
    "step",
    "not_comparable",
    "notes",
    "method",
    "a_devices",
    "b_devices",
    "a_skipped",
    "b_skipped",
    optional=["verdicts", "judged", "recordings"],  # notes and first line say that
)
def _comparison_notes(meta: Mapping[str, Any]) -> list[str]:
    """Return the printed notes of a comparison: result, runs, and statistical method."""
    numbers = {side: meta[f"{side.lower()}_iterations"] for side in "AB"}
    runs = [
        f"{' '.join(dict.fromkeys((side, text_of(name))))}, "
        f"{count(numbers[side], 'iteration') if any(numbers.values()) else 'whole recording'} on "
        f"{count(meta[f'{side.lower()}_devices'], 'process' if 'basis' in meta else 'GPU')}"
        for side, name in zip("AB", meta["names"], strict=True)
    ]
    line = " · ".join(runs) + skipped_text(meta["skip"])
    return [line, *_typical_notes(meta), *map(text_of, meta["notes"]), text_of(meta["method"])]


def _typical_notes(meta: Mapping[str, Any]) -> list[str]:
    """Return a note on how the change of the typical (median) step is computed."""
    if meta["by"] not in (["stage"], ["step"]) or meta["step"].get("shift_low_ns") is None:
        return []
    if "recordings" in meta:
        return ["median: means of the recordings' medians"]
    return ["median: delta is the median of the differences of all pairs of steps"]
