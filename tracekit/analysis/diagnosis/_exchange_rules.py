"""Rules of `diagnose` on communication between GPUs, and on GPUs that wait for each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from tracekit.analysis.diagnosis._facts import Facts, Finding, Win, counted, duration, rounded
from tracekit.analysis.diagnosis._parts import CELL, MEMBER, kernels, quantile_of, sends
from tracekit.analysis.diagnosis._stragglers import own_times, waited_for
from tracekit.analysis.facts import is_pipeline
from tracekit.analysis.statistics import COSINES, ENOUGH, long_run, quantile
from tracekit.support.wording import percent

_MANY = 8
"""Minimum number of collectives in a step that may be too many."""
_SEVERAL = 2
"""Minimum number of collectives in a step for some to be redundant."""
_STARTS_NS = 50_000
"""Few collectives of that time move less than a bucket's bytes: 25 MiB reduced by 8 GPUs take as
long at 900 GB/s."""
_SMALL = 4
"""A collective is small if it takes less than so many times as long as the shortest ones."""
_BUCKET_BYTES = 25 * 2**20
"""Size of the buckets of PyTorch's DistributedDataParallel."""
_HALF = 0.5
_SHORTEST = 0.05
_CHANCE = 0.01
_FIXED = 0.25
_HOLLOW = 0.3
"""Where the busiest stage waits for less of a step, smaller micro-batches may win nothing."""
_TWICE = 1.5
"""Who is last in so many times as many collectives as by chance is a straggler."""


def exposed_collectives(facts: Facts) -> Finding | None:
    """Find time in which a GPU runs only a collective (exposed), not the last one of a step."""
    each = facts.exchanges
    lost = facts.lost(each, "avoidable")
    late = facts.lost(each.filter("is_late"), "avoidable")
    won = facts.won(lost)
    if not facts.is_worth(won) or late.mean > _HALF * lost.mean:
        return None
    return Finding(
        of_gpu=True,
        finding=_headline(facts, each, lost.mean),
        win=Win(won / 2, 0.0, facts.lost(each, "exposed").most),
        confidence="likely",
        evidence=(*_exchanged(facts, each), _waited(facts, each)),
        advice=f"Hide them: {_how_to_hide(each)} or look at the links (`tracekit links`). All of "
        "it is won if other work can run meanwhile, none if what follows needs the result at once.",
    )


def _how_to_hide(each: pl.DataFrame) -> str:
    """Return what hides most of the collectives `each`: of gradients and weights, or of passes."""
    of_passes = pl.col("stage").cast(pl.String).is_in(["FP", "BP"])
    if 2 * each.filter(of_passes)["avoidable"].sum() > each["avoidable"].sum():
        return (
            "split the layers between which they run, so that a part is exchanged while another "
            "is computed (as asynchronous tensor parallelism does). Else exchange less (half "
            "precision, fewer GPUs per group)"
        )
    return (
        "overlap the exchange with the backward pass, order buckets by when gradients are ready, "
        "prefetch shards. If they overlap already, exchange less (half precision, accumulation of "
        "gradients)"
    )


def _headline(facts: Facts, each: pl.DataFrame, lost: float) -> str:
    """Return text: exposed time of collectives, and how much of it (`lost`, ns) could be hidden.

    What cannot be hidden is waiting for other ranks, and the last collective of a step.
    """
    exposed = facts.lost(each, "exposed").mean
    sentence = f"Nothing else runs during {duration(exposed)} of collectives {facts.per}, "
    sentence += facts.share(exposed)
    matches = _matches(facts, each)
    known = "known waiting" if matches.null_count() or facts.unseen else "waiting"
    others = [f"{known} for other ranks"] if matches.count() else []
    others += ["the last of a step"] if facts.has_steps else []
    if not others:
        return f"{sentence}."
    neither = " nor ".join(others)
    return (
        f"{sentence}; {duration(lost)} of that is {'neither' if others[1:] else 'not'} {neither}."
    )


def late_buckets(facts: Facts) -> Finding | None:
    """Find gradient exchange that starts only after the backward pass."""
    each = facts.exchanges
    late = each.filter("is_late")
    lost = facts.lost(late, "avoidable")
    whole = facts.lost(each, "avoidable")
    # No more is hidden than there is to hide it behind.
    room = facts.lost(facts.found(kernels)["busy"], "backward")
    win = min(0.75 * lost.mean, room.mean)
    if not facts.is_worth(win) or lost.mean <= _HALF * whole.mean:
        return None
    return Finding(
        of_gpu=True,
        finding=f"{counted(late.height / facts.cells.height, 'collective')} {facts.per_gpu} "
        f"only after the backward pass, and nothing hides {duration(lost.mean)} of that, "
        f"{facts.share(lost.mean)}.",
        win=Win(
            win,
            # Of a step's only one, the latency of a last bucket is left, which is not known.
            min(lost.least, room.least) / 2 if each.height > facts.cells.height else 0.0,
            min(facts.lost(late, "exposed").most, room.most),
        ),
        confidence="measured",
        evidence=(
            *_exchanged(facts, each),
            _waited(facts, each),
            f"the backward pass computes for {duration(room.mean)} {facts.per}",
        ),
        advice="Exchange gradients while the backward pass goes on, as "
        "DistributedDataParallel does, in buckets that fill early.",
    )


def small_buckets(facts: Facts) -> Finding | None:
    """Find gradients exchanged in many small collectives where fewer would suffice."""
    # Those between the layers of a pass hold what the next layer computes with.
    apart = ~pl.col("stage").is_in(["FP", "BP"])
    each = facts.exchanges.filter(pl.col("kind") == "collective", apart)
    number = each.height / facts.cells.height
    if not facts.has_steps or number < _SEVERAL:  # those of different steps cannot be merged
        return None
    times = pl.col("time") - pl.col("wait_ns")
    latency, usual = each.select(times.quantile(_SHORTEST), typical=times.quantile(0.5)).row(0)
    # Of few that take long it is not known whether start-up or bytes take the time.
    if usual > _SMALL * latency or (number < _MANY and usual > _STARTS_NS):
        return None
    calls = facts.collectives.select("op", "collective", "communicator", "bytes").unique("op")
    sized = each.select("op").join(calls, on="op")
    is_known = not sized["bytes"].null_count() or usual <= _STARTS_NS
    needed = _needed(sized, facts)
    saved = (number - needed) * latency
    # Of one that is hidden, or takes long for its bytes, no more is won than its exposed start-up.
    starts = each.with_columns(
        starts=pl.min_horizontal("avoidable", pl.lit(latency)),
        most=pl.min_horizontal("exposed", pl.lit(_SMALL * latency)),
    )
    win = min(saved, facts.lost(starts, "starts").mean)
    most = facts.lost(starts, "most").most * (1 - needed / number)
    if not facts.is_worth(win):
        return None
    return Finding(
        finding=f"{counted(number, 'collective')} {facts.per_gpu} take {duration(usual)} in "
        f"the median, hardly more than the shortest ones, {duration(latency)}.",
        win=Win(win, win / 2 * is_known, max(win, most)),
        confidence="likely" if is_known else "hint",
        evidence=(
            f"as {counted(needed, 'collective')} they would take {duration(saved)} less: modelled",
            *([] if is_known else ["of unknown size: large ones take as long for their bytes"]),
            *_exchanged(facts, each),
        ),
        advice="Merge them: use larger buckets (`bucket_cap_mb`), or fuse the exchange of several "
        "tensors. The win is the exposed part of their start-up, unless the last one then contains "
        "what was hidden before.",
    )


def stragglers(facts: Facts) -> Finding | None:
    """Find a rank (straggler) that is slower than the others, so that they wait for it."""
    waits = facts.waits.filter(pl.col("collective") != "send_recv")
    if waits.is_empty():
        return None
    by_member = waits.group_by(MEMBER).agg(
        pl.col("chance").mean(),
        last=pl.col("is_last").sum(), number=pl.len(), caused=pl.col("caused_ns").sum(),
    ).sort("caused", *MEMBER, descending=[True, False, False])  # fmt: skip
    worst = by_member.row(0, named=True)
    lost = worst["caused"] / facts.number
    share = worst["caused"] / max(by_member["caused"].sum(), 1)
    chance = worst["chance"]
    often = worst["last"] / worst["number"]
    is_one = often >= min(_TWICE * chance, (1 + chance) / 2) and share >= _HALF
    if not facts.is_worth(lost) or not is_one or not _is_no_chance(waits, worst):
        return None
    slower = _slower(facts, worst)
    if slower < _HALF * lost:
        return None
    others = _waited_for(facts, waits, worst)
    by_chance = f"{worst['last']:,} of {worst['number']:,} collectives, by chance {percent(chance)}"
    return Finding(
        of_gpu=True,
        finding=f"GPU {worst['device']} comes last to {100 * often:.0f} % of collectives; the "
        f"others wait {duration(lost)} {facts.per} for it, {facts.share(lost)}.",
        win=Win(
            min(waited_for(facts, worst["device"]) or lost, slower),
            0.0 if facts.unseen else min(*others, slower) / 2,
            max(*others, slower),
        ),
        confidence="measured",
        evidence=(
            by_chance,
            f"it takes {duration(slower)} {facts.per} longer than its peers for what all ranks do",
            f"the others wait {duration(min(others))} to {duration(max(others))} {facts.per}",
            *([f"{facts.unseen}: one that was not recorded may be later"] if facts.unseen else []),
        ),
        advice="See `tracekit stragglers` for the stage in which it is late. Balance the work, or "
        "look for a slower clock, another program or a busier host there. The win is real if "
        "no other rank is nearly as slow.",
    )


def _is_one(worst: dict[str, Any]) -> pl.Expr:
    return pl.col("process").eq(worst["process"]) & pl.col("device").eq(worst["device"])


def _is_no_chance(waits: pl.DataFrame, worst: dict[str, Any]) -> bool:
    """Test whether the rank in `worst` causes significantly more waiting than all others together.

    The test is over steps, not collectives: a rank that starts a step late is late to all its
    collectives.
    """
    caused = pl.col("caused_ns") * pl.when(_is_one(worst)).then(1).otherwise(-1)
    apart = waits.group_by("step").agg(caused.sum())["caused_ns"]
    return _exceeds_chance(apart, waits.select(MEMBER).n_unique())


def _slower(facts: Facts, worst: dict[str, Any]) -> float:
    """Return a rank's excess time per step over the others' median, ns; 0 if not significant."""
    times = own_times(facts, _is_one(worst))
    usual = pl.col("local_ns").filter(~_is_one(worst)).median().over("iteration")
    slower = times.with_columns(pl.col("local_ns") - usual).filter(_is_one(worst))["local_ns"]
    is_told = _exceeds_chance(slower.drop_nulls(), times.select(MEMBER).n_unique())
    return float(slower.mean()) if is_told else 0.0  # type: ignore[arg-type]


def _exceeds_chance(values: pl.Series, tried: int) -> bool:
    """Test (Student's t) if the mean of `values`, one per step, is above 0.

    The level is divided by `tried` (Bonferroni), as the mean is the largest of so many means.
    Successive steps may depend on each other (`long_run`), unless they are too few to show it.
    """
    steps = values.cast(pl.Float64).to_numpy()
    if len(steps) <= 1:
        return False
    freedom, variance = len(steps) - 1, steps.var(ddof=1) / len(steps)
    if len(steps) >= ENOUGH:
        known = long_run(steps[np.newaxis, :])
        if known.drifts[0]:
            return False
        freedom, variance = COSINES, known.variance[0]
    return bool(steps.mean() > quantile(freedom, 1 - _CHANCE / tried).item() * variance**0.5)


def _waited_for(facts: Facts, waits: pl.DataFrame, worst: dict[str, Any]) -> list[float]:
    """Return, per other rank, the mean time per step that it waits for the rank `worst`, ns."""
    is_it = _is_one(worst)
    for_it = waits.filter((is_it & pl.col("is_last")).any().over("match") & ~is_it)
    sums = for_it.group_by(MEMBER).agg(pl.col("wait_ns").sum())
    return [wait / facts.number for wait in sums["wait_ns"]]


def central_update(facts: Facts) -> Finding | None:
    """Find GPUs that wait while another GPU updates and sends the weights."""
    lost = facts.lost(facts.idle_of("behind_weight_update", "behind_collective"))
    if not facts.is_worth(lost.mean):
        return None
    held = facts.idle_of("behind_weight_update", "behind_collective")
    who = held.group_by("detail").agg(pl.col("time").sum()).sort(
        "time", "detail", descending=[True, False]
    )  # fmt: skip
    return Finding(
        finding=f"GPUs wait {duration(lost.mean)} {facts.per} behind the weight update of others, "
        f"{facts.share(lost.mean)}.",
        win=Win(lost.mean / 2, 0.0, lost.most),
        confidence="likely",
        evidence=tuple(
            f"{duration(time / facts.cells.height)} {facts.per_gpu} behind {name or 'others'}"
            for name, time in who.head(3).rows()
        ),
        advice="Spread the update: all-reduce by NCCL in place of copies to one GPU, or a part of "
        "the weights on each. What is won depends on the links between the GPUs.",
    )


def pipeline_bubbles(facts: Facts) -> Finding | None:
    """Find pipeline stages that wait for each other (bubbles)."""
    idle = facts.idle_of("behind_stage").select(*CELL, "time")
    inside = facts.found(sends)["rows"]
    lost = facts.lost(pl.concat([idle, inside]))
    # Ranges, sends, or different kernels on each GPU show that these are pipeline stages.
    have_stages = is_pipeline(facts.trace) or facts.paces.height <= 1
    if not facts.is_worth(lost.mean) or (facts.is_of_networks and not have_stages):
        return None
    win, evidence = lost.mean / 2, [
        f"{duration(facts.lost(idle).mean)} {facts.per} in which nothing runs",
        f"{duration(facts.lost(inside).mean)} {facts.per} inside sends and receives",
    ]  # fmt: skip
    if facts.is_of_networks:
        # A step ends with the stage that has most to do, and more micro-batches fill its waits.
        win, cost = lost.least / 2, _split_cost(facts)
        evidence += [
            f"the GPU that waits least waits {duration(lost.least)}, which micro-batches fill",
            f"twice as many of these cost {duration(cost)} or more",
        ]
        is_hollow = lost.least >= _HOLLOW * facts.step_ns
        win = win - cost if is_hollow and cost <= _HALF * win else 0.0
    is_won = facts.is_worth(win) or not facts.is_of_networks
    # Where all run the same kernels, experts or parts of a sequence may be what they exchange.
    is_alike = facts.is_of_networks and facts.paces.height > 1
    what = "for work of other GPUs" + ", or exchange with them" * is_alike
    return Finding(
        finding=f"GPUs wait {duration(lost.mean)} {facts.per} {what}, {facts.share(lost.mean)}.",
        win=Win(win, 0.0, lost.most) if is_won else None,
        unknown=None if is_won else "the cost of smaller micro-batches is unknown",
        confidence="likely" if is_won else "hint",
        evidence=tuple(evidence),
        advice=("If these are stages of a pipeline: more" if is_alike else "More")
        + " micro-batches, stages of equal length, an interleaved schedule; `tracekit bubbles` "
        "compares it with theory."
        + " If all send to all (experts, parts of a sequence): balance their work, and exchange "
        "while others compute." * is_alike
        if facts.is_of_networks
        else "Compute what needs nothing from others while messages are under way (the inside of a "
        "domain before its borders), send earlier, and balance the work of ranks.",
    )


def _split_cost(facts: Facts) -> float:
    """Return the least cost per step, ns, of splitting all kernels in two (as micro-batches do).

    An additional kernel takes at least as long as the shortest kernels do (a low quantile of all
    lengths), and twice as many launches double the time that GPUs wait for launches.
    """
    lengths = facts.found(kernels)["lengths"]
    number, least = float(lengths["number"].sum()), quantile_of(lengths, _FIXED) or 0.0
    waits = facts.lost(facts.idle_of("launch_latency", "host_delay")).mean
    return number * least / facts.cells.height + waits


def _exchanged(facts: Facts, each: pl.DataFrame) -> tuple[str, ...]:
    number = counted(each.height / facts.cells.height, "collective")
    late = float(each["is_late"].sum()) / facts.cells.height
    whole, exposed = (facts.lost(each, name).mean for name in ("time", "exposed"))
    after = f", {rounded(late)} of them after the backward pass" if facts.has_steps else ""
    return (
        f"{number} {facts.per_gpu}{after}",
        f"they run for {duration(whole)} {facts.per}, {duration(exposed)} of it with nothing else",
    )


def _matches(facts: Facts, each: pl.DataFrame) -> pl.Series:
    """Return the id of the collective to which each op belongs; null if it was not matched."""
    return facts.collectives.join(each.select("op"), on="op", how="semi")["match"]


def _waited(facts: Facts, each: pl.DataFrame) -> str:
    matches = _matches(facts, each)
    if not matches.count():
        return "how much of that is waiting for other ranks is not known"
    waited = facts.lost(each, "wait_ns").mean
    of_known = f"{duration(waited)} {facts.per}" if waited else "none of that"
    unknown = f"; of {matches.null_count():,} of {matches.len():,} calls it is not known"
    absent = f"; {facts.unseen}: waits for one that was not recorded are not known"
    unknown = unknown * bool(matches.null_count()) + absent * bool(facts.unseen)
    return f"{of_known} is waiting for other ranks{unknown}"


def _needed(sized: pl.DataFrame, facts: Facts) -> float:
    """Return how many collectives per step would suffice, in buckets of `_BUCKET_BYTES`.

    Only collectives of one operation and communicator can be merged; if the size of any of these is
    unknown, a bucket is assumed to hold `_MANY`.
    """
    number = pl.len() / facts.cells.height
    sizes = pl.col("bytes").sum() / facts.cells.height / _BUCKET_BYTES
    alike = sized.group_by("collective", "communicator").agg(
        number=number,
        needed=pl.when(pl.col("bytes").null_count() == 0).then(sizes).otherwise(number / _MANY),
    )  # fmt: skip
    kept = alike.select(pl.min_horizontal(pl.col("needed").clip(1), "number").sum()).item()
    return float(kept)
