"""Declaration of the command `idle`: its options and columns."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Unpack

from tracekit.analysis.facts import chosen_keys
from tracekit.support.columns import columns, keys
from tracekit.support.questions import AutoSkip, ChosenStretch, Option, grouped_by, question
from tracekit.support.schemas import STAGES, Json, either

if TYPE_CHECKING:
    from tracekit.model import Answer, Trace


_KEYS = (
    "cause", "stage", "communicator", "group", "parallelism", "iteration", "phase", "device",
    "rank", "range",
)  # fmt: skip

_WRITES = Json(
    "idle",
    meta={
        "window_ns": "count: Length of the windows, added over devices.",
        "idle_ns": "count: Time of the windows in which nothing runs, added over devices.",
        "devices": "count: Number of devices.",
        "iterations": "count: Number of iterations that are not skipped.",
        **keys("skip", "cold?", "numbered_apart?"),
        "collective_wait_ns?": "count or null: For how long kernels of collectives waited for "
        "their slowest participant, which is busy time; null where it is not known; absent "
        "without collectives.",
        "collective_wait_unknown?": "text: Why collective_wait_ns is null.",
        "step_outside_window_ns?": "amount: Part of step_ns before a GPU's first op or "
        "after its last, outside of the window; absent where it is less than a twentieth.",
        "missing?": "texts: What to record to know more, where something is not explained.",
        "sum_over?": "text: What times are summed over, such as 4 GPUs.",
        **keys("shares?", "warnings?"),
    },
    rows={
        "cause?": "one of input, between_steps, host_delay, allocation, loading, compiling, "
        "off_cpu, waiting_call, launch_latency, behind_weight_update, behind_collective, "
        "behind_stage, profiler, unexplained: Why nothing runs; of a gap, of most of it.",
        "stage?": f"one of {STAGES} or null: Stage of the op that comes late; null where none "
        "does.",
        "iteration?": "integer or null: Number of the step; null outside of all.",
        "phase?": "one of prefill, decode, mixed or null: Phase of a serving engine's steps; null "
        "outside, or where a step's name does not say.",
        **columns("device?", "rank?"),
        **columns("communicator?", "group?", "parallelism?", "communicators?", "members?"),
        "range?": "text or null: Innermost range in which the host was, without the numbers at "
        "its end.",
        "rests_on?": "text or null: Recorded evidence of the cause, that of most time first; null "
        "where nothing is.",
        "gaps?": "count: Number of gaps that have some of the row's time.",
        "idle_ns": "count: Time in which nothing runs, added over devices.",
        "step_ns?": "amount or null: Mean per step and device, by phase of its steps; null "
        "without steps and outside of all.",
        "share": "share or null: idle_ns over that of all rows.",
        "window_share?": "share or null: idle_ns over the window.",
        "place?": "positive: Of the longest gaps: 1 is the longest.",
        "start_ns?": "integer: When the gap begins.",
        "evidence?": "text: Each cause of the gap with its time and evidence.",
        "before?": "text or null: Name of the op before the gap.",
        "after?": "text or null: Name of the op that ends the gap; null where none does.",
    },
    row_rules={
        "dependentRequired": {
            "gaps": ["window_share"],
            "place": [
                "device",
                "start_ns",
                "evidence",
                "before",
                "after",
                "stage",
                "range",
                "cause",
                "iteration",
            ],
        },
        "oneOf": either("gaps", "place"),
    },
)


@question(
    "tracekit idle",
    "tracekit idle mnist --by device,cause",
    "tracekit idle mnist --longest 10",
    "tracekit idle vllm --by phase,cause",
    "tracekit idle unet --dask tcp://head:8786",
    writes=_WRITES,
    opened=("rules", "iteration", "processes", "dask", "on_missing"),
    figures={"figure": "Draw the causes of each GPU's idle time"},
)
def idle(
    trace: "Trace",
    by: Annotated[
        str | Sequence[str],
        grouped_by(*_KEYS),
    ] = "cause",
    *,
    longest: Annotated[
        int | None, Option("List the N longest gaps, with their evidence.", "N", least=1)
    ] = None,
    skip: AutoSkip = "auto",
    **_: Unpack[ChosenStretch],
) -> "Answer":
    """Explain why and how long nothing runs on the GPUs: every gap by its cause.

    docs/idle.md defines the causes and their evidence.
    """
    from tracekit.analysis.idle_time._idle import idle_by

    return idle_by(trace, chosen_keys(by, _KEYS, "idle time"), skip=skip, longest=longest)
