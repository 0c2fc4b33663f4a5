"""Comparison of two runs, or of two programs by several recordings, and the gate built on it."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tracekit import present
from tracekit.analysis import comparison, diagnosis
from tracekit.errors import UsageError
from tracekit.runs._diagnosis import diagnosed_against
from tracekit.runs._question import called, listed, warnings_of
from tracekit.support.files import StrPath
from tracekit.support.questions import AutoSkip, Option, Topology, grouped_by, optional
from tracekit.support.wording import note, text_of, unsaid

if TYPE_CHECKING:
    from tracekit.analysis.comparison import Comparison, Recorded
    from tracekit.model import Answer
    from tracekit.runs._opened import OpenedRun

KEYS = (
    "step", "stage", "kind", "kernel", "range", "device", "rank", "node", "collective",
    "cause", "api", "link", "memory", "phase",
)  # fmt: skip
"""Keys by which runs can be compared; `step` gives the contributions to the step time."""
Judging = Annotated[
    Literal["mean", "median"], Option("Judge the step by its mean, or its median (by shift).")
]
Anyway = Annotated[bool, Option("Judge runs that are not comparable too.")]


@optional
def compare(
    a: "OpenedRun | Sequence[OpenedRun]",
    b: "OpenedRun | Sequence[OpenedRun]",
    by: Annotated[str | Sequence[str], grouped_by(*KEYS)] = "stage",
    *,
    skip: AutoSkip = "auto",
    match_names: Annotated[
        bool, Option("Match kernels that an upgrade of a library renamed.")
    ] = False,
    anyway: Anyway = False,
    metric: Judging = "mean",
    least: Annotated[
        float | None,
        Option(
            "Least change of the step time that matters. The first line then says whether B is "
            "faster or slower by more, the same within this, or unknown.",
            "PERCENT",
            unit="percent",
        ),
    ] = None,
    topology: Topology = None,
) -> "Comparison":
    """Compare the steps of two runs, or of two programs that were recorded several times each.

    `a` and `b` are each one run, or several recordings of one program. `by` is the key that splits
    the time of a step, such as ``stage``; the answer has a row per value of the key. For its
    columns see `tracekit.analysis.comparison.compare`, or `compare_recordings` for several.
    """
    from tracekit.analysis.step_sums import parse_compare_keys

    sides = [list(side) if isinstance(side, Sequence) else [side] for side in (a, b)]
    question = "compare by kernel" if "kernel" in parse_compare_keys(by) else "compare"
    for run in (*sides[0], *sides[1]):
        run.require_memory(question)
    of_a, of_b = ([_recorded(run, by, topology) for run in side] for side in sides)
    names = (_names(sides[0]), _names(sides[1]))
    if len(of_a) == len(of_b) == 1:
        one, other = of_a[0], of_b[0]
        if one.name == other.name:
            one, other = replace(one, name="A"), replace(other, name="B")
        found = comparison.compare(
            one,
            other,
            by,
            skip=skip,
            match_names=match_names,
            anyway=anyway,
            metric=metric,
            least=least,
            one_run=sides[0][0].id == sides[1][0].id,
        )
    else:
        found = comparison.compare_recordings(
            of_a, of_b, by, skip=skip, names=names, match_names=match_names, anyway=anyway,
            metric=metric, least=least,
        )  # fmt: skip
    title = " → ".join(called(side[0]) if len(side) == 1 else _names(side) for side in sides)
    return replace(
        found.saying(
            warnings=warnings_of([*sides[0], *sides[1]]) + comparison.unlike([*of_a, *of_b])
        ),
        title=f"{title} · {found.title}",
        source=names,
        renderer=present.RENDERER,
    )


def _recorded(run: "OpenedRun", by: str | Sequence[str], topology: StrPath | None) -> "Recorded":
    moved = run.traffic(topology=topology) if "link" in by else None
    return comparison.Recorded(run.trace, run.name, run.labels, moved)


def _names(side: "Sequence[OpenedRun]") -> str:
    """Return the names of the runs on one side of a comparison; of many, the first and a count."""
    return listed([run.name for run in side])


# -- gate

OUTCOMES = ("fail", "undecided", "pass")
"""Outcomes of a check, the worst first; the overall outcome is the worst one."""
_OF_LIMIT = {"within": "pass", "above": "fail", "unknown": "undecided"}
_KEPT = ("measured", "likely")
"""Certainties with which a finding fails; a hint does not, as there may be other reasons."""
_FINDINGS = "new_findings"


@optional
def gate(
    a: "OpenedRun | Sequence[OpenedRun]",
    b: "OpenedRun | Sequence[OpenedRun]",
    *,
    step: Annotated[
        float | None,
        Option(
            "By how much B's step may be slower; none: no limit.", "PERCENT", unit="percent or none"
        ),
    ] = 5.0,
    new_findings: Annotated[
        bool, Option("Also fail on a new or grown finding that is measured or likely.")
    ] = False,
    undecided_passes: Annotated[
        bool, Option("Count checks that cannot be decided as passed.", flag="")
    ] = False,
    metric: Judging = "mean",
    skip: AutoSkip = "auto",
    anyway: Anyway = False,
    topology: Topology = None,
) -> "Answer":
    """Check that steps of `b` are at most `step` percent slower than those of `a`, the base.

    With `new_findings`, check also that `b` has no findings of `diagnose` that are new, or grew.
    `a` and `b` are each one run, or several recordings of one program. Outlier steps are left out
    and named: see `tracekit.analysis.comparison.check_limit`.

    Returns
    -------
    A row per check; ``meta`` has the overall ``outcome``, and in ``steps_by`` how the steps of each
    side were found: by ``ranges`` or ``structure`` (order of launches).

    Raises
    ------
    UsageError
        If no check is requested.
    """
    import polars as pl

    if step is None and not new_findings:
        raise UsageError("nothing is to be checked", "give a limit of the step, or --new-findings")
    sides = [list(side) if isinstance(side, Sequence) else [side] for side in (a, b)]
    compared = compare(sides[0], sides[1], "step", skip=skip, metric=metric, anyway=anyway)
    meta, parts = compared.meta, []
    if step is not None:
        checked = comparison.check_limit(compared, step, metric=metric, anyway=anyway)
        parts.append(_check("step", _OF_LIMIT[checked.outcome], checked.sentence))
    if new_findings:
        reasons = [] if anyway else meta["not_comparable"]
        parts.append(_findings_check(sides[1], sides[0], reasons, topology))
    more = {"outcome": pl.String(), "state": pl.String(), "base_win_ns": pl.Float64(),
            "base_share": pl.Float64()}  # fmt: skip
    first = ("rule", "outcome", "state")
    rows = pl.concat(
        [pl.DataFrame(schema={**diagnosis.FINDINGS, **more}), *parts], how="diagonal"
    ).select(*first, pl.exclude(first))
    outcome = next(each for each in OUTCOMES if each in {*rows["outcome"], OUTCOMES[-1]})
    checks = [
        *(["step"] if step is not None else []),
        *([*diagnosis.RULES, _FINDINGS] if new_findings else []),
    ]
    return replace(
        compared,
        rows=rows,
        readable=rows.select("rule", "outcome", "state", "finding"),
        meta={
            "headline": f"{outcome}: {'; '.join(_outcome_sentences(rows, outcome))}",
            "outcome": outcome,
            "undecided_passes": undecided_passes,
            **{key: meta[key] for key in ("names", "a_iterations", "b_iterations", "notes")},
            "steps_by": dict(zip("ab", map(_steps_by, sides), strict=True)),
            "warnings": list(compared.warnings),
        },
        title="", tables={"findings": rows}, as_records=True, command="gate", figures={},
        source=tuple(checks), run=sides[1][0].name,
    )  # fmt: skip


def _steps_by(side: "Collection[OpenedRun]") -> list[str]:
    """Return how steps of runs were found: by ``ranges``, ``structure`` (launch order), or both."""
    return sorted(
        {each for run in side for each in run.trace.read("iterations")["source"].unique()}
    )


def _check(rule: str, outcome: str, finding: str) -> Any:
    import polars as pl

    return pl.DataFrame({"rule": [rule], "outcome": [outcome], "finding": [finding]})


def _findings_check(
    found: "Sequence[OpenedRun]",
    base: "Sequence[OpenedRun]",
    reasons: Sequence[str],
    topology: StrPath | None,
) -> Any:
    """Check that the runs `found` have no new or grown findings (avoidable time) against `base`.

    Returns a row per finding of either side, with the `outcome`: a new or grown finding fails if
    its confidence is `measured` or `likely`, and its saving is known. `reasons` say why the sides
    cannot be compared: then there is one row, `undecided`.
    """
    import polars as pl

    if reasons:
        return _check(_FINDINGS, "undecided", f"not comparable: {'; '.join(reasons)}")
    answer = diagnosed_against(found, base, topology=topology)
    if not min(answer.meta["steps"], answer.meta["base_steps"]):
        return _check(_FINDINGS, "undecided", "the steps of one run are not known")
    rows = answer.tables["findings"]
    if rows.is_empty():
        return _check(_FINDINGS, "pass", "nothing found in either run")
    fails = (
        pl.col("state").is_in(diagnosis.WORSE)
        & pl.col("confidence").is_in(_KEPT)
        & pl.col("win_ns").is_not_null()
    )
    return rows.with_columns(outcome=pl.when(fails).then(pl.lit("fail")).otherwise(pl.lit("pass")))


def _outcome_sentences(rows: Any, outcome: str) -> list[str]:
    """Return sentences on the checks with this outcome, which is the worst one of all checks."""
    worst = rows.filter(outcome=outcome)
    steps = worst.filter(rule="step")["finding"].to_list()
    others = worst.filter(worst["rule"] != "step")
    if outcome == "fail":
        named = [f"{state} {rule}" for rule, state in others.select("rule", "state").iter_rows()]
        return [*steps, *named]
    if outcome == "undecided":
        return [*steps, *others["finding"].to_list()]
    return [*steps, *(["no new finding"] if others.height else [])]


note("outcome", "undecided_passes")(unsaid)
note("steps_by")(lambda by: [f"steps known by {_and(by['a'])} in A, by {_and(by['b'])} in B"])


def _and(sources: "Sequence[str]") -> str:
    return " and ".join(map(text_of, sources)) or "nothing"
