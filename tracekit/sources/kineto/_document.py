"""Split the text of a PyTorch trace into events, and parse the JSON before and after them.

Brackets outside of strings show where an event ends; the text is then parsed in complete events.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from tracekit.errors import DamagedTraceError, NotATraceError

GZIP = b"\x1f\x8b"

_BLOCK = 1 << 22
"""Number of bytes that are read at once."""
_HEAD = 1 << 16
FEWEST_BYTES = 1 << 21
"""Size below which loading compiled loops takes longer than it saves, bytes."""
MOST_AROUND = 1 << 24
"""Largest number of bytes before or after the events; usual are a few kilobytes."""
_MOST_EVENT = 1 << 23
"""Largest size of an event, bytes; usual are a few kilobytes."""
_MOST_EVENTS = 1 << 16
"""Largest number of events in a piece: more than in a block of usual events, as each event becomes
a row however short it is."""
_BRACKET = re.compile(rb'(?:[^"{}[\]]++|"(?:[^"\\]++|\\.)*+")*+([{}[\]])', re.DOTALL)
"""Pattern of everything up to a bracket outside of strings. It gives up nothing that it has taken,
so that a string without an end is searched once."""
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*$')
_AGAIN = "copy or record it again: the profiler, or the copy, did not finish"


_ON_ONE_LINE = bytes.maketrans(b"\t\r\n", b"   ")


@dataclass(frozen=True)
class Piece:
    """Text of several complete events of a trace.

    Parameters
    ----------
    offset
        Where it begins in the (unpacked) text of the trace, bytes.
    text
        Its bytes, one event per line, as many as in the trace.
    """

    offset: int
    text: bytes


class Document:
    """Text of a PyTorch trace, read block by block.

    Parameters
    ----------
    path
        The file.
    block
        Number of bytes to read at once.
    """

    def __init__(self, path: Path, block: int = _BLOCK) -> None:
        self.path = path
        self._block = block
        self._file = path.open("rb")
        packed = self._file.read(len(GZIP)) == GZIP
        self._file.seek(0)
        self._text = gzip.GzipFile(fileobj=self._file) if packed else self._file
        self._around = b""
        self._rest = 0, b""

    def close(self) -> None:
        """Close the file."""
        self._text.close()
        self._file.close()

    @property
    def done(self) -> int:
        """Number of bytes of the file read so far."""
        return self._file.tell()

    def before(self) -> dict[str, Any]:
        """Return the JSON values that precede the array ``traceEvents`` in a trace, by key.

        Raises
        ------
        NotATraceError, DamagedTraceError
            As for `pieces`.
        """
        self._rest = self._opened()
        return self._parsed(self._around + b"]}")

    @property
    def around(self) -> dict[str, Any]:
        """JSON values of a trace before and after its events; complete once these are read."""
        return self._parsed(self._around)

    def _parsed(self, text: bytes) -> dict[str, Any]:
        try:
            # Of invalid text no more than a name is lost.
            decoded = text.decode("utf-8-sig", "replace")
            found = json.loads(decoded, strict=False, object_pairs_hook=first_of_each)
        except (ValueError, RecursionError) as error:
            raise DamagedTraceError(
                f"{self.path} is cut short or corrupt around its events ({error})", _AGAIN
            ) from error
        return cast("dict[str, Any]", found)

    def pieces(self) -> Iterator[Piece]:
        """Yield the text of all events, several complete events at a time.

        Raises
        ------
        NotATraceError
            If the text has no array of events.
        DamagedTraceError
            If the text ends within the events, or has something else among them.
        """
        offset, text = self._rest if self._around else self._opened()
        yield from self._until_closed(offset, text)
        self._finish(self._rest[1])

    def _until_closed(self, offset: int, text: bytes) -> Iterator[Piece]:
        """Read on and yield all events until the array of events closes; keep the text after it.

        `text`, which begins at `offset`, has been read already.
        """
        size = self._block
        while True:
            more = self._read(size)
            text += more
            closed, end = yield from self._cut(text, offset)
            if closed is not None:
                self._rest = offset + closed, text[closed:]
                return
            if not more:
                raise self._cut_short(offset + len(text))
            offset, text = offset + end, text[end:]
            # An event that is larger than a block is looked at again with twice as much.
            size = max(self._block, len(text))
            if len(text) > _MOST_EVENT:
                raise DamagedTraceError(f"{self.path} has no complete event after byte {offset:,}")

    def _cut(self, text: bytes, offset: int) -> Generator[Piece, None, tuple[int | None, int]]:
        """Yield the complete events in `text`, which begins at `offset` in the trace.

        Returns
        -------
        Offset in `text` of the bracket that closes the array of events, or None, and the end of the
        last complete event.
        """
        begin = 0
        if len(text) >= FEWEST_BYTES:
            from tracekit.sources.kineto._scan import lines_of  # noqa: PLC0415 - see FEWEST_BYTES

            for lines, end, closed in lines_of(text, _MOST_EVENTS):
                if lines:
                    yield Piece(offset + begin, lines)
                begin = end
                if closed >= 0:
                    return closed, end
        spans, closed = _complete(text, begin)
        for some in range(0, len(spans), _MOST_EVENTS):
            events = spans[some : some + _MOST_EVENTS]
            yield Piece(offset + begin, self._lines(text, begin, events, offset))
            begin = events[-1][1]
        return closed, begin

    def _opened(self) -> tuple[int, bytes]:
        """Read up to the first event; return its offset, and the text read from there on."""
        text = b""
        while len(text) <= MOST_AROUND:
            more = self._read(max(min(_HEAD, self._block), len(text)))
            text += more
            start = _start_of_events(text)
            if start is not None:
                self._around = text[:start]
                return start, text[start:]
            if not more:
                break
        raise self._without_events(text)

    def _without_events(self, text: bytes) -> DamagedTraceError | NotATraceError:
        if len(text) > MOST_AROUND:
            return DamagedTraceError(f"{self.path} has no event in its first {len(text):,} bytes")
        try:
            json.loads(text)
        except (ValueError, RecursionError):
            return self._cut_short(len(text))
        return NotATraceError(f"{self.path} is JSON, but not a PyTorch trace (no traceEvents)")

    def _finish(self, rest: bytes) -> None:
        while more := self._read(self._block):
            rest += more
            if len(rest) > MOST_AROUND:
                raise DamagedTraceError(f"{self.path} goes on too long after its events")
        self._around += rest

    def _lines(
        self, text: bytes, begin: int, events: Sequence[tuple[int, int]], offset: int
    ) -> bytes:
        """Return complete events of `text` as one line each, from the end of the one before on.

        `events` has the begin and the end of each. All keep their place, behind blanks.
        """
        parts = []
        for number, (start, end) in enumerate(events):
            gap = text[begin:start]
            strange, commas = gap.strip(b"\t\r\n ,"), gap.count(b",")
            if strange or commas > 1 or (number and not commas):
                at = offset + begin + (gap.index(strange) if strange else 0)
                raise DamagedTraceError(
                    f"{self.path} has something other than an event at byte {at:,}", _AGAIN
                )
            # Line ends stand between tokens, for in strings they are escaped.
            parts.append(b"\n"[:number] + b" " * (len(gap) - (number > 0)))
            parts.append(text[start:end].translate(_ON_ONE_LINE))
            begin = end
        return b"".join(parts)

    def _cut_short(self, at: int) -> DamagedTraceError:
        return DamagedTraceError(f"{self.path} is cut short: it ends at byte {at:,}", _AGAIN)

    def _read(self, size: int) -> bytes:
        try:
            return self._text.read(size)
        except EOFError as error:
            raise DamagedTraceError(
                f"{self.path} is cut short: its gzip stream ends at byte {self._file.tell():,}",
                _AGAIN,
            ) from error
        except (OSError, zlib.error) as error:
            raise DamagedTraceError(f"{self.path} cannot be read ({error})", _AGAIN) from error


def first_of_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a JSON object from key-value pairs; a repeated key keeps its first value."""
    return dict(reversed(pairs))


def head_of(path: Path) -> bytes:
    """Return the first bytes of a file, gunzipped if needed; empty if it cannot be unpacked."""
    with path.open("rb") as file:
        if file.read(len(GZIP)) != GZIP:
            file.seek(0)
            return file.read(_HEAD)
    try:
        with gzip.open(path) as packed:
            return cast("IO[bytes]", packed).read(_HEAD)
    except (OSError, EOFError, zlib.error):
        return _head_of_cut(path)


def _head_of_cut(path: Path) -> bytes:
    """Return the first bytes of a truncated gzip file, as far as they can be unpacked."""
    with path.open("rb") as file:
        try:
            return zlib.decompressobj(wbits=31).decompress(file.read(_HEAD), _HEAD)
        except zlib.error:
            return b""


def _complete(text: bytes, begin: int) -> tuple[list[tuple[int, int]], int | None]:
    """Return begin and end of each complete event in a text of a trace, from offset `begin` on.

    Also returned: the offset of the bracket that closes the array of events; None if there is none.
    """
    spans, depth, start = [], 0, 0
    for at, step in _brackets(text, begin):
        if depth == 0:
            if step < 0:
                return spans, at
            start = at
        depth += step
        if depth == 0:
            spans.append((start, at + 1))
    return spans, None


def _start_of_events(text: bytes) -> int | None:
    """Return the offset just after the bracket that opens the array of events; None if absent."""
    depth = 0
    for at, step in _brackets(text, 0):
        depth += step
        # Only so far back, that many arrays before the events cost no more than one.
        is_list = depth == 2 and step > 0 and text[at : at + 1] == b"["  # noqa: PLR2004
        if is_list and _EVENTS.search(text, max(0, at - 64), at):
            return at + 1
    return None


def _brackets(text: bytes, at: int) -> Iterator[tuple[int, int]]:
    """Yield the offset of each bracket outside of strings, from offset `at` on, and 1 or -1.

    1 is for opening brackets. At a string without an end it stops.
    """
    while found := _BRACKET.match(text, at):
        at = found.end()
        yield at - 1, 1 if found[1] in b"{[" else -1
