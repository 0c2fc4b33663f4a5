"""Compare sequences of symbols (integers for kernel names), vectorised."""

from __future__ import annotations

import numpy as np

from tracekit.attribution.structure._work import Array

_BASE = np.uint64(6364136223846793005)
"""Odd and large: powers of it spread over all 64 bits."""
_CLOSE = 1 << 12
"""Numbers are counted, not sorted, if their span exceeds their count by no more than this."""


def common_prefix(one: Array, other: Array) -> int:
    """Return the length of the common prefix of two sequences."""
    size = min(one.size, other.size)
    differ = np.flatnonzero(one[:size] != other[:size])
    return int(differ[0]) if differ.size else size


def common_suffix(one: Array, other: Array) -> int:
    """Return the length of the common suffix of two sequences."""
    return common_prefix(one[::-1], other[::-1])


def alike(one: Array, other: Array) -> float:
    """Return the share of positions at which two sequences of equal length agree; 0 if empty."""
    return float((one == other).mean()) if one.size else 0.0


def ranges_of(first: Array, stop: Array) -> tuple[Array, Array]:
    """List the indices in all ranges from `first` to before `stop`, and the range of each index."""
    lengths = stop - first
    owner = np.repeat(np.arange(first.size), lengths)
    before = np.cumsum(lengths) - lengths
    return np.arange(int(lengths.sum())) - np.repeat(before - first, lengths), owner


def distinct(numbers: Array) -> tuple[Array, Array]:
    """Return the distinct integers, sorted, and the position of each element among them.

    Equal to `np.unique`, but ids of threads and streams, which are close together, need no sorting.
    """
    least = int(numbers.min(initial=0))
    if not numbers.size or int(numbers.max()) - least > numbers.size + _CLOSE:
        return np.unique(numbers, return_inverse=True)
    seen = np.bincount(numbers - least) > 0
    return np.flatnonzero(seen) + least, (np.cumsum(seen) - 1)[numbers - least]


def total_in(values: Array, first: Array, stop: Array) -> Array:
    """Return the sum of values in each range of indices from `first` to before `stop`."""
    until = np.concatenate(([0], np.cumsum(values)))
    return np.asarray(until[stop] - until[first])


def runs_of(mask: Array) -> list[tuple[int, int]]:
    """Return start and end of each run of true values of a mask."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], mask, [False])).astype(np.int8)))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def grams_of(symbols: Array, size: int) -> Array:
    """Return an id for each n-gram (`size` successive symbols), equal for equal n-grams."""
    room = symbols.size - size + 1
    if room <= 0:
        return np.zeros(0, np.uint64)
    mixed, value = _mixed(symbols), np.zeros(room, np.uint64)
    for offset in range(size):
        value = value * _BASE + mixed[offset : room + offset]
    return value


def kinds_of(symbols: Array, first: Array, stop: Array) -> Array:
    """Return an id for each range of indices, equal for ranges with the same symbols.

    Sequences are compared by length and a 64-bit polynomial hash of their symbols.
    """
    places, owner = ranges_of(first, stop)
    offset = places - first[owner]
    powers = np.full(int((stop - first).max(initial=0)) + 1, _BASE)
    powers[0] = 1
    terms = _mixed(symbols[places]) * np.cumprod(powers)[offset]
    until = np.concatenate((np.zeros(1, np.uint64), np.cumsum(terms)))
    end = np.cumsum(stop - first)
    value = until[end] - until[end - (stop - first)]
    keys = np.column_stack((value.view(np.int64), stop - first))
    return np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1)


def places_of(piece: Array, symbols: Array) -> Array:
    """Return the indices at which `piece` occurs in a sequence of symbols; occurrences may overlap.

    Sequences are compared by a hash: a 64-bit polynomial of the symbols.
    """
    room = symbols.size - piece.size + 1
    if room <= 0 or not piece.size:
        return np.zeros(0, np.int64)
    powers, back = (
        np.full(symbols.size, _BASE),
        np.full(room, pow(int(_BASE), -1, 1 << 64), np.uint64),
    )
    powers[0] = back[0] = 1
    powers = np.cumprod(powers)
    until = np.concatenate((np.zeros(1, np.uint64), np.cumsum(_mixed(symbols) * powers)))
    found = (until[piece.size :] - until[:room]) * np.cumprod(back)
    return np.flatnonzero(found == (_mixed(piece) * powers[: piece.size]).sum(dtype=np.uint64))


def _mixed(symbols: Array) -> Array:
    mixed = (symbols.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    return np.asarray((mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9))
