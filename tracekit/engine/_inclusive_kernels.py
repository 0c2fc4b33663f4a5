"""Kernels inside ranges, nested ranges included: by path and kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

from tracekit.engine._host_time import Work
from tracekit.engine._open_ranges import kernels_during, start_end_ranges
from tracekit.engine._range_loops import carry_up, find_holders
from tracekit.engine._range_paths import (
    Array,
    PathTree,
    laid_out,
    numbered_paths,
    outside_ranges,
    parent_rows,
    path_tree,
)
from tracekit.engine._stream import Counting, Named, Receivers, hand_out
from tracekit.model import RANGE_STYLE
from tracekit.support.compiled import compiled, given

KERNEL_COLUMNS = (
    "range", "style", "depth", "name", "kind", "launching", "ops", "total_ns", "mean_ns", "min_ns",
    "max_ns",
)  # fmt: skip
_KERNEL = ("name", "kind")
_NEVER = np.iinfo(np.int64).max
_TOGETHER = (
    pl.col("ops", "total_ns").sum(), pl.col("min_ns").min(), pl.col("max_ns").max()
)  # fmt: skip


@dataclass
class KernelTally:
    """The kernels, copies and fills that each push/pop range launched, and each start/end range.

    Those that no push/pop range launched are there by the reason for that.

    Parameters
    ----------
    opened
        As of `start_end_ranges`.
    outside
        As of `outside_ranges`.
    counting
        How ops are counted.
    """

    opened: pl.DataFrame
    outside: Named
    counting: Counting
    _own: list[pl.DataFrame] = field(default_factory=list)
    _during: list[pl.DataFrame] = field(default_factory=list)

    @property
    def columns(self) -> Sequence[str]:
        """The columns of ops that it looks at."""
        launch = ("process", "launch_start") if self.opened.height else ()
        return (*_KERNEL, *self.outside.columns, *launch, *self.counting.columns)

    def clear(self) -> None:
        """Begin anew."""
        self._own, self._during = [], []

    def add(self, rows: pl.DataFrame) -> None:
        """Count in one or more segments of a line."""
        ops = rows.filter(self.counting.ops(pl.col("start").is_not_null()))
        reason = self.outside.values.gather(ops.select(self.outside.number).to_series())
        length = self.counting.duration
        measured = ops.with_columns(
            outside=reason, ops=pl.lit(1, pl.Int64), total_ns=length, min_ns=length, max_ns=length
        )
        self._own.append(measured.group_by("range", "outside", *_KERNEL).agg(_TOGETHER))
        if self.opened.height:
            self._during += [
                held.group_by("range", *_KERNEL).agg(_TOGETHER)
                for held in kernels_during(measured, self.opened)
            ]

    def own(self) -> pl.DataFrame:
        """Return ``range, outside``, the kernel, ``ops, total_ns, min_ns, max_ns``.

        ``outside`` is why no push/pop range holds it, null where one does.
        """
        return pl.concat(self._own).group_by("range", "outside", *_KERNEL).agg(_TOGETHER)

    def during(self) -> pl.DataFrame:
        """Return ``path``, the kernel, ``launching, ops, total_ns, min_ns, max_ns``."""
        found = [
            each.join(self.opened.select("range", "path"), on="range") for each in self._during
        ]
        if not found:
            return pl.DataFrame()
        return pl.concat(found).group_by("path", *_KERNEL).agg(
            pl.col("range").n_unique().cast(pl.Int64).alias("launching"), *_TOGETHER
        )  # fmt: skip


def inclusive_kernels(
    work: Work, skip: int = 0, *, depth: int | None = None
) -> tuple[pl.DataFrame, dict[str, Any]]:
    """Return the kernels of each path, those of the ranges inside included.

    Parameters
    ----------
    work
        What is measured.
    skip
        How many iterations to leave out at the beginning.
    depth
        How many levels to list; all by default. What lies deeper counts in the levels above.

    Returns
    -------
    The table with `KERNEL_COLUMNS`: each path above those inside it, the one whose kernels take
    longest first, and so are the kernels of a path; then start/end ranges; then kernels that no
    push/pop range holds. And what is said of it.
    """
    trace = work.trace
    tree = path_tree(trace)
    tally = KernelTally(
        start_end_ranges(trace), outside_ranges(trace), work.counting(is_cut=skip > 0)
    )
    hand_out(trace, Receivers([tally]), skip=skip, per_iteration=False)
    own = tally.own()
    pushed = _pushed(tree, own)
    shown = pushed if depth is None else pushed.filter(pl.col("depth") < depth)
    texts = numbered_paths(trace).rename({"text": "range"})
    named = pl.concat([shown, _opened(tally.during())], how="diagonal").join(
        texts, on="path", how="left", maintain_order="left"
    )  # fmt: skip
    table = pl.concat([named, _outside(own)], how="diagonal").with_columns(
        mean_ns=pl.col("total_ns") / pl.col("ops")
    )
    return table.select(KERNEL_COLUMNS), {"inclusive": True, "depth": depth}


def _pushed(tree: PathTree, own: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of push/pop ranges, with ``path``, below each path those inside it."""
    at = pl.int_range(pl.len()).alias("at")
    launches = own.join(tree.ranges.select("range", at), on="range").with_columns(
        kernel=pl.struct(_KERNEL).rank("dense").cast(pl.Int64)
    ).sort("kernel", "at")  # fmt: skip
    places, (kernel, node, above, ranges) = _holders(tree, launches)
    order = np.argsort(tree.depths[node], kind="stable")  # a path after the one that it is in
    back = np.argsort(order)
    parents = np.where(above >= 0, back[above], -1)[order]
    sums, least, most = _added(launches, back[places], order.size)
    compiled(carry_up, order.size)(parents, sums, least, most)
    names = launches.unique("kernel").select("kernel", *_KERNEL)
    rows = pl.DataFrame({
        "kernel": kernel[order], "node": node[order], "launching": ranges[order],
        "ops": sums[:, 0], "total_ns": sums[:, 1], "min_ns": least, "max_ns": most,
    }).join(names, on="kernel", how="left", maintain_order="left")  # fmt: skip
    return _longest_first(rows, tree)


def _holders(tree: PathTree, launches: pl.DataFrame) -> tuple[Array, tuple[Array, ...]]:
    """Return the row of each launch, and the rows: see `find_holders`."""
    places = np.empty(launches.height, np.int64)
    around = (parent_rows(tree.ranges), given(tree.ranges["node"]))
    columns = (given(launches["kernel"]), given(launches["at"]))
    count = 0
    for _ in range(2):  # the first time to find out how many rows there are
        sizes = (tree.ranges.height, len(tree), len(tree))
        seen = tuple(np.full(size, -1, np.int64) for size in sizes)
        rows = tuple(np.empty(count, np.int64) for _ in range(4))
        count = compiled(find_holders, launches.height)(columns, around, seen, places, rows)
    return places, rows


def _added(launches: pl.DataFrame, places: Array, size: int) -> tuple[Array, Array, Array]:
    """Return ``ops`` and ``total_ns`` of rows, and their ``min_ns`` and ``max_ns``."""
    sums = np.zeros((size, 2), np.int64)
    np.add.at(sums, places, launches.select("ops", "total_ns").to_numpy())
    least, most = np.full(size, _NEVER), np.full(size, -_NEVER)
    np.minimum.at(least, places, launches["min_ns"].to_numpy())
    np.maximum.at(most, places, launches["max_ns"].to_numpy())
    return sums, least, most


def _longest_first(rows: pl.DataFrame, tree: PathTree) -> pl.DataFrame:
    of_nodes = rows.group_by("node").agg(pl.col("total_ns").sum())
    total = np.zeros(len(tree), np.int64)
    total[of_nodes["node"].to_numpy()] = of_nodes["total_ns"].to_numpy()
    places = laid_out(np.lexsort((tree.paths, -total, tree.depths)), tree.parents)[0]
    nodes = rows["node"].to_numpy()
    return rows.with_columns(
        place=places[nodes], path=tree.paths[nodes], depth=tree.depths[nodes],
        style=pl.lit("push_pop", RANGE_STYLE),
    ).sort("place", -pl.col("total_ns"), pl.col("name").cast(pl.String)).drop(
        "place", "node", "kernel"
    )  # fmt: skip


def _opened(held: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of start/end ranges, which have no place in the tree."""
    if not held.width:
        return held
    whole = pl.col("total_ns").sum().over("path")
    return held.sort(
        -whole, "path", -pl.col("total_ns"), pl.col("name").cast(pl.String)
    ).with_columns(style=pl.lit("start_end", RANGE_STYLE))  # fmt: skip


def _outside(own: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of what no push/pop range holds."""
    sums = own.drop_nulls("outside").group_by("outside", *_KERNEL).agg(_TOGETHER)
    whole = pl.col("total_ns").sum().over("outside")
    return (
        sums.sort(-whole, "outside", -pl.col("total_ns"), pl.col("name").cast(pl.String))
        .rename({"outside": "range"}).with_columns(pl.col("range").cast(pl.String))
    )  # fmt: skip
