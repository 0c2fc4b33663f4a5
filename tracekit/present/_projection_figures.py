"""Figures of modelled jobs on other architectures and hardware."""

from __future__ import annotations

import plotly.graph_objects as go
import polars as pl

from tracekit.present._charts import MOST_BARS, Part, bars_figure, series, series_figure
from tracekit.present._configurations import not_shown
from tracekit.present._figures import (
    SERIES_COLOURS,
    empty_figure,
)

COMPONENT_COLOURS = {
    "input": "#DDAA33", "compute": "#332288", "memory": "#88CCEE", "weights": "#CC6677"
}  # fmt: skip
"""Colour of each component of a modelled step."""

NO_JOBS = "no job with all quantities known"
"""What a figure says that has none to show."""

_SHARE = "_share"


def components_figure(table: pl.DataFrame, *, title: str, subtitle: str) -> go.Figure:
    """Return the parts of each job's step as bars.

    Parameters
    ----------
    table
        ``job``, ``architecture`` or ``to``, and of `step_times` the times; at most 40 rows are
        drawn, and those of which a time is not known are not.
    title, subtitle
        Plain texts; see `figure_layout`.
    """
    known = table.drop_nulls("step_ns")
    if known.is_empty():
        return empty_figure(title, subtitle, NO_JOBS)
    shown = known.head(MOST_BARS)
    where = "to" if "to" in shown.columns else "architecture"
    parts = [
        Part(name, colour, shown[f"{name}_ns"].to_list())
        for name, colour in COMPONENT_COLOURS.items()
    ]
    return bars_figure(
        [f"{job}, {place}" for job, place in shown.select("job", where).iter_rows()], parts,
        axis="modelled time of a step", title=title, subtitle=subtitle,
        notes=[
            *_left_out(table.height - known.height), *not_shown(known.height - shown.height, "jobs")
        ],
    )  # fmt: skip


def _left_out(number: int) -> list[str]:
    return [f"not drawn: {number:,} with an unknown time"] if number else []


def hardware_figure(table: pl.DataFrame, *, title: str, subtitle: str) -> go.Figure:
    """Return the speedup of steps with each peak of each resource, as bars.

    Parameters
    ----------
    table
        ``job, resource, value, speedup``; bars are means over jobs, all of which count the same.
    title, subtitle
        Plain texts; see `figure_layout`.
    """
    known = table.drop_nulls("speedup")
    if known.is_empty():
        return empty_figure(title, subtitle, NO_JOBS)
    means = known.group_by("resource", "value", maintain_order=True).agg(pl.col("speedup").mean())
    shown = means.head(MOST_BARS)
    labels = [f"{resource} {value}" for resource, value, _ in shown.iter_rows()]
    speedups, jobs = shown["speedup"].to_list(), known["job"].n_unique()
    resources = shown["resource"].unique(maintain_order=True).to_list()
    colours = dict(zip(resources, SERIES_COLOURS, strict=False))
    own = [colours[name] for name in shown["resource"]]
    figure = bars_figure(
        labels, [Part("", own, speedups, hover=labels)], axis="modelled speedup of a step",
        title=title, subtitle=subtitle, unit=(1, ""), ends=[f"{value:.3g}" for value in speedups],
        notes=[
            *([f"means over {jobs:,} jobs"] if jobs > 1 else []),
            *_left_out(table.height - known.height),
            *not_shown(means.height - shown.height, "values"),
        ],
    )  # fmt: skip
    figure.add_vline(x=1, line_width=1.5)
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
    measures = table["measure"].unique(maintain_order=True).to_list()
    if not measures:
        return empty_figure(title, subtitle, NO_JOBS)
    shown = measures[: len(SERIES_COLOURS)]
    are_shares = all(measure.endswith(_SHARE) for measure in shown)
    scale = 100 if are_shares else 1
    figure = series_figure(
        [_told(measure) for measure in shown], title=title, subtitle=subtitle,
        notes=[
            "solid: share of jobs; dashed: share of workers",
            *not_shown(len(measures) - len(shown), "measures"),
        ],
    )  # fmt: skip
    for colour, measure in zip(SERIES_COLOURS, shown, strict=False):
        own = table.filter(table["measure"] == measure)
        for column, dash in (("job_share", "solid"), ("node_share", "dash")):
            values, shares = (own["value"] * scale).to_list(), (100 * own[column]).to_list()
            steps = [values[0], *values], [0.0, *shares]
            figure.add_trace(
                series(
                    *steps, colour=colour, name=_told(measure), is_named=column == "job_share",
                    line={"dash": dash, "shape": "hv"},
                    hover=[f"{x:.4g}: {y:.1f} %" for x, y in zip(*steps, strict=True)],
                )
            )  # fmt: skip
    what = "modelled share of a step (%)" if are_shares else "modelled value"
    figure.update_xaxes(title_text=what)
    figure.update_yaxes(title_text="jobs, or workers, up to it (%)", range=[0, 104])
    return figure


def _told(measure: str) -> str:
    return measure.removesuffix(_SHARE).replace("_", " ")
