"""Waits of participants of collectives for the last one."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl

MEMBER = ["process", "device"]
_OWN = pl.col("end") - pl.col("start")


def waits_in_collectives(calls: pl.DataFrame) -> pl.DataFrame:
    """Return the wait of each participant of a matched collective, and the last one.

    A participant waits for as long as its own time exceeds the shortest one's, who is the last to
    come: that takes no common clock. Where several are as short, nobody is last.

    Parameters
    ----------
    calls
        As `collective_calls` gives them, with ``clock`` and ``step``.

    Returns
    -------
    ``match, op, step, process, device, collective, wait_ns``; ``is_last``; ``late_ns``,
    by how much it begins after the first one, null without one clock. A row per participant of
    collectives of several.
    """
    number = pl.struct(MEMBER).n_unique().over("match")
    told = calls.drop_nulls("match").filter(number > 1)
    is_common = pl.col("clock").n_unique().over("match") == 1
    return told.sort("match", _OWN, *MEMBER).select(
        "match", "op", pl.col("step").max().over("match"), *MEMBER, "collective",
        wait_ns=_OWN - _OWN.min().over("match"),
        is_last=(pl.int_range(pl.len()).over("match") == 0)
        & (_OWN.shift(-1).over("match") != _OWN),
        late_ns=pl.when(is_common).then(
            pl.col("start") - pl.col("start").min().over("match")
        ),
    )  # fmt: skip


def exposed_waits(
    calls: pl.DataFrame, exposed_of: Callable[[pl.Expr], pl.DataFrame]
) -> pl.DataFrame:
    """Return the same of usual steps, of waits only what is exposed.

    ``caused_ns`` is what the others wait in collectives in which one is last, their mean.

    Parameters
    ----------
    calls
        As `waits_in_collectives` takes them.
    exposed_of
        Returns ``op, exposed`` of the ops for which an expression holds.
    """
    waits = waits_in_collectives(calls).drop_nulls(["step", "op"])
    own = pl.col("op").is_in(waits["op"].unique().implode())
    alone = exposed_of(own).group_by("op").agg(pl.col("exposed").sum())
    known = waits.join(alone, on="op", how="left", maintain_order="left")
    exposed = pl.min_horizontal("wait_ns", pl.col("exposed").fill_null(0))
    others = (pl.len().over("match") - 1).clip(1, None)
    caused = pl.col("wait_ns").sum().over("match") / others
    return (
        known.with_columns(wait_ns=exposed)
        .with_columns(caused_ns=pl.when("is_last").then(caused).otherwise(0.0))
        .drop("exposed")
    )
