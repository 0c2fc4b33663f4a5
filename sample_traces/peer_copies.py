"""Data-parallel training of one process on two GPUs, gradients gathered by peer copies.

An engine with one worker thread per GPU launches what the main thread asks for. The stages are
start/end ranges that the main thread opens, so no worker's thread holds a range of its own.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsys_writer import NsysWriter
from simulation import (
    DTOH,
    HTOD,
    PRODUCT,
    PTOP,
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
    from pathlib import Path

SEED = 20201203
ITERATIONS = 6
VALIDATION_BATCHES = 2
BATCH_BYTES = 64 * 3 * 224 * 224 * 4
LABEL_BYTES = 64 * 4
NVLINK_GB_S = 22.4
WARM_UP_PACE = 12.0
PID = 31_337

_GENERIC = (
    "void mxnet::op::mxnet_op::mxnet_generic_kernel<mxnet::op::mxnet_op::{}>(int, float *, float *)"
)

_SOFTMAX = "void mxnet::op::mxnet_op::softmax_{}_kernel<(int)8, float>(float *, float *)"
_RELU = _GENERIC.format("op_with_req<mxnet::op::mshadow_op::relu, (int)1>")


def _launched(name: str, us: float) -> Work:
    return kernel(name, us, call="cuLaunchKernel")


@dataclass(frozen=True)
class Layer:
    """A layer of the network: its kernels in both directions and the size of its weights."""

    forward: tuple[Work, ...]
    backward: tuple[Work, ...]
    weight_bytes: int


def _conv(scale: float, weight_bytes: int) -> Layer:
    return Layer(
        (
            _launched("volta_scudnn_128x64_relu_medium_nn_v1", 190 * scale),
            _launched(_RELU, 22 * scale),
        ),
        (
            _launched("volta_scudnn_128x64_stridedB_interior_nn_v1", 215 * scale),
            _launched("volta_scudnn_128x64_stridedB_splitK_medium_nn_v1", 205 * scale),
        ),
        weight_bytes,
    )


LAYERS = (
    _conv(1.3, 139_392),
    _conv(1.0, 1_228_800),
    _conv(0.8, 3_538_944),
    Layer(
        (_launched("volta_sgemm_128x64_tn", 96),),
        (_launched("volta_sgemm_128x64_nt", 101), _launched("volta_sgemm_128x64_nn", 99)),
        16_777_216,
    ),
)
LOSS_FORWARD = _launched(_SOFTMAX.format("compute"), 11)
LOSS_BACKWARD = _launched(_SOFTMAX.format("gradient"), 9)
PREDICT = _launched(
    "void mshadow::cuda::MapReduceKeepDim1Kernel<mshadow::red::maximum, (int)5>(float *, float *)",
    13,
)
COMPARE = _launched(_GENERIC.format("op_with_req<mxnet::op::mshadow_op::eq, (int)1>"), 5)


def _sum(layer: Layer) -> Work:
    return _launched(
        _GENERIC.format("ElementWiseSumCompute<float>"), 3 + layer.weight_bytes * 3 / 700e3
    )


def _update(layer: Layer) -> Work:
    return _launched(_GENERIC.format("SGDMomKernel"), 3 + layer.weight_bytes * 5 / 700e3)


def _peer_copy(src: int, dst: int, size: int) -> Work:
    return copy(
        PTOP, size, NVLINK_GB_S, call="cuMemcpyPeerAsync", src_device=src, dst_device=dst,
        srcContextId=src + 1, dstContextId=dst + 1,
    )  # fmt: skip


class Training:
    """The process: its threads, its GPUs, and what it does in an iteration."""

    def __init__(self) -> None:
        self.sim = Simulation(random.Random(SEED))
        self.main = Thread(PID, PID, 210_000_000)
        self.workers = [Thread(PID, PID + 50 + gpu, 210_000_000) for gpu in (0, 1)]
        self.copier = Thread(PID, PID + 60, 210_000_000)
        self.compute = [Stream(PID, gpu, gpu + 1, 13, (1.0, 1.02)[gpu]) for gpu in (0, 1)]
        self.comm = [Stream(PID, gpu, gpu + 1, 14) for gpu in (0, 1)]
        self.inputs = [Stream(PID, gpu, gpu + 1, 15) for gpu in (0, 1)]
        self.weights_ready = [0, 0]

    def _wake(self, thread: Thread) -> None:
        self.sim.sleep(thread, self.main.now + self.sim.jitter(14_000, 0.4))

    def _wait_for(self, *threads: Thread) -> None:
        latest = max(thread.now for thread in threads)
        self.sim.sleep(self.main, latest + self.sim.jitter(9_000, 0.4))

    def _launch(self, gpu: int, stage: str, work: Work, *, after: int = 0) -> Op:
        self.sim.spend(self.workers[gpu], 5)
        return self.sim.launch(self.workers[gpu], self.compute[gpu], stage, work, after=after)

    def _copy_batch(self, stage: str) -> None:
        """Let the copier's thread bring each GPU its half of the batch."""
        self._wake(self.copier)
        call = "cuMemcpyHtoDAsync_v2"
        for stream in self.inputs:
            for size in (BATCH_BYTES // 2, LABEL_BYTES // 2):
                self.sim.launch(self.copier, stream, stage, copy(HTOD, size, 11.8, call=call))

    def _clear(self) -> None:
        """Zero a buffer between two stages, inside none."""
        self._wake(self.workers[0])
        self._launch(0, "OTHER", fill(4_194_304, call="cuMemsetD8Async"))
        self._wait_for(self.workers[0])

    def _forward(self, stage: str) -> None:
        for gpu, worker in enumerate(self.workers):
            self._wake(worker)
            ready = max(self.inputs[gpu].free, self.weights_ready[gpu])
            for work in (work for layer in LAYERS for work in layer.forward):
                self._launch(gpu, stage, work, after=ready)
            self._launch(gpu, stage, LOSS_FORWARD)
        self._wait_for(*self.workers)

    def _backward(self) -> list[int]:
        """Go back on both GPUs; GPU 1 sends its gradients as they come. Return their arrival."""
        arrivals = []
        for gpu, worker in enumerate(self.workers):
            self._wake(worker)
            self._launch(gpu, "BP", LOSS_BACKWARD)
            for layer in reversed(LAYERS):
                for work in layer.backward:
                    done = self._launch(gpu, "BP", work).end
                if gpu == 1:
                    sent = _peer_copy(1, 0, layer.weight_bytes)
                    op = self.sim.launch(worker, self.comm[1], "WU", sent, after=done)
                    arrivals.append(op.end)
        self._wait_for(*self.workers)
        return arrivals

    def _update(self, arrivals: list[int]) -> None:
        """Average and apply the gradients on GPU 0, and send the new weights to GPU 1."""
        worker = self.workers[0]
        self._wake(worker)
        for layer, arrival in zip(reversed(LAYERS), arrivals, strict=True):
            self._launch(0, "WU", _sum(layer), after=arrival)
            done = self._launch(0, "WU", _update(layer)).end
            sent = _peer_copy(0, 1, layer.weight_bytes)
            op = self.sim.launch(worker, self.comm[0], "WU", sent, after=done)
        self.weights_ready = [done, op.end]
        self._wait_for(worker)

    def _evaluate(self) -> None:
        for gpu, worker in enumerate(self.workers):
            self._wake(worker)
            self._launch(gpu, "ME", PREDICT)
            self._launch(gpu, "ME", COMPARE)
            self._launch(gpu, "ME", copy(DTOH, 128, 1.0, call="cuMemcpyDtoHAsync_v2", dst_kind=0))
            self.sim.call(worker, "cuStreamSynchronize", waits_for=self.compute[gpu])
        self._wait_for(*self.workers)

    def iterate(self, number: int) -> None:
        """Train on one batch; the host is slower over the first."""
        sim, main = self.sim, self.main
        for thread in (main, self.copier, *self.workers):
            thread.pace = WARM_UP_PACE if number == 0 else 1.0
        with sim.process_range(main, f"iteration {number}"):
            self._clear()
            with sim.process_range(main, "IO", ended_by=self.copier):
                self._copy_batch("IO")
            self._wait_for(self.copier)
            with sim.process_range(main, "FP"):
                self._forward("FP")
            with sim.process_range(main, "BP"):
                arrivals = self._backward()
            with sim.process_range(main, "WU"):
                self._update(arrivals)
            with sim.process_range(main, "ME"):
                self._evaluate()

    def validate(self) -> None:
        """Count the right answers on the validation set."""
        for _ in range(VALIDATION_BATCHES):
            with self.sim.process_range(self.main, "ME"):
                self._copy_batch("ME")
                self._wait_for(self.copier)
                self._forward("ME")
                self._evaluate()


def write(folder: Path, name: str) -> None:
    """Write the trace, and its truth beside it."""
    training = Training()
    for number in range(ITERATIONS):
        training.iterate(number)
    training.validate()
    training.sim.finish()
    with NsysWriter(folder / f"{name}.sqlite", "none-2020.4", PRODUCT) as nsys:
        for gpu in (0, 1):
            nsys.insert(
                "TARGET_INFO_CUDA_GPU", pid=PID, deviceId=gpu, pciBusId=f"0000:{6 + gpu:02X}:00.0",
                name="Tesla V100-SXM2-16GB", coreClockRate=1_530_000, numMultiprocessors=80,
            )  # fmt: skip
        for tid in (1, PID, training.copier.tid, *(worker.tid for worker in training.workers)):
            nsys.thread_name(min(tid, PID), tid, "systemd" if tid == 1 else "python")
        training.sim.write(nsys, {})
    training.sim.write_truth(folder / f"{name}.truth.csv")
