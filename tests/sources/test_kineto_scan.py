"""Compiled loops read of a PyTorch trace what the parser of JSON reads of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import patch

import polars as pl
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from kineto_helpers import write
from polars.testing import assert_frame_equal

from tracekit.errors import DamagedTraceError
from tracekit.sources.kineto import _document, _scan, _scan_loops
from tracekit.sources.kineto._document import Document, Piece
from tracekit.sources.kineto._event_frame import ARGUMENTS, BARE, OF_NO_USE, read_events

PATH = Path("t.json")
LOOPS = {f"_{name}": getattr(_scan_loops, name) for name in ("split", "scan", "distinct")}
"""The loops as they stand."""

TEXTS = st.text(st.sampled_from('"\\{}[],: abé7-.'), max_size=6)
NUMBERS = (
    st.integers(-9, 99)
    | st.integers(-(1 << 64), 1 << 65)
    | st.floats()
    | st.sampled_from([-0.0, 10**15, 10**16 + 1, 1694128201426602])
)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS | NUMBERS.map(str),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=4,
)
TIMES = st.decimals(-(10**10), 10**17, places=3).map(str) | NUMBERS.map(json.dumps)
CATEGORIES = ["kernel", "cpu_op", "AC2G", OF_NO_USE[0], "ac2g", *BARE, "é", 3, None]
KEYS = st.sampled_from([*ARGUMENTS, "ts", "dur", "pid", "External id"]) | TEXTS
EVENTS = st.fixed_dictionaries(
    {"ph": st.sampled_from(["X", "X", "X", "M", "s", "XX", 1, None])},
    optional={
        "cat": st.sampled_from(CATEGORIES),
        "name": TEXTS,
        "pid": st.integers(0, 9) | TEXTS,
        "tid": VALUES,
        "args": st.dictionaries(KEYS, VALUES | st.lists(st.integers(0, 99)), max_size=5) | VALUES,
        "more": VALUES,
    },
)


@st.composite
def lines(draw: st.DrawFn) -> str:
    """An event as it may be written, or something that is none."""
    given = draw(EVENTS)
    separators = draw(st.sampled_from([(", ", ": "), (",", ":"), (" ,  ", " : ")]))
    text = json.dumps(given, separators=separators, ensure_ascii=draw(st.booleans()))
    for key in draw(st.lists(st.sampled_from(["ts", "dur"]), max_size=2)):
        text = f'{{"{key}"{separators[1]}{draw(TIMES)}{separators[0]}{text[1:]}'
    if draw(st.integers(0, 9)) == 0:  # something is missing, doubled or another
        at = draw(st.integers(0, len(text)))
        more = draw(st.sampled_from(["", '"', "}", ",", "x", "\\", "1", "[", " "]))
        text = text[:at] + more + text[at + draw(st.integers(0, 2)) :]
    return text


def told(read: Callable[[], Any], fewest: int) -> Any:
    """What is read where so many bytes are worth a compiled loop, or that the file is damaged.

    Where it is, and whether in an event or around them, parsers of parts and of the whole need not
    say alike.
    """
    with patch.object(_document, "FEWEST_BYTES", fewest), patch.multiple(_scan, **LOOPS):
        try:
            return read()
        except DamagedTraceError:
            return "damaged"


def same(one: Any, other: Any) -> None:
    if isinstance(one, pl.DataFrame) and isinstance(other, pl.DataFrame):
        assert_frame_equal(one, other)
    else:
        assert one == other


@settings(deadline=None, max_examples=examples(100, thorough=1000))
@given(st.lists(lines(), max_size=4))
def test_events_are_those_of_the_parser_of_json(texts: list[str]) -> None:
    piece = Piece(17, "\n".join(texts).encode())
    plain, scanned = (told(lambda: read_events(piece, PATH), least) for least in (1 << 62, 0))
    same(scanned, plain)


@settings(deadline=None, max_examples=examples(60, thorough=1000))
@given(
    st.lists(lines(), max_size=5), st.sampled_from([", ", ",\n ", "\t,", "\n"]), st.integers(1, 99)
)
def test_pieces_are_those_of_whole_columns(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], between: str, block: int
) -> None:
    text = f'{{"schemaVersion": 1, "traceEvents": [{between.join(texts)}\n], "more": {{"a": "]"}}}}'
    path = write(tmp_path_factory.mktemp("cut") / "t.json", text)

    def pieces() -> Any:
        with closing(Document(path, block)) as document:
            return [(piece.offset, piece.text) for piece in document.pieces()], document.around

    plain, scanned = (told(pieces, least) for least in (1 << 62, 0))
    assert scanned == plain
