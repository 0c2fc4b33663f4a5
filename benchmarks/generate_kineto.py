"""Write a large trace as PyTorch's profiler writes it, simulated and drawn by a seed.

    python benchmarks/generate_kineto.py OUT.json --megabytes 200
    python benchmarks/generate_kineto.py OUT.json.gz --seed 5 --drawn

One rank of a data-parallel training: steps of forward, backward and update, in operators that
launch kernels, copies and memsets, with flows between calls and their work, collectives, and, where
asked for, the functions of Python around operators and the sizes of their arguments. `--drawn`
draws from the seed what is not given. Times, names and ids are those of no real program; keys,
nesting and proportions are like those of real traces. Each step is a template that numbers are
filled into, so that memory does not grow with the file.
"""

from __future__ import annotations

import argparse
import gzip
import random
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
from training_step import COMPUTE, COPY, EXCHANGE, kernel_names

_PID, _MAIN, _BACKWARD = 4242, 4242, 4317
_VARIANTS = 4
"""Steps that differ in their kernels."""
_BASE_NS = 1_711_964_646_000_000_000
_OPERATORS = ("linear", "layer_norm", "softmax", "gelu", "add", "dropout", "bmm", "conv2d")
_VIEWS = ("aten::view", "aten::t", "aten::empty", "aten::expand")
_MODULES = ("torch/nn/modules/module.py(1751): _wrapped_call_impl", "nn.Module: Linear_{n}",
            "torch/nn/modules/linear.py(124): forward", "model/block.py({n}): forward")  # fmt: skip
_HEAD = """{
  "schemaVersion": 1,
  "deviceProperties": [
    {"id": 0, "name": "Simulated GPU", "totalGlobalMem": 85899345920,
     "computeMajor": 9, "computeMinor": 0, "numSms": 132}
  ],
  "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 8},
  "traceEvents": [
"""
_NAMED = """  {
    "name": "%s_name", "ph": "M", "ts": 0.000, "pid": %d, "tid": %d,
    "args": {
      "name": "%s"
    }
  },
"""
_TAIL = """  {
    "ph": "X", "cat": "Trace", "ts": 0.000, "dur": %d.%03d,
    "pid": "Spans", "tid": "PyTorch Profiler",
    "name": "PyTorch Profiler (0)",
    "args": {
      "Op count": 0
    }
  }
  ],
  "traceName": "%s",
  "displayTimeUnit": "ms",
  "baseTimeNanoseconds": %d
}
"""
_EVENT = """  {{
    "ph": "X", "cat": "{cat}", "name": "{name}", "pid": {pid}, "tid": {tid},
    "ts": %d.%03d, "dur": %d.%03d,
    "args": {{
      {args}
    }}
  }},
"""
_FLOW = """  {{
    "ph": "{ph}", "id": {id}, "pid": {pid}, "tid": {tid}, "ts": %d.%03d,
    "cat": "{cat}", "name": "{cat}"{more}
  }},
"""


@dataclass(frozen=True)
class Job:
    """What is simulated.

    Parameters
    ----------
    megabytes
        How many the text has at least; steps are whole.
    seed
        The same seed gives the same file.
    layers, operators
        Layers of the network and operators of each.
    depth
        Operators in each other.
    names
        Number of distinct kernel names.
    stack
        Functions of Python around each operator.
    sizes
        Whether sizes and types of arguments were recorded, 0 or 1.
    flows
        Whether arrows from calls to their work were recorded, 0 or 1.
    """

    megabytes: int = 200
    seed: int = 1
    layers: int = 24
    operators: int = 8
    depth: int = 2
    names: int = 400
    stack: int = 0
    sizes: int = 0
    flows: int = 1


def drawn(seed: int, **given: int) -> Job:
    """Return a job of the family: what is not given is drawn by the seed."""
    rng = random.Random(seed)
    job = Job(
        seed=seed,
        layers=rng.choice((4, 24, 96)),
        operators=rng.randint(3, 16),
        depth=rng.randint(1, 4),
        names=int(10 ** rng.uniform(1.5, 4)),
        stack=rng.choice((0, 0, 3, 8)),
        sizes=rng.randint(0, 1),
        flows=rng.randint(0, 1),
    )
    return replace(job, **given)


@dataclass
class _Script:
    """One step: its text, and where each of its times lies between its first tick and its last.

    Times are pairs of ticks, the first of an event and its last; `None` stands for none. Ids are
    counted from the first of the step.
    """

    job: Job
    rng: random.Random
    names: list[str]
    text: list[str] = field(default_factory=list)
    values: list[tuple[str, int, int]] = field(default_factory=list)
    """What fills each place of the text, in order: its kind, and ticks or an id."""
    tick: int = 0
    calls: int = 0
    python: int = 0
    forward: list[int] = field(default_factory=list)

    @contextmanager
    def span(self, cat: str, name: str, tid: int, args: str, ids: tuple[int, ...] = ()
             ) -> Iterator[None]:  # fmt: skip
        """Write an event around what is written meanwhile."""
        place, first = len(self.values), self.tick
        self.text.append(_EVENT.format(cat=cat, name=name, args=args, pid=_PID, tid=tid))
        self.values.append(("span", first, first))
        self.values += [("id", each, 0) for each in ids]
        self.tick += 1
        yield
        self.values[place] = "span", first, self.tick
        self.tick += 1

    @contextmanager
    def functions(self, number: int) -> Iterator[None]:
        """Write the functions of Python around an operator."""
        if not number:
            yield
            return
        name = self.rng.choice(_MODULES).format(n=number * 17)
        self.python += 1
        args = '"Python parent id": %d, "Python id": %d, "Ev Idx": %d'
        ids = self.python - 1, self.python, self.python
        with (
            self.span("python_function", name, _MAIN, args, ids),
            self.functions(number - 1),
        ):
            yield

    @contextmanager
    def operator(self, name: str, tid: int, sequence: int | None = None) -> Iterator[None]:
        """Write an operator, and those that it calls."""
        args = '"External id": %d,"Record function id": 0, '
        ids = [self.calls]
        if sequence is not None:
            args += '"Sequence number": %d, "Fwd thread id": 1, '
            ids.append(sequence)
        if self.job.sizes:
            wide = self.rng.choice((64, 1024, 4096))
            args += (f'"Concrete Inputs": ["", "", ""], "Input type": ["float", "float", ""], '
                     f'"Input Strides": [[{wide}, 1], [1, {wide}], []], '
                     f'"Input Dims": [[512, {wide}], [{wide}, {wide}], []], ')  # fmt: skip
        with self.span("cpu_op", name, tid, args + '"Ev Idx": %d', (*ids, self.calls)):
            yield

    def launch(self, tid: int, work: str, name: str, stream: int, args: str, length: int) -> None:
        """Write a call, the work that it launches, and the flow between them."""
        self.calls += 1
        called = "cudaMemcpyAsync" if work == "gpu_memcpy" else "cudaLaunchKernel"
        given = '"External id": %d, "cbid": 211, "correlation": %d'
        with self.span("cuda_runtime", called, tid, given, (self.calls, self.calls)):
            start = self.tick
        self.flow("ac2g", "s", tid, _PID, self.calls, start)
        self.text.append(
            _EVENT.format(cat=work, name=name.replace("%", "%%"), pid=0, tid=stream, args=args)
        )
        self.values += [("work", start, length), ("id", self.calls, 0), ("id", self.calls, 0)]
        self.flow("ac2g", "f", stream, 0, self.calls, start)

    def flow(self, cat: str, ph: str, tid: int, pid: int, number: int, tick: int) -> None:
        """Write an end of an arrow."""
        if self.job.flows:
            more = ', "bp": "e"' if ph == "f" else ""
            self.text.append(_FLOW.format(ph=ph, id="%d", pid=pid, tid=tid, cat=cat, more=more))
            self.values += [("id", number, 0), ("time", tick, 0)]

    def kernel(self, tid: int, stream: int = COMPUTE, name: str | None = None) -> None:
        """Launch a kernel."""
        grid, block = self.rng.randint(1, 4096), 32 << self.rng.randint(0, 4)
        args = (
            f'"External id": %d,"queued": 0, "device": 0, "context": 1, "stream": {stream}, '
            f'"correlation": %d,\n      "registers per thread": 32, "shared memory": 0, '
            f'"blocks per SM": {grid / 132:.5f}, "warps per SM": {grid * block / 4224:.5f},\n'
            f'      "grid": [{grid}, 1, 1], "block": [{block}, 1, 1],\n'
            f'      "est. achieved occupancy %%": {self.rng.randint(0, 100)}'
        )
        length = self.rng.randint(2_000, 200_000)
        name = name or self.rng.choice(self.names)
        self.launch(tid, "kernel", name, stream, args, length)

    def copy(self, tid: int) -> None:
        """Copy a batch to the GPU."""
        args = (
            f'"External id": %d,"device": 0, "context": 1, "stream": {COPY}, "correlation": %d,\n'
            '      "bytes": 38535168, "memory bandwidth (GB/s)": 12.5'
        )
        self.launch(tid, "gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", COPY, args, 300_000)

    def clear(self, tid: int) -> None:
        """Set memory to zero."""
        args = (
            f'"External id": %d,"device": 0, "context": 1, "stream": {COMPUTE}, '
            '"correlation": %d,\n      "bytes": 4096, "memory bandwidth (GB/s)": 2.5'
        )
        self.launch(tid, "gpu_memset", "Memset (Device)", COMPUTE, args, 2_000)

    def exchange(self) -> None:
        """Exchange gradients."""
        args = ('"External id": %d,"Collective name": "allreduce", "In msg nelems": 6553600, '
                '"Out msg nelems": 6553600, "Group size": 8, "dtype": "Float", '
                '"Process Group Name": "0", "Process Group Description": "default_pg", '
                '"Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]", '
                '"In split size": "[]", "Out split size": "[]"')  # fmt: skip
        name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)"
        with (
            self.span("cpu_op", "record_param_comms", _BACKWARD, args, (self.calls,)),
            self.span("user_annotation", "nccl:all_reduce", _BACKWARD, '"Ev Idx": 1'),
        ):
            self.kernel(_BACKWARD, EXCHANGE, name)

    def nested(self, depth: int, name: str, tid: int, sequence: int) -> None:
        """Run an operator whose innermost one launches."""
        with self.operator(name, tid, sequence):
            if depth > 1:
                with self.operator(self.rng.choice(_VIEWS), tid):
                    pass
                self.nested(depth - 1, f"{name}_", tid, sequence)
            else:
                self.kernel(tid)


def _step(job: Job, names: list[str], seed: int) -> _Script:
    """Return a step of the training."""
    step = _Script(job, random.Random(seed), names)
    number = iter(range(1 << 30))
    step.values.append(("step", 0, 0))  # the number in the name of the annotation below
    with step.span("user_annotation", "ProfilerStep#%d", _MAIN, '"Ev Idx": 0'):
        with step.operator("aten::copy_", _MAIN):
            step.copy(_MAIN)
        sequences = []
        for layer in range(job.layers):
            for _ in range(job.operators):
                name, sequence = step.rng.choice(_OPERATORS), next(number)
                sequences.append((name, sequence))
                with step.functions(job.stack):
                    step.nested(job.depth, f"aten::{name}", _MAIN, sequence)
                step.flow("fwdbwd", "s", _MAIN, _PID, sequence, step.tick)
            if layer % 8 == 0:
                step.clear(_MAIN)
        for at, (name, sequence) in enumerate(reversed(sequences)):
            backward = f"{name.title().replace('_', '')}Backward0"
            called = f"autograd::engine::evaluate_function: {backward}"
            step.flow("fwdbwd", "f", _BACKWARD, _PID, sequence, step.tick)
            with step.operator(called, _BACKWARD, sequence):
                step.nested(job.depth, backward, _BACKWARD, sequence)
            if at % (2 * job.operators) == 0:
                step.exchange()
        with step.span("user_annotation", "Optimizer.step#AdamW.step", _MAIN, '"Ev Idx": 2'):
            for _ in range(4):
                with step.operator("aten::_foreach_add_", _MAIN):
                    step.kernel(_MAIN)
    return step


class _Filled:
    """A step as a template, and the numbers that it is filled with."""

    def __init__(self, step: _Script) -> None:
        self.template = "".join(step.text)
        self.calls, self.python = step.calls + 1, step.python + 1
        self.ticks = step.tick + 1
        kinds = np.array([kind for kind, _, _ in step.values])
        self._first = np.array([first for _, first, _ in step.values])
        self._second = np.array([second for _, _, second in step.values])
        self._kinds = {kind: kinds == kind for kind in ("span", "work", "time", "id", "step")}
        sizes = np.select(
            [self._kinds["span"] | self._kinds["work"], self._kinds["time"]], [4, 2], 1
        )
        self._places = np.cumsum(sizes) - sizes
        self._size = int(sizes.sum())

    def write(self, rng: np.random.Generator, clock: int, ids: int, number: int) -> tuple[str, int]:
        """Return the step's text and when it ends, where `clock` is when it begins."""
        times = clock + np.cumsum(rng.integers(800, 6_000, self.ticks))
        filled = np.empty(self._size, np.int64)
        spans, works, moments = (self._kinds[kind] for kind in ("span", "work", "time"))
        filled[self._places[self._kinds["id"]]] = ids + self._first[self._kinds["id"]]
        filled[self._places[self._kinds["step"]]] = number
        start, length = times[self._first[spans]], times[self._second[spans]]
        self._put(filled, spans, start, length - start)
        start = times[self._first[works]]
        ready = np.maximum.accumulate(start + np.concatenate([[0], self._second[works][:-1]]))
        pace = rng.uniform(0.8, 1.2, start.size)
        self._put(filled, works, ready + 3_000, (self._second[works] * pace).astype(np.int64))
        self._put(filled, moments, times[self._first[moments]], None)
        return self.template % tuple(filled.tolist()), int(times[-1])

    def _put(self, filled: Any, which: Any, start: Any, length: Any) -> None:
        places = self._places[which]
        filled[places], filled[places + 1] = np.divmod(start, 1000)
        if length is not None:
            filled[places + 2], filled[places + 3] = np.divmod(length, 1000)


def generate(path: Path, job: Job) -> Mapping[str, int]:
    """Write the trace, gzipped if its name ends so; one that exists is replaced.

    Returns
    -------
    How many events there are, steps, and bytes of text.
    """
    names = kernel_names(job.names)
    steps = [_Filled(_step(job, names, job.seed * _VARIANTS + n)) for n in range(_VARIANTS)]
    rng = np.random.default_rng(job.seed)
    packed = path.suffix == ".gz"
    with gzip.open(path, "wb", 6) if packed else path.open("wb") as file:
        return _write(file, path.name, job, steps, rng)


def _write(
    file: IO[bytes], name: str, job: Job, steps: list[_Filled], rng: np.random.Generator
) -> Mapping[str, int]:
    size = file.write(_HEAD.encode())
    for what, tid, called in (("process", _MAIN, "python"), ("thread", _MAIN, "thread (main)"),
                              ("thread", _BACKWARD, "pt_autograd_0")):  # fmt: skip
        size += file.write((_NAMED % (what, _PID, tid, called)).encode())
    clock, ids, number, events = 1_000_000, 1, 0, 3
    while size < job.megabytes * 1_000_000:
        step = steps[rng.integers(len(steps))]
        text, clock = step.write(rng, clock, ids, number)
        size += file.write(text.encode())
        events += step.template.count("  {\n")
        ids += max(step.calls, step.python)
        number += 1
    size += file.write((_TAIL % (*divmod(clock, 1000), name, _BASE_NS)).encode())
    return {"events": events + 1, "steps": number, "bytes": size}


def _job() -> tuple[Path, Job]:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path, metavar="OUT", help="file to write; .gz is gzipped")
    parser.add_argument("--drawn", action="store_true", help="draw what is not given by the seed")
    for each in fields(Job):
        parser.add_argument(f"--{each.name}", type=int, help=f"default: {each.default}")
    options = vars(parser.parse_args())
    path, is_drawn = options.pop("out"), options.pop("drawn")
    given = {name: value for name, value in options.items() if value is not None}
    return path, drawn(**{"seed": 1} | given) if is_drawn else Job(**given)


def main() -> None:
    """Write a trace and print what it holds."""
    path, job = _job()
    began = time.perf_counter()
    found = generate(path, job)
    print(job)
    print(", ".join(f"{count:,} {what}" for what, count in found.items()), end="")
    print(f", {time.perf_counter() - began:.1f} s")


if __name__ == "__main__":
    sys.exit(main())
