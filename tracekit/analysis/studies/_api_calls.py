"""Cost of CUDA API calls, and overhead of the profiler, by run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from tracekit.analysis.facts import how_to_record
from tracekit.engine import union_length
from tracekit.errors import MissingDataError
from tracekit.model import Answer, Run, Trace

_MEASURES = (
    "calls", "total_ns", "mean_ns", "min_ns", "p50_ns", "max_ns", "share", "busy_ns", "wall_share"
)  # fmt: skip
_ABSENT = {"calls": 0, "total_ns": 0, "share": 0.0, "busy_ns": 0, "wall_share": 0.0}
_LENGTH = pl.col("end") - pl.col("start")


def api_calls(trace: Trace) -> pl.DataFrame:
    """Return the number of CUDA API calls and the time that they take, by function name.

    Returns
    -------
    One row per function, largest ``total_ns`` first: ``name``; ``calls``; the sum (``total_ns``),
    mean, least, median and greatest duration; ``busy_ns``, the time in which at least one call of
    the function is open, added over threads; ``share`` of all calls' total; and ``wall_share``,
    ``busy_ns`` over the wall time: from the first to the last CUDA call of each thread, added over
    threads. Of nested calls (a driver call inside a runtime call) each adds its own duration.

    Raises
    ------
    MissingDataError
        If the run has no API calls.
    """
    found = trace["calls"].select("thread", "start", "end", pl.col("name").cast(pl.String))
    calls = found.collect()
    if calls.is_empty():
        hint = f"record with {how_to_record(trace, 'API calls')}"
        raise MissingDataError("this run has no API calls", hint)
    sums = calls.group_by("name").agg(
        calls=pl.len().cast(pl.Int64),
        total_ns=_LENGTH.sum(),
        mean_ns=_LENGTH.mean(),
        min_ns=_LENGTH.min(),
        p50_ns=_LENGTH.quantile(0.5, "nearest").cast(pl.Int64),
        max_ns=_LENGTH.max(),
    )
    busy = union_length(calls, ["name", "thread"]).group_by("name")
    walls = calls.group_by("thread").agg(wall_ns=pl.col("end").max() - pl.col("start").min())
    total, wall = int(sums["total_ns"].sum()), int(walls["wall_ns"].sum())
    return (
        sums.join(busy.agg(busy_ns=pl.col("length").sum()), on="name", how="left")
        .with_columns(
            share=pl.when(pl.lit(total > 0)).then(pl.col("total_ns") / total),
            wall_share=pl.when(pl.lit(wall > 0)).then(pl.col("busy_ns") / wall),
        )
        .sort(-pl.col("total_ns"), "name")
        .select("name", *_MEASURES)
    )


def api_by_run(
    tables: Mapping[str, pl.DataFrame | None], methods: Mapping[str, str | None] | None = None
) -> pl.DataFrame:
    """Concatenate the tables of `api_calls` of several runs, to compare functions.

    Parameters
    ----------
    tables
        Run name -> result of `api_calls`; None for a run without recorded calls.
    methods
        Run name -> communication method.

    Returns
    -------
    ``name, run, method``, then the measures of `api_calls`: one row per run and function that any
    run calls. A run that does not call the function has 0 calls; null if the run has no recorded
    calls. Functions are sorted by their greatest share in any run.
    """
    known = [
        table.select("name", *_MEASURES).with_columns(run=pl.lit(run))
        for run, table in tables.items()
        if table is not None
    ]
    if not known:
        raise MissingDataError(
            "none of the runs has calls of CUDA or HIP", "`tracekit info` says how to record them"
        )
    found = pl.concat(known)
    runs = pl.DataFrame(
        {
            "run": list(tables),
            "method": [(methods or {}).get(run) for run in tables],
            "recorded": [table is not None for table in tables.values()],
        },
        schema_overrides={"method": pl.String},
    ).with_row_index("turn")
    names = found.group_by("name").agg(most=pl.col("share").max())
    return (
        names.join(runs, how="cross")
        .join(found, on=["name", "run"], how="left")
        .with_columns(
            pl.when("recorded").then(pl.col(name).fill_null(nothing)).alias(name)
            for name, nothing in _ABSENT.items()
        )
        .sort(-pl.col("most"), "name", "turn", nulls_last=True)
        .select("name", "run", "method", *_MEASURES)
    )


def profiler_overhead(trace: Trace) -> pl.DataFrame:
    """Return the profiler's recorded overhead in a run.

    Returns
    -------
    ``name`` (kind of overhead), ``times`` (number), ``total_ns`` (sum of durations), ``busy_ns``
    (length of their union over all threads) and ``share`` (busy_ns over the time from the first to
    the last call, op or overhead); both times are summed over the run's trace files. The last row,
    named ``all``, is of all kinds together. No rows if no overhead was recorded.
    """
    rows = (
        trace["host"]
        .filter(pl.col("library") == "profiler")
        .select("report", "name", "start", "end")
        .collect()
    )
    if rows.is_empty():
        return _overheads(rows, 0)
    window = _window(trace, rows)
    kinds = _overheads(rows, window).sort(-pl.col("busy_ns"), "name")
    return pl.concat([kinds, _overheads(rows.with_columns(name=pl.lit("all")), window)])


def _overheads(rows: pl.DataFrame, window: int) -> pl.DataFrame:
    sums = rows.group_by("name").agg(times=pl.len().cast(pl.Int64), total_ns=_LENGTH.sum())
    busy = union_length(rows, ["report", "name"]).group_by("name")
    table = sums.join(busy.agg(busy_ns=pl.col("length").sum()), on="name", how="left")
    share = pl.when(pl.lit(window > 0)).then(pl.col("busy_ns") / window)
    return table.with_columns(share=share)


def _window(trace: Trace, overheads: pl.DataFrame) -> int:
    """Return the time from a trace file's first to last record, summed over all files, ns."""
    edges = [
        trace[name].group_by("report").agg(pl.col("start").min(), pl.col("end").max())
        for name in ("ops", "calls")
    ]
    known = pl.concat([*pl.collect_all(edges), overheads.select("report", "start", "end")])
    spans = known.group_by("report").agg(pl.col("end").max() - pl.col("start").min())
    return int(spans["end"].sum())


def api_answer(runs: Sequence[Run]) -> Answer:
    """Return the table of `api_by_run`: CUDA API calls by run, with communication method."""
    tables: dict[str, pl.DataFrame | None] = {}
    for run in runs:
        try:
            tables[run.name] = api_calls(run.trace)
        except MissingDataError:
            tables[run.name] = None
    rows = api_by_run(tables, {run.name: run.labels.get("method") for run in runs})
    return Answer(rows=rows, title="API calls by run", command="overhead")


def profiler_answer(runs: Sequence[Run]) -> Answer:
    """List the profiler's overhead, by run."""
    rows = pl.concat(
        profiler_overhead(run.trace).select(pl.lit(run.name).alias("run"), pl.all()) for run in runs
    )
    return Answer(
        rows=rows, title="time of the profiler", empty="none was recorded", command="overhead"
    )
