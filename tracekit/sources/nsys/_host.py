"""The host's side: CUDA calls, NVTX ranges, and the names of threads."""

from __future__ import annotations

import polars as pl

from tracekit.sources._sqlite import SqliteFile
from tracekit.sources.nsys._ids import Strings, process_of
from tracekit.sources.nsys._metadata import Metadata, shifted

RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
NVTX = "NVTX_EVENTS"

# Values of NVTX_EVENTS.eventType; rows of NVTXT (ranges imported from text files) mean the same.
_CATEGORY, _THREAD_NAME, _DOMAIN = 33, 39, 75
_PUSH_POP, _START_END = (59, 70), (60, 71)
_NAME_ROWS = (_CATEGORY, _THREAD_NAME, _DOMAIN)
_RANGE_ROWS = (*_PUSH_POP, *_START_END)

# Domains that name themselves by what is in them, for exports that lost the domains' own names.
_DOMAIN_BY_CONTENT = {"NCCL": "^nccl", "TSL": "^(Thunk|Xla)", "MPI": "^MPI_"}

_VERSION_SUFFIX = r"(_ptsz|_ptds)?_v\d+$"


def read_calls(file: SqliteFile, metadata: Metadata, strings: Strings) -> pl.DataFrame:
    """Return the CUDA runtime and driver calls, which nsys keeps in one table."""
    columns = ("start", "end", "globalTid", "correlationId", "nameId", "returnValue")
    frame = file.read(RUNTIME, dict.fromkeys(columns, "int"))
    frame = frame.drop_nulls(["start", "end", "globalTid"])
    frame = strings.resolve(frame, "nameId", "name", drop=_VERSION_SUFFIX).rename(
        {"globalTid": "thread_gid", "correlationId": "correlation", "returnValue": "result"}
    )
    return shifted(frame, metadata, "start", "end").with_columns(
        process_gid=process_of(pl.col("thread_gid"))
    )


def read_nvtx(file: SqliteFile, strings: Strings) -> pl.DataFrame:
    """Return the rows of NVTX_EVENTS that are ranges or names, with their text resolved."""
    integers = (
        "start", "end", "eventType", "category", "globalTid", "endGlobalTid", "textId", "domainId",
        "uint64Value", "int64Value", "uint32Value", "int32Value",
    )  # fmt: skip
    kinds = ", ".join(str(kind) for kind in (*_NAME_ROWS, *_RANGE_ROWS))
    frame = file.read(
        NVTX,
        {
            **dict.fromkeys(integers, "int"),
            **dict.fromkeys(("doubleValue", "floatValue"), "real"),
            **dict.fromkeys(("text", "jsonText"), "text"),
        },
        f'"eventType" IN ({kinds})',
    )
    return strings.resolve(frame, "textId", "registered").with_columns(
        text=pl.coalesce("text", "registered"),
        domainId=pl.col("domainId").fill_null(0),
        process_gid=process_of(pl.col("globalTid")),
    )


def ranges_of(nvtx: pl.DataFrame, metadata: Metadata) -> pl.DataFrame:
    """Return the NVTX ranges; the end of one that was still open is null."""
    frame = nvtx.filter(
        pl.col("eventType").is_in(_RANGE_ROWS)
        & pl.col("start").is_not_null()
        & pl.col("globalTid").is_not_null()
    )
    frame = _with_domains(frame, nvtx)
    frame = _with_categories(frame, nvtx)
    payload = pl.coalesce(
        "jsonText",
        # SQLite has no unsigned integers, so large ones are stored as negative ones.
        pl.col("uint64Value").reinterpret(signed=False).cast(pl.String),
        *(
            pl.col(column).cast(pl.String)
            for column in ("int64Value", "doubleValue", "uint32Value", "int32Value", "floatValue")
        ),
    )  # fmt: skip
    style = pl.when(pl.col("eventType").is_in(_PUSH_POP)).then(pl.lit("push_pop"))
    return shifted(frame, metadata, "start", "end").select(
        "start",
        "end",
        "domain",
        "process_gid",
        category="category_name",
        name="text",
        thread_gid="globalTid",
        end_thread_gid="endGlobalTid",
        style=style.otherwise(pl.lit("start_end")),
        payload=payload,
    )


def _with_domains(ranges: pl.DataFrame, nvtx: pl.DataFrame) -> pl.DataFrame:
    """Name the domains. Ids are handed out per process, and one may be announced twice."""
    key = ["process_gid", "domainId"]
    announced = (
        nvtx.filter(pl.col("eventType") == _DOMAIN, pl.col("text").is_not_null())
        .unique(key, keep="first", maintain_order=True)
        .select(*key, announced="text")
    )
    inferred = ranges.group_by(key).agg(
        inferred=pl.coalesce(
            *(
                pl.when(pl.col("text").str.contains(pattern).fill_null(value=False).all()).then(
                    pl.lit(name)
                )
                for name, pattern in _DOMAIN_BY_CONTENT.items()
            ),
            pl.format("domain {}", pl.col("domainId").first()),
        )
    )
    domain = pl.when(pl.col("domainId") != 0).then(pl.coalesce("announced", "inferred"))
    return (
        ranges.join(announced, on=key, how="left", maintain_order="left")
        .join(inferred, on=key, how="left", maintain_order="left")
        .with_columns(domain=domain)
    )


def _with_categories(ranges: pl.DataFrame, nvtx: pl.DataFrame) -> pl.DataFrame:
    key = ["process_gid", "domainId", "category"]
    names = (
        nvtx.filter(pl.col("eventType") == _CATEGORY)
        .unique(key, keep="first", maintain_order=True)
        .select(*key, category_name="text")
    )
    return ranges.join(names, on=key, how="left", maintain_order="left")


def thread_names(file: SqliteFile, nvtx: pl.DataFrame, strings: Strings) -> pl.DataFrame:
    """Return one name per thread: what the program gave it through NVTX, else the system's."""
    given = (
        nvtx.filter(pl.col("eventType") == _THREAD_NAME)
        .select(thread_gid="globalTid", name="text")
        .with_columns(rank=pl.lit(-1, pl.Int64))
    )
    columns = ("nameId", "priority", "globalTid")
    system = strings.resolve(
        file.read("ThreadNames", dict.fromkeys(columns, "int")), "nameId", "name"
    ).select(thread_gid="globalTid", name="name", rank=pl.col("priority").fill_null(0))
    return (
        pl.concat([given, system])
        .drop_nulls(["thread_gid", "name"])
        # Some MPI traces announce the rank of a process as the name of its thread.
        .filter(~pl.col("name").str.contains(r"^MPI Rank \d+$"))
        .sort("rank", maintain_order=True)
        .unique("thread_gid", keep="first", maintain_order=True)
        .drop("rank")
    )
