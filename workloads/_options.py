"""Options of a training run."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class BatchScope(StrEnum):
    """Whether a batch size counts the images of one GPU, or of all."""

    GPU = "gpu"
    GLOBAL = "global"


class Scaling(StrEnum):
    """Whether more GPUs share the images of an epoch (strong), or bring their own (weak)."""

    STRONG = "strong"
    WEAK = "weak"


class Precision(StrEnum):
    """Number format of forward and backward passes; parameters always have 32 bits."""

    FP32 = "fp32"
    TF32 = "tf32"
    AMP = "amp"
    BF16 = "bf16"


class DeviceKind(StrEnum):
    """Kind of device to train on."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class Root(StrEnum):
    """Where `p2p` averages gradients and updates weights: all at device 0, or spread over devices.

    Spread means that each parameter has its own root device.
    """

    FIRST = "0"
    SPREAD = "spread"


class Exchange(StrEnum):
    """How `nccl` and `gloo` exchange gradients."""

    ALL_REDUCE = "all_reduce"
    REDUCE_BROADCAST = "reduce_broadcast"
    SHARDED = "sharded"


class Compiler(StrEnum):
    """Backend of torch.compile; ``eager`` traces the network and runs it uncompiled."""

    INDUCTOR = "inductor"
    AOT_EAGER = "aot_eager"
    EAGER = "eager"


class Schedule(StrEnum):
    """Order in which a pipeline runs its micro-batches."""

    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"


class Staging(StrEnum):
    """How `mpi` gives gradients to MPI: through host memory, or in device memory."""

    AUTO = "auto"
    HOST = "host"
    DIRECT = "direct"


@dataclass(frozen=True)
class Options:
    """Options of a training run; ``python -m workloads.train --help`` describes them.

    `batch` counts the images of a GPU, or of all GPUs with `batch_scope` global. Exactly one of
    `steps` and `epochs` is set.
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
