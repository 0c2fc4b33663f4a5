"""Infer stages of ops from launch order, in processes whose ranges do not give all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from tracekit.attribution._arrays import Array
from tracekit.attribution._chunks import Waiting
from tracekit.attribution._names import classify_kernels
from tracekit.attribution._rules import Rules
from tracekit.attribution.structure import Pieces, Structure, Work, find_structure
from tracekit.model import COLLECTIVE, KIND, STAGES, Stream
from tracekit.support.spool import Spool, Workspace

SECOND_OPINION = 100_000
"""Largest number of ops of a process for which structure is compared with stages from ranges."""

_COLUMNS = (
    "process", "kind", "device", "start", "end", "context", "stream", "name", "launch_size",
    "bytes",
)  # fmt: skip
_NOTHING = -1
_FORWARD = STAGES.index("FP")
_TOLD = {"stage": np.int8, "step": np.int32, "again": np.int8}
CHUNKS_TOGETHER = 6
"""Largest number of ops of a process examined together, as a multiple of the rows of a chunk; an op
takes 0.6 kB."""
_NAMES_APART = 64
"""Number of chunks after which their distinct names are merged."""


@dataclass(frozen=True)
class Structures:
    """Stages and steps of the examined processes' ops, inferred from threads and launch order."""

    of: Mapping[int, Structure]
    """Process -> its inferred steps and evidence. The steps have a column for the number of ops;
    stages and steps of single ops are only in `ops`."""
    drivers: Mapping[int, int]
    """Process -> thread that launches the forward passes of its steps; if unknown, the thread that
    launches most of their ops."""
    ops: Waiting
    """Chunks parallel to those of ops: ``stage`` (index in the list of stages), ``step`` (number)
    and ``again`` (whether the op recomputes a part of a forward pass in backward), -1 where nothing
    was inferred. No chunks if no process was examined."""

    def read(self, chunk: int, rows: int) -> list[Array]:
        """Return inferred ``stage, step, again`` of a chunk's ops; -1 where nothing was inferred.

        ``again`` is 1 for ops that recompute a part of a forward pass; `rows` is the number of ops.
        """
        if not len(self.ops):
            return [np.full(rows, _NOTHING, dtype) for dtype in _TOLD.values()]
        return self.ops.read(chunk, *_TOLD)

    def iterations(self, processes: Sequence[int], reports: Mapping[int, int]) -> pl.DataFrame:
        """Return the inferred steps of processes as rows of the table ``iterations``."""
        tables = [
            self.of[process].steps.select(
                report=pl.lit(reports.get(process, 0), pl.Int32),
                process=pl.lit(process, pl.Int32),
                thread=pl.lit(self.drivers.get(process), pl.Int32),
                iteration=pl.col("step").cast(pl.Int64),
                name=pl.lit(None, pl.String),
                start="start",
                end="end",
                source=pl.lit("structure"),
                ops="ops",
                whole="whole",
            )
            for process in processes
        ]
        return pl.concat([pl.DataFrame(schema=_ITERATIONS), *tables])


_ITERATIONS = {
    "report": pl.Int32, "process": pl.Int32, "thread": pl.Int32, "iteration": pl.Int64,
    "name": pl.String, "start": pl.Int64, "end": pl.Int64, "source": pl.String, "ops": pl.Int64,
    "whole": pl.Boolean,
}  # fmt: skip


def find_structures(
    ops: Stream,
    launches: Callable[[int], Mapping[str, Array]],
    processes: Sequence[int],
    main_threads: Mapping[int, int],
    rules: Rules,
    workspace: Workspace,
) -> Structures:
    """Infer stages and steps of some processes from threads and launch order.

    Parameters
    ----------
    launches
        Function of a chunk's number that returns ``thread`` and ``start`` of its ops' launches.
    processes
        Numbers of the processes.
    main_threads
        Process -> its initial thread, where known.
    rules
        Rules that give names a meaning.
    workspace
        Folder and memory budget for ops; the budget limits how many ops are examined together.
    """
    findings = Waiting(workspace)
    if not processes:
        return Structures({}, {}, findings)
    apart = _Apart(workspace)
    for number, height in enumerate(ops.heights):
        apart.add(_part(ops, number, launches, processes))
        findings.append({name: np.full(height, _NOTHING, dtype) for name, dtype in _TOLD.items()})
    names, found, drivers = _Names(apart.names(), rules), {}, {}
    most = CHUNKS_TOGETHER * workspace.rows
    for process in processes:
        pieces, forward, launched = Pieces(), Counter[int](), Counter[int]()
        for piece, is_last in apart.pieces(process, most, pieces):
            structure = find_structure(names.work(piece, main_threads.get(process)), rules.step)
            _note(findings, ops.first, *pieces.add(piece, structure, is_last=is_last))
            thread = piece["thread"].to_numpy()
            in_steps = (structure.step >= 0) & (thread >= 0)
            launched.update(_counts(thread[in_steps]))
            forward.update(_counts(thread[in_steps & (structure.stage == _FORWARD)]))
        found[process] = pieces.joined(most)
        if threads := forward or launched:
            drivers[process] = threads.most_common(1)[0][0]
    apart.drop()
    return Structures(found, drivers, findings)


def _counts(threads: Array) -> dict[int, int]:
    numbers, counts = np.unique(threads, return_counts=True)
    return dict(zip(numbers.tolist(), counts.tolist(), strict=True))


def _note(waiting: Waiting, first: Sequence[int], op: Array, found: Mapping[str, Array]) -> None:
    """Write inferred stages and steps of ops (`found`) into the chunks that contain these ops.

    `op` has the ids of the ops, `first` the first op id of each chunk.
    """
    order = np.argsort(op)
    chunk = np.searchsorted(first, op[order], "right") - 1
    for number in np.unique(chunk).tolist():
        rows = order[chunk == number]
        columns = dict(zip(_TOLD, waiting.read(number, *_TOLD), strict=True))
        for name, values in found.items():
            columns[name][op[rows] - first[number]] = values[rows]
        waiting.replace(number, columns)


def _part(
    ops: Stream, number: int, launches: Callable[[int], Mapping[str, Array]], wanted: Sequence[int]
) -> pl.DataFrame:
    """Return the ops of chunk `number` of processes `wanted`, with launching thread and time."""
    launch = launches(number)
    first = ops.first[number]
    frame = ops.read(number, *_COLUMNS)
    known = launch["thread"] >= 0
    return frame.with_columns(
        pl.int_range(first, first + frame.height, eager=True).alias("op"),
        pl.Series("thread", launch["thread"].astype(np.int32)),
        pl.Series("launch", np.where(known, launch["start"], frame["start"].to_numpy())),
    ).filter(pl.col("process").is_in(list(wanted)))


class _Apart:
    """Ops of chosen processes, kept in a temporary file and read again process by process."""

    def __init__(self, workspace: Workspace) -> None:
        self._spool = Spool(workspace)
        self._places: list[dict[int, tuple[int, int]]] = []
        self._names: list[pl.DataFrame] = []

    def add(self, rows: pl.DataFrame) -> None:
        """Add the next ops."""
        rows = rows.sort("process", maintain_order=True)
        counts = _counts(rows["process"].to_numpy())
        ends = np.cumsum([*counts.values()]).tolist()
        places = zip(counts, zip([0, *ends], ends, strict=False), strict=True)
        self._places.append(dict(places))
        self._names.append(rows[["name", "kind"]].drop_nulls("name").unique("name"))
        if len(self._names) > _NAMES_APART:
            self._names = [self.names()]
        self._spool.append(rows)

    def names(self) -> pl.DataFrame:
        """Return the distinct kernel names, each with the kind of one op of this name."""
        names = self._names
        return names[0] if len(names) == 1 else pl.concat(names).unique("name")

    def pieces(self, process: int, most: int, done: Pieces) -> Iterator[tuple[pl.DataFrame, bool]]:
        """Yield the ops of a process in order of launch, at most `most` at once (a piece).

        Pieces are of equal size. Each begins with the ops of steps that the previous piece did not
        finish; `done` knows these.

        Yields
        ------
        The ops of a piece, and whether it is the last piece.
        """
        places = [(number, at[process]) for number, at in enumerate(self._places) if process in at]
        left = sum(end - first for _, (first, end) in places)
        size = -(-left // -(-left // most)) if left else 0
        rows: list[pl.DataFrame] = []
        height = 0
        for number, (first, end) in places:
            rows.append(self._spool.read(number, rows=slice(first, end)))
            height, left = height + end - first, left - (end - first)
            if height >= size or not left:
                yield _in_order(pl.concat([*done.open, *rows])), not left
                rows, height = [], 0

    def drop(self) -> None:
        """Drop the spilled ops."""
        for number in range(len(self._spool)):
            self._spool.drop(number)


def _in_order(ops: pl.DataFrame) -> pl.DataFrame:
    """Sort ops by launch, those of one call by start.

    An op without a call was launched no later than the next op on its stream. If it was launched
    before the recording began, it may start while the host launches work of later steps.
    """
    if (ops["thread"] < 0).any():
        later = pl.col("launch").cum_min(reverse=True).over("device", "context", "stream")
        launch = pl.when(pl.col("thread") < 0).then(later).otherwise("launch")
        ops = ops.sort("start").with_columns(launch=launch)
    return ops.sort("launch", "start", "op")


class _Names:
    """Distinct kernel names, and the collective (such as all-reduce) that each name implies."""

    def __init__(self, kernels: pl.DataFrame, rules: Rules) -> None:
        classified = classify_kernels(kernels, rules)
        self._codes = classified.with_row_index("code").select(
            "name",
            pl.col("code").cast(pl.Int32),
            meant=pl.col("kind"),
            collective=pl.col("collective").cast(COLLECTIVE),
        )
        self._texts = tuple(classified["name"].cast(pl.String))

    def work(self, ops: pl.DataFrame, main_thread: int | None) -> Work:
        """Return the ops of a process, in order of launch, as the arrays of `Work`.

        `main_thread` is the process's initial thread, None if unknown.
        """
        columns = ops.join(self._codes, on="name", how="left", maintain_order="left").select(_WORK)
        arrays = {column.name: column.to_numpy() for column in columns}
        return Work(**arrays, names=self._texts, main_thread=main_thread)


_IS_KERNEL = pl.col("kind").cast(pl.String).is_in(["compute", "collective"])
_NAMED_KIND = pl.when(_IS_KERNEL).then(pl.col("meant").cast(pl.String))  # null without a name
_ROLE = pl.coalesce(_NAMED_KIND, pl.col("kind").cast(pl.String)).cast(KIND)
_WORK = [
    _ROLE.to_physical().cast(pl.Int8).alias("kind"),
    *map(pl.col, ("device", "start", "end", "launch", "thread")),
    pl.struct("context", "stream").rank("dense").cast(pl.Int64).alias("context_stream"),
    pl.when(_IS_KERNEL).then("code").fill_null(_NOTHING).alias("name"),
    pl.col("launch_size").fill_null(_NOTHING).alias("size"),
    pl.col("bytes").fill_null(_NOTHING),
    (pl.col("collective").to_physical().cast(pl.Int8) + 1).fill_null(0),
]
"""Arrays of `Work`, from ops with what their names mean."""
