"""`tracekit flops`: what GPUs compute, and at which share of their peak."""

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
    by_option,
    open_run,
    parse_flops,
    split_keys,
)

if TYPE_CHECKING:
    from tracekit.model import Answer

KEYS = ("operator", "sizes", "layer", "stage", "precision", "kernel", "iteration", "device")
"""What FLOPs can be by."""


@command(
    "tracekit flops",
    "tracekit flops mnist --by layer",
    "tracekit flops mnist --by iteration --peak 312TFLOPS",
)
def flops(
    run: RunArgument = LATEST,
    *,
    by: Annotated[list[str], by_option(KEYS)] = ["operator"],  # noqa: B006 - typer copies it
    peak: Annotated[
        str | None,
        typer.Option(
            "--peak", metavar="RATE",
            help="FLOP/s of a GPU at its peak, such as 312TFLOPS, whatever the precision.",
        ),
    ] = None,
    skip: SkipOption = 0,
    rules: RulesOption = None,
    iteration: IterationOption = None,
    store: StoreOption = None,
) -> "Answer":  # fmt: skip
    """Say how many floating-point operations steps take, and at which share of the GPUs' peak.

    They are known where sizes of operators were recorded. docs/flops.md says how they are counted.
    """
    rate = None if peak is None else parse_flops(peak)
    opened = open_run(run, store, rules, iteration)
    return opened.flops.answer(split_keys(by), skip=skip, peak=rate)
