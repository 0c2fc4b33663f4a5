"""Panels of one figure, under one legend."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go
import polars as pl
from plotly.subplots import make_subplots

from tracekit.present._figures import figure_layout, figure_text, legend_above, legend_lines

_WIDTH = 960
_PANELS = {"l": 84, "r": 32}
WIDE = _WIDTH - _PANELS["l"] - _PANELS["r"]
"""How wide all panels that are beside each other are together, in pixels."""


def known_rows(table: pl.DataFrame, value: str) -> pl.DataFrame:
    """Return the rows with a known value."""
    return table.with_columns(pl.col(value).cast(pl.Float64)).filter(pl.col(value).is_finite())


def cell(place: int, across: int) -> dict[str, int]:
    """Return the row and the column of one of some panels."""
    return {"row": place // across + 1, "col": place % across + 1}


def paneled(
    titles: Sequence[str],
    legend: Sequence[str],
    *,
    across: int,
    each: int,
    below: int,
    title: str,
    subtitle: str,
    notes: Sequence[str],
) -> go.Figure:
    """Return a figure of panels in columns, of equal height, under a legend.

    Parameters
    ----------
    titles
        Plain titles of the panels.
    legend
        Plain texts of the legend.
    across, each, below
        Panels beside each other, the height of each, and the room below it, in pixels.
    title, subtitle, notes
        As of `figure_layout`.
    """
    down = -(-len(titles) // across)
    gap = below + 34
    high = each * down + gap * (down - 1)
    titled = 24 if any(titles) else 0
    top = 84 + titled + (8 + 20 * legend_lines(legend, WIDE) if legend else 0)
    margin = {**_PANELS, "t": top, "b": below}
    layout = figure_layout(
        title, subtitle, width=_WIDTH, height=high + top + below, margin=margin, notes=notes
    )
    figure = make_subplots(
        rows=down, cols=across, horizontal_spacing=44 / WIDE, vertical_spacing=gap / high
    )
    figure.update_layout({**layout, "legend": legend_above(layout, gap=8 + titled)})
    for place, text in enumerate(titles):
        figure.add_annotation(
            text=f"<b>{figure_text(text)}</b>", showarrow=False, font_size=13,
            xref="x domain", x=0, xanchor="left", yref="y domain", y=1, yanchor="bottom", yshift=4,
            **cell(place, across),
        )  # fmt: skip
    return figure
