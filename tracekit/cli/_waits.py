"""`tracekit stalls` and `bubbles`: what GPUs wait for."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracekit.cli._command import command
from tracekit.cli._options import (
    RunsArgument,
    SkipOption,
    StoreOption,
    WhereOption,
    complete_run,
    parse_duration,
    parse_labels,
)
from tracekit.errors import UsageError

if TYPE_CHECKING:
    from tracekit._waits import Time
    from tracekit.model import Answer


def _three(name: str, what: str) -> Any:
    return typer.Option(
        name, metavar="RUN", help=what, autocompletion=complete_run,
        rich_help_panel="Three runs, or times such as 170s",
    )  # fmt: skip


@command(
    "tracekit stalls --skip 1",
    "tracekit stalls before after",
    "tracekit stalls --preloaded run-a --cached run-b --cold run-c",
    figures={"figure": "Draw what GPUs do and wait for"},
)
def stalls(
    runs: RunsArgument = None,
    *,
    preloaded: Annotated[
        str | None, _three("--preloaded", "Its input is made up, or lies prepared in memory.")
    ] = None,
    cached: Annotated[
        str | None, _three("--cached", "Its input is prepared, out of a cache in memory.")
    ] = None,
    cold: Annotated[str | None, _three("--cold", "Its input is read from where it lies.")] = None,
    skip: SkipOption = 0,
    where: WhereOption = None,
    store: StoreOption = None,
) -> "Answer":
    """List how long GPUs wait for input data, and how much of the time kernels run.

    Of several runs, the first is the one that others are held against.
    """
    import tracekit

    three = [preloaded, cached, cold]
    given = [each for each in three if each is not None]
    if not given:
        return tracekit.stalls.answer(
            runs or (), where=parse_labels(where or []), skip=skip, store=store
        )
    if len(given) < len(three) or runs or where:
        raise UsageError("input costs what three runs tell", "give --preloaded, --cached, --cold")
    return tracekit.input_cost.answer(*map(_run_or_time, given), skip=skip, store=store)


def _run_or_time(text: str) -> "Time":
    try:
        return parse_duration(text)
    except UsageError:
        return text


@command(
    "tracekit bubbles --per-step",
    "tracekit bubbles before after",
    "tracekit bubbles --stages 4 --micro-batches 8",
    figures={"figure": "Draw a step of the pipeline, or of several runs what they lose"},
)
def bubbles(
    runs: RunsArgument = None,
    *,
    stages: Annotated[
        int | None,
        typer.Option(
            "--stages", min=1, help="List what theory says of so many stages, and no run."
        ),
    ] = None,
    micro_batches: Annotated[
        int | None,
        typer.Option(
            "--micro-batches", min=1,
            help="Micro-batches of a step. Default: the label, or as forward ranges are numbered.",
        ),
    ] = None,
    schedule: Annotated[
        str | None,
        typer.Option("--schedule", help="gpipe, 1f1b, or another one. Default: the label."),
    ] = None,
    waiting: Annotated[
        str | None,
        typer.Option(
            "--waiting",
            metavar="REGEX",
            help="Ranges on the host in which a stage sends or waits. Default: send, receive.",
        ),
    ] = None,
    per_step: Annotated[
        bool, typer.Option("--per-step", help="List steps in place of stages.")
    ] = False,
    skip: SkipOption = 0,
    where: WhereOption = None,
    store: StoreOption = None,
) -> "Answer":  # fmt: skip
    """List what each stage of a pipeline loses in its bubbles, and what theory says of that.

    Of several runs, the first is the one that others are held against.
    """
    import tracekit

    if stages is None:
        return tracekit.bubbles.answer(
            runs or (), where=parse_labels(where or []), micro_batches=micro_batches,
            schedule=schedule, waiting=waiting, per_step=per_step, skip=skip, store=store,
        )  # fmt: skip
    if runs or micro_batches is None:
        raise UsageError("theory takes stages and micro-batches", "give --micro-batches, no run")
    return tracekit.bubble_model.answer(stages, micro_batches, schedule)
