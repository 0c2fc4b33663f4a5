"""Groups of ranks that run collectives together: members, and parallelism (such as data, tensor).

Where communicators are not recorded, groups are inferred from the starts and ends of calls.

Participants of a collective wait for the last one to arrive, so they end together even if they
start at different times. Members of different groups do not: the ends of two groups differ by as
much as their last arrivals. Both properties are tested on the recorded calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracekit.analysis.calls._nccl_calls import communicators, group_descriptions, read_calls
from tracekit.analysis.calls._ranks import process_ranks
from tracekit.model import Trace

_Times = NDArray[np.float64]

MOST_CALLS = 512
"""Maximum number of calls compared per lane, spread over all of its calls."""
MOST_WORK = 1 << 29
"""Most work of a search: the sum of squared numbers of lanes times calls, a minute or less."""
_KNOWN_PARTS = 16
"""Work of a lane among parts that were found before, as a number of lanes."""
TOGETHER = 0.1
"""Largest ratio of the spread of ends to the spread of arrivals within one group."""
_APART = 0.5
"""Least ratio of the differences between ends of two groups to those between last arrivals."""
_SOON = 1.5
"""A message ends as soon as possible if it takes, from the last arrival on, at most this many times
as long as the shortest one.
"""
_CALLS_A_PROOF = 20
"""Least share of calls that prove a group: one in this number, and one more."""
_CENTRED_FROM = 8
"""Least number of calls to treat a constant difference as a delay of algorithm or clock."""


class Group(NamedTuple):
    """Streams (or MPI handles) of one communicator, and whether call times prove that they are."""

    lanes: NDArray[np.int64]
    is_clear: bool
    """Whether it is proven that the lanes are one group, and that no other lane belongs to it."""
    is_one_of_several: bool
    """Whether there is another group of several lanes."""


class GroupSearch:
    """Infer communicators: find the streams (or MPI handles) whose collective calls end together.

    This module calls a stream or MPI handle a lane. `work` is the number of comparisons still
    allowed; at 0, each lane forms an unproven group of its own.
    """

    def __init__(self) -> None:
        self.work = MOST_WORK
        self._times = np.empty((2, 0, 0))
        self._parts: list[NDArray[np.int64]] = []

    def group_of(
        self, starts: _Times, ends: _Times, lane: int, *, of_messages: bool = False
    ) -> Group:
        """Return the lanes (streams or MPI handles) whose calls end together with those of `lane`.

        Single-linkage clustering [P. Sneath, 1957] joins the two groups of lanes whose calls end
        closest together, as long as `_verdict` finds that both are one group. The final group is
        tested against every other group. If the comparisons left (`work`) are too few, the result
        is `lane` alone, marked unproven.

        Parameters
        ----------
        starts, ends
            Times, ns: one column per lane. A row has one call of each lane, or NaN if the lane has
            no such call; if all lanes were one group, these calls would be one collective.
        lane
            Column of the given lane.
        of_messages
            Whether calls are sends and receives: those in a row may wait for different senders.
        """
        starts, ends = _some_calls(starts), _some_calls(ends)
        times = np.stack([starts, ends])
        is_known = np.array_equal(times, self._times, equal_nan=True)
        work = ends.size * min(ends.shape[1], _KNOWN_PARTS if is_known else ends.shape[1])
        self.work = self.work - work if work <= self.work else 0
        if not self.work:
            return Group(np.array([lane]), is_clear=False, is_one_of_several=False)
        if not is_known:
            self._times, self._parts = times, _linked_groups(starts, ends)
        lanes = next(part for part in self._parts if lane in part)
        others = [part for part in self._parts if part is not lanes]
        verdicts: list[str] = ["together"]
        while "together" in verdicts:
            verdicts = [_verdict(starts, ends, lanes, other) for other in others]
            judged = list(zip(verdicts, others, strict=True))
            lanes = np.sort(
                np.concatenate(
                    [lanes, *(each for verdict, each in judged if verdict == "together")]
                )
            )
            others = [each for verdict, each in judged if verdict != "together"]
        is_clear = "unknown" not in verdicts and _is_proven(
            starts, ends, lanes, of_messages=of_messages
        )
        return Group(lanes, is_clear, any(len(each) > 1 for each in others))


def _is_proven(starts: _Times, ends: _Times, part: NDArray[np.int64], *, of_messages: bool) -> bool:
    """Test if the streams `part` (columns) are one group, not several that call at the same times.

    A call proves it if one stream arrives long after all others and all end together: they waited
    for that stream. It proves nothing if the last two arrive together (each may belong to a
    separate group), or if a stream outside of them arrives and ends with the last one. Sends and
    receives (`of_messages`) must also end right after the last arrival: receivers of one group may
    wait for different senders.
    """
    if part.size == 1:
        return True
    some = np.count_nonzero(~np.isnan(starts[:, part]), axis=1) > 1
    starts, middle = starts[some], np.nanmean(ends[some][:, part], axis=1, keepdims=True)
    ends = ends[some] - middle
    if len(ends) >= _CENTRED_FROM:
        ends = ends - _middle(ends)
    arrivals = np.sort(np.nan_to_num(starts[:, part], nan=-np.inf), axis=1)
    first, last = np.nanmin(ends[:, part], axis=1), np.nanmax(ends[:, part], axis=1)
    late, apart = arrivals[:, -1] - arrivals[:, -2], last - first
    apart = np.maximum(apart, np.median(apart))  # some end closer by chance
    others = np.setdiff1d(np.arange(ends.shape[1]), part)
    away = np.abs(starts[:, others] - arrivals[:, [-1]])
    margin = apart[:, None]
    rivals = (
        (TOGETHER * away < margin)
        & (ends[:, others] > first[:, None] - margin)
        & (ends[:, others] < last[:, None] + margin)
    )
    took = middle[:, 0] - arrivals[:, -1]
    soon = (took <= _SOON * np.min(took, initial=np.inf)) | (not of_messages)
    proving = (late > 0) & (apart <= TOGETHER * late) & soon & ~rivals.any(axis=1)
    if np.count_nonzero(proving) < 1 + len(proving) // _CALLS_A_PROOF:
        return False
    return bool((~np.isnan(starts[:, part]))[proving].any(axis=0).all())


def _linked_groups(starts: _Times, ends: _Times) -> list[NDArray[np.int64]]:
    parts = {lane: np.array([lane]) for lane in range(ends.shape[1])}
    part_of = np.arange(ends.shape[1])
    for one, other in _linked(ends):
        first, second = int(part_of[one]), int(part_of[other])
        if first != second and _verdict(starts, ends, parts[first], parts[second]) == "together":
            parts[first] = np.concatenate([parts[first], parts.pop(second)])
            part_of[parts[first]] = first
    return list(parts.values())


def _some_calls(times: _Times) -> _Times:
    chosen = np.linspace(0, len(times) - 1, min(len(times), MOST_CALLS)).astype(np.int64)
    return times[chosen]


def _linked(ends: _Times) -> list[tuple[int, int]]:
    """Return a minimum spanning tree of streams (column pairs) by scatter of end differences."""
    count = ends.shape[1]
    nearest, best = np.zeros(count, np.int64), np.full(count, np.inf)
    is_in = np.zeros(count, np.bool_)
    edges: list[tuple[float, int, int]] = []
    lane = 0
    for _ in range(count - 1):
        is_in[lane] = True
        away = _spread(ends - ends[:, [lane]])
        closer = ~is_in & (away < best)
        nearest[closer], best[closer] = lane, away[closer]
        following = int(np.argmin(np.where(is_in, np.inf, best)))
        if is_in[following]:  # the rest shares no call with those that are linked
            following = int(np.argmin(is_in))
        edges.append((float(best[following]), int(nearest[following]), following))
        lane = following
    return [(one, other) for _, one, other in sorted(edges)]


def _spread(differences: _Times) -> _Times:
    """Return the median absolute deviation (MAD) of each column; infinite if all values are NaN."""
    with np.errstate(invalid="ignore"):
        centred = np.abs(differences - _middle(differences))
        return np.nan_to_num(_middle(centred), nan=np.inf)


def _middle(columns: _Times) -> _Times:
    """Return the median of each column, ignoring NaN."""
    ordered = np.sort(columns, axis=0)  # not a number comes last
    known = np.count_nonzero(~np.isnan(columns), axis=0)
    low, high = np.maximum(known - 1, 0) // 2, known // 2
    lanes = np.arange(columns.shape[1])
    high = np.minimum(high, len(columns) - 1)
    return np.asarray((ordered[low, lanes] + ordered[high, lanes]) / 2)


def _verdict(starts: _Times, ends: _Times, one: NDArray[np.int64], other: NDArray[np.int64]) -> str:
    """Test if two sets of streams belong to one communicator: together, apart or unknown.

    Calls of one communicator end together. `starts` and `ends` have times by call and stream; `one`
    and `other` are numbers of streams.
    """
    end, other_end = _of_group(ends, one, np.nanmean), _of_group(ends, other, np.nanmean)
    start, other_start = _of_group(starts, one, np.nanmax), _of_group(starts, other, np.nanmax)
    both = ~np.isnan(end) & ~np.isnan(other_end)
    by_ends, by_starts = (end - other_end)[both], (start - other_start)[both]
    if not by_ends.size:
        return "unknown"
    ratio = ends_by_arrivals(by_ends, by_starts)
    if by_ends.size >= _CENTRED_FROM:
        centred = ends_by_arrivals(by_ends - np.median(by_ends), by_starts - np.median(by_starts))
        ratio = np.fmin(ratio, centred)
    if ratio <= TOGETHER:
        return "together"
    return "apart" if ratio >= _APART else "unknown"


def _of_group(times: _Times, lanes: NDArray[np.int64], reduce: Callable[..., _Times]) -> _Times:
    if lanes.size == 1:
        return times[:, lanes[0]]
    some = times[:, lanes]
    known = ~np.isnan(some).all(axis=1)
    found = np.full(len(times), np.nan)
    found[known] = reduce(some[known], axis=1)
    return found


def ends_by_arrivals(end_lags: _Times, start_lags: _Times) -> float:
    """Return two groups' median difference of end times, divided by that of their start times.

    The arguments have one value per call: the first group's time minus the second group's. Only the
    quarter of calls (at least 4) whose starts differ most is used: the ends of calls that start
    together are no evidence. NaN if even these calls start together.
    """
    apart = np.abs(start_lags)
    most = np.argsort(-apart, kind="stable")[: max(len(apart) // 4, min(len(apart), 4))]
    differs = float(np.median(apart[most]))
    return float(np.median(np.abs(end_lags[most])) / differs) if differs else float("nan")


# -- match NCCL's communicators with PyTorch's process groups, by members and sizes of calls


_OF_PYTORCH, _OF_NCCL = r"^pg ", r"^0x"
_NONE = pl.DataFrame(schema={"group": pl.String, "communicator": pl.String})


def group_members(trace: Trace) -> pl.DataFrame:
    """Return one row per process and communicator: ``communicator, place, ranks, rank, sizes``.

    ``place`` is the process's rank in the communicator, ``ranks`` the size of the communicator,
    ``rank`` the process's rank in the job; ``sizes`` lists the process's distinct calls in the
    communicator as texts (operation and bytes) such as ``all_reduce 4096``.
    """
    keys = ["process", "communicator"]
    made = communicators(trace).select(*keys, "rank", "ranks").drop_nulls("communicator")
    called = read_calls(trace).drop_nulls(["communicator", "collective"])
    named = called.select(
        *keys, "rank", size=pl.concat_str("collective", "message_bytes", separator=" ")
    )
    places = pl.concat([made, named], how="diagonal_relaxed").group_by(keys).agg(
        place=pl.col("rank").max().cast(pl.Int64), ranks=pl.col("ranks").max().cast(pl.Int64),
        sizes=pl.col("size").drop_nulls().unique(),
    )  # fmt: skip
    ranks = process_ranks(trace).select("process", pl.col("rank").cast(pl.Int64))
    return places.join(ranks, on="process").drop("process")


def same_groups(members: pl.DataFrame) -> pl.DataFrame:
    """Return ``group, communicator``: PyTorch's name of each process group, and its NCCL id.

    The two match if every recorded member has the same rank in both, some call has the same size in
    both, and no other group or communicator fits as well. `members` is the result of
    `group_members`, for all trace files of a run.
    """
    name = pl.col("communicator")
    groups, nccl = (members.filter(name.str.contains(start)) for start in (_OF_PYTORCH, _OF_NCCL))
    if groups.is_empty() or nccl.is_empty():
        return _NONE
    texts = pl.col("group").str.extract(r"\[(.*)\]").str.replace_all(" ", "").str.split(",")
    listed_groups = (
        groups.group_by(group="communicator")
        .agg(listed_sizes=pl.col("sizes").explode().unique())
        .with_columns(listed=texts.cast(pl.List(pl.Int64), strict=False))
    )
    at = pl.col("listed").list.get(pl.col("place"), null_on_oob=True)
    fits = (pl.col("listed").list.len() == pl.col("ranks")) & (at == pl.col("rank"))
    shares = pl.col("sizes").list.set_intersection("listed_sizes").list.len() > 0
    pairs = (
        nccl.join(listed_groups, how="cross")
        .group_by("group", "communicator")
        .agg(fits=(fits & shares).fill_null(value=False).all())
        .filter("fits")
    )
    alone = pl.all_horizontal(pl.len().over(each) == 1 for each in _NONE.columns)
    return pairs.filter(alone).select(_NONE.columns).sort("group")


# -- names, parallelism and members of groups

OF_GROUPS = ("communicator", "group", "parallelism")
"""Keys about groups of ranks."""
MEMBERS = ("communicators", "members")
PARALLELISMS = {
    "tensor": ("tp", "tensor"),
    "pipeline": ("pp", "pipe", "pipeline"),
    "data": ("dp", "ddp", "fsdp", "data"),
    "expert": ("ep", "expert"),
    "context": ("cp", "context"),
    "sequence": ("sp", "sequence"),
}
"""Words in names of groups, by parallelism: of PyTorch's meshes, Megatron-LM, vLLM and SGLang."""


def communicator_groups(trace: Trace, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the name, parallelism and members of each communicator's group of ranks.

    `calls` has a row per participant of a collective.

    Returns
    -------
    One row per communicator: ``communicator``; ``group``, its name in the program; ``parallelism``
    (such as data or tensor), by words in that name (joined by ``and``; null if no word shows it);
    ``members``, the recorded ranks of the job that called it, such as ``0-3, 8`` (null if the rank
    of any caller is unknown).
    """
    described = group_descriptions(trace)
    if calls["communicator"].str.starts_with("0x").any() and described.height:
        same = same_groups(trace.once(group_members)).rename({"communicator": "one"})
        known = same.join(described, left_on="group", right_on="communicator", suffix="_of")
        described = pl.concat(
            [described, known.select(communicator="one", group="group_of")]
        )  # fmt: skip
    named = described.with_columns(parallelism=_parallelism(pl.col("group")))
    ranks = process_ranks(trace).select("process", "rank")
    seen = calls.select("communicator", "process").drop_nulls("communicator").unique()
    ranked = seen.join(ranks, on="process", how="left")
    ranked_fully = ranked.filter(pl.col("rank").is_not_null().all().over("communicator"))
    members = _spans(ranked_fully.select("communicator", "rank").unique())
    return (
        seen.select("communicator").unique()
        .join(named, on="communicator", how="left")
        .join(members, on="communicator", how="left")
        .sort("communicator")
    )  # fmt: skip


def groups_of_ops(trace: Trace, calls: pl.DataFrame) -> pl.DataFrame:
    """Return ``op`` (collective kernel) with the columns of `communicator_groups` for its group."""
    of_ops = calls.select("op", "communicator").drop_nulls().unique("op", keep="none")
    return of_ops.join(communicator_groups(trace, calls), on="communicator")


def members_of_rows() -> list[pl.Expr]:
    """Return aggregations over rows of `communicator_groups`: ``communicators`` and ``members``.

    ``communicators`` counts distinct communicators; ``members`` is null if rows differ in it.
    """
    only = pl.when(pl.col("members").n_unique() == 1).then(pl.col("members").first())
    number = pl.col("communicator").drop_nulls().n_unique()
    return [number.cast(pl.Int64).alias("communicators"), only.alias("members")]


def unnamed_groups(rows: pl.DataFrame) -> list[str]:
    """Return a note how to record group names if `rows` has only nulls for them; else nothing."""
    named = [name for name in OF_GROUPS[1:] if name in rows.columns]
    if not named or rows.select(pl.any_horizontal(pl.col(named).is_not_null()).any()).item():
        return []
    return [
        "names of groups of ranks, which torch.profiler records: nsys records communicators only"
    ]


def _parallelism(name: pl.Expr) -> pl.Expr:
    words = name.str.to_lowercase().str.extract_all(r"[a-z]+")
    kinds = [
        pl.when(words.list.set_intersection(list(known)).list.len() > 0).then(pl.lit(kind))
        for kind, known in PARALLELISMS.items()
    ]
    text = pl.concat_list(kinds).list.drop_nulls().list.join(" and ")
    return pl.when(text != "").then(text)


def _spans(ranks: pl.DataFrame) -> pl.DataFrame:
    """Return the ranks of each communicator as text, consecutive ones as ``0-3``."""
    ordered = ranks.sort("communicator", "rank")
    place = pl.int_range(pl.len()).over("communicator")
    spans = ordered.group_by("communicator", run=pl.col("rank") - place, maintain_order=True).agg(
        first=pl.col("rank").min(), last=pl.col("rank").max()
    )
    first, last = (pl.col(name).cast(pl.String) for name in ("first", "last"))
    text = pl.when(pl.col("first") == pl.col("last")).then(first).otherwise(first + "-" + last)
    return spans.group_by("communicator", maintain_order=True).agg(members=text.str.join(", "))
