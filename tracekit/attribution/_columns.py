"""Named arrays of equal length that the compiled loops of attribution work on."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]


def number_type(rows: int) -> type[np.signedinteger[Any]]:
    """Return the integer type for numbers of this many rows, and -1: 32 or 64 bits."""
    return np.int32 if rows <= np.iinfo(np.int32).max else np.int64


class Stack(NamedTuple):
    """Stacks in shared arrays, one for each line (such as a thread).

    Parameters
    ----------
    until, below
        Of each place, until when what lies there is open, and what is below it, -1 for nothing; of
        a free place, the next one that is free.
    tops
        The place on top of each line, -1 for none.
    free
        One number: a place that is free, -1 for none.
    """

    until: Array
    below: Array
    tops: Array
    free: Array


class OpenRanges(NamedTuple):
    """Ranges that are open, with the number of each and of its path."""

    stack: Stack
    number: Array
    path: Array


class OpenStages(NamedTuple):
    """Open ranges that have a stage: the stack, and by slot the stage's place in the stage list."""

    stack: Stack
    stage: Array


class OpenAround(NamedTuple):
    """Open ranges, and what was found inside each.

    Parameters
    ----------
    stack
        Where they lie.
    number, level, flags
        Of each range: its number, how deep it lies, and its flags; `COVERED` tells here that the
        range of `stage` is set apart, and `APART` that this one is.
    stage
        The nearest stage, of it or around it, -1 for none.
    of_pass, passes
        The nearest range of a pass, and how many there are.
    """

    stack: Stack
    number: Array
    level: Array
    stage: Array
    flags: Array
    of_pass: Array
    passes: Array


class NestedRows(NamedTuple):
    """Input of the nesting loop: ranges by start.

    Parameters
    ----------
    first
        The number of the first one.
    process, thread, start, end, pushes, name
        As in `RangeRows`.
    during
        Whether a range begins while its process evaluates.
    """

    first: int
    process: Array
    thread: Array
    start: Array
    end: Array
    pushes: Array
    name: Array
    during: Array


class NameMeanings(NamedTuple):
    """Meanings of range names, by id.

    Parameters
    ----------
    place
        The place in the list of stages, -1 for none.
    marks
        Whether they mark backward.
    may_be_step
        Whether a rule of training steps names them.
    """

    place: Array
    marks: Array
    may_be_step: Array


class Nested(NamedTuple):
    """Enclosing ranges of ranges, -1 for none."""

    parent: Array
    depth: Array
    flags: Array


class Bones(NamedTuple):
    """Ranges of the skeleton: their rows, the nearest range of a pass around each, or -1.

    `total` is one number: how many there are.
    """

    row: Array
    around: Array
    total: Array


class SeenThreads(NamedTuple):
    """Observations about threads.

    Parameters
    ----------
    process
        The process of each that holds ranges.
    passes
        By thread and stage how many ranges of passes it holds, those in autograd markers aside.
    marked, loading
        Whether it carries autograd markers, and whether it holds ranges of input.
    """

    process: Array
    passes: Array
    marked: Array
    loading: Array


class Stretches(NamedTuple):
    """Stretches of time of teams, such as steps.

    Those of team t are the rows from ``first[t]`` to ``first[t + 1]`` of `start`, `end` and
    `number`, by start; ``at[t]`` is the one that the team has come to.
    """

    first: Array
    start: Array
    end: Array
    number: Array
    at: Array


class NamedRows(NamedTuple):
    """Ranges by start: the team and the name of each."""

    team: Array
    start: Array
    name: Array


class Keys(NamedTuple):
    """Join keys of ops and calls; a negative process stands for none."""

    process: Array
    correlation: Array


class Launched(NamedTuple):
    """Ops with the number of their call (-1 for none), kind and device.

    `first` is the number of the first call of a chunk.
    """

    call: Array
    kind: Array
    device: Array
    first: int


class Launchers(NamedTuple):
    """Number of launched ops by thread, and the device of its kernels.

    That is -1 for none and -2 for several.
    """

    launches: Array
    device: Array


class Context(NamedTuple):
    """Context of calls, or of the calls that launched ops: thread, time, and as in `Found`."""

    thread: Array
    start: Array
    end: Array
    range: Array
    step: Array
    evidence: Array


class RangeRows(NamedTuple):
    """Ranges by start, with their attributes.

    Parameters
    ----------
    first
        The number of the first one.
    thread, process, start, end, team
        Where and when each is.
    pushes
        Whether it is a push/pop range.
    name, flags
        The id of its name, and what `nest` says of it.
    """

    first: int
    thread: Array
    process: Array
    start: Array
    end: Array
    pushes: Array
    name: Array
    flags: Array
    team: Array


class CallRows(NamedTuple):
    """Calls by start; calls that launch nothing are skipped."""

    thread: Array
    process: Array
    start: Array
    launches: Array
    team: Array


class Found(NamedTuple):
    """Context of calls: the range and the step around each, -1 for none, and its evidence.

    The last is explained in `_evidence`.
    """

    range: Array
    step: Array
    evidence: Array


class Turn(NamedTuple):
    """A chunk of ranges and one of calls, to be followed together.

    Parameters
    ----------
    position
        The next row of the ranges and of the calls; updated.
    ranges, calls
        The rows.
    last_ranges, last_calls
        Whether no more ranges, and no more calls, follow these.
    paths
        Becomes the path of each range.
    found
        Becomes where each call stands.
    """

    position: Array
    ranges: RangeRows
    calls: CallRows
    last_ranges: bool
    last_calls: bool
    paths: Array
    found: Found


class Opened(NamedTuple):
    """Open ranges.

    Parameters
    ----------
    ranges, stages
        On each thread, ranges, and those of them that have a stage.
    evaluates, differentiates
        By thread, until when a range of metric evaluation is open, and an autograd marker.
    shared
        For each process and stage, the begin and the end of the start/end range of that stage that
        ends last.
    shares
        By process, until when any of these is open.
    """

    ranges: OpenRanges
    stages: OpenStages
    evaluates: Array
    differentiates: Array
    shared: Array
    shares: Array


class Windows(NamedTuple):
    """Backward windows of teams, numbered by their unit.

    Parameters
    ----------
    stretches
        The windows.
    last
        When the last window of each team ends.
    fed, used
        Of each window, see `note_launch`.
    begun, ended
        The first and the last launch of each team so far.
    """

    stretches: Stretches
    last: Array
    fed: Array
    used: Array
    begun: Array
    ended: Array


class Teams(NamedTuple):
    """Steps, windows and training thread (or -1) of each team.

    `iterations` tells by step the row of its iteration, or -1.
    """

    steps: Stretches
    iterations: Array
    windows: Windows
    trainer: Array


class Serving(NamedTuple):
    """Evidence for autograd threads, by thread.

    Parameters
    ----------
    during, inside
        Launches between the first and the last window of the team, and inside windows.
    served, latest
        How many units these are of, and the unit of the latest.
    may_serve
        Whether it may be one.
    """

    during: Array
    inside: Array
    served: Array
    latest: Array
    may_serve: Array


class OpRows(NamedTuple):
    """Ops by start: device, start, end, whether a kernel, and the start of its launching call."""

    device: Array
    start: Array
    end: Array
    kernel: Array
    launched: Array


class Idle(NamedTuple):
    """Launches on idle devices, by device.

    Parameters
    ----------
    launches
        How many kernels.
    least
        How long the promptest of them waits, ns.
    until
        Until when the device is busy; long before all where nothing ran so far.
    """

    launches: Array
    least: Array
    until: Array


class CaseRows(NamedTuple):
    """Ops with all that decides their stages; see `Launch`.

    `name` and `kind` are as recorded, the name -1 for none; `size` is how many thresholds the bytes
    reach.
    """

    code: Array
    thread: Array
    process: Array
    name: Array
    kind: Array
    size: Array
    structure: Array
    on_input_stream: Array
    relayed: Array
    place: Array


class PlaceRows(NamedTuple):
    """Ops by start, with stream and time, and their role for the places of collectives.

    `first` is the number of the first one.
    """

    first: int
    process: Array
    device: Array
    context: Array
    stream: Array
    role: Array
    start: Array
    end: Array


class PlaceState(NamedTuple):
    """State before the next ops, by computing stream; -1 is nothing.

    Parameters
    ----------
    layer
        The number of the last layer.
    end
        When the last kernel ends.
    waiting
        The last collective after which no layer has come yet.
    fresh
        The last one after which no kernel has come yet.
    earlier
        By collective, the one before it that waits as well.
    total
        One number: how many collectives there are so far.
    """

    layer: Array
    end: Array
    waiting: Array
    fresh: Array
    earlier: Array
    total: Array


class Exchanges(NamedTuple):
    """Collectives, and the layers around them on the computing stream of their GPU.

    Parameters
    ----------
    op, line, role
        The number of each, the number of that stream, and what it is to places.
    computes
        1 if it is on that stream.
    beside
        1 if a kernel of that stream runs beside it.
    end
        When it ends.
    before, after
        The numbers of the layers, -1 where there is none.
    """

    op: Array
    line: Array
    role: Array
    computes: Array
    beside: Array
    end: Array
    before: Array
    after: Array


class NamedOps(NamedTuple):
    """Ops: the process of each, and the codes of its name, -1 for none, and of its kind."""

    process: Array
    name: Array
    kind: Array


class KindPlaces(NamedTuple):
    """Kinds of ops by name and recorded kind.

    Parameters
    ----------
    kinds
        How many recorded kinds there are.
    place
        By name, counted from -1, and kind, as far as these are known, which entry of a list says
        it; else -1.
    """

    kinds: int
    place: Array


class CaseKeys(NamedTuple):
    """Key of each op's case: two integers with all that decides its stage; see `describe`."""

    who: Array
    what: Array


class Told(NamedTuple):
    """Cases of ops.

    Parameters
    ----------
    case
        Of each op which case it is.
    keys, ops, total_ns
        Of each case what decides its stage, and how many ops there are and how long they take
        together.
    """

    case: Array
    keys: CaseKeys
    ops: Array
    total_ns: Array


class StepRows(NamedTuple):
    """Ops: the step in which each was launched, -1 for none, when, and its case."""

    step: Array
    launch: Array
    case: Array


class StepSums(NamedTuple):
    """Sums of launched work outside of steps, and by step.

    Parameters
    ----------
    ops, steady
        How many ops there are, and how many of these are no input.
    backward, update
        When the last one of the backward pass and the last kernel of an update are launched, long
        before all where there is none.
    """

    ops: Array
    steady: Array
    backward: Array
    update: Array


class NameLabels(NamedTuple):
    """Labels of names in a path: inside a numbered step, and outside."""

    inside: Array
    outside: Array
