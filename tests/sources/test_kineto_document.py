"""The text of a PyTorch trace is cut between its events, wherever blocks of bytes end."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kineto_helpers import write

from tracekit.errors import DamagedTraceError, InputError, NotATraceError
from tracekit.sources.kineto import _document
from tracekit.sources.kineto._document import Document, Piece

TEXTS = st.text(st.sampled_from('"\\{}[],: \n\tabé😀'), max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**15) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
EVENTS = st.lists(st.dictionaries(TEXTS, VALUES, max_size=3), max_size=6)


def _pieces(path: Path, block: int) -> tuple[list[list[Any]], dict[str, Any], list[int]]:
    """The events of each piece, what stands around them, and where pieces begin."""
    with closing(Document(path, block)) as document:
        pieces = list(document.pieces())
        events = [[json.loads(line) for line in piece.text.split(b"\n")] for piece in pieces]
        return events, document.around, [piece.offset for piece in pieces]


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    events=EVENTS,
    before=st.dictionaries(TEXTS, VALUES, max_size=2),
    after=st.dictionaries(TEXTS, VALUES, max_size=2),
    block=st.integers(1, 60),
    indent=st.sampled_from([None, 0, 2, "\t"]),
    compact=st.booleans(),
    ascii_only=st.booleans(),
    suffix=st.sampled_from([".json", ".gz"]),
    at_once=st.integers(1, 9),
    most=st.integers(1, 9),
)
def test_all_events_are_found_in_order(
    tmp_path, events, before, after, block, indent, compact, ascii_only, suffix, at_once, most
):
    whole = {**before, "traceEvents": events, **after}
    separators = (",", ":") if compact else None
    text = json.dumps(whole, indent=indent, separators=separators, ensure_ascii=ascii_only)
    path = write(tmp_path / f"t{suffix}", text)
    with patch.multiple(_document, _SLICE=at_once, _MOST_EVENTS=most):
        pieces, around, offsets = _pieces(path, block)
    assert [event for piece in pieces for event in piece] == events
    assert all(0 < len(piece) <= most for piece in pieces)
    assert around == {**whole, "traceEvents": []}
    assert all(one < other for one, other in pairwise(offsets))


def test_a_piece_holds_whole_events_one_per_line_and_says_where_it_begins(tmp_path):
    path = write(tmp_path / "t.json", '{"traceEvents": [ {"a": 1},\n {"b":\n[2]} , {"c": "}, {"}]}')
    with closing(Document(path, 100)) as document:
        [piece] = document.pieces()
    assert piece == Piece(17, b' {"a": 1}\n  {"b": [2]}\n  {"c": "}, {"}')
    with closing(Document(path, 14)) as document:
        pieces = list(document.pieces())
    assert pieces == [
        Piece(17, b' {"a": 1}\n  {"b": [2]}'),
        Piece(39, b'   {"c": "}, {"}'),
    ]


def test_events_are_those_of_the_outermost_object_only(tmp_path):
    text = (
        '{"x": {"traceEvents": [{"a": 1}]}, "y": "\\"traceEvents\\": [", "traceEvents": [{"b": 2}]}'
    )
    pieces, around, _ = _pieces(write(tmp_path / "t.json", text), 8)
    assert pieces == [[{"b": 2}]]
    assert around == {
        "x": {"traceEvents": [{"a": 1}]}, "y": '"traceEvents": [', "traceEvents": [],
    }  # fmt: skip


def test_what_stands_before_the_events_is_known_before_they_are_read(tmp_path):
    path = write(tmp_path / "t.json", '{"a": {"b": 1}, "traceEvents": [{"c": 2}], "d": 3}')
    with closing(Document(path)) as document:
        assert document.before() == {"a": {"b": 1}, "traceEvents": []}
        assert [piece.text for piece in document.pieces()] == [b'{"c": 2}']
        assert document.around == {"a": {"b": 1}, "traceEvents": [], "d": 3}


@pytest.mark.parametrize("suffix", [".json", ".gz"])
@pytest.mark.parametrize("block", [5, 1 << 20])
def test_a_text_that_is_cut_anywhere_is_an_error_that_says_where(tmp_path, suffix, block):
    text = b'{"schemaVersion": 1, "traceEvents": [{"a": "[\\"{"}, {"b": [1, {}]}], "z": 1}'
    path = write(tmp_path / f"t{suffix}", text)
    whole = path.read_bytes()
    for size in range(3, len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(DamagedTraceError, match="cut short"):
            _pieces(path, block)
    path.write_bytes(whole)
    assert _pieces(path, block)[0]


def test_where_it_is_cut(tmp_path):
    path = write(tmp_path / "t.json", '{"traceEvents": [{"a": 1}, {"b')
    with pytest.raises(DamagedTraceError, match=r"t\.json is cut short: it ends at byte 30:"):
        _pieces(path, 100)


@pytest.mark.parametrize(
    ("events", "byte"),
    [
        ('{"a": 1} {"b": 2}', 25),
        ('{"a": 1}, 5, {"b": 2}', 27),
        ('{"a": 1},, {"b": 2}', 25),
        (',, {"b": 2}', 17),
        ('null, {"b": 2}', 17),
    ],
)
def test_something_else_among_the_events(tmp_path, events, byte):
    path = write(tmp_path / "t.json", '{"traceEvents": [' + events + "]}")
    with pytest.raises(DamagedTraceError, match=f"something other than an event at byte {byte}"):
        _pieces(path, 100)


@pytest.mark.parametrize(
    "text", ['{"a": []}', '{"traceEvents": null}', '{"traceEvents": {}}', "[1]"]
)
def test_other_json(tmp_path, text):
    with pytest.raises(NotATraceError, match="not a PyTorch trace"):
        _pieces(write(tmp_path / "t.json", text), 100)


def test_a_gzip_stream_that_is_corrupt(tmp_path):
    path = write(tmp_path / "t.gz", json.dumps({"traceEvents": [{"a": n} for n in range(5000)]}))
    whole = path.read_bytes()
    for at in (11, len(whole) // 2, len(whole) - 6):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
        with pytest.raises(InputError) as caught:
            _pieces(path, 1000)
        assert type(caught.value) in {DamagedTraceError, NotATraceError}


@pytest.mark.parametrize(
    ("before", "repeated", "message"),
    [
        (b'{"traceEvents":[{"a":', b"[", "has no complete event after byte 16"),
        (b'{"traceEvents":[{"a":"', b'\\"', "has no complete event after byte 16"),
        (b'{"traceEvents":[', b" ", "has no complete event after byte 16"),
        (b'{"a":', b"[", "has no event in its first"),
        (b'{"traceEvents":[],"a":', b"[", "goes on too long after its events"),
    ],
    ids=["brackets", "quotes", "blanks", "brackets before", "brackets after"],
)
def test_a_small_file_that_unpacks_to_much_takes_little_memory(
    tmp_path: Path, before: bytes, repeated: bytes, message: str
) -> None:
    path = tmp_path / "t.gz"
    with gzip.open(path, "wb", 1) as file:
        file.write(before)
        for _ in range(6):
            file.write(repeated * ((1 << 20) // len(repeated)))
    tracemalloc.start()
    try:
        with (
            patch.multiple(_document, MOST_AROUND=2 << 20, _MOST_EVENT=2 << 20),
            # What a compiler takes is not what is asked here.
            patch.object(_document, "FEWEST_BYTES", 1 << 62),
            pytest.raises(DamagedTraceError, match=message),
        ):
            _pieces(path, 1 << 20)
        assert tracemalloc.get_traced_memory()[1] < 70 << 20
    finally:
        tracemalloc.stop()
