"""Loops of attribution that carry state from row to row.

A loop that runs out of room returns where it stopped, and is called again from there with more.

What is open on a thread is a stack, in the order of start (see `Stacks`). Of what is asked later,
nothing needs a range that ends before one that started after it: while that one is open it is the
later one, and when it has ended so has the other. So what ends earlier goes when a range is put on
top, ends never grow from the bottom to the top, what has ended is on top, and each range is put and
taken once, however deep ranges nest and however they cross.
"""

from __future__ import annotations

from tracekit.attribution._columns import (
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
"""The first places in the list of stages are of passes: FP, BP and WU."""
UPDATE, INPUT, METRIC_EVALUATION = 2, 3, 4
"""The places of WU, IO and ME in the list of stages."""

EVALUATES, DIFFERENTIATES, COVERED, BEGINS, APART = 1, 2, 4, 8, 16
"""Flags of a range: it lies in a range of metric evaluation; in an autograd marker; in a range of
its own stage, which says all that it would. It is set apart from training, because it lies in
evaluation or its process is evaluating when it begins, and it is the outermost such range."""


@inner
def close(line: int, now: int, end: int, stack: Stack) -> int:
    """Pop items that end before `end` off a line's stack; return the top."""
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
    """Push an item that is open until `end` on a line's stack, and return its place.

    There must be room.
    """
    place: int = stack.free[0]
    stack.free[0], stack.below[place] = stack.below[place], stack.tops[line]
    stack.until[place], stack.tops[line] = end, place
    return place


@inner
def advance(team: int, now: int, stretches: Stretches) -> int:
    """Return a team's last interval that has begun; the one before its first if none has."""
    place: int = stretches.at[team]
    while place + 1 < stretches.first[team + 1] and stretches.start[place + 1] <= now:
        place += 1
    stretches.at[team] = place
    return place


@inner
def stretch_at(team: int, now: int, stretches: Stretches) -> int:
    """Return a team's interval that is open at a time; -1 if none is."""
    place = advance(team, now, stretches)
    return place if place >= stretches.first[team] and now < stretches.end[place] else -1


@inner
def flags_of(
    row: int, stage: int, own: int, above: int, ranges: NestedRows, opened: OpenAround
) -> int:
    """Return the flags of a range: its own, and those it inherits from the range at `above`."""
    around_flags = opened.flags[above] if above >= 0 else 0
    flags: int = own | around_flags & (EVALUATES | DIFFERENTIATES)
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
    """Record evidence on a thread from one of its ranges."""
    thread = ranges.thread[row]
    seen.process[thread] = ranges.process[row]
    if stage == INPUT:
        seen.loading[thread] = True
    if 0 <= stage < PASSES and flags & DIFFERENTIATES == 0:
        seen.passes[thread, stage] += 1


@inner
def tells(row: int, stage: int, flags: int, passes: int, ranges: NestedRows) -> bool:
    """Tell whether a range belongs to the skeleton by its flags, whatever its name.

    What it repeats of the one around it counts where that one turns out to say nothing.
    """
    repeats = flags & COVERED != 0 and passes != 1
    is_pass = 0 <= stage < PASSES and not repeats
    found: bool = is_pass or flags & BEGINS != 0 or (stage >= 0 and not ranges.pushes[row])
    return found


@inner
def open_inside(
    row: int, stage: int, flags: int, above: int, ranges: NestedRows, opened: OpenAround
) -> None:
    """Push a range on the stack inside the range at `above`, if any. There must be room."""
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
    meant: NameMeanings,
    opened: OpenAround,
    found: Nested,
    bones: Bones,
    seen: SeenThreads,
) -> int:
    """Find the enclosing range of each range on its thread.

    Parameters
    ----------
    first
        The row to begin with.
    ranges
        The ranges.
    meant
        What their names mean.
    opened
        What is open on each thread.
    found
        Becomes what is around each range.
    bones
        The ranges that belong to the skeleton; added to.
    seen
        What is noticed of threads; updated.

    Returns
    -------
    The row at which there was no room for more; the number of rows where there was for all.
    """
    for row in range(first, ranges.start.size):
        thread, name, above = ranges.thread[row], ranges.name[row], -1
        if ranges.pushes[row]:
            above = close(thread, ranges.start[row], ranges.end[row], opened.stack)
            if opened.stack.free[0] < 0:
                return row
        stage, around, passes = meant.place[name], -1, 0
        found.parent[row], found.depth[row] = -1, 0 if ranges.pushes[row] else -1
        if above >= 0:
            found.parent[row], found.depth[row] = opened.number[above], opened.level[above] + 1
            around, passes = opened.of_pass[above], opened.passes[above]
        own = EVALUATES if stage == METRIC_EVALUATION else 0
        if meant.marks[name]:
            own |= DIFFERENTIATES
            seen.marked[thread] = True
        flags = flags_of(row, stage, own, above, ranges, opened)
        found.flags[row] = flags
        notice(row, stage, flags, ranges, seen)
        if meant.may_be_step[name] or tells(row, stage, flags, passes, ranges):
            bones.row[bones.total[0]], bones.around[bones.total[0]] = row, around
            bones.total[0] += 1
        if ranges.pushes[row]:
            open_inside(row, stage, flags, above, ranges, opened)
    return ranges.start.size


def note_steps(
    rows: NamedRows, steps: Stretches, numbered: Array, lowest: Array, highest: Array
) -> None:
    """Record the first and last step in which ranges of each name begin.

    Parameters
    ----------
    rows
        The ranges.
    steps
        The steps of teams.
    numbered
        For each name, whether it holds a number.
    lowest, highest
        By name, the numbers of these steps; updated.
    """
    for row in range(rows.start.size):
        name = rows.name[row]
        if not numbered[name]:
            continue
        step = stretch_at(rows.team[row], rows.start[row], steps)
        if step >= 0 and steps.number[step] >= 0:
            lowest[name] = min(lowest[name], steps.number[step])
            highest[name] = max(highest[name], steps.number[step])


MORE_ROWS, FULL_STACK, FULL_PATHS = 0, 1, 2
"""Why `follow` returns: rows ran out, or room did."""


@inner
def stage_on(thread: int, now: int, opened: Opened) -> int:
    """Return the nearest stage that is open on a thread, counted from 1; 0 for none."""
    top = close(thread, now, now, opened.stages.stack)
    return opened.stages.stage[top] + 1 if top >= 0 else 0


@inner
def open_in(process: int, now: int, opened: Opened) -> int:
    """Return the stage of start/end ranges, counted from 1: evaluation, or the only one open.

    An update that is open around a pass does not count.
    """
    if opened.shares[process] <= now:
        return 0
    spans = opened.shared[process]
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
def share(process: int, stage: int, now: int, until: int, opened: Opened) -> None:
    """Open a start/end range in its process, if it means a stage."""
    spans = opened.shared[process]
    if stage >= 0 and until > spans[stage, 1]:
        spans[stage, 0], spans[stage, 1] = now, until
        opened.shares[process] = max(opened.shares[process], until)


@inner
def pass_range(
    row: int, turn: Turn, meant: NameMeanings, opened: Opened, label: int, nodes: PathNodes
) -> int:
    """Open a range, and return whether there was room: `MORE_ROWS` if so."""
    ranges, paths = turn.ranges, turn.paths
    thread, stage = ranges.thread[row], meant.place[ranges.name[row]]
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
    if meant.marks[ranges.name[row]]:
        opened.differentiates[thread] = max(opened.differentiates[thread], until)
    return MORE_ROWS


@inner
def note_launch(thread: int, team: int, now: int, windows: Windows, serving: Serving) -> bool:
    """Count a launch for its thread, and return whether it lies in a backward window.

    A window is fed if anything is launched in it, or between the one before and it; and used if a
    thread that may be an autograd thread launches in it.
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
def tell_of(row: int, calls: CallRows, opened: Opened, teams: Teams, serving: Serving) -> int:
    """Return the evidence bits of what is open around a launching call; see `_evidence`."""
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
    """Record the context of a call."""
    calls, found = turn.calls, turn.found
    now, thread = calls.start[row], calls.thread[row]
    found.range[row], found.evidence[row] = -1, 0
    step = stretch_at(calls.team[row], now, teams.steps)
    found.step[row] = teams.iterations[step] if step >= 0 else -1
    if calls.launches[row]:
        innermost = close(thread, now, now, opened.ranges.stack)
        if innermost >= 0:
            found.range[row] = opened.ranges.number[innermost]
        found.evidence[row] = tell_of(row, calls, opened, teams, serving)


@inner
def label_of(row: int, ranges: RangeRows, steps: Stretches, labels: NameLabels) -> int:
    """Return the label of a range in a path."""
    step = stretch_at(ranges.team[row], ranges.start[row], steps)
    is_inside = step >= 0 and steps.number[step] >= 0
    name = ranges.name[row]
    label: int = labels.inside[name] if is_inside else labels.outside[name]
    return label


def follow(
    turn: Turn,
    meant: NameMeanings,
    opened: Opened,
    teams: Teams,
    serving: Serving,
    labels: NameLabels,
    nodes: PathNodes,
) -> int:
    """Merge ranges and calls in order of time, and record the context of each.

    Parameters
    ----------
    turn
        The rows whose turn it is.
    meant
        What names of ranges mean.
    opened
        What is open.
    teams
        What each team does when.
    serving
        What is known of threads; updated.
    labels
        What names are called in a path.
    nodes
        The tree of paths, explained with `path_number`.

    Returns
    -------
    Why it stopped.
    """
    ranges, calls = turn.ranges, turn.calls
    next_range, next_call = turn.position[0], turn.position[1]
    stopped = MORE_ROWS
    while stopped == MORE_ROWS:
        has_ranges, has_calls = next_range < ranges.start.size, next_call < calls.start.size
        awaits_ranges = not has_ranges and not turn.last_ranges
        awaits_calls = not has_calls and not turn.last_calls
        if awaits_ranges or awaits_calls or not (has_ranges or has_calls):
            break
        # A range is open to what starts together with it.
        if has_ranges and (not has_calls or ranges.start[next_range] <= calls.start[next_call]):
            label = label_of(next_range, ranges, teams.steps, labels)
            stopped = pass_range(next_range, turn, meant, opened, label, nodes)
            next_range += stopped == MORE_ROWS
        else:
            pass_call(next_call, turn, opened, teams, serving)
            next_call += 1
    turn.position[0], turn.position[1] = next_range, next_call
    return stopped
