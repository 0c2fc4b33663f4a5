"""Options and columns of the analyses `stalls` and `bubbles` of several runs."""

from os import PathLike
from typing import TYPE_CHECKING, Annotated, Unpack

from tracekit.errors import UsageError
from tracekit.model import Run, Runs
from tracekit.support.columns import columns, keys
from tracekit.support.questions import AutoSkip, ChosenRuns, Option, question
from tracekit.support.schemas import Json, record

if TYPE_CHECKING:
    from tracekit.model import Answer


Time = str | PathLike[str] | float | Run | None
"""A run, or a time that was measured elsewhere, ns."""


def _time(meaning: str) -> Option:
    panel = "Three runs, or times such as 170s"
    return Option(meaning, "RUN", unit="run or ns", typed=str | None, panel=panel)


_STALLS = Json(
    "stalls",
    run="text or null: Name of the run; null where several are listed, or none.",
    of_rows="The result; its columns depend on the question.",
    meta={
        "sum_over?": "text: What times are added over.",
        "outside_steps?": "text: Time outside of steps, where that is over a hundredth of theirs.",
        **keys("per?", "warnings?", "notes?", "share?", "simulated?"),
    },
    rows={
        **columns("run?", "process?"),
        "device?": "integer or null: Index of the GPU in the run.",
        "devices?": "integer: Number of devices.",
        "iterations?": "integer or null: Number of steps; 0 where none is known.",
        "window_ns?": "time or null: Length of the steps, or of the whole run without any, ns.",
        "kernel_ns?": "time or null: Time of the window in which a kernel runs, ns; null where no "
        "kernel was recorded.",
        "idle_ns?": "time or null: Time of the window in which nothing runs, ns.",
        "wait_ns?": "time or null: Idle time with the cause input (see `idle`), ns; null where "
        "no launch was recorded, or nothing tells it from other waits.",
        "input_ns?": "time or null: Time in which input is copied (to the GPU, outside of `BP` "
        "and `WU`) and no kernel and no copy between GPUs runs, ns; null as kernel_ns.",
        "data_stall_ns?": "time or null: wait_ns + input_ns.",
        "other_idle_ns?": "time or null: idle_ns - wait_ns: idle time of other causes.",
        "outside_steps_ns?": "integer: Time from the GPU's first op to its last one that lies in "
        "no step that counts, ns; it is in no other column.",
        "utilisation?": "number or null: kernel_ns / window_ns.",
        "data_stall_share?": "number or null: data_stall_ns / window_ns.",
        "rests_on?": "text or null: Recorded evidence of wait_ns; null where nothing is.",
        **columns("speedup?"),
        "part?": "one of preparation, fetch, data stall: What input costs.",
        "time_ns?": "number: Time of this part, ns; below 0 where runs are the other way round.",
        "share?": "number: time_ns over the cold run's time.",
    },
)


@question(
    "tracekit stalls --skip 1",
    "tracekit stalls before after",
    "tracekit stalls --preloaded run-a --cached run-b --cold run-c",
    figures={"figure": "Draw what GPUs do and wait for"},
    writes=_STALLS,
    is_of_latest=True,
)
def stalls(
    runs: Runs,
    *,
    preloaded: Annotated[
        Time, _time("Run, or its time, with input that is made up or prepared in memory.")
    ] = None,
    cached: Annotated[
        Time, _time("Run, or its time, that prepares input from a cache in memory.")
    ] = None,
    cold: Annotated[Time, _time("Run, or its time, that reads input from disk or network.")] = None,
    skip: AutoSkip = "auto",
    **_: Unpack[ChosenRuns],
) -> "Answer":
    """List how long GPUs wait for input data, and how much of the time kernels run.

    Of several runs, the first is the baseline of `speedup`.
    """
    from tracekit.analysis.studies._stalls import input_cost, stalls_answer

    three = [each for each in (preloaded, cached, cold) if each is not None]
    if not three:
        return stalls_answer([*runs], skip)
    if len(three) < 3 or runs.is_chosen:  # noqa: PLR2004
        raise UsageError("the cost of input needs three runs", "give --preloaded, --cached, --cold")
    return input_cost(runs, three, skip)


_BUBBLES = Json(
    "bubbles",
    run="text or null: Name of the run; null where several are listed, or none.",
    of_rows="The result; its columns depend on the question.",
    meta={
        "sum_over?": "text: What times are added over.",
        **keys("per?", "warnings?", "notes?"),
        "pipeline?": record(
            {
                "stages": "integer: Number of stages.",
                "micro_batches": "integer or null: Micro-batches of a step.",
                "schedule": "text or null: Schedule of the pipeline.",
                "bubble_share": "number: Bubbles over the time of all stages.",
                "bubble_ideal_share": "number: Bubbles over the work of all stages.",
                "theory_share": "number or null: (p - 1) / (m + p - 1) of p equal stages and m "
                "micro-batches.",
                "theory_ideal_share": "number or null: (p - 1) / m.",
            },
            description="What the pipeline loses, and what theory predicts.",
        ),
        "basis?": "text: That times are those of ranges on the host.",
        "modelled?": "text: What theory takes for granted.",
        **keys("simulated?"),
    },
    rows={
        **columns("run?"),
        "pipeline_stage?": "integer: Stage of the pipeline, from 0.",
        "stages?": "integer: Number of stages.",
        **columns("process?"),
        "device?": "integer or null: Number of the device; null where there is no GPU work.",
        **columns("iteration?"),
        "iterations?": "integer: Number of steps.",
        "micro_batches?": "integer or null: Micro-batches of a step.",
        "schedule?": "text or null: Schedule of the pipeline.",
        "basis?": "one of gpu, host: What was timed.",
        "evidence?": {"description": "modelled: nothing was measured.", "const": "modelled"},
        "window_ns?": "time: From where the first stage begins to work to where the last one "
        "ends, ns.",
        "busy_ns?": "time: Time of the window in which the stage works, ns.",
        "bubble_ns?": "time: window_ns - busy_ns.",
        "dependency_ns?": "time: Time of the bubble in which the stage before or after works, ns.",
        "communication_ns?": "time: Time of the bubble in which the stage sends or receives, ns.",
        "bubble_share?": "number: Bubbles over the time, of the row's stage or of all stages.",
        "bubble_ideal_share?": "number: Bubbles over the work, of all stages.",
        "theory_share?": "number or null: bubble_share in theory, (p - 1) / (m + p - 1) of p equal "
        "stages and m micro-batches.",
        "theory_ideal_share?": "number or null: bubble_ideal_share in theory, (p - 1) / m.",
        **columns("speedup?"),
    },
)


@question(
    "tracekit bubbles --per-step",
    "tracekit bubbles before after",
    "tracekit bubbles --stages 4 --micro-batches 8",
    figures={"figure": "Draw a step of the pipeline, or of several runs what they lose"},
    writes=_BUBBLES,
    is_of_latest=True,
)
def bubbles(
    runs: Runs,
    *,
    stages: Annotated[
        int | None,
        Option("List the theory of a pipeline with N stages; needs no run.", least=1),
    ] = None,
    micro_batches: Annotated[
        int | None,
        Option(
            "Micro-batches of a step. Default: the label, or as forward ranges are numbered.",
            least=1,
        ),
    ] = None,
    schedule: Annotated[
        str | None, Option("gpipe, 1f1b, or another one. Default: the label.")
    ] = None,
    waiting: Annotated[
        str | None,
        Option(
            "Ranges on the host in which a stage sends or waits. Default: send, receive.", "REGEX"
        ),
    ] = None,
    per_step: Annotated[bool, Option("List steps in place of stages.")] = False,
    skip: AutoSkip = "auto",
    **_: Unpack[ChosenRuns],
) -> "Answer":
    """List how much time each stage of a pipeline loses in bubbles, and the theoretical share.

    Of several runs, the first is the baseline of `speedup`.
    """
    from tracekit.analysis.studies._stalls import bubble_model, bubbles_answer

    if stages is not None:
        if runs.is_chosen or micro_batches is None:
            raise UsageError(
                "the theory needs the numbers of stages and of micro-batches",
                "give --micro-batches, no run",
            )
        return bubble_model(stages, micro_batches, schedule)
    return bubbles_answer(
        [*runs], micro_batches=micro_batches, schedule=schedule, waiting=waiting,
        per_step=per_step, skip=skip,
    )  # fmt: skip
