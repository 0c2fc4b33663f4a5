"""Declarations of keys and columns with the same meaning in the JSON output of many commands."""

from __future__ import annotations

from tracekit.support.schemas import STAGES, Said, by_name, record, records

_TRUST: Said = {
    "verdict": by_name(
        "What the processes that run ops do, and how many do; all processes where none runs any; "
        "empty where no verdict is stored.",
        "positive",
        names="training, inference, other, unknown",
    ),
    "given": "true: That the verdict is the user's (--as), and not what was found.",
    "cut": "one of begin, end, both: Which end of the GPU work is missing from the recording; "
    "may be missing, where ranges mark no steps.",
    "weak": {
        **records(
            "Stages that rest on one weak source for more than a tenth of GPU time.",
            {
                "stage": f"one of {STAGES}: The stage.",
                "source": "one of kernel_name, copy_kind, structure: The weak source; structure "
                "where it is an estimate from the order of launches.",
                "share": "share: Share of the durations of all ops.",
            },
        ),
        "minItems": 1,
    },
}

_KEYS: Said = {
    "skip": "count: Number of iterations that were left out at the beginning.",
    "cold": by_name(
        "Cold steps, which are in no number per step: how many (steps), the number of the last one "
        "(last), iterations to skip for them, and their part of window_ns and idle_ns.",
        "integer",
    ),
    "numbered_apart": "true: By iteration: processes number the same steps differently.",
    **_TRUST,
    "share": "text: What `share` is a share of.",
    "warnings": "texts: What a user should know, one sentence each.",
    "notes": "texts: What else a reader should know.",
    "basis": "text: What was timed: work on GPUs, or ranges on the host; absent where it was "
    "measured elsewhere.",
    "per": "text: What times are means over, such as step/GPU.",
    "sum_over": "text: Over what times are added, such as 4 GPUs.",
    "simulated": "texts: Names of runs that no GPU ran, but a simulator made; only where there "
    "are any.",
    "missing": "texts: What is not known, and how to record it.",
    "verdicts": by_name(
        "By run: what its processes do, and how far its stages can be trusted; absent only where "
        "times were measured elsewhere.",
        record({f"{name}?": said for name, said in _TRUST.items()}),
    ),
    "steps": "count: Number of steps.",
    "shares": "text: Denominator of shares.",
    "store": "text: Folder of the store.",
    "batch_scope": "text: gpu or global.",
    "gpus": "integer: Number of GPUs.",
}

_COLUMNS: Said = {
    "name": "text: Name of the run.",
    "device": "count: Index of the GPU in the run.",
    "iteration": "integer: Number of the step.",
    "ops": "count or null: Number of ops.",
    "mean_ns": "number or null: Mean, ns.",
    "min_ns": "integer or null: Least, ns.",
    "max_ns": "integer or null: Greatest, ns.",
    "share": "number or null: Share of the total that the command states: of API time, bytes, run "
    "time, memory, or the change of the step.",
    "iterations": "count or null: Number of iterations.",
    "rank": "integer or null: Rank of the process in its job; null where unknown.",
    "node": "text or null: Host that the process ran on; null where unknown.",
    "communicator": "text or null: Id of the communicator; null where unknown.",
    "group": "text or null: What the program calls the group of ranks; null where unknown.",
    "parallelism": "text or null: Meaning of that name: tensor, pipeline, data, expert, context or "
    "sequence, with `and` between several; null where it has none.",
    "communicators": "integer: Communicators of the row.",
    "members": "text or null: Ranks of the only communicator, such as 0-3, 8.",
    "devices": "count or null: Number of devices that ran an op.",
    "run": "text: Name of the run.",
    "process": "integer or null: Number of the process.",
    "speedup": "number or null: The first run's window_ns over its own.",
    "src": "text: Node that bytes come from.",
    "dst": "text: Node that they go to.",
    "verdict": "text or null: What the processes that run ops do, and the evidence; null where no "
    "verdict is stored.",
    "runs": "integer or null: Number of runs.",
    "calls": "integer or null: Number of calls.",
    "id": "id: Id of the run.",
    "labels": "texts: Labels as key=value.",
    "gpus": "integer or null: Number of GPUs.",
    "launched": "share or null: Share of the ops whose launching call is known; null without ops.",
    "coverage": "share or null: Share of GPU busy time whose stage is known; null without ops.",
    "warnings": "texts: What a user should know, one sentence each.",
    "p50_ns": "integer or null: Median, ns.",
    "reduction_percent": "number or null: By how much less time, percent.",
    "method": "text or null: How GPUs communicate.",
    "network": "text or null: Network, by its label.",
    "batch": "integer or null: Batch size, by its label.",
    "scaling": "text or null: Label: strong or weak.",
    "time_ns": "number or null: Time of a step or epoch, ns.",
    "time_low_ns": "number or null: Shortest of several runs' times, ns; null of one run.",
    "time_high_ns": "number or null: Longest of several runs' times, ns; null of one run.",
    "interval_of": "one of steps, runs or null: Source of the interval: steps of two runs, "
    "which alone it describes, or several runs.",
    "steps": "integer or null: Number of steps of the runs; null of a table.",
    "parameters": "integer or null: Number of the network's parameters.",
    "created": "date: When the run was first ingested, UTC.",
    "files": "texts: Names of its files, without folders.",
    "images_per_s": "number or null: Images handled per second.",
}


def keys(*names: str) -> Said:
    """Return declarations of keys of a JSON's ``meta`` by name; ``name?`` makes one optional."""
    return {name: _KEYS[name.removesuffix("?")] for name in names}


def columns(*names: str) -> Said:
    """Return the declarations of columns by name; ``name?`` makes a column optional."""
    return {name: _COLUMNS[name.removesuffix("?")] for name in names}
