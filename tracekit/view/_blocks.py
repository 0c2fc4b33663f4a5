"""`breakdown --between` for long intervals, computed from cached sums instead of all ops."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from tracekit.model import KINDS, STAGES, Answer
from tracekit.view._sums import RunSums
from tracekit.view._tiles import NO_STAGE

_BY: dict[str, pl.DataType] = {
    "stage": pl.Enum(STAGES),
    "kind": pl.Enum(KINDS),
    "device": pl.Int64(),
}
_KERNEL = "kernel"
_COLUMNS = {_KERNEL: ["name", "kind"]}
_MEASURES = ("ops", "total_ns", "busy_ns", "exposed_ns")
_DURATIONS = ("min_ns", "max_ns")
_NO_MEDIANS = "medians of long selections are not kept: the command prints them"
MANY = 300_000
"""Number of ops above which only the ends of an interval are read: two questions take as long as
reading this number of ops."""


def broken_down(run: Any, sums: RunSums, by: str, start: int, end: int) -> Answer:
    """Return the rows of `breakdown --between START END`, computed from sums per block of time.

    Blocks (bins of equal length) that lie wholly in the interval are taken from the sums; only the
    ops in the partial blocks at its two ends are read and broken down. Of `meta` only the entries
    that the page shows are filled in. By kernel, blocks are longer, and medians are null.

    All ops of the interval are read instead if the sums have ops without a stage, if the blocks
    have at most `MANY` ops, or if no GPU is busy in the partial blocks.
    """
    joined = sums.blocks_per_part if by == _KERNEL else 1
    width, origin = joined * sums.block_width, sums.edges[0]
    last = min(max((done for _, done in sums.gpus.values()), default=origin), end) - 1
    first, behind = max(-((origin - start) // width), 0), (last - origin) // width
    edges = (start, origin + first * width), (origin + behind * width, end)
    ends_with_work = [
        (a, b) for a, b in edges
        if any(a < done and b > begun and a < b for begun, done in sums.gpus.values())
    ]  # fmt: skip
    # One end at least is asked: the question knows what cannot be told of a run.
    has_all = all(word != NO_STAGE for _, _, word in sums.blocks)
    where = slice(first * joined, max(behind, first) * joined)
    read = sum(int(block[1][where].sum()) for key, block in sums.blocks.items() if key[1] == "kind")
    if read <= MANY or not ends_with_work or not has_all:
        answer: Answer = run.breakdown.answer(by=by, between=(start, end))
        return answer
    ends = [run.breakdown.answer(by=by, between=each) for each in ends_with_work]
    inside = sums.kernels.filter(pl.col("part").is_between(first, behind - 1))
    kept = _measures(_added(inside, by), by) if by == _KERNEL else _rows(sums, by, where)
    parts = [kept, *(_measures(each.rows, by) for each in ends)]
    rows = _added(pl.concat(parts, how="diagonal"), by)
    windows = {
        gpu: min(end, done) - max(start, begun)
        for gpu, (begun, done) in sums.gpus.items()
        if begun < end and done > start
    }
    exposed = (block[0][where] for key, block in sums.blocks.items() if key[1] == "exposed")
    busy = sum(int(each.sum(dtype=np.int64)) for each in exposed)
    busy += sum(each.meta["window_ns"] - each.meta["idle_ns"] for each in ends)
    window = sum(windows.values())
    meta = {"window_ns": window, "idle_ns": window - busy}
    if by != "device":
        many = len(windows)
        meta["sum_over"] = f"{many} GPU{'' if many == 1 else 's'}"
    rows = _arranged(rows, by, window, windows)
    first_end: Answer = ends[0]
    more = [_NO_MEDIANS] if by == _KERNEL else []
    return replace(first_end, rows=rows, meta=meta).warning([*first_end.warnings, *more])


def _added(rows: pl.DataFrame, by: str) -> pl.DataFrame:
    """Add up rows with the same values of the key `by`; of durations take least and greatest."""
    least, most = (pl.col(f"^{name}$") for name in _DURATIONS)
    return rows.group_by(_COLUMNS.get(by, by)).agg(
        least.min(), most.max(), pl.exclude(*_DURATIONS).sum()
    )


def _measures(rows: pl.DataFrame, by: str) -> pl.DataFrame:
    names = [name for name in (*_MEASURES, *_DURATIONS) if name in rows.columns]
    keys = (pl.col(name).cast(_BY.get(name, pl.String())) for name in _COLUMNS.get(by, [by]))
    return rows.select(*keys, pl.col(names).cast(pl.Int64))


def _rows(sums: RunSums, by: str, where: slice) -> pl.DataFrame:
    """Return a row per value of the key `by`: sums over the bins of time in the slice `where`."""
    rows = []
    for (gpu, column, word), (busy, count, total) in sums.blocks.items():
        named = {"ops": count, "total_ns": total, "busy_ns": busy}
        totals = {name: int(each[where].sum(dtype=np.int64)) for name, each in named.items()}
        key = gpu if by == "device" else word
        if column == "exposed":
            totals = {"busy_ns" if by == "device" else "exposed_ns": totals["busy_ns"]}
        elif by == "device":
            totals["busy_ns"] = 0
        if column == (by if by != "device" else "kind") or (by != "kind" and column == "exposed"):
            rows.append({by: key, **totals})
    schema = {by: _BY[by], **dict.fromkeys(_MEASURES, pl.Int64())}
    found = pl.DataFrame(rows, schema=schema).fill_null(0).group_by(by).sum()
    there = found.filter((pl.col("ops") > 0) | (pl.col("busy_ns") > 0))
    return _measures(there, by)


def _arranged(rows: pl.DataFrame, by: str, window: int, windows: dict[int, int]) -> pl.DataFrame:
    """Return sums of blocks in the columns and order of `breakdown`; shares are of `window` ns."""
    if by == "stage":
        rows = rows.sort(by).select(
            by, "ops", "busy_ns", "exposed_ns", overlap_ns=pl.col("busy_ns") - pl.col("exposed_ns"),
        )  # fmt: skip
        return rows.with_columns(share=pl.col("exposed_ns") / window)
    if by == "kind":
        rows = rows.sort(-pl.col("busy_ns"), by)
        return rows.select(by, "ops", "total_ns", "busy_ns", share=pl.col("busy_ns") / window)
    if by == _KERNEL:
        mean = pl.when(pl.col("ops") > 0).then(pl.col("total_ns") / pl.col("ops"))
        return rows.sort(-pl.col("busy_ns"), "name", "kind", nulls_last=True).select(
            "name", "kind", "ops", "total_ns", mean_ns=mean, median_ns=pl.lit(None, pl.Float64),
            min_ns="min_ns", max_ns="max_ns", busy_ns="busy_ns", share=pl.col("busy_ns") / window,
        )  # fmt: skip
    lengths = pl.col(by).replace_strict(windows, return_dtype=pl.Int64)
    return rows.sort(by).select(
        by, "ops", "total_ns", "busy_ns", window_ns=lengths, idle_ns=lengths - pl.col("busy_ns"),
        share=pl.col("busy_ns") / lengths,
    )  # fmt: skip
