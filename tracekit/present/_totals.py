"""The rows that close a table of stages, so that a reader sees the shares add up."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tracekit.present._columns import NULL, ShownColumn, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    import polars as pl


def shown_with_totals(frame: pl.DataFrame, meta: Mapping[str, Any]) -> list[ShownColumn]:
    """Return the columns of `frame` as they are shown; a breakdown by stage gets closing rows.

    They are `idle`, or of ranges on the host `no stage`, and `window`. Of all breakdowns only that
    by stage adds up to its window.
    """
    columns = shown(with_totals(frame, meta), frame.height)
    return [replace(column, texts=_blank_below(column.texts, frame.height)) for column in columns]


def with_totals(frame: pl.DataFrame, meta: Mapping[str, Any]) -> pl.DataFrame:
    """Return `frame`, a breakdown by stage with its closing rows."""
    import polars as pl

    window, idle = meta.get("window_ns"), meta.get("idle_ns")
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


def _blank_below(texts: list[str], height: int) -> list[str]:
    """Leave the cells of the closing rows empty where they have nothing to say."""
    return texts[:height] + ["" if text == NULL else text for text in texts[height:]]
