"""Data-parallel training on four GPUs, one process each, gradients averaged by NCCL."""

from __future__ import annotations

import random
from collections import deque
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from nsys_writer import NsysWriter, global_tid
from simulation import (
    DTOD,
    DTOH,
    HTOD,
    PRODUCT,
    Op,
    Simulation,
    Stream,
    Thread,
    Work,
    copy,
    fill,
    kernel,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

RANKS = 4
ITERATIONS = 6
VALIDATION_BATCHES = 2
BATCH_BYTES = 32 * 3 * 224 * 224 * 4
LABEL_BYTES = 32 * 8
WARM_UP_PACE = 12.0

_ELEMENTWISE = (
    "void at::native::vectorized_elementwise_kernel<(int)4, at::native::{},"
    " at::detail::Array<char *, (int){}>>(int, T2, T3)"
)
_REDUCE = (
    "void at::native::reduce_kernel<(int)512, (int)1, at::native::ReduceOp<float,"
    " at::native::{}, unsigned int, float, (int)4>>(T3)"
)
_CONV = (
    "sm80_xmma_{}_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x16"
    "_stage4_warpsize2x2x1_g1_tensor16x8x8_execute_kernel_cudnn"
)
_FOREACH = (
    "void at::native::<unnamed>::multi_tensor_apply_kernel<at::native::<unnamed>::"
    "TensorListMetadata<(int){}>, at::native::<unnamed>::{}>(T1, T2, T3...)"
)


@dataclass(frozen=True)
class Operator:
    """An operator of the network: its names and the kernels of both directions."""

    name: str
    backward_name: str
    forward: tuple[Work, ...]
    backward: tuple[Work, ...]


@dataclass(frozen=True)
class Layer:
    """A layer of the network; gradients of `bucket_us` are exchanged once it went backward."""

    operators: tuple[Operator, ...]
    bucket_us: float | None


def _conv_layer(scale: float, bucket_us: float | None) -> Layer:
    return Layer(
        (
            Operator(
                "aten::conv2d", "ConvolutionBackward0",
                (kernel(_CONV.format("fprop"), 150 * scale),),
                (
                    kernel(_CONV.format("dgrad"), 160 * scale),
                    kernel(_CONV.format("wgrad"), 175 * scale),
                ),
            ),
            Operator(
                "aten::batch_norm", "CudnnBatchNormBackward0",
                (kernel("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, (int)512, (bool)1,"
                        " (int)1>(cudnn::bnFwTrainParams)", 42 * scale),),
                (kernel("void cudnn::bn_bw_1C11_kernel_new<float, float, float2, (int)512,"
                        " (bool)1, (int)1>(cudnn::bnBwParams)", 70 * scale),),
            ),
            Operator(
                "aten::relu", "ReluBackward0",
                (kernel(_ELEMENTWISE.format("<unnamed>::launch_clamp_scalar", 2), 24 * scale),),
                (kernel(_ELEMENTWISE.format("<unnamed>::threshold_kernel_impl<float>", 3),
                        33 * scale),),
            ),
        ),
        bucket_us,
    )  # fmt: skip


LAYERS = (
    _conv_layer(1.4, 120),
    _conv_layer(1.0, None),
    _conv_layer(0.9, 210),
    Layer(
        (
            Operator(
                "aten::linear", "AddmmBackward0",
                (kernel("ampere_sgemm_128x64_tn", 55, call="cuLaunchKernel"),),
                (
                    kernel("ampere_sgemm_128x64_nn", 52, call="cuLaunchKernel"),
                    kernel("ampere_sgemm_128x64_nt", 58, call="cuLaunchKernel"),
                ),
            ),
        ),
        330,
    ),
)  # fmt: skip
LOSS = Operator(
    "aten::cross_entropy_loss", "NllLossBackward0",
    (
        kernel("void <unnamed>::softmax_warp_forward<float, float, float, (int)10, (bool)1,"
               " (bool)0>(T2 *, const T1 *, int, int, int, const bool *, int, bool)", 7),
        kernel("void at::native::<unnamed>::nll_loss_forward_reduce_cuda_kernel_2d<float, float,"
               " long>(T1 *, T1 *, T1 *, T3 *, T1 *, bool, int, int, int, long)", 4),
    ),
    (
        kernel("void <unnamed>::softmax_warp_backward<float, float, float, (int)10, (bool)1>(T2 *,"
               " const T1 *, const T1 *, int, int, int)", 6),
    ),
)  # fmt: skip
OPTIMIZER = (
    kernel(_FOREACH.format(2, "BinaryOpListAlphaFunctor<float, (int)2, (int)2, (int)0>"), 48),
    kernel(_FOREACH.format(1, "BinaryOpScalarFunctor<float, (int)1, (int)1, (int)0>"), 30),
    kernel(_FOREACH.format(2, "BinaryOpListAlphaFunctor<float, (int)2, (int)2, (int)0>"), 47),
)
ZERO_GRAD = (fill(9_437_184), fill(2_359_296), fill(8_192_000))
ACCURACY = (
    kernel(_REDUCE.format("ArgMaxOps<float>"), 8),
    kernel(_ELEMENTWISE.format("BinaryFunctor<long, long, bool,"
                               " at::native::<unnamed>::CompareEqFunctor<long>>", 3), 3),
    kernel(_REDUCE.format("func_wrapper_t<long, at::native::sum_functor<bool, long, long>>"), 5),
)  # fmt: skip
DECODE = (
    ("MakeContiguous", copy(HTOD, 3_612_672, 21.0)),
    ("decoders.Image",
     kernel("void dali::kernels::jpeg::DecodeKernel<unsigned char>(const"
            " dali::kernels::jpeg::SampleDesc *)", 190)),
    ("Resize",
     kernel("void dali::kernels::ResampleKernel<float, unsigned char>(const"
            " dali::kernels::resampling::SampleDesc *)", 85)),
    ("CropMirrorNormalize",
     kernel("void dali::kernels::SliceFlipNormalizePermutePadKernel<float, float, (unsigned"
            " long)3>(const dali::kernels::SliceDesc *)", 60)),
)  # fmt: skip


@dataclass(frozen=True)
class Variant:
    """What differs between the two recordings of the same training run."""

    seed: int
    schema: str
    started: int
    markers: bool
    backward_range: bool
    loader: bool
    all_reduce: str
    broadcast: str


MARKED = Variant(
    seed=20240613, schema="3.11.1", started=1_718_272_800_000_000_000,
    markers=True, backward_range=True, loader=False,
    all_reduce="ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm *, unsigned long, ncclWork *)",
    broadcast="ncclDevKernel_Broadcast_RING_LL(ncclDevComm *, unsigned long, ncclWork *)",
)  # fmt: skip
UNMARKED = Variant(
    seed=20221107, schema="3.0.0", started=1_667_815_200_000_000_000,
    markers=False, backward_range=False, loader=True,
    all_reduce=(
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm *, unsigned long, ncclWork *)"
    ),
    broadcast=(
        "ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclDevComm *, unsigned long, ncclWork *)"
    ),
)  # fmt: skip


@dataclass
class Rank:
    """A process of the training run: its threads, its streams, and what it does in a step."""

    number: int
    variant: Variant
    sim: Simulation
    parts: list[Op] = field(default_factory=list)
    sequence: int = 0

    def __post_init__(self) -> None:
        pid, begin = 21_000 + 117 * self.number, 180_000_000 + self.sim.jitter(150_000, 0.9)
        pace = (1.0, 1.012, 1.035, 0.994)[self.number]
        self.pid = pid
        self.main = Thread(pid, pid, begin)
        self.engine = Thread(pid, pid + 64, begin)
        self.loader = Thread(pid, pid + 41, begin)
        self.compute = Stream(pid, self.number, 1, 7, pace)
        self.comm = Stream(pid, self.number, 1, 20)
        self.load = Stream(pid, self.number, 1, 17, pace)
        self.input_ready = 0

    def _run(self, stage: str, works: tuple[Work, ...], thread: Thread | None = None) -> None:
        for work in works:
            self.sim.launch(thread or self.main, self.compute, stage, work)

    def _wait(self) -> None:
        self.sim.call(self.main, "cudaStreamSynchronize_v3020", waits_for=self.compute)

    def _wait_for_collectives(self) -> None:
        self.sim.call(self.main, "cudaStreamWaitEvent_v3020", 1.2)
        self.compute.free = max(self.compute.free, self.comm.free)

    def _collective(self, thread: Thread, stage: str, call: str, name: str, us: float) -> None:
        """Join a collective that starts when what is on the compute stream now is done."""
        work = kernel(name, us, call="cudaLaunchKernelExC_v11060")
        with self.sim.range(thread, call, domain="NCCL", registered=True):
            self.sim.call(thread, "cudaEventRecord_v3020", 1.5)
            self.sim.call(thread, "cudaStreamWaitEvent_v3020", 1.2)
            done = self.compute.free
            self.parts.append(self.sim.join(thread, self.comm, stage, work, after=done))

    # input

    def _prefetch(self) -> None:
        """Let the loader's thread copy and decode the next batch on its own stream."""
        sim, thread = self.sim, self.loader
        sim.sleep(thread, self.main.now + sim.jitter(120_000, 0.5))
        with sim.range(thread, "[DALI][Executor] RunGPU", domain="DALI"):
            for name, work in DECODE:
                with sim.range(thread, f"[DALI][GPU op] {name}", domain="DALI"):
                    sim.spend(thread, 110)
                    op = sim.launch(thread, self.load, "IO", work)
        self.input_ready = op.end

    def _data(self, stage: str, *, prefetched: bool) -> None:
        with self.sim.range(self.main, "data"):
            self.sim.spend(self.main, 35)
            if prefetched:
                work, after = copy(DTOD, BATCH_BYTES, 620.0), self.input_ready
            else:
                work, after = copy(HTOD, BATCH_BYTES, 23.5), 0
            self.sim.launch(self.main, self.compute, stage, work, after=after)
            self.sim.launch(self.main, self.compute, stage, copy(HTOD, LABEL_BYTES, 1.0))

    # forward and back

    def _forward_operator(self, stage: str, operator: Operator) -> None:
        name = operator.name
        if stage == "FP":
            name, self.sequence = f"{name}, seq = {self.sequence}", self.sequence + 1
        marker = self.sim.range(self.main, name) if self.variant.markers else nullcontext()
        with marker:
            self.sim.spend(self.main, 4)
            self._run(stage, operator.forward)

    def _forward(self, stage: str) -> None:
        with self.sim.range(self.main, "forward"):
            for number, layer in enumerate(LAYERS, 1):
                with self.sim.range(self.main, f"layer {number}"):
                    for operator in layer.operators:
                        self._forward_operator(stage, operator)

    @contextmanager
    def _engine_marker(self, name: str, inner: str) -> Iterator[None]:
        if not self.variant.markers:
            self.sim.spend(self.engine, 6)
            yield
            return
        with (
            self.sim.range(self.engine, f"autograd::engine::evaluate_function: {name}"),
            self.sim.range(self.engine, inner),
        ):
            self.sim.spend(self.engine, 5)
            yield

    def _backward_operator(self, operator: Operator, sequence: int) -> None:
        name = operator.backward_name
        with self._engine_marker(name, f"{name}, seq = {sequence}"):
            self._run("BP", operator.backward, self.engine)

    def _exchange(self, us: float) -> None:
        with self._engine_marker("torch::autograd::AccumulateGrad", "nccl:all_reduce"):
            name = self.variant.all_reduce
            self._collective(self.engine, "WU", "ncclAllReduce", name, us)

    def _backward(self) -> None:
        """Go back through the layers on the autograd thread, while the main thread waits."""
        self.sim.sleep(self.engine, self.main.now + self.sim.jitter(18_000, 0.3))
        sequence = self.sequence - 1
        self._backward_operator(LOSS, sequence)
        for layer in reversed(LAYERS):
            for operator in reversed(layer.operators):
                sequence -= 1
                self._backward_operator(operator, sequence)
            if layer.bucket_us is not None:
                self._exchange(layer.bucket_us)
        self.sim.sleep(self.main, self.engine.now + self.sim.jitter(11_000, 0.3))

    # what the process does, with a yield where it needs the other ranks

    def begin(self) -> Iterator[None]:
        """Take the weights of rank 0, before training."""
        self.sim.spend(self.main, 900)
        self._collective(self.main, "WU", "ncclBroadcast", self.variant.broadcast, 140)
        yield
        self._wait_for_collectives()
        if self.variant.loader:
            self._prefetch()
            self.main.now = self.loader.now

    def iterate(self, number: int) -> Iterator[None]:
        """Train on one batch; the training threads are slower over the first."""
        for thread in (self.main, self.engine):
            thread.pace = WARM_UP_PACE if number == 0 else 1.0
        with self.sim.range(self.main, f"iteration {number}"):
            self._data("IO", prefetched=self.variant.loader)
            if self.variant.loader and number + 1 < ITERATIONS:
                self._prefetch()
            self._forward("FP")
            with self.sim.range(self.main, "loss"):
                self._forward_operator("FP", LOSS)
            held = self.sim.range(self.main, "backward")
            with held if self.variant.backward_range else nullcontext():
                self._backward()
            yield
            self._wait_for_collectives()
            with self.sim.range(self.main, "optimizer"):
                with self.sim.range(self.main, "Optimizer.step#SGD.step"):
                    self._run("WU", OPTIMIZER)
                with self.sim.range(self.main, "Optimizer.zero_grad#SGD.zero_grad"):
                    self._run("WU", ZERO_GRAD)
            self._run("OTHER", (copy(DTOH, 4, 1.0, dst_kind=0),))
            self._wait()

    def validate(self) -> Iterator[None]:
        """Count the right answers on the validation set, over all ranks."""
        with self.sim.range(self.main, "validation"):
            for _ in range(VALIDATION_BATCHES):
                self._data("ME", prefetched=False)
                self._forward("ME")
                with self.sim.range(self.main, "accuracy"):
                    self._run("ME", ACCURACY)
            self._collective(self.main, "ME", "ncclAllReduce", self.variant.all_reduce, 14)
            yield
            self._wait_for_collectives()
            self._run("ME", (copy(DTOH, 8, 1.0, dst_kind=0),))
            self._wait()


def simulate(variant: Variant) -> tuple[Simulation, list[Rank]]:
    """Train for some iterations, then validate."""
    sim = Simulation(random.Random(variant.seed))
    ranks = [Rank(number, variant, sim) for number in range(RANKS)]
    _in_step(sim, ranks, Rank.begin)
    for number in range(ITERATIONS):
        _in_step(sim, ranks, partial(Rank.iterate, number=number))
    _in_step(sim, ranks, Rank.validate)
    sim.finish()
    return sim, ranks


def _in_step(sim: Simulation, ranks: list[Rank], program: Callable[[Rank], Iterator[None]]) -> None:
    """Run a program on all ranks up to where they meet, let them meet, run the rest."""
    programs = [program(rank) for rank in ranks]
    for running in programs:
        next(running)
    for parts in zip(*(rank.parts for rank in ranks), strict=True):
        sim.complete(parts)
    for rank, running in zip(ranks, programs, strict=True):
        rank.parts.clear()
        deque(running, maxlen=0)


def write(variant: Variant, folder: Path, name: str) -> None:
    """Write the trace of a variant, and its truth beside it."""
    sim, ranks = simulate(variant)
    with NsysWriter(folder / f"{name}.sqlite", variant.schema, PRODUCT) as nsys:
        _describe_session(nsys, variant, sim.end)
        domains = {rank.pid: _domains(rank) for rank in ranks}
        for rank in ranks:
            _describe_rank(nsys, rank, domains[rank.pid])
        sim.write(nsys, domains)
    sim.write_truth(folder / f"{name}.truth.csv")


def _domains(rank: Rank) -> dict[str, int]:
    """Give each NVTX domain its number; processes may create them in different orders."""
    names = ["NCCL", "DALI"] if rank.variant.loader else ["NCCL"]
    if rank.number % 2:
        names.reverse()
    return {name: number for number, name in enumerate(names, 1)}


def _describe_session(nsys: NsysWriter, variant: Variant, end: int) -> None:
    nsys.session(variant.started, end + 40_000_000)
    nsys.env("Hostname", "node01", number=619)
    nsys.capture("CUDA_GRAPH_TRACE_OPTIONS:MODE", "Graph")
    nsys.capture("PROCESS_0:COMMAND", "torchrun")
    for number, argument in enumerate(("--nproc-per-node=4", "train.py")):
        nsys.capture(f"PROCESS_0:ARGUMENT_{number}", argument)
    launcher = 20_977
    for pid, name in ((1, "systemd"), (9, "rcu_sched"), (launcher, "torchrun")):
        nsys.process(pid, name)
        nsys.thread_name(pid, pid, name)
    nsys.insert(
        "OSRT_API", start=60_000_000, end=end, eventClass=27, globalTid=global_tid(launcher),
        nameId=nsys.string("wait4"),
    )  # fmt: skip


def _describe_rank(nsys: NsysWriter, rank: Rank, domains: dict[str, int]) -> None:
    pid, number = rank.pid, rank.number
    # In one of the two machines the system counts its GPUs the other way round than CUDA does.
    gpu_id = RANKS - 1 - number if rank.variant.loader else number
    nsys.gpu(gpu_id, cu_device=number, bus=f"0000:{0x07 + 0x20 * number:02X}:00.0")
    nsys.process(pid, "python3.11")
    nsys.thread_name(pid, pid, "python3.11")
    nsys.thread_name(pid, pid + 23, "pt_nccl_watchdg")
    nsys.thread_name(pid, pid + 30, "cuda-EvtHandlr")
    if rank.variant.markers:
        nsys.thread_name(pid, rank.engine.tid, f"pt_autograd_{number}")
    if rank.variant.loader:
        nsys.thread_name(pid, rank.loader.tid, "[DALI][WT]GPU executor")
    for name, domain in domains.items():
        nsys.domain(pid, domain, name, start=150_000_000 + domain * 1_000)
    _describe_streams(nsys, rank)


def _describe_streams(nsys: NsysWriter, rank: Rank) -> None:
    where = {"hwId": 0, "vmId": 1, "processId": rank.pid, "contextId": 1}
    nsys.insert("TARGET_INFO_CUDA_CONTEXT_INFO", **where, deviceId=rank.number, nullStreamId=7)
    nsys.insert("TARGET_INFO_CUDA_NULL_STREAM", **where, deviceId=rank.number, streamId=7)
    for stream in (rank.comm, rank.load):
        nsys.insert("TARGET_INFO_CUDA_STREAM", **where, streamId=stream.number, flag=2)
