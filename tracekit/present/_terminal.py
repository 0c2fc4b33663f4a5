"""A frame on a terminal, as a table or as records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import polars as pl

from tracekit.present._columns import (
    ShownColumn,
    shown,
    shown_with_totals,
    time_unit,
    unknown_note,
    with_parts,
    with_totals,
    with_values,
)
from tracekit.present._layout import GAP, Placed, place, total_width
from tracekit.present._notes import brief, headed, notes
from tracekit.present._palette import ACCENT, SIXTEEN, colour_of
from tracekit.support.wording import NULL, cells, printable, wrap

Span = tuple[str, str | None]
"""Part of a line, and its style in rich's words, or None."""

_MARGIN = " "
_MARK = "■ "
_GAP = " " * GAP
_EIGHTHS = " ▏▎▍▌▋▊▉"
_PIPED = 200
"""Largest width of a table that is not on a terminal, in characters."""
_LONGEST_BAR = 24
_SHORTEST_BAR = 6


def terminal(
    frame: pl.DataFrame,
    meta: Mapping[str, Any],
    title: str = "",
    *,
    width: int | None = None,
    colours: str | None = None,
    empty: str = "no rows",
    is_whole: bool = True,
    verbose: bool = True,
) -> str:
    """Return `frame` as the text of a table with its notes.

    Parameters
    ----------
    frame
        Rows of an answer.
    meta
        Meta of the answer; becomes the lines below the table.
    title
        Line above the table.
    width
        Width of the terminal in characters. None if the output is no terminal: then only tables
        wider than 200 columns are fitted, and there are no bars.
    colours
        Colour system of the terminal as rich names it (`standard`, `256`, `truecolor`), or None.
        Stages and verdicts get a coloured mark if `width` or `colours` is given.
    empty
        Text for no rows.
    is_whole
        Whether all rows are there, so that totals may be added.
    verbose
        Whether the notes also explain how the values were found.
    """
    above = headed(printable(title), meta, time_unit(frame))
    lines: list[list[Span]] = [[(part, "bold")] for line in above for part in _wrapped(line, width)]
    lines += [[]] if above else []
    hidden: list[str] = []
    unknown: list[str] = []
    if frame.is_empty():
        lines.append([(empty, None)])
    else:
        body, hidden, unknown = _table(
            frame, meta, width, has_marks=bool(width or colours), is_whole=is_whole
        )
        lines += body
    below_table, has_more = (notes(meta), False) if verbose else brief(meta)
    below = [*below_table, *_explained(frame)]
    below += unknown_note(unknown)
    if hidden:
        below.append(f"left out to fit {width or _PIPED} columns: {printable(', '.join(hidden))}")
    if has_more:
        below.append("-v shows how this was found")
    return _paint([*lines, *_noted(below, width)], colours)


def records(
    frame: pl.DataFrame,
    meta: Mapping[str, Any],
    *,
    width: int | None = None,
    colours: str | None = None,
    empty: str = "no rows",
) -> str:
    """Return each row of `frame` as a block of lines, headed by its first column.

    Columns without a value in any row are named once, below. Parameters are as for `terminal`.
    """
    known, unknown = with_values(shown(frame))
    frame = frame.select(each.name for each in known)
    below = [*notes(meta), *unknown_note(unknown)]
    lines: list[list[Span]] = [
        [(part, "bold")] for line in headed("", meta, None) for part in _wrapped(line, width)
    ]
    lines += [[(empty, None)]] if frame.is_empty() and empty else []
    for row in frame.iter_slices(1):
        lines += [*([[]] if lines else []), *_record(row, width)]
    return _paint([*lines, *_noted(below, width)], colours)


def _record(row: pl.DataFrame, width: int | None) -> Iterator[list[Span]]:
    head, *fields = shown(row)
    yield [(head.texts[0], "bold")]
    indent = max((cells(field.label) for field in fields), default=0) + 2 + GAP
    for field in fields:
        label = f"  {field.label}".ljust(indent)
        room = max((width or _PIPED) - indent - len(_MARGIN), 8)
        for part in _field_lines(row[field.name], field, room):
            yield [(label, "dim"), (part, None)]
            label = " " * indent


def _field_lines(values: pl.Series, field: ShownColumn, width: int | None) -> list[str]:
    texts = field.texts
    if isinstance(values.dtype, pl.List):
        texts = shown(values.explode(empty_as_null=True).to_frame())[0].texts
    elif field.unit is not None and texts[0] != NULL:
        texts = [f"{texts[0]} {field.unit}"]
    return [part for text in texts for part in _wrapped(text, width)]


def _table(
    frame: pl.DataFrame,
    meta: Mapping[str, Any],
    width: int | None,
    *,
    has_marks: bool,
    is_whole: bool,
) -> tuple[list[list[Span]], list[str], list[str]]:
    """Return the lines of a table, columns that did not fit, and columns without values."""
    frame = with_parts(frame, meta)
    columns, unknown = with_values(shown_with_totals(frame, meta, is_whole=is_whole))
    if has_marks:
        columns = [_marked(column) for column in columns]
    room = (width or _PIPED) - 2 * len(_MARGIN)
    placed, hidden = place(columns, room)
    used = total_width(placed)
    # Of the closing rows only the first, idle time, has a bar: the other is the whole.
    bars = _bars(
        (with_totals(frame, meta) if is_whole else frame).head(frame.height + 1),
        0 if width is None else room - used - GAP,
    )
    lines = [*_header(placed), _rule(used)]
    for row, blocks in enumerate(zip(*(p.blocks for p in placed), strict=True)):
        if row == frame.height:
            lines.append(_rule(used))
        lines += _row(placed, blocks, bars[row] if row < len(bars) else None)
    return lines, hidden, unknown


def _marked(column: ShownColumn) -> ShownColumn:
    if not any(colour_of(column.name, text) for text in column.texts):
        return column
    return replace(
        column,
        texts=[
            (_MARK if colour_of(column.name, text) else " " * len(_MARK)) + text
            for text in column.texts
        ],
    )


def _rule(width: int) -> list[Span]:
    return [("─" * width, "dim")]


def _header(placed: Sequence[Placed]) -> list[list[Span]]:
    lines = zip_longest(*(p.header for p in placed), fillvalue="")
    return [
        [(_GAP.join(p.pad(part) for p, part in zip(placed, line, strict=True)), "bold")]
        for line in lines
    ]


def _row(
    placed: Sequence[Placed], blocks: Sequence[Sequence[str]], bar: Span | None
) -> Iterator[list[Span]]:
    for index in range(max(map(len, blocks))):
        texts = [
            block[index] if index < len(block) else p.pad("")
            for p, block in zip(placed, blocks, strict=True)
        ]
        spans = _cells(placed, texts)
        if bar is not None and index == 0:
            spans.append(bar)
        yield spans


def _cells(placed: Sequence[Placed], texts: Sequence[str]) -> list[Span]:
    plain = "".join(text + _GAP for text in texts)
    if _MARK not in plain:
        return [(plain, None)]
    return [
        span
        for p, text in zip(placed, texts, strict=True)
        for span in (*_cell(p, text), (_GAP, None))
    ]


def _cell(placed: Placed, text: str) -> list[Span]:
    if text.startswith(_MARK):
        value = text.removeprefix(_MARK)
        return [(_MARK, colour_of(placed.column.name, value.rstrip())), (value, None)]
    return [(text, None)]


def _bars(frame: pl.DataFrame, room: int) -> list[Span]:
    """Return one bar per row, as long as its share of `room` cells; empty if bars do not fit."""
    if "share" not in frame.columns or room < _SHORTEST_BAR:
        return []
    bars = [_bar((share or 0.0) * min(room, _LONGEST_BAR)) for share in frame["share"].to_list()]
    key = next((name for name in ("stage", "kind") if name in frame.columns), None)
    colours = [ACCENT] * len(bars)
    if key is not None:
        colours = [colour_of(key, str(value)) or ACCENT for value in frame[key].to_list()]
    return list(zip(bars, colours, strict=True))


def _bar(length: float) -> str:
    full, eighths = divmod(round(length * 8), 8)
    return "█" * full + _EIGHTHS[eighths].strip()


def _noted(lines: Sequence[str], width: int | None) -> list[list[Span]]:
    """Return the notes below a table, with an empty line before them."""
    noted: list[list[Span]] = [[]] if lines else []
    return noted + [[(part, "dim")] for line in lines for part in _wrapped(line, width)]


def _explained(frame: pl.DataFrame) -> list[str]:
    """Return a note on the meaning of `ME`, if that abbreviation is in the table; else nothing."""
    if "stage" not in frame.columns or "ME" not in frame["stage"].cast(str).to_list():
        return []
    return ["ME: metric evaluation, such as validation"]


def _wrapped(text: str, width: int | None) -> list[str]:
    return wrap(text, (width or _PIPED) - 2 * len(_MARGIN))


def _paint(lines: Sequence[Sequence[Span]], colours: str | None) -> str:
    """Join lines, each behind a margin and without trailing spaces."""
    return "".join(_painted(line, colours) + "\n" for line in lines)


def _painted(line: Sequence[Span], colours: str | None) -> str:
    plain = "".join(text for text, _ in line).rstrip()
    if not plain:
        return ""
    if colours is None:
        return _MARGIN + plain
    left = len(plain)
    parts = [_MARGIN]
    for text, style in line:
        parts.append(_styled(text[:left], style, colours))
        left = max(0, left - len(text))
    return "".join(parts)


def _styled(text: str, style: str | None, colours: str) -> str:
    from rich.console import COLOR_SYSTEMS
    from rich.style import Style

    if not style or not text:
        return text
    if colours == "standard":
        style = SIXTEEN.get(style, style)
    return Style.parse(style).render(text, color_system=COLOR_SYSTEMS[colours])
