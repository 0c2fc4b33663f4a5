"""Find ranks that are slower than their peers, and how long the others wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.analysis.diagnosis._waits import MEMBER
from tracekit.analysis.idle_account import BEHIND

if TYPE_CHECKING:
    from tracekit.analysis.diagnosis._facts import Facts

_MOSTLY = 0.8
"""GPUs can be compared that run the same kernels for this part of their time."""
_PAIR = 2
"""Of so many GPUs none is the usual one: the faster one is."""
_OF_GPU = r"^GPU (\d+)$"
_OWN = pl.col("end") - pl.col("start")


def held_behind(facts: Facts) -> pl.DataFrame:
    """Return the idle time of GPUs behind others: ``process, device, iteration, by, held``."""
    behind = facts.idle.filter(pl.col("cause").is_in(BEHIND))
    by = pl.col("detail").str.extract(_OF_GPU).cast(pl.Int32)
    held = pl.col("end") - pl.col("start")
    return behind.select(*MEMBER, "iteration", by=by, held=held).drop_nulls("by")


def waited_for(facts: Facts, device: int) -> float | None:
    """Return the wait of the other GPUs for each one in a step; None if no GPU waits.

    Somebody is always last: what GPUs wait for one of the others, in the mean, is taken away.
    """
    held = held_behind(facts)
    if facts.waits.is_empty() and held.is_empty():
        return None
    others = max(facts.steps["device"].n_unique() - 1, 1)
    inside = facts.waits.select("device", caused=pl.col("caused_ns"))
    behind = held.select(device="by", caused=pl.col("held") / others)
    caused = pl.concat([inside, behind])
    is_it = pl.col("device") == device
    own, rest = (float(caused.filter(each)["caused"].sum()) for each in (is_it, ~is_it))
    return max(own - rest / others, 0.0) / facts.number


def own_times(facts: Facts) -> pl.DataFrame:
    """Return each rank's own time in a step for work that all ranks do: ``own_ns``.

    An op takes the time that it runs, and the time before it in which its GPU was idle for another
    reason than another GPU. Collectives run for as long as the last one lets them, so their own
    time does not count. What some ranks run more often than others is their part in the job, as
    the update at the root of a reduction and the layers of a stage are: who is late by that is not
    slow.
    """
    same = ["kind", "name"]
    number = facts.ops.group_by(*same, *MEMBER).len("number").collect()
    ranks = number.select(MEMBER).n_unique()
    is_alike = (pl.col("number").n_unique() == 1) & (pl.len() == ranks)
    shared = number.group_by(same).agg(is_alike=is_alike).filter("is_alike").select(same).lazy()
    work = facts.ops.join(shared, on=same, how="semi", nulls_equal=True)
    gaps = facts.gaps.lazy().select("gap", op="after")
    ended = gaps.join(work.select("op").unique(), on="op", how="semi").collect()
    own = ~pl.col("cause").is_in(BEHIND)
    idle = facts.idle.filter(own).join(ended, on="gap", how="semi")
    by, length = [*MEMBER, "iteration"], pl.col("end") - pl.col("start")
    sums = (
        work.filter(pl.col("kind") != "collective").group_by(by).agg(own_ns=length.sum()),
        idle.lazy().group_by(by).agg(own_ns=length.sum()),
    )
    return pl.concat(sums).group_by(by).agg(pl.col("own_ns").sum()).sort(by).collect()


def kernel_paces(facts: Facts) -> pl.DataFrame:
    """Return ``device, pace, least, kernels``: how much longer a GPU takes for the same kernels.

    Longer than the median GPU, or of two the faster one. ``least`` is what three of four of these
    kernels exceed. Nothing where GPUs do not run the same kernels equally often for most of their
    time, as the stages of a pipeline do not.
    """
    same = ["name", "launch_size"]
    devices = facts.steps["device"].unique()
    kernels = facts.ops.filter(pl.col("kind") == "compute")
    each = pl.concat(  # which takes as much memory as one of them
        kernels.filter(pl.col("device") == device).group_by(*same, "device").agg(
            own=_OWN.median(), number=pl.len(), total=_OWN.sum()
        ).collect()
        for device in devices
    )  # fmt: skip
    is_shared = (pl.len().over(same) == devices.len()) & (
        pl.col("number").n_unique().over(same) == 1
    )
    middle = pl.col("own").min() if devices.len() <= _PAIR else pl.col("own").median()
    shared = each.with_columns(is_shared=is_shared, usual=middle.over(same))
    told = pl.col("total").filter("is_shared").sum()
    expected = (pl.col("total") / pl.col("own") * pl.col("usual")).filter("is_shared").sum()
    paces = shared.group_by("device").agg(
        pace=told / expected, kernels=pl.col("number").filter("is_shared").sum(),
        told=told / pl.col("total").sum(),
        least=(pl.col("own") / pl.col("usual")).filter("is_shared").quantile(0.25),
    )  # fmt: skip
    return paces if (paces["told"] >= _MOSTLY).all() else paces.clear()
