"""Parse the events of a PyTorch trace into a frame, with times exact to the nanosecond."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from tracekit.errors import DamagedTraceError
from tracekit.sources._json_values import mapping, text_of
from tracekit.sources.kineto import _document
from tracekit.sources.kineto._document import Piece, parsed

if TYPE_CHECKING:
    from tracekit.sources.kineto._scan import Scanner

_FIELDS = ("ph", "cat", "name", "pid", "tid", "ts", "dur")
ARGUMENTS = {
    "name": "label",
    "device": "device", "context": "context", "stream": "stream", "correlation": "correlation",
    "bytes": "bytes", "kernel": "kernel", "graph node id": "graph_node", "grid": "grid",
    "block": "block",
    "fromDevice": "from_device", "inDevice": "in_device", "toDevice": "to_device",
    "inContext": "in_context",
    "Sequence number": "sequence_number",
    "Collective name": "collective", "In msg nelems": "elements_in",
    "Out msg nelems": "elements_out", "dtype": "dtype", "Group size": "group_size",
    "Process Group Name": "group_name", "Process Group Ranks": "group_ranks",
    "Process Group Description": "group_description",
    "In split size": "split_in", "Out split size": "split_out", "Seq": "sequence",
    "Rank": "other_rank",
    "wait_on_cuda_event_id": "wait_event", "wait_on_cuda_event_record_corr_id": "wait_record",
    "event_id": "event_id",
    "Input Dims": "input_dims", "Input dims": "input_dims_before", "Input type": "input_type",
    "Concrete Inputs": "concrete_inputs",
}  # fmt: skip
"""Name of an event's argument -> name of its column."""

_NUMBERS = (
    "device", "context", "stream", "correlation", "bytes", "graph_node", "from_device", "in_device",
    "to_device", "in_context", "sequence_number", "elements_in", "elements_out", "group_size",
    "sequence", "other_rank", "wait_event", "wait_record", "event_id",
)  # fmt: skip
"""Columns that are integers."""
_TIMES = {"ts": "start", "dur": "length"}
_COLUMNS = [
    *(name for name in _FIELDS if name not in _TIMES), *ARGUMENTS.values(), *_TIMES.values(),
    "mistimed",
]  # fmt: skip
OF_NO_USE = (
    "gpu_user_annotation",
    "external_correlation",
    "cpu_instant_event",
    "overhead",
    "cuda_profiler_range",
    "collective_comm",
    "ac2g",
    "async_cpu_to_gpu",
    "async_gpu",
    "fwdbwd",
    "forward_backward",
    "mtia_insight",
    "mtia_counters",
)
"""Categories whose events repeat others."""
BARE = ("python_function",)
"""Categories whose events are only counted."""

_SCHEMA = {
    **dict.fromkeys(_FIELDS, pl.String()),
    "args": pl.Struct(dict.fromkeys(ARGUMENTS, pl.String())),
}
_TIME = r'([^\\])"(ts|dur)" *: *(-?[0-9][0-9.eE+-]*)'
"""A time as the parser would round it; other fields are whole numbers, which it does not."""
_NO_NUMBER = re.compile(r"(?<=[:\[,])(\s*)-?(?:inf|nan)(?=\s*[,}\]])", re.IGNORECASE)
_HALF = re.compile(
    rb"\\u[dD][89abAB]..(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..)\\u[dD][c-fC-F]", re.DOTALL
)
"""Escape of a lone surrogate, which polars would turn into another character."""
_PLAIN = r"^-?\d{1,15}(\.\d*)?$"
_MOST = (1 << 61) - 1


def read_events(piece: Piece, path: Path) -> pl.DataFrame:
    """Parse a piece of a trace into a frame of events; categories in `OF_NO_USE` are left out.

    Events of Python functions (`BARE`) get only their category.

    Returns
    -------
    The columns `_FIELDS`, and the arguments, named as in `ARGUMENTS`; numbers as such, everything
    else as text. In place of ``ts, dur``: ``start, length`` in ns, null if absent, and ``mistimed``
    where a ``dur`` is present but no number.

    Raises
    ------
    DamagedTraceError
        If an event is no JSON.
    """
    if len(piece.text) < _document.FEWEST_BYTES or not _is_text(piece.text):
        return _of_use(_all_events(piece, path))
    events, unusual = _scanner().scan(piece.text)
    if unusual:
        try:
            events = _filled(events, _all_events(Piece(piece.offset, b"\n".join(unusual)), path))
        except DamagedTraceError:
            return _of_use(_all_events(piece, path))  # which tells where it is damaged
    return events.select(_COLUMNS)


def _is_text(text: bytes) -> bool:
    try:
        return text.isascii() or bool(text.decode())
    except UnicodeDecodeError:
        return False


@cache
def _scanner() -> Scanner:
    from tracekit.sources.kineto._scan import Scanner  # noqa: PLC0415 - not needed by small traces

    fields = {name: _TIMES.get(name, name) for name in _FIELDS}
    return Scanner(fields, ARGUMENTS, _NUMBERS, tuple(_TIMES.values()), OF_NO_USE, BARE)


def _filled(events: pl.DataFrame, unusual: pl.DataFrame) -> pl.DataFrame:
    """Insert `unusual` events, which the fast parser could not read, at their rows in `events`."""
    numbered = events.with_row_index("row")
    is_odd = pl.col("is_odd")
    rows = numbered.filter(is_odd).select("row").hstack(unusual)
    usual = numbered.filter(~is_odd).select(rows.columns)
    return _of_use(pl.concat([usual, rows]).sort("row"))


def _of_use(events: pl.DataFrame) -> pl.DataFrame:
    category = pl.col("cat")
    used = events.filter(
        pl.col("ph").is_in(("X", "M")), ~category.is_in(OF_NO_USE).fill_null(value=False)
    )
    others = pl.exclude("ph", "cat", "mistimed")
    is_bare = category.is_in(BARE).fill_null(value=False)
    bare = used.with_columns(pl.when(~is_bare).then(others), mistimed=~is_bare & pl.col("mistimed"))
    return bare.select(_COLUMNS)


def _all_events(piece: Piece, path: Path) -> pl.DataFrame:
    """Parse all events of a piece of a trace, whatever their category."""
    events = _texts(piece, path)
    start, length = (nanoseconds(events[name]).alias(_TIMES[name]) for name in _TIMES)
    return events.with_columns(
        start,
        length,
        pl.col(_NUMBERS).cast(pl.Int64, strict=False),
        mistimed=pl.col("dur").is_not_null() & length.is_null(),
    ).select(_COLUMNS)


def _texts(piece: Piece, path: Path) -> pl.DataFrame:
    has_escapes = b"\\ud" in piece.text or b"\\uD" in piece.text
    if not (has_escapes and _HALF.search(piece.text)):
        with suppress(pl.exceptions.PolarsError, UnicodeDecodeError):
            text = pl.Series([piece.text.decode()]).str.replace_all(_TIME, '${1}"${2}":"${3}"')
            return _unnested(pl.read_ndjson(text.item().encode(), schema=_SCHEMA))
    # A strict parser refuses NaN, control characters, bad UTF-8.
    events = [_projected(each) for each in read_lines(piece, path, "event")]
    return _unnested(pl.DataFrame(events, schema=_SCHEMA))


def _unnested(events: pl.DataFrame) -> pl.DataFrame:
    arguments = events["args"].struct.unnest().rename(ARGUMENTS)
    return events.drop("args").hstack(arguments)


def read_lines(piece: Piece, path: Path, noun: str) -> Iterator[Any]:
    """Parse the lines of a piece of JSON singly; `noun` names them in the error for one that fails.

    Raises
    ------
    DamagedTraceError
        If a line is no JSON.
    """
    at = piece.offset
    for line in piece.text.split(b"\n"):
        try:
            yield _read(line.decode("utf-8", "replace"))
        except ValueError as error:
            raise DamagedTraceError(
                f"{path} is corrupt: the {noun} at byte {at:,} is not JSON ({error})",
                "copy or record it again",
            ) from error
        at += len(line) + 1


def _read(line: str) -> Any:
    try:
        # The only floats that are left are those that are no number.
        return parsed(line, str)
    except ValueError:
        return parsed(_NO_NUMBER.sub(r"\1NaN", line), str)


def _projected(value: Any) -> dict[str, Any]:
    event = mapping(value)  # what is none says nothing, as an event without any field
    arguments = mapping(event.get("args"))
    return {
        # What is no number is no time, which is another thing than none.
        **{name: text_of(event.get(name)) for name in _FIELDS},
        "args": {
            name: None if isinstance(value := arguments.get(name), float) else text_of(value)
            for name in ARGUMENTS
        },
    }


def nanoseconds(text: pl.Series) -> pl.Series:
    """Convert decimal texts in microseconds to whole nanoseconds; null for anything else."""
    plain = text.str.contains(_PLAIN)
    parts = text.zip_with(plain, pl.Series([None], dtype=pl.String)).str.splitn(".", 2)
    integer, fraction = parts.struct.unnest()
    digits = fraction.fill_null("").str.pad_end(4, "0").str.slice(0, 4).cast(pl.Int64)
    thousands = integer.cast(pl.Int64) * 1000
    part = (digits + 5) // 10  # further digits are none of a clock's
    negative = integer.str.starts_with("-")
    times = pl.select(pl.when(negative).then(thousands - part).otherwise(thousands + part))
    if plain.all(ignore_nulls=True):
        return times.to_series().alias(text.name)
    odd = text.filter(~plain).unique()
    found = odd.map_elements(_odd, return_dtype=pl.Int64)
    others = text.replace_strict(odd, found, default=None, return_dtype=pl.Int64)
    return pl.select(pl.coalesce(times.to_series(), others)).to_series().alias(text.name)


def _odd(text: str) -> int | None:
    """Convert a number of microseconds such as ``1.5e3`` to whole ns; None if it is no number."""
    try:
        value = Decimal(text)
    except InvalidOperation:
        return None
    if not value.is_finite() or value.adjusted() > 18:  # noqa: PLR2004
        return None
    nanoseconds = int((value * 1000).to_integral_value())
    return nanoseconds if abs(nanoseconds) <= _MOST else None
