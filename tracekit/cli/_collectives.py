"""`tracekit collectives`: what collective operations cost."""

from typing import TYPE_CHECKING, Annotated

from tracekit.cli._command import command
from tracekit.cli._options import (
    LATEST,
    BytesOption,
    IterationOption,
    NcclLogOption,
    RulesOption,
    RunArgument,
    StoreOption,
    by_option,
    open_run,
    parse_sizes,
    split_keys,
)

if TYPE_CHECKING:
    from tracekit.model import Answer

KEYS = ("library", "collective", "bytes", "communicator", "stage", "rank", "node", "iteration")
"""What collectives can be grouped by."""


@command("tracekit collectives", "tracekit collectives --bytes all_reduce=25MB")
def collectives(
    run: RunArgument = LATEST,
    *,
    by: Annotated[list[str], by_option(KEYS)] = [  # noqa: B006 - typer copies it
        "library,collective,bytes,communicator"
    ],
    nccl_log: NcclLogOption = None,
    sizes: BytesOption = None,
    rules: RulesOption = None,
    iteration: IterationOption = None,
    store: StoreOption = None,
) -> "Answer":
    """List collectives by operation, size and communicator: latency, bandwidth, waiting, skew.

    A bandwidth is algorithm bandwidth (bytes over time) or bus bandwidth (as nccl-tests defines
    it). Where only one participant is in the run its time includes waiting, and the row says so.
    """
    opened = open_run(run, store, rules, iteration)
    return opened.collectives.answer(
        split_keys(by), nccl_log=nccl_log or (), sizes=parse_sizes(sizes or [])
    )
