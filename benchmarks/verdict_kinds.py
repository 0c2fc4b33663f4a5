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
_FAR, _BURST, _STALLED = 0.1, 0.02, 0.05
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
    always
        Whether verdicts are to be right of few steps too: of independent or weakly dependent ones.
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
    always: bool = False
    other: Draw | None = None
    other_steps: int | None = None
    has_mean: bool = True


def _normal(random: np.random.Generator, pairs: int, steps: int) -> Floats:
    return 100 + SPREAD * random.normal(size=(pairs, steps))


def _wide(random: np.random.Generator, pairs: int, steps: int) -> Floats:
    return 100 + 3 * SPREAD * random.normal(size=(pairs, steps))


def _pareto(power: float) -> Draw:
    return lambda random, pairs, steps: 95 + 5 * (power - 1) * random.pareto(power, (pairs, steps))


def autoregressive(correlation: float, noise: float = 0.0) -> Draw:
    """Return what draws steps each of which goes with the one before, under noise of each step."""

    def draw(random: np.random.Generator, pairs: int, steps: int) -> Floats:
        new = random.normal(size=(steps, pairs))
        found = np.empty_like(new)
        found[0] = new[0]
        for step in range(1, steps):
            found[step] = correlation * found[step - 1] + np.sqrt(1 - correlation**2) * new[step]
        apart = noise * random.normal(size=(pairs, steps)) if noise else 0.0
        return 100 + SPREAD * (found.T + apart) / np.sqrt(1 + noise**2)

    return draw


def _long_drift(random: np.random.Generator, pairs: int, steps: int) -> Floats:
    return autoregressive(np.exp(-2 / steps), 1)(random, pairs, steps)


def _second_order(random: np.random.Generator, pairs: int, steps: int) -> Floats:
    settled = 100
    new = random.normal(size=(settled + steps, pairs))
    for step in range(2, len(new)):
        new[step] += 1.5 * new[step - 1] - 0.56 * new[step - 2]
    found = new[settled:].T
    return 100 + SPREAD * found / found.std()


def _states(slow: int, quick: int | None = None) -> Draw:
    """Return what draws steps 10 % longer for so many on average, then as usual for so many."""
    usual = quick or slow

    def draw(random: np.random.Generator, pairs: int, steps: int) -> Floats:
        is_slow = random.random(pairs) < slow / (slow + usual)
        found = random.normal(size=(pairs, steps))
        for step in range(steps):
            found[:, step] += 100 + 10 * is_slow
            ends = random.random(pairs)
            is_slow = np.where(is_slow, ends >= 1 / slow, ends < 1 / usual)
        return found

    return draw


def _bursts(random: np.random.Generator, pairs: int, steps: int) -> Floats:
    begins = random.random((pairs, steps + 5)) < _BURST
    inside = np.any([begins[:, at : at + steps] for at in range(1, 6)], axis=0)
    return _normal(random, pairs, steps) + 30 * inside


def _every(period: int, times: float) -> Draw:
    def draw(random: np.random.Generator, pairs: int, steps: int) -> Floats:
        is_slow = (np.arange(steps) + random.integers(0, period, (pairs, 1))) % period == 0
        return _normal(random, pairs, steps) * np.where(is_slow, times, 1)

    return draw


def _stalls(random: np.random.Generator, pairs: int, steps: int) -> Floats:
    return _normal(random, pairs, steps) + 100 * (random.random((pairs, steps)) < _STALLED)


def _rounded(random: np.random.Generator, pairs: int, steps: int) -> Floats:
    return 2 * np.rint(_normal(random, pairs, steps) / 2)


def _trend(random: np.random.Generator, pairs: int, steps: int) -> Floats:
    return 97.5 + 5 * np.linspace(0, 1, steps) + random.normal(size=(pairs, steps))


def _sine(period: int) -> Draw:
    def draw(random: np.random.Generator, pairs: int, steps: int) -> Floats:
        phase = np.arange(steps) / period + random.random((pairs, 1))
        return 100 + 3 * np.sin(2 * np.pi * phase) + random.normal(size=(pairs, steps))

    return draw


def _walk(random: np.random.Generator, pairs: int, steps: int) -> Floats:
    return 100 + random.normal(size=(pairs, steps)).cumsum(axis=1)


def _cold(random: np.random.Generator, pairs: int, steps: int) -> Floats:
    found = _normal(random, pairs, steps)
    found[:, : min(3, steps - 5)] *= np.array([8, 3, 1.5])[: min(3, steps - 5)]
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


KINDS = (
    Kind("independent", "sd 2 %", _normal, always=True),
    Kind("Pareto 1.5", "no variance: a tail of power 1.5", _pareto(1.5), always=True),
    Kind("Pareto 2.5", "a tail of power 2.5", _pareto(2.5), always=True),
    Kind("rounded", "sd 2 %, in steps of 2 %", _rounded, always=True),
    Kind("AR 0.3", "lag-1 correlation 0.3, sd 2 %", autoregressive(0.3), always=True),
    Kind("AR 0.7", "lag-1 correlation 0.7, sd 2 %", autoregressive(0.7)),
    Kind("AR 0.95", "lag-1 correlation 0.95, sd 2 %", autoregressive(0.95)),
    Kind("AR 0.95 + noise", "and noise of equal size", autoregressive(0.95, 1)),
    Kind("AR 0.95 + 2 noise", "and noise of double size", autoregressive(0.95, 2)),
    Kind("AR 0.9 + noise", "and noise of equal size", autoregressive(0.9, 1)),
    Kind("AR 0.9 + 2 noise", "and noise of double size", autoregressive(0.9, 2)),
    Kind("AR(2)", "roots 0.8 and 0.7, sd 2 %", _second_order),
    Kind("states of 5", "10 % longer for 5 steps, then not", _states(5)),
    Kind("states of 10", "10 % longer for 10 steps, then not", _states(10)),
    Kind("states of 20", "10 % longer for 20 steps, then not", _states(20)),
    Kind("throttling", "10 % longer for 15 steps of 60", _states(15, 45)),
    Kind("bursts", "30 % longer for 5 steps of 50", _bursts),
    Kind("tenth 1.5", "every tenth step takes 1.5 times as long", _every(10, 1.5)),
    Kind("tenth 5", "every tenth step takes 5 times as long", _every(10, 5)),
    Kind("twentieth 5", "every twentieth step takes 5 times as long", _every(20, 5)),
    Kind("stalls", "one of 20 steps takes twice as long", _stalls),
    Kind("trend", "5 % slower at the end, in both runs", _trend),
    Kind("sine of 7", "a wave of 3 % over 7 steps", _sine(7)),
    Kind("sine of 20", "a wave of 3 % over 20 steps", _sine(20)),
    Kind("cold start", "the first three steps take 8, 3 and 1.5 times as long", _cold),
    Kind("unlike", "sd 2 % in A, in B 5 steps of 6 %", _normal, other=_wide, other_steps=5),
    Kind(
        "rare slow",
        "every 25th step takes 3 times as long; 8 steps in B",
        _every(25, 3),
        always=True,
        other_steps=8,
    ),
    Kind(
        "long drift",
        "AR over half of the recording, and noise of equal size",
        _long_drift,
        has_mean=False,
    ),
    Kind("random walk", "no mean at all", _walk, has_mean=False),
)
"""What verdicts are tried on: equal means in both runs."""

RECORDED = (
    Kind("offsets", "equal programs; recordings differ by 1 % (sd)", _offsets),
    Kind("long tail", "equal programs; recordings differ by 1 %, a long tail", _long_tail),
    Kind("some far off", "equal programs; one recording of ten is 6 % slower", _some_far),
    Kind("unlike offsets", "equal programs; recordings differ by 1 % in A, 3 % in B", _offsets,
         other=_wide_offsets),
    Kind("one in B", "equal programs; recordings differ by 1 %, B is one", _offsets, other_steps=1),
)  # fmt: skip
"""What verdicts on several recordings a side are tried on: each draws their means."""
