"""Processes whose GPUs hand activations on by peer copies, as the stages of a pipeline do."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import polars as pl

from tracekit.attribution._columns import Array
from tracekit.attribution._evidence import RANGE_STAGE, STAGE
from tracekit.attribution._teams import Teams
from tracekit.model import STAGES, Stream

_PEER = ("p2p", "staged")
_FORWARD, _BACKWARD = STAGES.index("FP") + 1, STAGES.index("BP") + 1
_PAIR = ("process", "low", "high")


def find_handing(
    ops: Stream, launches: Callable[[int], Mapping[str, Array]], teams: Teams, ranges: pl.DataFrame
) -> pl.Series:
    """Return processes whose copies between GPUs all carry activations or their gradients.

    In those several threads train side by side. Copies between two GPUs go one way in forward
    ranges, and the other way with as many bytes each in backward ranges, launched by another team;
    in some step several forward ranges launch such copies, which weights, that change once in a
    step, would not need. No such copy is launched elsewhere.

    Parameters
    ----------
    ops
        The ops.
    launches
        Returns of a chunk of ops what is known of their launches.
    teams
        Who trains with whom.
    ranges
        The skeleton.
    """
    several = teams.trainers.filter(pl.col("team") != pl.col("process"))["process"].unique()
    if several.is_empty() or not len(ops):
        return several.clear()
    parts = (_copies(ops, number, launches, several) for number in range(len(ops)))
    copies = pl.concat(parts)
    forward = ranges.filter((pl.col("stage") == "FP") & ~pl.col("covered")).select(
        "thread", "start", launch="start"
    )
    told = copies.with_columns(team=teams.of(copies)).sort("launch").join_asof(
        forward.sort("launch"), on="launch", by="thread", check_sortedness=False
    )  # fmt: skip
    pairs = told.group_by(_PAIR).agg(hands_on=_hands_on())
    return pairs.group_by("process").agg(pl.col("hands_on").all()).filter("hands_on")["process"]


def _copies(
    ops: Stream, number: int, launches: Callable[[int], Mapping[str, Array]], processes: pl.Series
) -> pl.DataFrame:
    """Return the copies between GPUs of a chunk, with where they were launched."""
    launch = launches(number)
    rows = ops.read(number, "process", "kind", "src_device", "dst_device", "bytes")
    ends = ("src_device", "dst_device")
    return rows.with_columns(
        pl.Series("thread", launch["thread"].astype(np.int32)),
        pl.Series("launch", launch["start"]),
        pl.Series("step", launch["step"]),
        stage=pl.Series(launch["evidence"] >> RANGE_STAGE & STAGE),
        low=pl.min_horizontal(ends),
        high=pl.max_horizontal(ends),
    ).filter(
        pl.col("kind").cast(pl.String).is_in(_PEER)
        & pl.col("process").is_in(processes.implode())
        & (pl.col("thread") >= 0)
    )


def _hands_on() -> pl.Expr:
    """Tell of the copies between two GPUs whether they are as `find_handing` says."""
    forward, backward = (pl.col("stage") == stage for stage in (_FORWARD, _BACKWARD))
    sources = [pl.col("src_device").filter(way) for way in (forward, backward)]
    sizes = [pl.col("bytes").filter(way).unique().sort().implode() for way in (forward, backward)]
    teams = [pl.col("team").filter(way) for way in (forward, backward)]
    moments = pl.struct("step", "start").filter(forward).n_unique()
    steps = pl.col("step").filter(forward).n_unique()
    one_way = [(each.n_unique() == 1) for each in (*sources, *teams)]
    return (
        (forward | backward).all()
        & pl.all_horizontal(one_way)
        & (sources[0].first() != sources[1].first())
        & (teams[0].first() != teams[1].first())
        & (sizes[0] == sizes[1]).first()
        & (moments > steps)
    )
