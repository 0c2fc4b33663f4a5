"""`tracekit links`: which link carried which bytes."""

from typing import TYPE_CHECKING, Annotated

import typer

from tracekit.cli._command import command
from tracekit.cli._options import (
    LATEST,
    BytesOption,
    IterationOption,
    NcclLogOption,
    RulesOption,
    RunArgument,
    StoreOption,
    TopologyOption,
    by_option,
    open_run,
    parse_sizes,
    split_keys,
)
from tracekit.support.columns import columns, keys
from tracekit.support.quantities import parse_count
from tracekit.support.schemas import STAGES, Json, record

if TYPE_CHECKING:
    from tracekit.model import Answer

KEYS = ("link", "pair", "route", "method", "stage", "rank", "node", "iteration")
"""What traffic can be grouped by."""


_JSON = Json(
    "links",
    meta={
        "machine": "text: Preset or file that describes the machine.",
        "origin": "one of file, trace, preset, recognised, assumed: How the machine is known.",
        "placed_by": "one of uuid, pci_bus, number: By what the run's devices were found in it.",
        "window_ns": "integer: Time from the first op to the last one, ns.",
        "transfers": "integer: Number of transfers.",
        "listed?": "integer: How many of these are in the rows: by pair those between two GPUs, by "
        "link those with a known route. Absent with --counters.",
        "routed": "integer: How many of these have a known route.",
        "sized": "integer: How many are of known size.",
        "collectives": "integer: Number of NCCL kernels.",
        "collectives_of_unknown_size": "integer: How many of these are of unknown size.",
        "root": record(
            {
                "root": "integer or null: GPU that is an end of most bytes.",
                "share": "number or null: Of how many of the bytes it is an end.",
                "pattern": "one of single, spread or null: Whether one GPU is the root, or "
                "traffic is spread; null where it cannot be told.",
                "gpus": "integer: GPUs that take part.",
                "bytes": "integer or null: Bytes copied between GPUs.",
                "in_bytes": "integer or null: Of these, into the root.",
                "out_bytes": "integer or null: Of these, out of it.",
            },
            description="The GPU at which copies meet.",
        ),
        **keys("warnings"),
        "expected?": record(
            {
                "gpus": "integer: GPUs that exchange.",
                "gradient_bytes": "integer: Bytes of the gradients.",
                "expected_bytes": "integer or null: What data-parallel training must exchange.",
                "observed_bytes": "number or null: What was moved.",
                "ratio": "number or null: Observed over expected.",
                "unsized": "integer: Transfers of unknown size, which are not in it.",
                "evidence": "one of measured, modelled or null: modelled where any of what was "
                "moved is, else measured.",
                "least_bytes?": "number: Where it is not known which algorithm collectives ran: "
                "the least that was moved.",
                "most_bytes?": "number: The most that was moved.",
            },
            description="With --parameters: bytes between GPUs in each iteration.",
        ),
        **keys("sum_over?", "verdict?", "given?", "cut?", "weak?"),
    },
    rows={
        "link?": "text: The link: the nodes at its ends.",
        **columns("src?", "dst?"),
        "type?": "one of nvlink, xgmi, c2c, pcie, socket, network: Type of the link.",
        "bricks?": "integer or null: NVLinks that are bonded; null for other types.",
        "src_device?": "integer or null: Source GPU.",
        "dst_device?": "integer or null: Destination GPU.",
        "route?": "text or null: The nodes that are crossed; null where unknown.",
        "route_type?": "text or null: The slowest type of link on the route.",
        "method?": "one of p2p, staged, two_hop, nccl, collective, mpi, h2d, d2h: How bytes are "
        "moved.",
        "stage?": f"one of {STAGES}: Why the op runs that moves them.",
        "rank?": "integer or null: Rank of the process that moves them; null where unknown.",
        **columns("node?"),
        "iteration?": "integer or null: Training step; null outside of all.",
        "evidence?": "one of measured, modelled, modelled between: Whether the bytes were "
        "recorded, follow from a model, or lie between those of several.",
        "transfers?": "count: Number of transfers; of modelled between that of collectives.",
        "unsized?": "count: How many of these are of unknown size.",
        "bytes?": "integer or null: Bytes of the others; null if there is none.",
        "least_bytes?": "integer or null: Where it is not known which of several algorithms a "
        "collective ran: bytes if it is always the one that moves least here.",
        "most_bytes?": "integer or null: Bytes if it is always the one that moves most here.",
        "least_utilisation?": "number or null: Utilisation with the least bytes.",
        "most_utilisation?": "number or null: Utilisation with the most bytes.",
        "busy_ns?": "integer or null: Length of the union of their intervals, ns.",
        "achieved_gb_s?": "number or null: Bytes over the busy time of transfers of known size, "
        "GB/s; GB is 10^9 bytes. Null where unknown.",
        "peak_gb_s?": "number or null: Peak per direction, GB/s; GB is 10^9 bytes. Null where "
        "unknown.",
        "utilisation?": "number or null: Achieved over peak; null where unknown.",
        "share?": "number or null: Busy time over the window; null if that is empty.",
        "device?": "integer or null: With --counters: GPU; null for a NIC.",
        "nic?": "text or null: With --counters: NIC; null for a GPU.",
        "metric?": "text: With --counters: what was counted.",
        "samples?": "integer: With --counters: number of samples.",
        "window_ns?": "integer: With --counters: from the first sample to the last one, ns.",
        "mean_percent?": "number or null: With --counters: mean, percent of the peak.",
        "max_percent?": "number or null: With --counters: largest sample, percent of the peak.",
        "counted_bytes?": "integer or null: With --counters: null where the peak is not known.",
        "measured_bytes?": "integer or null: With --counters: attributed in the same time, "
        "measured.",
        "modelled_bytes?": "integer or null: With --counters: attributed in the same time, "
        "modelled.",
        "difference_bytes?": "integer or null: With --counters: attributed less counted bytes.",
    },
)


@command(
    "tracekit links",
    "tracekit links --by pair --matrix traffic.html",
    "tracekit links --topology topo.txt --nccl-log nccl.log --by link,stage",
    "tracekit links --by method --parameters 60M",
    figures={
        "matrix": "Draw the bytes between GPUs",
        "drawing": "Draw the machine, links coloured by utilisation",
        "timeline": "Draw the utilisation of links over time",
    },
    writes=[_JSON],
)
def links(
    run: RunArgument = LATEST,
    *,
    by: Annotated[list[str], by_option(KEYS)] = ["link"],  # noqa: B006 - typer copies it
    topology: TopologyOption = None,
    nccl_log: NcclLogOption = None,
    sizes: BytesOption = None,
    ranks: Annotated[
        int | None,
        typer.Option("--ranks", min=2, help="Ranks of communicators of which it is not recorded."),
    ] = None,
    parameters: Annotated[
        str | None,
        typer.Option(
            "--parameters",
            metavar="COUNT",
            help="Parameters of the model, such as 60M: compare bytes with what must be exchanged.",
        ),
    ] = None,
    counters: Annotated[
        bool,
        typer.Option("--counters", help="Hold attributed bytes against sampled counters instead."),
    ] = False,
    rules: RulesOption = None,
    iteration: IterationOption = None,
    store: StoreOption = None,
) -> "Answer":
    """Say which NVLink or PCIe link carried which bytes, how fast, and how near its peak.

    Without RUN it is the run that was ingested last. What is modelled is never added to what is
    measured; docs/links.md defines each number.
    """
    opened = open_run(run, store, rules, iteration)
    return opened.links.answer(
        split_keys(by),
        counters=counters,
        parameters=None if parameters is None else parse_count(parameters),
        topology=topology,
        nccl_log=nccl_log or (),
        sizes=parse_sizes(sizes or []),
        ranks=ranks,
    )
