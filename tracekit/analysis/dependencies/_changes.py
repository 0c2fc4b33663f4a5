"""Hypothetical changes of `whatif`: new lengths for some edges of the dependency graph."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import TYPE_CHECKING, Protocol

import numpy as np
import polars as pl

from tracekit.analysis.dependencies._dependency_graph import ordered
from tracekit.analysis.dependencies._descriptions import NARROWEST_FIRST
from tracekit.analysis.dependencies._edges import HOLDS_NOTHING, LANE
from tracekit.analysis.dependencies._peers import Stragglers
from tracekit.errors import UndecidedError, UsageError
from tracekit.model import STAGES, readable_names

if TYPE_CHECKING:
    from tracekit.analysis.dependencies._job import Job

_DONE = ("work", "transfer")
_AWAITED = ("event", "return", "block")
_STEP = [*LANE, "iteration"]
_LATENCY_NS = {"collective": 50_000, "copy": 10_000}
"""Part of a transfer that no link makes faster: at most this, and at most the shortest one."""
_LEAST_BUCKET = 1_024
"""Who asks for fewer bytes forgot the unit."""
WORKERS = " workers"
"""The end of the label of a change of workers."""
_EACH = 0.5
"""Least throughput of each of several workers, as a share of one that works alone."""
_LAUNCHES = r"(?i)launch"
"""Names of calls that launch kernels."""
_LAUNCHING_NS = 1_000_000
"""Most time that a thread takes to prepare a launch."""
_OF_HOST = ("host", "call", "handover", "launch")
_WAITS = (*_AWAITED, "stream")


@dataclass(frozen=True)
class Bucket:
    """Change: gradients are all-reduced in buckets of at least `size` bytes."""

    label: str
    size: int

    def touches(self) -> pl.Expr:
        """Return an expression that is false for all edges: `made` builds a new graph instead."""
        return pl.lit(value=False)

    def length(self, *, slowest: bool) -> pl.Expr:  # noqa: ARG002 - it is the same
        """Return the recorded length of each edge: `bucketed` changes the edges, not lengths."""
        return pl.col("weight")

    def made(self, job: Job) -> tuple[Job, int]:
        """Merge all-reduces into larger ones; return the job, and the number of changed edges.

        Consecutive all-reduces of a step on a stream are merged until they have `size` bytes. A
        merged all-reduce starts when its last part started, and takes the total time of its parts,
        less the fixed cost (time of 0 bytes) of all but one; whatever waited for any part waits for
        it. Larger all-reduces are not split, since the sizes of their tensors are not recorded;
        those of unknown size stay.
        """
        rows = _exchanges(job, self.size)
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
            merged = known.with_columns(
                weight=pl.when(done).then("bucket").otherwise("weight"),
                source=pl.when(waits).then("later").otherwise("source"),
            ).drop("bucket", "later")
            kept, order, complete = ordered(merged, job.graph.time.size)
            if complete:
                break
        number = known.select(
            ((done & (pl.col("bucket") != pl.col("weight"))) | waits).sum()
        ).item()
        graph = replace(job.graph, edges=kept.select(job.graph.edges.columns), order=order)
        return job.changed(graph, kept), int(number)


def exchanged_bytes(job: Job) -> pl.Series:
    """Return the bytes of each all-reduce of known size inside steps."""
    steps = job.moments.ops.drop_nulls("iteration")
    return _sized(job).join(steps, on="op", how="semi")["size"]


def _sized(job: Job) -> pl.DataFrame:
    calls = job.traffic.calls.filter(pl.col("collective") == "all_reduce").drop_nulls("op")
    return calls.filter(pl.col("bytes") > 0).select("op", size="bytes")


def _exchanges(job: Job, size: int) -> pl.DataFrame:
    """Merge all-reduces into buckets of about `size` bytes; return ``finish, last, length``.

    A row per all-reduce of known size: ``finish`` is the node of its end, ``last`` that of the last
    all-reduce in its bucket. ``length`` is the time of the whole bucket, ns, in the row of the last
    one, else 0.
    """
    sized = _sized(job)
    took = (
        job.edges.filter(pl.col("kind").is_in(_DONE))
        .group_by("target")
        .agg(took=pl.col("weight").max())
    )
    ops = job.moments.ops.drop_nulls("iteration").join(sized, on="op")
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
    """Return the time of an all-reduce of 0 bytes, by linear regression over all sizes, ns."""
    if rows["size"].n_unique() < 2:  # noqa: PLR2004 - no line goes through a point
        return 0.0
    size, took = (rows[name].cast(pl.Float64).to_numpy() for name in ("size", "took"))
    constant = np.polyfit(size, took, 1)[1]
    return float(np.clip(constant, 0.0, took.min()))


class Change(Protocol):
    """A change for `whatif`: new lengths for some edges of the dependency graph."""

    @property
    def label(self) -> str:
        """Option that asks for this change, without dashes: such as ``host 2x``."""

    def touches(self) -> pl.Expr:
        """Return an expression that is true for edges whose length the change alters."""

    def length(self, *, slowest: bool) -> pl.Expr:
        """Return new lengths, ns, of altered edges, for one bound of the predicted step time.

        It is the upper bound if `slowest`, else the lower bound.
        """


@dataclass(frozen=True)
class Speed:
    """Change: kernels, chosen by name or by stage, are faster."""

    label: str
    factor: float
    name: str | None = None
    stage: str | None = None

    def touches(self) -> pl.Expr:
        """Select the edges from start to end of the chosen kernels, collectives excluded."""
        kernels = pl.col("kind").is_in(_DONE) & (pl.col("work") == "compute")
        if self.stage is not None:
            return kernels & (pl.col("stage") == self.stage)
        return kernels & _has_name(f"(?i){self.name}")

    def length(self, *, slowest: bool) -> pl.Expr:  # noqa: ARG002 - it is the same
        """Return the new durations of the chosen kernels, ns; both bounds of the step use them."""
        return _divided(pl.col("weight"), self.factor)


@dataclass(frozen=True)
class Bandwidth:
    """Change: links of one type are faster, and so are copies and collectives limited by them."""

    label: str
    link: str
    factor: float

    def touches(self) -> pl.Expr:
        """Select transfers limited by links of type `link`; ``collective``: all collectives."""
        column = "op_kind" if self.link == "collective" else "link"
        return pl.col("kind").is_in(_DONE) & (pl.col(column) == self.link)

    def length(self, *, slowest: bool) -> pl.Expr:
        """Return the new time of a transfer, limited by the other links on its route.

        Bandwidth does not shorten the latency, which is not recorded. One bound of the step time
        assumes a latency of 0, the other the time of the shortest transfer (at most `_LATENCY_NS`).
        The second assumption gives the upper bound if links are faster, and the lower if slower.
        """
        bound = (1 / pl.col("others_use")).clip(lower_bound=1.0).fill_null(float("inf"))
        constant = _latency() if slowest == (self.factor > 1) else pl.lit(0)
        moving = pl.col("weight") - constant
        return constant + _divided(moving, pl.min_horizontal(pl.lit(self.factor), bound))


@dataclass(frozen=True)
class Loader:
    """Change: a data loader prepares batches faster, by `factor` (or by `least` to `factor`)."""

    label: str
    factor: float
    least: float | None = None

    def touches(self) -> pl.Expr:
        """Select edges of waits for batches, of the time between batches, and of loader threads."""
        waits = pl.col("kind").is_in(["loader", "wait", "pace"]) & (pl.col("weight") >= 0)
        return waits | (pl.col("loads") & self._is_work() & (pl.col("weight") > 0))

    def length(self, *, slowest: bool) -> pl.Expr:
        """Return new lengths, ns, for the upper bound of steps if `slowest`, else the lower one.

        With a faster loader, waits for it delay nothing. The upper bound keeps the length of the
        loader threads' host work, as part of it may be other work than loading. With a slower
        loader, the lower bound keeps the lengths of waits and of that host work.
        """
        least = self.factor if self.least is None else self.least
        sooner = _divided(pl.col("weight"), least if slowest else self.factor)
        is_wait, is_faster = pl.col("kind") == "wait", self.factor > 1
        is_kept = self._is_work() if slowest == is_faster else pl.lit(value=False)
        if is_faster:
            return (
                pl.when(is_wait).then(HOLDS_NOTHING).when(is_kept).then("weight").otherwise(sooner)
            )
        return pl.when(is_kept | (is_wait & pl.lit(not slowest))).then("weight").otherwise(sooner)

    def _is_work(self) -> pl.Expr:
        return pl.col("kind").is_in(["host", "call", "handover"])


@dataclass(frozen=True)
class Workers:
    """Change: a data loader has `count` workers; the method `known` turns this into a `Loader`."""

    count: int

    def known(self, workers: int | None) -> Loader:
        """Return the change to a faster loader, for a run recorded with `workers` workers.

        For more workers the factor is a range: from half the ratio of the new to the old number of
        workers (at least 1), as workers slow each other down, to the whole ratio. For fewer workers
        it is the ratio.

        Raises
        ------
        UndecidedError
            If the present number of workers is unknown.
        """
        if workers is None:
            raise UndecidedError(
                "how many workers prepare batches does not show: no rhythm of waits for them",
                "give a factor: --loader 2x",
            )
        more = self.count / workers
        least = max(1.0, more * _EACH) if more > 1 else more
        return Loader(f"{self.count}{WORKERS}", more, least)


@dataclass(frozen=True)
class Host:
    """Change: the host launches faster, as its calls and its work between calls are shorter."""

    label: str
    factor: float

    def touches(self) -> pl.Expr:
        """Select the edges of host calls, time between calls, threads' hand-overs, and launches."""
        return pl.col("kind").is_in(_OF_HOST) & (pl.col("weight") > 0)

    def length(self, *, slowest: bool) -> pl.Expr:
        """Return changed durations, ns, for the upper bound of steps if `slowest`, else the lower.

        With a faster host, all host work shortens for the lower bound. For the upper bound, only
        launches and short gaps before launches shorten, as longer gaps may be other work; nothing
        shortens in a run with collectives, as its GPUs wait for each other. With a slower host the
        bounds swap.
        """
        changed = _divided(pl.col("weight"), self.factor)
        if slowest != (self.factor > 1):
            return changed
        launches = _has_name(_LAUNCHES).fill_null(value=False)
        is_short = (pl.col("kind") == "call") | (pl.col("weight") <= _LAUNCHING_NS)
        is_launch = (launches & is_short) | (pl.col("kind") == "launch")
        meets = (pl.col("op_kind").cast(pl.String) == "collective").any()
        return pl.when(is_launch & ~meets).then(changed).otherwise("weight")


@dataclass(frozen=True)
class NoSync:
    """Change: host calls wait for no GPU work, except to free memory and for pageable copies."""

    label: str = "no synchronisation"

    def touches(self) -> pl.Expr:
        """Select the edges by which calls wait for GPU work."""
        return pl.col("kind") == "return"

    def length(self, *, slowest: bool) -> pl.Expr:  # noqa: ARG002 - it is the same
        """Return a negative length, with which an edge delays nothing, for both bounds."""
        return pl.lit(HOLDS_NOTHING, pl.Int64)


@dataclass(frozen=True)
class Overlap:
    """Change (perfect overlap): computations do not wait for communication."""

    label: str = "perfect overlap"

    def touches(self) -> pl.Expr:
        """Select the edges by which anything but communication waits for communication."""
        waits = pl.col("kind").is_in(_WAITS) & (pl.col("of_source") == "comm")
        return (waits & pl.col("work").ne_missing(pl.lit("comm"))).fill_null(value=False)

    def length(self, *, slowest: bool) -> pl.Expr:  # noqa: ARG002 - it is the same
        """Return the length that `made` gave the edges, for both bounds."""
        return pl.col("weight")

    def made(self, job: Job) -> tuple[Job, int]:
        """Let what waits for communication wait for other work before it on its stream, if any."""
        other = pl.when(pl.col("work") != "comm").then("finish").forward_fill().over(LANE)
        rows = job.moments.ops.select(source="finish", earlier=other)
        known = job.edges.join(rows, on="source", how="left", maintain_order="left")
        freed = pl.when(pl.col("earlier").is_null()).then(HOLDS_NOTHING).otherwise("weight")
        edges = known.with_columns(
            source=pl.when(self.touches())
            .then(pl.coalesce("earlier", "source"))
            .otherwise("source"),
            weight=pl.when(self.touches()).then(freed).otherwise("weight"),
        ).drop("earlier")
        return job.changed(
            replace(job.graph, edges=edges.select(job.graph.edges.columns)), edges
        ), 0


def _has_name(pattern: str) -> pl.Expr:
    """Return an expression: whether `pattern` is found in ``name``, or in its readable form."""

    def matches(names: pl.Series) -> pl.Series:
        known = names.unique().drop_nulls().cast(pl.String)
        readable = known.replace(readable_names(known.sort()))
        found = known.str.contains(pattern) | readable.str.contains(pattern)
        return names.is_in(known.filter(found).implode())

    return pl.col("name").map_batches(matches, return_dtype=pl.Boolean)


def _times(factor: float) -> str:
    return f"{factor:g}x" if isfinite(factor) else "inf"


def _latency() -> pl.Expr:
    """Return an upper bound of a transfer's latency, which a higher bandwidth does not shorten."""
    most = pl.when(pl.col("op_kind") == "collective").then(_LATENCY_NS["collective"]).otherwise(
        _LATENCY_NS["copy"]
    )  # fmt: skip
    took = pl.when(pl.col("kind").is_in(_DONE)).then("weight")
    return pl.min_horizontal(took.min().over("op_kind", "link"), most).clip(lower_bound=0)


def _divided(length: pl.Expr, factor: float | pl.Expr) -> pl.Expr:
    """Return times divided by a speed factor; 0 for an infinite factor."""
    return (length / factor).round().cast(pl.Int64)


def parse_changes(
    *,
    speed: Sequence[str] = (),
    stage: Sequence[str] = (),
    bandwidth: Sequence[str] = (),
    host: str | None = None,
    loader: str | None = None,
    workers: int | None = None,
    no_sync: bool = False,
    overlap: bool = False,
    bucket: int | None = None,
    without_straggler: str | None = None,
) -> list[Change | Workers | Stragglers]:
    """Parse the options of `whatif`, such as ``gemm=2x``, into changes.

    Raises
    ------
    UsageError
        If a text is invalid, or no change is given.
    """
    # Others change the times that work has then.
    changes: list[Change | Workers | Stragglers] = (
        [] if without_straggler is None else [Stragglers(without_straggler)]
    )
    for text in speed:
        name, factor = _pair(text, "speed", "gemm=2x")
        changes.append(Speed(f"speed {name}={_times(factor)}", factor, name=_pattern(name)))
    for text in stage:
        name, factor = _pair(text, "stage", "BP=1.5x")
        known = _one_of(name.upper(), STAGES, "stage")
        changes.append(Speed(f"stage {known}={_times(factor)}", factor, stage=known))
    for text in bandwidth:
        name, factor = _pair(text, "bandwidth", "nvlink=2x")
        link = _one_of(name.lower(), (*NARROWEST_FIRST, "collective"), "type of link")
        changes.append(Bandwidth(f"bandwidth {link}={_times(factor)}", link, factor))
    changes += [Host(*asked) for asked in _labelled("host", host)]
    changes += [Loader(*asked) for asked in _labelled("loader", loader)]
    if workers is not None:
        if workers < 1 or loader is not None:
            raise UsageError(
                "a loader has 1 worker or more, and is faster by their number or by a factor",
                "write --workers 4, or --loader 2x",
            )
        changes.append(Workers(workers))
    if bucket is not None:
        if bucket < _LEAST_BUCKET:
            raise UsageError(f"a bucket of {bucket} bytes fits no gradient", "write --bucket 25MB")
        if without_straggler is not None:
            raise UsageError("merged all-reduces have no peers", "ask without --without-straggler")
        changes.append(Bucket(f"bucket {bucket / 1e6:g}MB", bucket))
    changes += [*([NoSync()] if no_sync else []), *([Overlap()] if overlap else [])]
    if not changes:
        raise UsageError(
            "nothing is changed", "name a change: --speed gemm=2x, --loader 2x, --no-sync"
        )
    return changes


def _pair(text: str, option: str, example: str) -> tuple[str, float]:
    name, equals, factor = text.rpartition("=")
    if not equals or not name.strip():
        raise UsageError(f"{text!r} does not name what gets faster", f"write --{option} {example}")
    return name.strip(), _factor(factor, option, example)


def _labelled(option: str, text: str | None) -> list[tuple[str, float]]:
    """Return label and factor of an option such as ``--host 2x``, if it is given."""
    factors = [] if text is None else [_factor(text, option, "2x")]
    return [(f"{option} {_times(factor)}", factor) for factor in factors]


def _factor(text: str, option: str, example: str) -> float:
    found = re.fullmatch(r"\s*([0-9]{1,6}(?:\.[0-9]{1,6})?|inf)\s*x?\s*", text.lower())
    factor = float(found[1]) if found else 0.0
    if not factor:
        raise UsageError(
            f"{text!r} is not a factor of speed", f"write --{option} {example}, or inf for no time"
        )
    return factor


def _one_of(name: str, known: Sequence[str], noun: str) -> str:
    if name not in known:
        raise UsageError(f"no {noun} {name!r}", f"there is {', '.join(known)}")
    return name


def _pattern(text: str) -> str:
    """Return the pattern if it is a valid regular expression; else raise `UsageError`."""
    try:
        pl.Series([""]).str.contains(f"(?i){text}")
    except pl.exceptions.ComputeError as error:
        raise UsageError(f"{text!r} is not a pattern of names: {error}", "escape it") from error
    return text
