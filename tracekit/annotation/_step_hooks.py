"""Find where training iterations start and end: one ends once each optimizer has stepped.

If no optimizer is known, or its steps are not seen, an iteration ends before the first activity
after a backward pass.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from ._spans import Ranges
from ._step_windows import Windows

OPTIMIZERS, PASSES, UNKNOWN = (
    f"tracekit.steps {how}" for how in ("from optimizers", "from passes", "unknown")
)
"""Marks that state how iterations are known."""
_SURE = 8
"""Number of iterations ended by optimizers after which they are assumed to end all."""
moments = itertools.count(1)
"""Ordinals that show what happened first."""


class Steps:
    """Finds the training iterations of one thread, and writes a range for each.

    Parameters
    ----------
    ranges
        Writer of the ranges.
    optimizers
        Optimizers that exist now, each with an ordinal in order of creation.
    windows
        Windows of steps to record; None records all.
    """

    def __init__(
        self, ranges: Ranges, optimizers: Mapping[Any, int], windows: Windows | None = None
    ) -> None:
        self._ranges = ranges
        self._windows = windows
        self._optimizers = optimizers
        self._number = 0
        self._handle: int | None = None
        self._has_passes = False
        self._has_backward = False
        self._has_forward = False
        """Whether there was a forward pass after the last backward pass."""
        self._stepped: set[int] = set()
        self._unused: set[int] = set()
        self._last_step: dict[int, int] = {}
        self._closed = 0
        """Number of iterations before this one that ended with an optimizer's step, the last in a
        row."""
        self._known_by: str | None = None

    @property
    def has_input_alone(self) -> bool:
        """True if an iteration is open and has only read input (batches) so far."""
        return self._handle is not None and not self._has_passes

    @property
    def has_passes(self) -> bool:
        """True if an iteration is open and has done more than read input, such as a pass."""
        return self._has_passes

    def take_input(self) -> None:
        """Note that input is read, which begins an iteration if none is open.

        The open iteration ends first if an optimizer has stepped in it or, if the program has no
        optimizer, if it had a backward pass.
        """
        if self._stepped or self._is_over:
            self._end()
        self._begin()

    def take_forward(self) -> None:
        """Note a forward pass, which begins an iteration if none is open.

        An open iteration that had a backward pass ends first, if the program has no optimizer.
        """
        if self._is_over:
            self._end()
        self.take_pass()
        self._has_forward = True

    def take_backward(self) -> None:
        """Note a backward pass.

        If two backward passes follow each other without a forward pass, and the program has no
        optimizer, a mark in the trace states that iterations cannot be told apart.
        """
        if self._is_over and not self._has_forward:
            self._say(UNKNOWN)
        self.take_pass()
        self._has_backward, self._has_forward = True, False

    def take_pass(self) -> None:
        """Note an activity other than reading input; begin an iteration if none is open."""
        self._begin()
        self._has_passes = True

    def take_clear(self, *, compiles: bool) -> None:
        """Note that gradients are cleared; end the iteration if no hook can see weight updates.

        Hooks see no update if the program updates weights without an optimizer, or in a compiled
        optimizer (`compiles`: whether parts of the program are compiled).
        """
        if self._is_over or (compiles and self._has_backward and not self._last_step):
            self._end()

    def take_step(self, optimizer: Any) -> None:
        """Note an optimizer's step: an iteration ends once all optimizers in use have stepped.

        If an optimizer steps twice in an iteration, optimizers without a step in that iteration are
        no longer in use. At an optimizer's first step, optimizers that last stepped before its
        creation are no longer in use either.
        """
        made = self._optimizers.get(optimizer, 0)
        if id(optimizer) in self._stepped:
            self._unused.update(self._all() - self._stepped)
        if self._last_step.get(id(optimizer), 0) < made:
            self._unused.update(each for each, last in self._last_step.items() if last < made)
        self._last_step[id(optimizer)] = next(moments)
        self._unused.discard(id(optimizer))
        self._stepped.add(id(optimizer))

    def close(self) -> None:
        """End the iteration if all optimizers in use have stepped."""
        if self._stepped and self._all() - self._unused <= self._stepped:
            self._end(is_closed=True)

    @property
    def are_counted(self) -> bool:
        """True if nothing is recorded now, and each step of the only optimizer is an iteration."""
        return self._windows is not None and self._windows.rests and len(self._optimizers) == 1

    def count(self) -> None:
        """Count an iteration outside of the windows of steps to record."""
        self._number += 1
        if self._windows is not None:
            self._windows.count(self, self._number)

    def set_apart(self) -> None:
        """Close the open iteration when evaluation starts or the data ends.

        The iteration is closed if an optimizer has stepped in it (in a program without optimizers:
        if a backward pass ran), or if it has only read input. An iteration that has only read input
        does not count: the next one gets its number.
        """
        if self.has_input_alone or self._stepped or self._is_over:
            self._end()

    def finish(self) -> None:
        """End the open iteration as the program ends, if a backward pass ran without optimizer."""
        if self._is_over:
            self._end()

    @property
    def _is_over(self) -> bool:
        """True if the iteration had a backward pass, and there is no optimizer to wait for."""
        return self._has_backward and not self._optimizers

    def _all(self) -> set[int]:
        return {id(each) for each in self._optimizers}

    def _begin(self) -> None:
        if self._handle is None:
            if self._windows is not None and self._windows.begin(self, self._number):
                self._known_by = None  # which a window says anew
            self._handle = self._ranges.start_once(f"iteration {self._number}")

    def _end(self, *, is_closed: bool = False) -> None:
        if self._handle is not None:
            self._ranges.end(self._handle)
        if self._has_passes:
            self._closed = self._closed + 1 if is_closed else 0
            self._number += 1
            self._say(OPTIMIZERS if self._stepped else PASSES)
        self._handle, self._has_passes = None, False
        self._has_backward = self._has_forward = False
        self._stepped.clear()
        if self._windows is not None:
            self._windows.end(self, self._number, is_told=self._closed >= _SURE)

    def _say(self, how: str) -> None:
        """Write a marker into the trace that names how the ends of iterations are found.

        They are found by optimizers' steps, by passes, or not at all (`how`). It is written only
        when that has changed.
        """
        if self._known_by not in {how, UNKNOWN}:
            self._known_by = how
            self._ranges.mark(how)
