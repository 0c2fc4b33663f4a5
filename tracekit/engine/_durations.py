"""How long the ops of groups are: the shortest, the longest, and the middle one."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracekit.engine._duration_loops import MOST_BITS, Found, deal, find_middles
from tracekit.support.compiled import compiled

Array: TypeAlias = NDArray[Any]
_NARROW = 1 << 31

_IS_KNOWN = pl.col("ops") > 0


class Durations:
    """Lengths of ops, each with the row of sums that it is counted in."""

    def __init__(self) -> None:
        self._parts: list[tuple[Array, Array]] = []

    def add(self, rows: Array, lengths: Array) -> None:
        """Keep some, in as few bits as hold them."""
        dtype = np.int32 if lengths.max(initial=0) < _NARROW else np.int64
        self._parts.append((rows, lengths.astype(dtype)))

    def of(self, groups: Array, ops: Array) -> pl.DataFrame:
        """Return statistics of groups, in the order of their numbers.

        Parameters
        ----------
        groups
            The group of each row of sums, 32-bit numbers.
        ops
            How many lengths each group has.

        Returns
        -------
        ``median_ns, min_ns, max_ns``, null where a group has no ops.
        """
        first = np.concatenate([np.zeros(1, np.int64), np.cumsum(ops)])
        dealt = self._dealt(groups, first)
        found = Found(*(np.zeros(ops.size, np.int64) for _ in Found._fields))
        counts = np.zeros(1 << MOST_BITS, np.int64)
        compiled(find_middles, dealt.size)(dealt, first, counts, found)
        table = pl.DataFrame({"ops": ops, **found._asdict()})
        return table.select(
            pl.when(_IS_KNOWN).then((pl.col("low") + pl.col("high")) / 2).alias("median_ns"),
            pl.when(_IS_KNOWN).then("least").alias("min_ns"),
            pl.when(_IS_KNOWN).then("most").alias("max_ns"),
        )

    def _dealt(self, groups: Array, first: Array) -> Array:
        """Return all lengths by group, given where those of each group begin."""
        types = [lengths.dtype for _, lengths in self._parts]
        dealt = np.empty(int(first[-1]), np.result_type(np.int32, *types))
        free = first[:-1].copy()
        for rows, lengths in self._parts:
            run = compiled(deal, dealt.size)
            run(rows, lengths.astype(dealt.dtype, copy=False), groups, free, dealt)
        return dealt
