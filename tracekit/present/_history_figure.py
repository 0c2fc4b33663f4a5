"""The step of a program from recording to recording, with the levels that were found."""

from __future__ import annotations

import plotly.graph_objects as go
import polars as pl

from tracekit.present._charts import series, series_figure
from tracekit.present._configurations import NO_RUNS, error_bars
from tracekit.present._figures import (
    INK,
    MUTED,
    SERIES_COLOURS,
    empty_figure,
    figure_text,
    fitting_ticks,
    signed,
)
from tracekit.present._waterfall import step_unit

_WIDTH = 960
_SIDES = (80, 40)
_MOST_NAMED = 30
"""More points are named at even distances."""


def history_figure(points: pl.DataFrame, *, label: str, title: str, subtitle: str) -> go.Figure:
    """Return steps over the values of a label, the level of each, and where it changes.

    Parameters
    ----------
    points
        One row per point, in order: ``value, step_ns, low_ns, high_ns, level, level_ns,
        change_percent``.
    label
        What the values are of.
    title, subtitle
        Plain texts; see `figure_layout`.
    """
    if points.is_empty():
        return empty_figure(title, subtitle, NO_RUNS)
    divisor, unit = step_unit(max(points["step_ns"]))
    every = -(-points.height // _MOST_NAMED)
    names = [str(value) for value in points["value"]]
    each = (_WIDTH - sum(_SIDES)) / points.height * every
    ticks, below = fitting_ticks(names[::every], each)
    ticks |= {"tickvals": list(range(0, points.height, every)), "range": [-0.6, len(names) - 0.4]}
    figure = series_figure(
        [], title=title, subtitle=subtitle, height=380 + below, sides=_SIDES, below=below + 44,
        notes=["line: median of a level", *_pooled(points)],
    )  # fmt: skip
    scaled = points.with_columns(
        step=points["step_ns"] / divisor, low=points["low_ns"] / divisor,
        high=points["high_ns"] / divisor,
    )  # fmt: skip
    _add_levels(figure, points, divisor, unit)
    figure.add_trace(
        series(
            range(points.height), scaled["step"], colour=SERIES_COLOURS[0], mode="markers",
            error_y=error_bars(scaled, "step", "low", "high"),
            hover=[
                f"<b>{figure_text(name)}</b><br>{step:,.3f} {unit}"
                for name, step in zip(names, scaled["step"], strict=True)
            ],
        )
    )  # fmt: skip
    figure.update_xaxes(title_text=figure_text(label), **ticks)
    figure.update_yaxes(title_text=f"step ({unit})")
    return figure


def _pooled(points: pl.DataFrame) -> list[str]:
    most = max(points["runs"]) if "runs" in points.columns else 1
    return [f"means of up to {most} runs, with least and greatest"] if most != 1 else []


def _add_levels(figure: go.Figure, points: pl.DataFrame, divisor: int, unit: str) -> None:
    """Draw the median of each level, and say by how much a level differs from the one before."""
    place = 0
    for part in points.partition_by("level", maintain_order=True):
        row = part.row(0, named=True)
        value = row["level_ns"] / divisor
        ends = [place - 0.5, place + part.height - 0.5]
        figure.add_trace(
            series(ends, [value] * 2, colour=MUTED, hover=[f"level of {value:,.3f} {unit}"] * 2)
        )
        if row["change_percent"] is not None:
            figure.add_vline(x=ends[0], line={"color": INK, "width": 1, "dash": "dot"})
            figure.add_annotation(
                text=f"{signed(row['change_percent'], 1)} %", x=ends[0], y=1, yref="y domain",
                yanchor="bottom", showarrow=False, font={"size": 12, "color": INK},
            )  # fmt: skip
        place += part.height
