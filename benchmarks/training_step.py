"""What one process of a job does in one step, as a script of calls and ranges.

A script has one clock, whose ticks are the moments at which something begins or ends on the host.
Whatever the gaps between ticks turn out to be, ranges keep their nesting and calls their order.
"""

from __future__ import annotations

import math
import random
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

MAIN, BACKWARD, LOADER = 0, 1, 2
"""Threads of a process; further loaders follow."""

COMPUTE, EXCHANGE, COPY = 7, 20, 13
"""Streams of a process."""

STEP = "step"
"""The name of the range that is the step; its number is added to it."""

STEPS = ("training", "kernels", "stages", "allocations")
"""Kinds of steps: of `training_step`, or of `launches`."""

NCCL_DOMAIN = 1
_LAUNCHES = 500
_PASSES = ("forward", "backward", "optimizer")
_BUCKETS = 4
_OPERATORS = (
    "aten::linear", "aten::layer_norm", "aten::softmax", "aten::gelu", "aten::add", "aten::dropout",
    "aten::bmm", "aten::transpose", "aten::conv2d", "aten::batch_norm", "aten::relu", "aten::cat",
)  # fmt: skip
_KERNELS = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::{f}Functor<{t}>, A<{n}>>(int)",
    "void at::native::(anonymous namespace)::{f}_impl<{t}, float, {n}, (bool)1>(const T1 *, T2 *)",
    "void cutlass::Kernel2<cutlass_80_tensorop_{f}_s16816gemm_{t}_128x{n}_32x5_tn_align8>(T1::P)",
    "sm80_xmma_gemm_{f}_{t}_{t}_f32_tn_n_tilesize{n}x128x32_stage4_warpsize2x2x1_tensor16x8x16",
    "void cudnn::ops::{f}_kernel<{t}, {t}, {t}, (int){n}, (bool)0, cudnnTensor *>(T1, const T2 *)",
)
_ARGUMENTS = ", std::array<unsigned long, (int){}>, at::detail::Array<char *, (int){}>"
_FUNCTORS = ("Add", "Mul", "Gelu", "LayerNorm", "Softmax", "Dropout", "Copy", "Relu", "Bias", "Sum")
_TYPES = ("float", "double", "c10::Half", "c10::BFloat16")
_OPTIMIZER = "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>>(int, T1)"
_ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm *, unsigned long, ncclWork *)"


@dataclass(frozen=True)
class Work:
    """What a call gives the GPU to do; it takes `mean` nanoseconds, more or less.

    Of a change of memory `copy_kind` is 0 where it is allocated, 1 where it is released.
    """

    kind: str
    stream: int
    mean: int
    name: str = ""
    bytes: int = 0
    copy_kind: int = 0


@dataclass(frozen=True)
class Call:
    """A CUDA call from one tick to another."""

    thread: int
    name: str
    start: int
    end: int
    work: Work | None


@dataclass(frozen=True)
class Range:
    """An NVTX range from one tick to another."""

    thread: int
    name: str
    start: int
    end: int
    domain: int


@dataclass
class Script:
    """The step: mean gaps before each tick (ns), and what begins and ends at the ticks."""

    gaps: list[int] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    ranges: list[Range] = field(default_factory=list)
    around: int = 0
    """Ranges around each launch of a kernel, in each other."""
    annotated: bool = True
    """Whether there are ranges at all."""

    def tick(self, gap: int) -> int:
        """Let `gap` nanoseconds pass and return the number of the tick."""
        self.gaps.append(gap)
        return len(self.gaps) - 1

    def call(self, thread: int, name: str, work: Work | None = None) -> None:
        """Make a CUDA call."""
        with self.nested(thread, "launch", self.around if work and work.name else 0):
            self._call(thread, name, work)

    def _call(self, thread: int, name: str, work: Work | None) -> None:
        start = self.tick(1_500)
        self.calls.append(Call(thread, name, start, self.tick(4_000), work))

    @contextmanager
    def range(self, thread: int, name: str, domain: int = 0) -> Iterator[None]:
        """Open a range around what follows."""
        if not self.annotated:
            yield
            return
        start = self.tick(400)
        yield
        self.ranges.append(Range(thread, name, start, self.tick(400), domain))

    @contextmanager
    def nested(self, thread: int, name: str, depth: int) -> Iterator[None]:
        """Open so many ranges in each other."""
        with ExitStack() as stack:
            for level in range(depth):
                stack.enter_context(self.range(thread, f"{name} {level}"))
            yield


def kernel_names(count: int) -> list[str]:
    """Return `count` different names as C++ gives them, of 80 to 420 characters."""
    return [
        _KERNELS[i % len(_KERNELS)].format(
            f=_FUNCTORS[i // 5 % len(_FUNCTORS)] + str(i // 200),
            t=_TYPES[i // 50 % len(_TYPES)],
            n=i % 5 + 1,
        )
        + _ARGUMENTS.format(i, i) * (i % 4)
        for i in range(count)
    ]


def training_step(
    layers: int,
    operators: int,
    threads: int,
    names: int,
    seed: int,
    *,
    around: int = 0,
    nesting: int = 0,
    annotated: bool = True,
) -> Script:
    """Write the script of a data-parallel training step.

    Parameters
    ----------
    layers, operators
        Layers of the network, and operators of a layer: one range and one kernel each in the
        forward pass, two kernels in the backward pass.
    threads
        1: everything is launched by the main thread; 2: the backward pass by a thread of its own,
        whose ranges name no stage; more: input is copied by loader threads.
    names
        How many names of kernels there are to choose from.
    seed
        Seed of that choice, and of how long the kernels take.
    around, nesting
        Ranges around each kernel's launch, and around the operators of each layer, in each other.
    annotated
        Whether there are ranges at all.
    """
    step = Script(around=around, annotated=annotated)
    choice = _Choice(random.Random(seed), kernel_names(names))
    with step.range(MAIN, STEP):
        with step.range(MAIN, "forward"):
            for layer in range(layers):
                loader = LOADER + layer if LOADER + layer < threads else None
                with step.nested(MAIN, "module", nesting):
                    _forward(step, choice, layer, operators, loader)
            if threads <= LOADER:
                _load(step, MAIN)
        with step.range(MAIN, "loss"):
            step.call(MAIN, "cudaMemcpyAsync_v3020", Work("memcpy", COMPUTE, 2_000, "", 4, 2))
        with step.range(MAIN, "backward"):
            _backward(step, choice, layers, operators, BACKWARD if threads > BACKWARD else MAIN)
        _update(step, layers)
        step.call(MAIN, "cudaDeviceSynchronize_v3020")
    return step


def launches(kind: str) -> Script:
    """Write the script of a step of one thread, each of whose launches has a range of its own.

    The last one is an all-reduce. A pause, and so a gap on the GPU, follows each.

    Parameters
    ----------
    kind
        ``kernels``: no range names a stage, so that structure is asked for; ``stages``: each names
        one that no other range is around; ``allocations``: before the all-reduce each launch
        allocates memory or releases it, instead of a kernel.
    """
    step, exchange = Script(), Work("kernel", EXCHANGE, 5_000, _ALL_REDUCE)
    for number in range(_LAUNCHES):
        name = _PASSES[3 * number // _LAUNCHES] if kind == "stages" else "operator"
        work = Work("kernel", COMPUTE, 4_000, f"void kernel_{number % 300}<float>(int)")
        if kind == "allocations":
            work = Work("memory", COMPUTE, 1_000, "", 512 * (1 + number // 2), number % 2)
        elif number == _LAUNCHES - 1:
            work = exchange
        with step.range(MAIN, f"{name} {number // 5}"):
            step.call(MAIN, "cudaLaunchKernel_v7000", work)
        step.tick(10_000)
    if kind == "allocations":
        step.call(MAIN, "cudaLaunchKernel_v7000", exchange)
    return step


@dataclass(frozen=True)
class _Choice:
    rng: random.Random
    names: list[str]

    def kernel(self) -> Work:
        mean = round(math.exp(self.rng.gauss(9.2, 0.8)))
        return Work("kernel", COMPUTE, mean, self.rng.choice(self.names))


def _forward(step: Script, choice: _Choice, layer: int, operators: int, loader: int | None) -> None:
    with step.range(MAIN, f"layer {layer}"):
        for number in range(operators):
            with step.range(MAIN, _OPERATORS[number % len(_OPERATORS)]):
                step.call(MAIN, "cudaLaunchKernel_v7000", choice.kernel())
    if loader is not None:
        _load(step, loader)


def _load(step: Script, thread: int) -> None:
    with step.range(thread, "load batch"):
        for size in (38_535_168, 4_096):
            work = Work("memcpy", COPY, 1_000 + size // 20, "", size, 1)
            step.call(thread, "cudaMemcpyAsync_v3020", work)
        step.call(thread, "cudaEventRecord_v3020")


def _backward(step: Script, choice: _Choice, layers: int, operators: int, thread: int) -> None:
    buckets = {layers * bucket // _BUCKETS for bucket in range(_BUCKETS)}
    for layer in reversed(range(layers)):
        for number in reversed(range(operators)):
            operator = _OPERATORS[number % len(_OPERATORS)].removeprefix("aten::")
            with step.range(thread, f"autograd::engine::evaluate_function: {operator}Backward0"):
                for _ in range(2):
                    step.call(thread, "cudaLaunchKernel_v7000", choice.kernel())
        if layer in buckets:
            step.call(thread, "cudaStreamWaitEvent_v3020")
            with step.range(thread, "ncclAllReduce", NCCL_DOMAIN):
                work = Work("kernel", EXCHANGE, 400_000, _ALL_REDUCE)
                step.call(thread, "cudaLaunchKernelExC_v11060", work)


def _update(step: Script, layers: int) -> None:
    with step.range(MAIN, "optimizer"):
        for _ in range(layers):
            step.call(MAIN, "cudaLaunchKernel_v7000", Work("kernel", COMPUTE, 40_000, _OPTIMIZER))
        with step.range(MAIN, "zero_grad"):
            for _ in range(_BUCKETS):
                work = Work("memset", COMPUTE, 3_000, "", 26_214_400)
                step.call(MAIN, "cudaMemsetAsync_v3020", work)
