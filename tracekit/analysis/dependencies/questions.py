"""The question `critical_path`, as it is asked."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Protocol, Self, Unpack

from tracekit.analysis.facts import chosen_keys
from tracekit.support.columns import columns, keys
from tracekit.support.files import StrPath
from tracekit.support.questions import (
    ChosenTime,
    Option,
    Skip,
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
    """A run, as far as it is asked what waits for what."""

    @property
    def trace(self) -> "Trace":
        """Its tables."""

    def of_steps(self, iterations: tuple[int, int] | None) -> Self:
        """Return it as if it held some of its steps alone."""

    def traffic(self, *, topology: StrPath | None = None) -> "Traffic":
        """Return what it moved between GPUs."""


_WRITES = Json(
    "critical-path",
    meta={
        **keys("steps"),
        "steps_ns": "count: Length of the steps, added up.",
        "step_p50_ns": "count: Median length of a step.",
        **keys("skip"),
        "unexplained_share": "share or null: What of the steps nothing explains.",
        "contradicted": "count: Number of dependencies that were left out because they run "
        "against time.",
        **keys("shares", "warnings?"),
    },
    rows={
        "cause?": "one of gpu, comm, host, input, latency, unexplained: What the time is.",
        "stage?": f"one of {STAGES} or null: Stage of the op that works or waits, or that the host "
        "launches next; null where there is none.",
        "link?": "text or null: Type of link that holds a transfer up; null of all else.",
        "device?": "integer or null: GPU of the op that works or waits; null of calls.",
        **columns("rank?"),
        "iteration?": "integer or null: Number of the step; null of a run without.",
        "name?": "text or null: Name of the op that works; null of all else.",
        "segments?": "count: Number of parts of paths.",
        "path_ns": "count: Their length, added over steps.",
        "step_ns": "amount: The same, mean per step.",
        "share": "share or null: path_ns over the length of all steps.",
        "ops?": "count: Number of ops of this name in the steps.",
        "on_path?": "count: How many of these are on a path.",
        "slack_min_ns?": "integer or null: By how much later such an op could end with no step "
        "ending later, at least; null where no step waits for any.",
        "slack_p50_ns?": "number or null: The same in the median.",
    },
    row_rules={"oneOf": either("segments", "name stage ops on_path slack_min_ns slack_p50_ns")},
)


@question(
    "tracekit critical-path",
    "tracekit critical-path mnist --by stage,cause --skip 1",
    "tracekit critical-path --kernels 10",
    figures={"figure": "Draw what each step waited for"},
    writes=_WRITES,
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
    skip: Skip = 0,
    iterations: Steps = None,
    topology: Topology = None,
    **_: Unpack[ChosenTime],
) -> "Answer":
    """Say what steps waited for, one thing after the other, from their end back to their begin.

    The parts of the path add up to the steps. docs/critical-path.md says what may wait for what.
    """
    from tracekit.analysis.dependencies._critical_path import critical_path

    run = run.of_steps(iterations)
    return critical_path(
        run.trace,
        run.traffic(topology=topology),
        chosen_keys(by, _KEYS, "critical path"),
        skip=skip,
        iterations=iterations,
        kernels=kernels,
    )
