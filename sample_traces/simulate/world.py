"""One simulated execution of a job: clock, machine, links, processes and books."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import simpy

from .doing import Clock
from .gpu import DTOH, HTOD
from .host import Process
from .links import Links
from .machine import load_machine
from .parameters import load_parameters

if TYPE_CHECKING:
    from .gpu import Op
    from .host import Call, Memory, Range, SystemCall
    from .job import Job

_ALIGN = 2 << 20


@dataclass
class Books:
    """Everything that happened, in the order in which it began (ranges: ended)."""

    ops: list[Op] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    ranges: list[Range] = field(default_factory=list)
    system_calls: list[SystemCall] = field(default_factory=list)
    memory: list[Memory] = field(default_factory=list)
    allocated: dict[int, tuple[int, str]] = field(default_factory=dict)
    _next: dict[int, int] = field(default_factory=dict)

    def address(self, device: int, size: int) -> int:
        """Find a place for an allocation; addresses are never used twice."""
        at = self._next.get(device, (0x7F00 + device) << 32)
        self._next[device] = at + -(-size // _ALIGN) * _ALIGN
        self.allocated[at] = (size, "")
        return at

    @property
    def end(self) -> int:
        """When the last thing ended."""
        ended = (each.end for rows in (self.ops, self.calls, self.ranges) for each in rows)
        return max(ended, default=0)


class World:
    """What a job runs in; programs start their processes and threads in it."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.env = Clock()
        self.parameters = load_parameters(**job.parameters)
        self.machine = load_machine(job.machine, self.parameters).changed(job.link_factors)
        self.links = Links(self.env, self.machine, self.parameters)
        self.books = Books()
        self.processes: list[Process] = []
        self._engines: dict[tuple[int, int], simpy.Resource] = {}
        self._collectives = 0
        self._transfers = 0

    def process(self) -> Process:
        """Start a process."""
        self.processes.append(Process(self, 30_000 + 200 * len(self.processes)))
        return self.processes[-1]

    def engine(self, op: Op) -> simpy.Resource | None:
        """Return what an op needs beside its stream.

        A GPU has a copy engine for copies from the host and one for those to it, which all
        streams share; peer copies have further engines, and kernels need none.
        """
        if op.copy_kind not in (HTOD, DTOH):
            return None
        key = (op.stream.device, op.copy_kind)
        return self._engines.setdefault(key, simpy.Resource(self.env))

    def next_collective(self) -> int:
        """Return a number for a collective."""
        self._collectives += 1
        return self._collectives

    def next_transfer(self) -> int:
        """Return a number for a movement between GPUs, whose ops may be several."""
        self._transfers += 1
        return self._transfers
