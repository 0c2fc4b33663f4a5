"""Options of a training run."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class BatchScope(StrEnum):
    """Whose images a batch counts."""

    GPU = "gpu"
    GLOBAL = "global"


class Scaling(StrEnum):
    """Whether more GPUs share the images of an epoch (strong), or bring their own (weak)."""

    STRONG = "strong"
    WEAK = "weak"


class Precision(StrEnum):
    """In which numbers the passes compute; parameters are always 32 bits wide."""

    FP32 = "fp32"
    TF32 = "tf32"
    AMP = "amp"
    BF16 = "bf16"


class DeviceKind(StrEnum):
    """Where to train."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class Root(StrEnum):
    """Where `p2p` averages and updates: at device 0, or each parameter at its own."""

    FIRST = "0"
    SPREAD = "spread"


class Exchange(StrEnum):
    """How `nccl` and `gloo` exchange gradients."""

    ALL_REDUCE = "all_reduce"
    REDUCE_BROADCAST = "reduce_broadcast"
    SHARDED = "sharded"


class Compiler(StrEnum):
    """Compiler of the network; ``eager`` traces it and runs it as it is."""

    INDUCTOR = "inductor"
    AOT_EAGER = "aot_eager"
    EAGER = "eager"


class Schedule(StrEnum):
    """In which order a pipeline runs its micro-batches."""

    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"


class Staging(StrEnum):
    """Whether `mpi` copies through host memory, or passes device memory to MPI."""

    AUTO = "auto"
    HOST = "host"
    DIRECT = "direct"


@dataclass(frozen=True)
class Options:
    """Options of a training run; ``python -m workloads.train --help`` says them at length.

    `batch` counts the images of a GPU, or of all with `batch_scope` global. One of `steps` and
    `epochs` is set.
    """

    network: str = "lenet"
    method: str = "none"
    gpus: int = 1
    batch: int = 32
    batch_scope: BatchScope = BatchScope.GPU
    steps: int | None = None
    epochs: int | None = None
    images: int | None = None
    scaling: Scaling | None = None
    warm_up: int = 0
    data: Path | None = None
    image_size: int | None = None
    auxiliary: bool = True
    precision: Precision = Precision.FP32
    compile: Compiler | None = None
    cudnn_benchmark: bool = True
    seed: int = 0
    learning_rate: float = 0.01
    momentum: float = 0.9
    evaluate_every: int | None = None
    device: DeviceKind = DeviceKind.AUTO
    root: Root = Root.FIRST
    overlap: bool = False
    exchange: Exchange = Exchange.ALL_REDUCE
    bucket_mb: float = 25
    schedule: Schedule = Schedule.GPIPE
    micro_batches: int = 4
    mpi_staging: Staging = Staging.AUTO
    nvtx: bool = True
    layers: bool = True
    capture_range: bool = False
    summary: Path | None = None
