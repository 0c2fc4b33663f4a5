"""Causes of a hang: collectives that ranks enqueued differently, silent and waiting ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import networkx as nx
import polars as pl

from tracekit.support.wording import count

UNTRACKED = ("gloo", "mpi")
"""Backends without recorded starts and ends: their entries stay `scheduled`."""
_FIELDS: Mapping[str, str] = {
    "collective": "type",
    "input_sizes": "size",
    "output_sizes": "size",
    "input_types": "dtype",
    "output_types": "dtype",
    "root": "root",
}
"""Field that all entries of a collective must agree in -> name of the problem if they do not."""
_UNEQUAL: Mapping[str, tuple[str, ...]] = {
    "input_sizes": ("scatter",),
    "output_sizes": ("gather",),
    "input_types": ("scatter", "broadcast"),
    "output_types": ("gather",),
}
"""Field -> collectives in which it may differ, as only the root gives it."""
_UNEVEN = ("all_to_all", "all_to_all_single", "alltoall", "alltoall_base")
"""Collectives whose sizes may differ between ranks."""
_ROOTED = "broadcast|^_?reduce(_oop)?$|^gather|^scatter"
"""Collectives that a rank may complete before others join."""
_ORDER_WITHIN = 16
"""Number of collectives within which a different order is recognised."""
Problem = dict[str, Any]
_OWN = ("type", "size", "dtype", "root", "order")
"""Problems that are causes by themselves: waiting for other ranks leads to none of them."""
_TWO = 2
"""Number of equal answers that show that nothing moves."""
_ENDED = ("PEER_DEAD", "PEER_TIMEOUT_DEAD", "PEER_UNRESPONSIVE")


def group_calls(entries: pl.DataFrame) -> pl.DataFrame:
    """Return the collectives in PyTorch flight recorder dumps, with their process group.

    Returns
    -------
    The entries that are not messages between two ranks, with ``party`` (name and members of the
    group as text, since names are not unique in a job) and ``turn`` (position among the collectives
    of equal sequence number, which are launched together).
    """
    party = pl.concat_str(
        pl.col("group"),
        pl.col("members").cast(pl.List(pl.String)).list.join(",").fill_null("?"),
        separator=" of ",
    )
    return (
        entries.filter(
            pl.col("collective").is_not_null() & (pl.col("collective") != "coalesced"),
            pl.col("source").is_null(),
            pl.col("sequence").is_not_null() & pl.col("group").is_not_null(),
        )
        .with_columns(party=party, root=pl.lit(None, pl.String))
        .sort("rank", "record", maintain_order=True)
        .with_columns(turn=pl.int_range(pl.len()).over("party", "rank", "sequence"))
    )


def parties(calls: pl.DataFrame, ranks: pl.DataFrame) -> pl.DataFrame:
    """Return the ranks of each process group, and the last collective of each rank there.

    Returns
    -------
    One row per group and rank: ``party``, ``rank``, ``dumped`` (whether the rank left a dump),
    ``last`` (sequence number of the rank's last collective there; 0 if it enqueued none; null if
    unknown: no dump, or lost entries) and ``begin`` (first sequence number that the recorders of
    all ranks of the group still held; 0 if none lost entries).
    """
    members = calls.group_by("party").agg(
        pl.col("members").first(), seen=pl.col("rank").unique().sort()
    )
    last_calls = calls.group_by("party", "rank").agg(
        first=pl.col("sequence").min(), last=pl.col("sequence").max()
    )
    return (
        members.select("party", rank=pl.coalesce("members", "seen"))
        .explode("rank")
        .join(ranks.select("rank", "lost"), on="rank", how="left")
        .join(last_calls, on=["party", "rank"], how="left")
        .with_columns(dumped=pl.col("lost").is_not_null())
        .with_columns(
            last=pl.when(pl.col("dumped") & (pl.col("lost") == 0))
            .then(pl.col("last").fill_null(0))
            .otherwise(pl.col("last")),
            begin=pl.when(pl.col("lost") > 0).then(pl.col("first")).max().over("party"),
        )
        .select("party", "rank", "dumped", "last", pl.col("begin").fill_null(0))
        .sort("party", "rank")
    )


def missing_calls(calls: pl.DataFrame, members: pl.DataFrame) -> pl.DataFrame:
    """Return for each process group the first collective that a rank did not join.

    A collective that all ranks with an entry for it completed is left out: the ranks without an
    entry must have joined it after their dump was written.

    Returns
    -------
    ``party``, ``sequence``, ``ranks`` (which did not join) and ``waiting`` (ranks that joined
    and have not completed it).
    """
    known = members.filter(pl.col("last").is_not_null())
    ahead = known.group_by("party").agg(
        sequence=pl.max_horizontal(pl.col("last").min() + 1, pl.col("begin").first())
    )
    absent = (
        known.join(ahead, on="party")
        .filter(pl.col("last") < pl.col("sequence"))
        .group_by("party", "sequence")
        .agg(ranks=pl.col("rank").sort())
    )
    joined = (
        calls.filter(_is_unfinished())
        .group_by("party", "sequence")
        .agg(waiting=pl.col("rank").unique().sort())
    )
    return absent.join(joined, on=["party", "sequence"])


def early_dumps(calls: pl.DataFrame, members: pl.DataFrame) -> list[int]:
    """Return ranks whose dump lacks a collective (without root) that all other ranks completed.

    Their dumps were written earlier than the others', so later missing entries prove nothing.
    """
    ended = calls.group_by("party", "sequence").agg(
        pl.col("collective").first(), ended=~_is_unfinished().any()
    )
    lacking = members.drop_nulls("last").join(
        ended.filter("ended", ~pl.col("collective").str.contains(_ROOTED)), on="party"
    )
    late = lacking.filter(pl.col("sequence") == pl.max_horizontal(pl.col("last") + 1, "begin"))
    return late["rank"].unique().sort().to_list()


def unequal_calls(calls: pl.DataFrame, members: pl.DataFrame) -> pl.DataFrame:
    """Return for each process group the first collective whose ranks enqueued different calls.

    Returns
    -------
    ``party``, ``sequence``, ``turn`` (see `group_calls`); ``problem`` (type, size, dtype, root, or
    order if ranks run the same collectives in a different order), ``field`` (column that differs),
    ``ranks`` (that differ from the majority; all ranks if there is no majority), ``waiting`` (the
    other ranks), ``usual`` (most frequent value) and ``other`` (the other values).
    """
    begin = members.group_by("party").agg(pl.col("begin").first())
    begun = calls.join(begin, on="party").filter(pl.col("sequence") >= pl.col("begin"))
    compared = begun.with_columns(
        pl.when(~pl.col("collective").is_in([*_UNEQUAL.get(name, ()), *_uneven(name)])).then(name)
        for name in _FIELDS
    )
    found = [_first_unequal(compared, name, order) for order, name in enumerate(_FIELDS)]
    first = (
        pl.concat(found)
        .sort("party", "sequence", "turn", "order")
        .unique("party", keep="first", maintain_order=True)
    )
    rows = [_problem(row, compared) for row in first.iter_rows(named=True)]
    schema: Mapping[str, Any] = {
        "party": pl.String, "sequence": pl.Int64, "turn": pl.Int64, "problem": pl.String,
        "field": pl.String, "ranks": pl.List(pl.Int64), "waiting": pl.List(pl.Int64),
        "usual": pl.String, "other": pl.String,
    }  # fmt: skip
    return pl.DataFrame(rows, schema=schema, orient="row")


def unfinished_calls(calls: pl.DataFrame, members: pl.DataFrame) -> pl.DataFrame:
    """Return per process group the first collective that all ranks joined but not all completed.

    Returns
    -------
    ``party`` (the group), ``sequence``, ``ranks`` (those whose GPU has not begun it; empty if none
    has begun it, or all have) and ``waiting`` (other ranks that have not completed it).
    """
    size = members.group_by("party").agg(
        size=pl.len(), begin=pl.col("begin").first(), whole=pl.col("dumped").all()
    )
    state = pl.col("state")
    return (
        calls.filter(~pl.col("backend").is_in(UNTRACKED))
        .group_by("party", "sequence")
        .agg(
            joined=pl.col("rank").n_unique(),
            unstarted=pl.col("rank").filter(state == "scheduled").unique().sort(),
            open=pl.col("rank").filter(_is_unfinished()).unique().sort(),
        )
        .join(size, on="party")
        .filter(
            pl.col("whole"),
            pl.col("joined") == pl.col("size"),
            pl.col("sequence") >= pl.col("begin"),
            pl.col("open").list.len() > 0,
        )
        .sort("party", "sequence")
        .unique("party", keep="first", maintain_order=True)
        .with_columns(
            ranks=pl.when(pl.col("unstarted").list.len() < pl.col("size"))
            .then("unstarted")
            .otherwise(pl.lit([], dtype=pl.List(pl.Int64)))
        )
        .select(
            "party", "sequence", "ranks",
            waiting=pl.col("open").list.set_difference("ranks").list.sort(),
        )
    )  # fmt: skip


def _is_unfinished() -> pl.Expr:
    return (pl.col("state") != "completed").fill_null(value=True)


def _uneven(field: str) -> tuple[str, ...]:
    return _UNEVEN if field.endswith("sizes") else ()


def _first_unequal(calls: pl.DataFrame, name: str, order: int) -> pl.DataFrame:
    return (
        calls.filter(pl.col(name).is_not_null())
        .group_by("party", "sequence", "turn")
        .agg(values=pl.col(name).n_unique())
        .filter(pl.col("values") > 1)
        .sort("sequence", "turn")
        .unique("party", keep="first", maintain_order=True)
        .select(
            "party", "sequence", "turn",
            order=pl.lit(order, pl.Int64), field=pl.lit(name), problem=pl.lit(_FIELDS[name]),
        )
    )  # fmt: skip


def _problem(row: Mapping[str, Any], calls: pl.DataFrame) -> Mapping[str, Any]:
    """Return a group's first unequal call as a problem: ranks that differ, in value or in order.

    `row` names the group and the collective, and the ``field`` (column) whose values differ.
    """
    party = calls.filter(pl.col("party") == row["party"])
    field = str(row["field"])
    here = party.filter(
        pl.col("sequence") == row["sequence"], pl.col("turn") == row["turn"],
        pl.col(field).is_not_null(),
    )  # fmt: skip
    values = here.group_by(field).agg(pl.len()).sort("len", field, descending=[True, False])
    usual, others = values[field][0], values[field][1:].to_list()
    is_majority = values["len"][0] * 2 > here.height
    differ = here.filter(pl.col(field) != usual) if is_majority else here
    ranks = differ["rank"].sort().to_list()
    is_order = is_majority and _reorders(party, row, ranks, usual, field)
    return {
        **{name: row[name] for name in ("party", "sequence", "turn", "field")},
        "problem": "order" if is_order else row["problem"],
        "ranks": ranks,
        "waiting": here.filter(~pl.col("rank").is_in(ranks))["rank"].sort().to_list(),
        "usual": usual,
        "other": ", ".join(others),
    }


def _reorders(
    party: pl.DataFrame, row: Mapping[str, Any], ranks: list[int], usual: str, field: str
) -> bool:
    """Test whether rank `ranks[0]` makes the same next calls as another rank, in another order.

    The other rank is one whose call of the unequal collective (`row`) has `usual` in the column
    `field`; `party` has all calls of the process group.
    """
    after = party.filter(pl.col("sequence") >= row["sequence"]).sort("sequence", "turn")
    like = after.filter((pl.col("sequence") == row["sequence"]) & (pl.col(field) == usual))
    calls_a, calls_b = (
        after.filter(pl.col("rank") == rank).select(*_FIELDS).head(_ORDER_WITHIN)
        for rank in (ranks[0], like["rank"][0])
    )
    known = [name for name in _FIELDS if calls_a[name].count() and calls_b[name].count()]
    ends = range(2, min(calls_a.height, calls_b.height) + 1)
    firsts = (
        [each.select(known).head(end).sort(known) for each in (calls_a, calls_b)] for end in ends
    )
    return any(one.equals(other) for one, other in firsts)


def with_roles(problems: Sequence[Problem]) -> Sequence[Problem]:
    """Add ``role`` to problems; sort causes first, by the number of ranks that wait for them.

    A rank that is missing in one collective and waits in another is blocked by the latter. A
    problem is a `cause` in any of these cases:

    - Its ranks made unequal calls.
    - Its ranks launched a collective that their GPUs did not start; some wait in no other
      collective.
    - Its ranks are missing in a collective, and some of these ranks wait in no other collective.
    - Ranks wait for each other in a cycle (``problem`` is then deadlock).

    If all ranks joined the collective, or the kind of the waiting work is unknown, the problem is
    `unknown`; but if another problem is a cause, it is a `consequence`. All other problems are
    consequences.
    """
    waits: dict[int, set[int]] = {}
    for each in problems:
        if each["problem"] not in _OWN:
            for rank in ranks_in(each, "waiting"):
                waits.setdefault(rank, set()).update(ranks_in(each, "ranks"))
    wrong = {
        rank for each in problems if each["problem"] in _OWN
        for rank in ranks_in(each, "ranks") + ranks_in(each, "waiting")
    }  # fmt: skip
    circles = nx.strongly_connected_components(nx.DiGraph(waits))
    rings = {rank for each in circles if len(each) > 1 for rank in each}
    found = [_with_role(each, waits, wrong, rings) for each in problems]
    has_cause = any(each["role"] == "cause" for each in found)
    found = [
        {**each, "role": "consequence"} if has_cause and each["role"] == "unknown" else each
        for each in found
    ]
    order = ("cause", "unknown", "consequence")
    return sorted(
        found,
        key=lambda each: (
            order.index(str(each["role"])), -len(ranks_in(each, "waiting")), str(each["group"])
        ),
    )  # fmt: skip


def _with_role(
    problem: Problem, waits: Mapping[int, set[int]], wrong: set[int], rings: set[int]
) -> Problem:
    if problem["problem"] in _OWN:
        return {**problem, "role": "cause"}
    ranks = ranks_in(problem, "ranks")
    if problem["problem"] == "unstarted" and all(rank in waits for rank in ranks):
        return {**problem, "role": "consequence"}
    if problem["problem"] != "missing":
        is_known = bool(ranks) and problem["problem"] != "unended"
        return {**problem, "role": "cause" if is_known else "unknown"}
    free = [rank for rank in ranks if rank not in waits and rank not in wrong]
    if free:
        return {**problem, "role": "cause", "ranks": free}
    if any(rank in rings for rank in ranks) and any(
        rank in rings for rank in ranks_in(problem, "waiting")
    ):
        return {**problem, "role": "cause", "problem": "deadlock"}
    return {**problem, "role": "consequence"}


def ranks_in(row: Mapping[str, Any], key: str) -> list[int]:
    """Return the list of ranks in a column of a row; empty if it is null or missing."""
    return list(row.get(key) or [])


def silent_peers(peers: pl.DataFrame, events: pl.DataFrame) -> list[Problem]:
    """Return problems: ranks that the last answer of NCCL's RAS lists as silent, dead or failed.

    Further problems are processes that only an event of RAS reports as dead or silent; their ranks
    are unknown.
    """
    latest = peers.filter(pl.col("query") == pl.col("query").max())
    problem = (
        pl.when("is_dead").then(pl.lit("dead"))
        .when("is_missing").then(pl.lit("unresponsive"))
        .when(pl.col("error").fill_null(0) != 0).then(pl.lit("error"))
    )  # fmt: skip
    found = latest.with_columns(problem=problem).filter(pl.col("problem").is_not_null())
    problems: list[Problem] = []
    for row in found.iter_rows(named=True):
        others = latest.filter(
            pl.col("communicator") == row["communicator"], ~pl.col("is_missing"),
        )["rank"].drop_nulls().sort().to_list()  # fmt: skip
        where = f"process {row['pid']} on {row['host']}"
        states = {
            "dead": "is dead",
            "unresponsive": "does not answer",
            "error": f"has the asynchronous error {row['error']}",
        }[row["problem"]]
        problems.append(
            {
                "role": "cause",
                "problem": row["problem"],
                "ranks": [] if row["rank"] is None else [row["rank"]],
                "waiting": [rank for rank in others if rank != row["rank"]],
                "group": row["communicator"],
                "members": row["size"],
                "says": f"rank {row['rank']} of communicator {row['communicator']} {states} "
                f"({where})",
            }
        )
    known = set(found.select("host", "pid").iter_rows())
    ended = events.filter(pl.col("event").is_in(_ENDED))
    problems.extend(
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
    return problems


def uneven_counts(peers: pl.DataFrame) -> list[Problem]:
    """Return problems: ranks that made fewer collective calls than others, by NCCL's RAS.

    Ranks that run also have unequal counts. So there are problems only if the last two answers of
    RAS are equal, which means that nothing runs.
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
            "usual": count(row["most"], "call"),
            "other": count(row["least"], "call"),
            "says": f"rank {row['behind'][0]} of communicator {row['communicator']} has called "
            f"{count(row['least'], 'collective')}, others {row['most']:,}, and nothing moves",
        }
        for row in uneven.iter_rows(named=True)
    ]
