"""`tracekit links`: which link carried which bytes."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

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
    figure_option,
    listing,
    open_run,
    parse_count,
    parse_sizes,
    split_keys,
)
from tracekit.cli._output import Listing

if TYPE_CHECKING:
    import tracekit
    from tracekit.analysis import Traffic

KEYS = ("link", "pair", "route", "method", "stage", "rank", "node", "iteration")
"""What traffic can be grouped by."""


@listing
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
    matrix: Annotated[Path | None, figure_option("--matrix", "Draw the bytes between GPUs")] = None,
    drawing: Annotated[
        Path | None, figure_option("--drawing", "Draw the machine, links coloured by utilisation")
    ] = None,
    timeline: Annotated[
        Path | None, figure_option("--timeline", "Draw the utilisation of links over time")
    ] = None,
    rules: RulesOption = None,
    iteration: IterationOption = None,
    store: StoreOption = None,
) -> Listing:
    """Say which NVLink or PCIe link carried which bytes, how fast, and how near its peak.

    Without RUN it is the run that was ingested last. What is modelled is never added to what is
    measured; docs/links.md defines each number.
    """
    keys = split_keys(by)
    opened = open_run(run, store, rules, iteration)
    traffic = opened.traffic(
        topology=topology, nccl_log=nccl_log or (), sizes=parse_sizes(sizes or []), ranks=ranks
    )
    if counters:
        rows, what = traffic.counters(), "attributed against counted bytes"
    else:
        rows, what = traffic.links(keys), f"traffic by {', '.join(keys)}"
    meta = traffic.meta()
    if parameters is not None:
        meta["expected"] = traffic.expected(parse_count(parameters))
    meta |= opened.verdict_meta(in_words=False)
    meta["warnings"] = [*opened.warnings, *meta["warnings"]]
    _draw(opened, traffic, matrix, drawing, timeline)
    empty = (
        _nothing_counted()
        if counters
        else "no transfers whose ends are known, of the kinds that are listed by these keys"
    )
    number = opened.trace.read("devices")["active"].sum()
    meta = {**meta, "sum_over": f"{number} GPU{'' if number == 1 else 's'}"}
    return Listing("links", opened.name, rows, meta, f"{opened.name} · {what}", empty)


def _nothing_counted() -> str:
    return "no counters were sampled: record with `nsys profile --gpu-metrics-devices=all`"


def _draw(
    run: "tracekit.Run",
    traffic: "Traffic",
    matrix: Path | None,
    drawing: Path | None,
    timeline: Path | None,
) -> None:
    from tracekit import present

    machine = traffic.placed.machine
    subtitle = f"{run.name}, on {machine.name} ({machine.origin})"
    if matrix is not None:
        figure = present.matrix_figure(
            traffic.links("pair,method"), title="Bytes between GPUs", subtitle=subtitle,
            recorded=traffic.recorded,
            unsized=traffic.meta()["collectives_of_unknown_size"],
        )  # fmt: skip
        present.save_figure(figure, matrix)
    if drawing is not None:
        figure = present.machine_figure(
            machine, traffic.links(), title="Utilisation of links", subtitle=subtitle
        )
        present.save_figure(figure, drawing)
    if timeline is not None:
        note = traffic.timeline_note()
        figure = present.utilisation_figure(
            traffic.timeline(), title="Utilisation of links over time",
            subtitle=f"{subtitle}; {note}" if note else subtitle,
        )  # fmt: skip
        present.save_figure(figure, timeline)
