"""Hands the ops of a run to what adds them up: only the columns asked for, and in segments."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import polars as pl

from tracekit.analysis._segments import feed
from tracekit.analysis._windows import Cutter, chosen_windows, cut, iteration_windows
from tracekit.errors import MissingDataError

if TYPE_CHECKING:
    from tracekit.analysis._tallies import Tally
    from tracekit.model import Trace

_OF_WINDOWS = {"launch_start", "stage", "iteration"}
"""Columns of ops that windows take beside their owners and times."""
_BATCH = 1_000_000
"""Ops that are read at once: enough that a batch takes long beside handing it over."""
_AT_ONCE = 2
"""Threads that add up."""
_FEW = 10_000
"""Ops that are added up before a thread has begun."""


def hand_out(
    trace: Trace,
    tallies: Sequence[Tally],
    *,
    skip: int,
    per_iteration: bool,
    cutter: Cutter = iteration_windows,
) -> pl.DataFrame:
    """Give all ops inside the windows to `tallies`.

    Parameters
    ----------
    trace
        The run.
    tallies
        What adds them up.
    skip, per_iteration, cutter
        As for `chosen_windows`; with neither, each device is a window.

    Returns
    -------
    The windows: ``window, device, iteration, start, end``.
    """
    columns = dict.fromkeys(name for tally in tallies for name in tally.columns)
    if skip or per_iteration:
        windows = _cut_at_windows(
            trace, tallies, list(columns), skip, per_iteration=per_iteration, cutter=cutter
        )
    else:
        windows = _whole(trace, tallies, list(columns))
    return windows


def _whole(trace: Trace, tallies: Sequence[Tally], columns: list[str]) -> pl.DataFrame:
    """Hand out whole ops; each device is a window, and its number that of the window."""
    ops = trace["ops"].select("start", "end", *columns, window="device")
    edges = _feed_all(ops.collect_batches(chunk_size=_BATCH), "window", tallies)
    if edges is None:  # several reports saw one device, and each has its ops by start
        edges = _feed_all([ops.sort("start").collect()], "window", tallies)
    windows = _known(edges).cast({"window": pl.Int32})
    _require_ops(windows.height)
    return windows.with_columns(device="window", iteration=pl.lit(None, pl.Int64))


def _cut_at_windows(
    trace: Trace,
    tallies: Sequence[Tally],
    columns: list[str],
    skip: int,
    *,
    per_iteration: bool,
    cutter: Cutter,
) -> pl.DataFrame:
    """Hand out what windows cut ops into."""
    needed = dict.fromkeys(["start", "end", "process", "device", *columns])
    ops = trace["ops"].select(*needed, *(_OF_WINDOWS - set(needed))).collect()
    _require_ops(ops.height)
    windows = chosen_windows(trace, ops, skip=skip, per_iteration=per_iteration, cutter=cutter)
    ops = ops.select(*needed)
    owners = ["process", "device"]
    # Windows of one owner follow each other, and so do the pieces in them.
    windows = windows.with_row_index("window").with_columns(
        line=pl.struct(owners).rank("dense").cast(pl.Int64)
    )
    pieces = cut(ops, windows.drop("window", "line"))
    del ops  # of which pieces are a copy
    pieces = pieces.with_columns(windows["line"].gather(pieces["window"])).sort("start")
    _feed_all([pieces], "line", tallies)
    return windows


def _feed_all(
    batches: Iterable[pl.DataFrame], line: str, tallies: Sequence[Tally]
) -> pl.DataFrame | None:
    for tally in tallies:
        tally.clear()

    def add(rows: pl.DataFrame) -> None:
        for tally in tallies:
            tally.add(rows)

    # Columns hold no lock on the interpreter: while one thread adds up, others read and add up.
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        begun: deque[Future[None]] = deque()

        def take(rows: pl.DataFrame) -> None:
            if rows.height < _FEW:
                add(rows)
                return
            begun.append(pool.submit(add, rows))
            if len(begun) > _AT_ONCE:  # so that what is read does not pile up
                begun.popleft().result()

        edges = feed(batches, line, take)
        for adding in begun:
            adding.result()
    return edges


def _known(edges: pl.DataFrame | None) -> pl.DataFrame:
    if edges is None:
        raise AssertionError("ops that were sorted come by start")
    return edges


def _require_ops(number: int) -> None:
    if not number:
        raise MissingDataError(
            "this run holds no GPU work", "record with `nsys profile -t cuda,nvtx`"
        )
