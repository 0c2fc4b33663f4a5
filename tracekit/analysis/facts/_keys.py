"""Keys to group a breakdown by."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from tracekit.errors import UsageError
from tracekit.support.spelling import choose_among


@dataclass(frozen=True)
class _Key:
    """A key to group ops by: its columns, and how they are computed."""

    columns: tuple[str, ...]
    meaning: str
    divides_time: bool = False
    """Whether its groups are intervals of time or devices, which have windows of their own."""


_KEYS = {
    "stage": _Key(("stage",), "why an op runs"),
    "kind": _Key(("kind",), "what an op does"),
    "kernel": _Key(("name", "kind"), "name of a kernel, copy or fill"),
    "range": _Key(("range",), "path of the innermost NVTX range around the launch"),
    "layer": _Key(("layer",), "layer of the network, forward and backward; stands alone"),
    "device": _Key(("device",), "GPU", divides_time=True),
    "stream": _Key(("device", "pid", "stream"), "CUDA stream of a process on a GPU"),
    "rank": _Key(("rank",), "rank of the process in its job"),
    "node": _Key(("node",), "host that the process ran on"),
    "iteration": _Key(("iteration",), "training step", divides_time=True),
    "recomputed": _Key(("recomputed",), "whether backward runs a part of forward again"),
    "phase": _Key(("phase",), "prefill or decode, of a server's steps", divides_time=True),
}
KEYS = {name: key.meaning for name, key in _KEYS.items()}
"""Keys of a breakdown."""

OF_WINDOWS = ("device", "iteration", "phase")
"""Columns that are constant within a window."""

OF_PROCESSES = ("rank", "node")
"""Columns that are constant within a process."""


def parse_keys(by: str | Sequence[str]) -> tuple[str, ...]:
    """Return the keys in ``"stage,device"`` or a sequence of them.

    Raises
    ------
    UsageError
        If one is unknown, is given twice, or none is given.
    """
    return chosen_keys(by, _KEYS, "breakdown")


def chosen_keys(by: str | Sequence[str], known: Collection[str], what: str) -> tuple[str, ...]:
    """Return the keys that a user names, as a sequence or separated by commas.

    Parameters
    ----------
    by
        The keys as the user gives them.
    known
        The valid keys.
    what
        Noun for the thing that is grouped, for messages.

    Raises
    ------
    UsageError
        If a key is unknown, is given twice, or none is given.
    """
    listed = by.split(",") if isinstance(by, str) else by
    if not isinstance(listed, Iterable):
        raise UsageError(f"no {what} by {by!r}", f"name some of {', '.join(known)}")
    keys = tuple(str(key).strip() for key in listed)
    for key in keys:
        if key not in known:
            raise UsageError(f"no {what} by {key!r}", choose_among(key, known))
    if not keys or len(set(keys)) < len(keys):
        text = by if isinstance(by, str) else ",".join(by)
        raise UsageError(f"no {what} by {text!r}", f"name each of {', '.join(known)} once")
    return keys


def share_meaning(by: str | Sequence[str]) -> str:
    """Return the formula of the column ``share`` in a breakdown by the given keys."""
    keys = parse_keys(by)
    part = "exposed_ns" if is_by_stage(keys) else "busy_ns"
    own = dividing(keys)
    return f"{part} / window_ns of the {' and '.join(own)}" if own else f"{part} / window_ns"


def is_by_stage(keys: Sequence[str]) -> bool:
    """Tell whether ``stage`` alone splits a window, which gives exposed and overlapped time."""
    return [key for key in keys if not _KEYS[key].divides_time] == ["stage"]


def is_by_steps(keys: Sequence[str]) -> bool:
    """Tell whether keys make each step, and the time between steps, a window."""
    return "iteration" in keys or "phase" in keys


def dividing(keys: Sequence[str]) -> list[str]:
    """Return the keys whose groups have windows of their own; keys are named as their columns."""
    return [key for key in keys if _KEYS[key].divides_time]


def columns_of(keys: Sequence[str]) -> list[str]:
    """Return the columns that belong to the given keys, in order."""
    return list(dict.fromkeys(name for key in keys for name in _KEYS[key].columns))
