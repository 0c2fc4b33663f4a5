"""Steps that are unlike all others: warm-up, cut ends, stalls, and steps of two kinds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tracekit.analysis.comparison._headline import length_text, signed_length
from tracekit.analysis.comparison._step_change import Steps, has_typical
from tracekit.analysis.statistics import Numbers, Regular, Shift, kinds_of, left_out_notes, shift

if TYPE_CHECKING:
    from tracekit.analysis.step_sums import Measured

_FEW = 3
"""Maximum number of outliers that are named."""
_NUMBERS = {2: "two", 3: "three", 4: "four"}


def step_notes(steps: Steps, odd: pl.DataFrame) -> list[str]:
    """Name the outliers of each run with their causes, and its kinds of steps."""
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
    """Say how many iterations are left out at the beginning, and how many others are cold."""
    skipped = {name: run.skipped for name, run in zip(names, measured, strict=True)}
    cold = [f"{run.cold} of {name}" for name, run in zip(names, measured, strict=True) if run.cold]
    lie = f"cold steps at the beginning: {', '.join(cold)}; --skip auto leaves them out"
    return [*left_out_notes(skipped), *([lie] if cold else [])]


def _outlier_notes(side: str, odd: pl.DataFrame) -> list[str]:
    told = [
        f"step {number} of {side}: {ratio:.2g} times the median ({cause})"
        for number, ratio, cause in odd.select("iteration", "ratio", "cause").iter_rows()
    ]
    more = len(told) - _FEW
    are = "step of {} is an outlier" if more == 1 else "steps of {} are outliers"
    return [*told[:_FEW], *([f"{more} more {are.format(side)}"] if more > 0 else [])]


def _modes(side: str, steps: Numbers, devices: int, regular: Regular | None) -> list[str]:
    parts = kinds_of(steps)
    told = [f"{len(part)} of {length_text(float(np.median(part)) / devices)}" for part in parts]
    if not told:
        return []
    number = _NUMBERS.get(len(told), str(len(told)))
    listed = f"{', '.join(told[:-1])} and {told[-1]}"
    every = f"; a slow one every {regular.period} steps" if regular else ""
    none = "" if has_typical(steps) else "; none is typical of all"
    return [f"steps of {side} are of {number} kinds: {listed} (medians){every}{none}"]


def _mode_by_mode(steps: Steps) -> list[str]:
    """Compare the steps of each kind with those of the same kind, if both runs have as many."""
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
