"""Paths of ranges (their tree, subtrees, and texts), and work during start/end ranges.

Start/end ranges may overlap as they like, so they form no tree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracekit.engine._intervals import union_length
from tracekit.engine._range_loops import find_shortcuts, lay_out
from tracekit.engine._stream import Counting, Named
from tracekit.model import PATH_TEXTS, Trace, path_texts
from tracekit.support.compiled import compiled, given

Array: TypeAlias = NDArray[Any]

OUTSIDE = ("(no launching call)", "(backward thread)", "(outside push/pop ranges)")
"""Reasons why an op is in no range: its call was not recorded; its thread runs backward passes,
outside of other threads' ranges; or any other."""
_OF_BACKWARD = ("backward_thread", "autograd")
"""Sources of stages that show that a thread runs backward passes; structure shows it too, if it
determines stages by threads."""


def outside_code(trace: Trace) -> pl.Expr:
    """Return an expression: why an op was launched in no push/pop range, an index of `OUTSIDE`.

    The reasons are an unknown launch, a launch by a backward thread, and any other.
    """
    by_threads = trace.read("verdicts").filter(
        (pl.col("structure") == "threads") & pl.col("decides")
    )
    by_structure = (
        (pl.col("stage_source") == "structure") & (pl.col("stage") == "BP")
        & pl.col("process").is_in(by_threads["process"].implode())
    )  # fmt: skip
    backward = (
        trace["ops"].filter(pl.col("stage_source").is_in(_OF_BACKWARD) | by_structure)
        .select(pl.col("launch_thread").unique()).drop_nulls().collect().to_series()
    )  # fmt: skip
    thread = pl.col("launch_thread")
    others = pl.when(thread.is_in(backward.implode())).then(1).otherwise(2)
    return pl.when(thread.is_null()).then(0).otherwise(others)


def named_ranges(trace: Trace) -> Named:
    """Return a grouping key of ops: the path id of the innermost range open at their launch.

    The id is negative for an op outside of all ranges; `outside_text` gives the reason.
    """
    ranges = trace["ranges"].select("range", "path").collect()
    paths = (ranges if ranges["range"].is_sorted() else ranges.sort("range"))["path"]
    outside = outside_code(trace) + len(paths)
    none = pl.Series([-1 - code for code in range(len(OUTSIDE))], dtype=paths.dtype)
    return Named(
        ("range", "launch_thread"), pl.coalesce("range", outside), pl.concat([paths, none])
    )


def outside_text(path: pl.Expr) -> pl.Expr:
    """Return as text why an op is in no range, given the negative path id from `named_ranges`."""
    numbers = [-1 - code for code in range(len(OUTSIDE))]
    return path.replace_strict(numbers, list(OUTSIDE), default=None, return_dtype=pl.String)


def outside_ranges(trace: Trace) -> Named:
    """Return a grouping key of ops: the reason why an op was launched in no push/pop range.

    Null for an op launched in such a range.
    """
    return Named(
        ("range", "launch_thread"),
        pl.when(pl.col("range").is_null()).then(outside_code(trace)),
        pl.Series(OUTSIDE),
    )


def path_number() -> pl.Expr:
    """Return an expression for the path id of each range as a 64-bit integer."""
    return pl.col("path").cast(pl.Int64)


def numbered_paths(trace: Trace) -> pl.DataFrame:
    """Return ``path, text``: id and text (joined range names) of each path of a run."""
    return range_paths(trace).with_columns(path_number())


def path_labels(trace: Trace) -> pl.DataFrame:
    """Return ``path, label``: the label of the innermost range of each path."""
    return trace.read("paths").select(path_number(), "label")


def parent_rows(ranges: pl.DataFrame) -> Array:
    """Return the row of the range around each range, -1 for a root.

    `ranges` has ``range, parent``, ordered by range.
    """
    numbers, around = given(ranges["range"]), given(ranges["parent"], null=-1)
    is_dense = numbers.size and numbers[-1] - numbers[0] + 1 == numbers.size
    rows = around - numbers[0] if is_dense else np.searchsorted(numbers, around)
    return np.where(around < 0, -1, rows)


@dataclass(frozen=True)
class PathTree:
    """Tree of the paths of push/pop ranges in depth-first order."""

    paths: Array
    """Numbers of the paths, in depth-first order."""
    parents: Array
    depths: Array
    sizes: Array
    shortcuts: Array
    """For each path in this order: the position of its parent, -1 for a root; the number of paths
    above it; the number of paths in its subtree; and the position of a far ancestor (see
    `find_shortcuts`)."""
    ranges: pl.DataFrame
    """``range, process, start, end, parent, node`` of each push/pop range; `node` is the position
    of its path."""

    def __len__(self) -> int:
        return self.paths.size

    def below(self, values: Array) -> Array:
        """Return for each path the sum of `values` over itself and all paths below it."""
        sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(values)])
        first = np.arange(len(self))
        return np.asarray(sums[first + self.sizes] - sums[first])


def path_tree(trace: Trace) -> PathTree:
    """Return the tree of a run's push/pop paths."""
    columns = trace["ranges"].filter(pl.col("style") == "push_pop").select(
        "range", "process", "start", "end", "parent", path=path_number()
    )  # fmt: skip
    read = columns.drop_nulls("path").collect().rechunk()  # loops read the columns again and again
    ranges = read if read["range"].is_sorted() else read.sort("range")
    paths = _above(ranges)
    parents = given(paths["above"])
    # A range lies in one that began before it, so paths come after those that are above them.
    places, sizes = laid_out(np.arange(parents.size), parents)
    order = np.argsort(places)
    moved = np.where(parents >= 0, places[parents], -1)[order]
    moved.flags.writeable = False
    depths, shortcuts = (np.zeros(parents.size, np.int64) for _ in range(2))
    compiled(find_shortcuts, parents.size)(moved, depths, shortcuts)
    node_of = np.zeros(given(paths["path"]).max(initial=-1) + 1, np.int64)
    node_of[given(paths["path"])] = places
    return PathTree(
        given(paths["path"])[order], moved, depths, sizes[order], shortcuts,
        ranges.drop("path").with_columns(node=node_of[given(ranges["path"])]),
    )  # fmt: skip


def _above(ranges: pl.DataFrame) -> pl.DataFrame:
    """Return ``path, above``: each path, by first occurrence, and the row of its parent or -1."""
    firsts = ranges.unique("path", keep="first", maintain_order=True).with_row_index("row")
    of_ranges = ranges.filter(pl.col("range").is_in(firsts["parent"].implode())).select(
        parent="range", above="path"
    )
    rows = firsts.select(above="path", at=pl.col("row").cast(pl.Int64))
    return (
        firsts.join(of_ranges, on="parent", how="left", maintain_order="left")
        .join(rows, on="above", how="left", maintain_order="left")
        .select("path", above=pl.col("at").fill_null(-1))
    )


def laid_out(sequence: Array, parents: Array) -> tuple[Array, Array]:
    """Return each node's position in depth-first order, and the size of each node's subtree.

    Parameters
    ----------
    sequence
        All nodes, parents before children; siblings keep this order.
    parents
        The parent of each node, -1 for a root.
    """
    sizes, places = np.ones(parents.size, np.int64), np.empty(parents.size, np.int64)
    free = np.zeros(parents.size + 1, np.int64)
    compiled(lay_out, parents.size)(sequence, parents, sizes, free, places)
    return places, sizes


_TEXT = "range_text"


def range_paths(trace: Trace) -> pl.DataFrame:
    """Return the table ``path_texts`` (``path, text``): the joined range names of each path."""
    paths = trace.read("paths")
    return PATH_TEXTS.conform(paths.select("path", text=path_texts(paths, paths["path"])))


def with_path_texts(trace: Trace, table: pl.DataFrame) -> pl.DataFrame:
    """Add a column with the texts of the path ids in ``range``, if the table has that column.

    `shown` replaces the ids by these texts.
    """
    if "range" not in table.columns:
        return table
    known = table.select(pl.when(pl.col("range") >= 0).then("range")).to_series()
    texts = path_texts(trace.read("paths"), known)
    return table.with_columns(pl.coalesce(texts, outside_text(pl.col("range"))).alias(_TEXT))


def sorting(columns: Sequence[str]) -> list[str]:
    """Return the columns to sort a table by; path ids (``range``) are replaced by their texts."""
    return [_TEXT if name == "range" else name for name in columns]


def shown(table: pl.DataFrame) -> pl.DataFrame:
    """Replace the path ids in ``range`` by their texts, if `with_path_texts` added these."""
    if _TEXT not in table.columns:
        return table
    return table.with_columns(range=pl.col(_TEXT)).drop(_TEXT)


# -- start/end ranges: all that their process launches while they are open ---------------------


SUMS = ("ops", "total_ns")
"""Names of the sums over the ops of a range: their number, and their durations within windows."""
_PAIRS = 4_000_000
"""Number of pairs of an op and an open path that are processed at once."""


def start_end_ranges(trace: Trace) -> pl.DataFrame:
    """Return ``range, process, start, end`` (ns), ``path`` of the start/end ranges of a run."""
    return (
        trace["ranges"].filter(pl.col("style") == "start_end")
        .select("range", "process", "start", "end", path=path_number())
        .drop_nulls("path").sort("range").collect()
    )  # fmt: skip


@dataclass
class OpenTally:
    """Adds up the work launched while each start/end range is open, and busy time by range path."""

    ranges: pl.DataFrame
    """The start/end ranges, as `start_end_ranges` returns them."""
    counting: Counting
    """Expressions that count each op once, though windows may split it into several rows."""
    _open: pl.DataFrame = field(init=False)
    _ranges: list[pl.DataFrame] = field(default_factory=list)
    _busy: list[pl.DataFrame] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._open = _stretches(self.ranges)

    @property
    def columns(self) -> Sequence[str]:
        """Names of the columns of ops that this aggregator reads."""
        return ("process", "launch_start")

    def clear(self) -> None:
        """Drop all sums collected so far."""
        self._ranges, self._busy = [], []

    def add(self, rows: pl.DataFrame) -> None:
        """Add up ops of one device or process.

        Each call gets all ops between two times at which that device is idle (see `feed`).
        """
        launched = rows.drop_nulls("launch_start").sort("process", "launch_start")
        for (process,), ops in launched.group_by("process", maintain_order=True):
            of_process = pl.col("process") == process
            times = ops["launch_start"].to_numpy()
            self._ranges.append(self._during(ops, times, self.ranges.filter(of_process)))
            self._busy += _running(ops, times, self._open.filter(of_process))

    def _during(self, ops: pl.DataFrame, times: Array, ranges: pl.DataFrame) -> pl.DataFrame:
        """Return sums, first start and last end of the ops launched while each range is open.

        The sums are `SUMS`. `ops` has the ops of a process, and `times` their launch times, sorted.
        """
        begin, until = _rows_during(times, ranges)
        some = np.flatnonzero(until > begin)
        begin, until = begin[some], until[some]
        counts = self.counting.ops(pl.col("start").is_not_null())
        columns = ops.select(ops=counts.cast(pl.Int64), total_ns=pl.col("end") - pl.col("start"))
        return pl.DataFrame({
            "range": ranges["range"].gather(some),
            **{name: _sums(columns[name].to_numpy(), begin, until) for name in SUMS},
            "first": _least(ops["start"].to_numpy(), begin, until),
            "last": -_least(-ops["end"].to_numpy(), begin, until),
        })  # fmt: skip

    def summed(self) -> pl.DataFrame:
        """Return the start/end ranges, each with sums over the ops launched while it was open.

        The sums are `SUMS`; ``first, last`` are the first start and last end of these ops.
        """
        empty = self.ranges.clear().select(
            "range", *(pl.lit(0, pl.Int64).alias(name) for name in (*SUMS, "first", "last"))
        )
        found = pl.concat([empty, *self._ranges]).group_by("range").agg(
            pl.col(SUMS).sum(), pl.col("first").min(), pl.col("last").max()
        )  # fmt: skip
        summed = self.ranges.join(found, on="range", how="left", maintain_order="left")
        return summed.with_columns(pl.col(SUMS).fill_null(0))

    def busy(self) -> pl.DataFrame:
        """Return ``path, busy_ns``: busy time of ops launched while a range of the path is open."""
        empty = self.ranges.clear().select("path", busy_ns=pl.lit(0, pl.Int64))
        return pl.concat([empty, *self._busy]).group_by("path").agg(pl.col("busy_ns").sum())


def kernels_during(launched: pl.DataFrame, ranges: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Yield the kernels launched during each start/end range, in batches of ranges.

    `launched` are kernels with ``process, launch_start``; `ranges` is the result of
    `start_end_ranges`.

    Yields
    ------
    The rows of `launched`, repeated for each range that is open at the launch, with ``range``.
    """
    ordered = launched.drop_nulls("launch_start").sort("process", "launch_start")
    for (process,), kernels in ordered.group_by("process", maintain_order=True):
        opened = ranges.filter(process=process)
        begin, until = _rows_during(kernels["launch_start"].to_numpy(), opened)
        parts = np.cumsum(until - begin) // _PAIRS
        for part in np.unique(parts):
            chosen = np.flatnonzero(parts == part)
            rows, owners = _pairs(begin[chosen], until[chosen])
            yield kernels[rows].with_columns(opened["range"].gather(chosen[owners]))


def _stretches(ranges: pl.DataFrame) -> pl.DataFrame:
    """Return ``process, path, start, end`` (ns): when some range of a path is open (merged)."""
    owner = ["process", "path"]
    reached = pl.col("end").cum_max().shift(1).over(owner)
    part = (pl.col("start") > reached).fill_null(value=True).cum_sum().over(owner)
    return (
        ranges.sort(*owner, "start").with_columns(part=part).group_by(*owner, "part")
        .agg(pl.col("start").min(), pl.col("end").max()).drop("part")
    )  # fmt: skip


def _running(ops: pl.DataFrame, times: Array, stretches: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Yield ``path, busy_ns`` of the ops launched while a range of the path is open, in batches.

    `ops` has a process's ops, `times` their launch times, `stretches` when each path is open.
    """
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
        running = ops.select("start", "end")[rows].with_columns(
            path=pl.Series(paths[chosen][owners])
        )
        yield union_length(running, ["path"]).rename({"length": "busy_ns"})


def _rows_during(times: Array, spans: pl.DataFrame) -> tuple[Array, Array]:
    """Return for each span the first row of `times` inside it, and the row after the last such row.

    `times` are sorted; a span is [start, end).
    """
    starts, ends = (np.searchsorted(times, spans[name].to_numpy()) for name in ("start", "end"))
    return starts, np.maximum(starts, ends)


def _pairs(begin: Array, until: Array) -> tuple[pl.Series, Array]:
    """List the rows of all slices from `begin` to before `until`, and the slice each row is of."""
    sizes = until - begin
    steps = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return pl.Series(np.repeat(begin, sizes) + steps), np.repeat(np.arange(sizes.size), sizes)


def _sums(values: Array, begin: Array, until: Array) -> Array:
    sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(values)])
    return np.asarray(sums[until] - sums[begin])


def _least(values: Array, begin: Array, until: Array) -> Array:
    """Return the minimum of the values in each slice from `begin` to before `until`."""
    padded = np.append(values, np.iinfo(np.int64).max)
    edges = np.column_stack([begin, until]).ravel()
    return np.asarray(np.minimum.reduceat(padded, edges)[::2]) if edges.size else edges
