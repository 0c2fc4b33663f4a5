"""Figures of idle time by cause, GPU time by part, pipelines, critical paths and what-ifs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import plotly.graph_objects as go
import polars as pl

from tracekit.present._charts import MOST_BARS, MOST_UPRIGHT, Part, bars_figure, not_shown, parts_by
from tracekit.present._figures import (
    MINUS,
    Heading,
    decimals_of,
    empty_figure,
    figure_layout,
    legend_above,
    legend_lines,
    named_places,
    text_width,
)
from tracekit.present._palette import (
    ACCENT,
    CAUSE_COLOURS,
    IDLE_COLOUR,
    PATH_COLOURS,
    STAGE_COLOURS,
)
from tracekit.support.wording import TIME_UNITS, unit_of

STALL_COLOURS = {
    "kernels": "#88CCEE",
    "waiting for the loader": "#DDAA33",
    "copying input": "#DDCC77",
    "other copies": "#AA4499",
    "idle, other causes": IDLE_COLOUR,
    "idle, cause unknown": CAUSE_COLOURS["unexplained"],
}
"""Colour of each part of a GPU's time in the figure of loader stalls."""

BUBBLE_COLOURS = {
    "working": "#88CCEE",
    "bubble, a neighbour works": "#882255",
    "bubble, neither works": IDLE_COLOUR,
}
"""Colour of each part of a pipeline stage's time."""

_MOST_PIECES = 20_000
_WIDTH, _RIGHT = 960, 72
_GAP = 0.2
_WORK = {"FP": "forward", "BP": "backward", None: "work"}


def parts_figure(table: pl.DataFrame, colours: Mapping[str, str], *, heading: Heading) -> go.Figure:
    """Return stacked bars of times, one per row of a table.

    Parameters
    ----------
    table
        One row per bar, of which at most 40 are drawn: ``name``, and a column of ns per segment.
    colours
        Colour of each segment: column -> colour.
    """
    if table.is_empty():
        return empty_figure(heading, "nothing was measured")
    shown = table.head(MOST_BARS)
    parts = [Part(each.name, colours[each.name], each.to_list()) for each in shown.drop("name")]
    return bars_figure(
        shown["name"].to_list(), parts, axis="time", heading=heading,
        notes=not_shown(table.height - shown.height, "bars"),
    )  # fmt: skip


def pipeline_figure(timeline: pl.DataFrame, *, heading: Heading) -> go.Figure:
    """Return one step of a pipeline: when each stage works; bubbles are blank.

    Parameters
    ----------
    timeline
        ``stage``; ``part``: ``FP``, ``BP``, or null if unknown; ``start_ns`` and ``end_ns`` since
        the start of the step. At most 20,000 intervals are drawn.
    """
    if timeline.is_empty():
        return empty_figure(heading, "no step has work of all stages")
    stages = timeline["stage"].unique().sort().to_list()
    shown = timeline.head(_MOST_PIECES)
    parts = [part for part in _WORK if part in shown["part"].unique().to_list()]
    names = [f"stage {stage}" for stage in stages]
    texts = [*(_WORK[part] for part in parts), "bubble"]
    left_out = not_shown(timeline.height - shown.height, "pieces")
    layout = _layout(names, texts, left_out, heading)
    figure = go.Figure(
        layout={**layout, "barmode": "overlay", "bargap": _GAP, "legend": legend_above(layout)}
    )
    end: int = timeline["end_ns"].max()  # type: ignore[assignment]
    divisor, unit = unit_of(end, TIME_UNITS)
    places = {stage: place for place, stage in enumerate(stages)}
    figure.add_trace(_blank(len(stages), end / divisor))
    for part in parts:
        of_part = shown.filter(shown["part"].eq_missing(part))
        length = (of_part["end_ns"] - of_part["start_ns"]) / divisor
        figure.add_trace(
            go.Bar(
                base=(of_part["start_ns"] / divisor).to_list(),
                x=length.to_list(),
                y=[places[stage] for stage in of_part["stage"]],
                orientation="h",
                name=_WORK[part],
                showlegend=True,
                marker={
                    "color": STAGE_COLOURS.get(part or "", BUBBLE_COLOURS["working"]),
                    "line": {"width": 0},
                },
                hovertemplate=f"<b>{_WORK[part]}</b><br>from %{{base:,.3f}} {unit}, "
                f"for %{{x:,.3f}} {unit}<extra></extra>",
            )
        )
    figure.update_yaxes(named_places(names))
    figure.update_xaxes(title_text=f"time from the beginning of the step ({unit})")
    return figure


def _blank(stages: int, length: float) -> go.Bar:
    """Return a pale background for a step of this `length`, seen where no stage works (bubbles)."""
    return go.Bar(
        x=[length] * stages, y=list(range(stages)), orientation="h", name="bubble",
        showlegend=True, marker={"color": IDLE_COLOUR}, hoverinfo="skip",
    )  # fmt: skip


def _layout(
    names: Sequence[str], parts: Sequence[str], notes: Sequence[str], heading: Heading
) -> dict[str, object]:
    left = max(_RIGHT, text_width(names) + 28)
    lines = legend_lines(parts, _WIDTH - left - _RIGHT)
    return figure_layout(
        heading,
        width=_WIDTH,
        height=150 + 20 * lines + 34 * len(names),
        margin={"l": left, "r": _RIGHT, "t": 92 + 20 * lines, "b": 60},
        notes=notes,
    )


def idle_figure(table: pl.DataFrame, *, heading: Heading) -> go.Figure:
    """Return a bar of idle time for each GPU, split by cause.

    Parameters
    ----------
    table
        One row per GPU and cause: ``device``, ``cause``, ``idle_ns``. The 40 GPUs with the lowest
        numbers are shown.
    """
    if not table.height:
        return empty_figure(heading, "no idle time")
    devices = table["device"].unique().sort()
    shown = devices.head(MOST_BARS).to_list()
    parts = parts_by(table, "device", shown, "cause", "idle_ns", CAUSE_COLOURS)
    return bars_figure(
        [f"GPU {device}" for device in shown],
        [replace(part, name=part.name.replace("_", " ")) for part in parts],
        axis="idle time", heading=heading,
        notes=not_shown(devices.len() - len(shown), "GPUs"),
    )  # fmt: skip


_AS_RECORDED = {"measured": IDLE_COLOUR, "unchanged, replayed": "#BBBBBB"}


def path_figure(table: pl.DataFrame, *, heading: Heading) -> go.Figure:
    """Return a bar for the critical path of each step, split by cause.

    Parameters
    ----------
    table
        One row per step and part, ordered by step: ``iteration`` (null for a run without
        iterations), ``part`` (a key of `PATH_COLOURS`), ``path_ns``. The first 60 steps are shown.
    """
    if not table.height:
        return empty_figure(heading, "no steps")
    named = table.with_columns(step=pl.col("iteration").cast(pl.String).fill_null("run"))
    steps = named["step"].unique(maintain_order=True)
    shown = steps.head(MOST_UPRIGHT).to_list()
    return bars_figure(
        shown, parts_by(named, "step", shown, "part", "path_ns", PATH_COLOURS),
        axis="critical path", heading=heading, upright="step",
        notes=not_shown(steps.len() - len(shown), "steps"),
    )  # fmt: skip


def whatif_figure(table: pl.DataFrame, *, heading: Heading) -> go.Figure:
    """Return bars of the recorded step time, and of the estimated one under each what-if change.

    If only a range is estimated, the bar shows the upper end of the range.

    Parameters
    ----------
    table
        One row per change: ``change, step_ns, low_ns, high_ns`` (null for the recorded step) and
        ``saved_share``.
    """
    step = pl.coalesce("step_ns", "high_ns")
    ends = pl.coalesce("low_ns", step), pl.coalesce("high_ns", step)
    shown = table.select(change="change", step=step, low=ends[0], high=ends[1], saved="saved_share")
    changes, lengths = shown["change"].to_list(), shown["step"].to_list()
    colours = [_AS_RECORDED.get(change, ACCENT) for change in changes]
    divisor, unit = unit_of(max(lengths), TIME_UNITS)
    decimals = decimals_of(max(lengths) / divisor)
    return bars_figure(
        changes, [Part("", colours, lengths, hover=changes)], axis="step",
        heading=heading, unit=(divisor, unit),
        whiskers=list(shown.select("low", "high").iter_rows()),
        ends=[
            ", ".join(filter(None, [f"{length / divisor:,.{decimals}f}", _saved(change, saved)]))
            for change, length, saved in zip(changes, lengths, shown["saved"], strict=True)
        ],
    )  # fmt: skip


def _saved(change: str, share: float | None) -> str:
    """Return the share by which a step is shorter, or longer, as text."""
    if change in _AS_RECORDED or share is None:
        return "" if change in _AS_RECORDED else "unknown"
    percent = f"{abs(100 * share):.1f}"
    sign = "" if percent == "0.0" else MINUS if share > 0 else "+"
    return f"{sign}{percent} %"
