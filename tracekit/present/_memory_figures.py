"""Figures of GPU memory: use per GPU, and growth with the batch size."""

from __future__ import annotations

from typing import Any, NamedTuple

import plotly.graph_objects as go
import polars as pl

from tracekit.present._charts import (
    MOST_ROWS,
    SYMBOLS,
    Rows,
    common_note,
    label_of,
    rows_of,
    series,
    series_figure,
    show_rows,
    varying,
)
from tracekit.present._figures import (
    INK,
    MUTED,
    SCALE,
    SERIES_COLOURS,
    Heading,
    empty_figure,
    figure_layout,
    figure_text,
    legend_above,
    text_width,
)
from tracekit.support.wording import BYTE_UNITS, unit_of

NO_MEMORY = "no use of memory"
"""Text of a figure that has no use of memory to show."""

_USES = {"pre_bytes": ("before training", SCALE[1]), "training_bytes": ("training", SCALE[5])}
_ABOVE, _BESIDE = ("network", "batch", "gpus", "method"), ("gpu", "device", "source")
_BAR = 0.4
_FAR = 8
_LONG = 100
_LINE = {"color": INK, "width": 1.5, "dash": "5px,4px"}
_LINE_KEYS = ("network", "method", "source")
_MOST_LINES = 8


def memory_figure(table: pl.DataFrame, *, heading: Heading) -> go.Figure:
    """Return the memory of each GPU: in use before and during training, and its capacity.

    One pair of bars per row of the table, at most 40, grouped by configuration. A capacity above
    eight times the use is given as text, not drawn.

    Parameters
    ----------
    table
        One row per configuration and GPU: ``gpu`` or ``device``, ``pre_bytes`` and
        ``training_bytes`` (null if unknown, drawn as ``?``), optionally ``memory_bytes`` (capacity;
        null if unknown). Optional columns ``run``, ``network``, ``batch``, ``gpus``, ``method`` and
        ``source`` name the configuration. Runs are named only if nothing else distinguishes them.
    """
    table, above, beside = _known_uses(table)
    if table.is_empty():
        return empty_figure(heading, NO_MEMORY)
    shown = table.head(MOST_ROWS)
    rows = rows_of(shown, above, beside)
    used = max(value or 0 for name in _USES for value in shown[name])
    most = max((each for each in shown["memory_bytes"] if each is not None), default=0)
    far = most > _FAR * used
    largest = used if far else max(used, most)
    unit = unit_of(largest, BYTE_UNITS)
    layout = figure_layout(
        heading,
        height=round(36 * (rows.end + 0.5)) + 176,
        margin={"l": max(text_width(row.label for row in rows.rows) + 28, 72), "r": 60, "t": 116},
        notes=[*common_note(shown, (*above, *beside)), *_use_notes(table, most, unit, far=far)],
    )
    figure = go.Figure(layout={**layout, "barmode": "overlay", "legend": legend_above(layout)})
    for place, name in enumerate(_USES):
        figure.add_trace(_use_bars(shown[name], name, rows, unit, offset=(place - 1) * _BAR))
    if most and not far:
        figure.add_trace(_capacity_marks(shown["memory_bytes"].to_list(), rows, unit))
    show_rows(figure, rows)
    ends = [0, 1.08 * largest / unit[0] or 1]
    figure.update_xaxes(title_text=f"memory in use ({unit[1]})", range=ends)
    return figure


def _known_uses(table: pl.DataFrame) -> tuple[pl.DataFrame, list[str], list[str]]:
    """Return the rows with known memory use, ordered by configuration, and their names."""
    if "memory_bytes" not in table.columns:
        table = table.with_columns(pl.lit(None, pl.Int64).alias("memory_bytes"))
    amounts = [pl.col(name).cast(pl.Int64) for name in (*_USES, "memory_bytes")]
    table = table.with_columns(*amounts).filter(pl.any_horizontal(pl.col(*_USES).is_not_null()))
    above = [key for key in _ABOVE if key in table.columns]
    beside = [key for key in _BESIDE if key in table.columns]
    if "gpu" in beside and "device" in beside:
        beside.remove("device")
    named = [*above, *beside]
    if "run" in table.columns and (not named or table.select(named).is_duplicated().any()):
        above = ["run", *above]
    if above and not table.is_empty():
        table = pl.concat(table.partition_by(above, maintain_order=True))
    return table, above, beside


def _use_notes(table: pl.DataFrame, most: int, unit: tuple[int, str], *, far: bool) -> list[str]:
    shown, hidden = table.head(MOST_ROWS), table.height - MOST_ROWS
    notes = {
        "the capacity of the GPUs is unknown": not most,
        f"capacity, beyond the axis: up to {_amount(most, unit)} {unit[1]}": far,
        "? unknown": any(shown[name].has_nulls() for name in _USES),
        f"not shown: {hidden:,} more": hidden > 0,
    }
    return [note for note, applies in notes.items() if applies]


def _amount(value: float, unit: tuple[int, str]) -> str:
    number = value / unit[0]
    return f"{number:,.{0 if unit[0] == 1 else 2 if number < _LONG else 1}f}"


def _use_bars(
    values: pl.Series, name: str, rows: Rows, unit: tuple[int, str], *, offset: float
) -> go.Bar:
    """Return bars of memory used before or during training; unknown use is a mark, not a bar."""
    label, colour = _USES[name]
    texts = ["?" if value is None else _amount(value, unit) for value in values]
    return go.Bar(
        x=[(value or 0) / unit[0] for value in values],
        y=[row.place for row in rows.rows],
        offset=offset,
        width=_BAR - 0.03,
        orientation="h",
        name=label,
        marker={"color": colour, "line": {"width": 0}},
        text=texts,
        textposition="outside",
        textfont_size=11,
        constraintext="none",
        cliponaxis=False,
        hoverinfo="text",
        hovertext=[
            f"<b>{figure_text(row.label)}</b><br>{label}: {text} {unit[1]}"
            for row, text in zip(rows.rows, texts, strict=True)
        ],
    )


def _capacity_marks(capacities: list[int | None], rows: Rows, unit: tuple[int, str]) -> go.Scatter:
    """Return a tick mark at the GPU's memory capacity on each row of bars."""
    known = [
        (row.place, value / unit[0])
        for row, value in zip(rows.rows, capacities, strict=True)
        if value is not None
    ]
    return go.Scatter(
        x=[x for _, value in known for x in (value, value, None)],
        y=[y for place, _ in known for y in (place - 0.5, place + 0.5, None)],
        mode="lines", name="capacity", line=_LINE, hoverinfo="skip",
    )  # fmt: skip


class _Line(NamedTuple):
    """Memory over the batch size: measured points, and the line fitted to them."""

    name: str
    points: pl.DataFrame
    fit: dict[str, Any]
    """Row of the fit; empty without one."""

    @property
    def last(self) -> float:
        """Batch size at which the line ends: the largest that fits, or that was measured."""
        return max(self.fit.get("largest_batch") or 0, self.measured)

    @property
    def measured(self) -> float:
        """Largest batch size that was measured."""
        largest: float = max(self.points["batch"].to_list())
        return largest

    def at(self, batch: float) -> float | None:
        """Return the fitted memory at a batch size, in bytes; None without a line."""
        slope, intercept = self.fit.get("slope_bytes"), self.fit.get("intercept_bytes")
        return None if slope is None or intercept is None else float(intercept + slope * batch)


def memory_fit_figure(
    points: pl.DataFrame,
    fit: pl.DataFrame,
    *,
    heading: Heading,
    capacity_bytes: int | None = None,
) -> go.Figure:
    """Return training memory over the batch size, fitted lines, and the memory limit.

    One colour per line, at most 8. A line is solid up to the largest measured batch size, and
    dashed from there to the largest batch size that is estimated to fit, if that is larger.

    Parameters
    ----------
    points
        Measured points: ``batch``, ``training_bytes`` and the columns that distinguish lines; rows
        with a null in the first two are not drawn.
    fit
        One row per line: those of ``network``, ``method`` and ``source`` that distinguish lines;
        ``slope_bytes`` and ``intercept_bytes`` (null if no line could be fitted), ``usable_bytes``,
        ``largest_batch``, ``predicted_bytes``.
    capacity_bytes
        Memory of the GPU, bytes; ``usable_bytes`` is this less a margin. None if not known.
    """
    points = points.drop_nulls(["batch", "training_bytes"])
    if points.is_empty():
        return empty_figure(heading, NO_MEMORY)
    lines = _lines(points, fit)
    shown = lines[:_MOST_LINES]
    limits = {"usable": max((each for each in fit["usable_bytes"] if each), default=None)}
    limits["capacity"] = capacity_bytes
    known = {name: limit for name, limit in limits.items() if limit is not None}
    heights = [
        *points["training_bytes"],
        *known.values(),
        *(line.at(line.last) or 0 for line in shown),
    ]
    unit = unit_of(max(heights), BYTE_UNITS)
    figure = series_figure(
        [line.name for line in shown],
        heading=heading,
        height=500,
        sides=(76, 112),
        notes=[
            *(["no line could be fitted"] if not any(line.at(0) for line in shown) else []),
            *([f"not shown: {len(lines) - len(shown):,} more"] if len(lines) > len(shown) else []),
        ],
    )
    for place, line in enumerate(shown):
        figure.add_traces(_line_traces(line, place, unit))
    figure.update_xaxes(title_text="batch size", range=[0, 1.06 * max(line.last for line in shown)])
    figure.update_yaxes(
        title_text=f"memory in training ({unit[1]})", range=[0, 1.08 * max(heights) / unit[0]]
    )
    _draw_limits(figure, known, unit)
    return figure


def _lines(points: pl.DataFrame, fit: pl.DataFrame) -> list[_Line]:
    """Return a fitted line of memory over batch size per series, with its points.

    A series is a network, method and source. Lines are in the order of their first points.
    """
    keys = [key for key in _LINE_KEYS if key in fit.columns and key in points.columns]
    fits = {tuple(row[key] for key in keys): row for row in fit.iter_rows(named=True)}
    groups = points.partition_by(keys, maintain_order=True) if keys else [points]
    named = varying(points, keys)
    lines = []
    for group in groups:
        first = group.row(0, named=True)
        line_keys = tuple(first[key] for key in keys)
        row = fits.get(line_keys, {})
        largest = row.get("largest_batch")
        name = label_of(first, named) or "measured"
        if largest is not None:
            beyond = ", extrapolated" if largest > max(group["batch"]) else ""
            name += f"; largest batch {largest:,}{beyond}"
        lines.append(_Line(name, group, row))
    return lines


def _line_traces(line: _Line, place: int, unit: tuple[int, str]) -> list[go.Scatter]:
    """Return the measured points, and the line through them."""
    colour, group = SERIES_COLOURS[place % len(SERIES_COLOURS)], str(place)
    points = line.points.select("batch", "training_bytes")
    traces = [
        series(
            points["batch"], points["training_bytes"] / unit[0], colour=colour, mode="markers",
            marker={"symbol": SYMBOLS[place % len(SYMBOLS)], "size": 9}, name=line.name,
            group=group, is_named=True,
            hover=[f"batch {batch:,}<br>{_amount(value, unit)} {unit[1]}"
                   for batch, value in points.iter_rows()],
        )
    ]  # fmt: skip
    for begin, end, dash in ((0, line.measured, "solid"), (line.measured, line.last, "dash")):
        ends = [line.at(begin), line.at(end)]
        if None not in ends and begin < end:
            heights = [height / unit[0] for height in ends if height is not None]
            look = {"dash": dash}
            traces.append(series([begin, end], heights, colour=colour, line=look, group=group))
    return traces


def _draw_limits(figure: go.Figure, limits: dict[str, int], unit: tuple[int, str]) -> None:
    """Draw the GPU's capacity and the usable part as lines across the plot."""
    for name, limit in limits.items():
        look = _LINE if name == "capacity" else {**_LINE, "color": MUTED, "dash": "dot"}
        figure.add_hline(y=limit / unit[0], line=look)
        figure.add_annotation(
            text=f"{name}<br>{_amount(limit, unit)} {unit[1]}", showarrow=False, align="left",
            xref="paper", x=1, xanchor="left", xshift=6, y=limit / unit[0], font_size=12,
            yanchor="bottom" if name == "capacity" else "top",
        )  # fmt: skip
