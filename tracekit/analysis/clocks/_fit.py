"""Fit the difference of two clocks from events in both recordings: offset, drift, jumps, error.

Participants of a collective end it together, which gives an estimate of the offset. No participant
leaves before the last has entered, and no message arrives before it is sent: both bound the offset,
provided that calls and messages are matched correctly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tracekit.model import Clock
from tracekit.support.wording import count

ENOUGH = 8
"""Least number of calls, matched by order, to fit two clocks."""
_ENOUGH_NUMBERED = 3
"""Least number of calls, matched by sequence number, to fit two clocks."""
_LONG_ENOUGH_FOR_DRIFT = 10_000_000_000
_WELL_UNDER = 3
"""How many times smaller than the median call the residuals have to be."""
_MOST_VIOLATIONS = 0.05
"""What share of calls may end before they begin elsewhere, as matches go wrong now and then."""
SLACK = 2_000
"""Tolerance of recorded times, ns: two units of traces that count in microseconds."""
_WINDOWS, _IN_A_WINDOW = 4, 16
"""A bound is that of the worst of so many parts of a recording, with so many limits each."""
_UNEVEN = 8
"""How many times more ends vary over a recording than from call to call where a clock may step."""
_MOST_STEPS = 3
_IN_A_PIECE = 4
"""Between two steps there are at least so many calls."""
_PLACES = 64
"""At so many places a step is looked for first."""

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Pairs:
    """Start and end times (ns) of matched collective calls in each of two trace files."""

    start: Ints
    end: Ints
    other_start: Ints
    other_end: Ints
    numbered: bool = False

    def __len__(self) -> int:
        return len(self.end)

    @property
    def typical(self) -> int:
        """Median length of the calls, ns, each measured at the participant that entered it last."""
        length, other_length = self.end - self.start, self.other_end - self.other_start
        return int(np.median(np.minimum(length, other_length))) if len(self) else 0

    @classmethod
    def none(cls) -> Self:
        """Return an empty set of call pairs."""
        nothing = np.zeros(0, np.int64)
        return cls(nothing, nothing, nothing, nothing)


@dataclass(frozen=True)
class Messages:
    """Send and receive times, ns, of messages between two trace files, in both directions."""

    sent: Ints
    other_received: Ints
    received: Ints
    other_sent: Ints

    def __len__(self) -> int:
        return len(self.sent) + len(self.received)

    @classmethod
    def none(cls) -> Self:
        """Return an empty set of messages."""
        return cls(*[np.zeros(0, np.int64)] * 4)


@dataclass(frozen=True)
class Fit:
    """Clock correction between two trace files, and how well calls and messages then agree."""

    clock: Clock
    """Correction added to the other file's times: offset, drift and sudden jumps."""
    calls: int
    messages: int
    """Number of matched calls and of matched messages."""
    typical: int
    """Median length of the matched calls, ns."""
    residual: tuple[int, int] | None
    """Remaining difference between the ends of matched calls: 5th and 95th percentile, ns; None
    without calls."""
    violations: int
    early: int
    """Number of calls that stay impossible after correction (one participant leaves before another
    enters), and number of messages that are received before they are sent."""
    bound: int | None
    """Largest possible error of the correction, ns: a larger error would violate causality of calls
    or messages. None if calls and messages limit the error in one direction only."""
    refused: str | None = None
    """Why the correction is not used; None if it is used."""

    @property
    def contradicts(self) -> str | None:
        """Reason why calls or messages contradict this clock; None if they do not."""
        if self.messages >= ENOUGH and self.early > _MOST_VIOLATIONS * self.messages:
            return (
                f"{self.early:,} of {self.messages:,} messages whose match is certain are received"
                " before they are sent"
            )
        if self.violations > _MOST_VIOLATIONS * self.calls:
            return (
                f"{self.violations:,} of {self.calls:,} matched calls end before they begin"
                " elsewhere"
            )
        return None


def fit(pairs: Pairs, messages: Messages) -> Fit:
    """Return the offset of two clocks from matched calls, or else from messages in both directions.

    Causality of calls and messages limits the offset to a range. The offset is the median
    difference between end times of calls; if it lies outside of the range, it is moved to the
    nearest value inside (unless the range is empty). From messages alone it is the middle of the
    range. The result is accepted if there are enough calls or messages, if the remaining
    differences are well under the median call length, and if in hardly any call a participant
    leaves before another enters.
    """
    parts = _parts(pairs.other_end, pairs.end - pairs.other_end)
    drift = _drift_of(parts)
    since = int(np.median(np.concatenate([pairs.other_end, messages.other_received,
                                          messages.other_sent])))  # fmt: skip
    levels = [
        int(np.median(apart - np.round((times - since) * drift).astype(np.int64)))
        for times, apart in parts
    ]
    steps = tuple(
        (int(before[-1] + after[0]) // 2, later - level)
        for (before, _), (after, _), level, later in zip(
            parts[:-1], parts[1:], levels[:-1], levels[1:], strict=True
        )
    )
    clock = Clock("", levels[0] if levels else 0, drift, since, steps=steps)
    low, high = _limits(pairs, messages, clock)
    if len(low[1]) and len(high[1]) and (least := low[1].max()) <= (most := high[1].min()):
        moved = min(max(0, int(least)), int(most)) if levels else int(least + most) // 2
        clock = Clock("", clock.offset + moved, drift, since, steps=steps)
    return held_to(pairs, messages, clock)


def held_to(pairs: Pairs, messages: Messages, clock: Clock) -> Fit:
    """Measure how well matched calls and messages agree under the given clock correction."""
    left = pairs.end - pairs.other_end - clock.added(pairs.other_end)
    residual = None
    if len(pairs):
        low_end, high_end = (round(float(each)) for each in np.percentile(left, [5, 95]))
        residual = (low_end, high_end)
    low, high = _limits(pairs, messages, clock)
    early, calls = (low[1] > SLACK, high[1] < -SLACK), len(pairs)
    # Where between two calls a clock stepped is not known.
    bound, step = _bound(low, high), max((abs(by) for _, by in clock.steps), default=0)
    found = Fit(
        clock, calls, len(messages), pairs.typical, residual,
        violations=int((early[0][:calls] | early[1][:calls]).sum()),
        early=int(early[0][calls:].sum() + early[1][calls:].sum()),
        bound=None if bound is None else bound + step,
    )  # fmt: skip
    return replace(found, refused=_why_refused(pairs, messages, found))


def _why_refused(pairs: Pairs, messages: Messages, found: Fit) -> str | None:
    both_ways = min(len(messages.sent), len(messages.received)) > 0
    if not len(pairs) and both_ways and len(messages) >= ENOUGH:
        return found.contradicts
    if len(pairs) < (_ENOUGH_NUMBERED if pairs.numbered else ENOUGH):
        return f"only {count(len(pairs), 'call')} could be matched"
    low, high = found.residual or (0, 0)
    if _WELL_UNDER * max(-low, high) > found.typical:
        return (
            f"ends of {len(pairs):,} matched calls differ by {low:+,} to {high:+,} ns, which is"
            f" too much beside a median call of {found.typical:,} ns"
        )
    return found.contradicts


_Limit = tuple[Ints, Ints]
"""Times in the other report, and the least (or most) correction of its clock at each, ns."""


def _limits(pairs: Pairs, messages: Messages, clock: Clock) -> tuple[_Limit, _Limit]:
    """Return how much, ns, causality allows to add to the correction `clock`: at least, at most.

    Each has an entry per call or message: its time, and the bound that it sets, ns.
    """

    def limits(starts: Sequence[Ints], others: Sequence[Ints]) -> _Limit:
        here, times = np.concatenate(starts), np.concatenate(others)
        return times, here - times - clock.added(times)

    return (
        limits([pairs.start, messages.sent], [pairs.other_end, messages.other_received]),
        limits([pairs.end, messages.received], [pairs.other_start, messages.other_sent]),
    )


def _bound(low: _Limit, high: _Limit) -> int | None:
    """Return the largest possible error of a clock at any time, ns; None if a limit is missing.

    If lower and upper limit contradict each other (clock steps, rounded times), the gap between
    them is added to the error.
    """
    if not len(low[0]) or not len(high[0]):
        return None
    windows = min(max(min(len(low[0]), len(high[0])) // _IN_A_WINDOW, 1), _WINDOWS)
    times = np.sort(np.concatenate([low[0], high[0]]))
    borders = times[np.linspace(0, len(times) - 1, windows + 1).astype(np.int64)[1:-1]]
    of_low, of_high = (np.searchsorted(borders, side[0], side="right") for side in (low, high))
    worst = 0
    for window in range(windows):
        least, most = low[1][of_low == window], high[1][of_high == window]
        if not len(least) or not len(most):
            return None
        lowest, highest = int(least.max()), int(most.min())
        worst = max(worst, max(abs(lowest), abs(highest)) + max(lowest - highest, 0))
    return worst


# -- drift and steps -------------------------------------------------------------------------------

_Part = tuple[Ints, NDArray[Any]]
"""Times in the other report between two clock steps, and the differences of ends there, ns."""


def _parts(times: Ints, apart: Ints, steps: int = _MOST_STEPS) -> list[_Part]:
    """Split matched calls at times at which the clock difference `apart` (ns) jumps.

    Each of the two parts of a split may be split again, up to `steps` times.
    """
    order = np.argsort(times, kind="stable")
    times, apart = times[order], apart[order]
    if len(times) < 2 * _IN_A_PIECE or not steps:
        return [(times, apart)] if len(times) else []
    straight = _straight((times, apart))
    if _width(straight, 0.9) <= _UNEVEN * max(float(np.median(np.abs(np.diff(straight)))), SLACK):
        return [(times, apart)]

    def cost(at: int) -> float:
        parts = (times[:at], apart[:at]), (times[at:], apart[at:])
        return sum(float(np.abs(_straight(part)).sum()) for part in parts)

    stride = max(len(times) // _PLACES, 1)
    at = min(range(_IN_A_PIECE, len(times) - _IN_A_PIECE + 1, stride), key=cost)
    near = range(max(at - stride, _IN_A_PIECE), min(at + stride, len(times) - _IN_A_PIECE) + 1)
    at = min(near, key=cost)
    if cost(at) * 2 > float(np.abs(straight).sum()):
        return [(times, apart)]
    return _parts(times[:at], apart[:at], steps - 1) + _parts(times[at:], apart[at:], steps - 1)


def _straight(piece: _Part) -> NDArray[Any]:
    """Return the clock differences between two jumps, minus linear drift and median, ns."""
    times, apart = piece
    flat = apart - (times - times[0]) * _drift_of([piece])
    return np.asarray(flat - np.median(flat))


def _drift_of(parts: Sequence[_Part]) -> float:
    """Return the drift of two clocks as a fraction of time; 0 if it is not significant.

    It is the median slope [P. K. Sen, 1968] of the clock difference between calls half a piece
    apart (a piece: calls between two clock jumps). It counts only if it halves the differences'
    spread.
    """
    long = [
        (times, apart)
        for times, apart in parts
        if len(times) >= ENOUGH and times[-1] - times[0] >= _LONG_ENOUGH_FOR_DRIFT
    ]
    slopes = np.concatenate([np.zeros(0), *(_slopes(*piece) for piece in long)])
    slope = float(np.median(slopes)) if slopes.size else 0.0
    # Of the middle half, so that single late ones do not hide it.
    before = sum(_width(apart, 0.5) for _, apart in long)
    after = sum(_width(apart - (times - times[0]) * slope, 0.5) for times, apart in long)
    return slope if after < before / 2 else 0.0


def _slopes(times: Ints, apart: NDArray[Any]) -> NDArray[np.float64]:
    half = len(times) // 2
    run = times[half : 2 * half] - times[:half]
    rise = apart[half : 2 * half] - apart[:half]
    return np.asarray(rise[run > 0] / run[run > 0])


def _width(values: NDArray[Any], share: float) -> float:
    """Return the width of the central interval that contains the fraction `share` of the values.

    It equals the difference of two of NumPy's percentiles, whose computation is far slower.
    """
    ordered = np.sort(values)
    cut = (1 - share) / 2 * (len(ordered) - 1)
    rank = int(cut)
    outer, inner = (ordered[-1 - at] - ordered[at] for at in (rank, rank + 1))
    return float(outer + (inner - outer) * (cut - rank))


# -- matching in order -----------------------------------------------------------------------------

_FARTHEST = 512
"""Largest shift, in calls, between the begins of two recordings."""
_SAMPLE = 256
"""Number of calls sampled to judge how well an order fits."""
_CLEARER = 3
"""How many times worse the next best order has to fit for the best one to be beyond doubt."""


def in_order(
    labels: Ints, times: tuple[Ints, Ints], other_labels: Ints, other_times: tuple[Ints, Ints]
) -> Pairs | str:
    """Match two sequences of calls by order; either may lack calls at its start or end.

    Each shift of one sequence against the other is tried. It fits if all pairs have equal labels;
    of the shifts that fit, the one at which the difference of end times varies least is taken, if
    it is clearly the best.

    Parameters
    ----------
    labels, other_labels
        Kind and size of each call, encoded as one number, sorted by time.
    times, other_times
        Starts and ends of the calls, ns.

    Returns
    -------
    The matched calls, or a sentence with the reason for their absence.
    """
    fewer = min(len(labels), len(other_labels))
    if fewer < ENOUGH:
        return f"only {count(fewer, 'call')} could be matched"
    found: list[tuple[float, slice, slice]] = []
    least = max(ENOUGH, fewer // 2)
    back, ahead = (min(_FARTHEST, len(each) - least) for each in (other_labels, labels))
    for shift in range(-back, ahead + 1):
        first, other = max(0, shift), max(0, -shift)
        number = min(len(labels) - first, len(other_labels) - other)
        place, others = slice(first, first + number), slice(other, other + number)
        if (labels[place] == other_labels[others]).all():
            found.append((_spread(times[1][place], other_times[1][others]), place, others))
    if not found:
        return "their calls are not the same ones"
    found.sort(key=lambda each: each[0])
    if len(found) > 1 and found[1][0] <= _CLEARER * max(found[0][0], SLACK):
        return "the order of their calls fits in several ways"
    _, place, others = found[0]
    return Pairs(times[0][place], times[1][place], other_times[0][others], other_times[1][others])


def _spread(ends: Ints, other_ends: Ints) -> float:
    """Return the scatter of paired calls' end differences, ns: middle 80 %, drift removed."""
    some = slice(None, None, -(-len(ends) // _SAMPLE))
    times = other_ends[some]
    apart = ends[some] - times
    return _width(apart - (times - times[0]) * _drift_of([(times, apart)]), 0.8)
