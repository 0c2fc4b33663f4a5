"""The command `tracekit`: its subcommands, in the order of its help."""

import faulthandler
import importlib
import sys
from typing import Annotated

import typer
from typer.models import CommandInfo

import tracekit
from tracekit.cli._command import app
from tracekit.cli._interrupted import has_descriptor
from tracekit.cli._questions import register_question
from tracekit.support.process import own_process

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
    """Return the names of modules and questions that are commands, in the help's order."""
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
    """Return the name of the function behind a command."""
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
    asked = "".join(sys.argv[1:2])
    if asked in _COMMANDS and asked != "study":  # which waits for no other, as `study dgx1`
        _register(asked)
    else:
        register_all()
    app(prog_name="tracekit")
