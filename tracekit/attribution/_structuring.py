"""The structure of processes: whose is asked for, and what it says op by op."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from tracekit.attribution._columns import Array
from tracekit.attribution._names import classify_kernels
from tracekit.attribution._rules import Rules
from tracekit.attribution.structure import Structure, Work, find_structure
from tracekit.model import COLLECTIVE, KIND, STAGES, Stream

SECOND_OPINION = 100_000
"""Up to how many ops of a process whose ranges tell its stages are held against structure too."""

_COLUMNS = (
    "process", "kind", "device", "start", "end", "context", "stream", "name", "launch_size",
    "bytes",
)  # fmt: skip
_NOTHING = -1
_FORWARD = STAGES.index("FP")


@dataclass(frozen=True)
class Structures:
    """What structure says of some processes.

    Parameters
    ----------
    of
        By process.
    drivers
        By process the thread that launches the forward passes of its steps, else most of their ops.
    stages, steps
        Of each op of the report: place in the list of stages, and number of the step; -1 where
        structure says nothing. Empty where no process was asked.
    """

    of: Mapping[int, Structure] = field(default_factory=dict)
    drivers: Mapping[int, int] = field(default_factory=dict)
    stages: Array = field(default_factory=lambda: np.empty(0, np.int8))
    steps: Array = field(default_factory=lambda: np.empty(0, np.int32))

    def stage(self, first: int, rows: int) -> Array:
        """Return what it says of the stages of ops from `first` on."""
        if not self.stages.size:
            return np.full(rows, _NOTHING, np.int8)
        return self.stages[first : first + rows]

    def iterations(self, processes: Sequence[int], reports: Mapping[int, int]) -> pl.DataFrame:
        """Return the steps of processes as rows of the canonical table of iterations."""
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
                ops=pl.col("step").replace_strict(*_counted(self.of[process].step), default=0),
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


def _counted(step: Array) -> tuple[pl.Series, pl.Series]:
    """Return the steps that occur, and how many ops each has."""
    steps, counts = np.unique(step[step >= 0], return_counts=True)
    return pl.Series(steps, dtype=pl.Int32), pl.Series(counts, dtype=pl.Int64)


def find_structures(
    ops: Stream,
    launches: Callable[[int], Mapping[str, Array]],
    asked: Sequence[int],
    main_threads: Mapping[int, int],
    rules: Rules,
) -> Structures:
    """Find the structure of the processes in `asked`.

    Parameters
    ----------
    ops
        The ops.
    launches
        Returns of a chunk of ops the ``thread`` and the ``start`` of their launches.
    asked
        The processes.
    main_threads
        The thread that each process began with, where it is known.
    rules
        What names mean.
    """
    if not asked:
        return Structures()
    stages = np.full(ops.height, _NOTHING, np.int8)
    steps = np.full(ops.height, _NOTHING, np.int32)
    parts = [_part(ops, number, launches, asked) for number in range(len(ops))]
    rows = pl.concat(parts)
    names = _Names(rows["name"], rows["kind"], rules)
    found, drivers = {}, {}
    for process in asked:
        # Of calls that begin together the ops are taken in the order in which they start.
        own = rows.filter(pl.col("process") == process).sort("launch", "start", "op")
        structure = find_structure(names.work(own, main_threads.get(process)))
        found[process] = structure
        driver = _driver(own["thread"].to_numpy(), structure)
        if driver is not None:
            drivers[process] = driver
        stages[own["op"].to_numpy()] = structure.stage
        steps[own["op"].to_numpy()] = structure.step
    return Structures(found, drivers, stages, steps)


def _driver(thread: Array, structure: Structure) -> int | None:
    """Return the thread that launches most of the forward passes of steps, else of the steps."""
    in_steps = (structure.step >= 0) & (thread >= 0)
    forward = in_steps & (structure.stage == _FORWARD)
    threads, counts = np.unique(thread[forward if forward.any() else in_steps], return_counts=True)
    return int(threads[counts.argmax()]) if threads.size else None


def _part(
    ops: Stream, number: int, launches: Callable[[int], Mapping[str, Array]], asked: Sequence[int]
) -> pl.DataFrame:
    """Return of a chunk the ops of some processes, with when and where they were launched."""
    launch = launches(number)
    first = ops.first[number]
    frame = ops.read(number, *_COLUMNS)
    known = launch["thread"] >= 0
    return frame.with_columns(
        pl.int_range(first, first + frame.height, eager=True).alias("op"),
        pl.Series("thread", launch["thread"].astype(np.int32)),
        pl.Series("launch", np.where(known, launch["start"], frame["start"].to_numpy())),
    ).filter(pl.col("process").is_in(list(asked)))


class _Names:
    """The distinct names of kernels, and which collectives they are."""

    def __init__(self, name: pl.Series, kind: pl.Series, rules: Rules) -> None:
        kernels = pl.DataFrame({"name": name, "kind": kind}).drop_nulls("name").unique("name")
        meant = classify_kernels(kernels.with_columns(collective=pl.lit(None, pl.String)), rules)
        self._codes = meant.with_row_index("code").select(
            "name",
            pl.col("code").cast(pl.Int32),
            meant=pl.col("kind"),
            collective=pl.col("collective").cast(COLLECTIVE),
        )
        self._texts = meant["name"].cast(pl.String).to_list()

    def work(self, own: pl.DataFrame, main_thread: int | None) -> Work:
        """Return the ops of a process, in order of launch, as arrays."""
        named = own.join(self._codes, on="name", how="left", maintain_order="left")
        kernel = pl.col("kind").cast(pl.String).is_in(["compute", "collective"])
        meant = pl.when(kernel).then(pl.col("meant").cast(pl.String))  # null where it has no name
        told = pl.coalesce(meant, pl.col("kind").cast(pl.String)).cast(KIND)
        columns = named.select(
            told.to_physical().cast(pl.Int8).alias("kind"),
            "device", "start", "end", "launch", "thread",
            pl.struct("context", "stream").rank("dense").cast(pl.Int64).alias("context_stream"),
            pl.when(kernel).then("code").fill_null(_NOTHING).alias("name"),
            pl.col("launch_size").fill_null(_NOTHING).alias("size"),
            pl.col("bytes").fill_null(_NOTHING),
            (pl.col("collective").to_physical().cast(pl.Int8) + 1).fill_null(0),
        )  # fmt: skip
        arrays = {column.name: column.to_numpy() for column in columns}
        return Work(**arrays, names=self._texts, main_thread=main_thread)
