"""The command `tracekit` and its families of sub-commands."""

from typing import Annotated

import typer

from tracekit._memory import keep_free_memory
from tracekit.cli._breakdown import breakdown
from tracekit.cli._collectives import collectives
from tracekit.cli._compare import compare
from tracekit.cli._guard import GuardedGroup
from tracekit.cli._info import info
from tracekit.cli._ingest import ingest
from tracekit.cli._latency import latency
from tracekit.cli._links import links
from tracekit.cli._memory import memory
from tracekit.cli._options import examples
from tracekit.cli._record import record
from tracekit.cli._runs import runs
from tracekit.cli._sql import sql
from tracekit.cli._studies import overhead, scaling, study
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


app.command(
    epilog=examples(
        "tracekit ingest trace.sqlite",
        "tracekit ingest before.sqlite after.sqlite --label model=unet --label gpus=4",
        "tracekit ingest rank*.sqlite --run unet --processes 4",
        "tracekit ingest rank*.sqlite --run unet --dask tcp://head:8786 --on-error skip",
    )
)(ingest)
app.command(
    context_settings={"allow_interspersed_args": False},
    epilog=examples(
        "tracekit record -- python train.py --epochs 1",
        "tracekit record --name lenet-2 -- torchrun --nproc-per-node 2 train.py",
        "tracekit record --dry-run --memory-usage -- mpirun -n 4 python train.py",
        "tracekit record --study dgx1 --where network=lenet",
    ),
)(record)
app.add_typer(runs, name="runs")
app.command(
    epilog=examples(
        "tracekit breakdown",
        "tracekit breakdown trace.sqlite --by kernel --format csv --output kernels.csv",
        "tracekit breakdown mnist --by stage,device --skip 2",
        "tracekit breakdown mnist --by range --depth 3",
    )
)(breakdown)
app.command(
    epilog=examples(
        "tracekit compare before after",
        "tracekit compare before.sqlite after.sqlite --by kernel --changes changes.html",
        "tracekit compare before after --by step --fail-above 5%",
    )
)(compare)
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
app.command(
    epilog=examples(
        "tracekit latency --measure span",
        "tracekit latency after --against before --figure latency.html",
    )
)(latency)
app.command(
    epilog=examples(
        "tracekit memory --smi smi.csv",
        "tracekit memory --where network=resnet --what largest-batch --capacity 16GiB",
    )
)(memory)
app.command(epilog=examples("tracekit study --where network=lenet --figure steps.html"))(study)
app.command(
    epilog=examples(
        "tracekit scaling --where network=lenet --images 256000",
        "tracekit scaling --table times.csv --mode weak --figure scaling.html",
    )
)(scaling)
app.command(
    epilog=examples(
        "tracekit overhead --where network=lenet --baseline p2p",
        "tracekit overhead --table times.csv --as-matrix",
        "tracekit overhead before after --api",
    )
)(overhead)
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
