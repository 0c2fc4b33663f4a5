"""Cost of stragglers: replay steps in which equal work takes equally long on all ranks.

Definition: Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis",
OSDI 2025, section 3.2, for kernels and calls in place of passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from tracekit.analysis.calls import collective_calls, process_ranks
from tracekit.analysis.statistics import FAR, NO_SLOWER, STEADY
from tracekit.errors import UndecidedError
from tracekit.support.wording import percent

if TYPE_CHECKING:
    from tracekit.analysis.dependencies._job import Job

_MOVES = (pl.col("work") == "comm").fill_null(value=False)
_PARTS = {
    "computing": (pl.col("kind") == "work") & ~_MOVES,
    "host": pl.col("kind").is_in(["host", "call"]),
    # One that is not matched waits in it for an unknown time.
    "communication": (pl.col("kind") == "transfer")
    | ((pl.col("kind") == "work") & _MOVES & (pl.col("op_kind") != "collective")),
}
"""Work of ranks, by the kinds of its edges."""
_PASSES = ("FP", "BP", "WU")
_MOST = 8
"""Largest number of ranks or kinds that are replayed one by one, longest first."""
_FEWEST = 3
"""Least number of groups among which one can be found unusual."""
_UNLIKE = 0.05
"""Least share of work without peers at which a warning names it."""
_PLACE = ["iteration", "kind", "name", "number", "place"]


@dataclass(frozen=True)
class Alike:
    """Change: the selected work takes as long as the same work on other ranks (its peers)."""

    label: str
    own: pl.Expr
    usual: str

    def touches(self) -> pl.Expr:
        """Return an expression: true for edges whose length would change to that on other ranks."""
        return self.own & (pl.col("weight") >= 0) & (pl.col(self.usual) != pl.col("weight"))

    def length(self, *, slowest: bool) -> pl.Expr:  # noqa: ARG002 - it is the same
        """Return the length of equal work on other ranks, ns, the same for both bounds.

        It is the column of edges that the field `usual` names.
        """
        return pl.col(self.usual)


@dataclass(frozen=True)
class Stragglers:
    """Change: ranks take equally long for equal work: all work, or one value of `by` at a time."""

    by: str

    def known(self, job: Job) -> list[Alike]:
        """Return the changes to replay: one for all work, or one per rank, stage, op, part or link.

        A part is computing, host or communication; a link, the collectives of one group of ranks.

        Raises
        ------
        UndecidedError
            If no two ranks do equal work.
        """
        if not job.edges["usual"].count():
            raise UndecidedError(
                "no work of a step is that of another rank",
                "record several ranks, and make one run of their reports with --run NAME",
            )
        if self.by == "rank":
            return _ranks(job)
        if self.by == "part":
            return [Alike(f"{name} alike", part, "usual") for name, part in _PARTS.items()]
        if self.by == "op":
            return _kinds(job)
        if self.by == "link":
            groups = _links(job).select("communicator", "who").rows()
            return [Alike(f"ranks {who} alike", pl.col("communicator") == name, "usual")
                    for name, who in groups]  # fmt: skip
        if self.by == "stage":
            found = job.edges["stage"].unique()
            return [Alike(f"{stage} alike", pl.col("stage") == stage, "usual")
                    for stage in _PASSES if stage in found]  # fmt: skip
        return [Alike("all ranks alike", pl.lit(value=True), "usual")]


def _ranks(job: Job) -> list[Alike]:
    """Return a change for each rank whose work takes longer than the mean, longest first.

    Work of the rank that is longer than the median of the same work over ranks is shortened to it.
    Shorter work is left as it is: it may have waited less.
    """
    alone = job.edges.drop_nulls("median")
    processes = alone["process"].n_unique()
    owner = "process" if processes > 1 else "device"
    beyond = (pl.col("weight") - pl.col("usual")).sum()
    by_owner = alone.drop_nulls(owner).group_by(owner).agg(beyond=beyond)
    longest = by_owner.filter(pl.col("beyond") > 0).sort(-pl.col("beyond"), owner)
    if longest.is_empty():
        raise UndecidedError("no rank takes longer than the others", "use --without-straggler all")
    ranks = process_ranks(job.trace).select("process", "rank")
    devices = job.moments.ops.select("process", "device").unique().join(ranks, on="process")
    named = longest.head(_MOST).join(
        devices.sort("device").unique(owner, keep="first"), on=owner, maintain_order="left"
    )
    gpu, rank = pl.format("GPU {}", "device"), pl.format("rank {}", "rank")
    who = gpu if owner == "device" else pl.coalesce(rank, gpu)
    return [
        Alike(f"{name} no slower than the median",
              (pl.col(owner) == number) & (pl.col("median") < pl.col("weight")), "median")
        for number, name in named.select(pl.col(owner), name=who).rows()
    ]  # fmt: skip


def _kinds(job: Job) -> list[Alike]:
    """Return a change per kind of op, largest total deviation from the other ranks first."""
    off = (pl.col("weight") - pl.col("usual")).abs().sum()
    kinds = job.edges.drop_nulls(["did", "usual"]).group_by("did").agg(off=off)
    names = kinds.filter(pl.col("off") > 0).sort(-pl.col("off"), "did")["did"].head(_MOST)
    return [Alike(f"{name} alike", pl.col("did") == name, "usual") for name in names]


def _links(job: Job) -> pl.DataFrame:
    """Return communicators whose collectives take longer than equal ones of other communicators.

    The slowest comes first. Peers are collectives of the same name and position in a step. Times
    count from the arrival of the last participant. Columns: ``communicator``; ``who``, its
    ranks; ``times``, its time over its peers'; ``next``, that ratio of the second slowest
    communicator; ``slow``, in how many of ``steps`` it is slow; ``links``, number of communicators
    compared; ``is_sized``, whether all exchange equally many bytes; ``computing``, the highest
    ratio, over its ranks, of compute time to that of the peers.

    Raises
    ------
    UndecidedError
        If there is none.
    """
    weight, usual, owner = pl.col("weight"), pl.col("usual"), ["process", "device"]
    known = job.edges.drop_nulls("usual").filter(weight >= 0)
    times = weight.sum() / usual.sum()
    computing = known.filter(_PARTS["computing"]).group_by(owner).agg(computing=times)
    moved = known.drop_nulls("communicator").filter(kind="transfer").join(
        process_ranks(job.trace).select("process", "rank"), on="process", how="left"
    ).join(computing, on=owner, how="left")  # fmt: skip
    steps = moved.group_by("communicator", "iteration").agg(is_slow=times >= FAR)
    ranks = pl.coalesce("rank", "device").unique().sort()
    number, texts = ranks.len(), ranks.cast(pl.String)
    whose = pl.when(number <= _MOST).then(texts.str.join(", ")).otherwise(
        pl.format("{} and {} others", texts.first(), number - 1)
    )  # fmt: skip
    found = moved.group_by("communicator").agg(
        whose.alias("who"), times=times, off=(weight - usual).sum(), links=pl.col("links").min(),
        is_sized=pl.col("is_sized").all(), computing=pl.col("computing").max(),
    )  # fmt: skip
    slow = steps.group_by("communicator").agg(slow=pl.col("is_slow").sum(), steps=pl.len())
    far = found.join(slow, on="communicator").sort("times", "communicator", descending=True)
    longer = far.with_columns(next=pl.col("times").shift(-1)).filter(pl.col("off") > 0)
    if longer.is_empty():
        raise UndecidedError(
            "no group's collectives take longer than their peers'",
            "use --without-straggler all",
        )
    return longer.head(_MOST)


def slow_link(job: Job) -> str:
    """Return in words the ranks whose collectives take far longer than others'; or ``unknown``."""
    one = _links(job).row(0, named=True)
    is_far = one["next"] is not None and one["times"] >= max(FAR, FAR * one["next"])
    is_steady = one["slow"] >= STEADY * one["steps"] and one["links"] >= _FEWEST
    computing = one["computing"]  # null of ranks whose computing has no peers
    if not is_far or not is_steady or computing is None or computing > NO_SLOWER:
        return "unknown"
    return (
        f"{'one link' if one['is_sized'] else 'one link or more bytes'}: collectives of ranks "
        f"{one['who']} take {one['times']:.2f} times as long as their peers', others "
        f"{one['next']:.2f} at most (at least {FAR} times in {one['slow']} of {one['steps']} "
        f"steps), while computing there takes {computing:.2f} of the mean"
    )


def with_peers(job: Job) -> Job:
    """Add to each edge of a job how long the same work takes on other ranks (its peers), ns.

    Peers are kernels, copies or calls (with the host time before them) of the same name, at the
    same position in a step, on ranks with equally many of them in the step.

    Returns
    -------
    The job, with further columns of its edges: ``usual``, for work of single ranks the mean of all
    peers, for communication the median over ranks and steps; ``median``, for work of single ranks
    the median of the peers (of two middle values the lower), else null; and ``did``, the kind of op
    (compute of a stage, a collective, a kind of copy, or host). Without peers, both are null.
    """
    owner = pl.struct("process", "device")  # of calls the process alone
    edges = _placed(job).with_columns(ranks=owner.n_unique().over(_PLACE))
    weight = pl.col("weight")
    is_alone = _PARTS["computing"] | _PARTS["host"]
    in_step = pl.col("iteration").is_not_null() | pl.lit(not job.has_steps)
    is_shared = in_step & (pl.col("ranks") > 1) & (weight >= 0)
    together = weight.median().over("kind", "name", "number", "place")
    named = job.trace["ops"].select("op", did=pl.col("collective").cast(pl.String)).collect()
    calls = collective_calls(job.trace).select("op", "communicator", "message_bytes")
    named = named.join(calls.unique("op"), on="op", how="left")
    work = pl.when(pl.col("op_kind") == "compute").then(
        pl.format("{} computing", "stage")
    ).otherwise(pl.col("op_kind").cast(pl.String))  # fmt: skip
    host = pl.when(_PARTS["host"]).then(pl.lit("host"))
    known = edges.join(named, on="op", how="left", maintain_order="left").with_columns(
        did=pl.coalesce("did", work, host),
        usual=pl.when(is_shared & is_alone).then(weight.mean().over(_PLACE))
        .when(is_shared & _PARTS["communication"]).then(together).round().cast(pl.Int64),
        is_sized=(
            (pl.col("message_bytes").n_unique() == 1) & (pl.col("message_bytes").null_count() == 0)
        ).over(_PLACE[1:]),
        links=pl.col("communicator").n_unique().over(_PLACE[1:]),
        median=pl.when(is_shared & is_alone).then(
            weight.quantile(0.5, "lower").over(_PLACE)
        ).cast(pl.Int64),
    )  # fmt: skip
    return job.changed(job.graph, known.drop("number", "place", "ranks", "message_bytes"))


def _placed(job: Job) -> pl.DataFrame:
    """Add ``iteration``, ``place`` (an edge's position among alike edges of a step), ``number``.

    ``number`` is how many alike edges the step has. Alike are edges of one process, device, kind
    and name of op or call. The iteration of a call is that of its thread's next launched op.
    """
    moments = job.moments
    launched = moments.ops.drop_nulls("launch").unique("launch", keep="first").select(
        "iteration", begin="launch"
    )  # fmt: skip
    calls = moments.calls.join(
        launched, on="begin", how="left", maintain_order="left"
    ).with_columns(pl.col("iteration").backward_fill().over("thread"))
    steps = pl.concat(
        [moments.ops.select("iteration", target="finish"),
         *(calls.select("iteration", target=edge) for edge in ("begin", "finish"))]
    )  # fmt: skip
    like = ["process", "device", "iteration", "kind", "name"]
    target = pl.col("target")
    return job.edges.join(steps, on="target", how="left", maintain_order="left").with_columns(
        place=target.rank("dense").over(like), number=target.n_unique().over(like)
    )


def unlike(job: Job, changes: Sequence[object]) -> list[str]:
    """Return warnings on the share of work that no change alters: work without peers, and waits."""
    if not any(isinstance(each, Alike) for each in changes):
        return []
    work = job.edges.filter(_PARTS["computing"] & (pl.col("weight") > 0))
    total, single = work.select(
        pl.col("weight").sum(), alone=pl.col("weight").filter(pl.col("usual").is_null()).sum()
    ).row(0)
    calls = collective_calls(job.trace).filter(pl.col("collective") != "send_recv")
    unknown = calls["match"].null_count()
    texts = []
    if single > _UNLIKE * total:
        text = f"{percent(single / total)} of the time of kernels and copies stays as it is"
        texts.append(f"{text}: no other rank has as many of that name in that step")
    if unknown > _UNLIKE * calls.height:
        text = f"the participants of {unknown:,} of {calls.height:,} calls of collectives"
        texts.append(f"{text} are not known: waits in these stay as they are")
    return texts
