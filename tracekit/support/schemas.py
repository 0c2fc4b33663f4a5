"""Declarations of commands' JSON in a few lines, and their JSON Schemas.

A key or column is declared in one line: its type, a colon, its meaning. `"count or null: Number of
calls."` may be null; `"one of ring, tree: How it goes round."` lists all texts allowed. A name that
ends in a question mark is optional. Other cases are written as a JSON Schema.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Schema = dict[str, Any]
Said = Mapping[str, str | Schema]

_KINDS: Mapping[str, Schema] = {
    "text": {"type": "string"},
    "texts": {"type": "array", "items": {"type": "string"}},
    "integer": {"type": "integer"},
    "integers": {"type": "array", "items": {"type": "integer"}},
    "count": {"type": "integer", "minimum": 0},
    "positive": {"type": "integer", "minimum": 1},
    "number": {"type": "number"},
    "time": {"type": "number"},
    "amount": {"type": "number", "minimum": 0},
    "share": {"type": "number", "minimum": 0, "maximum": 1},
    "flag": {"type": "boolean"},
    "id": {"type": "string", "pattern": "^[0-9a-f]{12}$"},
    "date": {"type": "string", "format": "date-time"},
    "true": {"const": True},
    "null": {"type": "null"},
}
_TYPES = {"text": "String", "texts": "List(String)", "id": "String", "one of": "String",
          "integer": "Int64", "integers": "List(Int64)", "count": "Int64", "positive": "Int64",
          "number": "Float64", "amount": "Float64", "share": "Float64", "flag": "Boolean",
          "time": "Int64 or Float64", "true": "Boolean", "date": "Datetime"}  # fmt: skip
_UNITS = {"ns": "ns", "bytes": "bytes", "gb_s": "GB/s", "percent": "%", "flops": "FLOP",
          "flops_s": "FLOP/s", "share": "ratio"}  # fmt: skip
_LINE = re.compile(r"(one of )?([^:]+)(?:: (.+))?")

ONE_RUN = "text: Name of the run."
NO_RUN = "null: The command concerns no single run."
STAGES = "FP, BP, WU, IO, ME, OTHER"
STAGE_SOURCES = (
    "pass_exchange, weight_exchange, gradient_exchange, nvtx, thread_name, process_range, "
    "backward_thread, autograd, structure, kernel_name, copy_kind, verdict, none"
)


def one(text: str | Schema) -> Schema:
    """Return the JSON Schema of one key or column, from its declaration ``type: meaning``.

    The meaning may be missing.
    """
    if not isinstance(text, str):
        return text
    match = _LINE.fullmatch(text)
    choices, kinds, meaning = match.groups() if match else (None, text, None)
    holds = _choice(kinds) if choices else _either_kind(kinds.split(" or "))
    return {"description": meaning, **holds} if meaning else holds


def _choice(texts: str) -> Schema:
    named, null, _ = texts.partition(" or null")
    return {"enum": [*named.split(", "), *([None] if null else [])]}


def _either_kind(kinds: list[str]) -> Schema:
    unknown = [kind for kind in kinds if kind not in _KINDS]
    if unknown:
        raise ValueError(f"unknown kind of value {unknown[0]!r}: choose one of {', '.join(_KINDS)}")
    found = [_KINDS[kind] for kind in kinds]
    types = {"type": [each["type"] for each in found]} if len(found) > 1 else {}
    return {name: rule for each in found for name, rule in each.items()} | types


def record(fields: Said, **rules: Any) -> Schema:
    """Return the schema of an object with exactly these keys; `rules` are further keywords."""
    return {
        "type": "object",
        "required": [name for name in fields if not name.endswith("?")],
        "properties": {name.removesuffix("?"): one(each) for name, each in fields.items()},
        "additionalProperties": False,
        **rules,
    }


def records(meaning: str, fields: Said, **rules: Any) -> Schema:
    """Return the schema of a list of objects that have exactly the keys `fields`."""
    return {"description": meaning, "type": "array", "items": record(fields, **rules)}


def by_name(meaning: str, value: str | Schema, names: str | None = None) -> Schema:
    """Return the schema of an object whose values are all of one type.

    `names` lists the keys allowed, joined by commas; None allows any.
    """
    known = {"propertyNames": one(f"one of {names}")} if names else {}
    return {"description": meaning, "type": "object", "additionalProperties": one(value), **known}


def either(*names: str) -> list[Schema]:
    """Return alternatives of a JSON Schema: each requires the keys in one of `names`.

    The keys in a text are separated by spaces.
    """
    return [{"required": each.split()} for each in names]


@dataclass(frozen=True)
class Column:
    """A column of an answer (a command's table): name, type and meaning."""

    name: str
    """Name of the column."""
    type: str | None
    """Name of its polars type (several if answers differ); None if polars has no such type."""
    unit: str | None
    """Unit of its values, or None."""
    meaning: str
    """Description of its values, and the meaning of null."""
    is_nullable: bool
    """Whether a value may be null."""
    is_always: bool
    """Whether every answer has the column."""

    @property
    def description(self) -> str:
        """The column's type and meaning on one line."""
        null = " or null" if self.is_nullable else ""
        return f"{self.type or 'list of records'}{null}. {self.meaning}"


def _column(name: str, text: str | Schema) -> Column:
    """Return a column from its declaration."""
    plain = name.removesuffix("?")
    unit = next((unit for end, unit in _UNITS.items() if f"_{plain}".endswith(f"_{end}")), None)
    is_always = plain == name
    if not isinstance(text, str):
        kind = "String" if isinstance(text.get("const"), str) else None
        is_nullable = "null" in text.get("type", ())
        return Column(plain, kind, unit, text.get("description", ""), is_nullable, is_always)
    match = _LINE.fullmatch(text)
    choice, kinds, meaning = match.groups() if match else (None, text, "")
    *_, null = parts = kinds.split(" or ")
    named = ["one of"] if choice else [part for part in parts if part != "null"]
    kind = " or ".join(_TYPES[part] for part in named)
    values = f" One of {kinds.partition(' or null')[0]}." if choice else ""
    return Column(plain, kind, unit, f"{meaning}{values}", null == "null", is_always)


@dataclass(frozen=True)
class Json:
    """Declaration of the JSON that a command writes, from which its JSON Schema is made."""

    command: str
    """Name of the command in answers."""
    meta: Said = field(default_factory=dict)
    rows: Said = field(default_factory=dict)
    """Declarations of the keys of meta, and of the columns of rows."""
    meta_rules: Schema = field(default_factory=dict)
    row_rules: Schema = field(default_factory=dict)
    """Further JSON Schema keywords for meta and for rows, such as keys that occur together."""
    run: str = ONE_RUN
    """Declaration of the key ``run``."""
    of_rows: str = "The result."
    """Description of the rows."""
    typed: str | None = None
    """Command line of the command, if it is not its name."""
    keys: Said = field(default_factory=dict)
    """Declarations of further keys beside meta and rows, or schemas that replace those two."""

    @functools.cached_property
    def columns(self) -> list[Column]:
        """Columns of the rows, from their declarations."""
        return [_column(name, text) for name, text in self.rows.items()]

    def schema(self) -> Schema:
        """Return the declaration as a JSON Schema."""
        keys: Said = {
            "command": {"description": "The command that made this.", "const": self.command},
            "run": self.run,
            "meta": record(self.meta, **self.meta_rules),
            "rows": records(self.of_rows, self.rows, **self.row_rules),
        }
        return {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": f"tracekit {self.typed or self.command} --format json",
            **record({**keys, **self.keys}),
        }
