"""Order in which a stage of a pipeline runs the passes of its micro-batches."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from workloads._options import Schedule


class Pass(StrEnum):
    """Direction of a pass through the network: forward or backward."""

    FORWARD = "F"
    BACKWARD = "B"


class Action(NamedTuple):
    """Forward or backward pass of a pipeline stage for one micro-batch."""

    which: Pass
    micro_batch: int


def order(schedule: Schedule, stage: int, stages: int, micro_batches: int) -> list[Action]:
    """Return the passes of a stage in a step, in order.

    With GPipe (Huang et al., 2019) it runs all forward passes and then all backward passes, from
    the last micro-batch to the first. With 1F1B (Narayanan et al., 2019; flushed after each step)
    it runs backward passes as early as possible, alternating with forward passes, so that at most
    as many micro-batches are between their passes as there are stages from this one to the last.

    Parameters
    ----------
    schedule
        GPipe or 1F1B.
    stage, stages
        Number of the stage, from 0, and number of stages.
    micro_batches
        Number of micro-batches per step.
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
