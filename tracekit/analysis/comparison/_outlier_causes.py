"""Compare without outlier steps, and find the cause of each outlier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from tracekit.analysis.comparison._headline import length_text, signed_length
from tracekit.analysis.comparison._step_change import FASTER, SLOWER, SMALL, Steps, change
from tracekit.analysis.statistics import ENOUGH, outliers
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
"""Maximum number of outliers that are named."""
_HALF = 0.5
"""An op is the cause that makes up so much of what is too long."""


def outlier_rows(
    traces: Sequence[Trace], measured: Sequence[Measured], steps: Steps
) -> pl.DataFrame:
    """Return the steps of A and of B that are unlike the others, each with its cause.

    Parameters
    ----------
    traces, measured, steps
        Of A and of B: the run, what was measured, and its steps.

    Returns
    -------
    ``side, iteration, step_ns`` (mean over devices), ``ratio`` to the median step of the side, and
    ``cause``: what is longer than in the median step, or of a shorter one what is shorter.
    """
    found = [
        (side, run.iterations[place], each[place] / max(1, run.devices), each[place] / median,
         _cause(trace, run, run.iterations[place], sign=1 if each[place] > median else -1))
        for side, trace, run, each in zip("AB", traces, measured, steps.lengths, strict=True)
        for median in [float(np.median(each))]
        for place in outliers(each)
    ]  # fmt: skip
    return pl.DataFrame(found, OUTLIERS, orient="row")


def without_outliers(odd: pl.DataFrame, step: Mapping[str, Any], steps: Steps) -> list[str]:
    """Say how the mean step changed without outliers, if that differs.

    Those that are furthest off are named with their cause: a few, and then fewer.

    Parameters
    ----------
    odd
        As `outlier_rows` returns them.
    step, steps
        How the step changed with them, and the steps of A and of B.

    Returns
    -------
    Nothing where there are no outliers, too few other steps, or as much is known with them.
    """
    places = [outliers(each) for each in steps.lengths]
    kept = steps.without(places)
    if odd.is_empty() or min(map(len, kept.lengths)) < ENOUGH:
        return []
    found = change(kept, has_verdict=True)
    delta, is_told = found["delta_ns"], found["verdict"] in (FASTER, SLOWER)
    if found["verdict"] == step["verdict"] or (not is_told and step["verdict"] == SMALL):
        return []
    far = odd.sort(pl.col("ratio").log().abs(), descending=True, maintain_order=True)
    named = [
        f"step {number} of {side} ({cause})"
        for side, number, cause in far.select("side", "iteration", "cause").iter_rows()
    ]
    told = f"a change of {signed_length(delta)} is {'not shown' if delta else 'none'}"
    if is_told:
        told = f"B is {found['verdict']} by {length_text(abs(delta))}"
    return [
        f"without {' and '.join([*named[:few], *([f'{more} more'] if more > 0 else [])])} {told}"
        for few in range(_FEW, 0, -1)
        for more in [len(named) - few]
    ]


def _cause(trace: Trace, run: Measured, number: int, *, sign: int) -> str:
    """Name what is longer in a step than in the median one: an op, a stage, or idle time.

    Of a step that is shorter (`sign` -1), name what is shorter.
    """
    part = pl.col("part").replace({"between": "idle"})
    each = run.parts.group_by(part, "iteration").agg(pl.col("length_ns").sum())
    usual = each.group_by("part").agg(usual=pl.col("length_ns").median())
    own = usual.join(each.filter(pl.col("iteration") == number), on="part", how="left")
    more = sign * (pl.col("length_ns").fill_null(0) - pl.col("usual"))
    longest, length = own.select("part", more=more).sort(-pl.col("more")).row(0)
    length /= max(1, run.devices)
    how = "more" if sign > 0 else "less"
    if longest == "idle":
        return f"idle for {length_text(length)} {how}"
    window = run.windows.filter(pl.col("iteration") == number)
    op = _longest(trace, window, longest) if sign > 0 else None
    if op is not None and op[1] >= _HALF * length:
        return f"{op[0]} of {length_text(op[1])}"
    return f"{length_text(length)} {how} of {longest}"


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
