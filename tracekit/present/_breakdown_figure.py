"""A breakdown as bars: by stage where its rows are, else by busy and idle time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
import polars as pl

from tracekit.present._charts import MOST_BARS, MOST_UPRIGHT, Part, bars_figure
from tracekit.present._columns import duration
from tracekit.present._configurations import not_shown
from tracekit.present._figures import empty_figure
from tracekit.present._kernel_names import readable_names
from tracekit.present._palette import ACCENT, IDLE_COLOUR, KIND_COLOURS
from tracekit.present._text import printable, shorten_apart
from tracekit.present._waterfall import stage_colour, stage_order

_WIDEST = 52
_IDLE = "idle"
_MEASURES = ("exposed_ns", "busy_ns", "window_ns")
_NUMBERS = ("ops", "ranges")
_PLACES = {"iteration", "device", "rank"}
"""Keys whose rows stay in the order of the table."""
_WORDS = {"device": "GPU ", "iteration": "step ", "rank": "rank ", "stream": "stream "}


def breakdown_figure(
    table: pl.DataFrame, meta: Mapping[str, Any], *, title: str, subtitle: str
) -> go.Figure:
    """Return the rows of a breakdown as bars.

    By stage there is one bar for each group of the other keys: exposed time solid, the time that is
    hidden behind other stages hatched beside it, idle time grey where it is known. Otherwise each
    row is a bar of its busy time, and of a step or GPU of its idle time. Steps stand side by side.
    Of many bars the longest are drawn.

    Parameters
    ----------
    table
        The rows, with the keys' columns first.
    meta
        What is said of them: ``idle_ns`` of a breakdown by stage alone, ``per`` or ``sum_over``.
    title, subtitle
        Plain texts; see `figure_layout`.
    """
    keys = _keys(table)
    if table.is_empty() or not keys:
        return empty_figure(title, subtitle, "nothing ran")
    is_stacked = "stage" in keys and "exposed_ns" in table.columns
    value = "exposed_ns" if is_stacked else next(m for m in _MEASURES[::-1] if m in table.columns)
    own = [key for key in keys if key != "stage"] if is_stacked else keys
    upright = "step" if own == ["iteration"] else None
    rows = table.with_columns(label=_label(own), length=pl.col(value))
    notes: list[str] = []
    if upright and rows["iteration"].count():  # what is of no step dwarfs each of many
        outside = rows.filter(pl.col("iteration").is_null())
        rows = rows.drop_nulls("iteration")
        if length := float(outside["length"].sum()):
            notes.append(f"not shown: {duration(length)} outside of steps")
    bars = rows.group_by("label", maintain_order=True).agg(pl.col("length").sum())
    if not (is_stacked or _PLACES & {*own}):
        bars = bars.sort("length", descending=True, maintain_order=True)
    shown = _longest(bars, MOST_UPRIGHT if upright else MOST_BARS)
    rows = shown.with_row_index("place").drop("length").join(
        rows, on="label", maintain_order="left_right"
    )  # fmt: skip
    parts = _stages(rows, shown.height, own, meta) if is_stacked else _busy(rows, keys)
    return bars_figure(
        _names(rows.unique("place", maintain_order=True), own), parts,
        axis=f"time{_of(meta)}", title=title, subtitle=subtitle, upright=upright,
        notes=[*notes, *not_shown(bars.height - shown.height, "that are shorter")],
    )  # fmt: skip


def _keys(table: pl.DataFrame) -> list[str]:
    """Return the columns of a breakdown's keys, which stand before the number of ops."""
    names = table.columns
    ends = [names.index(name) for name in (*_NUMBERS, *_MEASURES) if name in names]
    return [name for name in names[: min(ends, default=0)] if name != "iteration_name"]


def _longest(bars: pl.DataFrame, most: int) -> pl.DataFrame:
    """Return the longest bars, in the order that they have."""
    kept = bars.with_row_index("at").sort("length", "at", descending=[True, False]).head(most)
    return kept.sort("at").drop("at")


def _stages(
    rows: pl.DataFrame, number: int, own: Sequence[str], meta: Mapping[str, Any]
) -> list[Part]:
    """Return exposed times by stage, idle time where it is known, and then what is hidden."""
    stages = rows["stage"].cast(str)
    found = []
    for column, ending in (("exposed_ns", ""), ("overlap_ns", " hidden")):
        for stage in stage_order(stages.to_list()):
            of_stage = rows.filter(stages == stage)
            times = dict(of_stage.select("place", column).iter_rows())
            if any(times.values()):
                lengths = [times.get(place) for place in range(number)]
                found.append(Part(stage + ending, stage_colour(stage), lengths, bool(ending)))
        if not (own or ending) and meta.get("idle_ns"):
            found.append(Part(_IDLE, IDLE_COLOUR, [meta["idle_ns"]]))
    return found


def _busy(rows: pl.DataFrame, keys: Sequence[str]) -> list[Part]:
    """Return busy times in the colours of stages or kinds, and idle ones of whole windows."""
    colours: str | list[str] = ACCENT
    if "stage" in keys:
        colours = [stage_colour(stage) for stage in rows["stage"].cast(str).to_list()]
    elif "kind" in keys:
        colours = [KIND_COLOURS.get(kind, ACCENT) for kind in rows["kind"].cast(str).to_list()]
    named = {"idle": "idle", "between": "between steps"}
    idle = [name for name in named if f"{name}_ns" in rows.columns]
    return [
        Part(
            "busy" * bool(idle), colours, rows["busy_ns"].to_list(), hover=rows["label"].to_list()
        ),
        *(Part(named[name], stage_colour(name), rows[f"{name}_ns"].to_list()) for name in idle),
    ]


def _names(rows: pl.DataFrame, keys: Sequence[str]) -> list[str]:
    """Return the labels of bars; kernels get short names."""
    if keys == ["iteration"]:
        return ["outside" if step is None else str(step) for step in rows["iteration"]]
    if "name" not in keys:
        return rows["label"].to_list()
    names = [printable(str(name)) for name in rows["name"].cast(str)]
    short = readable_names(names)
    kernels = shorten_apart([short[name] for name in names], _WIDEST)
    others = [key for key in keys if key not in {"name", "kind"}]
    if not others:
        return kernels
    rest = rows.select(_label(others))["label"]
    return [f"{kernel}, {more}" for kernel, more in zip(kernels, rest, strict=True)]


def _label(keys: Sequence[str]) -> pl.Expr:
    if not keys:
        return pl.lit("").alias("label")
    named = [
        pl.format(f"{_WORDS.get(key, '')}{{}}", pl.col(key).cast(pl.String).fill_null("unknown"))
        for key in keys
    ]
    return pl.concat_str(named, separator=", ").alias("label")


def _of(meta: Mapping[str, Any]) -> str:
    """Return what times are means or sums over."""
    if meta.get("per"):
        return f" per {meta['per']}"
    return f", sum over {meta['sum_over']}" if meta.get("sum_over") else ""
