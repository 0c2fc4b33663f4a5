"""Training of one process on four GPUs, of which one gathers gradients and updates the weights.

The others send it their gradients by peer copies and wait for the weights, which takes most of the
step: their own last op ends long before the step does. Steps begin every 100.01 ms.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from nsys_writer import NsysWriter
from simulation import PRODUCT, PTOP, Simulation, Stream, Thread, Work, copy, kernel

if TYPE_CHECKING:
    from pathlib import Path

SEED = 20261122
ITERATIONS = 12
GPUS = 4
PID = 41_414
STEP_NS = 100_010_000
UPDATED_NS = 99_995_000
"""After the begin of a step: when the last GPU has its weights."""
FIRST_NS = 300_000_000
WEIGHT_BYTES = 8_960_000
NVLINK_GB_S = 22.4

FORWARD = [kernel(f"void volta_sgemm_128x64_tn_{layer}", 1_500) for layer in range(2)]
BACKWARD = [kernel(f"void volta_sgemm_128x64_nt_{layer}", 2_100) for layer in range(3)]
UPDATE = [kernel(f"void momentum_sgd_kernel_{layer}(float*, float*)", 11_000) for layer in range(8)]


def _peer_copy(src: int, dst: int) -> Work:
    return copy(
        PTOP, WEIGHT_BYTES, NVLINK_GB_S, src_device=src, dst_device=dst, srcContextId=src + 1,
        dstContextId=dst + 1,
    )  # fmt: skip


class Training:
    """The process, its thread and its GPUs, and what it does in an iteration."""

    def __init__(self) -> None:
        self.sim = Simulation(random.Random(SEED))
        self.main = Thread(PID, PID, FIRST_NS)
        self.compute = [Stream(PID, gpu, gpu + 1, 7) for gpu in range(GPUS)]

    def _on_all(self, stage: str, kernels: list[Work]) -> None:
        for stream in self.compute:
            for work in kernels:
                self.sim.launch(self.main, stream, stage, work)

    def _update(self, done: int) -> None:
        """Gather gradients on GPU 0, update the weights there and send them, by some time."""
        arrivals = [
            self.sim.launch(self.main, stream, "WU", _peer_copy(gpu, 0)).end
            for gpu, stream in enumerate(self.compute)
            if gpu
        ]
        for work in UPDATE:
            op = self.sim.launch(self.main, self.compute[0], "WU", work, after=max(arrivals))
        sending = round((GPUS - 1) * WEIGHT_BYTES / NVLINK_GB_S * 1.05)
        op.end = self.compute[0].free = done - sending
        for gpu in range(1, GPUS):
            op = self.sim.launch(self.main, self.compute[0], "WU", _peer_copy(0, gpu))
        op.end = self.compute[0].free = done

    def iterate(self, number: int) -> None:
        """Train on one batch."""
        begin = FIRST_NS + number * STEP_NS
        self.main.now = begin
        with self.sim.range(self.main, f"iteration {number}"):
            with self.sim.range(self.main, "FP"):
                self._on_all("FP", FORWARD)
            with self.sim.range(self.main, "BP"):
                self._on_all("BP", BACKWARD)
            with self.sim.range(self.main, "WU"):
                self._update(begin + UPDATED_NS)
                self.sim.call(self.main, "cudaStreamSynchronize", waits_for=self.compute[0])


def write(folder: Path, name: str) -> None:
    """Write the trace, and its truth beside it."""
    training = Training()
    for number in range(ITERATIONS):
        training.iterate(number)
    training.sim.finish()
    with NsysWriter(folder / f"{name}.sqlite", "none-2020.4", PRODUCT) as nsys:
        for gpu in range(GPUS):
            nsys.insert(
                "TARGET_INFO_CUDA_GPU", pid=PID, deviceId=gpu, pciBusId=f"0000:{6 + gpu:02X}:00.0",
                name="Tesla V100-SXM2-16GB", coreClockRate=1_530_000, numMultiprocessors=80,
            )  # fmt: skip
        nsys.thread_name(PID, PID, "python")
        training.sim.write(nsys, {})
    training.sim.write_truth(folder / f"{name}.truth.csv")
