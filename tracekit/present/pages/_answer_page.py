"""HTML pages of an answer, and of the view, whose script requests its data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import polars as pl
from markupsafe import Markup

from tracekit.model import STAGES, Answer, readable_names
from tracekit.present._columns import ShownColumn, shown_with_totals, unknown_note, with_values
from tracekit.present._layout import Placed, natural, without_spare
from tracekit.present._notes import notes, with_headline
from tracekit.present._palette import STAGE_COLOURS
from tracekit.present.pages._figure import figure_block
from tracekit.present.pages._fragments import fragment, joined
from tracekit.present.pages._shell import PageSection, page_of
from tracekit.support.wording import count

_MARKED = frozenset({*STAGE_COLOURS, "idle", "between_steps"})
_KERNELS = ("name", "before", "after")
_MOST = 400
_WIDE = 950
"""Width of a table, in pixels, on a screen of 1,280 pixels."""
_LETTER, _GAP, _LONG_WIDE = 8, 19, 240
"""Widths in pixels: of a letter, between columns, and of a column of long texts (``td.long`` of
page.css)."""
_FEW = 3
_LONG = 24
_SHOWN = {"step"}
"""Names of closing rows."""


class Cell(NamedTuple):
    """Text of a cell, its value for sorting and copying, and its full text if shortened."""

    text: str
    raw: str | None
    numeric: bool
    mark: str | None = None
    full: str | None = None

    @property
    def is_long(self) -> bool:
        """True if the text may be broken anywhere: it is long, and may have no spaces."""
        return len(self.text) > _LONG


class Table(NamedTuple):
    """A table as arguments of the template ``assets/blocks.jinja``."""

    key: str
    title: str
    columns: Sequence[ShownColumn]
    rows: Sequence[Sequence[Cell]]
    closing: Sequence[Sequence[Cell]]
    notes: Sequence[str]
    is_open: bool


def answer_table(
    answer: Answer,
    key: str,
    title: str,
    *,
    rows: pl.DataFrame | None = None,
    is_open: bool = False,
) -> Markup:
    """Return the rows of an answer, or `rows` in their place, as a table with notes."""
    shown = answer.readable_rows if rows is None else rows
    facts = {name: value for name, value in answer.meta.items() if name != "warnings"}
    left_out = answer.readable_rows.height - shown.height
    return frame_table(shown, key, title, meta=facts, left_out=left_out, is_open=is_open)


def frame_table(
    frame: pl.DataFrame,
    key: str,
    title: str,
    *,
    meta: Mapping[str, Any] | None = None,
    left_out: int = 0,
    is_open: bool = False,
) -> Markup:
    """Return rows as an HTML table.

    Parameters
    ----------
    frame
        The rows; the first 400 are shown.
    key
        Id of the table in the page.
    title
        Title of the table.
    meta
        Meta of the answer; becomes the lines below the table. None for no notes.
    left_out
        Number of further rows that are not in `frame`.
    is_open
        Whether the table is unfolded at first.
    """
    head = frame.head(_MOST)
    facts = dict(meta or {})
    known, unknown = with_values(shown_with_totals(head, facts))
    columns, equal = _each_once(_in_sight(known))
    cells = [_cells(column, head) for column in columns]
    rows = list(zip(*cells, strict=True))
    below = notes({name: value for name, value in facts.items() if name not in _SHOWN})
    below += [f"{name}: the same as {other}" for name, other in equal.items()]
    below += unknown_note(unknown)
    left_out += frame.height - head.height
    if left_out:
        below.insert(0, f"{count(left_out, 'more row')} not shown")
    return fragment(
        "table",
        Table(key, title, columns, rows[: head.height], rows[head.height :], below, is_open),
    )


def _in_sight(columns: Sequence[ShownColumn]) -> list[ShownColumn]:
    """Move the least informative columns to the right if the table is too wide for a page."""
    placed = [natural(column) for column in columns]
    _, hidden = without_spare(placed, lambda some: sum(map(_pixels, some)) > _WIDE)
    return sorted(columns, key=lambda column: column.name in hidden)


def _pixels(placed: Placed) -> int:
    """Return the approximate width of a column in a page, in pixels."""
    wide = _LETTER * placed.width
    is_long = not placed.column.numeric and placed.width > _LONG
    return _GAP + (_LONG_WIDE if is_long else wide)


def _each_once(columns: Sequence[ShownColumn]) -> tuple[list[ShownColumn], dict[str, str]]:
    """Drop numeric columns equal to an earlier one; return the rest, and dropped -> earlier one."""
    first: dict[tuple[str, ...], str] = {}
    equal: dict[str, str] = {}
    for column in columns:
        texts = (str(column.unit), *column.texts)
        if column.numeric and len(texts) > _FEW and len({*texts[1:]}) > 1:
            other = first.setdefault(texts, column.name)
            equal |= {column.name: other} if other != column.name else {}
    return [column for column in columns if column.name not in equal], equal


def _cells(column: ShownColumn, frame: pl.DataFrame) -> list[Cell]:
    raw = [_raw(value) for value in frame[column.name].to_list()]
    raw += [None] * (len(column.texts) - len(raw))
    if column.name in _KERNELS:
        short = readable_names(column.texts)
        return [
            Cell(short[text], None, numeric=False, full=None if short[text] == text else text)
            for text in column.texts
        ]
    return [
        Cell(text, value if column.numeric else None, column.numeric, _mark(column, text))
        for text, value in zip(column.texts, raw, strict=True)
    ]


def _raw(value: Any) -> str | None:
    if isinstance(value, float) and value.is_integer():
        return f"{value:.0f}"
    return None if value is None else str(value)


def _mark(column: ShownColumn, text: str) -> str | None:
    return text if column.name in {"stage", "part"} and text in _MARKED else None


_SAID = ("question", "headline")
"""Keys of meta that are shown above the table."""


def answer_page(answer: Answer) -> str:
    """Return an answer as an HTML page."""
    parts = answer.parts or {"answer": answer}
    sections = [
        PageSection(name, str(part.meta.get("question") or part.title), "", body)
        for name, part in parts.items()
        for body in [_body(name, part, part.title if answer.parts else "")]
    ]
    return page_of(
        answer.title or f"tracekit {answer.command}",
        str(answer.meta["of_runs"]) if answer.parts else "",
        sections,
        what="answer",
        has_contents=bool(answer.parts),
    )


def _body(name: str, part: Answer, caption: str) -> Markup:
    headline = with_headline(part).get("headline")
    drawings = part.figures if part.rows.height else ()
    return joined(
        fragment("paragraphs", [str(headline)], "lead") if headline else None,
        *(figure_block(part.figure(each), f"{name}-{each}") for each in drawings),
        _table(name, part, caption),
        *(
            frame_table(part.tables[each], each, each.capitalize(), is_open=True)
            for each in part.listed
        ),
    )


def _table(name: str, part: Answer, caption: str) -> Markup | None:
    """Return the rows as a table; without rows a sentence, unless there is a headline."""
    if part.readable_rows.is_empty():
        line = part.meta.get("headline")
        return (
            None
            if line or not part.readable_rows.width
            else fragment("paragraphs", [part.empty], "")
        )
    meta = {key: value for key, value in part.meta.items() if key not in _SAID}
    return frame_table(part.readable_rows, name, caption or "Rows", meta=meta, is_open=True)


_LEGEND = {
    **{stage: stage for stage in STAGES},
    "WU hid": "hatched: collectives and copies between GPUs",
    "idle": "ranges of no stage",
}
_CHART = {
    "label": "Ops of the run by GPU and stream",
    "views": (),
    "legend": [{"look": look, "text": text} for look, text in _LEGEND.items()],
}


def view_page(version: str) -> str:
    """Return the HTML page of the interactive view, without data, which its script requests.

    Parameters
    ----------
    version
        Version of the server.
    """
    section = PageSection("run", "", "", fragment("run_chart", _CHART))
    return page_of(
        "View", "", [section], what="view", version=version, has_contents=False, asks=True
    )
