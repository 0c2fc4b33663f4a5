"""Put the clocks of several trace files (reports) on one time base, by ranked evidence.

1. Clock offsets that the user gives.
2. Reports of one machine (same host name, or a GPU UUID in both) share its clock: start times of
   profiler sessions give the offset, unless certainly matched collective calls or messages
   contradict it. After one contradiction, no session start of that machine is used.
3. Certainly matched calls give the offset of other clocks, if the remaining differences are well
   under the median call length; else messages in both directions do. Else clocks stay apart.
"""

from __future__ import annotations

from bisect import insort
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import polars as pl

from tracekit.analysis.calls import group_members, same_groups
from tracekit.analysis.clocks._fit import Fit, Messages, Pairs, held_to
from tracekit.analysis.clocks._matches import (
    Calls,
    best_fit,
    clock_calls,
    messages,
    named_alike,
    passed,
)
from tracekit.model import Clock, GivenClock, Trace, same_machine
from tracekit.support.wording import count

_MOST_TRIES = 4
"""Largest number of other reports with which a report without a clock is compared."""
_MOST_CLOCKS = 8
"""Largest number of clocks that calls may join, to limit comparisons among many reports."""

_Match = tuple[Fit, Pairs] | str


@dataclass(frozen=True)
class Alignment:
    """Clock correction of one trace file (report), and the report that it was compared with."""

    clock: Clock
    """Correction of the report's times."""
    against: int | None = None
    """Index of the report that it was compared with."""
    check: Fit | None = None
    """How well calls and messages of both reports agree under the clock; None if none were
    matched."""


def align(
    traces: Sequence[Trace],
    user_clocks: Mapping[int, GivenClock] | None = None,
    calls: Sequence[Calls] | None = None,
) -> list[Alignment]:
    """Return the clock correction of each trace file: to the first file's clock where possible.

    Parameters
    ----------
    traces
        The reports, with times as recorded.
    user_clocks
        Report index -> correction that the user gives. It is added to the offset that session
        starts show; matched calls and messages only check it.
    calls
        Calls of each report that can align clocks, from `clock_calls`; computed if None.
    """
    return _Aligning(traces, user_clocks or {}, calls).result()


def aligned(
    traces: Sequence[Trace],
    user_clocks: Mapping[int, GivenClock] | None = None,
    calls: Sequence[Calls] | None = None,
) -> list[Trace]:
    """Return a run's trace files (reports), with aligned clocks in their tables ``reports``."""
    if len(traces) == 1 and not user_clocks:
        return list(traces)
    clocks = [each.clock for each in align(traces, user_clocks, calls)]
    return [
        trace.with_tables({"reports": clock.applied_to(trace.read("reports"))})
        for trace, clock in zip(traces, clocks, strict=True)
    ]


class _Aligned:
    """Trace files on one clock, indexed so that those near another one are found quickly."""

    def __init__(self) -> None:
        self._order: dict[int, int] = {}
        self._at: dict[object, list[int]] = defaultdict(list)
        self._sets: dict[str, list[frozenset[str]]] = defaultdict(list)
        self._best: dict[object, list[tuple[float, int, int]]] = defaultdict(list)

    def add(self, index: int, places: Iterable[object], named: frozenset[str], off: float) -> None:
        """Add a report: its `places`, its communicators, and the largest error of its clock, `off`.

        Places identify its machine: host, GPUs and session start (see `_Aligning._marks`).
        """
        if named not in self._best:
            for name in named:
                self._sets[name].append(named)
        for group in (named, *named, "all"):
            insort(self._best[group], (off, len(self._order), index))
            del self._best[group][_MOST_TRIES:]
        for place in places:
            self._at[place].append(index)
        self._order[index] = len(self._order)

    def at(self, places: Iterable[object]) -> list[int]:
        """Return the reports at any of these places, in the order in which they were added."""
        found = {index for place in places for index in self._at[place]}
        return sorted(found, key=self._order.__getitem__)

    def near(self, places: Iterable[object], named: frozenset[str]) -> list[int]:
        """Return reports, among them the `_MOST_TRIES` nearest to one at `places` (`_nearest`).

        A report is the nearer the more of the communicators `named` it shares; of equals, the one
        whose clock is known best is nearer. Communicators that few reports use are searched first,
        until so many reports are found that no other one can share more.
        """
        names = sorted(named, key=lambda name: -len(self._sets[name]))
        seen: set[frozenset[str]] = set()
        while len(names) > 1:
            seen.update(self._sets[names.pop()])
            sure = (each for each in seen if len(each & named) > len(names))
            if sum(len(self._best[each]) for each in sure) >= _MOST_TRIES:
                break
        best = (index for each in (*seen, *names, "all") for *_, index in self._best[each])
        return sorted({*best, *self.at(places)}, key=self._order.__getitem__)


class _Aligning:
    """Finds, report by report, the correction of its clock to the first report's clock."""

    def __init__(
        self,
        traces: Sequence[Trace],
        user_clocks: Mapping[int, GivenClock],
        calls: Sequence[Calls] | None,
    ) -> None:
        self._user_clocks = {index: Clock.given(each) for index, each in user_clocks.items()}
        self._rows = [_row(trace) for trace in traces]
        self._places = [
            (row.get("host"), frozenset(trace.read("devices")["uuid"].drop_nulls()))
            for row, trace in zip(self._rows, traces, strict=True)
        ]
        self._calls: Callable[[int], Calls] = cache(
            lambda index: clock_calls(traces[index]) if calls is None else calls[index]
        )
        found: Callable[[], list[pl.DataFrame]] = cache(lambda: messages(traces))
        self._messages: Callable[[int, int], Messages] = cache(
            lambda one, other: (
                passed(found()[one], found()[other])
                if self._calls(one).numbers_messages and self._calls(other).numbers_messages
                else Messages.none()
            )
        )
        same: Callable[[], pl.DataFrame] = cache(
            lambda: same_groups(pl.concat(map(group_members, traces)))
        )
        self._match: Callable[[int, int], _Match] = cache(
            lambda one, other: best_fit(
                *named_alike(self._calls(one), self._calls(other), same),
                self._messages(one, other),
            )
        )
        self._inexact: set[int] = set()
        self._refused: dict[int, str] = {}
        self._found: dict[int, Alignment] = {}

    def result(self) -> list[Alignment]:
        while True:
            known = len(self._inexact)
            found = self._once()
            if len(self._inexact) == known:
                return found

    def _once(self) -> list[Alignment]:
        """Align all reports in one pass; the method `result` repeats it if more starts prove wrong.

        These are starts of sessions, which align reports of one machine.
        """
        self._found, self._refused = {}, {}
        base = self._own_clock(0)
        if clock := self._user_clocks.get(0):
            base = replace(clock, name=base.name, bound=base.bound, reason=None)
        self._found[0] = Alignment(base)
        for index in sorted(self._user_clocks.keys() - {0}):
            self._found[index] = self._by_user(index)
        waiting = [index for index in range(len(self._rows)) if index not in self._found]
        waiting = self._join(waiting)
        clocks = 1
        while waiting:
            # What does not join the first report has a clock of its own, and others may be on it.
            alone = waiting.pop(0)
            clock = self._own_clock(alone)
            if any(each.clock.name == clock.name for each in self._found.values()):
                clock = Clock(f"report {alone}")  # what it was refused is not the clock of its host
            self._found[alone] = Alignment(replace(clock, reason=self._why_not(alone)))
            waiting = self._join(waiting, [alone], by_calls=clocks < _MOST_CLOCKS)
            clocks += 1
        return [self._found[index] for index in range(len(self._rows))]

    def _join(
        self, waiting: list[int], on: list[int] | None = None, *, by_calls: bool = True
    ) -> list[int]:
        """Align each report in `waiting` with one in `on`; return the reports left unaligned.

        By session starts of the same machine, else (if `by_calls`) by matched calls or messages.
        `on` None: all reports aligned so far.
        """
        known = _Aligned()
        for index in self._found if on is None else on:
            self._add(index, known)
        while True:
            for index in waiting:
                alignment = self._machine(index, known)
                if alignment is None and by_calls:
                    near = known.near(self._marks(index), self._calls(index).named)
                    alignment = self._by_calls(index, near)
                if alignment is not None:
                    self._found[index] = alignment
                    self._add(index, known)
            left = [index for index in waiting if index not in self._found]
            if len(left) == len(waiting):
                return left
            waiting = left

    def _add(self, index: int, known: _Aligned) -> None:
        off = _off(self._found[index])
        known.add(index, self._marks(index), self._calls(index).named, off)

    def _marks(self, index: int) -> set[object]:
        """Return what identifies the machine of report `index`: its host, GPUs and session start.

        Two reports of one machine have at least one of these in common.
        """
        host, gpus = self._places[index]
        return {host, *gpus, self._rows[index].get("session_start")} - {None}

    def _own_clock(self, index: int) -> Clock:
        row = self._rows[index]
        named = row.get("host") is not None and row.get("session_start") is not None
        return Clock(f"host {row['host']}" if named else f"report {index}", bound=0)

    def _by_user(self, index: int) -> Alignment:
        chosen, first = self._user_clocks[index], self._found[0].clock
        clock = replace(
            chosen, name=first.name, offset=(self._apart(0, index) or 0) + chosen.offset
        )  # fmt: skip
        check = self._check(0, index, first.inverse().after(clock))
        if check:
            clock = replace(clock, calls=check.calls, residual=check.residual, bound=check.bound)
        return Alignment(clock, 0, check)

    def _machine(self, index: int, known: _Aligned) -> Alignment | None:
        """Align report `index` with one of `known` on its machine, unless calls contradict.

        Session starts give the offset. Messages to or from any report of that machine can
        contradict, too. None without such a report.
        """
        same = self._of_machine(index, known.at(self._marks(index)))
        near = self._nearest(index, list(same))
        checks = {
            other: self._check(other, index, Clock("", apart))
            for other, apart in same.items()
            if other in near or len(self._messages(other, index))
        }
        for other in checks:
            if why := self._sure(other, index, Clock("", same[other])).contradicts:
                self._inexact.update(self._of_machine(index, range(len(self._rows))), {index})
                self._refused[index] = why
                return None
        if index in self._inexact:
            self._refused.setdefault(
                index, "calls show that recorded session starts of its machine are wrong, and none"
                " of its own calls shows when its session started",
            )  # fmt: skip
            return self._by_calls(index, near)
        found = [
            Alignment(self._on(other, Clock("", same[other], bound=_bound(check))), other, check)
            for other, check in checks.items()
            if other in near
        ]
        if not found:
            return None
        best = min(found, key=_off)
        return replace(best, clock=replace(
            best.clock, reason=self._why_one_machine(best.against or 0, index),
            source=self._found[best.against or 0].clock.source or "session_start",
        ))  # fmt: skip

    def _of_machine(self, index: int, known: Sequence[int]) -> dict[int, int]:
        """Return, per report in `known` of the same machine, how much later `index` began, ns."""
        apart = {other: self._apart(other, index) for other in known if other != index}
        return {
            other: later
            for other, later in apart.items()
            if later is not None
            and (later == 0 or same_machine(self._places[other], self._places[index]))
        }

    def _on(self, other: int, correction: Clock) -> Clock:
        """Chain corrections: `correction` to the clock of report `other`, then that report's own.

        The largest possible errors of both add up.
        """
        base = self._found[other].clock
        bounds = base.bound, correction.bound
        bound = None if None in bounds else sum(each or 0 for each in bounds)
        return replace(base.after(correction), name=base.name, bound=bound)

    def _why_one_machine(self, one: int, other: int) -> str:
        host = self._places[one][0]
        if host is not None and host == self._places[other][0]:
            return f"one machine: both name host {host}"
        if common := sorted(self._places[one][1] & self._places[other][1]):
            return f"one machine: both list GPU {common[0]}"
        return "one session: both began at the same instant"

    def _by_calls(self, index: int, known: Sequence[int]) -> Alignment | None:
        """Align trace file `index` with one of the files `known` by matched calls or messages."""
        matches = {other: self._match(other, index) for other in self._nearest(index, known)}
        found = [
            Alignment(self._set_by(match[0], other), other, match[0])
            for other, match in matches.items()
            if not isinstance(match, str) and match[0].refused is None
        ]
        return min(found, key=_off, default=None)

    def _set_by(self, found: Fit, other: int) -> Clock:
        clock = self._on(other, replace(found.clock, bound=found.bound))
        if not found.calls:
            return replace(clock, source="messages", calls=0, residual=None,
                           reason=f"{count(found.messages, 'message')} both ways")  # fmt: skip
        return replace(
            clock, source="collectives", calls=found.calls, residual=found.residual,
            reason=f"{count(found.calls, 'call')} of a median of {found.typical:,} ns that both"
            " made together",
        )  # fmt: skip

    def _nearest(self, index: int, known: Sequence[int]) -> list[int]:
        """Return the reports `known`, first those that share most communicators with `index`."""
        here, named = self._places[index], self._calls(index).named

        def away(other: int) -> tuple[int, bool, float]:
            return (
                -len(named & self._calls(other).named),
                not same_machine(self._places[other], here),
                _off(self._found[other]),
            )

        return sorted(known, key=away)[:_MOST_TRIES]

    def _why_not(self, index: int) -> str:
        """Return why the clock of report `index` could not be aligned with the first report's."""
        if index in self._refused:
            return self._refused[index]
        matched = self._match(0, index)
        if isinstance(matched, str):
            return matched
        return matched[0].refused or "the report that it was compared with is on another clock"

    def _check(self, one: int, other: int, clock: Clock) -> Fit | None:
        """Test the correction `clock` of report `one` to `other` by matched calls and messages.

        The bound of its error uses only certain matches; None if nothing was matched.
        """
        matched = self._match(one, other)
        pairs = Pairs.none() if isinstance(matched, str) else matched[1]
        sent = self._messages(one, other)
        if not len(pairs) and not len(sent):
            return None
        return replace(held_to(pairs, sent, clock), bound=self._sure(one, other, clock).bound)

    def _sure(self, one: int, other: int, clock: Clock) -> Fit:
        """Test a clock correction of two reports (`one`, `other`) against certain matches only."""
        matched = self._match(one, other)
        pairs = Pairs.none()
        if not isinstance(matched, str) and matched[0].refused is None:
            pairs = matched[1]
        return held_to(pairs, self._messages(one, other), clock)

    def _apart(self, one: int, other: int) -> int | None:
        """Return the session start of `other` less that of `one`, ns; None if either is missing."""
        return _later(*(self._rows[index].get("session_start") for index in (one, other)))


def _off(found: Alignment) -> float:
    """Return the largest possible error of an aligned clock, ns; infinite if unknown."""
    return float("inf") if found.clock.bound is None else found.clock.bound


def _bound(check: Fit | None) -> int | None:
    return None if check is None else check.bound


def _row(trace: Trace) -> dict[str, Any]:
    reports = trace.read("reports")
    return reports.row(0, named=True) if reports.height == 1 else {}


CLOCK_COLUMNS = {
    "report": pl.Int32, "file": pl.String, "clock": pl.String, "known_by": pl.String,
    "offset_ns": pl.Int64, "drift_ppm": pl.Float64, "sessions_say_ns": pl.Int64,
    "against": pl.Int32, "calls": pl.Int64, "median_call_ns": pl.Int64, "p5_ns": pl.Int64,
    "p95_ns": pl.Int64, "bound_ns": pl.Int64, "steps": pl.Int64, "violations": pl.Int64,
    "messages": pl.Int64, "early_messages": pl.Int64, "evidence": pl.String,
}  # fmt: skip


def clock_evidence(traces: Sequence[Trace]) -> pl.DataFrame:
    """Return the table of `info --clocks`: what shows how far the clock of each trace file is off.

    The columns are `CLOCK_COLUMNS`, such as ``offset_ns``, its ``bound_ns`` and ``evidence``.

    Parameters
    ----------
    traces
        The reports, with the clocks that the run assigned to them at ingest.
    """
    found = align(traces, _user_clocks(traces))
    starts: list[int | None] = [_row(trace).get("session_start") for trace in traces]
    rows = [
        {
            "report": index,
            "file": _row(trace).get("file"),
            "clock": each.clock.name,
            "known_by": each.clock.source,
            "offset_ns": each.clock.offset,
            "drift_ppm": each.clock.drift * 1e6,
            "sessions_say_ns": _later(starts[0], start),
            "against": each.against,
            "bound_ns": each.clock.bound,
            "steps": len(each.clock.steps),
            "evidence": each.clock.reason,
            **_check_meta(each.check),
        }
        for index, (trace, each, start) in enumerate(zip(traces, found, starts, strict=True))
    ]
    return pl.DataFrame(rows, schema=CLOCK_COLUMNS)


def _user_clocks(traces: Sequence[Trace]) -> dict[int, GivenClock]:
    """Return the clocks that the user gave, from the tables ``reports``: report index -> clock."""
    rows = [_row(trace) for trace in traces]
    return {
        index: (row["clock_offset"] - (_later(rows[0]["session_start"], row["session_start"]) or 0),
                row["clock_drift"] or 0.0, row["clock_since"] or 0)
        for index, row in enumerate(rows)
        if row.get("clock_source") == "given"
    }  # fmt: skip


def _later(one: int | None, other: int | None) -> int | None:
    """Return session start `other` less session start `one`, ns; None if either is missing."""
    return None if one is None or other is None else other - one


def _check_meta(check: Fit | None) -> dict[str, int | None]:
    if check is None:
        return {}
    found: dict[str, int | None] = {}
    if check.calls:
        low, high = check.residual or (None, None)
        found = {
            "calls": check.calls, "median_call_ns": check.typical, "p5_ns": low, "p95_ns": high,
            "violations": check.violations,
        }  # fmt: skip
    if check.messages:
        found |= {"messages": check.messages, "early_messages": check.early}
    return found
