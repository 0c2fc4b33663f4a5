"""Host events of nsys exports: CUDA calls, NVTX ranges, and names of threads."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np
import polars as pl

from tracekit.model import RANGE_STYLE, PolarsType
from tracekit.sources._labels import RunLabels
from tracekit.sources._seen import OPEN, WHO, Seen, backward
from tracekit.sources.nsys._ids import Export, Texts, process_of, with_all
from tracekit.sources.nsys._metadata import Metadata, shifted
from tracekit.sources.nsys._payloads import SCHEMAS, Payloads
from tracekit.sources.sqlite import SqlType
from tracekit.support.labels import RANK_MARK

RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
NVTX = "NVTX_EVENTS"

# Values of NVTX_EVENTS.eventType; rows of NVTXT (ranges imported from text files) mean the same.
_CATEGORY, _MARK, _THREAD_NAME, _DOMAIN = 33, 34, 39, 75
_PUSH_POP, _START_END = (59, 70), (60, 71)
_NAME_ROWS = (_CATEGORY, _THREAD_NAME, _DOMAIN)
_RANGE_ROWS = (*_PUSH_POP, *_START_END)

# Domains that name themselves by what is in them, for exports that lost the domains' own names.
_DOMAIN_BY_CONTENT = {"NCCL": "^nccl", "TSL": "^(Thunk|Xla)", "MPI": "^MPI_"}

_NVTX_WIDE = ("start", "end", "globalTid", "endGlobalTid", "uint64Value")
_NVTX_NARROW = (
    "eventType", "category", "textId", "domainId", "int64Value", "uint32Value", "int32Value",
    "jsonTextId",
)  # fmt: skip
_SELDOM = 4
"""Least number of rows per unregistered string for these strings to be few."""
_MOST_OWN = 1 << 16
"""Largest number of unregistered strings for which categories save memory."""
_VERSION_SUFFIX = r"(_ptsz|_ptds)?_v\d+$"


class CudaCalls:
    """Calls of the CUDA runtime and driver APIs, which nsys keeps in one table."""

    def __init__(self, export: Export) -> None:
        self._file = export.file
        self._metadata = export.metadata
        self._names = Texts(export.strings, pl.Categorical(), drop=_VERSION_SUFFIX)

    @property
    def graph_launches(self) -> pl.Series:
        """Names of the functions, among the calls read so far, that launch CUDA graphs."""
        names = self._names.met
        return names.filter(names.cast(pl.String).str.contains("(?i)^cu(da)?GraphLaunch"))

    def batches(self, rows: int) -> Iterator[pl.DataFrame]:
        """Yield the CUDA calls of the export, at most `rows` at a time."""
        columns: dict[str, SqlType] = {
            **dict.fromkeys(("start", "end", "globalTid"), "int"),
            **dict.fromkeys(("correlationId", "nameId", "returnValue"), "narrow"),
        }
        for batch in self._file.batches(RUNTIME, columns, rows):
            calls = with_all(batch, "start", "end", "globalTid")
            yield shifted(calls, self._metadata, "start", "end").select(
                "start",
                "end",
                thread_gid="globalTid",
                correlation="correlationId",
                result="returnValue",
                name=self._names.of(calls["nameId"]),
            )


class Nvtx:
    """Rows of the table NVTX_EVENTS: ranges, marks, names of threads, domains and categories."""

    def __init__(self, export: Export) -> None:
        self._file = export.file
        self._metadata = export.metadata
        self._registered = Texts(export.strings, pl.Categorical())
        self._as_texts = Texts(export.strings)
        self._own = pl.Series([], dtype=pl.String)
        """Unregistered strings, as long as they are few."""
        self._json = Texts(export.strings)
        self._payloads: Payloads | None = None
        self._named: list[pl.DataFrame] = []
        self._domains: list[pl.DataFrame] = []
        self.labels = RunLabels()
        """Labels that the program gave its run."""
        self.rows = 0
        """Number of rows read."""
        self.extended = 0
        """Number of ranges with an extended payload, as bytes or JSON."""
        self.endless = 0
        """Number of ranges without an end."""
        self._backward = 0

    @property
    def losses(self) -> tuple[str, ...]:
        """Warnings, one sentence each, on NVTX rows left out, and payloads not decoded."""
        return (
            *backward(self._backward, "NVTX ranges"),
            *(self._payloads.losses if self._payloads else ()),
            *self.labels.losses,
        )

    def batches(self, rows: int) -> Iterator[pl.DataFrame]:
        """Yield the NVTX ranges; the end of ranges that were never closed is `OPEN`.

        Returns
        -------
        ``start, end`` (ns), ``thread_gid, end_thread_gid`` (nsys's global ids of the threads that
        begin and end a range), ``domain_id, category_id, name, style, payload``
        """
        columns: dict[str, SqlType] = {
            **dict.fromkeys(_NVTX_WIDE, "int"),
            **dict.fromkeys(_NVTX_NARROW, "narrow"),
            **dict.fromkeys(("doubleValue", "floatValue"), "real"),
            **dict.fromkeys(("text", "jsonText"), "text"),
        }
        # Exports without such payloads are read faster without that column.
        if self._file.holds_rows(SCHEMAS) and self._file.holds_values(NVTX, "binaryData"):
            columns["binaryData"] = "blob"
            self._payloads = Payloads(self._file)
        for batch in self._file.batches(NVTX, columns, rows):
            self.rows += batch.height
            ranges, marks = map(self._texts, self._divided(batch))
            for texts in filter(len, (marks["text"], ranges["text"])):
                self.labels.add(texts)
            if marks.height:
                ranks = _ranks(marks).cast({"text": ranges.schema["text"]})
                ranges = pl.concat([ranges, ranks], rechunk=True)
            self._backward += int((ranges["end"] < ranges["start"]).sum())
            self.endless += ranges["end"].null_count()
            if (ranges["domainId"] != 0).any():
                self._domains.append(_used(ranges))
            yield _ranges(self._with_extended(ranges), self._metadata)

    def _divided(self, batch: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return the ranges and the marks in a batch of NVTX rows.

        Rows that name domains, categories or threads are stored for later.
        """
        kinds = batch["eventType"]
        if _are_ranges(kinds):
            ranges, marks = batch, batch.clear()
        else:
            named = batch.filter(np.isin(kinds, _NAME_ROWS))
            if named.height:
                self._named.append(self._texts(named).cast({"text": pl.String}))
            ranges, marks = batch.filter(np.isin(kinds, _RANGE_ROWS)), batch.filter(kinds == _MARK)
        return with_all(ranges, "start", "globalTid"), marks

    def _with_extended(self, ranges: pl.DataFrame) -> pl.DataFrame:
        """Add ``extended``: the extended payload of each range, as JSON."""
        payloads = [ranges["jsonText"], self._json.of(ranges["jsonTextId"])]
        if self._payloads:
            payloads.append(self._payloads.of(ranges["binaryData"]))
        filled = [texts for texts in payloads if texts.null_count() < ranges.height] or payloads[:1]
        extended = filled[0] if len(filled) == 1 else pl.select(pl.coalesce(filled)).to_series()
        self.extended += extended.count()
        return ranges.with_columns(extended.alias("extended"))

    def _texts(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Add each NVTX event's text: its own (unregistered) string, else its registered string.

        Texts are categorical as long as few events have unregistered strings.
        """
        unregistered, ids = rows["text"], rows["textId"]
        few = unregistered.drop_nulls() if unregistered.count() else unregistered.clear()
        if self._are_few(few, rows.height):
            text = self._registered.of(ids)
            if len(few):
                text = text.scatter(unregistered.is_not_null().arg_true(), few.cast(text.dtype))
        elif ids.null_count() == rows.height:
            text = unregistered
        else:
            text = _either(unregistered, self._as_texts.of(ids))
        return rows.with_columns(text.alias("text"), rows["domainId"].fill_null(0))

    def _are_few(self, texts: pl.Series, rows: int) -> bool:
        """Test whether few of `rows` events have a string of their own, and few different ones.

        `texts` has these unregistered strings; distinct ones are collected over all batches.
        """
        if len(texts) * _SELDOM > rows or len(self._own) > _MOST_OWN:
            return False
        self._own = pl.concat([self._own, texts]).unique() if len(texts) else self._own
        return len(self._own) <= _MOST_OWN

    @cached_property
    def _announced(self) -> pl.DataFrame:
        """Rows that name domains, categories or threads, once all batches are read."""
        columns = ("eventType", "globalTid", "domainId", "category", "text")
        empty = pl.DataFrame(schema=dict(zip(columns, [*[pl.Int64] * 4, pl.String], strict=True)))
        rows = pl.concat(
            [empty, *(each.select(columns) for each in self._named)], how="vertical_relaxed"
        )
        return rows.with_columns(process_gid=process_of(pl.col("globalTid")))

    def _names(self, kind: int) -> pl.DataFrame:
        return self._announced.filter(self._announced["eventType"] == kind)

    def domains(self, ranges: Seen) -> pl.DataFrame:
        """Return the names of NVTX domains: ``process_gid`` (global id), ``domain_id, domain``.

        The default domain has no name. Domain ids are per process. The first announcement of a
        domain counts; without announcement the name is inferred from the domain's ranges.
        """
        key = ["process_gid", "domain_id"]
        announced = (
            self._names(_DOMAIN)
            .rename({"domainId": "domain_id"})
            .drop_nulls("text")
            .unique(key, keep="first", maintain_order=True)
            .select(*key, domain="text")
        )
        if not self._domains:
            return announced
        silent = pl.concat(self._domains, how="vertical_relaxed").unique()
        silent = silent.cast(pl.Int64).join(announced, on=key, how="anti")
        return pl.concat([announced, _inferred(silent, ranges)])

    def categories(self) -> pl.DataFrame:
        """Return names of NVTX categories: ``process_gid, domain_id, category_id, category``."""
        key = ["process_gid", "domain_id", "category_id"]
        return (
            self._names(_CATEGORY)
            .rename({"domainId": "domain_id", "category": "category_id"})
            .unique(key, keep="first", maintain_order=True)
            .select(*key, category="text")
        )

    def thread_names(self) -> pl.DataFrame:
        """Return the names that the program gave threads: ``thread_gid`` (global id), ``name``."""
        return self._names(_THREAD_NAME).select(thread_gid="globalTid", name="text")


def _ranks(marks: pl.DataFrame) -> pl.DataFrame:
    """Return, as ranges of length 0, the NVTX marks in which a program states its rank."""
    return marks.filter(
        pl.col("text").cast(pl.String).str.starts_with(RANK_MARK),
        pl.col("start", "globalTid").is_not_null(),
    ).with_columns(end="start", eventType=pl.lit(_PUSH_POP[0], marks.schema["eventType"]))


def _either(first: pl.Series, second: pl.Series) -> pl.Series:
    """Return the texts of `first`, with the text of `second` wherever `first` is null."""
    is_first = first.is_not_null()
    if _SELDOM * first.count() > len(first):
        return pl.select(pl.coalesce(first, second)).to_series()
    return second.clone().scatter(is_first.arg_true(), first.filter(is_first))


def _are_ranges(kinds: pl.Series) -> bool:
    """Test whether all NVTX rows are push/pop ranges, or all are start/end ranges.

    `kinds` has their event types, of which the smallest and the largest are compared.
    """
    least, most = kinds.min(), kinds.max()
    pairs = zip(_PUSH_POP, _START_END, strict=True)
    return not kinds.null_count() and any({least, most} <= set(pair) for pair in pairs)


def _used(ranges: pl.DataFrame) -> pl.DataFrame:
    """Return NVTX domains of ranges but the default: ``process_gid`` (global id), ``domain_id``."""
    some = ranges.filter(ranges["domainId"] != 0)[["globalTid", "domainId"]].unique()
    return some.select(process_of(pl.col("globalTid")).alias("process_gid"), domain_id="domainId")


def _ranges(rows: pl.DataFrame, metadata: Metadata) -> pl.DataFrame:
    return shifted(rows, metadata, "start", "end").select(
        "start",
        # An end before its start (a clock that was set back) makes the range empty, not negative.
        end=pl.max_horizontal(pl.col("end").fill_null(OPEN), "start"),
        thread_gid="globalTid",
        end_thread_gid="endGlobalTid",
        domain_id="domainId",
        category_id="category",
        name="text",
        style=_style(rows["eventType"]),
        payload=_payload(rows),
    )


def _style(kinds: pl.Series) -> pl.Series:
    pushes = pl.Series(np.isin(kinds, _PUSH_POP))
    styles = pl.Series(["start_end", "push_pop"], dtype=RANGE_STYLE)
    if pushes.all():
        return styles[1:].new_from_index(0, len(kinds))
    return styles.gather(pushes.cast(pl.UInt32))


def _payload(rows: pl.DataFrame) -> pl.Expr:
    # SQLite has no unsigned integers, so large ones are stored as negative ones.
    values = {"uint64Value": pl.col("uint64Value").reinterpret(signed=False)}
    columns = (
        "extended", "uint64Value", "int64Value", "doubleValue", "uint32Value", "int32Value",
        "floatValue",
    )  # fmt: skip
    present = [name for name in columns if rows[name].null_count() < rows.height]
    texts = [values.get(name, pl.col(name)).cast(pl.String) for name in present]
    return pl.coalesce(*texts, pl.lit(None, pl.String))


def _inferred(silent: pl.DataFrame, ranges: Seen) -> pl.DataFrame:
    """Name NVTX domains that were never announced (`silent`), from the names of their ranges.

    A domain gets the name whose pattern matches all its ranges, else ``domain ID``.
    """
    key = ["process_gid", "domain_id"]
    matches = [
        pl.col("name").str.contains(pattern).fill_null(value=False).all().alias(name)
        for name, pattern in _DOMAIN_BY_CONTENT.items()
    ]
    if silent.is_empty():
        return silent.with_columns(domain=pl.lit(None, pl.String))
    parts = [silent.select(*key, *(pl.lit(value=True).alias(name) for name in _DOMAIN_BY_CONTENT))]
    if silent.height:
        process = ranges.distinct.select(process_of(pl.col("thread_gid"))).to_series()
        columns: dict[str, PolarsType] = {
            "domain_id": pl.Int64, "name": pl.String, WHO: pl.Int64,
        }  # fmt: skip
        parts += [
            chunk.select("domain_id", "name", process_gid=process.gather(chunk[WHO]))
            .join(silent, on=key, how="semi")
            .group_by(key)
            .agg(matches)
            for chunk in ranges.rows.chunks(columns)
        ]
    names = (pl.when(name).then(pl.lit(name)) for name in _DOMAIN_BY_CONTENT)
    return (
        pl.concat(parts)
        .group_by(key)
        .agg(pl.col(list(_DOMAIN_BY_CONTENT)).all())
        .select(*key, domain=pl.coalesce(*names, pl.format("domain {}", "domain_id")))
    )


def thread_names(export: Export, nvtx_names: pl.DataFrame) -> pl.DataFrame:
    """Return one name per thread: its NVTX name (`nvtx_names`), else its operating system name."""
    columns = ("nameId", "priority", "globalTid")
    system = export.file.read("ThreadNames", dict.fromkeys(columns, "int"))
    system = system.select(
        thread_gid="globalTid",
        name=Texts(export.strings).of(system["nameId"]),
        rank=pl.col("priority").fill_null(0),
    )
    return (
        pl.concat([nvtx_names.with_columns(rank=pl.lit(-1, pl.Int64)), system])
        .drop_nulls(["thread_gid", "name"])
        # Some MPI traces announce the rank of a process as the name of its thread.
        .filter(~pl.col("name").str.contains(r"^MPI Rank \d+$"))
        .sort("rank", maintain_order=True)
        .unique("thread_gid", keep="first", maintain_order=True)
        .drop("rank")
    )
