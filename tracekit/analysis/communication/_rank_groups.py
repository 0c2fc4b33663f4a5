"""Groups of ranks that were found for calls without a named communicator."""

from __future__ import annotations

import polars as pl

_SHOWN = 4
"""Maximum number of groups listed per size."""
_PASSES = ("FP", "BP", "ME")


def rank_groups(calls: pl.DataFrame, ranks: pl.DataFrame) -> pl.DataFrame:
    """Return the groups of ranks whose calls without a named communicator end together.

    Parameters
    ----------
    calls
        Result of `collective_calls`.
    ranks
        ``process, rank``; a process without a rank is named by its device.

    Returns
    -------
    ``members`` (sorted), ``of`` (``rank`` or ``device``), ``size``, ``calls`` (number that they ran
    together), ``parallelism`` (``tensor`` if the calls belong to a pass, ``pipeline`` if they are
    messages of two ranks, ``data`` if they belong to the weight update, null if mixed); ``ends_ns``
    and ``arrivals_ns``: median spread of the ends and of the starts of a call, ns.
    """
    unnamed = calls.filter(pl.col("communicator").is_null() & pl.col("match").is_not_null())
    known = unnamed.drop("rank").join(ranks, on="process", how="left")
    is_named = known["rank"].null_count() == 0
    member = pl.col("rank") if is_named else pl.coalesce("device", "process")
    stage = pl.col("stage").cast(pl.String)
    each = known.group_by("match").agg(
        members=member.sort(),
        message=(pl.col("collective") == "send_recv").all(),
        in_pass=stage.is_in(_PASSES).all(),
        in_update=(stage == "WU").all(),
        ends_ns=pl.col("end").max() - pl.col("end").min(),
        arrivals_ns=pl.col("start").max() - pl.col("start").min(),
    )
    size = pl.col("members").list.len().cast(pl.Int64)
    is_pair = (size == 2).first()  # noqa: PLR2004
    named = (
        pl.when(pl.col("message").all() & is_pair)
        .then(pl.lit("pipeline"))
        .when(pl.col("message").any())
        .then(None)
        .when(pl.col("in_pass").all())
        .then(pl.lit("tensor"))
        .when(pl.col("in_update").all())
        .then(pl.lit("data"))
    )
    return (
        each.group_by("members")
        .agg(
            of=pl.lit("rank" if is_named else "device"),
            size=size.first(),
            calls=pl.len().cast(pl.Int64),
            parallelism=named,
            ends_ns=pl.col("ends_ns").median().cast(pl.Int64),
            arrivals_ns=pl.col("arrivals_ns").median().cast(pl.Int64),
        )
        .sort("size", "members", descending=[True, False])
    )


def describe_groups(groups: pl.DataFrame) -> list[str]:
    """Describe groups of ranks and their evidence in one sentence; none for a single group."""
    if groups.height < 2:  # noqa: PLR2004
        return []
    keys = ("size", "parallelism")
    parts = [_described(some) for some in groups.partition_by(keys, maintain_order=True)]
    ends, arrivals = groups["ends_ns"].max(), groups["arrivals_ns"].median()
    told = (
        f"no communicator is named: {'; '.join(parts)} were found by the ends of their calls,"
        f" which differ by at most {_microseconds(ends)} in the median where arrivals differ by"
        f" {_microseconds(arrivals)}"
    )
    return [told]


def _described(groups: pl.DataFrame) -> str:
    size, kind = groups["size"][0], groups["parallelism"][0]
    members = [", ".join(map(str, some)) for some in groups["members"].head(_SHOWN)]
    more = ", ..." if groups.height > _SHOWN else ""
    listed = "".join(f" ({some})" for some in members)
    named = f"{kind}-parallel " if kind else ""
    plural = "group" if groups.height == 1 else "groups"
    return f"{groups.height} {named}{plural} of {size} {groups['of'][0]}s{listed}{more}"


def _microseconds(ns: object) -> str:
    return f"{float(str(ns)) / 1000:,.1f} us"
