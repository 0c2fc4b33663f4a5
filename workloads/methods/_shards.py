"""Sharded parameters, a part in each process: PyTorch's fully sharded data parallelism."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import nn

from workloads.networks import blocks


class Volume(NamedTuple):
    """Bytes of the messages of a step: for gradients, and for weights."""

    gradients: int
    weights: int


def shard(module: nn.Module, device: torch.device, processes: int) -> Volume:
    """Shard each parameter over the processes of a job, and return the bytes that a step exchanges.

    Each block gathers its parameters for its forward pass and again for its backward pass.
    Parameters outside of blocks (auxiliary classifiers) are gathered once. Gradients are scattered
    once.
    """
    from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415  takes a second

    mesh = init_device_mesh(device.type, (processes,))
    whole = _bytes(module.parameters(), processes)
    own = [block for _, block in blocks(module) if any(True for _ in block.parameters())]
    again = sum(_bytes(block.parameters(), processes) for block in own)
    for part in (*own, module):
        fully_shard(part, mesh=mesh)
    return Volume(whole, whole + again)


def _bytes(parameters: Iterable[nn.Parameter], processes: int) -> int:
    """Return the bytes of parameters, their rows padded to a multiple of the processes."""
    return sum(-(-len(one) // processes) * processes * one[0].nbytes for one in parameters)
