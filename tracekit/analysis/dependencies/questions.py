"""Options and columns of the analyses `critical_path` and `whatif`."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, Self, Unpack

from tracekit.analysis.facts import chosen_keys
from tracekit.support.columns import columns, keys
from tracekit.support.files import StrPath
from tracekit.support.questions import (
    AutoSkip,
    ChosenRows,
    ChosenTime,
    Option,
    Sizes,
    Steps,
    Topology,
    grouped_by,
    question,
)
from tracekit.support.schemas import STAGES, Json, either

if TYPE_CHECKING:
    from tracekit.analysis.traffic import Traffic
    from tracekit.model import Answer, Trace

_KEYS = ("cause", "stage", "link", "device", "rank", "iteration", "kernel")


class Waiting(Protocol):
    """Interface of `critical_path` and `whatif` to a run: its tables, steps and traffic."""

    @property
    def trace(self) -> "Trace":
        """Canonical tables of the run."""

    def of_steps(self, iterations: tuple[int, int] | None) -> Self:
        """Return the run limited to the steps `iterations` (first, last); None: all."""

    def traffic(
        self, *, topology: StrPath | None = None, sizes: Mapping[str, int] | None = None
    ) -> "Traffic":
        """Return the traffic between the run's GPUs."""


_PATH_WRITES = Json(
    "critical-path",
    meta={
        **keys("steps"),
        "steps_ns": "count: Length of the steps, added up.",
        "step_p50_ns": "count: Median length of a step.",
        **keys("sum_over", "skip", "cold?"),
        "unexplained_share": "share or null: Share of the steps that is unexplained.",
        "contradicted": "count: Number of dependencies that were left out because they run "
        "against time.",
        "host_or_wait_ns?": "count: Part of host during which GPUs work: it may be waiting for "
        "them, as no synchronisation was recorded.",
        "input_beside_ns?": "count: Part of input during which GPUs work: a loader that is waited "
        "for is taken to work meanwhile; absent below a tenth of the steps.",
        **columns("launched?"),
        **keys("shares", "warnings?"),
    },
    rows={
        "cause?": "one of gpu, comm, copy, host, input, between_steps, off_cpu, latency, "
        "unexplained: What the time is.",
        "stage?": f"one of {STAGES} or null: Stage of the op that works or waits, or that the host "
        "launches next; null where there is none.",
        "link?": "text or null: Type of the link that limits a transfer; null for all else.",
        "device?": "integer or null: GPU of the op that works or waits; null of calls.",
        **columns("rank?"),
        "iteration?": "integer or null: Number of the step; null of a run without.",
        "name?": "text or null: Name of the op that works; null of all else.",
        "segments?": "count: Number of parts of critical paths.",
        "path_ns": "count: Length of these parts, added over steps.",
        "step_ns": "amount: Mean of path_ns per step.",
        "share": "share or null: path_ns over the length of the steps that count.",
        "ops?": "count: Number of ops of this name in the steps.",
        "on_path?": "count: How many of these ops are on a critical path.",
        "slack_min_ns?": "integer or null: By how much later such an op could end with no step "
        "ending later, at least; null where no step waits for any.",
        "slack_p50_ns?": "number or null: Median of that slack.",
    },
    row_rules={"oneOf": either("segments", "name stage ops on_path slack_min_ns slack_p50_ns")},
)


_OPENED = ("rules", "iteration", "only_ranks")


@question(
    "tracekit critical-path",
    "tracekit critical-path mnist --by stage,cause --skip 1",
    "tracekit critical-path --kernels 10",
    "tracekit critical-path unet --only-ranks 0-3 --iterations 10:12",
    figures={"figure": "Draw what each step waited for"},
    writes=_PATH_WRITES,
    opened=_OPENED,
)
def critical_path(
    run: Waiting,
    by: Annotated[str | Sequence[str], grouped_by(*_KEYS)] = "cause",
    *,
    kernels: Annotated[
        int | None,
        Option(
            "List the N ops that take longest on the path, by name, and their slack.", "N", least=1
        ),
    ] = None,
    skip: AutoSkip = "auto",
    iterations: Steps = None,
    topology: Topology = None,
    **_: Unpack[ChosenTime],
) -> "Answer":
    """Split the time of steps along their critical path by cause, such as GPU work or input.

    The critical path is the chain of dependencies from a step's end back to its start; its times
    add up to the step. docs/critical-path.md lists causes, other keys and dependencies.
    """
    from tracekit.analysis.dependencies._critical_path import critical_path
    from tracekit.engine import parse_iterations

    steps = None if iterations is None else parse_iterations(iterations)
    run = run.of_steps(steps)
    return critical_path(
        run.trace,
        run.traffic(topology=topology),
        chosen_keys(by, _KEYS, "critical path"),
        skip=skip,
        iterations=steps,
        kernels=kernels,
    )


_WHATIF_WRITES = Json(
    "whatif",
    meta={
        **keys("steps", "per", "skip", "cold?"),
        "replay_error_share": "amount or null: By how much the unchanged replay of a step is off, "
        "over its length, in the median.",
        "unexplained_share": "share or null: Share of the recorded steps that is unexplained.",
        "trusted": "flag: Whether that is at most a tenth, and of all changed paths too.",
        "causes?": "texts: One link, with its evidence in numbers, or unknown.",
        **keys("warnings?"),
    },
    rows={
        "change": "text: What is changed.",
        "dependencies": "count: Number of dependencies that get another length.",
        "step_ns": "amount or null: A step, mean over the steps that count: the middle of its "
        "range; null where that is wider than a fifth of a measured step.",
        "low_ns": "amount or null: How short it may be, with every bound that the recording leaves "
        "open at that end; null of the measured steps.",
        "high_ns": "amount or null: Upper limit of the same.",
        "saved_ns": "number or null: How much shorter a step is than in the unchanged replay; "
        "null of the measured steps, and where step_ns is.",
        "saved_share": "number or null: The same over a step of the unchanged replay.",
        "speedup": "number or null: A step of the unchanged replay over this one.",
        "unexplained_share": "share or null: Share of the path of these steps that is unexplained.",
    },
)
_PANEL = "Changes"
_CHANGING = (
    "speed", "stage", "bandwidth", "host", "loader", "workers", "no_sync", "overlap", "bucket",
    "without_straggler",
)  # fmt: skip
"""Options that change something."""


def _changes(**options: Any) -> "list[Any]":
    """Parse the options that name changes, such as ``speed``; other options are ignored."""
    from tracekit.analysis.dependencies._changes import parse_changes

    return parse_changes(**{name: options[name] for name in _CHANGING})


@question(
    "tracekit whatif --speed 'gemm|conv=2x' --stage BP=1.5x --skip 1",
    "tracekit whatif mnist --loader 2x --no-sync",
    "tracekit whatif ddp --bandwidth nvlink=2x --overlap --bucket 25MB",
    "tracekit whatif job --without-straggler rank",
    figures={"figure": "Draw a step under each change, with its range"},
    writes=_WHATIF_WRITES,
    opened=_OPENED,
    check=_changes,
)
def whatif(
    run: Waiting,
    *,
    speed: Annotated[
        Sequence[str],
        Option(
            "Kernels whose names match a pattern are faster; may be given several times.",
            "NAME=FACTOR",
            typed=list[str] | None,
            panel=_PANEL,
        ),
    ] = (),
    stage: Annotated[
        Sequence[str],
        Option(
            "Kernels of a stage are faster; may be given several times.",
            "STAGE=FACTOR",
            typed=list[str] | None,
            panel=_PANEL,
        ),
    ] = (),
    bandwidth: Annotated[
        Sequence[str],
        Option(
            "Links are faster: nvlink, pcie, socket, network, xgmi, c2c, or all that "
            "collectives cross (collective); may be given several times.",
            "LINK=FACTOR",
            typed=list[str] | None,
            panel=_PANEL,
        ),
    ] = (),
    host: Annotated[
        str | None,
        Option(
            "The host launches faster: its calls, and what it does between them.",
            "FACTOR",
            panel=_PANEL,
        ),
    ] = None,
    loader: Annotated[
        str | None,
        Option(
            "The data loader is faster; inf for one that takes no time.", "FACTOR", panel=_PANEL
        ),
    ] = None,
    workers: Annotated[
        int | None, Option("The data loader has this number of workers.", "N", panel=_PANEL)
    ] = None,
    no_sync: Annotated[bool, Option("The host waits for no GPU work.", panel=_PANEL)] = False,
    overlap: Annotated[
        bool,
        Option(
            "Perfect overlap: only communication waits for communication between GPUs.",
            panel=_PANEL,
        ),
    ] = False,
    bucket: Annotated[
        int | None,
        Option(
            "Gradients are all-reduced in pieces of at least this size, such as 25MB.",
            "SIZE",
            unit="bytes",
            panel=_PANEL,
        ),
    ] = None,
    without_straggler: Annotated[
        Literal["all", "rank", "stage", "op", "part", "link"] | None,
        Option(
            "Ranks take as long as each other for the same work: all of them, or rank by rank, "
            "stage by stage, one kind of op after the other, part by part (computing, host, "
            "communication), or the collectives of one group of ranks after the other (link).",
            panel=_PANEL,
        ),
    ] = None,
    sizes: Sizes = None,
    skip: AutoSkip = "auto",
    iterations: Steps = None,
    topology: Topology = None,
    **_: Unpack[ChosenRows],
) -> "Answer":
    """Predict how long steps would take after changes: each change alone, and all together.

    Dependencies of calls and ops are replayed; docs/whatif.md explains how, and its errors.
    """
    from tracekit.analysis.dependencies._whatif import whatif
    from tracekit.engine import parse_iterations

    changes = _changes(
        speed=speed, stage=stage, bandwidth=bandwidth, host=host, loader=loader, workers=workers,
        no_sync=no_sync, overlap=overlap, bucket=bucket, without_straggler=without_straggler,
    )  # fmt: skip
    steps = None if iterations is None else parse_iterations(iterations)
    run = run.of_steps(steps)
    traffic = run.traffic(topology=topology, sizes=sizes)
    return whatif(run.trace, traffic, changes, skip=skip, iterations=steps)
