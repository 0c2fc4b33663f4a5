"""What the time of a step is made of, a bar for each configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracekit.present._configurations import (
    MOST_ROWS,
    NO_RUNS,
    Rows,
    common_note,
    not_shown,
    rows_of,
    show_rows,
)
from tracekit.present._figures import (
    decimals_of,
    empty_figure,
    figure_layout,
    figure_text,
    legend_above,
    text_width,
)
from tracekit.present._waterfall import stage_colour, stage_order, step_unit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import plotly.graph_objects as go
    import polars as pl

_STUDY = ("network", "batch", "gpus", "method", "run")


def stage_bars_figure(
    study: pl.DataFrame, *, title: str, subtitle: str, per: str = "iteration"
) -> go.Figure:
    """Return the exposed time of each stage, and idle time, of each configuration as one bar.

    One bar per configuration in the order of the table, at most 40, under the names of the
    networks; at its end stands the sum.

    Parameters
    ----------
    study
        One row per configuration and stage: ``network``, ``batch``, ``gpus``, ``method``,
        ``stage`` (one of the stages, ``FP+BP`` or ``idle``) and ``exposed_ns``, null where
        unknown, in which case the sum is said to be more than what is known. Of the columns that
        name the configuration some may be missing. Optionally ``run``, the name of what is no
        median; and ``runs``, ``low_ns`` and ``high_ns``: over how many runs it is one, and the
        ends of their steps, which then stand behind the sum.
    title, subtitle
        Plain texts; see `figure_layout`.
    per
        What the time is spent in, such as ``epoch``.
    """
    import plotly.graph_objects as go

    runs, times = _stage_times(study)
    if not runs.height:
        return empty_figure(title, subtitle, NO_RUNS)
    shown = runs.head(MOST_ROWS)
    rows = rows_of(shown, ("network",), ("batch", "gpus", "method", "run"))
    stages = stage_order(times["stage"].to_list())
    left = text_width(row.label for row in rows.rows) + 28
    layout = figure_layout(
        title,
        subtitle,
        height=max(round(26 * (rows.end + 0.5)), 52) + 172,
        margin={
            "l": max(left, 72),
            "r": 104 + 124 * (runs.height > 0 and bool(times["low_ns"].count())),
            "t": 112,
            "b": 60,
        },
        notes=[
            *common_note(runs, _STUDY),
            *(["≥ the time of some stages is unknown"] if times["exposed_ns"].has_nulls() else []),
            *not_shown(runs.height - shown.height, "configurations"),
        ],
    )
    figure = go.Figure(layout={**layout, "barmode": "stack", "legend": legend_above(layout)})
    _add_stages(figure, times, stages, rows, per)
    show_rows(figure, rows)
    return figure


def _stage_times(study: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the configurations, those of a network together, and their times by ``row``."""
    import polars as pl

    keys = [key for key in _STUDY if key in study.columns]
    runs = study.select(keys or pl.lit(0).alias("bar")).unique(maintain_order=True)
    parts = runs.partition_by(keys[:1], maintain_order=True) if keys else [runs]
    runs = pl.concat(parts) if parts else runs
    pooled = [
        (pl.col(name) if name in study.columns else pl.lit(None, pl.Float64)).alias(name)
        for name in ("runs", "low_ns", "high_ns")
    ]
    times = study.with_columns(pl.lit(0).alias("bar"), *pooled).join(
        runs.with_row_index("row").head(MOST_ROWS), on=runs.columns, nulls_equal=True
    )
    return runs, times.select(
        "row",
        "runs",
        "low_ns",
        "high_ns",
        pl.col("stage").cast(pl.String).fill_null("?"),
        pl.col("exposed_ns").cast(pl.Float64).fill_nan(None),
    )


def _add_stages(
    figure: go.Figure, times: pl.DataFrame, stages: Sequence[str], rows: Rows, per: str
) -> None:
    """Add one trace per stage, the sums at the ends of the bars, and the axis across."""
    import plotly.graph_objects as go
    import polars as pl

    time = pl.col("exposed_ns")
    sums = (
        times.group_by("row")
        .agg(time.sum(), pl.col("runs", "low_ns", "high_ns").first(), unknown=time.is_null().any())
        .sort("row")
    )
    divisor, unit = step_unit(max(sums["exposed_ns"].to_list()))
    for stage in stages:
        own = times.filter(time.is_not_null(), stage=stage)
        figure.add_trace(
            go.Bar(
                x=(own["exposed_ns"] / divisor).to_list(),
                y=[rows.rows[row].place for row in own["row"]],
                width=0.7,
                orientation="h",
                name=figure_text(stage),
                showlegend=True,
                marker={"color": stage_colour(stage), "line": {"color": "white", "width": 0.5}},
                hoverinfo="text",
                hovertext=[
                    f"<b>{figure_text(stage)}</b><br>{length / divisor:,.3f} {unit}"
                    for length in own["exposed_ns"]
                ],
            )
        )
    ends = (sums["exposed_ns"] / divisor).to_list()
    decimals = min(decimals_of(min(ends)), 2)
    figure.add_trace(
        go.Scatter(
            x=ends,
            y=[rows.rows[row].place for row in sums["row"]],
            text=[
                f" {'≥ ' if row['unknown'] else ''}{end:,.{decimals}f}"
                + _spread(row, divisor, decimals)
                for end, row in zip(ends, sums.iter_rows(named=True), strict=True)
            ],
            mode="text",
            textposition="middle right",
            textfont_size=12,
            cliponaxis=False,
            hoverinfo="skip",
            showlegend=False,
        )
    )
    figure.update_xaxes(
        title_text=f"exposed time per {figure_text(per)} ({unit})", range=[0, max(ends) or 1]
    )


def _spread(row: Mapping[str, Any], divisor: float, decimals: int) -> str:
    """Return over how many runs a bar is the median, and the ends of their steps.

    Of one run it is the interval of its mean step.
    """
    if row["runs"] is None or row["low_ns"] is None or row["low_ns"] == row["high_ns"]:
        return ""
    more = decimals + (row["runs"] == 1)
    low, high = (f"{row[name] / divisor:,.{more}f}" for name in ("low_ns", "high_ns"))
    what = "95 %:" if row["runs"] == 1 else f"n = {row['runs']:,},"
    return f" ({what} {low} to {high})"
