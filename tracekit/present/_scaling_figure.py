"""Scaling curves: speedup or efficiency over the number of GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from math import log10
from typing import Any

import plotly.graph_objects as go
import polars as pl

from tracekit.errors import UsageError
from tracekit.present._charts import (
    NO_RUNS,
    SYMBOLS,
    bars_note,
    cell,
    common_note,
    described,
    distinct,
    error_bars,
    known_rows,
    not_shown,
    paneled,
    pooled_note,
    series,
    with_ends,
)
from tracekit.present._figures import INK, MUTED, SERIES_COLOURS, Heading, empty_figure
from tracekit.present._waterfall import step_unit

_MOST_FACETS = 12
_MOST_ACROSS = 3
_FACET_HEIGHTS = {1: 400, 2: 320, 3: 250}
_LINEAR_GPUS = 4
_MOST_COUNTS = 8
_LONE = 1.5
_FAR = 5
"""Ratio of values above which an axis is logarithmic."""
_SCALING = {
    "speedup": "speedup",
    "efficiency": "efficiency (%)",
    "time_ns": "time",
    "images_per_s": "images per second",
}
_MEASURED = ("time_ns", "images_per_s")
"""Values without a common ideal: each curve has its own, from its first point on."""
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
_IDEAL = {"dash": "5px,4px", "width": 1}


def scaling_figure(table: pl.DataFrame, *, value: str = "speedup", heading: Heading) -> go.Figure:
    """Return curves of a measure over the number of GPUs, with its ideal (linear) scaling.

    One panel per network, at most 12; one colour per method; one dash and marker per batch size.
    Beyond four GPUs the axes are logarithmic, so that the ideal speedup stays straight.

    Parameters
    ----------
    table
        One row per configuration: ``network``, ``batch``, ``method``, ``gpus``, and ``speedup`` or
        ``efficiency`` (a fraction: 0.42 is 42 %); rows without a value are not drawn. Optionally
        ``runs``, the number of pooled runs, and ``speedup_low`` and ``speedup_high`` (their range),
        or ``speedup_from`` and ``speedup_to`` (95 % interval), drawn as error bars.
    value
        Column to draw: ``speedup``, ``efficiency``, ``time_ns`` or ``images_per_s``.

    Raises
    ------
    UsageError
        If `value` is none of these columns.
    """
    if value not in _SCALING:
        raise UsageError(f"no scaling curves of {value!r}", f"choose {' or '.join(_SCALING)}")
    known = with_ends(
        known_rows(table, value).filter(pl.col("gpus") > 0, pl.col(value) > 0), "speedup"
    )
    if known.is_empty():
        return empty_figure(heading, NO_RUNS)
    if value in _MEASURED:
        return _measured_figure(known, value, heading)
    figure, shown = _faceted(known, heading, bars_note(known))
    gpus = distinct(known, "gpus")
    axis = _padded(gpus[0], gpus[-1], far=gpus[-1] > _LINEAR_GPUS)
    for place, of_network in enumerate(shown):
        for curve in [_ideal(axis, value), *_curves(of_network, known, value)]:
            figure.add_trace(curve, **cell(place, _across(len(shown))))
    _scaling_axes(figure, known, value, len(shown))
    return figure


def _measured_figure(known: pl.DataFrame, value: str, heading: Heading) -> go.Figure:
    """Return curves of times or rates over GPUs, each with its ideal; one plot per network."""
    divisor, unit = step_unit(max(known[value])) if value == "time_ns" else (1, "")
    ends = ("time_low_ns", "time_high_ns") if value == "time_ns" else ("none", "none")
    known = known.with_columns(
        pl.col(name) / divisor for name in (value, *ends) if name in known.columns
    )
    figure, shown = _faceted(known, heading, pooled_note(known, ranges=value == "time_ns"))
    for place, rows in enumerate(shown):
        for curve in [*_ideals(rows, value), *_curves(rows, known, value, ends)]:
            figure.add_trace(curve, **cell(place, _across(len(shown))))
    _gpu_axis(figure, known)
    far = known[value].max() > _FAR * known[value].min()  # type: ignore[operator]
    ticks = [factor * 10.0**power for power in range(-3, 12) for factor in (1, 2, 5)]
    texts = [f"{tick:,.12g}" for tick in ticks]
    logarithmic = {"type": "log", "tickvals": ticks, "ticktext": texts}
    figure.update_yaxes(**(logarithmic if far else {"rangemode": "tozero"}))
    axis = f"{_SCALING[value]} ({unit})" if unit else _SCALING[value]
    _name_axes(figure, len(shown), axis)
    return figure


def _faceted(
    known: pl.DataFrame, heading: Heading, notes: Sequence[str]
) -> tuple[go.Figure, list[pl.DataFrame]]:
    """Return a figure of one empty plot per network under a legend, and the rows per plot."""
    networks, keys = distinct(known, "network"), _curve_keys(known)
    shown = networks[:_MOST_FACETS]
    across = _across(len(shown))
    figure = paneled(
        [described("network", network) for network in shown],
        [key.name for key in keys],
        across=across,
        each=_FACET_HEIGHTS[across],
        below=56,
        heading=heading,
        notes=[
            *common_note(known, ("batch",)),
            *notes,
            *not_shown(len(networks) - len(shown), "networks"),
        ],
    )
    figure.add_traces(keys)
    return figure, [known.filter(known["network"].eq_missing(network)) for network in shown]


def _across(panels: int) -> int:
    """Return the number of panels in a row; four panels take two rows."""
    return 2 if panels == 4 else min(panels, _MOST_ACROSS)  # noqa: PLR2004


def _ideals(of_network: pl.DataFrame, value: str) -> list[go.Scatter]:
    """Return for each curve the line of ideal scaling, starting at the curve's first point."""
    ideals = []
    for _, rows in of_network.sort("gpus").group_by("method", "batch", maintain_order=True):
        first = rows.row(0, named=True)
        grows = [gpus / first["gpus"] for gpus in rows["gpus"]]
        is_weak = first.get("mode") == "weak"
        factors = [1 if is_weak else 1 / n for n in grows] if value == "time_ns" else grows
        heights = [first[value] * factor for factor in factors]
        ideals.append(series(rows["gpus"], heights, colour=INK, line=_IDEAL))
    return ideals


def _methods(known: pl.DataFrame) -> dict[Any, str]:
    return {
        method: SERIES_COLOURS[place % len(SERIES_COLOURS)]
        for place, method in enumerate(distinct(known, "method"))
    }


def _batches(known: pl.DataFrame) -> dict[Any, dict[str, Any]]:
    """Return dash and marker of each batch size."""
    return {
        batch: {"dash": _DASHES[place % len(_DASHES)], "symbol": SYMBOLS[place % len(SYMBOLS)]}
        for place, batch in enumerate(distinct(known, "batch"))
    }


def _curve_keys(known: pl.DataFrame) -> list[go.Scatter]:
    """Return the legend's entries: a colour per method, a dash per batch size, and the ideal."""

    def entry(name: str, colour: str, dash: str, symbol: str | None) -> go.Scatter:
        return series(
            [None], [None], colour=colour, name=name, mode="lines+markers" if symbol else "lines",
            line={"dash": dash}, marker={"symbol": symbol}, is_named=True,
        )  # fmt: skip

    batches = _batches(known)
    return [
        *(
            entry(described("method", method), colour, "solid", None)
            for method, colour in _methods(known).items()
        ),
        *(
            entry(described("batch", batch), MUTED, look["dash"], look["symbol"])
            for batch, look in batches.items()
            if len(batches) > 1
        ),
        entry("ideal", INK, "5px,4px", None),
    ]


def _curves(
    panel: pl.DataFrame,
    known: pl.DataFrame,
    value: str,
    ends: tuple[str, str] | None = None,
) -> list[go.Scatter]:
    """Return a neural network's curves: a value over GPUs, per method and batch size."""
    colours, looks = _methods(known), _batches(known)
    curves = []
    for (method, batch), rows in panel.sort("gpus").group_by(
        "method", "batch", maintain_order=True
    ):
        look, name = looks[batch], f"{described('method', method)}, {described('batch', batch)}"
        each = rows[value] * (100 if value == "efficiency" else 1)
        curves.append(
            series(
                rows["gpus"], each, colour=colours[method], name=name, line={"dash": look["dash"]},
                marker={"symbol": look["symbol"]},
                error_y=error_bars(rows, value, *ends) if ends else _spread(rows, value),
                # Runs that are not pooled are several points over one number of GPUs.
                mode="lines+markers" if rows["gpus"].is_unique().all() else "markers",
                hover=[
                    f"{described('gpus', gpus)}<br>"
                    + (f"{number:.1f} %" if value == "efficiency" else f"{number:,.2f}")
                    for gpus, number in zip(rows["gpus"], each, strict=True)
                ],
            )
        )  # fmt: skip
    return curves


def _spread(rows: pl.DataFrame, value: str) -> Any:
    """Return error bars; those of an efficiency are the speedup's, scaled to the efficiency."""
    if value == "speedup" or "speedup" not in rows.columns:
        return error_bars(rows, value, "end_low", "end_high")
    each = pl.col(value) / pl.col("speedup")
    ends = rows.with_columns(low=each * pl.col("end_low"), high=each * pl.col("end_high"))
    return error_bars(ends, value, "low", "high", factor=100)


def _ideal(axis: Sequence[float], value: str) -> go.Scatter:
    """Return the line of ideal scaling from one end of the axis to the other."""
    heights = [100, 100] if value == "efficiency" else axis
    return series(axis, heights, colour=INK, line=_IDEAL)


def _scaling_axes(figure: go.Figure, known: pl.DataFrame, value: str, panels: int) -> None:
    gpus, values = distinct(known, "gpus"), _reached(known, value)
    far = gpus[-1] > _LINEAR_GPUS
    _gpu_axis(figure, known)
    if value == "efficiency":
        figure.update_yaxes(range=[0, 100 * max(1.08, *(1.05 * each for each in values))])
    elif far:
        ends = _padded(min(1, *values), max(gpus[-1], *values), far=True)
        ticks = [2.0**power for power in range(-6, 13)]
        texts = [f"{tick:g}" for tick in ticks]
        figure.update_yaxes(tickvals=ticks, ticktext=texts, **_scaled(*ends, far=True))
    else:
        figure.update_yaxes(range=[0, 1.06 * max(gpus[-1], *values)])
    _name_axes(figure, panels, _SCALING[value])


def _gpu_axis(figure: go.Figure, known: pl.DataFrame) -> None:
    gpus = distinct(known, "gpus")
    far = gpus[-1] > _LINEAR_GPUS
    texts = [count for count in gpus if len(gpus) <= _MOST_COUNTS or count.bit_count() == 1]
    labels = {"tickvals": texts, "ticktext": [str(count) for count in texts]}
    figure.update_xaxes(**labels, **_scaled(*_padded(gpus[0], gpus[-1], far=far), far=far))


def _name_axes(figure: go.Figure, panels: int, name: str) -> None:
    across = _across(panels)
    for place in range(panels):
        at = cell(place, across)
        if place + across >= panels:
            figure.update_xaxes(title_text="GPUs", **at)
        if at["col"] == 1:
            figure.update_yaxes(title_text=name, **at)


def _reached(known: pl.DataFrame, value: str) -> list[float]:
    """Return the values that an axis has to include: of points, and of ends of error bars."""
    bars = _spread(known, value)
    values: list[float] = known[value].to_list()
    if bars is None:
        return values
    factor = 100 if value == "efficiency" else 1
    above = [each + end / factor for each, end in zip(values, bars["array"], strict=True)]
    below = [each - end / factor for each, end in zip(values, bars["arrayminus"], strict=True)]
    return [*values, *above, *below]


def _padded(low: float, high: float, *, far: bool) -> tuple[float, float]:
    """Return the ends of an axis a little beyond `low` and `high`; `far`: it is logarithmic."""
    if far:
        room = (high / low) ** 0.05 if high > low else _LONE
        return low / room, high * room
    room = 0.05 * (high - low) or 0.1
    return low - room, high + room


def _scaled(low: float, high: float, *, far: bool) -> dict[str, Any]:
    """Return the settings of an axis from `low` to `high`, logarithmic if `far`."""
    ends = [log10(low), log10(high)] if far else [low, high]
    return {"type": "log" if far else "linear", "range": ends}
