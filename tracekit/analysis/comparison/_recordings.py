"""Compare two programs that were recorded several times each.

Steps of one recording cannot show by how much recordings of one program differ (clock rates, other
jobs on the machine, placement of memory). Several recordings can; each counts as one value.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracekit.analysis.comparison._compare_runs import (
    all_rows,
    arranged,
    memory_peaks,
    memory_side_by_side,
    numbers_of,
    ops_of,
    with_idle,
)
from tracekit.analysis.comparison._headline import Metric, headline
from tracekit.analysis.comparison._outliers import cold_notes, step_rows
from tracekit.analysis.comparison._prepared import (
    OUTSIDE,
    Asked,
    Comparison,
    Prepared,
    Recorded,
    answered,
    prepare,
)
from tracekit.analysis.comparison._step_change import VERDICT, matrix, verdict_of, with_small
from tracekit.analysis.statistics import (
    LEVEL,
    OF_ROWS,
    Floats,
    Skip,
    adjusted_p_values,
    p_values,
    quantile,
    welch_error,
)
from tracekit.analysis.step_sums import Measured, steps_of
from tracekit.errors import UsageError
from tracekit.model import Trace

_MOST = 1_000
"""Largest practical number of recordings."""
_METHOD = (
    "interval: Student's t for the difference of means, where each recording counts as one number, "
    f"its mean (or median) step, degrees of freedom by Welch, 95 %, {OF_ROWS}"
)
_SEVERAL = 2
_ONE_PERCENT = 1.0


def between(a: Floats, b: Floats) -> tuple[Floats, Floats, Floats]:
    """Return 95 % intervals (lower, upper ends) and p values of ``mean(b) - mean(a)``, per row.

    Intervals and p values are those of Welch's t test, adjusted for the number of rows.

    Parameters
    ----------
    a, b
        One row per group, one column per recording; at least one side has two columns or more.
    """
    variance, freedom = difference_error(a, b)
    apart = b.mean(axis=1) - a.mean(axis=1)
    p_value = p_values(apart, variance, freedom)
    is_tried = (a != a[:, :1]).any(axis=1) | (b != a[:, :1]).any(axis=1)
    p_value[is_tried], level = adjusted_p_values(p_value[is_tried])
    reach = quantile(freedom, (1 + level) / 2) * np.sqrt(variance)
    return apart - reach, apart + reach, p_value


def difference_error(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """Return the variance of (mean of `b`'s recordings - mean of `a`'s), and degrees of freedom.

    Rows are quantities, columns recordings. A side with a single recording is assumed to vary like
    the other side.
    """
    several = a if a.shape[1] > 1 else b
    of_a, of_b = ((each if each.shape[1] > 1 else several).var(axis=1, ddof=1) for each in (a, b))
    return _error((of_a, of_b), (a.shape[1], b.shape[1]))


def _error(variances: tuple[Floats, Floats], numbers: tuple[int, int]) -> tuple[Floats, Floats]:
    """Return as `difference_error` does, from the variances of either side's `numbers` of runs."""
    of_a, of_b = variances[0] / numbers[0], variances[1] / numbers[1]
    if min(numbers) > 1:
        return welch_error((of_a, of_b), (numbers[0] - 1, numbers[1] - 1))
    return of_a + of_b, np.full(len(of_a), max(numbers) - 1.0)


def reach_of(spreads: tuple[float, float], numbers: tuple[int, int], level: float) -> float:
    """Return half the width of the two-sided interval of a difference of means.

    Parameters
    ----------
    spreads
        Standard deviations of the recordings of either side.
    numbers
        Number of recordings of either side; a single one is assumed to vary like the other side.
    level
        Confidence level of the interval, such as 0.95.
    """
    of_a, of_b = np.square(spreads)[:, np.newaxis]
    variance, freedom = _error((of_a, of_b), numbers)
    return float(quantile(freedom[0], (1 + level) / 2) * np.sqrt(variance[0]))


def enough_recordings(spreads: tuple[float, float], change: float) -> int | None:
    """Return how many recordings per side would make `change` significant.

    `spreads` are the standard deviations of the recordings of either side, in the unit of `change`.

    Returns
    -------
    The number, or None if no practical number would.
    """
    return least_enough(
        lambda number: reach_of(spreads, (number, number), LEVEL) < change, 2, _MOST
    )


def least_enough(is_enough: Callable[[int], bool], first: int, most: int) -> int | None:
    """Return the least number from `first` to `most` for which `is_enough` is true; else None."""
    number = bisect_left(range(most + 1), x=True, lo=first, key=is_enough)
    return number if number <= most else None


def compare_recordings(
    a: Sequence[Recorded],
    b: Sequence[Recorded],
    by: str | Sequence[str] = "stage",
    *,
    skip: Skip = "auto",
    names: tuple[str, str] = ("A", "B"),
    match_names: bool = False,
    anyway: bool = False,
    metric: Metric = "mean",
    least: float | None = None,
) -> Comparison:
    """Compare two programs, each by one or more recordings.

    Each recording contributes one number per group, the mean over steps and devices as in
    `compare`. Verdicts come from Welch's t test on these values, and apply to further recordings of
    the same programs. A side with a single recording is assumed to vary like the other side.

    Parameters
    ----------
    a, b
        The recordings of each side, three or more in all.
    names
        Names of the sides.
    by, skip, match_names, anyway, metric, least
        As for `compare`; a recording's typical step is its median.

    Returns
    -------
    The rows of `compare` without sums, and with ``a_sd_ns, b_sd_ns`` (standard deviation of the
    means of recordings; null for one) and ``a_runs, b_runs``, the numbers of recordings. Time and
    ops outside of steps are means over recordings. By memory ``a_bytes, b_bytes`` are means of the
    peaks of the recordings that have the device, ``a_sd_bytes, b_sd_bytes`` their standard
    deviations, and ``a_runs, b_runs`` their number. `meta` is as for `compare`, with the names of
    the ``recordings`` of either side.

    Raises
    ------
    UsageError
        If there are fewer than three recordings, one is given twice, or an option is invalid.
    MissingDataError
        As for `compare`.
    """
    options = Asked.of(by, skip, metric, least, match_names=match_names, anyway=anyway)
    _check(a, b)
    if options.keys == ("phase",):
        raise UsageError(
            "phases of several recordings a side are not compared", "compare two runs by phase"
        )
    options = options.of_known_ranks([*a, *b])
    found = prepare([*a, *b], options)
    sides = (found.measured[: len(a)], found.measured[len(a) :])
    parts, step = _step(sides, found.parts, has_verdict=found.has_verdict)
    table = _rows(found, options.keys, parts, (a, b))
    (table, parts), step = with_small((table, parts), step, least)
    called = [run.name for run in found.runs]
    notes = [*cold_notes(called, found.measured), *_scatter_notes(step, least)]
    ops = {} if found.basis else ops_of(table)
    first = headline(parts, step, found.reasons, metric=metric, least=least, ops=ops)
    labels = {side: [each.name for each in runs] for side, runs in zip("ab", (a, b), strict=True)}
    return answered(
        options, found, sides, names,
        headline=first, step=step, notes=notes, method=_METHOD, rows=table,
        readable=_readable(table, sides), more={"recordings": labels},
        tables={"contributions": parts, "steps": _all_steps(a, b, found.measured)},
    )  # fmt: skip


def _rows(
    found: Prepared,
    keys: tuple[str, ...],
    parts: pl.DataFrame,
    sides: tuple[Sequence[Recorded], Sequence[Recorded]],
) -> pl.DataFrame:
    """Return the rows of the comparison: each group's means in A and B, and the differences."""
    if keys == ("step",):
        return parts
    if keys == ("memory",):
        return _memory_table(*sides)
    first = len(sides[0])
    measured = (found.measured[:first], found.measured[first:])
    table = _table(found.traces[0], measured, has_verdict=found.has_verdict)
    return with_idle(table, parts) if keys == ("stage",) else table


def _check(a: Sequence[Recorded], b: Sequence[Recorded]) -> None:
    if not (a and b) or len(a) + len(b) <= _SEVERAL:
        raise UsageError(
            f"{len(a)} and {len(b)} recordings do not show how recordings scatter",
            "give two of one side or more, and one of the other",
        )
    names = [each.name for each in (*a, *b)]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(
            f"{twice!r} is given twice",
            "give each recording once",
        )


# -- the table ---------------------------------------------------------------------------------


def _table(
    trace: Trace, sides: tuple[Sequence[Measured], Sequence[Measured]], *, has_verdict: bool
) -> pl.DataFrame:
    runs = [*sides[0], *sides[1]]
    columns = list(runs[0].columns)
    rows = all_rows(trace, [run.values for run in runs], columns)
    of_a, of_b = (_side(side, rows, columns) for side in sides)
    found = differing(of_a["ns"], of_b["ns"], has_verdict=has_verdict)
    named = {f"{side}_{name}": each for side, of_side in (("a", of_a), ("b", of_b))
             for name, each in of_side.items() if name not in ("ns", "is_there")}  # fmt: skip
    numbers = pl.DataFrame({name: each.mean(axis=1) for name, each in named.items()})
    numbers = numbers.fill_nan(None)
    alone = pl.DataFrame({f"in_{side}": each["is_there"].any(axis=1)
                          for side, each in (("a", of_a), ("b", of_b))})  # fmt: skip
    table = pl.concat([rows.sort("row").drop("row"), numbers, found, alone], how="horizontal")
    only_in = pl.when(~pl.col("in_b")).then(pl.lit("A")).when(~pl.col("in_a")).then(pl.lit("B"))
    last = (*OUTSIDE, "a_sd_ns", "b_sd_ns", "a_runs", "b_runs")
    return arranged(table.with_columns(only_in=only_in), columns, last)


def _readable(
    table: pl.DataFrame, sides: tuple[Sequence[Measured], Sequence[Measured]]
) -> pl.DataFrame:
    """Return the table as printed: no standard deviations; the time outside steps per device."""
    unread = {"a_runs", "b_runs", "a_sd_ns", "b_sd_ns", "a_sd_bytes", "b_sd_bytes", *OUTSIDE}
    devices = {
        f"{side}_outside_steps_ns": max(1, *(run.devices for run in runs))
        for side, runs in zip("ab", sides, strict=True)
    }
    means = [
        (pl.col(name) / number).alias(name)
        for name, number in devices.items()
        if name in table.columns and table[name].sum()
    ]
    return table.select(pl.exclude(unread & {*table.columns}), *means)


def _memory_table(a: Sequence[Recorded], b: Sequence[Recorded]) -> pl.DataFrame:
    """Return the memory peaks of each device for A and B: mean and standard deviation."""
    sides = []
    for side, recordings in zip("ab", (a, b), strict=True):
        peaks = pl.concat([memory_peaks(each.trace, each.name) for each in recordings])
        of_device = peaks.group_by("device").agg(
            pl.col("bytes").mean().alias(f"{side}_bytes"),
            pl.col("bytes").std().alias(f"{side}_sd_bytes"),
            pl.len().cast(pl.Int64).alias(f"{side}_runs"),
        )
        sides.append(of_device)
    table = memory_side_by_side(*sides)
    return table.select(
        "device", "a_bytes", "b_bytes", "delta_bytes", "ratio", "only_in", "a_sd_bytes",
        "b_sd_bytes", pl.col("a_runs", "b_runs").fill_null(0),
    )  # fmt: skip


def _inside(run: Measured) -> pl.DataFrame:
    """Return the rows of `Measured.values` (times per group and step) that lie in steps."""
    return run.values.drop_nulls("iteration") if run.iterations else run.values


def _side(
    runs: Sequence[Measured], rows: pl.DataFrame, columns: list[str]
) -> dict[str, NDArray[Any]]:
    """Return numbers of one side (A or B): a row per compared group, a column per recording."""
    each = [_numbers(run, rows, columns) for run in runs]
    return {name: np.stack([one[name] for one in each], axis=1) for name in each[0]}


def _numbers(run: Measured, rows: pl.DataFrame, columns: list[str]) -> dict[str, NDArray[Any]]:
    """Return numbers of a recording by name: its mean time (``ns``) and others per group."""
    joined = rows.join(numbers_of(run, "a"), on=columns, how="left", nulls_equal=True)
    table = joined.sort("row").with_columns(
        pl.col("a_devices").fill_null(max(1, run.devices)),
        pl.col("a_count").fill_null(0.0),
        pl.col("a_outside_steps_ns", "a_outside_steps_count").fill_null(0),
        is_there=pl.col("in_a").is_not_null(),
    )
    steps = max(1, len(run.iterations))
    length = matrix(run, _inside(run), rows, columns).sum(axis=1)
    if "a_bytes" in table.columns:
        size = pl.when("is_there").then("a_bytes").otherwise(0.0).fill_null(float("nan"))
        table = table.with_columns(a_bytes=size)
    others = ("count", "bytes", "outside_steps_ns", "outside_steps_count")
    return {
        "ns": length / (steps * table["a_devices"].to_numpy()),
        **{name: table[f"a_{name}"].to_numpy() for name in others if f"a_{name}" in table.columns},
        "is_there": table["is_there"].to_numpy(),
    }


def differing(a: Floats, b: Floats, *, has_verdict: bool = True) -> pl.DataFrame:
    """Return the change of the mean over recordings, b - a, of each group.

    `a` and `b` have a row per group and a column per recording. The columns are ``a_ns, b_ns``
    (means), ``delta_ns`` (b - a), ``ratio`` (b / a), ``low_ns, high_ns, p_value`` (see `between`),
    ``verdict`` (null without `has_verdict`), ``a_sd_ns, b_sd_ns`` (standard deviations) and
    ``a_runs, b_runs`` (numbers of recordings).
    """
    low, high, p_value = between(a, b)
    spreads = {
        f"{side}_sd_ns": each.std(axis=1, ddof=1) if each.shape[1] > 1 else [None] * len(each)
        for side, each in zip("ab", (a, b), strict=True)
    }
    table = pl.DataFrame(
        {
            "a_ns": a.mean(axis=1),
            "b_ns": b.mean(axis=1),
            "low_ns": low,
            "high_ns": high,
            "p_value": p_value,
            **spreads,
        },
        schema_overrides=dict.fromkeys(spreads, pl.Float64),
    )
    return table.with_columns(
        delta_ns=pl.col("b_ns") - pl.col("a_ns"),
        ratio=pl.when(pl.col("a_ns") != 0).then(pl.col("b_ns") / pl.col("a_ns")),
        verdict=verdict_of(has_verdict=has_verdict),
        a_runs=pl.lit(a.shape[1], pl.Int64),
        b_runs=pl.lit(b.shape[1], pl.Int64),
    )


# -- the step ----------------------------------------------------------------------------------


def _step(
    sides: tuple[Sequence[Measured], Sequence[Measured]],
    names: Sequence[str],
    *,
    has_verdict: bool,
) -> tuple[pl.DataFrame, dict[str, Any]]:
    """Return the change of the step and of its parts, with verdicts if `has_verdict`."""
    of_a, of_b = (np.stack([_parts(run, names) for run in side], axis=1) for side in sides)
    first = ("part", "a_ns", "b_ns", "delta_ns", "share", *VERDICT)
    step = differing(
        of_a.sum(axis=0, keepdims=True), of_b.sum(axis=0, keepdims=True), has_verdict=has_verdict
    ).row(0, named=True)
    change = step["delta_ns"]
    share = pl.col("delta_ns") / change if change else pl.lit(None, pl.Float64)
    found = differing(of_a, of_b, has_verdict=has_verdict)
    parts = found.with_columns(share.alias("share"), part=pl.Series(names)).select(
        *first, "a_sd_ns", "b_sd_ns", "a_runs", "b_runs"
    )
    medians = [
        np.array([[float(np.median(steps_of(run))) / max(1, run.devices) for run in side]])
        for side in sides
    ]
    typical = differing(medians[0], medians[1], has_verdict=has_verdict).row(0, named=True)
    return parts, {
        **step,
        "a_median_ns": typical["a_ns"],
        "b_median_ns": typical["b_ns"],
        "shift_ns": typical["delta_ns"],
        **{f"shift_{name}": typical[name] for name in ("low_ns", "high_ns", "verdict")},
        "reason": None,
    }


def _parts(run: Measured, names: Sequence[str]) -> Floats:
    """Return a recording's mean time in each part (stage, idle) of a step, ns per device."""
    rows = pl.DataFrame({"part": names}).with_row_index("row")
    lengths = matrix(run, run.parts, rows, ["part"])
    means: Floats = lengths.sum(axis=1) / (lengths.shape[1] * max(1, run.devices))
    return means


def _all_steps(
    a: Sequence[Recorded], b: Sequence[Recorded], measured: Sequence[Measured]
) -> pl.DataFrame:
    sides = ["A"] * len(a) + ["B"] * len(b)
    each = zip((*a, *b), measured, sides, strict=True)
    return pl.concat([step_rows(run, recorded.name, side) for recorded, run, side in each])


# -- notes -------------------------------------------------------------------------------------


def _scatter_notes(step: Mapping[str, Any], least: float | None) -> list[str]:
    """Return notes: scatter between recordings, and how many would show a smaller change.

    Parameters
    ----------
    step
        The change of the step, with standard deviation and number of recordings of either side.
    least
        The least change that matters, in percent.
    """
    if not step["a_ns"]:
        return []
    notes, known = [], [step[f"{side}_sd_ns"] for side in "ab"]
    spreads = tuple(known[1 - at] if known[at] is None else known[at] for at in (0, 1))
    for at, side in enumerate("AB"):
        if known[at] is None:
            notes.append(
                f"{side} is one recording, and its scatter is taken for that of the others"
            )
    percent = [100 * spread / step["a_ns"] for spread in spreads]
    numbers = (step["a_runs"], step["b_runs"])
    reach = reach_of((percent[0], percent[1]), numbers, LEVEL)
    scatter = ", ".join(
        f"{percent[at]:.2g} % in {side}" for at, side in enumerate("AB") if known[at] is not None
    )
    notes.append(
        f"recordings scatter by {scatter}; with {numbers[0]} and {numbers[1]} changes of "
        f"{reach:.2g} % or more are shown"
    )
    return [*notes, *_recommended(step, (percent[0], percent[1]), reach, least)]


def _recommended(
    step: Mapping[str, Any], percent: tuple[float, float], reach: float, least: float | None
) -> list[str]:
    """Return a sentence: how many recordings per side are needed to show a change.

    The change is `least` or, without it, the measured one; 1 % if that is shown already, or 0. The
    sentence is left out if the interval's half width, `reach`, is smaller. `percent` is the
    standard deviation of either side. All are in percent of the step.
    """
    seen = abs(100 * step["delta_ns"] / step["a_ns"])
    is_shown = step["verdict"] in ("faster", "slower")
    change = least or (seen if seen and not is_shown else _ONE_PERCENT)
    if not any(percent) or reach < change:
        return []
    number = enough_recordings(percent, change)
    if number is None:
        return [f"no number of recordings would show {change:.2g} %, with such scatter"]
    return [f"about {number} recordings a side would show {change:.2g} %"]
