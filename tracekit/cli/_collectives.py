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
from tracekit.support.columns import columns, keys
from tracekit.support.schemas import Json, by_name

if TYPE_CHECKING:
    from tracekit.model import Answer

KEYS = ("library", "collective", "bytes", "communicator", "stage", "rank", "node", "iteration")
"""What collectives can be grouped by."""


_JSON = Json(
    "collectives",
    meta={
        "calls": "integer: Participants of all collectives.",
        "sized": by_name(
            "Those of known size, by its source.",
            "integer",
        ),
        "matched": "integer: Those that were matched.",
        "collectives": "integer: Into how many collectives.",
        **keys("missing", "warnings", "verdict?", "given?", "cut?", "weak?"),
    },
    rows={
        "library?": "text: Library.",
        "collective?": "text: Collective operation.",
        "bytes": "integer or null: Size as nccl-tests counts it; null where unknown.",
        "communicator?": "text or null: Id of the communicator; null where unknown.",
        "stage?": "text or null: Why it runs.",
        "rank?": "integer or null: Rank of the participant's process in its job; null where "
        "unknown.",
        **columns("node?"),
        "iteration?": "integer or null: Training step.",
        "count": "positive: Collectives.",
        "participants": "integer: How many participants were found (median).",
        "ranks": "integer or null: Of how many; null where unknown.",
        "duration_p50_ns": "integer: Duration, ns.",
        "duration_p5_ns": "integer: Duration, ns.",
        "duration_p95_ns": "integer: Duration, ns.",
        "duration_max_ns": "integer: Duration, ns.",
        "basis": "text: What the duration is.",
        "algorithm_bandwidth_gb_s": "number or null: Bytes over median duration, GB/s; GB is 10^9 "
        "bytes. Null where unknown.",
        "bus_bandwidth_gb_s": "number or null: As nccl-tests defines it, GB/s; GB is 10^9 bytes. "
        "Null where unknown.",
        "transfer_ns": "integer or null: Median of the shortest participant's time, ns.",
        "wait_ns": "integer or null: Median of own time less the shortest one's, ns.",
        "skew_ns": "integer or null: Median of last start less first start, ns.",
        "straggler_device": "integer or null: Device that starts last most often.",
        "straggler_rank": "integer or null: Its rank.",
        "straggler_share": "number or null: How often.",
        "bytes_source": "text or null: Where sizes are from.",
        "evidence": "one of measured, modelled: Whether sizes are recorded, or the user's or "
        "assumed.",
        "algorithm?": "text or null: The algorithm, from an NCCL log or a kernel's name; with `or` "
        "between those of which one ran; null where several did or none is known.",
        "least_gpu_bytes?": "integer or null: What each GPU sends by the algorithm that sends "
        "least: a model.",
        "most_gpu_bytes?": "integer or null: What each GPU sends by the one that sends most.",
    },
)


@command(
    "tracekit collectives",
    "tracekit collectives --bytes all_reduce=25MB",
    writes=[_JSON],
)
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
