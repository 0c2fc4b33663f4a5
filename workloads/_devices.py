"""Selection of the devices that a method trains on."""

from __future__ import annotations

import torch

from workloads._errors import MissingError
from workloads._options import DeviceKind


def choose_devices(kind: DeviceKind, count: int) -> tuple[torch.device, ...]:
    """Return the first devices of this host.

    Parameters
    ----------
    kind
        Kind of device; ``auto`` means GPUs if there are any, else the CPU.
    count
        Number of devices. The CPU can stand for any number.

    Raises
    ------
    MissingError
        If there are fewer GPUs.
    """
    if kind is DeviceKind.CPU or (kind is DeviceKind.AUTO and not torch.cuda.is_available()):
        return (torch.device("cpu"),) * count
    require_gpus(count)
    return tuple(torch.device("cuda", index) for index in range(count))


def require_gpus(count: int) -> None:
    """Raise an error if this host has fewer than `count` GPUs.

    Raises
    ------
    MissingError
        If this host has fewer.
    """
    if not torch.cuda.is_available():
        built = "" if torch.version.cuda else f" (this PyTorch, {torch.__version__}, is without)"
        raise MissingError(
            f"PyTorch finds no CUDA device{built}",
            "train on the CPU, with --device cpu and the method gloo, p2p or none",
        )
    found = torch.cuda.device_count()
    if found < count:
        raise MissingError(
            f"{count} GPUs are asked for and this host has {found}",
            f"give --gpus {found}, or --device cpu with the method gloo or p2p",
        )
