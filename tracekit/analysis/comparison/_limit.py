"""Whether a run is slower than another one by more than a limit: shown, excluded, or not known."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

import numpy as np

from tracekit.analysis._student import quantile
from tracekit.analysis.comparison._between import reach_of
from tracekit.analysis.comparison._dependence import ENOUGH, mean_error
from tracekit.analysis.comparison._statistics import welch_error
from tracekit.errors import UsageError

if TYPE_CHECKING:
    from tracekit.analysis.comparison._compare import Comparison

_LEVEL = 0.95
_MOST_STEPS = 100_000
"""More steps than this are none that anyone records."""


@dataclass(frozen=True)
class Limit:
    """What is known of a limit.

    Parameters
    ----------
    outcome
        ``within`` or ``above``, each shown at 95 %, or ``unknown``.
    sentence
        What was found, and of what is unknown what would tell.
    """

    outcome: Literal["within", "above", "unknown"]
    sentence: str


def check_limit(comparison: Comparison, percent: float, *, anyway: bool = False) -> Limit:
    """Tell whether B's steps are slower than A's by more than `percent` of A's.

    With means a and b, ``b - (1 + percent / 100) a`` is held against 0 by Welch's t test with
    effective numbers of steps, one-sided at 95 %: below it is shown to be within the limit, above
    it to be above. Of several recordings a side it is Welch's t test on their means. It is unknown
    where the steps depend on each other too much for a verdict.

    Parameters
    ----------
    comparison
        The comparison.
    percent
        The limit.
    anyway
        Whether runs that are not comparable are judged too.

    Raises
    ------
    UsageError
        If `percent` is no limit.
    """
    if not (math.isfinite(percent) and percent >= 0):
        raise UsageError(f"{percent} % is no limit", "give 0 or more")
    meta = comparison.meta
    step, steps = meta["step"], (meta["a_iterations"], meta["b_iterations"])
    limit = f"{percent:g} %"
    if meta["not_comparable"] and not anyway:
        reasons = "; ".join(meta["not_comparable"])
        return Limit("unknown", f"cannot tell whether it is within {limit}: {reasons}")
    if "a_runs" in step and step["a_ns"]:
        return _judged(step, _Recordings.of(step, 1 + percent / 100), percent)
    if min(steps) < ENOUGH or not step["a_ns"]:
        need = f"record {ENOUGH} or more in each run"
        few = f"{steps[0]} and {steps[1]} steps are too few"
        return Limit("unknown", f"cannot tell whether it is within {limit}: {few}, {need}")
    if step["reason"]:
        return Limit("unknown", f"cannot tell whether it is within {limit}: {step['reason']}")
    factor = 1 + percent / 100
    spreads = (factor * step["a_sd_ns"], step["b_sd_ns"])
    return _judged(
        step, _Steps(spreads, steps, (step["a_effective"], step["b_effective"])), percent
    )


class _Sides(Protocol):
    """What is known of the scatter of both sides."""

    @property
    def noun(self) -> str:
        """What more of would tell."""

    def reach(self, more: int = 0) -> float:
        """Return how far from the difference of means its one-sided bound is, with so many more."""


@dataclass(frozen=True)
class _Steps:
    """Standard deviations and numbers of steps of both runs, and what these are worth."""

    spreads: tuple[float, float]
    steps: tuple[int, int]
    effective: tuple[float, float]
    noun: str = "steps of each"

    def reach(self, more: int = 0) -> float:
        """Return how far from the difference of means its one-sided bound is, with more steps."""
        errors = [
            mean_error(np.array([spread]), steps + more, np.array([worth * (1 + more / steps)]))
            for spread, steps, worth in zip(self.spreads, self.steps, self.effective, strict=True)
        ]
        (of_a, free_a), (of_b, free_b) = errors
        variance, freedom = welch_error((of_a, of_b), (free_a, free_b))
        return float(quantile(freedom[0], _LEVEL) * math.sqrt(variance[0]))


@dataclass(frozen=True)
class _Recordings:
    """Standard deviations of recordings, and how many there are of either side."""

    spreads: tuple[float, float]
    numbers: tuple[int, int]
    noun: str = "recordings a side"

    @classmethod
    def of(cls, step: Mapping[str, Any], factor: float) -> Self:
        """Take them from a step; of one recording the scatter is taken for that of the others."""
        a, b = step["a_sd_ns"], step["b_sd_ns"]
        of_a, of_b = b if a is None else a, a if b is None else b
        return cls((factor * of_a, of_b), (step["a_runs"], step["b_runs"]))

    def reach(self, more: int = 0) -> float:
        """Return how far from the difference of means its one-sided bound is, with so many more."""
        a, b = self.numbers
        return reach_of(self.spreads, (a + more, b + more), 2 * _LEVEL - 1)


def _judged(step: dict[str, Any], sides: _Sides, percent: float) -> Limit:
    factor = 1 + percent / 100
    excess = step["b_ns"] - factor * step["a_ns"]
    reach = sides.reach()
    change = f"steps change by {100 * (step['b_ns'] / step['a_ns'] - 1):+.1f} %"
    ends = [100 * ((step["b_ns"] + side * reach) / step["a_ns"] - 1) for side in (-1, 1)]
    if excess == 0 and reach == 0:
        return Limit("within", f"within {percent:g} %: {change}, none varies")
    if excess + reach < 0 or (excess <= 0 and reach == 0):
        return Limit("within", f"within {percent:g} %: {change}, at most {ends[1]:+.1f} % at 95 %")
    if excess - reach > 0:
        return Limit("above", f"above {percent:g} %: {change}, at least {ends[0]:+.1f} % at 95 %")
    told = f"cannot tell whether it is within {percent:g} %: {change}"
    span = f"{ends[0]:+.1f} % to {ends[1]:+.1f} %, one-sided 95 % each"
    return Limit("unknown", f"{told} ({span}); {_needed(excess, sides)}")


def _needed(excess: float, sides: _Sides) -> str:
    """Say how many more steps of each run would tell, if they go on as they are."""
    more = 1
    while more <= _MOST_STEPS:
        if sides.reach(more) < abs(excess):
            return f"about {_least(excess, sides, more):,} more {sides.noun} would tell"
        more *= 2
    return f"no number of {sides.noun.split()[0]} would tell, this close to the limit"


def _least(excess: float, sides: _Sides, enough: int) -> int:
    """Return the least number of further steps that tells, of which `enough` do."""
    low, high = enough // 2, enough
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if sides.reach(middle) < abs(excess) else (middle, high)
    return high
