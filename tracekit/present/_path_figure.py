"""What each step waited for, and how long steps would take with something changed, as bars."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracekit.present._figures import (
    INK,
    MINUS,
    PLAIN_AXIS,
    TIME_UNITS,
    empty_figure,
    figure_layout,
    figure_text,
    legend_above,
    legend_lines,
    unit_of,
)
from tracekit.present._palette import ACCENT, IDLE_COLOUR, PATH_COLOURS, STAGE_COLOURS
from tracekit.present._text import shorten

if TYPE_CHECKING:
    import plotly.graph_objects as go
    import polars as pl

_WIDTH = 960
_SIDES = 72
_MOST_STEPS = 60
_LABEL, _LETTER, _LEAST_MARGIN = 44, 6.6, 110
_AS_RECORDED = {"measured": IDLE_COLOUR, "unchanged, replayed": STAGE_COLOURS["OTHER"]}


def path_figure(table: pl.DataFrame, *, title: str, subtitle: str) -> go.Figure:
    """Return the critical path of each step as a bar, of which each cause is a part.

    Parameters
    ----------
    table
        One row per step and part, in the order of steps: ``iteration`` (null of a run without
        any), ``part`` (a key of `PATH_COLOURS`), ``path_ns``. The first 60 steps are shown.
    title, subtitle
        Plain texts; see `figure_layout`.
    """
    import plotly.graph_objects as go
    import polars as pl

    if not table.height:
        return empty_figure(title, subtitle, "no steps")
    steps = table["iteration"].unique(maintain_order=True)
    names = ["run" if step is None else str(step) for step in steps.head(_MOST_STEPS)]
    named = table.with_columns(step=pl.col("iteration").cast(pl.String).fill_null("run"))
    shown = named.filter(pl.col("step").is_in(names))
    parts = [part for part in PATH_COLOURS if part in set(shown["part"])]
    layout = _path_layout(title, subtitle, parts, hidden=steps.len() - len(names))
    figure = go.Figure(layout=layout)
    unit = _add_parts(figure, shown, parts)
    figure.update_xaxes(
        title_text="step", type="category", categoryorder="array", categoryarray=names
    )
    figure.update_yaxes(title_text=f"critical path ({unit})")
    return figure


def _path_layout(title: str, subtitle: str, parts: list[str], *, hidden: int) -> dict[str, Any]:
    lines = legend_lines(parts, _WIDTH - 2 * _SIDES)
    layout = figure_layout(
        title,
        subtitle,
        width=_WIDTH,
        height=440 + 20 * lines,
        margin={"l": _SIDES, "r": _SIDES, "t": 92 + 20 * lines, "b": 64},
        notes=[f"{hidden} more steps are not shown"] if hidden > 0 else [],
    )
    return {**layout, "barmode": "stack", "bargap": 0.12, "legend": legend_above(layout)}


def _add_parts(figure: go.Figure, table: pl.DataFrame, parts: list[str]) -> str:
    """Draw the parts of each step; return the unit that they are drawn in."""
    import plotly.graph_objects as go
    import polars as pl

    longest = table.group_by("step").agg(pl.col("path_ns").sum())["path_ns"]
    divisor, unit = unit_of(max(longest), TIME_UNITS)
    for part in parts:
        own, name = table.filter(part=part), figure_text(part)
        figure.add_trace(
            go.Bar(
                x=own["step"].to_list(),
                y=(own["path_ns"] / divisor).to_list(),
                name=name,
                showlegend=True,
                marker={"color": PATH_COLOURS[part], "line": {"color": "white", "width": 0.5}},
                hovertemplate=f"<b>{name}</b><br>step %{{x}}: %{{y:,.3f}} {unit}<extra></extra>",
            )
        )
    return unit


def whatif_figure(table: pl.DataFrame, *, title: str, subtitle: str) -> go.Figure:
    """Return steps under each change as bars with their ranges, beside those as recorded.

    A bar that is not told ends where its range does.

    Parameters
    ----------
    table
        One row per change: ``change, step_ns, low_ns, high_ns`` (null of the measured one) and
        ``saved_share``.
    title, subtitle
        Plain texts; see `figure_layout`.
    """
    import plotly.graph_objects as go

    labels = [figure_text(shorten(change, _LABEL)) for change in table["change"]]
    left = max(_LEAST_MARGIN, round(_LETTER * max(map(len, labels))) + 24)
    layout = figure_layout(
        title,
        subtitle,
        width=_WIDTH,
        height=150 + 34 * table.height,
        margin={"l": left, "r": _SIDES, "t": 92, "b": 60},
    )
    shown = table["step_ns"].fill_null(table["high_ns"])
    divisor, unit = unit_of(max(shown), TIME_UNITS)
    more, less = table["high_ns"] - shown, shown - table["low_ns"]
    figure = go.Figure(layout={**layout, "bargap": 0.25})
    figure.add_trace(
        go.Bar(
            x=(shown / divisor).to_list(),
            y=labels,
            orientation="h",
            text=[_saved(*row) for row in table.select("change", "saved_share").rows()],
            textposition="inside",
            insidetextanchor="start",
            marker={"color": [_AS_RECORDED.get(each, ACCENT) for each in table["change"]]},
            error_x={
                "array": (more.fill_null(0) / divisor).to_list(),
                "arrayminus": (less.fill_null(0) / divisor).to_list(),
                "symmetric": False,
                "color": INK,
                "thickness": 1.2,
                "width": 4,
            },
            hovertemplate=f"<b>%{{y}}</b><br>%{{x:,.3f}} {unit}<extra></extra>",
            showlegend=False,
        )
    )
    figure.update_yaxes(**_names(labels))
    figure.update_xaxes(title_text=f"step ({unit})", rangemode="tozero")
    return figure


def _names(labels: list[str]) -> dict[str, Any]:
    return {**PLAIN_AXIS, "categoryorder": "array", "categoryarray": labels[::-1]}


def _saved(change: str, share: float | None) -> str:
    """Say by how much a step is shorter, or longer."""
    if change in _AS_RECORDED or share is None:
        return "" if change in _AS_RECORDED else "not told"
    percent = f"{abs(100 * share):.1f}"
    sign = "" if percent == "0.0" else MINUS if share > 0 else "+"
    return f"{sign}{percent} %"
