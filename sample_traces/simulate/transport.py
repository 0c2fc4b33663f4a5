"""How stages of a pipeline hand micro-batches on: by peer copies, or by NCCL's send and receive.

Both have the same parts: `receive` returns the event of a micro-batch's arrival, `send` hands one
on behind what is on the compute stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from .collectives import SendReceive
from .gpu import Purpose
from .host import Gate
from .parts import launch_copy, peer_ops

if TYPE_CHECKING:
    from .doing import Doing
    from .gpu import Op, Stream
    from .host import Event, Process, Thread
    from .world import World

Pass = tuple[str, int]
"""A pass of a micro-batch: ``F`` or ``B``, and its number."""

Parcel = tuple[int, Pass]
"""What is handed on: a step's pass."""


def _purpose(parcel: Parcel) -> Purpose:
    step, (way, _) = parcel
    return Purpose("FP" if way == "F" else "BP", step, "activations")


class PeerTransport:
    """Copies by the sender; its event goes to the receiver's thread within the process."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._comm: dict[tuple[int, str], Stream] = {}
        self._gates: dict[tuple[int, Parcel], Gate] = {}

    def connect(self, process: Process, gpu: int) -> None:
        """Make a GPU's streams: one for each direction."""
        for way in "FB":
            self._comm[gpu, way] = process.stream(gpu)

    def _gate(self, dst: int, parcel: Parcel) -> Gate:
        return self._gates.setdefault((dst, parcel), Gate(self._world.env))

    def receive(
        self, thread: Thread, ends: tuple[int, int], parcel: Parcel, size: int
    ) -> Doing[Event]:
        """Wait until the sender's thread has launched the copy, and take its event."""
        del size
        gate = self._gate(ends[1], parcel)
        if not gate.event.triggered:
            yield from thread.wait(gate, "pipeline")
        return cast("Event", gate.event.value)

    def send(
        self, thread: Thread, ends: tuple[int, int], parcel: Parcel, size: int, after: Event
    ) -> Doing[None]:
        """Copy once an event has come, and hand over the event of the arrival."""
        for gpu, op in peer_ops(self._world, *ends, size, _purpose(parcel)):
            stream = self._comm[gpu, parcel[1][0]]
            yield from thread.hold(stream, after)
            yield from launch_copy(thread, op, stream)
            after = yield from thread.record(stream)
        self._gate(ends[1], parcel).open(by=thread, value=after)


class NcclTransport:
    """A kernel on each of the two GPUs, which meet; whoever comes first waits inside of it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._streams: dict[tuple[int, str, str], Stream] = {}
        self._calls: dict[tuple[int, Parcel], SendReceive] = {}

    def connect(self, process: Process, gpu: int) -> None:
        """Make a GPU's streams: two for each direction, so that none waits for another's turn."""
        for way in "FB":
            for what in ("ncclSend", "ncclRecv"):
                self._streams[gpu, way, what] = process.stream(gpu)

    def _part(self, ends: tuple[int, int], parcel: Parcel, size: int) -> Op:
        key = (ends[1], parcel)
        if key not in self._calls:
            self._calls[key] = SendReceive(self._world, size, *ends)
        return self._calls[key].part(_purpose(parcel), recent=True)

    def _launch(self, thread: Thread, what: str, stream: Stream, op: Op) -> Doing[None]:
        with (yield from thread.range(what, "NCCL")):
            took = self._world.parameters.collective_call_ns
            yield from thread.launch(op, stream, "cudaLaunchKernelExC_v11060", took)

    def receive(
        self, thread: Thread, ends: tuple[int, int], parcel: Parcel, size: int
    ) -> Doing[Event]:
        """Launch the receiving kernel, and return its event."""
        stream = self._streams[ends[1], parcel[1][0], "ncclRecv"]
        yield from self._launch(thread, "ncclRecv", stream, self._part(ends, parcel, size))
        return (yield from thread.record(stream))

    def send(
        self, thread: Thread, ends: tuple[int, int], parcel: Parcel, size: int, after: Event
    ) -> Doing[None]:
        """Launch the sending kernel once an event has come."""
        stream = self._streams[ends[0], parcel[1][0], "ncclSend"]
        yield from thread.hold(stream, after)
        yield from self._launch(thread, "ncclSend", stream, self._part(ends, parcel, size))


Transport = PeerTransport | NcclTransport
