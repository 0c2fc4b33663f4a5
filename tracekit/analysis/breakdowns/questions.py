"""Declaration of the command `breakdown`: its options and columns."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Unpack

from tracekit.analysis.facts import KEYS, parse_keys
from tracekit.support.columns import columns, keys
from tracekit.support.questions import AutoSkip, ChosenStretch, Option, grouped_by, question
from tracekit.support.schemas import STAGE_SOURCES, Json, by_name, either, records

if TYPE_CHECKING:
    from tracekit.model import Answer, Trace


_WRITES = Json(
    "breakdown",
    meta={
        "window_ns": "count: Length of the windows, added over devices, or over processes where "
        "there is a basis.",
        "idle_ns": "count: Time of the windows in which nothing runs, added over devices, or over "
        "processes where there is a basis.",
        "wu_residual_ns": "count or null: Time of the windows in which neither FP nor BP is busy, "
        "added over devices, or over processes where there is a basis. Null where the two are not "
        "known by ranges, threads or structure.",
        "wu_residual_other_ns?": "count: Part of it in which nothing runs, or input or evaluation "
        "does (IO, ME), ns.",
        "wu_residual_unknown?": "text: Why wu_residual_ns is null.",
        "devices?": "count: Number of devices that ran an op in the window.",
        "iterations": "count: Number of iterations in the window.",
        **keys("skip", "cold?", "numbered_apart?"),
        "launched?": "share or null: Share of the ops whose launching call is known.",
        "coverage": by_name(
            "Share of GPU busy time by source of the stage. Sources may be busy at once, so "
            "shares may add to more than 1.",
            "share",
            names=STAGE_SOURCES,
        ),
        "recomputed?": records(
            "By stage: of BP, what runs a part of the forward pass again, as far as known.",
            {
                "device?": "count: By device: the GPU.",
                "ops": "count: Number of ops.",
                "busy_ns": "count: Length of the union of their intervals.",
            },
        ),
        **keys("verdict", "given?", "cut?", "weak?", "share", "warnings?"),
        "outlier_ranks?": records(
            "By rank: ranks that are busy for much longer or shorter than most.",
            {
                "rank": "integer: The rank.",
                "ratio": "number: Its busy time over the median of all ranks.",
            },
        ),
        "basis?": "text: Where the run has no GPU work: what is measured instead.",
        "processes?": "count: Of ranges on the host: number of processes.",
        "inclusive?": "true: By range: a range's numbers include those of the ranges inside it.",
        "depth?": "positive or null: By range, inclusively: how many levels are listed; null "
        "lists all.",
        "joined?": by_name(
            "By layer: of FP and of BP, the share of the ops' time by how their layer is known.",
            by_name(
                "Shares, by how it is known.",
                "share",
                names="range, sequence, none",
            ),
            names="FP, BP",
        ),
        "unjoined?": by_name(
            "By layer: why most of the time of FP or of BP is in no layer, where it is.",
            "text",
            names="FP, BP",
        ),
        **keys("per?", "sum_over?"),
        "percentiles_per?": "text: With --per-iteration: what percentiles are as tables print "
        "them, such as step/GPU; rows are sums over `devices`.",
    },
    meta_rules={"oneOf": either("devices", "basis processes")},
    rows={
        "stage?": "one of FP, BP, WU, IO, ME, OTHER, idle, between_steps: Why the ops run; by "
        "stage and iteration also idle and between_steps, in which nothing runs while the host is "
        "in an iteration, or in none.",
        "name?": "text: Name of the kernel.",
        "kind?": "one of compute, collective, p2p, staged, h2d, d2h, d2d, h2h, memset, graph, "
        "unknown: What the ops do.",
        "range?": "text or null: Path of the NVTX range: of the innermost one around the launch, "
        "or inclusively of the one around it; in parentheses, why there is none.",
        **columns("device?"),
        "pid?": "count: Process id.",
        "stream?": "integer or null: CUDA stream id.",
        "iteration?": "count or null: Number of the iteration; null is the time between "
        "iterations.",
        "recomputed?": "flag or null: Whether the ops of backward passes run a part of the "
        "forward pass again; null of others, and where it is not known.",
        "phase?": "one of prefill, decode, mixed or null: Phase of a serving engine's steps; null "
        "outside of steps, or where a step's name lacks it.",
        "steps?": "count or null: By phase: number of steps, added up over devices; null outside.",
        "requests?": "count or null: By phase: requests in them; null where a step lacks them.",
        "tokens?": "count or null: By phase: tokens in them; null where a step lacks them.",
        "step_ns?": "amount or null: By phase: mean length of a step, with what lies behind it "
        "until the next one begins.",
        "token_ns?": "amount or null: By phase: time per token.",
        "iteration_name?": "text or null: Name of the range that is the iteration.",
        "ops?": "count or null: Number of ops that start in the window; null of idle and "
        "between_steps.",
        "total_ns?": "count: Sum of their durations, which may overlap.",
        "busy_ns?": "count or null: Length of the union of their intervals inside the window; "
        "null of idle and between_steps.",
        "exposed_ns?": "count: Busy time in which no stage of higher precedence is busy; of idle "
        "and between_steps, their length.",
        "overlap_ns?": "count or null: busy_ns - exposed_ns; null of idle and between_steps.",
        "mean_ns?": "amount or null: Mean of the durations, or null without any.",
        "median_ns?": "amount or null: Median of the durations; with --per-iteration and not by "
        "kernel, median over steps, of sums over devices.",
        "min_ns?": "count or null: Shortest duration.",
        "max_ns?": "count or null: Longest duration.",
        "window_ns?": "count: Length of the window.",
        "idle_ns?": "count: Time of the window in which nothing runs.",
        "share?": "share or null: Share of the window, as meta.share defines; null where the "
        "window is empty.",
        "iterations?": "count or null: With --per-iteration: number of steps that count.",
        "p5_ns?": "count or null: With --per-iteration: 5th percentile over steps, of sums over "
        "devices.",
        "p95_ns?": "count or null: With --per-iteration: 95th percentile over steps, of sums over "
        "devices.",
        "iteration_p5_ns?": "count or null: With --per-iteration by kernel: 5th percentile over "
        "steps, of sums over devices.",
        "iteration_median_ns?": "count or null: With --per-iteration by kernel: median over "
        "steps, of sums over devices.",
        "iteration_p95_ns?": "count or null: With --per-iteration by kernel: 95th percentile over "
        "steps, of sums over devices.",
        **columns("rank?", "node?"),
        "ranges?": "count or null: Of ranges on the host: number of those that start in the "
        "window; null of idle and between_steps.",
        "style?": "one of push_pop, start_end or null: Inclusively: style of the ranges; null "
        "where there is no range.",
        "depth?": "count or null: Inclusively: how many ranges are around these; null for "
        "start/end ranges and where there is no range.",
        "instances?": "count or null: Inclusively: number of ranges of this path.",
        "launching?": "count or null: Inclusively: number of ranges of this path that launched any "
        "op, or by kernel, this kernel.",
        "host_ns?": "count or null: Inclusively: sum of the ranges' durations on the host.",
        "projected_ns?": "count or null: Inclusively: from the start of a range's first op to the "
        "end of its last one, added over ranges.",
        "self_busy_ns?": "count or null: Inclusively: busy time of what the ranges launched "
        "themselves; null for start/end ranges.",
        "layer?": "text: Layer of the network, or in parentheses that it is unknown.",
        "fp_ops?": "count: Ops of stage FP.",
        "fp_busy_ns?": "count: Busy time of the ops of stage FP.",
        "bp_ops?": "count: Ops of stage BP.",
        "bp_busy_ns?": "count: Busy time of the ops of stage BP.",
        "between_steps_ns?": "integer or null: By iteration: time in which nothing runs and the "
        "host is in no iteration, ns.",
        "devices?": "integer or null: By iteration: over how many devices times are added; with "
        "--per-iteration: over how many percentiles are.",
    },
    row_rules={
        "dependentRequired": {
            "name": ["kind", "total_ns", "mean_ns", "min_ns", "max_ns"],
            "busy_ns": ["share"],
            "share": ["busy_ns"],
            "launching": ["range", "style", "depth", "ops"],
            "exposed_ns": ["stage", "overlap_ns"],
            "window_ns": ["idle_ns"],
            "stream": ["device", "pid"],
            "iteration": ["iteration_name", "devices"],
            "phase": ["devices"],
            "tokens": ["phase", "steps", "requests", "step_ns", "token_ns"],
            "instances": [
                "range",
                "style",
                "depth",
                "launching",
                "host_ns",
                "ops",
                "projected_ns",
                "self_busy_ns",
            ],
            "layer": ["fp_ops", "fp_busy_ns", "bp_ops", "bp_busy_ns", "ops"],
        },
        "anyOf": either("busy_ns", "launching name"),
        "oneOf": either("ops", "ranges"),
    },
)


@question(
    "tracekit breakdown",
    "tracekit breakdown trace.sqlite --by kernel --format csv --output kernels.csv",
    "tracekit breakdown mnist --by stage,device --skip 2",
    "tracekit breakdown mnist --by range --depth 3",
    "tracekit breakdown mnist --by range,kernel --inclusive",
    "tracekit breakdown mnist --by device,stage --figure stages.html",
    "tracekit breakdown mnist --steps steps.html",
    "tracekit breakdown vllm --by phase,stage",
    "tracekit breakdown unet --by kernel --dask tcp://head:8786",
    writes=_WRITES,
    figures={
        "figure": "Draw the rows as bars",
        "steps": "Draw steps one by one, and their distribution",
    },
    opened=("rules", "iteration", "verdict", "step", "processes", "dask", "on_missing"),
)
def breakdown(
    trace: "Trace",
    by: Annotated[str | Sequence[str], grouped_by(*KEYS)] = "stage",
    *,
    skip: AutoSkip = "auto",
    per_iteration: Annotated[bool, Option("Add median, p5 and p95 over the iterations.")] = False,
    inclusive: Annotated[
        bool,
        Option("By range, or range and kernel: count what the ranges inside launch, too."),
    ] = False,
    depth: Annotated[
        int | None, Option("List N levels of ranges, inclusively.", "N", least=1)
    ] = None,
    **_: Unpack[ChosenStretch],
) -> "Answer":
    """Show where the GPUs' time goes: by stage, kernel, device, rank and other keys.

    Without RUN, the run that was ingested last is taken. A trace file as RUN is ingested first.
    """
    from tracekit.analysis.breakdowns._breakdown import breakdown

    return breakdown(
        trace,
        parse_keys(by),
        skip=skip,
        per_iteration=per_iteration,
        inclusive=inclusive,
        depth=depth,
    )
