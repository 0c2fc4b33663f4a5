"""Dumps of PyTorch's flight recorder, one per rank: the last collectives that it enqueued.

Format: `torch/csrc/distributed/c10d/FlightRecorder.hpp`, versions 2.4 to 2.10. Unknown times are
None in pickles and 0 in JSON, which also has integers as texts. The rank that wrote it is known
from the file's name only.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from tracekit.errors import DamagedTraceError

ENTRY_SCHEMA: Mapping[str, Any] = {
    "rank": pl.Int64,
    "record": pl.Int64,
    "group": pl.String,
    "description": pl.String,
    "members": pl.List(pl.Int64),
    "backend": pl.String,
    "collective": pl.String,
    "source": pl.Int64,
    "target": pl.Int64,
    "sequence": pl.Int64,
    "input_sizes": pl.String,
    "output_sizes": pl.String,
    "input_elements": pl.Int64,
    "output_elements": pl.Int64,
    "input_types": pl.String,
    "output_types": pl.String,
    "state": pl.String,
    "created": pl.Int64,
    "place": pl.String,
}
"""Columns of entries. ``members``: ranks of the group, null if the dump does not list them;
``source`` and ``target`` of a message: positions within the group; sizes: texts as ``[[1024, 8]]``;
``created``: when it was enqueued, Unix time of its host, ns; ``place``: innermost stack frame
outside of PyTorch."""
RANK_SCHEMA: Mapping[str, Any] = {
    "rank": pl.Int64,
    "file": pl.String,
    "version": pl.String,
    "entries": pl.Int64,
    "lost": pl.Int64,
}
"""Columns of ranks. ``lost``: number of entries that the recorder's ring had overwritten."""

_NAME = re.compile(
    r"(?P<backend>[a-z]+):(?P<collective>\w+)(?: (?P<one>\d+)(?P<way>->|<-)(?P<other>\d+))?"
)
_LIBRARY = re.compile(r"/torch/|/site-packages/|/lib/python[\d.]+/|^<frozen|/dist-packages/")
_RANK = re.compile(r"(\d+)(?:\.(?:json|pkl|pickle))?$")
_MOST_TENSORS = 4_096
_MOST_DIMENSIONS = 32
_INT64 = range(-(2**63), 2**63)


def is_flight_recorder(dump: Any) -> bool:
    """Test whether unpickled or JSON values are a dump of PyTorch's flight recorder."""
    return isinstance(dump, dict) and "entries" in dump and "version" in dump


def rank_of(path: Path) -> int:
    """Return the rank that wrote a dump: the number at the end of its file name.

    Raises
    ------
    DamagedTraceError
        If the name does not end in a number.
    """
    match = _RANK.search(path.name)
    if match is None or int(match[1]) not in _INT64:
        raise DamagedTraceError(
            f"{path.name}: the name of a dump ends in its rank, which is recorded nowhere else",
            "give it the name that PyTorch gave it, such as nccl_trace_rank_3",
        )
    return int(match[1])


def read_flight_recorder(
    dump: Mapping[str, Any], path: Path
) -> tuple[Sequence[Mapping[str, Any]], Mapping[str, Any]]:
    """Return the rows of one rank's dump: its collectives, by `ENTRY_SCHEMA`, and the rank itself.

    The row of the rank, by `RANK_SCHEMA`, has the number of collectives in the dump, and the number
    of older collectives that the ring buffer has lost.
    """
    entries = dump["entries"]
    if not isinstance(entries, list) or not all(isinstance(each, dict) for each in entries):
        raise DamagedTraceError(f"{path.name}: the entries of the dump are not a list of records")
    rank, groups = rank_of(path), _groups(dump.get("pg_config"))
    rows = [_entry(each, rank, groups) for each in entries]
    first = min((row["record"] for row in rows if row["record"] is not None), default=0)
    version = dump["version"]
    return rows, {
        "rank": rank,
        "file": path.name,
        "version": version if isinstance(version, str) else None,
        "entries": len(rows),
        "lost": max(first, 0),
    }


def _groups(config: Any) -> Mapping[str, Sequence[int]]:
    """Return process group -> its ranks from a dump's `config`, for groups with a list of ranks."""
    if not isinstance(config, dict):
        return {}
    listed = {
        str(name): _ranks(each.get("ranks"))
        for name, each in config.items()
        if isinstance(each, dict)
    }
    return {name: ranks for name, ranks in listed.items() if ranks}


def _ranks(text: Any) -> Sequence[int]:
    try:
        ranks = json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return []
    if not isinstance(ranks, list) or not all(integer(each) is not None for each in ranks):
        return []
    return sorted({int(each) for each in ranks})


def _entry(
    entry: Mapping[str, Any], rank: int, groups: Mapping[str, Sequence[int]]
) -> dict[str, Any]:
    group, description = _group(entry.get("process_group"))
    name = _NAME.fullmatch(str(entry.get("profiling_name")))
    inputs, outputs = _sizes(entry.get("input_sizes")), _sizes(entry.get("output_sizes"))
    ends = _ends(name)
    return {
        "rank": rank,
        "record": integer(entry.get("record_id")),
        "group": group,
        "description": description,
        "members": groups.get(group) if group is not None else None,
        "backend": name["backend"] if name else None,
        "collective": name["collective"] if name else None,
        "source": ends[0],
        "target": ends[1],
        "sequence": integer(entry.get("collective_seq_id")),
        "input_sizes": _text(inputs),
        "output_sizes": _text(outputs),
        "input_elements": _elements(inputs),
        "output_elements": _elements(outputs),
        "input_types": _types(entry.get("input_dtypes")),
        "output_types": _types(entry.get("output_dtypes")),
        "state": state if isinstance(state := entry.get("state"), str) else None,
        "created": integer(entry.get("time_created_ns")) or None,
        "place": _place(entry.get("frames")),
    }


def _group(value: Any) -> tuple[str | None, str | None]:
    match value:
        case [name, description]:
            return str(name), str(description)
        case _:
            return None, None


def _ends(name: re.Match[str] | None) -> tuple[int | None, int | None]:
    """Return sender and receiver of a message, from `send 0->1` or `recv 1<-0`; None if unknown."""
    if name is None or name["one"] is None:
        return None, None
    one, other = integer(name["one"]), integer(name["other"])
    return (one, other) if name["way"] == "->" else (other, one)


def _sizes(value: Any) -> list[list[int]] | None:
    """Return the sizes of tensors; None if they are no lists of integers, or implausibly large."""
    if not isinstance(value, list) or len(value) > _MOST_TENSORS:
        return None
    fits = all(
        isinstance(each, list)
        and len(each) <= _MOST_DIMENSIONS
        and all(type(size) is int and size in _INT64 for size in each)
        for each in value
    )
    return value if fits else None


def _text(sizes: list[list[int]] | None) -> str | None:
    return None if sizes is None else json.dumps(sizes)


def _elements(sizes: list[list[int]] | None) -> int | None:
    if not sizes:
        return None
    total = sum(map(math.prod, sizes))
    return total if total in _INT64 else None


def _types(value: Any) -> str | None:
    """Return the distinct element types of tensors as text; None if there are none, or too many."""
    if not isinstance(value, list) or len(value) > _MOST_TENSORS:
        return None
    return ", ".join(sorted({str(each) for each in value})) or None


def _place(frames: Any) -> str | None:
    """Return where a collective was called, as `step at train/loop.py:28`, from its stack frames.

    It is the innermost frame outside of libraries, else the innermost frame; None without frames.
    """
    if not isinstance(frames, list):
        return None
    known = [each for each in frames[:1_000] if isinstance(each, dict) and each.get("filename")]
    of_program = (each for each in known if not _LIBRARY.search(str(each["filename"])))
    frame = next(of_program, known[0] if known else None)
    if frame is None:
        return None
    file = "/".join(Path(str(frame["filename"])).parts[-2:])
    return f"{frame.get('name')} at {file}:{frame.get('line')}"


def integer(value: Any) -> int | None:
    """Return an integer, which JSON may contain as text; None for anything else."""
    if isinstance(value, str):
        value = int(value) if re.fullmatch(r"-?\d{1,19}", value) else None
    return value if type(value) is int and value in _INT64 else None
