"""After how many launches a sequence repeats."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracekit.attribution._chosen import CHOSEN
from tracekit.attribution.structure._sequences import kinds_of
from tracekit.attribution.structure._work import Array

_CODES = 6
_LAGS = 64
"""How many lags, the best by estimate, are counted exactly."""
_WINDOW = 1 << 17
"""A longer sequence is looked at in its middle first."""


@dataclass(frozen=True)
class Period:
    """How a sequence repeats: after `size` places (0: it does not), in a `share` of its places."""

    size: int
    share: float


def period_between(symbols: Array, starts: Array) -> tuple[Period, int] | None:
    """Return the period of a sequence of which some places are known that come once in each.

    Pieces from one such place to the next are compared: those between which something else
    happens, such as evaluation, do not count against a period.

    Returns
    -------
    The period, its share being that of the pieces that are alike; and where one of two such pieces
    in a row begins, near the middle. None where there are no two.
    """
    kinds = kinds_of(symbols, starts[:-1], starts[1:])
    usual = int(np.bincount(kinds).argmax())
    alike = kinds == usual
    rows = np.flatnonzero(alike[1:] & alike[:-1])
    if not rows.size or alike.mean() < CHOSEN.pieces_alike or 2 * rows.size < alike.sum() - 1:
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
        About where the period lies, if that is known: epochs repeat more exactly than steps, and
        layers more often.
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
    if size < 3 * CHOSEN.period_shortest:
        return Period(0, 0.0)
    lags = np.arange(CHOSEN.period_shortest, size // 2)
    if near:
        lags = lags[np.abs(lags / near - 1) < CHOSEN.period_near]
    if not lags.size:
        return Period(0, 0.0)
    codes = np.unique(symbols, return_inverse=True)[1]
    estimate = _autocorrelation(codes)[lags] / (size - lags)
    best_lags = lags[np.argsort(-estimate, kind="stable")[:_LAGS]]
    chosen = np.concatenate(
        (np.arange(1, 0 if near else CHOSEN.period_shortest), np.sort(best_lags))
    )
    exact = np.array([_agreement(codes, int(lag)) for lag in chosen])
    best = float(exact.max())
    if best < CHOSEN.period_share:
        return Period(0, best)
    # A layer's period misses once per step.
    good = int(np.flatnonzero(1 - exact <= 2 * (1 - best) + 0.002)[0])
    return Period(int(chosen[good]), float(exact[good]))


def _autocorrelation(codes: Array) -> Array:
    """Estimate at each lag how many pairs of places agree.

    Symbols get random signs: the product of two places is 1 where they agree, else 0 on average.
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
    """Return the share of places that agree with those a lag later.

    Each symbol counts the same, or else repeated layers would win.
    """
    count = np.bincount(codes)
    always = count >= CHOSEN.period_always * codes.size / lag
    if count[always].sum() < CHOSEN.period_mostly * codes.size:
        return 0.0
    weight = np.where(always, 1 / np.maximum(count, 1), 0)[codes[:-lag]]
    return float(weight[codes[:-lag] == codes[lag:]].sum() / weight.sum())


def _quick_size(least: int) -> int:
    """Return the least size, of no prime factors but 2, 3 and 5, that is quick to transform."""
    odd = [int(3**threes * 5**fives) for threes in range(4) for fives in range(3)]
    return min(each << (-(-least // each) - 1).bit_length() for each in odd)
