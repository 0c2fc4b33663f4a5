"""Input batches: when threads take them, which they wait for, and their rhythm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from tracekit.analysis.idle_account import covered, merged
from tracekit.engine import host_marks

if TYPE_CHECKING:
    from tracekit.analysis.dependencies._moments import Moments
    from tracekit.model import Trace

AWAITED_NS = 100_000
"""Time of a driving thread in input ranges or between steps that is a wait for the loader."""
AWAITED_SHARE = 0.1
"""A loader that works ahead and is waited for is waited for long: it takes longer than the rest."""
_RHYTHM = 3
"""Minimum number of waits at equal distances, in batches, that make a rhythm."""
_LONG, _USUAL = 0.25, 0.9
"""A wait for a group of batches takes at least so much of this percentile of all waits."""
_MOST_WORKERS = 64
_ASLEEP = 0.9
"""A thread waits, and does not work, where the operating system had it asleep for this share."""
_SLOWER = 1.25
"""A batch takes at most so much longer than the first one, for which a loader also starts."""
_LENGTH = pl.col("end") - pl.col("start")


@dataclass(frozen=True)
class Batches:
    """Batches that driving threads take.

    Parameters
    ----------
    taken
        ``process, thread, target, source, end, length, loading, own, lag, waited, before, between``
        by thread and time: the call with which a batch is taken begins at `end` and is the moment
        `target`, and copies it if `own`; the thread made no call for `length` before, and waited
        for `loading` of it if `waited`. `lag` is the time since the batch before, taken at
        `before`; `between` how many batches ago the last one was waited for.
    workers
        How many workers make them: as many processes are forked before the first batch, or that
        many batches come between two waits. Null where neither is recorded.
    forks
        How many processes are forked before the first batch, which are taken for its workers.
    asleep
        Whether the thread is known to have slept in these waits.
    most_ns
        A batch came no later than this after the one before, by the wait for the first one.
    """

    taken: pl.DataFrame
    workers: int | None
    forks: int | None
    asleep: bool
    most_ns: int | None

    @property
    def rhythmic(self) -> pl.DataFrame:
        """Waits of a loader that never rests, with ``first, since``: when it began not to.

        It makes batches whenever those before are taken, so that each is ready a time after the
        first of them.
        """
        near = (pl.col("between") <= pl.lit(self.workers, pl.Int64)).fill_null(value=False)
        waits = self.taken.filter("waited").with_columns(near=near)
        first = {
            name: pl.when(~pl.col("near")).then(column).forward_fill().over("thread")
            for name, column in (("first", "target"), ("began", "end"))
        }
        chained = waits.with_columns(**first).filter("near")
        return chained.with_columns(since=pl.col("end") - pl.col("began")).drop_nulls("first")

    @property
    def paced(self) -> pl.DataFrame:
        """All but the first, with ``pace``: the longest time since the one before.

        Of threads that copy no input themselves those that nothing waited for are not known.
        """
        most = pl.lit(self.most_ns, pl.Int64)
        pace = pl.when("waited").then("lag").otherwise(pl.min_horizontal("lag", most))
        return self.taken.filter("own").drop_nulls("before").with_columns(pace=pace)


def batches_of(trace: Trace, moments: Moments, gaps: pl.DataFrame) -> Batches:
    """Return the batches of a run; `gaps` are when threads make no call.

    A thread that launches copies of input takes a batch with the first of them in each iteration;
    of another one those are known that it waits for, in input ranges or between steps.
    """
    iterations = trace.read("iterations")
    driving = gaps.join(iterations.select("thread").unique(), on="thread", how="semi")
    ranges = trace["ranges"].filter(pl.col("stage") == "IO").select("thread", "start", "end")
    blocks = merged(pl.concat([ranges.collect(), _between(iterations)]), ["thread"])
    known = driving.with_columns(length=_LENGTH, loading=pl.lit(0, pl.Int64))
    if not blocks.is_empty():
        known = covered(known.drop("loading"), blocks, ["thread"], "loading")
    untold = ~pl.col("thread").is_in(blocks["thread"].unique().implode())
    known = known.with_columns(loading=pl.when(untold).then("length").otherwise("loading"))
    own = _own(moments).join(known.drop("thread", "process", "start", "end"), on="target",
                             how="left")  # fmt: skip
    others = known.join(own.select("thread").unique(), on="thread", how="anti").filter(
        ~untold & (pl.col("loading") >= AWAITED_NS)
    )  # fmt: skip
    columns = ["process", "thread", "target", "source", "end", "length", "loading"]
    both = [own.select(columns, own=True), others.select(columns, own=False)]
    taken = pl.concat(both).sort("thread", "end")
    return _described(trace, taken)


def _own(moments: Moments) -> pl.DataFrame:
    """Return ``process, thread, target, end``: launches of the first input of each iteration."""
    loads = pl.col("launch_thread").is_in(moments.loaders().implode())
    copies = moments.ops.filter((pl.col("stage") == "IO") & ~loads)
    first = copies.drop_nulls(["iteration", "call"]).sort("launch_start").unique(
        ["launch_thread", "iteration"], keep="first", maintain_order=True
    )  # fmt: skip
    calls = moments.calls.select("call", "process", "thread", target="begin", end="start")
    return first.select("call").join(calls, on="call")


def _described(trace: Trace, taken: pl.DataFrame) -> Batches:
    """Say which batches were waited for, and in which rhythm."""
    before = {"before": pl.col("target").shift(), "lag": pl.col("end") - pl.col("end").shift()}
    placed = taken.with_columns(
        **{name: value.over("thread") for name, value in before.items()},
        place=pl.int_range(pl.len(), dtype=pl.Int64).over("thread"),
    )
    is_long = pl.col("loading") >= AWAITED_SHARE * pl.col("lag").fill_null(0)
    waited = placed.with_columns(
        waited=((pl.col("loading") >= AWAITED_NS) & is_long).fill_null(value=False)
    )

    last = pl.when("waited").then("place").forward_fill().shift().over("thread")
    chained = waited.with_columns(between=pl.col("place") - last)
    waits = chained.filter("waited").drop_nulls("between")
    forked = _forked(trace, chained.filter(pl.col("place") == 0))
    first: Any = forked["wait"].max()
    counts = forked["forks"].drop_nulls().unique()
    forks = counts.item() if counts.len() == 1 else None
    return Batches(
        chained,
        _workers(waits) if forks is None else forks,
        forks,
        _slept(trace, waits),
        None if first is None else round(first * _SLOWER),
    )


def _forked(trace: Trace, first: pl.DataFrame) -> pl.DataFrame:
    """Return ``forks, wait`` of first batches: processes forked for them, and their time for one.

    Batches are asked for once all workers run, and each makes one then; where none is forked, the
    wait is the whole time without calls.
    """
    forks = trace["host"].filter(
        (pl.col("group") == "child") & (pl.col("name") == "fork")
    ).select("thread", forked="start", ready="end").collect()  # fmt: skip
    began = (pl.col("end") - pl.col("length")).fill_null(0)
    inside = first.join(forks, on="thread").filter(
        (pl.col("forked") >= began) & (pl.col("ready") <= pl.col("end"))
    )
    by_thread = inside.group_by("thread").agg(forks=pl.len(), ready=pl.col("ready").max())
    each = (pl.col("end") - pl.col("ready")) / pl.col("forks")
    return first.join(by_thread, on="thread", how="left").select(
        "forks", wait=pl.coalesce(each, "length")
    )


def _workers(waits: pl.DataFrame) -> int | None:
    """Return how many batches come together, which as many workers make at once."""
    usual = waits["loading"].quantile(_USUAL)
    long = waits.filter(pl.col("loading") >= _LONG * pl.lit(usual))
    apart: float | None = long.select(pl.col("place").diff().over("thread").median()).item()
    if long.height < _RHYTHM or apart is None or apart > _MOST_WORKERS:
        return None
    return round(apart)


def _slept(trace: Trace, waits: pl.DataFrame) -> bool:
    """Tell whether the operating system had threads asleep in their waits."""
    asleep = trace["host"].filter(pl.col("group") == "wait").select("thread", "start", "end")
    naps = merged(asleep.collect(), ["thread"])
    if waits.is_empty() or naps.is_empty():
        return False
    spans = waits.select("thread", "end", "loading", start=pl.col("end") - pl.col("length"))
    slept = covered(spans, naps, ["thread"], "slept")
    total = slept.select(pl.col("slept", "loading").sum())
    return bool(total.select(pl.col("slept") >= _ASLEEP * pl.col("loading")).item())


def _between(iterations: pl.DataFrame) -> pl.DataFrame:
    """Return ``thread, start, end`` of the time between steps, where ranges tell them."""
    told = iterations.filter(pl.col("source") == "ranges")
    threads = told.select("process", "thread").unique("process")
    marks = host_marks(told).sort("process", "time")
    spans = marks.with_columns(end=pl.col("time").shift(-1).over("process"))
    empty = spans.filter(pl.col("iteration").is_null()).drop_nulls("end")
    return empty.join(threads, on="process").select("thread", start="time", end="end")
