"""The loop that adds up what resamples draw of rows that are nothing in most steps."""

from __future__ import annotations

from typing import Any, TypeAlias

from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]


def add_up_drawn(first: Array, steps: Array, values: Array, drawn: Array, sums: Array) -> None:
    """Add up the values of each row as often as resamples draw their steps.

    Parameters
    ----------
    first
        Where the values of each row begin, and where those of the last one end.
    steps, values
        The step of each value that is not 0, and the value.
    drawn
        How often each step is drawn: a row per step, a column per resample.
    sums
        Zeros, a row each and a column per resample: become the sums.
    """
    for row in range(first.size - 1):
        for place in range(first[row], first[row + 1]):
            step, value = steps[place], values[place]
            for resample in range(drawn.shape[1]):
                sums[row, resample] += drawn[step, resample] * value
