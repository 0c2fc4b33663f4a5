"""Read the columns that tracekit needs of an export, and do nothing with them.

    python benchmarks/read_columns.py EXPORT.sqlite [--library-alone]

Columns and tables are those of `sql_max`, which is what this is held against; as in an ingest, the
large tables are read at the same time, and in batches that are let go of.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from sql_max import COLUMNS

from tracekit.sources.sqlite import SqliteFile
from tracekit.sources.sqlite import _leaf_spans as _spans

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import polars as pl

    from tracekit.sources.sqlite import SqlType

_KIND = "CUPTI_ACTIVITY_KIND_"
_FIRST = ("StringIds",)
_AT_ONCE = (
    (f"{_KIND}KERNEL", f"{_KIND}MEMCPY", f"{_KIND}MEMSET"),
    (f"{_KIND}RUNTIME",),
    ("NVTX_EVENTS",),
)
_TYPES: dict[str, SqlType] = {
    **dict.fromkeys(("doubleValue", "floatValue"), "real"),
    **dict.fromkeys(("text", "jsonText", "value"), "text"),
}
"""Types of columns; all others are whole numbers."""


def read(path: Path) -> int:
    """Read all `COLUMNS` of the export and return how many rows there are."""
    file = SqliteFile(path)

    def rows(tables: Sequence[str]) -> int:
        return sum(batch.height for table in tables for batch in _batches(file, table))

    with ThreadPoolExecutor(len(_AT_ONCE)) as threads:
        return rows(_FIRST) + sum(threads.map(rows, _AT_ONCE))


def _batches(file: SqliteFile, table: str) -> Iterator[pl.DataFrame]:
    columns = {name: _TYPES.get(name, "int") for name in COLUMNS[table].split()}
    return file.batches(table, columns)


def leave_pages_alone() -> None:
    """Have every table read by SQLite, as one is whose layout is not understood."""
    if "record" not in vars(_spans):
        raise TypeError("tracekit.sources.sqlite does not ask for the layout of tables any more")
    setattr(_spans, "record", lambda *_, **__: None)  # noqa: B010 - a name of another package


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("export", type=Path)
    parser.add_argument("--library-alone", action="store_true", help="decode no pages")
    asked = parser.parse_args()
    if asked.library_alone:
        leave_pages_alone()
    print(f"{read(asked.export):,} rows")
