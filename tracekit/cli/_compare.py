"""`tracekit compare`: how two runs differ."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracekit.cli._command import Judged, command
from tracekit.cli._guard import complain
from tracekit.cli._options import (
    IterationOption,
    RulesOption,
    SkipOption,
    StoreOption,
    TopologyOption,
    by_option,
    complete_run,
    open_run,
    parse_percent,
    split_keys,
)

if TYPE_CHECKING:
    from tracekit.analysis import Comparison

KEYS = (
    "step", "stage", "kind", "kernel", "range", "device", "rank", "node", "collective", "api",
    "link", "memory",
)  # fmt: skip
"""What runs can be compared by; `step` is what the change of the step time is made of."""


class Metric(StrEnum):
    """What the step is judged by."""

    MEAN = "mean"
    MEDIAN = "median"


class Unknown(StrEnum):
    """What becomes of a limit of which it cannot be told whether it is kept."""

    FAIL = "fail"
    PASS = "pass"  # noqa: S105 - no password


def _run(what: str) -> Any:
    return typer.Argument(
        metavar=what,
        help="Name of a run, start of its id, @latest, or a trace file.",
        autocompletion=complete_run,
    )


@command(
    "tracekit compare before after",
    "tracekit compare before.sqlite after.sqlite --by kernel --changes changes.html",
    "tracekit compare before after --by step --fail-above 5%",
    "tracekit compare before after --metric median --least 1%",
    figures={
        "figure": "Draw both breakdowns and the change of the step",
        "changes": "Draw the largest changes, with their intervals",
    },
)
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
            help="Exit with 0 if B's steps are shown to be slower than A's by no more, 1 if by "
            "more, 3 if that cannot be told.",
        ),
    ] = None,
    unknown: Annotated[
        Unknown,
        typer.Option("--unknown", help="With --fail-above: what passes for what cannot be told."),
    ] = Unknown.FAIL,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Give verdicts on runs that are not comparable too.")
    ] = False,
    metric: Annotated[
        Metric,
        typer.Option("--metric", help="Judge the step by its mean, or its median (by shift)."),
    ] = Metric.MEAN,
    least: Annotated[
        str | None,
        typer.Option(
            "--least",
            metavar="PERCENT",
            help="Least change of the step that matters: say whether it is faster or slower by "
            "more, the same within it, or unknown.",
        ),
    ] = None,
    topology: TopologyOption = None,
    rules: RulesOption = None,
    iteration: IterationOption = None,
    store: StoreOption = None,
) -> Judged:
    """Compare run A with run B, step by step, with intervals and what the data can show.

    The first line says how much the step changed, whether that is shown, and what carries it. What
    only one run has is listed too. Runs that are not comparable get no verdict, and the reasons
    are said.
    """
    import tracekit
    from tracekit.errors import UsageError

    if fail_above is not None and metric is Metric.MEDIAN:
        raise UsageError("--fail-above judges means, not medians", "leave out --metric median")
    first, second = (open_run(each, store, rules, iteration) for each in (a, b))
    found = tracekit.compare(
        first, second, split_keys(by), skip=skip, match_names=match_names, topology=topology,
        anyway=anyway, metric=metric.value, least=None if least is None else parse_percent(least),
    )  # fmt: skip
    code = 0 if fail_above is None else _judge(found, fail_above, unknown, anyway=anyway)
    return Judged(found, code)


def _judge(found: "Comparison", limit: str, unknown: Unknown, *, anyway: bool) -> int:
    """Say on stderr whether the limit is kept, and return the exit code that says so."""
    from tracekit.analysis import check_limit

    checked = check_limit(found, parse_percent(limit), anyway=anyway)
    complain(checked.sentence)
    codes = {"within": 0, "above": 1, "unknown": 0 if unknown is Unknown.PASS else 3}
    return codes[checked.outcome]
