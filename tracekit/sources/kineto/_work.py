"""GPU work: kernels, copies and memsets; waits for it, and records of CUDA events.

PyTorch records waits and event records only on request.
"""

from __future__ import annotations

import polars as pl

from tracekit.model import HOST_MEMORY, KIND
from tracekit.sources._amd import COUNT_THREADS, kernel_kind
from tracekit.sources._copies import COPY_KINDS
from tracekit.sources._identities import small
from tracekit.sources._kernel_names import KernelNames
from tracekit.sources._launch_size import LAUNCH_SIZE, launch_size
from tracekit.sources._seen import OPEN
from tracekit.sources._syncs import sync_type

_COPY = r"^Memcpy (?P<copy_kind>\w+)(?: \((?P<source>[\w ]+) -> (?P<target>[\w ]+)\))?"
_KIND_OF = {name: kind for name, kind in COPY_KINDS.values() if kind != "unknown"}
_DEVICE_MEMORY = ("Device", "Array", "Device Static")
_HOST_MEMORY = ("Pageable", "Pinned", "Host")
_FIRST_NUMBER = r"(\d+)"
_SIZES = {
    given: r"^\[\s*" + r"\s*,\s*".join(rf"(?P<{name}>\d{{1,10}})" for name in names) + r"\s*\]$"
    for given, names in (("grid", LAUNCH_SIZE[:3]), ("block", LAUNCH_SIZE[3:]))
}


def gpu_work(events: pl.DataFrame, names: KernelNames) -> pl.DataFrame:
    """Return GPU work as ops, with CUDA ordinals as devices.

    Parameters
    ----------
    events
        Kernels, copies and memsets with ``group, start, end``.
    names
        Short names of kernels.
    """
    whole = {
        name: pl.col(name).cast(pl.Int64, strict=False)
        for name in ("device", "in_device", "from_device", "to_device", "context", "in_context",
                     "stream", "correlation", "bytes", "graph_node")
    }  # fmt: skip
    ops = events.select(
        "group", "name", "pid", "tid", "start", "end", "grid", "block", **whole
    ).with_columns(
        # Old traces name the GPU and its stream as process and thread alone.
        device=_first("device", "in_device", pl.col("pid").cast(pl.Int64, strict=False)),
        context=_first("context", "in_context"),
        stream=pl.coalesce(
            "stream", pl.col("tid").str.extract(_FIRST_NUMBER).cast(pl.Int64, strict=False)
        ),
        graph_node=pl.when(pl.col("graph_node") != 0).then("graph_node"),
    )
    copied = pl.when(pl.col("group") == "copy").then("name")
    ops = ops.with_columns(copied.str.extract_groups(_COPY).struct.unnest())
    ops = ops.with_columns(_copied()).with_columns(*_ends(), _of_host())
    return ops.with_columns(*_named(ops, names), *_launch_sizes(ops)).select(
        "start", "end", "device", "context", "stream", "correlation", "graph_node",
        "name", "short_name", "kind", "copy_kind", "host_memory", "src_device", "dst_device",
        "launch_size", "block_size", bytes=pl.when(pl.col("group") != "kernel").then("bytes"),
    )  # fmt: skip


def _launch_sizes(ops: pl.DataFrame) -> tuple[pl.Series, pl.Series]:
    """Return grid times block, and block, of kernels, from texts such as ``[512, 1, 1]``."""
    given = ops.select(pl.when(pl.col("group") == "kernel").then(pl.col(*_SIZES)))
    distinct = given.unique()
    sizes = distinct.select(
        pl.col(name).str.extract_groups(numbers).struct.unnest().cast(pl.Int64)
        for name, numbers in _SIZES.items()
    )
    grid = [pl.lit(1, pl.Int64).alias(name) for name in LAUNCH_SIZE[:3]]
    blocks = launch_size(sizes.with_columns(grid)).alias("block_size")
    made = distinct.with_columns(launch_size(sizes), blocks)
    found = given.join(made, on=list(_SIZES), how="left", nulls_equal=True, maintain_order="left")
    return found["launch_size"], found["block_size"]


def counted_in_threads(calls: pl.DataFrame) -> pl.Series:
    """Return the correlation ids of launches whose grid counts threads instead of blocks.

    HIP's function for kernels of a loaded module takes its grid in threads, and AMD's profiler
    records the function's arguments.
    """
    of = calls.filter(pl.col("name").cast(pl.String).is_in(COUNT_THREADS))
    return of["correlation"].drop_nulls()


def _first(*names: str | pl.Expr) -> pl.Expr:
    return small(pl.coalesce(*names)).cast(pl.Int32)


def _copied() -> pl.Expr:
    """Return the kind of an op; both halves of a copy through host memory are `staged`."""
    halves = pl.col("copy_kind").is_in(("HtoD", "DtoH")) & pl.all_horizontal(
        pl.col("source", "target").is_in(_DEVICE_MEMORY)
    )
    from_gpu, to_gpu = (pl.col(name).is_in(_DEVICE_MEMORY) for name in ("source", "target"))
    from_host, to_host = (pl.col(name).is_in(_HOST_MEMORY) for name in ("source", "target"))
    kind = pl.col("copy_kind").replace_strict(_KIND_OF, default=None, return_dtype=pl.String)
    between = (kind == "d2d") & (pl.col("from_device") != pl.col("to_device"))
    return (
        pl.when(pl.col("group") == "kernel").then(kernel_kind())
        .when(pl.col("group") == "memset").then(pl.lit("memset"))
        .when(halves).then(pl.lit("staged"))
        .when(between).then(pl.lit("p2p"))
        .when(kind.is_not_null()).then(kind)
        .when(from_host & to_gpu).then(pl.lit("h2d"))
        .when(from_gpu & to_host).then(pl.lit("d2h"))
        .when(from_gpu & to_gpu).then(pl.lit("d2d"))
        .otherwise(pl.lit("unknown"))
        .cast(KIND).alias("kind")
    )  # fmt: skip


def _of_host() -> pl.Expr:
    """Return the type of a copy's host memory, from the copy's name."""
    kind = pl.col("kind").cast(pl.String)
    side = pl.when(kind == "h2d").then("source").when(kind == "d2h").then("target")
    return side.str.to_lowercase().cast(HOST_MEMORY, strict=False).alias("host_memory")


def _ends() -> list[pl.Expr]:
    """Return source and target GPU of a copy; the GPU that ran it if it names none."""
    kind, here = pl.col("kind").cast(pl.String), pl.col("device")
    source, target = (_first(name) for name in ("from_device", "to_device"))
    return [
        pl.when(kind == "p2p").then(source)
        .when(kind.is_in(("d2h", "d2d"))).then(pl.coalesce(source, here)).alias("src_device"),
        pl.when(kind == "p2p").then(target)
        .when(kind.is_in(("h2d", "d2d", "memset"))).then(pl.coalesce(target, here))
        .alias("dst_device"),
    ]  # fmt: skip


def _named(ops: pl.DataFrame, names: KernelNames) -> list[pl.Expr]:
    """Name copies and memsets as other sources do, and shorten the names of kernels."""
    short = names.short(ops["name"].set(ops["group"] != "kernel", None))
    group = pl.col("group")
    copy = pl.format("[CUDA memcpy {}]", pl.col("copy_kind").fill_null("Unknown"))
    other = pl.when(group == "copy").then(copy).otherwise(pl.lit("[CUDA memset]"))
    is_kernel = group == "kernel"
    return [
        pl.when(is_kernel).then("name").otherwise(other).cast(pl.Categorical()).alias("name"),
        pl.when(is_kernel).then(short).otherwise(other).cast(pl.Categorical()).alias("short_name"),
    ]


def waits(events: pl.DataFrame) -> pl.DataFrame:
    """Return waits with an end; ids of -1 become null."""
    ended = events.filter(pl.col("end") != OPEN)
    return ended.select(
        "start", "end", *_place(), _id("wait_event").alias("event"),
        _id("wait_record").alias("recorded_by"),
    ).with_columns(sync_type())  # fmt: skip


def records(events: pl.DataFrame) -> pl.DataFrame:
    """Return event records; the meaning of their own times differs between versions."""
    return events.select(*_place(), _id("event_id").alias("event"))


def _place() -> list[pl.Expr]:
    places = [small(_id(name)).cast(pl.Int32) for name in ("device", "context")]
    return [*places, _id("stream"), pl.col("correlation").cast(pl.Int64, strict=False)]


def _id(name: str) -> pl.Expr:
    number = pl.col(name).cast(pl.Int64, strict=False)
    return pl.when(number >= 0).then(number).alias(name)
