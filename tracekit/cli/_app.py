"""The command `tracekit` and its families of sub-commands."""

from typing import Annotated

import typer

from tracekit import __version__
from tracekit._memory import keep_free_memory
from tracekit.cli._breakdown import breakdown
from tracekit.cli._collectives import collectives
from tracekit.cli._guard import GuardedGroup
from tracekit.cli._info import info
from tracekit.cli._ingest import ingest
from tracekit.cli._links import links
from tracekit.cli._options import examples
from tracekit.cli._runs import runs
from tracekit.cli._sql import sql
from tracekit.cli._topology import topology

app = typer.Typer(
    cls=GuardedGroup,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
    epilog=examples("tracekit ingest trace.sqlite", "tracekit breakdown --by stage"),
)


def _print_version(wanted: bool) -> None:
    if wanted:
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


app.command(
    epilog=examples(
        "tracekit ingest trace.sqlite",
        "tracekit ingest before.sqlite after.sqlite --label model=unet --label gpus=4",
        "tracekit ingest rank*.sqlite --run unet --processes 4",
        "tracekit ingest rank*.sqlite --run unet --dask tcp://head:8786 --on-error skip",
    )
)(ingest)
app.add_typer(runs, name="runs")
app.command(
    epilog=examples(
        "tracekit breakdown",
        "tracekit breakdown trace.sqlite --by kernel --format csv --output kernels.csv",
        "tracekit breakdown mnist --by stage,device --skip 2",
    )
)(breakdown)
app.command(
    epilog=examples(
        "tracekit links",
        "tracekit links --by pair --matrix traffic.html",
        "tracekit links --topology topo.txt --nccl-log nccl.log --by link,stage",
        "tracekit links --by method --parameters 60M",
    )
)(links)
app.command(
    epilog=examples("tracekit collectives", "tracekit collectives --bytes all_reduce=25MB")
)(collectives)
app.add_typer(topology, name="topology")
app.command(epilog=examples("tracekit info", "tracekit info trace.sqlite --format json"))(info)
app.command(
    epilog=examples(
        'tracekit sql @latest "SELECT kind, count(*) AS ops FROM ops GROUP BY kind"',
    )
)(sql)


def main() -> None:
    """Run the command line and exit with its code."""
    keep_free_memory()
    app(prog_name="tracekit")
