"""How far two clocks are apart, by calls that were matched: offset, drift, and what is left over.

Participants of a collective end it together, and none leaves before the last has entered. The
first gives an estimate, the second bounds that the estimate has to keep within.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

ENOUGH = 8
"""Fewer calls than this do not tell how far apart two clocks are."""
_ENOUGH_FOR_DRIFT = 20
_LONG_ENOUGH_FOR_DRIFT = 10_000_000_000
_WELL_UNDER = 3
"""How many times what is left over has to go into the median call."""
MOST_VIOLATIONS = 0.05
"""What share of calls may end before they begin elsewhere, as matches go wrong now and then."""
SLACK = 2_000
"""By how much recorded times may be off, ns: two steps of traces that count in microseconds."""
_FARTHEST = 512
"""By how many calls two recordings may have begun apart."""
_SAMPLE = 256
"""So many calls tell how well an order fits."""
_CLEARER = 3
"""How many times worse the next best order has to fit for the best one to be beyond doubt."""

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Pairs:
    """Calls of one report and the same calls of another one, row by row, times in ns."""

    start: Ints
    end: Ints
    other_start: Ints
    other_end: Ints

    def __len__(self) -> int:
        return len(self.end)

    @property
    def typical(self) -> int:
        """Median length of a call, taken of the participant that came last."""
        own, other = self.end - self.start, self.other_end - self.other_start
        return int(np.median(np.minimum(own, other)))


@dataclass(frozen=True)
class Fit:
    """What to add to the times of the other report, and how well calls then agree.

    Parameters
    ----------
    offset, drift, since
        As in `Clock`.
    calls
        How many calls were matched.
    typical
        Median length of these calls, ns.
    residual
        5th and 95th percentile of by how much their ends still differ, ns.
    violations
        How many a participant then leaves before another one enters.
    refused
        Why it is not believed; None where it is.
    """

    offset: int
    drift: float
    since: int
    calls: int
    typical: int
    residual: tuple[int, int]
    violations: int
    refused: str | None = None


def fit(pairs: Pairs) -> Fit:
    """Return how far two clocks are apart by some matched calls; there is at least one.

    The offset is the median of by how much ends differ, moved into the bounds that causality sets
    where these agree. It is believed if there are enough calls, if what is left over is well under
    the median call, and if hardly any call is left before it was entered.
    """
    since = int(np.median(pairs.other_end))
    drift = _drift(pairs.other_end, pairs.end - pairs.other_end)
    straight = _straightened(pairs, drift, since)
    low, high = _bounds(straight)
    offset = int(np.median(straight.end - straight.other_end))
    if low <= high:
        offset = min(max(offset, low), high)
    return _judged(straight, offset, drift, since)


def held_to(pairs: Pairs, offset: int) -> Fit:
    """Return how well matched calls agree under an offset that is known otherwise."""
    return _judged(pairs, offset, 0.0, 0)


def in_order(
    labels: Ints, times: tuple[Ints, Ints], other_labels: Ints, other_times: tuple[Ints, Ints]
) -> Pairs | str:
    """Match two sequences of calls by their order, wherever each of them was cut.

    Calls that belong together are of the same kind and size throughout. Of the orders that this
    leaves, the one is right by which ends differ by the same time throughout; it has to be clear.

    Parameters
    ----------
    labels, other_labels
        What each call does, in order of time.
    times, other_times
        Starts and ends of the calls, ns.

    Returns
    -------
    The calls that were matched, or why there are none.
    """
    if min(len(labels), len(other_labels)) < ENOUGH:
        return f"only {min(len(labels), len(other_labels))} calls could be matched"
    found: list[tuple[float, slice, slice]] = []
    for shift in range(-_FARTHEST, _FARTHEST + 1):
        first, other = max(0, shift), max(0, -shift)
        number = min(len(labels) - first, len(other_labels) - other)
        if number < max(ENOUGH, min(len(labels), len(other_labels)) // 2):
            continue
        own, others = slice(first, first + number), slice(other, other + number)
        if (labels[own] == other_labels[others]).all():
            found.append((_spread(times[1][own], other_times[1][others]), own, others))
    if not found:
        return "their calls are not the same ones"
    found.sort(key=lambda each: each[0])
    if len(found) > 1 and found[1][0] <= _CLEARER * max(found[0][0], SLACK):
        return "the order of their calls fits in several ways"
    _, own, others = found[0]
    return Pairs(times[0][own], times[1][own], other_times[0][others], other_times[1][others])


def _judged(pairs: Pairs, offset: int, drift: float, since: int) -> Fit:
    left = pairs.end - pairs.other_end - offset
    low, high = (round(each) for each in np.percentile(left, [5, 95]))
    early = pairs.end < pairs.other_start + offset - SLACK
    others_early = pairs.other_end + offset < pairs.start - SLACK
    violations = int((early | others_early).sum())
    typical = pairs.typical
    refused = None
    if len(pairs) < ENOUGH:
        refused = f"only {len(pairs)} calls could be matched"
    elif _WELL_UNDER * max(-low, high) > typical:
        refused = (
            f"ends of {len(pairs):,} matched calls differ by {low:+,} to {high:+,} ns, which is"
            f" too much beside a median call of {typical:,} ns"
        )
    elif violations > MOST_VIOLATIONS * len(pairs):
        refused = f"{violations:,} of {len(pairs):,} matched calls end before they begin elsewhere"
    return Fit(offset, drift, since, len(pairs), typical, (low, high), violations, refused)


def _straightened(pairs: Pairs, drift: float, since: int) -> Pairs:
    """Return the calls with the other clock's drift taken out."""
    if not drift:
        return pairs
    start, end = (
        times + np.round((times - since) * drift).astype(np.int64)
        for times in (pairs.other_start, pairs.other_end)
    )
    return Pairs(pairs.start, pairs.end, start, end)


def _bounds(pairs: Pairs) -> tuple[int, int]:
    """Return between what the offset lies if no call ends before it begins elsewhere."""
    low, high = (pairs.start - pairs.other_end).max(), (pairs.end - pairs.other_start).min()
    return int(low), int(high)


def _spread(ends: Ints, other_ends: Ints) -> float:
    """Return by how much the ends of some calls differ more than those of others, ns."""
    some = slice(None, None, -(-len(ends) // _SAMPLE))
    times = other_ends[some]
    apart = ends[some] - times
    return _width(apart - (times - times[0]) * _drift(times, apart), 0.8)


def _width(values: NDArray[Any], share: float) -> float:
    """Return how wide the middle of some values is that holds such a share of them.

    It is what percentiles of NumPy say, which take ten times as long for the few values of one
    order out of a thousand.
    """
    ordered = np.sort(values)
    cut = (1 - share) / 2 * (len(ordered) - 1)
    whole = int(cut)
    outer, inner = (ordered[-1 - at] - ordered[at] for at in (whole, whole + 1))
    return float(outer + (inner - outer) * (cut - whole))


def _drift(times: Ints, apart: Ints) -> float:
    """Return by how much two clocks run apart, as a fraction; 0 where that does not show.

    It is the median of slopes between the ends of collectives half a recording apart [P. K. Sen,
    1968], which single late ones do not move. It has to explain more than what is left over.
    """
    half = len(times) // 2
    if len(times) < _ENOUGH_FOR_DRIFT or times[-1] - times[0] < _LONG_ENOUGH_FOR_DRIFT:
        return 0.0
    run = times[half : 2 * half] - times[:half]
    rise = apart[half : 2 * half] - apart[:half]
    slopes = rise[run > 0] / run[run > 0]
    slope = float(np.median(slopes)) if slopes.size else 0.0
    straight = apart - (times - times[0]) * slope
    # Of the middle half, so that single late ones do not hide it.
    return slope if _width(straight, 0.5) < _width(apart, 0.5) / 2 else 0.0
