"""`tracekit links`: which link carried which bytes."""

from typing import TYPE_CHECKING, Annotated

import typer

from tracekit.cli._command import command
from tracekit.cli._options import (
    LATEST,
    BytesOption,
    IterationOption,
    NcclLogOption,
    RulesOption,
    RunArgument,
    StoreOption,
    TopologyOption,
    by_option,
    open_run,
    parse_count,
    parse_sizes,
    split_keys,
)

if TYPE_CHECKING:
    from tracekit.model import Answer

KEYS = ("link", "pair", "route", "method", "stage", "rank", "node", "iteration")
"""What traffic can be grouped by."""


@command(
    "tracekit links",
    "tracekit links --by pair --matrix traffic.html",
    "tracekit links --topology topo.txt --nccl-log nccl.log --by link,stage",
    "tracekit links --by method --parameters 60M",
    figures={
        "matrix": "Draw the bytes between GPUs",
        "drawing": "Draw the machine, links coloured by utilisation",
        "timeline": "Draw the utilisation of links over time",
    },
)
def links(
    run: RunArgument = LATEST,
    *,
    by: Annotated[list[str], by_option(KEYS)] = ["link"],  # noqa: B006 - typer copies it
    topology: TopologyOption = None,
    nccl_log: NcclLogOption = None,
    sizes: BytesOption = None,
    ranks: Annotated[
        int | None,
        typer.Option("--ranks", min=2, help="Ranks of communicators of which it is not recorded."),
    ] = None,
    parameters: Annotated[
        str | None,
        typer.Option(
            "--parameters",
            metavar="COUNT",
            help="Parameters of the model, such as 60M: compare bytes with what must be exchanged.",
        ),
    ] = None,
    counters: Annotated[
        bool,
        typer.Option("--counters", help="Hold attributed bytes against sampled counters instead."),
    ] = False,
    rules: RulesOption = None,
    iteration: IterationOption = None,
    store: StoreOption = None,
) -> "Answer":
    """Say which NVLink or PCIe link carried which bytes, how fast, and how near its peak.

    Without RUN it is the run that was ingested last. What is modelled is never added to what is
    measured; docs/links.md defines each number.
    """
    opened = open_run(run, store, rules, iteration)
    return opened.links.answer(
        split_keys(by),
        counters=counters,
        parameters=None if parameters is None else parse_count(parameters),
        topology=topology,
        nccl_log=nccl_log or (),
        sizes=parse_sizes(sizes or []),
        ranks=ranks,
    )
