"""Gaps cut into pieces of one cause each, along the time line of the host that ends them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.analysis.idle_time._gaps import gaps_of
from tracekit.analysis.idle_time._held import holders, named_behind
from tracekit.analysis.idle_time._host_states import (
    ASLEEP,
    allocations,
    in_ranges,
    loads,
    messages,
    name_states,
    of_pairs,
    pairs_of,
    profiling,
    sleeps,
    step_states,
    threads_of,
    waited_before,
    waits,
)
from tracekit.analysis.idle_time._timeline import split_at

if TYPE_CHECKING:
    from tracekit.model import Trace

CAUSES = {
    "input": "the host was reading input",
    "between_steps": "the host was outside of its steps",
    "late_launch": "the host launched late",
    "allocation": "the host allocated or freed memory",
    "loading": "the driver loaded code",
    "waiting_call": "the host waited for the GPU",
    "launch": "launch call, queue and start",
    "behind_weight_update": "held behind another GPU's weight update",
    "behind_collective": "held behind a collective",
    "behind_stage": "held behind other work of another GPU",
    "profiler": "overhead of the profiler",
    "unexplained": "not explained",
}
"""Why nothing runs, in words."""
CAUSE = pl.Enum(list(CAUSES))
QUEUED_NS = 100_000
"""An op that is launched and does not start for longer than this waits for something else."""
SHORT = 5
SHORT_NS = 1_000_000
"""Time between steps is short if it is no longer, and the wait is so many times as long."""
_PASSES = ("FP", "BP", "WU")
_LENGTH = pl.col("end") - pl.col("start")
_HELD = ("launch", "late_launch", "waiting_call", "between_steps")


def idle_pieces(trace: Trace, windows: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return why nothing runs, piece by piece.

    Parameters
    ----------
    trace
        The run.
    windows
        As for `gaps_of`; pieces are not cut at them.

    Returns
    -------
    The gaps as `gaps_of` gives them, with ``pair``; and the pieces: ``gap, pair, process, device,
    start, end, cause, detail``. Pieces of a gap follow each other and make up all of it.
    """
    gaps = gaps_of(trace, windows)
    pairs = pairs_of(trace, gaps)
    keys = ["process", "launch_thread"]
    gaps = gaps.join(
        pairs.select(*keys, "pair"), on=keys, how="left", nulls_equal=True, maintain_order="left"
    )
    waiting = of_pairs(trace.once(_of_threads)["waiting"], threads_of(pairs))
    pieces = _by_host(trace, _phases(gaps), pairs)
    pieces = _credited(pieces, waited_before(gaps, waiting))
    return gaps, _held(trace, pieces, gaps)


def _phases(gaps: pl.DataFrame) -> pl.DataFrame:
    """Cut gaps where the later op's launching call begins and ends."""
    start, end = pl.col("start"), pl.col("end")
    begun = pl.col("launch_start").clip(start, end)
    done = pl.max_horizontal("launch_start", "launch_end").clip(start, end)
    known = gaps.filter(pl.col("launch_start").is_not_null())
    columns = ["gap", "pair", "process", "device", "by_loader"]
    edges = {"host": (start, begun), "call": (begun, done), "queued": (done, end)}
    phases = [
        known.select(*columns, start=first, end=last, phase=pl.lit(phase))
        for phase, (first, last) in edges.items()
    ]
    rest = gaps.filter(pl.col("launch_start").is_null())
    unknown = rest.select(*columns, "start", "end", phase=pl.lit("unknown"))
    return pl.concat([*phases, unknown]).filter(_LENGTH > 0)


def _of_threads(trace: Trace) -> dict[str, pl.DataFrame]:
    """Return what threads did, by what it is: ``thread, start, end, name``."""
    return {
        "profiler": profiling(trace),
        "allocation": allocations(trace),
        "loading": loads(trace, QUEUED_NS),
        "waiting": waits(trace),
        "collective": messages(trace, is_collective=True),
        "message": messages(trace, is_collective=False),
        "sleep": sleeps(trace),
    }


def _by_host(trace: Trace, phases: pl.DataFrame, pairs: pl.DataFrame) -> pl.DataFrame:
    """Say what the host did meanwhile, as long as the later op was not launched."""
    of_host = pl.col("phase").is_in(["host", "call"])
    pieces = phases.filter(of_host)
    threads = threads_of(pairs)
    for state, intervals in trace.once(_of_threads).items():
        pieces = split_at(pieces, name_states(of_pairs(intervals, threads), state), "pair", state)
    pieces = in_ranges(trace, pieces, pairs, "stage")
    pieces = split_at(pieces, step_states(trace), "process", "in_step")
    stepping = trace["iterations"].select("process", has_steps=True).unique().collect()
    pieces = pieces.join(stepping, on="process", how="left", maintain_order="left")
    named = pieces.select(
        *phases.columns, cause=_cause(),
        detail=_detail(),
    )  # fmt: skip
    later = phases.filter(~of_host).with_columns(
        cause=pl.when(pl.col("phase") == "queued").then(pl.lit("launch"))
        .otherwise(pl.lit("unexplained")).cast(CAUSE),
        detail=pl.lit(None, pl.String),
    )  # fmt: skip
    return pl.concat([named, later]).sort("gap", "start")


def _detail() -> pl.Expr:
    """Return what says so."""
    loader = pl.when((_cause() == "input") & (pl.col("stage") != "IO").fill_null(value=True)).then(
        pl.lit("until a loader's thread launched")
    )
    names = ("profiler", "allocation", "waiting", "loading", "collective", "message")
    # That it sleeps tells no cause: it may wait for a loader's process, or for its own thread.
    asleep = pl.when(_cause().is_in(["input", "between_steps", "late_launch"])).then(
        pl.format(f"{ASLEEP}{{}}", "sleep")
    )
    return pl.coalesce(*names, loader, asleep)


def _cause() -> pl.Expr:
    """Return the first of the causes that holds of a time at which the host had not launched."""
    in_pass = pl.col("stage").cast(pl.String).is_in(_PASSES)
    outside = pl.col("has_steps") & ~pl.col("in_step").fill_null(value=False)
    between = outside & ~in_pass.fill_null(value=False)
    return (
        pl.when(pl.col("profiler").is_not_null()).then(pl.lit("profiler"))
        .when(pl.col("allocation").is_not_null()).then(pl.lit("allocation"))
        .when(pl.col("waiting").is_not_null()).then(pl.lit("waiting_call"))
        .when(pl.col("loading").is_not_null()).then(pl.lit("loading"))
        .when(pl.col("collective").is_not_null()).then(pl.lit("behind_collective"))
        .when(pl.col("message").is_not_null()).then(pl.lit("behind_stage"))
        .when(pl.col("phase") == "call").then(pl.lit("launch"))
        .when(pl.col("stage") == "IO").then(pl.lit("input"))
        .when(between & pl.col("by_loader")).then(pl.lit("input"))
        .when(between).then(pl.lit("between_steps"))
        .otherwise(pl.lit("late_launch")).cast(CAUSE)
    )  # fmt: skip


def _credited(pieces: pl.DataFrame, credits_: pl.DataFrame) -> pl.DataFrame:
    """Lay on waits the late launches after them, for as long as the host had waited.

    What the host does between steps counts where it is short beside the wait: it would be hidden
    behind the work that is waited for.
    """
    outside = pl.col("cause").is_in(["between_steps", "input"])
    away = pl.when(outside).then(_LENGTH).otherwise(0).sum().over("gap")
    hidden = outside & (away * SHORT <= pl.col("credit")) & (away <= SHORT_NS)
    late = (pl.col("cause") == "late_launch") | hidden.fill_null(value=False)
    known = pieces.join(credits_, on="gap", how="left", maintain_order="left")
    length = pl.when(late).then(_LENGTH).otherwise(0)
    waited = pl.when(pl.col("cause") == "waiting_call").then(_LENGTH).otherwise(0).cum_sum()
    # A wait while nothing runs puts the host behind by nothing; of its own gap none counts.
    stretch = ["device", "ahead"]
    spent = length.cum_sum().over(stretch) - length
    spent += waited.over(stretch) - waited.over("gap")
    due = pl.when(late).then((pl.col("credit") - spent).clip(0, length)).fill_null(0)
    counted = known.with_columns(due=due)
    after_wait = counted.filter(pl.col("due") > 0).with_columns(
        end=pl.col("start") + pl.col("due"),
        cause=pl.lit("waiting_call").cast(CAUSE), detail=pl.lit("launches after a wait"),
    )  # fmt: skip
    rest = counted.with_columns(start=pl.col("start") + pl.col("due")).filter(_LENGTH > 0)
    return pl.concat([after_wait, rest]).select(pieces.columns).sort("gap", "start")


def _held(trace: Trace, pieces: pl.DataFrame, gaps: pl.DataFrame) -> pl.DataFrame:
    """Lay on another GPU what its work held up; what else was queued for long is unexplained."""
    known = pieces.join(holders(trace, gaps), on="gap", how="left", maintain_order="left")
    until = pl.min_horizontal("held_until", "end")
    eligible = pl.col("cause").is_in(list(_HELD)) | (pl.col("phase") == "unknown")
    is_held = (eligible & (pl.col("held_until") > pl.col("start"))).fill_null(value=False)
    held = known.filter(is_held).with_columns(end=until)
    rest = known.with_columns(
        start=pl.when(is_held).then(until).otherwise("start")
    ).filter(_LENGTH > 0)  # fmt: skip
    by = pl.format("GPU {}", "held_by")
    behind = named_behind(trace, held) if held.height else held.with_columns(
        behind=pl.lit(None, pl.String)
    )  # fmt: skip
    named = behind.with_columns(
        cause=pl.coalesce(pl.col("behind").cast(CAUSE), "cause"),
        detail=pl.when(pl.col("behind").is_not_null()).then(by).otherwise("detail"),
    )
    together = pl.concat([named.select(known.columns), rest]).sort("gap", "start")
    columns = ["gap", "pair", "process", "device", "start", "end", "cause", "detail"]
    return _unexplained(together).select(columns)


def _unexplained(pieces: pl.DataFrame) -> pl.DataFrame:
    queued = (pl.col("phase") == "queued") & (pl.col("cause") == "launch")
    too_long = queued & (_LENGTH > QUEUED_NS)
    cause = pl.when(too_long).then(pl.lit("unexplained")).otherwise("cause").cast(CAUSE)
    return pieces.with_columns(
        cause=cause,
        detail=pl.when(too_long).then(pl.lit("launched, and not started")).otherwise("detail"),
    )
