"""Edges of the dependency graph: their kinds and columns."""

from __future__ import annotations

import polars as pl

from tracekit.analysis.dependencies._moments import MOMENT

KINDS = (
    "host", "call", "handover", "loader", "wait", "pace", "launch", "queue", "stream", "event",
    "order", "work", "transfer", "return", "block",
)  # fmt: skip
"""Why one moment comes no earlier than another: see ``docs/critical-path.md``."""
KIND = pl.Enum(KINDS)
HOLDS_NOTHING = -1
"""The length of an edge that holds nothing back."""
FITTED = ("launch", "queue", "stream", "event", "order", "return", "block")
"""Kinds whose length is not recorded: it is that of most edges of the kind."""
EDGES = pl.Schema(
    {"source": MOMENT, "target": MOMENT, "kind": KIND, "weight": pl.Int64()}
)  # fmt: skip


def edges(
    rows: pl.DataFrame, source: str, target: str, kind: str, weight: str | None = None
) -> pl.DataFrame:
    """Return edges of a kind.

    Parameters
    ----------
    rows
        A row per edge.
    source, target
        Columns of the moments that it leads from and to.
    kind
        One of `KINDS`.
    weight
        Column of its length; None where that is to be found.
    """
    length = pl.lit(None, pl.Int64) if weight is None else pl.col(weight)
    return rows.select(
        source=source, target=target, kind=pl.lit(kind, KIND), weight=length
    ).cast(EDGES)  # fmt: skip
