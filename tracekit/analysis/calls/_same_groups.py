"""Match NCCL's communicators with PyTorch's process groups, by members and sizes of calls."""

from __future__ import annotations

import polars as pl

from tracekit.analysis.calls._nccl_calls import communicators, read_calls
from tracekit.analysis.calls._ranks import process_ranks
from tracekit.model import Trace

_OF_PYTORCH, _OF_NCCL = r"^pg ", r"^0x"
_NONE = pl.DataFrame(schema={"group": pl.String, "communicator": pl.String})


def group_members(trace: Trace) -> pl.DataFrame:
    """Return one row per process and communicator: ``communicator, place, ranks, rank, sizes``.

    ``place`` is the process's rank in the communicator, ``ranks`` the size of the communicator,
    ``rank`` its rank in the job; ``sizes`` lists its calls there as texts such as ``all_reduce
    4096``.
    """
    own = ["process", "communicator"]
    made = communicators(trace).select(*own, "rank", "ranks").drop_nulls("communicator")
    called = read_calls(trace).drop_nulls(["communicator", "collective"])
    said = called.select(
        *own, "rank", size=pl.concat_str("collective", "message_bytes", separator=" ")
    )
    places = pl.concat([made, said], how="diagonal_relaxed").group_by(own).agg(
        place=pl.col("rank").max().cast(pl.Int64), ranks=pl.col("ranks").max().cast(pl.Int64),
        sizes=pl.col("size").drop_nulls().unique(),
    )  # fmt: skip
    ranks = process_ranks(trace).select("process", pl.col("rank").cast(pl.Int64))
    return places.join(ranks, on="process").drop("process")


def same_groups(members: pl.DataFrame) -> pl.DataFrame:
    """Return ``group, communicator``: PyTorch's name of each group, and NCCL's id of it.

    Two names match if each recorded member has the same place in both, they share a size of a call,
    and no other group or communicator fits as well.

    Parameters
    ----------
    members
        `group_members` of all reports of a run.
    """
    name = pl.col("communicator")
    groups, ours = (members.filter(name.str.contains(start)) for start in (_OF_PYTORCH, _OF_NCCL))
    if groups.is_empty() or ours.is_empty():
        return _NONE
    texts = pl.col("group").str.extract(r"\[(.*)\]").str.replace_all(" ", "").str.split(",")
    told = (
        groups.group_by(group="communicator")
        .agg(listed_sizes=pl.col("sizes").explode().unique())
        .with_columns(listed=texts.cast(pl.List(pl.Int64), strict=False))
    )
    at = pl.col("listed").list.get(pl.col("place"), null_on_oob=True)
    fits = (pl.col("listed").list.len() == pl.col("ranks")) & (at == pl.col("rank"))
    shares = pl.col("sizes").list.set_intersection("listed_sizes").list.len() > 0
    pairs = (
        ours.join(told, how="cross")
        .group_by("group", "communicator")
        .agg(fits=(fits & shares).fill_null(value=False).all())
        .filter("fits")
    )
    alone = pl.all_horizontal(pl.len().over(each) == 1 for each in _NONE.columns)
    return pairs.filter(alone).select(_NONE.columns).sort("group")
