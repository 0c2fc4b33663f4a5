"""`tracekit breakdown`: where the time goes."""

from typing import Annotated

import typer

from tracekit.cli._options import (
    LATEST,
    IterationOption,
    RulesOption,
    RunArgument,
    SkipOption,
    StoreOption,
    VerdictOption,
    by_option,
    listing,
    open_run,
    split_keys,
)
from tracekit.cli._output import Listing

KEYS = (
    "stage", "kind", "kernel", "range", "layer", "device", "stream", "rank", "node", "iteration"
)  # fmt: skip
"""What a breakdown can group by."""


@listing
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
            "--inclusive", help="By range: count in a range what the ranges inside it launch, too."
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
) -> Listing:
    """Say where the GPUs' time goes: by stage, kernel, device, rank and other keys.

    Without RUN it is the run that was ingested last. A trace file is ingested on the way.
    """
    from tracekit.analysis import breakdown_for_people, breakdown_with_meta, share_meaning

    keys = split_keys(by)
    opened = open_run(run, store, rules, iteration, verdict)
    rows, meta = breakdown_with_meta(
        opened.trace, keys, skip=skip, per_iteration=per_iteration, inclusive=inclusive, depth=depth
    )
    meta["share"] = share_meaning(keys)
    if opened.warnings:
        meta = {**meta, "warnings": list(opened.warnings)}
    within = ", with all inside" if "inclusive" in meta else ""
    title = f"{opened.name} · time by {', '.join(keys)}{within}"
    shown = breakdown_for_people(rows, meta)
    empty = "no ops in this window"
    return Listing("breakdown", opened.name, rows, meta, title, empty, shown=shown)
