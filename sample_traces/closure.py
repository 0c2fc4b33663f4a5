"""Training with an optimizer that calls the model: L-BFGS and its closure, on one GPU.

Everything that a step does lies in the optimizer's range: in each call of the closure gradients are
cleared, the network goes forward on the main thread and back on the autograd thread; then the
optimizer works out a direction from the gradients that it remembers. No range is called backward.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from data_parallel import ACCURACY, LAYERS, LOSS, ZERO_GRAD
from nsys_writer import NsysWriter, global_tid
from simulation import (
    DTOH,
    HTOD,
    PRODUCT,
    Simulation,
    Stream,
    Thread,
    Work,
    copy,
    kernel,
)

if TYPE_CHECKING:
    from pathlib import Path

SEED = 20250311
SCHEMA = "3.17.2"
STARTED = 1_741_651_200_000_000_000
CALLS = (4, 5, 4, 5, 4, 5)
"""How often each iteration calls the closure."""
VALIDATION_BATCHES = 2
BATCH_BYTES = 16 * 3 * 224 * 224 * 4
LABEL_BYTES = 16 * 8
WARM_UP_PACE = 12.0
PID = 8_450
OPTIMIZER = "Optimizer.step#LBFGS.step"

_DOT = kernel(
    "void dot_kernel<float, (int)128, (int)0, cublasDotParams<cublasGemvTensor<const float>,"
    " cublasGemvTensorStridedBatched<float>>>(T4)",
    9,
)
_REDUCED = kernel(
    "void reduce_1Block_kernel<float, (int)128, (int)7, cublasGemvTensorStridedBatched<float>,"
    " cublasGemvTensorStridedBatched<float>>(const T4 *, float, T5, int)",
    3,
)
_ADDED = kernel(
    "void at::native::vectorized_elementwise_kernel<(int)4, at::native::CUDAFunctor_add<float>,"
    " at::detail::Array<char *, (int)3>>(int, T2, T3)",
    21,
)
_FETCHED = copy(DTOH, 4, 1.0, dst_kind=0)
"""A number that the host decides by: how far to go, and whether to go on."""
DIRECTION = (_DOT, _REDUCED, _FETCHED, _ADDED)


class Training:
    """The process: its threads, its GPU, and what it does in an iteration."""

    def __init__(self) -> None:
        self.sim = Simulation(random.Random(SEED))
        self.main = Thread(PID, PID, 190_000_000)
        self.engine = Thread(PID, PID + 77, 190_000_000)
        self.compute = Stream(PID, 0, 1, 7)

    def _run(self, stage: str, works: tuple[Work, ...], thread: Thread | None = None) -> None:
        for work in works:
            self.sim.launch(thread or self.main, self.compute, stage, work)

    def _wait(self) -> None:
        self.sim.call(self.main, "cudaStreamSynchronize_v3020", waits_for=self.compute)

    def _data(self, stage: str) -> None:
        with self.sim.range(self.main, "data"):
            self._run(stage, (copy(HTOD, BATCH_BYTES, 22.5), copy(HTOD, LABEL_BYTES, 1.0)))

    def _forward(self, stage: str) -> None:
        with self.sim.range(self.main, "forward"):
            for number, layer in enumerate(LAYERS, 1):
                with self.sim.range(self.main, f"layer {number}"):
                    for operator in layer.operators:
                        self._run(stage, operator.forward)

    def _backward(self) -> None:
        """Go back on the autograd thread, while the main thread waits."""
        self.sim.sleep(self.engine, self.main.now + self.sim.jitter(18_000, 0.3))
        self._run("BP", LOSS.backward, self.engine)
        for layer in reversed(LAYERS):
            for operator in reversed(layer.operators):
                self._run("BP", operator.backward, self.engine)
        self.sim.sleep(self.main, self.engine.now + self.sim.jitter(11_000, 0.3))

    def _closure(self) -> None:
        with self.sim.range(self.main, "Optimizer.zero_grad#LBFGS.zero_grad"):
            self._run("WU", ZERO_GRAD)
        self._forward("FP")
        with self.sim.range(self.main, "loss"):
            self._run("FP", LOSS.forward)
        self._backward()

    def iterate(self, number: int) -> None:
        """Take one step of the optimizer; the host is slower over the first."""
        for thread in (self.main, self.engine):
            thread.pace = WARM_UP_PACE if number == 0 else 1.0
        with self.sim.range(self.main, f"iteration {number}"):
            self._data("IO")
            with self.sim.range(self.main, OPTIMIZER):
                for _ in range(CALLS[number]):
                    self._closure()
                    self._run("WU", DIRECTION)
                    self._wait()
            self._run("OTHER", (_FETCHED,))
            self._wait()

    def validate(self) -> None:
        """Count the right answers on the validation set."""
        with self.sim.range(self.main, "validation"):
            for _ in range(VALIDATION_BATCHES):
                self._data("ME")
                self._forward("ME")
                with self.sim.range(self.main, "accuracy"):
                    self._run("ME", ACCURACY)
            self._run("ME", (copy(DTOH, 8, 1.0, dst_kind=0),))
            self._wait()


def write(folder: Path, name: str) -> None:
    """Write the trace, and its truth beside it."""
    training = Training()
    for number in range(len(CALLS)):
        training.iterate(number)
    training.validate()
    training.sim.finish()
    with NsysWriter(folder / f"{name}.sqlite", SCHEMA, PRODUCT) as nsys:
        _describe(nsys, training)
        training.sim.write(nsys, {})
    training.sim.write_truth(folder / f"{name}.truth.csv")


def _describe(nsys: NsysWriter, training: Training) -> None:
    nsys.session(STARTED, training.sim.end + 40_000_000)
    nsys.gpu(0, cu_device=0, bus="0000:01:00.0")
    for pid, name in ((1, "systemd"), (PID, "python3.12")):
        nsys.process(pid, name)
        nsys.thread_name(pid, pid, name)
    nsys.thread_name(PID, training.engine.tid, "python3.12")
    where = {"hwId": 0, "vmId": 1, "processId": PID, "contextId": 1}
    nsys.insert("TARGET_INFO_CUDA_CONTEXT_INFO", **where, deviceId=0, nullStreamId=7)
    nsys.insert("TARGET_INFO_CUDA_NULL_STREAM", **where, deviceId=0, streamId=7)
    nsys.insert(
        "OSRT_API", start=60_000_000, end=training.sim.end, eventClass=27,
        globalTid=global_tid(PID), nameId=nsys.string("wait4"),
    )  # fmt: skip
