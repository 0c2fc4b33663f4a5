"""Waterfall from the step time of one run to that of another, stage by stage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import plotly.graph_objects as go
import polars as pl

from tracekit.present._charts import intervals
from tracekit.present._figures import INK, MUTED, PLAIN_AXIS, decimals_of, figure_text, signed
from tracekit.present._palette import ACCENT, IDLE_COLOUR, STAGE_COLOURS
from tracekit.support.wording import TIME_UNITS, unit_of

_COLOURS = {
    **STAGE_COLOURS,
    "FP+BP": STAGE_COLOURS["FP"],
    "idle": IDLE_COLOUR,
    "between_steps": "#A9B4BF",
}
_ORDER = ("FP+BP", *STAGE_COLOURS)
_LAST = ("idle", "between_steps")
_TOTAL_COLOUR = MUTED
_MS = (10**6, "ms")
_LEAST_MS, _MOST_MS = 10**5, 10**10
ACROSS = 2
"""Number of GPUs in a row of panels."""

MOST_GPUS = 16
"""Maximum number of GPUs drawn."""


class Part(NamedTuple):
    """Time of one stage per step in run A and in run B, and its contribution to the change."""

    stage: str
    a: float | None
    b: float | None
    delta: float | None
    low: float | None = None
    high: float | None = None


def stage_order(stages: Sequence[str]) -> list[str]:
    """Return stages in the order of stacking, each once; the time without a stage comes last."""
    names = (*_ORDER, None, *_LAST)
    rank = {stage: place for place, stage in enumerate(names)}
    return sorted(dict.fromkeys(stages), key=lambda stage: rank.get(stage, rank[None]))


def stage_name(stage: str) -> str:
    """Return the display name of a stage, or of time without a stage."""
    return stage.replace("_", " ")


def stage_tick(stage: str) -> str:
    """Return the display name of a stage as markup for an axis with narrow labels."""
    return figure_text(stage_name(stage)).replace(" ", "<br>")


def stage_colour(stage: str) -> str:
    """Return the colour of a stage, of FP+BP (that of FP), or of idle time."""
    return _COLOURS.get(stage, ACCENT)


def step_unit(largest: float) -> tuple[int, str]:
    """Return divisor and name of the unit of step times: ms, unless values would be too small."""
    return _MS if _LEAST_MS <= largest < _MOST_MS else unit_of(largest, TIME_UNITS)


def parts_of(contributions: pl.DataFrame) -> list[Part]:
    """Return the stages in order of stacking, without those that take no time in either run."""
    names = [f"{name}_ns" for name in Part._fields[1:] if f"{name}_ns" in contributions.columns]
    times = [pl.col(name).cast(pl.Float64).fill_nan(None) for name in names]
    rows = contributions.select(pl.col("stage").cast(pl.String).fill_null("?"), *times).rows()
    parts = {row[0]: Part(*row) for row in rows}
    return [
        parts[stage] for stage in stage_order(list(parts)) if any(v != 0 for v in parts[stage][1:4])
    ]


def total(parts: Sequence[Part], run: str) -> float:
    """Return the step time of run ``a`` or ``b``: the sum of the parts that are known, ns."""
    return sum(getattr(part, run) or 0 for part in parts)


def levels_of(parts: Sequence[Part]) -> list[tuple[float, float]]:
    """Return for each stage the running step time, ns, before and after its change is added."""
    levels, level = [], total(parts, "a")
    for part in parts:
        levels.append((level, level + (part.delta or 0)))
        level = levels[-1][1]
    return levels


def reaches_of(
    parts: Sequence[Part], levels: Sequence[tuple[float, float]]
) -> list[tuple[float, float]]:
    """Return for each stage the lowest and the highest step time that its bar or whisker covers."""
    ends = [
        (*level, *(level[0] + end for end in (part.low, part.high) if end is not None))
        for part, level in zip(parts, levels, strict=True)
    ]
    return [(min(each), max(each)) for each in ends]


def first_shown(levels: Sequence[tuple[float, float]]) -> float:
    """Return the lower end of the axis: above 0 if the change would be invisible otherwise."""
    low, high = min(map(min, levels)), max(map(max, levels))
    # Changes that are very small do look small.
    room = max(1.2 * (high - low), 0.05 * high)
    return low - room if low > 2 * room else min(low, 0)


def waterfall(
    parts: Sequence[Part], levels: Sequence[tuple[float, float]], unit: tuple[int, str]
) -> list[go.Bar | go.Scatter]:
    """Return two bars of step times, contributions with intervals between them, and connectors.

    Labels are not included.
    """
    before, after = total(parts, "a"), total(parts, "b")
    last = len(parts) + 1
    bars = go.Bar(
        x=list(range(last + 1)),
        base=[0, *(min(level) / unit[0] for level in levels), 0],
        y=[height / unit[0] for height in (before, *(abs(b - a) for a, b in levels), after)],
        width=0.62,
        marker={
            "color": [_TOTAL_COLOUR, *(stage_colour(part.stage) for part in parts), _TOTAL_COLOUR],
            "line": {"width": 0},
        },
        showlegend=False,
        hoverinfo="skip",
    )
    # A change of nothing is still seen as a line.
    marks = go.Scatter(
        x=[x for place in range(1, last) for x in (place - 0.31, place + 0.31, None)],
        y=[y for _, end in levels for y in (end / unit[0], end / unit[0], None)],
        mode="lines", line={"color": INK, "width": 1.5}, hoverinfo="skip", showlegend=False,
    )  # fmt: skip
    known = [
        (place, (level[0] + part.low) / unit[0], (level[0] + part.high) / unit[0])
        for place, (part, level) in enumerate(zip(parts, levels, strict=True), 1)
        if part.low is not None and part.high is not None
    ]
    ends = [before, *(end for _, end in levels)]
    joints = go.Scatter(
        x=[x for place in range(last) for x in (place + 0.31, place + 0.69, None)],
        y=[y for end in ends for y in (end / unit[0], end / unit[0], None)],
        mode="lines", line={"color": MUTED, "width": 1, "dash": "dot"}, hoverinfo="skip",
        showlegend=False,
    )  # fmt: skip
    return [bars, joints, marks, *([intervals(known, upright=True)] if known else [])]


def on_gpus(devices: pl.DataFrame | None) -> list[tuple[int, list[Part]]]:
    """Return (GPU, times and changes of its stages) for each GPU; empty if there is only one.

    `devices` has ``device``, ``stage``, ``a_ns``, ``b_ns`` and ``delta_ns``, as for
    `comparison_figure`.
    """
    if devices is None or devices["device"].n_unique() < 2:  # noqa: PLR2004 - one says it all above
        return []
    each = devices.sort("device", maintain_order=True).partition_by("device", maintain_order=True)
    found = [(int(of_device["device"][0]), parts_of(of_device)) for of_device in each]
    return [(device, parts) for device, parts in found if parts]


def add_gpus(
    figure: go.Figure,
    gpus: Sequence[tuple[int, Sequence[Part]]],
    unit: tuple[int, str],
    *,
    first_row: int,
) -> None:
    """Draw the waterfall of each GPU in a separate panel, with a common scale.

    Parameters
    ----------
    figure
        Figure with `ACROSS` columns of panels.
    gpus
        GPUs with their contributions, as `on_gpus` returns them.
    unit
        Divisor and name of the unit.
    first_row
        Row of the first panels in the figure's grid.
    """
    levels = [levels_of(parts) for _, parts in gpus]
    low = min(first_shown(each) for each in levels) / unit[0]
    high = max(max(map(max, of_gpu)) for of_gpu in levels) / unit[0]
    for place, ((device, parts), of_gpu) in enumerate(zip(gpus, levels, strict=True)):
        cell = {"row": first_row + place // ACROSS, "col": place % ACROSS + 1}
        for trace in waterfall(parts, of_gpu, unit):
            figure.add_trace(trace, **cell)
        names = ["A", *(stage_tick(part.stage) for part in parts), "B"]
        figure.update_xaxes(
            **PLAIN_AXIS, tickvals=list(range(len(names))), ticktext=names,
            range=[-0.5, len(names) - 0.5], tickfont_size=10, tickangle=0, **cell,
        )  # fmt: skip
        figure.update_yaxes(range=[low, high + 0.1 * (high - low)], nticks=4, **cell)
        figure.add_annotation(
            text=f"<b>GPU {device}</b>  {_change(parts, unit)}", showarrow=False, font_size=13,
            xref="x domain", x=0, xanchor="left", yref="y domain", y=1, yanchor="bottom", yshift=6,
            **cell,
        )  # fmt: skip


def _change(parts: Sequence[Part], unit: tuple[int, str]) -> str:
    before, after = total(parts, "a"), total(parts, "b")
    change = (after - before) / unit[0]
    share = f" ({signed(100 * (after / before - 1), 1)} %)" if before > 0 else ""
    return f"{signed(change, decimals_of(max(before, after) / unit[0]) + 1)} {unit[1]}{share}"
