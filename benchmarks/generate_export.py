"""Write a large SQLite export in the schema of an nsys version, simulated and seeded.

    python benchmarks/generate_export.py OUT.sqlite --kernels 1000000
    python benchmarks/generate_export.py OUT.sqlite --kernels 1000000 --seed 5 --drawn
    python benchmarks/generate_export.py OUT.sqlite --step kernels --processes 8 --threads 1

A data-parallel training job of several processes, each with a GPU, a main thread, a backward thread
and loader threads; or one whose steps are bare launches. Times, names and ids are those of no real
program, but tables, columns, nesting and proportions are like those of real exports. `--drawn`
draws from the seed what is not given. Rows are made as whole columns, in chunks, so that memory
does not grow with the file.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1] / "sample_traces"))

from bulk_file import BulkFile
from nsys_writer import NsysWriter, base_name, global_pid, global_tid
from training_step import (
    BACKWARD,
    COMPUTE,
    EXCHANGE,
    MAIN,
    NCCL_DOMAIN,
    STEP,
    STEPS,
    Call,
    Script,
    kernel_names,
    launches,
    training_step,
)

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    Array = NDArray[Any]
    Ints = NDArray[np.int64]

PRODUCT = "tracekit benchmarks (simulated)"
ORDERS = ("start", "process", "flush")
"""By start; of one process after the other; blocks of rows of a process as they come to be."""
CORRELATIONS = ("one", "anywhere", "wrapping")
"""At one in each process; anywhere; so that they begin anew at one in the middle of the file."""
SCHEMAS = ("none-2020.4", "3.0.0", "3.11.1", "3.28.0")
_CHUNK = 1 << 16
_BLOCK = 2_000
"""Rows that are flushed together."""
_OF_GRAPH = 8
"""Kernels that one call launches where there are graphs."""
_MANY, _SOME = 8, 0.3
_MOST_CORRELATION = (1 << 32) - 1
_PUSH_POP, _DOMAIN = 59, 75
_MEMORY = "CUDA_GPU_MEMORY_USAGE_EVENTS"
_FIRST_PID = 1000
_RARE = 0.1
"""Share of the kernels that are not the usual one of their place in the step."""
_NOISE = {"OSRT_API": 0.2, "SCHED_EVENTS": 0.4, "COMPOSITE_EVENTS": 0.4}
_OS_CALLS = ("pthread_cond_wait", "poll", "ioctl", "read", "sem_wait", "futex")


@dataclass(frozen=True)
class Job:
    """What is simulated.

    Parameters
    ----------
    kernels
        How many kernels there are at least; steps are whole.
    seed
        The same seed gives the same file.
    processes, threads
        Processes, and threads of each; `training_step` says what they do.
    layers, operators
        Layers of the network and operators of each.
    names
        Number of distinct kernel names.
    noise
        Rows of OS calls, scheduling and CPU samples per kernel.
    schema
        Schema version of the file.
    around, nesting
        Ranges around each kernel's launch, and around the operators of each layer, in each other.
    annotated
        Whether there are ranges at all, 0 or 1.
    graphs
        Whether kernels of the main thread are launched eight at a time by one call, 0 or 1.
    order
        Of rows: `ORDERS`.
    correlation
        Where ids of calls begin: `CORRELATIONS`.
    step
        What a step is: `STEPS`. Layers, operators, names and ranges around are those of training.
    """

    kernels: int = 1_000_000
    seed: int = 1
    processes: int = 2
    threads: int = 3
    layers: int = 24
    operators: int = 8
    names: int = 4_000
    noise: float = 0.5
    schema: str = "3.11.1"
    around: int = 0
    nesting: int = 0
    annotated: int = 1
    graphs: int = 0
    order: str = "start"
    correlation: str = "one"
    step: str = "training"

    @cached_property
    def script(self) -> Script:
        """What each process does in each step."""
        if self.step != "training":
            return launches(self.step)
        return training_step(
            self.layers,
            self.operators,
            self.threads,
            self.names,
            self.seed,
            around=self.around,
            nesting=self.nesting,
            annotated=bool(self.annotated),
        )

    @property
    def kernels_per_step(self) -> int:
        """Kernels, or changes of memory, of all processes in one step."""
        return self.processes * sum(
            call.work is not None and call.work.kind in ("kernel", "memory")
            for call in self.script.calls
        )

    @property
    def steps(self) -> int:
        """Number of steps."""
        return -(-self.kernels // self.kernels_per_step)


def drawn(seed: int, **given: Any) -> Job:
    """Return a job of the family: what is not given is drawn by the seed."""
    rng = random.Random(str(seed))
    processes = rng.choice((1, 2, 8, 16, 64))
    job = Job(
        seed=seed,
        processes=processes,
        threads=rng.choice((1, 2, 3, 8, 32)),
        layers=rng.choice((6, 24, 48) if processes < _MANY else (6, 12)),
        operators=rng.randint(2, 12),
        names=int(10 ** rng.uniform(1.6, 4.6)),
        noise=rng.choice((0.0, 0.5)),
        schema=rng.choice(SCHEMAS),
        around=rng.randint(0, 3),
        nesting=rng.choice((0, 8, 36)),
        annotated=int(rng.random() > _RARE),
        graphs=int(rng.random() < _SOME),
        order=rng.choice(ORDERS),
        correlation=rng.choice(CORRELATIONS),
    )
    return replace(job, **given)


class Names:
    """Ids of strings, and what the columns of kernels are by name."""

    def __init__(self, writer: NsysWriter, job: Job) -> None:
        self._writer = writer
        # What a program draws its kernels from comes first, what it always runs after that.
        kernels = list(dict.fromkeys((*kernel_names(job.names), *_work_names(job.script))))
        self.position = {name: at for at, name in enumerate(kernels)}
        self.demangled = self._ids(kernels)
        self.short = self._ids([base_name(name) for name in kernels])
        self.mangled = self._ids([f"_Z{len(name)}{base_name(name)}v" for name in kernels])
        self.os_calls = self._ids(_OS_CALLS)
        self.calls = self._ids([call.name for call in job.script.calls])
        self.ranges = self._ids([each.name for each in job.script.ranges])

    def _ids(self, names: Sequence[str]) -> Ints:
        return np.array([self._writer.string(name) for name in names])


def _work_names(script: Script) -> list[str]:
    return [call.work.name for call in script.calls if call.work and call.work.name]


def _process_ids(job: Job) -> list[int]:
    return [_FIRST_PID * (number + 1) for number in range(job.processes)]


def _write_frame(path: Path, job: Job) -> Names:
    """Write the small tables: who took part, and what strings there are."""
    with NsysWriter(path, job.schema, PRODUCT) as writer:
        for value, name in ((1, "HTOD"), (2, "DTOH"), (8, "DTOD"), (10, "PTOP")):
            writer.insert("ENUM_CUDA_MEMCPY_OPER", id=value, name=f"CUDA_MEMCPY_KIND_{name}")
        writer.capture("PROCESS:COMMAND", "python train.py")
        for number, pid in enumerate(_process_ids(job)):
            writer.gpu(number)
            writer.process(pid, "python")
            writer.thread_name(pid, pid, "python")
            for thread in range(BACKWARD, job.threads):
                name = "pt_autograd_0" if thread == BACKWARD else "pt_data_pin"
                writer.thread_name(pid, pid + thread, name)
            writer.domain(pid, NCCL_DOMAIN, "NCCL")
        return Names(writer, job)


class Simulation:
    """The job's clock and its calls, step by step and for all processes at once.

    Arrays have the axes process, step, and call or tick or range of the script.
    """

    def __init__(self, job: Job, names: Names) -> None:
        script = job.script
        self.job, self.names = job, names
        self.rng = np.random.default_rng(job.seed)
        self.clock = 1_000_000
        self.done = 0
        self.noises = 0
        self.gaps = np.array(script.gaps)
        self.calls = _Slots(script.calls)
        self.launches = _Slots([call for call in script.calls if call.work is not None])
        self.queues = [
            np.flatnonzero(self.launches.streams == stream)
            for stream in dict.fromkeys(self.launches.streams.tolist())
        ]
        works = [call.work for call in self.launches.calls if call.work is not None]
        self.means = np.array([work.mean for work in works])
        self.usual = np.array([names.position.get(work.name, 0) for work in works])
        ticks = [(each.start, each.end) for each in script.ranges]
        self.range_ticks = np.array(ticks, np.int64).reshape(-1, 2).T
        self.range_threads = np.array([each.thread for each in script.ranges])
        self.range_domains = np.array([each.domain for each in script.ranges])
        self.is_step = np.array([each.name == STEP for each in script.ranges], np.bool_)
        self.launched_by, self.nodes = self._graphs()
        self.first_ids = self._first_ids()
        self.pids = np.array(_process_ids(job))
        self.gids = np.array([global_pid(pid) for pid in _process_ids(job)])
        self.tids = np.array(
            [[global_tid(pid, pid + t) for t in range(job.threads)] for pid in _process_ids(job)]
        )

    def _graphs(self) -> tuple[Ints, Ints]:
        """Return which call launches each op, and the number of its node in a graph, 0 of none."""
        calls = self.calls.launching.copy()
        nodes = np.zeros(calls.size, np.int64)
        if self.job.graphs:
            works = (self.launches.kinds == "kernel") & (self.launches.threads == MAIN)
            own = np.flatnonzero(works & (self.launches.streams == COMPUTE))
            first = np.arange(own.size) // _OF_GRAPH * _OF_GRAPH
            calls[own] = calls[own[first]]
            nodes[own] = 1 + np.arange(own.size)
        return calls, nodes

    def _first_ids(self) -> Ints:
        """Return how many ids of calls are before those of each process."""
        processes, calls = self.job.processes, self.job.steps * self.calls.count
        first = {
            "one": np.zeros(processes, np.int64),
            "anywhere": np.random.default_rng(self.job.seed).integers(0, 1 << 31, processes),
            "wrapping": np.full(processes, _MOST_CORRELATION - calls // 2),
        }
        return first[self.job.correlation]

    def write_steps(self, file: BulkFile, steps: int) -> None:
        """Simulate `steps` more steps and write their rows."""
        shape = (self.job.processes, steps)
        pace = self.rng.uniform(0.7, 1.3, (*shape, self.gaps.size))
        ticks = (self.gaps * pace).astype(np.int64).cumsum(axis=2)
        starts, ends = self._run(ticks)
        # The steps of all processes begin together: gradients were exchanged.
        lengths = np.maximum(ends.max(axis=(0, 2)), ticks.max(axis=(0, 2))) + 20_000
        offsets = self.clock + lengths.cumsum() - lengths
        ticks, starts, ends = (times + offsets[:, None] for times in (ticks, starts, ends))
        self._write_ops(file, starts, ends)
        self._write_calls(file, ticks)
        self._write_ranges(file, ticks)
        self._write_noise(file, steps, int(lengths.sum()))
        self.clock += int(lengths.sum())
        self.done += steps

    def _run(self, ticks: Ints) -> tuple[Ints, Ints]:
        """Return when the launched work starts and ends; each stream runs its own in order."""
        launched = ticks[..., self.launches.ends]
        ready = launched + self.rng.integers(1_000, 5_000, launched.shape)
        pace = self.rng.uniform(0.8, 1.2, launched.shape)
        durations = (self.means * pace).astype(np.int64)
        starts, ends = np.empty_like(ready), np.empty_like(ready)
        for queue in self.queues:
            own, length = ready[..., queue], durations[..., queue]
            if self.launches.streams[queue[0]] == EXCHANGE:
                starts[..., queue], ends[..., queue] = _joined(own, length)
            else:
                starts[..., queue], ends[..., queue] = _queued(own, length)
        return starts, ends

    def _correlations(self, slots: Ints, steps: int) -> Ints:
        """Return the ids of calls, which every process counts; 0 is none."""
        first = (self.done + np.arange(steps)) * self.calls.count
        ids = self.first_ids[:, None, None] + first[None, :, None] + slots
        return ids % _MOST_CORRELATION + 1

    def _write_ops(self, file: BulkFile, starts: Ints, ends: Ints) -> None:
        shape = starts.shape
        columns = {
            "start": starts,
            "end": ends,
            "deviceId": np.broadcast_to(np.arange(shape[0])[:, None, None], shape),
            "streamId": np.broadcast_to(self.launches.streams, shape),
            "correlationId": self._correlations(self.launched_by, shape[1]),
            "globalPid": np.broadcast_to(self.gids[:, None, None], shape),
        }
        kinds = self.launches.kinds
        extras = {
            "kernel": self._kernel_columns,
            "memcpy": self._copy_columns,
            "memset": self._memset_columns,
            "memory": self._memory_columns,
        }
        for kind, extra in extras.items():
            slots = np.flatnonzero(kinds == kind)
            if not slots.size:
                continue
            chosen = {name: values[..., slots].ravel() for name, values in columns.items()}
            order = self._order(chosen["start"], chosen["globalPid"])
            table = _MEMORY if kind == "memory" else f"CUPTI_ACTIVITY_KIND_{kind.upper()}"
            more = extra(slots, shape[:2])
            rows = {name: _in_order(values, order) for name, values in (chosen | more).items()}
            file.append(table, rows | {"contextId": 1})

    def _kernel_columns(self, slots: Ints, shape: tuple[int, int]) -> dict[str, Any]:
        size = (*shape, slots.size)
        usual = self.usual[slots]
        rare = (self.rng.random(size) < _RARE) & (usual < self.job.names)
        chosen = np.where(rare, self.rng.integers(0, self.job.names, size), usual).ravel()
        return {
            "demangledName": self.names.demangled[chosen],
            "shortName": self.names.short[chosen],
            "mangledName": self.names.mangled[chosen],
            "registersPerThread": 16 + 8 * (chosen % 24),
            "gridX": 1 + chosen * 37 % 4_096,
            "blockX": 64 << chosen % 4,
            "dynamicSharedMemory": chosen % 7 * 8_192,
            "gridId": self._correlations(slots, shape[1]).ravel(),
            "graphNodeId": self._node_column(slots, size),
            "launchType": 1, "cacheConfig": 0, "gridY": 1, "gridZ": 1, "blockY": 1, "blockZ": 1,
            "localMemoryTotal": 78_118_912, "sharedMemoryExecuted": 32_768,
        }  # fmt: skip

    def _node_column(self, slots: Ints, size: tuple[int, ...]) -> Array | str:
        if not self.job.graphs:
            return "NULL"
        nodes = self.nodes[slots].astype(object)
        nodes[nodes == 0] = None
        return np.broadcast_to(nodes, size).ravel()

    def _order(self, starts: Ints, owners: Ints) -> Ints:
        """Return the order of rows in the file."""
        if self.job.order == "start":
            return np.argsort(starts, kind="stable")
        order = np.lexsort((starts, owners))
        if self.job.order == "process":
            return order
        blocks = np.array_split(order, -(-order.size // _BLOCK))
        return np.concatenate([blocks[at] for at in self.rng.permutation(len(blocks))])

    def _by_start(self, columns: Mapping[str, Array]) -> dict[str, Any]:
        owners = columns["globalTid"].ravel() >> 24
        order = self._order(columns["start"].ravel(), owners)
        return {name: values.ravel()[order] for name, values in columns.items()}

    def _copy_columns(self, slots: Ints, shape: tuple[int, int]) -> dict[str, Any]:
        works = [work for work in self.launches.works if work.kind == "memcpy"]
        to_device = np.array([work.copy_kind == 1 for work in works])
        columns = {
            "bytes": np.array([work.bytes for work in works]),
            "copyKind": np.array([work.copy_kind for work in works]),
            "srcKind": np.where(to_device, 1, 2),
            "dstKind": np.where(to_device, 2, 1),
        }
        return {
            name: np.broadcast_to(values, (*shape, slots.size)).ravel()
            for name, values in columns.items()
        }

    def _memset_columns(self, slots: Ints, shape: tuple[int, int]) -> dict[str, Any]:
        sizes = np.array([work.bytes for work in self.launches.works if work.kind == "memset"])
        return {"bytes": np.broadcast_to(sizes, (*shape, slots.size)).ravel(), "memKind": 2}

    def _memory_columns(self, slots: Ints, shape: tuple[int, int]) -> dict[str, Any]:
        works = [work for work in self.launches.works if work.kind == "memory"]
        size = np.broadcast_to([work.bytes for work in works], (*shape, slots.size)).ravel()
        done = np.broadcast_to([work.copy_kind for work in works], (*shape, slots.size)).ravel()
        return {"bytes": size, "address": 8 * size, "memoryOperationType": done, "memKind": 2}

    def _write_calls(self, file: BulkFile, ticks: Ints) -> None:
        starts = ticks[..., self.calls.starts]
        columns = {
            "start": starts,
            "end": ticks[..., self.calls.ends],
            "globalTid": np.broadcast_to(self.tids[:, None, self.calls.threads], starts.shape),
            "correlationId": self._correlations(np.arange(self.calls.count), starts.shape[1]),
            "nameId": np.broadcast_to(self.names.calls, starts.shape),
        }
        file.append("CUPTI_ACTIVITY_KIND_RUNTIME", self._by_start(columns))

    def _write_ranges(self, file: BulkFile, ticks: Ints) -> None:
        if not self.job.annotated:
            return
        starts = ticks[..., self.range_ticks[0]]
        numbers = self.done + np.arange(starts.shape[1])
        text = np.full(starts.shape, None, object)
        text[..., self.is_step] = np.array([f"{STEP} {n}" for n in numbers.tolist()])[None, :, None]
        ids = self.names.ranges.astype(object)
        ids[self.is_step] = None
        columns = {
            "start": starts,
            "end": ticks[..., self.range_ticks[1]],
            "globalTid": np.broadcast_to(self.tids[:, None, self.range_threads], starts.shape),
            "domainId": np.broadcast_to(self.range_domains, starts.shape),
            "text": text,
            "textId": np.broadcast_to(ids, starts.shape),
        }
        file.append("NVTX_EVENTS", self._by_start(columns) | {"eventType": _PUSH_POP})

    def _write_noise(self, file: BulkFile, steps: int, length: int) -> None:
        total = round(self.job.noise * steps * self.job.kernels_per_step)
        for table, share in _NOISE.items():
            count = round(total * share)
            if not count:
                continue
            start = self.clock + np.sort(self.rng.integers(0, length, count))
            file.append(
                table,
                {
                    "id": self.noises + 1 + np.arange(count),
                    "start": start,
                    "end": start + self.rng.integers(1_000, 100_000, count),
                    "globalTid": self.rng.choice(self.tids.ravel(), count),
                    "nameId": self.rng.choice(self.names.os_calls, count),
                    "cpu": self.rng.integers(0, 64, count),
                    "isSchedIn": np.arange(count) % 2,
                    "threadState": 1,
                    "cpuCycles": self.rng.integers(0, 1_000_000, count),
                },
            )
            self.noises += count


class _Slots:
    """Calls of a script as columns."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self.calls = calls
        self.count = len(calls)
        self.works = [call.work for call in calls if call.work is not None]
        self.threads = np.array([call.thread for call in calls])
        self.starts = np.array([call.start for call in calls])
        self.ends = np.array([call.end for call in calls])
        self.launching = np.array([at for at, call in enumerate(calls) if call.work is not None])
        self.streams = np.array([work.stream for work in self.works])
        self.kinds = np.array([work.kind for work in self.works])


def _queued(ready: Ints, durations: Ints) -> tuple[Ints, Ints]:
    """Return starts and ends of work that runs one after the other, along the last axis."""
    before = durations.cumsum(axis=-1) - durations
    starts = before + np.maximum.accumulate(ready - before, axis=-1)
    return starts, starts + durations


def _joined(ready: Ints, durations: Ints) -> tuple[Ints, Ints]:
    """Return the same for collectives, which end on all processes (the first axis) together."""
    last = ready.max(axis=0)
    _, end = _queued(last, durations.max(axis=0))
    free = np.concatenate([np.zeros_like(end[..., :1]), end[..., :-1]], axis=-1)
    return np.maximum(ready, free), np.broadcast_to(end, ready.shape)


def _in_order(values: Any, order: Ints) -> Any:
    return values[order] if isinstance(values, np.ndarray) else values


def generate(path: Path, job: Job) -> Counter[str]:
    """Write the export; one that exists is replaced.

    Returns
    -------
    Rows by table, of the tables that grow with the number of kernels.
    """
    names = _write_frame(path, job)
    chunk = max(1, _CHUNK // job.kernels_per_step)
    whole, rest = divmod(job.steps, chunk)
    with BulkFile(path, job.schema) as file:
        simulation = Simulation(job, names)
        for steps in (*repeat(chunk, whole), *([rest] if rest else [])):
            simulation.write_steps(file, steps)
        rows = file.rows.copy()
        end = np.array([simulation.clock])
        file.append("ANALYSIS_DETAILS", {"duration": end, "stopTime": end})
    return rows


def _job() -> tuple[Path, Job]:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path, metavar="OUT", help="file to write")
    parser.add_argument("--drawn", action="store_true", help="draw what is not given by the seed")
    choices = {"order": ORDERS, "correlation": CORRELATIONS, "step": STEPS}
    for name, default in vars(Job()).items():
        parser.add_argument(
            f"--{name}", type=type(default), choices=choices.get(name), help=f"default: {default}"
        )
    options = vars(parser.parse_args())
    path, is_drawn = options.pop("out"), options.pop("drawn")
    given = {name: value for name, value in options.items() if value is not None}
    return path, drawn(**{"seed": 1} | given) if is_drawn else Job(**given)


def main() -> None:
    """Write an export and print how many rows of what it holds."""
    path, job = _job()
    began = time.perf_counter()
    print(job)
    rows = generate(path, job)
    seconds = time.perf_counter() - began
    for table, count in rows.items():
        print(f"{count:>12,}  {table}")
    print(f"{rows.total():>12,}  rows, {path.stat().st_size:,} bytes, {seconds:.1f} s", end="")
    print(f", {rows.total() / seconds:,.0f} rows/s")


if __name__ == "__main__":
    main()
