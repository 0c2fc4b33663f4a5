"""By how much the step of two runs differs, what that is made of, and what steps can show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracekit.analysis.statistics import ENOUGH, LEVEL, Numbers, differences, long_run, shift
from tracekit.analysis.step_sums import PARTS, Measured

FASTER, SLOWER = "faster", "slower"
NOT_SHOWN, NOT_ENOUGH, UNKNOWN = "no difference shown", "not enough iterations", "unknown"
SMALL = "too small to matter"
LEAST_PERCENT = 0.1
"""A smaller share of the step does not matter, unless another one is given."""
VERDICT = ("low_ns", "high_ns", "p_value", "verdict")
TOTALS = ("a_total_ns", "b_total_ns")
_SLOW = 0.25
"""A mean that is less certain than that of so many of its steps would be, if they were independent,
is seldom so by chance."""
Counts = NDArray[np.int64]
"""Over how many devices each row is added."""


def matrix(run: Measured, values: pl.DataFrame, rows: pl.DataFrame, columns: list[str]) -> Numbers:
    """Return lengths: a row per group, a column per step."""
    numbers = pl.Series("iteration", run.iterations or (None,), dtype=pl.Int64)
    iterations = numbers.to_frame().with_row_index("column")
    sample = np.zeros((rows.height, iterations.height), dtype=np.int64)
    inside = values.select(*columns, "iteration", "length_ns").join(
        iterations, on="iteration", nulls_equal=True
    )
    placed = inside.join(rows.select(*columns, "row"), on=columns, nulls_equal=True)
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
    related: bool = True,
) -> pl.DataFrame:
    """Return the interval of the difference, its p value, and what may be concluded.

    P values are adjusted for the number of rows where these are related.
    """
    if min(a.shape[1], b.shape[1]) < ENOUGH:
        nothing = {name: [None] * len(a) for name in VERDICT[:3]}
        table = pl.DataFrame(nothing, schema=dict.fromkeys(nothing, pl.Float64))
        verdict = pl.lit(NOT_ENOUGH)
    else:
        # Whole numbers of a common scale: means are over devices too.
        found = differences(
            a * devices[1][:, np.newaxis], b * devices[0][:, np.newaxis], related=related
        )
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
    """Return what an interval and a p value show, where a verdict is given."""
    is_known = pl.col("p_value") <= 1 - LEVEL + 1e-12
    verdict = (
        pl.when(is_known & (pl.col("low_ns") > 0)).then(pl.lit(SLOWER))
        .when(is_known & (pl.col("high_ns") < 0)).then(pl.lit(FASTER))
        .otherwise(pl.lit(NOT_SHOWN))
    )  # fmt: skip
    return pl.when(pl.lit(has_verdict)).then(verdict).otherwise(pl.lit(None, pl.String))


def with_small(
    tables: Sequence[pl.DataFrame], step: Mapping[str, Any], least: float | None
) -> tuple[list[pl.DataFrame], dict[str, Any]]:
    """Mark differences whose whole interval lies within the least that matters.

    Parameters
    ----------
    tables
        Rows with ``low_ns, high_ns, verdict``, if they have verdicts.
    step
        The change of the step.
    least
        The least change that matters, in percent of the shorter step, so that exchanging the runs
        changes nothing; by default `LEAST_PERCENT`.
    """
    share = (LEAST_PERCENT if least is None else least) / 100
    bound = share * min(step["a_ns"] or 0, step["b_ns"] or 0)
    within = (pl.col("low_ns") > -bound) & (pl.col("high_ns") < bound)
    verdict = (
        pl.when((pl.col("verdict") == NOT_SHOWN) & within).then(pl.lit(SMALL)).otherwise("verdict")
    )
    named = [
        each.with_columns(verdict=verdict) if "verdict" in each.columns else each for each in tables
    ]
    worded = {}
    for prefix, base in (("", "ns"), ("shift_", "median_ns")):
        low, high, told = (step[prefix + name] for name in ("low_ns", "high_ns", "verdict"))
        own = share * min(step[f"a_{base}"] or 0, step[f"b_{base}"] or 0)
        if told == NOT_SHOWN and -own < low and high < own:
            worded[f"{prefix}verdict"] = SMALL
    return named, {**step, **worded}


# -- what the change of the step time is made of -----------------------------------------------


def contributions(
    a: Measured, b: Measured, *, has_verdict: bool, names: Sequence[str] = PARTS
) -> tuple[pl.DataFrame, dict[str, Any], tuple[Numbers, Numbers]]:
    """Return what the change of the step is made of, the change, and the steps of both runs."""
    rows = pl.DataFrame({"part": names}).with_row_index("row")
    samples = (matrix(a, a.parts, rows, ["part"]), matrix(b, b.parts, rows, ["part"]))
    steps = tuple(sample.sum(axis=0, keepdims=True) for sample in samples)
    ran_on = (max(1, a.devices), max(1, b.devices))
    of_step = tuple(np.full(1, number) for number in ran_on)
    step = pl.concat(
        [
            side_by_side(steps[0], steps[1], (of_step[0], of_step[1])),
            show(steps[0], steps[1], (of_step[0], of_step[1]), has_verdict=has_verdict),
        ],
        how="horizontal",
    ).row(0, named=True)
    for side, sample, number in zip("ab", steps, ran_on, strict=True):
        step[f"{side}_median_ns"] = float(np.median(sample)) / number
        step[f"{side}_total_ns"] = int(sample.sum())
        some = sample.shape[1] > 1
        step[f"{side}_sd_ns"] = float(sample.std(ddof=1)) / number if some else None
        step[f"{side}_effective"] = _effective(sample)
    is_unknown = step["p_value"] is None and min(each.shape[1] for each in steps) >= ENOUGH
    step["reason"] = _reason(*steps) if is_unknown else None
    step.update(_typical(steps[0][0], steps[1][0], ran_on, has_verdict=has_verdict))
    devices = tuple(np.full(rows.height, number) for number in ran_on)
    change = step["delta_ns"]
    table = pl.concat(
        [
            rows.select("part"),
            totals(*samples),
            side_by_side(*samples, (devices[0], devices[1])).drop("ratio"),
            show(*samples, (devices[0], devices[1]), has_verdict=has_verdict),
        ],
        how="horizontal",
    )
    share = pl.col("delta_ns") / change if change else pl.lit(None, pl.Float64)
    first = ("part", "a_total_ns", "b_total_ns", "a_ns", "b_ns", "delta_ns")
    return table.select(*first, share.alias("share"), *VERDICT), step, (steps[0][0], steps[1][0])


def _typical(
    a: Numbers, b: Numbers, devices: tuple[int, int], *, has_verdict: bool
) -> dict[str, Any]:
    """Return by how much a typical step differs, and what is shown of that."""
    found = shift(a * devices[1], b * devices[0])
    scale = devices[0] * devices[1]
    low, high = (end / scale for end in found.interval) if found.interval else (None, None)
    return {
        "shift_ns": found.value / scale,
        "shift_low_ns": low,
        "shift_high_ns": high,
        "shift_verdict": _typical_verdict(low, high, min(len(a), len(b))) if has_verdict else None,
    }


def _typical_verdict(low: float | None, high: float | None, steps: int) -> str:
    if low is None or high is None:
        return NOT_ENOUGH if steps < ENOUGH else UNKNOWN
    return SLOWER if low > 0 else FASTER if high < 0 else NOT_SHOWN


def _effective(steps: Numbers) -> float | None:
    """Return how many independent steps would tell as much of the mean; None of too few."""
    return float(long_run(steps).effective[0]) if steps.shape[1] >= ENOUGH else None


def dependence_note(step: Mapping[str, Any], steps: tuple[int, int]) -> list[str]:
    """Name the runs whose steps vary slowly."""
    if min(steps) < ENOUGH:
        return []
    return [
        f"{number} steps of {side.upper()} vary slowly: their mean is as certain as that of "
        f"{step[f'{side}_effective']:.2g} independent ones"
        for side, number in zip("ab", steps, strict=True)
        if step[f"{side}_effective"] < number * _SLOW
    ]


def _reason(a: Numbers, b: Numbers) -> str:
    """Say why nothing is known of the means of steps."""
    return "; ".join(
        f"{steps.shape[1]} steps of {side} drift through the recording, and have no mean that more "
        "of them would approach"
        for side, steps in zip("AB", (a, b), strict=True)
        if long_run(steps).drifts[0]
    )
