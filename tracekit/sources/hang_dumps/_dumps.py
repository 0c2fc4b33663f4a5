"""Read files and folders of dumps of a hanging job, recognised by their content."""

from __future__ import annotations

import io
import json
import pickle
import pickletools
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from tracekit.errors import (
    DamagedTraceError,
    InputError,
    NotATraceError,
    UnsupportedTraceError,
)
from tracekit.sources._json_values import mapping
from tracekit.sources.hang_dumps._flight_recorder import (
    ENTRY_SCHEMA,
    RANK_SCHEMA,
    integer,
    is_flight_recorder,
    read_flight_recorder,
)
from tracekit.support.files import StrPath

_MOST_BYTES = 64 * 2**20
"""Largest dump that is read, bytes; a ring of 20,000 entries with frames takes about 30 MB."""
_NEITHER = "is neither a dump of the flight recorder nor of RAS"
_PICKLE = b"\x80"
_PLAIN_OPCODES = (
    "PROTO STOP MARK NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINFLOAT BINUNICODE "
    "EMPTY_DICT EMPTY_LIST EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 APPEND APPENDS SETITEM SETITEMS "
    "BINPUT BINGET LONG_BINPUT LONG_BINGET"
)
"""Opcodes that make plain values. PyTorch's C++ pickler (protocol 2) writes no others.
None of them names a class or calls anything."""


@dataclass(frozen=True)
class Dumps:
    """Tables with the contents of all dumps of a job that hangs."""

    entries: pl.DataFrame
    """Collectives that each rank enqueued, from the flight recorder, by `ENTRY_SCHEMA`."""
    ranks: pl.DataFrame
    """Ranks with a dump of the flight recorder, by `RANK_SCHEMA`."""
    peers: pl.DataFrame
    """State of each rank in each communicator, from NCCL's RAS, by `PEER_SCHEMA`."""
    events: pl.DataFrame
    """Events that RAS reported, by `EVENT_SCHEMA`."""
    warnings: Sequence[str] = ()
    """Files that were left out, and why, one sentence each."""


@dataclass
class _Rows:
    entries: list[Any] = field(default_factory=list)
    ranks: list[Any] = field(default_factory=list)
    peers: list[Any] = field(default_factory=list)
    events: list[Any] = field(default_factory=list)
    queries: int = 0

    def add(self, value: Any, path: Path) -> None:
        """Add the contents of a dump (flight recorder or RAS) to the rows.

        Raises
        ------
        NotATraceError
            If the value is no dump.
        """
        if is_flight_recorder(value):
            entries, rank = read_flight_recorder(value, path)
            self.entries.extend(entries)
            self.ranks.append(rank)
        elif is_ras(value) and "communicators" in value:
            self.peers.extend(peers_of(value, self.queries))
            self.queries += 1
        elif is_ras(value):
            self.events.append(event_of(value))
        else:
            raise NotATraceError(f"{path.name} {_NEITHER}", "name a run with --run")


def read_dumps(paths: Sequence[StrPath]) -> Dumps:
    """Read all dumps of one job, of PyTorch's flight recorder and of NCCL's RAS.

    Parameters
    ----------
    paths
        Files, or folders, whose dumps are read and whose other files are skipped. If a rank wrote
        both a pickle and JSON, the pickle is read, as only the pickle has stack frames.

    Raises
    ------
    NotATraceError
        If a named file is no dump, or a folder contains none.
    DamagedTraceError
        If a named file is cut short or too large, or two dumps belong to one rank.
    UnsupportedTraceError
        If a named pickle could run code.
    """
    rows, warnings = _Rows(), []
    for source in map(Path, paths):
        before = len(rows.ranks) + len(rows.events) + rows.queries
        if not source.is_dir():
            for value in _values(source):
                rows.add(value, source)
            continue
        for path in _files(source):
            try:
                for value in _values(path):
                    rows.add(value, path)
            except NotATraceError:
                continue
            except InputError as error:
                warnings.append(f"{path.name} was left out: {error}")
        if len(rows.ranks) + len(rows.events) + rows.queries == before:
            found = f" ({warnings[-1]})" if warnings else ""
            raise NotATraceError(f"no dump is in {source}{found}")
    ranks = pl.DataFrame(rows.ranks, schema=dict(RANK_SCHEMA), orient="row").sort("rank")
    _check_once(ranks)
    return Dumps(
        pl.DataFrame(rows.entries, schema=dict(ENTRY_SCHEMA), orient="row"),
        ranks,
        pl.DataFrame(rows.peers, schema=dict(PEER_SCHEMA), orient="row"),
        pl.DataFrame(rows.events, schema=dict(EVENT_SCHEMA), orient="row"),
        warnings,
    )


def _files(folder: Path) -> Sequence[Path]:
    """Return the files of a folder of dumps; of two files `X` and `X.json` only `X`."""
    files = sorted(each for each in folder.iterdir() if each.is_file())
    return [each for each in files if each.suffix != ".json" or each.with_suffix("") not in files]


def _values(path: Path) -> Iterator[Any]:
    """Yield the contents of a file: the value of a pickle, or one or more JSON values."""
    kind = path.stat()
    if not stat.S_ISREG(kind.st_mode):
        raise NotATraceError(f"{path} is not a file")
    if kind.st_size > _MOST_BYTES:
        raise NotATraceError(f"{path.name} is larger than a dump is ({kind.st_size:,} bytes)")
    data = path.read_bytes()
    if data[:1] == _PICKLE:
        yield _plain_pickle(data, path.name)
        return
    yield from _json_values(data, path)


def _json_values(data: bytes, path: Path) -> Iterator[Any]:
    text = data.decode("utf-8", "replace").strip()
    if not text.startswith("{"):
        raise NotATraceError(f"{path.name} {_NEITHER}", "name a run with --run")
    reader, place = json.JSONDecoder(), 0
    while place < len(text):
        try:
            value, place = reader.raw_decode(text, place)
        except (ValueError, RecursionError) as error:
            raise DamagedTraceError(f"{path.name} is incomplete JSON ({error})") from error
        yield value
        while place < len(text) and text[place].isspace():
            place += 1


def _check_once(ranks: pl.DataFrame) -> None:
    twice = ranks.filter(pl.col("rank").is_duplicated())
    if twice.height:
        names = ", ".join(twice["file"].head(2))
        raise DamagedTraceError(
            f"two dumps are of rank {twice['rank'][0]} ({names})",
            "name the dumps of one moment of one job",
        )


class _PlainUnpickler(pickle.Unpickler):
    """An unpickler that refuses to load any class, so that it cannot run code."""

    def find_class(self, module: str, name: str, /) -> Any:
        raise UnsupportedTraceError(f"the pickle needs {module}.{name}")


def _plain_pickle(data: bytes, where: str) -> Any:
    """Return the values of a pickle of integers, floats, texts, lists, tuples and dicts.

    All opcodes are checked before the pickle is loaded. `where` is the name of the pickle in
    messages.

    Raises
    ------
    UnsupportedTraceError
        If it contains an opcode that could run code.
    DamagedTraceError
        If it is cut, or no pickle.
    """
    plain = frozenset(_PLAIN_OPCODES.split())
    try:
        foreign = next(
            (op.name for op, _, _ in pickletools.genops(data) if op.name not in plain), None
        )
        if foreign is None:
            return _PlainUnpickler(io.BytesIO(data)).load()
    except (ValueError, EOFError, KeyError, IndexError, TypeError, pickle.UnpicklingError) as error:
        raise DamagedTraceError(f"{where} is an incomplete pickle ({error})") from error
    raise UnsupportedTraceError(
        f"{where} is a pickle that could run code (opcode {foreign})",
        "a dump of the flight recorder has none; no code in it was run",
    )


# -- answers of NCCL's RAS: `ncclras -f json`, and events of `ncclras -m`, as
# `src/ras/client_support.cc` of NCCL 2.28.7 and later writes them


PEER_SCHEMA: Mapping[str, Any] = {
    "query": pl.Int64,
    "communicator": pl.String,
    "size": pl.Int64,
    "rank": pl.Int64,
    "host": pl.String,
    "pid": pl.Int64,
    "is_missing": pl.Boolean,
    "is_dead": pl.Boolean,
    "error": pl.Int64,
    "calls": pl.Int64,
    "counts": pl.String,
}
"""Columns of peers, one row per rank of each communicator and query. ``calls``: number of
collectives it has called; ``counts``: the same by collective."""
EVENT_SCHEMA: Mapping[str, Any] = {
    "time": pl.String,
    "event": pl.String,
    "host": pl.String,
    "pid": pl.Int64,
}
"""Columns of events as RAS wrote them; ``time`` is the host's, to the second."""


def is_ras(value: Any) -> bool:
    """Test whether a JSON value comes from NCCL's RAS: a status of the job, or an event."""
    return isinstance(value, dict) and (
        isinstance(value.get("communicators"), list)
        or (str(value.get("event")).startswith("PEER_") and "group" in value)
    )


def peers_of(status: Mapping[str, Any], query: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each rank of each communicator in a RAS status.

    Ranks that did not answer are included. `query` is the number of the status among those read.
    """
    for communicator in status["communicators"]:
        if not isinstance(communicator, dict):
            continue
        for key in ("ranks", "missing_ranks"):
            listed = communicator.get(key)
            for peer in listed if isinstance(listed, list) else []:
                if isinstance(peer, dict):
                    yield _peer(peer, communicator, query, is_missing=key == "missing_ranks")


def _peer(
    peer: Mapping[str, Any], communicator: Mapping[str, Any], query: int, *, is_missing: bool
) -> dict[str, Any]:
    status = mapping(peer.get("status"))
    record = mapping(peer.get("collective_counts"))
    counts = {str(name): int(count) for name, count in record.items() if integer(count) is not None}
    return {
        "query": query,
        "communicator": _text(communicator.get("hash")),
        "size": integer(communicator.get("size")),
        "rank": integer(peer.get("rank")),
        "host": _text(peer.get("host")),
        "pid": integer(peer.get("pid")),
        "is_missing": is_missing,
        "is_dead": status.get("considered_dead") is True,
        "error": integer(status.get("async_error")),
        "calls": integer(sum(counts.values())) if counts else None,
        "counts": ", ".join(f"{name} {count}" for name, count in sorted(counts.items()) if count)
        or None,
    }


def event_of(event: Mapping[str, Any]) -> dict[str, Any]:
    """Convert an event reported by NCCL's RAS to a row of `EVENT_SCHEMA`."""
    peer = mapping(event.get("peer"))
    return {
        "time": _text(event.get("timestamp")),
        "event": str(event["event"]),
        "host": _text(peer.get("host") or peer.get("addr")),
        "pid": integer(peer.get("pid")),
    }


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
