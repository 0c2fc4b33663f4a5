"""Write a large SQLite export of other proportions than `generate_export.py` has.

    python benchmarks/generate_interleaved.py OUT.sqlite --kernels 1000000

Eight processes of one thread launch in turn, so that the rows of all of them alternate. Each kernel
has a range of its own, around its launch; the last one of a step is an all-reduce, which ends on
all GPUs together. No range names a stage, so that structure is asked for, unless `--stages` has
each of them name one that no other range is around. With `--allocations` the kernels of the first
launches alone are there, and each launch allocates memory or releases it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.append(str(Path(__file__).resolve().parents[1] / "sample_traces"))

from bulk_file import BulkFile
from nsys_writer import NsysWriter, global_pid, global_tid

SCHEMA = "3.11.1"
PRODUCT = "tracekit benchmarks (simulated)"
_ROWS = 60_000
_EVERY_NS = 20_000
_KERNELS_OF_STEP = 500
_PUSH_POP = 59
_PASSES = ("forward", "backward", "optimizer")


def generate(
    path: Path, kernels: int, processes: int = 8, *, stages: bool = False, allocations: bool = False
) -> None:
    """Write the export; one that exists is replaced."""
    rng = np.random.default_rng(3)
    place = np.arange(_KERNELS_OF_STEP)
    passes = [_PASSES[3 * n // _KERNELS_OF_STEP] if stages else "operator" for n in place]
    pids = [1000 * (number + 1) for number in range(processes)]
    with NsysWriter(path, SCHEMA, PRODUCT) as writer:
        writer.capture("PROCESS:COMMAND", "python train.py")
        for number, pid in enumerate(pids):
            writer.gpu(number)
            writer.process(pid, "python")
            writer.thread_name(pid, pid, "python")
        names = [
            writer.string(f"void kernel_{n % 300}<float>(int)") for n in rng.permutation(place)
        ]
        names[-1] = writer.string(
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage)"
        )
        ranges = [writer.string(f"{name} {n // 5}") for n, name in enumerate(passes)]
        call = writer.string("cudaLaunchKernel_v7000")
    owners = {
        "deviceId": np.arange(processes),
        "globalPid": np.array([global_pid(pid) for pid in pids]),
        "globalTid": np.array([global_tid(pid, pid) for pid in pids]),
    }
    steps = -(-kernels // (processes * _KERNELS_OF_STEP))
    at_once = max(_ROWS // (processes * _KERNELS_OF_STEP), 1)
    with BulkFile(path, SCHEMA) as file:
        for first in range(0, steps, at_once):
            count = min(at_once, steps - first) * _KERNELS_OF_STEP
            number = first * _KERNELS_OF_STEP + np.arange(count)
            shape = (count, processes)  # so that rows of all processes alternate
            own = {name: np.broadcast_to(values, shape).ravel() for name, values in owners.items()}
            launch = _spread(1_000_000 + number * _EVERY_NS, processes)
            together = launch + 19_000
            launch = launch + rng.integers(0, 5_000, launch.size)
            which = _spread(number % _KERNELS_OF_STEP, processes)
            correlation = _spread(number + 1, processes)
            name = np.array(names)[which]
            kernel = {
                "start": launch + 8_000,
                "end": np.where(which == _KERNELS_OF_STEP - 1, together, launch + 14_000),
                "correlationId": correlation,
                "deviceId": own["deviceId"], "globalPid": own["globalPid"],
                "demangledName": name, "shortName": name, "mangledName": name,
                "streamId": 7, "contextId": 1, "launchType": 1,
                "gridX": 1, "gridY": 1, "gridZ": 1, "blockX": 128, "blockY": 1, "blockZ": 1,
            }  # fmt: skip
            if allocations:
                memory = {
                    "start": launch + 2_000, "correlationId": correlation, "memKind": 2,
                    "deviceId": own["deviceId"], "globalPid": own["globalPid"], "contextId": 1,
                    "address": 4096 * (1 + which // 2), "bytes": 512 * (1 + which // 2),
                    "memoryOperationType": which % 2,
                }  # fmt: skip
                file.append("CUDA_GPU_MEMORY_USAGE_EVENTS", memory)
                few = 0 if first else processes
                kernel = {
                    name: each[:few] if isinstance(each, np.ndarray) else each
                    for name, each in kernel.items()
                }
            file.append("CUPTI_ACTIVITY_KIND_KERNEL", kernel)
            runtime = {
                "start": launch, "end": launch + 4_000, "correlationId": correlation,
                "globalTid": own["globalTid"], "nameId": call,
            }  # fmt: skip
            file.append("CUPTI_ACTIVITY_KIND_RUNTIME", runtime)
            pushed = {
                "start": launch - 500, "end": launch + 5_000, "eventType": _PUSH_POP,
                "domainId": 0, "globalTid": own["globalTid"], "textId": np.array(ranges)[which],
            }  # fmt: skip
            file.append("NVTX_EVENTS", pushed)
        end = np.array([2_000_000 + steps * _KERNELS_OF_STEP * _EVERY_NS])
        file.append("ANALYSIS_DETAILS", {"duration": end, "stopTime": end})


def _spread(values: NDArray[Any], times: int) -> NDArray[Any]:
    """Return a value for each process."""
    return np.repeat(values, times)


def main() -> None:
    """Write an export."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path, metavar="OUT", help="file to write")
    parser.add_argument("--kernels", type=int, default=1_000_000, help="%(default)s")
    parser.add_argument("--processes", type=int, default=8, help="%(default)s")
    parser.add_argument("--stages", action="store_true", help="have each range name a stage")
    parser.add_argument(
        "--allocations", action="store_true", help="allocate and release memory instead of kernels"
    )
    given = vars(parser.parse_args())
    generate(given.pop("out"), **given)


if __name__ == "__main__":
    main()
