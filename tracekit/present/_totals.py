"""The rows that close a table of stages, so that a reader sees the shares add up."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tracekit.present._columns import NULL, ShownColumn, shown, time_scale

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import polars as pl


def shown_with_totals(
    frame: pl.DataFrame, meta: Mapping[str, Any], *, is_whole: bool = True
) -> list[ShownColumn]:
    """Return the columns of `frame` as they are shown; a breakdown by stage gets closing rows.

    They are `idle`, or of ranges on the host `no stage`, and `window`. Of all breakdowns only that
    by stage adds up to its window, and only where all rows of it are there, the frame `is_whole`.
    """
    totalled = with_totals(frame, meta) if is_whole else frame
    if "a_ns" in frame.columns and totalled.height > frame.height:
        parts = rounded(totalled, ("a_ns", "b_ns"))
        columns = shown(_with_typical(parts, meta))
    else:
        columns = shown(totalled, frame.height)
    return [replace(column, texts=_blank_below(column.texts, frame.height)) for column in columns]


def with_totals(frame: pl.DataFrame, meta: Mapping[str, Any]) -> pl.DataFrame:
    """Return `frame`, a breakdown by stage with its closing rows."""
    import polars as pl

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
            number: [None, frame[number].sum()],
            "exposed_ns": [idle, window],
            "share": [idle / window, 1.0],
        },
    )
    return pl.concat([frame.cast({"stage": pl.String}), totals], how="diagonal_relaxed")


def _with_step(frame: pl.DataFrame, meta: Mapping[str, Any]) -> pl.DataFrame:
    """Return what the step of two runs is made of, with the step below it."""
    import polars as pl

    step = meta.get("step")
    if not step or step["a_ns"] is None:
        return frame
    known = {name: step[name] for name in frame.columns if name in step and name != "p_value"}
    total = pl.DataFrame({frame.columns[0]: "step", **known}, infer_schema_length=None)
    return pl.concat([frame, total], how="diagonal_relaxed")


def _with_typical(frame: pl.DataFrame, meta: Mapping[str, Any]) -> pl.DataFrame:
    """Return the same with the typical step below: medians, and their shift, which is no sum."""
    import polars as pl

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


def rounded(frame: pl.DataFrame, sides: Sequence[str]) -> pl.DataFrame:
    """Return parts and, last, their whole, in numbers that add up as they are shown.

    Each part is rounded down to what is shown, and those that lose most by it get one more, until
    they make up the whole. Differences stay as they are: what is found of them, not what is shown.
    """
    import polars as pl

    scale = time_scale(frame, sides[0])
    quantum = scale.divisor // 10**scale.decimals or 1
    columns = {side: _apportioned(frame[side].to_list(), quantum) for side in sides}
    return frame.with_columns(
        pl.Series(name, values, pl.Float64) for name, values in columns.items()
    )


def _apportioned(values: Sequence[float], quantum: int) -> list[int]:
    """Round values, the last of which is the sum of the others, to multiples of a quantum."""
    whole = round(values[-1] / quantum)
    floors = [math.floor(value / quantum) for value in values[:-1]]
    by_loss = sorted(range(len(floors)), key=lambda place: floors[place] - values[place] / quantum)
    for place in by_loss[: max(0, whole - sum(floors))]:
        floors[place] += 1
    return [number * quantum for number in (*floors, whole)]


def _blank_below(texts: list[str], height: int) -> list[str]:
    """Leave the cells of the closing rows empty where they have nothing to say."""
    return texts[:height] + ["" if text == NULL else text for text in texts[height:]]
