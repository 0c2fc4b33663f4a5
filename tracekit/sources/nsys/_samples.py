"""Functions that threads executed, from sampled call stacks."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from tracekit.sources.nsys._ids import Texts
from tracekit.sources.nsys._input import Export
from tracekit.sources.nsys._metadata import shifted
from tracekit.sources.nsys._places import Places

SAMPLES, FRAMES = "COMPOSITE_EVENTS", "SAMPLING_CALLCHAINS"
_TAKEN = ("id", "start", "globalTid")
_FRAME = ("id", "symbol", "module", "unresolved", "stackDepth")
_LONGEST = 60
"""Characters of a name that are kept; those of C++ may have thousands."""


def samples(export: Export, places: Places, rows: int) -> Iterator[pl.DataFrame]:
    """Return rows of ``host``: one per sample of a thread that takes part, without a length.

    A sample is named after the innermost frame of a Python file in its stack, else after the
    function that ran, else after the file of the code that ran.
    """
    file = export.file
    if not file.has(SAMPLES, *_TAKEN) or not file.has(FRAMES, *_FRAME):
        return
    batches = file.batches(SAMPLES, dict.fromkeys(_TAKEN, "int"), rows)
    taken = [batch.drop_nulls() for batch in batches]
    if not taken:
        return
    whole = pl.concat(taken)
    known = whole.with_columns(places.thread(whole["globalTid"]).alias("thread")).drop_nulls()
    named = known.join(_names(export, known["id"], rows), on="id").sort("start")
    yield (
        shifted(named, export.metadata, "start")
        .with_columns(places.process_by_thread(named["globalTid"]).alias("process"))
        .select(
            pl.lit(0, pl.Int32).alias("report"),
            "process",
            "thread",
            "start",
            pl.col("start").alias("end"),
            pl.lit("sample").alias("library"),
            "name",
            pl.lit("on_cpu").alias("group"),
        )
    )


def _names(export: Export, wanted: pl.Series, rows: int) -> pl.DataFrame:
    """Return ``id, name`` of some samples."""
    symbols, modules = Texts(export.strings), Texts(export.strings)
    kept = []
    for batch in export.file.batches(FRAMES, dict.fromkeys(_FRAME, "int"), rows):
        own = batch.filter(pl.col("id").is_in(wanted.implode()))
        told = own.with_columns(file=modules.of(own["module"]).str.extract(r"([^/\\]*)$"))
        is_python = pl.col("file").str.ends_with(".py").fill_null(value=False)
        innermost = told.with_columns(python=is_python).filter(
            pl.col("python") | (pl.col("stackDepth") == 0)
        )
        symbol = symbols.of(innermost["symbol"]).str.slice(0, _LONGEST)
        kept.append(innermost.select("id", "stackDepth", "python", "file", "unresolved", symbol))
    if not kept:
        return pl.DataFrame(schema={"id": pl.Int64, "name": pl.String})
    first = pl.concat(kept).sort("id", "python", "stackDepth", descending=[False, True, False])
    is_named = pl.col("unresolved").ne_missing(1)  # older exports say nothing of those with a name
    name = pl.when(is_named).then(pl.format("{} ({})", "symbol", "file"))
    return first.unique("id", keep="first", maintain_order=True).select(
        "id", name=pl.coalesce(name, "file", pl.lit("unknown code"))
    )
