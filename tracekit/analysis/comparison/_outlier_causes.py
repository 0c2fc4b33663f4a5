"""What changed without outlier steps, and what made each of these so long."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from tracekit.analysis.comparison._headline import length_text, signed_length
from tracekit.analysis.comparison._outliers import outliers
from tracekit.analysis.comparison._step_change import FASTER, SLOWER, show
from tracekit.analysis.statistics import ENOUGH, Numbers
from tracekit.analysis.step_sums import Measured
from tracekit.model import Trace

OUTLIERS = pl.Schema(
    {
        "side": pl.String,
        "iteration": pl.Int64,
        "step_ns": pl.Float64,
        "ratio": pl.Float64,
        "cause": pl.String,
    }
)
"""Columns of a table of outliers."""
_FEW = 2
"""So many outliers are named."""
_HALF = 0.5
"""An op is the cause that makes up so much of what is too long."""


def outlier_rows(
    traces: Sequence[Trace], measured: Sequence[Measured], steps: Sequence[Numbers]
) -> pl.DataFrame:
    """Return the steps of A and of B that are unlike the others, each with its cause.

    Parameters
    ----------
    traces, measured, steps
        Of A and of B: the run, what was measured, and its steps, added over devices.

    Returns
    -------
    ``side, iteration, step_ns`` (mean over devices), ``ratio`` to the median step of the side, and
    ``cause``: what is longer than in the median step.
    """
    found = [
        (side, run.iterations[place], each[place] / max(1, run.devices),
         each[place] / np.median(each), _cause(trace, run, run.iterations[place]))
        for side, trace, run, each in zip("AB", traces, measured, steps, strict=True)
        for place in outliers(each)
    ]  # fmt: skip
    return pl.DataFrame(found, OUTLIERS, orient="row")


def without_outliers(
    odd: pl.DataFrame, measured: Sequence[Measured], steps: Sequence[Numbers]
) -> str | None:
    """Say how the mean step changed without outliers, of which a few are named with their cause.

    Parameters
    ----------
    odd
        As `outlier_rows` returns them.
    measured, steps
        Of A and of B: what was measured, and its steps, added over devices.

    Returns
    -------
    None where there are no outliers, or too few other steps.
    """
    kept = [np.delete(each, outliers(each))[np.newaxis, :] for each in steps]
    if odd.is_empty() or min(each.shape[1] for each in kept) < ENOUGH:
        return None
    devices = [np.full(1, max(1, run.devices)) for run in measured]
    found = show(kept[0], kept[1], (devices[0], devices[1]), has_verdict=True).row(0, named=True)
    means = [float(each.mean()) / number[0] for each, number in zip(kept, devices, strict=True)]
    named = [
        f"step {number} of {side} ({cause})"
        for side, number, cause in odd.select("side", "iteration", "cause").iter_rows()
    ]
    more = [f"{len(named) - _FEW} more"] if len(named) > _FEW else []
    delta = means[1] - means[0]
    change = f"a change of {signed_length(delta)} is {'not shown' if delta else 'none'}"
    if found["verdict"] in (FASTER, SLOWER):
        change = f"B is {found['verdict']} by {length_text(abs(delta))}"
    return f"without {' and '.join([*named[:_FEW], *more])} {change}"


def _cause(trace: Trace, run: Measured, number: int) -> str:
    """Name what is longer in a step than in the median one: an op, a stage, or idle time."""
    part = pl.col("part").replace({"between": "idle"})
    each = run.parts.group_by(part, "iteration").agg(pl.col("length_ns").sum())
    usual = each.group_by("part").agg(usual=pl.col("length_ns").median())
    own = each.filter(pl.col("iteration") == number).join(usual, on="part")
    more = own.select("part", more=pl.col("length_ns") - pl.col("usual")).sort(-pl.col("more"))
    longest, length = more.row(0)
    length /= max(1, run.devices)
    if longest == "idle":
        return f"idle for {length_text(length)} more"
    op = _longest(trace, run.windows.filter(pl.col("iteration") == number), longest)
    if op is not None and op[1] >= _HALF * length:
        return f"{op[0]} of {length_text(op[1])}"
    return f"{length_text(length)} more of {longest}"


def _longest(trace: Trace, windows: pl.DataFrame, stage: str) -> tuple[str, int] | None:
    """Return the name of the longest op of a stage in a step, and how long it takes."""
    start, end = windows["start"].min(), windows["end"].max()
    length = (pl.col("end") - pl.col("start")).alias("length")
    is_own = (pl.col("start") < end) & (pl.col("end") > start) & (pl.col("stage") == stage)
    what = pl.col("collective").cast(pl.String)
    article = pl.when(what.str.contains("^[aeiou]")).then(pl.lit("an ")).otherwise(pl.lit("a "))
    name = pl.coalesce(article + what, pl.col("name").cast(pl.String)).alias("op_name")
    rows = trace["ops"].filter(is_own).select(name, length).sort("length").tail(1).collect()
    return rows.row(0) if rows.height else None
