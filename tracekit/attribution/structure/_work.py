"""Input and result of structure: a process's work as arrays, and the finding about it."""

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
"""Stands for no stage, no step, no thread and no size."""

COMPUTE, GRAPH, MEMSET, H2D, D2H, D2D, P2P = (
    KINDS.index(kind) for kind in ("compute", "graph", "memset", "h2d", "d2h", "d2d", "p2p")
)
KERNELS = tuple(KINDS.index(kind) for kind in KERNEL_KINDS)
GRADIENT_EXCHANGE = tuple(
    COLLECTIVES.index(name) + 1
    for name in ("all_reduce", "reduce", "reduce_scatter", "broadcast", "all_gather")
)
"""The collectives of data-parallel training, as `Work.collective` writes them."""
REDUCTIONS = tuple(
    COLLECTIVES.index(name) + 1 for name in ("all_reduce", "reduce", "reduce_scatter")
)
"""Those that sum gradients: weights are handed out by others, before forward."""
SEND_RECV = COLLECTIVES.index("send_recv") + 1


@dataclass(frozen=True)
class Work:
    """One process' ops, in order of launch (of start, where no launch is known).

    Parameters
    ----------
    kind
        Place in the list of kinds.
    device, start, end
        Where and when it runs on the GPU.
    launch, thread
        Host time of the launching call (the op's start where none is known), and its thread (-1).
    context_stream
        A number for context and stream.
    name
        Place in `names`, -1 where there is none, as for copies.
    size
        Threads that the launch has (blocks times threads of each), -1 where it is not known.
    bytes
        Of copies and memsets, -1 where it is not known.
    names
        The distinct names of kernels.
    collective
        Place in the list of collectives + 1; 0 for an op that is none.
    main_thread
        The thread that the process began with, if it is known.
    """

    kind: Array
    device: Array
    start: Array
    end: Array
    launch: Array
    thread: Array
    context_stream: Array
    name: Array
    size: Array
    bytes: Array
    names: Sequence[str]
    collective: Array
    main_thread: int | None

    def __len__(self) -> int:
        return int(self.start.size)

    def take(self, rows: Array) -> Work:
        """Return some of the ops, by place or by mask."""
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
    """Busy time near a kind of cut that could belong to either side.

    Parameters
    ----------
    cut
        What lies on its two sides, such as ``update | forward``.
    before_ns, after_ns
        The doubtful time that was given to what is before the cut, and to what is after it, over
        all steps.
    """

    cut: str
    before_ns: int
    after_ns: int


@dataclass(frozen=True)
class Assumption:
    """An assumption that stages or steps rest on, and how it was tested.

    Parameters
    ----------
    name
        The assumption, as a sentence.
    result
        One of `TESTED`.
    doubt_ns
        Busy time that is of another stage if it does not hold; None where no other reading was
        looked at, and for what steps alone rest on.
    said
        What it was held against, and what that says.
    """

    name: str
    result: str
    doubt_ns: int | None
    said: str


@dataclass(frozen=True, kw_only=True)
class Findings:
    """Findings about ops of a process, or of one of its devices.

    Parameters
    ----------
    stage
        Place in the list of stages of each op, -1 where structure says nothing.
    step
        Number of the step of each op, from 0 on; -1 where it is of none.
    method
        ``threads``: a thread of its own launches backward. ``order``: estimated from the order of
        launches. ``refused``: there are signs of training, but stages cannot be told. ``none``:
        no sign of training.
    training
        True where training is claimed, False where nothing speaks for it, None where stages are
        refused.
    evidence, contradictions
        Sentences with numbers.
    usual_gaps, gaps
        How many of the gaps between backward passes (``order``: of the steps) are the usual one.
    doubts
        By kind of cut.
    assumptions
        What stages and steps rest on; what fails is among the contradictions as well.
    cut_begin, cut_end
        Steps that the beginning and the end of the recording cut off.
    period, repeats
        Launches after which the sequence of kernels repeats, and how often it does.
    reading
        What is taken to be a step, in words, where other readings tell other steps.
    """

    stage: Array
    step: Array
    method: str
    training: bool | None
    evidence: tuple[str, ...] = ()
    contradictions: tuple[str, ...] = ()
    usual_gaps: int = 0
    gaps: int = 0
    doubts: tuple[Doubt, ...] = ()
    assumptions: tuple[Assumption, ...] = ()
    cut_begin: int = 0
    cut_end: int = 0
    period: int | None = None
    repeats: float | None = None
    reading: str | None = None


@dataclass(frozen=True, kw_only=True)
class Structure(Findings):
    """Structure of a process's work.

    Parameters
    ----------
    again
        Which ops of backward passes run a part of a forward pass again.
    steps
        ``step, start, end, whole``: from the launch of its first op to that of the next step's
        first (of the last one: until after its last launch); `whole` is False where an edge of the
        recording cut it.
    """

    again: Array
    steps: pl.DataFrame

    @property
    def doubt_ns(self) -> int:
        """Busy time whose stage is in doubt."""
        cuts = sum(each.before_ns + each.after_ns for each in self.doubts)
        return cuts + sum(each.doubt_ns or 0 for each in self.assumptions)


@dataclass(frozen=True, kw_only=True)
class Told(Findings):
    """Findings on one device, before devices are joined.

    Parameters
    ----------
    core
        Which ops are of the threads that train: others are told by what they do beside these.
    whole
        Whether each step is whole.
    recomputes
        Whether it is refused because backward seems to compute layers again.
    again
        Which ops of backward passes run a part of a forward pass again; empty where nothing is
        told.
    """

    core: Array
    whole: Array = field(default_factory=lambda: np.zeros(0, bool))
    recomputes: bool = False
    again: Array = field(default_factory=lambda: np.zeros(0, bool))


def nothing(size: int, *evidence: str, training: bool | None = False) -> Told:
    """Return an empty finding: no hint of training, or (None) a refusal."""
    return Told(
        stage=np.full(size, NOTHING, np.int8),
        step=np.full(size, NOTHING, np.int32),
        core=np.zeros(size, bool),
        method="none" if training is False else "refused",
        training=training,
        evidence=evidence,
    )
