"""Options and columns of the analysis `stragglers`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Unpack

from tracekit.analysis.facts import chosen_keys
from tracekit.support.columns import columns, keys
from tracekit.support.questions import ChosenRows, grouped_by, question
from tracekit.support.schemas import Json, either

if TYPE_CHECKING:
    from tracekit.model import Answer, Trace


_KEYS = ("rank", "iteration", "communicator", "group", "parallelism")

_WRITES = Json(
    "stragglers",
    meta={
        "steps": "count: Number of usual steps; 0 where none is known.",
        "ranks": "positive: Number of processes, each on a GPU.",
        "collectives": "count: Number of collectives with several recorded participants.",
        **keys("per"),
        "missing?": "texts: What is not known.",
        **keys("warnings?"),
    },
    rows={
        **columns("communicator?", "group?", "parallelism?", "communicators?", "members?"),
        "rank?": "integer or null: Rank of the process in its job; null where unknown.",
        "device?": "count: Index of the GPU in the run.",
        "last": "count or null: In how many collectives it, or the straggler, came last.",
        "waited_ns": "amount or null: How long it waited for others, per step; of a group the mean "
        "of its ranks.",
        "local_ns?": "number or null: Length of a step less waited_ns.",
        "ranks?": "positive: Ranks of the row.",
        "collectives?": "count: Collectives with others that it took part in; of a group, all.",
        "last_share?": "amount or null: last / collectives; null without any.",
        "chance_share?": "share or null: last_share expected by chance: mean of 1 / number of "
        "participants; null without any.",
        "caused_ns?": "amount or null: How long the others waited for it, or the straggler, per "
        "step and other rank.",
        "straggler_rank?": "integer or null: The rank that the others wait longest for; null where "
        "unknown, or nobody waits.",
        "straggler_device?": "integer or null: Its GPU.",
        "straggler_share?": "share or null: Share of its collectives in which it came last.",
        "excess_in?": "text or null: Stage, or cause of idle time, in which the rank exceeds the "
        "median rank most.",
        "excess_ns?": "amount or null: Excess over the median rank in it, per step.",
        "late_ns?": "amount or null: Median time by which it begins a collective after the first "
        "participant; null without one clock.",
        **columns("iteration?"),
        "step_ns?": "amount or null: Length of the step.",
        "excess_percent?": "number or null: local_ns over the median of all ranks in this step, "
        "less 100 %.",
    },
    row_rules={
        "oneOf": either(
            "excess_in excess_ns",
            "iteration step_ns excess_percent",
            "communicators members",
        )
    },
)


@question(
    "tracekit stragglers",
    "tracekit stragglers --by iteration",
    "tracekit stragglers --by parallelism,rank",
    "tracekit stragglers --figure ranks.html",
    "tracekit stragglers unet --dask tcp://head:8786",
    writes=_WRITES,
    opened=("rules", "iteration", "processes", "dask", "on_missing"),
    figures={"figure": "Draw the length of each step of each rank, without its waiting"},
)
def stragglers(
    trace: "Trace",
    by: Annotated[str | Sequence[str], grouped_by(*_KEYS)] = "rank",
    **_: Unpack[ChosenRows],
) -> "Answer":
    """Find which ranks arrive late at collectives, in which stage they lose time, and the cost.

    docs/stragglers.md defines the columns.
    """
    from tracekit.analysis.diagnosis._stragglers import stragglers

    return stragglers(trace, chosen_keys(by, _KEYS, "stragglers"))
