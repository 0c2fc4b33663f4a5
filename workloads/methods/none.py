"""Training on one device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch

from workloads._devices import choose_devices
from workloads._errors import OptionError
from workloads._options import Options
from workloads.methods._method import Launch, Setup
from workloads.methods._replicas import Replicas


class Single(Replicas):
    """Method of training on one device: one replica, no exchange."""

    launch = Launch.ALONE

    def __init__(self, setup: Setup, devices: Sequence[torch.device]) -> None:
        super().__init__(setup, devices)
        self._optimizer = self._passes.optimizer(self._modules[0].parameters())

    @classmethod
    def check(cls, options: Options, local: int) -> None:
        """Raise an error unless one device is requested, and exists."""
        if options.gpus != 1:
            raise OptionError(
                f"the method none trains on one device, and {options.gpus} are asked for",
                "choose a --method that exchanges gradients, such as p2p",
            )
        choose_devices(options.device, local)

    @classmethod
    def open(cls, setup: Setup) -> Self:
        """Build the network on the device."""
        return cls(setup, choose_devices(setup.options.device, 1))

    def _update(self) -> None:
        with self._notes.range("optimizer"):
            self._passes.update(self._optimizer)
