"""Analyses (called questions) of several runs, which are chosen by name or label."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, cast

from tracekit import present
from tracekit.analysis import comparison
from tracekit.analysis.studies import questions as of_runs
from tracekit.analysis.studies import waits_questions as waiting
from tracekit.analysis.studies.questions import memory as of_memory
from tracekit.errors import UsageError
from tracekit.runs._declared import called_one, shown
from tracekit.runs._opening import Reference, select_runs
from tracekit.runs._project import project as of_jobs
from tracekit.runs._question import (
    Finish,
    RunsQuestion,
    Selection,
    asking,
    facts_of,
    needed,
    question_of,
    warnings_of,
)
from tracekit.support.files import StrPath
from tracekit.support.questions import require_valid

if TYPE_CHECKING:
    from tracekit.analysis.comparison import Metric, Skip
    from tracekit.model import Answer
    from tracekit.runs._opened import OpenedRun
    from tracekit.support.questions import Asked

P = ParamSpec("P")


class _Chosen(Selection):
    """Runs that an analysis (question) is about; they are opened when first iterated over.

    Parameters
    ----------
    references, where, store, dask
        See `select_runs`.
    is_of_latest
        Whether no references and no labels mean the run ingested last, and not all runs.
    needs
        Names of questions: opening fails if a run has too little memory for one of them; see
        `OpenedRun.require_memory`.
    """

    def __init__(
        self,
        references: Sequence[Reference] = (),
        where: Mapping[str, str] | None = None,
        store: StrPath | None = None,
        dask: str | None = None,
        *,
        is_of_latest: bool = False,
        needs: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self.is_apart, self.is_chosen = bool(references), bool(references or where)
        chosen = ["@latest"] if is_of_latest and not self.is_chosen else references
        self._select = partial(select_runs, chosen, where=where, store=store, dask=dask)
        self._store, self._needs = store, needs

    def __iter__(self) -> Iterator[OpenedRun]:
        if not self.opened:
            self.opened = [*self._select()]
            for run, question in itertools.product(self.opened, self._needs):
                run.require_memory(question)
        return super().__iter__()

    def named(self, reference: Reference) -> OpenedRun:
        """Return another run of the same store, by name, start of its id, or trace file."""
        return select_runs([reference], store=self._store)[0]


def among_runs(declared_question: Asked[Selection, P, Answer], finish: Finish) -> RunsQuestion[P]:
    """Return the library function for an analysis of several runs, which opens the runs first.

    Parameters
    ----------
    declared_question
        The analysis, with its declaration.
    finish
        Function of the opened runs and the answer; it returns the answer with facts about the runs.
    """
    declaration, ask = declared_question.declaration, cast("Any", declared_question)

    def answer(references: Sequence[Any] = (), *args: Any, **options: Any) -> Answer:
        chosen = {name: options.pop(name) for name in declaration.apart if name in options}
        require_valid({"references": references, **chosen}, declaration.signature)
        needs = needed(declaration.name, options)
        runs = _Chosen(references, **chosen, is_of_latest=declaration.is_of_latest, needs=needs)
        found: Answer = finish(runs, ask(runs, *args, **options))
        told = warnings_of(runs.opened, of_stages=declaration.name != "memory")
        return found.warning([text for text in told if text not in found.warnings])

    signature = declaration.signature_of("tracekit.Answer", of_one=False)
    text = declaration.text("polars.DataFrame", of_one=False)
    question: RunsQuestion[P] = asking(answer, declaration.name, signature, text)
    cast("Any", answer).declaration = declaration
    return question


memory = among_runs(of_memory, shown)
study = among_runs(of_runs.study, shown)
scaling = among_runs(of_runs.scaling, shown)
overhead = among_runs(of_runs.overhead, shown)
project = among_runs(of_jobs, shown)
stalls = among_runs(waiting.stalls, called_one)
bubbles = among_runs(waiting.bubbles, called_one)

# -- history of the runs of a nightly job


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
    """List the mean step time of runs, ordered by a label, and the points at which it changed.

    See `tracekit.analysis.comparison.history`.

    Parameters
    ----------
    label
        Label that orders the runs, such as ``night`` or ``commit``; runs without it are left out.
    references, where
        The runs, as for `select_runs`.
    metric, skip
        As for `compare`.

    Raises
    ------
    UsageError
        If no run has the label, or no run with the label has steps.
    """
    import polars as pl  # its help is shown without

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
    numbers = [run.trace["iterations"].select(pl.col("iteration").n_unique()) for run in chosen]
    few, *_, many = sorted([each.collect().item() for each in numbers] * 2)
    recorded = [comparison.Recorded(run.trace, run.name, run.labels) for run in chosen]
    texts = [f"not comparable: {text}" for text in comparison.apart(recorded)]
    if found.meta["changes"] and many >= 2 * few:
        texts.append(
            f"runs have from {few} to {many} steps: the last of each ends with its own work, so "
            "that few steps have a shorter mean"
        )
    texts += [*comparison.unlike(recorded), *warnings_of(chosen)]
    per = "step/GPU" if chosen[0].trace["ops"].head(1).collect().height else "step/process"
    return replace(
        found.saying(
            skip=None if skip == "auto" else skip, per=per, **facts_of(chosen), warnings=texts
        ),
        source=f"{len(chosen)} runs",
        renderer=present.RENDERER,
    )
