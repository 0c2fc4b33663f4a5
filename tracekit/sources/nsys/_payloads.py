"""Decode extended payloads of NVTX events, whose layouts the program declares.

Domains are numbered per process, but the tables with the declarations do not name the process. So a
number that is declared in two ways is ambiguous, and is not used.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from tracekit.sources._export_tables import ExportFile
from tracekit.sources.sqlite import SqlType

SCHEMAS = "NVTX_PAYLOAD_SCHEMAS"
_ENTRIES = "NVTX_PAYLOAD_SCHEMA_ENTRIES"
_ENUMS = "NVTX_PAYLOAD_ENUMS"
_ENUM_ENTRIES = "NVTX_PAYLOAD_ENUM_ENTRIES"

_Key = tuple[int, int]
"""A domain, and the number of a layout or an enumeration in it."""
_Declared = Mapping[_Key, Sequence[Mapping[str, Any]]]
"""Key -> distinct rows of a table."""
_Type = type[pl.DataType]

_Enums = Mapping[_Key, tuple[_Type, Mapping[int, str]]]
"""Key -> how an enumeration is stored, and the names of its values."""

_BYTES: dict[_Type, int] = {
    pl.Int8: 1, pl.UInt8: 1, pl.Int16: 2, pl.UInt16: 2, pl.Int32: 4, pl.UInt32: 4, pl.Int64: 8,
    pl.UInt64: 8, pl.Float32: 4, pl.Float64: 8,
}  # fmt: skip

_LARGEST = 1 << 31
_MOST_FIELDS = 1000
_STATIC = 1  # the one type of layout in which every field has its place
_INDIRECT = 0b111_1110  # flags of a field that is a pointer, an offset or an array

# NVTX_PAYLOAD_ENTRY_TYPE_*, as 64-bit Linux has them. What is not listed is not decoded: texts,
# long doubles, layouts within layouts.
_TYPES: dict[int, _Type] = {
    1: pl.Int8, 2: pl.UInt8, 3: pl.Int16, 4: pl.UInt16, 5: pl.Int32, 6: pl.UInt32, 7: pl.Int64,
    8: pl.UInt64, 9: pl.Int64, 10: pl.UInt64, 11: pl.Int8, 12: pl.UInt8, 13: pl.Int16,
    14: pl.UInt16, 15: pl.Int32, 16: pl.UInt32, 17: pl.Int64, 18: pl.UInt64, 19: pl.Float32,
    20: pl.Float64, 22: pl.UInt64, 23: pl.UInt64, 43: pl.Float32, 44: pl.Float64,
}  # fmt: skip
_TYPE_OF_ENUM: dict[int | None, _Type] = {1: pl.Int8, 2: pl.Int16, 4: pl.Int32, 8: pl.Int64}
_HEADER_BYTES = 32


@dataclass(frozen=True)
class _Field:
    """A decodable field of a payload: its offset, type, and value names of an enumeration."""

    offset: int
    dtype: _Type
    labels: Mapping[int, str]

    @property
    def end(self) -> int:
        """Offset in the payload after the field, bytes."""
        return self.offset + _BYTES[self.dtype]

    def json(self, payload: pl.Expr) -> pl.Expr:
        """Return this field of the binary `payload` as JSON."""
        stored = payload.bin.slice(self.offset, self.end - self.offset)
        value = stored.bin.reinterpret(dtype=self.dtype, endianness="little")
        text = value.cast(pl.String)
        if self.dtype.is_float():
            text = pl.when(value.is_finite()).then(text)
        if self.labels:
            codes, names = list(self.labels), [json.dumps(name) for name in self.labels.values()]
            named = value.cast(pl.Int64).replace_strict(
                codes, names, default=None, return_dtype=pl.String
            )
            text = pl.coalesce(named, text)
        return text.fill_null("null")


@dataclass(frozen=True)
class _Layout:
    """Layout of a payload: field name -> field (None: cannot be decoded), and its size in bytes."""

    fields: Mapping[str, _Field | None]
    size: int | None

    def fits(self, size: pl.Expr) -> pl.Expr:
        """Test whether payloads of `size` bytes can have this layout."""
        if self.size is not None:
            return size == self.size
        return size >= max(field.end for field in self.fields.values() if field)

    def json(self, payload: pl.Expr) -> pl.Expr:
        """Return binary `payload` as JSON, decoded by this layout."""
        parts: list[pl.Expr] = []
        for number, (name, field) in enumerate(self.fields.items()):
            value = pl.lit("null") if field is None else field.json(payload)
            parts += [pl.lit(f"{', ' if number else '{'}{json.dumps(name)}: "), value]
        return pl.concat_str(*parts, pl.lit("}"))


def _read_layouts(file: ExportFile) -> dict[_Key, _Layout | None]:
    """Return the payload layouts that an export declares, by (domain, schema id).

    None for one that is declared in several ways. A layout without any decodable field is left out.
    """
    schemas = _declared(file, SCHEMAS, "type", "numEntries", "payloadSize")
    entries = _declared(file, _ENTRIES, "idx", "flags", "type", "offset")
    enums = _enums(file)
    layouts: dict[_Key, _Layout | None] = {}
    for key, rows in schemas.items():
        if len(rows) > 1 or _is_mixed(entries.get(key, ())):
            layouts[key] = None
        elif layout := _layout(rows[0], entries.get(key, ()), enums):
            layouts[key] = layout
    return layouts


def _declared(file: ExportFile, table: str, *columns: str) -> _Declared:
    """Return a table's distinct rows by (domain, schema id), ordered by ``idx`` if it has one.

    Zeros, which the exporter leaves out (such as the id of the default domain), are restored.
    """
    wanted: dict[str, SqlType] = dict.fromkeys(("domainId", "schemaId", *columns), "int")
    if "idx" in columns:  # it is a table of members, which have names
        wanted["name"] = "text"
    zeros = [name for name in wanted if name in ("domainId", "idx", "flags", "offset", "value")]
    rows = file.read(table, wanted).with_columns(pl.col(zeros).fill_null(0))
    order = "idx" if "idx" in columns else "schemaId"
    distinct = rows.drop_nulls("schemaId").unique(maintain_order=True)
    found: dict[_Key, list[Mapping[str, Any]]] = {}
    for row in distinct.sort(order, maintain_order=True).to_dicts():
        found.setdefault((row["domainId"], row["schemaId"]), []).append(row)
    return found


def _is_mixed(members: Sequence[Mapping[str, Any]]) -> bool:
    return len({member["idx"] for member in members}) < len(members)


def _enums(file: ExportFile) -> _Enums:
    """Return storage type and value names of each enumeration that is declared consistently."""
    enums = _declared(file, _ENUMS, "numEntries", "size")
    members = _declared(file, _ENUM_ENTRIES, "idx", "value")
    return {
        key: (
            _TYPE_OF_ENUM[rows[0]["size"]],
            {each["value"]: each["name"] for each in members.get(key, ()) if each["name"]},
        )
        for key, rows in enums.items()
        if len(rows) == 1
        and rows[0]["size"] in _TYPE_OF_ENUM
        and not _is_mixed(members.get(key, ()))
    }


def _layout(
    schema: Mapping[str, Any], entries: Sequence[Mapping[str, Any]], enums: _Enums
) -> _Layout | None:
    size, count = schema["payloadSize"] or None, schema["numEntries"] or len(entries)
    if schema["type"] != _STATIC or not 0 < count == len(entries) <= _MOST_FIELDS:
        return None
    if [entry["idx"] for entry in entries] != [*range(count)]:
        return None
    known = [_type(entry, enums) for entry in entries]
    places = _places(entries, known)
    fields: dict[str, _Field | None] = {}
    for entry, type_, place in zip(entries, known, places, strict=True):
        name = entry["name"] or f"field {entry['idx']}"
        field = None if type_ is None or place is None else _Field(place, *type_)
        fits = field is not None and _has_room(field, places, size)
        fields[name if name not in fields else f"{name} ({entry['idx']})"] = field if fits else None
    return _Layout(fields, size) if any(fields.values()) else None


def _type(entry: Mapping[str, Any], enums: _Enums) -> tuple[_Type, Mapping[int, str]] | None:
    if entry["flags"] & _INDIRECT:
        return None
    plain = _TYPES.get(entry["type"])
    return enums.get((entry["domainId"], entry["type"])) if plain is None else (plain, {})


def _places(
    entries: Sequence[Mapping[str, Any]], types: Sequence[tuple[_Type, object] | None]
) -> list[int | None]:
    """Return the offset of each field in the payload; None if unknown.

    It is the declared one, else the next one after the field before that is aligned to the type.
    """
    places: list[int | None] = []
    end: int | None = 0
    for entry, type_ in zip(entries, types, strict=True):
        size = None if type_ is None else _BYTES[type_[0]]
        place: int | None = entry["offset"]
        if not place and entry["idx"]:
            place = None if size is None or end is None else -(-end // size) * size
        end = None if size is None or place is None else place + size
        places.append(place)
    return places


def _has_room(field: _Field, places: Sequence[int | None], size: int | None) -> bool:
    """Test whether a field ends within a payload of `size` bytes, and no other one begins in it."""
    inside = [place for place in places if place is not None and field.offset <= place < field.end]
    within = 0 <= field.offset < _LARGEST and (size is None or field.end <= size)
    return within and len(inside) == 1


class Payloads:
    """Decodes extended (binary) payloads of NVTX events; counts those that it cannot decode."""

    def __init__(self, file: ExportFile) -> None:
        self._layouts = _read_layouts(file)
        self._keys = pl.DataFrame(
            list(self._layouts), schema={"domain": pl.Int64, "schema": pl.Int64}, orient="row"
        )
        self._unclear = 0
        self._lost = 0
        self._partial = 0

    @property
    def losses(self) -> tuple[str, ...]:
        """Warnings, one sentence each, on NVTX payloads that were not decoded."""
        losses = (
            (self._unclear, "were left out: the export declares their layout in several ways"),
            (self._lost, "were left out: they are damaged, or their layout is not declared"),
            (self._partial, "have fields of an unknown type, which were left out"),
        )
        return tuple(f"{count:,} NVTX payloads {problem}" for count, problem in losses if count)

    def of(self, blobs: pl.Series) -> pl.Series:
        """Return each binary payload as JSON; null if there is none or it cannot be decoded."""
        rows = pl.DataFrame({"blob": blobs}).with_row_index("row")
        known = rows.drop_nulls()
        declared = _with_header(known).join(self._keys, on=["domain", "schema"], how="semi")
        parts = [pl.DataFrame(schema={"row": pl.UInt32, "json": pl.String})]
        unclear = 0
        for key, part in declared.partition_by("domain", "schema", as_dict=True).items():
            domain, schema = key
            layout = self._layouts[int(domain), int(schema)]
            if layout is None:
                unclear += part.height
            else:
                parts.append(self._decoded(part, layout))
        decoded = pl.concat(parts)
        self._unclear += unclear
        self._lost += known.height - unclear - decoded.height
        return rows.join(decoded, on="row", how="left", maintain_order="left")["json"]

    def _decoded(self, rows: pl.DataFrame, layout: _Layout) -> pl.DataFrame:
        complete = rows.filter(layout.fits(pl.col("size")))
        self._partial += complete.height if None in layout.fields.values() else 0
        return complete.select("row", json=layout.json(pl.col("blob").bin.slice(_HEADER_BYTES)))


def _with_header(rows: pl.DataFrame) -> pl.DataFrame:
    """Decode the headers of payloads; drop payloads whose length is not that in their header."""
    headed = rows.with_columns(
        domain=_number(0, pl.UInt32),
        schema=_number(8, pl.UInt32),
        size=_number(16, pl.UInt64),
        total=_number(24, pl.UInt64),
    )
    length = pl.col("blob").bin.size().cast(pl.Int64)
    return headed.filter(pl.col("total") == length, pl.col("size") == length - _HEADER_BYTES).drop(
        "total"
    )


def _number(offset: int, dtype: _Type) -> pl.Expr:
    stored = pl.col("blob").bin.slice(offset, _BYTES[dtype])
    return stored.bin.reinterpret(dtype=dtype, endianness="little").cast(pl.Int64, strict=False)
