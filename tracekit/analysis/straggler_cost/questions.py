"""Declaration of the command `straggler_cost`: its options and columns."""

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Unpack

from tracekit.support.columns import keys
from tracekit.support.files import StrPath
from tracekit.support.questions import ChosenRows, Option, question
from tracekit.support.schemas import NO_RUN, Json

if TYPE_CHECKING:
    from tracekit.model import Answer

_STRAGGLER_COST = Json(
    "straggler-cost",
    run=NO_RUN,
    meta={
        "steps": "count: Number of steps.",
        "workers": "count: Number of workers: data-parallel ranks times stages.",
        "recorded_ns": "amount: Mean step, from its first op to the end of its last one.",
        "replayed_ns": "amount: The same without delays between ops.",
        "ideal_ns": "amount: The same where all computations of a kind are equally long, and all "
        "communications of a kind.",
        "slowdown": "amount or null: replayed_ns over ideal_ns.",
        "sequence_correlation": "number or null: Of lengths of forward and backward passes of one "
        "micro-batch.",
        "causes": "texts: Causes of unequal ops, or unknown.",
        **keys("warnings"),
    },
    rows={
        "rank?": "integer: Data-parallel rank.",
        "pipeline_stage?": "integer: Stage of the pipeline, from 0.",
        "kind?": "text: Kind of work.",
        "ops": "count: Number of ops.",
        "alone_ns": "amount: Mean step where these ops alone are as long as they were.",
        "slowdown": "amount: alone_ns over the ideal step.",
        "without_ns": "amount: Mean step where these ops alone are ideal.",
        "win_ns": "number: How much shorter than the replayed step that is.",
        "win_share": "number or null: win_ns over all that stragglers cost.",
    },
)


@question(
    "tracekit straggler-cost timeline.json.gz",
    "tracekit straggler-cost timeline.json.gz --by worker --top 10",
    "tracekit straggler-cost timeline.json.gz --figure workers.html",
    figures={"figure": "Draw how much longer each worker computes than its ideal time, by step"},
    writes=_STRAGGLER_COST,
    files=Annotated[
        StrPath, Option("Timeline of a pipeline-parallel job.", "TIMELINE", typed=Path)
    ],
)
def straggler_cost(
    timeline: Any,
    by: Annotated[str, Option("rank, stage, worker or kind.", "KEY")] = "stage",
    *,
    steps: Annotated[
        Collection[int] | None, Option("Numbers of the steps that count. Default: all.", flag="")
    ] = None,
    **_: Unpack[ChosenRows],
) -> "Answer":
    """List the cost of stragglers in a job, by replaying its steps with and without them.

    docs/stragglers.md explains the replay and the sources of such timelines.
    """
    from tracekit.analysis.straggler_cost import straggler_cost

    return straggler_cost(timeline, by, steps=steps)
