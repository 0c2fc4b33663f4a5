"""Layout of a table: column widths that fit a terminal.

If a table is too wide, in this order: labels break at underscores and units move below them,
columns whose values other columns imply are left out (and named), long texts are shortened or
wrapped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from tracekit.model import traits
from tracekit.present._columns import ShownColumn
from tracekit.support.wording import NULL, cells, pad, pad_each, shorten_apart, widths, wrap

GAP = 2
"""Number of spaces between columns."""

_LEAST_PROSE = 18
_LEAST_NAME = 30
_LEAST_LABEL = 12
_PARTNERS = (
    ("low", "high"), ("p5", "p95"), ("a_count", "b_count"), ("a_outside", "b_outside"),
)  # fmt: skip
"""Columns that are left out together: half an interval, or one side of a count, means little."""


@dataclass(frozen=True)
class Placed:
    """A table column with its chosen width on the terminal."""

    column: ShownColumn
    """The column."""
    width: int
    """Width in terminal cells."""
    header: tuple[str, ...]
    """Its header, one text per line."""

    @cached_property
    def blocks(self) -> list[list[str]]:
        """Lines of each cell, padded to the width of the column."""
        texts = self.column.texts
        if self._wraps:
            return [[self.pad(part) for part in wrap(text, self.width)] for text in texts]
        short = shorten_apart(texts, self.width)
        return [[text] for text in pad_each(short, self.width, right=self.column.numeric)]

    @property
    def _wraps(self) -> bool:
        special = traits(self.column.name)
        return special.prose or special.wraps

    def pad(self, text: str) -> str:
        """Fill `text` to the width of the column."""
        return pad(text, self.width, right=self.column.numeric)

    @property
    def least(self) -> int:
        """Least width of the column: numbers need their full width, long texts can be cut."""
        least = _LEAST_PROSE if self._wraps else _LEAST_NAME
        return self.width if self.column.numeric else min(self.width, least)


def place(columns: Sequence[ShownColumn], width: int | None) -> tuple[list[Placed], list[str]]:
    """Choose the widths of columns side by side, and leave out columns that do not fit.

    Parameters
    ----------
    columns
        The columns, in order.
    width
        Available width; None for no limit.

    Returns
    -------
    tuple
        The placed columns, and the names of those left out.
    """
    natural_widths = [natural(column) for column in columns]
    if width is None or total_width(natural_widths) <= width:
        return natural_widths, []
    stacked = [_stacked(column) for column in _merged(columns)]
    stacked, hidden = without_spare(
        stacked, lambda placed: sum(p.least for p in placed) + GAP * (len(placed) - 1) > width
    )
    return _squeeze(stacked, width), hidden


def without_spare(
    placed: list[Placed], is_too_wide: Callable[[Sequence[Placed]], bool]
) -> tuple[list[Placed], list[str]]:
    """Drop the least important columns until the table fits; return the rest, and dropped names."""
    hidden: list[str] = []
    while len(placed) > 1 and is_too_wide(placed):
        spare = _most_spare(placed).column.name
        left_out = {spare} | {
            spare.replace(one, other)
            for pair in _PARTNERS for one, other in (pair, pair[::-1])
        }  # fmt: skip
        hidden += [p.column.name for p in placed if p.column.name in left_out]
        placed = [p for p in placed if p.column.name not in left_out]
    return placed, hidden


def natural(column: ShownColumn) -> Placed:
    """Return a column at the width that its longest text needs."""
    return Placed(column, _width(column, (column.header,)), (column.header,))


def _merged(columns: Sequence[ShownColumn]) -> list[ShownColumn]:
    """Merge all columns of prose (sentences) into one, their texts one below the other."""
    prose = [column for column in columns if traits(column.name).prose]
    if len(prose) < 2:  # noqa: PLR2004 - a column alone has nothing to merge with
        return list(columns)
    first, *others = prose
    texts = [
        "\n".join((row[0], *(f"→ {text}" for text in row[1:] if text != NULL)))
        for row in zip(*(column.texts for column in prose), strict=True)
    ]
    label = " → ".join(column.label for column in prose)
    merged = replace(first, label=label, texts=texts)
    return [merged if column is first else column for column in columns if column not in others]


def total_width(placed: Sequence[Placed]) -> int:
    """Return the total width of columns side by side, gaps included."""
    return sum(p.width for p in placed) + GAP * (len(placed) - 1)


def _stacked(column: ShownColumn) -> Placed:
    width = max(_LEAST_LABEL, *widths(column.texts))
    lines = [""]
    for part in re.findall("[^_]*_?", column.label):
        if lines[-1] and cells(lines[-1] + part) > width:
            lines.append(part)
        else:
            lines[-1] += part
    header = (*lines, *(() if column.unit is None else (f"({column.unit})",)))
    return Placed(column, _width(column, header), header)


def _width(column: ShownColumn, header: Sequence[str]) -> int:
    return max(widths("\n".join((*header, *column.texts)).split("\n")))


def _most_spare(placed: Sequence[Placed]) -> Placed:
    """Return the column to leave out next: one whose values other columns imply, else the last.

    An essential column is left out only if nothing else is left but the first column.
    """
    names = {p.column.name for p in placed}
    spare = sorted(
        (place, number) for number, p in enumerate(placed)
        if (place := _spare(p.column.name, names)) is not None
    )  # fmt: skip
    if spare:
        return placed[spare[0][1]]
    dispensable = (p for p in reversed(placed[1:]) if not traits(p.column.name).essential)
    return next(dispensable, placed[-1])


def _spare(name: str, others: Collection[str]) -> int | None:
    """Return a column's rank (lowest is dropped first); None if no other column implies it."""
    special = traits(name)
    is_said = not special.needs or not special.needs.isdisjoint(others)
    return special.spare if is_said else None


def _squeeze(placed: Sequence[Placed], width: int) -> list[Placed]:
    """Give short columns their full width, and divide the remaining width among long columns."""
    long = sorted((p for p in placed if p.least < p.width), key=lambda p: p.width)
    left = width - total_width(placed) + sum(p.width for p in long)
    widths: dict[str, int] = {}
    for index, p in enumerate(long):
        widths[p.column.name] = max(1, min(p.width, left // (len(long) - index)))
        left -= widths[p.column.name]
    return [Placed(p.column, widths.get(p.column.name, p.width), p.header) for p in placed]
