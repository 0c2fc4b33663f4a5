"""Explain a hang: the rank that is missing, its collective, and where the others wait."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import polars as pl

from tracekit.analysis.hangs._causes import (
    UNTRACKED,
    Problem,
    early_dumps,
    group_calls,
    missing_calls,
    parties,
    ranks_in,
    silent_peers,
    unequal_calls,
    uneven_counts,
    unfinished_calls,
    with_roles,
)
from tracekit.analysis.hangs._dump_calls import last_work, on_timeline
from tracekit.errors import UndecidedError
from tracekit.model import Answer, Trace

SCHEMA: Mapping[str, pl.DataType | type[pl.DataType]] = {
    "role": pl.String,
    "problem": pl.String,
    "ranks": pl.List(pl.Int64),
    "waiting": pl.List(pl.Int64),
    "group": pl.String,
    "description": pl.String,
    "members": pl.Int64,
    "collective": pl.String,
    "sequence": pl.Int64,
    "usual": pl.String,
    "other": pl.String,
    "place": pl.String,
    "last_place": pl.String,
    "says": pl.String,
}
_SPAN = 3
"""Least number of consecutive ranks that are written as a span."""
_PROBLEMS = {
    "type": "enqueued another collective than the others",
    "size": "gave other sizes than the others",
    "dtype": "gave another element type than the others",
    "root": "gave another root than the others",
    "order": "enqueued the same collectives in another order",
}


def find_hang(
    entries: pl.DataFrame,
    ranks: pl.DataFrame,
    peers: pl.DataFrame,
    events: pl.DataFrame,
    warnings: Sequence[str] = (),
    trace: Trace | None = None,
) -> Answer:
    """Return the answer of the command `hang`: why a job hangs, by dumps of its ranks.

    There is one row per group of ranks: the group's first problem. Causes come first. Later
    problems are not listed, since later collectives of the group may be matched wrongly. Times of
    different hosts are not compared.

    ``problem`` is missing (ranks did not join), deadlock (ranks wait for each other in a circle),
    type, size, dtype, order (ranks differ in these at one collective), unstarted (some GPUs have
    not begun the collective), unfinished (all joined, not all completed), no_dump (a rank left no
    dump, and others wait for it), unresponsive, dead, error (by RAS), behind (fewer calls than
    others in two equal answers of RAS).

    ``tables`` are ``ranks``, with each rank's last collective, and, given a trace, its `last_work`;
    and ``collectives``, the result of `on_timeline`.

    Parameters
    ----------
    entries, ranks
        Tables of PyTorch's flight recorder: the last collectives of each rank that left a dump.
    peers, events
        Tables of NCCL's RAS (its service that reports the state of ranks).
    warnings
        Sentences on data that is missing.
    trace
        A trace of some of these ranks, recorded at the same time; `on_timeline` joins it with the
        dumps. If that fails, the trace is left out, with a warning.

    Raises
    ------
    UndecidedError
        If there is one dump, of a backend that records neither states nor members.
    """
    calls = group_calls(entries)
    members = parties(calls, ranks)
    problems = [
        *collective_problems(calls, members),
        *_message_problems(entries, ranks),
    ]
    found = [
        *with_roles(problems),
        *silent_peers(peers, events),
        *uneven_counts(peers),
    ]
    last = last_of(entries)
    without = members.filter(~pl.col("dumped"))["rank"].unique().sort().to_list()
    found = [*_without_dump(without, members, calls, found), *found]
    found = _without_early(early_dumps(calls, members), members, calls, found)
    untracked = calls.filter(pl.col("backend").is_in(UNTRACKED))["backend"].unique().sort()
    blind: list[str] = [] if found else untracked.to_list()
    if blind and ranks.height == 1:
        raise UndecidedError(
            f"{blind[0]} records neither who belongs to a group nor whether a collective ended: "
            "one dump shows nothing",
            "give the dumps of all ranks",
        )
    rows = [row_of(each, entries, last) for each in found]
    lost = ranks.filter(pl.col("lost") > 0).height
    answer = pl.DataFrame(rows, schema=dict(SCHEMA), orient="row")
    # What is last is out of sight on a narrow page.
    each = ranks.join(last, on="rank", how="left")
    tables, timeline = {"ranks": each.select(*last.columns, pl.exclude(*last.columns))}, None
    if trace is not None:
        try:
            tables["collectives"], timeline = on_timeline(calls, trace)
        except UndecidedError as error:
            warnings = [*warnings, f"the run is left out, {error}"]
        else:
            tables["ranks"] = tables["ranks"].join(last_work(trace), on="rank", how="left")
            answer = _with_stages(answer, found, tables["collectives"])
    return Answer(
        rows=answer,
        readable=readable_rows(answer),
        meta={
            "ranks": ranks.height,
            "entries": entries.height,
            "groups": members["party"].n_unique(),
            "without_dump": without,
            "lost": lost,
            **({"timeline": timeline} if timeline else {}),
            "warnings": [*warnings, *_warnings(lost, ranks.height, without), *map(_unseen, blind)],
        },
        title=answer["says"][0] if rows else "",
        tables=tables,
        listed=[*tables],
        empty=_nothing(ranks.height, peers.height, ended=not blind),
        command="hang",
    )


def _with_stages(
    rows: pl.DataFrame, problems: Sequence[Problem], collectives: pl.DataFrame
) -> pl.DataFrame:
    """Add stage and step to rows whose collective is also in the trace (table `collectives`)."""
    call = ["party", "sequence"]
    known = collectives.unique(call, keep="first").select(*call, "stage", "iteration")
    of_rows = pl.Series("party", [each.get("party") for each in problems], dtype=pl.String)
    joined = rows.with_columns(of_rows).join(known, on=call, how="left", maintain_order="left")
    return joined.drop("party")


def rank_texts(ranks: Iterable[int]) -> str:
    """Return ranks as text, consecutive ones as a span: `0 to 3, 7`."""
    spans = []
    for _, same in itertools.groupby(enumerate(sorted(ranks)), lambda each: each[1] - each[0]):
        members = [rank for _, rank in same]
        wide = f"{members[0]} to {members[-1]}"
        spans.append(wide if len(members) >= _SPAN else ", ".join(map(str, members)))
    return ", ".join(spans)


def collective_problems(
    calls: pl.DataFrame, members: pl.DataFrame, compared: pl.DataFrame | None = None
) -> list[Problem]:
    """Return the first problem of each process group; of several at one collective, unequal calls.

    Unequal calls are sought in `compared`, or, if that is None, in `calls`.
    """
    sizes = members.group_by("party").agg(members=pl.len())
    names = calls.group_by("party").agg(pl.col("group", "description").first())
    found = [
        unequal_calls(calls if compared is None else compared, members),
        missing_calls(calls, members).with_columns(problem=pl.lit("missing")),
        unfinished_calls(calls, members).with_columns(
            problem=pl.when(pl.col("ranks").list.len() > 0)
            .then(pl.lit("unstarted"))
            .otherwise(pl.lit("unfinished"))
        ),
    ]
    first = (
        pl.concat(
            [each.with_columns(order=pl.lit(order)) for order, each in enumerate(found)],
            how="diagonal",
        )
        .sort("party", "sequence", "order")
        .unique("party", keep="first", maintain_order=True)
        .join(sizes, on="party")
        .join(names, on="party")
    )
    kinds = calls.group_by("party", "sequence").agg(pl.col("collective").mode().sort().first())
    return list(first.join(kinds, on=["party", "sequence"], how="left").iter_rows(named=True))


def _message_problems(entries: pl.DataFrame, ranks: pl.DataFrame) -> list[Problem]:
    found = unpaired_messages(entries, ranks)
    return [
        {
            **row,
            "members": len(row["members"]),
            "collective": f"message from {row['source']} to {row['target']}",
        }
        for row in found.iter_rows(named=True)
    ]


def _without_dump(
    without: Sequence[int], members: pl.DataFrame, calls: pl.DataFrame, problems: Sequence[Problem]
) -> list[Problem]:
    """Return a problem for the ranks `without` a dump, unless another problem is a cause.

    It names the ranks that wait in process groups with these ranks.
    """
    if not without or any(each["role"] == "cause" for each in problems):
        return []
    groups = members.filter(pl.col("rank").is_in(list(without)))["party"].unique()
    waiting = (
        calls.filter(pl.col("party").is_in(groups.implode()), pl.col("state") != "completed")
        .sort("sequence")["rank"].unique().sort()
    )  # fmt: skip
    return [
        {
            "role": "cause" if waiting.len() else "unknown",
            "problem": "no_dump",
            "ranks": list(without),
            "waiting": waiting.to_list(),
        }
    ]


def _without_early(
    early: Sequence[int], members: pl.DataFrame, calls: pl.DataFrame, problems: list[Problem]
) -> list[Problem]:
    """Replace missing calls of ranks that only wrote their dump too early by an unknown cause.

    `early` are these ranks: their later calls are in no dump, which proves nothing.
    """
    left = [
        each
        for each in problems
        if each["problem"] != "missing" or not {*each["ranks"]} <= {*early}
    ]
    text = f"{_named(early)} wrote a dump before others completed what they joined since"
    unknown = [
        {**each, "role": "unknown", "says": f"{text}; {they(each['waiting'])} in collectives"}
        for each in _without_dump(early, members, calls, left)
        if each["waiting"]
    ]
    return [*left, *unknown]


def last_of(entries: pl.DataFrame) -> pl.DataFrame:
    """Return the last entry of each rank in the order in which it recorded them."""
    return (
        entries.sort("rank", "record", maintain_order=True)
        .group_by("rank", maintain_order=True)
        .agg(
            last_collective=pl.concat_str(
                "collective", pl.format("{} of group {}", "sequence", "group"), separator=" "
            ).last(),
            last_state=pl.col("state").last(),
            last_place=pl.col("place").last(),
        )
    )


def row_of(problem: Problem, entries: pl.DataFrame, last: pl.DataFrame) -> dict[str, Any]:
    """Return the answer's row for a problem, with its collective, group, and a sentence.

    `last`: the last entry of each rank, from `last_of`.
    """
    ranks, waiting = ranks_in(problem, "ranks"), ranks_in(problem, "waiting")
    place = [problem.get("place")]
    if waiting and "place" not in problem and problem.get("sequence") is not None:
        at = entries.filter(
            pl.col("rank") == waiting[0], pl.col("group") == problem["group"],
            pl.col("sequence") == problem["sequence"],
        )  # fmt: skip
        place = at["place"].drop_nulls().to_list()[:1]
    last_place = last.filter(pl.col("rank") == ranks[0])["last_place"].to_list() if ranks else []
    row = {
        **{name: problem.get(name) for name in SCHEMA},
        "ranks": ranks,
        "waiting": waiting,
        "place": place[0] if place else None,
        "last_place": last_place[0] if last_place else None,
    }
    return {**row, "says": problem.get("says") or _sentence(row)}


def _sentence(row: Mapping[str, Any]) -> str:
    ranks, waiting = ranks_in(row, "ranks"), ranks_in(row, "waiting")
    who = _named(ranks)
    which = f"{row['collective']} {row['sequence']} of group {row['group']}"
    if row["description"] not in (None, "undefined", row["group"]):
        which += f" ({row['description']})"
    others = f"{they(waiting)} in it" if waiting else ""
    at = f" ({row['place']})" if row["place"] else ""
    problem = row["problem"]
    if problem in ("missing", "deadlock"):
        circle = ", and is waited for in turn" if problem == "deadlock" else ""
        return f"{who} did not join {which}; {others}{at}{circle}"
    if problem == "no_dump":
        return f"{who} left no dump" + (
            f"; {they(waiting)} in collectives of its groups" if waiting else ""
        )
    if problem in ("unended", "ended", "partial"):
        return _of_recordings(row, which, f"{others}{at}")
    if problem == "unstarted":
        return f"the GPU of {who} has not begun {which}, which others run: earlier work delays it"
    if problem == "unfinished":
        return f"all ranks joined {which} and none of them is known to delay it; {others}{at}"
    if not waiting and row["usual"]:  # no more than half of the ranks agree
        did, gave = "do not agree", f": {row['other']} and {row['usual']}"
    else:
        did = _PROBLEMS[str(problem)]
        gave = f": {row['other']}, the others {row['usual']}" if row["usual"] else ""
    return f"{who} {did} in {which}{gave}{at}"


def _of_recordings(row: Mapping[str, Any], which: str, others: str) -> str:
    ranks_text = _named(ranks_in(row, "ranks"))
    if row["problem"] == "ended":
        return f"the recording of {ranks_text} ended before it could join {which}; {others}"
    if row["problem"] == "partial":
        return f"{others}: {which}; its other ranks were not recorded, or not comparably"
    none = f"; {ranks_text} launched nothing that has not" if row["ranks"] else ""
    waiting = _named(ranks_in(row, "waiting"))
    return f"work that {waiting} launched has not ended, and no name shows which{none}"


def they(ranks: Sequence[int]) -> str:
    """Return a clause: which ranks wait, such as `ranks 0 to 3 wait`."""
    return f"{_named(ranks)} {'wait' if len(ranks) > 1 else 'waits'}"


def _named(ranks: Sequence[int]) -> str:
    if not ranks:
        return "a rank that is not known"
    return f"{'ranks' if len(ranks) > 1 else 'rank'} {rank_texts(ranks)}"


def readable_rows(rows: pl.DataFrame) -> pl.DataFrame:
    """Return rows for display: ranks as text, without ``says`` and columns that are empty."""
    texts = {
        name: pl.Series([rank_texts(each) for each in rows[name].to_list()], dtype=pl.String)
        for name in ("ranks", "waiting")
    }
    known = rows.with_columns(**texts).drop("says", "description")
    return known.select(
        each for each in known if each.null_count() < known.height or known.is_empty()
    )


def _nothing(dumps: int, peers: int, *, ended: bool) -> str:
    if not dumps and peers:
        return "RAS names no rank that is missing, dead or behind"
    subject = "the dump shows" if dumps == 1 else f"the {dumps:,} dumps show"
    did = "join, complete or match" if ended else "join or match"
    return f"{subject} no collective that some rank did not {did}"


def _unseen(backend: str) -> str:
    return (
        f"{backend} records neither who belongs to a group nor whether a collective ended: one "
        "that all wait in is not seen, nor a rank that left no dump"
    )


def _warnings(lost: int, dumps: int, without: Sequence[int]) -> list[str]:
    warnings = []
    if lost:
        warnings.append(
            f"the recorders of {lost:,} of {dumps:,} ranks have lost their first collectives: "
            "groups are compared from where all have them; for more set TORCH_FR_BUFFER_SIZE"
        )
    if without:
        warnings.append(
            f"no dump of ranks {rank_texts(without)}: they ended, or their files are elsewhere"
        )
    return warnings


# -- messages between two ranks that one side did not enqueue, or not of one size --------------


_STATES = ("state", "state_to")


def unpaired_messages(entries: pl.DataFrame, ranks: pl.DataFrame) -> pl.DataFrame:
    """Return, per pair of ranks, the first message that one rank lacks or whose sizes differ.

    Messages have no number, so the n-th send of a pair is matched with its n-th receive; pairs
    whose recorders lost entries are left out.

    Returns
    -------
    ``group``, ``members``, ``sequence`` (which message of the pair, from 1 on), ``problem``
    (missing or size), ``ranks`` (the rank that lacks the message; both if sizes differ),
    ``waiting`` (the other rank), ``place`` (where in the program the other rank waits), ``usual``
    and ``other`` (the sizes of sender and receiver), ``source`` and ``target`` (ranks in the job).
    """
    sides = [_numbered(entries, ranks, side) for side in ("send", "recv")]
    keys = ["group", "members", "from", "to", "sequence"]
    both = sides[0].join(sides[1], on=keys, how="full", coalesce=True, suffix="_to")
    complete = ranks.filter(pl.col("lost") == 0)["rank"].implode()
    unfinished = [(pl.col(name) != "completed").fill_null(value=True) for name in _STATES]
    has = [pl.col("sizes").is_not_null(), pl.col("sizes_to").is_not_null()]
    lacks = (has[0] & ~has[1] & unfinished[0]) | (has[1] & ~has[0] & unfinished[1])
    differs = has[0] & has[1] & (pl.col("sizes") != pl.col("sizes_to"))
    empty = pl.lit([], dtype=pl.List(pl.Int64))
    return (
        both.filter(pl.col("from").is_in(complete), pl.col("to").is_in(complete), lacks | differs)
        .sort("group", "from", "to", "sequence")
        .unique(["group", "members", "from", "to"], keep="first", maintain_order=True)
        .select(
            "group", "members", "sequence",
            problem=pl.when(differs).then(pl.lit("size")).otherwise(pl.lit("missing")),
            ranks=pl.when(differs).then(pl.concat_list("from", "to"))
            .when(has[0]).then(pl.concat_list("to")).otherwise(pl.concat_list("from")),
            waiting=pl.when(differs).then(empty)
            .when(has[0]).then(pl.concat_list("from")).otherwise(pl.concat_list("to")),
            usual="sizes", other="sizes_to", source="from", target="to",
            place=pl.when(~differs).then(pl.coalesce("place", "place_to")),
        )
    )  # fmt: skip


def _numbered(entries: pl.DataFrame, ranks: pl.DataFrame, side: str) -> pl.DataFrame:
    """Return the sends or receives (`side`) in dumps, numbered per sender and receiver from 1."""
    sizes = "input_sizes" if side == "send" else "output_sizes"
    column = "from" if side == "send" else "to"
    return (
        entries.filter(
            (pl.col("collective") == side) & pl.col("source").is_not_null(),
            pl.col("members").list.len() > pl.max_horizontal("source", "target"),
            pl.col("rank").is_in(ranks["rank"].implode()),
        )
        .with_columns(
            pl.col("members").list.get(pl.col("source")).alias("from"),
            pl.col("members").list.get(pl.col("target")).alias("to"),
        )
        .filter(pl.col(column) == pl.col("rank"))
        .sort("rank", "record")
        .with_columns(sequence=pl.int_range(1, pl.len() + 1).over("group", "members", "from", "to"))
        .select(
            "group",
            "members",
            "from",
            "to",
            "sequence",
            "state",
            "place",
            sizes=pl.col(sizes).fill_null("?"),
        )
    )
