"""Sum up a comparison in one sentence: the change, its interval, and the rows that carry it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from textwrap import wrap
from typing import Any, Literal, get_args

import polars as pl

from tracekit.analysis.comparison._step_change import LEAST_PERCENT, SMALL
from tracekit.errors import UsageError
from tracekit.support.wording import TIME_UNITS, unit_of

_NAMES = {
    "idle": "idle time inside steps",
    "between_steps": "idle time between steps",
}
_TOLD = ("faster", "slower")
_SHOWN = {"faster": "shown", "slower": "shown", "not enough iterations": "too few steps to show it"}
_SHIFT = "median of pairwise differences"
"""Description of the change of a typical step: the Hodges-Lehmann estimator."""
_OF_RECORDINGS = "mean of the recordings' medians"
_MOST = 0.5
"""Parts are named until they make up so much of the change, and those as large against it."""
_OTHER_WORK = 0.2
"""Where a part has so many more ops a step in one run than in the other, the numbers are named."""

_LINES, _WIDTH = 2, 118
"""A sentence that takes more lines of a terminal of 120 columns is shortened."""

Metric = Literal["mean", "median"]


def check_metric(metric: str) -> None:
    """Raise `UsageError` if a metric is none of `Metric`."""
    if metric not in get_args(Metric):
        raise UsageError(f"unknown metric {metric!r}", f"choose {', '.join(get_args(Metric))}")


def headline(
    contributions: pl.DataFrame,
    step: Mapping[str, Any],
    reasons: Sequence[str],
    *,
    metric: Metric = "mean",
    least: float | None = None,
    may_drift: bool = False,
    one_run: bool = False,
    of_steps: bool = True,
    without: Sequence[str] = (),
    ops: Mapping[str, tuple[float, float]] | None = None,
) -> str:
    """Return the first line: the change of the step, whether it is significant, and its main parts.

    If the text exceeds two lines of 120 columns, it is shortened in this order: omit the typical
    step (if outliers are named), name fewer outliers, omit parts that changed in the other
    direction, then op counts, and last (if outliers are named) the parts that make up the change.

    Parameters
    ----------
    contributions, step
        Parts of the change and the change of the step, from a comparison.
    reasons
        Why the runs are not comparable.
    metric, least
        Metric of the step, and least change that matters, in percent: as for `compare`.
    may_drift
        Whether steps vary slowly, or are so few that this would not be detected.
    one_run
        Whether A and B are the same run.
    of_steps
        Whether `step` is about steps; if not, whole recordings are compared.
    without
        The change without outliers, in words: a long and a shorter version.
    ops
        Stage -> mean number of its GPU ops per step (in A, in B).
    """
    first = ["A and B are one run"] if one_run else []
    first.append(f"{'step' if of_steps else 'recording'}: {_change(step)}")
    if step["delta_ns"]:
        first.append(_standing(step, may_drift=may_drift, least=least))
    is_asked = metric != "mean" or least is not None
    judgement = judged(step, metric, least)["sentence"] if is_asked else ""
    last = f"not comparable ({'; '.join(reasons)})" if reasons else ""
    typical, named = [_typical(step, metric)], [*without]
    (typical if metric == "mean" and without else named).append("")
    # Without a row for idle time between steps, that for idle time has all of it.
    in_steps = of_steps and contributions["part"].is_in(["between_steps"]).any()
    names = _NAMES if in_steps else {"idle": "idle time"}
    parts = contributions.with_columns(pl.col("part").replace(names))
    carried = _carried(parts, step["delta_ns"], ops or {}) or [""]
    carried += [""] if without else []
    for carry, odd, usual in product(carried, named, typical):
        sentence = "; ".join(filter(None, [*first, carry, usual, judgement, odd, last]))
        if len(wrap(sentence, _WIDTH)) <= _LINES:
            break
    return sentence


def _change(step: Mapping[str, Any]) -> str:
    a, b, delta = step["a_ns"], step["b_ns"], step["delta_ns"]
    divisor, unit = unit_of(min(a, b) or max(a, b), TIME_UNITS)
    of_a, of_b = (_recordings(step, side) for side in "ab")
    times = f"{a / divisor:,.2f} {unit} in A{of_a}, {b / divisor:,.2f} {unit} in B{of_b}"
    if not delta:
        return f"{times}: no change"
    how = "faster" if delta < 0 else "slower"
    share = f" ({100 * delta / a:+.1f} %)" if a else ""
    return f"{times}: {how} by {length_text(abs(delta))}{share}"


def _recordings(step: Mapping[str, Any], side: str) -> str:
    number = step.get(f"{side}_runs")
    return "" if number is None else f" ({number} recording{'' if number == 1 else 's'})"


def _standing(step: Mapping[str, Any], *, may_drift: bool, least: float | None) -> str:
    """Return a clause: whether the change of the step is significant.

    It has a caveat if steps `may_drift`. `least` is the least change that matters, in percent.
    """
    if step["verdict"] is None:
        return "no verdict"
    if step.get("reason"):
        return f"unknown: {step['reason']}"
    outcome = _SHOWN.get(step["verdict"], "not shown")
    if outcome == "shown":
        outcome += " of these two recordings" if "a_runs" not in step else " of the two programs"
    if step["low_ns"] is None:
        return outcome
    if step["verdict"] == SMALL:
        percent = LEAST_PERCENT if least is None else least
        outcome = f"no difference that matters (within {percent:g} % of the step)"
    supposed = ", if no drift" if may_drift else ""
    ends = f"{signed_length(step['low_ns'])} to {signed_length(step['high_ns'])}"
    return f"{outcome}, 95 % interval {ends}{supposed}"


def _typical(step: Mapping[str, Any], metric: Metric) -> str:
    """Return a clause on the change of the median step; empty if it only repeats the mean's.

    There is one if `metric` is the median, if mean and median step change in different directions,
    or if the change of the median step is significant and the verdict on the mean differs.
    """
    if step.get("shift_low_ns") is None or not (step["delta_ns"] or step["shift_ns"]):
        return ""
    is_told = step["shift_verdict"] in _TOLD and step["shift_verdict"] != step["verdict"]
    if metric == "mean" and not is_told and step["shift_ns"] * step["delta_ns"] >= 0:
        return ""
    ends = f"{signed_length(step['shift_low_ns'])} to {signed_length(step['shift_high_ns'])}"
    test = _OF_RECORDINGS if "a_runs" in step else _SHIFT
    sentence = f"median step {signed_length(step['shift_ns'])} ({ends}; {test})"
    if step["shift_ns"] * step["delta_ns"] < 0:
        sentence += ", the other way than the mean"
    return sentence


def judged(step: Mapping[str, Any], metric: Metric, least: float | None) -> dict[str, Any]:
    """Judge the change of the mean or median step against the least change that matters.

    Returns
    -------
    ``metric``, ``least_percent`` (or None), ``verdict`` and a ``sentence``. If `least` is given and
    the change has an interval, the verdict is ``faster`` or ``slower`` if the whole interval lies
    beyond `least`, ``same`` if the whole interval lies within it, else ``unknown``. Otherwise the
    verdict is that of `step`. `least` is a share of the shorter step, so that swapping A and B only
    swaps faster and slower.
    """
    prefix = "" if metric == "mean" else "shift_"
    verdict, ends = step[f"{prefix}verdict"], (step[f"{prefix}low_ns"], step[f"{prefix}high_ns"])
    base = "ns" if metric == "mean" else "median_ns"
    if least is not None and verdict is not None and None not in ends:
        verdict = _against(ends, min(step[f"{side}_{base}"] for side in "ab") * least / 100)
    outcome = verdict or "no verdict"
    if least is not None:
        outcome = (
            f"same within {least:g} %" if verdict == "same" else f"{outcome} (least {least:g} %)"
        )
    found = {"metric": metric, "least_percent": least, "verdict": verdict}
    return {**found, "sentence": f"by {metric}: {outcome}"}


def _against(ends: tuple[float, float], bound: float) -> str:
    """Judge the interval `ends` of a change by a least change, `bound`.

    It is ``slower`` if wholly above `bound`, ``faster`` if wholly below -`bound`, ``same`` if
    between the two, else ``unknown``.
    """
    low, high = ends
    if low > bound:
        return "slower"
    if high < -bound:
        return "faster"
    return "same" if -bound < low and high < bound else "unknown"


def _carried(
    contributions: pl.DataFrame, change: float, ops: Mapping[str, tuple[float, float]]
) -> list[str]:
    """Return a clause on the parts (stages, idle time) of a step that make up most of its change.

    There are three versions, from long to short: with parts that changed in the other direction;
    without these; and without the op counts of A and B, where these differ.
    """
    if not change:
        return []
    found = carriers(contributions, change)
    how = "carried by" if found.are_shown else "most of it is"
    other = f", against {_listed(found.against, ops)}" if found.against.height else ""
    at_length = f"{how} {_listed(found.most, ops)}"
    return [f"{at_length}{other}", at_length, f"{how} {_listed(found.most, {})}"]


@dataclass(frozen=True)
class Carriers:
    """The parts of a step that make up a change of its length."""

    most: pl.DataFrame
    """The fewest parts that make up half of the change, all in the direction of the step's change,
    largest first."""
    are_shown: bool
    """Whether the change of each of these parts is significant."""
    against: pl.DataFrame
    """Parts that changed in the opposite direction by more than half of the step's change."""


def carriers(contributions: pl.DataFrame, change: float) -> Carriers:
    """Return the parts that make up a change of the mean step; see `Carriers`."""
    parts = contributions.sort(-pl.col("delta_ns").abs())
    with_it, against = (parts.filter(pl.col("delta_ns") * change * sign > 0) for sign in (1, -1))
    before = with_it["delta_ns"].abs().cum_sum().shift(1, fill_value=0)
    most = with_it.filter(before < _MOST * abs(change))
    are_shown = bool(most["verdict"].is_in(_TOLD).fill_null(value=False).all())
    return Carriers(most, are_shown, against.filter(pl.col("delta_ns").abs() > _MOST * abs(change)))


def _listed(parts: pl.DataFrame, ops: Mapping[str, tuple[float, float]]) -> str:
    return " and ".join(_named(part, ops) for part in parts.iter_rows(named=True))


def _named(part: Mapping[str, Any], ops: Mapping[str, tuple[float, float]]) -> str:
    name, verdict = part["part"], part["verdict"]
    details = [signed_length(part["delta_ns"])]
    if verdict is not None and verdict not in _TOLD:
        details.append(SMALL if verdict == SMALL else "not shown")
    of_a, of_b = ops.get(name, (0, 0))
    if abs(of_b - of_a) > _OTHER_WORK * max(of_a, of_b):
        details.append(f"{of_a:,.4g} → {of_b:,.4g} ops a step")
    return f"{name} ({', '.join(details)})"


def signed_length(value: float) -> str:
    """Return a change of a time, ns, as text with sign and unit, such as ``+1.20 ms``."""
    return f"{'-' if value < 0 else '+'}{length_text(abs(value))}"


def length_text(value: float) -> str:
    """Return a time, ns, as text in a unit that suits its size."""
    divisor, unit = unit_of(value, TIME_UNITS)
    return f"{value / divisor:,.{0 if divisor == 1 else 2}f} {unit}"
