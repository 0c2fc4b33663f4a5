"""Time that the profiler itself took on threads of the program."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from tracekit.sources.nsys._ids import Texts
from tracekit.sources.nsys._input import Export
from tracekit.sources.nsys._metadata import shifted
from tracekit.sources.nsys._places import Places

OVERHEAD_TABLES = ("PROFILER_OVERHEAD", "CUPTI_ACTIVITY_KIND_OVERHEAD")

_COLUMNS = ("start", "end", "globalTid", "nameId", "overheadType")
# What ENUM_CUPTI_OVERHEAD_TYPE means; the table itself may be absent or empty.
_TYPES = {
    2: "driver compilation (CUDA)",
    3: "CUPTI buffer flush",
    4: "CUPTI instrumentation",
    5: "CUPTI resource management",
    6: "runtime module loading (CUDA)",
    7: "lazy function loading (CUDA)",
    8: "command buffer full (CUDA)",
}
_NAMELESS = "overhead of unknown kind"


class Overhead:
    """Profiler overhead that an export records.

    Threads of the profiler, and programs on which it did nothing but start, take no part in the
    run: their rows are left out, and make no thread or process a participant.

    Parameters
    ----------
    export
        The export.
    """

    def __init__(self, export: Export) -> None:
        self._export = export
        self._lost = sum(
            batch.height - _valid(batch).height
            for table in OVERHEAD_TABLES
            for batch in export.file.batches(table, dict.fromkeys(_COLUMNS[:3], "int"))
        )

    @property
    def losses(self) -> tuple[str, ...]:
        """Rows that were left out, in words."""
        what = "stretches of profiler overhead have no thread or no times and were left out"
        return (f"{self._lost:,} {what}",) if self._lost else ()

    def batches(self, places: Places, rows: int) -> Iterator[pl.DataFrame]:
        """Return rows of the canonical table ``host``, one table of the export after the other."""
        names = Texts(self._export.strings)
        for table in OVERHEAD_TABLES:
            for batch in self._export.file.batches(table, dict.fromkeys(_COLUMNS, "int"), rows):
                yield self._rows(_valid(batch), names, places)

    def _rows(self, overhead: pl.DataFrame, names: Texts, places: Places) -> pl.DataFrame:
        of_type = pl.col("overheadType").replace_strict(
            list(_TYPES), list(_TYPES.values()), default=_NAMELESS, return_dtype=pl.String
        )
        named = shifted(overhead, self._export.metadata, "start", "end").with_columns(
            places.thread(overhead["globalTid"]).alias("thread"),
            places.process_by_thread(overhead["globalTid"]).alias("process"),
            names.of(overhead["nameId"]).alias("name"),
        )
        return named.drop_nulls("thread").select(
            pl.lit(0, pl.Int32).alias("report"),
            "process",
            "thread",
            "start",
            "end",
            pl.lit("profiler").alias("library"),
            pl.coalesce("name", of_type).alias("name"),
            pl.lit("overhead").alias("group"),
        )


def _valid(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.drop_nulls(["start", "end", "globalTid"]).filter(pl.col("end") >= pl.col("start"))
