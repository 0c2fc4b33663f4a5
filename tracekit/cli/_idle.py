"""`tracekit idle`: why nothing runs on the GPUs."""

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
    split_keys,
)

if TYPE_CHECKING:
    from tracekit.model import Answer

KEYS = ("cause", "stage", "iteration", "device", "rank", "range")
"""What idle time can be by."""


@command(
    "tracekit idle",
    "tracekit idle mnist --by device,cause",
    "tracekit idle mnist --longest 10",
    figures={"figure": "Draw the causes of each GPU's idle time"},
)
def idle(
    run: RunArgument = LATEST,
    *,
    by: Annotated[list[str], by_option(KEYS)] = ["cause"],  # noqa: B006 - typer copies it
    longest: Annotated[
        int | None,
        typer.Option(
            "--longest", min=1, metavar="N", help="List the N longest gaps, with their evidence."
        ),
    ] = None,
    skip: SkipOption = 0,
    rules: RulesOption = None,
    iteration: IterationOption = None,
    store: StoreOption = None,
) -> "Answer":
    """Say why nothing runs on the GPUs, and how long: every gap by its cause.

    docs/idle.md says what the causes are, and what tells them.
    """
    opened = open_run(run, store, rules, iteration)
    return opened.idle.answer(split_keys(by), skip=skip, longest=longest)
