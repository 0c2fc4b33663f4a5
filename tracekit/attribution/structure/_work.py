"""Input and result of inferring stages: a process's ops as arrays, and stages, steps, evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracekit.model import COLLECTIVES, KERNEL_KINDS, KINDS, STAGES

Array: TypeAlias = NDArray[Any]

FP, BP, WU, IO, ME = (STAGES.index(stage) for stage in ("FP", "BP", "WU", "IO", "ME"))
NOTHING = -1
"""Value for no stage, no step, no thread and no size."""

COMPUTE, GRAPH, MEMSET, H2D, D2H, D2D, P2P = (
    KINDS.index(kind) for kind in ("compute", "graph", "memset", "h2d", "d2h", "d2d", "p2p")
)
KERNELS = tuple(KINDS.index(kind) for kind in KERNEL_KINDS)
GRADIENT_EXCHANGE = tuple(
    COLLECTIVES.index(name) + 1
    for name in ("all_reduce", "reduce", "reduce_scatter", "broadcast", "all_gather")
)
"""Collectives of data-parallel training, numbered as in `Work.collective`."""
REDUCTIONS = tuple(
    COLLECTIVES.index(name) + 1 for name in ("all_reduce", "reduce", "reduce_scatter")
)
"""Those of them that sum gradients; others distribute weights before forward."""
SEND_RECV = COLLECTIVES.index("send_recv") + 1


@dataclass(frozen=True)
class Work:
    """Ops of one process, in order of launch (of start if no launch is known), as arrays."""

    kind: Array
    """Kind of op, as index in the list of kinds."""
    device: Array
    start: Array
    end: Array
    """GPU, and start and end on it, ns."""
    launch: Array
    thread: Array
    """Start of the launching call, ns (the op's start if unknown), and its thread (-1 if
    unknown)."""
    context_stream: Array
    """Number of the pair of context and stream."""
    name: Array
    """Index of its name in `names`, -1 for ops without a name, such as copies."""
    size: Array
    """Number of threads of the launch (blocks times threads per block), -1 if unknown."""
    bytes: Array
    """Size of copies and memsets, bytes; -1 if unknown."""
    names: Sequence[str]
    """Distinct kernel names."""
    collective: Array
    """Index in the list of collectives, plus 1; 0 if the op is no collective."""
    main_thread: int | None
    """The process's initial thread, None if unknown."""

    def __len__(self) -> int:
        return int(self.start.size)

    def take(self, rows: Array) -> Work:
        """Return a subset of the ops, given by index or by mask."""
        columns: dict[str, Any] = {
            field.name: value[rows]
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), np.ndarray)
        }
        return replace(self, **columns)


STEPS: dict[str, pl.DataType | type[pl.DataType]] = {
    "step": pl.Int32, "start": pl.Int64, "end": pl.Int64, "whole": pl.Boolean,
}  # fmt: skip


@dataclass(frozen=True)
class Doubt:
    """Busy time next to a cut between two stages that may belong to either of them."""

    cut: str
    """The stages on its two sides, such as ``update | forward``."""
    before_ns: int
    after_ns: int
    """Doubtful time that was assigned to the stage before the cut, and to the stage after it, ns,
    summed over all steps."""


@dataclass(frozen=True)
class Assumption:
    """An assumption behind stages or steps, and the result of testing it."""

    name: str
    """The assumption as a sentence."""
    result: str
    """Result of the test, one of `TESTED`."""
    doubt_ns: int | None
    """Busy time that belongs to another stage if the assumption is wrong, ns; None if no
    alternative was tried, or if only steps, not stages, depend on it."""
    said: str
    """The test and its result, in words."""


@dataclass(frozen=True, kw_only=True)
class Findings:
    """Stages and steps inferred for the ops of a process or of one device, with the evidence."""

    stage: Array
    """Per op: its stage, as index in the list of stages; -1 where none was inferred."""
    step: Array
    """Per op: number of its step, from 0 on; -1 for none."""
    method: str
    """``threads``: separate threads launch the backward passes. ``order``: estimated from the order
    of launches. ``refused``: there are signs of training, but stages are unknown. ``none``: no sign
    of training."""
    training: bool | None
    """True for training, False if there is no sign of training, None if stages are refused."""
    evidence: tuple[str, ...] = ()
    contradictions: tuple[str, ...] = ()
    """Sentences with measured values, for and against the result."""
    usual_gaps: int = 0
    gaps: int = 0
    """Number of gaps between backward passes (with method ``order``: number of steps) of the most
    frequent kind, and of all kinds."""
    doubts: tuple[Doubt, ...] = ()
    """Busy time with doubtful stage, by the two stages it may belong to."""
    assumptions: tuple[Assumption, ...] = ()
    """Assumptions behind stages and steps; those that fail are in `contradictions` as well."""
    cut_begin: int = 0
    cut_end: int = 0
    """Number of steps cut off by the start, and by the end, of the recording."""
    period: int | None = None
    repeats: float | None = None
    """Number of launches after which the sequence of kernels repeats, and number of repetitions;
    None without a period."""
    reading: str | None = None
    """Definition of a step in use, in words; None if no other one would give different steps."""


@dataclass(frozen=True, kw_only=True)
class Structure(Findings):
    """Stages and steps inferred from a process's threads and launch order, with evidence."""

    again: Array
    """Mask of ops of backward passes that recompute a part of a forward pass."""
    steps: pl.DataFrame
    """``step, start, end`` (ns), ``whole``. A step lasts from the launch of its first op to the
    launch of the next step's first op (the last step until after its last launch); `whole` is False
    if the start or end of the recording cut it."""

    @property
    def doubt_ns(self) -> int:
        """Busy time that may belong to another stage than inferred, ns."""
        cuts = sum(each.before_ns + each.after_ns for each in self.doubts)
        return cuts + sum(each.doubt_ns or 0 for each in self.assumptions)


@dataclass(frozen=True, kw_only=True)
class DeviceStages(Findings):
    """Stages and steps inferred on one device, before devices are joined."""

    core: Array
    """Mask of ops launched by the training threads; the stages of other ops are inferred relative
    to these."""
    whole: Array = field(default_factory=lambda: np.zeros(0, bool))
    """Per step: whether it was recorded in full."""
    recomputes: bool = False
    """Whether backward seems to recompute layers; set only where stages are refused."""
    again: Array = field(default_factory=lambda: np.zeros(0, bool))
    """Mask of ops of backward passes that recompute a part of a forward pass; empty if no stages
    are known."""


def nothing(size: int, *evidence: str, training: bool | None = False) -> DeviceStages:
    """Return a result in which none of `size` ops has a stage, with the sentences `evidence`.

    Its method is ``none`` (no sign of training) or, if `training` is None, ``refused``.
    """
    return DeviceStages(
        stage=np.full(size, NOTHING, np.int8),
        step=np.full(size, NOTHING, np.int32),
        core=np.zeros(size, bool),
        method="none" if training is False else "refused",
        training=training,
        evidence=evidence,
    )
