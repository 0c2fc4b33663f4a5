"""CUDA calls inside MPI calls: pointer queries, staging copies, reductions."""

from __future__ import annotations

from typing import Any

import polars as pl

from tracekit.analysis.calls import mpi_calls, outermost, within
from tracekit.model import KERNEL_KINDS, Answer, Trace

_QUERY = r"^(cu|cuda)PointerGetAttributes?(_v\d+|_ptsz|_ptds)*$"
_BARRIER = r"^P?MPI_Barrier$"
_REDUCES = r"(?i)reduc|sum"
"""Names of kernels that add up or reduce."""
_FROM_ROOT, _TO_ROOT = r"^P?MPI_(Bcast|Scatter)", r"^P?MPI_(Reduce(_c)?$|Gather)"


def pointer_queries(trace: Trace) -> Answer:
    """Return the share of each MPI function's time that is spent in pointer queries.

    For every buffer a CUDA-aware MPI asks the driver whether it lies on a GPU, unless it caches the
    answers (Awan et al., CCGrid 2019). Queries are calls of ``cuPointerGetAttribute``,
    ``cuPointerGetAttributes`` and ``cudaPointerGetAttributes`` within an MPI call of the same
    thread; a query inside another query (a runtime call that calls the driver) counts as part of
    it.

        share = time of queries within MPI calls / time of MPI calls

    Rows are sorted by time of queries, then by time of calls, longest first. All columns on queries
    are null if the run has no query at all: nsys does not record them by default
    (``meta["missing"]``), so their absence proves nothing.

    """
    queries = _queries(trace)
    calls = mpi_calls(trace).with_row_index("call").rename({"name": "function"})
    found = within(queries, calls).group_by("call").agg(
        queries=pl.len().cast(pl.Int64), query_ns=_duration().sum()
    )  # fmt: skip
    # Where queries were recorded, a call without any made none.
    otherwise = pl.lit(None if queries.is_empty() else 0, pl.Int64)
    each = calls.join(found, on="call", how="left").with_columns(
        pl.col("queries", "query_ns").fill_null(otherwise)
    )
    known = pl.col("queries").null_count() == 0
    measures = [
        pl.len().cast(pl.Int64).alias("calls"),
        _duration().sum().alias("mpi_ns"),
        *(pl.when(known).then(pl.col(name).sum()).alias(name) for name in ("queries", "query_ns")),
        pl.when(known).then((pl.col("queries") > 0).sum().cast(pl.Int64))
        .alias("calls_with_queries"),
    ]  # fmt: skip
    rows = (
        each.group_by("function")
        .agg(measures)
        .sort(-pl.col("query_ns"), -pl.col("mpi_ns"), "function", nulls_last=True)
        .select(
            "function", "calls", "mpi_ns", "queries", "query_ns",
            share=pl.when(pl.col("mpi_ns") > 0).then(pl.col("query_ns") / pl.col("mpi_ns")),
            queries_per_call=pl.col("queries") / pl.col("calls"),
            calls_with_queries="calls_with_queries",
        )
    )  # fmt: skip
    return Answer(
        rows=rows,
        meta=_meta(trace),
        title="pointer-queries",
        empty="no MPI calls were recorded",
        command="latency",
    )


def _meta(trace: Trace) -> dict[str, Any]:
    queries, calls = _queries(trace), mpi_calls(trace).with_row_index("call")
    missing = []
    if calls.is_empty():
        missing.append("no MPI calls were recorded: nsys profile --trace=cuda,mpi")
    if queries.is_empty():
        missing.append(
            "no pointer queries were recorded, so whether any were made is not known: "
            "nsys profile --trace=cuda,mpi --cuda-trace-all-apis=true"
        )
    return {
        "queries": queries.height,
        "inside": within(queries, calls).height,
        "missing": missing,
    }


def _queries(trace: Trace) -> pl.DataFrame:
    name = pl.col("name").cast(pl.String)
    found = trace["calls"].filter(name.str.contains(_QUERY)).select("thread", "start", "end")
    return outermost(found.collect())


def _duration() -> pl.Expr:
    return pl.col("end") - pl.col("start")


# -- staging -----------------------------------------------------------------------------------


def staging(trace: Trace) -> Answer:
    """Count the MPI collectives that went through host memory, and those that reduced on the GPU.

    There is a row per MPI function, by name, with sums over `staging_calls`; null where unknown.
    """

    def known(name: str) -> pl.Expr:
        return pl.when(pl.col(name).count() > 0).then(pl.col(name).sum()).cast(pl.Int64).alias(name)

    rows = (
        staging_calls(trace)
        .group_by("function")
        .agg(
            pl.len().cast(pl.Int64).alias("calls"),
            known("staged"),
            pl.col("staged").null_count().cast(pl.Int64).alias("staged_unknown"),
            known("gpu_reduce"),
            *(known(name) for name in ("d2h_bytes", "h2d_bytes", "reduce_kernels")),
        )
        .sort("function")
    )
    return Answer(
        rows=rows,
        title="staging",
        empty="no MPI collectives were recorded",
        command="latency",
    )


def staging_calls(trace: Trace) -> pl.DataFrame:
    """Return each blocking MPI collective of each rank, and the GPU work inside it.

    An op belongs to the collective during which its thread launched it. If another thread launched
    the op (such as a thread that drives MPI's progress), the op belongs to the collective of the
    process that was open at the launch; of several, to the one that began last. If the launch was
    not recorded, the time at which the op ran is used instead.

    A collective is ``staged`` if at least the message's bytes were copied to host memory and back.
    For a broadcast or scatter one direction is enough: the root copies to the host, the others copy
    from it. For a reduce or gather only the root's result is copied back. ``gpu_reduce`` means that
    a kernel ran whose name contains a reduction or sum (Awan et al., CCGrid 2019).

    Returns
    -------
    ``report, process, thread, rank, function, start, end`` (ns), by process and start;
    ``message_bytes`` (sent by this rank; received, if it sends none); ``d2h_bytes``, ``h2d_bytes``;
    ``kernels``, ``reduce_kernels``; ``staged`` (null if there are copies and the size of the
    message is unknown); ``gpu_reduce``. All columns on GPU work are null for a process without ops.
    """
    calls = mpi_calls(trace).filter(
        pl.col("does") == "collective", ~pl.col("name").str.contains(_BARRIER)
    )
    calls = calls.sort("process", "start", "end", "thread").with_row_index("call")
    gpu_work = _gpu_work_inside(trace, calls)
    traced = trace["ops"].select("process").unique().collect()["process"].implode()
    has_ops = pl.col("process").is_in(traced)
    work = ("d2h_bytes", "h2d_bytes", "kernels", "reduce_kernels")
    return (
        calls.join(gpu_work, on="call", how="left", maintain_order="left")
        .with_columns(pl.when(has_ops).then(pl.col(work).fill_null(0)))
        .with_columns(
            message_bytes=pl.when(pl.col("bytes") > 0)
            .then("bytes")
            .otherwise(pl.coalesce("recv_bytes", "bytes")),
        )
        .select(
            "report", "process", "thread", "rank", pl.col("name").alias("function"), "start", "end",
            "message_bytes", *work, staged=_staged(), gpu_reduce=pl.col("reduce_kernels") > 0,
        )
    )  # fmt: skip


def _gpu_work_inside(trace: Trace, calls: pl.DataFrame) -> pl.DataFrame:
    """Return, per MPI call with GPU work inside, ``call``, bytes copied, numbers of kernels."""
    kind, name = pl.col("kind"), pl.coalesce("short_name", "name").cast(pl.String)
    ops = (
        trace["ops"]
        .filter(kind.is_in(["d2h", "h2d", *KERNEL_KINDS]))
        .select(
            "op", "process", "kind", "bytes",
            thread="launch_thread",
            start=pl.coalesce("launch_start", "start"),
            end=pl.when(pl.col("launch_start").is_null())
            .then("end")
            .otherwise(pl.coalesce("launch_end", "launch_start")),
            reduces=name.str.contains(_REDUCES).fill_null(value=False),
        )
        .collect()
    )  # fmt: skip
    nested = within(ops, calls).select("op", "call")
    others = _launched_elsewhere(ops.join(nested, on="op", how="anti"), calls)
    is_kernel = kind.is_in(KERNEL_KINDS)
    counts = (is_kernel.sum(), (is_kernel & pl.col("reduces")).sum())
    return (
        ops.join(pl.concat([nested, others]), on="op")
        .group_by("call")
        .agg(
            d2h_bytes=pl.col("bytes").filter(kind == "d2h").sum(),
            h2d_bytes=pl.col("bytes").filter(kind == "h2d").sum(),
            kernels=counts[0].cast(pl.Int64),
            reduce_kernels=counts[1].cast(pl.Int64),
        )
    )


def _launched_elsewhere(ops: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return ``op, call``: an op that another thread launched, and the MPI call then open."""
    callers = calls.select("process", "thread").unique()
    found = within(ops.drop("thread").join(callers, on="process"), calls)
    # Calls are numbered by start within a process.
    return found.group_by("op").agg(pl.col("call").max())


def _staged() -> pl.Expr:
    is_root = pl.col("rank") == pl.col("root_rank")
    from_root, to_root = (pl.col("name").str.contains(some) for some in (_FROM_ROOT, _TO_ROOT))
    to_host = _copied("d2h_bytes") | (from_root & ~is_root).fill_null(value=False)
    from_host = (
        _copied("h2d_bytes")
        | (from_root & is_root).fill_null(value=False)
        | (to_root & ~is_root).fill_null(value=False)
    )
    return to_host & from_host


def _copied(name: str) -> pl.Expr:
    """Return whether column `name` (bytes copied) is positive and at least the message's size."""
    return (pl.col(name) > 0) & (pl.col(name) >= pl.col("message_bytes"))
