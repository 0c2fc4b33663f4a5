"""Stragglers: ranks slower than their peers, their stage, frequency and cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from tracekit.analysis.calls import (
    MEMBERS,
    OF_GROUPS,
    groups_of_ops,
    members_of_rows,
    process_ranks,
    uncounted_waits,
    unnamed_groups,
)
from tracekit.analysis.diagnosis._facts import PAIR, Facts, facts_of
from tracekit.analysis.diagnosis._parts import LENGTH, MEMBER, Part, calls, work
from tracekit.analysis.facts import is_message, require_ops
from tracekit.analysis.idle_account import BEHIND, idle_sums
from tracekit.errors import MissingDataError, UsageError
from tracekit.model import Answer, Frames, Trace
from tracekit.support.wording import count, duration, first_line

_MORE_KERNELS = 1.05
"""A rank with so many times the median kernels of its peers does other work than they do. Of jobs
where one GPU updates all weights, this was asked of two: theirs has 1.13 and 1.16 times the ops."""
_OF_GPU = r"^GPU (\d+)$"
_CELL = [*MEMBER, "iteration"]
_LAST_SHARE = pl.when(pl.col("collectives") > 0).then(pl.col("last") / pl.col("collectives"))
_WORST = {
    "straggler_rank": "rank", "straggler_device": "device", "last": "last",
    "straggler_share": "last_share", "caused_ns": "caused_ns",
}  # fmt: skip
"""Columns on the rank of a group for which the others wait longest."""


def _held_behind(idle: pl.DataFrame) -> pl.DataFrame:
    """Return, per step, idle time ``held``, ns, in which a GPU waits for another GPU (``by``)."""
    behind = idle.filter(pl.col("cause").is_in(BEHIND))
    by = pl.col("detail").str.extract(_OF_GPU).cast(pl.Int32)
    return behind.select(*MEMBER, "iteration", by=by, held="idle_ns").drop_nulls("by")


def waited_for(facts: Facts, device: int) -> float | None:
    """Return how long the other GPUs wait per step for `device`, ns; None if no GPU waits.

    Since some GPU always comes last, the mean wait for any one of the other GPUs is subtracted.
    """
    held = _held_behind(facts.idle.rename({"time": "idle_ns"}))
    if facts.waits.is_empty() and held.is_empty():
        return None
    others = max(facts.steps["device"].n_unique() - 1, 1)
    inside = facts.waits.select("device", caused=pl.col("caused_ns"))
    behind = held.select(device="by", caused=pl.col("held") / others)
    caused = pl.concat([inside, behind])
    is_it = pl.col("device") == device
    own, rest = (float(caused.filter(each)["caused"].sum()) for each in (is_it, ~is_it))
    return max(own - rest / others, 0.0) / facts.number


def own_times(facts: Facts, is_it: pl.Expr) -> pl.DataFrame:
    """Return how long each rank takes in a step for work that all ranks do: ``local_ns``.

    The time of an op is its duration plus idle time before it that no other GPU caused. Durations
    of collectives do not count, since they last until the last participant comes. Neither does work
    that some ranks do more often than others, such as the update at the root of a reduction or the
    layers of a pipeline stage: a rank that is late because it has more work is not slow. `is_it`
    selects the suspected rank. If this rank runs at least 5 % more kernels than the median of the
    others, idle time does not count: its host has more to launch, while the waiting ranks' launches
    are already queued. Copies do not count as kernels here: a rank may also copy the loss.
    """
    same = ["kind", "name"]
    known = facts.found(work_by_name)
    ranks = known["members"].height
    is_alike = (pl.col("least").min() == pl.col("most").max()) & (pl.col("members").sum() == ranks)
    alike = known["rows"].group_by(same).agg(is_alike=is_alike).filter("is_alike")
    shared = alike.select(pl.col(same).cast(pl.String))
    own, usual = (pl.col("kernels").filter(each).median().fill_null(0) for each in (is_it, ~is_it))
    has_more = known["members"].select((own > usual) & (own >= _MORE_KERNELS * usual)).item()
    sums = facts.found(shared_work, shared.sort(same))
    rows = sums["rows"] if has_more else pl.concat(sums.values())
    return rows.group_by(_CELL).agg(pl.col("local_ns").sum()).sort(_CELL)


def work_by_name(part: Part) -> Frames:
    """Return how many GPUs (by process) run each ``kind, name``, and how often.

    ``rows``: ``kind, name``; ``members``, the number of these GPUs; ``least, most``, the number of
    such ops on the GPU with fewest and on that with most. ``members``: ``process, device`` of all
    GPUs with ops, and the number of their ``kernels``.
    """
    number = pl.col("number")
    each = part.ops.group_by("kind", "name", *MEMBER).agg(number=pl.len().cast(pl.Int64)).collect()
    return {
        "rows": each.group_by("kind", "name").agg(
            members=pl.len(), least=number.min(), most=number.max()
        ),
        "members": each.group_by(MEMBER).agg(
            kernels=number.filter(pl.col("kind") == "compute").sum()
        ),
    }


def shared_work(part: Part, shared: pl.DataFrame) -> Frames:
    """Return the time of ops whose kind and name are in `shared`, and of idle time before them.

    Returns
    -------
    ``process, device, iteration, local_ns``, in one table for ops and one for idle time.
    """
    named = part.ops.with_columns(pl.col("kind", "name").cast(pl.String))
    own = named.join(shared.lazy(), on=["kind", "name"], how="semi", nulls_equal=True)
    gaps = part.idle_gaps.gaps.lazy().select("gap", op="after")
    ended = gaps.join(own.select("op").unique(), on="op", how="semi").collect()
    idle = part.idle.filter(~pl.col("cause").is_in(BEHIND)).join(ended, on="gap", how="semi")
    own = own.filter(pl.col("kind") != "collective")
    sums = {"rows": own, "idle": idle.lazy()}
    return {
        name: each.group_by(_CELL).agg(local_ns=LENGTH.sum()).collect()
        for name, each in sums.items()
    }


def stragglers(trace: Trace, keys: tuple[str, ...]) -> Answer:
    """Find ranks that others wait for, by `keys`; `questions.py` describes options and columns."""
    of_groups = [key for key in keys if key in OF_GROUPS]
    if "iteration" in keys and len(keys) > 1:
        raise UsageError("stragglers by step cover all collectives", "leave out the other keys")
    require_ops(trace)
    facts = replace(facts_of(trace), measures=((calls, work),))
    idle = idle_sums(trace, facts.steps, ["iteration", "detail"]).pieces.cast({"cause": pl.String})
    waits, held = facts.waits, _held_behind(idle)
    if waits.is_empty() and held.is_empty():
        of_ranks = facts.collectives.drop_nulls("op").select(MEMBER).n_unique()
        if of_ranks > 1:
            raise MissingDataError(
                f"no call of a collective of one of {of_ranks} ranks is matched with another's",
                "`tracekit collectives` says why",
            )
        if facts.collectives.is_empty():
            raise MissingDataError("no collectives were recorded")
        raise MissingDataError(
            "no collective of GPUs was recorded on more than one rank",
            "those of the host, as of MPI, are in `tracekit collectives`"
            if facts.collectives["op"].null_count()
            else "record all ranks, and make one run of their reports with --run NAME",
        )
    met = waits.select(MEMBER).unique()
    uncounted = met.join(facts.steps, on=MEMBER, how="anti").height if facts.has_steps else 0
    if uncounted and uncounted + 1 >= met.height:
        raise MissingDataError(
            f"steps are known of {met.height - uncounted} of {met.height} GPUs with collectives",
            "name or record ranges of steps: --iteration REGEX",
        )
    ranks = process_ranks(trace).select("process", "rank")
    times = _times(facts, waits, held).join(ranks, on="process", how="left", maintain_order="left")
    if of_groups:
        rows = _by_group(facts, waits, ranks, keys)
    else:
        rows = _by_rank(facts, times, waits, idle) if "rank" in keys else _by_iteration(times)
    lost = f"the steps of {uncounted} of {met.height} GPUs: waits of and for these are not counted"
    return Answer(
        rows=rows,
        meta=_meta(facts, waits, unnamed_groups(rows) + [lost] * (uncounted > 0)),
        title=f"stragglers by {', '.join(keys)}",
        tables={"times": _by_iteration(times)},
        command="stragglers",
        figures={"figure": "stragglers"},
    )


def _times(facts: Facts, waits: pl.DataFrame, held: pl.DataFrame) -> pl.DataFrame:
    """Return, per step and GPU, ``step_ns, waited_ns, local_ns``, and ``last``.

    Waited is the time for other GPUs, in collectives and idle; local is the rest of the step;
    ``last`` is in how many collectives the GPU came last.
    """
    steps = facts.steps
    if not facts.has_steps:
        steps = steps.drop("process").join(facts.found(work)["members"], on="device")
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
        .with_columns(local_ns=pl.col("step_ns") - pl.col("waited_ns"))
        .drop("waited", "held")
        .sort(_CELL)
    )  # fmt: skip


def _by_iteration(times: pl.DataFrame) -> pl.DataFrame:
    usual = pl.col("local_ns").median().over("iteration")
    beyond = pl.when(usual > 0).then(100 * (pl.col("local_ns") / usual - 1))
    return times.with_columns(excess_percent=beyond).sort("iteration", "rank", "device").select(
        "iteration", "rank", "device", "step_ns", "waited_ns", "local_ns", "excess_percent", "last"
    )  # fmt: skip


def _by_rank(
    facts: Facts, times: pl.DataFrame, waits: pl.DataFrame, idle: pl.DataFrame
) -> pl.DataFrame:
    held = _held_behind(idle)
    means = times.group_by(*MEMBER, "rank").agg(pl.col("waited_ns", "local_ns").mean())
    number = pl.lit(facts.number)
    in_collectives = waits.group_by(MEMBER).agg(
        *_in_collectives(facts), chance_share=pl.col("chance").mean()
    ).drop("waited_ns")  # fmt: skip
    others = max(means.height - 1, 1)
    in_gaps = held.group_by(device="by").agg(holding=pl.col("held").sum() / number / others)
    known = (
        means.join(in_collectives, on=MEMBER, how="left")
        .join(in_gaps, on="device", how="left")
        .join(_excess(facts, idle), on=MEMBER, how="left")
        .with_columns(
            pl.col("collectives", "last").fill_null(0),
            pl.col("caused_ns").fill_null(0) + pl.col("holding").fill_null(0),
        )
    )
    first = [True, False, False, False]
    ordered = known.sort("caused_ns", "rank", *MEMBER, descending=first)
    return ordered.with_columns(last_share=_LAST_SHARE).select(
        "rank", "device", "collectives", "last", "last_share", "chance_share", "caused_ns",
        "waited_ns", "local_ns", "excess_in", "excess_ns", "late_ns",
    )  # fmt: skip


def _in_collectives(facts: Facts) -> list[pl.Expr]:
    """Return aggregations of waits in collectives by rank: counts, and times per step."""
    return [
        pl.len().cast(pl.Int64).alias("collectives"),
        pl.col("is_last").sum().cast(pl.Int64).alias("last"),
        (pl.col("caused_ns").sum() / facts.number).alias("caused_ns"),
        (pl.col("wait_ns").sum() / facts.number).alias("waited_ns"),
        pl.col("late_ns").quantile(0.5),
    ]


def _by_group(
    facts: Facts, waits: pl.DataFrame, ranks: pl.DataFrame, keys: Sequence[str]
) -> pl.DataFrame:
    """Return, by communicator and rank, how long other ranks wait for the rank in collectives.

    If `keys` lack ``rank``, each communicator has one row, of the rank that others wait for
    longest.
    """
    groups = groups_of_ops(facts.trace, facts.collectives)
    each = waits.join(groups, on="op", how="left").join(ranks, on="process", how="left")
    of = [key for key in keys if key != "rank"]
    named = each.group_by(of).agg(*members_of_rows(), ranks=pl.struct(MEMBER).n_unique(),
                                  all=pl.col("match").n_unique())  # fmt: skip
    who = each.group_by(*of, *MEMBER, "rank").agg(*_in_collectives(facts))
    worst = -pl.col("caused_ns").max().over(of)
    known = who.with_columns(last_share=_LAST_SHARE).sort(
        worst, *of, -pl.col("caused_ns"), "rank", "device"
    ).join(named, on=of, nulls_equal=True, maintain_order="left")  # fmt: skip
    if "rank" in keys:
        return known.select(*of, *MEMBERS, "rank", "device", "collectives", "last", "last_share",
                            "caused_ns", "waited_ns", "late_ns")  # fmt: skip
    late = pl.col("caused_ns").first() > 0
    return known.group_by(of, maintain_order=True).agg(
        pl.col(*MEMBERS).first(), ranks=pl.col("ranks").first().cast(pl.Int64),
        collectives=pl.col("all").first().cast(pl.Int64), waited_ns=pl.col("waited_ns").mean(),
        **{name: pl.when(late).then(pl.col(of_one).first()) for name, of_one in _WORST.items()},
    )  # fmt: skip


def _excess(facts: Facts, idle: pl.DataFrame) -> pl.DataFrame:
    """Return, per rank, the stage or idle cause in which its time exceeds the median rank's most.

    With two ranks, the reference is the other rank.
    """
    busy = facts.found(work)["busy"].select(
        *MEMBER, what=pl.col("stage").cast(pl.String), time="length"
    )
    own = idle.filter(~pl.col("cause").is_in(BEHIND)).rename({"cause": "what"})
    alone = own.group_by(*MEMBER, "what").agg(time=pl.col("idle_ns").sum())
    each = pl.concat([busy, alone.select(busy.columns)])
    members = facts.found(work)["members"]
    whole = members.join(each.select("what").unique(), how="cross").join(
        each, on=[*MEMBER, "what"], how="left"
    ).with_columns(pl.col("time").fill_null(0))  # fmt: skip
    middle = pl.col("time").min() if members.height <= PAIR else pl.col("time").median()
    beyond = whole.with_columns(
        excess_ns=(pl.col("time") - middle.over("what")) / facts.number
    ).filter(pl.col("excess_ns") > 0)  # fmt: skip
    return beyond.sort("excess_ns", "what", descending=[True, False]).unique(
        MEMBER, keep="first", maintain_order=True
    ).select(*MEMBER, "excess_ns", excess_in="what")  # fmt: skip


def _meta(facts: Facts, waits: pl.DataFrame, missing: list[str]) -> dict[str, Any]:
    if waits["late_ns"].has_nulls():
        missing = [*missing, "one clock of all ranks, so delays between ranks are unknown"]
    several = facts.collectives.filter(~is_message()).drop_nulls("step")
    missing = [*missing, *uncounted_waits(facts.trace, several)]
    return {
        "steps": facts.number if facts.has_steps else 0,
        "ranks": facts.found(work)["members"].height,
        "collectives": waits["match"].n_unique(),
        "per": "step/GPU" if facts.has_steps else "recording/GPU",
        **({"missing": missing} if missing else {}),
    }


@first_line("stragglers")
def _first_line(rows: pl.DataFrame, meta: Mapping[str, Any]) -> str | None:
    if not {"last", "collectives", "caused_ns"} <= {*rows.columns}:
        return None
    most = rows.sort("caused_ns", descending=True, nulls_last=True).row(0, named=True)
    if not most["collectives"] or most["caused_ns"] is None:
        return None
    rank, device = (most.get(f"straggler_{name}", most.get(name)) for name in ("rank", "device"))
    who = f"GPU {device}" if rank is None else f"Rank {rank}"
    kind = next((most[key] for key in ("group", "parallelism") if most.get(key)), None)
    named = f" of {kind}" if kind else ""
    if not kind and most["last"] and rows["last"].n_unique() == 1 < rows.height:
        return (
            f"No rank is last more often than another: each at {count(most['last'], 'collective')}"
        )
    # A rank need not take part in all collectives of its group.
    share, own = most.get("straggler_share"), most["collectives"]
    own = round(most["last"] / share) if share else own
    chance = (most.get("chance_share") or 0.0) * own
    if most["last"] < 2 * chance:
        expected = f"{chance:,.1f}".removesuffix(".0")
        named = f" ({expected} by chance)"
    return (
        f"{who} is last at {most['last']:,} of {own:,} collectives{named}, "
        f"for which the others wait {duration(most['caused_ns'])}"
        + (" a step" if str(meta.get("per", "")).startswith("step") else "")
        + " while they run nothing else"
    )
