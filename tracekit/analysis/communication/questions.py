"""Declarations of the commands `links`, `collectives` and `latency`: options and columns."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, Unpack

from tracekit import machine as machines
from tracekit import model
from tracekit.analysis import communication
from tracekit.errors import MissingDataError, UsageError
from tracekit.support.columns import columns, keys
from tracekit.support.files import StrPath
from tracekit.support.questions import (
    ChosenRows,
    ChosenStretch,
    NcclLogs,
    Option,
    Sizes,
    Topology,
    grouped_by,
    question,
)
from tracekit.support.schemas import STAGES, Json, by_name, record

if TYPE_CHECKING:
    from tracekit.analysis.traffic import Traffic
    from tracekit.machine import NcclLog
    from tracekit.model import Answer

COLLECTIVE_KEYS = (
    "library", "collective", "bytes", "communicator", "group", "parallelism", "part", "stage",
    "rank", "node", "iteration",
)  # fmt: skip
_LINK_KEYS = (
    "link", "pair", "nic", "hosts", "route", "method", "group", "parallelism", "stage", "rank",
    "node", "iteration", "phase",
)  # fmt: skip


class Run(model.Run, Protocol):
    """A run that can compute the `Traffic` between its GPUs."""

    def traffic(
        self,
        *,
        topology: StrPath | None = None,
        nccl_log: Sequence[StrPath] = (),
        sizes: Mapping[str, int] | None = None,
        ranks: int | None = None,
    ) -> "Traffic":
        """Return the traffic between the run's GPUs; for the arguments see `links`."""


_OPENED = ("rules", "iteration", "processes", "dask", "on_missing")
_LINKS = Json(
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
        "collectives": "integer: Number of kernels of NCCL or RCCL.",
        "collectives_of_unknown_size": "integer: How many of these are of unknown size.",
        "collectives_on_no_link": "integer: How many of these are on no link: of unknown size, or "
        "with ranks or an algorithm that are not known.",
        "root": record(
            {
                "root": "integer or null: GPU that is an end of most bytes.",
                "share": "number or null: Of how many of the bytes it is an end.",
                "pattern": "one of single, spread or null: Whether one GPU is the root, or "
                "traffic is spread; null where it is unknown.",
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
        "nvlinks?": "integer or null: NVLinks that are bonded; null for other types.",
        "src_device?": "integer or null: Source GPU.",
        "dst_device?": "integer or null: Destination GPU.",
        "host?": "text or null: Host of the NIC; null where unknown.",
        "nic?": "text or null: Name of the NIC in its system, else its number on its host; null "
        "where unknown, and, with --counters, for a GPU.",
        "direction?": "one of in, out: Whether it comes to the host or leaves it.",
        "nic_by?": "one of log, nearest or null: How the NIC is known: an NCCL log names it, or it "
        "is assumed to be the one nearest to the GPU.",
        "memory?": "one of gpu, host or null: By nic: memory that the NIC reads or writes; null "
        "without an NCCL log (assumed: that of the GPU).",
        "src_host?": "text or null: Source host.",
        "dst_host?": "text or null: Destination host.",
        "route?": "text or null: The nodes that are crossed; null where unknown.",
        "route_type?": "text or null: The slowest type of link on the route.",
        "method?": "one of p2p, staged, two_hop, nccl, collective, mpi, h2d, d2h: How bytes are "
        "moved.",
        **columns("group?", "parallelism?"),
        "stage?": f"one of {STAGES}: Why the op runs that moves them.",
        "rank?": "integer or null: Rank of the process that moves them; null where unknown.",
        **columns("node?"),
        "iteration?": "integer or null: Training step; null outside of all.",
        "phase?": "one of prefill, decode, mixed or null: Phase of a serving engine's step; null "
        "outside, or where a step's name does not say.",
        "evidence?": "one of measured, modelled, modelled between: Whether the bytes were "
        "recorded, follow from a model, or from several that bound them.",
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
        "exposed_ns?": "integer or null: By nic and hosts: busy time in which a GPU that sends, or "
        "receives by the NIC, computes nothing, ns; null where clocks differ.",
        "exposed_share?": "number or null: That over the window.",
        "device?": "integer or null: With --counters: GPU; null for a NIC.",
        "metric?": "text: With --counters: what was counted.",
        "samples?": "integer: With --counters: number of samples.",
        "window_ns?": "integer: With --counters: from the first sample to the last one, ns.",
        "sampled_share?": "number or null: With --counters: share of the time of ops in which "
        "samples were taken; null without ops.",
        "mean_percent?": "number or null: With --counters: mean, percent of the peak.",
        "max_percent?": "number or null: With --counters: largest sample, percent of the peak.",
        "counted_bytes?": "integer or null: With --counters: null where the peak is not known.",
        "measured_bytes?": "integer or null: With --counters: attributed in the same time, "
        "measured.",
        "modelled_bytes?": "integer or null: With --counters: attributed in the same time, "
        "modelled.",
        "difference_bytes?": "integer or null: With --counters: attributed less counted bytes; "
        "null for a NIC that the machine does not have.",
        "difference_share?": "number or null: With --counters: that over counted bytes.",
    },
)


@question(
    "tracekit links",
    "tracekit links --by pair --matrix traffic.html",
    "tracekit links --topology topo.txt --nccl-log nccl.log --by link,stage",
    "tracekit links --by method --parameters 60M",
    "tracekit links --by nic --nccl-log nccl.log --network network.html",
    figures={
        "matrix": "Draw the bytes between GPUs",
        "drawing": "Draw the machine, links coloured by utilisation",
        "timeline": "Draw the utilisation of links over time",
        "network": "Draw what NICs sent and received, how full they were, and what nothing hid",
    },
    writes=_LINKS,
    opened=_OPENED,
)
def links(
    run: Run,
    by: Annotated[str | Sequence[str], grouped_by(*_LINK_KEYS)] = "link",
    *,
    topology: Topology = None,
    nccl_log: NcclLogs = (),
    sizes: Sizes = None,
    ranks: Annotated[
        int | None, Option("Number of ranks of communicators, where it was not recorded.", least=2)
    ] = None,
    parameters: Annotated[
        int | None,
        Option(
            "Parameters of the model, such as 60M: compare bytes with what must be exchanged.",
            "COUNT",
            unit="count",
        ),
    ] = None,
    counters: Annotated[
        bool, Option("Compare attributed bytes with sampled counters instead.")
    ] = False,
    **_: Unpack[ChosenStretch],
) -> "Answer":
    """List the bytes and the bandwidth of each NVLink or PCIe link, and its share of the peak.

    Without RUN, the run that was ingested last is taken. Modelled traffic is never added to
    measured traffic; docs/links.md defines each column.
    """
    traffic = run.traffic(topology=topology, nccl_log=nccl_log, sizes=sizes, ranks=ranks)
    return traffic.answer(by, counters=counters, parameters=parameters)


_COLLECTIVES = Json(
    "collectives",
    meta={
        "calls": "integer: Participants of all collectives.",
        "sized": by_name(
            "Those of known size, by its source.",
            "integer",
        ),
        "matched": "integer: Those that were matched.",
        "collectives": "integer: Into how many collectives.",
        "experts?": "text: By part: how unevenly ranks compute between dispatch and combine.",
        **keys("missing", "warnings", "shares?", "verdict?", "given?", "cut?", "weak?"),
    },
    keys={
        "tables?": {
            "description": "experts: how unevenly ranks compute for them, by layer.",
            "type": "object",
        }
    },
    rows={
        "library?": "text: Library.",
        "collective?": "text: Collective operation.",
        "bytes": "integer or null: Size as nccl-tests counts it; null where unknown.",
        **columns("communicator?", "group?", "parallelism?", "communicators?", "members?"),
        "part?": "one of dispatch, combine, wait or null: What a kernel of expert parallelism "
        "does, by its name; null of all others.",
        "time_ns?": "count: By part: time of all participants, added, ns.",
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
        "bound_ns": "integer or null: Least time that the links need at their peaks, by the "
        "algorithm: a model, ns. Null where ranks, sizes or peaks are not known.",
        "bound_share": "number or null: Bound over transfer (median); null unless all ranks were "
        "seen. The rest is latency, protocol or other traffic.",
        "straggler_device": "integer or null: Device that starts last alone most often.",
        "straggler_rank": "integer or null: Its rank.",
        "straggler_share": "number or null: How often, of matched collectives.",
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


@question(
    "tracekit collectives",
    "tracekit collectives --bytes all_reduce=25MB",
    "tracekit collectives unet --dask tcp://head:8786",
    writes=_COLLECTIVES,
    opened=_OPENED,
)
def collectives(
    run: Run,
    by: Annotated[str | Sequence[str], grouped_by(*COLLECTIVE_KEYS)] = (
        "library,collective,bytes,communicator"
    ),
    *,
    nccl_log: NcclLogs = (),
    sizes: Sizes = None,
    **_: Unpack[ChosenStretch],
) -> "Answer":
    """List collectives by operation, size and communicator: latency, bandwidth, waiting, skew.

    Lists algorithm bandwidth (bytes / time) and bus bandwidth (as nccl-tests defines it). If only
    one rank of a collective was recorded, its time includes waiting, and the row is marked.
    """
    try:
        traffic = run.traffic(nccl_log=nccl_log, sizes=sizes)
        log, sent = traffic.log, traffic.sent()
    except MissingDataError:  # no machine is known
        log, sent = read_log(nccl_log), None
    return communication.collectives(run.trace, by=by, log=log, sizes=sizes, sent=sent)


def read_log(nccl_log: Sequence[StrPath]) -> "NcclLog | None":
    """Read the log files of NCCL at the given paths; None without paths."""
    return machines.read_nccl_log(*map(Path, nccl_log)) if nccl_log else None


_LATENCY = Json(
    "latency",
    meta={
        "operations?": "integer: Operations.",
        "unmatched?": "integer: Collectives with a single known participant.",
        "unsized?": "integer: Operations of unknown size.",
        "not_blocking?": "integer: Calls of MPI that do not block, left out.",
        **keys("missing?", "warnings?"),
        "measure?": "text: Which duration the statistics describe.",
        "buckets?": "one of power2, exact, class: How sizes are grouped.",
        "queries?": "integer: Pointer queries of the run.",
        "inside?": "integer: Those inside MPI calls.",
        **keys("verdicts?", "simulated?"),
    },
    rows={
        "library?": "text: mpi or nccl.",
        "operation?": "text: Collective or message.",
        "size_bytes?": "integer or null: Size, or the power of two below it.",
        "class?": "text or null: small, medium, large or mixed.",
        "count?": "integer: Operations.",
        "participants?": "integer or null: How many were seen (median).",
        **columns("min_ns?", "p50_ns?"),
        "mean_ns?": "integer or null: Mean, ns.",
        "p95_ns?": "integer or null: 95th percentile, ns.",
        **columns("max_ns?"),
        "span_ns?": "integer or null: Median span, ns.",
        "skew_ns?": "integer or null: Median skew, ns.",
        "active_ns?": "integer or null: Median of last end less last start, ns.",
        "algorithm_bandwidth_gb_s?": "number or null: Bytes over time, GB/s.",
        "bus_bandwidth_gb_s?": "number or null: As nccl-tests defines it, GB/s.",
        "base_library?": "text or null: Library of the base run.",
        "new_library?": "text or null: Library of the other.",
        "base_count?": "integer or null: Operations of the base run.",
        "new_count?": "integer or null: Operations of the other.",
        "base_ns?": "integer or null: Latency of the base run, ns.",
        "new_ns?": "integer or null: Latency of the other, ns.",
        "speedup?": "number or null: Speedup.",
        **columns("reduction_percent?", "calls?"),
        "bytes?": "integer or null: Bytes.",
        **columns("share?"),
        "function?": "text: Function of MPI.",
        "mpi_ns?": "integer or null: Time of MPI calls, ns.",
        "queries?": "integer or null: Pointer queries within them.",
        "query_ns?": "integer or null: Their time, ns.",
        "queries_per_call?": "number or null: Queries over calls.",
        "calls_with_queries?": "integer or null: Calls that made any.",
        "staged?": "integer or null: Calls that went through host memory.",
        "staged_unknown?": "integer or null: Those where it is unknown.",
        "gpu_reduce?": "integer or null: Those with a kernel that reduces.",
        "d2h_bytes?": "integer or null: Bytes copied to host memory.",
        "h2d_bytes?": "integer or null: Bytes copied from it.",
        "reduce_kernels?": "integer or null: Kernels that reduced.",
    },
)


@question(
    "tracekit latency --measure span",
    "tracekit latency after --against before --figure latency.html",
    figures={"figure": "Draw latency, or messages, by size"},
    opened=(),
    writes=_LATENCY,
)
def latency(
    run: Run,
    against: Annotated[
        Run | None,
        Option("List how much faster RUN is than this run, size by size.", "RUN", unit="run"),
    ] = None,
    *,
    what: Annotated[
        Literal["latency", "histogram", "pointer-queries", "staging"],
        Option(
            "Latency by size; numbers of messages by size; time that MPI spends finding where "
            "memory is; collectives that went through host memory."
        ),
    ] = "latency",
    buckets: Annotated[
        Literal["power2", "exact", "class"], Option("How to group sizes.")
    ] = "power2",
    measure: Annotated[
        Literal["osu_mean", "span", "active"], Option("Which duration of a collective to describe.")
    ] = "osu_mean",
    library: Annotated[
        Literal["mpi", "nccl"] | None, Option("Operations of this library alone.")
    ] = None,
    nccl_log: NcclLogs = (),
    sizes: Sizes = None,
    **_: Unpack[ChosenRows],
) -> "Answer":
    """List the latency of collectives and messages by size, of MPI and NCCL.

    docs/studies.md defines the measures.
    """
    if against is not None and what != "latency":
        raise UsageError("--against compares latencies", "leave out --what, or --against")
    calls: dict[str, Any] = {"library": library, "log": read_log(nccl_log), "sizes": sizes}
    match what:
        case "histogram":
            return communication.message_histogram(run.trace, **calls)
        case "pointer-queries":
            return communication.pointer_queries(run.trace)
        case "staging":
            return communication.staging(run.trace)
    answer, *base = (
        communication.latency(each.trace, buckets=buckets, measure=measure, **calls)
        for each in (run, against)
        if each is not None
    )
    if against is None:
        return replace(answer, tables={run.name: answer.rows})
    if against.id == run.id:
        raise UsageError(f"{run.name} and {against.name} are the same run", "give two runs")
    rows = communication.latency_speedup(base[0].rows, answer.rows)
    return replace(answer, rows=rows, tables={against.name: base[0].rows, run.name: answer.rows})
