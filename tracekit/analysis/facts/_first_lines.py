"""Phrases for the sentence that is printed above a table, such as its largest rows by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

import polars as pl

from tracekit.model import NO_KERNELS, WORK_MISSING, readable_names
from tracekit.support.wording import percent, printable, shorten

LEAST = 0.005
"""Smallest share that is worth naming."""
MOST_NAMED = 3
WIDEST = 60
_KEYS = {
    "phase", "stage", "kind", "name", "range", "layer", "device", "stream", "rank", "node",
    "iteration", "cause", "link", "recomputed",
}  # fmt: skip
_CALLED = {"device": "GPU", "stream": "stream", "rank": "rank", "node": "node"}
"""Words before keys that are mere numbers or names: column -> word."""


def largest(rows: pl.DataFrame, by: str, *others: str) -> dict[str, Any] | None:
    """Return the row with the largest value in column `by`; None if there is none.

    Rows with a null in a column of `others` are left out.
    """
    if not {by, *others} <= {*rows.columns}:
        return None
    known = rows.drop_nulls([by, *others]).sort(by, descending=True)
    return None if known.is_empty() else known.row(0, named=True)


def leading_keys(rows: pl.DataFrame) -> list[str]:
    """Return the grouping keys (such as stage) with which the columns of a table begin."""
    columns = [name for name in rows.columns if name != "pid"]  # of a stream's process
    keys = list(takewhile(lambda name: name in _KEYS, columns))
    return [name for name in keys if name != "kind" or "name" not in keys]


def most_by_share(rows: pl.DataFrame, keys: Sequence[str]) -> str:
    """Return a text such as `FP 40%, BP 30%`: the first few rows with a notable ``share``."""
    shown = rows.filter(pl.col("share") >= LEAST).head(MOST_NAMED)
    return ", ".join(
        f"{_named(row, keys)} {percent(row['share'])}" for row in shown.iter_rows(named=True)
    )


def unseen(meta: Mapping[str, Any]) -> str:
    """Return a clause that kernels or other GPU work were not recorded; empty if they were."""
    words = {NO_KERNELS: "no kernels were recorded", WORK_MISSING: "GPU work is missing"}
    warnings = meta.get("warnings", ())
    found = (say for begin, say in words.items() if any(begin in text for text in warnings))
    return "".join(f" ({say})" for say in found)


def _named(row: Mapping[str, Any], keys: Sequence[str]) -> str:
    return " ".join(filter(None, (_text(key, row[key]) for key in keys)))


def _text(key: str, value: object) -> str:
    if key == "recomputed":
        return "recomputed" if value else ""
    if value is None:
        return f"unknown {key}"
    text = printable(str(value))
    if key == "name":
        text = readable_names([text])[text]
    return shorten(f"{_CALLED[key]} {text}" if key in _CALLED else text, WIDEST)
