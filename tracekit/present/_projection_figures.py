"""What jobs would take on other architectures and hardware, as figures; all of it is modelled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.present._columns import duration
from tracekit.present._configurations import not_shown
from tracekit.present._figures import (
    SERIES_COLOURS,
    empty_figure,
    figure_layout,
    figure_text,
    legend_above,
    text_width,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import plotly.graph_objects as go
    import polars as pl

COMPONENT_COLOURS = {
    "input": "#DDAA33", "compute": "#332288", "memory": "#88CCEE", "weights": "#CC6677"
}  # fmt: skip
"""Colour of each component of a modelled step."""

NO_JOBS = "no job of which everything is known"
"""What a figure says that has none to show."""

_MOST_BARS = 40
_MOST_CURVES = 9
_HIGH = 26
_WIDTH = 960
_ABOVE = 112
_BELOW = 64


def components_figure(table: pl.DataFrame, *, title: str, subtitle: str) -> go.Figure:
    """Return what the time of each job's step is made of, as bars that are as long as the step.

    Parameters
    ----------
    table
        ``job``, ``architecture`` or ``to``, and of `step_times` the times; at most 40 rows are
        drawn, and those of which a time is not known are not.
    title, subtitle
        Plain texts; see `figure_layout`.
    """
    import plotly.graph_objects as go

    known = table.drop_nulls("step_ns")
    if known.is_empty():
        return empty_figure(title, subtitle, NO_JOBS)
    shown = known.head(_MOST_BARS)
    where = "to" if "to" in shown.columns else "architecture"
    labels = [f"{job}, {place}" for job, place in shown.select("job", where).iter_rows()]
    figure = _horizontal(
        labels, title, subtitle, [
            *_left_out(table.height - known.height), *not_shown(known.height - shown.height, "jobs")
        ],
    )  # fmt: skip
    for name, colour in COMPONENT_COLOURS.items():
        times = shown[f"{name}_ns"].to_list()
        figure.add_trace(
            go.Bar(
                x=[time / 1e6 for time in times], y=[*range(len(labels))], orientation="h",
                name=name, marker_color=colour, customdata=[duration(time) for time in times],
                hovertemplate=f"{name} %{{customdata}}<extra></extra>",
            )
        )  # fmt: skip
    figure.update_layout(barmode="stack")
    figure.update_xaxes(title_text="modelled time of a step (ms)", rangemode="tozero")
    return figure


def _left_out(number: int) -> list[str]:
    return [f"not drawn: {number:,} of which a time is unknown"] if number else []


def hardware_figure(table: pl.DataFrame, *, title: str, subtitle: str) -> go.Figure:
    """Return by how much steps are faster with each peak of each resource, as bars.

    Parameters
    ----------
    table
        ``job, resource, value, speedup``; bars are means over jobs, all of which count the same.
    title, subtitle
        Plain texts; see `figure_layout`.
    """
    import plotly.graph_objects as go
    import polars as pl

    known = table.drop_nulls("speedup")
    if known.is_empty():
        return empty_figure(title, subtitle, NO_JOBS)
    means = known.group_by("resource", "value", maintain_order=True).agg(pl.col("speedup").mean())
    shown = means.head(_MOST_BARS)
    labels = [f"{resource} {value}" for resource, value, _ in shown.iter_rows()]
    jobs = known["job"].n_unique()
    figure = _horizontal(
        labels, title, subtitle, [
            *([f"means over {jobs:,} jobs"] if jobs > 1 else []),
            *_left_out(table.height - known.height),
            *not_shown(means.height - shown.height, "values"),
        ],
    )  # fmt: skip
    speedups = shown["speedup"].to_list()
    resources = shown["resource"].unique(maintain_order=True).to_list()
    colours = dict(zip(resources, SERIES_COLOURS, strict=False))
    figure.add_trace(
        go.Bar(
            x=speedups, y=[*range(len(labels))], orientation="h", showlegend=False,
            marker_color=[colours[name] for name in shown["resource"]],
            text=[f"{value:.3g}" for value in speedups], textposition="outside", cliponaxis=False,
            hovertemplate="%{x:.4f}<extra></extra>",
        )
    )  # fmt: skip
    figure.add_vline(x=1, line_width=1.5)
    figure.update_xaxes(title_text="modelled speedup of a step", rangemode="tozero")
    return figure


def _horizontal(
    labels: Sequence[str], title: str, subtitle: str, notes: Sequence[str]
) -> go.Figure:
    """Return an empty figure with a row for each label, the first one on top."""
    import plotly.graph_objects as go

    layout = figure_layout(
        title, subtitle, height=_HIGH * (len(labels) + 1) + _ABOVE + _BELOW, notes=notes,
        margin={"l": max(text_width(labels) + 28, 72), "t": _ABOVE, "b": _BELOW, "r": 64},
    )  # fmt: skip
    figure = go.Figure(layout={**layout, "legend": legend_above(layout)})
    figure.update_yaxes(
        tickvals=[*range(len(labels))], ticktext=[figure_text(label) for label in labels],
        range=[len(labels) - 0.5, -0.5], showgrid=False,
    )  # fmt: skip
    return figure


def distribution_figure(table: pl.DataFrame, *, title: str, subtitle: str) -> go.Figure:
    """Return cumulative distributions: solid over jobs, dashed over their workers.

    Parameters
    ----------
    table
        ``measure, value, job_share, node_share``; at most 9 measures are drawn.
    title, subtitle
        Plain texts; see `figure_layout`.
    """
    import plotly.graph_objects as go

    measures = table["measure"].unique(maintain_order=True).to_list()
    if not measures:
        return empty_figure(title, subtitle, NO_JOBS)
    layout = figure_layout(
        title, subtitle, width=_WIDTH, margin={"t": _ABOVE},
        notes=[
            "solid: share of jobs; dashed: share of workers",
            *not_shown(len(measures) - _MOST_CURVES, "measures"),
        ],
    )  # fmt: skip
    figure = go.Figure(layout={**layout, "legend": legend_above(layout)})
    for colour, measure in zip(SERIES_COLOURS, measures, strict=False):
        own = table.filter(table["measure"] == measure)
        for column, dash in (("job_share", "solid"), ("node_share", "dash")):
            figure.add_trace(_curve(own, column, measure, {"color": colour, "dash": dash}))
    figure.update_xaxes(title_text="modelled value")
    figure.update_yaxes(title_text="share (%)", range=[0, 104])
    return figure


def _curve(own: pl.DataFrame, column: str, name: str, line: dict[str, str]) -> go.Scatter:
    """Return the steps of one distribution, from 0 on."""
    import plotly.graph_objects as go

    values = own["value"].to_list()
    return go.Scatter(
        x=[values[0], *values], y=[0.0, *(100 * own[column]).to_list()], mode="lines",
        line={**line, "shape": "hv", "width": 2}, name=figure_text(name),
        showlegend=column == "job_share", hovertemplate="%{x:.4g}: %{y:.1f} %<extra></extra>",
    )  # fmt: skip
