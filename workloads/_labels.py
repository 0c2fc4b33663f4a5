"""Labels (name -> value) that describe a run, for its trace and its summary."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

import torch

from workloads._epochs import Plan
from workloads._options import Options
from workloads.methods._method import Method
from workloads.networks import Network

_PACKAGES = ("nvtx", "numpy", "mpi4py", "grpcio")
_OF_METHOD = {
    "p2p": ("root", "overlap"),
    "nccl": ("exchange", "bucket_mb"),
    "gloo": ("exchange", "bucket_mb"),
    "mpi": ("overlap", "bucket_mb"),
    "ps": ("bucket_mb",),
    "pipeline": ("schedule", "micro_batches"),
}


def run_labels(options: Options, plan: Plan, network: Network, method: Method) -> Mapping[str, str]:
    """Return the labels of a run, the same in all its processes: name -> value.

    ``network, batch, gpus, method, scaling`` are used by tracekit's studies; ``batch`` counts the
    images of a GPU or of all, as `Options.batch_scope` says, which is a label as well.
    """
    device = method.devices[0]
    labels: dict[str, object] = {
        "network": options.network,
        "batch": options.batch,
        "batch_scope": options.batch_scope,
        "gpus": options.gpus,
        "method": options.method,
        **{name: getattr(options, name) for name in _OF_METHOD.get(options.method, ())},
        "scaling": options.scaling,
        "images": plan.images,
        "data": "synthetic" if options.data is None else "stored",
        "image_size": options.image_size,
        "auxiliary": None if options.auxiliary else "no",
        "precision": options.precision,
        "compile": options.compile,
        "cudnn_benchmark": options.cudnn_benchmark if device.type == "cuda" else None,
        "seed": options.seed,
        "parameters": network.parameters,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        **_versions(),
    }
    return {key: _text(value) for key, value in labels.items() if value is not None}


def _text(value: object) -> str:
    return ("no", "yes")[value] if isinstance(value, bool) else str(value)


def _versions() -> Mapping[str, str | None]:
    nccl = torch.cuda.nccl.version() if torch.cuda.is_available() else None  # type: ignore[no-untyped-call]
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "nccl": nccl and ".".join(map(str, nccl)),
        **{name: _installed(name) for name in _PACKAGES},
    }


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
