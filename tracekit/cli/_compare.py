"""`tracekit compare` and `tracekit gate`: how two runs differ, and whether a change may pass."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import tracekit
from tracekit.analysis import comparison
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
from tracekit.support.columns import columns, keys
from tracekit.support.questions import Folder, Labels, Option
from tracekit.support.schemas import NO_RUN, ONE_RUN, Json, Said, record

if TYPE_CHECKING:
    from tracekit.analysis.comparison import Comparison

_EXIT_CODES = {"pass": 0, "fail": 1, "undecided": 3, "within": 0, "above": 1, "unknown": 3}
"""Exit codes by outcome of a gate, or of a limit (`tracekit.analysis.comparison.check_limit`)."""


AgainstOption = Annotated[
    list[str] | None,
    Option("Recordings of side B; all that RUN names are then of side A.", "RUN...", unit="runs"),
]
UnknownOption = Annotated[
    Literal["fail", "pass"], Option("How to treat checks that cannot be decided.")
]


def exit_code(outcome: str, unknown: str) -> int:
    """Return the exit code for the outcome of a gate or a limit: 0 passed, 1 failed, 3 undecided.

    If `unknown` is ``pass``, an undecided outcome counts as passed.
    """
    code = _EXIT_CODES[outcome]
    return 0 if code == _EXIT_CODES["unknown"] and unknown == "pass" else code


_GATE = Json(
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
            {"a": "texts: Of A: ranges, structure; empty if unknown.", "b": "texts: Of B."},
            description="How steps are known.",
        ),
        **keys("warnings"),
    },
    rows={
        "rule": "text: step, or the rule of a finding; new_findings where there is none.",
        "outcome": "one of pass, fail, undecided: Result of the check.",
        "finding": "text: What was found, in words.",
        "state": "one of new, grown, uncovered, shrunk, unchanged, gone or null: Change of a "
        "finding.",
        "win_ns": "amount or null: By how much a mean usual step of B would be shorter.",
        "win_low_ns": "amount or null: Lower bound.",
        "win_high_ns": "amount or null: Upper bound.",
        "share": "amount or null: What is won of a step.",
        "base_win_ns": "amount or null: The same of A.",
        "base_share": "amount or null: What is won of a step of A.",
        "confidence": "one of measured, likely, hint, perhaps or null: How certain the finding is.",
        "evidence": "texts or null: The numbers behind it.",
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
    writes=[_GATE],
    takes=tracekit.gate,
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
    unknown: UnknownOption = "fail",
    quiet: Annotated[
        bool,
        typer.Option("--quiet", "-q", help="Say nothing, or one line on stderr if it fails."),
    ] = False,
    rules: RulesOption = None,
    iteration: IterationOption = None,
    store: Folder = None,
    **asked: Any,
) -> Judged:
    """Check that B is no slower than A by more than a limit, and that it has no new findings.

    The exit code is 0 if all checks pass, 1 if one fails, and 3 if the data cannot decide. Outlier
    steps are left out; a note lists them.
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
    found = tracekit.gate(first, second, undecided_passes=unknown == "pass", **asked)
    code = exit_code(found.meta["outcome"], unknown)
    if quiet and code:
        complain(found.meta["headline"])
    return Judged(found, code, quiet=quiet)


_TWO = 2


def _of_both(**said: str) -> Said:
    """Declare JSON keys for run A, each also for run B; an answer may lack them."""
    return {f"{side}_{name}?": text.format(side.upper(), lower=side)
            for side in "ab" for name, text in said.items()}  # fmt: skip


_LOW = "number or null: Lower end of the interval of delta_ns, as wide as p_value is adjusted."
_COMPARE = Json(
    "compare",
    run=NO_RUN,
    meta={
        "headline": "text: How much the step changed, whether that is shown, and which part "
        "carries it.",
        "names": "texts: Names of run A and run B, or what either side is called.",
        "by": "texts: Keys.",
        "skip": "integer or null: Number of iterations that were left out at the beginning, as "
        "asked; null: those that were cold, of each run.",
        "a_skipped": "integer: How many of A were left out at the beginning; of several "
        "recordings, at most.",
        "b_skipped": "integer: The same of B.",
        "a_iterations": "integer: Iterations of A.",
        "b_iterations": "integer: Iterations of B.",
        "step": record(
            {
                "a_ns": "number or null: Mean time of an iteration of run A, ns.",
                "b_ns": "number or null: Mean time of an iteration of run B, ns.",
                "delta_ns": "number or null: b_ns - a_ns.",
                "ratio?": "number or null: B over A; null where A is 0.",
                "low_ns?": _LOW,
                "high_ns?": "number or null: Upper end of it.",
                "p_value?": "number or null: Adjusted for the number of rows.",
                "verdict": "one of faster, slower, too small to matter, "
                "no difference shown, not enough iterations, "
                "unknown or null: What the iterations show of B against A; null if the runs are "
                "not comparable.",
                **_of_both(median_ns="number or null: Median over iterations of run {}, ns."),
                **_of_both(
                    total_ns="integer: Sum of the steps of run {} over devices, ns.",
                    sd_ns="number or null: Standard deviation of the steps of run {}, ns; "
                    "of several recordings, that of their means. Null for one.",
                ),
                **_of_both(
                    effective="number or null: Number of independent steps that would be "
                    "as certain as those of run {}; null for fewer than 5.",
                ),
                "reason?": "text or null: Why nothing is known of the change; null if it is.",
                "shift_ns?": "number or null: Median of the differences of all pairs of steps, B "
                "less A.",
                "shift_low_ns?": "number or null: Lower end of its 95 % interval; null for too "
                "few steps, or unknown.",
                "shift_high_ns?": "number or null: Upper end of it.",
                "shift_verdict?": "one of faster, slower, too small to matter, "
                "no difference shown, not enough "
                "iterations, unknown or null: What it shows of B against A; null if the runs are "
                "not comparable.",
                **_of_both(runs="integer: Recordings of side {}, where there are several a side."),
            },
            description="The time of a step.",
        ),
        "not_comparable": "texts: Why the runs are not comparable; empty if they are.",
        "method": "text: Statistical methods.",
        **keys("notes", "warnings"),
        "basis?": "text: Where the runs have no GPU work: what is measured instead.",
        "a_devices": "integer: Devices (or processes, on the host) that steps of A ran on.",
        "b_devices": "integer: The same of B.",
        "per": "text or null: What times are means over, such as step/GPU.",
        **keys("verdicts"),
        "judged": record(
            {
                "metric": "one of mean, median: What is compared of steps.",
                "least_percent": "number or null: Least change that matters.",
                "verdict": "one of faster, slower, same, too small to matter, "
                "no difference shown, not enough "
                "iterations, unknown or null: As of the step; with a least change also same, "
                "within it.",
                "sentence": "text: The same in words.",
            },
            description="What the step is judged by, and what was found.",
        ),
        "recordings?": record(
            {
                "a": "texts: Of side A.",
                "b": "texts: Of side B.",
            },
            description="Where there are several recordings a side: their names.",
        ),
    },
    rows={
        "stage?": "text: Why an op runs; or idle or between, in which nothing runs.",
        "kind?": "text: What the ops do.",
        "name?": "text: Name of a kernel, function or GPU.",
        "range?": "text or null: Path of the innermost NVTX range; null outside of all.",
        "device?": "integer or null: Index of the GPU in the run.",
        **columns("rank?", "node?"),
        "collective?": "text or null: Collective operation, or function of MPI.",
        "cause?": "text: Why nothing runs.",
        "api?": "text: CUDA call.",
        "link?": "text: The link.",
        **columns("src?", "dst?"),
        "type?": "text: Type of the link.",
        "nvlinks?": "integer or null: NVLinks that are bonded.",
        "evidence?": "text: Whether bytes were recorded or follow from a model.",
        "phase?": "one of prefill, decode, mixed or null: Phase of a serving engine's steps; null "
        "of steps of unknown phase.",
        "a_tokens?": "number or null: By phase: mean tokens of a step of A; null where a step "
        "has no number.",
        "b_tokens?": "number or null: The same of B.",
        "part?": "text: By step: a stage, idle (the host is in an iteration), or between (it is "
        "in none).",
        **_of_both(total_ns="integer or null: Of run {}, over all steps and devices, ns."),
        **_of_both(ns="number or null: Mean time of a step of run {}, as meta.per defines, ns."),
        **_of_both(median_ns="number or null: Median over iterations of run {}, ns."),
        "a_count?": "number or null: Mean number of ops, calls or transfers of a step of A, as "
        "meta.per defines.",
        "b_count?": "number or null: The same of B.",
        "a_bytes?": "number or null: Bytes of A: of an iteration by link, the peak by memory.",
        "b_bytes?": "number or null: Bytes of B.",
        "delta_bytes?": "number or null: b_bytes - a_bytes.",
        "delta_ns?": "number or null: b_ns - a_ns.",
        "ratio?": "number or null: B over A; null where A is 0.",
        **columns("share?"),
        "low_ns?": _LOW,
        "high_ns?": "number or null: Upper end of it.",
        "p_value?": "number or null: Adjusted for the number of rows.",
        "verdict?": "one of faster, slower, too small to matter, "
        "no difference shown, not enough iterations, unknown "
        "or null: What the iterations show of B against A; null if the runs are not comparable.",
        "only_in?": "text or null: The run that alone has this group.",
        **_of_both(
            outside_steps_ns="number or null: Time of run {} outside of the steps that count, "
            "over devices, ns; of several recordings, their mean.",
            outside_steps_count="number or null: Ops, calls or transfers of run {} outside of "
            "them; of several recordings, their mean.",
            steps="integer or null: Number of steps of run {}.",
            devices="integer or null: Devices (or processes) that {lower}_total_ns is added over.",
        ),
        **_of_both(
            sd_ns="number or null: Several recordings a side: standard deviation of their "
            "means, side {}, ns; null for one.",
            runs="integer: Several recordings a side: how many there are of side {}.",
        ),
        **_of_both(
            sd_bytes="number or null: Several recordings a side, by memory: standard "
            "deviation of their peaks, side {}; null for one.",
        ),
    },
)

_HISTORY = Json(
    "history",
    typed="compare --history",
    run=NO_RUN,
    of_rows="A row per value of the label, in order.",
    meta={
        "headline": "text: How many points there are, and what changed.",
        "label": "text: The label that orders points.",
        "metric": "one of mean, median: What counts of the steps of a run.",
        "points": "integer: Number of points.",
        "changes": "integer: How often the level changes.",
        "untimed": "texts: Names of runs that have no steps.",
        "method": "text: Statistical method.",
        "skip": "integer or null: Number of iterations that were left out at the beginning, as "
        "asked; null: those that were cold, of each run.",
        "per": "text or null: What times are means over, such as step/GPU.",
        **keys("verdicts", "warnings"),
        "simulated?": "texts: Names of runs that no GPU ran.",
    },
    rows={
        "value": "text: Value of the label.",
        "run": "text or null: Name of the run; null of several.",
        "runs": "integer: Number of runs.",
        "step_ns": "number: Mean of their steps, ns.",
        "low_ns": "number or null: Least of them; null of one.",
        "high_ns": "number or null: Greatest of them; null of one.",
        "level": "integer: Number of the level, from 1 on.",
        "level_ns": "number: Median of its points, ns.",
        "change_percent": "number or null: Where a level begins: how much longer it is than the "
        "one before.",
        "p_value": "number or null: Of that change.",
    },
)


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
    writes=[_COMPARE, _HISTORY],
    takes=tracekit.compare,
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
    where: Labels = None,
    against_where: Annotated[
        Mapping[str, str] | None,
        Option(
            "Side B: runs with this label; may be given several times.",
            "KEY=VALUE",
            unit="labels",
            typed=list[str] | None,
        ),
    ] = None,
    history: Annotated[
        str | None,
        Option("List the step of runs in the order of this label, and where it changed.", "LABEL"),
    ] = None,
    fail_above: Annotated[
        float | None,
        Option(
            "Exit with 0 if B's steps (without outliers) are certainly not slower than A's by more "
            "than this, with 1 if they certainly are, else with 3.",
            "PERCENT",
            unit="percent",
        ),
    ] = None,
    unknown: UnknownOption = "fail",
    rules: RulesOption = None,
    iteration: IterationOption = None,
    store: Folder = None,
    **asked: Any,
) -> Judged:
    """Compare the step times of run A and run B, with confidence intervals.

    The first line shows how much the step time changed, whether the change is significant, and
    which parts of the step changed. Kernels and ranges of only one run are listed, too. If runs are
    not comparable, the output gives the reasons instead of a verdict. A verdict on two recordings
    holds for these two alone; to compare programs, give several recordings of each (--against).
    """
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
            history, opened(runs or []), where=where or {}, store=store,
            metric=asked["metric"], skip=asked["skip"],
        )  # fmt: skip
        return Judged(answer, 0)
    named = _sides(runs or [], against or [], where or {}, against_where or {})
    first, second = (
        tracekit.select_runs(opened(references), where=labels, store=store)
        for references, labels in named
    )
    found = tracekit.compare(first, second, **asked)
    code = 0 if fail_above is None else _judge(found, fail_above, unknown, asked)
    return Judged(found, code)


def _sides(
    runs: list[str],
    against: list[str],
    where: Mapping[str, str],
    against_where: Mapping[str, str],
) -> list[tuple[list[str], Mapping[str, str]]]:
    """Return the runs and the labels (which select runs) of each side: A, then B."""
    if not (against or against_where):
        if where or len(runs) != _TWO:
            raise UsageError(
                f"a comparison takes two runs, not {len(runs)}"
                if not where else "there is no side B",
                "name A and B, or several of A with --against several of B, or labels with "
                "--where and --against-where",
            )  # fmt: skip
        runs, against = runs[:1], runs[1:]
    if not (runs or where):
        raise UsageError("side A is missing", "name its runs, or their labels with --where")
    return [(runs, where), (against, against_where)]


def _judge(found: "Comparison", limit: float, unknown: str, options: Mapping[str, Any]) -> int:
    """Print on stderr whether B keeps the limit (percent slower than A); return the exit code."""
    checked = comparison.check_limit(
        found, limit, metric=options["metric"], anyway=options["anyway"]
    )
    complain(checked.sentence)
    return exit_code(checked.outcome, unknown)
