"""What simulated threads and streams do: generators of what they wait for, with an outcome."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

import simpy

T = TypeVar("T")

Doing = Generator[simpy.Event, Any, T]
"""To be waited for with ``yield from``, which gives its outcome."""


class Clock(simpy.Environment):
    """The simulation's time, in whole nanoseconds."""

    @property
    def now(self) -> int:
        """Return the present."""
        return int(self._now)
