"""Writes tracks as Chrome trace events (JSON), one event at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any

from tracekit.export._tracks import Lanes, Track
from tracekit.model import normalised_name

_LONG = 80
"""Length in characters above which a name or path is written once, and replaced by a short name."""


def write(tracks: Iterable[Track], file: IO[bytes]) -> None:
    """Write tracks; ``otherData`` maps the short names of slices and ranges to the long ones."""
    file.write(b'{"displayTimeUnit":"ns","traceEvents":[\n')
    separator, names = b"", _Names()
    for event in _events(tracks, names):
        file.write(separator + _text(event).encode())
        separator = b",\n"
    file.write(b'\n],"otherData":' + _text({"names": names.long}).encode() + b"}\n")


class _Names:
    """Short names of slices and paths of ranges, made unique."""

    def __init__(self) -> None:
        self.long: dict[str, str] = {}
        self._shown: dict[str, str] = {}

    def shown(self, name: str, shortened: Callable[[str], str] = normalised_name) -> str:
        """Return the short form of a name or path."""
        if len(name) <= _LONG:
            return name
        if name not in self._shown:
            number = f" ({len(self.long) + 1})"
            # What a kernel is called comes after its namespaces, and a range after those around.
            self._shown[name] = shortened(name)[len(number) - _LONG :] + number
            self.long[self._shown[name]] = name
        return self._shown[name]


def _text(event: dict[str, Any]) -> str:
    return json.dumps(event, separators=(",", ":"), allow_nan=False)


def _events(tracks: Iterable[Track], names: _Names) -> Iterator[dict[str, Any]]:
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
            told = row[4]
            if told and told.get("range"):
                told = {**told, "range": names.shown(told["range"], str)}
            shown = (*row[:2], names.shown(row[2]), row[3], told, *row[5:])
            yield from _slice(shown, pid, tids[lane])


def _named(what: str, name: str, pid: int, tid: int) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def _counted(track: Track, pid: int) -> Iterator[dict[str, Any]]:
    for time, value in track.rows.iter_rows():
        args = {track.unit or "value": value}
        yield {"ph": "C", "name": track.name, "pid": pid, "ts": _us(time), "args": args}


def _slice(row: tuple[Any, ...], pid: int, tid: int) -> Iterator[dict[str, Any]]:
    start, end, name, category, told, flows, flow = row
    place = {"pid": pid, "tid": tid, "ts": _us(start)}
    event = {"ph": "X", "name": name, "cat": category or "span", **place, "dur": _us(end - start)}
    args = {key: value for key, value in (told or {}).items() if value is not None}
    yield {**event, "args": args} if args else event
    for each in flows or ():
        yield {"ph": "s", "name": "launch", "cat": "launch", "id": each, **place}
    if flow is not None:
        yield {"ph": "f", "bp": "e", "name": "launch", "cat": "launch", "id": flow, **place}


def _us(time: int) -> float:
    """Return ns as us, a float; three decimals stay exact up to 52 days."""
    return time / 1000
