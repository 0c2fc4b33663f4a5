"""Confidence intervals of ratios of mean times, by steps of two runs or by several runs a side."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracekit.analysis.statistics import (
    COSINES,
    ENOUGH,
    LEVEL,
    long_run,
    quantile,
    regularly_slow,
    welch_error,
    within_kinds,
)
from tracekit.analysis.step_sums import Measured, steps_of

Floats = NDArray[np.float64]
PRECISION = ("spread", "freedom", "scatter", "timed", "number", "slow_every", "single")
"""Names of the columns from which the interval of a ratio follows (see `precision`)."""
_SEVERAL = 2


def step_interval(found: Measured) -> dict[str, float | None]:
    """Return the 95 % confidence interval of the mean step time of a run.

    Returns
    -------
    ``step_low_ns`` and ``step_high_ns``, the ends of Student's interval (not below 0);
    ``step_se_ns``, the standard error, which allows for neighbouring steps being alike
    (`long_run`); ``step_effective``, the number of independent steps whose mean would be as
    certain; all None for fewer than 5 steps, or if step times drift. ``slow_every`` is n if every
    n-th step is slow, else None. If every n-th step is slow, the standard error comes from the
    scatter of slow steps around their own mean and of other steps around theirs. If the recording's
    share of slow steps is not exactly 1 / n, the standard error is larger.
    """
    names = ("step_low_ns", "step_high_ns", "step_se_ns", "step_sd_ns", "step_effective",
             "slow_every")  # fmt: skip
    steps, devices = steps_of(found), max(1, found.devices)
    if len(steps) < ENOUGH:
        return dict.fromkeys(names)
    regular = regularly_slow(steps)
    within, off = within_kinds(steps[np.newaxis, :], regular)
    certainty = long_run(within)
    if certainty.drifts[0]:
        return dict.fromkeys(names)
    factor = float(quantile(COSINES, (1 + LEVEL) / 2))
    error = (float(np.sqrt(certainty.variance[0])) + abs(float(off[0])) / factor) / devices
    mean = float(steps.mean()) / devices
    low, high = max(0.0, mean - factor * error), mean + factor * error
    every = None if regular is None else regular.period
    known = (low, high, error, float(steps.std(ddof=1)) / devices,
             float(certainty.effective[0]), every)  # fmt: skip
    return dict(zip(names, known, strict=True))


def precision(time: str, relative: pl.Expr | None = None) -> dict[str, pl.Expr]:
    """Return aggregations, over pooled runs, from which the interval of their mean time follows.

    Parameters
    ----------
    time
        Name of the column of times.
    relative
        Relative standard error of one run's time; null (or None) if it is unknown, so that only
        the variation between runs counts.

    Returns
    -------
    ``spread``, the relative variance of the mean (variance / mean^2); ``freedom``, its degrees of
    freedom; ``scatter``, the relative variance of single runs; ``timed``, the number of runs with a
    time (at least 1); and, if there is one run, the ``number`` of its steps, ``slow_every``, and
    ``single``, the relative variance of a step.
    """
    timed, mean = pl.col(time).count().clip(1), pl.col(time).mean()
    several, scatter = timed >= _SEVERAL, (pl.col(time).std() / mean) ** 2

    def alone(value: pl.Expr) -> pl.Expr:
        return pl.when(~several).then(value.filter(pl.col(time).is_not_null()).first())

    error = pl.lit(None, pl.Float64) if relative is None else relative
    return {
        "spread": pl.when(several).then(scatter / timed).otherwise(alone(error) ** 2),
        "freedom": pl.when(several).then(timed - 1.0).otherwise(float(COSINES)),
        "scatter": pl.when(several).then(scatter),
        "timed": timed.cast(pl.Int64),
        "number": alone(pl.col("iterations").replace(0, None)),
        "slow_every": alone(pl.col("slow_every")),
        "single": alone((pl.col("step_sd_ns") / pl.col("step_ns")) ** 2),
    }


RELATIVE = pl.col("step_se_ns") / pl.col("step_ns")
"""Standard error of a mean step over that mean."""
STEPS = pl.col("iterations").sum().replace(0, None)
"""Number of steps of pooled runs; null if none is known."""


def ratio_interval(table: pl.DataFrame, ratio: str, numerator: str, other: str) -> pl.DataFrame:
    """Return the 95 % interval of a column of ratios of mean times.

    The variance of the logarithm of a ratio is about the sum of the relative variances of both
    sides; degrees of freedom are by Welch. With one run per side the interval comes from their
    steps, and applies to these two runs only; steps of a run that is at most half as long as the
    other are assumed to vary at least as much (see `mean_errors`). With several runs each run
    counts as one value, and a side with a single run is assumed to vary like the other side.

    Parameters
    ----------
    table
        Rows with the ratio, and for each side `PRECISION`.
    ratio
        Name of the column of ratios.
    numerator, other
        Prefixes of the names of the columns of either side of the ratio.

    Returns
    -------
    ``low`` and ``high``, and ``of``: whether the interval comes from ``steps`` or ``runs``; null
    if unknown.
    """
    sides = [_side(table, prefix) for prefix in (numerator, other)]
    variance, freedom, of = _combined(sides[0], sides[1])
    values = table[ratio].cast(pl.Float64).to_numpy()
    known = np.isfinite(variance) & np.isfinite(freedom) & (freedom > 0) & np.isfinite(values)
    reach = quantile(np.where(known, freedom, 1.0), (1 + LEVEL) / 2)
    reach = np.exp(reach * np.sqrt(np.where(known, variance, 0.0)))
    return pl.DataFrame(
        {
            "low": np.where(known, values / reach, np.nan),
            "high": np.where(known, values * reach, np.nan),
            "of": of,
        }
    ).with_columns(
        pl.col("low", "high").fill_nan(None),
        pl.when(pl.lit(pl.Series(known))).then("of").alias("of"),
    )


def _side(table: pl.DataFrame, prefix: str) -> dict[str, Floats]:
    return {
        name: table[f"{prefix}{name}"].cast(pl.Float64).fill_null(float("nan")).to_numpy()
        for name in PRECISION
    }


def _combined(a: dict[str, Floats], b: dict[str, Floats]) -> tuple[Floats, Floats, list[Any]]:
    """Return variance and degrees of freedom of log(a / b), with their source: steps or runs."""
    several = [each["timed"] >= _SEVERAL for each in (a, b)]
    for one, other in ((a, b), (b, a)):  # a short run may lack rare slow steps
        least = other["single"] / one["number"]
        is_short = (2 * one["number"] <= other["number"]) & np.isnan(one["slow_every"])
        one["spread"] = np.where(is_short & (least > one["spread"]), least, one["spread"])
    variance, freedom = welch_error((a["spread"], b["spread"]), (a["freedom"], b["freedom"]))
    for one, other, has in ((a, b, several[1] & ~several[0]), (b, a, several[0] & ~several[1])):
        variance = np.where(
            has, other["scatter"] * (1 / other["timed"] + 1 / one["timed"]), variance
        )
        freedom = np.where(has, other["timed"] - 1, freedom)
    exact = (a["spread"] == 0) & (b["spread"] == 0)
    freedom = np.where(exact, 1.0, freedom)
    return variance, freedom, np.where(several[0] | several[1], "runs", "steps").tolist()
