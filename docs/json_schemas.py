"""The JSON Schema of what each command writes, from what it says of that."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tracekit.cli import app
from tracekit.cli._command import WRITTEN
from tracekit.support.schemas import Json

_REGISTERED = app  # each command says what it writes as it is registered


def schema_files() -> dict[str, str]:
    """Return the schemas by the names of their files."""
    return {f"{_stem(each)}.schema.json": schema_text(each.schema()) for each in WRITTEN.values()}


def _stem(written: Json) -> str:
    return written.command.replace(" ", "-")


def schema_text(schema: dict[str, Any]) -> str:
    """Return a schema as text: a line for each property that has none itself."""
    return "".join(_pieces(schema, "")) + "\n"


def _pieces(value: Any, margin: str, *, is_list_of_properties: bool = False) -> Iterator[str]:
    line = json.dumps(value, ensure_ascii=False)
    if not value or not (is_list_of_properties or '"properties":' in line):
        yield line
        return
    inner = margin + "  "
    pairs = value.items() if isinstance(value, dict) else [(None, each) for each in value]
    begin, end = "{}" if isinstance(value, dict) else "[]"
    comma = begin
    for name, each in pairs:
        yield f"{comma}\n{inner}" + ("" if name is None else f"{json.dumps(name)}: ")
        yield from _pieces(each, inner, is_list_of_properties=name == "properties")
        comma = ","
    yield f"\n{margin}{end}"
