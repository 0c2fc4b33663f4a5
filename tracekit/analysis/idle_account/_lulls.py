"""When nothing runs inside windows."""

from __future__ import annotations

import numpy as np
import polars as pl

from tracekit.analysis.idle_account._lull_loops import OUT_OF_ORDER, Lulls, find_lulls
from tracekit.engine import Lines, cut
from tracekit.support.batches import in_batches
from tracekit.support.compiled import compiled, given

_OWNER = ["process", "device"]
_WHEN = [*_OWNER, "start", "end"]
_NEVER = -(1 << 62)


def lulls(ops: pl.LazyFrame, windows: pl.DataFrame) -> pl.DataFrame:
    """Return when nothing runs in some windows; ops are read some at a time.

    Parameters
    ----------
    ops
        ``process, device, start, end``.
    windows
        The same columns; windows of one process on a device do not overlap.

    Returns
    -------
    The same columns: what between ops, and between these and the windows' ends, lies in a window.
    """
    spans = windows.filter(pl.col("end") > pl.col("start")).select(_WHEN)
    found = _between(ops, spans)
    if found is None:  # several reports saw one device, and each has its ops by start
        found = _between(ops.sort("start"), spans)
    if found is None:
        raise AssertionError("ops that were sorted come by start")
    return found if found.is_empty() else cut(found, spans).select(_WHEN)


def _between(ops: pl.LazyFrame, spans: pl.DataFrame) -> pl.DataFrame | None:
    """Return when nothing runs from the first window of a line to its last one; None if unknown."""
    edges = spans.group_by(_OWNER).agg(pl.col("start").min(), pl.col("end").max())
    lines = Lines(_OWNER, edges)
    reached, until = edges["start"].to_numpy().copy(), edges["end"].to_numpy()
    latest = np.full(reached.size, _NEVER)
    found: list[Lulls] = []
    for batch in in_batches(ops.select(_WHEN)):
        room = Lulls(
            np.empty(batch.height, np.int32), *(np.empty(batch.height, np.int64) for _ in range(2))
        )
        number = compiled(find_lulls, batch.height)(
            lines.of(batch), given(batch["start"]), given(batch["end"]), reached, latest, room
        )
        if number == OUT_OF_ORDER:
            return None
        found.append(Lulls(*(values[:number].copy() for values in room)))
    last = np.flatnonzero(reached < until)
    found.append(Lulls(last.astype(np.int32), reached[last], until[last]))
    line, begins, ends = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return edges.select(_OWNER)[line].with_columns(
        start=pl.Series(begins, dtype=pl.Int64), end=pl.Series(ends, dtype=pl.Int64)
    )
