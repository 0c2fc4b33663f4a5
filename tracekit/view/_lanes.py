"""Lanes of a run, and what of them is drawn: bins of tiles, or the spans themselves."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from tracekit.analysis import closeup
from tracekit.model import Trace
from tracekit.present import printable, readable_names
from tracekit.view._tiles import LOOKS, NO_STAGE, Covered, Level, Spans, Tiles

_OF_OP = ("device", "process", "context", "stream")
_OF_RANGE = ("process", "thread", "depth")
_COMMUNICATION = ("collective", "p2p", "staged")
_DEEPEST = 5
_MOST_LANES = 200
_MOST_SPANS = 4_000
"""Spans of a lane that are drawn one by one; of more, bins are."""
_MOST_IN_ALL = 20_000
_MOST_KEPT = 20_000
"""Spans of a lane that are kept in memory; of a lane with more they are read when drawn."""
_PIXELS = 4
"""A bin is no more pixels wide."""
MOST_TEXT = 300


@dataclass(frozen=True)
class Lane:
    """A lane, and its tiles.

    Parameters
    ----------
    kind
        ``stages`` of a GPU, where each is exposed; ``ops`` of a stream; ``range`` of a thread.
    key
        What its spans are found by, in the order of the columns of its kind.
    label, brief
        Its name, and the same in few letters.
    is_first
        Whether a line is drawn above it.
    tiles
        Its sums.
    """

    kind: str
    key: tuple[int | None, ...]
    label: str
    brief: str
    is_first: bool
    tiles: Tiles


class RunLanes:
    """The lanes of one run.

    Parameters
    ----------
    trace
        The run.
    """

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._making = threading.Lock()
        self._kept: dict[tuple[str, Any], pl.DataFrame] = {}
        """The spans of lanes that have few."""

    @cached_property
    def edges(self) -> tuple[int, int]:
        """When the first op or range of a lane begins, and the last one ends, ns."""
        found = [
            frame.select(first=pl.col("start").min(), last=pl.col("end").max()).collect().row(0)
            for frame in (self._trace["ops"], self._ranges.lazy())
        ]
        known = [edges for edges in found if None not in edges]
        first, last = min((a for a, _ in known), default=0), max((b for _, b in known), default=1)
        return first, max(last, first + 1)

    @property
    def lanes(self) -> Sequence[Lane]:
        """All lanes, those that are more than can be drawn left out."""
        with self._making:
            return self._all[:_MOST_LANES]

    @cached_property
    def _all(self) -> Sequence[Lane]:
        return [*self._of_ranges(), *self._of_ops()]

    @property
    def lost(self) -> int:
        """How many lanes there are more."""
        shown = len(self.lanes)
        return len(self._all) - shown

    def of(self, op: Mapping[str, Any]) -> int | None:
        """Return the number of the lane that an op is on."""
        key = tuple(op[name] for name in _OF_OP)
        own = (n for n, each in enumerate(self.lanes) if (each.kind, each.key) == ("ops", key))
        return next(own, None)

    def _of_ops(self) -> Iterator[Lane]:
        devices = self._trace["ops"].select(pl.col("device").unique().sort()).collect()["device"]
        for device in devices:  # one after the other, as all at once may take too much memory
            ops = self._ops(pl.col("device") == device, names=False)
            spans = spans_of(ops)
            _, exposed = spans.exposed()
            yield self._lane("stages", (device,), f"GPU {device}", f"GPU{device}", spans, exposed)
            streams = ops.partition_by(_OF_OP, as_dict=True, maintain_order=True)
            self._keep(device, [key for key, own in streams.items() if own.height <= _MOST_KEPT])
            for key in sorted(streams, key=lambda each: [(x is None, x) for x in each]):
                stream = "?" if key[-1] is None else key[-1]
                label = f"GPU {device} · stream {stream}", f"GPU{device} s{stream}"
                yield self._lane("ops", key, *label, spans_of(streams[key]))

    def _keep(self, device: int, keys: Sequence[tuple[Any, ...]]) -> None:
        """Keep the spans of streams of a GPU, which are far apart in files."""
        streams = {key[-1] for key in keys}
        if not streams:
            return
        here = pl.col("device") == device, pl.col("stream").is_in(streams, nulls_equal=True)
        read = _by_key("ops", self._ops(*here), _OF_OP)
        self._kept |= {("ops", key): read["ops", key] for key in keys}

    def _of_ranges(self) -> Iterator[Lane]:
        """Yield the ranges of the threads that drive steps, a lane for each depth."""
        several = self._ranges["process"].n_unique() > 1
        lanes = self._ranges.partition_by(_OF_RANGE, as_dict=True)
        for key in sorted(lanes):
            process, _, depth = key
            of = f" of process {process}" if several else ""
            label = f"NVTX{of} · {depth + 1}", f"NVTX{process if several else ''} {depth + 1}"
            yield self._lane("range", key, *label, spans_of(lanes[key]))

    def _lane(
        self, kind: str, key: Any, label: str, brief: str, spans: Spans,
        busy: Mapping[str, Covered] | None = None,
    ) -> Lane:  # fmt: skip
        is_first = kind == "stages" or (kind == "range" and not key[-1])
        tiles = Tiles.of(spans, spans.by_look() if busy is None else busy, *self.edges)
        return Lane(kind, key, label, brief, is_first, tiles)

    def _ops(self, *which: pl.Expr, names: bool = True) -> pl.DataFrame:
        """Return ops of lanes by start, as they are drawn."""
        told = {"name": pl.col("name").cast(pl.String)} if names else {}
        hatched = pl.col("kind").is_in(_COMMUNICATION)
        columns = (*_OF_OP, "start", "end", "stage")
        ops = self._trace["ops"].filter(*which)
        return (
            ops.select(*columns, number="op", hatched=hatched, **told)
            .sort("start", "number")
            .collect()
        )

    @cached_property
    def _ranges(self) -> pl.DataFrame:
        depth = pl.col("depth").fill_null(0)
        return (
            self._trace["ranges"]
            .filter(depth < _DEEPEST)
            .join(closeup.driving_threads(self._trace).lazy(), on=["process", "thread"], how="semi")
            .select(
                "process",
                "thread",
                "start",
                "end",
                "name",
                "stage",
                depth=depth,
                number="range",
                hatched=pl.lit(value=False),
            )
            .collect()
        )

    def drawn(self, start: int, end: int, pixels: int) -> dict[str, Any]:
        """Return what a picture of a stretch of time shows, in the order of the lanes.

        Parameters
        ----------
        start, end
            The stretch, ns.
        pixels
            How wide the picture is.
        """
        width = _PIXELS * (end - start) / pixels
        levels = self._levels(start, end, width, pixels)
        single = [lane for lane, level in zip(self.lanes, levels, strict=True) if level is None]
        spans = self._read(single, start, end)
        names: dict[str, int] = {}
        drawn = [
            _of_spans(spans[lane.kind, lane.key], names)
            if level is None
            else _of_bins(lane.tiles, level, start, end)
            for lane, level in zip(self.lanes, levels, strict=True)
        ]
        full = [printable(name) for name in names]
        short = readable_names(full)
        return {
            "lanes": drawn,
            "full": [name[:MOST_TEXT] for name in full],
            "names": [short[name] for name in full],
        }

    def _levels(self, start: int, end: int, width: float, pixels: int) -> list[Level | None]:
        """Return which level is drawn of each lane, None where its spans are."""
        found, left = [], _MOST_IN_ALL
        for lane in self.lanes:
            level, spans = lane.tiles.level(width), lane.tiles.count(start, end)
            if level is None and spans > min(_MOST_SPANS, left, pixels):
                level = lane.tiles.first
            left -= spans if level is None else 0
            found.append(level)
        return found

    def _read(
        self, lanes: Sequence[Lane], start: int, end: int
    ) -> dict[tuple[str, Any], pl.DataFrame]:
        """Return the spans of lanes that last during a stretch of time, by kind and key."""
        inside = (pl.col("start") < end) & (pl.col("end") > start)
        found = {key: own.filter(inside) for key, own in self._kept.items()}
        of_ops = [(lane.kind, lane.key) for lane in lanes if lane.kind != "range"]
        if gpus := {key[0] for kind, key in of_ops if (kind, key) not in found}:
            here = [inside, pl.col("device").is_in(gpus)]
            if all(kind == "ops" for kind, _ in of_ops):  # else the GPU as a whole is wanted
                streams = {key[-1] for _, key in of_ops}
                here.append(pl.col("stream").is_in(streams, nulls_equal=True))
            read = self._ops(*here)
            found |= _by_key("ops", read, _OF_OP)
            of_gpus = _by_key("stages", read, _OF_OP[:1])
            found |= {key: _exposed(own) for key, own in of_gpus.items()}
        if any(lane.kind == "range" for lane in lanes):
            ranges = self._ranges.filter(inside).sort("start", "number")
            found |= _by_key("range", ranges, _OF_RANGE)
        none = pl.DataFrame(schema=_DRAWN)
        return {(lane.kind, lane.key): found.get((lane.kind, lane.key), none) for lane in lanes}


_DRAWN = {
    "start": pl.Int64, "end": pl.Int64, "stage": pl.String, "number": pl.Int64, "name": pl.String,
    "hatched": pl.Boolean,
}  # fmt: skip


def _by_key(
    kind: str, rows: pl.DataFrame, key: Sequence[str]
) -> dict[tuple[str, Any], pl.DataFrame]:
    own = rows.partition_by(key, as_dict=True, maintain_order=True)
    return {(kind, each): frame for each, frame in own.items()}


def _exposed(ops: pl.DataFrame) -> pl.DataFrame:
    """Return when each stage is exposed on a GPU, as spans that stand for no op."""
    spans, _ = spans_of(ops).exposed()
    stage = pl.Series("stage", np.array(LOOKS)[spans.look], pl.String)
    return pl.DataFrame({"start": spans.start, "end": spans.end, "stage": stage}).with_columns(
        name="stage", number=pl.lit(-1, pl.Int64), hatched=pl.lit(value=False)
    )


def spans_of(rows: pl.DataFrame) -> Spans:
    look = rows["stage"].cast(pl.String).fill_null(NO_STAGE)
    number = look.replace_strict(LOOKS, range(len(LOOKS)), return_dtype=pl.Int64)
    return Spans(rows["start"].to_numpy(), rows["end"].to_numpy(), number.to_numpy())


def _of_spans(rows: pl.DataFrame, names: dict[str, int]) -> dict[str, Any]:
    """Return spans for the script: starts as differences, and all else by number."""
    told = rows["name"].fill_null("(no name)")
    start = rows["start"]
    return {
        "start": start.diff().fill_null(start.first() or 0).to_list(),
        "length": (rows["end"] - start).to_list(),
        "name": [names.setdefault(name, len(names)) for name in told],
        "stage": spans_of(rows).look.tolist(),
        "number": rows["number"].to_list(),
        "hatched": rows["hatched"].cast(pl.Int8).to_list(),
    }


def _of_bins(tiles: Tiles, level: Level, start: int, end: int) -> dict[str, Any]:
    """Return bins in which anything starts or runs, for the script."""
    first, last = tiles.bins(level, start, end)
    busy = {look: each[first:last] for look, each in level.busy.items()}
    count = level.count[first:last]
    kept = np.flatnonzero(count + sum(busy.values(), np.zeros_like(count)))
    return {
        "width": level.width,
        "begin": tiles.origin,
        "bin": np.diff(first + kept, prepend=0).tolist(),
        "count": count[kept].tolist(),
        "longest": level.longest[first:last][kept].tolist(),
        "busy": {look: own for look, each in busy.items() if any(own := each[kept].tolist())},
    }
