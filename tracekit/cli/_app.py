"""The command `tracekit`: its commands, in the order of its help."""

import importlib
from typing import Annotated

import typer

from tracekit.cli._command import app
from tracekit.support.process import own_process

_COMMANDS = (
    "ingest", "record", "runs", "breakdown", "idle", "compare", "links", "collectives", "latency",
    "memory", "studies", "project", "waits", "report", "topology", "info", "sql",
)  # fmt: skip
"""The modules that register commands, in the order of the help."""

for _name in _COMMANDS:
    importlib.import_module(f"tracekit.cli._{_name}")


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


def main() -> None:
    """Run the command line and exit with its code."""
    own_process()
    app(prog_name="tracekit")
