"""In which order a stage of a pipeline runs the passes of its micro-batches."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from workloads._options import Schedule


class Pass(StrEnum):
    """A direction through the network."""

    FORWARD = "F"
    BACKWARD = "B"


class Action(NamedTuple):
    """Action of a stage for one micro-batch."""

    which: Pass
    micro_batch: int


def order(schedule: Schedule, stage: int, stages: int, micro_batches: int) -> list[Action]:
    """Return what a stage does in a step, in order.

    With GPipe (Huang et al., 2019) it goes forward with all micro-batches and then backward, from
    the last to the first. With 1F1B (Narayanan et al., 2019; flushed after each step) it goes
    backward as early as it can, and takes turns, so that no more micro-batches are between their
    passes than there are stages from this one to the last.

    Parameters
    ----------
    schedule
        Which of the two.
    stage, stages
        Number of the stage, from 0, and how many there are.
    micro_batches
        How many micro-batches a step has.
    """
    forward = [Action(Pass.FORWARD, number) for number in range(micro_batches)]
    backward = [Action(Pass.BACKWARD, number) for number in range(micro_batches)]
    if schedule is Schedule.GPIPE:
        return [*forward, *reversed(backward)]
    ahead = min(stages - stage - 1, micro_batches)
    turns = zip(forward[ahead:], backward, strict=False)
    return [
        *forward[:ahead],
        *(action for turn in turns for action in turn),
        *backward[micro_batches - ahead :],
    ]
