"""What the simulator's tests share: a world in which every time can be worked out by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import simpy
from simulate.gpu import Lasting, Op, Purpose
from simulate.host import Thread
from simulate.job import Job
from simulate.world import World

PLAIN = {
    "kernel_jitter": 0.0,
    "host_jitter": 0.0,
    "operator_ns": 2_000,
    "launch_call_ns": 3_000,
    "launch_latency_ns": 5_000,
    "event_call_ns": 1_000,
    "stream_gap_ns": 500,
    "event_gap_ns": 700,
    "copy_start_ns": 1_000,
    "sync_return_ns": 4_000,
    "wake_ns": 6_000,
    "nvlink_copy_efficiency": 1.0,
    "nvlink_kernel_efficiency": 1.0,
    "pcie_efficiency": 1.0,
    "collective_start_ns": 10_000,
    "collective_hop_ns": 1_000,
    "collective_call_ns": 3_000,
}
"""Round numbers, and no variation."""

Program = Callable[[Thread], Iterator[simpy.Event]]


def plain_world(gpus: int = 2, **parameters: float) -> World:
    """A world with round numbers."""
    return World(Job(gpus=gpus, parameters=PLAIN | parameters))


def kernel(ns: int, stage: str = "FP", step: int | None = 0) -> Op:
    """A kernel that takes so long."""
    return Op("kernel", Purpose(stage, step), Lasting(ns))


def run(world: World, *programs: Iterator[simpy.Event]) -> None:
    """Run programs to their end."""
    processes = [world.env.process(program) for program in programs]
    world.env.run(until=world.env.all_of(processes))
