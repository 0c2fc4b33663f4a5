"""Why nothing runs on each GPU, as bars."""

from __future__ import annotations

import plotly.graph_objects as go
import polars as pl

from tracekit.present._charts import MOST_BARS, bars_figure, parts_by
from tracekit.present._configurations import not_shown
from tracekit.present._figures import empty_figure
from tracekit.present._palette import CAUSE_COLOURS


def idle_figure(table: pl.DataFrame, *, title: str, subtitle: str) -> go.Figure:
    """Return a bar of idle time for each GPU, split by cause.

    Parameters
    ----------
    table
        One row per GPU and cause: ``device``, ``cause``, ``idle_ns``. The 40 GPUs with the lowest
        numbers are shown.
    title, subtitle
        Plain texts; see `figure_layout`.
    """
    if not table.height:
        return empty_figure(title, subtitle, "no idle time")
    devices = table["device"].unique().sort()
    shown = devices.head(MOST_BARS).to_list()
    parts = parts_by(table, "device", shown, "cause", "idle_ns", CAUSE_COLOURS)
    return bars_figure(
        [f"GPU {device}" for device in shown], parts, axis="idle time", title=title,
        subtitle=subtitle, notes=not_shown(devices.len() - len(shown), "GPUs"),
    )  # fmt: skip
