"""When threads were off the CPU, from the context switches that the recorder saw."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from tracekit.sources._ordering import Ordered
from tracekit.sources.nsys._ids import process_of
from tracekit.sources.nsys._input import Export
from tracekit.sources.nsys._metadata import shifted
from tracekit.sources.nsys._os_runtime import LONG_NS
from tracekit.sources.nsys._places import Places
from tracekit.support.spool import Workspace

SWITCHES = "SCHED_EVENTS"
_COLUMNS = ("start", "isSchedIn", "globalTid")
_SWITCH = {"process": pl.Int64, "thread": pl.Int64, "start": pl.Int64, "is_on": pl.Boolean}
_RUNNING = {"process": pl.Int64, "start": pl.Int64, "step": pl.Int64}
_MOSTLY = 0.95
"""A process ran meanwhile if some thread of it was on a CPU for this part of a stretch."""


def off_cpu(export: Export, places: Places, workspace: Workspace) -> Iterator[pl.DataFrame]:
    """Return rows of ``host``: stretches of `LONG_NS` or more that a thread is off the CPU.

    A stretch lasts from a switch off to the next one on; what comes before a thread's first switch
    is unknown. Threads that take no part in the run get no rows; they count for whether their
    process ran meanwhile.
    """
    if not export.file.has(SWITCHES, *_COLUMNS):
        return
    switches = Ordered(workspace)
    for batch in export.file.batches(SWITCHES, dict.fromkeys(_COLUMNS, "int"), workspace.rows):
        known = batch.drop_nulls().select(
            "start", end="start", thread="globalTid", process=process_of(pl.col("globalTid")),
            is_on=pl.col("isSchedIn") == 1,
        )  # fmt: skip
        switches.add(known.filter(places.process(known["process"]).is_not_null()))
    stretches = Stretches()
    for chunk in switches.chunks(_SWITCH):
        yield _named(stretches.until(chunk), export, places)


def _named(stretches: pl.DataFrame, export: Export, places: Places) -> pl.DataFrame:
    off = stretches.filter(pl.col("end") - pl.col("start") >= LONG_NS)
    is_beside = pl.col("ran") >= _MOSTLY * (pl.col("end") - pl.col("start"))
    named = shifted(off, export.metadata, "start", "end").with_columns(
        places.thread(off["thread"]).alias("thread"),
        places.process(off["process"]).alias("process"),
        name=pl.when(is_beside)
        .then(pl.lit("off the CPU while its process ran"))
        .otherwise(pl.lit("off the CPU")),
    )
    return named.drop_nulls("thread").sort("thread", "start").select(
        pl.lit(0, pl.Int32).alias("report"),
        "process", "thread", "start", "end",
        pl.lit("os").alias("library"),
        "name",
        pl.lit("off_cpu").alias("group"),
    )  # fmt: skip


class Stretches:
    """Pairs switches that come chunk by chunk in the order of time; no two chunks share a time."""

    def __init__(self) -> None:
        self._threads = pl.DataFrame(schema={**_SWITCH, "ran": pl.Int64})
        """The last switch of each thread."""
        self._processes = pl.DataFrame(schema={**_RUNNING, "ran": pl.Int64})
        """The time of the last switch of each process, how many of its threads run from then on
        (`step`), and how long it ran until then."""

    def until(self, switches: pl.DataFrame) -> pl.DataFrame:
        """Return ``process, thread, start, end`` off the CPU; ``ran``, how long its process ran.

        Those that end in this chunk.
        """
        was_on = pl.col("is_on").shift().over("thread")
        step = pl.when("is_on").then(1).when(was_on).then(-1).otherwise(0).cast(pl.Int64)
        known = pl.concat([self._threads.drop("ran"), switches]).with_columns(step=step)
        # At one time threads come before others go.
        ordered = pl.concat(
            [self._processes, known.slice(self._threads.height)], how="diagonal"
        ).sort("process", "start", "step", descending=[False, False, True])
        running = pl.col("step").cum_sum().over("process") > 0
        until_next = pl.col("start").shift(-1).over("process") - pl.col("start")
        passed = pl.when(running).then(until_next).otherwise(0).fill_null(0)
        before = pl.col("ran").sum().over("process")
        timed = ordered.with_columns(ran=before + passed.cum_sum().over("process") - passed)
        self._processes = timed.group_by("process").agg(
            pl.col("start").last(), pl.col("step").sum(), pl.col("ran").last()
        )
        new = timed.drop_nulls("thread").select(self._threads.columns)
        both = pl.concat([self._threads, new])
        self._threads = both.unique("thread", keep="last", maintain_order=True)
        paired = both.with_columns(
            end=pl.col("start").shift(-1).over("thread"),
            comes=pl.col("is_on").shift(-1).over("thread"),
            ran=pl.col("ran").shift(-1).over("thread") - pl.col("ran"),
        )
        return paired.filter(~pl.col("is_on") & pl.col("comes"))
