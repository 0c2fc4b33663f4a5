"""Predict step times after a change, also a proposed remedy, by replaying dependencies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from tracekit.analysis.dependencies._changes import (
    WORKERS,
    Bucket,
    Change,
    Host,
    Loader,
    NoSync,
    Overlap,
    Speed,
    Workers,
    exchanged_bytes,
    parse_changes,
)
from tracekit.analysis.dependencies._descriptions import UNTOLD
from tracekit.analysis.dependencies._edges import HOLDS_NOTHING
from tracekit.analysis.dependencies._job import (
    TRUSTED,
    Job,
    distrust,
    job_of,
    stand_in,
)
from tracekit.analysis.dependencies._peers import Stragglers, slow_link, unlike, with_peers
from tracekit.analysis.dependencies._sweeps import late_on_paths
from tracekit.analysis.facts import LEAST
from tracekit.analysis.idle_account import merged
from tracekit.analysis.statistics import Skip
from tracekit.errors import UndecidedError, UsageError
from tracekit.model import Answer
from tracekit.support.compiled import compiled, given
from tracekit.support.wording import duration, first_line, note, percent, printable, unsaid

if TYPE_CHECKING:
    from tracekit.analysis.dependencies._sweeps import Array
    from tracekit.analysis.traffic import Traffic
    from tracekit.model import Trace


MEASURED, UNCHANGED, ALL = "measured", "unchanged, replayed", "all of these"
WIDEST = 0.2
"""Widest range, as a share of the measured step, for which a number is given."""
_OWN_NS = 1_500
"""Least time that a waiting call takes beside its wait."""
_PREPARED_NS = 10_000
"""Most time that a thread takes to prepare such a call."""
_OFF = 0.01
"""By how much of a step replays of changes are off beside (docs/evidence/whatif.md)."""
_MANY = 1_000
"""Ends of a range from so many ms on are printed without decimals."""
_ROWS = pl.Schema(
    {"change": pl.String(), "dependencies": pl.Int64(), "step_ns": pl.Float64(),
     "low_ns": pl.Float64(), "high_ns": pl.Float64(), "saved_ns": pl.Float64(),
     "saved_share": pl.Float64(), "speedup": pl.Float64(), "unexplained_share": pl.Float64()}
)  # fmt: skip


def whatif(
    trace: Trace,
    traffic: Traffic,
    changes: Sequence[Change | Workers | Stragglers],
    *,
    skip: Skip = 0,
    iterations: tuple[int, int] | None = None,
) -> Answer:
    """Predict step times after changes; `questions.py` lists options and columns.

    The dependency graph of the run is replayed: each call and op starts as soon as everything that
    it waits for has ended, and takes as long as recorded. Recorded delays that no dependency
    explains are kept. ``docs/whatif.md`` describes replays, and how well they predicted real
    changes. There is one row for the measured steps, one for the unchanged replay, one for each
    change alone and, for several changes, one for all together.

    Parameters
    ----------
    changes
        The changes, from `parse_changes`.
    iterations
        First and last step to replay, if `trace` comes from `some_steps`.

    Raises
    ------
    UsageError
        If skipping would leave no iteration, or a pattern matches no kernel.
    MissingDataError
        As `critical_path`.
    UndecidedError
        If the predicted range is wider than a fifth of a step for every change.
    """
    job = job_of(trace, traffic, skip, iterations)
    if any(isinstance(each, Stragglers) for each in changes):
        job = with_peers(job)
    known = [own for each in changes for own in _known(job, each)]
    base = _unchanged(job)
    error = _error(job, base)
    recorded = _unexplained(job, job.graph.time, job.bounds)
    measured = _Replay(MEASURED, 0, job.bounds, job.bounds, recorded)
    replays = [measured, base, *(_replayed(job, base, each.label, [each]) for each in known)]
    if len(known) > 1:
        replays.append(_replayed(job, base, ALL, known))
    _require_kernels(known, replays[2:])
    off = max(error or 0.0, _OFF)
    if not any(each.is_told(measured, off) for each in replays[2:]):
        raise UndecidedError(
            "; ".join(_untold(job, each, off) for each in replays[2:]), _narrower(job, known)
        )  # fmt: skip
    share = max((each.unexplained or 0.0 for each in replays), default=0.0)
    untold = [_untold(job, each, off) for each in replays[2:] if not each.is_told(measured, off)]
    return Answer(
        rows=pl.DataFrame([_row(each, measured, base, off) for each in replays], schema=_ROWS),
        meta={
            "steps": job.bounds.height,
            "per": f"step of {job.gpus}",
            **job.left_out,
            "replay_error_share": error,
            "unexplained_share": recorded,
            **({"causes": [slow_link(job)]} if Stragglers("link") in changes else {}),
            "trusted": recorded is not None and share <= TRUSTED,
            "warnings": [
                *stand_in(job),
                *distrust(share),
                *untold,
                *_unmatched(job, known, replays),
                *unlike(job, known),
                *_assumed(job),
            ],
        },
        title="steps with something changed, by replay",
        command="whatif",
        figures={"figure": "whatif"},
    )


def _known(job: Job, change: Change | Workers | Stragglers) -> Sequence[Change]:
    """Return the changes to replay: those that depend on the run (workers, stragglers) resolved."""
    if isinstance(change, Stragglers):
        return change.known(job)
    return [change.known(job.found.batches.workers) if isinstance(change, Workers) else change]


@dataclass(frozen=True)
class _Replay:
    """Predicted step lengths after one or several changes, ns: lower and upper bounds."""

    label: str
    edges: int
    shortest: pl.DataFrame
    longest: pl.DataFrame
    unexplained: float | None
    least_ns: float = 0.0

    @property
    def low_ns(self) -> float:
        """Lower bound of the mean step."""
        return max(_mean(self.shortest), self.least_ns)

    @property
    def high_ns(self) -> float:
        """Upper bound of the mean step."""
        return max(_mean(self.longest), self.low_ns)

    def is_told(self, measured: _Replay, error: float) -> bool:
        """Test whether one value can be stated: whether the bounds of the predicted step are close.

        They are widened by the relative `error` of the unchanged replay first, and compared with
        the `measured` step.
        """
        width = (1 + error) * self.high_ns - (1 - error) * self.low_ns
        return width <= WIDEST * measured.low_ns


def _lengths(bounds: pl.DataFrame) -> pl.Series:
    return bounds["end"] - bounds["start"]


def _mean(bounds: pl.DataFrame) -> float:
    mean: Any = _lengths(bounds).mean()
    return float(mean)


def _unchanged(job: Job) -> _Replay:
    """Replay a job's graph as it is."""
    time = job.graph.replayed()
    bounds = job.steps(time)
    late = _unexplained(job, time, bounds)
    return _Replay(UNCHANGED, 0, bounds, bounds, late)


def _replayed(job: Job, base: _Replay, label: str, changes: Sequence[Change]) -> _Replay:
    """Replay a job's graph with changes twice: with unknown lengths at their least, and at most.

    `base` is the unchanged replay, `label` the text for these changes.
    """
    number = 0
    for change in changes:
        if isinstance(change, Bucket | Overlap):
            job, made = change.made(job)
            number += made
    slowest, fastest = _submitted(job, changes)
    # A faster loader may shorten the time from one batch to the next.
    paces = (pl.col("kind") == "pace") & any(isinstance(each, Loader) for each in changes)
    touched = pl.any_horizontal(paces, *(each.touches() for each in changes)).fill_null(value=False)
    number += fastest.edges.select(touched.sum()).item()
    if not number:
        return replace(base, label=label)
    slow = _changed(_ended(slowest, changes, slowest=True), changes, slowest=True)
    time = slowest.graph.replayed(slow["weight"])
    longest = job.steps(time)
    fast = _changed(_ended(fastest, changes, slowest=False), changes, slowest=False)
    # What nothing explains in steps is as long as it was, or shorter as they are.
    graph = fastest.graph
    share = min(1.0, _mean(job.steps(graph.replayed(fast["weight"]))) / _mean(base.shortest))
    inside = graph.time > job.bounds["start"].min()
    delays = np.where(inside, share, 1.0) * graph.delays
    delays = delays.astype(graph.delays.dtype)
    shortest = job.steps(graph.replayed(fast["weight"], delays))
    overlaps = any(isinstance(each, Overlap) for each in changes)
    least = _least_ns(job, fast) if overlaps else 0.0
    late = _unexplained(slowest, time, longest, slow["weight"])
    return _Replay(label, number, shortest, longest, late, least)


def _submitted(job: Job, changes: Sequence[Change]) -> tuple[Job, Job]:
    """Return two jobs: one to replay for the upper bound of step times, one for the lower.

    Both are `job` itself unless the host launches faster. Then the delay of an op during its
    launching call counts as waiting for the call, which gets shorter; only for the lower bound if
    some op started before its call returned, since this is uncertain then.
    """
    if not any(isinstance(each, Host) for each in changes):
        return job, job
    ops = job.moments.ops.drop_nulls("launch")
    calls = job.moments.launching(ops).select(began="start", until="end")
    late = (
        ops.with_columns(calls)
        .with_columns(late=pl.lit(pl.Series(job.graph.delays)).gather(pl.col("begin")))
        .filter(pl.col("late") > 0)
        .select("start", "until", target="begin",
                within=pl.min_horizontal("late", pl.col("until") - pl.col("began")))
    )  # fmt: skip
    delays = job.graph.delays.copy()
    delays[late["target"].to_numpy()] -= late["within"].to_numpy()
    own = job.graph.edges.select("target").join(
        late.select("target", "within"), on="target", how="left", maintain_order="left"
    )["within"]  # fmt: skip
    longer = pl.when(pl.col("kind") == "launch").then(own).otherwise(None).fill_null(0)
    edges = job.graph.edges.with_columns(weight=pl.col("weight") + longer)
    graph = replace(job.graph, edges=edges, delays=delays)
    moved = job.changed(graph, job.edges.with_columns(edges["weight"]))
    is_sure = late.select((pl.col("start") >= pl.col("until")).all()).item()
    return (moved if is_sure else job), moved


def _changed(edges: pl.DataFrame, changes: Sequence[Change], *, slowest: bool) -> pl.DataFrame:
    """Return edges with the lengths that changes give them: at most (`slowest`) or at least."""
    for each in changes:
        new = pl.when(each.touches()).then(each.length(slowest=slowest)).otherwise("weight")
        edges = edges.with_columns(weight=new)
    return edges


def _ended(job: Job, changes: Sequence[Change], *, slowest: bool) -> pl.DataFrame:
    """Return a job's edges with all unknown lengths at their largest (`slowest`) or smallest.

    - A batch taken without a wait was ready either long before, or only just when it was taken.
    - Copies between host and GPUs either compete with no other copies, or take as long as equal
      copies on the GPU where these take longest.
    - A thread without calls before it took a batch slept, or did work of its own, unless the
      operating system recorded which.
    - A waiting call takes 1.5 to 10 us itself. If the host need not wait, it does not make the call
      either, nor the copy whose bytes the call waits for.
    """
    edges, kind = job.edges, pl.col("kind")
    if slowest:
        paces = job.found.batches.paced.select("target", source="before", weight="pace")
        paced = _rows(edges, kind == "pace").drop("weight").join(paces, on=["source", "target"])
        return _met(job, _with_lengths(edges, paced))
    if not job.found.batches.asleep:
        loaded = edges.filter(kind == "loader")["target"].unique().implode()
        own, time = _rows(edges, (kind == "wait") & pl.col("target").is_in(loaded)), job.graph.time
        lag = pl.Series(time[own["target"]] - time[own["source"]])
        free = pl.when(kind == "loader").then(HOLDS_NOTHING).otherwise("weight")
        edges = _with_lengths(edges, own.with_columns(weight=lag)).with_columns(weight=free)
    waits = edges.filter(kind.is_in(["return", "block", "queue"]))
    waiting = (kind == "call") & pl.col("target").is_in(waits["target"].unique().implode())
    edges = edges.with_columns(
        weight=pl.when(waiting).then(pl.col("weight").clip(upper_bound=_OWN_NS)).otherwise("weight")
    )
    if any(isinstance(each, NoSync) for each in changes):
        return _without_fetches(job, edges)
    return edges


def _met(job: Job, edges: pl.DataFrame) -> pl.DataFrame:
    """Lengthen copies between host and GPUs to the median time of equal ones on the slowest GPU.

    Copies that take longer keep their time. GPUs share links to the host: at another time a copy
    may compete with others.
    """
    like = ["op_kind", "bytes", "link"]
    is_copy = pl.col("op_kind").is_in(["h2d", "d2h"]) & pl.col("kind").is_in(["work", "transfer"])
    sizes = job.trace["ops"].select("op", "bytes").collect()
    copies = _rows(edges, is_copy).join(sizes, on="op", how="left")
    by_device = copies.group_by(*like, "device").agg(pl.col("weight").median())
    of_several = by_device.filter(pl.len().over(like) > 1).group_by(like)
    longest = of_several.agg(longest=pl.col("weight").max().cast(pl.Int64))
    known = copies.join(longest, on=like, nulls_equal=True)
    return _with_lengths(edges, known.with_columns(weight=pl.max_horizontal("weight", "longest")))


def _rows(edges: pl.DataFrame, which: pl.Expr) -> pl.DataFrame:
    """Return the edges for which `which` is true, with their row number ``row``."""
    return edges.with_row_index("row").filter(which)


def _with_lengths(edges: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """Return `edges` with new lengths ``weight`` in the rows whose numbers are ``row``."""
    return edges.with_columns(edges["weight"].clone().scatter(rows["row"], rows["weight"]))


def _without_fetches(job: Job, edges: pl.DataFrame) -> pl.DataFrame:
    """Return edges of a job without waiting calls on the host, and without the copies they fetch.

    Host time before such a call, up to `_PREPARED_NS`, counts as its preparation and is removed
    too.
    """
    moments = job.moments
    returns = edges.filter(kind="return")["target"].unique()
    waiting = moments.calls.filter(pl.col("finish").is_in(returns.implode()))
    fetches = moments.ops.filter(pl.col("kind").cast(pl.String) == "d2h")
    fetching = moments.launching(fetches.drop_nulls("launch"))
    calls = pl.concat([waiting, fetching]).unique("begin")
    ends = pl.concat([calls["finish"], fetches["finish"]]).implode()
    does = pl.col("kind").is_in(["call", "work"]) & pl.col("target").is_in(ends)
    prepares = (pl.col("kind") == "host") & pl.col("target").is_in(calls["begin"].implode())
    rest = (pl.col("weight") - _PREPARED_NS).clip(lower_bound=0)
    return edges.with_columns(
        weight=pl.when(does).then(0).when(prepares).then(rest).otherwise("weight")
    )


def _unexplained(
    job: Job, time: Array, bounds: pl.DataFrame, lengths: pl.Series | None = None
) -> float | None:
    """Return the share of replayed critical paths that lengths of edges do not explain.

    `time` is the replayed time of each node, ns; `bounds` are the steps; `lengths`, those replayed.
    """
    ends = given(bounds["sink"], np.int64), given(bounds["start"], np.int64)
    total = int(_lengths(bounds).sum())
    late = compiled(late_on_paths, time.size)(ends, job.graph.into(lengths), time)
    return late / total if total else None


def _least_ns(job: Job, edges: pl.DataFrame) -> float:
    """Return the time in which bytes move between GPUs, on the GPU where that is longest."""
    first, last = job.bounds["start"].min(), job.bounds["end"].max()
    done = edges.filter(pl.col("kind").is_in(["work", "transfer"]), pl.col("work") == "comm")
    took = done.group_by("op").agg(took=pl.col("weight").max())
    ops = job.moments.ops.filter(pl.col("start").is_between(first, last, closed="left"))
    spans = ops.join(took, on="op").with_columns(start=pl.col("end") - pl.col("took"))
    length = (pl.col("end") - pl.col("start")).sum()
    moving = merged(spans, ["device"]).group_by("device").agg(length=length)
    most: Any = moving["length"].max() or 0
    return float(most) / job.bounds.height


def _error(job: Job, base: _Replay) -> float | None:
    """Return the median over steps of the unchanged replay's error as a fraction of the step.

    The error is the difference of replayed and measured length.
    """
    measured = _lengths(job.bounds)
    median: Any = ((_lengths(base.shortest) - measured).abs() / measured).median()
    return None if median is None else float(median)


def _row(replay: _Replay, measured: _Replay, base: _Replay, error: float) -> dict[str, Any]:
    unchanged, is_measured = base.low_ns, replay is measured
    is_told = replay.is_told(measured, error)
    step = (replay.low_ns + replay.high_ns) / 2 if is_told else None
    compared = step is not None and not is_measured and bool(unchanged)
    return {
        "change": replay.label,
        "dependencies": replay.edges,
        "step_ns": step,
        "low_ns": None if is_measured else replay.low_ns * (1 - error),
        "high_ns": None if is_measured else replay.high_ns * (1 + error),
        "saved_ns": unchanged - step if compared and step is not None else None,
        "saved_share": 1 - step / unchanged if compared and step is not None else None,
        "speedup": unchanged / step if compared and step else None,
        "unexplained_share": replay.unexplained,
    }


def _untold(job: Job, replay: _Replay, error: float) -> str:
    """Return a sentence: the predicted range of a step, and why it is too wide for one value.

    The range is widened by the relative `error` that the unchanged replay has.
    """
    low, high = replay.low_ns * (1 - error) / 1e6, replay.high_ns * (1 + error) / 1e6
    ends = " and ".join(f"{each:{',.0f' if each >= _MANY else '.4g'}}" for each in (low, high))
    why = ""
    if not job.found.batches.taken.is_empty():
        why = ": how fast batches of input come that nothing waits for is not recorded"
    if replay.label.startswith("loader") and not job.moments.loaders.is_empty():
        why = ": whether threads that load work or rest between their calls is not recorded"
    if replay.label == NoSync.label:
        why = ": what calls that wait take, if they are still made, is not recorded"
    if replay.label.endswith(WORKERS):
        why = ": how much workers slow each other is not recorded"
    what = "a step" if job.has_steps else "the whole recording"
    return f"{replay.label}: {what} would be between {ends} ms{why}"


def _narrower(job: Job, changes: Sequence[Change]) -> str:
    """Return advice: the `whatif` options that give a narrower range if a step's is too wide."""
    is_open = not job.found.batches.taken.is_empty()
    if is_open and not any(isinstance(each, Loader) for each in changes):
        return "ask with --loader inf if batches are ready, or for a smaller change"
    return "ask for a smaller change"


def _assumed(job: Job) -> list[str]:
    """Return a note on the processes assumed to be loader workers (none is recorded as one)."""
    forks = job.found.batches.forks
    if forks is None:
        return []
    who = "the process" if forks == 1 else f"the {forks:,} processes"
    verb = "is its only worker" if forks == 1 else "are its workers"
    return [f"assumed of the loader: {who} forked before the first batch {verb}"]


def _require_kernels(changes: Sequence[Change], alone: Sequence[_Replay]) -> None:
    """Raise `UsageError` if the name pattern of a change matches no kernel."""
    for change, found in zip(changes, alone, strict=False):
        if isinstance(change, Speed) and change.name is not None and not found.edges:
            raise UsageError(
                f"{change.label}: no kernel of these steps has such a name",
                "`tracekit breakdown --by kernel` lists the names that there are",
            )


def _unmatched(job: Job, changes: Sequence[Change], replays: Sequence[_Replay]) -> list[str]:
    """Return warnings on changes that have no effect, or an uncertain one, in this run."""
    alone = replays[2 : 2 + len(changes)]
    texts = [f"{each.label}: it changes no dependency that is known of this run"
             for each in alone if not each.edges]  # fmt: skip
    asked = [(each.size, found.edges) for each, found in zip(changes, alone, strict=True)
             if isinstance(each, Bucket)]  # fmt: skip
    texts += [_unsplit(job, size, edges) for size, edges in asked]
    if any(isinstance(each, Loader) for each in changes):
        texts.append(_waited_for_input(job))
    untold = job.edges.filter(pl.col("link") == UNTOLD)["op"].n_unique()
    if untold and any("bandwidth" in each.label for each in changes):
        texts.append(
            f"{untold} transfers cross unknown links: give the machine (--topology), or use"
            " --bandwidth collective=2x"
        )
    return [text for text in texts if text]


def _waited_for_input(job: Job) -> str:
    """Return a warning if no wait for a data loader is known, or known ones may be other work."""
    if job.found.batches.taken.filter("waited").is_empty():
        return (
            "no wait for a loader is known: ranges around it show it, or calls of the operating "
            "system in which a thread sleeps (nsys records these with -t osrt)"
        )
    return job.found.batches.doubt(job.bounds)


def _unsplit(job: Job, size: int, edges: int) -> str:
    """Return a note on all-reduces that a bucket `size` (bytes) leaves as they are, and why.

    `edges` is the number of edges of the dependency graph that it changes.
    """
    sizes = exchanged_bytes(job)
    larger = sizes.filter(sizes > size)
    if larger.len():
        return (
            f"bucket {size / 1e6:g}MB: {larger.len()} of {sizes.len()} all-reduces of known size "
            "are larger and stay as they are: the tensors of a bucket, and when each is ready, "
            "are not recorded. Record with the buckets that you mean"
        )
    if not edges:
        return (
            "no all-reduces that follow each other are smaller, or their sizes were not recorded"
            " (--bytes all_reduce=25MB gives them)"
        )
    return ""


# -- prices of findings ------------------------------------------------------------------------


_MS = 10**6


def _faster(names: str, factor: str) -> tuple[str, Mapping[str, Any]]:
    """Return the `whatif` option by which kernels that match `names` get faster by `factor`.

    It is returned as text, and as keyword argument.
    """
    return f"--speed '{names}={factor}'", {"speed": [f"{names}={factor}"]}


_FP32_PRODUCTS = (
    r"sgemm|scudnn|simt|ffma|f32f32_f32f32|fmha_cutlass._f32|(gem[mv]|conv)\w*<(int, )*float"
)
CHANGES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "input_bound": ("--loader inf", {"loader": "inf"}),
    "sync_in_loop": ("--no-sync", {"no_sync": True}),
    "exposed_collectives": ("--overlap", {"overlap": True}),
    "late_buckets": ("--overlap", {"overlap": True}),
    "small_buckets": ("--bucket 25MB", {"bucket": 25_000_000}),
    **dict.fromkeys(("launch_bound", "tiny_kernels", "busy_host"), ("--host 2x", {"host": "2x"})),
    "fp32_products": _faster(_FP32_PRODUCTS, "2x"),
    "layout_transposes": _faster("nchwTo|nhwcTo|NCHW2CNHW|CNHW2NCHW|batched_transpose_", "inf"),
    "unfused_elementwise": _faster("elementwise", "2x"),
}
"""The findings that a replay can price, by rule: how it is asked for, and the same in Python."""


@dataclass(frozen=True)
class Price:
    """Options of `tracekit whatif` for a change, and the predicted range of a step.

    The range is None if it is too wide to state.
    """

    options: str
    low_ns: float | None = None
    high_ns: float | None = None

    @property
    def text(self) -> str:
        """The predicted range of a step, in words."""
        if self.low_ns is None or self.high_ns is None:
            return "too wide a range to say"
        return f"a step of {self.low_ns / _MS:,.3f} to {self.high_ns / _MS:,.3f} ms"


def price_of(rule: str, trace: Trace, traffic: Traffic) -> Price | None:
    """Predict the step time after the remedy of a rule's finding; None if no replay simulates it.

    Parameters
    ----------
    rule
        Name of the rule of `tracekit diagnose`.
    trace, traffic
        As `whatif` takes them.

    Raises
    ------
    MissingDataError
        As `whatif`.
    """
    if rule not in CHANGES:
        return None
    options, changes = CHANGES[rule]
    try:
        rows = whatif(trace, traffic, parse_changes(**changes), skip="auto").rows
    except UndecidedError:
        return Price(options)
    except UsageError:  # kernels whose names say the same in other words
        return None
    row = rows.row(-1, named=True)
    return Price(options, row["low_ns"], row["high_ns"]) if row["dependencies"] else None


_SURE = 0.5
"""Largest width of a range, relative to the saving, at which a single number is given."""
_AS_RECORDED = {"measured", "unchanged, replayed", "all of these"}


@first_line("whatif")
def _first_line(rows: pl.DataFrame, meta: Mapping[str, Any]) -> str | None:
    """Return a sentence on the change that saves most, no more precise than its range allows.

    It is called the largest saving only if its lower bound exceeds the upper bound of all others.
    """
    base = rows.filter(change="unchanged, replayed")["step_ns"].drop_nulls()
    known = rows.filter(~pl.col("change").is_in(_AS_RECORDED)).drop_nulls("low_ns")
    if base.is_empty() or known.is_empty():
        return None
    least, most = base[0] - pl.col("high_ns"), base[0] - pl.col("low_ns")
    saved = known.select(
        "change", least=least, most=most,
        middle=pl.coalesce("saved_ns", (least + most) / 2),
        is_point=pl.col("saved_ns").is_not_null() & (most - least <= _SURE * pl.col("saved_ns")),
        saves=(pl.col("dependencies") > 0) & (pl.coalesce("saved_ns", most) > 0),
    ).filter("saves")  # fmt: skip
    if saved.is_empty():
        stays = rows.filter(change="unchanged, replayed")["unexplained_share"][0] or 0.0
        limit = f"; no change shortens the {percent(stays)} of the steps that are unexplained"
        return f"No change saves anything{limit if stays >= LEAST else ''}"
    best, *others = saved.sort("middle", descending=True).rows(named=True)
    ends = [best["middle"]] if best["is_point"] else [best["least"], best["most"]]
    text = " to ".join(f"{duration(ns)} ({percent(ns / base[0])})" for ns in ends if ns > 0)
    text += " at most" * (ends[0] <= 0)
    is_most = others and max(each["most"] for each in others) <= max(ends[0], 0)
    doubt = ", by a replay that is not to be trusted" if meta.get("trusted") is False else ""
    return f"{printable(best['change'])} would save {text}{', the most' * bool(is_most)}{doubt}"


note("trusted")(unsaid)
note("replay_error_share")(
    lambda value: [
        "the unchanged replay of a step is off by "
        + ("an unknown share" if value is None else f"{percent(value)} in the median")
    ]
)
