"""What is told of the work on one device, before devices are joined."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tracekit.attribution.structure._work import NOTHING, Array, Assumption, Doubt


@dataclass(frozen=True)
class Told:
    """What was found on one device; its fields are those of `Structure`, of its ops alone.

    Parameters
    ----------
    core
        Which ops are of the threads that train: others are told by what they do beside these.
    whole
        Whether each step is whole.
    recomputes
        Whether it is refused because backward seems to compute layers again.
    """

    stage: Array
    step: Array
    core: Array
    method: str
    training: bool | None
    whole: Array = field(default_factory=lambda: np.zeros(0, bool))
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
    recomputes: bool = False


def nothing(size: int, *evidence: str, training: bool | None = False) -> Told:
    """Return that nothing is told: without a sign of training, or (None) refused."""
    return Told(
        stage=np.full(size, NOTHING, np.int8),
        step=np.full(size, NOTHING, np.int32),
        core=np.zeros(size, bool),
        method="none" if training is False else "refused",
        training=training,
        evidence=evidence,
    )
