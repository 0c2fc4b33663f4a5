"""A finding: the result of a rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Sure = Literal["measured", "likely", "hint", "perhaps"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A problem that takes time of a step, and its remedy.

    Parameters
    ----------
    finding
        The problem in one sentence, with numbers.
    win, low, high
        By how much a step would be shorter, ns, at best and at worst; None where it is not known.
    unknown
        Why that is not known.
    sure
        Whether it is ``measured`` (the trace says so), ``likely`` (it follows from what the trace
        says if something holds that it does not say), or a ``hint`` (other causes are possible).
        ``perhaps`` is said of rules that were wrong too often, and by a rule that nothing judged.
    evidence
        The numbers that say so.
    advice
        What to do.
    outside
        Whether it is time outside of steps, which no step's idle time bounds.
    of_compute
        Whether kernels that compute would take less, which bounds the wins of all other findings.
    of_gpu
        Whether GPUs would have less to do: a win that their waits for host and input may take up.
    """

    finding: str
    sure: Sure
    evidence: tuple[str, ...]
    advice: str
    win: float | None = None
    low: float | None = None
    high: float | None = None
    unknown: str | None = None
    outside: bool = False
    of_gpu: bool = False
    of_compute: bool = False
