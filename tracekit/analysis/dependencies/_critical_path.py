"""Critical path of each step, from its end back to its start."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from tracekit.analysis.calls import process_ranks
from tracekit.analysis.dependencies._descriptions import described, op_names
from tracekit.analysis.dependencies._job import (
    CAUSES,
    TRUSTED,
    Job,
    distrust,
    job_of,
    slack_of,
    stand_in,
)
from tracekit.analysis.dependencies._waits import SYNCHRONISES
from tracekit.analysis.facts import LEAST, leading_keys, most_by_share, with_words
from tracekit.analysis.idle_account import (
    covered,
    doubt_of_silence,
    merged,
    merged_in_batches,
    with_idle_causes,
)
from tracekit.analysis.statistics import Skip, kinds_of
from tracekit.model import Answer
from tracekit.support.wording import count, first_line, note, percent, time_text

if TYPE_CHECKING:
    from tracekit.analysis.traffic import Traffic
    from tracekit.model import Trace

_LENGTH = pl.col("end") - pl.col("start")
_MS = _PAUSE_NS = 10**6
_RETURNS_NS = 50_000
"""Longest time from the end of work to the return of a wait for it, ns: 12 us in real traces."""
_CAUSE = pl.Enum(CAUSES)
_DONE = ("work", "transfer")
_HOST = ("host", "call", "handover")
_IS_INPUT = pl.col("kind").is_in(["loader", "wait", "pace"]) | (
    pl.col("kind").is_in(_HOST) & pl.col("loads").fill_null(value=False)
)
_PAUSES = ("input", "between_steps", "off_cpu")
"""Causes of idle time that are no work of the host."""
_NAMELESS = {"name": "(no op: host or waiting)", "iteration": "(whole run)"}
"""What people read where no op works, and of a run without iterations."""


def critical_path(
    trace: Trace,
    traffic: Traffic,
    keys: Sequence[str],
    *,
    skip: Skip,
    iterations: tuple[int, int] | None,
    kernels: int | None,
) -> Answer:
    """Sum up the critical paths of steps by `keys`, or list the ops that take longest on them.

    `kernels` is the number of ops to list; None sums up by `keys`.
    """
    job = job_of(trace, traffic, skip, iterations)
    columns = ["name" if key == "kernel" else key for key in keys]
    sums, spans = _summed(job, columns)
    meta = _meta(job, sums, spans)
    if kernels is not None:
        rows, readable = _by_kernel(job, meta).head(kernels), None
        title = f"the {kernels} ops that take longest on the critical path"
    else:
        rows = _shared(sums, columns, meta)
        readable, title = with_words(rows, _NAMELESS), f"critical path by {', '.join(keys)}"
    return Answer(
        rows=rows, meta=meta, readable=readable, title=title, command="critical-path",
        figures={"figure": "critical path"}, source=functools.partial(_by_step, sums),
    )  # fmt: skip


def path_spans(trace: Trace, traffic: Traffic, step: int | None) -> pl.DataFrame:
    """Return the critical path of one step, or of a run without steps, as spans.

    Returns
    -------
    ``start, end, cause, stage, name`` (of the op), times in ns, without gaps or overlaps; `name` is
    null if no op runs. Lengths by cause add up to the times that `critical_path` gives for the
    step.

    Raises
    ------
    MissingDataError
        As for `job_of`.
    """
    job = job_of(trace, traffic, 0, None if step is None else (step, step))
    parts = pl.concat(_parts(job, ["name"])).sort("start", "end")
    return parts.select("start", "end", pl.col("cause", "stage", "name").cast(pl.String))


def _summed(job: Job, keys: Sequence[str]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Sum up the intervals of critical paths by step, cause, stage and `keys`.

    Returns
    -------
    sums
        ``iteration, cause, stage, rank``, `keys`, ``segments`` (number), ``path_ns``, and ``begun``
        (start of the first, ns).
    spans
        ``cause, process, start, end`` of intervals in which the host makes no calls (cause
        ``host``), or in which a data loader is inferred to work (``input``).
    """
    columns = [name for name in ("device", "name", "link") if name in keys]
    groups = ["step", "cause", "stage", "process", *columns]
    # Edges of input count as host in runs without input.
    of_host = ~pl.col("kind").is_in(["call", "handover"]) & (pl.col("cause") == "host")
    silent = pl.col("kind").is_in(["loader", "pace", "host", "handover"])
    inferred = silent & (pl.col("cause") == "input")
    found, spans = [], []
    for parts in _parts(job, columns):
        found.append(parts.group_by(groups).agg(
            segments=pl.len().cast(pl.Int64), path_ns=_LENGTH.sum(), begun=pl.col("start").min()
        ))  # fmt: skip
        spans.append(parts.filter(of_host | inferred).select("cause", "process", "start", "end"))
    sums = pl.concat(found).group_by(groups).agg(
        pl.col("segments", "path_ns").sum(), pl.col("begun").min()
    )  # fmt: skip
    named = sums.with_columns(
        pl.col("cause", "stage", "^(name|link)$").cast(pl.String),
        iteration=job.bounds["iteration"].gather(sums["step"]),
    )
    ranks = process_ranks(job.trace).select("process", "rank")
    return named.join(ranks, on="process", how="left"), pl.concat(spans)


def _parts(job: Job, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
    """Yield the intervals of critical paths, in batches, with their cause.

    A segment follows one edge. It gives an interval as long as that edge and, if the recorded time
    was longer, one more with the cause ``unexplained``.

    Parameters
    ----------
    columns
        Further columns to return, from ``device, name, link``; the last two are null except in time
        in which an op runs.

    Returns
    -------
    The columns of `Dependencies.paths` and `described`, with ``cause``.
    """
    about = described(job.trace, job.moments, job.traffic, columns)
    # Where nothing is input, who is away while the GPU works waits for none.
    fed = [job.trace[name].filter(stage="IO").head(1) for name in ("ops", "ranges")]
    has_input = any(rows.collect().height for rows in fed)
    kind, is_work = pl.col("kind"), pl.col("cause").is_in(["gpu", "comm", "copy"])
    waits = (_IS_INPUT | (kind == "host")) & (pl.col("cause") != "unexplained")
    is_pause = waits & (_LENGTH > _PAUSE_NS)
    until, pauses = pl.col("start") + pl.col("explained"), []
    for segments in job.found.paths(job.bounds):
        known = segments.with_columns(about.select(pl.all().gather(segments["target"] // 2)))
        explained = known.filter(pl.col("explained") > 0).with_columns(
            end=until, cause=_cause("input" if has_input else "host")
        )
        late = known.filter(pl.col("explained") < _LENGTH).with_columns(
            start=until, cause=pl.lit("unexplained", _CAUSE)
        )
        parts = pl.concat([explained, late]).with_columns(
            pl.when(is_work).then(name).alias(name) for name in columns if name != "device"
        )
        pauses.append(parts.filter(is_pause))
        yield parts.filter(~is_pause)
    yield _named(job.trace, pl.concat(pauses))


def _cause(of_input: str) -> pl.Expr:
    """Return an edge's cause, such as ``gpu`` for ops; `of_input` is that of edges of input."""
    moves = {"comm": "comm", "host_copy": "copy"}
    return (
        pl.when(pl.col("kind").is_in(_DONE))
        .then(pl.col("work").replace_strict(moves, default="gpu", return_dtype=_CAUSE))
        .when(_IS_INPUT).then(pl.lit(of_input))
        .when(pl.col("kind").is_in(_HOST)).then(pl.lit("host"))
        .otherwise(pl.lit("latency")).cast(_CAUSE)
    )  # fmt: skip


def _named(trace: Trace, pauses: pl.DataFrame) -> pl.DataFrame:
    """Replace the cause of pauses (long intervals without calls) if the host did no work in them.

    The new cause (waiting for input, between steps, off the CPU) is that of the analysis `idle`.
    """
    if pauses.is_empty():
        return pauses
    named = with_idle_causes(trace, pauses)
    idle = pl.when(pl.col("idle").is_in(_PAUSES)).then("idle").cast(_CAUSE)
    return named.with_columns(cause=pl.coalesce(idle, "cause")).drop("idle")


def _by_step(sums: pl.DataFrame) -> pl.DataFrame:
    """Return ``iteration, part, path_ns`` for figures; part: a cause, or the stage of GPU work."""
    staged = pl.coalesce(pl.format("gpu, {}", "stage"), "cause")
    part = pl.when(pl.col("cause") == "gpu").then(staged).otherwise("cause")
    found = sums.group_by("iteration", part=part).agg(
        pl.col("path_ns").sum(), pl.col("begun").min()
    )
    return found.sort(pl.col("begun").min().over("iteration"), "part").drop("begun")


def _shared(sums: pl.DataFrame, keys: Sequence[str], meta: dict[str, Any]) -> pl.DataFrame:
    steps, order, length = meta["steps"], ["path_ns", *keys], pl.col("path_ns").sum()
    if "iteration" in keys:  # of which each has one step
        steps, order = 1, ["iteration", *order]
    rows = sums.group_by(keys).agg(
        pl.col("segments").sum(),
        path_ns=length,
        step_ns=length / steps,
        share=length / meta["steps_ns"],
    )
    return rows.sort(order, descending=[key == "path_ns" for key in order], nulls_last=True)


def _by_kernel(job: Job, meta: dict[str, Any]) -> pl.DataFrame:
    """Return the ops of the steps by name, with their time on the critical path, longest first."""
    done = pl.concat(
        segments.filter(pl.col("kind").is_in(_DONE)).select("target", path_ns="explained")
        for segments in job.found.paths(job.bounds)
    )
    op = job.moments.ops["op"].gather((done["target"] - job.moments.first_of_ops) // 2)
    on_path = done.group_by(op).agg(pl.col("path_ns").sum())
    first, last = job.bounds["start"].min(), job.bounds["end"].max()
    inside = job.moments.ops.filter((pl.col("start") >= first) & (pl.col("start") < last)).select(
        "op", pl.col("stage").cast(pl.String)
    )
    names = op_names(job.trace).with_columns(pl.col("name").cast(pl.String))
    length = pl.col("path_ns").sum()
    return (
        inside.join(names, on="op").join(on_path, on="op", how="left")
        .join(slack_of(job), on="op", how="left")
        .group_by("name", "stage")
        .agg(
            ops=pl.len().cast(pl.Int64),
            on_path=(pl.col("path_ns") > 0).sum().cast(pl.Int64),
            path_ns=length,
            step_ns=length / meta["steps"],
            share=length / meta["steps_ns"],
            slack_min_ns=pl.col("slack_ns").min(),
            slack_p50_ns=pl.col("slack_ns").median(),
        )
        .sort("path_ns", "name", "stage", descending=[True, False, False])
    )  # fmt: skip


def _meta(job: Job, sums: pl.DataFrame, spans: pl.DataFrame) -> dict[str, Any]:
    """Return the metadata of a table of critical paths, from both results of `_summed`."""
    lengths = job.bounds["end"] - job.bounds["start"]
    late, fed = (sums.filter(cause=cause)["path_ns"].sum() for cause in ("unexplained", "input"))
    share = int(late) / int(lengths.sum()) if lengths.sum() else None
    doubt = job.found.batches.doubt(job.bounds) if fed > LEAST * int(lengths.sum()) else ""
    launched: float = job.moments.ops.select(pl.col("called").mean()).item()
    busy = merged_in_batches(job.trace["ops"], ["process"])
    untold, some = _beside_work(job, spans.filter(cause="host"), busy)
    beside = _loaded_beside(job, spans.filter(cause="input"), busy)
    may_wait = untold > LEAST * int(lengths.sum())
    unseen = (
        f"{percent(untold / max(int(lengths.sum()), 1))} of these steps, counted as host, may wait "
        "for the GPU: no call is made until all work has ended, and synchronisations may be lost"
    )
    warnings = [
        *stand_in(job), *_kinds(lengths), *distrust(share), *filter(None, [doubt]),
        *([unseen] if may_wait and some else []), *doubt_of_silence(job.trace),
    ]  # fmt: skip
    return {
        "steps": job.bounds.height,
        "steps_ns": int(lengths.sum()),
        "step_p50_ns": int(lengths.quantile(0.5, "nearest") or 0),
        "sum_over": f"{count(job.bounds.height, 'step')} of {job.gpus}",
        **job.left_out,
        "unexplained_share": share,
        "contradicted": job.found.contradicted,
        **({"host_or_wait_ns": untold} if may_wait and not some else {}),
        **({"input_beside_ns": beside} if beside > TRUSTED * int(lengths.sum()) else {}),
        **({"launched": launched} if launched < 1 - LEAST else {}),
        "shares": "share: path_ns / steps_ns, the length of these steps",
        **({"warnings": warnings} if warnings else {}),
    }


def _beside_work(job: Job, host: pl.DataFrame, busy: pl.DataFrame) -> tuple[int, bool]:
    """Return how long, ns, GPUs run during path time without host calls: the host may wait.

    `host` has the intervals of the path without calls, `busy` those in which ops of each process
    run, merged. The second value is whether any synchronisation was recorded: if so, an interval of
    `host` counts only if it is long and ends just after the GPUs ran out of work, as a wait does.
    """
    moments = job.moments
    waits = job.trace["syncs"].filter(pl.col("type") != "stream_wait_event")
    known = job.trace["calls"].join(waits, on=["process", "correlation"], how="semi").head(1)
    some = bool(moments.calls_named(SYNCHRONISES).height or known.collect().height)
    if some:
        ends = busy.select("process", "start", until="end")
        host = host.filter(_LENGTH > _PAUSE_NS).sort("end").join_asof(
            ends, left_on="end", right_on="start", by="process", suffix="_of_work",
            check_sortedness=False,
        ).filter((pl.col("end") - pl.col("until")).is_between(0, _RETURNS_NS))  # fmt: skip
    return int(covered(host, busy, ["process"], "beside")["beside"].sum()), some


def _loaded_beside(job: Job, spans: pl.DataFrame, busy: pl.DataFrame) -> int:
    """Return how long, ns, GPUs run (`busy`) during path time of data loaders (`spans`)."""
    waits = job.found.batches.taken.filter("waited").select(
        "process", "end", start=pl.col("end") - pl.col("length")
    )
    busy = busy.select(waits.columns)
    for name, blocks in (("waited", waits), ("both", pl.concat([waits, busy]))):
        spans = covered(spans, merged(blocks, ["process"]), ["process"], name)
    return int((spans["both"] - spans["waited"]).sum())


def _kinds(lengths: pl.Series) -> list[str]:
    """Return a sentence if step lengths have several modes: number of steps and median of each."""
    kinds = kinds_of(lengths.to_numpy())
    each = [f"{len(kind):,} of {float(np.median(kind)) / _MS:,.2f} ms" for kind in kinds]
    return [f"steps are of {len(each)} kinds: {' and '.join(each)} (medians)"] if each else []


@first_line("critical-path")
def _first_line(rows: pl.DataFrame, meta: Mapping[str, Any]) -> str | None:
    if "segments" not in rows.columns or "iteration" in rows.columns:
        return None
    sentence = f"The critical path is {most_by_share(rows, leading_keys(rows))}"
    if untold := meta.get("host_or_wait_ns"):
        may_wait = f"host includes {percent(untold / meta['steps_ns'])} that may be waiting"
        sentence += f"; {may_wait} for the GPU, as no synchronisation was recorded"
    if beside := meta.get("input_beside_ns"):
        sentence += f"; input includes {percent(beside / meta['steps_ns'])} in which GPUs work"
        sentence += " and a loader that is waited for is taken to work, too"
    lost: float = 1 - meta.get("launched", 1)
    return sentence + f"; the launch of {percent(lost)} of ops is unknown" * (lost > 0)


note("steps_ns")(lambda value: [f"these steps: {time_text(value)}"])
note("host_or_wait_ns")(lambda value: [f"host, or waiting for the GPU: {time_text(value)}"])
note("input_beside_ns")(lambda value: [f"input, beside work of GPUs: {time_text(value)}"])
note("contradicted")(
    lambda value: (
        [f"left out: {count(value, 'dependency')} that would run against time"] if value else []
    )
)
