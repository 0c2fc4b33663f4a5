"""Arrays that the compiled loops of attribution work on: one named array per column."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]


def number_type(rows: int) -> type[np.signedinteger[Any]]:
    """Return int32, or int64 if needed: the type for row indices below `rows` and for -1 (none)."""
    return np.int32 if rows <= np.iinfo(np.int32).max else np.int64


class Stack(NamedTuple):
    """Stacks of open intervals, such as NVTX ranges; one stack per line (such as a thread).

    All stacks share these arrays, in which an item is linked to the one below it.
    """

    until: Array
    below: Array
    """One element per slot: the end of the item in the slot, ns, and the slot of the item below it
    on its stack (-1: none). In a free slot `below` is the next free slot."""
    tops: Array
    """One element per line: the slot of the top item, -1 if the stack is empty."""
    free: Array
    """Array of one element: the first free slot, -1 if all are used."""


class OpenRanges(NamedTuple):
    """Stack of the open ranges on each thread; per slot the numbers of the range and its path."""

    stack: Stack
    number: Array
    path: Array


class OpenStages(NamedTuple):
    """Stack per thread of the open ranges whose name implies a stage (such as FP, BP, WU).

    `stage` has per slot of the stack the index of the stage in the list of stages.
    """

    stack: Stack
    stage: Array


class OpenAround(NamedTuple):
    """Stack of open ranges per thread, with what ranges nested in them inherit: flags, stage, pass.

    All but `stack` have a value per slot of the stack.
    """

    stack: Stack
    """The stack of each thread."""
    number: Array
    level: Array
    """The range's number, and its nesting depth (0: outermost)."""
    stage: Array
    """The stage of the range, or of the nearest range around it that has one; -1 for none."""
    flags: Array
    """The range's flags (see `EVALUATES`). Only here, `COVERED` means: the range that `stage` comes
    from is set apart from training (`APART`)."""
    of_pass: Array
    """The number of the nearest range of a forward, backward or update pass, which is this range or
    one around it; -1 for none."""
    passes: Array
    """Number of ranges of passes open on the thread, up to and including this one."""


class NestedRows(NamedTuple):
    """Input of the loop that finds each range's parent: one row per range, ordered by start."""

    first: int
    """Number of the first row's range."""
    process: Array
    thread: Array
    start: Array
    end: Array
    pushes: Array
    name: Array
    """As in `RangeRows`."""
    during: Array
    """Whether the range begins while a start/end range of metric evaluation is open in its
    process."""


class NameMeanings(NamedTuple):
    """Meanings that rules give to range names: stage, autograd marker, step; one per name id."""

    place: Array
    """The stage's index in the list of stages, -1 for none."""
    marks: Array
    """Whether the name is an autograd marker (marks work of the backward pass)."""
    may_be_step: Array
    """Whether a rule for training steps matches the name."""


class Nested(NamedTuple):
    """Per range, found by `nest`: number of its parent range (-1: none), nesting depth, flags."""

    parent: Array
    depth: Array
    flags: Array


class Bones(NamedTuple):
    """Ranges that may mark a training step, a pass (forward, backward, update) or evaluation.

    `row` is the row of each such range in its chunk, `around` the id of the nearest range around it
    that is named after a pass (-1: none). `total`, an array of one element, is the number of such
    ranges found so far.
    """

    row: Array
    around: Array
    total: Array


class SeenThreads(NamedTuple):
    """Observations on the ranges of each thread: one element per thread in each array."""

    process: Array
    """Number of the thread's process, for threads with ranges."""
    passes: Array
    """Per thread and stage (FP, BP, WU): number of the thread's ranges of this stage, without those
    inside autograd markers."""
    marked: Array
    loading: Array
    """Whether the thread has autograd markers (ranges that mark work of the backward pass), and
    whether it has ranges of the stage input (IO)."""


class Stretches(NamedTuple):
    """Time intervals (such as steps) per "team": a training thread and its helper threads.

    The intervals of team t are the rows from ``first[t]`` up to ``first[t + 1]`` of `start`, `end`
    and `number` (such as the step's), by start; ``at[t]`` is the row of the interval that the loop,
    which goes forward in time, has reached.
    """

    first: Array
    start: Array
    end: Array
    number: Array
    at: Array


class NamedRows(NamedTuple):
    """Ranges ordered by start: start, name id, and team (training thread with helpers) of each."""

    team: Array
    start: Array
    name: Array


class Keys(NamedTuple):
    """Keys that join ops with launching calls: process (negative: no key) and correlation id."""

    process: Array
    correlation: Array


class Launched(NamedTuple):
    """Per op (kernel, copy, memset): number of its launching call (-1: none), kind and device.

    `first` is the number of the first call in the chunk of calls that is being processed.
    """

    call: Array
    kind: Array
    device: Array
    first: int


class Launchers(NamedTuple):
    """For each thread: number of ops (GPU work) that it launched, and the device of its kernels.

    The device is -1 if the thread launched no kernel, -2 if it launched on several devices.
    """

    launches: Array
    device: Array


class Context(NamedTuple):
    """Per API call: its thread and times, the range and step around it, evidence for a stage.

    Also used with one element per op (kernel, copy, memset), for the call that launched it.
    """

    thread: Array
    start: Array
    end: Array
    """Number of the calling thread; start and end of the call, ns."""
    range: Array
    step: Array
    """Numbers of the innermost range and of the training step around the call, -1 for none."""
    evidence: Array
    """Bits that indicate the stage (such as FP, BP, WU) of what the call launches; see
    `_evidence`."""


class RangeRows(NamedTuple):
    """Ranges ordered by start, one row each."""

    first: int
    """Number of the first row's range."""
    thread: Array
    process: Array
    """Numbers of its thread and process."""
    start: Array
    end: Array
    """Its start and end, ns."""
    pushes: Array
    """Whether it is a push/pop range."""
    name: Array
    flags: Array
    """Id of its name, and its flags as set by `nest`."""
    team: Array
    """Number of its team (training thread with helpers)."""


class CallRows(NamedTuple):
    """API calls ordered by start; `launches` is true for calls that launched GPU work."""

    thread: Array
    process: Array
    start: Array
    launches: Array
    team: Array


class Found(NamedTuple):
    """Output of `follow`, per API call: the range and the step around it, and evidence for a stage.

    The range is the innermost one. Range and step are -1 if there is none. The evidence is for the
    stage (such as FP, BP, WU) of what the call launches, as bits that `_evidence` explains.
    """

    range: Array
    step: Array
    evidence: Array


class Turn(NamedTuple):
    """Input and output of `follow`, which merges a chunk of ranges and one of API calls by time."""

    position: Array
    """Next row to process, of the ranges and of the calls; updated."""
    ranges: RangeRows
    calls: CallRows
    """The rows of the two chunks."""
    last_ranges: bool
    last_calls: bool
    """Whether this is the last chunk of ranges, and of calls."""
    paths: Array
    """Output: path id of each range."""
    found: Found
    """Output, per call: innermost range and step around it, and evidence for a stage."""


class Opened(NamedTuple):
    """Ranges that are open at the current time, by thread and by process."""

    ranges: OpenRanges
    stages: OpenStages
    """Per thread: the stack of all open ranges, and the stack of those whose name implies a
    stage."""
    evaluates: Array
    differentiates: Array
    """Per thread: end of the open range of metric evaluation, and of the open autograd marker,
    ns."""
    shared: Array
    """Per process and stage: start and end of the start/end range of that stage with the latest
    end."""
    shares: Array
    """Per process: the latest end in `shared`."""


class Windows(NamedTuple):
    """Backward windows (intervals in which a backward pass may run) by training thread (team)."""

    stretches: Stretches
    """The intervals; `number` is the backward pass (a range or an iteration) that each belongs
    to."""
    last: Array
    """Per team: end of its last interval."""
    fed: Array
    used: Array
    """Per interval: whether work is launched in it or between it and the previous interval (`fed`);
    whether a possible autograd thread launches work in it (`used`)."""
    begun: Array
    ended: Array
    """Per team: times of its first and its latest launch so far."""


class Teams(NamedTuple):
    """Per team (training thread with helper threads): training thread, steps, backward windows."""

    steps: Stretches
    """The training steps of each team."""
    iterations: Array
    """Per step: the row of its iteration in the table `iterations`. Steps of several teams of a
    process that belong together are one iteration."""
    windows: Windows
    """Backward windows: the intervals in which a backward pass may run."""
    trainer: Array
    """Per team: its training thread, -1 for none."""


class Serving(NamedTuple):
    """Per thread: launch counts that show if it is an autograd thread (runs backward passes)."""

    during: Array
    inside: Array
    """Number of launches between the start of the first and the end of the last backward window
    (interval in which a backward pass may run), and number of launches inside windows."""
    served: Array
    latest: Array
    """Number of backward passes in whose windows it launches, and the backward pass of its latest
    such launch."""
    may_serve: Array
    """Whether the thread may be an autograd thread at all."""


class OpRows(NamedTuple):
    """Ops (GPU work) by start: device, times, whether a kernel, start of the launching call, ns."""

    device: Array
    start: Array
    end: Array
    kernel: Array
    launched: Array


class Idle(NamedTuple):
    """Per device: number and shortest launch delay of kernels launched while it was idle."""

    launches: Array
    """Number of these kernels."""
    least: Array
    """Shortest time from the launching call's start to the kernel's start, ns."""
    until: Array
    """End of the latest op so far, ns; a very early time if none ran."""


class CaseRows(NamedTuple):
    """Per op (kernel, copy, memset): all evidence for its stage (such as FP, BP, WU).

    `code` has the evidence bits of its launch; `Launch` explains the fields that are not named
    here. `name` and `kind` are codes of the recorded values, with -1 for no name; `size` is the
    number of the rules' size thresholds (bytes) that the op's size reaches.
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
    """Input of `place_exchanges`: one element per op (GPU work), in order of start.

    The columns are process, device, context and stream, start and end (ns), and the role by kernel
    name: layer kernel (computes a layer of the network), a kind of collective, or neither. `first`
    is the number of the first row's op.
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
    """State of `place_exchanges` between chunks, per GPU's main compute stream; -1 means none."""

    layer: Array
    """Number of the last layer kernel (one that computes a layer, such as a matrix product)."""
    end: Array
    """End of the last kernel, ns."""
    waiting: Array
    """The latest collective not yet followed by a layer kernel."""
    fresh: Array
    """The latest collective not yet followed by any kernel."""
    earlier: Array
    """Per collective: the previous collective that is also not yet followed by a layer kernel."""
    total: Array
    """Array of one element: number of collectives so far."""


class Exchanges(NamedTuple):
    """Collectives, with the layer kernels around each on its GPU's main compute stream."""

    op: Array
    line: Array
    role: Array
    """Number of the op, number of its GPU's compute stream, and kind of collective (`REDUCES`,
    `GATHERS`, `SCATTERS`)."""
    computes: Array
    """1 if the collective itself runs on the compute stream."""
    beside: Array
    """1 if a kernel of the compute stream runs at the same time."""
    end: Array
    """End of the collective, ns."""
    before: Array
    after: Array
    """Op numbers of the layer kernels before and after it, -1 for none."""


class NamedOps(NamedTuple):
    """Per op (kernel, copy, memset): process, code of name (-1: none), code of recorded kind."""

    process: Array
    name: Array
    kind: Array


class KindPlaces(NamedTuple):
    """Kind of op (such as kernel or collective) that follows from kernel name and recorded kind."""

    kinds: int
    """Number of recorded kinds."""
    place: Array
    """For each pair of name code (from -1) and recorded kind: index in the list of kinds and
    collectives, -1 if it is not known yet."""


class CaseKeys(NamedTuple):
    """Two integers per op, `by` and `rest`, that encode all evidence for its stage.

    `describe` defines the encoding.
    """

    by: Array
    rest: Array


class Distinct(NamedTuple):
    """Ops grouped into cases: ops with equal evidence form a case, whose stage is decided once."""

    case: Array
    """Per op: the number of its case."""
    keys: CaseKeys
    ops: Array
    total_ns: Array
    """Per case: its evidence as a `CaseKeys` entry, number of ops, and their total duration, ns."""


class StepRows(NamedTuple):
    """Per op: step of its launch (-1: none), launch time (ns), number of its case (`Distinct`)."""

    step: Array
    launch: Array
    case: Array


class StepSums(NamedTuple):
    """Per step, and in a last entry for work outside of steps: op counts and last launch times."""

    ops: Array
    steady: Array
    """Number of ops (kernels, copies, memsets), and number of those that are not input."""
    backward: Array
    update: Array
    """Launch time of the last op of the backward pass, and of the last kernel of the weight update,
    ns; a very early time if there is none."""


class NameLabels(NamedTuple):
    """Labels of range names in paths: `inside` a numbered step, and `outside` of such steps.

    A label is a row of `Labels.texts`. Inside, the step's number is replaced (see `find_labels`).
    """

    inside: Array
    outside: Array
