"""Writes tracks as Perfetto's protobuf, one packet at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import IO, Any

from tracekit.errors import UsageError
from tracekit.export._tracks import Lanes, Track

_SEQUENCE = 1


def write(tracks: Iterable[Track], file: IO[bytes]) -> None:
    """Write tracks.

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
    """Return by how many ns the earliest time is before 0, such as after a clock correction.

    Perfetto does not allow negative times.
    """
    first = (track.rows.to_series(0).min() for track in tracks)
    return -min(0, *(each for each in first if isinstance(each, int)), 0)


class _Writer:
    """Writes packets of one sequence; each text is written once and then referred to by number."""

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
        """Write a track with its slices or counter values."""
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
    """Return the number of a text, adding it to the packet's entries if it is new."""
    if text not in known:
        known[text] = len(known) + 1
        entries.add(iid=known[text], **(fields or {"name": text}))
    return known[text]
