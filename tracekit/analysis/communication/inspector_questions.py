"""Declaration of the command `nccl_inspector`: its options and columns."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Unpack

from tracekit.support.columns import keys
from tracekit.support.files import StrPath
from tracekit.support.questions import ChosenRows, OfRanks, Option, question
from tracekit.support.schemas import NO_RUN, STAGES, Json

if TYPE_CHECKING:
    from tracekit.model import Answer

_INSPECTOR = Json(
    "nccl-inspector",
    run=NO_RUN,
    meta={
        "records": "count: Number of records, messages included.",
        "collectives": "count: Number of collectives.",
        "compared": "count: Of these, those whose last rank to enter is known.",
        "communicators": "count: Number of communicators.",
        "timeline?": "text: How many collectives were found in the run, and by what.",
        **keys("missing", "warnings"),
    },
    rows={
        "stage?": f"one of {STAGES} or null: Why it runs, by the run; null where that is unknown.",
        "iteration?": "integer or null: Step of the run; null where that is unknown.",
        "collective?": "text: Collective, or send and recv.",
        "message_bytes?": "count: Bytes per rank; a power of two where sizes are many.",
        "communicator": "text: Hash of the communicator.",
        "group": "text or null: What the program calls the communicator.",
        "rank?": "count: Rank in the communicator.",
        "host?": "text or null: Host of the process.",
        "pid?": "integer or null: Id of the process on its host.",
        "ranks": "integer or null: Number of ranks of the communicator.",
        "records?": "count: Records of the rank, without messages.",
        "count?": "count: Number of calls.",
        "compared": "count: Calls whose last rank to enter is known: all ranks were recorded, and "
        "wait for each other.",
        "last?": "count: At how many of these the rank came last, alone.",
        "last_share?": "share or null: Their share.",
        "caused_ns?": "count or null: How long each other rank waited for it, on average, in all "
        "of these, ns.",
        "waited_ns?": "count or null: How long it waited itself, ns.",
        "duration_p50_ns": "count: Time of the longest participant; by rank its own, ns.",
        "duration_p5_ns?": "count: Time of the longest participant, ns.",
        "duration_p95_ns?": "count: Time of the longest participant, ns.",
        "duration_max_ns?": "count: Time of the longest participant, ns.",
        "basis?": "text: What the duration is.",
        "bytes?": "integer or null: Traffic by NCCL's definition; null where it defines none.",
        "algorithm_bandwidth_gb_s?": "number or null: Bytes over median duration, GB/s; GB is 10^9 "
        "bytes.",
        "bus_bandwidth_gb_s?": "number or null: The same times NCCL's factor, GB/s.",
        "transfer_ns?": "count or null: Median of the shortest participant's time, ns.",
        "transfer_bus_bandwidth_gb_s?": "number or null: Bus bandwidth over that time, GB/s.",
        "wait_ns?": "count or null: Median of own time less the shortest one's, ns.",
        "skew_ns?": "count or null: Median of last start less first start, ns; null without times "
        "on one host.",
        "straggler_rank?": "integer or null: Rank that comes last alone most often.",
        "straggler_share?": "share or null: How often.",
        "algorithm?": "text or null: Such as ring, as NCCL logs it.",
        "protocol?": "text or null: Such as simple, as NCCL logs it.",
        "missing?": "count: Sequence numbers that the rank has no record of.",
        "elsewhere?": "count: Of these, those that other ranks recorded.",
        "dropped?": "count or null: Records that its ring overwrote, by NCCL's count; null before "
        "format 4.2.",
    },
)


@question(
    "tracekit nccl-inspector nccl-inspector-1234/",
    "tracekit nccl-inspector *-pid*.log --by rank",
    "tracekit nccl-inspector *-pid*.log --run rank0 --by iteration",
    writes=_INSPECTOR,
    files=Annotated[
        Sequence[StrPath],
        Option("Logs of NCCL's inspector, or folders of them.", "LOG...", typed=list[Path]),
    ],
)
def nccl_inspector(
    logs: Any,
    by: Annotated[
        str, Option("size, collective or rank; with --run also stage or iteration.", "KEY")
    ] = "size",
    *,
    run: OfRanks = None,
    **_: Unpack[ChosenRows],
) -> "Answer":
    """List how fast collectives are, and who waits for whom, by the logs of NCCL's inspector.

    No timeline is needed: give the logs of all ranks. docs/links.md explains the columns.
    """
    from tracekit.analysis.communication import nccl_inspector

    trace = None if run is None else run.trace
    return nccl_inspector(logs.records, logs.dropped, by, logs.warnings, trace)
