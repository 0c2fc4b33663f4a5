"""`tracekit compare`: how two runs differ."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from tracekit.cli._command import Judged, TakesSeveral, command
from tracekit.cli._guard import complain
from tracekit.cli._options import (
    IterationOption,
    RulesOption,
    SkipOption,
    StoreOption,
    TopologyOption,
    WhereOption,
    by_option,
    complete_run,
    open_run,
    parse_labels,
    parse_percent,
    split_keys,
)
from tracekit.errors import UsageError

if TYPE_CHECKING:
    from tracekit.analysis.comparison import Comparison

KEYS = (
    "step", "stage", "kind", "kernel", "range", "device", "rank", "node", "collective",
    "cause", "api", "link", "memory",
)  # fmt: skip
"""What runs can be compared by; `step` is what the change of the step time is made of."""
_TWO = 2


class Metric(StrEnum):
    """What the step is judged by."""

    MEAN = "mean"
    MEDIAN = "median"


class Unknown(StrEnum):
    """What becomes of a limit of which it cannot be told whether it is kept."""

    FAIL = "fail"
    PASS = "pass"  # noqa: S105 - no password


AgainstOption = Annotated[
    list[str] | None,
    typer.Option(
        "--against",
        metavar="RUN...",
        help="Recordings of side B; all that RUN names are then of side A.",
        autocompletion=complete_run,
    ),
]


@command(
    "tracekit compare before after",
    "tracekit compare before.sqlite after.sqlite --by kernel --changes changes.html",
    "tracekit compare before after --by step --fail-above 5%",
    "tracekit compare before after --metric median --least 1%",
    "tracekit compare A1 A2 A3 --against B1 B2 B3",
    "tracekit compare --where method=p2p --against-where method=nccl",
    "tracekit compare --history night --where job=nightly --figure nights.html",
    figures={
        "figure": "Draw both breakdowns and the change of the step, or the history",
        "changes": "Draw the largest changes, with their intervals",
        "steps": "Draw steps one by one, and their distribution",
    },
    cls=TakesSeveral,
)
def compare(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN...",
            help="A and B; with --against, the recordings of A. Names of runs, starts of ids, "
            "@latest, or trace files.",
            autocompletion=complete_run,
        ),
    ] = None,
    *,
    against: AgainstOption = None,
    where: WhereOption = None,
    against_where: Annotated[
        list[str] | None,
        typer.Option(
            "--against-where",
            metavar="KEY=VALUE",
            help="Side B: runs with this label; may be given several times.",
        ),
    ] = None,
    history: Annotated[
        str | None,
        typer.Option(
            "--history",
            metavar="LABEL",
            help="List the step of runs in the order of this label, and where it changed.",
        ),
    ] = None,
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
    are said. Two recordings tell of these two alone; several a side (--against) tell programs
    apart.
    """
    import tracekit

    if fail_above is not None and metric is Metric.MEDIAN:
        raise UsageError("--fail-above judges means, not medians", "leave out --metric median")

    by_labels = bool(where or against_where or (history is not None and not runs))
    if by_labels and (rules is not None or iteration is not None):
        raise UsageError(
            "runs that are chosen by labels are read as they were ingested",
            "name them, or leave out --rules and --iteration",
        )

    def opened(references: list[str]) -> "list[tracekit.Run]":
        return [open_run(each, store, rules, iteration) for each in references]

    if history is not None:
        if against or against_where or fail_above is not None:
            raise UsageError("a history has no side B", "leave out --against and --fail-above")
        answer = tracekit.history.answer(
            history, opened(runs or []), where=parse_labels(where or []), metric=metric.value,
            skip=skip, store=store,
        )  # fmt: skip
        return Judged(answer, 0)
    named = _sides(runs or [], against or [], where or [], against_where or [])
    first, second = (
        tracekit.select_runs(opened(references), where=labels, store=store)
        for references, labels in named
    )
    found = tracekit.compare(
        first, second, split_keys(by), skip=skip, match_names=match_names, topology=topology,
        anyway=anyway, metric=metric.value, least=None if least is None else parse_percent(least),
    )  # fmt: skip
    code = 0 if fail_above is None else _judge(found, fail_above, unknown, anyway=anyway)
    return Judged(found, code)


def _sides(
    runs: list[str], against: list[str], where: list[str], against_where: list[str]
) -> list[tuple[list[str], dict[str, str]]]:
    """Return the runs that are named and the labels, of either side."""
    if not (against or against_where):
        if where or len(runs) != _TWO:
            raise UsageError(
                f"a comparison is of two runs, and there are {len(runs)}"
                if not where else "there is no side B",
                "name A and B, or several of A with --against several of B, or labels with "
                "--where and --against-where",
            )  # fmt: skip
        runs, against = runs[:1], runs[1:]
    if not (runs or where):
        raise UsageError("there is no side A", "name its runs, or their labels with --where")
    return [(runs, parse_labels(where)), (against, parse_labels(against_where))]


def _judge(found: "Comparison", limit: str, unknown: Unknown, *, anyway: bool) -> int:
    """Say on stderr whether the limit is kept, and return the exit code that says so."""
    from tracekit.analysis.comparison import check_limit

    checked = check_limit(found, parse_percent(limit), anyway=anyway)
    complain(checked.sentence)
    codes = {"within": 0, "above": 1, "unknown": 0 if unknown is Unknown.PASS else 3}
    return codes[checked.outcome]
