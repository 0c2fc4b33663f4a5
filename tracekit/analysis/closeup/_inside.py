"""Ops inside spans of GPUs with details, and the ranges of the threads that launch them."""

from __future__ import annotations

import polars as pl

from tracekit.analysis.calls import collective_calls
from tracekit.engine import range_layers
from tracekit.model import Trace, path_texts

_OWNER = ["process", "device"]


def ops_inside(trace: Trace, spans: pl.DataFrame, *, reaching: bool = False) -> pl.DataFrame:
    """Return the ops that start in a span of their process and GPU, in order of time.

    Parameters
    ----------
    trace
        The run.
    spans
        ``process, device, start, end``; no two of one GPU and process overlap.
    reaching
        Whether those that start before and reach into a span are among them.

    Returns
    -------
    The columns of ``ops``.
    """
    bounds = spans.select(*_OWNER, span_start="start", span_end="end").lazy()
    begins = pl.col("start") >= pl.col("span_start")
    if reaching:
        begins |= pl.col("end") > pl.col("span_start")
    inside = begins & (pl.col("start") < pl.col("span_end"))
    found = trace["ops"].join(bounds, on=_OWNER).filter(inside).drop("span_start", "span_end")
    return found.sort("start", "op").collect()


def details(trace: Trace, ops: pl.DataFrame) -> pl.DataFrame:
    """Return the details of each op as text.

    Parameters
    ----------
    trace
        The run.
    ops
        Some of its ops, with the columns of ``ops``.

    Returns
    -------
    In the order of `ops`, null where it is not known: ``kind``; ``bytes`` of a copy or memset, or
    of a collective as the call gives it, and of a copy its ``source`` and ``destination``, a GPU or
    ``host``; ``launch``, the call that launched it, and ``delay_ns`` from the start of that to its
    own; ``range``, the path of ranges around the launch; ``layer``, if it is of a pass; ``stage``,
    ``stage_source``, ``iteration``; ``threads``, those of a kernel; and ``correlation``.
    """
    calls = _near(trace["calls"], ops["call"]).select("call", launch=pl.col("name").cast(pl.String))
    paths = _near(trace["ranges"], ops["range"]).select("range", "path")
    beside = (
        ops.lazy()
        .select("op", "call", "range")
        .join(trace.once(_sizes).lazy(), on="op", how="left", maintain_order="left")
        .join(calls, on="call", how="left", maintain_order="left")
        .join(paths, on="range", how="left", maintain_order="left")
        .collect()
    )
    found = trace.once(range_layers)
    of_pass = pl.when(pl.col("stage").cast(pl.String).is_in(["FP", "BP"])).then("range")
    layers = found.layers.gather(found.of_range.gather(ops.select(of_pass).to_series()))
    copied = pl.col("copy_kind")
    return ops.select(
        pl.col("kind").cast(pl.String),
        bytes=pl.coalesce("bytes", beside["size_bytes"]),
        source=_place("src_device", copied.str.starts_with("H")),
        destination=_place("dst_device", copied.str.ends_with("H")),
        launch=beside["launch"],
        delay_ns=pl.col("start") - pl.col("launch_start"),
        range=path_texts(trace.read("paths"), beside["path"]),
        layer=layers,
        stage=pl.col("stage").cast(pl.String),
        stage_source=pl.col("stage_source").cast(pl.String),
        iteration="iteration",
        threads="launch_size",
        correlation="correlation",
    )


def _near(table: pl.LazyFrame, numbers: pl.Series) -> pl.LazyFrame:
    """Return the rows from the first to the last of some numbers: files say where these are."""
    return table.filter(pl.col(numbers.name).is_between(numbers.min(), numbers.max()))


def _sizes(trace: Trace) -> pl.DataFrame:
    """Return ``op, size_bytes`` of the collectives whose size is known."""
    calls = collective_calls(trace).select("op", size_bytes="message_bytes")
    return calls.drop_nulls().unique("op")


def _place(device: str, is_host: pl.Expr) -> pl.Expr:
    named = pl.format("GPU {}", device)
    return pl.when(is_host.fill_null(value=False)).then(pl.lit("host")).otherwise(named)


def ranges_inside(trace: Trace, spans: pl.DataFrame) -> pl.DataFrame:
    """Return the NVTX ranges that are open while their process is in one of some spans.

    Parameters
    ----------
    trace
        The run.
    spans
        ``process, start, end``, one row per process.

    Returns
    -------
    The columns of ``ranges``, in order of time; those around others first.
    """
    bounds = spans.select("process", span_start="start", span_end="end").lazy()
    touches = (pl.col("start") < pl.col("span_end")) & (pl.col("end") > pl.col("span_start"))
    found = trace["ranges"].join(bounds, on="process").filter(touches)
    return found.drop("span_start", "span_end").sort("start", "depth").collect()


def driving_threads(trace: Trace) -> pl.DataFrame:
    """Return the threads that drive steps; without any, those that launch most.

    Returns
    -------
    ``process, thread``.
    """
    known = trace.read("iterations").select("process", "thread").unique()
    if not known.is_empty():
        return known
    launched = trace["ops"].drop_nulls("launch_thread").group_by("process", "launch_thread").len()
    most = launched.sort("process", "len", descending=[False, True]).collect()
    return most.unique("process", keep="first").select("process", thread="launch_thread")
