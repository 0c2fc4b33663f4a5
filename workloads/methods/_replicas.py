"""Data parallelism: each device has the whole network (a replica), and a part of the batch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from workloads._passes import Passes, build_network, make_ready
from workloads.methods._method import Exchanged, Method, Part, Setup


class Replicas(Method):
    """Replicas of the network on the devices of this process.

    Parameters
    ----------
    setup
        Everything that the method is made from.
    devices
        The devices of this process.
    first, parts
        Number of this process' first replica in the job, and number of all replicas.
    """

    def __init__(
        self, setup: Setup, devices: Sequence[torch.device], *, first: int = 0, parts: int = 1
    ) -> None:
        self.parts = parts
        self.own = range(first, first + len(devices))
        self.exchanged = Exchanged()
        self._notes = setup.notes
        self.devices = devices
        self._passes = Passes(setup.options, setup.network, devices[0].type)
        build = partial(build_network, setup.options, setup.network)
        self._modules = [build().to(device) for device in devices]
        for module in self._modules:
            make_ready(module, setup.options, setup.notes)

    def load(self, parts: Sequence[Part]) -> Sequence[Part]:
        """Copy each part to its replica's device."""
        return [
            Part(*(tensor.to(device, non_blocking=True) for tensor in part))
            for part, device in zip(parts, self.devices, strict=True)
        ]

    def step(self, parts: Sequence[Part]) -> Sequence[Tensor]:
        """Run forward and backward pass of each replica, then exchange gradients and update."""
        with self._notes.range("FP"):
            losses = [
                self._passes.loss(module, part)
                for module, part in zip(self._callable(), parts, strict=True)
            ]
        with self._notes.process_range("BP"):
            self._passes.backward(losses)
        with self._notes.range("WU"):
            self._update()
        return [loss.detach() for loss in losses]

    def evaluate(self, parts: Sequence[Part]) -> Sequence[Tensor]:
        """Evaluate each replica."""
        return [
            self._passes.evaluate(module, part)
            for module, part in zip(self._modules, parts, strict=True)
        ]

    def _callable(self) -> Sequence[nn.Module]:
        """Return for each replica the module that runs its forward pass."""
        return self._modules

    @abstractmethod
    def _update(self) -> None:
        """Exchange gradients, and update the parameters of each replica."""


def gradient(parameter: nn.Parameter) -> Tensor:
    """Return the gradient of a parameter, which the backward pass has computed."""
    if parameter.grad is None:
        raise RuntimeError("a parameter of the network has no gradient")
    return parameter.grad
