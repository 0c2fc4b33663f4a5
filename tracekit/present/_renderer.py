"""How an answer looks: as an HTML table in a notebook, and in its drawings."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING, Any

import polars as pl

from tracekit.present._columns import ShownColumn, shown
from tracekit.present._notes import count, notes
from tracekit.present._palette import colour_of
from tracekit.present._text import printable
from tracekit.present._totals import shown_with_totals, with_parts

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from tracekit.model import Answer

_MOST_ROWS = 100
_TABLE = "border-collapse:collapse;font-variant-numeric:tabular-nums"
_CELL = "padding:0.15em 0.8em 0.15em 0;text-align:"
_SQUARE = "display:inline-block;width:0.7em;height:0.7em;margin-right:0.5em;background:"
_RULE = "border-top:1px solid currentColor"


class _Renderer:
    """Implementation of `tracekit.model.Renderer`; drawing code is loaded on first use."""

    def html(self, answer: Answer) -> str:
        """Return the answer as a table with its notes."""
        from tracekit.present._kernel_names import with_readable_names

        return html(with_readable_names(answer.for_people), answer.meta, answer.title)

    def draw(self, answer: Answer, drawing: str) -> go.Figure:
        """Return one of the drawings of the answer."""
        from tracekit.present._drawings import DRAWINGS

        return DRAWINGS[drawing](answer)


RENDERER = _Renderer()
"""The one that answers get where they are looked at."""


def html(frame: pl.DataFrame, meta: Mapping[str, Any], title: str = "") -> str:
    """Return `frame` as an HTML table with its notes, for `_repr_html_`.

    All text is escaped and the markup is self-contained: no scripts, no classes, no links. Of a
    long frame the first hundred rows are shown, and a line says so.

    Parameters
    ----------
    frame
        Rows, as an analysis returned them.
    meta
        What the analysis says about them; becomes the lines below the table.
    title
        Caption of the table.
    """
    frame = with_parts(frame, meta)
    head = frame.head(_MOST_ROWS)
    is_cut = head.height < frame.height
    columns = shown(head) if is_cut else shown_with_totals(head, meta)
    below = notes(meta)
    if is_cut:
        below.insert(0, f"{count(frame.height - head.height, 'more row')} not shown")
    caption = f"<caption><b>{escape(printable(title))}</b></caption>" if title else ""
    rows = [
        _row(columns, row, head.height) for row in range(len(columns[0].texts) if columns else 0)
    ]
    return (
        f'<table style="{_TABLE}">{caption}<thead><tr>{_header(columns)}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
        + "".join(f"<div><small>{escape(note)}</small></div>" for note in below)
    )


def _header(columns: list[ShownColumn]) -> str:
    return "".join(
        f'<th style="{_CELL}{_side(column)}">{escape(column.header)}</th>' for column in columns
    )


def _row(columns: list[ShownColumn], row: int, height: int) -> str:
    rule = f' style="{_RULE}"' if row == height else ""
    return f"<tr{rule}>{''.join(_cell(column, row) for column in columns)}</tr>"


def _cell(column: ShownColumn, row: int) -> str:
    text = column.texts[row]
    colour = colour_of(column.name, text)
    square = f'<span style="{_SQUARE}{colour}"></span>' if colour else ""
    return f'<td style="{_CELL}{_side(column)}">{square}{escape(text)}</td>'


def _side(column: ShownColumn) -> str:
    return "right" if column.numeric else "left"
