"""A small model of how host threads feed the streams of GPUs.

A host thread has a clock; each call takes a few microseconds of it. A stream runs what it was given
in order: an op starts when its launch has reached the GPU, the op before it on the stream is done
and what it depends on is done. A collective starts on each rank as other ops do and ends on all of
them together, when the last one has joined and the bytes have moved.

Every op carries the stage it was launched for. That is the truth a trace does not hold.
"""

from __future__ import annotations

import csv
import re
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nsys_writer import NsysWriter, global_pid, global_tid

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

PRODUCT = "tracekit sample_traces (simulated)"
"""What the traces name as their product, so that none is taken for a recorded one."""

HTOD, DTOH, DTOD, PTOP = 1, 2, 8, 10
_COPY_KINDS = {
    HTOD: ("HTOD", "Host-to-Device"),
    DTOH: ("DTOH", "Device-to-Host"),
    DTOD: ("DTOD", "Device-to-Device"),
    PTOP: ("PTOP", "Peer-to-Peer"),
}
_TABLES = {
    "kernel": "CUPTI_ACTIVITY_KIND_KERNEL",
    "memcpy": "CUPTI_ACTIVITY_KIND_MEMCPY",
    "memset": "CUPTI_ACTIVITY_KIND_MEMSET",
}


@dataclass(frozen=True)
class Work:
    """What a launch asks a GPU to do: the kind of row it makes, and how long it takes alone."""

    kind: str
    duration: int
    call: str
    row: dict[str, Any]


def kernel(name: str, us: float, *, call: str = "cudaLaunchKernel_v7000") -> Work:
    """Describe a kernel that takes `us` microseconds."""
    return Work("kernel", round(us * 1_000), call, {"name": name})


def copy(
    kind: int, size: int, gb_s: float, *, call: str = "cudaMemcpyAsync_v3020", **row: Any
) -> Work:
    """Describe a copy of `size` bytes at `gb_s` GB/s."""
    return Work("memcpy", 1_000 + round(size / gb_s), call, {"kind": kind, "bytes": size, **row})


def fill(size: int, *, call: str = "cudaMemsetAsync_v3020") -> Work:
    """Describe a memset of `size` bytes."""
    return Work("memset", 1_000 + size // 1_000, call, {"bytes": size})


@dataclass
class Thread:
    """A host thread and its clock; one of greater `pace` takes longer over everything."""

    pid: int
    tid: int
    now: int
    pace: float = 1.0


@dataclass
class Stream:
    """An in-order queue of a GPU; `free` is when its last op ends."""

    pid: int
    device: int
    context: int
    number: int
    pace: float = 1.0
    free: int = 0


@dataclass
class Call:
    """A CUDA call; one that waits for a stream names it, and `finish` numbers it."""

    thread: Thread
    name: str
    start: int
    end: int
    waits_for: Stream | None = None
    correlation: int = 0


@dataclass
class Op:
    """A piece of GPU work, the call that launched it, and the stage it belongs to."""

    work: Work
    stage: str
    stream: Stream
    launch: Call
    ready: int
    start: int = 0
    end: int = 0


@dataclass(frozen=True)
class Range:
    """An NVTX range; one of style ``start_end`` may end on another thread."""

    style: str
    name: str
    thread: Thread
    start: int
    end: int
    domain: str | None = None
    registered: bool = False
    end_thread: Thread | None = None


@dataclass(frozen=True)
class Sleep:
    """A call into the operating system in which a thread waits."""

    thread: Thread
    name: str
    start: int
    end: int


@dataclass
class Simulation:
    """Everything that happened, in the order in which it was simulated."""

    rng: random.Random
    ops: list[Op] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    ranges: list[Range] = field(default_factory=list)
    sleeps: list[Sleep] = field(default_factory=list)

    def jitter(self, value: float, spread: float) -> int:
        """Return `value` with up to `spread` (a share of it) added or taken away."""
        return round(value * (1 + spread * (2 * self.rng.random() - 1)))

    # host threads

    def spend(self, thread: Thread, us: float) -> None:
        """Let a thread be busy for about `us` microseconds."""
        thread.now += max(1, self.jitter(us * 1_000 * thread.pace, 0.4))

    def call(
        self, thread: Thread, name: str, us: float = 4.5, *, waits_for: Stream | None = None
    ) -> Call:
        """Let a thread make a CUDA call."""
        start = thread.now
        self.spend(thread, us)
        if waits_for is not None and waits_for.free > thread.now:
            thread.now = waits_for.free + self.jitter(6_000, 0.3)
        made = Call(thread, name, start, thread.now, waits_for)
        self.calls.append(made)
        self.spend(thread, 1.5)
        return made

    def sleep(self, thread: Thread, until: int, name: str = "pthread_cond_wait") -> None:
        """Let a thread wait in the operating system until some time."""
        if until > thread.now:
            self.sleeps.append(Sleep(thread, name, thread.now, until))
            thread.now = until
        self.spend(thread, 3)

    @contextmanager
    def range(
        self, thread: Thread, name: str, *, domain: str | None = None, registered: bool = False
    ) -> Iterator[None]:
        """Hold a push/pop range open."""
        self.spend(thread, 0.6)
        start = thread.now
        self.spend(thread, 0.6)
        yield
        self.spend(thread, 0.4)
        end = thread.now
        self.ranges.append(Range("push_pop", name, thread, start, end, domain, registered))
        self.spend(thread, 0.4)

    @contextmanager
    def process_range(
        self, thread: Thread, name: str, *, ended_by: Thread | None = None
    ) -> Iterator[None]:
        """Hold a start/end range open; `ended_by` is the thread that ends it, if another."""
        self.spend(thread, 0.6)
        start = thread.now
        self.spend(thread, 0.6)
        yield
        closer = ended_by or thread
        self.spend(closer, 0.6)
        end = closer.now
        self.ranges.append(Range("start_end", name, thread, start, end, end_thread=ended_by))
        self.spend(closer, 0.4)

    # GPU work

    def join(self, thread: Thread, stream: Stream, stage: str, work: Work, *, after: int = 0) -> Op:
        """Let a thread launch its part of a collective; `complete` gives it its times."""
        made = self.call(thread, work.call)
        arrival = made.start + self.jitter(5_000, 0.2)
        ready = max(arrival, after + self.jitter(1_500, 0.3))
        self.ops.append(Op(work, stage, stream, made, ready))
        return self.ops[-1]

    def launch(
        self, thread: Thread, stream: Stream, stage: str, work: Work, *, after: int = 0
    ) -> Op:
        """Let a thread launch work on a stream; it starts later than `after`."""
        op = self.join(thread, stream, stage, work, after=after)
        op.start = max(op.ready, stream.free + self.jitter(900, 0.3))
        op.end = op.start + self.jitter(work.duration * stream.pace, 0.04)
        stream.free = op.end
        return op

    def complete(self, parts: Sequence[Op]) -> None:
        """Let a collective happen: each rank waits for the last one, then the bytes move."""
        for op in parts:
            op.start = max(op.ready, op.stream.free + self.jitter(900, 0.3))
        done = max(op.start for op in parts) + self.jitter(parts[0].work.duration, 0.05)
        for op in parts:
            op.end = op.stream.free = done + self.jitter(800, 0.9)

    # the outcome

    @property
    def end(self) -> int:
        """When the last thing ended."""
        return max(thing.end for things in (self.ops, self.calls, self.ranges) for thing in things)

    def finish(self) -> None:
        """Give the calls of each process their numbers, by time, and check the outcome.

        Raises
        ------
        ValueError
            If an op starts before its launch, or before its stream is free.
        """
        count: dict[int, int] = {}
        for made in sorted(self.calls, key=lambda made: made.start):
            made.correlation = count.get(made.thread.pid, 100) + 1
            count[made.thread.pid] = made.correlation
        free: dict[int, int] = {}
        for op in self.ops:
            if not max(op.launch.start, free.get(id(op.stream), 0)) <= op.start < op.end:
                raise ValueError(f"starts too early: {op}")
            free[id(op.stream)] = op.end

    def write(self, nsys: NsysWriter, domains: Mapping[int, Mapping[str, int]]) -> None:
        """Write everything; `domains` numbers the NVTX domains of each process."""
        for kind, (name, label) in _COPY_KINDS.items():
            nsys.insert(
                "ENUM_CUDA_MEMCPY_OPER", id=kind, name=f"CUDA_MEMCPY_KIND_{name}", label=label
            )
        for op in sorted(self.ops, key=lambda op: op.start):
            _write_op(nsys, op)
        for made in sorted(self.calls, key=lambda made: made.start):
            _write_call(nsys, made)
        for held in sorted(self.ranges, key=lambda held: held.start):
            number = domains[held.thread.pid][held.domain] if held.domain else 0
            _write_range(nsys, held, number)
        for nap in sorted(self.sleeps, key=lambda nap: nap.start):
            nsys.insert(
                "OSRT_API", start=nap.start, end=nap.end, eventClass=27,
                globalTid=global_tid(nap.thread.pid, nap.thread.tid), nameId=nsys.string(nap.name),
            )  # fmt: skip

    def write_truth(self, path: Path) -> None:
        """Write the stage of every op as ``pid,correlation,table,stage,iteration``.

        The iteration is that of the range ``iteration N`` of the process in which the op was
        launched, and empty where it was launched outside of all of them.
        """
        steps = self._iterations()
        with path.open("w", newline="", encoding="utf-8") as file:
            rows = csv.writer(file, lineterminator="\n")
            rows.writerow(("pid", "correlation", "table", "stage", "iteration"))
            for op in sorted(self.ops, key=lambda op: (op.stream.pid, op.launch.correlation)):
                table, made = _TABLES[op.work.kind], op.launch
                within = (
                    number
                    for start, end, number in steps.get(made.thread.pid, ())
                    if start <= made.start < end
                )
                rows.writerow((op.stream.pid, made.correlation, table, op.stage, next(within, "")))

    def _iterations(self) -> dict[int, list[tuple[int, int, str]]]:
        """Return when which iteration began and ended, by process."""
        found: dict[int, list[tuple[int, int, str]]] = {}
        for held in self.ranges:
            if number := re.fullmatch(r"iteration (\d+)", held.name):
                step = (held.start, held.end, number[1])
                found.setdefault(held.thread.pid, []).append(step)
        return found


def _write_op(nsys: NsysWriter, op: Op) -> None:
    methods: dict[str, Callable[..., None]] = {
        "kernel": nsys.kernel, "memcpy": nsys.memcpy, "memset": nsys.memset,
    }  # fmt: skip
    methods[op.work.kind](
        op.start, op.end, correlation=op.launch.correlation, pid=op.stream.pid,
        device=op.stream.device, context=op.stream.context, stream=op.stream.number,
        **op.work.row,
    )  # fmt: skip


def _write_call(nsys: NsysWriter, made: Call) -> None:
    nsys.call(
        made.start, made.end, correlation=made.correlation, pid=made.thread.pid,
        tid=made.thread.tid, name=made.name, event_class=int(not made.name.startswith("cuda")),
    )  # fmt: skip
    if made.waits_for is not None:
        nsys.insert(
            "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", start=made.start, end=made.end,
            deviceId=made.waits_for.device, contextId=made.waits_for.context,
            streamId=made.waits_for.number, correlationId=made.correlation,
            globalPid=global_pid(made.thread.pid), syncType=3, eventId=0xFFFFFFFF,
        )  # fmt: skip


def _write_range(nsys: NsysWriter, held: Range, domain: int) -> None:
    name, thread = held.name, held.thread
    if held.style == "push_pop":
        nsys.push_pop(
            held.start, held.end, name, pid=thread.pid, tid=thread.tid,
            domain=domain, registered=held.registered,
        )  # fmt: skip
    else:
        nsys.start_end(
            held.start, held.end, name, pid=thread.pid, tid=thread.tid,
            end_tid=held.end_thread.tid if held.end_thread else None,
        )  # fmt: skip
