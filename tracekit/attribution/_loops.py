"""Loops of attribution that carry state from row to row.

A loop whose arrays are full returns where it stopped; the caller enlarges them and calls it again
from there.

The open ranges of a thread are kept as a stack, in order of start (see `Stacks`). A range that ends
before a later-started one is never the innermost again: while the later one is open that one is
innermost, and afterwards both have ended. So a push first drops every range that ends earlier than
the new one. Ends therefore never grow from bottom to top, ended ranges are on top, and each range
is pushed and popped once, however deeply ranges nest and however they cross.
"""

from __future__ import annotations

from tracekit.attribution._arrays import (
    Array,
    Bones,
    CallRows,
    NamedRows,
    NameLabels,
    NameMeanings,
    Nested,
    NestedRows,
    OpenAround,
    Opened,
    RangeRows,
    SeenThreads,
    Serving,
    Stack,
    Stretches,
    Teams,
    Turn,
    Windows,
)
from tracekit.attribution._evidence import (
    IN_AUTOGRAD,
    IN_EVALUATION,
    IN_WINDOW,
    PROCESS_STAGE,
    RANGE_STAGE,
    TRAINER_EVALUATES,
    TRAINER_STAGE,
)
from tracekit.model import PathNodes, path_number
from tracekit.support.inner import inner

PASSES = 3
"""Number of stages that are passes, which come first in the list of stages: FP, BP and WU."""
UPDATE, INPUT, METRIC_EVALUATION = 2, 3, 4
"""Places of WU, IO and ME in the list of stages."""

EVALUATES, DIFFERENTIATES, COVERED, BEGINS, APART = 1, 2, 4, 8, 16
"""Flags of a range. EVALUATES: it lies in a range of metric evaluation, or is one. DIFFERENTIATES:
it lies in an autograd marker, or is one. COVERED: it lies in a range of its own stage, so it adds
nothing. APART: it is set apart from training, because it lies in evaluation or its process is
evaluating when it begins. BEGINS: it is the outermost range with APART."""


@inner
def close(line: int, now: int, end: int, stack: Stack) -> int:
    """Pop ranges from a thread's stack; return the slot of the new top range, -1 if none is left.

    Ranges that have ended by time `now` are popped, and ranges that end before `end`. `end` is the
    end of the range to push next, which must lie inside the ranges left. `line` is the thread.
    """
    until, below = stack.until, stack.below
    top: int = stack.tops[line]
    while top >= 0 and (until[top] <= now or until[top] < end):
        under = below[top]
        below[top], stack.free[0] = stack.free[0], top
        top = under
    stack.tops[line] = top
    return top


@inner
def put(line: int, end: int, stack: Stack) -> int:
    """Push a range that is open until `end` on the stack of thread `line`; return its slot.

    The stack must have a free slot.
    """
    place: int = stack.free[0]
    stack.free[0], stack.below[place] = stack.below[place], stack.tops[line]
    stack.until[place], stack.tops[line] = end, place
    return place


@inner
def advance(team: int, now: int, stretches: Stretches) -> int:
    """Advance a training thread (team) to its last interval that starts by `now`.

    Returns the row of that interval; if none has started yet, the row before the team's first one.
    """
    place: int = stretches.at[team]
    while place + 1 < stretches.first[team + 1] and stretches.start[place + 1] <= now:
        place += 1
    stretches.at[team] = place
    return place


@inner
def stretch_at(team: int, now: int, stretches: Stretches) -> int:
    """Return the row of the interval of a training thread (team) open at `now`; -1 if none is."""
    place = advance(team, now, stretches)
    return place if place >= stretches.first[team] and now < stretches.end[place] else -1


@inner
def flags_of(
    row: int, stage: int, name_flags: int, above: int, ranges: NestedRows, opened: OpenAround
) -> int:
    """Return a range's flags: those of its name (`name_flags`), and those it inherits.

    A range inherits from the innermost range around it on its thread. `above` is the slot of that
    outer range on the stack, -1 for none.
    """
    around_flags = opened.flags[above] if above >= 0 else 0
    flags: int = name_flags | around_flags & (EVALUATES | DIFFERENTIATES)
    if flags & EVALUATES != 0 or ranges.during[row]:
        flags |= APART
    # What a range says counts in training only, so one set apart covers none that is not.
    repeats = stage >= 0 and above >= 0 and opened.stage[above] == stage
    if repeats and (flags & APART != 0 or around_flags & COVERED == 0):
        flags |= COVERED
    if flags & APART != 0 and around_flags & APART == 0:
        flags |= BEGINS
    return flags


@inner
def notice(row: int, stage: int, flags: int, ranges: NestedRows, seen: SeenThreads) -> None:
    """Record what a range shows about its thread: the process, a pass, or input.

    A range whose stage is FP, BP or WU, outside of autograd markers, adds 1 to the thread's number
    of passes of that stage. A range whose stage is IO marks the thread as one with input.
    """
    thread = ranges.thread[row]
    seen.process[thread] = ranges.process[row]
    if stage == INPUT:
        seen.loading[thread] = True
    if 0 <= stage < PASSES and flags & DIFFERENTIATES == 0:
        seen.passes[thread, stage] += 1


@inner
def tells(row: int, stage: int, flags: int, passes: int, ranges: NestedRows) -> bool:
    """Test whether a range may mark a pass, metric evaluation, or the stage of its whole process.

    That is so if the range begins evaluation, is a start/end range with a stage, or has stage FP,
    BP or WU. In the last case, a range around it must not have the same stage, unless exactly one
    range of a pass encloses it: that outer range may later be found to be no pass.
    """
    repeats = flags & COVERED != 0 and passes != 1
    is_pass = 0 <= stage < PASSES and not repeats
    found: bool = is_pass or flags & BEGINS != 0 or (stage >= 0 and not ranges.pushes[row])
    return found


@inner
def open_inside(
    row: int, stage: int, flags: int, above: int, ranges: NestedRows, opened: OpenAround
) -> None:
    """Push a range on its thread's stack, inside the range in slot `above` (-1: none).

    The stack must have a free slot.
    """
    place, number = put(ranges.thread[row], ranges.end[row], opened.stack), ranges.first + row
    around, around_flags, level, of_pass, passes = -1, 0, -1, -1, 0
    if above >= 0:
        around, around_flags, level = opened.stage[above], opened.flags[above], opened.level[above]
        of_pass, passes = opened.of_pass[above], opened.passes[above]
    is_pass = 0 <= stage < PASSES
    hides = around_flags & COVERED != 0 if stage < 0 else flags & APART != 0
    opened.number[place], opened.level[place] = number, level + 1
    opened.stage[place] = around if stage < 0 else stage
    opened.of_pass[place] = number if is_pass else of_pass
    opened.passes[place] = passes + is_pass
    opened.flags[place] = flags & ~COVERED | (COVERED if hides else 0)


def nest(
    first: int,
    ranges: NestedRows,
    meanings: NameMeanings,
    opened: OpenAround,
    found: Nested,
    bones: Bones,
    seen: SeenThreads,
) -> int:
    """Find the parent of each range: the innermost range around it on its thread.

    Parameters
    ----------
    first
        Row to begin with.
    ranges
        The ranges, by start.
    meanings
        Meanings of their names.
    opened
        Open ranges of each thread; updated.
    found
        Output: parent, depth and flags of each range.
    bones
        Output: ranges that may mark a step, a pass or evaluation (the skeleton); appended to.
    seen
        Observations about threads; updated.

    Returns
    -------
    The row at which a stack was full; the number of rows if all were processed.
    """
    for row in range(first, len(ranges.start)):
        thread, name, above = ranges.thread[row], ranges.name[row], -1
        if ranges.pushes[row]:
            above = close(thread, ranges.start[row], ranges.end[row], opened.stack)
            if opened.stack.free[0] < 0:
                return row
        stage, around, passes = meanings.place[name], -1, 0
        found.parent[row], found.depth[row] = -1, 0 if ranges.pushes[row] else -1
        if above >= 0:
            found.parent[row], found.depth[row] = opened.number[above], opened.level[above] + 1
            around, passes = opened.of_pass[above], opened.passes[above]
        name_flags = EVALUATES if stage == METRIC_EVALUATION else 0
        if meanings.marks[name]:
            name_flags |= DIFFERENTIATES
            seen.marked[thread] = True
        flags = flags_of(row, stage, name_flags, above, ranges, opened)
        found.flags[row] = flags
        notice(row, stage, flags, ranges, seen)
        if meanings.may_be_step[name] or tells(row, stage, flags, passes, ranges):
            bones.row[bones.total[0]], bones.around[bones.total[0]] = row, around
            bones.total[0] += 1
        if ranges.pushes[row]:
            open_inside(row, stage, flags, above, ranges, opened)
    return len(ranges.start)


def note_steps(
    rows: NamedRows, steps: Stretches, numbered: Array, lowest: Array, highest: Array
) -> None:
    """Record for each range name the lowest and highest step number in which its ranges begin.

    Parameters
    ----------
    rows
        The ranges.
    steps
        Steps of each group of threads that train together.
    numbered
        Per name: whether the name contains a number. Other names are skipped.
    lowest, highest
        Per name: lowest and highest number of these steps; updated.
    """
    for row in range(len(rows.start)):
        name = rows.name[row]
        if not numbered[name]:
            continue
        step = stretch_at(rows.team[row], rows.start[row], steps)
        if step >= 0 and steps.number[step] >= 0:
            lowest[name] = min(lowest[name], steps.number[step])
            highest[name] = max(highest[name], steps.number[step])


MORE_ROWS, FULL_STACK, FULL_PATHS = 0, 1, 2
"""Why `follow` returns: a chunk is used up, a stack is full, or the tree of paths is full."""


@inner
def stage_on(thread: int, now: int, opened: Opened) -> int:
    """Return 1 + the stage (its index) of a thread's innermost open range with one; 0 for none.

    A range is open if it has begun and ends after `now`.
    """
    top = close(thread, now, now, opened.stages.stack)
    return opened.stages.stage[top] + 1 if top >= 0 else 0


@inner
def open_in(process: int, now: int, opened: Opened) -> int:
    """Return 1 + the stage (its index) of a process's start/end ranges open at `now`; 0 if unclear.

    The stage is ME if a range of metric evaluation is open, else the only stage with an open range.
    If no stage or several stages have open ranges, it is unclear. An open range of the weight
    update does not count if it encloses an open range of a pass.
    """
    if opened.shares[process] <= now:
        return 0
    spans = opened.shared
    if spans[process, METRIC_EVALUATION, 1] > now:
        return METRIC_EVALUATION + 1
    only, count, last = 0, 0, spans[process, UPDATE, 1]
    for stage in range(spans.shape[1]):
        begin, until = spans[process, stage, 0], spans[process, stage, 1]
        if until > now:
            only, count = stage + 1, count + 1
            if stage < UPDATE and spans[process, UPDATE, 0] <= begin and now < last >= until:
                return only
    return only if count == 1 else 0


@inner
def share(process: int, stage: int, now: int, until: int, opened: Opened) -> None:
    """Record a start/end range if it ends later than all earlier ones of its process and stage.

    `now` and `until` are its start and end, ns. A range without a stage (-1) is not recorded.
    """
    spans = opened.shared
    if stage >= 0 and until > spans[process, stage, 1]:
        spans[process, stage, 0], spans[process, stage, 1] = now, until
        opened.shares[process] = max(opened.shares[process], until)


@inner
def pass_range(
    row: int, turn: Turn, meanings: NameMeanings, opened: Opened, label: int, nodes: PathNodes
) -> int:
    """Open a range on its thread, or in its process if it is a start/end range.

    Returns `MORE_ROWS` if that worked, `FULL_STACK` or `FULL_PATHS` if the arrays are full: then
    the row is to be repeated once they are enlarged.

    Parameters
    ----------
    row
        Row of the range in the chunk.
    turn
        The chunk of ranges that is being followed; the number of the range's path is written to it.
    meanings
        Meanings of range names.
    opened
        Open ranges; updated.
    label
        Label of the range in a path.
    nodes
        The tree of paths; added to.
    """
    ranges, paths = turn.ranges, turn.paths
    thread, stage = ranges.thread[row], meanings.place[ranges.name[row]]
    now, until = ranges.start[row], ranges.end[row]
    if not ranges.pushes[row]:
        share(ranges.process[row], stage, now, until, opened)
        paths[row] = path_number(-1, label, nodes)
        return FULL_PATHS if paths[row] < 0 else MORE_ROWS
    top = close(thread, now, until, opened.ranges.stack)
    if stage >= 0:
        close(thread, now, until, opened.stages.stack)
    if opened.ranges.stack.free[0] < 0 or opened.stages.stack.free[0] < 0:
        return FULL_STACK
    paths[row] = path_number(opened.ranges.path[top] if top >= 0 else -1, label, nodes)
    if paths[row] < 0:
        return FULL_PATHS
    place = put(thread, until, opened.ranges.stack)
    opened.ranges.number[place], opened.ranges.path[place] = ranges.first + row, paths[row]
    if stage >= 0:
        opened.stages.stage[put(thread, until, opened.stages.stack)] = stage
    if ranges.flags[row] & EVALUATES != 0:
        opened.evaluates[thread] = max(opened.evaluates[thread], until)
    if meanings.marks[ranges.name[row]]:
        opened.differentiates[thread] = max(opened.differentiates[thread], until)
    return MORE_ROWS


@inner
def note_launch(thread: int, team: int, now: int, windows: Windows, serving: Serving) -> bool:
    """Count a thread's launch at `now`; return whether it lies in a backward window of its team.

    A backward window is an interval in which a backward pass of the training thread may run. A
    launch marks the window that it lies in (or, between two windows, the next one) as `fed`. A
    launch in a window by a possible autograd thread marks the window as `used`.
    """
    stretches = windows.stretches
    if stretches.first[team] == stretches.first[team + 1]:
        return False
    windows.begun[team], windows.ended[team] = min(windows.begun[team], now), now
    window = advance(team, now, stretches)
    has_begun = window >= stretches.first[team]
    lies_inside: bool = has_begun and now < stretches.end[window]
    if lies_inside:
        windows.fed[window] = True
        windows.used[window] = windows.used[window] or serving.may_serve[thread]
    elif window + 1 < stretches.first[team + 1]:
        windows.fed[window + 1] = True
    if not has_begun or now > windows.last[team]:
        return False
    serving.during[thread] += 1
    if lies_inside:
        serving.inside[thread] += 1
        if serving.latest[thread] != stretches.number[window]:
            serving.latest[thread] = stretches.number[window]
            serving.served[thread] += 1
    return lies_inside


@inner
def evidence_of(row: int, calls: CallRows, opened: Opened, teams: Teams, serving: Serving) -> int:
    """Return evidence bits (see `_evidence`) for the stage of the op that a call launches.

    The evidence is the ranges that are open at the call on its thread, on the training thread and
    in its process, and the backward windows (when a backward pass may run).
    """
    now, thread, trainer = calls.start[row], calls.thread[row], teams.trainer[calls.team[row]]
    evidence = stage_on(thread, now, opened) << RANGE_STAGE
    evidence |= open_in(calls.process[row], now, opened) << PROCESS_STAGE
    if opened.evaluates[thread] > now:
        evidence |= IN_EVALUATION
    if opened.differentiates[thread] > now:
        evidence |= IN_AUTOGRAD
    if trainer >= 0:
        evidence |= stage_on(trainer, now, opened) << TRAINER_STAGE
        if opened.evaluates[trainer] > now:
            evidence |= TRAINER_EVALUATES
    if note_launch(thread, calls.team[row], now, teams.windows, serving):
        evidence |= IN_WINDOW
    return evidence


@inner
def pass_call(row: int, turn: Turn, opened: Opened, teams: Teams, serving: Serving) -> None:
    """Record for a call the step and innermost range around it, and the evidence for a stage."""
    calls, found = turn.calls, turn.found
    now, thread = calls.start[row], calls.thread[row]
    found.range[row], found.evidence[row] = -1, 0
    step = stretch_at(calls.team[row], now, teams.steps)
    found.step[row] = teams.iterations[step] if step >= 0 else -1
    if calls.launches[row]:
        innermost = close(thread, now, now, opened.ranges.stack)
        if innermost >= 0:
            found.range[row] = opened.ranges.number[innermost]
        found.evidence[row] = evidence_of(row, calls, opened, teams, serving)


@inner
def label_of(row: int, ranges: RangeRows, steps: Stretches, labels: NameLabels) -> int:
    """Return the path label of a range: its name has one label in numbered steps, one elsewhere."""
    step = stretch_at(ranges.team[row], ranges.start[row], steps)
    is_inside = step >= 0 and steps.number[step] >= 0
    name = ranges.name[row]
    label: int = labels.inside[name] if is_inside else labels.outside[name]
    return label


def follow(
    turn: Turn,
    meanings: NameMeanings,
    opened: Opened,
    teams: Teams,
    serving: Serving,
    labels: NameLabels,
    nodes: PathNodes,
) -> int:
    """Merge ranges and calls in order of time; record paths of ranges, contexts of calls.

    Parameters
    ----------
    turn
        The chunks of ranges and calls; output is written to it.
    meanings
        Meanings of range names.
    opened
        Open ranges; updated.
    teams
        Steps, backward windows and training thread of each team.
    serving
        Evidence for autograd threads; updated.
    labels
        Path labels of range names.
    nodes
        The tree of paths, explained in `path_number`; added to.

    Returns
    -------
    Why it stopped: `MORE_ROWS` (a chunk is used up), `FULL_STACK` or `FULL_PATHS` (arrays are
    full).
    """
    ranges, calls = turn.ranges, turn.calls
    next_range, next_call = turn.position[0], turn.position[1]
    stopped = MORE_ROWS
    while stopped == MORE_ROWS:
        has_ranges, has_calls = next_range < len(ranges.start), next_call < len(calls.start)
        awaits_ranges = not has_ranges and not turn.last_ranges
        awaits_calls = not has_calls and not turn.last_calls
        if awaits_ranges or awaits_calls or not (has_ranges or has_calls):
            break
        # A range is open to what starts together with it.
        if has_ranges and (not has_calls or ranges.start[next_range] <= calls.start[next_call]):
            label = label_of(next_range, ranges, teams.steps, labels)
            stopped = pass_range(next_range, turn, meanings, opened, label, nodes)
            next_range += stopped == MORE_ROWS
        else:
            pass_call(next_call, turn, opened, teams, serving)
            next_call += 1
    turn.position[0], turn.position[1] = next_range, next_call
    return stopped
