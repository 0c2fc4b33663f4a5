"""Copies between the devices of one process, as MXNet's key-value store ``device`` does."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Self

import torch
from torch import nn

from workloads._devices import choose_devices
from workloads._options import Options, Root
from workloads.methods._copies import Copy, fetch, send
from workloads.methods._method import Launch, Setup
from workloads.methods._replicas import Replicas, gradient


class PeerToPeer(Replicas):
    """Gradients are copied to a root device, averaged and applied there; weights are copied back.

    Copies between different devices overlap. With ``overlap`` each gradient sets out as soon as the
    backward pass has it, else all do behind it.

    Parameters
    ----------
    setup
        What the method is made from. With ``root`` spread each parameter has its own root.
    devices
        The devices, one per replica. On the CPU these are several times the same one.
    """

    launch = Launch.ALONE

    def __init__(self, setup: Setup, devices: Sequence[torch.device]) -> None:
        super().__init__(setup, devices, parts=len(devices))
        replicas = [list(module.parameters()) for module in self._modules]
        self._copies: list[tuple[nn.Parameter, ...]] = list(zip(*replicas, strict=True))
        sizes = [copies[0].nbytes for copies in self._copies]
        spread = setup.options.root is Root.SPREAD
        self._roots = spread_roots(sizes, len(devices)) if spread else [0] * len(sizes)
        self._optimizer = self._passes.optimizer(
            copies[root] for copies, root in zip(self._copies, self._roots, strict=True)
        )
        self._on_their_way: dict[nn.Parameter, Copy] = {}
        if setup.options.overlap:
            for copies, root in zip(self._copies, self._roots, strict=True):
                for parameter in _others(copies, root):
                    begin = partial(self._set_out, copies[root].device)
                    parameter.register_post_accumulate_grad_hook(begin)  # type: ignore[no-untyped-call]

    @classmethod
    def check(cls, options: Options, local: int) -> None:
        """Make sure that the devices are there."""
        choose_devices(options.device, local)

    @classmethod
    def open(cls, setup: Setup) -> Self:
        """Build the network on each device."""
        return cls(setup, choose_devices(setup.options.device, setup.options.gpus))

    def _update(self) -> None:
        with self._notes.range("gradient exchange"):
            self._gather()
        with self._notes.range("optimizer"):
            self._passes.update(self._optimizer)
        with self._notes.range("weight exchange"):
            self._scatter()

    def _set_out(self, root: torch.device, parameter: nn.Parameter) -> None:
        """Begin to copy the gradient of a parameter to its root."""
        self._on_their_way[parameter] = fetch(gradient(parameter), root)

    def _gather(self) -> None:
        """Average the gradients of each parameter at its root."""
        exchanges = list(zip(self._copies, self._roots, strict=True))
        for copies, root in exchanges:
            for parameter in _others(copies, root):
                if parameter not in self._on_their_way:
                    self._set_out(copies[root].device, parameter)
        for copies, root in exchanges:
            mean = gradient(copies[root])
            for parameter in _others(copies, root):
                mean += self._on_their_way.pop(parameter).arrive()
                parameter.grad = None
                self.exchanged.gather += mean.nbytes
            mean /= len(copies)

    def _scatter(self) -> None:
        """Copy each parameter from its root to the other devices."""
        begun = [
            send(copies[root].detach(), parameter.detach())
            for copies, root in zip(self._copies, self._roots, strict=True)
            for parameter in _others(copies, root)
        ]
        for copy in begun:
            self.exchanged.scatter += copy.arrive().nbytes


def spread_roots(sizes: Sequence[int], devices: int) -> list[int]:
    """Return which device is the root of each parameter.

    The largest parameters come first, each at the device that has the fewest bytes so far.

    Parameters
    ----------
    sizes
        Bytes of each parameter.
    devices
        How many devices there are.
    """
    loads = [0] * devices
    roots = [0] * len(sizes)
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        roots[index] = loads.index(min(loads))
        loads[roots[index]] += sizes[index]
    return roots


def _others(copies: Sequence[nn.Parameter], root: int) -> list[nn.Parameter]:
    return [copy for device, copy in enumerate(copies) if device != root]
