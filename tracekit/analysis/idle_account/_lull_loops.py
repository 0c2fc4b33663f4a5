"""The loop that finds when nothing runs, op by op."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
OUT_OF_ORDER = -1


class Lulls(NamedTuple):
    """When nothing runs on a line."""

    lines: Array
    begins: Array
    ends: Array


def find_lulls(
    lines: Array, starts: Array, ends: Array, reached: Array, latest: Array, found: Lulls
) -> int:
    """Find when nothing runs between ops.

    Parameters
    ----------
    lines, starts, ends
        The ops, on each line by start; those on line -1 do not matter.
    reached
        How far the ops of each line have come, or where looking begins; updated.
    latest
        When the latest op of each line started; updated.
    found
        Room for a lull per op; becomes what is found.

    Returns
    -------
    How many lulls there are; `OUT_OF_ORDER` if the ops of a line did not come by start.
    """
    count = 0
    for row in range(lines.size):
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
