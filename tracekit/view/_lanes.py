"""Lanes (rows of the chart) of a run, and their pictures: spans in bins (tiles), or one by one."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.analysis import step_detail
from tracekit.analysis.idle_account import CAUSES
from tracekit.model import Trace
from tracekit.present import printable, readable_names
from tracekit.support.ahead import ahead
from tracekit.support.batches import stoppable
from tracekit.view._counter_lanes import KEY, Counter, counters_of, samples_of
from tracekit.view._sums import (
    DRAWN,
    HOST,
    OF_OP,
    OF_RANGE,
    OF_WAY,
    Key,
    RunSums,
    alone,
    drawn_ops,
    drawn_ranges,
    spans_of,
)
from tracekit.view._tiles import LOOKS, Ints, Level, Spans, Summing, Tiles, width_below

T = TypeVar("T")

_KINDS = ("stages", "exposed", "idle"), ("range",), ("ops", "counter"), ("way",)
"""Kinds of lanes from top to bottom: all GPUs in short, host threads, each GPU in full, copies."""
_MOST_LANES = 200
_WORTH_KEEPING = 100_000
"""Number of spans from which sums are cached; those of fewer are computed as fast."""
_MOST_EXPLAINED = 3_000_000
"""Largest number of ops of a run whose lanes show causes of idle time, since these are computed
anew for each picture."""
_MOST_SPANS = 4_000
"""Largest number of spans of a lane that are drawn singly; more are drawn as bins."""
_MOST_IN_ALL = 20_000
_MOST_FLOWS = 500
"""Largest number of ops in an interval whose launches are drawn."""
_MOST_NEAR = 30_000
"""Largest number of spans around a picture that are read with it."""
_PIXELS = 4
"""Largest width of a bin in pixels."""
MOST_TEXT = 300
_OF = {"ops": OF_OP, "gpu": OF_OP[:1], "way": OF_WAY, "range": OF_RANGE}
"""Columns that identify the lanes of a kind."""


@dataclass(frozen=True)
class Lane:
    """A lane of the view, with its tiles (sums in bins).

    Parameters
    ----------
    kind
        What the lane shows. ``stages``: the stage that runs on a GPU, one at a time; ``exposed``:
        time in which only communication runs on a GPU; ``idle``: idle time of a GPU by cause;
        ``ops``: ops of a stream; ``range``: ranges of a thread; ``way``: copies from one GPU, or
        the host, to another; ``counter``: samples of a counter of a GPU or NIC.
    key
        Values that identify its spans, in the order of the key columns of its kind.
    label, brief
        Name of the lane, and a short form.
    is_first
        Whether a separating line is drawn above it.
    tiles
        Sums of its spans or samples in bins, at several resolutions.
    """

    kind: str
    key: tuple[int | None, ...]
    label: str
    brief: str
    is_first: bool
    tiles: Tiles | Counter


@dataclass(frozen=True)
class _Drawn(Spans):
    """Spans, each with what a picture shows of it: name (index in `texts`), op number, hatching."""

    name: Ints
    number: Ints
    hatched: Ints
    texts: Sequence[str]

    @classmethod
    def of(cls, rows: pl.DataFrame) -> _Drawn:
        """Make spans of rows with the columns `DRAWN` (start, end, stage, name and others)."""
        spans, names = spans_of(rows), rows["name"].fill_null("(no name)").cast(pl.Categorical)
        texts = names.unique()
        codes, known = (each.to_physical().to_numpy() for each in (names, texts))
        places = np.zeros(known.max(initial=0) + 1, np.int64)
        places[known] = np.arange(len(texts))
        name, number = places[codes], rows["number"].to_numpy()
        hatched = rows["hatched"].to_numpy().astype(np.int64)
        return cls(spans.start, spans.end, spans.look, name, number, hatched, texts.to_list())

    @classmethod
    def of_no_op(cls, spans: Spans) -> _Drawn:
        """Make spans to draw of intervals without op, such as stages: named after their style.

        The style is that of the stage or cause (`LOOKS`).
        """
        none = np.zeros_like(spans.start)
        return cls(spans.start, spans.end, spans.look, spans.look, none - 1, none, LOOKS)

    def at(self, rows: Any) -> _Drawn:
        """Return the spans at the positions, or by the mask, `rows`."""
        names = ("start", "end", "look", "name", "number", "hatched")
        return replace(self, **{name: getattr(self, name)[rows] for name in names})

    def during(self, start: int, end: int) -> npt.NDArray[np.bool_]:
        """Return the mask of spans that overlap an interval of time."""
        return (self.start < end) & (self.end > start)

    def as_json(self, names: dict[str, int]) -> dict[str, Any]:
        """Return the spans for the page: starts as differences, names as indices.

        ``begin`` is the first start.
        """
        numbers = np.zeros(len(self.texts), np.int64)
        for used in np.flatnonzero(np.bincount(self.name)).tolist():
            numbers[used] = names.setdefault(self.texts[used], len(names))
        return {
            "begin": int(self.start[0]) if len(self.start) else 0,
            "start": np.diff(self.start, prepend=self.start[:1]),
            "length": self.end - self.start,
            "name": numbers[self.name],
            "stage": self.look,
            "number": self.number,
            "hatched": self.hatched,
        }


@dataclass(frozen=True)
class _Read:
    """Ops or ranges that overlap the time from `begin` to `until`."""

    begin: int
    until: int
    spans: _Drawn
    keys: pl.DataFrame
    """Columns that identify lanes, of the same rows."""
    _rows: dict[str, Mapping[Key, Ints]] = field(default_factory=dict)

    def during(self, start: int, end: int, lanes: Sequence[Key]) -> dict[Key, _Drawn]:
        """Return for each lane that has any the spans that overlap an interval of time."""
        inside = self.spans.during(start, end)
        every = ((lane, self._of(lane[0]).get(lane)) for lane in lanes)
        return {lane: self.spans.at(rows[inside[rows]]) for lane, rows in every if rows is not None}

    def _of(self, kind: str) -> Mapping[Key, Ints]:
        """Return the rows of each lane of a kind; ``gpu``: of a GPU as a whole."""
        if kind not in self._rows:
            key = _OF[kind]
            numbered = self.keys.select(*key).with_row_index("at")
            known = numbered.drop_nulls(OF_WAY[:2]) if kind == "way" else numbered
            places = known.group_by(key).agg("at")
            lanes = [(kind, each) for each in places.select(key).iter_rows()]
            rows = map(pl.Series.to_numpy, places["at"])
            self._rows[kind] = dict(zip(lanes, rows, strict=True))
        return self._rows[kind]


class Kept(Protocol):
    """Interface of a cache beside the tables of a run."""

    def read(self, key: str) -> bytes | None:
        """Return the value cached under a key; None without. Anyone may have written the value."""

    def write(self, key: str, content: bytes) -> bool:
        """Cache a value under a key; return False if that is not possible."""


def _made_once(work: Callable[[RunLanes], T]) -> cached_property[T]:
    """Make a cached property that one thread computes while other threads that read it wait."""

    def found(lanes: RunLanes) -> T:
        with lanes.making, stoppable(None):  # who gives up ends nothing that others wait for
            known: dict[str, T] = lanes.__dict__
            if work.__name__ not in known:
                known[work.__name__] = work(lanes)
            return known[work.__name__]

    return cached_property(found)


class RunLanes:
    """The lanes (rows of the chart) of one run.

    Parameters
    ----------
    trace
        The run.
    kept
        Cache for the sums of the lanes; None computes them for each view.
    """

    def __init__(self, trace: Trace, kept: Kept | None = None) -> None:
        self._trace, self._kept = trace, kept
        self.making = threading.RLock()
        """Lock held while values are computed that any request may need."""
        self._near: dict[str, _Read] = {}
        """The ops and the ranges read last, of all lanes."""

    @_made_once
    def sums(self) -> RunSums:
        """Read the sums of the lanes from the cache, or compute and cache them."""
        content = None if self._kept is None else self._kept.read("tiles")
        if content is not None:
            with suppress(ValueError):
                return RunSums.unpacked(content, self._trace)
        found = RunSums.of(self._trace)
        if self._kept is not None and found.spans >= _WORTH_KEEPING:
            self._kept.write("tiles", found.packed())
        return found

    @property
    def edges(self) -> tuple[int, int]:
        """First start and last end of the ops and ranges on lanes, ns."""
        return self.sums.edges

    @cached_property
    def _all(self) -> Sequence[Lane]:
        """All lanes, in order."""
        several = len({key[0] for kind, key in self.sums.lanes if kind == "range"}) > 1
        tiles = {key: cell for key, (_, cell) in self.sums.lanes.items()}
        if self._trace.height("ops") <= _MOST_EXPLAINED:
            tiles |= {
                ("idle", key): cell for (kind, key), cell in tiles.items() if kind == "stages"
            }
        lanes = [_lane(*key, cell, several=several) for key, cell in tiles.items()]
        lanes += map(_counter_lane, itertools.count(), counters_of(self._trace, self.edges))
        return sorted(lanes, key=_place)

    @_made_once
    def lanes(self) -> Sequence[Lane]:
        """Return the lanes, up to the most that can be drawn; counters are left out first."""
        chosen = sorted(self._all, key=lambda lane: lane.kind == "counter")[:_MOST_LANES]
        return sorted(chosen, key=_place)

    @property
    def lost(self) -> int:
        """Number of lanes that are left out, as there are too many to draw."""
        return len(self._all) - len(self.lanes)

    @cached_property
    def conditions(self) -> Sequence[str | None]:
        """Per lane: condition that selects a GPU's or stream's rows of `breakdown`; else None."""
        streams = [key for kind, key in self.sums.lanes if kind == "ops"]
        pids = dict(self._trace.read("processes").select("process", "pid").iter_rows())

        def condition(lane: Lane) -> str | None:
            of_gpu = f"device={lane.key[0]}"
            if lane.kind in ("stages", "exposed", "idle"):
                return of_gpu
            if lane.kind != "ops" or lane.key[-1] is None:
                return None
            users = {stream[1] for stream in streams if stream[0] == lane.key[0]}
            of_process = f" and pid={pids[lane.key[1]]}" if len(users) > 1 else ""
            return f"{of_gpu}{of_process} and stream={lane.key[-1]}"

        return [condition(lane) for lane in self.lanes]

    def starting(self, start: int, end: int) -> int:
        """Return how many ops start in an interval of time, which is widened to whole bins."""
        return sum(tile.count(start, end) for (kind, _), (_, tile) in self.sums.lanes.items()
                   if kind == "ops")  # fmt: skip

    def of_thread(self, op: Mapping[str, Any]) -> int | None:
        """Return the index of the lane with ranges of an op's launching thread; None if absent."""
        return self._numbers.get(("range", (op["process"], op["launch_thread"], 0)))

    def of(self, op: Mapping[str, Any]) -> int | None:
        """Return the index of the lane that shows an op; None if no lane does."""
        return self._numbers.get(("ops", tuple(op[name] for name in OF_OP)))

    @cached_property
    def _numbers(self) -> Mapping[Key, int]:
        return {(each.kind, each.key): number for number, each in enumerate(self.lanes)}

    def drawn(self, start: int, end: int, pixels: int) -> dict[str, Any]:
        """Return, lane by lane, what to draw of an interval of time: spans or, if many, bins.

        Parameters
        ----------
        start, end
            The interval, ns.
        pixels
            Width of the picture in pixels.
        """
        width = _PIXELS * (end - start) / pixels
        levels = self._levels(start, end, width, pixels)
        single = [lane for lane, level in zip(self.lanes, levels, strict=True) if level is None]
        spans = self._read(single, start, end)
        names: dict[str, int] = {}
        counted = self._counted(start, end, width, pixels)
        drawn = [
            counted[lane.key]
            if isinstance(lane.tiles, Counter)
            else spans[lane.kind, lane.key].as_json(names)
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

    def _counted(
        self, start: int, end: int, width: float, pixels: int
    ) -> dict[tuple[int | None, ...], dict[str, Any]]:
        """Return the counters' values in an interval of time, in bins: key of the lane -> JSON."""
        lanes = {each.key: each.tiles for each in self.lanes if isinstance(each.tiles, Counter)}
        most = min(_MOST_SPANS, pixels)
        found = {key: each.level(width, start, end, most) for key, each in lanes.items()}
        if None in found.values():
            around = max(each.width for each in lanes.values())
            near = pl.col("time").is_between(start - around, end + around)
            samples = samples_of(self._trace).filter(near).collect()
            by_key = samples.partition_by(*KEY, as_dict=True, include_key=False)
            none = samples.clear().select("time", "value")
            for key, counter in lanes.items():
                rows = by_key.get(counter.key, none)
                found[key] = found[key] or counter.singly(rows, start)
        return {
            key: each.drawn(level, start, end)
            for key, each in lanes.items() if (level := found[key])
        }  # fmt: skip

    def flows(self, start: int, end: int) -> dict[str, Any]:
        """Return ``flows``: a tuple for each op with a known launch in an interval.

        A tuple has the lane and start of the op, and the lane and time of its launch. A lane is
        null if it is not shown. ``flows`` is null if the ops are too many; ``most`` is the limit.
        """
        inside = pl.col("start") < end, pl.col("end") > start
        ops = self._trace["ops"].filter(*inside, pl.col("launch_start").is_not_null())
        flows = None
        if self.starting(start, end) <= _MOST_NEAR:
            found = ops.select(*OF_OP, "launch_thread", "start", "launch_start").collect()
            if found.height <= _MOST_FLOWS:
                flows = [(self.of(op), op["start"], self.of_thread(op), op["launch_start"])
                         for op in found.iter_rows(named=True)]  # fmt: skip
        return {"flows": flows, "most": _MOST_FLOWS}

    def idle(self, start: int, end: int, pixels: int) -> dict[str, Any]:
        """Return idle time by cause in an interval of time: index of lane -> spans or bins."""
        lanes = {n: lane.key[0] for n, lane in enumerate(self.lanes) if lane.kind == "idle"}
        edges = step_detail.whole_spans(self._trace).group_by("device").agg(
            pl.col("start").min().clip(start, end), pl.col("end").max().clip(start, end)
        )  # fmt: skip
        edges = edges.filter(pl.col("start") < pl.col("end"), pl.lit(bool(lanes)))
        cause = pl.col("cause").cast(pl.String).replace_strict(CAUSES)
        found = step_detail.idle_spans(self._trace, edges).with_columns(
            stage=cause, name=cause, number=pl.lit(-1, pl.Int64), hatched=pl.lit(value=False)
        )
        names: dict[str, int] = {}
        drawn = {n: _Drawn.of(found.filter(device=device)) for n, device in lanes.items()}
        width = width_below(_PIXELS * (end - start) / pixels)
        return {
            "lanes": {
                number: drawn_lane.as_json(names)
                if len(drawn_lane.start) <= min(_MOST_SPANS, pixels)
                else self._binned(drawn_lane, width, start, end)
                for number, drawn_lane in drawn.items()
            },
            "names": [*names],
        }

    def _binned(self, spans: Spans, width: int, start: int, end: int) -> dict[str, Any]:
        """Return spans summed in bins of `width` ns, from `start` to `end`."""
        begin = start - (start - self.edges[0]) % width
        sums = Summing(len(spans.start), begin, end, width)
        sums.add(spans, spans.by_look(), begin, end)
        tiles = sums.tiles()
        return _of_bins(tiles, tiles.first, start, end)

    def _levels(self, start: int, end: int, width: float, pixels: int) -> list[Level | None]:
        """Return for each lane the bins (zoom level) to draw; None if spans are drawn singly."""
        found: list[Level | None] = []
        left = _MOST_IN_ALL
        for lane in self.lanes:
            if lane.kind == "idle" or isinstance(lane.tiles, Counter):
                found.append(None)
                continue
            level, spans = lane.tiles.level(width), lane.tiles.count(start, end)
            if level is None and spans > min(_MOST_SPANS, left, pixels):
                level = lane.tiles.first
            left -= spans if level is None else 0
            found.append(level)
        return found

    def _read(self, lanes: Sequence[Lane], start: int, end: int) -> Mapping[Key, _Drawn]:
        """Return the spans of `lanes` that overlap an interval of time: key of lane -> spans."""
        none = ("idle", "counter")
        keys = [(lane.kind, lane.key) for lane in lanes if lane.kind not in none]
        few = {key: self._few[key] for key in keys if key in self._few}
        found = {key: spans.at(spans.during(start, end)) for key, spans in few.items()}
        left = [key for key in keys if key not in found]
        of_ops = [(kind, key) for kind, key in left if kind != "range"]
        of_gpus = [(kind, key) for kind, key in of_ops if kind in ("stages", "exposed")]
        wanted = {"range": pl.lit(value=True)} if len(of_ops) < len(left) else {}
        if of_ops:
            gpus = {key[-1 if kind == "way" else 0] for kind, key in of_ops}
            wanted["ops"] = pl.col("device").is_in(gpus)
            if all(kind == "ops" for kind, _ in of_ops):  # else the GPU as a whole is wanted
                streams = {key[-1] for _, key in of_ops}
                wanted["ops"] &= pl.col("stream").is_in(streams, nulls_equal=True)
        shown = {
            "ops": [("gpu" if lane in of_gpus else lane[0], lane[1]) for lane in of_ops],
            "range": [lane for lane in left if lane not in of_ops],
        }
        read = ahead(lambda kind: self._rows(kind, start, end, wanted[kind]), [*wanted])
        for kind, rows in zip(wanted, read, strict=True):
            found |= rows.during(start, end, shown[kind])
        for kind, key in of_gpus:
            of_gpu = found.get(("gpu", key), _NONE)
            spans = of_gpu.exposed() if kind == "stages" else alone(of_gpu, of_gpu.hatched)
            found[kind, key] = _Drawn.of_no_op(spans)
        return {(lane.kind, lane.key): found.get((lane.kind, lane.key), _NONE) for lane in lanes}

    @_made_once
    def _few(self) -> Mapping[Key, _Drawn]:
        few = self.sums.few
        spans = _Drawn.of(pl.concat(few.values())) if few else _NONE
        ends = itertools.accumulate(rows.height for rows in few.values())
        return {key: spans.at(slice(end - rows.height, end))
                for (key, rows), end in zip(few.items(), ends, strict=True)}  # fmt: skip

    def _rows(self, kind: str, start: int, end: int, wanted: pl.Expr) -> _Read:
        """Read the ops or ranges (`kind`) that overlap an interval, of lanes and of whole GPUs.

        All `wanted` rows are among them. Others may be, since rows around an interval that has few
        are read with it, for the next picture.
        """
        near = self._near.get(kind)
        if near is not None and near.begin <= start <= end <= near.until:
            return near
        begin, until = self._around(kind, start, end)
        inside = (pl.col("start") < until) & (pl.col("end") > begin)
        is_long = (begin, until) == (start, end)
        found = self._trace.during("ops" if kind == "ops" else "ranges", begin, until)
        drawn = drawn_ops(found) if kind == "ops" else drawn_ranges(self._trace, found)
        frame = drawn.filter(inside, wanted if is_long else pl.lit(value=True))
        rows = frame.collect()
        if not rows["start"].is_sorted():  # of several reports
            rows = rows.sort("start", "number")
        read = _Read(begin, until, _Drawn.of(rows), rows.drop(DRAWN))
        if not is_long:
            self._near[kind] = read
        return read

    def _around(self, kind: str, start: int, end: int) -> tuple[int, int]:
        """Return an interval widened for reading ahead, unless too many spans would be in it."""
        tiles = [each for (tile_kind, _), (_, each) in self.sums.lanes.items() if tile_kind == kind]
        found = start, end
        start, end = min(start, self.edges[1]), max(end, self.edges[0])
        while found != self.edges:
            length = end - start
            start, end = max(start - length, self.edges[0]), min(end + length, self.edges[1])
            if sum(each.count(start, end) for each in tiles) > _MOST_NEAR:
                break
            found = start, end
        return found


def _place(lane: Lane) -> tuple[Any, ...]:
    """Return the key by which lanes are sorted from top to bottom."""
    parts = [(part is None, part or 0) for part in lane.key]
    group = next(number for number, kinds in enumerate(_KINDS) if lane.kind in kinds)
    return group, parts[0], _KINDS[group].index(lane.kind), parts


def _lane(kind: str, key: tuple[int | None, ...], tiles: Tiles, *, several: bool) -> Lane:
    """Return a lane of `kind` with its label.

    `several`: whether labels of ranges need the process, as several have ranges.
    """
    is_first = kind == "stages" or (kind == "range" and not key[-1])
    gpu, last = key[0], "?" if key[-1] is None else key[-1]
    if kind == "range":
        of, short = (f" of process {gpu}", f"{gpu}") if several else ("", "")
        names = f"NVTX{of} · {int(key[-1] or 0) + 1}", f"NVTX{short} {int(key[-1] or 0) + 1}"
    elif kind == "way":
        ends = ["host" if each == HOST else f"GPU {each}" for each in key[:2]]
        names = " → ".join(ends), "→".join(ends).replace("GPU ", "")
    else:
        names = {
            "stages": (f"GPU {gpu}", f"GPU{gpu}"),
            "exposed": (f"GPU {gpu} · only communication", f"GPU{gpu} comm"),
            "idle": (f"GPU {gpu} · idle, why", f"GPU{gpu} idle"),
        }.get(kind, (f"GPU {gpu} · stream {last}", f"GPU{gpu} s{last}"))
    return Lane(kind, key, *names, is_first, tiles)


def _counter_lane(number: int, counter: Counter) -> Lane:
    """Return the lane of a counter; its label names the process or report that counted."""
    device, nic, process, report, name, unit = counter.key
    of = f"NIC {nic}" if device is None else f"GPU {device}"
    more = f", process {process}" if process is not None else f", report {report}" if report else ""
    metric = str(name).partition(" [")[0]
    label = f"{printable(of)} · {printable(metric)}{more} ({printable(unit)})"
    brief = printable(f"{of} {metric}")
    return Lane("counter", (device, number), label, brief, is_first=False, tiles=counter)


_NONE = _Drawn.of(pl.DataFrame(schema=DRAWN))


def _of_bins(tiles: Tiles, level: Level, start: int, end: int) -> dict[str, Any]:
    """Return for the page the bins of a level that are not empty."""
    first, last = tiles.bins(level, start, end)
    busy = {look: each[first:last].astype(np.int64) for look, each in level.busy.items()}
    count = level.count[first:last].astype(np.int64)
    kept = np.flatnonzero(count + sum(busy.values(), np.zeros_like(count)))
    return {
        "width": level.width,
        "begin": tiles.origin,
        "bin": np.diff(first + kept, prepend=0),
        "count": count[kept],
        "longest": level.longest[first:last][kept],
        "busy": {look: values for look, each in busy.items() if (values := each[kept]).any()},
    }
