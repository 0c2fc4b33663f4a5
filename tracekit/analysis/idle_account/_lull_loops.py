"""Loop over intervals by start that merges those which overlap or touch."""

from __future__ import annotations

from typing import Any, TypeAlias

from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
OUT_OF_ORDER = -1


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
