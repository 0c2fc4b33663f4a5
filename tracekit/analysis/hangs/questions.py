"""Declaration of the command `hang`: its options and columns."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Unpack

from tracekit.errors import UsageError
from tracekit.support.columns import keys
from tracekit.support.files import StrPath
from tracekit.support.questions import ChosenRows, OfRanks, Option, question
from tracekit.support.schemas import NO_RUN, STAGES, Json

if TYPE_CHECKING:
    from tracekit.model import Answer

FOUND, UNDECIDED = 1, 3
"""Exit codes: a cause is named; ranks wait for an unknown reason."""

_HANG = Json(
    "hang",
    run=NO_RUN,
    meta={
        "ranks": "count: Number of ranks that left a dump, or were recorded.",
        "entries": "count: Number of their entries, or calls that were compared.",
        "groups": "count: Number of groups of ranks.",
        "without_dump?": "integers: Ranks that groups list and that left no dump.",
        "lost?": "count: Number of dumps whose ring has lost the first entries.",
        "timeline?": "text: How many collectives were found in the run, and by what.",
        **keys("warnings"),
    },
    rows={
        "role": "one of cause, consequence, unknown: Whether the ranks of this row delay the job, "
        "or wait in another row; unknown without evidence.",
        "problem": "one of missing, deadlock, type, size, dtype, root, order, unstarted, "
        "unfinished, no_dump, unresponsive, dead, error, behind, ended, partial, unended: What is "
        "wrong.",
        "ranks": "integers: Who is missing, or differs.",
        "waiting": "integers: Who joined and has not completed it.",
        "group": "text or null: Name of the group of ranks, or hash of NCCL's communicator.",
        "description": "text or null: Description of the group by PyTorch.",
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
        "silent_ns?": "count or null: How long nothing was recorded at the end, of a run without "
        "dumps whose recorders may have stopped, ns.",
    },
    keys={
        "tables?": {
            "description": "ranks: the last collective of each rank, or what a run recorded last. "
            "collectives: those of the run, with the ranks known only from dumps.",
            "type": "object",
        }
    },
)


def _exit_code(answer: "Answer") -> int:
    roles = set(answer.rows["role"])
    if "cause" in roles:
        return FOUND
    return UNDECIDED if roles else 0


@question(
    "tracekit hang dumps/",
    "tracekit hang nccl_trace_rank_*",
    "tracekit hang dumps/ --run rank0",
    "tracekit hang --run job",
    writes=_HANG,
    files=Annotated[
        Sequence[StrPath],
        Option(
            "Dumps of PyTorch's flight recorder, answers of `ncclras -f json`, or folders of "
            "either; none for a run of reports that were cut while the job hung.",
            "[DUMP...]",
            typed=list[Path] | None,
        ),
    ],
    judge=_exit_code,
)
def hang(dumps: Any = (), *, run: OfRanks = None, **_: Unpack[ChosenRows]) -> "Answer":
    """Explain why a job hangs: which rank is missing at which collective.

    Dumps that are pickles are read without running code in them. The exit code is 0 if nothing is
    wrong, 1 if a cause is found, and 3 if ranks wait and the cause is unknown (docs/hang.md).
    """
    from tracekit.analysis.hangs import find_hang, find_hang_in_run

    trace = None if run is None else run.trace
    if not dumps:
        if trace is None:
            raise UsageError("give dumps or a run to examine", "name dumps, --run, or both")
        return find_hang_in_run(trace)
    return find_hang(dumps.entries, dumps.ranks, dumps.peers, dumps.events, dumps.warnings, trace)
