"""Heat map of a value by two columns, with the value written in each cell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go
import polars as pl
import polars.selectors as cs

from tracekit.errors import UsageError
from tracekit.present._charts import NO_RUNS, SELF_TOLD, described, distinct, not_shown
from tracekit.present._figures import (
    DIVERGING,
    MINUS,
    Heading,
    colour_bar,
    colour_scale,
    decimals_of,
    empty_figure,
    figure_layout,
    figure_text,
    fitting_ticks,
    named_places,
    text_width,
)

_MOST_CELLS = 50
_MOST_WIDE = 16
_WIDTH, _LEAST_WIDTH = 960, 560
_SCALE = 136
"""Width of the colour scale on the right, in pixels."""


def heat_figure(
    table: pl.DataFrame,
    rows: str,
    columns: str,
    value: str,
    *,
    heading: Heading,
) -> go.Figure:
    """Return a heat map of percentages by two columns, with the value written in each cell.

    Numeric names are sorted, others stay in the order of the table. If values can be negative,
    colours diverge from zero. At most 50 rows and columns are drawn.

    Parameters
    ----------
    table
        One row per cell, with the columns named below; a null value is drawn as ``?``, and a cell
        without a row stays blank.
    rows, columns, value
        Columns of `table` that have the name of a cell's row, the name of its column, and its
        value.

    Raises
    ------
    UsageError
        If the table has a cell twice.
    """
    if table.is_empty():
        return empty_figure(heading, NO_RUNS)
    if table.select(rows, columns).is_duplicated().any():
        raise UsageError(
            f"a heat map by {rows} and {columns} has a cell twice",
            "choose columns that distinguish all rows, or fewer rows",
        )
    values = table.select(rows, columns, value).with_columns(cs.float().fill_nan(None))
    downs, acrosses = distinct(values, rows), distinct(values, columns)
    notes = [
        *(["? unknown"] if values[value].has_nulls() else []),
        *not_shown(max(len(downs) - _MOST_CELLS, 0), f"rows ({rows})"),
        *not_shown(max(len(acrosses) - _MOST_CELLS, 0), f"columns ({columns})"),
    ]
    downs, acrosses = downs[:_MOST_CELLS], acrosses[:_MOST_CELLS]
    names = [described(rows, each) for each in downs]
    texts = [described(columns, each) for each in acrosses]
    figure = _grid(names, texts, heading=heading, notes=notes)
    _add_cells(figure, values, downs, acrosses)
    if columns not in SELF_TOLD:
        figure.update_xaxes(title_text="step" if columns == "iteration" else figure_text(columns))
    return figure


def _grid(
    names: Sequence[str], texts: Sequence[str], *, heading: Heading, notes: Sequence[str]
) -> go.Figure:
    """Return a heat map without cells, with the names of its rows and columns."""
    left = text_width(names) + 52
    each = min(max((_WIDTH - left - _SCALE) / len(texts), 40), 120)
    ticks, below = fitting_ticks(texts, each)
    high = 36 if len(names) <= _MOST_WIDE else 24
    plot = round(each * len(texts))
    layout = figure_layout(
        heading,
        width=max(plot + left + _SCALE, _LEAST_WIDTH),
        height=max(high * len(names), 120) + 92 + below + 30,
        margin={"l": left, "r": max(_SCALE, _LEAST_WIDTH - plot - left), "t": 92, "b": below + 30},
        notes=notes,
    )
    figure = go.Figure(layout=layout)
    figure.update_xaxes(ticks)
    figure.update_yaxes(named_places(names))
    return figure


def _add_cells(
    figure: go.Figure,
    table: pl.DataFrame,
    downs: Sequence[Any],
    acrosses: Sequence[Any],
) -> None:
    """Add the cells of a heat map, and ``?`` where a value is unknown."""
    values = {(down, across): value for down, across, value in table.iter_rows()}
    known = [value for value in values.values() if value is not None]
    are_integers = all(isinstance(value, int) for value in known)
    decimals = 0 if are_integers else decimals_of(max(map(abs, known), default=0))
    cells = [[values.get((down, across)) for across in acrosses] for down in downs]
    texts = [
        ["" if value is None else f"{value:,.{decimals}f}".replace("-", MINUS) for value in line]
        for line in cells
    ]
    figure.add_trace(
        go.Heatmap(
            x=list(range(len(acrosses))),
            y=list(range(len(downs))),
            z=cells,
            text=texts,
            texttemplate="%{text}",
            textfont={"size": 12 if len(acrosses) <= _MOST_WIDE else 10},
            hoverinfo="text",
            hovertext=[[text and f"{text} %" for text in line] for line in texts],
            hoverongaps=False,
            colorbar=colour_bar("%"),
            showscale=bool(known),
            xgap=2,
            ygap=2,
            **_cell_colours(known),
        )
    )
    unknown = [
        (x, y)
        for y, down in enumerate(downs)
        for x, across in enumerate(acrosses)
        if values.get((down, across), 0) is None
    ]
    figure.add_trace(
        go.Scatter(
            x=[x for x, _ in unknown],
            y=[y for _, y in unknown],
            text=["?"] * len(unknown),
            mode="text",
            hoverinfo="skip",
            showlegend=False,
        )
    )


def _cell_colours(known: Sequence[float]) -> dict[str, Any]:
    """Return the colours of values: diverging from zero if any is negative."""
    low, high = min(known, default=0), max(known, default=1)
    if low < 0:
        ends = max(-low, high)
        scale = [(place / (len(DIVERGING) - 1), each) for place, each in enumerate(DIVERGING)]
        return {"colorscale": scale, "zmin": -ends, "zmax": ends}
    return {"colorscale": colour_scale(), "zmin": low if low < high else 0, "zmax": high or 1}
