"""Whose clocks are one: what speaks for it, ranked, and what is refused.

1. What the user gives.
2. Reports of one machine (its host's name, or a GPU's UUID in both) have its clock: the starts of
   their sessions say how far they are apart, unless calls that match beyond doubt contradict.
3. Calls that match beyond doubt say how far other clocks are apart, where what is left over is well
   under the median call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import polars as pl

from tracekit.analysis.clocks._clock_calls import Calls, best_fit, clock_calls
from tracekit.analysis.clocks._clock_fit import MOST_VIOLATIONS, Fit, Pairs, held_to
from tracekit.analysis.clocks._clock_messages import Arrivals, arrivals, messages
from tracekit.model import Clock, Trace, same_machine

_MOST_TRIES = 4
"""With so many other reports is one compared that has no clock yet."""
_MOST_CLOCKS = 8
"""On so many clocks calls may put a report; else a thousand would each be compared with each."""

_Match = tuple[Fit, Pairs] | str


@dataclass(frozen=True)
class Alignment:
    """The clock of a report, and what it was taken from.

    Parameters
    ----------
    clock
        The clock.
    against
        The report that it was compared with.
    check
        How well calls of both agree under it; None where none were matched.
    messages
        How messages between both arrive under it; None where none were matched.
    """

    clock: Clock
    against: int | None = None
    check: Fit | None = None
    messages: Arrivals | None = None


def align(
    traces: Sequence[Trace],
    given: Mapping[int, int] | None = None,
    calls: Sequence[Calls] | None = None,
) -> list[Alignment]:
    """Return the clock of each report of a run, those that can be compared on that of the first.

    Parameters
    ----------
    traces
        The reports, each on its own clock.
    given
        What the user knows of reports, by number: what to add to their times once they are set
        apart by the starts of their sessions, ns.
    calls
        What `clock_calls` returns of each report, where that is known.
    """
    return _Aligning(traces, given or {}, calls).result()


def aligned(
    traces: Sequence[Trace],
    given: Mapping[int, int] | None = None,
    calls: Sequence[Calls] | None = None,
) -> list[Trace]:
    """Return the reports of a run with what `align` found in their tables ``reports``."""
    if len(traces) == 1 and not given:
        return list(traces)
    clocks = [each.clock for each in align(traces, given, calls)]
    return [
        trace.with_tables({"reports": clock.told(trace.read("reports"))})
        for trace, clock in zip(traces, clocks, strict=True)
    ]


class _Aligning:
    """Puts one report after the other on a clock."""

    def __init__(
        self,
        traces: Sequence[Trace],
        given: Mapping[int, int],
        calls: Sequence[Calls] | None,
    ) -> None:
        self._given = given
        self._rows = [_row(trace) for trace in traces]
        self._places = [
            (row.get("host"), frozenset(trace.read("devices")["uuid"].drop_nulls()))
            for row, trace in zip(self._rows, traces, strict=True)
        ]
        self._calls: Callable[[int], Calls] = (
            cache(lambda index: clock_calls(traces[index])) if calls is None else calls.__getitem__
        )
        self._match: Callable[[int, int], _Match] = cache(
            lambda one, other: best_fit(self._calls(one), self._calls(other))
        )
        self._messages: Callable[[], list[pl.DataFrame]] = cache(lambda: messages(traces))
        self._refused: dict[int, str] = {}
        self._found: dict[int, Alignment] = {}

    def result(self) -> list[Alignment]:
        source = "given" if 0 in self._given else None
        self._found[0] = Alignment(
            replace(self._own(0), offset=self._given.get(0, 0), source=source)
        )
        for index in sorted(self._given.keys() - {0}):
            self._found[index] = self._by_user(index)
        waiting = [index for index in range(len(self._rows)) if index not in self._found]
        waiting = self._join(waiting)
        clocks = 1
        while waiting:
            # What does not join the first report has a clock of its own, and others may be on it.
            alone = waiting.pop(0)
            own = self._own(alone)
            if any(each.clock.name == own.name for each in self._found.values()):
                own = Clock(f"report {alone}")  # what it was refused is not the clock of its host
            self._found[alone] = Alignment(replace(own, reason=self._why_not(alone)))
            waiting = self._join(waiting, [alone], by_calls=clocks < _MOST_CLOCKS)
            clocks += 1
        return [self._found[index] for index in range(len(self._rows))]

    def _join(
        self, waiting: list[int], on: list[int] | None = None, *, by_calls: bool = True
    ) -> list[int]:
        """Put on the clock of some reports what can be put on it; return the others."""
        known = list(self._found) if on is None else on
        while True:
            joined = []
            for index in waiting:
                alignment = self._machine(index, known)
                if alignment is None and by_calls:
                    alignment = self._calls_of(index, known)
                if alignment is not None:
                    self._found[index] = alignment
                    known.append(index)
                    joined.append(index)
            waiting = [index for index in waiting if index not in joined]
            if not joined:
                return waiting

    def _own(self, index: int) -> Clock:
        row = self._rows[index]
        named = row.get("host") is not None and row.get("session_start") is not None
        return Clock(f"host {row['host']}" if named else f"report {index}")

    def _by_user(self, index: int) -> Alignment:
        offset = (self._apart(0, index) or 0) + self._given[index]
        first = self._found[0].clock
        check = self._check(0, index, offset - first.offset)
        clock = Clock(
            first.name, offset, source="given", calls=check.calls if check else 0,
            residual=check.residual if check else None, reason="given by the user",
        )  # fmt: skip
        return Alignment(clock, 0, check, self._arrive(0, index, Clock("", offset - first.offset)))

    def _machine(self, index: int, known: Sequence[int]) -> Alignment | None:
        """Put a report on the clock of one of the same machine, unless calls contradict.

        Messages with any report of that machine may contradict, not only those with this one.
        """
        places = ((other, self._apart(other, index)) for other in known)
        same = {
            other: apart
            for other, apart in places
            if apart is not None and self._is_one_machine(other, index, apart)
        }
        arrive = {other: self._arrive(other, index, Clock("", same[other])) for other in same}
        if any(self._is_refused(index, each) for each in arrive.values()):
            return None
        for other, apart in same.items():
            check = self._check(other, index, apart)
            if check is not None and self._is_refuted(other, index, check):
                continue
            base = self._found[other].clock
            reason = self._why_one_machine(other, index)
            # Drift is that of the machine, and counts from the same instant.
            clock = replace(
                base, offset=base.offset + apart, since=base.since - apart,
                source=base.source or "session_start", reason=reason,
            )  # fmt: skip
            return Alignment(clock, other, check, arrive[other])
        return None

    def _arrive(self, one: int, other: int, clock: Clock) -> Arrivals | None:
        """Return how messages between two reports arrive if the other one is set so."""
        found = self._messages()
        return arrivals(found[one], found[other], clock)

    def _is_refused(self, index: int, arrive: Arrivals | None) -> bool:
        """Tell whether messages refute a clock, and keep in mind why."""
        if arrive is None or arrive.refused is None:
            return False
        self._refused[index] = arrive.refused
        return True

    def _is_one_machine(self, one: int, other: int, apart: int) -> bool:
        return apart == 0 or same_machine(self._places[one], self._places[other])

    def _why_one_machine(self, one: int, other: int) -> str:
        host = self._places[one][0]
        if host is not None and host == self._places[other][0]:
            return f"one machine: both name host {host}"
        if common := sorted(self._places[one][1] & self._places[other][1]):
            return f"one machine: both list GPU {common[0]}"
        return "one session: both began at the same instant"

    def _is_refuted(self, one: int, other: int, check: Fit) -> bool:
        """Tell whether calls that match beyond doubt contradict the starts of sessions."""
        matched = self._match(one, other)
        return (
            not isinstance(matched, str)
            and matched[0].refused is None
            and check.violations > MOST_VIOLATIONS * check.calls
        )

    def _calls_of(self, index: int, known: Sequence[int]) -> Alignment | None:
        """Put a report on the clock of another one by calls that match beyond doubt."""
        for other in self._candidates(index, known):
            matched = self._match(other, index)
            if isinstance(matched, str) or matched[0].refused is not None:
                continue
            found = matched[0]
            arrive = self._arrive(other, index, Clock("", found.offset, found.drift, found.since))
            if self._is_refused(index, arrive):
                continue
            return Alignment(self._set_by(found, other), other, found, arrive)
        return None

    def _set_by(self, found: Fit, other: int) -> Clock:
        base = self._found[other].clock
        # Where the other one runs astray itself, what it is off by then is added.
        there = round((found.since + found.offset - base.since) * base.drift)
        return Clock(
            base.name, base.offset + there + found.offset, base.drift + found.drift, found.since,
            "collectives", found.calls, found.residual,
            f"{found.calls:,} calls of a median of {found.typical:,} ns that both made together",
        )  # fmt: skip

    def _candidates(self, index: int, known: Sequence[int]) -> list[int]:
        here = self._places[index]
        order = sorted(known, key=lambda other: not same_machine(self._places[other], here))
        return order[:_MOST_TRIES]

    def _why_not(self, index: int) -> str:
        """Say why the clock of a report could not be put on that of the first one."""
        if index in self._refused:
            return self._refused[index]
        matched = self._match(0, index)
        if isinstance(matched, str):
            return matched
        return matched[0].refused or "what it was compared with is on another clock"

    def _check(self, one: int, other: int, apart: int) -> Fit | None:
        matched = self._match(one, other)
        return None if isinstance(matched, str) else held_to(matched[1], apart)

    def _apart(self, one: int, other: int) -> int | None:
        """Return how much later a session began than another, by what they say."""
        return _later(*(self._rows[index].get("session_start") for index in (one, other)))


def _row(trace: Trace) -> dict[str, Any]:
    reports = trace.read("reports")
    return reports.row(0, named=True) if reports.height == 1 else {}


CLOCK_COLUMNS = {
    "report": pl.Int32, "file": pl.String, "clock": pl.String, "known_by": pl.String,
    "offset_ns": pl.Int64, "drift_ppm": pl.Float64, "sessions_say_ns": pl.Int64,
    "against": pl.Int32, "calls": pl.Int64, "median_call_ns": pl.Int64, "p5_ns": pl.Int64,
    "p95_ns": pl.Int64, "violations": pl.Int64, "messages": pl.Int64, "early_messages": pl.Int64,
    "evidence": pl.String,
}  # fmt: skip


def clock_evidence(traces: Sequence[Trace]) -> pl.DataFrame:
    """Return how it is known whose times can be compared, one row per report.

    Parameters
    ----------
    traces
        The reports, with the clocks that they were given when a run was made of them.

    Returns
    -------
    ====================  =========================================================================
    ``report, file``      the report
    ``clock``             its clock; reports with the same one can be compared
    ``known_by``          ``session_start``, ``collectives`` or ``given``; null for one on its own
    ``offset_ns``         what was added to its times
    ``drift_ppm``         by how much its own clock was stretched, in millionths
    ``sessions_say_ns``   what the starts of sessions say the offset was
    ``against``           the report that it was compared with
    ``calls``             how many calls of both were matched; null where none could be
    ``median_call_ns``    median length of these, of the participant that came last
    ``p5_ns, p95_ns``     5th and 95th percentile of by how much their ends still differ
    ``violations``        how many end before they have begun in the other report, by over 2 us
    ``messages``          how many messages between both match beyond doubt; null where none do
    ``early_messages``    how many of these are received before they are sent, by over 2 us
    ``evidence``          what speaks for the clock, or why none is known
    ====================  =========================================================================
    """
    found = align(traces, _given(traces))
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
            "evidence": each.clock.reason,
            **_told(each.check),
            **_arrived(each.messages),
        }
        for index, (trace, each, start) in enumerate(zip(traces, found, starts, strict=True))
    ]
    return pl.DataFrame(rows, schema=CLOCK_COLUMNS)


def _given(traces: Sequence[Trace]) -> dict[int, int]:
    """Return what the user had given, as the reports keep it."""
    rows = [_row(trace) for trace in traces]
    return {
        index: row["clock_offset"] - (_later(rows[0]["session_start"], row["session_start"]) or 0)
        for index, row in enumerate(rows)
        if row.get("clock_source") == "given"
    }


def _later(one: int | None, other: int | None) -> int | None:
    """Return how much later a session began than another, by what they say, ns."""
    return None if one is None or other is None else other - one


def _told(check: Fit | None) -> dict[str, int | None]:
    if check is None:
        return {}
    low, high = check.residual
    return {
        "calls": check.calls, "median_call_ns": check.typical, "p5_ns": low, "p95_ns": high,
        "violations": check.violations,
    }  # fmt: skip


def _arrived(found: Arrivals | None) -> dict[str, int | None]:
    return {} if found is None else {"messages": found.messages, "early_messages": found.early}
