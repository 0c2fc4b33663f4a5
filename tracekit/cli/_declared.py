"""Commands of the questions that are declared beside their analysis."""

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tracekit
from tracekit.cli._command import command
from tracekit.cli._options import (
    LATEST,
    IterationOption,
    OnlyRanksOption,
    OnMissingOption,
    PartDaskOption,
    PartProcessesOption,
    RulesOption,
    RunArgument,
    StepOption,
    VerdictOption,
    open_run,
    opened_run,
    runs_argument,
)
from tracekit.runs import DECLARED
from tracekit.support.questions import Declaration, Folder, Labels, option_of

if TYPE_CHECKING:
    from tracekit.model import Answer

_OPENING = {
    "rules": RulesOption, "iteration": IterationOption, "verdict": VerdictOption,
    "step": StepOption,
    "processes": PartProcessesOption, "dask": PartDaskOption, "on_missing": OnMissingOption,
    "only_ranks": OnlyRanksOption,
}  # fmt: skip
"""Options for opening a run: name -> option."""


def register_question(name: str) -> None:
    """Register the command of a declared question."""
    declaration = DECLARED[name]
    runs_of = [each.name for each in declaration.options if option_of(each).unit == "run"]

    def check(options: dict[str, Any]) -> None:
        if declaration.check is not None:
            declaration.check(**options)

    def answer_of_runs(
        runs: list[str] | None,
        *,
        where: Mapping[str, str] | None = None,
        store: Path | None = None,
        **options: Any,
    ) -> "Answer":
        check(options)
        ask = getattr(tracekit, declaration.name).answer
        found: Answer = ask(runs or (), where=where or {}, store=store, **options)
        return found

    def answer_of_run(run: str, *, store: Path | None = None, **options: Any) -> "Answer":
        opening = {name: options.pop(name, None) for name in declaration.opened}
        check(options)  # what makes no sense is said before a file is read
        for each in runs_of:
            if options[each] is not None:
                options[each] = open_run(options[each], store, **opening)
        with opened_run(run, store, **opening) as opened:
            found: Answer = getattr(opened, declaration.name).answer(**options)
        return found

    answer: Any = answer_of_runs if declaration.is_of_runs else answer_of_run
    answer.__name__, answer.__doc__ = declaration.name, declaration.meaning
    answer.__signature__ = _signature(declaration)
    command(
        *declaration.examples,
        name=declaration.name.replace("_", "-"),
        writes=[declaration.writes, *declaration.also],
        figures=declaration.figures,
    )(answer)


def _signature(declaration: "Declaration") -> inspect.Signature:
    """Return the parameters of a command: runs, the question's options, options of opening."""
    own = [(each.name, each.annotation, each.default) for each in declaration.options]
    asked: list[tuple[str, Any, Any]] = [("run", RunArgument, LATEST)]
    opening = [(name, _OPENING[name], None) for name in declaration.opened]
    if declaration.is_of_runs:
        runs = runs_argument(declaration.signature.parameters["references"].annotation)
        asked, opening = [("runs", runs, None), ("where", Labels, None)], []
    return inspect.Signature(
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=value)
            for name, kind, value in [
                *asked, *own, *opening, ("store", Folder, None)
            ]
        ]
    )  # fmt: skip
