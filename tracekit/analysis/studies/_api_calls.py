"""Cost of CUDA API calls, and overhead of the profiler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from tracekit.analysis.facts import chosen_keys, how_to_record
from tracekit.engine import union_length
from tracekit.errors import MissingDataError
from tracekit.model import Answer, Trace

_KEYS = {"name": ("name",), "api": ("api",), "process": ("pid",), "thread": ("pid", "tid")}
API_KEYS = {
    "name": "function",
    "api": "`runtime` (cuda...), `driver` (cu...) or `other`",
    "process": "process that calls",
    "thread": "thread that calls",
}
"""What API calls can be grouped by."""

_MEASURES = (
    "calls", "total_ns", "mean_ns", "min_ns", "p50_ns", "max_ns", "share", "busy_ns", "wall_share"
)  # fmt: skip
_ABSENT = {"calls": 0, "total_ns": 0, "share": 0.0, "busy_ns": 0, "wall_share": 0.0}
_LENGTH = pl.col("end") - pl.col("start")


def api_calls(trace: Trace, by: str | Sequence[str] = "name") -> Answer:
    """Return the time of CUDA API calls, by name.

    Parameters
    ----------
    trace
        The run.
    by
        Keys out of `API_KEYS`, as a sequence or separated by commas.

    Returns
    -------
    The keys' columns (``name``; ``api``; ``pid``; ``tid``), then

    ==============  ===============================================================================
    ``calls``       number of calls
    ``total_ns``    sum of their durations
    ``mean_ns``     mean duration; ``min_ns``, ``p50_ns`` (nearest) and ``max_ns`` likewise
    ``share``       total_ns over that of all calls of the run
    ``busy_ns``     length of the union of the calls on each thread, added over threads
    ``wall_share``  busy_ns over wall time: on each thread from its first call of any kind to the
                    end of its last one, added over the threads (those of the row's process or
                    thread, where rows are by these)
    ==============  ===============================================================================

    Calls within calls (a driver call of a runtime call, where both were recorded) count in sums
    once each, but in unions once for both. Rows with the greatest total come first.

    ``meta`` holds ``calls``, ``threads``, ``total_ns``, ``busy_ns`` and ``wall_ns`` of all calls
    together; ``nested``, how many calls lie within another one of their thread; ``warnings``.

    Raises
    ------
    UsageError
        If a key is unknown.
    MissingDataError
        If the run holds no CUDA calls.
    """
    keys = chosen_keys(by, API_KEYS, "API calls")
    columns = list(dict.fromkeys(name for key in keys for name in _KEYS[key]))
    calls = _calls(trace)
    divides = [name for name in columns if name in ("pid", "tid")]
    owners = [*(["process"] if divides else []), *(["thread"] if "tid" in divides else [])]
    groups = [*(name for name in columns if name not in divides), *owners]
    sums = calls.group_by(groups).agg(
        *(pl.col(name).first() for name in divides),
        calls=pl.len().cast(pl.Int64),
        total_ns=_LENGTH.sum(),
        mean_ns=_LENGTH.mean(),
        min_ns=_LENGTH.min(),
        p50_ns=_LENGTH.quantile(0.5, "nearest").cast(pl.Int64),
        max_ns=_LENGTH.max(),
    )
    busy = _on_threads(calls, groups)
    walls = calls.group_by("process", "thread").agg(
        wall_ns=pl.col("end").max() - pl.col("start").min()
    )
    total, wall = int(sums["total_ns"].sum()), int(walls["wall_ns"].sum())
    table = sums.join(busy, on=groups, how="left", nulls_equal=True)
    if owners:
        own_walls = walls.group_by(owners).agg(pl.col("wall_ns").sum())
        table = table.join(own_walls, on=owners, how="left")
    else:
        table = table.with_columns(wall_ns=pl.lit(wall, pl.Int64))
    table = table.with_columns(
        share=pl.when(pl.lit(total > 0)).then(pl.col("total_ns") / total),
        wall_share=pl.when(pl.col("wall_ns") > 0).then(pl.col("busy_ns") / pl.col("wall_ns")),
    )
    table = table.sort(-pl.col("total_ns"), *columns).select(*columns, *_MEASURES)
    whole = _on_threads(calls, [])["busy_ns"].sum()
    nested = _nested(calls)
    meta = {
        "calls": calls.height,
        "threads": walls.height,
        "total_ns": total,
        "busy_ns": int(whole),
        "wall_ns": wall,
        "nested": nested,
        "warnings": [_nested_warning(nested, calls.height)] if nested else [],
    }
    return Answer(rows=table, meta=meta, title="CUDA API calls", command="overhead")


def api_by_run(
    tables: Mapping[str, pl.DataFrame | None], methods: Mapping[str, str | None] | None = None
) -> pl.DataFrame:
    """Lay the API calls of several runs beside each other.

    Parameters
    ----------
    tables
        By the run's name, `api_calls` by name; None for a run that holds no calls.
    methods
        By the run's name, how it communicates.

    Returns
    -------
    ``name, run, method``, then the measures of `api_calls`: a row for each run of every function
    that any run calls. A run that does not call it has 0 calls, one that holds no calls null. Those
    functions come first that take the greatest share of any run.
    """
    known = [
        table.select("name", *_MEASURES).with_columns(run=pl.lit(run))
        for run, table in tables.items()
        if table is not None
    ]
    if not known:
        raise MissingDataError(
            "none of the runs holds CUDA calls", "record with `nsys profile -t cuda`"
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
    ``name`` (kind of overhead), ``times``, ``total_ns`` (sum of durations), ``busy_ns`` (length of
    their union over all threads, in each report) and ``share`` (busy_ns over the time from the
    first to the last of all calls, ops and overheads, added over reports). The last row, named
    ``all``, is of all kinds together. Without rows where none was recorded.
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
    """Return for how long anything was recorded, added over reports."""
    edges = [
        trace[name].group_by("report").agg(pl.col("start").min(), pl.col("end").max())
        for name in ("ops", "calls")
    ]
    known = pl.concat([*pl.collect_all(edges), overheads.select("report", "start", "end")])
    own = known.group_by("report").agg(pl.col("end").max() - pl.col("start").min())
    return int(own["end"].sum())


def _calls(trace: Trace) -> pl.DataFrame:
    names = pl.col("name").cast(pl.String)
    api = (
        pl.when(names.str.starts_with("cuda")).then(pl.lit("runtime"))
        .when(names.str.starts_with("cu")).then(pl.lit("driver"))
        .otherwise(pl.lit("other"))
    )  # fmt: skip
    calls = trace["calls"].select("process", "thread", "start", "end", "name", api=api)
    pids = trace["processes"].select("process", "pid")
    tids = trace["threads"].select("thread", "tid")
    found = calls.join(pids, on="process", how="left").join(tids, on="thread", how="left").collect()
    if found.is_empty():
        hint = f"record with {how_to_record(trace, 'CUDA calls')}"
        raise MissingDataError("this run holds no CUDA calls", hint)
    return found.with_columns(pl.col("name").cast(pl.String))


def _on_threads(calls: pl.DataFrame, groups: Sequence[str]) -> pl.DataFrame:
    """Return ``busy_ns``: unions on each thread, added over threads."""
    lengths = union_length(calls, list(dict.fromkeys([*groups, "thread"])))
    summed = pl.col("length").sum().alias("busy_ns")
    return lengths.group_by(groups).agg(summed) if groups else lengths.select(summed)


def _nested(calls: pl.DataFrame) -> int:
    """Return how many calls begin while another one of their thread goes on."""
    ordered = calls.select("thread", "start", "end").sort(
        "thread", "start", "end", descending=[False, False, True]
    )
    furthest = pl.col("end").cum_max().shift().over("thread")
    return int(ordered.select((pl.col("start") < furthest).sum()).item())


def _nested_warning(nested: int, calls: int) -> str:
    return (
        f"{nested:,} of {calls:,} calls lie within another call of their thread; totals and shares "
        "count both"
    )
