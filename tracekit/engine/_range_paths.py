"""Paths of ranges in tables: numbers as long as rows are grouped and joined, then texts."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from tracekit.engine._outside import outside_text
from tracekit.model import PATH_TEXTS, Trace, path_texts

_TEXT = "range_text"


def range_paths(trace: Trace) -> pl.DataFrame:
    """Return the derived table ``path_texts``: the text of each path of ranges."""
    paths = trace.read("paths")
    return PATH_TEXTS.conform(paths.select("path", text=path_texts(paths, paths["path"])))


def with_path_texts(trace: Trace, table: pl.DataFrame) -> pl.DataFrame:
    """Put the texts of paths beside their numbers, if a table has any; see `shown`."""
    if "range" not in table.columns:
        return table
    known = table.select(pl.when(pl.col("range") >= 0).then("range")).to_series()
    texts = path_texts(trace.read("paths"), known)
    return table.with_columns(pl.coalesce(texts, outside_text(pl.col("range"))).alias(_TEXT))


def sorting(columns: Sequence[str]) -> list[str]:
    """Return by what rows are sorted that are to be sorted by some columns: by texts of paths."""
    return [_TEXT if name == "range" else name for name in columns]


def shown(table: pl.DataFrame) -> pl.DataFrame:
    """Return a table with the texts of paths, if it has any, in place of their numbers."""
    if _TEXT not in table.columns:
        return table
    return table.with_columns(range=pl.col(_TEXT)).drop(_TEXT)
