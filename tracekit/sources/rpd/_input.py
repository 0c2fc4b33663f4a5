"""Shared texts of the tables of an RPD."""

from __future__ import annotations

import polars as pl

from tracekit.sources.sqlite import SqliteFile

STRINGS, OP = "rocpd_string", "rocpd_op"


class Strings:
    """The texts that other tables refer to by number."""

    def __init__(self, file: SqliteFile) -> None:
        texts = file.read(STRINGS, {"id": "int", "string": "text"})
        self._texts = texts.unique("id", keep="first", maintain_order=True)

    def of(self, ids: pl.Series) -> pl.Series:
        """Return the text of each id, null where there is none."""
        wanted = ids.alias("id").to_frame()
        return wanted.join(self._texts, on="id", how="left", maintain_order="left")["string"]

    def like(self, pattern: str) -> pl.Series:
        """Return the ids of the texts that a pattern matches."""
        return self._texts.filter(pl.col("string").str.contains(pattern))["id"].drop_nulls()
