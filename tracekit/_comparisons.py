"""Runs compared: two, several recordings a side, and those of a nightly job one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import tracekit._run as runs
from tracekit._question import Question
from tracekit._questions import called
from tracekit._studies import Reference, facts_of, select_runs
from tracekit.errors import UsageError
from tracekit.support.files import StrPath

if TYPE_CHECKING:
    from tracekit.analysis.comparison import Comparison, Metric, Recorded
    from tracekit.model import Answer

_FEW = 3
"""So many recordings of a side are called by their names."""


def compare(
    a: runs.Run | Sequence[runs.Run],
    b: runs.Run | Sequence[runs.Run],
    by: str | Sequence[str] = "stage",
    *,
    skip: int = 0,
    match_names: bool = False,
    topology: StrPath | None = None,
    anyway: bool = False,
    metric: Metric = "mean",
    least: float | None = None,
) -> Comparison:
    """Compare two runs step by step, or several recordings of either side.

    See `tracekit.analysis.comparison.compare`, and of several `tracekit.analysis.comparison`.

    Parameters
    ----------
    a, b
        The runs of either side.
    by
        Keys such as ``stage`` or ``kernel``, as a sequence or separated by commas.
    skip
        How many iterations to leave out at the beginning of each.
    match_names
        Whether kernels that a library's upgrade renamed are taken for the same.
    topology
        By link: the machine, as for `Run.traffic`.
    anyway
        Whether runs that are not comparable get verdicts too.
    metric
        Whether the step is judged by its ``mean`` or its ``median``.
    least
        The least change of the step that matters, in percent.
    """
    from tracekit.analysis.comparison import compare as compare_traces
    from tracekit.analysis.comparison import compare_recordings
    from tracekit.present import FACE

    sides = [[side] if isinstance(side, runs.Run) else list(side) for side in (a, b)]
    of_a, of_b = ([_recorded(run, by, topology) for run in side] for side in sides)
    names = (_names(sides[0]), _names(sides[1]))
    if len(of_a) == len(of_b) == 1:
        found = compare_traces(
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
        )
    else:
        found = compare_recordings(
            of_a, of_b, by, skip=skip, names=names, match_names=match_names, anyway=anyway,
            metric=metric, least=least,
        )  # fmt: skip
    warned = [f"{run.name}: {text}" for side in sides for run in side for text in run.warnings]
    title = " → ".join(called(side[0]) if len(side) == 1 else _names(side) for side in sides)
    return replace(
        found.saying(warnings=warned), title=f"{title} · {found.title}", source=names, face=FACE
    )


def _recorded(run: runs.Run, by: str | Sequence[str], topology: StrPath | None) -> Recorded:
    from tracekit.analysis.comparison import Recorded

    moved = run.traffic(topology=topology) if "link" in by else None
    return Recorded(run.trace, run.name, run.labels, moved)


def _both(a: Recorded, b: Recorded) -> Any:
    return None if a.traffic is None or b.traffic is None else (a.traffic, b.traffic)


def _names(side: Sequence[runs.Run]) -> str:
    """Return what a side is called: by the names of its recordings, where these are few."""
    names = [run.name for run in side]
    return ", ".join(names) if len(names) <= _FEW else f"{names[0]} and {len(names) - 1} more"


@Question
def history(
    label: str,
    references: Sequence[Reference] = (),
    *,
    where: Mapping[str, str] | None = None,
    metric: Metric = "mean",
    skip: int = 0,
    store: StrPath | None = None,
) -> Answer:
    """List the step of runs in the order of a label, and where it changed.

    See `tracekit.analysis.comparison.history`.

    Parameters
    ----------
    label
        The label that orders them, such as ``night`` or ``commit``; runs without it do not count.
    references, where
        The runs, as for `select_runs`.
    metric
        Whether the mean or the median step counts.
    skip
        How many iterations to leave out at the beginning of each run.

    Raises
    ------
    UsageError
        If no run has the label, or none of them steps.
    """
    import polars as pl

    from tracekit.analysis.comparison import history, typical_step
    from tracekit.present import FACE

    chosen = [
        run for run in select_runs(references, where=where, store=store) if label in run.labels
    ]
    if not chosen:
        raise UsageError(f"no run has the label {label!r}", "`tracekit runs` lists runs and labels")
    rows = [
        (
            run.labels[label],
            run.name,
            run.created,
            typical_step(run.trace, skip=skip, metric=metric),
        )
        for run in chosen
    ]
    table = pl.DataFrame(
        rows, schema=["value", "run", "created", "step_ns"], orient="row",
    ).with_columns(pl.col("step_ns").cast(pl.Float64))  # fmt: skip
    found = history(table, label=label, metric=metric)
    told = [f"not comparable: {text}" for text in _apart(chosen)]
    per = "step/GPU" if chosen[0].trace["ops"].head(1).collect().height else "step/process"
    return replace(
        found.saying(skip=skip, per=per, **facts_of(chosen), warnings=told),
        source=f"{len(chosen)} runs",
        face=FACE,
    )


def _apart(chosen: Sequence[runs.Run]) -> list[str]:
    """Say which runs cannot be compared with the first one, and why."""
    from tracekit.analysis.comparison import comparability

    first = chosen[0]
    return [
        reason
        for other in chosen[1:]
        for reason in comparability(
            first.trace, other.trace, (first.labels, other.labels), names=(first.name, other.name)
        )
    ]
