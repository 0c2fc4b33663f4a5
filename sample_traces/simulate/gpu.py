"""GPU work: ops, and the streams that run them in order.

An op starts when its launch has reached the GPU, what its stream waits for is done, and the op
before it on the stream is done. Each op knows what it was launched for and what held it: that is
the truth about it, kept by the simulator as it goes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import simpy

if TYPE_CHECKING:
    from random import Random

    from .doing import Clock, Doing
    from .host import Call, Process
    from .machine import Route

HTOD, DTOH, DTOD, PTOP = 1, 2, 8, 10


class Work(Protocol):
    """What an op does once it has started."""

    def run(self, op: Op) -> Doing[None]:
        """Let the op's time pass."""


@dataclass(frozen=True)
class Purpose:
    """What an op is for: its stage, its step (none outside of all) and what it carries or does.

    ``role`` is one of ``compute``, ``input``, ``gradients``, ``weights``, ``activations``,
    ``collective``, ``update`` and ``result``.
    """

    stage: str
    step: int | None
    role: str = "compute"


@dataclass(eq=False)
class Op:
    """A piece of GPU work; the fields after `work` are filled in as it happens."""

    name: str
    purpose: Purpose
    work: Work
    table: str = "KERNEL"
    size: int = 0
    copy_kind: int = 0
    ends: tuple[int, int] | None = None
    pageable: bool = False
    route: Route = ()
    stream: Stream = None  # type: ignore[assignment]
    call: Call = None  # type: ignore[assignment]
    arrival: int = 0
    waits: tuple[Op, ...] = ()
    start: int = -1
    end: int = -1
    met: int = -1
    collective: int | None = None
    transfer: int | None = None
    _done: simpy.Event | None = None

    def done(self, env: Clock) -> simpy.Event:
        """Return the event that comes when the op is over."""
        if self._done is None:
            self._done = env.event()
            if self.end >= 0:
                self._done.succeed()
        return self._done

    def finish(self, now: int) -> None:
        """Note that the op is over, and tell those who wait for it."""
        self.end = now
        if self._done is not None:
            self._done.succeed()


@dataclass(frozen=True)
class Lasting:
    """Work that takes a time known beforehand."""

    duration: int

    def run(self, op: Op) -> Doing[None]:
        """Let the op's time pass."""
        yield op.stream.env.timeout(op.stream.paced(self.duration))


@dataclass(frozen=True)
class Moving:
    """A copy over links; it has a copy engine of its stream, and shares the links with others."""

    pageable: bool = False

    def run(self, op: Op) -> Doing[None]:
        """Let the bytes cross the op's route, or pass the host's buffer if that takes longer."""
        env, p = op.stream.env, op.stream.parameters
        yield env.timeout(p.copy_start_ns)
        begun = env.now
        yield op.stream.links.move(op.route, op.size)
        if self.pageable:
            least = round(op.size / p.pageable_bandwidth * 1e9)
            yield env.timeout(max(0, begun + least - env.now))


@dataclass(eq=False)
class Stream:
    """An in-order queue of a GPU's work, launched by one process.

    Parameters
    ----------
    process, device, number
        Whose it is, on which GPU, and its number in the process' context there.
    pace
        Factor on the durations of kernels.
    """

    process: Process
    device: int
    number: int
    pace: float
    rng: Random
    last: Op | None = None
    _pending_waits: list[Op] = field(default_factory=list)

    def __post_init__(self) -> None:
        world = self.process.world
        self.env, self.parameters, self.links = world.env, world.parameters, world.links
        self._queue: simpy.Store = simpy.Store(self.env, world.parameters.queue_capacity)
        self._ops = world.books.ops
        self.env.process(self._run())

    def paced(self, duration: int) -> int:
        """Return a duration on this GPU, with its jitter."""
        spread = self.parameters.kernel_jitter * (2 * self.rng.random() - 1)
        return max(1, round(duration * self.pace * (1 + spread)))

    def wait_for(self, op: Op | None) -> None:
        """Hold what is launched from now on until an op is over."""
        if op is not None and op.stream is not self:
            self._pending_waits.append(op)

    def accept(self, op: Op, call: Call) -> simpy.Event:
        """Take an op from the call that launches it; the event comes when there is room for it."""
        op.stream, op.call = self, call
        op.waits, self._pending_waits = tuple(self._pending_waits), []
        op.arrival = max(self.env.now, call.start + self.parameters.launch_latency_ns)
        self.last = op
        return self._queue.put(op)

    def _run(self) -> Doing[None]:
        p, free = self.parameters, 0
        while True:
            op: Any = yield self._queue.get()
            yield from self._until(op.arrival)
            for other in op.waits:
                if other.end < 0:
                    yield other.done(self.env)
            held = max((other.end for other in op.waits), default=-p.event_gap_ns)
            yield from self._until(max(free + p.stream_gap_ns, held + p.event_gap_ns))
            engine = self.process.world.engine(op)
            if engine is None:
                yield from self._do(op)
            else:
                with engine.request() as granted:
                    yield granted
                    yield from self._do(op)
            free = op.end

    def _do(self, op: Op) -> Doing[None]:
        op.start = self.env.now
        self._ops.append(op)
        yield from op.work.run(op)
        op.finish(self.env.now)

    def _until(self, moment: int) -> Doing[None]:
        if moment > self.env.now:
            yield self.env.timeout(moment - self.env.now)
