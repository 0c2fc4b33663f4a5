"""Latency by size: collectives of NCCL and MPI, and messages of MPI."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args

import polars as pl

from tracekit.analysis.calls import find_collectives, mpi_calls
from tracekit.analysis.communication._bandwidth import middle, power_below, with_bandwidth
from tracekit.analysis.facts import how_to_record, largest
from tracekit.errors import UsageError
from tracekit.model import COLLECTIVE_CALLS, COLLECTIVES, Answer, Trace, with_clocks
from tracekit.support.spelling import choose_among
from tracekit.support.wording import duration, first_line, message_size

if TYPE_CHECKING:
    from tracekit.machine import NcclLog

Buckets = Literal["power2", "exact", "class"]
Measure = Literal["osu_mean", "span", "active"]

_CLASSES = {"small": 8 << 10, "medium": 512 << 10, "large": (1 << 63) - 1}
"""Classes of messages, by the most bytes that one of each has."""
_CLASS = pl.Enum([*_CLASSES, "mixed"])
_PER_RANK = ("all_gather", "reduce_scatter", "gather", "scatter")
"""Collectives that are given the size of one rank's part; `bytes` is that of all together."""
_LIBRARIES = ("mpi", "nccl")
_KEYS = ("library", "operation")
_OPERATION = pl.Enum([*COLLECTIVES, "send", "recv", "sendrecv"])
_MESSAGES = ("send", "recv", "sendrecv")
_STARTS_ONLY = (
    r"^P?MPI_I(all|barrier|bcast|exscan|gather|neighbor|reduce|scan|scatter|[brs]?send|m?recv)"
)
_CALL = (
    "library", "operation", "participant", "clock", "start", "end", "size", "bytes", "ranks",
    "match",
)  # fmt: skip


def latency(
    calls: Trace | pl.DataFrame,
    *,
    library: str | None = None,
    buckets: Buckets = "power2",
    measure: Measure = "osu_mean",
    log: NcclLog | None = None,
    sizes: Mapping[str, int] | None = None,
) -> Answer:
    """Return the answer of the command `latency`: latency of collectives and messages by size.

    For one collective with participants r, matched as in `collective_calls`, the measures are:

        osu_mean = mean of end(r) - start(r)       (what the OSU benchmarks print)
        span     = last end - first start
        skew     = last start - first start
        active   = last end - last start           (what is left when all have come)

    Blocking messages of MPI (``MPI_Send``, ``MPI_Recv``, ``MPI_Sendrecv`` and their kind) are rows
    too, each call by itself. Calls that do not block return before the transfer is done; they are
    left out.

    The size of a message is the one passed to the call: for all-gather, reduce-scatter, gather and
    scatter, one rank's part. A row leaves out operations with a single known participant if it has
    operations with several. If all operations of a row have a single known participant,
    ``osu_mean`` is the time of that participant, waiting for others included, and ``span_ns``,
    ``skew_ns`` and ``active_ns`` are null. They are also null if participants' clocks differ.

    Parameters
    ----------
    calls
        The run, or its `collective_calls` with all times on one clock.
    library, measure
        As for the command `latency`; ``span`` and ``active`` exist for matched collectives only.
    buckets
        ``power2``: sizes from one power of two to the next; ``exact``: each size; ``class``: small
        (up to 8 KiB), medium (up to 512 KiB), large. A bucket by size whose sizes are of several
        classes has ``mixed`` in the column ``class``.
    log, sizes
        As for `collective_calls`.

    Raises
    ------
    UsageError
        If an option is unknown, a frame lacks a column, or as `collective_calls` raises it.
    """
    _check("buckets", buckets, get_args(Buckets))
    _check("measure", measure, get_args(Measure))
    found = _with_bandwidth(_operations(_calls(calls, library, log, sizes)))
    each = _with_bucket(found, buckets).with_columns(value=pl.col(measure))
    groups = [*_KEYS, "class" if buckets == "class" else "size_bytes"]
    several = pl.col("participants") > 1
    counted = each.filter(several | ~several.any().over(groups)).drop_nulls("value")
    ends = [] if buckets == "class" else [_common_class()]
    table = counted.group_by(groups).agg(*ends, *_statistics())
    first = dict.fromkeys([*_KEYS, "size_bytes", "class"])
    rows = table.sort(groups, nulls_last=True).select(
        *(name for name in first if name in table.columns), pl.exclude(*first)
    )
    counts = _meta(calls, log, sizes, measure) if isinstance(calls, Trace) else {}
    return Answer(
        rows=rows,
        meta={**counts, "buckets": buckets},
        title="latency by size",
        empty="no operations were recorded",
        command="latency",
        figures={"figure": "latency"},
    )


def _meta(
    trace: Trace, log: NcclLog | None, sizes: Mapping[str, int] | None, measure: Measure
) -> dict[str, Any]:
    """Return metadata of the answer: counts, missing data and warnings, over all libraries."""
    found = find_collectives(trace, log, sizes)
    operations = _operations(pl.concat([_of_collectives(found.rows, trace), _messages(trace)]))
    collective = ~pl.col("operation").is_in(_MESSAGES)
    unmatched = operations.filter(collective, pl.col("participants") == 1).height
    sized = pl.col("size").is_not_null() | (pl.col("operation") == "barrier")
    unsized = operations.filter(~sized).height
    starts = mpi_calls(trace).filter(pl.col("name").str.contains(_STARTS_ONLY))
    missing = []
    if operations.is_empty():
        how = how_to_record(trace, "MPI calls")
        missing.append(f"no collectives or MPI calls were recorded; calls of MPI: {how}")
    if unmatched:
        missing.append(
            f"of {unmatched:,} collective{'s' * (unmatched > 1)} one participant is known, whose "
            "time includes waiting: "
            "record all ranks, in one report or several ingested as one run"
        )
    if unsized:
        of_mpi = (operations.filter(~sized)["library"] == "mpi").any()
        missing.append(
            f"{unsized:,} operation{'s are' if unsized > 1 else ' is'} of unknown size: give "
            "--nccl-log or --bytes for NCCL"
            + "; nsys of 2023.4 and later records those of MPI"
            * of_mpi
        )
    return {
        "operations": operations.height,
        "unmatched": unmatched,
        "unsized": unsized,
        "not_blocking": starts.height,
        "missing": missing,
        "warnings": list(found.notes),
        "measure": measure,
    }


def latency_speedup(base: pl.DataFrame, new: pl.DataFrame) -> pl.DataFrame:
    """Return the speedup of one run's operations over another's, by bucket of message size.

        speedup           = base_ns / new_ns
        reduction_percent = 100 (1 - new_ns / base_ns)

    Parameters
    ----------
    base, new
        Tables of `latency` with the same buckets. If they have no library in common (one run with
        NCCL, one with MPI), operations are compared across libraries.

    Returns
    -------
    The columns that `latency` declares with ``against``; ``base_ns, new_ns`` are the latencies. If
    only one table has a row, the other table's columns are null. Messages of unknown size have no
    speedup, since their sizes may differ. Barriers do have a speedup: they carry no data.

    Raises
    ------
    UsageError
        If the tables have different buckets.
    """
    of = [[name for name in ("size_bytes", "class") if name in table.columns]
          for table in (base, new)]  # fmt: skip
    if of[0] != of[1]:
        raise UsageError("the two tables have different buckets", "make both with the same ones")
    keys = ["operation", of[0][0]]
    if not set(base["library"]).isdisjoint(new["library"]):
        keys.append("library")
    both = _side(base, "base", keys).join(
        _side(new, "new", keys), on=keys, how="full", coalesce=True, nulls_equal=True
    )
    before, after = pl.col("base_ns"), pl.col("new_ns")
    known = pl.col(keys[1]).is_not_null() | (pl.col("operation") == "barrier")
    table = both.with_columns(
        speedup=pl.when(known & (after > 0)).then(before / after),
        reduction_percent=pl.when(known & (before > 0)).then(100 * (1 - after / before)),
    )
    if "class" not in keys:
        table = table.with_columns(pl.coalesce("base_class", "new_class").alias("class"))
    if "library" in keys:
        table = table.with_columns(base_library="library", new_library="library")
    return table.sort(keys, nulls_last=True).select(
        *dict.fromkeys([*keys[:2], "class"]),
        *(f"{side}_{name}" for name in ("library", "count", "ns") for side in ("base", "new")),
        "speedup", "reduction_percent",
    )  # fmt: skip


def message_histogram(
    calls: Trace | pl.DataFrame,
    *,
    library: str | None = None,
    log: NcclLog | None = None,
    sizes: Mapping[str, int] | None = None,
) -> Answer:
    """Count collectives and messages by size, in classes from one power of two to the next.

    Parameters
    ----------
    calls, library, log, sizes
        As for `latency`.

    Returns
    -------
    Columns as the command `latency` declares them: an operation of several ranks counts once,
    ``calls`` is the number of calls of all its participants, and ``share`` is the fraction of all
    bytes of that library and operation.
    """
    found = _with_bucket(_operations(_calls(calls, library, log, sizes)), "power2")
    rows = (
        found.group_by(*_KEYS, "size_bytes")
        .agg(
            _common_class(),
            pl.len().cast(pl.Int64).alias("count"),
            pl.col("calls").sum(),
            pl.when(pl.col("size").count() > 0).then(pl.col("size").sum()).alias("bytes"),
        )
        .with_columns(total=pl.col("bytes").sum().over(_KEYS))
        .with_columns(share=pl.when(pl.col("total") > 0).then(pl.col("bytes") / pl.col("total")))
        .drop("total")
        .sort(*_KEYS, "size_bytes", nulls_last=True)
    )
    return Answer(
        rows=rows,
        title="histogram",
        empty="no messages were recorded",
        command="latency",
        figures={"figure": "messages"},
    )


def _check(noun: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UsageError(f"{noun} {value!r} is unknown", choose_among(value, known))


# -- the calls ---------------------------------------------------------------------------------


def _calls(
    calls: Trace | pl.DataFrame,
    library: str | None,
    log: NcclLog | None,
    sizes: Mapping[str, int] | None,
) -> pl.DataFrame:
    """Return a row per participant of a collective and a row per MPI message, of one `library`."""
    if library is not None:
        _check("library", library, _LIBRARIES)
    if isinstance(calls, pl.DataFrame):
        rows = _of_collectives(calls)
    else:
        found = find_collectives(calls, log, sizes).rows
        rows = pl.concat([_of_collectives(found, calls), _messages(calls)])
    return rows if library is None else rows.filter(pl.col("library") == library)


def _of_collectives(calls: pl.DataFrame, trace: Trace | None = None) -> pl.DataFrame:
    needed = [column.name for column in COLLECTIVE_CALLS.columns if not column.nullable]
    lacking = [name for name in needed if name not in calls.columns]
    if lacking:
        raise UsageError(
            f"the table of collectives lacks {', '.join(lacking)}", "give that of collective_calls"
        )
    rows, active = COLLECTIVE_CALLS.conform(calls), 0
    if trace is None:
        rows = rows.with_columns(clock=pl.lit("given"))
    else:
        rows = with_clocks(rows, trace.read("reports"))
        active = trace["devices"].filter("active").select(pl.len()).collect().item()
    on_gpus = pl.col("library") != "mpi"
    participant = pl.coalesce("device", "process")
    rows = rows.with_columns(
        operation="collective",
        participant=participant,
        everyone=pl.max_horizontal(
            participant.n_unique().over("library"), pl.when(on_gpus).then(active)
        ),
    )
    return _shaped(rows.with_columns(size=_size()))


def _size() -> pl.Expr:
    """Return the size of the message in bytes, as the program passes it to the call."""
    message, size = pl.col("message_bytes"), pl.col("bytes")
    return (
        pl.when(pl.col("operation").is_in(_PER_RANK))
        .then(pl.coalesce(message, pl.when(pl.col("ranks") > 0).then(size // pl.col("ranks"))))
        .otherwise(pl.coalesce(size, message))
    )


def _messages(trace: Trace) -> pl.DataFrame:
    """Return a row per blocking MPI call that sends or receives messages between two ranks."""
    calls = mpi_calls(trace).filter(pl.col("does") == "p2p")
    name = pl.col("name").str.to_lowercase()
    rows = calls.with_columns(
        library=pl.lit("mpi"),
        operation=name.str.extract("(sendrecv|send|recv)"),
        participant="process",
        clock=pl.lit("own"),
        size="bytes",
        ranks=pl.lit(None, pl.Int32),
        everyone=pl.lit(None, pl.Int64),
        match=pl.lit(None, pl.Int64),
    )
    return _shaped(rows)


def _shaped(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.select(*_CALL, "everyone").cast({"operation": _OPERATION, "everyone": pl.Int64})


# -- operations --------------------------------------------------------------------------------


def _operations(calls: pl.DataFrame) -> pl.DataFrame:
    """Return a row per operation; a call that is matched with no other rank's is one by itself."""
    length = pl.col("end") - pl.col("start")
    numbered = calls.with_row_index("row").with_columns(own=length)
    alone = -1 - pl.col("row").cast(pl.Int64)
    together = (pl.col("participants") > 1) & pl.col("common")
    first, last = pl.col("first"), pl.col("last")
    return (
        numbered.group_by(pl.coalesce("match", alone).alias("number"), maintain_order=True)
        .agg(
            pl.col("library", "everyone").first(),
            # One that knows its operation better than the kernel's name comes first.
            pl.col("operation").min(),
            pl.col("size", "bytes", "ranks").max(),
            pl.len().cast(pl.Int64).alias("calls"),
            participants=pl.col("participant").n_unique().cast(pl.Int64),
            common=pl.col("clock").n_unique() == 1,
            osu_mean=pl.col("own").mean().round().cast(pl.Int64),
            longest=pl.col("own").max(),
            first=pl.col("start").min(),
            last=pl.col("start").max(),
            done=pl.col("end").max(),
        )
        .with_columns(
            span=pl.when(together).then(pl.col("done") - first),
            skew=pl.when(together).then(last - first),
            active=pl.when(together).then(pl.col("done") - last),
        )
    )


def _with_bandwidth(operations: pl.DataFrame) -> pl.DataFrame:
    is_everyone = (pl.col("participants") == pl.col("everyone")) & (pl.col("participants") > 1)
    sized = operations.with_columns(
        n=pl.coalesce("ranks", pl.when(is_everyone).then("participants")).cast(pl.Int64)
    )
    return with_bandwidth(sized, pl.coalesce("span", "longest"))


def _with_bucket(operations: pl.DataFrame, buckets: Buckets) -> pl.DataFrame:
    size = pl.col("size")
    names = pl.coalesce(
        pl.when(size <= most).then(pl.lit(name, _CLASS)) for name, most in _CLASSES.items()
    )
    return operations.with_columns(
        names.alias("class"), size_bytes=power_below(size) if buckets == "power2" else size
    )


def _common_class() -> pl.Expr:
    several = pl.col("class").n_unique() > 1
    return pl.when(several).then(pl.lit("mixed", _CLASS)).otherwise(pl.col("class").first()).alias(
        "class"
    )  # fmt: skip


def _statistics() -> list[pl.Expr]:
    value = pl.col("value")
    return [
        pl.len().cast(pl.Int64).alias("count"),
        middle("participants").alias("participants"),
        value.min().alias("min_ns"),
        middle("value").alias("p50_ns"),
        value.mean().round().cast(pl.Int64).alias("mean_ns"),
        middle("value", 0.95).alias("p95_ns"),
        value.max().alias("max_ns"),
        *(middle(name).alias(f"{name}_ns") for name in ("span", "skew", "active")),
        pl.col("algorithm_bandwidth_gb_s", "bus_bandwidth_gb_s").median(),
    ]


def _side(table: pl.DataFrame, side: str, keys: list[str]) -> pl.DataFrame:
    """Return one run's counts and median latencies, in columns with the prefix `side`."""
    renamed = {"library": f"{side}_library", "count": f"{side}_count", "p50_ns": f"{side}_ns"}
    if "class" not in keys:
        renamed["class"] = f"{side}_class"
    return table.select(*keys, *(pl.col(old).alias(new) for old, new in renamed.items()))


@first_line("latency")
def _first_line(rows: pl.DataFrame, meta: Mapping[str, Any]) -> str | None:
    most = largest(rows, "p50_ns", "operation")
    if most is None:
        return None
    more = " or more" if meta.get("buckets") == "power2" else ""  # up to the next power of two
    size = most.get("size_bytes")
    of = "unknown size" if size is None else f"{message_size(int(size))}{more}"
    return f"Longest in the median: {most['operation']} of {of}, {duration(most['p50_ns'])}"
