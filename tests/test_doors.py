"""A command and an input format come from outside of the package, and all works with them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import plotly.graph_objects as go
import polars as pl
import pytest
import typer
from json_schemas import schema_files
from trace_builder import TraceBuilder
from typer.main import get_command
from typer.testing import CliRunner

import tracekit as tk
from tracekit.cli import Json, Judged, app, command
from tracekit.cli._command import WRITTEN
from tracekit.errors import NotATraceError
from tracekit.model import Answer, Recording
from tracekit.present._drawings import DRAWINGS
from tracekit.sources import FORMATS, Format, Opening, read

MAGIC = b"DUMMY"


@pytest.fixture
def dummy() -> Iterator[None]:
    """A command `dummy` with a figure, which fails beyond its limit."""
    written = Json(
        "dummy",
        run="null: It is of no run.",
        meta={"warnings": "texts: What a user should know."},
        rows={
            "number": "count: A number.",
            "total_ns": "count: Its square.",
            "note?": "text: Of it.",
        },
    )

    @command("tracekit dummy 3", writes=[written], figures={"squares": "Draw the squares"})
    def dummy(count: int, limit: int = 9) -> Judged:
        """List squares."""
        rows = pl.DataFrame({"number": range(count), "total_ns": [n * n for n in range(count)]})
        answer = Answer(
            rows=rows,
            meta={"warnings": ["of small numbers"]},
            title="squares",
            command="dummy",
            figures={"squares": "squares"},
            renderer=tk.present.RENDERER,
        )
        return Judged(answer, 1 if count > limit else 0)

    before = dict(DRAWINGS)
    DRAWINGS["squares"] = lambda answer: go.Figure(go.Bar(y=answer.rows["total_ns"]))
    yield
    app.registered_commands.pop()
    WRITTEN.pop("dummy")
    DRAWINGS.clear()
    DRAWINGS.update(before)


def _run(*words: str | Path) -> Any:
    return CliRunner().invoke(app, [*map(str, words)])


def test_a_command_has_help_formats_figures_and_exit_codes(dummy: None, tmp_path: Path) -> None:
    assert "List squares." in _run("--help").stdout
    told = _run("dummy", "--help").stdout
    for part in ("tracekit dummy 3", "--squares", "--format", "--output", "--limit"):
        assert part in told
    document = json.loads(_run("dummy", "3", "-f", "json").stdout)
    assert document["command"] == "dummy"
    assert document["rows"][2] == {"number": 2, "total_ns": 4}
    table = _run("dummy", "3", "--squares", tmp_path / "squares.html").stdout
    assert "squares" in table
    assert "of small numbers" in table
    assert "Plotly.react" in (tmp_path / "squares.html").read_text()
    assert _run("dummy", "10").exit_code == 1
    assert "dummy" in get_command(app).list_commands(typer.Context(get_command(app)))  # type: ignore[attr-defined]


def test_what_a_command_writes_is_its_schema(dummy: None) -> None:
    text = schema_files()["dummy.schema.json"]
    assert '\n          "note": {"description": "Of it.", "type": "string"}\n' in text
    schema = json.loads(text)
    validator = jsonschema.Draft202012Validator(schema)
    document = json.loads(_run("dummy", "3", "-f", "json").stdout)
    assert not [*validator.iter_errors(document)]
    assert schema["title"] == "tracekit dummy --format json"
    document["rows"][0] = {"number": -1, "more": 0}
    faults = sorted(error.message for error in validator.iter_errors(document))
    assert faults == [
        "'total_ns' is a required property",
        "-1 is less than the minimum of 0",
        "Additional properties are not allowed ('more' was unexpected)",
    ]


@dataclass(frozen=True)
class Bounds:
    """Options that belong together."""

    low: int = 0
    high: int = 9


# Not as text, as everywhere in this file: the command line asks a parameter for its class.
def _in_bounds(bounds, *, step: int = 1) -> Answer:  # type: ignore[no-untyped-def]
    """List numbers."""
    rows = pl.DataFrame({"number": range(bounds.low, bounds.high, step)})
    return Answer(rows=rows, command="numbers")


_in_bounds.__annotations__ |= {"bounds": Bounds, "step": int}


def test_options_that_belong_together_are_one_parameter() -> None:
    group = typer.Typer()
    command("tracekit numbers", writes=[], name="numbers", group=group)(_in_bounds)
    found = CliRunner().invoke(group, ["--low", "2", "--high", "8", "--step", "3", "-f", "json"])
    assert [row["number"] for row in json.loads(found.stdout)["rows"]] == [2, 5]
    told = CliRunner().invoke(group, ["--help"]).stdout
    assert told.index("--low") < told.index("--high") < told.index("--step")


def test_what_is_gone_is_gone() -> None:
    assert _run("dummy", "3").exit_code == 2


@pytest.fixture
def format_() -> Iterator[None]:
    """A format whose files begin with `DUMMY` and hold how many kernels ran."""

    def begins(path: Path) -> bool:
        return path.is_file() and path.read_bytes().startswith(MAGIC)

    def opened(one: Opening) -> Recording | None:
        count = int(one.path.read_bytes().removeprefix(MAGIC))
        if not count:
            return None
        builder = TraceBuilder()
        for number in range(count):
            builder.op("kernel", start=10 * number, end=10 * number + 5)
        return Recording.of(builder.trace())

    FORMATS.append(Format("dummies", begins, opened))
    yield
    FORMATS.pop()


def test_a_format_is_recognised_and_read(format_: None, tmp_path: Path) -> None:
    file = tmp_path / "trace.dummy"
    file.write_bytes(MAGIC + b"3")
    assert read(file).read("ops").height == 3
    run, is_new = tk.ingest(file, store=tmp_path / "store")
    assert is_new
    assert run.breakdown("kernel")["ops"].to_list() == [3]
    file.write_bytes(MAGIC + b"0")
    with pytest.raises(NotATraceError, match="is not a trace"):
        read(file)


def test_a_format_that_is_not_there_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "trace.dummy"
    file.write_bytes(MAGIC + b"3")
    with pytest.raises(NotATraceError, match="is not a trace"):
        read(file)
