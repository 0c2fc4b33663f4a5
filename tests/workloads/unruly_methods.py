"""Methods of which one process fails, each in its way, while the others wait for it."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from typing import Self

from torch import Tensor

from workloads._errors import DataError
from workloads.methods._method import Part, Setup
from workloads.methods.process_group import Gloo

UNRULY = 1
"""Rank of the process that fails."""


class Raising(Gloo):
    """Fails in its first step as nobody foresaw."""

    def step(self, parts: Sequence[Part]) -> Sequence[Tensor]:
        """Raise, or train."""
        if self._rank == UNRULY:
            raise ZeroDivisionError("nothing is left")
        return super().step(parts)


class Killed(Gloo):
    """Is killed in its first step, as by a system without memory."""

    def step(self, parts: Sequence[Part]) -> Sequence[Tensor]:
        """Be killed, or train."""
        if self._rank == UNRULY:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(parts)


class Complaining(Gloo):
    """Fails before it joins the others, with an error that says what to do."""

    @classmethod
    def open(cls, setup: Setup) -> Self:
        """Raise, or join."""
        if setup.world.rank == UNRULY:
            raise DataError("the data are spoilt", "use others")
        return super().open(setup)
