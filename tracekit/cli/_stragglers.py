"""`tracekit stragglers`: who comes late, and what it costs the others."""

from typing import TYPE_CHECKING, Annotated

from tracekit.cli._command import command
from tracekit.cli._options import (
    LATEST,
    IterationOption,
    RulesOption,
    RunArgument,
    StoreOption,
    by_option,
    open_run,
    split_keys,
)

if TYPE_CHECKING:
    from tracekit.model import Answer

KEYS = ("rank", "iteration")
"""What they can be by."""


@command(
    "tracekit stragglers",
    "tracekit stragglers --by iteration",
    "tracekit stragglers --figure ranks.html",
    figures={"figure": "Draw the own time of each rank in each step"},
)
def stragglers(
    run: RunArgument = LATEST,
    *,
    by: Annotated[list[str], by_option(KEYS)] = ["rank"],  # noqa: B006 - typer copies it
    rules: RulesOption = None,
    iteration: IterationOption = None,
    store: StoreOption = None,
) -> "Answer":
    """Say who comes late, in which stage, how often, and what it costs the others.

    docs/stragglers.md says what the columns are.
    """
    return open_run(run, store, rules, iteration).stragglers.answer(split_keys(by))
