"""Compiled loops that pass over ops once, ordered by start.

With intervals ordered by start, the part of an interval that is new to a union is the part beyond
the furthest end so far. So one number per union is the only state.

A line is an owner of windows: a device, or a process on a device. The windows of a line are the
rows from ``first[line]`` to ``first[line + 1]``, ordered by start, without overlaps.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from numpy.typing import NDArray

from tracekit.model import STAGES
from tracekit.support.inner import inner

Array: TypeAlias = NDArray[Any]


class Ops(NamedTuple):
    """Ops (kernels, copies, memsets) as arrays, ordered by start; times in ns."""

    lines: Array
    """Line of each op, -1 if it is on none."""
    starts: Array
    ends: Array
    stages: Array
    """Indices into `STAGES`: the lower one has precedence."""
    sources: Array
    counted: Array
    """Whether a row is counted as an op; of several pieces of an op only the first is."""
    launched: Array
    """Whether the op's launch is known."""


class Windows(NamedTuple):
    """Windows (time intervals, such as steps) as arrays, by line (device or process) and start."""

    first: Array
    begins: Array
    ends: Array


class Course(NamedTuple):
    """State of a pass over ops, per line (a device, or a process on a device)."""

    windows: Array
    """Window in which the latest op of each line starts; the row before its first window at
    first."""
    earliest: Array
    latest: Array
    """Start of the first op, and of the latest op, of each line."""
    ends: Array
    """Furthest end so far on each line."""


class Reached(NamedTuple):
    """Furthest op end so far, by stage and by stage source; one row per line (see `Course`)."""

    stages: Array
    sources: Array


class Sums(NamedTuple):
    """Sums over ops, one row per time window: counts; total, busy and exposed time, ns."""

    launched: Array
    total: Array
    ops: Array
    busy: Array
    exposed: Array
    """These three have one column per stage."""
    seen: Array
    sources: Array
    """Number of ops, and busy time, of each source of stages."""


@inner
def enter(line: int, start: int, windows: Windows, course: Course) -> int:
    """Advance a line (a device, or a process on it) to the window an op starts in; return its row.

    Windows are intervals of time, such as steps. If the op starts in no window, the row is that of
    the last window before it.
    """
    course.latest[line] = start
    course.earliest[line] = min(course.earliest[line], start)
    window, last = course.windows[line], windows.first[line + 1]
    while window + 1 < last and windows.begins[window + 1] <= start:
        window += 1
    course.windows[line] = window
    return int(window)


@inner
def starts_in(window: int, start: int, end: int, windows: Windows) -> bool:
    """Test whether an op starts before its window ends; `window` is as returned by `enter`."""
    until = windows.ends[window]
    # An op without length may lie at the very end of the last window.
    return bool(start < until or start == end == until)


@inner
def spread(
    begin: int, end: int, window: int, last: int, windows: Windows, sums: Array, column: int,
    sign: int,
) -> None:  # fmt: skip
    """Add to `sums` the time, ns, of an interval (`begin` to `end`) in each time window.

    The windows are those from `window` up to, not including, `last`. With `sign` -1 the time is
    subtracted; `column` is the column of `sums`.
    """
    while window < last and windows.begins[window] < end:
        low, high = max(begin, windows.begins[window]), min(end, windows.ends[window])
        if low < high:
            sums[window, column] += sign * (high - low)
        window += 1


@inner
def expose(
    begin: int, end: int, line: int, stage: int, window: int, last: int, windows: Windows,
    reached: Reached, sums: Array,
) -> None:  # fmt: skip
    """Add an op's exposed time to its stage; lower stages lose the exposed time that it covers.

    Exposed is busy time in which no stage of higher precedence runs. The op overlaps the time
    windows `window` to before `last`. The variable ``low`` begins as the time until which the op's
    stage and higher stages are busy: the op is exposed from ``low`` on. Each lower stage that is
    busy beyond ``low`` was exposed from there to the end of its work: this time is subtracted, and
    ``low`` moves to its end.
    """
    low = begin
    for above in range(stage + 1):
        low = max(low, reached.stages[line, above])
    if low < end:
        spread(low, end, window, last, windows, sums, stage, 1)
    for below in range(stage + 1, reached.stages.shape[1]):
        further = min(end, reached.stages[line, below])
        if low < further:
            spread(low, further, window, last, windows, sums, below, -1)
            low = further


def sweep(ops: Ops, windows: Windows, course: Course, reached: Reached, sums: Sums) -> int:
    """Add up number, durations, busy and exposed time of ops (GPU work), by time window and stage.

    `course`, `reached` (the state of the pass) and `sums` are updated.

    Returns
    -------
    Whether the ops of each line (a device, or a process on a device) are ordered by start; if not,
    the sums are invalid.
    """
    for row in range(len(ops.starts)):
        line, start, end = ops.lines[row], ops.starts[row], ops.ends[row]
        if line < 0:
            continue
        if start < course.latest[line]:
            return 0
        window, last = enter(line, start, windows, course), windows.first[line + 1]
        stage, source = ops.stages[row], ops.sources[row]
        if window >= windows.first[line]:
            if ops.counted[row] and starts_in(window, start, end, windows):
                sums.ops[window, stage] += 1
                sums.total[window] += end - start
                sums.launched[window] += ops.launched[row]
                sums.seen[window, source] += 1
            # As most do, it may overlap nothing.
            if course.ends[line] <= start and end <= windows.ends[window]:
                sums.busy[window, stage] += end - start
                sums.exposed[window, stage] += end - start
                sums.sources[window, source] += end - start
                reached.stages[line, stage] = reached.sources[line, source] = end
                course.ends[line] = end
                continue
        else:
            window = windows.first[line]
        begin = max(start, reached.stages[line, stage])
        if begin < end:
            spread(begin, end, window, last, windows, sums.busy, stage, 1)
            expose(start, end, line, stage, window, last, windows, reached, sums.exposed)
            reached.stages[line, stage] = end
        begin = max(start, reached.sources[line, source])
        if begin < end:
            spread(begin, end, window, last, windows, sums.sources, source, 1)
            reached.sources[line, source] = end
        course.ends[line] = max(course.ends[line], end)
    return 1


class GroupOps(NamedTuple):
    """Ops (kernels, copies, memsets) as arrays, ordered by start, with the group of each."""

    lines: Array
    starts: Array
    ends: Array
    groups: Array
    """Group of each op, -1 if it is in none. Groups of different lines are different."""
    counted: Array
    """Whether a row is counted as an op, as in `Ops`."""


class GroupsReached(NamedTuple):
    """State of the pass over ops, per group: furthest end so far, and row of sums in use."""

    ends: Array
    """Furthest end so far of each group."""
    latest: Array
    """Row of sums used last by each group, -1 if none."""


class GroupSums(NamedTuple):
    """Sums over ops by group and time window; rows of the same group and window are to be added."""

    windows: Array
    groups: Array
    ops: Array
    total: Array
    busy: Array


class Counted(NamedTuple):
    """Ops that a call of `sweep_groups` added: row in the sums, and duration (ns), of each."""

    rows: Array
    lengths: Array


SEEN, COUNTED, USED = range(3)
"""Number of ops looked at, number of these that were counted, and number of used rows of sums."""


@inner
def row_of(group: int, window: int, reached: GroupsReached, sums: GroupSums, used: int) -> int:
    """Return the row of `sums` for a group in a time window: its latest row, else a new one.

    The new row is `used`, the number of rows in use, which the caller increases. As ops are ordered
    by start, the latest row is nearly always the right one.
    """
    row = reached.latest[group]
    if row < 0 or sums.windows[row] != window:
        row = used
        reached.latest[group], sums.windows[row], sums.groups[row] = row, window, group
    return int(row)


def sweep_groups(
    ops: GroupOps, windows: Windows, course: Course, reached: GroupsReached, sums: GroupSums,
    done: Array, counted: Counted,
) -> int:  # fmt: skip
    """Add up number, durations and busy time of ops by group (such as a kernel) and time window.

    The pass stops when no row of `sums` is free; the caller then makes room and calls again.

    Parameters
    ----------
    course, reached
        State of the pass per line (a device, or a process on a device) and per group; updated.
    sums
        The sums; updated, zero in unused rows.
    done
        Counters, updated: ops passed (`SEEN`), ops added (`COUNTED`), rows of sums in use (`USED`).
    counted
        Output: row of sums and duration of each op that was added.

    Returns
    -------
    Whether the ops of each line are ordered by start; if not, the sums are invalid.
    """
    used = done[USED]
    for op in range(done[SEEN], len(ops.starts)):
        line, start, end, group = ops.lines[op], ops.starts[op], ops.ends[op], ops.groups[op]
        done[SEEN] = op
        if line < 0:
            continue
        if start < course.latest[line]:
            return 0
        window, last = enter(line, start, windows, course), windows.first[line + 1]
        course.ends[line] = max(course.ends[line], end)
        beyond = window + 1
        while beyond < last and windows.begins[beyond] < end:
            beyond += 1
        if used + beyond - window > len(sums.ops):
            done[USED] = used
            return 1
        is_inside = window >= windows.first[line]
        if is_inside and ops.counted[op] and starts_in(window, start, end, windows):
            row = row_of(group, window, reached, sums, used)
            used = max(used, row + 1)
            sums.ops[row] += 1
            sums.total[row] += end - start
            counted.rows[done[COUNTED]], counted.lengths[done[COUNTED]] = row, end - start
            done[COUNTED] += 1
        new = max(start, reached.ends[group])
        for each in range(max(window, windows.first[line]), beyond):
            length = min(end, windows.ends[each]) - max(new, windows.begins[each])
            if length > 0:
                row = row_of(group, each, reached, sums, used)
                used = max(used, row + 1)
                sums.busy[row] += length
        reached.ends[group] = max(reached.ends[group], end)
    done[SEEN], done[USED] = len(ops.starts), used
    return 1


class Marks(NamedTuple):
    """Times at which processes enter and leave iterations on the host (marks), and the iterations.

    Iterations are training steps; only those that ranges mark are listed.
    """

    first: Array
    """The marks of a process are the rows from ``first[process]`` to ``first[process + 1]``."""
    times: Array
    first_host_mark: Array
    host_marks: Array
    """Iterations that ranges mark, in order; grouped by process in the same way."""
    places: Array
    """Index of the mark at which each of these iterations begins."""
    threads: Array
    """For each mark the thread that drives the iteration, or the next one; -1 if not known."""


class Launched(NamedTuple):
    """Ops whose launching call is known, as arrays in any order; times in ns."""

    lines: Array
    starts: Array
    ends: Array
    launches: Array
    own: Array
    """Iteration that the launching thread was in, `NONE` if not known."""
    stages: Array
    threads: Array


class Groups(NamedTuple):
    """Groups of ops of equal device, stage, and iteration (or gap between two) of their launch.

    Ops launched by the thread that runs the iteration form separate groups from other ops.
    """

    starts: Array
    ends: Array
    launches: Array
    own: Array
    threads: Array
    """These three are of any one op of the group."""


FORWARD, INPUT = STAGES.index("FP"), STAGES.index("IO")
SORTS = 2 * len(STAGES)
"""Number of classes of ops: for each stage those of the iteration's thread, and other ops."""
NONE = -(1 << 62)
"""Value for no iteration."""


@inner
def last_until(values: Array, low: int, high: int, now: int, guess: int) -> int:
    """Return the last position in a sorted slice (`low` to `high`) whose value is at most `now`.

    The result is ``low - 1`` if no value is. The search starts at `guess`.
    """
    if low <= guess < high and values[guess] <= now:
        low = guess + 1
        if low < high and now < values[low]:
            high = low
    while low < high:
        middle = (low + high) // 2
        if values[middle] <= now:
            low = middle + 1
        else:
            high = middle
    return low - 1


def find_latest(
    lines: Array,
    times: Array,
    first: Array,
    begins: Array,
    near: Array,
    found: Array,
) -> None:
    """Find for each row the last mark on its line (such as a process) that is not after its time.

    Parameters
    ----------
    lines, times
        Line and time of each row; a negative line has no marks.
    first, begins
        Times of the marks, ordered by line and time: those of line n are from ``first[n]`` to
        ``first[n + 1]``.
    near
        For each line the mark at which to start the search; updated.
    found
        Output: the mark of each row, -1 if there is none.
    """
    for row in range(len(lines)):
        line = lines[row]
        found[row] = -1
        if line >= 0:
            low, high = first[line], first[line + 1]
            place = last_until(begins, low, high, times[row], near[line])
            if place >= low:
                found[row] = near[line] = place


def group(ops: Launched, processes: Array, marks: Marks, near: Array, drivers: Array,
          begins: Array, groups: Groups) -> None:  # fmt: skip
    """Put ops into `groups`, which show where iterations begin and end on each device.

    Parameters
    ----------
    processes
        Per line (a device, or a process on a device): index of its process.
    marks
        When each process enters and leaves iterations.
    near
        Per line: where to start the search among the marks by time and by iteration; updated.
    drivers
        Per line: the thread that last launched a forward pass there; updated. It identifies the
        thread of each GPU if a process has one thread per GPU, and only one thread has ranges.
    begins
        Per line: index of its first group, which is for the time before all marks; the next groups
        are for one mark each.
    """
    for row in range(len(ops.starts)):
        line, now, own = ops.lines[row], ops.launches[row], ops.own[row]
        process = processes[line]
        low, high = marks.first[process], marks.first[process + 1]
        mark = near[line, 0] = last_until(marks.times, low, high, now, near[line, 0])
        if own != NONE:
            least, most = marks.first_host_mark[process], marks.first_host_mark[process + 1]
            place = near[line, 1] = last_until(marks.host_marks, least, most, own, near[line, 1])
            if place >= least and marks.host_marks[place] == own:
                mark = marks.places[place]
        stage, thread = ops.stages[row], ops.threads[row]
        if stage == FORWARD:
            drivers[line] = thread
        is_own = mark >= low and (
            thread == marks.threads[mark] or (stage == INPUT and thread == drivers[line])
        )
        at = (begins[line] + mark - low + 1) * SORTS + 2 * stage + is_own
        groups.starts[at] = min(groups.starts[at], ops.starts[row])
        groups.ends[at] = max(groups.ends[at], ops.ends[row])
        groups.launches[at], groups.own[at], groups.threads[at] = now, own, thread
