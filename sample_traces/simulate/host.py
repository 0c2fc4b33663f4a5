"""Host processes and their threads, each of which keeps a log of what it does.

The log is what says why a GPU waits: at any time a thread computes, is in a call, waits in one for
the GPU, waits for the data loader, or waits for another thread.
"""

from __future__ import annotations

from bisect import bisect_right
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from .gpu import Stream

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import simpy

    from .doing import Clock, Doing
    from .gpu import Op
    from .world import World

STREAM_WAITS, STREAM_SYNC, DEVICE_SYNC = 2, 3, 4
"""Kinds of synchronisation, as nsys numbers them."""


@dataclass(frozen=True)
class Activity:
    """What a thread does from some time on, with the gate or the ops that it waits for."""

    start: int
    doing: str
    detail: str = ""
    gate: Gate | None = None
    ops: tuple[Op, ...] = ()


class Gate:
    """What a thread waits for on the host; whoever opens it is remembered as its keeper."""

    def __init__(self, env: Clock) -> None:
        self.event = env.event()
        self.keeper: Thread | None = None

    def open(self, by: Thread | None, value: object = None) -> None:
        """Let the waiting threads go on."""
        self.keeper = by
        self.event.succeed(value)


class Barrier:
    """Where some threads of a process wait for each other, again and again."""

    def __init__(self, env: Clock, threads: int) -> None:
        self._env, self._threads = env, threads
        self._gate, self._arrived = Gate(env), 0

    def pass_by(self, thread: Thread) -> Doing[None]:
        """Wait until all threads are here."""
        gate = self._gate
        self._arrived += 1
        if self._arrived == self._threads:
            self._gate, self._arrived = Gate(self._env), 0
            gate.open(by=thread)
        else:
            yield from thread.wait(gate)


@dataclass(frozen=True)
class Event:
    """A CUDA event: what had been launched last on a stream when it was recorded."""

    number: int
    op: Op | None


@dataclass(eq=False)
class Call:
    """A CUDA call. `waited` is the stream (or device's context) of a synchronisation."""

    thread: Thread
    name: str
    start: int
    correlation: int
    end: int = -1
    sync: int = 0
    stream: Stream | None = None
    event: int | None = None


@dataclass(frozen=True)
class Range:
    """An NVTX range."""

    thread: Thread
    name: str
    start: int
    end: int
    domain: str


@dataclass(frozen=True)
class SystemCall:
    """A call of the operating system: a wait, or the fork of a process."""

    thread: Thread
    start: int
    end: int
    name: str = "pthread_cond_wait"


@dataclass(frozen=True)
class Memory:
    """An allocation of GPU memory, or its release."""

    at: int
    call: Call
    device: int
    address: int
    size: int
    frees: bool
    what: str


@dataclass(eq=False)
class Process:
    """A process: its threads, and its streams on the GPUs that it uses."""

    world: World
    pid: int
    correlation: int = 100
    events: int = 0
    free: dict[str, int] = field(default_factory=dict)
    threads: list[Thread] = field(default_factory=list)
    streams: dict[int, list[Stream]] = field(default_factory=dict)

    def thread(self, name: str) -> Thread:
        """Start a thread; the first is the main one."""
        made = Thread(self, self.pid + 11 * len(self.threads), name)
        self.threads.append(made)
        return made

    def stream(self, device: int) -> Stream:
        """Make a stream on a GPU."""
        number = 7 + 6 * len(self.streams.setdefault(device, []))
        pace = self.world.job.gpu_pace.get(device, 1.0)
        rng = Random(f"{self.world.job.seed} stream {device} {number}")
        self.streams[device].append(Stream(self, device, number, pace, rng))
        return self.streams[device][-1]

    def locked(self, lock: str, ns: int, share: float) -> int:
        """Take a lock for a share of some time; return how long it takes with waiting for that.

        Threads get it in the order in which they ask, so it is enough to know when it is free.
        """
        if not self.world.job.locks or not share:
            return ns
        now = self.world.env.now
        begin = max(now, self.free.get(lock, 0))
        self.free[lock] = begin + round(ns * share)
        return begin - now + ns

    def context(self, device: int) -> int:
        """Return the number of this process' context on a GPU."""
        return list(self.streams).index(device) + 1


class Thread:
    """A host thread; its methods are to be waited for with ``yield from``."""

    def __init__(self, process: Process, tid: int, name: str) -> None:
        self.process, self.tid, self.name = process, tid, name
        self.world = process.world
        self.env, self.books = self.world.env, self.world.books
        self._p = self.world.parameters
        self._rng = Random(f"{self.world.job.seed} thread {process.pid} {tid}")
        self.factor = 1.0
        self._log = [Activity(0, "start")]

    # what it does

    def _begins(
        self, doing: str, detail: str = "", gate: Gate | None = None, ops: tuple[Op, ...] = ()
    ) -> None:
        if self._log[-1].start == self.env.now:
            self._log.pop()
        self._log.append(Activity(self.env.now, doing, detail, gate, ops))

    def at(self, moment: int) -> Activity:
        """Return what the thread was doing at a moment."""
        return self._log[bisect_right(self._log, moment, key=lambda done: done.start) - 1]

    def until(self, moment: int) -> int | None:
        """Return when the thread began something else than what it did at a moment."""
        index = bisect_right(self._log, moment, key=lambda done: done.start)
        return self._log[index].start if index < len(self._log) else None

    def spend(self, ns: float, doing: str = "host_work", detail: str = "") -> Doing[None]:
        """Be busy for about some time."""
        self._begins(doing, detail)
        yield self.env.timeout(self._about(ns))

    def _about(self, ns: float) -> int:
        spread = self._p.host_jitter * (2 * self._rng.random() - 1)
        return max(1, round(ns * self.factor * (1 + spread)))

    # calls

    def _enter(self, name: str, doing: str = "call", ops: tuple[Op, ...] = ()) -> Call:
        self._begins(doing, name, ops=ops)
        self.process.correlation += 1
        call = Call(self, name, self.env.now, self.process.correlation)
        self.books.calls.append(call)
        return call

    def _leave(self, call: Call) -> None:
        call.end = self.env.now
        self._begins("host_work")

    def _calling(self, ns: float) -> simpy.Timeout:
        """Be in a call for about some time, and before it until the driver's lock is free."""
        took = self._about(ns)
        return self.env.timeout(self.process.locked("driver", took, self._p.driver_lock_share))

    def launch(
        self, op: Op, stream: Stream, name: str = "cudaLaunchKernel_v7000", ns: float | None = None,
        *, within: bool = False,
    ) -> Doing[None]:  # fmt: skip
        """Launch an op, after the framework's own time; the call blocks if the queue is full.

        With `within` it is of the same operator of the framework as the one before.
        """
        if not within:
            self._begins("host_work")
            own = self._about(self._p.operator_ns)
            share = self._p.interpreter_lock_share
            yield self.env.timeout(self.process.locked("interpreter", own, share))
        call = self._enter(name)
        yield self._calling(self._p.launch_call_ns if ns is None else ns)
        yield stream.accept(op, call)
        if op.pageable:
            self._begins("waiting_call", name, ops=(op,))
            yield op.done(self.env)
        self._leave(call)

    def record(self, stream: Stream) -> Doing[Event]:
        """Record an event: it comes when what has been launched on a stream until now is done."""
        yield from self.spend(300)
        call = self._enter("cudaEventRecord_v3020")
        self.process.events += 1
        event = Event(self.process.events, stream.last)
        call.stream, call.event = stream, event.number
        yield self._calling(self._p.event_call_ns)
        self._leave(call)
        return event

    def hold(self, stream: Stream, event: Event) -> Doing[None]:
        """Let what is launched on a stream from now on wait for an event."""
        yield from self.spend(300)
        call = self._enter("cudaStreamWaitEvent_v3020")
        call.stream, call.event, call.sync = stream, event.number, STREAM_WAITS
        yield self._calling(self._p.event_call_ns)
        self._leave(call)
        stream.wait_for(event.op)

    def synchronise(self, streams: Sequence[Stream], name: str) -> Doing[None]:
        """Wait in a call until all that was launched on some streams of a GPU is done."""
        yield from self.spend(1_000)
        call = self._enter(name, "waiting_call", _last(streams))
        call.stream = streams[0]
        call.sync = STREAM_SYNC if "Stream" in name else DEVICE_SYNC
        yield self._calling(self._p.event_call_ns)
        yield from self._drain(_last(streams))
        self._leave(call)

    def _drain(self, ops: Iterable[Op]) -> Doing[None]:
        waited = False
        for op in ops:
            if op.end < 0:
                yield op.done(self.env)
                waited = True
        if waited:
            yield self.env.timeout(self._about(self._p.sync_return_ns))

    def allocate(self, device: int, size: int, what: str) -> Doing[int]:
        """Allocate GPU memory."""
        yield from self.spend(2_000)
        call = self._enter("cudaMalloc_v3020")
        yield self.env.timeout(self._about(self._p.allocate_ns))
        self._leave(call)
        address = self.books.address(device, size)
        self.books.memory.append(
            Memory(call.end - 1, call, device, address, size, frees=False, what=what)
        )
        return address

    def free(self, device: int, address: int) -> Doing[None]:
        """Release GPU memory, which waits until the GPU is idle."""
        yield from self.spend(2_000)
        running = _last(self.process.streams[device])
        call = self._enter("cudaFree_v3020", "waiting_call", running)
        yield from self._drain(running)
        self._begins("call", call.name)
        yield self.env.timeout(self._about(self._p.free_ns))
        self._leave(call)
        size, what = self.books.allocated[address]
        self.books.memory.append(
            Memory(call.end - 1, call, device, address, size, frees=True, what=what)
        )

    # other threads and processes

    def fork(self, ns: float) -> Doing[None]:
        """Start another process."""
        start = self.env.now
        yield from self.spend(ns)
        self.books.system_calls.append(SystemCall(self, start, self.env.now, "fork"))

    def wait(self, gate: Gate, doing: str = "await") -> Doing[Any]:
        """Sleep until a gate is open, and wake up; return what its keeper hands over."""
        start = self.env.now
        self._begins(doing, "", gate)
        value = yield gate.event
        yield self.env.timeout(self._about(self._p.wake_ns))
        self.books.system_calls.append(SystemCall(self, start, self.env.now))
        self._begins("host_work")
        return value

    def range(self, name: str, domain: str = "tracekit") -> Doing[AbstractContextManager[None]]:
        """Open an NVTX range: ``with (yield from thread.range(name)):``."""
        wanted = self.world.job.wants_range(domain)
        if wanted:
            yield from self.spend(self._p.range_ns)
        return self._held(name, domain, wanted=wanted)

    @contextmanager
    def _held(self, name: str, domain: str, *, wanted: bool) -> Iterator[None]:
        start = self.env.now
        yield
        if wanted:
            self.books.ranges.append(Range(self, name, start, self.env.now, domain))


def _last(streams: Sequence[Stream]) -> tuple[Op, ...]:
    """Return what was launched last on each stream."""
    return tuple(stream.last for stream in streams if stream.last is not None)
