"""Figures of waiting: causes of idle time, parts of GPU time, a pipeline step on a time line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go
import polars as pl

from tracekit.present._charts import MOST_BARS, Part, bars_figure, parts_by
from tracekit.present._configurations import not_shown
from tracekit.present._figures import (
    TIME_UNITS,
    empty_figure,
    figure_layout,
    legend_above,
    legend_lines,
    named_places,
    text_width,
    unit_of,
)
from tracekit.present._palette import CAUSE_COLOURS, IDLE_COLOUR, STAGE_COLOURS

STALL_COLOURS = {
    "kernels": "#88CCEE",
    "waiting for the loader": "#DDAA33",
    "copying input": "#DDCC77",
    "other copies": "#AA4499",
    "idle, other causes": IDLE_COLOUR,
}
"""Colour of each part of a GPU's time beside the loader."""

BUBBLE_COLOURS = {
    "working": "#88CCEE",
    "bubble, a neighbour works": "#882255",
    "bubble, neither works": IDLE_COLOUR,
}
"""Colour of each part of a stage's time."""

_MOST_PIECES = 20_000
_WIDTH, _RIGHT = 960, 72
_GAP = 0.2
_WORK = {"FP": "forward", "BP": "backward", None: "work"}


def parts_figure(
    table: pl.DataFrame, colours: Mapping[str, str], *, title: str, subtitle: str
) -> go.Figure:
    """Return bars that consist of parts.

    Parameters
    ----------
    table
        One row per bar, at most 40 of which are drawn: ``name``, and ns of each part.
    colours
        Colour of each part.
    title, subtitle
        Plain texts; see `figure_layout`.
    """
    if table.is_empty():
        return empty_figure(title, subtitle, "nothing was measured")
    shown = table.head(MOST_BARS)
    parts = [Part(each.name, colours[each.name], each.to_list()) for each in shown.drop("name")]
    return bars_figure(
        shown["name"].to_list(), parts, axis="time", title=title, subtitle=subtitle,
        notes=not_shown(table.height - shown.height, "bars"),
    )  # fmt: skip


def pipeline_figure(timeline: pl.DataFrame, *, title: str, subtitle: str) -> go.Figure:
    """Return a step of a pipeline: when each of its stages works; bubbles are blank.

    Parameters
    ----------
    timeline
        ``stage``; ``part``, ``FP``, ``BP`` or null where it is not known; ``start_ns`` and
        ``end_ns`` from the beginning of the step. At most 20,000 pieces are drawn.
    title, subtitle
        Plain texts; see `figure_layout`.
    """
    if timeline.is_empty():
        return empty_figure(title, subtitle, "no step has work of all stages")
    stages = timeline["stage"].unique().sort().to_list()
    shown = timeline.head(_MOST_PIECES)
    parts = [part for part in _WORK if part in shown["part"].unique().to_list()]
    names = [f"stage {stage}" for stage in stages]
    told = [*(_WORK[part] for part in parts), "bubble"]
    left_out = not_shown(timeline.height - shown.height, "pieces")
    layout = _layout(names, told, left_out, title, subtitle)
    figure = go.Figure(
        layout={**layout, "barmode": "overlay", "bargap": _GAP, "legend": legend_above(layout)}
    )
    end: int = timeline["end_ns"].max()  # type: ignore[assignment]
    divisor, unit = unit_of(end, TIME_UNITS)
    places = {stage: place for place, stage in enumerate(stages)}
    figure.add_trace(_blank(len(stages), end / divisor))
    for part in parts:
        own = shown.filter(shown["part"].eq_missing(part))
        length = (own["end_ns"] - own["start_ns"]) / divisor
        figure.add_trace(
            go.Bar(
                base=(own["start_ns"] / divisor).to_list(),
                x=length.to_list(),
                y=[places[stage] for stage in own["stage"]],
                orientation="h",
                name=_WORK[part],
                showlegend=True,
                marker={"color": STAGE_COLOURS.get(part or "FP"), "line": {"width": 0}},
                hovertemplate=f"<b>{_WORK[part]}</b><br>from %{{base:,.3f}} {unit}, "
                f"for %{{x:,.3f}} {unit}<extra></extra>",
            )
        )
    figure.update_yaxes(**named_places(names))
    figure.update_xaxes(title_text=f"time from the beginning of the step ({unit})")
    return figure


def _blank(stages: int, length: float) -> go.Bar:
    """Return what a step leaves where no stage works."""
    return go.Bar(
        x=[length] * stages, y=list(range(stages)), orientation="h", name="bubble",
        showlegend=True, marker={"color": IDLE_COLOUR}, hoverinfo="skip",
    )  # fmt: skip


def _layout(
    names: Sequence[str], parts: Sequence[str], notes: Sequence[str], title: str, subtitle: str
) -> dict[str, object]:
    left = max(_RIGHT, text_width(names) + 28)
    lines = legend_lines(parts, _WIDTH - left - _RIGHT)
    return figure_layout(
        title,
        subtitle,
        width=_WIDTH,
        height=150 + 20 * lines + 34 * len(names),
        margin={"l": left, "r": _RIGHT, "t": 92 + 20 * lines, "b": 60},
        notes=notes,
    )


def idle_figure(table: pl.DataFrame, *, title: str, subtitle: str) -> go.Figure:
    """Return a bar of idle time for each GPU, split by cause.

    Parameters
    ----------
    table
        One row per GPU and cause: ``device``, ``cause``, ``idle_ns``. The 40 GPUs with the lowest
        numbers are shown.
    title, subtitle
        Plain texts; see `figure_layout`.
    """
    if not table.height:
        return empty_figure(title, subtitle, "no idle time")
    devices = table["device"].unique().sort()
    shown = devices.head(MOST_BARS).to_list()
    parts = parts_by(table, "device", shown, "cause", "idle_ns", CAUSE_COLOURS)
    return bars_figure(
        [f"GPU {device}" for device in shown], parts, axis="idle time", title=title,
        subtitle=subtitle, notes=not_shown(devices.len() - len(shown), "GPUs"),
    )  # fmt: skip
