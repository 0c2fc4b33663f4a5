"""Read answers of NCCL's RAS: `ncclras -f json`, and events of `ncclras -m`.

Format: `src/ras/client_support.cc` of NCCL 2.28.7 and later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

PEER_SCHEMA: Mapping[str, Any] = {
    "query": pl.Int64,
    "communicator": pl.String,
    "size": pl.Int64,
    "rank": pl.Int64,
    "host": pl.String,
    "pid": pl.Int64,
    "is_missing": pl.Boolean,
    "is_unresponsive": pl.Boolean,
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
    "details": pl.String,
}
"""Columns of events as RAS wrote them; ``time`` is the host's, to the second."""

_INT64 = range(-(2**63), 2**63)


def is_ras(value: Any) -> bool:
    """Tell whether a JSON value is a status or an event of RAS."""
    return isinstance(value, dict) and (
        isinstance(value.get("communicators"), list)
        or (str(value.get("event")).startswith("PEER_") and "group" in value)
    )


def peers_of(status: Mapping[str, Any], query: int) -> Iterator[dict[str, Any]]:
    """Yield the ranks of each communicator in a status, including those that did not answer."""
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
    status = _record(peer.get("status"))
    given = _record(peer.get("collective_counts"))
    counts = {str(name): int(count) for name, count in given.items() if _number(count) is not None}
    total = sum(counts.values())
    return {
        "query": query,
        "communicator": _text(communicator.get("hash")),
        "size": _number(communicator.get("size")),
        "rank": _number(peer.get("rank")),
        "host": _text(peer.get("host")),
        "pid": _number(peer.get("pid")),
        "is_missing": is_missing,
        "is_unresponsive": status.get("unresponsive") is True,
        "is_dead": status.get("considered_dead") is True,
        "error": _number(status.get("async_error")),
        "calls": total if counts and total in _INT64 else None,
        "counts": ", ".join(f"{name} {count}" for name, count in sorted(counts.items()) if count)
        or None,
    }


def event_of(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return an event as a row of `EVENT_SCHEMA`."""
    peer = _record(event.get("peer"))
    return {
        "time": _text(event.get("timestamp")),
        "event": str(event["event"]),
        "host": _text(peer.get("host") or peer.get("addr")),
        "pid": _number(peer.get("pid")),
        "details": _text(event.get("details")) or None,
    }


def _record(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: Any) -> int | None:
    return value if type(value) is int and value in _INT64 else None
