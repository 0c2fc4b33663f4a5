"""Figure of the parts of a step, a bar for each configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go
import polars as pl

from tracekit.present._charts import MOST_BARS, bars_figure, parts_by
from tracekit.present._configurations import NO_RUNS, common_note, not_shown, rows_of
from tracekit.present._figures import decimals_of, empty_figure
from tracekit.present._waterfall import stage_colour, stage_order, step_unit

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
        ends of their steps, which then stand around the sum.
    title, subtitle
        Plain texts; see `figure_layout`.
    per
        What the time is spent in, such as ``epoch``.
    """
    runs, times = _stage_times(study)
    if not runs.height:
        return empty_figure(title, subtitle, NO_RUNS)
    shown = runs.head(MOST_BARS)
    time = pl.col("exposed_ns")
    sums = (
        times.group_by("row")
        .agg(time.sum(), pl.col("runs", "low_ns", "high_ns").first(), unknown=time.is_null().any())
        .sort("row")
    )
    lengths = sums["exposed_ns"].to_list()
    divisor, unit = step_unit(max(lengths))
    decimals = min(decimals_of(min(lengths) / divisor), 2)
    colours = {stage: stage_colour(stage) for stage in stage_order(times["stage"].to_list())}
    return bars_figure(
        rows_of(shown, ("network",), ("batch", "gpus", "method", "run")),
        parts_by(times, "row", range(shown.height), "stage", "exposed_ns", colours),
        axis=f"exposed time per {per}", title=title, subtitle=subtitle, unit=(divisor, unit),
        ends=[
            f"{'≥ ' if row['unknown'] else ''}{row['exposed_ns'] / divisor:,.{decimals}f}"
            + (f" (n = {row['runs']:,})" if (row["runs"] or 1) > 1 else "")
            for row in sums.iter_rows(named=True)
        ],
        whiskers=[_interval(row) for row in sums.iter_rows(named=True)],
        notes=[
            *_whisker_notes(sums),
            *common_note(runs, _STUDY),
            *(["≥ the time of some stages is unknown"] if times["exposed_ns"].has_nulls() else []),
            *not_shown(runs.height - shown.height, "configurations"),
        ],
    )  # fmt: skip


def _stage_times(study: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the configurations, those of a network together, and their times by ``row``."""
    keys = [key for key in _STUDY if key in study.columns]
    runs = study.select(keys or pl.lit(0).alias("bar")).unique(maintain_order=True)
    parts = runs.partition_by(keys[:1], maintain_order=True) if keys else [runs]
    runs = pl.concat(parts) if parts else runs
    pooled = [
        (pl.col(name) if name in study.columns else pl.lit(None, pl.Float64)).alias(name)
        for name in ("runs", "low_ns", "high_ns")
    ]
    times = study.with_columns(pl.lit(0).alias("bar"), *pooled).join(
        runs.with_row_index("row").head(MOST_BARS), on=runs.columns, nulls_equal=True
    )
    return runs, times.select(
        "row",
        "runs",
        "low_ns",
        "high_ns",
        pl.col("stage").cast(pl.String).fill_null("?"),
        pl.col("exposed_ns").cast(pl.Float64).fill_nan(None),
    )


def _interval(row: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return the ends of a configuration's steps; none where they are not known, or one."""
    ends = row["low_ns"], row["high_ns"]
    return None if None in ends or row["runs"] is None or ends[0] == ends[1] else ends


def _whisker_notes(sums: pl.DataFrame) -> list[str]:
    of = {(row["runs"] or 1) > 1 for row in sums.iter_rows(named=True) if _interval(row)}
    notes = {
        "whiskers of a run: 95 % interval of its mean step": False in of,
        "whiskers of several (n): the least and the greatest of them": True in of,
    }
    return [note for note, applies in notes.items() if applies]
