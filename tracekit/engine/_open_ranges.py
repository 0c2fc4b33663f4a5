"""Contents of start/end ranges: all that their process launches while they are open.

They may overlap as they like, so they form no tree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tracekit.engine._intervals import union_length
from tracekit.engine._range_paths import Array, path_number
from tracekit.model import KERNEL_KINDS, Trace

if TYPE_CHECKING:
    from tracekit.engine._stream import Counting

SUMS = ("ops", "total_ns", "kernels", "kernel_ns")
"""What is added up of the ops of a range."""
_PAIRS = 4_000_000
"""How many pairs of an op and a path that is open are laid out at once."""


def start_end_ranges(trace: Trace) -> pl.DataFrame:
    """Return ``range, process, start, end, path`` of the start/end ranges of a run."""
    return (
        trace["ranges"].filter(pl.col("style") == "start_end")
        .select("range", "process", "start", "end", path=path_number())
        .drop_nulls("path").sort("range").collect()
    )  # fmt: skip


@dataclass
class OpenTally:
    """Work launched while each start/end range is open, and its busy time by path.

    Parameters
    ----------
    ranges
        As of `start_end_ranges`.
    counting
        How ops are counted.
    """

    ranges: pl.DataFrame
    counting: Counting
    _open: pl.DataFrame = field(init=False)
    _ranges: list[pl.DataFrame] = field(default_factory=list)
    _busy: list[pl.DataFrame] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._open = _stretches(self.ranges)

    @property
    def columns(self) -> Sequence[str]:
        """The columns of ops that it looks at."""
        return ("process", "launch_start", "kind", *self.counting.columns)

    def clear(self) -> None:
        """Begin anew."""
        self._ranges, self._busy = [], []

    def add(self, rows: pl.DataFrame) -> None:
        """Count in one or more segments of a line."""
        launched = rows.drop_nulls("launch_start").sort("process", "launch_start")
        for (process,), own in launched.group_by("process", maintain_order=True):
            of_process = pl.col("process") == process
            times = own["launch_start"].to_numpy()
            self._ranges.append(self._during(own, times, self.ranges.filter(of_process)))
            self._busy += _running(own, times, self._open.filter(of_process))

    def _during(self, own: pl.DataFrame, times: Array, ranges: pl.DataFrame) -> pl.DataFrame:
        """Return `SUMS`, ``first, last`` of what is launched during each range."""
        begin, until = _rows_during(times, ranges)
        some = np.flatnonzero(until > begin)
        begin, until = begin[some], until[some]
        counts = self.counting.ops(pl.col("start").is_not_null())
        kernels = counts & pl.col("kind").is_in(KERNEL_KINDS)
        columns = own.select(
            ops=counts.cast(pl.Int64), total_ns=counts * self.counting.duration,
            kernels=kernels.cast(pl.Int64), kernel_ns=kernels * self.counting.duration,
        )  # fmt: skip
        return pl.DataFrame({
            "range": ranges["range"].gather(some),
            **{name: _sums(columns[name].to_numpy(), begin, until) for name in SUMS},
            "first": _least(own["start"].to_numpy(), begin, until),
            "last": -_least(-own["end"].to_numpy(), begin, until),
        })  # fmt: skip

    def held(self) -> pl.DataFrame:
        """Return the ranges with `SUMS`, ``first, last``, the last two null where there is none."""
        empty = self.ranges.clear().select(
            "range", *(pl.lit(0, pl.Int64).alias(name) for name in (*SUMS, "first", "last"))
        )
        found = pl.concat([empty, *self._ranges]).group_by("range").agg(
            pl.col(SUMS).sum(), pl.col("first").min(), pl.col("last").max()
        )  # fmt: skip
        held = self.ranges.join(found, on="range", how="left", maintain_order="left")
        return held.with_columns(pl.col(SUMS).fill_null(0))

    def busy(self) -> pl.DataFrame:
        """Return ``path, busy_ns``."""
        empty = self.ranges.clear().select("path", busy_ns=pl.lit(0, pl.Int64))
        return pl.concat([empty, *self._busy]).group_by("path").agg(pl.col("busy_ns").sum())


def kernels_during(launched: pl.DataFrame, ranges: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Yield the kernels of each start/end range, some ranges at a time.

    Parameters
    ----------
    launched
        Kernels with ``process, launch_start``.
    ranges
        As of `start_end_ranges`.

    Yields
    ------
    The rows of `launched` once for each range in which they were launched, with ``range``.
    """
    ordered = launched.drop_nulls("launch_start").sort("process", "launch_start")
    for (process,), own in ordered.group_by("process", maintain_order=True):
        opened = ranges.filter(process=process)
        begin, until = _rows_during(own["launch_start"].to_numpy(), opened)
        parts = np.cumsum(until - begin) // _PAIRS
        for part in np.unique(parts):
            chosen = np.flatnonzero(parts == part)
            rows, owners = _pairs(begin[chosen], until[chosen])
            yield own[rows].with_columns(opened["range"].gather(chosen[owners]))


def _stretches(ranges: pl.DataFrame) -> pl.DataFrame:
    """Return ``process, path, start, end``: when any range of each path is open."""
    owner = ["process", "path"]
    reached = pl.col("end").cum_max().shift(1).over(owner)
    part = (pl.col("start") > reached).fill_null(value=True).cum_sum().over(owner)
    return (
        ranges.sort(*owner, "start").with_columns(part=part).group_by(*owner, "part")
        .agg(pl.col("start").min(), pl.col("end").max()).drop("part")
    )  # fmt: skip


def _running(own: pl.DataFrame, times: Array, stretches: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Yield ``path, busy_ns`` of ops launched in stretches, some at a time."""
    begin, until = _rows_during(times, stretches)
    order = np.argsort(stretches["path"].to_numpy(), kind="stable")
    paths, begin, until = stretches["path"].to_numpy()[order], begin[order], until[order]
    number = until - begin
    # Stretches of one path are of one part, for what they launch may run at once.
    parts = np.cumsum(np.bincount(np.unique(paths, return_inverse=True)[1], number)) // _PAIRS
    of_stretch = parts[np.unique(paths, return_inverse=True)[1]]
    for part in np.unique(of_stretch):
        chosen = np.flatnonzero(of_stretch == part)
        rows, owners = _pairs(begin[chosen], until[chosen])
        running = own.select("start", "end")[rows].with_columns(
            path=pl.Series(paths[chosen][owners])
        )
        yield union_length(running, ["path"]).rename({"length": "busy_ns"})


def _rows_during(times: Array, spans: pl.DataFrame) -> tuple[Array, Array]:
    """Return from which row on, and up to which, times lie in each span."""
    starts, ends = (np.searchsorted(times, spans[name].to_numpy()) for name in ("start", "end"))
    return starts, np.maximum(starts, ends)


def _pairs(begin: Array, until: Array) -> tuple[pl.Series, Array]:
    """Return all rows from where a span begins up to where it ends, and of each its span."""
    sizes = until - begin
    steps = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return pl.Series(np.repeat(begin, sizes) + steps), np.repeat(np.arange(sizes.size), sizes)


def _sums(values: Array, begin: Array, until: Array) -> Array:
    sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(values)])
    return np.asarray(sums[until] - sums[begin])


def _least(values: Array, begin: Array, until: Array) -> Array:
    """Return the least of the values from `begin` up to `until`, which is beyond it, for each."""
    padded = np.append(values, np.iinfo(np.int64).max)
    edges = np.column_stack([begin, until]).ravel()
    return np.asarray(np.minimum.reduceat(padded, edges)[::2]) if edges.size else edges
