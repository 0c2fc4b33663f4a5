"""Compiled loops over ops: copy the context of their launch, and group by evidence for a stage."""

from __future__ import annotations

from tracekit.attribution._arrays import (
    Array,
    CaseKeys,
    CaseRows,
    Context,
    Distinct,
    Exchanges,
    KindPlaces,
    NamedOps,
    PlaceRows,
    PlaceState,
    StepRows,
    StepSums,
)
from tracekit.attribution._evidence import (
    KIND_PLACE,
    ON_INPUT_STREAM,
    PLACE,
    PROCESS,
    RELAYED,
    SIZE,
    STRUCTURE,
)
from tracekit.attribution._launch_loops import NEVER
from tracekit.support.inner import inner


def count_kinds(ops: NamedOps, names: int, kinds: int, counts: Array, example: Array) -> None:
    """Count ops by process, name and kind.

    Parameters
    ----------
    names, kinds
        Number of name codes (one more for no name) and of kinds.
    counts
        Number of ops by process, name and kind; added to.
    example
        Output: for each process, name and kind, the row of one such op.
    """
    for row in range(len(ops.name)):
        key = (ops.process[row] * names + ops.name[row] + 1) * kinds + ops.kind[row]
        counts[key] += 1
        example[key] = row


def copy_contexts(found: Array, first: int, calls: Context, out: Context) -> int:
    """Copy from each launching call to its ops: thread, times, range, step, evidence for a stage.

    Parameters
    ----------
    found
        Per op: number of its launching call, -1 if unknown.
    first
        Number of the first call of the chunk.
    calls
        Context of the calls of this chunk.
    out
        Output: context of each op's launch. Entries of ops launched by calls of other chunks are
        not written.

    Returns
    -------
    Number of ops without a known call; these get no context.
    """
    nowhere = 0
    for row in range(len(found)):
        call = found[row] - first
        if found[row] < 0:
            nowhere += 1
            out.thread[row], out.start[row], out.end[row] = -1, NEVER, NEVER
            out.range[row], out.step[row], out.evidence[row] = -1, -1, 0
        elif 0 <= call < len(calls.thread):
            out.thread[row] = calls.thread[call]
            out.start[row], out.end[row] = calls.start[call], calls.end[call]
            out.range[row], out.step[row] = calls.range[call], calls.step[call]
            out.evidence[row] = calls.evidence[call]
    return nowhere


OTHER, LAYER, REDUCES, SCATTERS, GATHERS, SHARES = range(6)
"""Role of a kernel around collectives: another computing kernel; a layer kernel; or a collective
that sums (all-reduce), gives each GPU a part of the sum (reduce-scatter), gathers (all-gather), or
sends from one GPU to all (broadcast). Lower numbers are none of these."""


def place_exchanges(
    ops: PlaceRows, lines: Array, on: tuple[Array, Array], state: PlaceState, found: Exchanges
) -> None:
    """Find the layer kernels before and after each collective on its GPU's compute stream.

    Parameters
    ----------
    ops
        The next chunk of ops.
    lines
        Per process and device: number of the compute stream, -1 if there is none.
    on
        Per compute stream, by its number: its context id, and its stream id.
    state
        State after the previous ops; updated.
    found
        Output: collectives, and the layer kernels (such as matrix products) around them, in order.
    """
    for row in range(len(ops.start)):
        role, process, device = ops.role[row], ops.process[row], ops.device[row]
        if role < OTHER or process >= lines.shape[0] or device >= lines.shape[1]:
            continue
        line = lines[process, device]
        if line < 0:
            continue
        computes = ops.context[row] == on[0][line] and ops.stream[row] == on[1][line]
        if role > LAYER:
            at = state.total[0]
            state.total[0] += 1
            found.op[at], found.line[at], found.role[at] = ops.first + row, line, role
            found.computes[at], found.end[at] = computes, ops.end[row]
            found.before[at] = state.layer[line]
            found.beside[at] = state.end[line] > ops.start[row]
            state.earlier[at], state.waiting[line], state.fresh[line] = state.waiting[line], at, at
        elif computes:
            at = state.fresh[line]
            if at >= 0 and ops.start[row] < found.end[at]:
                found.beside[at] = 1
            state.fresh[line] = -1
            state.end[line] = max(state.end[line], ops.end[row])
            if role == LAYER:
                at = state.waiting[line]
                while at >= 0:
                    found.after[at] = ops.first + row
                    at = state.earlier[at]
                state.waiting[line] = -1
                state.layer[line] = ops.first + row


def describe(ops: CaseRows, known: KindPlaces, keys: CaseKeys) -> int:
    """Encode the evidence for each op's stage as two integers, the key of its case.

    Parameters
    ----------
    known
        Kind for each pair of kernel name and recorded kind.
    keys
        Output: `by` encodes the process and thread that launched the op; `rest` encodes all other
        evidence, including the evidence bits of the launch (see `_evidence`).

    Returns
    -------
    Number of ops whose kind is not known yet.
    """
    unknown = 0
    for row in range(len(ops.code)):
        key = (int(ops.name[row]) + 1) * known.kinds + int(ops.kind[row])
        kind = known.place[key] if key < len(known.place) else -1
        unknown += kind < 0
        rest = int(ops.code[row])
        if ops.on_input_stream[row]:
            rest |= ON_INPUT_STREAM
        if ops.relayed[row]:
            rest |= RELAYED
        rest |= int(ops.structure[row] + 1) << STRUCTURE
        rest |= int(ops.place[row]) << PLACE
        rest |= int(ops.size[row]) << SIZE
        keys.rest[row] = rest | int(kind) << KIND_PLACE
        keys.by[row] = (int(ops.process[row]) << PROCESS) + int(ops.thread[row])
    return unknown


@inner
def case_slot(by: int, rest: int, keys: CaseKeys, slots: Array) -> int:
    """Return the slot of a case (combination of evidence) in a hash table, or its free slot.

    The case is given by the integers `by` and `rest`, see `describe`.
    """
    # Of 31 bits each, so that all products and sums fit.
    by_folded, rest_folded = ((by ^ by >> 31) & 0x7FFF_FFFF, (rest ^ rest >> 27) & 0x7FFF_FFFF)
    mixed = by_folded * 40_503 + rest_folded * 65_599
    folded = (mixed ^ (mixed >> 29)) & 0x3FFF_FFFF
    slot = int(((folded * 2_654_435_761) >> 20) & (len(slots) - 1))
    while slots[slot] >= 0 and (keys.by[slots[slot]] != by or keys.rest[slots[slot]] != rest):
        slot = (slot + 1) & (len(slots) - 1)
    return slot


def number_cases(keys: CaseKeys, took_ns: Array, slots: Array, cases: Distinct) -> int:
    """Group ops with equal evidence into cases, numbered in order of first occurrence.

    Parameters
    ----------
    keys
        Case key of each op.
    took_ns
        Duration of each op, ns.
    slots
        Hash table of cases, all -1; its size is a power of two above the capacity of `cases`.
    cases
        Output: the case of each op, and the sums of each case; `ops` and `total_ns` must be 0.

    Returns
    -------
    Number of cases; -1 if they exceed the capacity of `cases`.
    """
    count, case, last_by, last_rest = 0, -1, 0, 0
    for row in range(len(took_ns)):
        by, rest = keys.by[row], keys.rest[row]
        # Many an op is as the one before it.
        if case < 0 or by != last_by or rest != last_rest:
            slot = case_slot(by, rest, cases.keys, slots)
            if slots[slot] < 0:
                if count == len(cases.ops):
                    return -1
                slots[slot] = count
                cases.keys.by[count], cases.keys.rest[count] = by, rest
                count += 1
            case, last_by, last_rest = slots[slot], by, rest
        cases.case[row] = case
        cases.ops[case] += 1
        cases.total_ns[case] += took_ns[row]
    return count


OTHER_PART, INPUT_PART, BACKWARD_PART, UPDATE_PART = range(4)
"""Part of a step that an op belongs to: other, input, backward pass, or a kernel of the weight
update."""


def count_in_steps(
    ops: StepRows, parts: Array, iterations: Array, sums: StepSums, iteration: Array
) -> int:
    """Count ops by step, keep each step's last launch times, and write the iteration of each op.

    Parameters
    ----------
    ops
        Step, launch time and case of each op.
    parts
        Per case (combination of evidence): code for input, backward pass, weight update, or other.
    iterations
        Per step of a training thread: number of the process's iteration that it is part of.
    sums
        Sums per step; added to.
    iteration
        Output: number of each op's iteration, -1 for none.

    Returns
    -------
    Number of ops outside of all iterations.
    """
    outside = 0
    for row in range(len(ops.step)):
        step, part = ops.step[row], parts[ops.case[row]]
        sums.ops[step + 1] += 1
        sums.steady[step + 1] += part != INPUT_PART
        if part == BACKWARD_PART:
            sums.backward[step + 1] = max(sums.backward[step + 1], ops.launch[row])
        elif part == UPDATE_PART:
            sums.update[step + 1] = max(sums.update[step + 1], ops.launch[row])
        outside += step < 0
        iteration[row] = iterations[step] if step >= 0 else -1
    return outside
