"""Predict steps with fewer and larger gradient buckets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tracekit.analysis.dependencies._graph import ordered
from tracekit.analysis.dependencies._moments import LANE

if TYPE_CHECKING:
    from tracekit.analysis.dependencies._job import Job

_DONE = ("work", "transfer")
_AWAITED = ("event", "return", "block")
_STEP = [*LANE, "iteration"]


@dataclass(frozen=True)
class Bucket:
    """Gradient buckets of at least this many bytes, as far as a step has enough."""

    size: int

    @property
    def label(self) -> str:
        """Option that asks for it."""
        return f"bucket {self.size / 1e6:g}MB"

    def touches(self) -> pl.Expr:
        """Return that it changes no edges by itself: `bucketed` gives a job others."""
        return pl.lit(value=False)

    def length(self, *, slowest: bool) -> pl.Expr:  # noqa: ARG002 - it is the same
        """Return the length as it is."""
        return pl.col("weight")


def bucketed(job: Job, size: int) -> tuple[Job, int]:
    """Return a job with larger all-reduces, and how many edges are others.

    Those of a step that follow each other on a stream become one until it has so many bytes: it
    begins when the last of them did, takes what they took together, less the constant part of all
    but one, and what waited for any of them waits for it. One that is larger stays as it is: in how
    many tensors its bytes are, which are not taken apart, is not recorded.

    Parameters
    ----------
    job
        The job; all-reduces of unknown size are left as they are.
    size
        How many bytes are exchanged at once.
    """
    rows = _exchanges(job, size)
    if rows.is_empty():
        return job, 0
    known = job.edges.join(
        rows.select(target="finish", bucket="length"), on="target", how="left",
        maintain_order="left",
    ).join(
        rows.filter(pl.col("finish") != pl.col("last")).select(source="finish", later="last"),
        on="source", how="left", maintain_order="left",
    )  # fmt: skip
    done = pl.col("kind").is_in(_DONE) & pl.col("bucket").is_not_null()
    awaits = pl.col("kind").is_in(_AWAITED) & pl.col("later").is_not_null()
    for waits in (awaits, pl.lit(value=False)):  # what leads to the last one cannot wait for it
        kept, order, complete = ordered(_changed(known, done, waits), job.graph.time.size)
        if complete:
            break
    number = known.select(((done & (pl.col("bucket") != pl.col("weight"))) | waits).sum()).item()
    graph = replace(job.graph, edges=kept.select(job.graph.edges.columns), order=order)
    made = replace(job, graph=graph)
    made.__dict__["edges"] = kept  # described as they are
    return made, int(number)


def _changed(known: pl.DataFrame, done: pl.Expr, waits: pl.Expr) -> pl.DataFrame:
    """Give work its new length, and what waits its new source."""
    return known.with_columns(
        weight=pl.when(done).then("bucket").otherwise("weight"),
        source=pl.when(waits).then("later").otherwise("source"),
    ).drop("bucket", "later")


def exchanged_bytes(job: Job) -> pl.Series:
    """Return the bytes that each all-reduce of a step exchanges, where known."""
    steps = job.graph.moments.ops.drop_nulls("iteration")
    return _sized(job).join(steps, on="op", how="semi")["size"]


def _sized(job: Job) -> pl.DataFrame:
    calls = job.traffic.calls.filter(pl.col("collective") == "all_reduce").drop_nulls("op")
    return calls.filter(pl.col("bytes") > 0).select("op", size="bytes")


def _exchanges(job: Job, size: int) -> pl.DataFrame:
    """Return all-reduces of known size: ``finish, length, last``, the end of what they become."""
    sized = _sized(job)
    took = (
        job.edges.filter(pl.col("kind").is_in(_DONE))
        .group_by("target")
        .agg(took=pl.col("weight").max())
    )
    ops = job.graph.moments.ops.drop_nulls("iteration").join(sized, on="op")
    rows = ops.join(took, left_on="finish", right_on="target").sort(*_STEP, "start", "op")
    before = pl.col("size").cum_sum().over(_STEP) - pl.col("size")
    group = [*_STEP, "bucket"]
    spared = ((pl.len() - 1) * _overhead(rows)).over(group)
    together = pl.max_horizontal(
        pl.col("took").sum().over(group) - spared, pl.col("took").max().over(group)
    )
    return rows.with_columns(bucket=before // size).with_columns(
        last=pl.col("finish").last().over(group), together=together.round().cast(pl.Int64)
    ).select(
        "finish", "last",
        length=pl.when(pl.col("finish") == pl.col("last")).then("together").otherwise(0),
    )  # fmt: skip


def _overhead(rows: pl.DataFrame) -> float:
    """Return what an all-reduce of no bytes would take, by a straight line through all of them."""
    if rows["size"].n_unique() < 2:  # noqa: PLR2004 - no line goes through a point
        return 0.0
    size, took = (rows[name].cast(pl.Float64).to_numpy() for name in ("size", "took"))
    constant = np.polyfit(size, took, 1)[1]
    return float(np.clip(constant, 0.0, took.min()))
