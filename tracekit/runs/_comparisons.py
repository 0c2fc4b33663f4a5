"""Comparison of two runs, or of two programs by several recordings of each."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tracekit import present
from tracekit.analysis import comparison
from tracekit.runs._question import called, listed, warnings_of
from tracekit.support.files import StrPath
from tracekit.support.questions import AutoSkip, Option, Topology, grouped_by, optional

if TYPE_CHECKING:
    from tracekit.analysis.comparison import Comparison, Recorded
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
            "Least change of the step that matters: say whether it is faster or slower by "
            "more, the same within it, or unknown.",
            "PERCENT",
            unit="percent",
        ),
    ] = None,
    topology: Topology = None,
) -> "Comparison":
    """Compare two runs step by step, or two sides of several recordings each.

    `a` and `b` are each one run, or several recordings of one program. See
    `tracekit.analysis.comparison.compare`, and of several `tracekit.analysis.comparison`.
    """
    from tracekit.analysis.step_sums import parse_compare_keys

    sides = [list(side) if isinstance(side, Sequence) else [side] for side in (a, b)]
    question = "compare by kernel" if "kernel" in parse_compare_keys(by) else "compare"
    for run in (*sides[0], *sides[1]):
        run.require_memory(question)
    of_a, of_b = ([_recorded(run, by, topology) for run in side] for side in sides)
    names = (_names(sides[0]), _names(sides[1]))
    if len(of_a) == len(of_b) == 1:
        found = comparison.compare(
            of_a[0].trace,
            of_b[0].trace,
            by,
            skip=skip,
            names=names if names[0] != names[1] else ("A", "B"),
            match_names=match_names,
            traffic=_both(of_a[0], of_b[0]),
            labels=(of_a[0].labels, of_b[0].labels),
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


def _both(a: "Recorded", b: "Recorded") -> Any:
    return None if a.traffic is None or b.traffic is None else (a.traffic, b.traffic)


def _names(side: "Sequence[OpenedRun]") -> str:
    """Return the names of the runs on one side; of many, the first and the number of others."""
    return listed([run.name for run in side])
