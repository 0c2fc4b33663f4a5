"""SQL over a run's tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import polars as pl

from tracekit.errors import UsageError
from tracekit.model import DERIVED, Trace

_COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)
_READING = re.compile(r"\s*\(*\s*(select|with|show|explain|describe)\b", re.IGNORECASE)
# Functions of the SQL engine that open files; a query is for this run's tables alone. Their names
# may be quoted, and only space and comments come before the parenthesis. Text that looks like such
# a call is refused too: what is a literal or a comment, the engine decides.
_OPENS_FILES = re.compile(r"\b(read|scan)_\w+[\"'`]?\s*(\(|--|/\*)", re.IGNORECASE)


Make = Callable[[], pl.DataFrame]


def query(trace: Trace, sql: str, derived: Mapping[str, Make] | None = None) -> pl.DataFrame:
    """Run one reading SQL statement over the canonical tables.

    Parameters
    ----------
    trace
        The run; its tables are ``ops``, ``calls``, ``ranges`` and so on.
    sql
        A SELECT (or WITH, SHOW TABLES, EXPLAIN) in the dialect of polars.
    derived
        What makes the tables that are worked out of these; called for those that `sql` names.

    Raises
    ------
    UsageError
        If the statement does anything else, or is wrong.
    """
    bare = _COMMENT.sub(" ", sql)
    if not _READING.match(bare):
        raise UsageError("a query only reads", "begin it with SELECT or WITH")
    if _OPENS_FILES.search(sql):
        raise UsageError(
            "a query reads the tables of its run and no files", "SHOW TABLES lists them"
        )
    frames = dict(trace.tables)
    for name, make in (derived or {}).items():
        named = re.search(rf"\b{name}\b", sql, re.IGNORECASE)
        frames[name] = (make() if named else DERIVED[name].empty()).lazy()
    try:
        with pl.SQLContext(frames=frames) as context:
            return context.execute(sql).collect()
    except pl.exceptions.PolarsError as error:
        # What follows the first paragraph is the engine's plan, which names files of the store.
        reason = str(error).strip().split("\n\n")[0]
        raise UsageError(
            f"the query failed ({reason})", f"the tables are {', '.join(frames)}"
        ) from error
