"""The loops of attribution: what carries state from row to row.

A loop that runs out of room returns where it stopped, and is called again from there with more.

What is open on a thread is a stack, in the order of start (see `Stacks`). Of what is asked later,
nothing needs a range that ends before one that started after it: while that one is open it is the
later one, and when it has ended so has the other. So what ends earlier goes when a range is put on
top, ends never grow from the bottom to the top, what has ended is on top, and each range is put and
taken once, however deep ranges nest and however they cross.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from numpy.typing import NDArray

from tracekit.model import path_number
from tracekit.support.compiled import inner

Array: TypeAlias = NDArray[Any]
Arrays: TypeAlias = tuple[Array, ...]
Opened: TypeAlias = tuple[Arrays, Arrays, Arrays, Array]
"""What is open, as `follow` explains it."""

PASSES = 3
"""The first places in the list of stages are of passes: FP, BP and WU."""
UPDATE, METRIC_EVALUATION = 2, 4
"""The places of WU and ME in the list of stages."""

EVALUATES, DIFFERENTIATES, COVERED, BEGINS, APART = 1, 2, 4, 8, 16
"""Flags of a range: it lies in a range of metric evaluation; in an autograd marker; in a range of
its own stage, which says all that it would. It is set apart from training, because it lies in
evaluation or its process is evaluating when it begins, and it is the outermost such range."""


@inner
def close(line: int, now: int, end: int, stacks: Arrays) -> int:
    """Close what has ended on a line, and what ends before `end`; return what is on top then."""
    until, below, tops, free = stacks[:4]
    top: int = tops[line]
    while top >= 0 and (until[top] <= now or until[top] < end):
        under = below[top]
        below[top], free[0] = free[0], top
        top = under
    tops[line] = top
    return top


@inner
def put(line: int, end: int, stacks: Arrays) -> int:
    """Put something on top of a line that is open until `end`, and return its place.

    There must be room.
    """
    until, below, tops, free = stacks[:4]
    place: int = free[0]
    free[0], below[place] = below[place], tops[line]
    until[place], tops[line] = end, place
    return place


@inner
def advance(team: int, now: int, first: Array, begins: Array, at: Array) -> int:
    """Return the last stretch of a team that has begun; the one before its first if none has."""
    place: int = at[team]
    while place + 1 < first[team + 1] and begins[place + 1] <= now:
        place += 1
    at[team] = place
    return place


def nest(first: int, ranges: Arrays, stacks: Arrays, out: Arrays) -> int:
    """Find what is around each range on its thread.

    Parameters
    ----------
    first
        The row to begin with.
    ranges
        ``number, thread, start, end, pushes, stage, marks, during`` by number: `stage` is the
        place in the list of stages or -1, `marks` tells autograd markers, `during` whether it
        begins while its process evaluates.
    stacks
        What is open on each thread, with the values ``number, level, near, flags, pass, passes``:
        `near` is the nearest stage, `pass` the nearest range of a pass, and `passes` how many of
        these there are, each with what is around it. Of the flags, `COVERED` tells here that the
        range of that stage is set apart, and `APART` that this one is.
    out
        ``parent, depth, flags`` of each range, -1 where there is none; ``around, passes``, the
        nearest range of a pass around it, and how many there are.

    Returns
    -------
    The row at which there was no room for more; the number of rows where there was for all.
    """
    numbers, threads, starts, ends, pushes, stages, marks, during = ranges
    free, numbered, level, near, inside, passing, passed = stacks[3:]
    parent, depth, flags, around_pass, passes = out
    for row in range(first, starts.size):
        thread, now, end, stage = threads[row], starts[row], ends[row], stages[row]
        own = (EVALUATES if stage == METRIC_EVALUATION else 0) | (DIFFERENTIATES * marks[row])
        parent[row], depth[row], around_pass[row], passes[row] = -1, -1, -1, 0
        if not pushes[row]:
            apart = own & EVALUATES != 0 or during[row]
            flags[row] = own | (APART | BEGINS if apart else 0)
            continue
        above = close(thread, now, end, stacks)
        if free[0] < 0:
            return row
        around, around_flags, depth[row] = -1, 0, 0
        if above >= 0:
            around, around_flags = near[above], inside[above]
            parent[row], depth[row] = numbered[above], level[above] + 1
            around_pass[row], passes[row] = passing[above], passed[above]
        own |= around_flags & (EVALUATES | DIFFERENTIATES)
        if own & EVALUATES != 0 or during[row]:
            own |= APART
        # What a range says counts in training only, so one set apart covers none that is not.
        repeats = stage >= 0 and around == stage
        covered = repeats and (own & APART != 0 or around_flags & COVERED == 0)
        begins = own & APART != 0 and around_flags & APART == 0
        flags[row] = own | (COVERED if covered else 0) | (BEGINS if begins else 0)
        hides = around_flags & COVERED != 0 if stage < 0 else own & APART != 0
        place = put(thread, end, stacks)
        numbered[place], level[place] = numbers[row], depth[row]
        near[place] = around if stage < 0 else stage
        is_pass = 0 <= stage < PASSES
        passing[place] = numbers[row] if is_pass else around_pass[row]
        passed[place] = passes[row] + is_pass
        inside[place] = own | (COVERED if hides else 0)
    return starts.size


def note_steps(rows: Arrays, steps: Arrays, numbered: Array, seen: Arrays) -> None:
    """Note in which steps ranges of each name begin.

    Parameters
    ----------
    rows
        ``team, start, name`` of ranges, by start.
    steps
        ``first, start, end, number, at``: the steps of team t are the rows from ``first[t]`` to
        ``first[t + 1]`` of the others; ``at[t]`` is the one that the team has come to.
    numbered
        For each name, whether it holds a number.
    seen
        ``lowest, highest`` number of a step of each name.
    """
    teams, starts, names = rows
    first, begins, ends, number, at = steps
    lowest, highest = seen
    for row in range(starts.size):
        name, team, now = names[row], teams[row], starts[row]
        if not numbered[name]:
            continue
        place = advance(team, now, first, begins, at)
        if place >= first[team] and now < ends[place] and number[place] >= 0:
            lowest[name] = min(lowest[name], number[place])
            highest[name] = max(highest[name], number[place])


@inner
def slot_of(process: int, correlation: int, keys: Arrays, slots: Array) -> int:
    """Return the place of a key in a hash table of calls, or the free one that it would take."""
    processes, correlations = keys
    mask = slots.size - 1
    folded = (correlation >> 3 ^ correlation >> 31) & 0xFFF_FFFF
    mixed = folded * 2_654_435_761 + process * 1_640_531_527
    slot = (((mixed >> 20) << 3) + (correlation & 7)) & mask
    while slots[slot] >= 0 and (
        correlations[slots[slot]] != correlation or processes[slots[slot]] != process
    ):
        slot = (slot + 1) & mask
    return slot


def index_calls(keys: Arrays, slots: Array) -> int:
    """Fill a hash table of calls by process and correlation id.

    Parameters
    ----------
    keys
        ``process, correlation`` of calls; a negative process stands for a call without id.
    slots
        The table, a power of two of places, all -1. Eight ids that follow each other go side by
        side, for the sake of the processor's cache, and where that is differs from eight to eight;
        what finds its place taken goes to the next free one.

    Returns
    -------
    How many calls repeat the key of an earlier one; these are not in the table.
    """
    processes, correlations = keys
    repeated = 0
    for row in range(processes.size):
        if processes[row] < 0:
            continue
        slot = slot_of(processes[row], correlations[row], keys, slots)
        if slots[slot] >= 0:
            repeated += 1
        else:
            slots[slot] = row
    return repeated


def look_up(wanted: Arrays, keys: Arrays, slots: Array, first: int, found: Array) -> None:
    """Find the call of each op.

    Parameters
    ----------
    wanted
        ``process, correlation`` of ops; a negative process stands for an op without id.
    keys, slots
        What `index_calls` was given.
    first
        The number of the first of these calls.
    found
        The number of each op's call; only what is -1 is looked up.
    """
    processes, correlations = wanted
    for row in range(processes.size):
        if processes[row] < 0 or found[row] >= 0:
            continue
        slot = slot_of(processes[row], correlations[row], keys, slots)
        if slots[slot] >= 0:
            found[row] = first + slots[slot]


def span(keys: Arrays, least: Array, most: Array) -> None:
    """Find the least and the largest correlation id of each process."""
    processes, correlations = keys
    for row in range(processes.size):
        process, correlation = processes[row], correlations[row]
        if process >= 0:
            least[process] = min(least[process], correlation)
            most[process] = max(most[process], correlation)


def count_launches(
    found: Arrays, first: int, threads: Array, launching: Array, by_thread: Arrays
) -> None:
    """Mark the calls that launched an op, and count the ops that each thread launched.

    Parameters
    ----------
    found
        The numbers of the calls of ops, and the devices of those that are kernels, else -1.
    first, threads
        The number of the first call of a chunk, and the thread of each.
    launching
        Which of these calls launched an op; updated.
    by_thread
        How many ops each thread launched, and the device on which it launched kernels, -1 for none
        and -2 for several; updated.
    """
    calls, kernels = found
    launches, devices = by_thread
    for row in range(calls.size):
        call = calls[row] - first
        if 0 <= call < threads.size and calls[row] >= 0:
            thread, device = threads[call], kernels[row]
            launching[call] = True
            launches[thread] += 1
            if device >= 0 and devices[thread] != device:
                devices[thread] = device if devices[thread] == -1 else -2


def stand(found: Array, first: int, calls: Arrays, out: Arrays) -> None:
    """Copy to ops where their calls stand.

    Parameters
    ----------
    found
        The numbers of the calls of ops.
    first
        The number of the first call of a chunk.
    calls
        ``thread, start, end, range, step, evidence`` of these calls.
    out
        The same of the ops; those of other chunks' calls are left as they are.
    """
    thread, start, end, where, step, evidence = calls
    o_thread, o_start, o_end, o_range, o_step, o_evidence = out
    for row in range(found.size):
        call = found[row] - first
        if found[row] >= 0 and 0 <= call < thread.size:
            o_thread[row], o_start[row], o_end[row] = thread[call], start[call], end[call]
            o_range[row], o_step[row], o_evidence[row] = where[call], step[call], evidence[call]


def number_distinct(numbers: Array, place: Array, out: Array) -> int:
    """Give each distinct number a number of its own, in the order in which they come.

    Parameters
    ----------
    numbers
        From 0 on.
    place
        For each number that may come -1; becomes which distinct one it is.
    out
        Becomes which distinct number each is.

    Returns
    -------
    How many distinct ones there are.
    """
    count = 0
    for row in range(numbers.size):
        number = numbers[row]
        if place[number] < 0:
            place[number] = count
            count += 1
        out[row] = place[number]
    return count


MORE_ROWS, FULL_STACK, FULL_PATHS = 0, 1, 2
"""Why `follow` returns: rows ran out, or room did."""


@inner
def open_on(thread: int, now: int, opened: Opened) -> tuple[int, int, int]:
    """Return of what is open on a thread the innermost range, the nearest stage, and all flags."""
    ranges, staged, (evaluates, differentiates), _ = opened
    top, nearest = close(thread, now, now, ranges), close(thread, now, now, staged)
    flag = EVALUATES if evaluates[thread] > now else 0
    flag |= DIFFERENTIATES if differentiates[thread] > now else 0
    return (ranges[4][top] if top >= 0 else -1), (staged[4][nearest] if nearest >= 0 else -1), flag


@inner
def open_in(process: int, now: int, shared: Array) -> int:
    """Return the stage of start/end ranges, counted from 1: evaluation, or the only one open.

    An update that is open around a pass does not count.
    """
    spans = shared[process]
    if spans[METRIC_EVALUATION, 1] > now:
        return METRIC_EVALUATION + 1
    only, count, around = 0, 0, spans[UPDATE]
    for stage in range(spans.shape[0]):
        begin, until = spans[stage]
        if until > now:
            only, count = stage + 1, count + 1
            if stage < UPDATE and around[0] <= begin and now < around[1] and until <= around[1]:
                return only
    return only if count == 1 else 0


@inner
def share(process: int, stage: int, now: int, until: int, shared: Array) -> None:
    """Open a start/end range in its process, if it means a stage."""
    if stage >= 0 and until > shared[process, stage, 1]:
        shared[process, stage, 0], shared[process, stage, 1] = now, until


@inner
def pass_range(
    row: int, ranges: Arrays, opened: Opened, label: int, paths: Arrays, out: Array
) -> int:
    """Open a range, and return whether there was room: `MORE_ROWS` if so."""
    number, thread, process, start, end, pushes, stage, flags, marks, _, _ = ranges
    pushed, staged, (evaluates, differentiates), shared = opened
    now, on, until, around = start[row], thread[row], end[row], -1
    if 2 * (paths[4][0] + 1) > paths[0].size:
        return FULL_PATHS
    if not pushes[row]:
        share(process[row], stage[row], now, until, shared)
        out[row] = path_number(-1, label, paths)
        return MORE_ROWS
    top = close(on, now, until, pushed)
    if stage[row] >= 0:
        close(on, now, until, staged)
    if pushed[3][0] < 0 or staged[3][0] < 0:
        return FULL_STACK
    if top >= 0:
        around = pushed[5][top]
    out[row] = path_number(around, label, paths)
    place = put(on, until, pushed)
    pushed[4][place], pushed[5][place] = number[row], out[row]
    if stage[row] >= 0:
        staged[4][put(on, until, staged)] = stage[row]
    if flags[row] & EVALUATES != 0:
        evaluates[on] = max(evaluates[on], until)
    if marks[row]:
        differentiates[on] = max(differentiates[on], until)
    return MORE_ROWS


@inner
def note_launch(thread: int, team: int, now: int, windows: Arrays, threads: Arrays) -> bool:
    """Count a launch for its thread, and return whether it lies in a backward window.

    A window is fed if anything is launched in it, or between the one before and it; and used if a
    thread that may be an autograd thread launches in it.
    """
    first, start, end, unit, at, last, fed, used, begun, ended = windows
    during, inside, served, latest, may_serve = threads
    begun[team], ended[team] = min(begun[team], now), now
    window = advance(team, now, first, start, at)
    lies_inside: bool = window >= first[team] and now < end[window]
    if lies_inside:
        fed[window] = True
        used[window] = used[window] or may_serve[thread]
    elif window + 1 < first[team + 1]:
        fed[window + 1] = True
    if window < first[team] or now > last[team]:
        return False
    during[thread] += 1
    if lies_inside:
        inside[thread] += 1
        if latest[thread] != unit[window]:
            latest[thread] = unit[window]
            served[thread] += 1
    return lies_inside


def follow(
    position: Array,
    ranges: Arrays,
    calls: Arrays,
    done: tuple[bool, bool],
    opened: Opened,
    steps: Arrays,
    windows: Arrays,
    trainers: Array,
    labels: Arrays,
    paths: Arrays,
    threads: Arrays,
    out_ranges: Arrays,
    out_calls: Arrays,
) -> int:
    """Go through ranges and calls in the order of time, and say where each of them stands.

    Parameters
    ----------
    position
        The next row of the ranges and of the calls; updated.
    ranges
        ``number, thread, process, start, end, pushes, stage, flags, marks, name, team``.
    calls
        ``thread, process, start, launches, team``: what launches nothing is passed over.
    done
        Whether no more ranges, and no more calls, follow these.
    opened
        ``ranges, staged, flagged, shared``. On each thread, the stacks of what is open with the
        values ``number, path``, and of what has a stage with the value ``stage``; until when a
        range of metric evaluation is open, and an autograd marker. For each process and stage,
        the begin and the end of the start/end range of that stage that ends last.
    steps
        ``first, start, end, number, at`` as for `note_steps`: training steps.
    windows
        The same of backward windows, with the number of their unit, followed by ``last, fed, used,
        begun, ended``: when the last one of each team ends; what `note_launch` says of each;
        and the first and the last launch of each team, so far.
    trainers
        The training thread of each team, or -1.
    labels
        ``inside, outside``: what a name is called in a path, inside a numbered step and outside.
    paths
        The tree of paths, explained with `path_number`.
    threads
        ``during, inside, served, last, may_serve`` by thread: launches between the first and last
        backward window of the team, those inside windows, the units of these, the last unit,
        and whether it may be an autograd thread.
    out_ranges
        ``path`` of each range.
    out_calls
        ``range, step, evidence`` of each call: `step` is a row of `steps` or -1; `evidence` is
        explained with `Evidence`.

    Returns
    -------
    Why it stopped.
    """
    r_start, r_name, r_team = ranges[3], ranges[9], ranges[10]
    c_thread, c_process, c_start, c_launches, c_team = calls
    s_first, s_start, s_end, s_number, s_at = steps
    o_range, o_step, o_evidence = out_calls
    r, c = position[0], position[1]
    while True:
        more_ranges, more_calls = r < r_start.size, c < c_start.size
        if not (more_ranges or more_calls) or not (
            (more_ranges or done[0]) and (more_calls or done[1])
        ):
            position[0], position[1] = r, c
            return MORE_ROWS
        takes_range = more_ranges and (not more_calls or r_start[r] <= c_start[c])
        now = r_start[r] if takes_range else c_start[c]
        team = r_team[r] if takes_range else c_team[c]
        step = advance(team, now, s_first, s_start, s_at)
        if step < s_first[team] or now >= s_end[step]:
            step = -1
        if takes_range:
            label = labels[1][r_name[r]]
            if step >= 0 and s_number[step] >= 0:
                label = labels[0][r_name[r]]
            stopped = pass_range(r, ranges, opened, label, paths, out_ranges[0])
            if stopped != MORE_ROWS:
                position[0], position[1] = r, c
                return stopped
            r += 1
            continue
        o_range[c], o_step[c], o_evidence[c] = -1, step, 0
        if c_launches[c]:
            thread, trainer = c_thread[c], trainers[team]
            innermost, stage, flag = open_on(thread, now, opened)
            t_stage, t_flag = stage, flag
            if trainer != thread:
                _, t_stage, t_flag = (-1, -1, 0) if trainer < 0 else open_on(trainer, now, opened)
            in_window = note_launch(thread, team, now, windows, threads)
            o_range[c] = innermost
            o_evidence[c] = (
                (stage + 1)
                | open_in(c_process[c], now, opened[3]) << 3
                | (t_stage + 1) << 6
                | (flag & 1) << 9
                | (flag >> 1) << 10
                | (t_flag & 1) << 11
                | (1 << 12 if in_window else 0)
            )
        c += 1
