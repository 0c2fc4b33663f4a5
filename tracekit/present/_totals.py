"""The rows that close a table of stages, so that a reader sees the shares add up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import polars as pl

from tracekit.present._columns import NULL, Scale, ShownColumn, shown, time_scale


def shown_with_totals(
    frame: pl.DataFrame, meta: Mapping[str, Any], *, is_whole: bool = True
) -> list[ShownColumn]:
    """Return the columns of `frame` as they are shown; a breakdown by stage gets closing rows.

    They are `idle`, or of ranges on the host `no stage`, and `window`. Of all breakdowns only that
    by stage adds up to its window, and only where all rows of it are there, the frame `is_whole`.
    A row of `with_parts` is empty where it has nothing to say, as these are.
    """
    totalled = with_totals(frame, meta) if is_whole else frame
    if "a_ns" in frame.columns and totalled.height > frame.height:
        scale = time_scale(_with_typical(totalled, meta), "a_ns")
        columns = shown(_with_typical(_with_remainder(totalled, scale), meta))
    else:
        columns = shown(totalled, frame.height)
    parts = _are_parts(frame)
    return [
        replace(column, texts=_blank_below(column.texts, frame.height, parts)) for column in columns
    ]


OF_WHICH = "of which recomputed"


def with_parts(frame: pl.DataFrame, meta: Mapping[str, Any]) -> pl.DataFrame:
    """Return a breakdown by stage with what backward passes run again below their rows."""
    import polars as pl

    if not meta.get("recomputed") or not {"stage", "ops", "busy_ns"} <= {*frame.columns}:
        return frame
    parts = pl.DataFrame(meta["recomputed"]).with_columns(stage=pl.lit("BP"))
    own = [name for name in parts.columns if name not in ("ops", "busy_ns")]
    rows = frame.with_row_index("place").cast({"stage": pl.String})
    if not {*own} <= {*frame.columns}:
        return frame
    parts = parts.cast({name: rows.schema[name] for name in own})
    below = rows.select("place", *own).join(parts, on=own).with_columns(stage=pl.lit(OF_WHICH))
    both = pl.concat([rows, below], how="diagonal_relaxed")
    return both.sort("place", maintain_order=True).drop("place")


def _are_parts(frame: pl.DataFrame) -> list[bool]:
    """Tell which rows are part of the one above."""
    if "stage" not in frame.columns:
        return [False] * frame.height
    return [stage == OF_WHICH for stage in frame["stage"].cast(str).to_list()]


def with_totals(frame: pl.DataFrame, meta: Mapping[str, Any]) -> pl.DataFrame:
    """Return `frame`, a breakdown by stage with its closing rows."""
    window, idle = meta.get("window_ns"), meta.get("idle_ns")
    if frame.columns[:1] in (["stage"], ["part"]) and "a_ns" in frame.columns:
        return _with_step(frame, meta)
    number = "ranges" if "basis" in meta else "ops"
    by_stage = frame.columns[:2] == ["stage", number]
    if not by_stage or not {"exposed_ns", "share"} <= {*frame.columns}:
        return frame
    if not window or idle is None:
        return frame
    totals = pl.DataFrame(
        {
            "stage": ["no stage" if "basis" in meta else "idle", "window"],
            number: [None, frame.filter(pl.col("stage").cast(pl.String) != OF_WHICH)[number].sum()],
            "exposed_ns": [idle, window],
            "share": [idle / window, 1.0],
        },
    )
    return pl.concat([frame.cast({"stage": pl.String}), totals], how="diagonal_relaxed")


def _with_step(frame: pl.DataFrame, meta: Mapping[str, Any]) -> pl.DataFrame:
    """Return what the step of two runs is made of, with the step below it."""
    step = meta.get("step")
    if not step or step["a_ns"] is None:
        return frame
    known = {name: step[name] for name in frame.columns if name in step and name != "p_value"}
    total = pl.DataFrame({frame.columns[0]: "step", **known}, infer_schema_length=None)
    return pl.concat([frame, total], how="diagonal_relaxed")


def _with_typical(frame: pl.DataFrame, meta: Mapping[str, Any]) -> pl.DataFrame:
    """Return the same with the typical step below: medians, and their shift, which is no sum."""
    step = meta["step"]
    if step.get("shift_low_ns") is None:
        return frame
    known = {
        "a_ns": step["a_median_ns"],
        "b_ns": step["b_median_ns"],
        "delta_ns": step["shift_ns"],
        "low_ns": step["shift_low_ns"],
        "high_ns": step["shift_high_ns"],
        "verdict": step["shift_verdict"],
    }
    own = {name: value for name, value in known.items() if name in frame.columns}
    typical = pl.DataFrame({frame.columns[0]: "typical", **own}, infer_schema_length=None)
    return pl.concat([frame, typical], how="diagonal_relaxed")


def _with_remainder(frame: pl.DataFrame, scale: Scale) -> pl.DataFrame:
    """Put before the whole, which is last, what rounding leaves of it beside its parts.

    Each of these is shown as it was found, and never as a zero that it is not.
    """
    quantum = scale.divisor / 10**scale.decimals
    shown_as = [(pl.col(name) / quantum).round() for name in ("a_ns", "b_ns")]
    left = frame.select(each.last() - each.head(pl.len() - 1).sum() for each in shown_as)
    if not any(left.row(0)):
        return frame
    row = left.select(pl.lit("rounding").alias(frame.columns[0]), pl.all() * quantum)
    return pl.concat([frame.head(-1), row, frame.tail(1)], how="diagonal_relaxed")


def _blank_below(texts: list[str], height: int, parts: list[bool]) -> list[str]:
    """Leave the cells of parts and of closing rows empty where they have nothing to say."""
    may_be = [*parts, *(True for _ in texts[height:])]
    return [
        "" if blank and text == NULL else text for text, blank in zip(texts, may_be, strict=True)
    ]
