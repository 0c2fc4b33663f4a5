"""Extract the values of events with compiled loops; unusual notation is left to another parser."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracekit.sources.kineto import _scan_loops as loops
from tracekit.support.compiled import ALWAYS, compiled

_split, _scan, _distinct = (
    compiled(loop, ALWAYS) for loop in (loops.split, loops.scan, loops.distinct)
)
_PLACES, _PLACES_OF_TEXTS = 512, 1 << 16


def lines_of(text: bytes, most: int) -> Iterator[tuple[bytes, int, int]]:
    """Split a text into complete events, one per line, in blocks of at most `most` events.

    Each item has the lines, the end of their last event in `text`, and the offset of the bracket
    that closes the array of events (-1 if not reached). An incomplete event or invalid text at the
    end is left to another parser.
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
    """Extracts the wanted values from JSON events, given one event per line.

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
        self._words = _known(words)
        none = {**dict.fromkeys(self.texts, pl.String), **dict.fromkeys(self.numbers, pl.Int64)}
        self._absent = {name: pl.lit(None, dtype).alias(name) for name, dtype in none.items()}
        self._absent["mistimed"] = pl.lit(value=False).alias("mistimed")

    def scan(self, text: bytes) -> tuple[pl.DataFrame, list[bytes]]:
        """Return a frame of the events not dropped, and the lines that another parser has to read.

        Each of these lines also has a row in the frame, with ``is_odd`` true and all else null.
        """
        chars = np.frombuffer(text, np.uint8)
        most = text.count(b"\n") + 1
        begins, sizes = (np.empty((most, len(self.texts)), np.int32) for _ in range(2))
        numbers = np.empty((most, len(self.numbers)), np.int64)
        values = loops.Values(begins, sizes, numbers)
        spans, kinds = np.empty((most, 2), np.int64), np.empty(most, np.uint8)
        rows = int(_scan(chars, self._words, values, spans, kinds) or 0)
        odd = kinds[:rows] == loops.ODD
        sizes[:rows][odd] = -1
        numbers[:rows][odd] = loops.NONE
        columns = {"is_odd": pl.Series(odd)}
        codes = np.empty((len(self.texts), rows), np.uint32)
        texts = _distinct_texts(text, begins[:rows], sizes[:rows], codes)
        for slot, name in enumerate(self.texts):
            if codes[slot].any():
                columns[name] = texts[pl.Series(codes[slot])]
        there = np.flatnonzero((numbers[:rows] != loops.NONE).any(axis=0)).tolist()
        numeric = {self.numbers[slot]: pl.Series(numbers[:rows, slot]) for slot in there}
        value = pl.col(numeric.keys())
        known = pl.DataFrame(numeric).select(pl.when(value != loops.NONE).then(value))
        columns |= known.to_dict()
        # A constant takes no room for each row.
        absent = [each for name, each in self._absent.items() if name not in columns]
        lines = [text[begin:end] for begin, end in spans[:rows][odd].tolist()]
        return pl.DataFrame(columns).with_columns(absent), lines


def _known(rows: Sequence[tuple[int, str, int, int]]) -> loops.Words:
    """Return the known words for `scan`.

    Each of `rows` is a word's place (such as a key of an event), text, use (role), column (slot).
    """
    table = np.full(_PLACES, -1, np.int64)
    words = [bytes([where]) + word.encode() for where, word, _, _ in rows]
    for number, word in enumerate(words):
        at = loops.hashed(word, 1, len(word), word[0])
        while table[at] >= 0:
            at = (at + 1) % _PLACES
        table[at] = number
    places = np.cumsum([0, *map(len, words)])
    roles, slots = np.array([row[2:] for row in rows], np.int64).T.copy()
    return loops.Words(table, np.frombuffer(b"".join(words), np.uint8), places, roles, slots)


def _distinct_texts(
    text: bytes, begins: NDArray[np.int32], sizes: NDArray[np.int32], codes: NDArray[np.uint32]
) -> pl.Series:
    """Return null and the distinct texts; store in `codes` the index of each text among them."""
    found, table = np.empty((codes.size, 2), np.int32), np.zeros(_PLACES_OF_TEXTS, np.int32)
    chars = np.frombuffer(text, np.uint8)
    count = int(_distinct(chars, begins, sizes, codes.shape[1], table, found, codes) or 0)
    texts = [
        text[begin : begin + size].decode()
        if size >= 0
        else _spaced(text[begin : begin - size - 2])
        for begin, size in found[:count].tolist()
    ]
    return pl.Series([None, *texts], dtype=pl.String)


@lru_cache(1 << 12)
def _spaced(text: bytes) -> str:
    """Return a JSON list of integers and texts with a blank after each comma."""
    return json.dumps(json.loads(text), ensure_ascii=False)
