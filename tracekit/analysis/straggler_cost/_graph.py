"""Dependencies in steps of a pipeline-parallel job, and the replayed end of each op.

Rules: Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis", OSDI
2025, section 3.2, and the code published with it. The ops of a lane run in order; a computation
waits for the message that brings its input, a message for the computation whose result it carries;
the first forward pass waits for the parameters; after the last backward pass gradients are summed,
clipped and applied; the members of a collective, and the two ends of a message, begin together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from tracekit.errors import UndecidedError

Array = np.ndarray[Any, Any]

COMPUTING = ("forward-compute", "backward-compute", "optimizer", "gc")
"""Kinds of work that workers do by themselves; all others are communication."""
_WORKER = ["step", "rank", "stage"]
_MEETING = {
    "params-all-gather": ["step", "stage"],
    "grads-reduce-scatter": ["step", "stage"],
    "embedding-grads-all-reduce": ["step", "rank"],
    "optimizer-clip-main-grad": ["step"],
}
"""Who takes part in each collective: all workers that agree in these."""
_AFTER_BACKWARD = (
    "layernorm-grads-all-reduce",
    "embedding-grads-all-reduce",
    "grads-reduce-scatter",
    "optimizer-clip-main-grad",
)


@dataclass(frozen=True)
class Level:
    """Ops that can begin once those of the levels before have ended.

    Parameters
    ----------
    ops
        The ops, by meeting.
    meeting
        Of each op, the place of its meeting in this level.
    before
        Ops that end before a meeting, by meeting; ``begins`` is where those of each one begin.
    waits
        Which meetings wait for any.
    """

    ops: Array
    meeting: Array
    before: Array
    begins: Array
    waits: Array


def dependencies(ops: pl.DataFrame) -> pl.DataFrame:
    """Return which op waits for which.

    Parameters
    ----------
    ops
        The ops of a timeline, with ``op``, their number.

    Returns
    -------
    ``before`` and ``after``, numbers of ops.
    """
    return pl.concat(
        [_in_lanes(ops), _of_messages(ops), _of_parameters(ops), _of_gradients(ops)]
    ).unique()


def meetings(ops: pl.DataFrame) -> pl.Series:
    """Return a number for each op, the same for ops that begin together."""
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


def levels(ops: pl.DataFrame) -> list[Level]:
    """Sort ops topologically, in levels of many at once.

    Raises
    ------
    UndecidedError
        If ops wait for each other in a circle.
    """
    meeting = meetings(ops).to_numpy()
    edges = dependencies(ops)
    before, after = edges["before"].to_numpy(), meeting[edges["after"].to_numpy()]
    order = np.argsort(after, kind="stable")
    before, after = before[order], after[order]
    count = int(meeting.max()) + 1
    first = np.searchsorted(after, np.arange(count + 1))
    by_meeting = np.argsort(meeting, kind="stable")
    first_op = np.searchsorted(meeting[by_meeting], np.arange(count + 1))
    by_before = np.argsort(before, kind="stable")
    first_after = np.searchsorted(before[by_before], np.arange(ops.height + 1))
    left = np.diff(first)
    ready, found, done = np.flatnonzero(left == 0), [], 0
    while ready.size:
        here, place = _stretches(first_op, ready)
        inside = by_meeting[here]
        waits = np.flatnonzero(np.diff(first)[ready])
        edges_in, _ = _stretches(first, ready[waits])
        lengths = np.diff(first)[ready[waits]]
        found.append(
            Level(
                ops=inside, meeting=place, before=before[edges_in],
                begins=np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64),
                waits=waits,
            )
        )  # fmt: skip
        done += ready.size
        edges_out, _ = _stretches(first_after, inside)
        freed = after[by_before[edges_out]]
        np.subtract.at(left, freed, 1)
        ready = np.unique(freed[left[freed] == 0])
    if done < count:
        raise UndecidedError(
            "ops of this timeline wait for each other in a circle",
            "messages of its stages are not in the order of their micro-batches",
        )
    return found


def step_lengths(found: list[Level], lengths: Array, steps: Array) -> Array:
    """Return the lengths of steps when ops of given lengths begin as early as possible.

    Parameters
    ----------
    found
        What waits for what.
    lengths
        Of each op, in a column for each case, ns.
    steps
        The step of each op, from 0 on.

    Returns
    -------
    A row for each step, a column for each case.
    """
    ends = np.zeros_like(lengths)
    for level in found:
        begin = np.zeros((int(level.meeting[-1]) + 1, lengths.shape[1]), lengths.dtype)
        if level.waits.size:
            begin[level.waits] = np.maximum.reduceat(ends[level.before], level.begins, axis=0)
        ends[level.ops] = begin[level.meeting] + lengths[level.ops]
    order = np.argsort(steps, kind="stable")
    first = np.searchsorted(steps[order], np.arange(int(steps.max()) + 1))
    return np.maximum.reduceat(ends[order], first, axis=0)


def _stretches(first: Array, which: Array) -> tuple[Array, Array]:
    """Return the places from `first[n]` to `first[n + 1]` of each n, and whose each is."""
    lengths = first[which + 1] - first[which]
    owner = np.repeat(np.arange(which.size), lengths)
    offset = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return np.repeat(first[which], lengths) + offset, owner


def _in_lanes(ops: pl.DataFrame) -> pl.DataFrame:
    """Return the order of each lane; messages that begin at one time were launched as one."""
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
    return pl.concat([_pairs(ops, before, after, keys) for before, after in pairs])


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
    collected = ops.filter(pl.col("kind") == "gc")
    clipped = ops.filter(pl.col("kind") == "optimizer-clip-main-grad")
    update = ops.filter(pl.col("kind") == "optimizer")
    return pl.concat(
        [
            _joined(last, after, _WORKER),
            _joined(collected, after, _WORKER),
            _joined(clipped, update, _WORKER),
        ]
    )


def _pairs(ops: pl.DataFrame, before: str, after: str, keys: list[str]) -> pl.DataFrame:
    kind = pl.col("kind")
    return _joined(ops.filter(kind == before), ops.filter(kind == after), keys)


def _joined(before: pl.DataFrame, after: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    return before.select(*keys, before="op").join(
        after.select(*keys, after="op"), on=keys
    ).select("before", "after")  # fmt: skip
