"""Figures of studies: overhead of a communication method, and modelled jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go
import polars as pl

from tracekit.present._charts import (
    MOST_BARS,
    NO_RUNS,
    WIDE,
    Part,
    bars_figure,
    bars_note,
    common_note,
    described,
    distinct,
    error_bars,
    known_rows,
    label_of,
    not_shown,
    paneled,
    series,
    series_figure,
    varying,
    with_ends,
)
from tracekit.present._figures import (
    INK,
    MINUS,
    SERIES_COLOURS,
    Heading,
    colour_at,
    empty_figure,
    figure_text,
    fitting_ticks,
)

_MOST_PANELS = 6
_MOST_GROUPS = 24
_WIDEST_BAR = 90
_LEAST_LABELLED = 26
_COMPONENT_COLOURS = {
    "input": "#DDAA33", "compute": "#332288", "memory": "#88CCEE", "weights": "#CC6677"
}  # fmt: skip
"""Colour of each component of a modelled step."""

_NO_JOBS = "no job with all quantities known"
"""Text of a figure that has no jobs to show."""

_SHARE = "_share"


def overhead_figure(table: pl.DataFrame, *, heading: Heading, axis: str = "overhead") -> go.Figure:
    """Return the overhead of a method over its baseline, by network and batch size.

    One panel per method, number of GPUs and kind of scaling, at most 6; one group of bars per
    network, at most 24; one colour per batch size, darker for larger ones.

    Parameters
    ----------
    table
        One row per configuration: ``network``, ``batch``, ``gpus``, ``method``, optionally
        ``scaling``, and ``overhead_percent``, null if unknown. Optionally ``runs`` and
        ``baseline_runs``, numbers of pooled runs, with ``low_percent`` and ``high_percent`` (their
        range), or ``from_percent`` and ``to_percent`` (95 % interval), drawn as error bars; and
        ``run`` and ``baseline_run``, the names of runs that are not pooled.
    heading
        Its subtitle names the baseline.
    axis
        Title of the axis of percentages.
    """
    known = with_ends(known_rows(table, "overhead_percent"), "percent")
    if known.is_empty():
        return empty_figure(heading, NO_RUNS)
    keys_of_panels: Sequence[str] = ("method", "source", "gpus", "scaling")
    by = [key for key in keys_of_panels if key in known.columns]
    alike = known.select("network", "batch", *by).is_duplicated()
    if alike.any():
        by += [key for key in ("run", "baseline_run") if key in known.columns]
    panels = known.partition_by(by, maintain_order=True)
    shown, keys = panels[:_MOST_PANELS], varying(known, by)
    networks, batches = distinct(known, "network"), distinct(known, "batch")
    groups = networks[:_MOST_GROUPS]
    each = WIDE / len(groups)
    ticks, below = fitting_ticks([described("network", network) for network in groups], each)
    gap = max(0.24, 1 - _WIDEST_BAR * len(batches) / each)
    same = by if len(batches) > 1 else ["batch", *by]
    figure = paneled(
        [label_of(panel.row(0, named=True), keys) for panel in shown],
        [described("batch", batch) for batch in batches] if len(batches) > 1 else [],
        across=1,
        each=300 if len(shown) == 1 else 200,
        below=below + 12,
        heading=heading,
        notes=[
            *common_note(known, same),
            *bars_note(known),
            *not_shown(len(networks) - len(groups), "networks"),
            *not_shown(len(panels) - len(shown), "panels"),
        ],
    )
    for place, panel in enumerate(shown):
        bars = _overhead_bars(panel, groups, batches, first=place == 0, wide=each * (1 - gap))
        figure.add_traces(bars, rows=[place + 1] * len(bars), cols=[1] * len(bars))
    figure.update_layout(barmode="group", bargap=gap, bargroupgap=0.06)
    figure.update_xaxes(ticks)
    figure.update_yaxes(
        title_text=f"{figure_text(axis)} (%)", range=_overhead_range(known),
        zeroline=True, zerolinecolor=INK, zerolinewidth=1.5, zerolinelayer="above traces",
    )  # fmt: skip
    return figure


def _overhead_bars(
    panel: pl.DataFrame,
    networks: Sequence[Any],
    batches: Sequence[Any],
    *,
    first: bool,
    wide: float,
) -> list[go.Bar]:
    """Return bars per batch size, darker for larger ones; a group is `wide` pixels wide."""
    bars = []
    for place, batch in enumerate(batches):
        rows = _placed(panel.filter(pl.col("batch").eq_missing(batch)), networks)
        values = dict(rows.select("network", "overhead_percent").iter_rows())
        known = [(x, values[name]) for x, name in enumerate(networks) if name in values]
        texts = [f"{value:.1f}".replace("-", MINUS) for _, value in known]
        bars.append(
            go.Bar(
                x=[x for x, _ in known],
                y=[value for _, value in known],
                error_y=error_bars(rows, "overhead_percent", "end_low", "end_high"),
                name=figure_text(described("batch", batch)),
                legendgroup=str(place),
                showlegend=first and len(batches) > 1,
                marker={"color": colour_at(0.15 + 0.7 * place / max(len(batches) - 1, 1))},
                text=texts if wide / len(batches) >= _LEAST_LABELLED else None,
                constraintext="none",
                # Above the bar a whisker would cross it.
                textposition="outside" if rows["end_low"].null_count() == rows.height else "inside",
                insidetextanchor="start",
                textangle=0,
                textfont_size=11,
                cliponaxis=False,
                hoverinfo="text",
                hovertext=[
                    f"<b>{figure_text(described('network', networks[x]))}</b><br>"
                    f"{figure_text(described('batch', batch))}<br>{text} %"
                    for (x, _), text in zip(known, texts, strict=True)
                ],
            )
        )
    return bars


def _placed(rows_of_batch: pl.DataFrame, networks: Sequence[Any]) -> pl.DataFrame:
    """Return one row per network, in the order of `networks`; nulls if it has none."""
    order = pl.DataFrame({"network": networks}, {"network": rows_of_batch.schema["network"]})
    rows = rows_of_batch.unique("network", keep="last")
    return order.join(rows, on="network", nulls_equal=True, maintain_order="left_right")


def _overhead_range(known: pl.DataFrame) -> list[float]:
    """Return the ends of the axis, with room for the labels of the bars."""
    ends = ("overhead_percent", "end_low", "end_high")
    values = [value for name in ends for value in known[name].drop_nulls()]
    low, high = min(0, *values), max(0, *values)
    room = 0.14 * (high - low) or 1
    return [low - room if low < 0 else 0, high + room if high > 0 else 0]


def components_figure(table: pl.DataFrame, *, heading: Heading) -> go.Figure:
    """Return the parts of each job's step as stacked bars.

    Parameters
    ----------
    table
        ``job``, the architecture that it runs on (``architecture``) or moves to (``to``), and the
        times that `step_times` returns; at most 40 rows are drawn, none with an unknown time.
    """
    known = table.drop_nulls("step_ns")
    if known.is_empty():
        return empty_figure(heading, _NO_JOBS)
    shown = known.head(MOST_BARS)
    where = "to" if "to" in shown.columns else "architecture"
    parts = [
        Part(name, colour, shown[f"{name}_ns"].to_list())
        for name, colour in _COMPONENT_COLOURS.items()
    ]
    return bars_figure(
        [f"{job}, {place}" for job, place in shown.select("job", where).iter_rows()], parts,
        axis="modelled time of a step", heading=heading,
        notes=[
            *_left_out(table.height - known.height), *not_shown(known.height - shown.height, "jobs")
        ],
    )  # fmt: skip


def _left_out(number: int) -> list[str]:
    return [f"not drawn: {number:,} with an unknown time"] if number else []


def hardware_figure(table: pl.DataFrame, *, heading: Heading) -> go.Figure:
    """Return bars of the speedup of steps with each peak value of each hardware resource.

    Parameters
    ----------
    table
        ``job, resource, value, speedup``; a bar is the mean over jobs, each with the same weight.
    """
    known = table.drop_nulls("speedup")
    if known.is_empty():
        return empty_figure(heading, _NO_JOBS)
    means = known.group_by("resource", "value", maintain_order=True).agg(pl.col("speedup").mean())
    shown = means.head(MOST_BARS)
    labels = [f"{resource} {value}" for resource, value, _ in shown.iter_rows()]
    speedups, jobs = shown["speedup"].to_list(), known["job"].n_unique()
    resources = shown["resource"].unique(maintain_order=True).to_list()
    colours = dict(zip(resources, SERIES_COLOURS, strict=False))
    bar_colours = [colours[name] for name in shown["resource"]]
    figure = bars_figure(
        labels, [Part("", bar_colours, speedups, hover=labels)], axis="modelled speedup of a step",
        heading=heading, unit=(1, ""), ends=[f"{value:.3g}" for value in speedups],
        notes=[
            *([f"means over {jobs:,} jobs"] if jobs > 1 else []),
            *_left_out(table.height - known.height),
            *not_shown(means.height - shown.height, "values"),
        ],
    )  # fmt: skip
    figure.add_vline(x=1, line_width=1.5)
    return figure


def distribution_figure(table: pl.DataFrame, *, heading: Heading) -> go.Figure:
    """Return cumulative distributions: solid over jobs, dashed over their workers.

    Parameters
    ----------
    table
        ``measure, value, job_share, node_share``: the cumulative share of jobs, and of workers
        (nodes), with at most this value; at most 9 measures are drawn.
    """
    measures = table["measure"].unique(maintain_order=True).to_list()
    if not measures:
        return empty_figure(heading, _NO_JOBS)
    shown = measures[: len(SERIES_COLOURS)]
    are_shares = all(measure.endswith(_SHARE) for measure in shown)
    scale = 100 if are_shares else 1
    figure = series_figure(
        [_named(measure) for measure in shown], heading=heading,
        notes=[
            "solid: share of jobs; dashed: share of workers",
            *not_shown(len(measures) - len(shown), "measures"),
        ],
    )  # fmt: skip
    for colour, measure in zip(SERIES_COLOURS, shown, strict=False):
        rows = table.filter(table["measure"] == measure)
        for column, dash in (("job_share", "solid"), ("node_share", "dash")):
            values, shares = ((rows["value"] * scale).to_list(), (100 * rows[column]).to_list())
            steps = [values[0], *values], [0.0, *shares]
            figure.add_trace(
                series(
                    *steps, colour=colour, name=_named(measure), is_named=column == "job_share",
                    line={"dash": dash, "shape": "hv"},
                    hover=[f"{x:.4g}: {y:.1f} %" for x, y in zip(*steps, strict=True)],
                )
            )  # fmt: skip
    axis_title = "modelled share of a step (%)" if are_shares else "modelled value"
    figure.update_xaxes(title_text=axis_title)
    figure.update_yaxes(title_text="jobs, or workers, no higher than this (%)", range=[0, 104])
    return figure


def _named(measure: str) -> str:
    return measure.removesuffix(_SHARE).replace("_", " ")
