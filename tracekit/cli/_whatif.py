"""`tracekit whatif`: how long steps would take with something changed."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracekit.cli._command import command
from tracekit.cli._options import (
    LATEST,
    BytesOption,
    IterationOption,
    RulesOption,
    RunArgument,
    SkipOption,
    StepsOption,
    StoreOption,
    TopologyOption,
    open_run,
    parse_sizes,
    steps_of,
)
from tracekit.support.columns import keys
from tracekit.support.quantities import parse_size
from tracekit.support.schemas import Json

if TYPE_CHECKING:
    from tracekit.model import Answer

_PANEL = "Changes"


_JSON = Json(
    "whatif",
    meta={
        **keys("steps", "skip"),
        "replay_error_share": "amount or null: By how much the unchanged replay of a step is off, "
        "over its length, in the median.",
        "unexplained_share": "share or null: What of the recorded steps nothing explains.",
        "trusted": "flag: Whether that is at most a tenth, and of all changed paths too.",
        **keys("warnings?"),
    },
    rows={
        "change": "text: What is changed.",
        "edges": "count: Number of dependencies that get another length.",
        "step_ns": "amount or null: A step, mean over the steps that count: the middle of its "
        "range; null where that is wider than a fifth of a measured step.",
        "low_ns": "amount or null: How short it may be, with every bound that the recording leaves "
        "open at that end; null of the measured steps.",
        "high_ns": "amount or null: How long it may be, likewise.",
        "saved_ns": "number or null: How much shorter a step is than in the unchanged replay; "
        "null of the measured steps, and where step_ns is.",
        "saved_share": "number or null: The same over a step of the unchanged replay.",
        "speedup": "number or null: A step of the unchanged replay over this one.",
        "unexplained_share": "share or null: What of the path of these steps nothing explains.",
    },
)


@command(
    "tracekit whatif --speed 'gemm|conv=2x' --stage BP=1.5x --skip 1",
    "tracekit whatif mnist --loader 2x --no-sync",
    "tracekit whatif ddp --bandwidth nvlink=2x --overlap --bucket 25MB",
    figures={"figure": "Draw a step under each change, with its range"},
    writes=[_JSON],
)
def whatif(
    run: RunArgument = LATEST,
    *,
    speed: Annotated[
        list[str] | None,
        typer.Option(
            "--speed", metavar="NAME=FACTOR", rich_help_panel=_PANEL,
            help="Kernels are faster whose names match a pattern; may be given several times.",
        ),
    ] = None,
    stage: Annotated[
        list[str] | None,
        typer.Option(
            "--stage", metavar="STAGE=FACTOR", rich_help_panel=_PANEL,
            help="Kernels of a stage are faster; may be given several times.",
        ),
    ] = None,
    bandwidth: Annotated[
        list[str] | None,
        typer.Option(
            "--bandwidth", metavar="LINK=FACTOR", rich_help_panel=_PANEL,
            help="Links are faster: nvlink, pcie, socket, network, xgmi, c2c, or all that "
            "collectives cross (collective); may be given several times.",
        ),
    ] = None,
    loader: Annotated[
        str | None,
        typer.Option(
            "--loader", metavar="FACTOR", rich_help_panel=_PANEL,
            help="The data loader is faster; inf for one that takes no time.",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers", metavar="N", rich_help_panel=_PANEL,
            help="So many workers prepare batches.",
        ),
    ] = None,
    no_sync: Annotated[
        bool,
        typer.Option(
            "--no-sync", rich_help_panel=_PANEL, help="The host waits for no GPU work."
        ),
    ] = False,
    overlap: Annotated[
        bool,
        typer.Option(
            "--overlap", rich_help_panel=_PANEL,
            help="Nothing but communication waits for communication between GPUs.",
        ),
    ] = False,
    bucket: Annotated[
        str | None,
        typer.Option(
            "--bucket", metavar="SIZE", rich_help_panel=_PANEL,
            help="Gradients are all-reduced in pieces of at least this size, such as 25MB.",
        ),
    ] = None,
    sizes: BytesOption = None,
    skip: SkipOption = 0,
    iterations: StepsOption = None,
    topology: TopologyOption = None,
    rules: RulesOption = None,
    iteration: IterationOption = None,
    store: StoreOption = None,
) -> "Answer":  # fmt: skip
    """Say how long steps would take with something changed: each change alone, and all of them.

    What waits for what is replayed; docs/whatif.md says how, and how far to trust it.
    """
    from tracekit.analysis.dependencies import parse_changes

    changes: Any = {
        "speed": speed or (), "stage": stage or (), "bandwidth": bandwidth or (), "loader": loader,
        "workers": workers, "no_sync": no_sync, "overlap": overlap,
        "bucket": None if bucket is None else parse_size(bucket),
    }  # fmt: skip
    parse_changes(**changes)  # what makes no sense is said before a file is read
    return open_run(run, store, rules, iteration).whatif.answer(
        **changes, skip=skip, iterations=steps_of(iterations), topology=topology,
        sizes=parse_sizes(sizes or ()),
    )  # fmt: skip
