"""Write what happened as Nsight Systems would record it, labelled as simulated throughout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nsys_writer import NsysWriter, global_pid, global_tid

from .collectives import find_rings
from .host import STREAM_WAITS

if TYPE_CHECKING:
    from pathlib import Path

    from .gpu import Op
    from .host import Call, Process
    from .world import World

PRODUCT = "tracekit sample_traces (simulated)"
SCHEMA = "3.11.1"
GPU_NAME = "Tesla V100-SXM2-16GB (simulated)"
STARTED = 1_511_000_000_000_000_000
"""When the simulated recordings began, in Unix time: no recording was made."""

_COPY_KINDS = {
    1: ("HTOD", "Host-to-Device"),
    2: ("DTOH", "Device-to-Host"),
    10: ("PTOP", "Peer-to-Peer"),
}
_PAGEABLE, _PINNED, _DEVICE = 0, 1, 2
_NONE = 0xFFFFFFFF
_BUS = (0x06, 0x07, 0x0A, 0x0B, 0x85, 0x86, 0x89, 0x8A)
_DOMAINS = {"tracekit": 1, "NCCL": 2}


def write_export(world: World, path: Path) -> None:
    """Write a trace; times count from the start of the simulation."""
    with NsysWriter(path, SCHEMA, PRODUCT) as nsys:
        _describe(nsys, world)
        for process in world.processes:
            _describe_process(nsys, process)
        for kind, (name, label) in _COPY_KINDS.items():
            nsys.insert(
                "ENUM_CUDA_MEMCPY_OPER", id=kind, name=f"CUDA_MEMCPY_KIND_{name}", label=label
            )
        for op in world.books.ops:
            _write_op(nsys, op)
        for call in world.books.calls:
            _write_call(nsys, call)
        _write_host(nsys, world)


def _describe(nsys: NsysWriter, world: World) -> None:
    nsys.meta("EXPORT_SIMULATED", "yes: no GPU was involved; see sample_traces/simulate")
    nsys.session(STARTED, world.books.end + 1_000_000)
    nsys.env("Hostname", "simulated", number=619)
    nsys.capture("DEVICE_DISPLAY_NAME", "simulated")
    nsys.capture("PROCESS_0:COMMAND", "simulate")
    nsys.capture("COLLECT_GPU_MEMORY_USAGE", "true")
    for gpu in range(world.job.gpus):
        nsys.gpu(
            gpu, name=GPU_NAME, bus=f"0000:{_BUS[gpu]:02X}:00.0", chipName="GV100",
            totalMemory=16_945_512_448, memoryBandwidth=world.parameters.memory_bandwidth,
            smCount=80, computeMajor=7, computeMinor=0,
        )  # fmt: skip


def _describe_process(nsys: NsysWriter, process: Process) -> None:
    nsys.process(process.pid, "python3 (simulated)")
    for thread in process.threads:
        nsys.thread_name(process.pid, thread.tid, thread.name)
    used = {held.domain for held in process.world.books.ranges if held.thread.process is process}
    for name, number in _DOMAINS.items():
        if name in used or (name == "tracekit" and "layer" in used):
            nsys.domain(process.pid, number, name, start=1_000_000 * number)
    for device, streams in process.streams.items():
        where = {"hwId": 0, "vmId": 1, "processId": process.pid,
                 "contextId": process.context(device)}  # fmt: skip
        nsys.insert("TARGET_INFO_CUDA_CONTEXT_INFO", **where, deviceId=device, nullStreamId=7)
        for stream in streams[1:]:
            nsys.insert("TARGET_INFO_CUDA_STREAM", **where, streamId=stream.number, flag=2)


def _write_op(nsys: NsysWriter, op: Op) -> None:
    process, device = op.stream.process, op.stream.device
    where: dict[str, Any] = {
        "correlation": op.call.correlation, "pid": process.pid, "device": device,
        "context": process.context(device), "stream": op.stream.number,
    }  # fmt: skip
    if op.table == "KERNEL":
        blocks: dict[str, Any] = {}
        if op.collective is not None:
            gpus = tuple(range(process.world.job.gpus))
            blocks = {"gridX": len(find_rings(process.world.machine, gpus)), "blockX": 256}
        nsys.kernel(op.start, op.end, name=op.name, **where, **blocks)
        return
    ends: dict[str, Any] = {}
    if op.ends is not None:
        src, dst = op.ends
        ends = {"src_device": src, "dst_device": dst, "srcContextId": process.context(src),
                "dstContextId": process.context(dst)}  # fmt: skip
    host = _PAGEABLE if op.pageable else _PINNED
    kinds = {1: (host, _DEVICE), 2: (_DEVICE, host), 10: (_DEVICE, _DEVICE)}[op.copy_kind]
    nsys.memcpy(
        op.start, op.end, kind=op.copy_kind, bytes=op.size, src_kind=kinds[0], dst_kind=kinds[1],
        **where, **ends,
    )  # fmt: skip


def _write_call(nsys: NsysWriter, call: Call) -> None:
    process = call.thread.process
    if call.end < 0:
        return
    nsys.call(
        call.start, call.end, correlation=call.correlation, pid=process.pid, tid=call.thread.tid,
        name=call.name,
    )  # fmt: skip
    if call.stream is None:
        return
    row = {
        "deviceId": call.stream.device, "contextId": process.context(call.stream.device),
        "correlationId": call.correlation, "globalPid": global_pid(process.pid),
        "streamId": call.stream.number, "eventId": _NONE if call.event is None else call.event,
    }  # fmt: skip
    if call.sync:
        stream = row["streamId"] if call.sync in (STREAM_WAITS, 3) else _NONE
        nsys.insert(
            "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", start=call.start, end=call.end,
            syncType=call.sync, **(row | {"streamId": stream}),
        )  # fmt: skip
    else:
        nsys.insert("CUPTI_ACTIVITY_KIND_CUDA_EVENT", **row)


def _write_host(nsys: NsysWriter, world: World) -> None:
    books = world.books
    if world.job.ranges != "none":
        first = world.processes[0].threads[0]
        for number, (key, value) in enumerate(world.job.labels().items()):
            nsys.mark(
                2_000_000 + number, f"tracekit.label {key}={value}", pid=first.process.pid,
                tid=first.tid, domain=_DOMAINS["tracekit"],
            )  # fmt: skip
    for held in sorted(books.ranges, key=lambda held: (held.start, -held.end)):
        nsys.push_pop(
            held.start, held.end, held.name, pid=held.thread.process.pid, tid=held.thread.tid,
            domain=_DOMAINS.get(held.domain, _DOMAINS["tracekit"]),
            registered=held.domain == "NCCL",
        )  # fmt: skip
    for made in sorted(books.system_calls, key=lambda made: (made.start, made.thread.tid)):
        nsys.insert(
            "OSRT_API", start=made.start, end=made.end, eventClass=27,
            globalTid=global_tid(made.thread.process.pid, made.thread.tid),
            nameId=nsys.string(made.name),
        )  # fmt: skip
    for each in books.memory:
        nsys.memory(
            each.at, each.address, each.size, frees=each.frees, pid=each.call.thread.process.pid,
            device=each.device, contextId=each.call.thread.process.context(each.device),
            name=each.what, correlationId=each.call.correlation,
        )  # fmt: skip
