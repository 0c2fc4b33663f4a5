"""Change of the step time between two runs, in total and by stage, with intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracekit.analysis.statistics import (
    ENOUGH,
    SLOW,
    LongRun,
    Numbers,
    Regular,
    differences,
    kinds_of,
    long_run,
    regularly_slow,
    shift,
    within_kinds,
)
from tracekit.analysis.step_sums import PARTS, Measured, steps_of

FASTER, SLOWER = "faster", "slower"
NOT_SHOWN, NOT_ENOUGH, UNKNOWN = "no difference shown", "not enough iterations", "unknown"
SMALL = "too small to matter"
LEAST_PERCENT = 0.1
"""Default of the least change that matters, in percent of the step."""
VERDICT = ("low_ns", "high_ns", "p_value", "verdict")
TOTALS = ("a_total_ns", "b_total_ns")
_TYPICAL = 0.71
"""Least share of steps of one kind for a typical step: with 1 - sqrt(1/2) = 29 % of others in both
runs, half of the differences are between kinds, and their median (Hodges and Lehmann) is too."""
Counts = NDArray[np.int64]
"""Number of devices over which each row is added."""
Kinds = tuple[Regular | None, Regular | None]
"""The slow steps of A and of B that come regularly."""


def matrix(run: Measured, values: pl.DataFrame, rows: pl.DataFrame, columns: list[str]) -> Numbers:
    """Return the times (`values`) as a matrix, ns: a row per group (`rows`), a column per step."""
    numbers = pl.Series("iteration", run.iterations or (None,), dtype=pl.Int64)
    iterations = numbers.to_frame().with_row_index("column")
    sample = np.zeros((rows.height, iterations.height), dtype=np.int64)
    known = rows.select(*columns, "row").cast({name: values.schema[name] for name in columns})
    placed = (
        values.lazy()
        .join(iterations.lazy(), on="iteration", nulls_equal=True)
        .join(known.lazy(), on=columns, nulls_equal=True)
        .select("row", "column", "length_ns")
        .collect(engine="streaming")
    )
    sample[placed["row"].to_numpy(), placed["column"].to_numpy()] = placed["length_ns"].to_numpy()
    return sample


def totals(a: Numbers, b: Numbers) -> pl.DataFrame:
    return pl.DataFrame(
        {"a_total_ns": a.sum(axis=1), "b_total_ns": b.sum(axis=1)},
        schema=dict.fromkeys(TOTALS, pl.Int64),
    )


def side_by_side(a: Numbers, b: Numbers, devices: tuple[Counts, Counts]) -> pl.DataFrame:
    means = {
        name: sample.sum(axis=1) / (sample.shape[1] * number)
        for name, sample, number in zip(("a_ns", "b_ns"), (a, b), devices, strict=True)
    }
    return pl.DataFrame(means, schema=dict.fromkeys(means, pl.Float64)).with_columns(
        delta_ns=pl.col("b_ns") - pl.col("a_ns"),
        ratio=pl.when(pl.col("a_ns") != 0).then(pl.col("b_ns") / pl.col("a_ns")),
    )


def show(
    a: Numbers,
    b: Numbers,
    devices: tuple[Counts, Counts],
    *,
    has_verdict: bool,
    regular: Kinds = (None, None),
    tables: int = 1,
) -> pl.DataFrame:
    """Return the confidence interval, p value and verdict of each row's mean difference, b - a.

    `a` and `b` have a row per group and a column per step: times summed over devices, ns. `devices`
    has the number of summed devices per row. `regular` marks, for each run, its slow steps if every
    n-th step is slow. Interval and p value are adjusted for the number of rows times `tables`, the
    number of tables tested together.
    """
    if min(a.shape[1], b.shape[1]) < ENOUGH:
        nothing = {name: [None] * len(a) for name in VERDICT[:3]}
        table = pl.DataFrame(nothing, schema=dict.fromkeys(nothing, pl.Float64))
        verdict = pl.lit(NOT_ENOUGH)
    else:
        # Whole numbers of a common scale: means are over devices too.
        found = differences(a, b, regular=regular, tables=tables, scales=devices[::-1])
        scale = devices[0] * devices[1]
        table = pl.DataFrame(
            {
                "low_ns": found.low / scale,
                "high_ns": found.high / scale,
                "p_value": found.p_value,
            }
        ).fill_nan(None)
        verdict = (
            pl.when(pl.lit(pl.Series(found.is_unknown)))
            .then(pl.lit(UNKNOWN))
            .otherwise(verdict_of())
        )
    return table.with_columns(
        verdict=pl.when(pl.lit(has_verdict)).then(verdict).otherwise(pl.lit(None, pl.String))
    )


def verdict_of(*, has_verdict: bool = True) -> pl.Expr:
    """Return an expression: the verdict by the interval (``low_ns, high_ns``) of a change.

    The verdict is faster, slower or, if the interval contains 0, `NOT_SHOWN`. Without
    `has_verdict`, the verdict is null.
    """
    verdict = (
        pl.when(pl.col("low_ns") > 0).then(pl.lit(SLOWER))
        .when(pl.col("high_ns") < 0).then(pl.lit(FASTER))
        .otherwise(pl.lit(NOT_SHOWN))
    )  # fmt: skip
    return pl.when(pl.lit(has_verdict)).then(verdict).otherwise(pl.lit(None, pl.String))


def with_small(
    tables: Sequence[pl.DataFrame], step: Mapping[str, Any], least: float | None
) -> tuple[list[pl.DataFrame], dict[str, Any]]:
    """Set the verdict ``too small to matter`` where an interval around 0 lies within `least`.

    Parameters
    ----------
    tables
        Tables of compared groups with ``low_ns, high_ns, verdict``; tables without verdicts stay.
    step
        The change of the mean and the typical step, whose verdicts are set likewise.
    least
        The least change that matters, in percent of the shorter of both steps, so that the order of
        runs does not matter; `LEAST_PERCENT` if None.
    """
    share = (LEAST_PERCENT if least is None else least) / 100
    shorter = pl.lit(min(step["a_ns"] or 0, step["b_ns"] or 0))
    of_phase = pl.min_horizontal("a_ns", "b_ns")  # each has steps of its own

    def verdict(bound: pl.Expr) -> pl.Expr:
        within = (pl.col("low_ns") > -bound) & (pl.col("high_ns") < bound)
        small = (pl.col("verdict") == NOT_SHOWN) & within
        return pl.when(small).then(pl.lit(SMALL)).otherwise("verdict")

    named = [
        each.with_columns(
            verdict=verdict(share * (of_phase if "phase" in each.columns else shorter))
        )
        if "verdict" in each.columns
        else each
        for each in tables
    ]
    worded = {}
    for prefix, base in (("", "ns"), ("shift_", "median_ns")):
        low, high, outcome = (step[prefix + name] for name in ("low_ns", "high_ns", "verdict"))
        limit_ns = share * min(step[f"a_{base}"] or 0, step[f"b_{base}"] or 0)
        if outcome == NOT_SHOWN and -limit_ns < low and high < limit_ns:
            worded[f"{prefix}verdict"] = SMALL
    return named, {**step, **worded}


# -- what the change of the step time is made of -----------------------------------------------


@dataclass(frozen=True)
class Steps:
    """Lengths of the steps of A and of B, added over devices."""

    lengths: tuple[Numbers, Numbers]
    """Lengths in the order of the steps, ns."""
    devices: tuple[int, int]
    """Number of devices over which each run's lengths are added."""
    regular: Kinds
    """For each run, its slow steps if every n-th step is slow, else None."""

    @classmethod
    def of(cls, a: Measured, b: Measured) -> Steps:
        """Return the step lengths of runs A and B, with their regularly slow steps marked."""
        lengths = (steps_of(a), steps_of(b))
        devices = (max(1, a.devices), max(1, b.devices))
        return cls(lengths, devices, (regularly_slow(lengths[0]), regularly_slow(lengths[1])))

    def without(self, places: Sequence[Sequence[int]]) -> Steps:
        """Return a copy without the steps of A and of B at the positions `places` (A's, B's)."""
        kept = [
            np.isin(np.arange(len(each)), removed, invert=True)
            for each, removed in zip(self.lengths, places, strict=True)
        ]
        regular = [
            None if kinds is None else replace(kinds, is_slow=kinds.is_slow[some])
            for kinds, some in zip(self.regular, kept, strict=True)
        ]
        lengths = (self.lengths[0][kept[0]], self.lengths[1][kept[1]])
        return Steps(lengths, self.devices, (regular[0], regular[1]))

    def long_runs(self) -> list[LongRun]:
        """Return the variance of each run's mean step, allowing for correlated successive steps."""
        sides = zip(self.lengths, self.regular, strict=True)
        return [long_run(within_kinds(each[np.newaxis, :], kinds)[0]) for each, kinds in sides]


def contributions(
    a: Measured, b: Measured, steps: Steps, *, has_verdict: bool, names: Sequence[str] = PARTS
) -> tuple[pl.DataFrame, dict[str, Any]]:
    """Return the change of each part (in `names`: stages, idle time) of the step, and of the step.

    Without `has_verdict` the verdicts are null.
    """
    rows = pl.DataFrame({"part": names}).with_row_index("row")
    samples = (matrix(a, a.parts, rows, ["part"]), matrix(b, b.parts, rows, ["part"]))
    devices = tuple(np.full(rows.height, number) for number in steps.devices)
    step = change(steps, has_verdict=has_verdict)
    step_delta = step["delta_ns"]
    table = pl.concat(
        [
            rows.select("part"),
            totals(*samples),
            side_by_side(*samples, (devices[0], devices[1])).drop("ratio"),
            show(*samples, (devices[0], devices[1]), has_verdict=has_verdict,
                 regular=steps.regular),
        ],
        how="horizontal",
    )  # fmt: skip
    share = pl.col("delta_ns") / step_delta if step_delta else pl.lit(None, pl.Float64)
    first = ("part", "a_total_ns", "b_total_ns", "a_ns", "b_ns", "delta_ns")
    return table.select(*first, share.alias("share"), *VERDICT), step


def change(steps: Steps, *, has_verdict: bool) -> dict[str, Any]:
    """Return the changes (b - a) of mean and median step; verdict is null unless `has_verdict`."""
    a, b = (each[np.newaxis, :] for each in steps.lengths)
    of_a, of_b = (np.full(1, number) for number in steps.devices)
    shown = show(a, b, (of_a, of_b), has_verdict=has_verdict, regular=steps.regular)
    step = side_by_side(a, b, (of_a, of_b)).hstack(shown).row(0, named=True)
    for side, lengths, number in zip("ab", steps.lengths, steps.devices, strict=True):
        step[f"{side}_median_ns"] = float(np.median(lengths)) / number
        step[f"{side}_total_ns"] = int(lengths.sum())
        some = len(lengths) > 1
        step[f"{side}_sd_ns"] = float(lengths.std(ddof=1)) / number if some else None
    few = min(map(len, steps.lengths)) < ENOUGH
    known = [] if few else steps.long_runs()
    for at, side in enumerate("ab"):
        step[f"{side}_effective"] = float(known[at].effective[0]) if known else None
    is_unknown = step["p_value"] is None and not few
    step["reason"] = _reason(steps, known) if is_unknown else None
    return {**step, **_typical(*steps.lengths, steps.devices, has_verdict=has_verdict)}


def _typical(
    a: Numbers, b: Numbers, devices: tuple[int, int], *, has_verdict: bool
) -> dict[str, Any]:
    """Return the median of all pairs' differences (b - a), its interval and a wanted verdict."""
    if not all(has_typical(steps) for steps in (a, b)):
        ends = dict.fromkeys(("shift_ns", "shift_low_ns", "shift_high_ns"))
        return {**ends, "shift_verdict": UNKNOWN if has_verdict else None}
    found = shift(a * devices[1], b * devices[0])
    scale = devices[0] * devices[1]
    low, high = (end / scale for end in found.interval) if found.interval else (None, None)
    return {
        "shift_ns": found.value / scale,
        "shift_low_ns": low,
        "shift_high_ns": high,
        "shift_verdict": _typical_verdict(low, high, min(len(a), len(b))) if has_verdict else None,
    }


def has_typical(steps: Numbers) -> bool:
    """Test whether a typical step exists: nearly all step lengths cluster around one value."""
    return max(map(len, kinds_of(steps)), default=len(steps)) >= _TYPICAL * len(steps)


def _typical_verdict(low: float | None, high: float | None, steps: int) -> str:
    if low is None or high is None:
        return NOT_ENOUGH if steps < ENOUGH else UNKNOWN
    return SLOWER if low > 0 else FASTER if high < 0 else NOT_SHOWN


def dependence_note(step: Mapping[str, Any], steps: Steps) -> list[str]:
    """Return a note that names the runs whose neighbouring steps have similar lengths."""
    return [
        f"{len(lengths)} steps of {side.upper()} vary slowly: their mean is as certain as that of "
        f"{effective:.2g} independent ones"
        for side, lengths in zip("ab", steps.lengths, strict=True)
        if (effective := step[f"{side}_effective"]) is not None and effective < len(lengths) * SLOW
    ]


def _reason(steps: Steps, known: Sequence[LongRun]) -> str:
    """Return why the mean steps have no interval: in which run steps drift."""
    return "; ".join(
        f"{len(lengths)} steps of {side} drift through the recording, and have no mean that more "
        "of them would approach"
        for side, lengths, run_variance in zip("AB", steps.lengths, known, strict=True)
        if run_variance.drifts[0]
    )
