"""When threads were off the CPU, from the context switches that the recorder saw."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from tracekit.sources.nsys._ids import process_of
from tracekit.sources.nsys._input import Export
from tracekit.sources.nsys._metadata import shifted
from tracekit.sources.nsys._os_runtime import LONG_NS
from tracekit.sources.nsys._places import Places

SWITCHES = "SCHED_EVENTS"
_COLUMNS = ("start", "isSchedIn", "globalTid")
_MOSTLY = 0.95
"""A process ran meanwhile if some thread of it was on a CPU for this part of a stretch."""


def off_cpu(export: Export, places: Places, rows: int) -> Iterator[pl.DataFrame]:
    """Return rows of ``host``: stretches of `LONG_NS` or more that a thread is off the CPU.

    A stretch lasts from a switch off to the next one on; what comes before a thread's first switch
    is unknown. Threads that take no part in the run get no rows; they count for whether their
    process ran meanwhile.
    """
    if not export.file.has(SWITCHES, *_COLUMNS):
        return
    batches = [
        batch.drop_nulls().select(
            "start", thread=pl.col("globalTid"), is_on=pl.col("isSchedIn") == 1
        )
        for batch in export.file.batches(SWITCHES, dict.fromkeys(_COLUMNS, "int"), rows)
    ]
    if not batches:
        return
    switches = pl.concat(batches).with_columns(process=process_of(pl.col("thread")))
    involved = switches.filter(places.process(switches["process"]).is_not_null())
    off = _stretches(involved).filter(pl.col("end") - pl.col("start") >= LONG_NS)
    is_beside = pl.col("ran") >= _MOSTLY * (pl.col("end") - pl.col("start"))
    named = shifted(off, export.metadata, "start", "end").with_columns(
        places.thread(off["thread"]).alias("thread"),
        places.process(off["process"]).alias("process"),
        name=pl.when(is_beside)
        .then(pl.lit("off the CPU while its process ran"))
        .otherwise(pl.lit("off the CPU")),
    )
    yield named.drop_nulls("thread").sort("thread", "start").select(
        pl.lit(0, pl.Int32).alias("report"),
        "process", "thread", "start", "end",
        pl.lit("os").alias("library"),
        "name",
        pl.lit("off_cpu").alias("group"),
    )  # fmt: skip


def _stretches(switches: pl.DataFrame) -> pl.DataFrame:
    """Return ``process, thread, start, end`` off the CPU; ``ran``, how long its process ran."""
    was_on = pl.col("is_on").shift().over("thread")
    step = pl.when("is_on").then(1).when(was_on).then(-1).otherwise(0)
    # At one time threads come before others go.
    ordered = switches.sort("thread", "start").with_columns(step=step).sort(
        "process", "start", "step", descending=[False, False, True]
    )  # fmt: skip
    running = pl.col("step").cum_sum().over("process") > 0
    until_next = pl.col("start").shift(-1).over("process") - pl.col("start")
    passed = pl.when(running).then(until_next).otherwise(0).fill_null(0)
    timed = ordered.with_columns(ran=passed.cum_sum().over("process") - passed)
    both = timed.sort("thread", "start").with_columns(
        end=pl.col("start").shift(-1).over("thread"),
        comes=pl.col("is_on").shift(-1).over("thread"),
        ran=pl.col("ran").shift(-1).over("thread") - pl.col("ran"),
    )
    return both.filter(~pl.col("is_on") & pl.col("comes"))
