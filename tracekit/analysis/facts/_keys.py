"""Keys, such as stage or device, by which GPU time can be grouped, and their columns."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from tracekit.errors import UsageError
from tracekit.support.spelling import choose_among

KEYS = {
    "stage": ("stage",), "kind": ("kind",), "kernel": ("name", "kind"), "range": ("range",),
    "layer": ("layer",), "device": ("device",), "stream": ("device", "pid", "stream"),
    "rank": ("rank",), "node": ("node",), "iteration": ("iteration",),
    "recomputed": ("recomputed",), "phase": ("phase",),
}  # fmt: skip
"""Keys of a breakdown: key -> columns."""

OF_WINDOWS = ("device", "iteration", "phase")
"""Columns that are constant within a window; the keys of that name divide time."""

OF_PROCESSES = ("rank", "node")
"""Columns that are constant within a process."""


def parse_keys(by: str | Sequence[str]) -> tuple[str, ...]:
    """Split and check keys given as ``"stage,device"`` or as a sequence.

    Raises
    ------
    UsageError
        If a key is unknown or is given twice, or if no key is given.
    """
    return chosen_keys(by, KEYS, "breakdown")


def chosen_keys(by: str | Sequence[str], known: Collection[str], noun: str) -> tuple[str, ...]:
    """Return the keys that a user names, as a sequence or separated by commas.

    Parameters
    ----------
    by
        The keys as the user gives them.
    known
        The valid keys.
    noun
        Noun for the grouped things, such as `breakdown`, for error messages.

    Raises
    ------
    UsageError
        If a key is unknown, is given twice, or none is given.
    """
    listed = by.split(",") if isinstance(by, str) else by
    if not isinstance(listed, Iterable):
        raise UsageError(f"no {noun} by {by!r}", f"name some of {', '.join(known)}")
    keys = tuple(str(key).strip() for key in listed)
    for key in keys:
        if key not in known:
            raise UsageError(f"no {noun} by {key!r}", choose_among(key, known))
    if not keys or len(set(keys)) < len(keys):
        text = by if isinstance(by, str) else ",".join(by)
        raise UsageError(f"no {noun} by {text!r}", f"name each of {', '.join(known)} once")
    return keys


def share_meaning(by: str | Sequence[str]) -> str:
    """Return the formula of the column ``share`` in a breakdown by the keys `by`."""
    keys = parse_keys(by)
    part = "exposed_ns" if is_by_stage(keys) else "busy_ns"
    by_window = dividing(keys)
    return (
        f"{part} / window_ns of the {' and '.join(by_window)}"
        if by_window
        else f"{part} / window_ns"
    )


def is_by_stage(keys: Sequence[str]) -> bool:
    """Test whether ``stage`` is the only key that groups ops; then exposed time is computed."""
    return [key for key in keys if key not in OF_WINDOWS] == ["stage"]


def is_by_steps(keys: Sequence[str]) -> bool:
    """Test whether times are to be added up per step, by the key ``iteration`` or ``phase``."""
    return "iteration" in keys or "phase" in keys


def dividing(keys: Sequence[str]) -> list[str]:
    """Return those of `keys` that divide a run into steps or GPUs (like ``device``), not ops."""
    return [key for key in keys if key in OF_WINDOWS]


def columns_of(keys: Sequence[str]) -> list[str]:
    """Return the table columns of `keys`, in order; a key may have several columns."""
    return list(dict.fromkeys(name for key in keys for name in KEYS[key]))
