"""The loop that finds gaps, op by op, and what is known where they end."""

from __future__ import annotations

from typing import NamedTuple

from tracekit.analysis.idle_account._lull_loops import OUT_OF_ORDER, Array


class Ops(NamedTuple):
    """Ops, on each line by start and number."""

    lines: Array
    numbers: Array
    starts: Array
    ends: Array
    leads: Array
    """When the host was ahead with them; earlier than all times where it was not."""
    of_loader: Array
    """Whether a loader's thread launched them."""


class Reached(NamedTuple):
    """How far the ops of each line have come; before the first one earlier than all times."""

    ends: Array
    """The furthest end."""
    numbers: Array
    """The op that ends there, the last one of several; -1 before the first one."""
    starts: Array
    """When the latest op started."""
    latest: Array
    """The latest op."""
    leads: Array
    """When the host was last ahead."""
    waiting: Array
    """Whether there was a gap, and no op since that no loader launched."""


class Found(NamedTuple):
    """Ops after a gap: those that end it, and where a loader launched these, the first other one.

    An op that ends none begins where it starts.
    """

    rows: Array
    begins: Array
    before: Array
    leads: Array


def find_gaps(ops: Ops, reached: Reached, found: Found) -> int:
    """Find the gaps between ops.

    Parameters
    ----------
    ops
        The ops.
    reached
        How far the ops of each line have come; updated.
    found
        Room for a row per op; becomes what is found. The first op of a line ends a gap, before
        which there is no op.

    Returns
    -------
    How many rows there are; `OUT_OF_ORDER` if the ops of a line did not come by start and number.
    """
    count = 0
    for row in range(ops.lines.size):
        line, op, start = ops.lines[row], ops.numbers[row], ops.starts[row]
        latest = reached.starts[line]
        if start < latest or (start == latest and op < reached.latest[line]):
            return OUT_OF_ORDER
        reached.starts[line], reached.latest[line] = start, op
        is_gap = start > reached.ends[line]
        if is_gap or (reached.waiting[line] and not ops.of_loader[row]):
            found.rows[count], found.before[count] = row, reached.numbers[line]
            found.begins[count] = reached.ends[line] if is_gap else start
            found.leads[count] = reached.leads[line]
            reached.waiting[line] = ops.of_loader[row]
            count += 1
        if ops.ends[row] >= reached.ends[line]:
            reached.ends[line], reached.numbers[line] = ops.ends[row], op
        reached.leads[line] = max(reached.leads[line], ops.leads[row])
    return count
