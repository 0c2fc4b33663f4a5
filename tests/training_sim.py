# ruff: noqa: E501  (kernels have the names that they have)
"""A training program as it launches, op by op, with the true stage and step of each.

Nothing here knows how stages are told: kernels have the names that PyTorch, cuDNN and NCCL give
them, threads and streams are those of PyTorch, and the host waits where a program waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

MODES = ("ranges", "no_backward_range", "threads", "one_thread")
"""All ranges; those of backward passes left out; no range; no range and one launching thread."""
MAIN, BACK, OTHER_MAIN, OTHER_BACK, THIRD = 0, 1, 2, 3, 4
FREE = frozenset[str]()
"""The truth of an op that belongs to no stage: whatever is said of it is not counted."""


@dataclass
class Simulated:
    """What was recorded of a program, and what is true of it."""

    ops: list[dict[str, Any]] = field(default_factory=list)
    """In order of launch; with each come ``truth``, the stages that are right, ``step``, and
    ``again``, whether a backward pass runs it though forward did."""
    ranges: list[tuple[int, int, str, int]] = field(default_factory=list)
    """Begin, end, name and thread."""
    finer: bool = False
    """Whether each update is as good a step as those that `ops` name."""
    trains: bool = True


class Sim:
    """A clock of the host and of each stream, and what is recorded."""

    def __init__(self, mode: str, seed: int) -> None:
        self.mode = mode
        self.rng = np.random.default_rng(seed)
        self.out = Simulated()
        self.free: dict[tuple[int, int], int] = {}

    def agent(self, main: int = MAIN, back: int = BACK, stream: int = 7, device: int = 0) -> Agent:
        """Return a thread that trains, and the one that runs its backward passes."""
        return Agent(self, main, main if self.mode == "one_thread" else back, stream, device)


@dataclass
class Agent:
    """Launches ops one after the other, on its stream."""

    sim: Sim
    main: int
    back: int
    stream: int
    device: int
    now: int = 1_000_000
    step: int = -1
    scale: float = 1.0
    stage: frozenset[str] = FREE
    on: int = -1
    again: bool = False
    evaluates: bool = False
    """Whether the network was told so: batch norm uses other kernels."""

    def op(
        self,
        name: str | None,
        size: float = 4096,
        *,
        kind: str = "compute",
        stream: int | None = None,
        **row: Any,
    ) -> None:
        """Launch an op; it takes as long as it is large."""
        rng, thread = self.sim.rng, self.on if self.on >= 0 else self.main
        self.now += int(rng.integers(3_000, 7_000))
        size = max(128, int(size) // 128 * 128)
        length = int(1_500 + size * row.pop("ns", 0.02) * rng.uniform(0.95, 1.05))
        place = (self.device, self.stream if stream is None else stream)
        after = max(self.sim.free.get(key, 0) for key in (place, *row.pop("after", ())))
        start = max(self.now + 2_500, after)
        self.sim.free[place] = start + length
        self.sim.out.ops.append(
            {
                "name": name, "kind": kind, "thread": thread, "device": self.device,
                "stream": place[1], "launch": self.now, "start": start, "end": start + length,
                "size": size if kind == "compute" else None, "bytes": None,
                "truth": self.stage, "step": self.step, "again": self.again,
            } | row
        )  # fmt: skip

    def copy(self, kind: str, bytes_: int, *, waits: bool = False, **row: Any) -> None:
        """Copy; the host may wait for it."""
        self.op(None, 1, kind=kind, bytes=bytes_, ns=0, **row)
        last = self.sim.out.ops[-1]
        last["end"] = last["start"] + 1_200 + bytes_ // 12
        self.sim.free[(self.device, last["stream"])] = last["end"]
        if waits:
            self.now = max(self.now, last["end"]) + 4_000

    def fetch(self) -> None:
        """Read a scalar: the host waits for all that it launched."""
        with self.of("-"):
            self.copy("d2h", 4, waits=True)

    def fill(self, count: int = 1, size: float = 4096) -> None:
        """Set tensors to zero."""
        for _ in range(count):
            self.op(
                "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>",
                size,
            )

    @contextmanager
    def of(self, stages: str, *, thread: int | None = None) -> Iterator[None]:
        """Launch ops that are of one of some stages, ``FP|ME``, or of none, ``-``."""
        before = self.stage, self.on
        self.stage = FREE if stages == "-" else frozenset(stages.split("|"))
        self.on = before[1] if thread is None else thread
        yield
        self.stage, self.on = before

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """Tell the network that it is evaluated."""
        self.evaluates = True
        yield
        self.evaluates = False

    @contextmanager
    def range(self, name: str) -> Iterator[None]:
        """Mark what is launched, unless ranges are not recorded."""
        begin = self.now + 300
        yield
        self.now += 600
        if self.sim.mode == "ranges" or (self.sim.mode == MODES[1] and "backward" not in name):
            self.sim.out.ranges.append((begin, self.now - 200, name, self.main))

    @contextmanager
    def iteration(self, number: int, name: str = "step {}") -> Iterator[None]:
        """Run a step, in which sizes differ from those of others where the program's do."""
        self.step = number
        with self.range(name.format(number)):
            yield
        self.step = -1
        self.now += int(self.sim.rng.integers(5_000, 40_000))

    def input(self, bytes_: int = 1 << 22, *, label: bool = True) -> None:
        """Copy a batch to the GPU."""
        with self.range("data"), self.of("IO"):
            self.now += int(self.sim.rng.integers(5_000, 60_000))
            self.copy("h2d", int(bytes_ * self.scale))
            if label:
                self.copy("h2d", 4096)


GEMM = (
    "ampere_sgemm_128x64_tn",
    "ampere_sgemm_128x128_nn",
    "cutlass_80_tensorop_s1688gemm_256x128_nt_align4",
)
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"
MUL = "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float, MulFunctor>>"
SUM = "void at::native::reduce_kernel<128, 4, at::native::ReduceOp<float, sum_functor>>"
NORM = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, NormTwoOps>>"
FOREACH = "void at::native::multi_tensor_apply_kernel<TensorListMetadata<{}>, {}>"
NCCL = "ncclDevKernel_{}_RING_LL(ncclDevKernelArgsStorage<4096>)"


def tile(size: float) -> str:
    """Return the kernel that a library picks for a product of some size."""
    return GEMM[0 if size < 60_000 else 1 if size < 160_000 else 2]


Layer = Callable[[Agent, float, bool], None]
"""Runs a layer of some size forward (True) or backward."""


def dense(agent: Agent, size: float, forward: bool) -> None:
    """A product with its activation."""
    if forward:
        agent.op(tile(size), size)
        agent.op(
            "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl>",
            size / 2,
        )
        return
    agent.op(
        "void at::native::vectorized_elementwise_kernel<4, at::native::GeluBackwardCUDAKernelImpl>",
        size / 2,
    )
    agent.op(tile(size), size)
    agent.op(tile(size), size * 1.5)
    agent.op(SUM, size / 4)


def convolution(agent: Agent, size: float, forward: bool) -> None:
    """A convolution, batch norm, an activation."""
    relu = "void at::native::vectorized_elementwise_kernel<4, at::native::{}>"
    if forward:
        agent.op(
            "sm80_xmma_fprop_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x16",
            size,
        )
        norm = "inf_1C11_kernel_NCHW<float, float, true, 1>"
        trains = "tr_1C11_kernel_NCHW<float, float, int, 512, true, 1, true>"
        agent.op(f"void cudnn::bn_fw_{norm if agent.evaluates else trains}", size / 2)
        agent.op(relu.format("launch_clamp_scalar"), size / 2)
        return
    agent.op(relu.format("threshold_kernel_impl"), size / 2)
    agent.op("void cudnn::bn_bw_1C11_kernel_new<float, float, float2, 512, true, 1>", size / 2)
    agent.op(
        "sm80_xmma_dgrad_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x16", size
    )
    agent.op(
        "sm80_xmma_wgrad_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x16", size
    )


def attention(agent: Agent, size: float, forward: bool) -> None:
    """Norm, projection, attention, projection, residual."""
    norm = "void at::native::(anonymous namespace)::{}<float, float>"
    if forward:
        agent.op(norm.format("vectorized_layer_norm_kernel"), size / 4)
        agent.op(tile(3 * size), 3 * size)
        agent.op("fmha_cutlassF_f32_aligned_64x64_rf_sm80", size)
        agent.op(tile(size), size)
        agent.op(ADD, size / 4)
        return
    agent.op(ADD, size / 4)
    agent.op(tile(size), size)
    agent.op(tile(size), size)
    agent.op("fmha_cutlassB_f32_aligned_64x64_k64_sm80", size)
    agent.op(tile(3 * size), 3 * size)
    agent.op(tile(3 * size), 3 * size)
    agent.op(norm.format("layer_norm_grad_input_kernel_vectorized"), size / 4)
    agent.op(norm.format("GammaBetaBackwardCUDAKernel"), size / 8)


LAYERS: dict[str, tuple[Layer, ...]] = {
    "mlp": (dense,), "cnn": (convolution,), "transformer": (attention, dense),
}  # fmt: skip
Hook = Callable[[int], None]


@dataclass
class Net:
    """A network of layers of different sizes."""

    rng: np.random.Generator
    body: str = "transformer"
    depth: int = 5
    width: float = 40_000

    def __post_init__(self) -> None:
        kinds = LAYERS[self.body]
        factors = self.rng.choice([0.5, 0.75, 1, 1.25, 1.5, 2, 3], self.depth * len(kinds))
        self.layers = [
            (kinds[n % len(kinds)], float(self.width * factor)) for n, factor in enumerate(factors)
        ]
        self.parameters = [size for _, size in self.layers for _ in range(2)]

    def forward(
        self, agent: Agent, stages: str = "FP", *, name: str = "forward", loss: bool = True,
        until: int | None = None, hook: Hook = lambda _: None, marked: bool = True,
    ) -> None:  # fmt: skip
        """Run forward, and the loss; a hook is called before each layer."""

        def run() -> None:
            with agent.of(stages):
                for n, (layer, size) in enumerate(self.layers[:until]):
                    hook(n)
                    layer(agent, size * agent.scale, True)
                if loss and until is None:
                    agent.op(
                        "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, true>",
                        2048 * agent.scale,
                    )
                    agent.op(
                        "void at::native::nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>",
                        1024,
                    )

        if marked:
            with agent.range(name):
                run()
        else:
            run()

    def backward(
        self, agent: Agent, *, again: bool = False, hook: Hook = lambda _: None,
        stages: str = "BP", inputs_only: bool = False, marked: bool = True, loss: bool = True,
    ) -> None:  # fmt: skip
        """Run backward; layers are computed `again` where activations were not kept."""

        def run() -> None:
            with agent.of(stages, thread=agent.back):
                if loss:
                    agent.fill(1, 128)
                    agent.op(
                        "void at::native::nll_loss_backward_reduce_cuda_kernel_2d<float, long>",
                        1024,
                    )
                    agent.op(
                        "void (anonymous namespace)::softmax_warp_backward<float, float, float, 10, true>",
                        2048 * agent.scale,
                    )
                for n, (layer, size) in reversed(list(enumerate(self.layers))):
                    if again:
                        agent.again = True
                        layer(agent, size * agent.scale, True)
                        agent.again = False
                    layer(agent, size * agent.scale, False)
                    hook(n)

        if marked:
            with agent.range("backward"):
                run()
        else:
            run()

    def clear(self, agent: Agent) -> None:
        """Clear gradients in place."""
        with agent.of("WU|FP|IO|OTHER"):
            agent.fill(len(self.parameters))

    def update(self, agent: Agent, optimizer: str = "fused", *, marked: bool = True) -> None:
        """Apply gradients."""
        if marked:
            with agent.range("optimizer"), agent.of("WU"):
                OPTIMIZERS[optimizer](agent, self.parameters)
        else:
            with agent.of("WU"):
                OPTIMIZERS[optimizer](agent, self.parameters)


def fused(agent: Agent, parameters: Sequence[float]) -> None:
    """Adam as one kernel for many parameters."""
    for at in range(0, len(parameters), 8):
        agent.op(
            FOREACH.format(4, "FusedAdamMathFunctor<float, 4, (ADAM_MODE)0>"),
            2 * sum(parameters[at : at + 8]),
        )


def foreach(agent: Agent, parameters: Sequence[float]) -> None:
    """Adam as one kernel for each operation."""
    for what in ("Lerp", "PointwiseOpScalar<mul>", "PointwiseOp<addcmul>", "UnaryOp<Sqrt>",
                 "BinaryOp<div>", "BinaryOp<add>", "PointwiseOp<addcdiv>"):  # fmt: skip
        agent.op(FOREACH.format(3, what), sum(parameters))


def many(agent: Agent, parameters: Sequence[float]) -> None:
    """Adam, parameter by parameter."""
    for size in parameters:
        agent.op(MUL, size)
        agent.op(
            "void at::native::vectorized_elementwise_kernel<4, at::native::addcmul_cuda_scalar_kernel>",
            size,
        )
        agent.op(
            "void at::native::vectorized_elementwise_kernel<4, at::native::sqrt_kernel_cuda>", size
        )
        agent.op(
            "void at::native::vectorized_elementwise_kernel<4, at::native::addcdiv_cuda_kernel>",
            size,
        )


def plain(agent: Agent, parameters: Sequence[float]) -> None:
    """Gradient descent, parameter by parameter: no kernel has a name for it."""
    for size in parameters:
        agent.op(MUL, size)
        agent.op(ADD, size)


def muon(agent: Agent, parameters: Sequence[float]) -> None:
    """Momentum, made orthogonal by products (Newton-Schulz)."""
    for size in parameters[::2]:
        agent.op(ADD, size)
        agent.op(NORM, size)
        agent.op(MUL, size)
        for _ in range(5):
            agent.op(tile(size * 0.7), size * 0.7)
            agent.op(tile(size * 0.6), size * 0.6)
            agent.op(ADD, size * 0.6)
            agent.op(tile(size * 0.9), size * 0.9)
        agent.op(ADD, size)


def shampoo(agent: Agent, parameters: Sequence[float]) -> None:
    """Statistics of gradients by products, their roots, and the update by products."""
    for size in parameters[::2]:
        for _ in range(2):
            agent.op(tile(size * 0.8), size * 0.8)
            agent.op(ADD, size * 0.8)
        for _ in range(4):
            agent.op("void syevd_batch_parallel_kernel<float>", size * 0.5)
            agent.op(tile(size * 0.5), size * 0.5)
        agent.op(tile(size), size)
        agent.op(ADD, size)


OPTIMIZERS: dict[str, Callable[[Agent, Sequence[float]], None]] = {
    "fused": fused, "foreach": foreach, "many": many, "plain": plain, "muon": muon,
    "shampoo": shampoo,
    "muon_then_adam": lambda a, p: (muon(a, p), foreach(a, p[1::2]))[-1],
    "adam_then_muon": lambda a, p: (foreach(a, p[1::2]), muon(a, p))[-1],
}  # fmt: skip
