"""How rows of tables are read: types of columns, and conditions on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SqlType = Literal["int", "narrow", "real", "text", "blob"]
"""Type as which a column is read; ``narrow`` columns are integers that may use fewer than 64
bits."""


@dataclass(frozen=True)
class Where:
    """A condition for reading rows: on a text column, or that a value occurs for the first time."""

    column: str
    """Name of an existing column."""
    how: Literal["is", "starts", "ends", "first"]
    """``is``: the column's text is one of `texts`; ``starts``, ``ends``: it starts or ends with one
    of `texts`; ``first``: the row is the first of all rows with the same value."""
    texts: tuple[str, ...] = ()
    """Constants of this program, never text from a file."""
