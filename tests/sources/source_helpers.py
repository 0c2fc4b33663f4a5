"""Words for short tests of the sources: literal rows in, literal rows out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nsys_builder import NsysBuilder, load_schema, schema_versions
from nvprof_builder import NvprofBuilder
from quick_sqlite import writing

from tracekit.model import Trace
from tracekit.sources import read


def versions_with(table: str, column: str | None = None) -> list[str]:
    """Schema versions that have a table, and a column in it."""
    return [
        version
        for version in sorted(schema_versions())
        if table in (tables := load_schema(version).tables)
        and (column is None or column in {each.split()[0] for each in tables[table]})
    ]


def trace_of(built: NsysBuilder | NvprofBuilder) -> Trace:
    """Finish an export, or a database, and read it."""
    built.close()
    return read(built.path)


def remarks(trace: Trace) -> tuple[str, ...]:
    """Warnings about what an export holds; a short test leaves whole kinds of data out."""
    absent = ("no GPU work was", "no kernels were", "no API calls were", "no NVTX ranges were")
    return tuple(text for text in trace.warnings if not text.startswith(absent))


def rows(trace: Trace, table: str, *columns: str) -> list[tuple[Any, ...]]:
    """Rows of a canonical table, in its order."""
    return trace.read(table).select(columns).rows()


def column(trace: Trace, table: str, name: str) -> list[Any]:
    """One column of a canonical table."""
    return trace.read(table)[name].to_list()


def execute(path: Path, *statements: str, many: list[tuple[Any, ...]] | None = None) -> None:
    """Change a file behind the builder's back; the last statement takes the rows of `many`."""
    with writing(path) as file:
        for statement in statements[: -1 if many is not None else None]:
            file.execute(statement)
        if many is not None:
            file.executemany(statements[-1], many)
        file.commit()
