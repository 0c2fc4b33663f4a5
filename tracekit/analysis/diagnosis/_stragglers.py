"""Stragglers: late ranks, their stage, frequency and cost."""

from __future__ import annotations

from typing import Any

import polars as pl

from tracekit.analysis.calls import process_ranks
from tracekit.analysis.diagnosis._facts import LENGTH, Facts, facts_of
from tracekit.analysis.diagnosis._late_ranks import held_behind
from tracekit.analysis.diagnosis._waits import MEMBER
from tracekit.analysis.facts import how_to_record
from tracekit.analysis.idle_account import BEHIND, merged_in_batches
from tracekit.engine import has_ops, union_length
from tracekit.errors import MissingDataError, UsageError
from tracekit.model import Answer, Trace

_CELL = [*MEMBER, "iteration"]
_PAIR = 2


def stragglers(trace: Trace, keys: tuple[str, ...]) -> Answer:
    """Answer the question `stragglers`; its declaration lists options and columns."""
    if len(keys) > 1:
        raise UsageError("stragglers are by rank or by iteration", "give one of them")
    if not has_ops(trace):
        raise MissingDataError(
            "this run holds no GPU work", f"record with {how_to_record(trace, 'ops')}"
        )
    facts = facts_of(trace)
    waits, held = facts.waits, held_behind(facts)
    if waits.is_empty() and held.is_empty():
        raise MissingDataError(
            "no collective was recorded on more than one rank",
            "record all ranks, and make one run of their reports with --run NAME",
        )
    ranks = process_ranks(trace).select("process", "rank")
    times = _times(facts, waits, held).join(ranks, on="process", how="left", maintain_order="left")
    rows = _by_rank(facts, times, waits, held) if keys == ("rank",) else _by_iteration(times)
    return Answer(
        rows=rows,
        meta=_meta(facts, waits),
        title=f"stragglers by {keys[0]}",
        tables={"times": _by_iteration(times)},
        command="stragglers",
        figures={"figure": "stragglers"},
    )


def _times(facts: Facts, waits: pl.DataFrame, held: pl.DataFrame) -> pl.DataFrame:
    """Return ``step_ns, waited_ns, own_ns, last`` of each step on each GPU of each process."""
    owners = facts.ops.select(MEMBER).unique().collect()
    steps = facts.steps.drop("process").join(owners, on="device") if not facts.has_steps else (
        facts.steps
    )  # fmt: skip
    waited = waits.rename({"step": "iteration"}).group_by(_CELL).agg(
        waited=pl.col("wait_ns").sum(), last=pl.col("is_last").sum().cast(pl.Int64)
    )  # fmt: skip
    return (
        steps.group_by(_CELL).agg(step_ns=LENGTH.sum())
        .join(waited, on=_CELL, how="left")
        .join(held.group_by(_CELL).agg(pl.col("held").sum()), on=_CELL, how="left")
        .with_columns(
            pl.col("last").fill_null(0),
            waited_ns=pl.col("waited").fill_null(0) + pl.col("held").fill_null(0),
        )
        .with_columns(own_ns=pl.col("step_ns") - pl.col("waited_ns"))
        .drop("waited", "held")
        .sort(_CELL)
    )  # fmt: skip


def _by_iteration(times: pl.DataFrame) -> pl.DataFrame:
    usual = pl.col("own_ns").median().over("iteration")
    beyond = pl.when(usual > 0).then(100 * (pl.col("own_ns") / usual - 1))
    return times.with_columns(beyond_percent=beyond).sort("iteration", "rank", "device").select(
        "iteration", "rank", "device", "step_ns", "waited_ns", "own_ns", "beyond_percent", "last"
    )  # fmt: skip


def _by_rank(
    facts: Facts, times: pl.DataFrame, waits: pl.DataFrame, held: pl.DataFrame
) -> pl.DataFrame:
    means = times.group_by(*MEMBER, "rank").agg(pl.col("waited_ns", "own_ns").mean())
    number = pl.lit(facts.number)
    in_collectives = waits.group_by(MEMBER).agg(
        collectives=pl.len().cast(pl.Int64), last=pl.col("is_last").sum().cast(pl.Int64),
        caused=pl.col("caused_ns").sum() / number, late_ns=pl.col("late_ns").median(),
    )  # fmt: skip
    others = max(means.height - 1, 1)
    in_gaps = held.group_by(device="by").agg(holding=pl.col("held").sum() / number / others)
    known = (
        means.join(in_collectives, on=MEMBER, how="left")
        .join(in_gaps, on="device", how="left")
        .join(_late_in(facts), on=MEMBER, how="left")
        .with_columns(
            pl.col("collectives", "last").fill_null(0),
            caused_ns=pl.col("caused").fill_null(0) + pl.col("holding").fill_null(0),
        )
    )
    share = pl.when(pl.col("collectives") > 0).then(pl.col("last") / pl.col("collectives"))
    first = [True, False, False, False]
    ordered = known.sort("caused_ns", "rank", *MEMBER, descending=first)
    return ordered.with_columns(last_share=share).select(
        "rank", "device", "collectives", "last", "last_share", "caused_ns", "waited_ns", "own_ns",
        "late_in", "late_in_ns", "late_ns",
    )  # fmt: skip


def _late_in(facts: Facts) -> pl.DataFrame:
    """Return in what each rank takes longest beyond the median one, or of two the other one."""
    exchange = facts.collectives["op"].drop_nulls()
    work = facts.ops.filter(~pl.col("op").is_in(exchange.implode()))
    by = [*MEMBER, "stage"]
    busy = union_length(merged_in_batches(work, by), by).select(
        *MEMBER, what=pl.col("stage").cast(pl.String), time="length"
    )
    own = facts.idle.filter(~pl.col("cause").is_in(BEHIND)).rename({"cause": "what"})
    idle = own.group_by(*MEMBER, "what").agg(time=LENGTH.sum())
    each = pl.concat([busy, idle.select(busy.columns)])
    members = facts.ops.select(MEMBER).unique().collect()
    whole = members.join(each.select("what").unique(), how="cross").join(
        each, on=[*MEMBER, "what"], how="left"
    ).with_columns(pl.col("time").fill_null(0))  # fmt: skip
    middle = pl.col("time").min() if members.height <= _PAIR else pl.col("time").median()
    beyond = whole.with_columns(
        late_in_ns=(pl.col("time") - middle.over("what")) / facts.number
    ).filter(pl.col("late_in_ns") > 0)  # fmt: skip
    return beyond.sort("late_in_ns", "what", descending=[True, False]).unique(
        MEMBER, keep="first", maintain_order=True
    ).select(*MEMBER, "late_in_ns", late_in="what")  # fmt: skip


def _meta(facts: Facts, waits: pl.DataFrame) -> dict[str, Any]:
    ranks = facts.ops.select(MEMBER).unique().collect().height
    missing = (
        {"missing": ["one clock of all ranks, so delays between ranks are unknown"]}
        if waits["late_ns"].has_nulls()
        else {}
    )
    return {
        "steps": facts.number if facts.has_steps else 0,
        "ranks": ranks,
        "collectives": waits["match"].n_unique(),
        "per": "step/GPU" if facts.has_steps else "recording/GPU",
        **missing,
    }
