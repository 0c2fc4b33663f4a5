"""Split the text of a PyTorch trace into events, and parse the JSON before and after them.

Brackets outside of strings show where an event ends. They are found in whole blocks of bytes at
once; the text is then parsed in complete events.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from tracekit.errors import DamagedTraceError, NotATraceError

GZIP = b"\x1f\x8b"

_BLOCK = 1 << 22
"""Number of bytes that are read at once."""
_HEAD = 1 << 16
FEWEST_BYTES = 1 << 21
"""Size below which loading compiled loops takes longer than it saves, bytes."""
_SLICE = 1 << 20
"""Number of bytes whose brackets are searched at once: each bracket takes 40 bytes."""
MOST_AROUND = 1 << 24
"""Largest number of bytes before or after the events; usual are a few kilobytes."""
_MOST_EVENT = 1 << 23
"""Largest size of an event, bytes; usual are a few kilobytes."""
_MOST_EVENTS = 1 << 16
"""Largest number of events in a piece: more than in a block of usual events, as each event becomes
a row however short it is."""
_QUOTE, _BACKSLASH, _COMMA, _NEWLINE, _BLANK = b'"\\,\n '
_OPENING, _CLOSING = b"{[", b"}]"
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*$')
_STRING = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\Z)', re.DOTALL)
_INVALID_ESCAPE = re.compile(r'(?<!\\)(?:\\\\)*\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')
_ESCAPE = re.compile(r'\\(["\\]?)')
_AGAIN = "copy or record it again: the profiler, or the copy, did not finish"


def _among(characters: bytes) -> NDArray[np.bool_]:
    table = np.zeros(256, np.bool_)
    table[list(characters)] = True
    return table


_MARKS = _among(bytes([_QUOTE, _BACKSLASH]) + _OPENING + _CLOSING).tobytes()
_IS_OPENING, _IS_BRACKET = _among(_OPENING), _among(_OPENING + _CLOSING)
_ON_ONE_LINE = bytes.maketrans(b"\t\r\n", b"   ")


@dataclass(frozen=True)
class Piece:
    """Text of several complete events of a trace."""

    offset: int
    """Where it begins in the (unpacked) text of the trace, bytes."""
    text: bytes
    """The events, one per line; padded to the number of bytes that they take in the trace."""


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
        """JSON values of a trace before and after its events; complete once all events are read."""
        return self._parsed(self._around)

    def _parsed(self, text: bytes) -> dict[str, Any]:
        # Of invalid text no more than a name is lost.
        decoded = text.decode("utf-8-sig", "replace")
        try:
            return cast("dict[str, Any]", parsed(decoded, float))
        except ValueError as error:
            raise DamagedTraceError(
                f"{self.path} is cut short or corrupt around its events ({error})", _AGAIN
            ) from error

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
        found = _Cut.of(text[begin:])
        for first, part in found.parts():
            at = begin + first
            yield Piece(offset + at, self._lines(text[at : at + part.end], part, offset + at))
        return None if found.closed is None else begin + found.closed, begin + found.end

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

    def _lines(self, text: bytes, found: _Cut, offset: int) -> bytes:
        """Return complete events as one line each, given their offsets (`found`) in `text`."""
        # Line ends stand between tokens, for in strings they are escaped.
        one_line = text.translate(_ON_ONE_LINE)
        chars = np.frombuffer(one_line, np.uint8).copy()
        gaps = np.append(0, found.ends[:-1]), found.starts
        between = _ranges(*gaps)
        commas = chars[between] == _COMMA
        faulty = ~(commas | (chars[between] == _BLANK))
        per_gap = np.diff(
            np.append(0, np.cumsum(commas))[np.cumsum(np.append(0, gaps[1] - gaps[0]))]
        )
        if faulty.any() or (per_gap[1:] != 1).any() or per_gap[0] > 1:
            at = int(between[faulty][0]) if faulty.any() else int(gaps[0][per_gap != 1][-1])
            raise DamagedTraceError(
                f"{self.path} has something other than an event at byte {offset + at:,}", _AGAIN
            )
        chars[between] = _BLANK
        chars[found.ends[:-1]] = _NEWLINE
        return chars.tobytes()

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


def parsed(text: str, parse_float: Callable[[str], object]) -> Any:
    """Parse JSON as PyTorch's profiler writes it; raise `ValueError` if it is no JSON.

    On Windows the profiler wrote paths without escaping backslashes. If the JSON is invalid, the
    backslashes of a string with an invalid escape are therefore read literally.
    """
    parse = partial(
        json.loads, strict=False, parse_float=parse_float, object_pairs_hook=first_of_each
    )
    try:
        with suppress(ValueError):
            return parse(text)
        return parse(_STRING.sub(_with_escapes, text))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _with_escapes(string: re.Match[str]) -> str:
    """Escape the backslashes of a JSON string that has an invalid escape; leave others alone."""
    if _INVALID_ESCAPE.search(string[0]) is None:
        return string[0]
    return _ESCAPE.sub(lambda found: found[0] if found[1] else r"\\", string[0])


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


@dataclass(frozen=True)
class _Cut:
    """Offsets of the complete events in a text of a trace, which begins between two events."""

    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    """Offset of each event's first byte, and of the byte just after it."""
    closed: int | None
    """Offset of the bracket that closes the array of events; None if it is not in the text."""

    @property
    def end(self) -> int:
        """Offset after the last complete event; 0 if there is none."""
        return int(self.ends[-1]) if self.ends.size else 0

    @classmethod
    def of(cls, text: bytes) -> _Cut:
        starts, ends, above = [], [], 0
        for at, steps in _brackets(text):
            depth = above + np.cumsum(steps)
            over = np.flatnonzero(depth < 0)
            inside = slice(over[0] if over.size else None)
            ends.append(at[inside][(depth[inside] == 0) & (steps[inside] < 0)] + 1)
            starts.append(at[inside][(depth[inside] == 1) & (steps[inside] > 0)])
            if over.size:
                return cls._of(starts, ends, int(at[over[0]]))
            above = int(depth[-1])
        return cls._of(starts, ends, None)

    @classmethod
    def _of(
        cls, starts: list[NDArray[np.int64]], ends: list[NDArray[np.int64]], closed: int | None
    ) -> _Cut:
        none = np.zeros(0, np.int64)
        ended = np.concatenate([none, *ends])
        return cls(np.concatenate([none, *starts])[: ended.size], ended, closed)

    def parts(self) -> Iterator[tuple[int, _Cut]]:
        """Yield groups of successive events: the offset of the group's text, and offsets in it."""
        begin = 0
        for first in range(0, self.ends.size, _MOST_EVENTS):
            some = slice(first, first + _MOST_EVENTS)
            yield begin, _Cut(self.starts[some] - begin, self.ends[some] - begin, None)
            begin = int(self.ends[some][-1])


def _start_of_events(text: bytes) -> int | None:
    """Return the offset just after the bracket that opens the array of events; None if absent."""
    above = 0
    for at, steps in _brackets(text):
        depth = above + np.cumsum(steps)
        for start in at[(depth == 2) & (steps > 0)].tolist():  # noqa: PLR2004
            # Only so far back, that many arrays before the events cost no more than one.
            is_list = text[start : start + 1] == b"["
            if is_list and _EVENTS.search(text, max(0, start - 64), start):
                return int(start) + 1
        above = int(depth[-1])
    return None


def _brackets(text: bytes) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int8]]]:
    """Yield the offsets of brackets outside of strings, with 1 for opening and -1 for closing.

    They come in order, in several arrays with at least one bracket each.
    """
    is_inside, is_escaping = False, False
    for begin in range(0, len(text), _SLICE):
        # As if the backslash whose meaning goes beyond the end of a slice began the next one.
        some = b"\\" * is_escaping + text[begin : begin + _SLICE]
        at, steps, is_inside = _brackets_of(some, is_inside=is_inside)
        if at.size:
            yield at + (begin - is_escaping), steps
        is_escaping = (len(some) - len(some.rstrip(b"\\"))) % 2 == 1


def _brackets_of(
    text: bytes, *, is_inside: bool
) -> tuple[NDArray[np.int64], NDArray[np.int8], bool]:
    """Return the brackets of `text` outside of strings, and whether `text` ends inside a string.

    For each bracket its offset, and 1 (opening) or -1 (closing). `is_inside`: whether `text` begins
    inside a string.
    """
    marks = np.flatnonzero(np.frombuffer(text.translate(_MARKS), np.bool_))
    kinds = np.frombuffer(text, np.uint8)[marks]
    quotes = kinds == _QUOTE
    if b"\\" in text:
        quotes &= ~_escaped(marks, kinds)
    inside = (np.cumsum(quotes) + is_inside) % 2 == 1
    brackets = ~inside & _IS_BRACKET[kinds]
    steps = np.where(_IS_OPENING[kinds[brackets]], 1, -1).astype(np.int8)
    return marks[brackets], steps, bool(inside[-1]) if inside.size else is_inside


def _escaped(marks: NDArray[np.int64], kinds: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Test for each quote or backslash, given their offsets, whether a backslash escapes it."""
    after = np.zeros(marks.size, np.bool_)
    after[1:] = (marks[1:] - marks[:-1] == 1) & (kinds[:-1] == _BACKSLASH)
    index = np.arange(marks.size)
    run = np.maximum.accumulate(np.where(after, 0, index))
    odd: NDArray[np.bool_] = (index - run) % 2 == 1
    return odd


def _ranges(starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return all integers from each start up to (not including) its end, as one array."""
    sizes = ends - starts
    first = np.cumsum(sizes) - sizes
    numbers: NDArray[np.int64] = np.arange(int(sizes.sum())) + np.repeat(starts - first, sizes)
    return numbers
