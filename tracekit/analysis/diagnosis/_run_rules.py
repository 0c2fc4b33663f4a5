"""Rules of `diagnose` on whole runs: first steps, evaluation, the machine, missing data."""

from __future__ import annotations

import polars as pl

from tracekit.analysis.diagnosis._facts import PAIR, Facts, Finding, Win, duration, rounded
from tracekit.analysis.diagnosis._parts import LENGTH, MEMBER, kernels
from tracekit.analysis.diagnosis._stragglers import waited_for
from tracekit.analysis.facts import how_to_record, how_to_see_waits
from tracekit.analysis.idle_account import covered, merged
from tracekit.engine import launch_groups
from tracekit.support.wording import count

_OFTEN = 0.1
"""Evaluation that takes a smaller part of training is not spoken of."""
_MUCH = 0.05
_UNSTAGED = 0.2
_SLOW_LINK = 0.5
_REACHED = 0.9
"""What a good copy reaches of the peak of a link."""
_PACE = 1.05
_LARGE = 1 << 20
_COLD = 1.5
"""Cold steps are spoken of where one takes so many times as long as the median of the others."""


def cold_steps(facts: Facts) -> Finding | None:
    """Find first steps that take longer than the others."""
    number = facts.cold.height
    usual = facts.median_ns
    longest = float(facts.cold["length"].max() or 0)  # type: ignore[arg-type]
    if not number or not usual or longest < _COLD * usual:
        return None
    extra, ratio = float(facts.cold["length"].sum()) - number * usual, longest / usual
    steps = "step takes" if number == 1 else f"{number} steps take"
    cause, waited = facts.cold_idle()
    is_idle = cause is not None and waited >= extra / 2
    return Finding(
        finding=f"The first {steps} up to {ratio:.3g} times as long as a usual one, "
        f"{duration(extra)} more in all.",
        unknown="it is lost once in a run, not in each step",
        confidence="measured",
        evidence=(
            f"{number} of {number + facts.number + (facts.last_ns is not None)} recorded steps",
            f"the median of the others takes {duration(usual)}",
            *([f"{duration(waited)} of idle time per GPU in them: `{cause}`"] if is_idle else []),
        ),
        advice=f"Leave them out of means (`--skip {number}`), and out of other measurements. In "
        + (
            "short jobs: start the loader before the model is built, so that its first batch waits."
            if is_idle and cause in ("input", "between_steps")
            else "short jobs: fewer shapes to tune for, fewer kernels to load or compile."
        ),
    )


def evaluation_too_often(facts: Facts) -> Finding | None:
    """Find evaluation between steps that takes a large part of training."""
    ranges = facts.trace["ranges"].filter((pl.col("stage") == "ME") & (pl.col("end") > 0))
    whole = merged(ranges.select("process", "start", "end").collect(), ["process"])
    begins = facts.trace["iterations"].group_by("process").agg(last=pl.col("start").max())
    between = whole.join(begins.collect(), on="process").filter(pl.col("start") < pl.col("last"))
    if between.is_empty() or not facts.has_steps:
        return None
    # While the host waits in such a range, or in another thread, GPUs may still train.
    passes = launch_groups(facts.trace).filter(pl.col("stage").is_in(["FP", "BP", "WU"]))
    alone = covered(between, merged(passes, ["process"]), ["process"], "trained")
    windows = merged(facts.steps.drop_nulls("process"), ["process"])
    alone = covered(alone, windows, ["process"], "within")
    processes = between["process"].n_unique()
    steps = facts.number + facts.cold.height
    own = (LENGTH - pl.col("trained")).clip(0)
    times = alone.select(own.sum(), within=pl.min_horizontal(own, "within").sum()).row(0)
    lost, within = (time / processes / steps for time in times)
    # Where steps are ranges, evaluation after one lasts until the next, and counts in it.
    whole = lost - within + facts.step_ns
    if lost < _OFTEN * whole:
        return None
    number = between.height / processes
    return Finding(
        finding=f"{rounded(number)} evaluations among {steps} steps take {duration(lost)} per "
        f"step, {100 * lost / whole:.3g} % of training.",
        win=Win(lost / 2, 0.0, lost),
        confidence="measured",
        evidence=(
            f"{duration(lost * steps)} of ranges of evaluation before other steps, passes aside",
        ),
        advice="Evaluate half as often to win half of it, or on fewer batches, or elsewhere.",
        outside=True,
    )


def slow_links(facts: Facts) -> Finding | None:
    """Find copies between GPUs far below the peak of their links."""
    if facts.traffic is None:
        return None
    copies = (
        facts.traffic.links("pair", only_measured=True)
        .filter(pl.col("utilisation") < _SLOW_LINK, pl.col("bytes") > _LARGE * pl.col("transfers"))
        .sort("busy_ns", descending=True)
    )
    if copies.is_empty():
        return None
    worst = copies.row(0, named=True)
    extra = worst["busy_ns"] * (1 - worst["utilisation"] / _REACHED)
    lost = extra / max(facts.number + facts.cold.height, 1)
    if not facts.is_worth(lost / 2):
        return None
    return Finding(
        finding=f"Copies from GPU {worst['src_device']} to GPU {worst['dst_device']} reach "
        f"{worst['achieved_gb_s']:.3g} of {worst['peak_gb_s']:.3g} GB/s and run for "
        f"{duration(worst['busy_ns'] / max(facts.number, 1))} {facts.per}.",
        win=Win(lost / 2, 0.0, lost),
        confidence="hint",
        evidence=(
            (
                f"over {worst['route']}: {count(worst['transfers'], 'copy')}, "
                f"{rounded(worst['bytes'] / 1e9, 4)} GB"
            ),
            f"{copies.height} pairs of GPUs stay below half of their peak",
        ),
        advice="Look at what else crosses these links (`tracekit links`), at the link itself "
        "(`nvidia-smi nvlink -s`, PCIe width), and for another route. The win is the exposed part.",
    )


def slow_clocks(facts: Facts) -> Finding | None:
    """Find a GPU that takes longer than the others for the same kernels (slow clocks)."""
    paces = facts.paces
    if paces.height <= 1:
        return None
    worst = paces.sort("pace", "device", descending=[True, False]).row(0, named=True)
    busy = facts.lost(facts.found(kernels)["busy"].filter(device=worst["device"]), "sum").most
    longer = busy * (1 - 1 / worst["pace"])
    if min(worst["pace"], worst["least"]) < _PACE or not facts.is_worth(longer):
        return None
    waited = waited_for(facts, worst["device"])
    lost = longer if waited is None else min(longer, waited)
    if not facts.is_worth(lost):
        return None
    others = "other" if paces.height == PAIR else "median"
    return Finding(
        of_gpu=True,
        finding=f"GPU {worst['device']} takes {worst['pace']:.3g} times as long as the {others} "
        f"GPU for the same kernels, {duration(longer)} {facts.per}.",
        win=Win(lost, lost / 2, longer * worst["pace"]),
        confidence="likely" if waited is None else "measured",
        evidence=(
            "how long other GPUs wait for it is unknown"
            if waited is None
            else f"other GPUs wait {duration(waited)} {facts.per} for it",
            f"{worst['kernels']:,} kernels of the same name and size that {paces.height} GPUs run",
            "pace of the others: "
            + ", ".join(f"{each:.3g}" for each in sorted(paces["pace"])[:-1][-4:]),
        ),
        advice="Look for a lower clock, a power or temperature limit, ECC errors or another "
        "program (`nvidia-smi -q -d CLOCK,PERFORMANCE`).",
    )


def missing_evidence(facts: Facts) -> Finding | None:
    """Find missing data that would allow further findings."""
    found = [missing for missing in (_no_steps(facts), _unexplained(facts), _unstaged(facts),
                               _unmatched(facts)) if missing is not None]  # fmt: skip
    if not found:
        return None
    what = "; ".join(what for what, _ in found)
    return Finding(
        finding=f"{what[0].upper()}{what[1:]}.",
        unknown="what it would show is unknown",
        confidence="measured",
        evidence=tuple(what for what, _ in found),
        advice=" ".join(advice for _, advice in found),
    )


def _no_steps(facts: Facts) -> tuple[str, str] | None:
    if facts.has_steps:
        return None
    return (
        "no steps are known, so times are of the whole recording",
        "Name the ranges that are steps (`--iteration REGEX`), or put a range around each.",
    )


def _unexplained(facts: Facts) -> tuple[str, str] | None:
    lost = facts.lost(facts.idle_of("unexplained")).mean
    if lost < _MUCH * facts.step_ns:
        return None
    what = f"{duration(lost)} of idle time {facts.per} is not explained, {facts.share(lost)}"
    launches = how_to_record(facts.trace, "launching calls")
    return what, (
        f"Where launching calls are missing, record them: {launches}. What an op that was "
        f"launched long before waited for: {how_to_see_waits(facts.trace)}."
    )


def _unstaged(facts: Facts) -> tuple[str, str] | None:
    times = facts.found(kernels)["stages"]
    if "training" not in facts.trace.read("verdicts")["verdict"].cast(pl.String):
        return None
    other = int(times.filter(pl.col("stage") == "OTHER")["time"].sum())
    whole = int(times["time"].sum())
    if other <= _UNSTAGED * whole:
        return None
    return (
        f"the stage of {100 * other / whole:.0f} % of GPU time is not known",
        f"Tell the stages: {how_to_record(facts.trace, 'stages')}.",
    )


def _unmatched(facts: Facts) -> tuple[str, str] | None:
    each = facts.exchanges
    exposed = facts.lost(each, "exposed").mean
    alone = facts.collectives.drop_nulls("step")["match"].is_null().all()
    if exposed < _MUCH * facts.step_ns or not alone:
        return None
    what = f"how much of {duration(exposed)} of exposed collectives {facts.per} is waiting"
    several = facts.collectives.drop_nulls("op").select(MEMBER).n_unique() > 1
    advice = "Record all ranks, and make one run of their reports."
    why = "`tracekit collectives` says why the calls of ranks are not matched."
    return f"{what} for other ranks is not known", why if several else advice
