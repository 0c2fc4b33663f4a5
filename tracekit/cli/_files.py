"""Commands about files that are no traces: `hang`, `nccl-inspector` and `straggler-cost`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracekit import runs as library
from tracekit.cli._command import Judged, command
from tracekit.cli._options import open_run
from tracekit.support.columns import keys
from tracekit.support.questions import Folder, Option
from tracekit.support.schemas import NO_RUN, STAGES, Json

if TYPE_CHECKING:
    from tracekit.model import Answer

FOUND, UNDECIDED = 1, 3
"""Exit codes: a cause is named; ranks wait for an unknown reason."""

_HANG = Json(
    "hang",
    run=NO_RUN,
    meta={
        "ranks": "count: Number of ranks that left a dump.",
        "entries": "count: Number of their entries.",
        "groups": "count: Number of groups of ranks.",
        "without_dump": "integers: Ranks that groups list and that left no dump.",
        "lost": "count: Number of dumps whose ring no longer held the first entries.",
        "timeline?": "text: How many collectives were found in the run, and by what.",
        **keys("warnings"),
    },
    rows={
        "role": "one of cause, consequence, unknown: Whether the ranks of this row hold up the "
        "job, or wait in another row; unknown where nothing tells.",
        "problem": "one of missing, deadlock, type, size, dtype, order, unstarted, unfinished, "
        "no_dump, unresponsive, dead, error, behind: What is wrong.",
        "ranks": "integers: Who is missing, or differs.",
        "waiting": "integers: Who joined and has not completed it.",
        "group": "text or null: Name of the group of ranks, or hash of NCCL's communicator.",
        "description": "text or null: What PyTorch says of the group.",
        "members": "count or null: Number of ranks of the group.",
        "collective": "text or null: Such as all_reduce.",
        "sequence": "count or null: Its number in the group, or which message of its pair.",
        "usual": "text or null: What more than half of the ranks gave.",
        "other": "text or null: What `ranks` gave.",
        "place": "text or null: Where in the program the first of `waiting` is.",
        "last_place": "text or null: Where the first of `ranks` last enqueued anything.",
        "says": "text: All of it as a sentence.",
        "stage?": f"one of {STAGES} or null: Why it runs, by the run; null where that is unknown.",
        "iteration?": "integer or null: Step of the run; null where that is unknown.",
    },
    keys={
        "tables?": {
            "description": "ranks: the last collective of each rank. collectives: those of the "
            "run, with the ranks that dumps alone hold.",
            "type": "object",
        }
    },
)


@command(
    "tracekit hang dumps/",
    "tracekit hang nccl_trace_rank_*",
    "tracekit hang dumps/ --run rank0",
    writes=[_HANG],
)
def hang(
    dumps: Annotated[
        list[Path],
        typer.Argument(
            metavar="DUMP...",
            help="Dumps of PyTorch's flight recorder, answers of `ncclras -f json`, or folders of "
            "either.",
        ),
    ],
    *,
    run: Annotated[
        str | None, Option("A run of some of these ranks, to tell stages and steps.", "RUN")
    ] = None,
    store: Folder = None,
) -> "Judged":
    """Say why a job hangs: which rank is missing at which collective.

    Pickles are read without running what they hold. Exit code 0: nothing is wrong; 1: a cause is
    named; 3: ranks wait, and nothing tells for what. docs/hang.md says how it is found.
    """
    opened = None if run is None else open_run(run, store)
    answer = library.hang.answer(dumps, run=opened)
    return Judged(answer, _exit_code(answer))


def _exit_code(answer: "Answer") -> int:
    roles = set(answer.rows["role"])
    if "cause" in roles:
        return FOUND
    return UNDECIDED if roles else 0


_INSPECTOR = Json(
    "nccl-inspector",
    run=NO_RUN,
    meta={
        "records": "count: Number of records, messages included.",
        "collectives": "count: Number of collectives.",
        "compared": "count: Of these, those of which it is known who came last.",
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
        "compared": "count: Calls of which it is known who came last: all ranks were recorded, and "
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
        "algorithm?": "text or null: Such as ring, as NCCL says it.",
        "protocol?": "text or null: Such as simple, as NCCL says it.",
        "missing?": "count: Sequence numbers that the rank has no record of.",
        "elsewhere?": "count: Of these, those that other ranks recorded.",
        "dropped?": "count or null: Records that its ring overwrote, by NCCL's count; null before "
        "format 4.2.",
    },
)


@command(
    "tracekit nccl-inspector nccl-inspector-1234/",
    "tracekit nccl-inspector *-pid*.log --by rank",
    "tracekit nccl-inspector *-pid*.log --run rank0 --by iteration",
    name="nccl-inspector",
    writes=[_INSPECTOR],
)
def nccl_inspector(
    logs: Annotated[
        list[Path],
        typer.Argument(metavar="LOG...", help="Logs of NCCL's inspector, or folders of them."),
    ],
    *,
    by: Annotated[
        str, Option("size, collective or rank; with --run also stage or iteration.", "KEY")
    ] = "size",
    run: Annotated[
        str | None, Option("A run of some of these ranks, to tell stages and steps.", "RUN")
    ] = None,
    store: Folder = None,
) -> "Answer":
    """Say how fast collectives are, and who waits for whom, by the logs of NCCL's inspector.

    No timeline is needed: give the logs of all ranks. docs/links.md says what is known.
    """
    opened = None if run is None else open_run(run, store)
    return library.nccl_inspector.answer(logs, by, run=opened)


_STRAGGLER_COST = Json(
    "straggler-cost",
    run=NO_RUN,
    meta={
        "steps": "count: Number of steps.",
        "workers": "count: Number of workers: data-parallel ranks times stages.",
        "recorded_ns": "amount: Mean step, from its first op to the end of its last one.",
        "replayed_ns": "amount: The same without delays between ops.",
        "ideal_ns": "amount: The same where all computations of a kind are equally long, and all "
        "communications of a kind.",
        "slowdown": "amount or null: replayed_ns over ideal_ns.",
        "sequence_correlation": "number or null: Of lengths of forward and backward passes of one "
        "micro-batch.",
        "causes": "texts: Causes of unequal ops, or unknown.",
        **keys("warnings"),
    },
    rows={
        "rank?": "integer: Data-parallel rank.",
        "pipeline_stage?": "integer: Stage of the pipeline, from 0.",
        "kind?": "text: Kind of work.",
        "ops": "count: Number of ops.",
        "alone_ns": "amount: Mean step where these ops alone are as long as they were.",
        "slowdown": "amount: alone_ns over the ideal step.",
        "without_ns": "amount: Mean step where these ops alone are ideal.",
        "win_ns": "number: How much shorter than the replayed step that is.",
        "win_share": "number or null: win_ns over all that stragglers cost.",
    },
)


@command(
    "tracekit straggler-cost timeline.json.gz",
    "tracekit straggler-cost timeline.json.gz --by worker --top 10",
    "tracekit straggler-cost timeline.json.gz --figure workers.html",
    name="straggler-cost",
    figures={"figure": "Draw how much longer each worker computes than its ideal time, by step"},
    writes=[_STRAGGLER_COST],
)
def straggler_cost(
    timeline: Annotated[
        Path, typer.Argument(metavar="TIMELINE", help="Timeline of a pipeline-parallel job.")
    ],
    *,
    by: Annotated[str, Option("rank, stage, worker or kind.", "KEY")] = "stage",
) -> "Answer":
    """Say what stragglers cost a job, by replaying its steps with and without them.

    docs/stragglers.md says what is replayed, and where such timelines come from.
    """
    return library.straggler_cost.answer(timeline, by)
