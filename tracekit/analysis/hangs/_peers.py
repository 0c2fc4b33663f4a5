"""Find silent and lagging ranks in answers of NCCL's RAS."""

from __future__ import annotations

import polars as pl

from tracekit.analysis.hangs._blame import Problem

_TWO = 2
"""Answers that it takes to tell that nothing moves."""
_ENDED = ("PEER_DEAD", "PEER_TIMEOUT_DEAD", "PEER_UNRESPONSIVE")


def silent_peers(peers: pl.DataFrame, events: pl.DataFrame) -> list[Problem]:
    """Return the ranks of the last answer that did not take part in it, are dead, or in an error.

    Processes of which an event says that they are dead or silent, and no answer does, come after
    them; RAS does not tell the rank of these.
    """
    latest = peers.filter(pl.col("query") == pl.col("query").max())
    problem = (
        pl.when("is_dead").then(pl.lit("dead"))
        .when("is_missing").then(pl.lit("unresponsive"))
        .when(pl.col("error").fill_null(0) != 0).then(pl.lit("error"))
    )  # fmt: skip
    found = latest.with_columns(problem=problem).filter(pl.col("problem").is_not_null())
    told: list[Problem] = []
    for row in found.iter_rows(named=True):
        others = latest.filter(
            pl.col("communicator") == row["communicator"], ~pl.col("is_missing"),
        )["rank"].drop_nulls().sort().to_list()  # fmt: skip
        where = f"process {row['pid']} on {row['host']}"
        what = {
            "dead": "is dead",
            "unresponsive": "does not answer",
            "error": f"has the asynchronous error {row['error']}",
        }[row["problem"]]
        told.append(
            {
                "role": "cause",
                "problem": row["problem"],
                "ranks": [] if row["rank"] is None else [row["rank"]],
                "waiting": [rank for rank in others if rank != row["rank"]],
                "group": row["communicator"],
                "members": row["size"],
                "says": f"rank {row['rank']} of communicator {row['communicator']} {what} "
                f"({where})",
            }
        )
    known = set(found.select("host", "pid").iter_rows())
    ended = events.filter(pl.col("event").is_in(_ENDED))
    told.extend(
        {
            "role": "cause",
            "problem": "unresponsive" if row["event"] == "PEER_UNRESPONSIVE" else "dead",
            "ranks": [],
            "waiting": [],
            "says": f"process {row['pid']} on {row['host']}: {row['event']} at {row['time']}",
        }
        for row in ended.iter_rows(named=True)
        if (row["host"], row["pid"]) not in known
    )
    return told


def uneven_counts(peers: pl.DataFrame) -> list[Problem]:
    """Return the ranks that have called fewer collectives than others, in two equal answers.

    Counts of running ranks differ at any moment: only where two answers are the same nothing moves.
    """
    queries = peers["query"].unique().sort().to_list()
    if len(queries) < _TWO:
        return []
    before, last = queries[-2:]
    keys = ["communicator", "rank"]
    two = peers.filter(pl.col("query") == last).join(
        peers.filter(pl.col("query") == before).select(*keys, before="counts"), on=keys
    )
    still = two.filter(
        (pl.col("counts").eq_missing(pl.col("before"))).all().over("communicator"),
        pl.col("calls").is_not_null(),
    )
    calls = pl.col("calls")
    uneven = (
        still.group_by("communicator", maintain_order=True)
        .agg(
            pl.col("size").first(),
            least=calls.min(),
            most=calls.max(),
            behind=pl.col("rank").filter(calls < calls.max()).sort(),
            ahead=pl.col("rank").filter(calls == calls.max()).sort(),
        )
        .filter(pl.col("least") < pl.col("most"))
    )
    return [
        {
            "role": "cause",
            "problem": "behind",
            "ranks": row["behind"],
            "waiting": row["ahead"],
            "group": row["communicator"],
            "members": row["size"],
            "usual": f"{row['most']:,} calls",
            "other": f"{row['least']:,} calls",
            "says": f"rank {row['behind'][0]} of communicator {row['communicator']} has called "
            f"{row['least']:,} collectives, others {row['most']:,}, and nothing moves",
        }
        for row in uneven.iter_rows(named=True)
    ]
