"""Find the period of a launch sequence, and where its usual step repeats.

The repetitions are the steps that equal the analysed (usual) step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tracekit.attribution._thresholds import THRESHOLDS
from tracekit.attribution.structure._sequences import (
    alike,
    common_suffix,
    kinds_of,
    places_of,
    ranges_of,
)
from tracekit.attribution.structure._work import NOTHING, Array

_CODES = 6
_LAGS = 64
"""Number of lags, the best by estimate, that are counted exactly."""
_WINDOW = 1 << 17
"""Number of ops in the middle of a sequence that are examined first, if it has over twice as many.
"""


@dataclass(frozen=True)
class Period:
    """Period of a launch sequence: `size` in ops (0: none), `share` of the ops that repeat."""

    size: int
    share: float


def period_between(symbols: Array, starts: Array) -> tuple[Period, int] | None:
    """Return the period of a launch sequence; `starts` are marks that occur once in each period.

    The parts between two successive marks are compared. Parts that contain something else, such as
    evaluation, do not lower the result.

    Returns
    -------
    The period, whose share is the share of parts equal to the most frequent one; and the start of
    two such parts in a row, near the middle of the sequence. None if no two follow each other.
    """
    kinds = kinds_of(symbols, starts[:-1], starts[1:])
    usual = int(np.bincount(kinds).argmax())
    alike = kinds == usual
    rows = np.flatnonzero(alike[1:] & alike[:-1])
    if not rows.size or alike.mean() < THRESHOLDS.pieces_alike or 2 * rows.size < alike.sum() - 1:
        return None
    first = int(rows[rows.size // 2])
    return Period(int(starts[first + 1] - starts[first]), float(alike.mean())), int(starts[first])


def find_period(symbols: Array, near: float = 0) -> Period:
    """Return the shortest period of a sequence, if it has one.

    Parameters
    ----------
    symbols
        The sequence.
    near
        Approximate period if known, else 0. Without it an epoch may be taken for the period, as it
        repeats more exactly than a step, or a layer, as it repeats more often.
    """
    size = symbols.size
    if size > 2 * _WINDOW:
        middle = (size - _WINDOW) // 2
        found = _find(symbols[middle : middle + _WINDOW], near)
        if found.size:
            return found
    return _find(symbols, near)


def _find(symbols: Array, near: float) -> Period:
    size = symbols.size
    if size < 3 * THRESHOLDS.period_shortest:
        return Period(0, 0.0)
    lags = np.arange(THRESHOLDS.period_shortest, size // 2)
    if near:
        lags = lags[np.abs(lags / near - 1) < THRESHOLDS.period_near]
    if not lags.size:
        return Period(0, 0.0)
    codes = np.unique(symbols, return_inverse=True)[1]
    estimate = _autocorrelation(codes)[lags] / (size - lags)
    best_lags = lags[np.argsort(-estimate, kind="stable")[:_LAGS]]
    chosen = np.concatenate(
        (np.arange(1, 0 if near else THRESHOLDS.period_shortest), np.sort(best_lags))
    )
    exact = np.array([_agreement(codes, int(lag)) for lag in chosen])
    best = float(exact.max())
    if best < THRESHOLDS.period_share:
        return Period(0, best)
    # A layer's period misses once per step.
    good = int(np.flatnonzero(1 - exact <= 2 * (1 - best) + 0.002)[0])
    return Period(int(chosen[good]), float(exact[good]))


def _autocorrelation(codes: Array) -> Array:
    """Estimate for each lag how many launches have the same name as the launch `lag` later.

    Each distinct name gets a random sign, so that the product of two launches is 1 if their names
    are equal, else 0 on average; the sums are computed by FFT.
    """
    size, generator = codes.size, np.random.default_rng(0)
    room = _quick_size(2 * size)
    power = np.zeros(room // 2 + 1, np.float32)
    for _ in range(_CODES):
        signs = generator.choice(np.array([-1, 1], np.float32), int(codes.max()) + 1)[codes]
        spectrum = np.fft.rfft(signs, room)
        power += spectrum.real**2 + spectrum.imag**2
    return np.asarray(np.fft.irfft(power, room)[:size] / _CODES)


def _agreement(codes: Array, lag: int) -> float:
    """Return the share of launches with the same kernel name as the launch `lag` later.

    Each distinct name has equal weight; otherwise repeated layers would dominate.
    """
    count = np.bincount(codes)
    always = count >= THRESHOLDS.period_always * codes.size / lag
    if count[always].sum() < THRESHOLDS.period_mostly * codes.size:
        return 0.0
    weight = np.where(always, 1 / np.maximum(count, 1), 0)[codes[:-lag]]
    return float(weight[codes[:-lag] == codes[lag:]].sum() / weight.sum())


def _quick_size(least: int) -> int:
    """Return the smallest number from `least` on with prime factors 2, 3 and 5 only (fast FFT)."""
    odd = [int(3**threes * 5**fives) for threes in range(4) for fives in range(3)]
    return min(each << (-(-least // each) - 1).bit_length() for each in odd)


_SPARE = 4
"""Largest number of comparisons, in lengths of the sequence; beyond it places are sampled."""


@dataclass(frozen=True)
class Repeats:
    """Occurrences of the usual step in a sequence."""

    begins: Array
    """Index at which each step begins; negative for the first step if its start was not
    recorded."""
    offset: Array
    number: Array
    """Per op: its position in the usual step, and the number of its step; -1 if it is in none."""
    pieces: tuple[bool, bool]
    """Whether the sequence begins with the end of a step that the recording cut, and whether it
    ends with the start of such a step; these parts do not count as steps."""

    def whole(self, size: int, length: int) -> Array:
        """Mask steps recorded in full: all `size` ops lie in the sequence of `length` ops."""
        return np.asarray((self.begins >= 0) & (self.begins + size <= length))

    def between(self) -> Iterator[tuple[int, int]]:
        """Yield begin and end of each run of ops that are in no repetition of the usual step."""
        free = np.concatenate(([False], self.number < 0, [False]))
        edges = np.flatnonzero(free[1:] != free[:-1])
        yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)


def find_repeats(symbols: Array, usual: Array, lead: int) -> Repeats:
    """Find the occurrences of the usual step in a sequence.

    Parameters
    ----------
    symbols
        The sequence.
    usual
        The usual step.
    lead
        Number of ops at the start of the usual step that bring input or clear gradients; these
        vary.
    """
    exact = _apart(places_of(usual, symbols), usual.size)
    begins = _alike(symbols, usual, _anchored(symbols, usual, lead))
    begins = _around(exact, begins, symbols, usual)
    enough = symbols.size - begins >= THRESHOLDS.repeats_enough * usual.size
    begins = begins[enough]
    cut = common_suffix(symbols[: int(begins[0])] if begins.size else symbols, usual)
    if begins.size and begins[0] >= cut > THRESHOLDS.repeats_enough * usual.size:
        begins = np.concatenate(([int(begins[0]) - usual.size], begins))
    offset, number = np.full((2, symbols.size), NOTHING)
    stop = np.minimum(begins + usual.size, np.append(begins[1:], symbols.size))
    places, owner = ranges_of(np.maximum(begins, 0), stop)
    offset[places] = places - begins[owner]
    number[places] = owner
    return Repeats(begins, offset, number, _pieces(symbols, usual, begins))


def _pieces(symbols: Array, usual: Array, begins: Array) -> tuple[bool, bool]:
    """Test whether the sequence begins, and whether it ends, with a part of a step."""
    if not begins.size:
        return False, False
    before, after = symbols[: max(int(begins[0]), 0)], symbols[int(begins[-1]) + usual.size :]
    least = THRESHOLDS.repeats_agree
    ends = 0 < before.size < usual.size and alike(before, usual[-before.size :]) > least
    starts = 0 < after.size < usual.size and alike(after, usual[: after.size]) > least
    return ends, starts


def _anchored(symbols: Array, usual: Array, lead: int) -> Array:
    """Return where steps may begin: where the usual step's ops after its input occur.

    `lead` is the number of ops that bring input; these vary.
    """
    length = min(THRESHOLDS.anchor, max(THRESHOLDS.anchor_shortest, (usual.size - lead) // 3))
    anchor = usual[lead : lead + length]
    room = symbols.size - anchor.size + 1
    if room <= 0 or not anchor.size:
        return np.zeros(0, np.int64)
    found = np.flatnonzero(symbols[:room] == anchor[0])
    for place in range(1, anchor.size):
        found = found[symbols[found + place] == anchor[place]]
    return np.asarray(found - lead)


def _alike(symbols: Array, usual: Array, begins: Array) -> Array:
    """Keep the candidate starts `begins` of steps at which most ops equal the usual step's."""
    stride = max(1, begins.size * usual.size // (_SPARE * symbols.size))
    offsets = np.arange(0, usual.size, stride)
    places = begins[:, None] + offsets
    inside = (places >= 0) & (places < symbols.size)
    same = (symbols[np.clip(places, 0, symbols.size - 1)] == usual[offsets]) & inside
    seen = np.maximum(inside.sum(axis=1), 1)
    return np.asarray(begins[same.sum(axis=1) > THRESHOLDS.repeats_agree * seen])


def _around(exact: Array, begins: Array, symbols: Array, usual: Array) -> Array:
    """Return the starts of steps: of exact repetitions, and of similar steps between these.

    A step of many equal layers also resembles itself when shifted by some layers. So no similar
    step may begin within an exact one, nor among ops before the first exact step that are the end
    of a cut step.
    """
    distance = THRESHOLDS.repeats_apart * usual.size
    if not exact.size:
        return _apart(begins, distance)
    following = np.searchsorted(exact, begins, "right")
    after = np.append(exact, symbols.size + usual.size)[following]
    before = np.concatenate(([-usual.size], exact))[following]
    first = int(exact[0])
    is_end = first < usual.size and common_suffix(symbols[:first], usual) == first
    free = (begins >= before + usual.size) & (after - begins >= distance)
    free &= (begins >= first) | (not is_end)
    return _apart(np.union1d(exact, begins[free]), distance)


def _apart(begins: Array, distance: float) -> Array:
    kept: list[int] = []
    for begin in begins.tolist():
        if not kept or begin - kept[-1] >= distance:
            kept.append(begin)
    return np.array(kept, np.int64)
