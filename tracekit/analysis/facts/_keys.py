"""Keys of a breakdown: columns, phases of serving steps, and words for what has no name.

vLLM, SGLang and ATOM write how many requests are in a step, and mostly how many tokens. What a name
does not say is null: of `execute_new_0_cached_3` a cached request may still be in its prefill.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from tracekit.errors import MissingDataError, UsageError
from tracekit.support.spelling import choose_among

if TYPE_CHECKING:
    from tracekit.model import Trace

OUTSIDE_STEPS = "(no step)"
"""What lies in no iteration."""
_VLLM = r"^execute_(?:\d+_)?context_(\d{1,9})\((?:sq)?(\d{1,9})[^)]*\)_generation_(\d{1,9})\((?:sq)?(\d{1,9})[^)]*\)"  # noqa: E501
_VLLM_EARLY = r"^execute_new_([1-9]\d{0,8})_cached_0$"
_SGLANG = r"^step\[(EXTEND|DECODE|MIXED)\b(?:.*?\bbs=(\d{1,9}))?(?:.*?\btoks=(\d{1,9}))?"
_ATOM = r"^(prefill|decode)\[bs=(\d{1,9})(?:/\d+)?(?: tok=(\d{1,9}))?"
_OF_WORD = {"EXTEND": "prefill", "DECODE": "decode", "MIXED": "mixed", "prefill": "prefill",
            "decode": "decode"}  # fmt: skip


@dataclass(frozen=True)
class _Key:
    """A key to group ops by: its columns, and how they are computed."""

    columns: tuple[str, ...]
    meaning: str
    divides_time: bool = False
    """Whether its groups are stretches of time or devices, and so have a window of their own."""


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
"""What a breakdown can be by."""

OF_WINDOWS = ("device", "iteration", "phase")
"""Columns that say the same of all that runs in one window."""

OF_PROCESSES = ("rank", "node")
"""Columns that say the same of all that a process does."""


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
        What the user says.
    known
        The keys that there are.
    what
        What is by them, for messages.

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
    """Say what ``share`` divides by in a breakdown by some keys."""
    keys = parse_keys(by)
    part = "exposed_ns" if is_by_stage(keys) else "busy_ns"
    own = dividing(keys)
    return f"{part} / window_ns of the {' and '.join(own)}" if own else f"{part} / window_ns"


def is_by_stage(keys: Sequence[str]) -> bool:
    """Tell whether time is laid out in stages, which gives exposed and overlapped time."""
    return [key for key in keys if not _KEYS[key].divides_time] == ["stage"]


def is_by_steps(keys: Sequence[str]) -> bool:
    """Tell whether windows are steps and the time between them."""
    return "iteration" in keys or "phase" in keys


def dividing(keys: Sequence[str]) -> list[str]:
    """Return the keys whose groups have windows of their own; they are named as their columns."""
    return [key for key in keys if _KEYS[key].divides_time]


def columns_of(keys: Sequence[str]) -> list[str]:
    """Return the columns that some keys give, in order."""
    return list(dict.fromkeys(name for key in keys for name in _KEYS[key].columns))


def with_words(rows: pl.DataFrame, words: Mapping[str, str]) -> pl.DataFrame:
    """Return rows with a word where a column is null.

    Parameters
    ----------
    rows
        Any rows.
    words
        The word of each column; columns that the rows lack, or that have no nulls, do not matter.
    """
    nameless = [name for name in words if name in rows.columns and rows[name].has_nulls()]
    return rows.with_columns(
        pl.col(name).cast(pl.String).fill_null(words[name]) for name in nameless
    )


def with_phases(iterations: pl.DataFrame) -> pl.DataFrame:
    """Add ``phase, requests, tokens`` of each step by its ``name``; null where unknown."""
    context, tokens, generation, generated = (_number(_VLLM, group) for group in (1, 2, 3, 4))
    early = _number(_VLLM_EARLY, 1)
    word = pl.coalesce(_text(_SGLANG, 1), _text(_ATOM, 1))
    of_vllm = (
        pl.when(generation == 0).then(pl.lit("prefill"))
        .when(context == 0).then(pl.lit("decode"))
        .when(context > 0).then(pl.lit("mixed"))
    )  # fmt: skip
    of_word = word.replace_strict(_OF_WORD, default=None, return_dtype=pl.String)
    of_early = pl.when(early > 0).then(pl.lit("prefill"))
    return iterations.with_columns(
        phase=pl.coalesce(of_vllm, of_early, of_word),
        requests=pl.coalesce(context + generation, early, _number(_SGLANG, 2), _number(_ATOM, 2)),
        tokens=pl.coalesce(tokens + generated, _number(_SGLANG, 3), _number(_ATOM, 3)),
    )


def step_phases(trace: Trace) -> pl.DataFrame:
    """Return ``process, iteration, phase, requests, tokens`` of the steps of a run.

    Raises
    ------
    MissingDataError
        If the phase of none is known.
    """
    steps = with_phases(trace.read("iterations")).unique(["process", "iteration"], keep="first")
    if steps["phase"].null_count() == steps.height:
        raise MissingDataError(
            "no step of this run is named as a serving engine's prefill or decode",
            "vLLM, SGLang and ATOM write such names while they are profiled",
        )
    return steps.select("process", "iteration", "phase", "requests", "tokens")


def _text(pattern: str, group: int) -> pl.Expr:
    return pl.col("name").str.extract(pattern, group)


def _number(pattern: str, group: int) -> pl.Expr:
    return _text(pattern, group).cast(pl.Int64, strict=False)
