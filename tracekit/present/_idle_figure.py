"""Why nothing runs on each GPU, as bars."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.present._figures import (
    TIME_UNITS,
    empty_figure,
    figure_layout,
    figure_text,
    legend_above,
    legend_lines,
    unit_of,
)
from tracekit.present._palette import CAUSE_COLOURS

if TYPE_CHECKING:
    from collections.abc import Sequence

    import plotly.graph_objects as go
    import polars as pl

_MOST_DEVICES = 40
_WIDTH = 960
_SIDES = 72


def idle_figure(table: pl.DataFrame, *, title: str, subtitle: str) -> go.Figure:
    """Return the idle time of each GPU as a bar, of which each cause is a part.

    Parameters
    ----------
    table
        One row per GPU and cause: ``device``, ``cause``, ``idle_ns``. The 40 GPUs with the lowest
        numbers are shown.
    title, subtitle
        Plain texts; see `figure_layout`.
    """
    import plotly.graph_objects as go
    import polars as pl

    if not table.height:
        return empty_figure(title, subtitle, "no idle time")
    devices = table["device"].unique().sort()
    shown = table.filter(pl.col("device").is_in(devices.head(_MOST_DEVICES).implode()))
    present = set(shown["cause"])
    causes = [cause for cause in CAUSE_COLOURS if cause in present]
    lines = legend_lines(causes, _WIDTH - 2 * _SIDES)
    hidden = devices.len() - _MOST_DEVICES
    layout = figure_layout(
        title,
        subtitle,
        width=_WIDTH,
        height=192 + 20 * lines + 32 * min(devices.len(), _MOST_DEVICES),
        margin={"l": _SIDES, "r": _SIDES, "t": 92 + 20 * lines, "b": 60},
        notes=[f"{hidden} more GPUs are not shown"] if hidden > 0 else [],
    )
    figure = go.Figure(layout={**layout, "barmode": "stack", "legend": legend_above(layout)})
    _add_causes(figure, shown, causes)
    return figure


def _add_causes(figure: go.Figure, table: pl.DataFrame, causes: Sequence[str]) -> None:
    import plotly.graph_objects as go
    import polars as pl

    lengths = table.group_by("device").agg(pl.col("idle_ns").sum())["idle_ns"]
    divisor, unit = unit_of(max(lengths), TIME_UNITS)
    for cause in causes:
        own = table.filter(cause=cause).sort("device")
        figure.add_trace(
            go.Bar(
                x=(own["idle_ns"] / divisor).to_list(),
                y=[f"GPU {device}" for device in own["device"]],
                orientation="h",
                name=figure_text(cause),
                showlegend=True,
                marker={"color": CAUSE_COLOURS[cause], "line": {"color": "white", "width": 0.5}},
                hovertemplate=f"<b>{figure_text(cause)}</b><br>%{{x:,.3f}} {unit}<extra></extra>",
            )
        )
    names = [f"GPU {device}" for device in table["device"].unique().sort()]
    figure.update_yaxes(categoryorder="array", categoryarray=names[::-1])
    figure.update_xaxes(title_text=f"idle time ({unit})")
