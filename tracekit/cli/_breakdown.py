"""`tracekit breakdown`: where the time goes."""

from typing import TYPE_CHECKING, Annotated

import typer

from tracekit.cli._command import command
from tracekit.cli._options import (
    LATEST,
    IterationOption,
    RulesOption,
    RunArgument,
    SkipOption,
    StoreOption,
    VerdictOption,
    by_option,
    open_run,
    split_keys,
)

if TYPE_CHECKING:
    from tracekit.model import Answer

KEYS = (
    "stage", "kind", "kernel", "range", "layer", "device", "stream", "rank", "node", "iteration"
)  # fmt: skip
"""What a breakdown can group by."""


@command(
    "tracekit breakdown",
    "tracekit breakdown trace.sqlite --by kernel --format csv --output kernels.csv",
    "tracekit breakdown mnist --by stage,device --skip 2",
    "tracekit breakdown mnist --by range --depth 3",
    "tracekit breakdown mnist --by range,kernel --inclusive",
    "tracekit breakdown mnist --by device,stage --figure stages.html",
    "tracekit breakdown mnist --steps steps.html",
    figures={
        "figure": "Draw the rows as bars",
        "steps": "Draw steps one by one, and their distribution",
    },
)
def breakdown(
    run: RunArgument = LATEST,
    *,
    by: Annotated[list[str], by_option(KEYS)] = ["stage"],  # noqa: B006 - typer copies it
    skip: SkipOption = 0,
    per_iteration: Annotated[
        bool,
        typer.Option("--per-iteration", help="Add median, p5 and p95 over the iterations."),
    ] = False,
    inclusive: Annotated[
        bool,
        typer.Option(
            "--inclusive",
            help="By range, or range and kernel: count what the ranges inside launch, too.",
        ),
    ] = False,
    depth: Annotated[
        int | None,
        typer.Option("--depth", min=1, metavar="N", help="List N levels of ranges, inclusively."),
    ] = None,
    rules: RulesOption = None,
    iteration: IterationOption = None,
    verdict: VerdictOption = None,
    store: StoreOption = None,
) -> "Answer":
    """Say where the GPUs' time goes: by stage, kernel, device, rank and other keys.

    Without RUN it is the run that was ingested last. A trace file is ingested on the way.
    """
    opened = open_run(run, store, rules, iteration, verdict)
    return opened.breakdown.answer(
        split_keys(by), skip=skip, per_iteration=per_iteration, inclusive=inclusive, depth=depth
    )
