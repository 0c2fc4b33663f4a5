"""The command `tracekit`: its subcommands, in the order of its help."""

import faulthandler
import importlib
import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.models import CommandInfo

import tracekit
from tracekit.cli._command import Judged, app, command
from tracekit.cli._interrupted import has_descriptor
from tracekit.cli._options import (
    LATEST,
    IterationOption,
    OnlyRanksOption,
    OnMissingOption,
    PartProcessesOption,
    RulesOption,
    RunArgument,
    StepOption,
    VerdictOption,
    files_argument,
    open_run,
    opened_run,
    runs_argument,
)
from tracekit.cli._output import EVERYWHERE, Format
from tracekit.runs import DECLARED
from tracekit.support.process import own_process
from tracekit.support.questions import Declaration, Folder, Labels, PartDask, option_of

if TYPE_CHECKING:
    from tracekit.model import Answer

_OPENING = {
    "rules": RulesOption, "iteration": IterationOption, "verdict": VerdictOption,
    "step": StepOption,
    "processes": PartProcessesOption, "dask": PartDask, "on_missing": OnMissingOption,
    "only_ranks": OnlyRanksOption,
}  # fmt: skip
"""Options for opening a run: name -> option."""


def register_question(name: str) -> None:
    """Register the command `name` of a question: an analysis that declares options and columns."""
    spec = DECLARED[name]
    ask = _of_files if spec.is_of_files else _of_runs if spec.is_of_runs else _of_run
    judging_names = {each.name for each in spec.judging}
    alone = judging_names - {each.name for each in spec.options}

    def answer(**options: Any) -> "Answer | Judged":
        judging = {each: options[each] for each in judging_names}
        question_options = {each: value for each, value in options.items() if each not in alone}
        if spec.check is not None:  # what makes no sense is said before a file is read
            spec.check(**question_options)
        found = ask(spec, **question_options)
        return found if spec.judge is None else Judged(found, spec.judge(found, **judging))

    answer.__name__, answer.__doc__ = spec.name, spec.meaning
    answer.__signature__ = _signature(spec)  # type: ignore[attr-defined]
    command(
        *spec.examples,
        name=spec.name.replace("_", "-"),
        writes=[spec.writes, *spec.also],
        figures=spec.figures,
        formats=(*EVERYWHERE, *map(Format, spec.formats)),
    )(answer)


def _of_runs(
    spec: Declaration,
    runs: list[str] | None,
    *,
    where: Mapping[str, str] | None = None,
    store: Path | None = None,
    **options: Any,
) -> "Answer":
    ask = getattr(tracekit, spec.name).answer
    found: Answer = ask(runs or (), where=where or {}, store=store, **options)
    return found


def _of_run(spec: Declaration, run: str, *, store: Path | None = None, **options: Any) -> "Answer":
    opening = {name: options.pop(name, None) for name in spec.opened}
    reading = {name: opening.get(name) for name in ("rules", "iteration")}
    others = _opened(spec, options, store, **reading)
    with opened_run(run, store, **opening) as opened:
        found: Answer = getattr(opened, spec.name).answer(**options | others)
    return found


def _of_files(spec: Declaration, *, store: Path | None = None, **options: Any) -> "Answer":
    ask = getattr(tracekit, spec.name).answer
    chosen = {name: value for name, value in options.items() if value is not None}
    found: Answer = ask(**chosen | _opened(spec, options, store))
    return found


def _opened(
    spec: Declaration, options: Mapping[str, Any], store: Path | None, **opening: Any
) -> dict[str, Any]:
    """Return the runs among a question's options, each opened: name of the option -> run."""
    named = {name: options[name] for name in _runs_among(spec) if options[name] is not None}
    return {name: open_run(each, store, **opening) for name, each in named.items()}


def _runs_among(spec: Declaration) -> list[str]:
    return [each.name for each in spec.options if option_of(each).unit == "run"]


def _signature(spec: Declaration) -> inspect.Signature:
    """Return the parameters of a command: runs, the question's options, options to open runs."""
    options = {each.name: each for each in (*spec.options, *spec.judging)}
    declared = [
        (each.name, each.annotation, each.default)
        for each in options.values()
        if option_of(each).flag != ""
    ]
    subjects: list[tuple[str, Any, Any]] = [("run", RunArgument, LATEST)]
    opening = [(name, _OPENING[name], None) for name in spec.opened]
    first = next(iter(spec.signature.parameters.values()))
    if spec.is_of_runs:
        runs = runs_argument(first.annotation)
        subjects, opening = [("runs", runs, None), ("where", Labels, None)], []
    if spec.is_of_files:
        none = first.empty if first.default is first.empty else None
        subjects, opening = [(first.name, files_argument(first.annotation), none)], []
    stores = [("store", Folder, None)] if _runs_among(spec) or not spec.is_of_files else []
    return inspect.Signature(
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=value)
            for name, kind, value in [
                *subjects, *declared, *opening, *stores
            ]
        ]
    )  # fmt: skip


_COMMANDS = (
    "ingest", "record", "runs", "breakdown", "diagnose", "idle", "stragglers", "straggler_cost",
    "critical_path", "whatif", "flops", "roofline", "compare", "gate", "links", "collectives",
    "nccl_inspector", "hang", "latency", "memory", "study", "scaling", "overhead", "dgx1",
    "project", "stalls", "bubbles", "report", "view", "export", "topology", "info", "sql",
)  # fmt: skip
"""Commands with a module of their own name, and declared questions, in the order of the help."""
_MODULES = {
    "report": "cli._pages", "view": "cli._pages", "export": "cli._pages", "gate": "cli._compare",
    "dgx1": "papers._dgx1_command",
}  # fmt: skip
"""Modules of commands, where these have no module of their own in this folder."""


def in_order() -> list[str]:
    """Return the names of all commands, in the order of the help."""
    from tracekit.runs import DECLARED

    return [*_COMMANDS, *(name for name in DECLARED if name not in _COMMANDS)]


def register_all() -> None:
    """Register every command, in the order of the help."""
    names = in_order()
    for name in names:
        _register(name)
    # One may have been the first to come.
    app.registered_commands.sort(key=lambda each: names.index(_home(each)))


def _register(name: str) -> None:
    from tracekit.runs import DECLARED

    if name not in DECLARED:
        importlib.import_module(f"tracekit.{_MODULES.get(name, f'cli._{name}')}")
    elif name not in map(_home, app.registered_commands):
        register_question(name)


def _home(each: CommandInfo) -> str:
    """Return the name of the function that runs a command; empty without one."""
    return each.callback.__name__ if each.callback else ""


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tracekit {tracekit.__version__}")
        raise typer.Exit


@app.callback()
def _tracekit(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Show where each training step's time goes, from GPU traces of DNN training."""


def run() -> None:
    """Run the command line and exit with its code."""
    own_process()
    if has_descriptor():
        faulthandler.enable()  # for native code that ends the process says nothing itself
    name = "".join(sys.argv[1:2])
    if name in _COMMANDS and name != "study":  # which waits for no other, as `study dgx1`
        _register(name)
    else:
        register_all()
    app(prog_name="tracekit")
