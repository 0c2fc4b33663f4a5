"""`tracekit compare`: how two runs differ."""

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracekit.cli._options import (
    IterationOption,
    RulesOption,
    SkipOption,
    StoreOption,
    TopologyOption,
    by_option,
    complete_run,
    figure_option,
    listing,
    open_run,
    parse_percent,
    split_keys,
)
from tracekit.cli._output import Listing

if TYPE_CHECKING:
    from tracekit.analysis import Comparison

KEYS = (
    "step", "stage", "kind", "kernel", "range", "device", "rank", "node", "collective", "api",
    "link", "memory",
)  # fmt: skip
"""What runs can be compared by; `step` is what the change of the step time is made of."""


def _run(what: str) -> Any:
    return typer.Argument(
        metavar=what,
        help="Name of a run, start of its id, @latest, or a trace file.",
        autocompletion=complete_run,
    )


@listing
def compare(
    a: Annotated[str, _run("A")],
    b: Annotated[str, _run("B")],
    *,
    by: Annotated[list[str], by_option(KEYS)] = ["stage"],  # noqa: B006 - typer copies it
    skip: SkipOption = 0,
    match_names: Annotated[
        bool,
        typer.Option(
            "--match-names", help="Take kernels that an upgrade of a library renamed for the same."
        ),
    ] = False,
    fail_above: Annotated[
        str | None,
        typer.Option(
            "--fail-above",
            metavar="PERCENT",
            help="Exit with 1 if B's steps are slower than A's by more, and shown to be.",
        ),
    ] = None,
    topology: TopologyOption = None,
    breakdowns: Annotated[
        Path | None, figure_option("--figure", "Draw both breakdowns and the change of the step")
    ] = None,
    changes: Annotated[
        Path | None, figure_option("--changes", "Draw the largest changes, with their intervals")
    ] = None,
    rules: RulesOption = None,
    iteration: IterationOption = None,
    store: StoreOption = None,
) -> Listing:
    """Compare run A with run B, per iteration, with intervals and what the data can show.

    What only one run has is listed too. Runs that are not comparable get no verdict, and the
    reasons are said.
    """
    import tracekit
    from tracekit.analysis import exceeds

    keys = split_keys(by)
    first, second = (open_run(each, store, rules, iteration) for each in (a, b))
    wanted = ["stage"] if keys == ["step"] else keys
    found = tracekit.compare(
        first, second, wanted, skip=skip, match_names=match_names, topology=topology
    )
    _draw(found, (first.name, second.name), breakdowns, changes)
    slower = fail_above is not None and exceeds(found, parse_percent(fail_above))
    rows = found.contributions if keys == ["step"] else found.table
    warned = [f"{run.name}: {text}" for run in (first, second) for text in run.warnings]
    meta = {**found.meta, "warnings": warned}
    title = f"{first.name} → {second.name} · by {', '.join(keys)}"
    return Listing("compare", None, rows, meta, title, "nothing ran in either", exit_code=slower)


def _draw(
    found: "Comparison", names: tuple[str, str], breakdowns: Path | None, changes: Path | None
) -> None:
    from tracekit import present

    subtitle = f"{names[0]} (A) and {names[1]} (B), means over iterations"
    if "basis" in found.meta:
        subtitle += ", on the host"
    if breakdowns is not None:
        figure = present.comparison_figure(
            found.contributions.rename({"part": "stage"}),
            names=names, title="What a step is made of", subtitle=subtitle,
        )  # fmt: skip
        present.save_figure(figure, breakdowns)
    if changes is not None:
        figure = present.changes_figure(
            found.table, key=_groups(found.table.columns), names=names,
            title="Largest changes", subtitle=subtitle,
        )  # fmt: skip
        present.save_figure(figure, changes)


def _groups(columns: list[str]) -> list[str]:
    """Return the columns that a table's rows are groups of: those before its measures."""
    return list(itertools.takewhile(lambda name: not name.startswith("a_"), columns))
