"""Words for what has no name, in the rows that people read; data formats keep null."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

OUTSIDE_STEPS = "(no step)"
"""What lies in no iteration."""


def with_words(rows: pl.DataFrame, words: Mapping[str, str]) -> pl.DataFrame:
    """Return rows with a word where a column is null.

    Parameters
    ----------
    rows
        Any rows.
    words
        The word of each column; columns that the rows lack, or that have no nulls, do not matter.
    """
    nameless = [name for name in words if name in rows.columns and rows[name].has_nulls()]
    return rows.with_columns(
        pl.col(name).cast(pl.String).fill_null(words[name]) for name in nameless
    )
