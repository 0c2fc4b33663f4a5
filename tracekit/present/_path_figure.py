"""Figures of critical paths, and of steps after a change, as bars."""

from __future__ import annotations

import plotly.graph_objects as go
import polars as pl

from tracekit.present._charts import MOST_UPRIGHT, Part, bars_figure, parts_by
from tracekit.present._configurations import not_shown
from tracekit.present._figures import (
    MINUS,
    TIME_UNITS,
    decimals_of,
    empty_figure,
    unit_of,
)
from tracekit.present._palette import ACCENT, IDLE_COLOUR, PATH_COLOURS

_AS_RECORDED = {"measured": IDLE_COLOUR, "unchanged, replayed": "#BBBBBB"}


def path_figure(table: pl.DataFrame, *, title: str, subtitle: str) -> go.Figure:
    """Return a bar for the critical path of each step, split by cause.

    Parameters
    ----------
    table
        One row per step and part, in the order of steps: ``iteration`` (null of a run without
        any), ``part`` (a key of `PATH_COLOURS`), ``path_ns``. The first 60 steps are shown.
    title, subtitle
        Plain texts; see `figure_layout`.
    """
    if not table.height:
        return empty_figure(title, subtitle, "no steps")
    named = table.with_columns(step=pl.col("iteration").cast(pl.String).fill_null("run"))
    steps = named["step"].unique(maintain_order=True)
    shown = steps.head(MOST_UPRIGHT).to_list()
    return bars_figure(
        shown, parts_by(named, "step", shown, "part", "path_ns", PATH_COLOURS),
        axis="critical path", title=title, subtitle=subtitle, upright="step",
        notes=not_shown(steps.len() - len(shown), "steps"),
    )  # fmt: skip


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
    step = pl.coalesce("step_ns", "high_ns")
    ends = pl.coalesce("low_ns", step), pl.coalesce("high_ns", step)
    shown = table.select(change="change", step=step, low=ends[0], high=ends[1], saved="saved_share")
    changes, lengths = shown["change"].to_list(), shown["step"].to_list()
    colours = [_AS_RECORDED.get(change, ACCENT) for change in changes]
    divisor, unit = unit_of(max(lengths), TIME_UNITS)
    decimals = decimals_of(max(lengths) / divisor)
    return bars_figure(
        changes, [Part("", colours, lengths, hover=changes)], axis="step", title=title,
        subtitle=subtitle, unit=(divisor, unit),
        whiskers=list(shown.select("low", "high").iter_rows()),
        ends=[
            ", ".join(filter(None, [f"{length / divisor:,.{decimals}f}", _saved(change, saved)]))
            for change, length, saved in zip(changes, lengths, shown["saved"], strict=True)
        ],
    )  # fmt: skip


def _saved(change: str, share: float | None) -> str:
    """Say by how much a step is shorter, or longer."""
    if change in _AS_RECORDED or share is None:
        return "" if change in _AS_RECORDED else "not told"
    percent = f"{abs(100 * share):.1f}"
    sign = "" if percent == "0.0" else MINUS if share > 0 else "+"
    return f"{sign}{percent} %"
