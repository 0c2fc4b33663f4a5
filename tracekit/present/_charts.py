"""Shared parts of figures: stacked bars, series of points, grids of plots, and labels of runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import plotly.graph_objects as go
import polars as pl
from plotly.subplots import make_subplots

from tracekit.present._figures import (
    INK,
    PLAIN_AXIS,
    Heading,
    decimals_of,
    figure_layout,
    figure_text,
    legend_above,
    legend_lines,
    readable_on,
    text_width,
)
from tracekit.support.wording import TIME_UNITS, printable, shorten, shorten_apart, unit_of

MOST_ROWS = 40
"""Largest number of configurations in a figure with one row for each."""

NO_RUNS = "no runs"
"""Text of a figure that has no runs to show."""

SELF_TOLD = {"batch", "gpus", "gpu", "device", "rank"}
"""Columns whose name is part of the text of a label."""

_WIDEST_LABEL = 40
_WORDS = {"batch": "batch ", "device": "GPU ", "gpu": "GPU ", "rank": "rank "}
_NAMES = {"device": "GPU", "gpu": "GPU", "gpus": "number of GPUs"}
_HEADING = 1.0
_GAP = 0.3


def described(key: str, value: object) -> str:
    """Return a run's property `key` with its value as text, such as ``4 GPUs``; cut if too long."""
    if key == "run" and value is None:
        return "median of several"
    if value is None:
        return f"{_NAMES.get(key, key)} unknown"
    if key == "method" and value == "none":
        return "no exchange"
    if key == "gpus":
        return f"{value} GPU{'' if value == 1 else 's'}"
    return shorten(f"{_WORDS.get(key, '')}{printable(str(value))}", _WIDEST_LABEL)


def label_of(row: Mapping[str, Any], keys: Sequence[str]) -> str:
    """Return the name of a table row: the values of the columns `keys`, as text."""
    return ", ".join(described(key, row[key]) for key in keys)


def varying(table: pl.DataFrame, keys: Sequence[str]) -> list[str]:
    """Return the columns among `keys` that the table has and whose values differ between rows."""
    return [key for key in keys if key in table.columns and table[key].n_unique() > 1]


def common_note(table: pl.DataFrame, keys: Sequence[str]) -> list[str]:
    """Return a note with the values that all rows share in the columns `keys`; empty if none."""
    there = [key for key in keys if key in table.columns]
    shared = [key for key in there if table[key].n_unique() == 1 and not table[key].has_nulls()]
    return [f"all: {label_of(table.row(0, named=True), shared)}"] if shared else []


def pooled_note(table: pl.DataFrame, *, ranges: bool = True) -> list[str]:
    """Return a note: how many runs each median is computed from; empty if each value is of one run.

    Parameters
    ----------
    table
        A table that may have ``runs`` and ``baseline_runs``, numbers of runs behind each value.
    ranges
        Whether the figure also draws the least and the greatest value of the runs.
    """
    numbers = [name for name in ("runs", "baseline_runs") if name in table.columns]
    if not numbers:
        return []
    pooled = table.select(pl.max_horizontal(numbers)).to_series().drop_nulls()
    several = pooled.filter(pooled > 1).to_list()
    if not several:
        return []
    drawn = ", with least and greatest" if ranges else ""
    return [f"medians of n = {_span(several)} runs{drawn}"]


def with_ends(table: pl.DataFrame, value: str) -> pl.DataFrame:
    """Add the ends of error bars: ``end_low`` and ``end_high``.

    They are the ends of the 95 % interval if the table has it (columns such as ``speedup_from`` and
    ``speedup_to``, or ``from_percent`` and ``to_percent``), else the least and the greatest value
    of pooled runs (``speedup_low`` and ``speedup_high``), else null.

    Parameters
    ----------
    table
        A table that may have such columns.
    value
        Column that the error bars belong to: ``speedup`` or ``percent``.
    """
    ends = {"end_low": ("from", "low"), "end_high": ("to", "high")}
    pairs = {
        end: [
            name for kind in kinds for name in (f"{value}_{kind}", f"{kind}_{value}")
            if name in table.columns
        ]
        for end, kinds in ends.items()
    }  # fmt: skip
    none = pl.lit(None, pl.Float64)
    return table.with_columns(pl.coalesce(*names, none).alias(end) for end, names in pairs.items())


def bars_note(table: pl.DataFrame) -> list[str]:
    """Return notes that explain the error bars: 95 % intervals, or least to greatest run."""
    notes = []
    is_there = "interval_of" in table.columns
    of = set(table["interval_of"].drop_nulls()) if is_there else set()
    if "steps" in of:
        steps = [
            n for name in ("steps", "baseline_steps") if name in table.columns
            for n in table[name].drop_nulls()
        ]  # fmt: skip
        n = "" if not steps else f" (n = {_span(steps)})"
        notes.append(f"bars of single runs: 95 % intervals by their steps{n}, of these runs alone")
    if "runs" in of:
        notes.append("bars of several runs: 95 % intervals, each run counting as one number")
    return [*notes, *pooled_note(table, ranges="runs" not in of)]


def _span(numbers: Sequence[int]) -> str:
    least, most = min(numbers), max(numbers)
    return f"{most}" if least == most else f"{least} to {most}"


def error_bars(rows: pl.DataFrame, value: str, low: str, high: str, factor: float = 1) -> Any:
    """Return error bars from columns `low` to `high` times `factor`; None if these are empty."""
    if not {low, high} <= {*rows.columns} or not rows[low].count():
        return None
    above, below = (
        rows.select((factor * (pl.col(end) - pl.col(value)).abs()).fill_null(0)).to_series()
        for end in (high, low)
    )
    return {
        "type": "data", "symmetric": False, "array": above.to_list(), "arrayminus": below.to_list(),
        "color": INK, "thickness": 1, "width": 3,
    }  # fmt: skip


def not_shown(hidden: int, noun: str) -> list[str]:
    """Return a note that a figure leaves out `hidden` items named `noun`; empty if none."""
    return [f"not shown: {hidden:,} more {noun}"] if hidden else []


def distinct(table: pl.DataFrame, key: str) -> list[Any]:
    """Return the distinct values of a column: sorted if integers, else in the table's order."""
    values = table[key].unique(maintain_order=True)
    return (values.sort(nulls_last=True) if values.dtype.is_numeric() else values).to_list()


class Row(NamedTuple):
    """Label of one bar of a figure or of a heading, and its position on the vertical axis."""

    place: float
    label: str


class Rows(NamedTuple):
    """Positions and labels of a figure's bars from top to bottom, and of headings above groups."""

    rows: list[Row]
    headings: list[Row]
    end: float


def rows_of(table: pl.DataFrame, above: Sequence[str], beside: Sequence[str]) -> Rows:
    """Return positions and labels of bars, one per row of a table, and of headings above groups.

    Parameters
    ----------
    table
        One row per configuration, ordered so that rows under one heading are adjacent.
    above
        Columns whose values form the headings. If each row would have a heading of its own, or all
        rows the same one, there are no headings: the values go into the labels of rows.
    beside
        Columns whose values name the row.
    """
    above, beside = varying(table, above), varying(table, beside)
    records = table.to_dicts()
    titles = [label_of(record, above) for record in records]
    if not (above and beside and len(set(titles)) < len(titles)):
        keys = [*above, *beside]
        rows = [Row(place, label_of(record, keys)) for place, record in enumerate(records)]
        return Rows(rows, [], len(rows) - 0.5)
    placed: list[Row] = []
    headings: list[Row] = []
    place, title = 0.0, None
    for record, heading in zip(records, titles, strict=True):
        if heading != title:
            place += _GAP if headings else 0
            headings.append(Row(place, heading))
            title, place = heading, place + _HEADING
        placed.append(Row(place, label_of(record, beside)))
        place += 1
    return Rows(placed, headings, place - 0.5)


def show_rows(figure: go.Figure, rows: Rows) -> None:
    """Label the vertical axis of a figure with its rows, and write the headings into the plot."""
    figure.update_yaxes(
        **PLAIN_AXIS, range=[rows.end, -0.5],
        tickvals=[row.place for row in rows.rows],
        ticktext=[figure_text(row.label) for row in rows.rows],
    )  # fmt: skip
    for heading in rows.headings:
        figure.add_annotation(
            text=f"<b>{figure_text(heading.label)}</b>", showarrow=False, xref="paper", x=0,
            xanchor="left", y=heading.place + 0.15, yanchor="middle", font_size=12,
            bgcolor="white", borderpad=1,
        )  # fmt: skip


MOST_BARS = 40
"""Maximum number of bars one below the other."""

MOST_UPRIGHT = 240
"""Maximum number of bars side by side."""

SYMBOLS = (
    "circle", "square", "diamond", "triangle-up", "cross", "x", "triangle-down", "star", "hexagon",
)  # fmt: skip
"""Marker symbols of series, distinguishable without colours."""

_WIDTH = 960
_LEFT, _RIGHT, _BELOW = 72, 88, 60
_ROW, _UPRIGHT = 26, 300
_WIDEST = 52
_MOST_TICKS = 30
_LETTERS = 7
_LEAST_SHARE = 0.06
"""Least share of the longest bar from which a segment shows its length."""
_HATCHED = {"shape": "/", "fillmode": "overlay", "size": 6, "solidity": 0.4}
_PANELS = {"l": 84, "r": 32}
WIDE = _WIDTH - _PANELS["l"] - _PANELS["r"]
"""Total width of adjacent panels, in pixels."""


@dataclass(frozen=True)
class Part:
    """One segment of every bar of a figure, such as a stage."""

    name: str
    """Plain name, for the legend."""
    colour: str | Sequence[str]
    """Colour of the segment: one for all bars, or one per bar."""
    lengths: Sequence[float | None]
    """Length of the segment in each bar; null or 0 if the bar has none."""
    is_hidden: bool = False
    """Whether it is drawn hatched beside the bar and not added to the bar's length."""
    hover: Sequence[str] | None = None
    """Plain text for each bar shown under the pointer; None shows the name."""


def bars_figure(
    bars: Sequence[str] | Rows,
    parts: Sequence[Part],
    *,
    axis: str,
    heading: Heading,
    unit: tuple[float, str] | None = None,
    notes: Sequence[str] = (),
    ends: Sequence[str] | None = None,
    whiskers: Sequence[tuple[float, float] | None] | None = None,
    upright: str | None = None,
) -> go.Figure:
    """Return stacked bars, the first on top, each with its total length at its end.

    Parameters
    ----------
    bars
        Plain names of the bars, or rows of a figure under headings.
    parts
        Segments of the bars, in the order of stacking.
    axis
        Title of the axis of lengths, without the unit.
    notes
        See `figure_layout`.
    unit
        Divisor and name of the unit; None takes the unit of time that suits the longest bar.
    ends
        Plain texts at the ends of the bars; None shows the lengths.
    whiskers
        For each bar low and high end of its interval, drawn at the bar's end; null if it has none.
    upright
        Title of the horizontal axis if bars are vertical, side by side; None for horizontal bars.
    """
    parts = [part for part in parts if any(part.lengths)]
    number = len(bars.rows) if isinstance(bars, Rows) else len(bars)
    sums = [sum(part.lengths[n] or 0 for part in parts if not part.is_hidden)
            for n in range(number)]  # fmt: skip
    hidden = [sum(part.lengths[n] or 0 for part in parts if part.is_hidden) for n in range(number)]
    divisor, name = unit or unit_of(max([0, *sums, *hidden]), TIME_UNITS)
    if ends is None:
        decimals = decimals_of(max(sums, default=0) / divisor)
        ends = [_amount(length / divisor, decimals) for length in sums]
    rows = bars if isinstance(bars, Rows) else _plain_rows(bars)
    layout = _layout(rows, parts, ends, upright, heading, notes)
    figure = go.Figure(layout=layout)
    reach = sums
    is_stacked = any(sum(bool(part.lengths[n]) for part in parts) > 1 for n in range(number))
    for part in parts:
        if upright is None and is_stacked and not part.is_hidden:
            figure.add_trace(written_bars(part, rows, (divisor, name), max(sums)))
        else:
            figure.add_trace(_bars(part, rows, divisor, name, is_upright=upright is not None))
    if whiskers is not None:
        reach = [max(length, *(both or (0,))) for length, both in zip(sums, whiskers, strict=True)]
        figure.add_trace(intervals([
            (row.place, both[0] / divisor, both[1] / divisor)
            for row, both in zip(rows.rows, whiskers, strict=True) if both and both[0] < both[1]
        ]))  # fmt: skip
    axis_text = f"{axis} ({name})" if name else axis
    most = max(reach, default=0) / divisor
    if upright is None:
        show_rows(figure, rows)
        figure.update_xaxes(title_text=figure_text(axis_text), range=[0, most or 1])
    else:
        figure.update_xaxes(title_text=figure_text(upright), **_named_across(rows))
        figure.update_yaxes(title_text=figure_text(axis_text), range=[0, 1.06 * most or 1])
    _write_ends(figure, rows, [length / divisor for length in reach], ends, upright)
    return figure


def parts_by(
    table: pl.DataFrame,
    bar: str,
    bars: Sequence[Any],
    part: str,
    length: str,
    colours: Mapping[str, str],
) -> list[Part]:
    """Return the segments of stacked bars; each row of the table is one segment of one bar.

    Parameters
    ----------
    table
        A table with the columns that `bar`, `part` and `length` name.
    bar, bars
        Column that identifies the bar, and its values to be drawn, in order.
    part, colours
        Column that distinguishes segments, and their colours: value -> colour, in the order of
        stacking.
    length
        Column of lengths.
    """
    sums = table.group_by(pl.col(part).cast(pl.String), bar).agg(pl.col(length).sum())
    times = {(name, each): time for name, each, time in sums.iter_rows()}
    found = [Part(name, colour, [times.get((name, each)) for each in bars])
             for name, colour in colours.items()]  # fmt: skip
    return [one for one in found if any(one.lengths)]


def _plain_rows(names: Sequence[str]) -> Rows:
    short = shorten_apart([printable(name) for name in names], _WIDEST)
    return Rows([Row(place, name) for place, name in enumerate(short)], [], len(names) - 0.5)


def _layout(
    rows: Rows, parts: Sequence[Part], ends: Sequence[str], upright: str | None,
    heading: Heading, notes: Sequence[str],
) -> dict[str, Any]:  # fmt: skip
    left, right = _LEFT, max(_RIGHT, text_width(ends) + 24)
    if upright is None:
        left = min(max(text_width(row.label for row in rows.rows) + 28, _LEFT), _WIDTH // 2)
    has_legend = any(part.name for part in parts)
    lines = legend_lines([part.name for part in parts], _WIDTH - left - right) if has_legend else 0
    high = _UPRIGHT if upright else max(round(_ROW * (rows.end + 0.5)), 2 * _ROW)
    layout = figure_layout(
        heading, width=_WIDTH, height=high + 92 + 20 * lines + _BELOW, notes=notes,
        margin={"l": left, "r": 40 if upright else right, "t": 92 + 20 * lines, "b": _BELOW},
    )  # fmt: skip
    return {**layout, "barmode": "stack", "bargap": 0.2, "legend": legend_above(layout)}


def _bars(part: Part, rows: Rows, divisor: float, unit: str, *, is_upright: bool) -> go.Bar:
    there = [n for n, length in enumerate(part.lengths) if length]
    lengths = [(part.lengths[n] or 0) / divisor for n in there]
    places = [rows.rows[n].place for n in there]
    along, across = ("y", "x") if is_upright else ("x", "y")
    called = part.hover or [row.label for row in rows.rows]
    head = f"<b>{figure_text(part.name)}</b><br>" if part.name else ""
    colour = part.colour if isinstance(part.colour, str) else [part.colour[n] for n in there]
    return go.Bar(
        {along: lengths, across: places},
        orientation="v" if is_upright else "h",
        name=figure_text(part.name) or None,
        showlegend=bool(part.name),
        offsetgroup="hidden" if part.is_hidden else "bars",
        marker={"color": colour, "line": {"color": "white", "width": 0 if is_upright else 0.5},
                "pattern": _HATCHED if part.is_hidden else {}},
        hoverinfo="text",
        hovertext=[
            f"{head}{figure_text(called[n])}: {length:,.3f} {unit}"
            for n, length in zip(there, lengths, strict=True)
        ],
    )  # fmt: skip


def _amount(value: float, decimals: int) -> str:
    """Return a number as text with `decimals` decimals; a small positive one as ``<0.1`` or so."""
    text = f"{value:,.{decimals}f}"
    return text if not value or text.strip("0.") else f"<{10**-decimals:.{decimals}f}"


def written_bars(part: Part, rows: Rows, unit: tuple[float, str], longest: float) -> go.Bar:
    """Return one segment, such as a stage, of all bars, with its length inside where it fits."""
    decimals = decimals_of(longest / unit[0])
    ink = readable_on(part.colour) if isinstance(part.colour, str) else INK
    return _bars(part, rows, *unit, is_upright=False).update(
        text=[f"{length / unit[0]:,.{decimals}f}" if length > _LEAST_SHARE * longest else ""
              for length in part.lengths if length],
        textposition="inside", insidetextanchor="middle", textangle=0,
        insidetextfont={"size": 11, "color": ink}, constraintext="none",
    )  # fmt: skip


def intervals(
    spans: Sequence[tuple[float, float, float]], *, upright: bool = False, name: str | None = None
) -> go.Scatter:
    """Draw error bars at the ends of bars (vertical if `upright`); `name` is for the legend.

    `spans` has, per error bar, its position across the bars and its two ends along them.
    """
    across = [at for place, *_ in spans for at in (place, place, None)]
    along = [end for _, *ends in spans for end in (*ends, None)]
    line = {"color": INK, "width": 1.2}
    return go.Scatter(
        x=across if upright else along, y=along if upright else across, mode="lines+markers",
        line=line, marker={"symbol": f"line-{'ew' if upright else 'ns'}", "size": 8, "line": line},
        name=name, showlegend=name is not None, hoverinfo="skip",
    )  # fmt: skip


def _named_across(rows: Rows) -> dict[str, Any]:
    """Return the settings of a horizontal axis with the names of vertical bars, equally spaced."""
    every = -(-len(rows.rows) // _MOST_TICKS)
    named = [row for place, row in enumerate(rows.rows)
             if place % every == 0 or not row.label.isdigit()]  # fmt: skip
    return {
        **PLAIN_AXIS, "tickvals": [row.place for row in named], "range": [-0.5, rows.end],
        "ticktext": [figure_text(row.label) for row in named],
    }  # fmt: skip


def _write_ends(
    figure: go.Figure, rows: Rows, lengths: Sequence[float], ends: Sequence[str],
    upright: str | None,
) -> None:  # fmt: skip
    """Write each bar's length beyond its end, unless the texts of `upright` bars would touch."""
    if upright and _LETTERS * max(map(len, ends), default=0) * len(ends) > _WIDTH - 2 * _LEFT:
        return
    look = {"showarrow": False, "font": {"size": 12}, "bgcolor": "white", "borderpad": 0}
    for row, length, text in zip(rows.rows, lengths, ends, strict=True):
        at = (
            {"x": row.place, "y": length, "yanchor": "bottom"}
            if upright
            else {"x": length, "y": row.place, "xanchor": "left", "xshift": 6}
        )
        figure.add_annotation(text=figure_text(text), **at, **look)


def series_figure(
    names: Sequence[str],
    *,
    heading: Heading,
    height: int = 480,
    notes: Sequence[str] = (),
    sides: tuple[int, int] = (84, 40),
    below: int = 64,
) -> go.Figure:
    """Return an empty figure for series of points, with room for a legend.

    Parameters
    ----------
    names
        Plain names in the legend; empty for no legend.
    notes
        See `figure_layout`.
    height
        Height without legend and notes, in pixels.
    sides, below
        Margins in pixels: left and right, and below.
    """
    lines = legend_lines(names, _WIDTH - sum(sides)) if names else 0
    layout = figure_layout(
        heading, width=_WIDTH, height=height + 20 * lines, notes=notes,
        margin={"l": sides[0], "r": sides[1], "t": 92 + 20 * lines, "b": below},
    )  # fmt: skip
    return go.Figure(layout={**layout, "showlegend": bool(names), "legend": legend_above(layout)})


def series(
    x: Iterable[Any],
    y: Iterable[Any],
    *,
    colour: str,
    name: str = "",
    hover: Sequence[str] | None = None,
    mode: str = "lines",
    line: dict[str, Any] | None = None,
    marker: dict[str, Any] | None = None,
    group: str | None = None,
    is_named: bool = False,
    error_y: Any = None,
) -> go.Scatter:
    """Return a series of data points for a plot: points, a line through them, or both.

    Parameters
    ----------
    x, y
        Coordinates of the points.
    colour
        Colour of line and points.
    name
        Plain name in the legend.
    hover
        Markup for each point, shown under the pointer below `name`; None shows nothing.
    mode
        ``lines``, ``markers`` or ``lines+markers``.
    line, marker
        Style of line and points, apart from the colour.
    group
        Name of a group of series that the legend shows and hides together; None for no group.
    is_named
        Whether the legend lists the series.
    error_y
        Error bars of plotly.
    """
    head = f"<b>{figure_text(name)}</b><br>" if name else ""
    return go.Scatter(
        x=list(x), y=list(y), mode=mode, name=figure_text(name) or None, legendgroup=group,
        showlegend=is_named, error_y=error_y,
        line={"color": colour, "width": 2, **(line or {})},
        marker={"color": colour, "size": 7, **(marker or {})},
        hoverinfo="text" if hover else "skip",
        hovertext=[head + text for text in hover] if hover else None,
    )  # fmt: skip


def known_rows(table: pl.DataFrame, value: str) -> pl.DataFrame:
    """Return the rows whose column `value` is known (not null)."""
    return table.with_columns(pl.col(value).cast(pl.Float64)).filter(pl.col(value).is_finite())


def cell(place: int, across: int) -> dict[str, int]:
    """Return row and column (from 1) of panel `place` (from 0) in a grid of `across` columns."""
    return {"row": place // across + 1, "col": place % across + 1}


def paneled(
    titles: Sequence[str],
    legend: Sequence[str],
    *,
    across: int,
    each: int,
    below: int,
    heading: Heading,
    notes: Sequence[str],
) -> go.Figure:
    """Return an empty figure with a grid of plots (panels) of equal height under a common legend.

    Parameters
    ----------
    titles
        Plain titles of the panels.
    legend
        Plain texts of the legend.
    across, each, below
        Number of panels in a row; height of each and margin below it, in pixels.
    notes
        See `figure_layout`.
    """
    down = -(-len(titles) // across)
    gap = below + 34
    high = each * down + gap * (down - 1)
    titled = 24 if any(titles) else 0
    top = 84 + titled + (8 + 20 * legend_lines(legend, WIDE) if legend else 0)
    margin = {**_PANELS, "t": top, "b": below}
    layout = figure_layout(
        heading, width=_WIDTH, height=high + top + below, margin=margin, notes=notes
    )
    figure = make_subplots(
        rows=down, cols=across, horizontal_spacing=44 / WIDE, vertical_spacing=gap / high
    )
    figure.update_layout({**layout, "legend": legend_above(layout, gap=8 + titled)}, overwrite=True)
    for place, text in enumerate(titles):
        figure.add_annotation(
            text=f"<b>{figure_text(text)}</b>", showarrow=False, font_size=13,
            xref="x domain", x=0, xanchor="left", yref="y domain", y=1, yanchor="bottom", yshift=4,
            **cell(place, across),
        )  # fmt: skip
    return figure
