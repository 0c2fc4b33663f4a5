"""Split the text of rocprofv3's JSON, with its long arrays, between records.

One object per process holds arrays of symbols and of records, in the order in which rocprofv3
writes them: names come before the records that refer to them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from tracekit.errors import DamagedTraceError
from tracekit.sources.kineto._document import MOST_AROUND, Document, Piece, first_of_each, head_of
from tracekit.sources.kineto._events import text_of

_BEGIN = re.compile(rb'^(\xef\xbb\xbf)?\s*\{\s*"rocprofiler-sdk-tool"\s*:')
# A quote within a string is escaped, so that none of these is found in one.
_ARRAY = re.compile(
    rb'"(kernel_symbols|code_objects|host_functions|kernel_dispatch|counter_collection|\w+_api'
    rb'|memory_copy|memory_allocation|scratch_memory|pc_sample_(?:host_trap|stochastic))"\s*:\s*\['
)
_PROCESS = re.compile(rb'"metadata"\s*:\s*\{\s*"node"')
_TOLD = {
    "agents": re.compile(rb'"agents"\s*:\s*(?=\[)'),
    "kinds": re.compile(rb'"strings"\s*:\s*\{.*?"buffer_records"\s*:\s*(?=\[)', re.DOTALL),
}

_ID: dict[str, Any] = {"handle": str}
_XYZ: dict[str, Any] = dict.fromkeys("xyz", str)
_HEAD: dict[str, Any] = {
    "kind": str, "operation": str, "thread_id": str,
    "start_timestamp": str, "end_timestamp": str,
    "correlation_id": {"internal": str}, "stream_id": _ID,
}  # fmt: skip
_API: dict[str, Any] = {**_HEAD, "key": str, "value": str}
FIELDS: Mapping[str, dict[str, Any]] = {
    "kernel_symbols": dict.fromkeys(
        ("kernel_id", "formatted_kernel_name", "demangled_kernel_name", "truncated_kernel_name",
         "kernel_name"), str,
    ),
    "kernel_dispatch": {
        **_HEAD,
        "dispatch_info": {
            "agent_id": _ID, "queue_id": _ID, "kernel_id": str,
            "workgroup_size": _XYZ, "grid_size": _XYZ,
        },
    },
    "memory_copy": {**_HEAD, "src_agent_id": _ID, "dst_agent_id": _ID, "bytes": str},
    "hip_api": _API, "rccl_api": _API, "marker_api": _API,
}  # fmt: skip
"""Array -> fields of its records that are read."""


def is_rocprof(path: Path) -> bool:
    """Tell whether a file begins like JSON of rocprofv3, gzipped or not."""
    return _BEGIN.match(head_of(path)) is not None


@dataclass(frozen=True)
class Part:
    """A batch of records from one array of the JSON of a process.

    Parameters
    ----------
    process
        Number of the process in the file, counted from 0.
    array
        Name of the array.
    told
        Lists that came earlier in the file, by name: `agents`, and `kinds` of operations.
    piece
        Text of the records.
    """

    process: int
    array: str
    told: Mapping[str, list[Any]]
    piece: Piece


class RocprofDocument(Document):
    """Text of a JSON file of rocprofv3."""

    def parts(self) -> Iterator[Part]:
        """Yield the records of the arrays in `FIELDS`, in batches.

        Raises
        ------
        DamagedTraceError
            If the file is cut short, or holds something else among its records.
        """
        text, offset, process = b"", 0, -1
        told: dict[str, list[Any]] = {}
        while True:
            found = _ARRAY.search(text)
            if found is None:
                more = self._read(self._block)
                text += more
                if len(self._around) + len(text) > MOST_AROUND:
                    raise DamagedTraceError(f"{self.path} holds too much beside its records")
                if not more:
                    break
                continue
            before = text[: found.end()]
            self._around += before
            process += len(_PROCESS.findall(before))
            told = {**told, **_told(before)}
            array = found[1].decode()
            for piece in self._until_closed(offset + found.end(), text[found.end() :]):
                if array in FIELDS:
                    yield Part(process, array, told, piece)
            offset, text = self._rest
        self._around += text
        if process < 0:
            raise self._cut_short(offset + len(text))


def parsed(part: Part, path: Path) -> tuple[Part, pl.DataFrame]:
    """Return a part with its records as a frame with the columns of `FIELDS`, all texts.

    Raises
    ------
    DamagedTraceError
        If one is no JSON.
    """
    fields = FIELDS[part.array]
    try:
        return part, pl.read_ndjson(part.piece.text, schema=fields_as_types(fields))
    except (pl.exceptions.PolarsError, UnicodeDecodeError):
        return part, pl.DataFrame(_one_by_one(part, path), schema=fields_as_types(fields))


def fields_as_types(fields: Mapping[str, Any]) -> dict[str, pl.DataType]:
    """Return field -> polars type; JSON objects become structs."""
    return {
        name: pl.Struct(fields_as_types(kind)) if isinstance(kind, dict) else pl.String()
        for name, kind in fields.items()
    }


def _one_by_one(part: Part, path: Path) -> list[dict[str, Any]]:
    """Parse records that a strict parser refuses."""
    records, at = [], part.piece.offset
    for line in part.piece.text.split(b"\n"):
        try:
            record = json.loads(
                line.decode("utf-8", "replace"), strict=False, object_pairs_hook=first_of_each
            )
        except (ValueError, RecursionError) as error:
            raise DamagedTraceError(
                f"{path} is corrupt: the record at byte {at:,} is no JSON ({error})",
                "copy or record it again",
            ) from error
        records.append(_projected(record, FIELDS[part.array]))
        at += len(line) + 1
    return records


def _projected(value: Any, fields: Mapping[str, Any]) -> dict[str, Any]:
    given = value if isinstance(value, dict) else {}
    return {
        name: _projected(given.get(name), kind)
        if isinstance(kind, dict)
        else text_of(given.get(name))
        for name, kind in fields.items()
    }


def _told(text: bytes) -> dict[str, list[Any]]:
    """Return the lists of `_TOLD` in a text, by name."""
    told = {}
    for name, pattern in _TOLD.items():
        if found := pattern.search(text):
            try:
                after = text[found.end() :].decode("utf-8", "replace")
                told[name] = json.JSONDecoder(strict=False).raw_decode(after)[0]
            except (ValueError, RecursionError):
                continue
    return told
