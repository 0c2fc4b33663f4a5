"""Planes of a profile: their names and lines, and the events of a line as a frame."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import polars as pl

from tracekit.errors import DamagedTraceError
from tracekit.sources.xplane._wire import (
    REFERENCE,
    STRING,
    UNSIGNED,
    Bytes,
    Ints,
    WireError,
    fields,
    read_events,
    split,
)
from tracekit.support.compiled import compiled

PLANES, HOSTNAMES = 1, 4
_EVENT = 4
_MOST_STATS = 1 << 20
_AGAIN = "copy or record it again: the profiler, or the copy, did not finish"
_HEADER = 20
"""Largest number of bytes of a field's key and length."""


@dataclass(frozen=True)
class Line:
    """A stream of a GPU, or a thread of the host.

    Parameters
    ----------
    number, name
        Number and name of the line in its plane.
    timestamp
        Time from which the offsets of its events count, ns.
    begins, ends
        Begin and end of each event's message, as places in the plane's bytes.
    """

    number: int
    name: str
    timestamp: int
    begins: Ints
    ends: Ints


class Plane:
    """One plane of a profile: a GPU, the host, or something else.

    Parameters
    ----------
    data
        Bytes of the plane's message.

    Raises
    ------
    WireError
        If the bytes are no valid message.
    """

    def __init__(self, data: Bytes) -> None:
        self._data = data
        self.name = ""
        self._lines: list[tuple[int, int]] = []
        self._names: dict[int, str] = {}
        self._stat_names: dict[int, str] = {}
        stats: list[tuple[int, int]] = []
        for number, value, end in fields(data, 0, data.size):
            match number:
                case 2 if end:
                    self.name = self._text(value, end)
                case 3 if end:
                    self._lines.append((value, end))
                case 4 if end:
                    self._learn(self._names, value, end)
                case 5 if end:
                    self._learn(self._stat_names, value, end)
                case 6 if end:
                    stats.append((value, end))
        self.stats = dict(self._stat(*each) for each in stats)
        """Name -> value of the plane's own stats."""

    def _text(self, begin: int, end: int) -> str:
        return self._data[begin:end].tobytes().decode("utf-8", "replace")

    def _learn(self, names: dict[int, str], begin: int, end: int) -> None:
        """Store the name of a kind of events or of stats."""
        key, name = 0, ""
        for number, value, stop in fields(self._data, begin, end):
            if number == 1 and not stop:
                key = value
            if number == 2 and stop:  # noqa: PLR2004
                for inner, at, last in fields(self._data, value, stop):
                    if inner == 2 and last:  # noqa: PLR2004
                        name = self._text(at, last)
        names[key] = name

    def _stat(self, begin: int, end: int) -> tuple[str, int | str]:
        name = ""
        found: int | str = 0
        for number, value, stop in fields(self._data, begin, end):
            if number == 1 and not stop:
                name = self._stat_names.get(value, "")
            elif number == STRING and stop:
                found = self._text(value, stop)
            elif not stop:
                found = value
        return name, found

    def lines(self) -> Iterator[Line]:
        """Yield the lines of the plane."""
        for begin, end in self._lines:
            numbers, values, ends = split(self._data, begin, end)
            events = (numbers == _EVENT) & (ends > 0)
            number, name, timestamp = 0, "", 0
            for which, value, stop in zip(
                *(each[~events].tolist() for each in (numbers, values, ends)), strict=True
            ):
                match which:
                    case 1 if not stop:
                        number = value
                    case 2 | 11 if stop:
                        name = name or self._text(value, stop)
                    case 3 if not stop:
                        timestamp = value
            yield Line(number, name, timestamp, values[events], ends[events])

    def events(self, line: Line, *stats: str) -> pl.DataFrame:
        """Return ``name, start_ps, end_ps`` of a line's events, and the named stats as texts.

        Raises
        ------
        WireError
            If the message of an event is invalid.
        """
        begins, ends = line.begins, line.ends
        numbers = np.zeros((3, begins.size), np.int64)
        values = np.zeros((2 * len(stats), begins.size), np.int64)
        kinds = np.zeros((len(stats), begins.size), np.int8)
        columns = self._columns(stats)
        loop = compiled(read_events, begins.size)
        if loop(self._data, begins, ends, columns, numbers, values, kinds) < begins.size:
            raise WireError
        metadata, offset, duration = numbers
        frame = pl.DataFrame({"metadata": metadata, "offset": offset, "duration": duration})
        texts = [
            # An operation's path is a stat of the same name as an event's own.
            self._texts(values[2 * place : 2 * place + 2], kinds[place]).alias(
                "path" if name == "name" else name
            )
            for place, name in enumerate(stats)
        ]
        return frame.with_columns(self._named(metadata, self._names).alias("name"), *texts)

    @staticmethod
    def _named(numbers: Ints, names: dict[int, str]) -> pl.Series:
        """Return the name of each number; null if it has none."""
        known = pl.DataFrame({"number": list(names), "name": list(names.values())},
                             schema={"number": pl.Int64, "name": pl.String})  # fmt: skip
        wanted = pl.DataFrame({"number": numbers})
        return wanted.join(known, on="number", how="left", maintain_order="left")["name"]

    def _columns(self, stats: tuple[str, ...]) -> Ints:
        """Return by number of a kind of stat the column it goes to, -1 for none."""
        known = {n: name for n, name in self._stat_names.items() if 0 <= n < _MOST_STATS}
        columns = np.full(max(known, default=0) + 1, -1, np.int64)
        for number, name in known.items():
            if name in stats:
                columns[number] = stats.index(name)
        return columns

    def _texts(self, places: Ints, kinds: Bytes) -> pl.Series:
        """Return stats as texts; numbers in digits, null if an event has no such stat."""
        values, ends = places
        kind = pl.Series(kinds)
        found = pl.Series(values).cast(pl.String)
        if (kinds == REFERENCE).any():
            found = found.zip_with(kind != REFERENCE, self._named(values, self._stat_names))
        if (kinds == STRING).any():
            values = np.where(kinds == STRING, values, 0)
            spans = pl.DataFrame({"begin": values, "length": (ends - values).clip(0)})
            whole = pl.lit(self._data.tobytes())
            own = _decoded(spans.select(whole.bin.slice("begin", "length")).to_series())
            found = found.zip_with(kind != STRING, own)
        return found.set(kind < UNSIGNED, None)


def _decoded(texts: pl.Series) -> pl.Series:
    """Decode bytes as UTF-8 texts; invalid bytes are replaced."""
    try:
        return texts.cast(pl.String)
    except pl.exceptions.ComputeError:
        known = {each: each.decode("utf-8", "replace") for each in texts.unique().to_list()}
        return pl.Series([known[each] for each in texts.to_list()], dtype=pl.String)


def planes(path: Path) -> Iterator[tuple[int, Plane | str]]:
    """Yield the planes and host names of a profile, one by one, with the bytes read so far.

    Raises
    ------
    DamagedTraceError
        If the file is cut short or corrupt.
    """
    size, at = path.stat().st_size, 0
    with path.open("rb") as file:
        try:
            while at < size:
                number, begin, end = _next_field(file, at, size)
                if number == PLANES:
                    yield end, Plane(np.frombuffer(_part(file, begin, end), np.uint8))
                elif number == HOSTNAMES:
                    yield end, _part(file, begin, end).decode("utf-8", "replace")
                at = end
        except WireError as error:
            raise damaged(path, at) from error


def _part(file: BinaryIO, begin: int, end: int) -> bytes:
    """Return the bytes of a file from `begin` to `end`; fewer are an error."""
    file.seek(begin)
    found = file.read(end - begin)
    if len(found) < end - begin:
        raise WireError
    return found


def damaged(path: Path, at: int) -> DamagedTraceError:
    """Return the error for a profile that is no valid message."""
    return DamagedTraceError(f"{path} is cut short or corrupt after byte {at:,}", _AGAIN)


def _next_field(file: BinaryIO, at: int, size: int) -> tuple[int, int, int]:
    """Return the number of the field at a place in the file, and begin and end of its bytes."""
    head = os.pread(file.fileno(), _HEADER, at)
    key, used = _varint(head, 0)
    length, used = _varint(head, used)
    begin = at + used
    if key & 7 != 2 or begin + length > size:  # noqa: PLR2004
        raise WireError
    return key >> 3, begin, begin + length


def _varint(head: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    for place in range(at, len(head)):
        value |= (head[place] & 127) << shift
        shift += 7
        if head[place] < 128:  # noqa: PLR2004
            return value, place + 1
    raise WireError
