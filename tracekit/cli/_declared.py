"""Commands of the questions that are declared beside their analysis."""

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tracekit
from tracekit.cli._command import command
from tracekit.cli._options import (
    LATEST,
    IterationOption,
    PartDaskOption,
    PartProcessesOption,
    RulesOption,
    RunArgument,
    StepOption,
    StoreOption,
    VerdictOption,
    WhereOption,
    open_run,
    opened_run,
    parse_labels,
    read_option,
    runs_argument,
    typer_option,
)
from tracekit.runs import DECLARED
from tracekit.support.questions import Declaration, option_of

if TYPE_CHECKING:
    from tracekit.model import Answer

_OPENING = {
    "rules": RulesOption, "iteration": IterationOption, "verdict": VerdictOption,
    "step": StepOption,
    "processes": PartProcessesOption, "dask": PartDaskOption,
}  # fmt: skip
"""Options that say how a run is read."""


def register_question(name: str) -> None:
    """Register the command of a declared question, to a run or to several."""
    told = DECLARED[name]
    options = {each.name: option_of(each) for each in told.options}

    def read(typed: dict[str, Any]) -> dict[str, Any]:
        given = {name: read_option(options[name], value) for name, value in typed.items()}
        if told.check is not None:
            told.check(**given)
        return given

    def answer_of_runs(
        runs: list[str] | None,
        *,
        where: list[str] | None = None,
        store: Path | None = None,
        **typed: Any,
    ) -> "Answer":
        labels = parse_labels(where or [])
        ask = getattr(tracekit, told.name).answer
        found: Answer = ask(runs or (), where=labels, store=store, **read(typed))
        return found

    def answer_of_run(run: str, *, store: Path | None = None, **typed: Any) -> "Answer":
        opening = {name: typed.pop(name, None) for name in told.opened}
        # What makes no sense is said before a file is read.
        given = read(typed)
        given |= {
            each: open_run(given[each], store, **opening)
            for each, option in options.items()
            if option.unit == "run" and given[each] is not None
        }
        with opened_run(run, store, **opening) as opened:
            found: Answer = getattr(opened, told.name).answer(**given)
        return found

    answer: Any = answer_of_runs if told.is_of_runs else answer_of_run
    answer.__name__, answer.__doc__ = told.name, told.meaning
    answer.__signature__ = _signature(told)
    command(
        *told.examples,
        name=told.name.replace("_", "-"),
        writes=[told.writes, *told.also],
        figures=told.figures,
    )(answer)


def _signature(told: "Declaration") -> inspect.Signature:
    """Return the parameters of a command: the runs, the question's own, and how a run is read."""
    own = [(each.name, typer_option(each.name, each.annotation), _typed_default(each))
           for each in told.options]  # fmt: skip
    asked: list[tuple[str, Any, Any]] = [("run", RunArgument, LATEST)]
    opening = [(name, _OPENING[name], None) for name in told.opened]
    if told.is_of_runs:
        runs = runs_argument(told.signature.parameters["references"].annotation)
        asked, opening = [("runs", runs, None), ("where", WhereOption, None)], []
    return inspect.Signature(
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=value)
            for name, kind, value in [
                *asked, *own, *opening, ("store", StoreOption, None)
            ]
        ]
    )  # fmt: skip


def _typed_default(parameter: inspect.Parameter) -> Any:
    """Return the default of an option as it would be typed."""
    if option_of(parameter).unit == "keys":
        return [parameter.default]
    return None if parameter.default == () else parameter.default
