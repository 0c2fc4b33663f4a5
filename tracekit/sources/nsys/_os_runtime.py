"""Long calls into the operating system: those in which a thread waits or starts a process."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from tracekit.sources.nsys._ids import Texts
from tracekit.sources.nsys._input import Export
from tracekit.sources.nsys._metadata import shifted
from tracekit.sources.nsys._places import Places

OSRT = "OSRT_API"
_COLUMNS = ("start", "end", "globalTid", "nameId")
LONG_NS = 100_000
"""What takes less explains no gap worth a word, and there may be millions of it."""
_WAITING = (
    r"^(p?poll|p?select|epoll_p?wait2?|(__)?(read|recv|recvfrom|recvmsg)|accept4?|"
    r"sem_(timed|clock)?wait|pthread_cond_(timed|clock)?wait|futex|pthread_join|"
    r"pthread_(mutex_(timed|clock)?lock|rwlock_(timed|clock)?(rd|wr)lock)|"
    r"wait(pid|id|3|4)?|(clock_)?nanosleep|u?sleep)$"
)
_STARTING = r"^(v?fork|posix_spawnp?|popen|system)$"


class OsWaits:
    """Waits and child processes of threads that take part, which make none a participant.

    Parameters
    ----------
    export
        The export.
    """

    def __init__(self, export: Export) -> None:
        self._export = export
        self._is_there = export.file.has(OSRT, *_COLUMNS)

    def batches(self, places: Places, rows: int) -> Iterator[pl.DataFrame]:
        """Return rows of the canonical table ``host``."""
        if not self._is_there:
            return
        names = Texts(self._export.strings)
        for batch in self._export.file.batches(OSRT, dict.fromkeys(_COLUMNS, "int"), rows):
            long = batch.drop_nulls().filter(pl.col("end") - pl.col("start") >= LONG_NS)
            named = shifted(long, self._export.metadata, "start", "end").with_columns(
                places.thread(long["globalTid"]).alias("thread"),
                places.process_by_thread(long["globalTid"]).alias("process"),
                names.of(long["nameId"]).alias("name"),
            )
            group = (
                pl.when(pl.col("name").str.contains(_WAITING)).then(pl.lit("wait"))
                .when(pl.col("name").str.contains(_STARTING)).then(pl.lit("child"))
            )  # fmt: skip
            told = named.drop_nulls("thread").with_columns(group=group).drop_nulls("group")
            yield told.select(
                pl.lit(0, pl.Int32).alias("report"),
                "process", "thread", "start", "end",
                pl.lit("os").alias("library"),
                "name",
                "group",
            )  # fmt: skip
