"""Breakdowns that are no grouping of ops: by range with all that is inside, and by layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import polars as pl

from tracekit.analysis.breakdowns._layers import layers
from tracekit.engine import Work, inclusive_kernels, inclusive_ranges
from tracekit.errors import UsageError

View: TypeAlias = Callable[[Work, int], tuple[pl.DataFrame, dict[str, Any]]]
"""Makes a table of a run with so many iterations left out, and what else is said of it."""


def chosen_view(
    keys: Sequence[str], *, per_iteration: bool, inclusive: bool, depth: int | None
) -> View | None:
    """Return what makes the breakdown that is asked for, or None if it is a grouping of ops.

    Raises
    ------
    UsageError
        If it cannot be had with what else is asked for.
    """
    if inclusive or depth is not None:
        what = "an inclusive breakdown"
        if set(keys) not in ({"range"}, {"range", "kernel"}):
            raise UsageError(f"{what} is by range, or by range and kernel", "ask --by range")
        _check_whole(what, per_iteration=per_iteration)
        if depth is not None and depth < 1:
            raise UsageError(f"{depth} levels of ranges cannot be listed", "give 1 or more")
        return partial(inclusive_kernels if "kernel" in keys else inclusive_ranges, depth=depth)
    if "layer" in keys:
        what = "a breakdown by layer"
        if list(keys) != ["layer"]:
            raise UsageError(f"{what} is by layer alone", "ask --by layer")
        _check_whole(what, per_iteration=per_iteration)
        return layers
    return None


def _check_whole(what: str, *, per_iteration: bool) -> None:
    if per_iteration:
        raise UsageError(f"{what} has no statistics over iterations", "leave out --per-iteration")
