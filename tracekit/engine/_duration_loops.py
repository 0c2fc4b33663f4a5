"""The loops that find the least, the middle and the greatest of lengths, group by group."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from numpy.typing import NDArray

from tracekit.support.inner import inner

Array: TypeAlias = NDArray[Any]
MOST_BITS = 10
"""Of a length that are looked at together."""


class Found(NamedTuple):
    """What is found of each group that has lengths."""

    least: Array
    low: Array
    high: Array
    """The two middle ones, or twice the one."""
    most: Array


def deal(rows: Array, lengths: Array, groups: Array, free: Array, dealt: Array) -> None:
    """Put lengths together by group.

    Parameters
    ----------
    rows, lengths
        The row of sums that each is counted in, and the lengths.
    groups
        The group of each row of sums.
    free
        Where the next one of each group goes; updated.
    dealt
        Becomes the lengths.
    """
    for place in range(rows.size):
        group = groups[rows[place]]
        dealt[free[group]] = lengths[place]
        free[group] += 1


@inner
def ranked(
    lengths: Array, begin: int, end: int, rank: int, least: int, most: int, counts: Array
) -> int:
    """Return which of some lengths has so many before it in their order, all from least to most.

    They are counted by their leading bits, those in the right place by the bits that follow, and so
    on: whatever the lengths are, each is looked at once for every few bits. So many bits are taken
    at once that there are about as many counts as lengths.
    """
    bits, width = 1, 0
    while bits < MOST_BITS and 1 << bits < end - begin:
        bits += 1
    while (most - least) >> width:
        width += 1
    while width > 0:
        shift = max(0, width - bits)
        for place in range(1 << (width - shift)):
            counts[place] = 0
        for at in range(begin, end):
            beyond = lengths[at] - least
            if beyond >= 0 and beyond >> width == 0:
                counts[beyond >> shift] += 1
        place = 0
        while rank >= counts[place]:
            rank -= counts[place]
            place += 1
        least += place << shift
        width = shift
    return least


def find_middles(dealt: Array, first: Array, counts: Array, found: Found) -> None:
    """Find the least, the middle and the greatest length of each group.

    Parameters
    ----------
    dealt
        Lengths, those of one group together.
    first
        Where those of each group begin, and last where all end.
    counts
        Room for a number for each value of so many bits.
    found
        Becomes what is found; of groups without lengths nothing is.
    """
    for group in range(first.size - 1):
        begin, end = first[group], first[group + 1]
        if begin == end:
            continue
        least = most = dealt[begin]
        for at in range(begin, end):
            least, most = min(least, dealt[at]), max(most, dealt[at])
        rank = (end - begin) // 2
        high = ranked(dealt, begin, end, rank, least, most, counts)
        low = high
        if rank > 0 and (end - begin) % 2 == 0:
            low, before = least, 0
            for at in range(begin, end):
                length = dealt[at]
                if length < high:
                    before += 1
                    low = max(low, length)
            if before < rank:
                low = high
        found.least[group], found.most[group] = least, most
        found.low[group], found.high[group] = low, high
