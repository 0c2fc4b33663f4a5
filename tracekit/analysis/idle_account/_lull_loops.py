"""Loops over intervals by start: one finds lulls (intervals without ops), one merges intervals."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
OUT_OF_ORDER = -1


class Lulls(NamedTuple):
    """Arrays with an entry per lull (no op runs): id of its process and GPU, begin, end (ns)."""

    lines: Array
    begins: Array
    ends: Array


def find_lulls(
    lines: Array, starts: Array, ends: Array, reached: Array, latest: Array, found: Lulls
) -> int:
    """Find lulls between ops: intervals in which no op runs on a line (one process on one GPU).

    Parameters
    ----------
    lines, starts, ends
        Line, start and end of each op, sorted by start on each line; ops on line -1 are ignored.
    reached
        For each line (process on a GPU), the latest end of its ops so far, or the begin of the
        search, ns; updated.
    latest
        For each line, the start of the latest op so far, ns; updated.
    found
        Output arrays, with room for one lull per op.

    Returns
    -------
    Number of lulls; `OUT_OF_ORDER` if the ops of a line are not sorted by start.
    """
    count = 0
    for row in range(len(lines)):
        line, start = lines[row], starts[row]
        if line < 0:
            continue
        if start < latest[line]:
            return OUT_OF_ORDER
        latest[line] = start
        if start > reached[line]:
            found.lines[count], found.begins[count] = line, reached[line]
            found.ends[count] = start
            count += 1
        reached[line] = max(reached[line], ends[row])
    return count


def join_up(
    groups: Array, starts: Array, ends: Array, latest: Array, first: Array, furthest: Array
) -> int:
    """Merge intervals of the same group that overlap or touch.

    Parameters
    ----------
    groups, starts, ends
        Group, start and end of each interval, sorted by start.
    latest
        Index of the latest merged interval of each group, -1 at first; updated.
    first, furthest
        Output arrays, with room for all intervals: the row with which a merged interval begins, and
        its end, ns.

    Returns
    -------
    Number of merged intervals.
    """
    count = 0
    for row in range(len(groups)):
        place = latest[groups[row]]
        if place >= 0 and starts[row] <= furthest[place]:
            furthest[place] = max(furthest[place], ends[row])
        else:
            latest[groups[row]], first[count], furthest[count] = count, row, ends[row]
            count += 1
    return count
