"""Balance of expert parallelism: compute time of ranks between dispatch and combine kernels."""

from __future__ import annotations

import polars as pl

from tracekit.analysis.calls import process_ranks
from tracekit.engine import cut, union_length
from tracekit.model import Trace, path_texts

_LANE = ["process", "device"]
_INSTANCE = ["iteration", "place"]
BALANCE = pl.Schema({"layer": pl.String(), "count": pl.Int64(), "ranks": pl.Int64(),
                     "computing_ns": pl.Float64(), "imbalance": pl.Float64(),
                     "busiest_rank": pl.Int64(), "busiest_share": pl.Float64()})  # fmt: skip


def expert_balance(trace: Trace, calls: pl.DataFrame) -> tuple[pl.DataFrame, str | None]:
    """Return the imbalance of experts' compute time: the busiest rank's time over the mean rank's.

    The work of a rank's experts is taken as everything that it computes between the end of a
    dispatch and the start of the next combine. The n-th interval of a step belongs to the same
    layer on all ranks.

    Parameters
    ----------
    trace
        The run.
    calls
        As in the table `COLLECTIVE_CALLS`.

    Returns
    -------
    The table, and the reason if it is empty. One row per ``layer`` (the range in which the dispatch
    was launched; null if unknown): ``count`` (intervals that all ranks have), ``ranks``,
    ``computing_ns`` (mean compute time of an interval), ``imbalance`` (median over intervals of the
    longest rank's time over the mean), ``busiest_rank`` (rank that computes longest most often;
    null if unknown) and ``busiest_share`` (the share of intervals in which it does).
    """
    parts = calls.filter(pl.col("part").is_in(["dispatch", "combine"])).sort(*_LANE, "start")
    lanes = parts.select(_LANE).unique().height
    if lanes < 2:  # noqa: PLR2004 - one has no others
        return BALANCE.to_frame(), "imbalance over experts' ranks: record several of them"
    part, own = pl.col("part"), pl.col("part").shift(1).over(_LANE)
    if parts.select((part == own).any()).item():
        return BALANCE.to_frame(), (
            "imbalance over experts' ranks: dispatches follow each other, of several micro-batches "
            "or in phases, and which combine is whose is not told"
        )
    until = pl.col("start").shift(-1).over(_LANE)
    windows = parts.with_columns(until=until).filter(part == "dispatch").drop_nulls("until")
    windows = windows.select("op", *_LANE, "iteration", start="end", end="until").with_columns(
        place=pl.int_range(pl.len()).over(*_LANE, "iteration")
    )
    times = windows.with_row_index("window").join(
        _computing(trace, windows), on="window", how="left"
    ).with_columns(pl.col("computing").fill_null(0))  # fmt: skip
    whole = times.join(_layers(trace, windows), on="op").filter(pl.len().over(_INSTANCE) == lanes)
    if whole.is_empty():
        return BALANCE.to_frame(), "imbalance over experts' ranks: no step has as many on each"
    ranks = process_ranks(trace).select("process", pl.col("rank").cast(pl.Int64))
    largest = pl.col("computing").arg_max()
    each = whole.join(ranks, on="process", how="left").group_by(_INSTANCE).agg(
        pl.col("layer").first(), pl.col("computing").mean(),
        of_mean=pl.col("computing").max() / pl.col("computing").mean(),
        busiest=pl.col("rank").get(largest),
    )  # fmt: skip
    usual = pl.col("busiest").drop_nulls().mode().min()
    found = each.group_by("layer").agg(
        count=pl.len(), ranks=pl.lit(lanes), computing_ns=pl.col("computing").mean(),
        imbalance=pl.col("of_mean").drop_nans().median(), busiest_rank=usual,
        busiest_share=(pl.col("busiest") == usual).mean(),
    )  # fmt: skip
    return found.sort("layer", nulls_last=True).select(*BALANCE).cast(BALANCE), None


def _computing(trace: Trace, windows: pl.DataFrame) -> pl.DataFrame:
    """Return the time in each window in which at least one kernel runs."""
    lanes = windows.select(_LANE).unique().lazy()
    is_computing = pl.col("kind").cast(pl.String) == "compute"
    ops = trace["ops"].filter(is_computing).join(lanes, on=_LANE, how="semi")
    kernels = ops.select(*_LANE, "start", "end").collect()
    inside = cut(kernels, windows.select(*_LANE, "start", "end"))
    return union_length(inside, ["window"]).select("window", computing="length")


def _layers(trace: Trace, windows: pl.DataFrame) -> pl.DataFrame:
    """Return ``op, layer``: the range in which each dispatch was launched."""
    launched = (
        trace["ops"].select("op", "range").join(windows.select("op").lazy(), on="op", how="semi")
    )
    found = launched.join(trace["ranges"].select("range", "path"), on="range", how="left").collect()
    return found.select("op", layer=path_texts(trace.read("paths"), found["path"]))
