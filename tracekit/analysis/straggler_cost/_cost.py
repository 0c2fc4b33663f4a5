"""Cost of stragglers by rank, stage, worker or kind of work, from replays of a job's steps.

Rules of the replay: Lin et al., "Understanding Stragglers in Large Model Training Using What-if
Analysis", OSDI 2025, section 3.2, and the code published with it. The ops on one stream of a worker
(a lane) run in order; a computation waits for the message that brings its input, a message for
the computation whose result it carries; the first forward pass waits for the parameters; after the
last backward pass gradients are summed, clipped and applied; the members of a collective, and the
two ends of a message, begin together.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import networkx as nx
import numpy as np
import polars as pl

from tracekit.analysis.statistics import (
    COSINES,
    ENOUGH,
    FAR,
    LEVEL,
    NO_SLOWER,
    STEADY,
    long_run,
    quantile,
)
from tracekit.errors import MissingDataError, UndecidedError, UsageError
from tracekit.model import Answer
from tracekit.support.compiled import compiled
from tracekit.support.wording import count, percent

_Array = np.ndarray[Any, Any]

_COMPUTING = ("forward-compute", "backward-compute", "optimizer", "gc")
"""Kinds of work that workers do by themselves; all others are communication."""
_COMPUTES = pl.col("kind").is_in(_COMPUTING)
_WORKER = ["step", "rank", "stage"]
_MEETING = {
    "params-all-gather": ["step", "stage"],
    "grads-reduce-scatter": ["step", "stage"],
    "embedding-grads-all-reduce": ["step", "rank"],
    "optimizer-clip-main-grad": ["step"],
}
"""Columns that the participants of each collective share, by kind of collective."""
_AFTER_BACKWARD = (
    "layernorm-grads-all-reduce",
    "embedding-grads-all-reduce",
    "grads-reduce-scatter",
    "optimizer-clip-main-grad",
)
KEYS: Mapping[str, Sequence[str]] = {
    "rank": ("rank",),
    "stage": ("stage",),
    "worker": ("rank", "stage"),
    "kind": ("kind",),
}
"""Keys to group stragglers by."""
_REPLAYED, _BEYOND = 0.9, 1.01
"""Least and largest share of a recorded step that a replay to be trusted takes."""
_MOST_OF_IT = 0.5
"""Least share of the cost at which a slow group is named (for a stage M_S of section 5.2)."""
_WHO = {
    "worker": "rank {rank} at stage {stage}", "rank": "rank {rank}", "stage": "stage {stage}",
}  # fmt: skip
"""Names of slow groups, smallest group first; more work and slower work look alike."""
_ALIKE = 0.9
"""Least correlation of both passes of micro-batches at which sequence lengths are taken to differ
(section 5.3 of the paper).
"""


class _Schedule(NamedTuple):
    """Order of a replay: meetings (ops that begin together), and the ops that each waits for."""

    order: _Array
    """Meetings, each after those that it waits for."""
    first: _Array
    """Position in `before` of the first op of each meeting."""
    before: _Array
    """The ops that each meeting waits for, sorted by meeting."""
    meeting: _Array
    """The meeting of each op."""


def _meetings(ops: pl.DataFrame) -> pl.Series:
    """Return the number of each op's meeting (ops that begin together, as in a collective)."""
    stage, kind = pl.col("stage"), pl.col("kind")
    sender = pl.when(kind == "forward-recv").then(stage - 1).when(kind == "backward-recv").then(
        stage + 1
    ).otherwise(stage)  # fmt: skip
    is_message = kind.str.contains("^(?:forward|backward)-(?:send|recv)$")
    way = kind.str.head(1)
    key = pl.when(is_message).then(
        pl.concat_str(pl.lit("message"), way, "step", "rank", sender, "number", separator=" ")
    ).otherwise(pl.concat_str(pl.lit("op"), "op", separator=" "))  # fmt: skip
    for name, keys in _MEETING.items():
        met = pl.concat_str(pl.lit(name), *keys, separator=" ")
        key = pl.when(kind == name).then(met).otherwise(key)
    return ops.select(key.rank("dense").cast(pl.Int64) - 1).to_series()


def _schedule(ops: pl.DataFrame) -> _Schedule:
    """Sort meetings (groups of ops that begin together) so that each follows those it waits for.

    Raises
    ------
    UndecidedError
        If ops wait for each other in a cycle.
    """
    meeting = _meetings(ops).to_numpy()
    # Of two ops the one ``after`` waits for the one ``before``.
    edges = pl.concat(
        [_in_lanes(ops), _of_messages(ops), _of_parameters(ops), _of_gradients(ops)]
    ).unique()
    before, after = edges["before"].to_numpy(), meeting[edges["after"].to_numpy()]
    by_meeting = np.argsort(after, kind="stable")
    count = int(meeting.max()) + 1
    graph = nx.DiGraph()
    graph.add_nodes_from(range(count))
    graph.add_edges_from(zip(meeting[before].tolist(), after.tolist(), strict=True))
    try:
        order = np.fromiter(nx.topological_sort(graph), np.int64, count)
    except nx.NetworkXUnfeasible as error:
        raise UndecidedError(
            "ops of this timeline wait for each other in a circle",
            "messages of its stages are not in the order of their micro-batches",
        ) from error
    first = np.searchsorted(after[by_meeting], np.arange(count + 1))
    return _Schedule(order, first, before[by_meeting], meeting)


def _begin(schedule: _Schedule, lengths: _Array, begins: _Array) -> None:
    """Compute, into `begins`, the earliest start of each meeting (ops that begin together), ns."""
    for place in schedule.order:
        for edge in range(schedule.first[place], schedule.first[place + 1]):
            op = schedule.before[edge]
            begins[place] = max(begins[place], begins[schedule.meeting[op]] + lengths[op])


def _in_lanes(ops: pl.DataFrame) -> pl.DataFrame:
    """Return dependencies ``before, after`` of consecutive ops on each stream of a worker."""
    lane = [*_WORKER, "lane"]
    placed = ops.sort(*lane, "start", "kind").with_columns(
        turn=pl.when(pl.col("lane") == "pp-comm")
        .then(pl.col("start").rle_id().over(lane))
        .otherwise(pl.int_range(pl.len()).over(lane))
    )
    keys = [*lane, "turn"]
    following = placed.select(*lane, turn=pl.col("turn") + 1, before="op")
    return placed.select(*keys, after="op").join(following, on=keys).select("before", "after")


def _of_messages(ops: pl.DataFrame) -> pl.DataFrame:
    keys = [*_WORKER, "number"]
    pairs = [
        (f"{way}-{one}", f"{way}-{other}")
        for way in ("forward", "backward")
        for one, other in (("recv", "compute"), ("compute", "send"))
    ]
    of = {kind: ops.filter(kind=kind) for pair in pairs for kind in pair}
    return pl.concat([_joined(of[before], of[after], keys) for before, after in pairs])


def _of_parameters(ops: pl.DataFrame) -> pl.DataFrame:
    first = ops.filter(pl.col("kind") == "forward-compute").sort("number").unique(
        _WORKER, keep="first", maintain_order=True
    )  # fmt: skip
    gathered = ops.filter(pl.col("kind") == "params-all-gather")
    return _joined(gathered, first, _WORKER)


def _of_gradients(ops: pl.DataFrame) -> pl.DataFrame:
    last = ops.filter(pl.col("kind") == "backward-compute").sort("number").unique(
        _WORKER, keep="last", maintain_order=True
    )  # fmt: skip
    after = ops.filter(pl.col("kind").is_in(_AFTER_BACKWARD))
    before = pl.concat([last, ops.filter(pl.col("kind") == "gc")])
    clipped = ops.filter(pl.col("kind") == "optimizer-clip-main-grad")
    update = ops.filter(pl.col("kind") == "optimizer")
    return pl.concat([_joined(before, after, _WORKER), _joined(clipped, update, _WORKER)])


def _joined(before: pl.DataFrame, after: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    return before.select(*keys, before="op").join(
        after.select(*keys, after="op"), on=keys
    ).select("before", "after")  # fmt: skip


def straggler_cost(
    timeline: pl.DataFrame, by: str = "stage", *, steps: Collection[int] | None = None
) -> Answer:
    """Return the answer of the command `straggler_cost`: cost of each group's stragglers.

    The job's steps are replayed with three sets of op lengths: all ideal; ideal, but one group's
    ops as recorded; and recorded, but one group's ops ideal. An ideal computation takes the mean of
    its kind over all workers and steps, an ideal communication the median.

    Groups that slow the job most come first; wins of several groups do not add up. For
    ``sequence_correlation`` see `_sequence_correlation`; the column is null if forward or backward
    lengths do not vary. ``slowdown`` of ``meta`` is S of the paper.

    Source: Lin et al., OSDI 2025, equation 1 and section 4.

    Parameters
    ----------
    timeline
        The ops of each worker (`tracekit.sources.job_timelines.TIMELINE_SCHEMA`).
    by
        One of `KEYS`: rank (data-parallel), stage (of the pipeline), worker (both), kind of work.
    steps
        Numbers of the steps to replay; all by default.

    Raises
    ------
    UsageError
        If the key is unknown, or none of the steps is in the timeline.
    MissingDataError
        If the timeline contains no computation.
    UndecidedError
        If ops of the timeline wait for each other in a cycle.
    """
    if by not in KEYS:
        raise UsageError(f"stragglers have no key {by!r}", f"choose one of {', '.join(KEYS)}")
    ops = timeline if steps is None else timeline.filter(pl.col("step").is_in(list(steps)))
    if ops.is_empty():
        raise UsageError("none of these steps is in the timeline")
    if not ops["kind"].is_in(_COMPUTING).any():
        raise MissingDataError("this timeline has no computation", f"kinds {', '.join(_COMPUTING)}")
    ops = ops.with_columns(
        op=pl.int_range(pl.len()), turn=pl.col("step").rank("dense").cast(pl.Int64) - 1
    )
    return _answered(ops, by)


def _answered(ops: pl.DataFrame, by: str) -> Answer:
    turns, ideal = ops["turn"].to_numpy(), ops.select(_ideal()).to_series().to_numpy()
    replays = _Replays(_schedule(ops), turns, ops["length"].to_numpy(), ideal)
    steps = [replays.step(np.full(turns.size, fill)) for fill in (False, True)]
    replayed, best = steps
    costs = {key: _by_group(ops, list(KEYS[key]), replays, steps) for key in (by, *_WHO)}
    recorded = _recorded(ops)
    correlation = _sequence_correlation(ops)
    slow = [*_slow_links(ops, replays, steps), *_slow_ones(ops, costs, replays)]
    return Answer(
        rows=costs[by].rename({"stage": "pipeline_stage"}, strict=False),  # a stage is FP, BP, ...
        meta={
            "steps": int(turns.max()) + 1,
            "workers": ops.select("rank", "stage").n_unique(),
            "recorded_ns": recorded,
            "replayed_ns": replayed,
            "ideal_ns": best,
            "slowdown": replayed / best if best else None,
            "sequence_correlation": correlation,
            "causes": _causes(ops, correlation, slow),
            "warnings": [*_warnings(recorded, replayed), *_reordered(ops), *_lost(ops)],
        },
        title=_title(replayed, best),
        command="straggler-cost",
        figures={"figure": "straggler cost"},
        source=_beyond_ideal(ops),
    )


def _title(replayed: float, ideal: float) -> str:
    if not ideal:
        return "No op of this timeline takes any time"
    times = f"{replayed / 1e6:,.1f} ms for {ideal / 1e6:,.1f}"
    if replayed < ideal:
        return f"Steps are no longer than ideal ones: {times}"
    return f"Stragglers make a step {replayed / ideal:.2f} times as long: {times}"


class _Replays(NamedTuple):
    """Replays of a job in which some ops are ideal, and all others as recorded."""

    found: _Schedule
    turns: _Array
    """Index of the step of each op, from 0 on."""
    recorded: _Array
    ideal: _Array
    """Lengths of ops, ns."""

    def step(self, is_ideal: _Array) -> float:
        """Return the mean step if ops begin as early as possible, ns."""
        lengths = np.where(is_ideal, self.ideal, self.recorded)
        begins = np.zeros(self.found.order.size, np.int64)
        compiled(_begin, lengths.size)(self.found, lengths, begins)
        steps = np.zeros(int(self.turns.max()) + 1, np.int64)
        np.maximum.at(steps, self.turns, begins[self.found.meeting] + lengths)
        return float(steps.mean())


def _by_group(
    ops: pl.DataFrame, keys: list[str], replays: _Replays, steps: Sequence[float]
) -> pl.DataFrame:
    """Return each group's cost by `keys`; `steps` are the recorded and the ideal mean step, ns."""
    replayed, best = steps
    # Of a message there is one kind, whichever end.
    ops = ops.with_columns(pl.col("kind").str.replace("-(?:send|recv)$", "-pp-comm"))
    groups = ops.select(*keys).unique().sort(keys)
    number = ops.select(*keys).join(
        groups.with_row_index("group"), on=keys, how="left", maintain_order="left"
    )["group"].to_numpy()  # fmt: skip
    alone = [replays.step(number != group) for group in range(groups.height)]
    without = [replays.step(number == group) for group in range(groups.height)]
    cost = replayed - best
    return (
        groups.with_columns(
            ops=pl.Series(np.bincount(number, minlength=groups.height), dtype=pl.Int64),
            alone_ns=pl.Series(alone),
            without_ns=pl.Series(without),
        )
        .with_columns(slowdown=pl.col("alone_ns") / best, win_ns=replayed - pl.col("without_ns"))
        .with_columns(win_share=pl.when(pl.lit(cost > 0)).then(pl.col("win_ns") / cost))
        .sort("slowdown", descending=True, maintain_order=True)
        .select(*keys, "ops", "alone_ns", "slowdown", "without_ns", "win_ns", "win_share")
    )


def _ideal() -> pl.Expr:
    """Return each op's ideal length, ns: mean of its kind if it computes, else the median."""
    length = pl.col("length")
    return (
        pl.when(_COMPUTES)
        .then(length.mean().over("kind"))
        .otherwise(length.median().over("kind"))
        .round()
        .cast(pl.Int64)
    )


def _beyond_ideal(ops: pl.DataFrame) -> pl.DataFrame:
    """Return ``worker, step, excess_percent``: excess of computing time over its ideal time.

    Workers with the largest mean excess come first; a worker that computes nothing in a step has no
    row for it.
    """
    whose = ["rank", "stage"]
    excess, worst = 100 * (pl.col("beyond") - 1), pl.col("beyond").mean().over(whose)
    cells = _beyond(ops, _COMPUTES, *whose, "step").sort(-worst, *whose, "step")
    worker = pl.format("rank {}, stage {}", *whose)
    return cells.select("step", excess_percent=excess, worker=worker)


def _beyond(ops: pl.DataFrame, is_own: pl.Expr, *keys: str) -> pl.DataFrame:
    """Return ``beyond``, the time of the ops `is_own` over their ideal time, by `keys`."""
    own = ops.with_columns(ideal=_ideal()).filter(is_own, pl.col("ideal") > 0)
    return own.group_by(keys).agg(beyond=pl.col("length").sum() / pl.col("ideal").sum())


def _certainty(cells: pl.DataFrame, keys: Sequence[str], is_own: pl.Expr) -> str | None:
    """Test if a group takes longer than others by more than noise; None if it does not.

    This is a t-test on the rows of `_beyond` by step and group, corrected for the number of groups
    and of ways to group. The noise is that of the others alone, as the group may be slow in some
    steps only; what all have in common in a step is none. Successive steps may depend on each other
    (`long_run`), unless they are too few to show it. So the mean of a rank must also exceed those
    of the other ranks at its stage by more than these differ, as those of equal ranks do whose
    times wander slowly.

    Returns
    -------
    An empty text, or ``perhaps`` if the second test fails or a single step shows no noise.
    """
    steps = cells["step"].n_unique()
    known = cells.filter(pl.len().over(keys) == steps).sort(*keys, "step")
    own, others = (known.filter(of)["beyond"].to_numpy().reshape(-1, steps)
                   for of in (is_own, ~is_own))  # fmt: skip
    number = len(others)
    if not (own.size and number):
        return None
    if steps == 1:
        return "perhaps "
    noise = others - others.mean(axis=0) * (number > 1)
    freedom, variances = steps - 1, noise.var(axis=1, ddof=1) / steps
    if steps >= ENOUGH:
        found = long_run(noise)
        if found.drifts.all():
            return None
        freedom, variances = COSINES, found.variance
    tried, free = len(_WHO) * (number + 1), max(number - 1, 1)
    error = np.sqrt(variances.mean() * (number + 1) / free)
    reach = quantile(freedom * free, 1 - (1 - LEVEL) / tried) * error
    if (own - others).mean() <= reach:
        return None
    is_peer = pl.col("stage") == pl.col("stage").filter(is_own).first() if "stage" in keys else True
    peers = known.filter(~is_own, is_peer)["beyond"].to_numpy().reshape(-1, steps).mean(axis=1)
    if len(peers) <= 1:
        return ""
    error = peers.std(ddof=1) * np.sqrt(1 + 1 / len(peers))
    reach = quantile(len(peers) - 1, 1 - (1 - LEVEL) / (len(peers) + 1)) * error
    return "" if own.mean() - peers.mean() > reach else "perhaps "


def _recorded(ops: pl.DataFrame) -> float:
    lengths = ops.group_by("step").agg(
        length=(pl.col("start") + pl.col("length")).max() - pl.col("start").min()
    )
    return float(lengths["length"].cast(pl.Float64).mean() or 0.0)  # type: ignore[arg-type]


def _sequence_correlation(ops: pl.DataFrame) -> float | None:
    """Return how forward and backward lengths of micro-batches correlate; None if unknown.

    The mean over a worker's step is subtracted from both, so that slow workers or steps have no
    effect. Input sequences of different length make the correlation high.
    """
    keys = ["step", "rank", "stage", "number"]
    forward, backward = (
        ops.filter(pl.col("kind") == f"{way}-compute").select(*keys, length=pl.col("length"))
        for way in ("forward", "backward")
    )
    both = forward.join(backward, on=keys, suffix="_back").with_columns(
        pl.col(name) - pl.col(name).mean().over(keys[:-1]) for name in ("length", "length_back")
    )
    found = both.select(pl.corr("length", "length_back")).item() if both.height else None
    return None if found is None or np.isnan(found) else float(found)


def _causes(ops: pl.DataFrame, correlation: float | None, slow: Sequence[str]) -> list[str]:
    found = sorted(slow, key=lambda text: text.startswith("perhaps"))[:1]
    collected = ops.filter((pl.col("kind") == "gc") & (pl.col("length") > 0))
    if collected.height:
        total = sum(collected["length"]) / 1e6
        found.append(
            f"perhaps garbage collection: {count(collected.height, 'time')}, {total:,.1f} ms"
        )
    if correlation is not None and correlation >= _ALIKE:
        both = "forward and backward passes of a micro-batch are long together"
        found.append(f"lengths of sequences: {both} (correlation {correlation:.2f})")
    return found or ["unknown"]


def _slow_ones(
    ops: pl.DataFrame, costs: Mapping[str, pl.DataFrame], replays: _Replays
) -> Iterator[str]:
    """Yield sentences: which worker, rank or stage causes most of what stragglers cost.

    Its computing is named, unless ideal communication alone would save more of the cost. None is
    named whose time does not exceed that of others by more than noise, which a single step lacks.
    """
    workers = costs["worker"]
    several = {key: workers[key].n_unique() > 1 for key in ("rank", "stage")}
    several["worker"] = all(several.values())  # else it is a rank or a stage, too
    for key, who in _WHO.items():
        worst = costs[key].sort("win_share", descending=True, nulls_last=True).row(0, named=True)
        if several[key] and (worst["win_share"] or 0) >= _MOST_OF_IT:
            share = f"{percent(worst['win_share'])} of what stragglers cost goes with it"
            own = pl.all_horizontal(pl.col(name) == worst[name] for name in KEYS[key])
            kinds = {
                f"{who} takes longer": _COMPUTES,
                f"messages or collectives of {who} take longer": ~_COMPUTES,
            }
            parts = ops.select((own & of).alias(text) for text, of in kinds.items())
            text = min(kinds, key=lambda text: replays.step(parts[text].to_numpy()))
            beyond = _beyond(ops, kinds[text], *KEYS[key], "step")
            if (certainty := _certainty(beyond, KEYS[key], own)) is not None:
                yield f"{certainty}{text.format(**worst)} than others: {share}"


def _slow_links(ops: pl.DataFrame, replays: _Replays, steps: Sequence[float]) -> Iterator[str]:
    """Yield sentences on slow links that cause half the cost, though their ranks are not slow."""
    exchanges, computing = _exchanges(ops), _beyond(ops, _COMPUTES, "rank", "stage")
    replayed, best = steps
    for link in _far_slower(exchanges).iter_rows(named=True):
        ends = computing.filter(
            pl.col("stage").is_in(link["stages"]),
            pl.col("rank") == pl.coalesce(pl.lit(link["rank"], pl.Int64), "rank"),
        )["beyond"].max()
        slow = exchanges.filter(
            pl.col("rank").eq_missing(link["rank"]), pl.col("stages") == link["stages"],
            pl.col("way").is_in(link["ways"]),
        )["op"]  # fmt: skip
        won = replayed - replays.step(np.isin(ops["op"].to_numpy(), slow.to_numpy()))
        share = won / (replayed - best) if replayed > best else 0.0
        if ends is not None and ends <= NO_SLOWER and share >= _MOST_OF_IT:  # type: ignore[operator]
            yield _link_text(link, float(ends), share)  # type: ignore[arg-type]


def _link_text(link: Mapping[str, Any], ends: float, share: float) -> str:
    took, usual, longest = (f"{link[name] / 1e6:,.3f}" for name in ("took", "usual", "next"))
    between = " and ".join(map(str, link["stages"]))
    where = (
        f"the data-parallel group of stage {between}"
        if link["rank"] is None
        else f"stages {between} of rank {link['rank']}"
    )
    return (
        f"{'one link' if link['is_sized'] else 'one link or more bytes'}: "
        f"{' and '.join(link['ways'])} of {where} take {took} ms in the median, others {usual} and "
        f"{longest} at most (at least {FAR} times as long in {link['slow']} of {link['steps']} "
        f"steps), while computing there takes {ends:.2f} of the mean: {percent(share)} of what "
        "stragglers cost goes with it"
    )


def _exchanges(ops: pl.DataFrame) -> pl.DataFrame:
    """Return messages and collectives by link: ``op, step, way, rank, stages, length`` (ns).

    A link connects two stages of a ``rank``, or all ranks of a stage, for which ``rank`` is null;
    ``way`` is the kind of message or collective.
    """
    kind, stage = pl.col("kind"), pl.col("stage")
    lower = pl.when(kind.is_in(["forward-recv", "backward-send"])).then(stage - 1).otherwise(stage)
    message = kind.str.extract("^(forward|backward)-(?:send|recv)$") + " messages"
    in_group = kind.is_in([name for name, keys in _MEETING.items() if keys == ["step", "stage"]])
    tied = kind == "embedding-grads-all-reduce"
    at_ends = pl.concat_list(stage.min().over("rank", "kind"), stage.max().over("rank", "kind"))
    return ops.filter(message.is_not_null() | in_group | tied).select(
        "op", "step", "length",
        way=pl.coalesce(message, kind),
        rank=pl.when(~in_group).then("rank"),
        stages=pl.when(in_group).then(pl.concat_list(stage)).when(tied).then(at_ends)
        .otherwise(pl.concat_list(lower, lower + 1)),
    )  # fmt: skip


def _far_slower(exchanges: pl.DataFrame) -> pl.DataFrame:
    """Return links whose messages take far longer than those of all other links of the same kind.

    Times count from the last participant's arrival. If there are only two links, neither is
    returned, as either may be the unusual one. ``is_sized``: another rank has a link between the
    same stages, carrying equally many bytes, so that more bytes do not explain the time.
    """
    link, took = ["way", "rank", "stages"], pl.col("took")
    in_steps = exchanges.group_by(*link, "step").agg(took=pl.col("length").median()).with_columns(
        usual=took.median().over("way", "step")
    )  # fmt: skip
    is_slow = (took > 0) & (took >= FAR * pl.col("usual"))
    links = (
        in_steps.group_by(link)
        .agg(took.median(), pl.col("usual").median(), slow=is_slow.sum(), steps=pl.len())
        .sort("way", "took", descending=[False, True])
        .with_columns(
            next=took.shift(-1).over("way"),
            peers=pl.len().over("way") - 1,
            is_sized=pl.col("rank").n_unique().over("way", "stages") > 1,
        )
        .unique("way", keep="first", maintain_order=True)
    )
    far = links.filter(
        pl.col("peers") > 1, took > 0, took >= FAR * pl.col("next"),
        pl.col("slow") >= STEADY * pl.col("steps"),
    )  # fmt: skip
    return (
        far.sort("took", "way", descending=[True, False])
        .group_by("rank", "stages", maintain_order=True)
        .agg(pl.col("way").sort().alias("ways"), pl.exclude("way").first())
    )


def _warnings(recorded: float, replayed: float) -> Iterator[str]:
    share = replayed / recorded if recorded else 1.0
    part = f"the replay of a step takes {percent(share)} of a recorded one"
    if share < _REPLAYED:
        yield f"{part}: the rest are delays between ops, or waits that its rules do not know"
    if share > _BEYOND:
        yield f"{part}: its rules put ops one after another that ran together"


def _reordered(ops: pl.DataFrame) -> Iterator[str]:
    """Yield a warning if messages of a stage come in different orders, though it ran the same."""
    messages = ops.filter(pl.col("lane") == "pp-comm").sort(*_WORKER, "start", "kind", "number")
    orders = messages.group_by(_WORKER).agg(
        pl.struct(pl.col("start").rle_id(), "kind", "number").alias("order"),
        messages=pl.struct("kind", "number").sort(),
    )
    different = orders.select("stage", "messages", "order").unique()
    if different.height > different.unique(["stage", "messages"]).height:
        yield (
            "messages of a stage come in different orders, which the replay keeps: the ideal step "
            "may wait for stragglers, too"
        )


def _lost(ops: pl.DataFrame) -> Iterator[str]:
    """Yield a warning if a worker's ops of a kind are more or fewer than usual (lost records).

    Usually all workers run the same number of micro-batch passes in a step, and a worker runs the
    same number of other ops in all steps.
    """
    of, found = ["step", "rank", "stage", "kind"], pl.col("found")
    kinds = ops.filter(pl.col("kind") != "gc").select("stage", "kind").unique()
    steps, ranks = ops.select("step").unique(), ops.select("rank").unique()
    cells = steps.join(ranks, how="cross").join(kinds, how="cross")
    numbers = cells.join(ops.group_by(of).agg(found=pl.len().cast(pl.Int64)), on=of, how="left")
    in_passes = pl.col("kind").str.contains("^(?:forward|backward)-")
    # A worker all of whose step is lost says nothing of what is usual.
    known = pl.when(found.count().over("step", "rank") > 0).then(found.fill_null(0))
    usual = pl.when(in_passes).then(known.median().over("step", in_passes)).otherwise(
        known.median().over("stage", "kind")
    )  # fmt: skip
    unusual = (
        numbers.with_columns(usual=usual.ceil().cast(pl.Int64))
        .with_columns(found.fill_null(0))
        .filter(found != pl.col("usual"))
        .sort(of)
    )
    if unusual.height:
        first = unusual.row(0, named=True)
        yield (
            f"numbers of ops differ between workers or steps in {unusual.height:,} places (first: "
            "{found} {kind} of rank {rank}, stage {stage}, in step {step}, where {usual} is usual)"
            ": the replay does not wait for lost ones"
        ).format(**first)
