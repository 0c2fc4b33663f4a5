"""Phases of a serving engine's steps, by their names: prefill, decode, or both mixed.

vLLM, SGLang and ATOM write the number of requests of a step, and mostly of tokens, into its name.
Values that do not follow from the name are null: in `execute_new_0_cached_3` a cached request may
still be in prefill.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import polars as pl

from tracekit.errors import MissingDataError

if TYPE_CHECKING:
    from tracekit.model import Trace


_VLLM = r"^execute_(?:\d+_)?context_(\d{1,9})\((?:sq)?(\d{1,9})[^)]*\)_generation_(\d{1,9})\((?:sq)?(\d{1,9})[^)]*\)"  # noqa: E501
_VLLM_EARLY = r"^execute_new_([1-9]\d{0,8})_cached_0$"
_SGLANG = r"^step\[(EXTEND|DECODE|MIXED)\b(?:.*?\bbs=(\d{1,9}))?(?:.*?\btoks=(\d{1,9}))?"
_ATOM = r"^(prefill|decode)\[bs=(\d{1,9})(?:/\d+)?(?: tok=(\d{1,9}))?"
_OF_WORD = {"EXTEND": "prefill", "DECODE": "decode", "MIXED": "mixed", "prefill": "prefill",
            "decode": "decode"}  # fmt: skip


def with_phases(iterations: pl.DataFrame) -> pl.DataFrame:
    """Add ``phase`` (prefill, decode, mixed), ``requests, tokens``, read from step names."""
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
    """Return steps of inference: ``process, iteration, phase``, numbers of ``requests, tokens``.

    Raises
    ------
    MissingDataError
        If no step has a known phase.
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


# -- words for what has no name in the rows that people read; data formats keep null -----------


OUTSIDE_STEPS = "(no step)"
"""Name of time in no iteration."""


def with_words(rows: pl.DataFrame, words: Mapping[str, str]) -> pl.DataFrame:
    """Replace nulls in columns by words for display.

    Parameters
    ----------
    rows
        Any rows.
    words
        Column -> word; columns that the rows lack are ignored.
    """
    nameless = [name for name in words if name in rows.columns and rows[name].has_nulls()]
    return rows.with_columns(
        pl.col(name).cast(pl.String).fill_null(words[name]) for name in nameless
    )
