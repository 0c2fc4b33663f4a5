"""`tracekit straggler-cost`: how much shorter the steps of a job would be without stragglers."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracekit import runs as library
from tracekit.cli._command import command
from tracekit.support.columns import keys
from tracekit.support.questions import Option
from tracekit.support.schemas import NO_RUN, Json

if TYPE_CHECKING:
    from tracekit.model import Answer

_JSON = Json(
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


@command(
    "tracekit straggler-cost timeline.json.gz",
    "tracekit straggler-cost timeline.json.gz --by worker --top 10",
    "tracekit straggler-cost timeline.json.gz --figure workers.html",
    name="straggler-cost",
    figures={"figure": "Draw how much longer each worker computes than its ideal time, by step"},
    writes=[_JSON],
)
def straggler_cost(
    timeline: Annotated[
        Path, typer.Argument(metavar="TIMELINE", help="Timeline of a pipeline-parallel job.")
    ],
    *,
    by: Annotated[str, Option("rank, stage, worker or kind.", "KEY")] = "stage",
) -> "Answer":
    """Say what stragglers cost a job, by replaying its steps with and without them.

    docs/stragglers.md says what is replayed, and where such timelines come from.
    """
    return library.straggler_cost.answer(timeline, by)
