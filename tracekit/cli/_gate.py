"""`tracekit gate`: whether a change may pass, for continuous integration."""

from typing import Annotated, Literal

import typer

import tracekit
from tracekit.cli._command import Judged, TakesSeveral, command
from tracekit.cli._guard import complain
from tracekit.cli._options import (
    IterationOption,
    RulesOption,
    complete_run,
    open_run,
)
from tracekit.cli._output import EVERYWHERE, Format
from tracekit.errors import UsageError
from tracekit.support.columns import keys
from tracekit.support.quantities import parse_percent
from tracekit.support.questions import AutoSkip, Folder, Option, Topology
from tracekit.support.schemas import ONE_RUN, Json, record

_TWO = 2
_CODES = {"pass": 0, "fail": 1, "undecided": 3, "within": 0, "above": 1, "unknown": 3}
"""Of a gate, and of a limit (`tracekit.analysis.comparison.check_limit`)."""


AgainstOption = Annotated[
    list[str] | None,
    Option("Recordings of side B; all that RUN names are then of side A.", "RUN...", unit="runs"),
]
UnknownOption = Annotated[
    Literal["fail", "pass"], Option("How to treat checks that cannot be decided.")
]
MetricOption = Annotated[
    Literal["mean", "median"], Option("Judge the step by its mean, or its median (by shift).")
]
AnywayOption = Annotated[bool, Option("Judge runs that are not comparable too.")]


def exit_code(outcome: str, unknown: str) -> int:
    """Return the exit code of what a gate or a limit came to."""
    code = _CODES[outcome]
    return 0 if code == _CODES["unknown"] and unknown == "pass" else code


_JSON = Json(
    "gate",
    run=ONE_RUN,
    of_rows="A row per check: the step, and the findings of either run.",
    meta={
        "headline": "text: Whether the change passes, and why.",
        "outcome": "one of pass, fail, undecided: The worst of all checks.",
        "undecided_passes": "flag: Whether undecided checks pass.",
        "names": "texts: Names of run A and run B, or what either side is called.",
        "a_iterations": "integer: Iterations of A.",
        "b_iterations": "integer: Iterations of B.",
        "notes": "texts: Warnings and remarks.",
        "steps_by": record(
            {"a": "texts: Of A: ranges, structure; none if there are none.", "b": "texts: Of B."},
            description="How steps are known.",
        ),
        **keys("warnings"),
    },
    rows={
        "rule": "text: step, or the rule of a finding; new_findings where there is none.",
        "outcome": "one of pass, fail, undecided: Result of the check.",
        "finding": "text: What was found, in words.",
        "state": "one of new, grown, shrunk, unchanged, gone or null: Change of a finding.",
        "win_ns": "amount or null: By how much a mean usual step of B would be shorter.",
        "win_low_ns": "amount or null: Lower bound.",
        "win_high_ns": "amount or null: Upper bound.",
        "share": "amount or null: What is won of a step.",
        "base_win_ns": "amount or null: The same of A.",
        "base_share": "amount or null: What is won of a step of A.",
        "sure": "one of measured, likely, hint, perhaps or null: How sure the finding is.",
        "evidence": {
            "description": "The numbers that say so.",
            "type": ["array", "null"],
            "items": {"type": "string"},
        },
        "advice": "text or null: What to do.",
        "win_unknown": "text or null: Why win_ns is null; else null.",
        "fingerprint": "text or null: Names the finding, in any run.",
    },
)


@command(
    "tracekit gate before after",
    "tracekit gate before after --step 3% --new-findings -o gate.sarif",
    "tracekit gate A1 A2 A3 --against B1 B2 B3 -q",
    formats=(*EVERYWHERE, Format.SARIF, Format.JUNIT),
    cls=TakesSeveral,
    writes=[_JSON],
    rows=False,
)
def gate(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...",
            help="A, the base, and B; with --against, the recordings of A.",
            autocompletion=complete_run,
        ),
    ],
    *,
    against: AgainstOption = None,
    step: Annotated[
        str,
        Option("By how much B's step may be slower; none: no limit.", "PERCENT"),
    ] = "5%",
    new_findings: Annotated[
        bool,
        Option("Also fail on a new or grown finding that is measured or likely."),
    ] = False,
    unknown: UnknownOption = "fail",
    quiet: Annotated[
        bool,
        typer.Option("--quiet", "-q", help="Say nothing, or one line on stderr if it fails."),
    ] = False,
    metric: MetricOption = "mean",
    skip: AutoSkip = "auto",
    anyway: AnywayOption = False,
    topology: Topology = None,
    rules: RulesOption = None,
    iteration: IterationOption = None,
    store: Folder = None,
) -> Judged:
    """Check that B is no slower than A by more than a limit, and that nothing new is wrong with it.

    Exits with 0 where that is shown, 1 where the contrary is, and 3 where it cannot be told.
    Outliers are left out, and named.
    """
    if not against:
        if len(runs) != _TWO:
            raise UsageError(
                f"a gate is for two runs, and there are {len(runs)}",
                "name A and B, or several of A with --against several of B",
            )
        runs, against = runs[:1], runs[1:]
    first, second = (
        [open_run(each, store, rules, iteration) for each in side] for side in (runs, against)
    )
    found = tracekit.gate(
        first, second, step=None if step == "none" else parse_percent(step),
        new_findings=new_findings, undecided_passes=unknown == "pass",
        skip=skip, metric=metric, anyway=anyway, topology=topology,
    )  # fmt: skip
    code = exit_code(found.meta["outcome"], unknown)
    if quiet and code:
        complain(found.meta["headline"])
    return Judged(found, code, quiet=quiet)
