"""GPU work launched in NVTX ranges and the ranges nested in them: by path, range and kernel."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from tracekit.engine._group_sums import GroupTally
from tracekit.engine._host_time import Work
from tracekit.engine._range_loops import add_launched, carry_up, count_twice, find_holders
from tracekit.engine._range_paths import (
    SUMS,
    Array,
    OpenTally,
    PathTree,
    kernels_during,
    laid_out,
    numbered_paths,
    outside_ranges,
    parent_rows,
    path_tree,
    start_end_ranges,
)
from tracekit.engine._stream import CUT, WHOLE, Counting, Named, Receivers, Tally, hand_out
from tracekit.model import RANGE_STYLE, Frames, Trace
from tracekit.support.compiled import compiled, given

_LENGTH = pl.col("end") - pl.col("start")
_NEVER = np.iinfo(np.int64).max
_TOTAL = SUMS.index("total_ns")


class Launched(NamedTuple):
    """Per range of a tree: sums over the ops launched in it, and their first start and last end."""

    sums: Array
    """Sums of the launched ops, one column for each of `SUMS`."""
    first: Array
    """First start of the launched ops; `_NEVER` without any."""
    last: Array
    """Last end of the launched ops; less than `first` without any."""


@dataclass
class RangeTally:
    """Sums the ops launched directly in each push/pop range, and their time of overlap by path."""

    tree: PathTree
    """Tree of the paths (names from the outermost range inward) of the push/pop ranges."""
    counting: Counting
    """Expressions that count each op once, though windows may split it into several rows."""
    launched: Launched = field(init=False)
    """Sums of the ops that ranges launched themselves."""
    _twice: Array = field(init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def columns(self) -> Sequence[str]:
        """Names of the columns of ops that this aggregator reads."""
        return ("range",)

    def clear(self) -> None:
        """Set all sums of launched ops to zero."""
        ranges = self.tree.ranges.height
        self.launched = Launched(
            np.zeros((ranges, len(SUMS)), np.int64),
            np.full(ranges, _NEVER), np.full(ranges, -_NEVER),
        )  # fmt: skip
        self._twice = np.zeros((2, len(self.tree)), np.int64)

    def add(self, rows: pl.DataFrame) -> None:
        """Add ops of one device or process to the sums of their ranges and kernel names.

        Each call gets all ops between two times at which that device is idle (see `feed`).
        """
        launched = rows.drop_nulls("range")
        counts = self.counting.ops(pl.col("range").is_not_null())
        known = launched.select("range", "start", "end", counts=counts)
        numbers = given(self.tree.ranges["range"])
        with self._lock:
            compiled(add_launched, known.height)(
                tuple(given(column) for column in known), numbers, tuple(self.launched)
            )
        self._count_twice(self._with_nodes(launched.filter("crowded")))

    def _with_nodes(self, launched: pl.DataFrame) -> pl.DataFrame:
        """Add ``node`` to ops: their range's place in the tree; drop ops of start/end ranges.

        The tree is of paths (range names from the outermost inward), in depth-first order.
        """
        ranges = self.tree.ranges
        rows = ranges["range"].search_sorted(launched["range"])
        found = ranges.select("node", own="range").select(
            pl.all().gather(rows.set(rows == ranges.height, None))
        )
        return launched.hstack(found).filter(pl.col("own") == pl.col("range")).drop("own")

    def _count_twice(self, crowded: pl.DataFrame) -> None:
        tree, twice = self.tree, np.zeros_like(self._twice)
        room = tuple(np.zeros(crowded.height, np.int64) for _ in range(3))
        compiled(count_twice, crowded.height)(
            tuple(given(crowded[name]) for name in ("start", "end", "node")),
            (tree.parents, tree.shortcuts, tree.sizes), room, twice,
        )  # fmt: skip
        with self._lock:
            self._twice += twice

    def twice(self) -> tuple[Array, Array]:
        """Return per path the time, ns, by which summed durations exceed busy time.

        Ops that run at once are summed twice, but busy once. The first array is for the ops
        launched in ranges of a path and of all paths inside it, the second for those launched
        directly in its ranges.
        """
        of_all, alone = self._twice
        return self.tree.below(of_all), alone


@dataclass(frozen=True)
class _WorkInRanges:
    """Sums of the GPU work launched in a run's NVTX ranges."""

    tree: PathTree
    """Tree of the paths of push/pop ranges."""
    pushed: pl.DataFrame
    """The ranges of the tree, with `SUMS` over the ops launched in them and in nested ranges;
    ``first, last``, first start and last end of these ops (null if there are none); and ``kept``:
    whether the range begins between the first and the last iteration that is not skipped."""
    lengths: pl.DataFrame
    """For each path in the tree's order: ``busy_ns``, the length of the union of the ops of this
    path and of those below it; ``self_busy_ns``, the same for ops launched directly in its
    ranges."""
    opened: pl.DataFrame
    """The start/end ranges, with the same columns as `pushed`."""
    open_busy: pl.DataFrame
    """``path, busy_ns``: busy time of the ops launched while start/end ranges of a path are
    open."""
    outside: pl.DataFrame
    """``range, ops, busy_ns, self_busy_ns`` of ops outside of all push/pop ranges, by reason."""
    windows: pl.DataFrame
    """The intervals of device time that the sums are limited to."""


def _work_in_ranges(trace: Trace, skip: int) -> _WorkInRanges:
    tree, counting = path_tree(trace), CUT if skip else WHOLE
    pushed = RangeTally(tree, counting)
    opened = OpenTally(start_end_ranges(trace), counting)
    outside = _OutsideTally(["range"], {"range": outside_ranges(trace)})
    tallies: list[Tally] = [pushed, *([opened] if opened.ranges.height else [])]
    windows = hand_out(trace, Receivers(tallies, [outside]), skip=skip)
    lengths = _lengths(tree, pushed)
    carried = _carried_up(tree.ranges, pushed.launched)
    return _WorkInRanges(
        tree, _kept(carried, trace, skip), lengths,
        _kept(opened.summed(), trace, skip), opened.busy(), _outside(outside.groups()),
        windows,
    )  # fmt: skip


class _OutsideTally(GroupTally):
    """Adds up the ops that were launched outside of all push/pop ranges."""

    def add(self, rows: pl.DataFrame) -> bool:
        return super().add(rows.filter(pl.col("range").is_null()))


def _outside(groups: pl.DataFrame) -> pl.DataFrame:
    sums = groups.drop_nulls("range").group_by(pl.col("range").cast(pl.String)).agg(
        pl.col("ops", "busy_ns").sum()
    )  # fmt: skip
    return sums.with_columns(self_busy_ns="busy_ns").sort(-pl.col("busy_ns"), "range")


def _lengths(tree: PathTree, pushed: RangeTally) -> pl.DataFrame:
    """Return ``busy_ns, self_busy_ns`` of each path: summed durations minus overlap, ns.

    The second is over the ops launched directly in its ranges, the first also over those of nested
    ranges.
    """
    lengths = np.zeros(len(tree), np.int64)
    np.add.at(lengths, given(tree.ranges["node"]), pushed.launched.sums[:, _TOTAL])
    below, alone = pushed.twice()
    return pl.DataFrame({"busy_ns": tree.below(lengths) - below, "self_busy_ns": lengths - alone})


def _carried_up(ranges: pl.DataFrame, launched: Launched) -> pl.DataFrame:
    """Return the ranges with sums, first start and last end over ops of nested ranges as well.

    `launched` has the sums (`SUMS`) of the ops launched directly in each range; they are changed.
    """
    sums, first, last = launched
    compiled(carry_up, ranges.height)(parent_rows(ranges), sums, first, last)
    known = pl.when(pl.Series(last >= first))
    return ranges.with_columns(
        *(pl.Series(name, sums[:, column]) for column, name in enumerate(SUMS))
    ).with_columns(
        first=known.then(pl.Series(first)), last=known.then(pl.Series(last))
    )  # fmt: skip


def _kept(ranges: pl.DataFrame, trace: Trace, skip: int) -> pl.DataFrame:
    """Add ``kept``: whether a range begins in its process's iterations after the first `skip`."""
    if not skip:
        return ranges.with_columns(kept=True)
    steps = trace.read("iterations").sort("process", "start")
    kept = steps.filter(pl.int_range(pl.len()).over("process") >= skip)
    edges = kept.group_by("process").agg(begin=pl.col("start").min(), until=pl.col("end").max())
    inside = pl.col("start").is_between("begin", "until", closed="left")
    joined = ranges.join(edges, on="process", how="left", maintain_order="left")
    return joined.with_columns(kept=inside.fill_null(value=False)).drop("begin", "until")


def inclusive_ranges(
    work: Work, skip: int = 0, *, depth: int | None = None
) -> tuple[pl.DataFrame, dict[str, Any]]:
    """Return the GPU work launched in NVTX ranges, by path (names from the outermost range inward).

    Work launched in nested ranges is included.

    Parameters
    ----------
    work
        The run's GPU work.
    skip
        Number of iterations to leave out at the beginning.
    depth
        Number of levels to list; None lists all. Deeper ranges count in the levels above.

    Returns
    -------
    The table with `RANGE_COLUMNS`: each path before those inside it, the busiest first; then
    start/end ranges; then ops outside of all push/pop ranges. Also a dictionary of metadata, to
    show with the table.
    """
    (found,) = work.trace.sums_of_parts([partial(_InRanges(skip, depth), work.trace)])
    return found["rows"], {"inclusive": True, "depth": depth}


@dataclass(frozen=True)
class _InRanges:
    """Sums up a run's GPU work by path of ranges; the arguments are those of `inclusive_ranges`."""

    skip: int
    depth: int | None

    def __call__(self, trace: Trace) -> Frames:
        """Return the table of `inclusive_ranges`."""
        found_work = _work_in_ranges(trace, self.skip)
        window = int((found_work.windows["end"] - found_work.windows["start"]).sum())
        tables = [_pushed(found_work, self.depth), _opened(found_work)]
        texts = numbered_paths(trace).rename({"text": "range"})
        share = pl.when(pl.lit(window > 0)).then(pl.col("busy_ns") / window)
        named = (
            pl.concat(tables, how="diagonal")
            .join(texts, on="path", how="left", maintain_order="left")
            .with_columns(pl.col(name).fill_null(0) for name in _NUMBERS)
        )
        rows = pl.concat([named, found_work.outside], how="diagonal_relaxed")
        return {"rows": rows.with_columns(share=share).select(RANGE_COLUMNS)}


RANGE_COLUMNS = (
    "range", "style", "depth", "instances", "launching", "host_ns", "ops", "projected_ns",
    "busy_ns", "self_busy_ns", "share",
)  # fmt: skip
_NUMBERS = ("instances", "launching", "host_ns", "ops", "projected_ns")
_OF_INSTANCES = (
    pl.col("kept").sum().cast(pl.Int64).alias("instances"),
    pl.col("last").count().cast(pl.Int64).alias("launching"),
    _LENGTH.filter("kept").sum().alias("host_ns"),
    pl.col("ops").sum(),
    (pl.col("last") - pl.col("first")).sum().alias("projected_ns"),
)


def _pushed(found: _WorkInRanges, depth: int | None) -> pl.DataFrame:
    """Return the table's rows for push/pop ranges, one per path down to `depth` levels.

    Each path comes before the paths inside it.
    """
    tree = found.tree
    table = found.lengths.with_columns(
        node=np.arange(len(tree)), path=tree.paths, depth=tree.depths,
        style=pl.lit("push_pop", RANGE_STYLE),
    ).join(
        found.pushed.group_by("node").agg(_OF_INSTANCES), on="node", how="left",
        maintain_order="left",
    )  # fmt: skip
    ordered = table.with_columns(place=_busiest_first(table, tree)).sort("place")
    there = (pl.col("instances") > 0) | (pl.col("launching") > 0)
    shown = there if depth is None else there & (pl.col("depth") < depth)
    return ordered.filter(shown).drop("node", "place")


def _busiest_first(table: pl.DataFrame, tree: PathTree) -> Array:
    """Return each path's position in the table: parents first, then siblings by busy time."""
    busy, host = (-table[name].fill_null(0).to_numpy() for name in ("busy_ns", "host_ns"))
    return laid_out(np.lexsort((tree.paths, host, busy, tree.depths)), tree.parents)[0]


def _opened(found: _WorkInRanges) -> pl.DataFrame:
    """Return the table's rows for start/end ranges, which do not nest and form no tree."""
    table = found.opened.group_by("path").agg(_OF_INSTANCES)
    rows = table.join(found.open_busy, on="path", how="left").with_columns(
        pl.col("busy_ns").fill_null(0), style=pl.lit("start_end", RANGE_STYLE)
    )
    there = (pl.col("instances") > 0) | (pl.col("launching") > 0)
    return rows.filter(there).sort(-pl.col("busy_ns"), -pl.col("host_ns"), "path")


# -- kernels inside ranges ---------------------------------------------------------------------


KERNEL_COLUMNS = (
    "range", "style", "depth", "name", "kind", "launching", "ops", "total_ns", "mean_ns", "min_ns",
    "max_ns",
)  # fmt: skip
_KERNEL = ("name", "kind")
_TOGETHER = (
    pl.col("ops", "total_ns").sum(), pl.col("min_ns").min(), pl.col("max_ns").max()
)  # fmt: skip


@dataclass
class KernelTally:
    """Adds up the kernels, copies and fills launched in each push/pop or start/end range.

    Ops launched outside of all push/pop ranges are added up by the reason, such as an unknown
    launch.
    """

    opened: pl.DataFrame
    """The start/end ranges, as `start_end_ranges` returns them."""
    outside: Named
    """Reasons of ops outside of ranges, as `outside_ranges` returns them."""
    counting: Counting
    """Expressions that count each op once, though windows may split it into several rows."""
    _sums: list[pl.DataFrame] = field(default_factory=list)
    _during: list[pl.DataFrame] = field(default_factory=list)

    @property
    def columns(self) -> Sequence[str]:
        """Names of the columns of ops that this aggregator reads."""
        launch = ("process", "launch_start") if self.opened.height else ()
        return (*_KERNEL, *self.outside.columns, *launch)

    def clear(self) -> None:
        """Drop all kernels counted so far."""
        self._sums, self._during = [], []

    def add(self, rows: pl.DataFrame) -> None:
        """Add ops of one device or process to the sums of their ranges and kernel names.

        Each call gets all ops between two times at which that device is idle (see `feed`).
        """
        ops = rows.filter(self.counting.ops(pl.col("start").is_not_null()))
        reason = self.outside.values.gather(ops.select(self.outside.number).to_series())
        length = self.counting.duration
        measured = ops.with_columns(
            outside=reason, ops=pl.lit(1, pl.Int64), total_ns=length, min_ns=length, max_ns=length
        )
        self._sums.append(measured.group_by("range", "outside", *_KERNEL).agg(_TOGETHER))
        if self.opened.height:
            self._during += [
                kernels.group_by("range", *_KERNEL).agg(_TOGETHER)
                for kernels in kernels_during(measured, self.opened)
            ]

    def by_name(self) -> pl.DataFrame:
        """Return ``range, outside``, the kernel's columns, and ``ops, total_ns, min_ns, max_ns``.

        One row per kernel and push/pop range that launches it. ``outside`` is the reason why the op
        is in no push/pop range; null if it is in one.
        """
        return pl.concat(self._sums).group_by("range", "outside", *_KERNEL).agg(_TOGETHER)

    def during(self) -> pl.DataFrame:
        """Return the kernels launched while start/end ranges are open, by path of the range.

        The columns are ``path``, those of the kernel, ``ops, total_ns, min_ns, max_ns``, and
        ``launching``, the number of these ranges in which the kernel is launched at least once.
        """
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
    """Return the kernels launched in NVTX ranges, by path (names from the outermost range inward).

    Kernels launched in nested ranges are included. Arguments are those of `inclusive_ranges`.

    Returns
    -------
    The table with `KERNEL_COLUMNS`: each path before those inside it; paths, and kernels within a
    path, ordered by kernel time, longest first; then start/end ranges; then kernels outside of all
    push/pop ranges. Also a dictionary of metadata, to show with the table.
    """
    trace = work.trace
    tree = path_tree(trace)
    counting = CUT if skip else WHOLE
    tally = KernelTally(start_end_ranges(trace), outside_ranges(trace), counting)
    hand_out(trace, Receivers([tally]), skip=skip)
    launched = tally.by_name()
    pushed = _pushed_kernels(tree, launched)
    shown = pushed if depth is None else pushed.filter(pl.col("depth") < depth)
    texts = numbered_paths(trace).rename({"text": "range"})
    named = pl.concat([shown, _opened_kernels(tally.during())], how="diagonal").join(
        texts, on="path", how="left", maintain_order="left"
    )  # fmt: skip
    table = pl.concat([named, _outside_kernels(launched)], how="diagonal").with_columns(
        mean_ns=pl.col("total_ns") / pl.col("ops")
    )
    return table.select(KERNEL_COLUMNS), {"inclusive": True, "depth": depth}


def _pushed_kernels(tree: PathTree, launched: pl.DataFrame) -> pl.DataFrame:
    """Return the table's rows for kernels launched in push/pop ranges, by path.

    Each path comes before the paths inside it. `launched` has the kernels launched directly in
    each range.
    """
    at = pl.int_range(pl.len()).alias("at")
    launches = launched.join(tree.ranges.select("range", at), on="range").with_columns(
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
    """Return, per launch, its row of the result; and the result: a row per kernel and path.

    A path has a row for a kernel if a range of it, or a range nested in that, launched the kernel.
    `find_holders` describes the columns of the result.
    """
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
    """Add up launches by output row: number and total duration; least duration; greatest duration.

    `places` is the output row of each launch, and `size` is the number of rows.
    """
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


def _opened_kernels(kernels: pl.DataFrame) -> pl.DataFrame:
    """Return the table's rows for kernels launched while start/end ranges are open.

    Paths with the longest total kernel time come first. These ranges do not nest, unlike push/pop
    ranges, and so are not in the tree of nested range names.
    """
    if not kernels.width:
        return kernels
    path_total = pl.col("total_ns").sum().over("path")
    return kernels.sort(
        -path_total, "path", -pl.col("total_ns"), pl.col("name").cast(pl.String)
    ).with_columns(style=pl.lit("start_end", RANGE_STYLE))  # fmt: skip


def _outside_kernels(launched: pl.DataFrame) -> pl.DataFrame:
    """Return the table's rows for kernels outside of all push/pop ranges."""
    sums = launched.drop_nulls("outside").group_by("outside", *_KERNEL).agg(_TOGETHER)
    total = pl.col("total_ns").sum().over("outside")
    return (
        sums.sort(-total, "outside", -pl.col("total_ns"), pl.col("name").cast(pl.String))
        .rename({"outside": "range"}).with_columns(pl.col("range").cast(pl.String))
    )  # fmt: skip
