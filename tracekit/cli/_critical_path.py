"""`tracekit critical-path`: what the length of steps is made of."""

from typing import TYPE_CHECKING, Annotated

import typer

from tracekit.cli._command import command
from tracekit.cli._options import (
    LATEST,
    IterationOption,
    RulesOption,
    RunArgument,
    SkipOption,
    StepsOption,
    StoreOption,
    TopologyOption,
    by_option,
    open_run,
    split_keys,
    steps_of,
)
from tracekit.support.columns import columns, keys
from tracekit.support.schemas import STAGES, Json, either

if TYPE_CHECKING:
    from tracekit.model import Answer

KEYS = ("cause", "stage", "link", "device", "rank", "iteration", "kernel")
"""What the critical path can be by."""


_JSON = Json(
    "critical-path",
    meta={
        **keys("steps"),
        "steps_ns": "count: Length of the steps, added up.",
        "step_p50_ns": "count: Median length of a step.",
        **keys("skip"),
        "unexplained_share": "share or null: What of the steps nothing explains.",
        "contradicted": "count: Number of dependencies that were left out because they run "
        "against time.",
        **keys("shares", "warnings?"),
    },
    rows={
        "cause?": "one of gpu, comm, host, input, latency, unexplained: What the time is.",
        "stage?": f"one of {STAGES} or null: Stage of the op that works or waits, or that the host "
        "launches next; null where there is none.",
        "link?": "text or null: Type of link that holds a transfer up; null of all else.",
        "device?": "integer or null: GPU of the op that works or waits; null of calls.",
        **columns("rank?"),
        "iteration?": "integer or null: Number of the step; null of a run without.",
        "name?": "text or null: Name of the op that works; null of all else.",
        "segments?": "count: Number of parts of paths.",
        "path_ns": "count: Their length, added over steps.",
        "step_ns": "amount: The same, mean per step.",
        "share": "share or null: path_ns over the length of all steps.",
        "ops?": "count: Number of ops of this name in the steps.",
        "on_path?": "count: How many of these are on a path.",
        "slack_min_ns?": "integer or null: By how much later such an op could end with no step "
        "ending later, at least; null where no step waits for any.",
        "slack_p50_ns?": "number or null: The same in the median.",
    },
    row_rules={"oneOf": either("segments", "name stage ops on_path slack_min_ns slack_p50_ns")},
)


@command(
    "tracekit critical-path",
    "tracekit critical-path mnist --by stage,cause --skip 1",
    "tracekit critical-path --kernels 10",
    name="critical-path",
    figures={"figure": "Draw what each step waited for"},
    writes=[_JSON],
)
def critical_path(
    run: RunArgument = LATEST,
    *,
    by: Annotated[list[str], by_option(KEYS)] = ["cause"],  # noqa: B006 - typer copies it
    kernels: Annotated[
        int | None,
        typer.Option(
            "--kernels", min=1, metavar="N",
            help="List the N ops that take longest on the path, by name, and their slack.",
        ),
    ] = None,
    skip: SkipOption = 0,
    iterations: StepsOption = None,
    topology: TopologyOption = None,
    rules: RulesOption = None,
    iteration: IterationOption = None,
    store: StoreOption = None,
) -> "Answer":  # fmt: skip
    """Say what steps waited for, one thing after the other, from their end back to their begin.

    The parts of the path add up to the steps. docs/critical-path.md says what may wait for what.
    """
    opened = open_run(run, store, rules, iteration)
    return opened.critical_path.answer(
        split_keys(by),
        skip=skip,
        iterations=steps_of(iterations),
        kernels=kernels,
        topology=topology,
    )
