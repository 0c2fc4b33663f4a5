"""Figures of steps: over time with their distribution, and over the runs of a history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import plotly.graph_objects as go
import polars as pl
from plotly.subplots import make_subplots

from tracekit.present._charts import NO_RUNS, error_bars, series, series_figure
from tracekit.present._figures import (
    INK,
    MUTED,
    SERIES_COLOURS,
    Heading,
    empty_figure,
    figure_text,
    fitting_ticks,
    signed,
)
from tracekit.present._waterfall import step_unit
from tracekit.support.wording import count, printable, shorten

_MOST_RUNS = 12
_WIDEST = 40
_FEW = 12
"""Number of steps up to which each step is labelled on the axis."""
_MOST_NAMED = 8
_WIDTH = 960
_SIDES = (80, 40)
_MOST_POINTS_NAMED = 30
"""Number of points above which only some, at equal distances, are labelled."""


class _Run(NamedTuple):
    """One run in the figure of step times, with its colour and style."""

    steps: pl.DataFrame
    name: str
    group: str
    colour: str
    is_named: bool


def steps_figure(steps: pl.DataFrame, *, heading: Heading) -> go.Figure:
    """Return step times over the step number, and below it their cumulative distribution.

    The runs of one side of a comparison share a colour. At most 12 runs are drawn.

    Parameters
    ----------
    steps
        One row per step, in order: ``run, iteration, step_ns, is_outlier``, and ``side``: ``A`` or
        ``B`` in a comparison, else null.
    """
    if steps.is_empty():
        return empty_figure(heading, "no steps")
    parts = steps.partition_by("side", "run", maintain_order=True)
    divisor, unit = step_unit(max(steps["step_ns"]))
    runs = _runs(parts[:_MOST_RUNS])
    drawn = series_figure(
        [run.name for run in runs if run.is_named], heading=heading, height=620,
        notes=_notes(steps, len(parts) - len(runs)), sides=(80, 32), below=56,
    )  # fmt: skip
    figure = make_subplots(rows=2, cols=1, row_heights=[0.5, 0.5], vertical_spacing=0.14)
    figure.update_layout(drawn.layout, overwrite=True)
    for run in runs:
        values = [value / divisor for value in run.steps["step_ns"]]
        figure.add_trace(_over_time(run, values, unit), row=1, col=1)
        figure.add_trace(_distribution(run, values, unit), row=2, col=1)
    few = steps["iteration"].max() - steps["iteration"].min() < _FEW  # type: ignore[operator]
    figure.update_xaxes(title_text="number of the step", dtick=1 if few else None, row=1, col=1)
    for number, time in _far(steps):
        figure.add_annotation(
            text=f"{number:,}", x=number, y=time / divisor, yshift=12, showarrow=False,
            font_size=11, bgcolor="white", borderpad=0, row=1, col=1,
        )  # fmt: skip
    figure.update_yaxes(title_text=f"step ({unit})", row=1, col=1)
    low, high = min(steps["step_ns"]) / divisor, max(steps["step_ns"]) / divisor
    room = 0.03 * (high - low) or 0.03 * high
    ends = [low - room, high + room]
    figure.update_xaxes(title_text=f"step ({unit})", range=ends, row=2, col=1)
    figure.update_yaxes(title_text="steps no longer than this (%)", range=[0, 102], row=2, col=1)
    return figure


def _far(steps: pl.DataFrame) -> list[tuple[int, float]]:
    """Return step number and time (ns) of the longest outliers, longest first."""
    far = steps.filter("is_outlier").sort("step_ns", descending=True).head(_MOST_NAMED)
    return list(far.select("iteration", "step_ns").iter_rows())


def _runs(parts: Sequence[pl.DataFrame]) -> list[_Run]:
    """Return the style of each run in the figure; runs of one side (A or B) share a colour."""
    groups: dict[str, str] = {}
    found = []
    for part in parts:
        row = part.row(0, named=True)
        group = row["side"] or row["run"]
        is_new = group not in groups
        colour = groups.setdefault(group, SERIES_COLOURS[len(groups) % len(SERIES_COLOURS)])
        several = sum(each["side"][0] == row["side"] for each in parts) > 1
        name = shorten(printable(row["run"]), _WIDEST)
        if row["side"] is not None:
            name = f"{row['side']}, several" if several else f"{row['side']}  {name}"
        found.append(_Run(part, name, group, colour, is_new and len(parts) > 1))
    return found


def _over_time(run: _Run, values: Sequence[float], unit: str) -> go.Scatter:
    far, numbers = run.steps["is_outlier"].to_list(), run.steps["iteration"].to_list()
    return series(
        numbers, values, colour=run.colour, name=run.name, group=run.group, is_named=run.is_named,
        mode="lines+markers", line={"width": 1},
        marker={
            "symbol": ["circle-open" if each else "circle" for each in far],
            "size": [10 if each else 5 for each in far],
            "line": {"color": INK, "width": [1.5 if each else 0 for each in far]},
        },
        hover=[f"step {n}: {value:,.3f} {unit}" for n, value in zip(numbers, values, strict=True)],
    )  # fmt: skip


def _distribution(run: _Run, values: Sequence[float], unit: str) -> go.Scatter:
    ordered = sorted(values)
    ends = [ordered[0], *ordered]
    shares = [100 * place / len(ordered) for place in range(len(ends))]
    return series(
        ends, shares, colour=run.colour, name=run.name, group=run.group, line={"shape": "hv"},
        hover=[f"{share:.0f} % up to {value:,.3f} {unit}"
               for value, share in zip(ends, shares, strict=True)],
    )  # fmt: skip


def _notes(steps: pl.DataFrame, hidden: int) -> list[str]:
    far = int(steps["is_outlier"].sum())
    notes = {
        count(steps.height, "step"): True,
        f"rings: steps unlike the others ({far:,})": far > 0,
        f"not shown: {count(hidden, 'more run')}": hidden > 0,
    }
    return [note for note, applies in notes.items() if applies]


def history_figure(points: pl.DataFrame, *, label: str, heading: Heading) -> go.Figure:
    """Return step times over the values of a run label (such as a commit), with change points.

    Parameters
    ----------
    points
        One row per run, in order: ``value, step_ns, low_ns, high_ns``; ``level`` and ``level_ns``
        (number and median of the stretch between change points); ``change_percent`` from the level
        before.
    label
        Name of the label that orders the runs.
    """
    if points.is_empty():
        return empty_figure(heading, NO_RUNS)
    divisor, unit = step_unit(max(points["step_ns"]))
    every = -(-points.height // _MOST_POINTS_NAMED)
    names = [str(value) for value in points["value"]]
    each = (_WIDTH - sum(_SIDES)) / points.height * every
    ticks, below = fitting_ticks(names[::every], each)
    ticks |= {"tickvals": list(range(0, points.height, every)), "range": [-0.6, len(names) - 0.4]}
    figure = series_figure(
        [], heading=heading, height=380 + below, sides=_SIDES, below=below + 44,
        notes=["line: median of a level", *_pooled(points)],
    )  # fmt: skip
    scaled = points.with_columns(
        step=points["step_ns"] / divisor, low=points["low_ns"] / divisor,
        high=points["high_ns"] / divisor,
    )  # fmt: skip
    _add_levels(figure, points, divisor, unit)
    figure.add_trace(
        series(
            range(points.height), scaled["step"], colour=SERIES_COLOURS[0], mode="markers",
            error_y=error_bars(scaled, "step", "low", "high"),
            hover=[
                f"<b>{figure_text(name)}</b><br>{step:,.3f} {unit}"
                for name, step in zip(names, scaled["step"], strict=True)
            ],
        )
    )  # fmt: skip
    figure.update_xaxes(title_text=figure_text(label), **ticks)
    figure.update_yaxes(title_text=f"step ({unit})")
    return figure


def _pooled(points: pl.DataFrame) -> list[str]:
    most = max(points["runs"]) if "runs" in points.columns else 1
    return [f"means of up to {most} runs, with least and greatest"] if most != 1 else []


def _add_levels(figure: go.Figure, points: pl.DataFrame, divisor: int, unit: str) -> None:
    """Draw a line per level (runs between change points), and its change from the level before."""
    place = 0
    for part in points.partition_by("level", maintain_order=True):
        row = part.row(0, named=True)
        value = row["level_ns"] / divisor
        ends = [place - 0.5, place + part.height - 0.5]
        figure.add_trace(
            series(ends, [value] * 2, colour=MUTED, hover=[f"level of {value:,.3f} {unit}"] * 2)
        )
        if row["change_percent"] is not None:
            figure.add_vline(x=ends[0], line={"color": INK, "width": 1, "dash": "dot"})
            figure.add_annotation(
                text=f"{signed(row['change_percent'], 1)} %", x=ends[0], y=1, yref="y domain",
                yanchor="bottom", showarrow=False, font={"size": 12, "color": INK},
            )  # fmt: skip
        place += part.height
