"""Tracks as Chrome's trace events: JSON, an event at a time."""

from __future__ import annotations

import json
from typing import IO, TYPE_CHECKING, Any

from tracekit.export._lanes import Lanes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tracekit.export._tracks import Track


def write(tracks: Iterable[Track], file: IO[bytes]) -> None:
    """Write tracks."""
    file.write(b'{"displayTimeUnit":"ns","traceEvents":[\n')
    separator = b""
    for event in _events(tracks):
        file.write(separator + _text(event).encode())
        separator = b",\n"
    file.write(b"\n]}\n")


def _text(event: dict[str, Any]) -> str:
    return json.dumps(event, separators=(",", ":"), allow_nan=False)


def _events(tracks: Iterable[Track]) -> Iterator[dict[str, Any]]:
    groups: dict[str, int] = {}
    last = 0
    for track in tracks:
        if track.group not in groups:
            groups[track.group] = len(groups) + 1
            yield _named("process_name", track.group, groups[track.group], 0)
        pid = groups[track.group]
        if track.unit is not None:
            yield from _counted(track, pid)
            continue
        lanes, tids = Lanes(), list[int]()
        for row in track.rows.iter_rows():
            lane = lanes.place(row[0], row[1])
            if lane == len(tids):
                last += 1
                tids.append(last)
                yield _named("thread_name", track.name + (f" +{lane}" if lane else ""), pid, last)
                order = {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": last}
                yield {**order, "args": {"sort_index": last}}
            yield from _slice(row, pid, tids[lane])


def _named(what: str, name: str, pid: int, tid: int) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def _counted(track: Track, pid: int) -> Iterator[dict[str, Any]]:
    for time, value in track.rows.iter_rows():
        args = {track.unit or "value": value}
        yield {"ph": "C", "name": track.name, "pid": pid, "ts": _us(time), "args": args}


def _slice(row: tuple[Any, ...], pid: int, tid: int) -> Iterator[dict[str, Any]]:
    start, end, name, category, size, flows, flow = row
    place = {"pid": pid, "tid": tid, "ts": _us(start)}
    event = {"ph": "X", "name": name, "cat": category or "span", **place, "dur": _us(end - start)}
    yield event if size is None else {**event, "args": {"bytes": size}}
    for each in flows or ():
        yield {"ph": "s", "name": "launch", "cat": "launch", "id": each, **place}
    if flow is not None:
        yield {"ph": "f", "bp": "e", "name": "launch", "cat": "launch", "id": flow, **place}


def _us(time: int) -> float:
    """Return ns as us; three decimals are told apart up to 52 days."""
    return time / 1000
