"""Steps with outlying length: their causes, and comparisons without them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from tracekit.analysis.comparison._headline import length_text, signed_length
from tracekit.analysis.comparison._step_change import (
    FASTER,
    SLOWER,
    SMALL,
    Steps,
    change,
    has_typical,
)
from tracekit.analysis.statistics import (
    ENOUGH,
    Numbers,
    Regular,
    Shift,
    Skip,
    kinds_of,
    left_out_notes,
    outliers,
    shift,
)
from tracekit.analysis.step_sums import Measured, per_iteration, steps_of
from tracekit.model import Trace

_LISTED = 3
"""Maximum number of outliers that are named."""
_NUMBERS = {2: "two", 3: "three", 4: "four"}
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
"""Minimum share of the excess time for an op to be named as its cause."""


def step_notes(steps: Steps, odd: pl.DataFrame) -> list[str]:
    """Return notes on each run's outlier steps with causes, and on several modes of step length."""
    sides = zip("AB", steps.lengths, steps.devices, steps.regular, strict=True)
    notes = [
        note
        for side, lengths, devices, regular in sides
        for note in (
            *_outlier_notes(side, odd.filter(side=side)),
            *_modes(side, lengths, devices, regular),
        )
    ]
    return [*notes, *_mode_by_mode(steps)]


def cold_notes(names: Sequence[str], measured: Sequence[Measured]) -> list[str]:
    """Return notes per run: how many first steps were skipped, how many slow (cold) ones remain."""
    skipped = {name: run.skipped for name, run in zip(names, measured, strict=True)}
    cold = [f"{run.cold} of {name}" for name, run in zip(names, measured, strict=True) if run.cold]
    lie = f"cold steps at the beginning: {', '.join(cold)}; --skip auto leaves them out"
    return [*left_out_notes(skipped), *([lie] if cold else [])]


def _outlier_notes(side: str, odd: pl.DataFrame) -> list[str]:
    notes = [
        f"step {number} of {side}: {ratio:.2g} times the median ({cause})"
        for number, ratio, cause in odd.select("iteration", "ratio", "cause").iter_rows()
    ]
    more = len(notes) - _LISTED
    are = "step of {} is an outlier" if more == 1 else "steps of {} are outliers"
    return [*notes[:_LISTED], *([f"{more} more {are.format(side)}"] if more > 0 else [])]


def _modes(side: str, steps: Numbers, devices: int, regular: Regular | None) -> list[str]:
    parts = kinds_of(steps)
    medians = [f"{len(part)} of {length_text(float(np.median(part)) / devices)}" for part in parts]
    if not medians:
        return []
    number = _NUMBERS.get(len(medians), str(len(medians)))
    listed = f"{', '.join(medians[:-1])} and {medians[-1]}"
    every = f"; a slow one every {regular.period} steps" if regular else ""
    none = "" if has_typical(steps) else "; none is typical of all"
    return [f"steps of {side} are of {number} kinds: {listed} (medians){every}{none}"]


def _mode_by_mode(steps: Steps) -> list[str]:
    """Return notes on the change of quick steps and of slow steps, if step lengths have modes."""
    (a, b), (of_a, of_b) = map(kinds_of, steps.lengths), steps.devices
    if not a or len(a) != len(b):
        return []
    shifts = [shift(one * of_b, other * of_a) for one, other in zip(a, b, strict=True)]
    kinds = ["quick", "slow"]
    if len(a) > len(kinds):
        kinds = [f"{length_text(float(np.median(mode)) / of_a)}" for mode in a]
    return [
        f"{kind} steps, B less A: typically {_shift_text(found, of_a * of_b)}"
        for kind, found in zip(kinds, shifts, strict=True)
    ]


def _shift_text(found: Shift, scale: int) -> str:
    if found.interval is None:
        return f"{signed_length(found.value / scale)} (interval unknown)"
    low, high = (signed_length(end / scale) for end in found.interval)
    return f"{signed_length(found.value / scale)} ({low} to {high})"


def outlier_rows(
    traces: Sequence[Trace], measured: Sequence[Measured], steps: Steps
) -> pl.DataFrame:
    """Return the outliers among the steps of A and of B, each with its cause.

    Parameters
    ----------
    traces, measured, steps
        The runs A and B, their measured steps, and the lengths of these.

    Returns
    -------
    ``side, iteration, step_ns`` (mean over devices), ``ratio`` to the median step of the side, and
    ``cause``: what takes longer than in the median step, such as a stage (for a short step: what
    takes less time).
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
    """Return a clause: change of the mean step without outliers, if that changes the verdict.

    It names the outliers farthest from the median, with their causes.

    Parameters
    ----------
    odd
        Outlier steps with their causes, from `outlier_rows`.
    step, steps
        The change of the step with outliers, and the steps of A and of B.

    Returns
    -------
    Versions of the clause, each naming fewer outliers; empty without outliers, with too few other
    steps, or if outliers do not change the verdict.
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
    outcome = f"a change of {signed_length(delta)} is {'not shown' if delta else 'none'}"
    if is_told:
        outcome = f"B is {found['verdict']} by {length_text(abs(delta))}"
    return [
        f"without {' and '.join([*named[:few], *([f'{more} more'] if more > 0 else [])])} {outcome}"
        for few in range(_FEW, 0, -1)
        for more in [len(named) - few]
    ]


def _cause(trace: Trace, run: Measured, number: int, *, sign: int) -> str:
    """Return what makes step `number` longer than the median step: an op, a stage, or idle time.

    With `sign` -1 it is what makes the step shorter: a stage or idle time.
    """
    part = pl.col("part").replace({"between_steps": "idle"})
    each = run.parts.group_by(part, "iteration").agg(pl.col("length_ns").sum())
    ns = pl.col("length_ns")
    own = ns.filter(pl.col("iteration") == number).sum()
    usual = ns.extend_constant(0, len(run.iterations) - pl.len()).median()
    growth = each.group_by("part").agg(more=sign * (own - usual))
    longest, length = growth.sort("more", "part", descending=True).row(0)
    length /= max(1, run.devices)
    how = "more" if sign > 0 else "less"
    if longest == "idle":
        return f"{length_text(length)} {how} idle"
    window = run.windows.filter(pl.col("iteration") == number)
    op = _longest(trace, window, longest) if sign > 0 else None
    if op is not None and op[1] >= _HALF * length:
        return f"{op[0]} of {length_text(op[1])}"
    return f"{length_text(length)} {how} of {longest}"


def _longest(trace: Trace, windows: pl.DataFrame, stage: str) -> tuple[str, int] | None:
    """Return name and duration (ns) of a stage's longest op in one step; None without any."""
    start, end = windows["start"].min(), windows["end"].max()
    length = (pl.col("end") - pl.col("start")).alias("length")
    is_own = (pl.col("start") < end) & (pl.col("end") > start) & (pl.col("stage") == stage)
    text = pl.col("collective").cast(pl.String)
    article = pl.when(text.str.contains("^[aeiou]")).then(pl.lit("an ")).otherwise(pl.lit("a "))
    name = pl.coalesce(article + text, pl.col("name").cast(pl.String)).alias("op_name")
    rows = trace["ops"].filter(is_own).select(name, length).sort("length").tail(1).collect()
    return rows.row(0) if rows.height else None


# -- steps one by one --------------------------------------------------------------------------


STEPS = pl.Schema(
    {
        "side": pl.String,
        "run": pl.String,
        "iteration": pl.Int64,
        "step_ns": pl.Float64,
        "is_outlier": pl.Boolean,
    }
)
"""Columns of a table of steps."""


def step_rows(found: Measured, run: str, side: str | None = None) -> pl.DataFrame:
    """Return one row per step of a run, in order.

    Parameters
    ----------
    found
        Measured steps of the run.
    run, side
        Name of the run, and its side in a comparison (``A`` or ``B``; None outside of one).

    Returns
    -------
    ``side, run, iteration, step_ns`` (mean over devices) and ``is_outlier`` (whether the step is
    unlike the others). No rows if the run has no iterations.
    """
    if not found.iterations:
        return STEPS.to_frame()
    steps = steps_of(found)
    is_outlier = np.zeros(len(steps), dtype=bool)
    is_outlier[outliers(steps)] = True
    return pl.DataFrame(
        {
            "side": [side] * len(steps),
            "run": [run] * len(steps),
            "iteration": list(found.iterations),
            "step_ns": steps / max(1, found.devices),
            "is_outlier": is_outlier,
        },
        schema=STEPS,
    )


def steps_of_run(trace: Trace, run: str, *, skip: Skip = 0) -> pl.DataFrame:
    """Return each step's length after `skip`, and whether it is an outlier, as `step_rows` does."""
    if trace["iterations"].head(1).collect().is_empty():
        return STEPS.to_frame()
    return step_rows(per_iteration(trace, ("stage",), skip=skip), run)
