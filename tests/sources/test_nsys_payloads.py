"""Payloads of NVTX ranges: JSON as it is, and bytes decoded by the layout that is declared."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from nsys_builder import NsysBuilder
from source_helpers import column, execute, remarks, rows, trace_of, versions_with

from tracekit.sources import read
from tracekit.sources.sqlite import SqliteFile

SCHEMAS = "NVTX_PAYLOAD_SCHEMAS"
STATIC = 1 << 24
ALL_REDUCE, SEND, INIT, OPERATION = STATIC + 5, STATIC + 9, STATIC, STATIC + 16
INT, UINT64, SIZE, CSTRING = 5, 18, 22, 75
COMMUNICATOR = ("NCCL communicator ID", UINT64, None)
BYTES = ("Message size [bytes]", SIZE, 8)


def _blob(schema: int, payload: bytes, domain: int = 1) -> bytes:
    """Put the header in front of a payload."""
    size = len(payload)
    return struct.pack("<IIIIQQ", domain, 0, schema, 0, size, size + 32) + payload


def _nccl(nsys: NsysBuilder, domain: int = 1) -> None:
    """Declare layouts as NCCL does, in the order of which nsys writes them."""
    nsys.payload_schema(
        domain, ALL_REDUCE, [COMMUNICATOR, BYTES, ("Reduction operation", OPERATION, 16)], 24
    )
    nsys.payload_schema(domain, SEND, [COMMUNICATOR, BYTES, ("Peer rank", INT, 16)], 24)
    nsys.payload_schema(
        domain,
        INIT,
        [COMMUNICATOR, ("No. of ranks", INT, 8), ("Rank", INT, 12), ("CUDA device", INT, 16)],
        24,
    )
    nsys.payload_enum(
        domain, OPERATION, [("Sum", 0), ("Prod", 1), ("Max", 2), ("Min", 3), ("Avg", 4)]
    )


def _one_layout(
    path: Path, entries: list[tuple[str | None, int, int | None]], payload: bytes, **columns: Any
) -> Any:
    """Decode one payload of one layout."""
    with NsysBuilder(path / "t.sqlite", schema="3.28.0") as nsys:
        nsys.payload_schema(1, STATIC, entries, len(payload), **columns)
        nsys.push_pop(1, 2, "x", binaryData=_blob(STATIC, payload))
    [text] = column(read(nsys.path), "ranges", "payload")
    return text and json.loads(text)


@pytest.mark.parametrize("nsys", versions_with("NVTX_PAYLOAD_ENUMS"), indirect=True)
def test_calls_of_nccl(nsys):
    _nccl(nsys)
    _nccl(nsys)  # as of a second process
    big = 2**63 + 5
    for at, blob in enumerate(
        (
            _blob(INIT, struct.pack("<Qiiii", big, 8, 3, 2, 0)),
            _blob(ALL_REDUCE, struct.pack("<QQii", big, 4096, 0, 0)),
            _blob(ALL_REDUCE, struct.pack("<QQii", 7, 2**40, 4, -1)),
            _blob(ALL_REDUCE, struct.pack("<QQii", 7, 8, 12, 0)),
            _blob(SEND, struct.pack("<QQii", 2**64 - 1, 0, 1, 0)),
        )
    ):
        nsys.push_pop(at, at + 1, "nccl", domain=1, binaryData=blob)
    trace = trace_of(nsys)
    payloads = column(trace, "ranges", "payload")
    assert payloads[-1] == (
        '{"NCCL communicator ID": 18446744073709551615, "Message size [bytes]": 0, "Peer rank": 1}'
    )
    communicator, size, operation = COMMUNICATOR[0], BYTES[0], "Reduction operation"
    assert [json.loads(payload) for payload in payloads[:-1]] == [
        {communicator: big, "No. of ranks": 8, "Rank": 3, "CUDA device": 2},
        {communicator: big, size: 4096, operation: "Sum"},
        {communicator: 7, size: 2**40, operation: "Avg"},
        {communicator: 7, size: 8, operation: 12},
    ]
    assert remarks(trace) == ()


@pytest.mark.parametrize("nsys", versions_with(SCHEMAS), indirect=True)
def test_a_field_of_an_undeclared_enumeration_is_null_and_the_others_are_not(nsys):
    entries = [COMMUNICATOR, BYTES, ("Reduction operation", OPERATION, 16)]
    nsys.payload_schema(1, ALL_REDUCE, entries, 24)
    nsys.push_pop(1, 2, "a", binaryData=_blob(ALL_REDUCE, struct.pack("<QQii", 1, 64, 0, 0)))
    trace = trace_of(nsys)
    assert [json.loads(text) for text in column(trace, "ranges", "payload")] == [
        {"NCCL communicator ID": 1, "Message size [bytes]": 64, "Reduction operation": None}
    ]
    assert remarks(trace) == (
        "1 NVTX payloads have fields of an unknown type, which were left out",
    )


@pytest.mark.parametrize("nsys", versions_with("NVTX_EVENTS", "jsonText"), indirect=True)
def test_json_is_kept_in_the_row_or_among_the_strings(nsys):
    nsys.push_pop(1, 2, "row", jsonText='{"a": 1}')
    nsys.push_pop(3, 4, "string", jsonTextId=nsys.string('{"b": [2]}'))
    nsys.push_pop(5, 6, "neither", int64Value=-5)
    trace = trace_of(nsys)
    assert column(trace, "ranges", "payload") == ['{"a": 1}', '{"b": [2]}', "-5"]


class TestWhatIsNotDecoded:
    LOST = "1 NVTX payloads were left out: they are damaged, or their layout is not declared"
    GOOD = struct.pack("<QQii", 1, 64, 2, 0)

    @pytest.mark.parametrize(
        "blob",
        [
            pytest.param(b"", id="empty"),
            pytest.param(b"\x01\x00", id="no header"),
            pytest.param(_blob(SEND, GOOD)[:31], id="cut in the header"),
            pytest.param(_blob(SEND, GOOD)[:-1], id="cut in the payload"),
            pytest.param(_blob(SEND, GOOD) + b"\x00", id="longer than it says"),
            pytest.param(_blob(SEND, GOOD[:16]), id="shorter than its layout"),
            pytest.param(_blob(SEND, GOOD + b"\x00" * 8), id="longer than its layout"),
            pytest.param(_blob(SEND + 1, GOOD), id="layout not declared"),
            pytest.param(_blob(SEND, GOOD, domain=2), id="layout of another domain"),
            pytest.param(
                struct.pack("<IIIIQQ", 1, 0, SEND, 0, 24, 2**64 - 1) + GOOD, id="absurd size"
            ),
        ],
    )
    def test_damaged_and_undeclared(self, tmp_path, blob):
        with NsysBuilder(tmp_path / "t.sqlite", schema="3.28.0") as nsys:
            _nccl(nsys)
            nsys.push_pop(1, 2, "bad", binaryData=blob)
            nsys.push_pop(3, 4, "good", binaryData=_blob(SEND, self.GOOD))
            nsys.push_pop(5, 6, "none")
        trace = read(nsys.path)
        bad, good, none = column(trace, "ranges", "payload")
        assert (bad, none) == (None, None)
        assert json.loads(good)["Message size [bytes]"] == 64
        assert remarks(trace) == (self.LOST,)

    @pytest.mark.parametrize("nsys", versions_with(SCHEMAS), indirect=True)
    @pytest.mark.parametrize(
        ("entries", "columns"),
        [
            pytest.param([COMMUNICATOR, BYTES, ("Root", INT, 16)], {}, id="another field"),
            pytest.param([COMMUNICATOR, BYTES, ("Peer rank", 17, 16)], {}, id="another type"),
            pytest.param([COMMUNICATOR, BYTES, ("Peer rank", INT, 20)], {}, id="another place"),
            pytest.param([COMMUNICATOR, BYTES], {}, id="fewer fields"),
            pytest.param(
                [COMMUNICATOR, BYTES, ("Peer rank", INT, 16)], {"type": 2}, id="another kind"
            ),
        ],
    )
    def test_one_number_for_two_layouts(self, nsys, entries, columns):
        nsys.payload_schema(1, SEND, [COMMUNICATOR, BYTES, ("Peer rank", INT, 16)], 24)
        nsys.payload_schema(1, SEND, entries, 24, **columns)
        nsys.payload_schema(2, SEND, [COMMUNICATOR, BYTES, ("Peer rank", INT, 16)], 24)
        nsys.push_pop(1, 2, "a", binaryData=_blob(SEND, self.GOOD))
        nsys.push_pop(3, 4, "b", binaryData=_blob(SEND, self.GOOD, domain=2))
        trace = trace_of(nsys)
        unclear, clear = column(trace, "ranges", "payload")
        assert unclear is None
        assert json.loads(clear)["Peer rank"] == 2
        assert remarks(trace) == (
            "1 NVTX payloads were left out: the export declares their layout in several ways",
        )

    def test_one_number_for_two_enumerations(self, tmp_path):
        with NsysBuilder(tmp_path / "t.sqlite", schema="3.28.0") as nsys:
            _nccl(nsys)
            nsys.payload_enum(1, OPERATION, [("Max", 0), ("Prod", 1), ("Sum", 2)])
            nsys.push_pop(1, 2, "a", binaryData=_blob(ALL_REDUCE, self.GOOD))
        [payload] = column(read(nsys.path), "ranges", "payload")
        assert json.loads(payload) == {
            "NCCL communicator ID": 1, "Message size [bytes]": 64, "Reduction operation": None
        }  # fmt: skip

    def test_layouts_that_are_not_static_or_not_complete(self, tmp_path):
        for columns in ({"type": 2}, {"type": 3}, {"type": None}, {"numEntries": 3}):
            assert _one_layout(tmp_path, [("a", 17, None)], bytes(8), **columns) is None, columns

    def test_bytes_where_no_layout_is_declared_at_all(self, one):
        one.push_pop(1, 2, "a", binaryData=_blob(SEND, self.GOOD))
        trace = trace_of(one)
        assert column(trace, "ranges", "payload") == [None]
        assert remarks(trace) == ()

    def test_fields_that_are_no_plain_numbers(self, tmp_path):
        with NsysBuilder(tmp_path / "t.sqlite", schema="3.28.0") as nsys:
            entries = [("a", 15, None), ("pointer", 15, 4), ("text", CSTRING, 8), ("z", 15, 12)]
            nsys.payload_schema(1, STATIC, entries, 16)
            nsys.push_pop(1, 2, "x", binaryData=_blob(STATIC, struct.pack("<iiii", 1, 2, 3, 4)))
        execute(nsys.path, "UPDATE NVTX_PAYLOAD_SCHEMA_ENTRIES SET flags = 2 WHERE idx = 1")
        [payload] = column(read(nsys.path), "ranges", "payload")
        assert json.loads(payload) == {"a": 1, "pointer": None, "text": None, "z": 4}

    def test_fields_that_overlap_or_lie_outside(self, tmp_path):
        entries = [("a", 17, None), ("b", 15, 4), ("c", 15, 8), ("d", 17, 12), ("e", 15, 2**40)]
        payload = struct.pack("<iiii", 1, 2, 3, 4)
        assert _one_layout(tmp_path, entries, payload) == {
            "a": None, "b": 2, "c": 3, "d": None, "e": None
        }  # fmt: skip

    def test_no_field_that_can_be_decoded(self, tmp_path):
        assert _one_layout(tmp_path, [("a", CSTRING, None)], bytes(8)) is None


def test_fields_without_a_place_follow_each_other_as_in_c(tmp_path):
    entries = [("a", 12, None), ("b", 15, None), ("c", 13, None), ("d", 17, None)]
    payload = struct.pack("<BxxxihxxxxxxQ", 1, -2, -3, 4)
    assert _one_layout(tmp_path, entries, payload) == {"a": 1, "b": -2, "c": -3, "d": 4}


def test_a_size_that_is_not_declared_is_that_of_the_payload(tmp_path):
    payload = struct.pack("<QQ", 5, 6)
    entries = [("a", 18, None), ("b", 18, 8)]
    assert _one_layout(tmp_path, entries, payload, payloadSize=None) == {"a": 5, "b": 6}
    assert _one_layout(tmp_path, entries, payload[:8], payloadSize=None) is None


def test_names_need_not_be_there_nor_differ_nor_be_harmless(tmp_path):
    entries = [('say "hi"\\\n', 12, None), (None, 12, 1), ("ü", 12, 2), ("ü", 12, 3)]
    assert _one_layout(tmp_path, entries, b"\x01\x02\x03\x04") == {
        'say "hi"\\\n': 1, "field 1": 2, "ü": 3, "ü (3)": 4
    }  # fmt: skip


@pytest.mark.parametrize(
    ("size", "kind", "value", "expected"),
    [(1, "<b", 4, "Avg"), (2, "<h", 1, "Prod"), (8, "<q", -3, -3), (3, "<i", 0, None)],
)
def test_enumerations_of_any_size(tmp_path, size, kind, value, expected):
    with NsysBuilder(tmp_path / "t.sqlite", schema="3.28.0") as nsys:
        nsys.payload_enum(1, OPERATION, [("Sum", 0), ("Prod", 1), ("Avg", 4)], size)
        nsys.payload_schema(1, STATIC, [("a", 12, None), ("op", OPERATION, 8)], 16)
        payload = b"\x07".ljust(8) + struct.pack(kind, value).ljust(8, b"\x00")
        nsys.push_pop(1, 2, "x", binaryData=_blob(STATIC, payload))
    [text] = column(read(nsys.path), "ranges", "payload")
    assert json.loads(text) == {"a": 7, "op": expected}


NUMBERS = {
    # type of NVTX: that of struct
    1: "b", 2: "B", 3: "h", 4: "H", 5: "i", 6: "I", 7: "q", 8: "Q", 9: "q", 10: "Q", 11: "b",
    12: "B", 13: "h", 14: "H", 15: "i", 16: "I", 17: "q", 18: "Q", 19: "f", 20: "d", 22: "Q",
    23: "Q", 43: "f", 44: "d",
}  # fmt: skip


def _values(kind: str) -> st.SearchStrategy[Any]:
    if kind in "fd":
        return st.floats(width=32 if kind == "f" else 64)
    bits = 8 * struct.calcsize(kind)
    signed = kind.islower()
    return st.integers(-(1 << bits - 1) if signed else 0, (1 << bits - signed) - 1)


@st.composite
def _structs(draw: st.DrawFn) -> list[tuple[int, Any]]:
    types = draw(st.lists(st.sampled_from(sorted(NUMBERS)), min_size=1, max_size=8))
    return [(number, draw(_values(NUMBERS[number]))) for number in types]


@settings(max_examples=examples(18, thorough=300), deadline=None)
@given(fields=_structs(), explicit=st.booleans())
def test_what_c_packs_comes_back(fields: list[tuple[int, Any]], explicit: bool) -> None:
    kinds = "".join(NUMBERS[number] for number, _ in fields)
    packed = struct.pack(f"@{kinds}", *(value for _, value in fields))
    places = [
        struct.calcsize(f"@{kinds[:n]}0{kinds[n]}") if explicit else None for n in range(len(kinds))
    ]
    entries = [(f"f{n}", fields[n][0], places[n]) for n in range(len(kinds))]
    with TemporaryDirectory() as folder:
        found = _one_layout(Path(folder), entries, packed)
    for (number, value), got in zip(fields, found.values(), strict=True):
        if NUMBERS[number] in "fd" and not abs(value) < float("inf"):
            assert got is None
        elif NUMBERS[number] == "f":
            assert struct.pack("f", got) == struct.pack("f", value)
        else:
            assert got == value


class TestBytesOfATable:
    """Columns of bytes, which nsys declares as text."""

    @pytest.mark.parametrize("count", [3, 60_000])
    def test_stay_bytes(self, tmp_path, count):
        path = tmp_path / "t.sqlite"
        values = [None, b"\xff\x00caf\xe9", b"", "text", b"\x80" * 9]
        execute(
            path,
            "CREATE TABLE t (id INTEGER, name TEXT, data TEXT)",
            "INSERT INTO t VALUES (?, ?, ?)",
            many=[(n, f"row {n}", values[n % 5]) for n in range(count)],
        )
        frame = SqliteFile(path).read("t", {"id": "int", "name": "text", "data": "blob"})
        expected = [None, b"\xff\x00caf\xe9", b"", b"text", b"\x80" * 9]
        assert frame["data"].to_list() == [expected[n % 5] for n in range(count)]
        assert frame["name"].to_list() == [f"row {n}" for n in range(count)]

    def test_stay_bytes_beside_numbers_of_another_type(self, tmp_path):
        path = tmp_path / "t.sqlite"
        execute(
            path,
            "CREATE TABLE t (id, data TEXT)",
            "INSERT INTO t VALUES ('7', x'ff'), ('x', x'fe'), (1.5, NULL)",
        )
        file = SqliteFile(path)
        frame = file.read("t", {"id": "int", "data": "blob"})
        assert frame.rows() == [(7, b"\xff"), (None, b"\xfe"), (None, None)]
        assert file.coerced == {"t.id": 2}

    def test_stay_bytes_in_a_file_of_another_encoding(self, tmp_path):
        path = tmp_path / "t.sqlite"
        execute(
            path,
            "PRAGMA encoding = 'UTF-16le'",
            "CREATE TABLE t (name TEXT, data TEXT)",
            "INSERT INTO t VALUES ('ä', x'c3a4ff')",
        )
        frame = SqliteFile(path).read("t", {"name": "text", "data": "blob"})
        assert frame.rows() == [("ä", b"\xc3\xa4\xff")]


@pytest.mark.slow
def test_many_payloads_in_batches(tmp_path):
    count = 70_000
    with NsysBuilder(tmp_path / "t.sqlite", schema="3.28.0") as nsys:
        _nccl(nsys)
        for at in range(count):
            blob = _blob(SEND, struct.pack("<QQii", at, at * 3, at % 7, 0)) if at % 2 else None
            nsys.push_pop(at, at + 1, "ncclSend", registered=True, binaryData=blob)
    payloads = column(read(nsys.path), "ranges", "payload")
    assert payloads[::2] == [None] * (count // 2)
    assert [json.loads(text)["Message size [bytes]"] for text in payloads[1::2]] == [
        at * 3 for at in range(1, count, 2)
    ]


@pytest.mark.parametrize("nsys", versions_with(SCHEMAS), indirect=True)
@pytest.mark.parametrize("given_", [False, True])
def test_the_contents_say_whether_there_are_payloads(nsys, given_):
    nsys.payload_schema(1, SEND, [COMMUNICATOR, BYTES, ("Peer rank", INT, 16)], 24)
    blob = _blob(SEND, TestWhatIsNotDecoded.GOOD) if given_ else None
    nsys.push_pop(1, 2, "a", binaryData=blob)
    nsys.push_pop(3, 4, "b")
    contents = {
        row[0]: row[1:] for row in rows(trace_of(nsys), "contents", "feature", "present", "rows")
    }
    assert contents["NVTX payloads"] == (given_, int(given_))
