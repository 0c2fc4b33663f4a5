"""Draw gaps by their time from exports of nsys, and print what the raw tables hold of each.

    python benchmarks/drawn_gaps.py EXPORT.sqlite ... [--each N] [--seed N] [--answers STORE]

Moments are drawn evenly over the idle time of an export, until so many gaps are met: long ones come
sooner. A person reads what is printed and says why the GPU is idle at that moment; `--answers`
prints what `tracekit idle` says of the same moments, to be held against it afterwards. Nothing
that tracekit says is used until then. docs/evidence/gaps.md has what came of it.
"""

from __future__ import annotations

import argparse
import sqlite3
from bisect import bisect_right
from collections import defaultdict
from pathlib import Path
from random import Random
from typing import Any

import polars as pl

import tracekit as tk
from tracekit.analysis.idle_account import idle_pieces, idle_windows

Rows = list[tuple[Any, ...]]
_US = 1e3
_MOST = 7
"""Lines of each kind that are printed of a moment."""


def _has(file: sqlite3.Connection, table: str) -> bool:
    return bool(file.execute("select 1 from sqlite_master where name = ?", (table,)).fetchone())


def idle(file: sqlite3.Connection) -> Rows:
    """Return ``device, start, end`` of the time in which nothing runs between ops of a device."""
    tables = [f"CUPTI_ACTIVITY_KIND_{name}" for name in ("KERNEL", "MEMCPY", "MEMSET")]
    parts = [f"select deviceId, start, end from {name}" for name in tables if _has(file, name)]
    until: dict[int, int] = {}
    gaps = []
    for device, start, end in file.execute(" union all ".join(parts) + " order by start"):
        if device in until and start > until[device]:
            gaps.append((device, until[device], start))
        until[device] = max(until.get(device, 0), end)
    return gaps


def drawn(gaps: Rows, number: int, random: Random) -> Rows:
    """Return ``moment, device, start, end`` of some gaps, each by a moment of idle time."""
    sums = [0]
    for _, start, end in gaps:
        sums.append(sums[-1] + end - start)
    found: dict[int, tuple[int, ...]] = {}
    while len(found) < min(number, len(gaps)):
        place = random.randrange(sums[-1])
        gap = bisect_right(sums, place) - 1
        device, start, end = gaps[gap]
        found.setdefault(gap, (start + place - sums[gap], device, start, end))
    return [found[gap] for gap in sorted(found)]


class Export:
    """Rows of an export around a gap."""

    def __init__(self, path: Path) -> None:
        self.file = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        self.names = dict(self.file.execute("select id, value from StringIds"))

    def _overlapping(self, table: str, name: str, start: int, end: int) -> Rows:
        if not _has(self.file, table):
            return []
        found = self.file.execute(
            f"select globalTid, start, end, {name} from {table}"
            " where start < ? and end > ? order by start", (end, start),
        ).fetchall()  # fmt: skip
        return [(tid, a, b, self.names.get(each, each)) for tid, a, b, each in found]

    def ends(self, device: int, end: int) -> Rows:
        """Return the op with which a gap ends: its name and correlation."""
        found = []
        for table, what in (("KERNEL", "shortName"), ("MEMCPY", "copyKind"), ("MEMSET", "value")):
            if _has(self.file, f"CUPTI_ACTIVITY_KIND_{table}"):
                found += self.file.execute(
                    f"select '{table}', {what}, correlationId, streamId"
                    f" from CUPTI_ACTIVITY_KIND_{table} where deviceId = ? and start = ?",
                    (device, end),
                ).fetchall()
        return [(table, self.names.get(what, what), *rest) for table, what, *rest in found]

    def off_cpu(self, thread: int, start: int, end: int) -> Rows:
        """Return when a thread was off the CPU; nothing where no switches were recorded."""
        if not _has(self.file, "SCHED_EVENTS"):
            return []
        rows = self.file.execute(
            "select start, isSchedIn from SCHED_EVENTS where globalTid = ? and start between ? and"
            " ? order by start", (thread, start - 10**10, end + 10**10),
        ).fetchall()  # fmt: skip
        away, since = [], None
        for time, comes in rows:
            if not comes:
                since = time
            elif since is not None:
                away.append((max(since, start), min(time, end)))
                since = None
        return [(a, b) for a, b in away if a < b]

    def said(self, moment: int, device: int, start: int, end: int) -> str:
        """Say what the tables hold of a gap, times in us from its start."""

        def at(time: int) -> str:
            return f"{(time - start) / _US:.1f}"

        lines = [f"gap of {at(end)} us on GPU {device}; drawn at {at(moment)}"]
        enders = self.ends(device, end)
        calls = self._overlapping("CUPTI_ACTIVITY_KIND_RUNTIME", "nameId", start - 2_000_000, end)
        threads = []
        for table, name, correlation, stream in enders:
            made = self.file.execute(
                "select globalTid, start, end, nameId from CUPTI_ACTIVITY_KIND_RUNTIME"
                " where correlationId = ? order by start", (correlation,),
            ).fetchall()  # fmt: skip
            near = [row for row in made if row[1] <= end]
            for thread, began, ended, call in near[-1:]:
                threads.append(thread)
                lines.append(
                    f"  ends with {table} {str(name)[:50]} on stream {stream}, by thread "
                    f"{thread % 2**24}: {self.names[call]} {at(began)} to {at(ended)}"
                )
        inside: dict[tuple[int, str], list[tuple[int, int]]] = defaultdict(list)
        for thread, began, ended, call in calls:
            inside[thread, call].append((began, ended))
        for (thread, call), spans in sorted(inside.items(), key=lambda item: item[1][0]):
            over = [(a, b) for a, b in spans if b > start] or spans[-1:]
            shown = ", ".join(f"{at(a)} to {at(b)}" for a, b in over[:3])
            lines.append(f"  call by {thread % 2**24}: {len(spans)} {call}: {shown}")
        lines += self._on_host(moment, start, end)
        known = self._overlapping("NVTX_EVENTS", "coalesce(text, textId)", moment - 10**9, moment)
        for thread in dict.fromkeys([*threads, *(each[0] for each in known[-40:])]):
            away = self.off_cpu(thread, start, end)
            if away:
                shown = ", ".join(f"{at(a)} to {at(b)}" for a, b in away[:_MOST])
                lost = sum(b - a for a, b in away) / _US
                lines.append(f"  off the CPU, {thread % 2**24}: {lost:.1f} us in {len(away)}: "
                             f"{shown}")  # fmt: skip
        return "\n".join(lines)

    def _on_host(self, moment: int, start: int, end: int) -> list[str]:
        """Say which ranges, system calls and profiler overhead there are."""
        lines = []
        for title, table, name, least in (
            ("range", "NVTX_EVENTS", "coalesce(text, textId)", 0),
            ("system", "OSRT_API", "nameId", 100_000),
            ("overhead", "PROFILER_OVERHEAD", "nameId", 0),
        ):
            for thread, began, ended, what in self._overlapping(table, name, start, end):
                if ended - began >= least and (title != "range" or began <= moment <= ended):
                    span = f"{(began - start) / _US:.1f} to {(ended - start) / _US:.1f}"
                    lines.append(f"  {title} of {thread % 2**24}: {str(what)[:60]} {span}")
        return lines


def main() -> None:
    """Draw moments, and print what is known of each, or what `tracekit idle` says of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("exports", type=Path, nargs="+")
    parser.add_argument("--each", type=int, default=10)
    parser.add_argument("--seed", type=int, default=20261126)
    parser.add_argument("--answers", type=Path)
    asked = parser.parse_args()
    for path in asked.exports:
        export = Export(path)
        moments = drawn(idle(export.file), asked.each, Random(f"{asked.seed}/{path.stem}"))
        pieces = pieces_of(asked.answers, path.stem) if asked.answers else None
        for number, (moment, device, start, end) in enumerate(moments):
            print(f"\n{path.stem} {number}: ", end="")
            print(export.said(moment, device, start, end) if pieces is None
                  else answer(pieces, moment, device))  # fmt: skip


def pieces_of(store: Path, name: str) -> pl.DataFrame:
    """Return the account of idle time of a run that was ingested."""
    trace = tk.open(name, store=store).trace
    return idle_pieces(trace, idle_windows(trace, skip=0, per_iteration=False))[1]


def answer(pieces: pl.DataFrame, moment: int, device: int) -> str:
    """Return what the account says of a moment: its cause, and by what."""
    there = (pl.col("start") <= moment) & (pl.col("end") > moment) & (pl.col("device") == device)
    found = pieces.filter(there).select("cause", "detail", "rests_on").rows()
    return "; ".join(" | ".join(map(str, row)) for row in found) or "outside of windows"


if __name__ == "__main__":
    main()
