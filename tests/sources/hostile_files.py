"""Good files of each format, and what becomes of damaged copies of them."""

from __future__ import annotations

import hashlib
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from amd_builder import GPU_AGENT, HOST_AGENT, RocpdBuilder, RocprofBuilder, RpdBuilder
from columnar_builder import write_columnar
from damages import (
    damage_file,
    damage_json,
    damage_lines,
    damage_matrix,
    damage_tables,
    damage_tree,
    damage_varints,
)
from kineto_helpers import event, kernel, launch, text_of, write
from nsys_builder import NsysBuilder
from nvprof_builder import NvprofBuilder
from plain_readers import (
    PlainFolder,
    PlainSqlite,
    UnreadableError,
    assert_same,
    numbers_of,
    plain_kineto,
    plain_nsys,
    plain_nvprof,
    plain_nvprof_csv,
    plain_rocpd,
    plain_rocprof,
    plain_rpd,
    plain_xplane,
)
from plain_texts import (
    assert_same_log,
    assert_same_matrix,
    plain_matrix,
    plain_nccl_log,
    text_of_file,
)
from xplane_builder import block, plane

from tracekit.attribution import Rules, attribute
from tracekit.errors import TracekitError
from tracekit.machine import read_nccl_log, read_topology
from tracekit.machine._topo_matrix import parse_matrix
from tracekit.model import Trace
from tracekit.sources import read

RIGHT, ERROR, UNJUDGED = "right", "error", "read, where the plain reader cannot"
PATIENCE_SECONDS = 60
STEPS = 4


def _numbers(path: Path, *, answer: bool, from_first: bool = False) -> Any:
    """Return what tracekit reads of a trace, and ask it what anybody asks where that is wanted."""
    trace = read(path)
    numbers = numbers_of(trace)
    if answer:
        _answer(trace)
    return numbers.from_first() if from_first else numbers


_FROM_FIRST = partial(_numbers, from_first=True)
"""Of formats whose times count from the first event, and not from the start of the session."""


def _matrix(path: Path, *, answer: bool) -> Any:
    machine = read_topology(path)
    return parse_matrix(text_of_file(path), str(path)), machine


def _log(path: Path, *, answer: bool) -> Any:
    return read_nccl_log(path)


@dataclass(frozen=True)
class Kind:
    """A format: how a small file of it is made, damaged, and read in plain Python."""

    name: str
    make: Callable[[Path], Path]
    plain: Callable[[Path], Any]
    damages: tuple[Callable[[Path, random.Random], str], ...]
    read: Callable[..., Any] = _numbers
    same: Callable[[Any, Any], None] = assert_same


def make_nsys(folder: Path, schema: str = "3.17.2") -> Path:
    """Write an export of nsys with a little of everything."""
    with NsysBuilder(folder / "t.sqlite", schema=schema) as nsys:
        nsys.gpu(0)
        nsys.process(100, "python3")
        nsys.thread_name(100, 100, "main")
        nsys.domain(100, 1, "NCCL")
        nsys.session(1_700_000_000_000_000_000, 100_000)
        for step in range(STEPS):
            at = 1000 * step
            nsys.push_pop(at, at + 990, f"iteration {step}")
            nsys.push_pop(at + 10, at + 300, "forward", registered=True)
            nsys.launch(at + 20, at + 30, at + 100, name="gemm<float>(int)")
            nsys.start_end(at + 310, at + 600, "backward")
            nsys.launch(at + 320, at + 330, at + 500, name="dgrad", tid=101)
            nsys.push_pop(at + 610, at + 900, "ncclAllReduce", domain=1)
            nsys.launch(at + 620, at + 640, at + 800, name="ncclDevKernel_AllReduce(x)")
            nsys.memcpy(at + 810, at + 850, kind=1, bytes=4096, correlation=step)
            nsys.memset(at + 860, at + 870, bytes=16, correlation=90 + step)
            nsys.call(at + 805, at + 809, correlation=step)
    return nsys.path


def make_columnar(folder: Path, suffix: str) -> Path:
    """Write the same as a folder of files."""
    source = make_nsys(folder)
    made = write_columnar(source, folder / "t_dir", suffix)
    source.unlink()
    return made


def make_nvprof(folder: Path) -> Path:
    """Write a database of nvprof."""
    with NvprofBuilder(folder / "t.nvvp") as nvprof:
        nvprof.device(0)
        for step in range(STEPS):
            at, number = 1000 * step + 1, 10 * step
            nvprof.range(at, at + 900, f"iteration {step}")
            nvprof.range(at + 10, at + 300, "forward")
            nvprof.call(at + 20, at + 25, correlation=number + 1)
            nvprof.kernel(at + 30, at + 100, correlation=number + 1, name="_Z4gemmIfEvi")
            nvprof.call(at + 120, at + 125, correlation=number + 2)
            nvprof.call(at + 121, at + 124, correlation=number + 2, table="DRIVER")
            nvprof.memcpy(at + 130, at + 200, correlation=number + 2, bytes=64, copyKind=1)
            nvprof.memset(at + 210, at + 220, correlation=number + 3, bytes=8)
            nvprof.peer_copy(at + 230, at + 280, correlation=number + 4, bytes=32, copyKind=10)
    return nvprof.path


def make_nvprof_csv(folder: Path) -> Path:
    """Write a GPU trace as nvprof prints it."""
    header = (
        '"Start","Duration","Size","SrcMemType","DstMemType","Device","Context","Stream",'
        '"Name","Correlation_ID"'
    )
    gpu = '"Tesla V100-SXM2-16GB (0)","1"'
    lines = ["==77== NVPROF is profiling process 77, command: python train.py", header,
             "ms,us,B,,,,,,,"]  # fmt: skip
    for step in range(2 * STEPS):
        number = 10 * step
        lines += [
            f'{step}.500001,2.001000,,,,{gpu},"7","void gemm<float, int>(int)",{number}',
            f'{step}.600000,1.5,128,"Pinned","Device",{gpu},"8","[CUDA memcpy HtoD]",{number + 1}',
            f'{step}.700000,0.5,64,"Device",,{gpu},"7","[CUDA memset]",{number + 2}',
        ]
    path = folder / "t.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def make_kineto(folder: Path, name: str = "t.json") -> Path:
    """Write a trace of PyTorch."""
    events = []
    for step in range(STEPS):
        at, number = 1000.0 * step + 0.125, 10 * step
        events += [
            event("user_annotation", f"ProfilerStep#{step}", at, 950.5),
            event("cpu_op", "aten::mm", at + 10, 80, Sequence_number=step),
            launch(at + 20, 5, number + 1),
            kernel("gemm", at + 30.001, 20.5, number + 1),
            launch(at + 50, 5, number + 2),
            event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", at + 60, 7, pid=0, tid=7,
                  device=0, stream=7, correlation=number + 2, bytes=4096),
            event("gpu_memset", "Memset (Device)", at + 70, 1, pid=0, tid=7, device=0, stream=7,
                  correlation=number + 3, bytes=16),
        ]  # fmt: skip
    return write(folder / name, text_of(*events))


def make_rpd(folder: Path) -> Path:
    """Write an RPD."""
    with RpdBuilder(folder / "t.rpd") as rpd:
        for step in range(STEPS):
            at = 1000 * step
            rpd.marker(at, at + 950, f"step {step}")
            rpd.marker(at + 10, at + 300, "aten::mm", sequence=step)
            rpd.kernel(at + 30, at + 100, "_Z4gemmIfEvi", stream="0x7f")
            rpd.copy(at + 400, at + 450, "CopyHostToDevice", 4096)
            rpd.copy(at + 500, at + 550, "CopyDeviceToDevice", 64, ops=2)
            rpd.op(at + 600, at + 620, "FillBuffer")
            graph = rpd.call(at + 700, at + 710, "hipGraphLaunch")
            rpd.op(at + 720, at + 800, "Task", "node", graph)
    return rpd.path


def make_rocpd(folder: Path, *, newer: bool) -> Path:
    """Write a database of rocprofv3."""
    with RocpdBuilder(folder / "t.db", newer=newer) as rocpd:
        for step in range(STEPS):
            at, number = 1000 * step, 10 * step
            rocpd.marker(at, at + 900, f"step {step}")
            rocpd.region(at + 10, at + 20, "hipLaunchKernel", correlation=number + 2)
            rocpd.kernel(at + 30, at + 100, "void gemm<float>(int)", correlation=number + 2)
            rocpd.copy(at + 200, at + 250, "HOST_TO_DEVICE", 64, 0, 4, number + 3)
            rocpd.copy(at + 300, at + 350, "DEVICE_TO_DEVICE", 8, 4, 5)
            rocpd.region(at + 400, at + 410, "ncclAllReduce", "RCCL_API")
            rocpd.allocation(at + 500, "ALLOC", 256 * step, 64, 4)
    return rocpd.path


def make_rocprof(folder: Path) -> Path:
    """Write JSON of rocprofv3."""
    rocprof = RocprofBuilder()
    for step in range(STEPS):
        at, number = 1000 * step, 10 * step
        rocprof.marker(at, at + 900, f"step {step}", number + 1)
        rocprof.call(at + 10, at + 20, "hipLaunchKernel", number + 2)
        rocprof.kernel(at + 30, at + 100, "void gemm<float>(int)", correlation=number + 2)
        rocprof.copy(at + 200, at + 250, "HOST_TO_DEVICE", 64, HOST_AGENT, GPU_AGENT, number + 3)
        rocprof.copy(at + 300, at + 350, "DEVICE_TO_DEVICE", 8, GPU_AGENT, GPU_AGENT + 1)
        rocprof.record("rccl_api", "ncclAllReduce", at + 400, at + 410, correlation=number + 4)
    return rocprof.write(folder / "t.json")


def make_xplane(folder: Path, *, annotated: bool) -> Path:
    """Write a profile of XLA."""
    kernels, copies, launches, host = [], [], [], []
    for step in range(STEPS):
        at, number = 10**6 * step, 10 * step
        details = " grid:4,2,1 block:64,1,1 occ_pct:0"
        path = {"correlation_id": number + 1, "name": "jit(f)/transpose(jvp(g))/dot_general"}
        kernels.append(("fusion", at + 500_400, 20_000, {"correlation_id": number + 1,
                                                         "kernel_details": details}))  # fmt: skip
        copied = {"correlation_id": number + 2, "memcpy_details": "kind:Unknown size:4096 dest:2"}
        copies.append(("MemcpyH2D", at + 600_000, 10_000, copied))
        launches.append(("hipLaunchKernel", at + 100_000, 9_000, path))
        launches.append(("hipMemcpyAsync", at + 200_000, 9_000, {"correlation_id": number + 2}))
        for inner in (0, 10_000):
            name = "loss" if annotated and not inner else "PjitFunction(f)"
            told = {"step_num": 5 + step} if annotated and not inner else {}
            host.append((name, at + 50_000 + inner, 300_000 - 2 * inner, told))
        host.append(("$train.py:3 step", at, 9, {}))
    path = folder / "host.xplane.pb"
    path.write_bytes(
        plane("/device:GPU:3", ("Stream #9(Kernel)", 1000, kernels), ("Stream #2", 1000, copies))
        + plane("/host:CPU", ("Host Threads/77", 1000, launches), ("python3", 1000, host))
        + block(4, "juniper")
    )
    return path


def make_matrix(folder: Path) -> Path:
    """Write what `nvidia-smi topo -m` prints of four GPUs and two NICs."""
    names = ("GPU0", "GPU1", "GPU2", "GPU3", "mlx5_0", "mlx5_1")
    cells = (
        ("X", "NV2", "NV1", "SYS", "PIX", "SYS"),
        ("NV2", "X", "SYS", "NV1", "PHB", "SYS"),
        ("NV1", "SYS", "X", "NV2", "SYS", "PIX"),
        ("SYS", "NV1", "NV2", "X", "SYS", "NODE"),
        ("PIX", "PHB", "SYS", "SYS", "X", "SYS"),
        ("SYS", "SYS", "PIX", "NODE", "SYS", "X"),
    )
    lines = ["$ nvidia-smi topo -m"]
    lines.append("\t".join(["", *names, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"]))
    for place, (name, row) in enumerate(zip(names, cells, strict=True)):
        near = f"{20 * (place // 2)}-{20 * (place // 2) + 19}"
        rest = [near, str(place // 2), "", "N/A"] if name.startswith("GPU") else []
        lines.append("\t".join([name, *(" X " if cell == "X" else cell for cell in row), *rest]))
    path = folder / "topo.txt"
    path.write_text("\n".join([*lines, "", "Legend:", "  X    = Self", ""]))
    return path


def make_nccl_log(folder: Path) -> Path:
    """Write the log of one communicator of four ranks on two hosts."""
    rings = ((0, 1, 2, 3), (0, 3, 2, 1))
    parents = ((-1, 0, 0, 2), (1, -1, 1, 2))
    lines = [(0, "NCCL version 2.18.3+cuda12.1")]
    init = (
        "comm 0xa{0} rank {0} nranks 4 cudaDev {1} nvmlDev {1} busId {1}b000 commId 0xfeed - Init "
    )
    inits = [(rank, init.format(rank, rank % 2)) for rank in range(4)]
    lines += [(rank, text + "START") for rank, text in inits]
    for channel, ring in enumerate(rings):
        lines.append((0, f"Channel {channel:02}/02 : " + "".join(f"{rank:4}" for rank in ring)))
    for channel, ring in enumerate(rings):
        for one, other in zip(ring, (*ring[1:], ring[0]), strict=True):
            link = f"Channel {channel:02}/0 : {one}[{one % 2}] -> {other}[{other % 2}]"
            near = one // 2 == other // 2
            if near:
                lines.append((one, f"{link} via P2P/IPC/read"))
            else:
                lines.append((other, f"{link} [receive] via NET/IB/1/GDRDMA"))
                lines.append((one, f"{link} [send] via NET/IB/0/GDRDMA"))
    lines += [(rank, "Connected all rings") for rank in range(4)]
    for rank in range(4):
        trees = (f"[{c}] -1/-1/-1->{rank}->{up[rank]}" for c, up in enumerate(parents))
        lines.append((rank, f"Trees {' '.join(trees)}"))
    lines += [(rank, text + "COMPLETE") for rank, text in inits]
    call = (
        "{}: opCount {:x} sendbuff 0x1 recvbuff 0x2 count {} datatype {} op 0 root {} comm 0xa{}"
        " [nranks=4] stream 0x9"
    )
    for number, (name, count, kind, root) in enumerate(
        (("AllReduce", 1024, 7, 0), ("Broadcast", 33, 9, 2), ("Send", 5, 1, 1))
    ):
        lines += [(rank, call.format(name, number, count, kind, root, rank)) for rank in range(4)]
    hosts = ("cedar", "dogwood")
    path = folder / "nccl.log"
    path.write_text("".join(
        f"{hosts[rank // 2]}:{100 + rank}:{200 + rank} [{rank % 2}] NCCL INFO {text}\n"
        for rank, text in lines
    ))  # fmt: skip
    return path


NSYS_TABLES = (
    "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS", "StringIds", "TARGET_INFO_GPU", "ThreadNames",
    "PROCESSES",
)  # fmt: skip
NVPROF_TABLES = tuple(
    f"CUPTI_ACTIVITY_KIND_{name}"
    for name in ("CONCURRENT_KERNEL", "MEMCPY", "MEMCPY2", "MEMSET", "RUNTIME", "DRIVER", "MARKER")
)


RPD_TABLES = (
    "rocpd_api", "rocpd_op", "rocpd_api_ops", "rocpd_kernelapi", "rocpd_copyapi", "rocpd_string",
    "ext_autogradapi",
)  # fmt: skip

ROCPD_TABLES = tuple(
    f"rocpd_{name}_00aa"
    for name in ("region", "kernel_dispatch", "memory_copy", "memory_allocate", "event", "string",
                 "track", "info_agent", "info_process", "info_thread")
)  # fmt: skip


def _any_file(path: Path, pick: random.Random) -> str:
    files = sorted(path.iterdir())
    if pick.random() < 0.2:
        pick.choice(files).unlink()
        return "a file removed"
    if pick.random() < 0.2:
        one, other = pick.choice(files), pick.choice(files)
        shutil.copy(one, other) if one != other else None
        return "a file for another"
    return damage_file(pick.choice(files), pick)


KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            "nsys SQLite",
            make_nsys,
            lambda path: plain_nsys(PlainSqlite(path)),
            (partial(damage_tables, tables=NSYS_TABLES),) * 2 + (damage_file,),
        ),
        *(
            Kind(
                f"nsys {suffix[1:].title()}",
                partial(make_columnar, suffix=suffix),
                lambda path: plain_nsys(PlainFolder(path)),
                (_any_file,),
            )
            for suffix in (".parquet", ".arrow")
        ),
        Kind(
            "nvprof database",
            make_nvprof,
            lambda path: plain_nvprof(PlainSqlite(path)),
            (partial(damage_tables, tables=NVPROF_TABLES),) * 2 + (damage_file,),
            _FROM_FIRST,
        ),
        Kind(
            "RPD",
            make_rpd,
            lambda path: plain_rpd(PlainSqlite(path)),
            (partial(damage_tables, tables=RPD_TABLES),) * 2 + (damage_file,),
            _FROM_FIRST,
        ),
        *(
            Kind(
                f"rocpd, {layout} layout",
                partial(make_rocpd, newer=layout == "newer"),
                lambda path: plain_rocpd(PlainSqlite(path)),
                (partial(damage_tables, tables=ROCPD_TABLES),) * 2 + (damage_file,),
                _FROM_FIRST,
            )
            for layout in ("older", "newer")
        ),
        Kind(
            "nvprof CSV",
            make_nvprof_csv,
            plain_nvprof_csv,
            (damage_lines, damage_lines, damage_file),
            _FROM_FIRST,
        ),
        Kind(
            "PyTorch JSON",
            make_kineto,
            plain_kineto,
            (damage_json, damage_json, damage_file),
            _FROM_FIRST,
        ),
        Kind(
            "rocprofv3 JSON",
            make_rocprof,
            plain_rocprof,
            (damage_tree, damage_tree, damage_file),
            _FROM_FIRST,
        ),
        *(
            Kind(
                f"profile of XLA, {'annotated' if annotated else 'with calls for steps'}",
                partial(make_xplane, annotated=annotated),
                plain_xplane,
                (damage_varints, damage_varints, damage_file),
                _FROM_FIRST,
            )
            for annotated in (True, False)
        ),
        Kind(
            "nvidia-smi topo -m",
            make_matrix,
            plain_matrix,
            (damage_matrix, damage_matrix, damage_lines, damage_file),
            _matrix,
            assert_same_matrix,
        ),
        Kind(
            "log of NCCL",
            make_nccl_log,
            plain_nccl_log,
            (damage_lines, damage_lines, damage_file),
            _log,
            assert_same_log,
        ),
    )
}


def outcome(kind: Kind, path: Path, *, answer: bool = False) -> str:
    """Read a file, and hold what is read against the plain reader: right, or one clear error."""
    before = _state(path.parent)
    try:
        with _patience():
            told = kind.read(path, answer=answer)
    except TracekitError as error:
        _assert_clear(error)
        return ERROR
    finally:
        assert _state(path.parent) == before, "the file was changed, or something left beside it"
    try:
        plain = kind.plain(path)
    except UnreadableError:
        return UNJUDGED
    kind.same(told, plain)
    return RIGHT


def _answer(trace: Trace) -> None:
    """Ask what anybody asks; that it is answered, or refused in words, is enough."""
    from tracekit.analysis import breakdown

    breakdown(attribute(trace, Rules.load(None, None)))


def _assert_clear(error: TracekitError) -> None:
    text = str(error)
    assert text.strip(), "no words"
    assert "Traceback" not in text, text
    assert "panicked" not in text, text


def _state(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@contextmanager
def _patience() -> Iterator[None]:
    """Fail for what takes a minute of the processor; nothing here takes a second."""

    def lose(*_: object) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGPROF, lose)
    signal.setitimer(signal.ITIMER_PROF, PATIENCE_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def damaged(kind: Kind, good: Path, folder: Path, seed: int) -> tuple[Path, str]:
    """Make a damaged copy of a good file or folder, and say how it was damaged."""
    pick = random.Random(seed)
    path = folder / good.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (shutil.copytree if good.is_dir() else shutil.copy)(good, path)
    how = pick.choice(kind.damages)(path, pick)
    if pick.random() < 0.15:
        # What is damaged already may be no file of its kind any more.
        with suppress(sqlite3.Error, ValueError, LookupError, RecursionError):
            how += " and " + pick.choice(kind.damages)(path, pick)
    return path, how


def tried(
    kind: Kind, good: Path, folder: Path, seeds: range, *, answer: int = 4, apart: bool = False
) -> Counter[str]:
    """Try a copy for each seed, every so many with an `answer`; count what came of them.

    With `apart`, other processes have survived reading those that this one reads.
    """
    outcomes: Counter[str] = Counter()
    for seed in seeds:
        path, how = damaged(kind, good, folder, seed)
        try:
            if apart and not _survives(path):
                outcomes[ERROR] += 1
                continue
            outcomes[outcome(kind, path, answer=seed % answer == 0)] += 1
        except BaseException as error:
            error.add_note(f"{kind.name}, seed {seed}: {how}")
            raise
    return outcomes


def _survives(path: Path) -> bool:
    """Whether a process can read a file: polars ends its own over some that are damaged.

    That an ingest tells so in one error is tested for one of them.
    """
    script = "import sys, pathlib, tracekit.sources as s; s.read(pathlib.Path(sys.argv[1]))"
    words = [sys.executable, "-c", script, path]
    return subprocess.run(words, capture_output=True, check=False).returncode != -signal.SIGABRT


def peak_bytes() -> int:
    """Return the most memory that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
