"""What is said of JSON in a line, and the schema that it means."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from tracekit.model import STAGE, STAGE_SOURCE
from tracekit.support.columns import columns, keys
from tracekit.support.schemas import STAGE_SOURCES, STAGES, by_name, either, one, record, records


@pytest.mark.parametrize(
    ("said", "schema"),
    [
        ("text: A name: of a run.", {"type": "string", "description": "A name: of a run."}),
        ("count", {"type": "integer", "minimum": 0}),
        (
            "share or null: Of it.",
            {"type": ["number", "null"], "minimum": 0, "maximum": 1, "description": "Of it."},
        ),
        ("text or number: Of it.", {"type": ["string", "number"], "description": "Of it."}),
        ("one of a, b c: Which.", {"enum": ["a", "b c"], "description": "Which."}),
        ("one of a or null: Which.", {"enum": ["a", None], "description": "Which."}),
        ({"const": 3}, {"const": 3}),
    ],
    ids=str,
)
def test_a_line_is_a_schema(said: str | dict[str, Any], schema: dict[str, Any]) -> None:
    assert one(said) == schema


@pytest.mark.parametrize(
    "said", ["number of calls: A count.", "Its name.", "count or nil: It.", ""]
)
def test_a_line_that_says_no_kind_is_refused(said: str) -> None:
    with pytest.raises(ValueError, match=r"unknown kind of value .*: choose one of text, texts"):
        one(said)


def test_an_object_has_its_keys_and_no_others() -> None:
    inner = records("Parts.", {"part": "text"})
    schema = record({"a": "count", "b?": inner, "c?": by_name("Of each.", "flag", "x, y")})
    valid = jsonschema.Draft202012Validator(schema).is_valid
    assert valid({"a": 1})
    assert valid({"a": 1, "b": [{"part": "one"}], "c": {"x": True}})
    for wrong in ({}, {"a": 1, "d": 2}, {"a": 1, "b": [{}]}, {"a": 1, "c": {"z": True}}):
        assert not valid(wrong)
    one_of = jsonschema.Draft202012Validator({"oneOf": either("a b", "c")}).is_valid
    assert [one_of({"a": 1, "b": 1}), one_of({"c": 1}), one_of({"a": 1})] == [True, True, False]


def test_what_several_have_is_said_once() -> None:
    schema = record({**columns("rank?", "calls"), **keys("steps")})
    assert schema["required"] == ["calls", "steps"]
    assert schema["properties"]["rank"]["type"] == ["integer", "null"]
    with pytest.raises(KeyError):
        columns("rnak")


def test_lists_of_texts_are_those_of_the_tables() -> None:
    assert STAGES.split(", ") == [*STAGE.categories]
    assert {*STAGE_SOURCES.split(", ")} == {*STAGE_SOURCE.categories}
