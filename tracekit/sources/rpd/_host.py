"""HIP calls, markers and operators, which share one table, and which call launched which op."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from tracekit.model import RANGE_STYLE
from tracekit.sources._amd import BLOCK, COUNT_THREADS, GRID, threads_launched
from tracekit.sources._seen import backward
from tracekit.sources.rpd._input import Strings
from tracekit.sources.sqlite import SqliteFile, SqlType

API, LINKS = "rocpd_api", "rocpd_api_ops"
KERNELS, COPIES, OPERATORS = "rocpd_kernelapi", "rocpd_copyapi", "ext_autogradapi"
_CALL = r"^(hip|hsa_|cuda|cu[A-Z])"
_TRACER = r"^(\w+::writeRows|rpdflush|hcc_activity_callback|rpd_\w+)$"
_MARKER = "UserMarker"
_HEAD: dict[str, SqlType] = dict.fromkeys(("id", "pid", "tid", "start", "end", "apiName_id"), "int")


class Host:
    """Contents of the table of calls: HIP calls, markers, and the tracer's own work.

    Parameters
    ----------
    file
        The database.
    strings
        Its texts.
    """

    def __init__(self, file: SqliteFile, strings: Strings) -> None:
        self._file, self.strings = file, strings
        self._calls, self._own = (strings.like(pattern) for pattern in (_CALL, _TRACER))
        self._untimed = self._nowhere = self._backward = 0
        self._sequence = self._sequence_numbers()
        self.operators = 0
        """How many markers are operators of PyTorch."""

    def calls(self, rows: int) -> Iterator[pl.DataFrame]:
        """Return ``start, end, pid, tid, name, correlation`` of HIP calls."""
        for batch in self._file.batches(API, _HEAD, rows):
            calls = batch.filter(pl.col("apiName_id").is_in(self._calls.implode()))
            name = self.strings.of(calls["apiName_id"]).cast(pl.Categorical()).alias("name")
            yield self._valid(calls.with_columns(name)).select(
                "start", "end", "pid", "tid", "name", correlation="id"
            )

    def markers(self, rows: int) -> Iterator[pl.DataFrame]:
        """Return ``start, end, pid, tid, name, style, payload`` of markers and operators."""
        for batch in self._file.batches(API, {**_HEAD, "args_id": "int"}, rows):
            other = pl.concat([self._calls, self._own]).implode()
            is_other = pl.col("apiName_id").is_in(other).fill_null(value=False)
            marked = batch.filter(~is_other)
            function, text = (self.strings.of(marked[n]) for n in ("apiName_id", "args_id"))
            marked = self._valid(marked.with_columns(function.alias("name"), text.alias("text")))
            marked = marked.join(self._sequence, on="id", how="left", maintain_order="left")
            self.operators += marked["sequence"].count()
            is_marker = pl.col("name") == _MARKER
            numbered = pl.format("{}, seq = {}", "text", "sequence")
            yield marked.select(
                "start", "end", "pid", "tid",
                name=pl.when(is_marker).then(pl.coalesce(numbered, "text")).otherwise("name"),
                payload=pl.when(~is_marker & (pl.col("text") != "")).then("text"),
                style=pl.lit("push_pop", RANGE_STYLE),
            )  # fmt: skip

    def launching(self, rows: int) -> Iterator[pl.DataFrame]:
        """Return ``id, pid, name`` of all rows, whether they have times or not."""
        columns: dict[str, SqlType] = dict.fromkeys(("id", "pid", "apiName_id"), "int")
        return self._file.batches(API, columns, rows)

    def _valid(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the rows with a time and a thread; an end before its start is moved to it."""
        timed = rows.drop_nulls(["start", "end"])
        placed = timed.drop_nulls(["pid", "tid"])
        self._untimed += rows.height - timed.height
        self._nowhere += timed.height - placed.height
        self._backward += placed.filter(pl.col("end") < pl.col("start")).height
        return placed.with_columns(end=pl.max_horizontal("start", "end"))

    def _sequence_numbers(self) -> pl.DataFrame:
        """Return ``id, sequence`` of operators; others have an empty text there."""
        found = self._file.read(OPERATORS, {"api_ptr_id": "int", "seq": "int"})
        self._file.coerced.pop(f"{OPERATORS}.seq", None)
        known = found.drop_nulls().filter(pl.col("seq") >= 0)
        once = known.unique("api_ptr_id", keep="first", maintain_order=True)
        return once.rename({"api_ptr_id": "id", "seq": "sequence"})

    @property
    def losses(self) -> tuple[str, ...]:
        """Rows that were left out, in words."""
        losses = (
            (self._untimed, "calls and markers have no valid times and were left out"),
            (self._nowhere, "calls and markers have no process or thread and were left out"),
        )
        told = tuple(f"{count:,} {what}" for count, what in losses if count)
        return (*told, *backward(self._backward, "calls and markers"))


class Launches:
    """Launching call of each op, with its arguments.

    Parameters
    ----------
    file
        The database.
    host
        Its calls.
    rows
        How many to look at at once.
    """

    def __init__(self, file: SqliteFile, host: Host, rows: int) -> None:
        links = file.read(LINKS, {"api_id": "int", "op_id": "int"}).drop_nulls()
        self._links = links.unique("op_id", keep="first", maintain_order=True)
        launching = self._links["api_id"].unique().implode()
        counting = host.strings.like(f"^({'|'.join(COUNT_THREADS)})$").implode()
        callers = [pl.DataFrame(schema={"id": pl.Int64, "pid": pl.Int64, "counting": pl.Boolean})]
        callers += [
            batch.filter(pl.col("id").is_in(launching)).select(
                "id", "pid", counting=pl.col("apiName_id").is_in(counting)
            )
            for batch in host.launching(rows)
        ]
        self._callers = pl.concat(callers).unique("id", keep="first", maintain_order=True)
        self._sizes = self._launch_sizes(file)
        self._copies = self._copied(file)

    @property
    def pid(self) -> int:
        """Process of ops whose call was not recorded: the one that launched most others."""
        pids = self._callers["pid"].drop_nulls()
        return int(pids.mode().min() or 0)  # type: ignore[arg-type]

    def of(self, ops: pl.DataFrame) -> pl.DataFrame:
        """Add ``correlation, pid`` and other attributes of calls to ops with ``id``."""
        linked = ops.join(
            self._links, left_on="id", right_on="op_id", how="left", maintain_order="left"
        )
        for told in (self._callers, self._sizes, self._copies):
            linked = linked.join(
                told, left_on="api_id", right_on="id", how="left", maintain_order="left"
            )
        return linked.rename({"api_id": "correlation"})

    def _launch_sizes(self, file: SqliteFile) -> pl.DataFrame:
        """Return ``id, kernel_stream, kernel_name_id, launch_size`` of calls that launch one."""
        names = ("gridX", "gridY", "gridZ", "workgroupX", "workgroupY", "workgroupZ")
        known: dict[str, SqlType] = dict.fromkeys(("api_ptr_id", *names, "kernelName_id"), "int")
        found = file.read(KERNELS, {**known, "stream": "text"})
        found = found.rename(dict(zip(names, (*GRID, *BLOCK), strict=True)))
        found = self._once(found).join(self._callers, on="id", how="left", maintain_order="left")
        size = threads_launched(found, pl.col("counting").fill_null(value=False))
        return found.select(
            "id", size, _stream().alias("kernel_stream"), kernel_name_id="kernelName_id"
        )

    def _copied(self, file: SqliteFile) -> pl.DataFrame:
        """Return ``id, copy_stream, bytes, between`` of calls that copy.

        A call's bytes are not known of its ops if it has several: how they share them is not said.
        """
        columns: dict[str, SqlType] = dict.fromkeys(
            ("api_ptr_id", "size", "srcDevice", "dstDevice"), "int"
        )
        found = self._once(file.read(COPIES, {**columns, "stream": "text"}))
        several = self._links.group_by("api_id").len().filter(pl.col("len") > 1)["api_id"]
        return found.select(
            "id",
            _stream().alias("copy_stream"),
            bytes=pl.when(~pl.col("id").is_in(several.implode()) & (pl.col("size") >= 0)).then(
                "size"
            ),
            between=pl.col("srcDevice") != pl.col("dstDevice"),
        )

    def _once(self, rows: pl.DataFrame) -> pl.DataFrame:
        known = rows.rename({"api_ptr_id": "id"}).drop_nulls("id")
        return known.unique("id", keep="first", maintain_order=True)


def _stream() -> pl.Expr:
    """Return the handle of a stream, which is written in hexadecimal."""
    digits = pl.col("stream").str.extract(r"^0x([0-9a-fA-F]{1,15})$")
    return digits.str.to_integer(base=16, strict=False, dtype=pl.Int64)
