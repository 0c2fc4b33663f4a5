"""Events of a PyTorch trace, and times to the nanosecond."""

from __future__ import annotations

import json
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.errors import DamagedTraceError
from tracekit.sources.kineto._document import Piece
from tracekit.sources.kineto._event_frame import nanoseconds, read_events

PATH = Path("t.json")


def _read(*lines: str | bytes) -> pl.DataFrame:
    texts = [line.encode() if isinstance(line, str) else line for line in lines]
    return read_events(Piece(17, b"\n".join(texts)), PATH)


class TestTimes:
    @pytest.mark.parametrize(
        ("text", "time"),
        [
            ("1234567890123.456", 1234567890123456),
            ("1694128201426602.123", 1694128201426602123),
            ("1694128201426602", 1694128201426602000),
            ("0.001", 1),
            ("0", 0),
            ("5.", 5000),
            ("1.5", 1500),
            ("-1.5", -1500),
            ("-0.001", -1),
            ("1.00049", 1000),
            ("1.0005", 1001),
            ("1.694128201426602e+15", 1694128201426602000),
            ("2E3", 2000000),
            ("1e400", None),
            ("1e-400", 0),
            ("99999999999999999999", None),
            ("nan", None),
            ("Infinity", None),
            ("12 s", None),
            ("", None),
            (None, None),
        ],
    )
    def test_are_read_from_their_digits(self, text, time):
        assert nanoseconds(pl.Series([text], dtype=pl.String)).to_list() == [time]

    @settings(deadline=None)
    @given(st.lists(st.decimals(-(10**14), 10**14, places=4) | st.none(), max_size=20))
    def test_are_those_of_decimal_arithmetic(self, values):
        texts = [None if value is None else f"{value:f}" for value in values]
        expected = [
            None if value is None else int((value * 1000).to_integral_value(ROUND_HALF_UP))
            for value in values
        ]
        assert nanoseconds(pl.Series(texts, dtype=pl.String)).to_list() == expected

    def test_no_digit_is_lost_on_the_way_from_the_text(self):
        events = _read('{"ph": "X", "ts": 1694128201426602.123, "dur": 0.001, "args": {"ts": 1}}')
        assert events.select("start", "length").row(0) == (1694128201426602123, 1)
        assert Decimal(float("1694128201426602.123")) != Decimal("1694128201426602.123")

    def test_texts_that_look_like_times_stay_as_they_are(self):
        name = 'x "ts": 5, "dur": 6.50, end'
        events = _read(json.dumps({"ph": "X", "name": name, "ts": 1, "dur": 2}))
        assert events.select("name", "start", "length").row(0) == (name, 1000, 2000)

    @pytest.mark.parametrize("length", ['"long"', "[1]", "true", "nan"])
    def test_a_length_that_is_none_is_told_from_none(self, length):
        events = _read(f'{{"ph": "X", "ts": 1, "dur": {length}}}', '{"ph": "X", "ts": 1}')
        assert events.select("length", "mistimed").rows() == [(None, True), (None, False)]


class TestReading:
    def test_fields_and_arguments(self):
        events = _read(
            '{"ph":"X","cat":"kernel","name":"k<1>(int)","pid":0,"tid":"stream 7","ts":1,'
            '"args":{"device":0,"Process Group Ranks":[0, 1],"grid":[1,2,3],"bytes":12}}',
            '{"ph": "M", "id": 5, "bp": "e", "dur": null}',
        )
        row = events.to_dicts()[0]
        given = {name: value for name, value in row.items() if value is not None}
        assert given == {
            "ph": "X", "cat": "kernel", "name": "k<1>(int)", "pid": "0", "tid": "stream 7",
            "start": 1000, "device": 0, "group_ranks": "[0, 1]", "bytes": 12,
            "grid": "[1, 2, 3]", "mistimed": False,
        }  # fmt: skip
        assert set(events.drop("ph", "mistimed").row(1)) == {None}

    def test_events_of_no_use_are_left_out_and_of_functions_their_category_is_read(self):
        events = _read(
            '{"ph": "s", "cat": "ac2g", "name": "ac2g", "id": 5}',
            '{"ph": "X", "cat": "gpu_user_annotation", "name": "a", "ts": 1, "dur": 1}',
            '{"ph": "X", "cat": "python_function", "name": "f", "ts": 1, "args": {"Seq": 4}}',
            '{"cat": "kernel", "name": "k"}',
        )
        [row] = events.to_dicts()
        given = {name: value for name, value in row.items() if value is not None}
        assert given == {"ph": "X", "cat": "python_function", "mistimed": False}

    @pytest.mark.parametrize(
        ("line", "name", "size"),
        [
            (b'{"ph": "X", "name": "a", "args": {"x": inf, "y": [nan, -inf], "bytes": 4}}', "a", 4),
            (b'{"ph": "X", "name": "a", "args": {"x": NaN, "y": -Infinity, "bytes": 4}}', "a", 4),
            (b'{"ph": "X", "name": "a\tb", "args": {"bytes": 4}}', "a\tb", 4),
            (b'{"ph": "X", "name": "a\xffb", "args": {"bytes": 4}}', "a�b", 4),
            (b'{"ph": "X", "name": "a", "args": "none"}', "a", None),
            (b'{"ph": "X", "name": "a", "args": [1]}', "a", None),
            (b'{"ph": "X", "name": "a", "args": {"x": 1e400, "bytes": 999999999999999999999}}',
             "a", None),
        ],
    )  # fmt: skip
    def test_what_a_strict_parser_refuses_costs_nothing_else(self, line, name, size):
        first = (
            b'{"ph": "X", "name": "first", "ts": 1.001, "args": {"Process Group Ranks": [0, 1]}}'
        )
        events = _read(first, line)
        assert events.select("name", "start", "group_ranks").row(0) == ("first", 1001, "[0, 1]")
        assert events.select("name", "bytes").row(1) == (name, size)

    @pytest.mark.parametrize("line", ['{"name": }', '{"a" 1}', "[" * 200_000])
    def test_an_event_that_is_no_json_is_named_by_its_place(self, line):
        first = '{"name": "first"}'
        with pytest.raises(DamagedTraceError) as caught:
            _read(first, line)
        assert f"t.json is corrupt: the event at byte {17 + len(first) + 1} is" in str(caught.value)


@pytest.mark.parametrize("time", ["1", "nan"])
def test_half_a_character_is_no_text_and_no_fault(time):
    texts = r'"cat": "\ud800", "name": "\ud83d\ude80 \uDC00", "pid": {"a": "\ud800"}'
    event = _read(f'{{"ph": "X", {texts}, "ts": {time}}}').row(0, named=True)
    assert (event["cat"], event["name"]) == ("\ufffd", "\U0001f680 \ufffd")


@pytest.mark.parametrize("odd", ["1", "NaN"], ids=["by polars", "one by one"])
def test_of_a_key_that_is_there_twice_the_first_one_counts(odd: str) -> None:
    line = (
        '{"ph": "X", "name": "a", "name": "b", "ts": 1, "ts": 2, "x": %s,'
        ' "args": {"stream": 7, "stream": 8, "device": 1}, "args": {"stream": 9}}'
    )
    [event] = _read(line % odd).select("name", "start", "stream", "device").rows()
    assert event == ("a", 1000, 7, 1)
