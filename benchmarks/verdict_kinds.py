"""Kinds of steps whose truth is known, to try verdicts on.

Both recordings of a pair are drawn alike, so that no true difference is in any of them but where a
factor makes one. What the truth is stands beside each kind, and was stated before any trial.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int, int], Floats]
_STALLED, _HALF, _FAR = 0.05, 0.5, 0.1
SPREAD = 2.0
"""Standard deviation of most kinds, in percent of a step."""


@dataclass(frozen=True)
class Kind:
    """A kind of steps.

    Parameters
    ----------
    name
        What it is called.
    truth
        What is true of the means of a pair, and thus what may be said.
    draw
        Draws steps of 100 on average: given pairs and steps.
    sd
        Long-run standard deviation of a step, in percent: times ``1 / sqrt(n)`` it is that of the
        mean of n of them. Not known of kinds that have none.
    correlation
        Lag-1 correlation, of kinds that are made by it.
    other
        Draws the steps of the second run, if another way.
    other_steps
        How many the second run has, if not as many.
    has_mean
        Whether there is a mean that an interval may hold.
    """

    name: str
    truth: str
    draw: Draw
    sd: float | None = None
    correlation: float = 0.0
    other: Draw | None = None
    other_steps: int | None = None
    has_mean: bool = True


def _normal(random: np.random.Generator, pairs: int, steps: int) -> Floats:
    return 100 + SPREAD * random.normal(size=(pairs, steps))


def _wide(random: np.random.Generator, pairs: int, steps: int) -> Floats:
    return 100 + 3 * SPREAD * random.normal(size=(pairs, steps))


def _lognormal(random: np.random.Generator, pairs: int, steps: int) -> Floats:
    return 95 + 5 * random.lognormal(-0.125, 0.5, size=(pairs, steps))


def autoregressive(correlation: float) -> Draw:
    """Return what draws steps each of which goes with the one before."""

    def draw(random: np.random.Generator, pairs: int, steps: int) -> Floats:
        new = random.normal(size=(steps, pairs))
        found = np.empty_like(new)
        found[0] = new[0]
        for step in range(1, steps):
            found[step] = correlation * found[step - 1] + np.sqrt(1 - correlation**2) * new[step]
        return 100 + SPREAD * found.T

    return draw


def _alternating(random: np.random.Generator, pairs: int, steps: int) -> Floats:
    first = random.integers(0, 2, size=(pairs, 1))
    return 100 + 20 * (-1.0) ** (np.arange(steps) + first) + random.normal(size=(pairs, steps))


def _drift(random: np.random.Generator, pairs: int, steps: int) -> Floats:
    return 97.5 + 5 * np.linspace(0, 1, steps) + random.normal(size=(pairs, steps))


def _stalls(random: np.random.Generator, pairs: int, steps: int) -> Floats:
    stalled = random.random((pairs, steps)) < _STALLED
    return 95 + SPREAD * random.normal(size=(pairs, steps)) + 100 * stalled


def _bimodal(random: np.random.Generator, pairs: int, steps: int) -> Floats:
    is_slow = random.integers(0, 2, size=(pairs, steps))
    return 70 + 60 * is_slow + random.normal(size=(pairs, steps))


def _lasting_modes(random: np.random.Generator, pairs: int, steps: int) -> Floats:
    changes = random.random((pairs, steps)) < 1 / 8
    changes[:, 0] = random.random(pairs) < _HALF
    is_slow = changes.cumsum(axis=1) % 2
    return 70 + 60 * is_slow + random.normal(size=(pairs, steps))


def _walk(random: np.random.Generator, pairs: int, steps: int) -> Floats:
    return 100 + random.normal(size=(pairs, steps)).cumsum(axis=1)


def _cold(random: np.random.Generator, pairs: int, steps: int) -> Floats:
    found = _normal(random, pairs, steps)
    found[:, 0] = 300
    return found


def _recorded(random: np.random.Generator, pairs: int, recordings: int, offset: Floats) -> Floats:
    """Means of recordings of 30 steps each, which spread by 2 %."""
    return 100 + offset + SPREAD / np.sqrt(30) * random.normal(size=(pairs, recordings))


def _offsets(random: np.random.Generator, pairs: int, recordings: int) -> Floats:
    return _recorded(random, pairs, recordings, random.normal(size=(pairs, recordings)))


def _long_tail(random: np.random.Generator, pairs: int, recordings: int) -> Floats:
    tail = random.lognormal(0, 0.7, (pairs, recordings)) - np.exp(0.245)
    return _recorded(random, pairs, recordings, tail)


def _some_far(random: np.random.Generator, pairs: int, recordings: int) -> Floats:
    is_far = random.random((pairs, recordings)) < _FAR
    offset = random.normal(size=(pairs, recordings)) + 6 * (is_far - _FAR)
    return _recorded(random, pairs, recordings, offset)


def _wide_offsets(random: np.random.Generator, pairs: int, recordings: int) -> Floats:
    return _recorded(random, pairs, recordings, 3 * random.normal(size=(pairs, recordings)))


def _of_correlation(value: float) -> Kind:
    return Kind(
        f"AR(1), {value:+.1f}",
        f"equal means; sd 2 %, lag-1 correlation {value:+.1f}",
        autoregressive(value),
        sd=SPREAD * float(np.sqrt((1 + value) / (1 - value))),
        correlation=value,
    )


KINDS = (
    Kind("normal", "equal means; independent, sd 2 %", _normal, sd=SPREAD),
    Kind("lognormal", "equal means; independent, sd 2.7 %, a long tail", _lognormal, sd=2.7),
    *map(_of_correlation, (-0.9, -0.5, -0.3, 0.3, 0.5, 0.7, 0.9)),
    Kind("alternating", "equal means; 80 and 120 by turns, sd 1 %", _alternating, sd=1.0),
    Kind("drift", "equal means of equal times; 5 % slower at the end, sd 1 %", _drift),
    Kind("stalls", "equal means; one of 20 steps takes twice as long", _stalls, sd=21.9),
    Kind("two kinds", "equal means; 70 or 130, independent", _bimodal, sd=30.0),
    Kind("lasting modes", "equal means; 70 or 130, for 8 steps on average", _lasting_modes),
    Kind("random walk", "no mean at all: only unknown is right", _walk, has_mean=False),
    Kind("cold start", "equal means; the first step takes three times as long", _cold, sd=31.0),
    Kind("few", "equal means; 6 independent steps in B, sd 2 %", _normal, other_steps=6),
    Kind("unlike numbers", "equal means; 20 steps in B, sd 2 %", _normal, sd=SPREAD,
         other_steps=20),
    Kind("unlike scatters", "equal means; sd 2 % in A, 6 % in B", _normal, sd=6.0, other=_wide),
    Kind("unlike numbers and scatters", "equal means; 20 steps of sd 6 % in B, of 2 % in A",
         _normal, sd=6.0, other=_wide, other_steps=20),
)  # fmt: skip
"""What verdicts are tried on."""

RECORDED = (
    Kind("offsets", "equal programs; recordings differ by 1 % (sd)", _offsets),
    Kind("long tail", "equal programs; recordings differ by 1 %, a long tail", _long_tail),
    Kind("some far off", "equal programs; one recording of ten is 6 % slower", _some_far),
    Kind("unlike offsets", "equal programs; recordings differ by 1 % in A, 3 % in B", _offsets,
         other=_wide_offsets),
    Kind("one in B", "equal programs; recordings differ by 1 %, B is one", _offsets, other_steps=1),
)  # fmt: skip
"""What verdicts on several recordings a side are tried on: each draws their means."""
