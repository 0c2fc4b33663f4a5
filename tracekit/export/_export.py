"""Export a run, or some of its steps, to a file for another program (Perfetto, Chrome)."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import IO, Any

import polars as pl

from tracekit.analysis import step_detail
from tracekit.engine import chosen_steps
from tracekit.errors import MissingDataError, UsageError
from tracekit.export._tracks import Lanes, Track, tracks_of
from tracekit.model import Trace, normalised_name
from tracekit.support.files import writing_whole
from tracekit.support.memory import MOST_ROWS, SOME_STEPS

FORMATS = ("perfetto", "chrome")
"""Names of the formats."""

_MOST_OPS = 1_000_000


def export(
    trace: Trace, path: Path, to: str = "perfetto", iterations: tuple[int, int] | None = None
) -> None:
    """Write a run in the trace format of another program; see ``docs/export.md``.

    Parameters
    ----------
    path
        File to write; gzipped if its name ends in ``.gz``.
    to
        Format, one of `FORMATS`.
    iterations
        First and last step to write; None writes the whole run.

    Raises
    ------
    UsageError
        If the format is unknown, the steps are not there, or the run is too large to be written
        as a whole.
    MissingDataError
        If the run has no GPU work.
    """
    if to not in FORMATS:
        raise UsageError(f"unknown export format {to!r}", f"choose {', '.join(FORMATS)}")
    steps = step_detail.step_spans(trace)
    if steps.is_empty():
        raise MissingDataError("this run has no GPU work", "record with `nsys profile -t cuda`")
    if iterations is None:
        _check_size(trace)
        spans = step_detail.whole_spans(trace)
    else:
        chosen = chosen_steps(steps, *iterations)
        if max(map(trace.height, ("ops", "calls", "ranges"))) > MOST_ROWS:
            trace = step_detail.around_steps(trace, steps, *iterations)
        steps = chosen
        spans = steps.group_by("process", "device").agg(pl.col("start").min(), pl.col("end").max())
    tracks = tracks_of(trace, spans.sort("process", "device"), steps, is_whole=iterations is None)
    with writing_whole(path) as file:
        out: Any = nullcontext(file)
        if path.suffix == ".gz":
            out = gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0)
        with out as written:
            (_write_chrome if to == "chrome" else _write_perfetto)(tracks, written)


def _check_size(trace: Trace) -> None:
    number = int(trace["ops"].select(pl.len()).collect().item())
    if number > _MOST_OPS:
        raise UsageError(
            f"the run has {number:,} ops, too many to write and to look at at once",
            SOME_STEPS,
        )


# -- Chrome trace events (JSON), written one at a time


_LONG = 80
"""Length in characters above which a name or path is written once, and replaced by a short name."""


def _write_chrome(tracks: Iterable[Track], file: IO[bytes]) -> None:
    """Write tracks as Chrome events; long names are shortened.

    ``otherData`` of the file maps short names to long ones.
    """
    file.write(b'{"displayTimeUnit":"ns","traceEvents":[\n')
    separator, names = b"", _Names()
    for event in _events(tracks, names):
        file.write(separator + _text(event).encode())
        separator = b",\n"
    file.write(b'\n],"otherData":' + _text({"names": names.long}).encode() + b"}\n")


class _Names:
    """Unique short names for long kernel names and range paths."""

    def __init__(self) -> None:
        self.long: dict[str, str] = {}
        self._shown: dict[str, str] = {}

    def shown(self, name: str, shortened: Callable[[str], str] = normalised_name) -> str:
        """Return a name or path; if it is long, its short form: `shortened`, cut and numbered."""
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
            details = row[4]
            if details and details.get("range"):
                details = {**details, "range": names.shown(details["range"], str)}
            shown = (*row[:2], names.shown(row[2]), row[3], details, *row[5:])
            yield from _slice(shown, pid, tids[lane])


def _named(entry: str, name: str, pid: int, tid: int) -> dict[str, Any]:
    return {"ph": "M", "name": entry, "pid": pid, "tid": tid, "args": {"name": name}}


def _counted(track: Track, pid: int) -> Iterator[dict[str, Any]]:
    for time, value in track.rows.iter_rows():
        args = {track.unit or "value": value}
        yield {"ph": "C", "name": track.name, "pid": pid, "ts": _us(time), "args": args}


def _slice(row: tuple[Any, ...], pid: int, tid: int) -> Iterator[dict[str, Any]]:
    start, end, name, category, details, flows, flow = row
    place = {"pid": pid, "tid": tid, "ts": _us(start)}
    event = {"ph": "X", "name": name, "cat": category or "span", **place, "dur": _us(end - start)}
    args = {key: value for key, value in (details or {}).items() if value is not None}
    yield {**event, "args": args} if args else event
    for each in flows or ():
        yield {"ph": "s", "name": "launch", "cat": "launch", "id": each, **place}
    if flow is not None:
        yield {"ph": "f", "bp": "e", "name": "launch", "cat": "launch", "id": flow, **place}


def _us(time: int) -> float:
    """Return ns as us, a float; three decimals stay exact up to 52 days."""
    return time / 1000


# -- Perfetto's protobuf, written one packet at a time


_SEQUENCE = 1


def _write_perfetto(tracks: Iterable[Track], file: IO[bytes]) -> None:
    """Write tracks in Perfetto's protobuf format.

    Raises
    ------
    UsageError
        If the package with Perfetto's message types is not installed.
    """
    try:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as messages
    except ImportError as error:
        raise UsageError(
            "cannot write Perfetto's format without the package perfetto",
            "pip install 'tracekit[perfetto]', or write --to chrome",
        ) from error
    every = list(tracks)
    writer = _Writer(messages, file, _before_zero(every))
    for track in every:
        writer.add(track)


def _before_zero(tracks: Iterable[Track]) -> int:
    """Return how many ns the earliest time lies before 0, as after a clock correction; else 0.

    Perfetto does not allow negative times.
    """
    first = (track.rows.to_series(0).min() for track in tracks)
    return -min(0, *(each for each in first if isinstance(each, int)), 0)


class _Writer:
    """Writes Perfetto's packets; a text is written once, and referred to by id afterwards.

    All packets are one sequence in Perfetto's sense, which has one table of texts.
    """

    def __init__(self, messages: Any, file: IO[bytes], later: int) -> None:
        self._messages, self._file, self._later = messages, file, later
        self._groups: dict[str, int] = {}
        self._names: dict[str, int] = {}
        self._categories: dict[str, int] = {}
        self._arguments: dict[str, int] = {}
        self._texts: dict[str, int] = {}
        self._uuids = 0
        first = self._packet()
        first.sequence_flags = messages.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        self._write(first)

    def add(self, track: Track) -> None:
        """Write a track: its slices, in nested rows, or its counter values."""
        group = self._group(track.group)
        if track.unit is not None:
            self._counter(track, group)
            return
        lanes, uuids = Lanes(), list[int]()
        for start, end, name, category, args, flows, flow in track.rows.iter_rows():
            lane = lanes.place(start, end)
            if lane == len(uuids):
                uuids.append(self._track(track.name + (f" +{lane}" if lane else ""), group))
            packet = self._packet(start)
            event = packet.track_event
            event.type, event.track_uuid = event.TYPE_SLICE_BEGIN, uuids[lane]
            self._name(packet, name, category)
            event.flow_ids.extend(flows or ())
            event.terminating_flow_ids.extend(() if flow is None else (flow,))
            self._annotate(packet, args or {})
            self._write(packet)
            closing = self._packet(end)
            closing.track_event.type = event.TYPE_SLICE_END
            closing.track_event.track_uuid = uuids[lane]
            self._write(closing)

    def _counter(self, track: Track, group: int) -> None:
        packet, uuid = self._described(track.name, group)
        packet.track_descriptor.counter.unit_name = track.unit or ""
        self._write(packet)
        for time, value in track.rows.iter_rows():
            sample = self._packet(time)
            event = sample.track_event
            event.type, event.track_uuid = event.TYPE_COUNTER, uuid
            event.double_counter_value = value
            self._write(sample)

    def _group(self, name: str) -> int:
        if name not in self._groups:
            self._groups[name] = self._track(name, None)
        return self._groups[name]

    def _track(self, name: str, parent: int | None) -> int:
        packet, uuid = self._described(name, parent)
        self._write(packet)
        return uuid

    def _described(self, name: str, parent: int | None) -> tuple[Any, int]:
        self._uuids += 1
        packet = self._packet()
        described = packet.track_descriptor
        described.uuid, described.name = self._uuids, name
        described.child_ordering = described.EXPLICIT
        described.sibling_order_rank = self._uuids
        if parent is not None:
            described.parent_uuid = parent
        return packet, self._uuids

    def _name(self, packet: Any, name: str, category: str | None) -> None:
        interned = packet.interned_data
        packet.track_event.name_iid = _numbered(self._names, interned.event_names, name)
        for each in category.split(",") if category else ():
            number = _numbered(self._categories, interned.event_categories, each)
            packet.track_event.category_iids.append(number)

    def _annotate(self, packet: Any, args: Mapping[str, int | str | None]) -> None:
        for name, value in args.items():
            if value is None:
                continue
            noted, interned = packet.track_event.debug_annotations.add(), packet.interned_data
            noted.name_iid = _numbered(self._arguments, interned.debug_annotation_names, name)
            if isinstance(value, int):
                noted.int_value = value
                continue
            texts = interned.debug_annotation_string_values
            noted.string_value_iid = _numbered(self._texts, texts, value, {"str": value.encode()})

    def _packet(self, time: int | None = None) -> Any:
        packet = self._messages.TracePacket()
        packet.trusted_packet_sequence_id = _SEQUENCE
        packet.sequence_flags = packet.SEQ_NEEDS_INCREMENTAL_STATE
        if time is not None:
            packet.timestamp = time + self._later
        return packet

    def _write(self, packet: Any) -> None:
        # Traces one after the other are one trace.
        self._file.write(self._messages.Trace(packet=[packet]).SerializeToString())


def _numbered(
    known: dict[str, int], entries: Any, text: str, fields: Mapping[str, object] | None = None
) -> int:
    """Return the id of a text among the `known`; a new text is added to a packet's `entries`."""
    if text not in known:
        known[text] = len(known) + 1
        entries.add(iid=known[text], **(fields or {"name": text}))
    return known[text]
