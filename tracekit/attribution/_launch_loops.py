"""Compiled loops that join ops with their launching calls and compare their times."""

from __future__ import annotations

from tracekit.attribution._arrays import (
    Array,
    Idle,
    Keys,
    Launched,
    Launchers,
    OpRows,
)
from tracekit.support.inner import inner

NEVER = -(1 << 63)
"""A time before all others, ns; means no time."""


def span(keys: Keys, least: Array, most: Array) -> None:
    """Write the least and the largest correlation id of each process to `least` and `most`."""
    for row in range(len(keys.process)):
        process, correlation = keys.process[row], keys.correlation[row]
        if process >= 0:
            least[process] = min(least[process], correlation)
            most[process] = max(most[process], correlation)


@inner
def slot_of(process: int, correlation: int, keys: Keys, slots: Array) -> int:
    """Return the slot of a call's key in a hash table, or the free slot where it belongs.

    The key is process and correlation id.
    """
    mask = len(slots) - 1
    folded = (correlation >> 3 ^ correlation >> 31) & 0xFFF_FFFF
    mixed = folded * 2_654_435_761 + int(process) * 1_640_531_527
    slot = int((((mixed >> 20) << 3) + (correlation & 7)) & mask)
    while slots[slot] >= 0 and (
        keys.correlation[slots[slot]] != correlation or keys.process[slots[slot]] != process
    ):
        slot = (slot + 1) & mask
    return slot


def index_calls(keys: Keys, slots: Array) -> int:
    """Fill a hash table of calls by correlation id.

    Parameters
    ----------
    keys
        Keys of the calls.
    slots
        The hash table, filled here: a power of two of slots, all -1. Eight consecutive correlation
        ids lie side by side (for the processor's cache); each group of eight starts at a hashed
        place. A call whose slot is taken goes to the next free one.

    Returns
    -------
    Number of calls that repeat the key of an earlier call; these are not in the table.
    """
    repeated = 0
    for row in range(len(keys.process)):
        if keys.process[row] < 0:
            continue
        slot = slot_of(keys.process[row], keys.correlation[row], keys, slots)
        if slots[slot] >= 0:
            repeated += 1
        else:
            slots[slot] = row
    return repeated


def look_up(wanted: Keys, keys: Keys, slots: Array, first: int, found: Array) -> int:
    """Find the CUDA call that launched each op whose call is unknown; return how many remain so.

    Parameters
    ----------
    wanted
        Keys of the ops.
    keys, slots
        The calls' keys, and the hash table that `index_calls` filled.
    first
        Number of the first of these calls.
    found
        By op: number of its call. Only entries that are -1 are looked up, and filled if found.

    Returns
    -------
    Number of entries that are still -1.
    """
    missing = 0
    for row in range(len(wanted.process)):
        if found[row] >= 0:
            continue
        missing += 1
        if wanted.process[row] >= 0:
            slot = slot_of(wanted.process[row], wanted.correlation[row], keys, slots)
            if slots[slot] >= 0:
                found[row] = first + slots[slot]
                missing -= 1
    return missing


def count_launches(
    launched: Launched, is_kernel: Array, threads: Array, launching: Array, by: Launchers
) -> None:
    """Mark the calls that launched an op, and count the ops that each thread launched.

    Parameters
    ----------
    launched
        Ops with their calls, and the number of the first call of a chunk.
    is_kernel
        By kind of op: whether it is a kernel.
    threads
        By call of the chunk: its thread.
    launching
        By call of the chunk: whether it launched an op; updated.
    by
        Number of ops, and device of the kernels, by launching thread; updated.
    """
    for row in range(len(launched.call)):
        call = launched.call[row] - launched.first
        if 0 <= call < len(threads) and launched.call[row] >= 0:
            thread, device = threads[call], launched.device[row]
            launching[call] = True
            by.launches[thread] += 1
            if is_kernel[launched.kind[row]] and device >= 0 and by.device[thread] != device:
                by.device[thread] = device if by.device[thread] == -1 else -2


def note_idle(ops: OpRows, idle: Idle) -> None:
    """Count kernels launched while their device is idle; find the shortest launch delay among them.

    Parameters
    ----------
    idle
        State by device; updated. The first op of each device does not count.
    """
    for row in range(len(ops.start)):
        device, launched = ops.device[row], ops.launched[row]
        until = idle.until[device]
        if ops.kernel[row] and until > NEVER and launched > until:
            wait = ops.start[row] - launched
            if idle.launches[device] == 0 or wait < idle.least[device]:
                idle.least[device] = wait
            idle.launches[device] += 1
        idle.until[device] = max(until, ops.end[row])
