"""The command `tracekit`: its commands, in the order of its help."""

import faulthandler
import importlib
import sys
from typing import Annotated

import typer
from typer.models import CommandInfo

from tracekit.cli._command import app
from tracekit.cli._interrupted import has_descriptor
from tracekit.support.process import own_process

_COMMANDS = (
    "ingest", "record", "runs", "breakdown", "diagnose", "idle", "stragglers", "straggler_cost",
    "critical_path", "whatif", "flops", "compare", "gate", "links", "collectives", "hang",
    "latency", "memory", "studies", "dgx1", "project", "waits", "report", "export", "topology",
    "info", "sql",
)  # fmt: skip
"""The modules that register commands, in the order of the help."""


def register_all() -> None:
    """Register every command, in the order of the help."""
    for name in _COMMANDS:
        _register(name)
    order = [f"tracekit.cli._{name}" for name in _COMMANDS]  # one may have been the first to come
    app.registered_commands.sort(key=lambda each: order.index(_home(each)))


def _register(name: str) -> None:
    importlib.import_module(f"tracekit.cli._{name}")


def _home(each: CommandInfo) -> str:
    return each.callback.__module__ if each.callback else ""


def _print_version(wanted: bool) -> None:
    if wanted:
        from tracekit import __version__

        typer.echo(f"tracekit {__version__}")
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
    """Say where each training step's time goes, from GPU traces of DNN training."""


def run() -> None:
    """Run the command line and exit with its code."""
    own_process()
    if has_descriptor():
        faulthandler.enable()  # for native code that ends the process says nothing itself
    asked = "".join(sys.argv[1:2])
    if asked in _COMMANDS:  # which waits for no other
        _register(asked)
    else:
        register_all()
    app(prog_name="tracekit")
