"""Where training steps begin and end: an iteration ends with the step of each optimizer."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ._spans import Ranges


class Steps:
    """The iterations of one thread.

    Parameters
    ----------
    ranges
        Where they are written to.
    optimizers
        Those that are there, as they come and go.
    """

    def __init__(self, ranges: Ranges, optimizers: Collection[Any]) -> None:
        self._ranges = ranges
        self._optimizers = optimizers
        self._number = 0
        self._handle: int | None = None
        self._has_passes = False
        self._stepped: set[int] = set()
        self._unused: set[int] = set()

    @property
    def has_input_alone(self) -> bool:
        """Whether an iteration has begun that has not got beyond its input."""
        return self._handle is not None and not self._has_passes

    @property
    def has_passes(self) -> bool:
        """Whether an iteration is open that has got beyond its input."""
        return self._has_passes

    def take_input(self) -> None:
        """Begin an iteration with its input, unless it is a further part of one that goes on."""
        if self._stepped:
            self._end()
        self._begin()

    def take_pass(self) -> None:
        """Begin an iteration with a pass, where no input began it."""
        self._begin()
        self._has_passes = True

    def take_step(self, optimizer: object) -> None:
        """Count the step of an optimizer; one that steps twice does not wait for the others."""
        if id(optimizer) in self._stepped:
            self._unused.update(self._all() - self._stepped)
        self._unused.discard(id(optimizer))
        self._stepped.add(id(optimizer))

    def close(self) -> None:
        """End the iteration if all optimizers have made their step."""
        if self._stepped and self._all() - self._unused <= self._stepped:
            self._end()

    def set_apart(self) -> None:
        """End what evaluation, or the end of the data, is no part of.

        A range of input alone is no iteration: its number goes to the next one.
        """
        if self.has_input_alone or self._stepped:
            self._end()

    def _all(self) -> set[int]:
        return {id(each) for each in self._optimizers}

    def _begin(self) -> None:
        if self._handle is None:
            self._handle = self._ranges.start_once(f"iteration {self._number}")

    def _end(self) -> None:
        if self._handle is not None:
            self._ranges.end(self._handle)
        self._number += self._has_passes
        self._handle, self._has_passes = None, False
        self._stepped.clear()
