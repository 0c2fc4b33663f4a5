"""Loops that join ops with their launching calls and compare their times."""

from __future__ import annotations

import numpy as np

from tracekit.attribution._columns import (
    Array,
    Idle,
    Keys,
    Launched,
    Launchers,
    OpRows,
)
from tracekit.support.inner import inner

NEVER = -(1 << 63)
"""A time before all."""


def span(keys: Keys, least: Array, most: Array) -> None:
    """Find the least and the largest correlation id of each process."""
    for row in range(keys.process.size):
        process, correlation = keys.process[row], keys.correlation[row]
        if process >= 0:
            least[process] = min(least[process], correlation)
            most[process] = max(most[process], correlation)


@inner
def slot_of(process: int, correlation: int, keys: Keys, slots: Array) -> int:
    """Return the slot of a key in a hash table of calls, or the free slot for it."""
    mask = slots.size - 1
    folded = (correlation >> 3 ^ correlation >> 31) & 0xFFF_FFFF
    mixed = folded * 2_654_435_761 + np.int64(process) * 1_640_531_527
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
        Those of calls.
    slots
        The table, a power of two of places, all -1. Eight ids that follow each other go side by
        side, for the sake of the processor's cache, and where that is differs from eight to eight;
        what finds its place taken goes to the next free one.

    Returns
    -------
    How many calls repeat the key of an earlier one; these are not in the table.
    """
    repeated = 0
    for row in range(keys.process.size):
        if keys.process[row] < 0:
            continue
        slot = slot_of(keys.process[row], keys.correlation[row], keys, slots)
        if slots[slot] >= 0:
            repeated += 1
        else:
            slots[slot] = row
    return repeated


def look_up(wanted: Keys, keys: Keys, slots: Array, first: int, found: Array) -> int:
    """Find the call of each op in a hash table.

    Parameters
    ----------
    wanted
        The keys of ops.
    keys, slots
        What `index_calls` was given.
    first
        The number of the first of these calls.
    found
        The number of each op's call; only what is -1 is looked up.

    Returns
    -------
    How many are -1 still.
    """
    missing = 0
    for row in range(wanted.process.size):
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
        The ops, and the number of the first call of a chunk.
    is_kernel
        Which kinds of ops kernels are.
    threads
        The thread of each of these calls.
    launching
        Which of them launched an op; updated.
    by
        The threads; updated.
    """
    for row in range(launched.call.size):
        call = launched.call[row] - launched.first
        if 0 <= call < threads.size and launched.call[row] >= 0:
            thread, device = threads[call], launched.device[row]
            launching[call] = True
            by.launches[thread] += 1
            if is_kernel[launched.kind[row]] and device >= 0 and by.device[thread] != device:
                by.device[thread] = device if by.device[thread] == -1 else -2


def note_idle(ops: OpRows, idle: Idle) -> None:
    """Note which kernels are launched while nothing runs on their device.

    Parameters
    ----------
    ops
        The ops.
    idle
        The devices; updated. What is the first one there is left out.
    """
    for row in range(ops.start.size):
        device, launched = ops.device[row], ops.launched[row]
        until = idle.until[device]
        if ops.kernel[row] and until > NEVER and launched > until:
            wait = ops.start[row] - launched
            if idle.launches[device] == 0 or wait < idle.least[device]:
                idle.least[device] = wait
            idle.launches[device] += 1
        idle.until[device] = max(until, ops.end[row])
