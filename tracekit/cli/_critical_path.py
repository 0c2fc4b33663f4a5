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
    StoreOption,
    TopologyOption,
    by_option,
    open_run,
    split_keys,
)

if TYPE_CHECKING:
    from tracekit.model import Answer

KEYS = ("cause", "stage", "link", "device", "rank", "iteration", "kernel")
"""What the critical path can be by."""


@command(
    "tracekit critical-path",
    "tracekit critical-path mnist --by stage,cause --skip 1",
    "tracekit critical-path --kernels 10",
    name="critical-path",
    figures={"figure": "Draw what each step waited for"},
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
        split_keys(by), skip=skip, kernels=kernels, topology=topology
    )
