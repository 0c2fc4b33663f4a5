"""History of the runs of a nightly job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from tracekit import present
from tracekit.analysis import comparison
from tracekit.errors import UsageError
from tracekit.runs._opened import OpenedRun
from tracekit.runs._opening import Reference, select_runs
from tracekit.runs._question import facts_of, question_of
from tracekit.support.files import StrPath

if TYPE_CHECKING:
    from tracekit.analysis.comparison import Metric, Skip
    from tracekit.model import Answer


@question_of
def history(
    label: str,
    references: Sequence[Reference] = (),
    *,
    where: Mapping[str, str] | None = None,
    metric: Metric = "mean",
    skip: Skip = "auto",
    store: StrPath | None = None,
) -> Answer:
    """List the step of runs ordered by a label, and where it changed.

    See `tracekit.analysis.comparison.history`.

    Parameters
    ----------
    label
        Label that orders the runs, such as ``night`` or ``commit``; runs without it are left out.
    references, where
        The runs, as for `select_runs`.
    metric
        Whether to use the mean or the median step.
    skip
        Number of iterations to leave out at the beginning of each run.

    Raises
    ------
    UsageError
        If no run has the label, or none of these has steps.
    """
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
            comparison.typical_step(run.trace, skip=skip, metric=metric),
        )
        for run in chosen
    ]
    table = pl.DataFrame(
        rows, schema=["value", "run", "created", "step_ns"], orient="row",
    ).with_columns(pl.col("step_ns").cast(pl.Float64))  # fmt: skip
    found = comparison.history(table, label=label, metric=metric)
    texts = [f"not comparable: {text}" for text in _apart(chosen)]
    per = "step/GPU" if chosen[0].trace["ops"].head(1).collect().height else "step/process"
    return replace(
        found.saying(
            skip=None if skip == "auto" else skip, per=per, **facts_of(chosen), warnings=texts
        ),
        source=f"{len(chosen)} runs",
        renderer=present.RENDERER,
    )


def _apart(chosen: Sequence[OpenedRun]) -> list[str]:
    """Return sentences that name the runs not comparable with the first one, and why."""
    first = chosen[0]
    return [
        reason
        for other in chosen[1:]
        for reason in comparison.comparability(
            first.trace, other.trace, (first.labels, other.labels), names=(first.name, other.name)
        )
    ]
