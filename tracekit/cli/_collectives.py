"""`tracekit collectives`: what collective operations cost."""

from typing import Annotated

from tracekit.cli._options import (
    LATEST,
    BytesOption,
    IterationOption,
    NcclLogOption,
    RulesOption,
    RunArgument,
    StoreOption,
    by_option,
    listing,
    open_run,
    parse_sizes,
    split_keys,
)
from tracekit.cli._output import Listing

KEYS = ("library", "collective", "bytes", "communicator", "stage", "rank", "node", "iteration")
"""What collectives can be grouped by."""


@listing
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
) -> Listing:
    """List collectives by operation, size and communicator: latency, bandwidth, waiting, skew.

    A bandwidth is algorithm bandwidth (bytes over time) or bus bandwidth (as nccl-tests defines
    it). Where only one participant is in the run its time includes waiting, and the row says so.
    """
    opened = open_run(run, store, rules, iteration)
    rows, meta = opened.collectives_with_meta(
        split_keys(by), nccl_log=nccl_log or (), sizes=parse_sizes(sizes or [])
    )
    meta |= opened.verdict_meta(in_words=False)
    meta["warnings"] = [*opened.warnings, *meta.get("warnings", [])]
    title = f"{opened.name} · collectives"
    return Listing("collectives", opened.name, rows, meta, title, "no collectives were recorded")
