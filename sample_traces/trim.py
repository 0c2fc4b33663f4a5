"""Make a small trace, fit to be given away, of an nsys export: python trim.py IN OUT.

A report holds the environment, the command line and the names of all processes of the machine that
it was recorded on. What is written here is built up from what is listed below, and not left over
from taking things away: events of the processes that carry NVTX or MPI, the names that these refer
to, and of the machine and its user nothing.
"""

from __future__ import annotations

import argparse
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

_PROCESS_BITS = ~0xFFFFFF  # signed, as SQLite has it
_EVENTS = ("NVTX_EVENTS", "MPI_%", "CUPTI_ACTIVITY_KIND_%", "OSRT_API", "PROFILER_OVERHEAD",
           "CUDA_GPU_MEMORY_USAGE_EVENTS", "GPU_METRICS")  # fmt: skip
_WHOLE = ("ENUM_NSYS_EVENT_%", "ANALYSIS_DETAILS", "TARGET_INFO_SESSION_START_TIME",
          "TARGET_INFO_GPU", "TARGET_INFO_CUDA_DEVICE", "TARGET_INFO_CUDA_CONTEXT_INFO",
          "TARGET_INFO_GPU_METRICS", "NVTX_PAYLOAD_%")  # fmt: skip
_OF_PROCESSES = ("ThreadNames", "PROCESSES")
_STRINGS = ("textId", "nameId", "jsonTextId", "demangledName", "shortName", "mangledName",
            "metricNameId")  # fmt: skip
"""Columns that refer to StringIds."""
_EXPORT = """name IN ('EXPORT_PRODUCT_NAME', 'EXPORT_PRODUCT_VERSION', 'EXPORT_PARAM_LAZY')
    OR name LIKE 'EXPORT_SCHEMA_VERSION%' OR name LIKE 'EXPORT_PARAM_TIME_%'
    OR name LIKE 'EXPORT_PARAM_INCLUDE_%'"""
_SOME = {
    "META_DATA_EXPORT": _EXPORT,
    "META_DATA_CAPTURE": "name = 'CAPTURE_EVENT_TYPE'",
    "TARGET_INFO_SYSTEM_ENV": "name = 'Hostname'",
}
"""Tables of names and values, with what of them is kept."""
_WITHOUT = {
    ("TARGET_INFO_SYSTEM_ENV", "value"): "'host'",
    ("OSRT_API", "callchainId"): "0",
    ("PROCESSES", "name"): "replace(name, rtrim(name, replace(name, '/', '')), '')",
}
"""What stands in place of a column: no host, no call chains, and of paths the last part."""
_MARKED = ("NVTX_EVENTS", "MPI_%")
"""Tables whose processes are kept."""


def trim(source: Path, target: Path, *, begin: int | None = None, end: int | None = None) -> None:
    """Write what is to be kept of an export.

    Parameters
    ----------
    source
        An SQLite export of nsys.
    target
        The file to write, which does not exist.
    begin, end
        Calls of the OS runtime are kept if they begin in between, ns; others are kept throughout.
    """
    with closing(sqlite3.connect(target.absolute().as_uri(), uri=True)) as out:
        out.execute("ATTACH DATABASE ? AS whole", (f"{source.absolute().as_uri()}?mode=ro",))
        for table in _tables(out, (*_EVENTS, *_WHOLE, *_OF_PROCESSES, "StringIds")):
            out.execute(_statement(out, table))
        out.execute("CREATE TEMP TABLE kept (process INTEGER PRIMARY KEY)")
        for table in _tables(out, _MARKED):
            if "globalTid" not in _columns(out, table):
                continue
            out.execute(f"INSERT OR IGNORE INTO kept SELECT DISTINCT globalTid & {_PROCESS_BITS} "
                        f"FROM whole.{table} WHERE globalTid IS NOT NULL")  # fmt: skip
        for table in _tables(out, (*_EVENTS, *_OF_PROCESSES)):
            _copy(out, table, _of_kept(out, table), (begin, end) if table == "OSRT_API" else None)
        for table in _tables(out, _WHOLE):
            _copy(out, table, "1")
        for table in _tables(out, _SOME):
            out.execute(_statement(out, table))
            _copy(out, table, _SOME[table])
        _copy_strings(out)
        out.commit()
        out.execute("DETACH DATABASE whole")
        out.execute("VACUUM")


def _tables(out: sqlite3.Connection, patterns: Iterable[str]) -> list[str]:
    """Return the tables of the export that match any of some patterns of LIKE."""
    found: list[str] = []
    for pattern in patterns:
        rows = out.execute(
            "SELECT name FROM whole.sqlite_master WHERE type = 'table' AND name LIKE ? ORDER BY 1",
            (pattern,),
        )
        found += [name for (name,) in rows if name not in found]
    return found


def _statement(out: sqlite3.Connection, table: str) -> str:
    query = "SELECT sql FROM whole.sqlite_master WHERE type = 'table' AND name = ?"
    return str(out.execute(query, (table,)).fetchone()[0])


def _columns(out: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in out.execute(f"PRAGMA main.table_info({table})")]


def _of_kept(out: sqlite3.Connection, table: str) -> str:
    """Return the condition that a row is of a process that is kept."""
    columns = _columns(out, table)
    key = next((name for name in ("globalTid", "globalPid") if name in columns), None)
    return "1" if key is None else f"({key} & {_PROCESS_BITS}) IN (SELECT process FROM kept)"


def _copy(
    out: sqlite3.Connection,
    table: str,
    condition: str,
    between: tuple[int | None, int | None] | None = None,
) -> None:
    if between is not None:
        begin, end = between
        condition += f" AND start >= {begin or 0}" + (f" AND start < {end}" if end else "")
    chosen = ", ".join(_WITHOUT.get((table, name), f'"{name}"') for name in _columns(out, table))
    out.execute(f"INSERT INTO main.{table} SELECT {chosen} FROM whole.{table} WHERE {condition}")


def _copy_strings(out: sqlite3.Connection) -> None:
    out.execute("CREATE TEMP TABLE used (id INTEGER PRIMARY KEY)")
    for table in _tables(out, (*_EVENTS, *_OF_PROCESSES, *_WHOLE)):
        for column in set(_columns(out, table)) & set(_STRINGS):
            out.execute(f"INSERT OR IGNORE INTO used SELECT DISTINCT {column} FROM main.{table} "
                        f"WHERE {column} IS NOT NULL")  # fmt: skip
    out.execute(
        "INSERT INTO main.StringIds SELECT id, value FROM whole.StringIds "
        "WHERE id IN (SELECT id FROM used)"
    )


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path, metavar="IN")
    parser.add_argument("target", type=Path, metavar="OUT")
    parser.add_argument("--begin", type=int, help="keep calls of the OS runtime from here on, ns")
    parser.add_argument("--end", type=int, help="and up to here")
    given = parser.parse_args()
    if given.target.exists() and given.target.samefile(given.source):
        parser.error("OUT is IN, which has to be left as it is")
    given.target.unlink(missing_ok=True)
    trim(given.source, given.target, begin=given.begin, end=given.end)


if __name__ == "__main__":
    main()
