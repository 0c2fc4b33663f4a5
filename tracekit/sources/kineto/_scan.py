"""Scan events with compiled loops; events in unusual notation are left to another parser."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from nanoarrow import c_array_from_buffers, large_string
from numpy.typing import NDArray

from tracekit.sources.kineto import _scan_loops as loops
from tracekit.support.compiled import ALWAYS, compiled

_split, _scan, _gather = (
    compiled(loop, ALWAYS) for loop in (loops.split, loops.scan, loops.gather)
)
_PLACES = 512


def lines_of(text: bytes, most: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield whole events as lines, in blocks of at most `most`.

    Each item is the lines, the end of the last event in `text`, and the place of the bracket that
    ends all events, -1 if it has not come. What remains, an incomplete event or invalid text, is
    left to another parser.
    """
    chars = np.frombuffer(text, np.uint8)
    end, found = 0, np.zeros(3, np.int64)
    while True:
        lines = np.empty(len(text) - end, np.uint8)
        begin = end
        count = int(_split(chars, begin, most, lines, found) or 0)
        end, closed, is_strange = found.tolist()
        if count and not is_strange:
            yield lines[: end - begin].tobytes(), end, closed
        if closed >= 0 or is_strange or count < most:
            if closed >= 0 and not count:
                yield b"", end, closed
            return


class Scanner:
    """Extracts the values of events, given one event per line.

    Parameters
    ----------
    fields, arguments
        Name of a value in an event (or in its arguments) -> name of its column.
    numbers, times
        Columns that are integers, and columns that are times; others are texts. The first two
        columns are ``ph`` and ``cat``.
    dropped, bare
        Categories whose events are dropped, and categories of which only the category itself is
        read.
    """

    def __init__(
        self,
        fields: Mapping[str, str],
        arguments: Mapping[str, str],
        numbers: Sequence[str],
        times: Sequence[str],
        dropped: Sequence[str],
        bare: Sequence[str],
    ) -> None:
        names = [*fields.values(), *arguments.values()]
        self.texts = [name for name in names if name not in (*numbers, *times)]
        self.numbers = [*numbers, *times]
        words = [(loops.EVENT, "args", loops.ARGUMENTS, 0)]
        for where, keys in ((loops.EVENT, fields), (loops.ARGUMENT, arguments)):
            for key, name in keys.items():
                role = loops.TIME if name in times else loops.NUMBER
                is_text = name in self.texts
                slot = (self.texts if is_text else self.numbers).index(name)
                words.append((where, key, loops.TEXT if is_text else role, slot))
        words += [(loops.CATEGORY, category, loops.DROPPED, 0) for category in dropped]
        words += [(loops.CATEGORY, category, loops.BARE, 0) for category in bare]
        self._tables = _tables(words)

    def scan(self, text: bytes) -> tuple[pl.DataFrame, list[bytes]]:
        """Return the useful events, and the lines of events that another parser has to read.

        The frame has rows for these, too, with nothing but ``is_odd`` set.
        """
        chars = np.frombuffer(text, np.uint8)
        most = text.count(b"\n") + 1
        begins, sizes = (np.empty((most, len(self.texts)), np.int32) for _ in range(2))
        numbers = np.empty((most, len(self.numbers)), np.int64)
        spans, kinds = np.empty((most, 2), np.int64), np.empty(most, np.uint8)
        used = np.zeros(len(self.texts), np.uint8)
        rows = int(_scan(chars, *self._tables, begins, sizes, numbers, used, spans, kinds) or 0)
        odd = kinds[:rows] == loops.ODD
        sizes[:rows][odd] = -1
        numbers[:rows][odd] = loops.NONE
        columns = {"is_odd": pl.Series(odd)}
        absent = [pl.lit(value=False).alias("mistimed")]
        for slot, name in enumerate(self.texts):
            if used[slot]:
                columns[name] = _text_column(chars, begins, sizes, slot, rows)
            else:  # a constant takes no room for each row
                absent.append(pl.lit(None, pl.String).alias(name))
        for slot, name in enumerate(self.numbers):
            own = np.ascontiguousarray(numbers[:rows, slot])
            is_none = own == loops.NONE
            if is_none.all():
                absent.append(pl.lit(None, pl.Int64).alias(name))
            else:
                columns[name] = pl.Series(own).set(pl.Series(is_none), None)
        lines = [text[begin:end] for begin, end in spans[:rows][odd].tolist()]
        return pl.DataFrame(columns).with_columns(absent), lines


def _tables(rows: Sequence[tuple[int, str, int, int]]) -> tuple[NDArray[Any], ...]:
    """Return the tables of known words that `scan` needs: hash table, words, roles and slots."""
    table = np.full(_PLACES, -1, np.int64)
    words = [bytes([where]) + word.encode() for where, word, _, _ in rows]
    for number, word in enumerate(words):
        at = loops.hashed(word, 1, len(word), word[0])
        while table[at] >= 0:
            at = (at + 1) % _PLACES
        table[at] = number
    places = np.cumsum([0, *map(len, words)])
    roles, slots = np.array([row[2:] for row in rows], np.int64).T.copy()
    return table, np.frombuffer(b"".join(words), np.uint8), places, roles, slots


def _text_column(
    chars: NDArray[np.uint8],
    begins: NDArray[np.int32],
    sizes: NDArray[np.int32],
    slot: int,
    rows: int,
) -> pl.Series:
    own = sizes[:rows, slot]
    lengths = np.where(own < 0, 2 * (-own - 2), own)
    data = np.empty(max(int(lengths[own != -1].sum()), 1), np.uint8)
    offsets, bits = np.empty(rows + 1, np.int64), np.zeros((rows + 7) // 8, np.uint8)
    _gather(chars, begins, sizes, slot, rows, data, offsets, bits)
    nulls = int((own == -1).sum())
    array = c_array_from_buffers(large_string(), rows, [bits, offsets, data[: offsets[-1]]], nulls)
    return pl.Series(array)
