"""Sums of a run by lane and by name, for pictures and searches, computed in one pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from operator import itemgetter
from typing import Any

import numpy as np
import polars as pl

from tracekit.analysis import step_detail
from tracekit.model import KINDS, STAGES, Trace
from tracekit.support.batches import at_least_one
from tracekit.view._kept import Unpacked, pack
from tracekit.view._tiles import (
    COMMUNICATION,
    FACTOR,
    LOOKS,
    NO_STAGE,
    Covered,
    Ints,
    Level,
    Spans,
    Summing,
    Tiles,
    first_width,
    width_below,
)

OF_OP = ("device", "process", "context", "stream")
OF_RANGE = ("process", "thread", "depth")
OF_WAY = ("source", "destination", "device")
HOST = -1
"""Number of the host in place of a GPU, for copies."""
_BY = {"stages": OF_OP[:1], "exposed": OF_OP[:1], "ops": OF_OP, "way": OF_WAY, "range": OF_RANGE}
"""Columns that identify lanes of each kind: kind -> columns."""
_KINDS = ("collective", "p2p", "staged")
"""Kinds of communication between GPUs."""
_DEEPEST = 5
_MOST_FEW, _FEW_PARTS = 20_000, 20
"""Largest number of spans of a lane that are stored with the sums, as they are far apart in files;
all these lanes together have at most one in twenty of the ops."""
_FEW = {"lane": pl.UInt32, "start": pl.Int64, "end": pl.Int64, "look": pl.UInt8,
        "number": pl.Int64, "name": pl.UInt32, "hatched": pl.Boolean}  # fmt: skip
_WORDS = {"stage": (*STAGES, NO_STAGE), "exposed": (*STAGES, NO_STAGE), "kind": KINDS}
"""Values of the columns by which time of GPUs is summed up: column -> values."""
_MOST_BLOCKS, _LEAST_BLOCKS = 1 << 15, 64
"""Approximate number of bins of all GPUs together, and the least number for each."""
_KERNELS = {"name": pl.UInt32, "kind": pl.UInt8, "part": pl.UInt32, "ops": pl.UInt32,
            "total_ns": pl.Int64, "busy_ns": pl.Int64, "min_ns": pl.Int64, "max_ns": pl.Int64,
            "longest": pl.Int64}  # fmt: skip
_MOST_PARTS = 64
"""Largest number of parts of a run in which ops are summed up by name."""
_LAST = (1 << 63) - 1
LOOK = pl.Enum(LOOKS)
_STAGE = pl.col("stage").cast(LOOK).fill_null(NO_STAGE)
_LENGTH = pl.col("end") - pl.col("start")
_LONGEST = pl.col("longest").get(pl.col("max_ns").arg_max())
DRAWN = pl.Schema([
    ("start", pl.Int64), ("end", pl.Int64), ("stage", LOOK), ("number", pl.Int64),
    ("name", pl.String), ("hatched", pl.Boolean),
])  # fmt: skip
"""Columns by which spans are drawn: name -> type."""
Key = tuple[str, tuple[int | None, ...]]
"""Kind of a lane, and the values that identify its spans."""
BlockKey = tuple[int, str, str]
Block = tuple[Ints, Ints, Ints]


@dataclass(frozen=True)
class RunSums:
    """Sums of a run that the view draws from.

    Parameters
    ----------
    edges
        First start and last end of the ops and ranges on lanes, ns.
    lanes
        Key of the lane -> number of spans, and their sums in bins of time at several zoom levels.
    kernels
        ``name, kind, part, ops, total_ns, min_ns, max_ns, longest, busy_ns``: sums of `breakdown`
        by kernel in each part of the run; `longest` is the number of the op that takes `max_ns`.
    few
        All spans of lanes with few spans, in the columns `DRAWN`: key of the lane -> spans.
    gpus
        First start and last end of the ops of each GPU, ns: device -> (start, end).
    blocks
        Sums of each GPU's ops in bins of equal time, keyed by (GPU, what, value): what is ``stage``
        or ``kind`` of the ops, or ``exposed`` (exposed time by stage). Per bin: busy time, number
        of starts, and summed durations.
    """

    edges: tuple[int, int]
    lanes: Mapping[Key, tuple[int, Tiles]]
    kernels: pl.DataFrame
    few: Mapping[Key, pl.DataFrame]
    gpus: Mapping[int, tuple[int, int]]
    blocks: Mapping[BlockKey, Block]

    @property
    def block_width(self) -> int:
        """Length of the bins of equal time into which GPUs' ops are summed (`blocks`), ns."""
        return _block_width(self.edges, len(self.gpus))

    @property
    def blocks_per_part(self) -> int:
        """Number of bins of equal time (`blocks`) that a part of the run covers."""
        return _blocks_per_part(self.edges, len(self.gpus))

    @cached_property
    def names(self) -> pl.DataFrame:
        """Sums by name: ``name, ops``, ``total, most`` (ns), ``longest`` (op id), largest first."""
        sums = self.kernels.drop_nulls(["name", "max_ns"]).group_by("name").agg(
            pl.col("ops").sum(), _LONGEST, total=pl.col("total_ns").sum(),
            most=pl.col("max_ns").max(),
        )  # fmt: skip
        sums = sums.cast({"name": pl.String})
        return sums.sort("total", "name", descending=[True, False])

    @classmethod
    def of(cls, trace: Trace) -> RunSums:
        """Compute the sums of a run, reading ops and ranges in batches."""
        frames = {"ops": drawn_ops(trace["ops"], "kind"), "range": drawn_ranges(trace)}
        counts = {kind: _counted(frame, _BY[kind]) for kind, frame in frames.items()}
        both = pl.concat([each.select("first", "last") for each in counts.values()])
        first, last = both.select(pl.col("first").min(), pl.col("last").max()).row(0)
        edges = (0, 1) if first is None else (first, max(last, first + 1))
        ways = _counted(frames["ops"].drop_nulls(OF_WAY[:2]), OF_WAY)
        found = [
            _in_order(partial(_Adding, kind, counts[kind], rows_of_kind, edges), frames[kind])
            for kind, rows_of_kind in (("range", ways.clear()), ("ops", ways))
        ]
        lanes = {key: each for adding in found for key, each in adding.lanes().items()}
        few = {key: spans for adding in found for key, spans in adding.few().items()}
        ops = found[-1]
        return cls(edges, lanes, ops.kernels(), few, ops.gpus, ops.blocks())

    @property
    def spans(self) -> int:
        """Number of ops and ranges."""
        return sum(
            number for (kind, _), (number, _) in self.lanes.items() if kind in ("ops", "range")
        )

    def packed(self) -> bytes:
        """Return the sums as bytes."""
        arrays, lanes = [], []
        for (kind, key), (spans, tiles) in self.lanes.items():
            level = tiles.first
            lanes.append([kind, key, spans, [*level.busy]])
            arrays += [*level.busy.values(), level.count, level.longest]
        arrays += [each for block in self.blocks.values() for each in block]
        numbers = {key: pl.lit(number, pl.UInt32) for number, key in enumerate(self.lanes)}
        parts = (rows.with_columns(lane=numbers[key]) for key, rows in self.few.items())
        few = pl.concat([pl.DataFrame(schema={**DRAWN, "lane": pl.UInt32}), *parts])
        texts = few["name"].unique(maintain_order=True).drop_nulls()
        coded = few.with_columns(
            # A name's number is one more than its place: 0 is none.
            name=pl.col("name").replace_strict(texts, range(1, len(texts) + 1), default=0),
            look=looks_of(few),
            **{each: pl.col(each) - self.edges[0] for each in ("start", "end")},
        )
        names = self.kernels["name"].unique(maintain_order=True).drop_nulls()
        sums = self.kernels.with_columns(
            pl.col("name").replace_strict(names, range(1, len(names) + 1), default=0),
            pl.col("kind").replace_strict(KINDS, range(len(KINDS))),
        )
        columns = [
            *sums.select(pl.col(name).fill_null(0).cast(dtype) for name, dtype in _KERNELS.items()),
            *coded.select(pl.col(name).cast(kind) for name, kind in _FEW.items()),
        ]
        header = {"edges": self.edges, "lanes": lanes, "few": few.height, "texts": texts.to_list(),
                "names": names.to_list(), "kernels": self.kernels.height,
                "blocks": [*self.blocks],
                "gpus": [(gpu, *edges) for gpu, edges in self.gpus.items()]}  # fmt: skip
        return pack(header, [*arrays, *(column.to_numpy() for column in columns)])

    @classmethod
    def unpacked(cls, content: bytes, trace: Trace) -> RunSums:
        """Read sums from bytes that `packed` made for this run.

        Raises
        ------
        ValueError
            If the bytes are damaged, or belong to another run.
        """
        try:
            return cls._unpacked(Unpacked(content), trace)
        except (KeyError, TypeError, IndexError, AttributeError, OverflowError,
                pl.exceptions.PolarsError) as error:  # fmt: skip
            raise ValueError("the bytes are not sums of a run") from error

    @classmethod
    def _unpacked(cls, read: Unpacked, trace: Trace) -> RunSums:
        header = read.header
        first, last = _integers(header["edges"], 2)
        if not first < last or last - first > _LAST:
            raise ValueError("the edges cannot be")
        most = {"range": trace.height("ranges"), "": trace.height("ops")}
        lanes: dict[Key, tuple[int, Tiles]] = {}
        for kind, key, spans, looks in header["lanes"]:
            lane = kind, tuple(None if part is None else _integers([part], 1)[0] for part in key)
            if len(key) != len(_BY[kind]) or lane in lanes or not set(looks) <= set(LOOKS):
                raise ValueError("unknown lane")
            if not 0 < _integers([spans], 1)[0] <= most.get(kind, most[""]):
                raise ValueError("a lane has more spans than the run")
            lanes[lane] = spans, _tiles(read, (first, last), spans, looks)
        gpus = {gpu: (begin, end) for gpu, begin, end in (_integers(x, 3) for x in header["gpus"])}
        blocks = _blocks(read, header["blocks"], (first, last), [*gpus], most[""])
        kernels = _kernels(read, header, most[""])
        few = _few(read, header, [*lanes], first, sum(most.values()))
        return cls((first, last), lanes, kernels, few, gpus, blocks)


def _integers(values: Sequence[Any], count: int) -> Sequence[int]:
    if len(values) != count or not all(type(each) is int and abs(each) <= _LAST for each in values):
        raise ValueError("the values are not integers")
    return values


def _tiles(read: Unpacked, edges: tuple[int, int], spans: int, looks: Sequence[str]) -> Tiles:
    """Read the sums in bins of a lane of `spans` spans from cached bytes."""
    length = edges[1] - edges[0]
    width = first_width(spans, length)
    bins = -(-length // width)
    busy = {look: read.take(bins, width) for look in looks}
    count, longest = read.take(bins, spans), read.take(bins, length)
    if count.sum(dtype=np.int64) > spans:
        raise ValueError("the bins of a lane have more spans")
    return Tiles(edges[0], Level(width, busy, count, longest))


def _block_width(edges: tuple[int, int], gpus: int) -> int:
    most = max(_MOST_BLOCKS // max(gpus, 1), _LEAST_BLOCKS)
    return FACTOR * width_below(max(edges[1] - edges[0], 1) / most)


def _blocks_per_part(edges: tuple[int, int], gpus: int) -> int:
    width, count = _block_width(edges, gpus), 1
    while count * width * _MOST_PARTS < edges[1] - edges[0]:
        count *= FACTOR
    return count


def _blocks(
    read: Unpacked, keys: Sequence[Any], edges: tuple[int, int], gpus: Sequence[int], ops: int
) -> dict[BlockKey, Block]:
    """Read the sums of GPUs in bins of equal time from cached bytes."""
    width, found = _block_width(edges, len(gpus)), {}
    bins = -(-max(edges[1] - edges[0], 1) // width)
    for gpu, by, word in keys:
        if gpu not in gpus or word not in _WORDS[by] or (gpu, by, word) in found:
            raise ValueError("unknown block")
        found[gpu, by, word] = read.take(bins, width), read.take(bins, ops), read.take(bins, _LAST)
    return found


def _columns(
    read: Unpacked, height: int, kinds: Mapping[str, Any], most: Mapping[str, int]
) -> pl.DataFrame:
    """Read columns of types `kinds` from cached bytes; no value may exceed that in `most`."""
    return pl.DataFrame(
        [pl.Series(n, read.take(height, most.get(n, _LAST)), kind) for n, kind in kinds.items()]
    )


def _kernels(read: Unpacked, header: Mapping[str, Any], most: int) -> pl.DataFrame:
    """Read the sums by name and kind of op from cached bytes; none may have over `most` ops."""
    height = _integers([header["kernels"]], 1)[0]
    texts = pl.Series([None, *header["names"]], dtype=pl.Categorical)
    bounds = {"name": len(texts) - 1, "kind": len(KINDS) - 1, "part": _MOST_PARTS, "ops": most}
    sums = _columns(read, height, _KERNELS, bounds)
    if len(texts) != len({0, *sums["name"].unique()}):
        raise ValueError("ops have other names")
    there = pl.when(pl.col("ops") > 0)
    return sums.with_columns(
        texts.alias("name").gather(sums["name"]),
        pl.Series("kind", KINDS, pl.Enum(KINDS)).gather(sums["kind"]),
        pl.col("part", "ops").cast(pl.Int64),
        *(there.then(pl.col(each)).alias(each) for each in ("min_ns", "max_ns", "longest")),
    )


def _few(
    read: Unpacked, header: Mapping[str, Any], lanes: Sequence[Key], first: int, most: int
) -> dict[Key, pl.DataFrame]:
    """Read the spans of lanes with few spans from cached bytes; times are relative to `first`."""
    height = _integers([header["few"]], 1)[0]
    if height * _FEW_PARTS > most:
        raise ValueError("more spans are kept than there may be")
    texts = pl.Series([None, *header["texts"]], dtype=pl.Categorical)
    bounds = {"lane": len(lanes) - 1, "look": len(LOOKS) - 1, "name": len(texts) - 1}
    few = _columns(read, height, _FEW, bounds)
    few = few.with_columns(
        pl.col("start", "end") + first,
        pl.Series("stage", LOOKS, LOOK).gather(few["look"]),
        texts.alias("name").gather(few["name"]),
    )
    parts = few.partition_by("lane", as_dict=True, maintain_order=True)
    return {lanes[number]: rows.select(*DRAWN) for (number,), rows in parts.items()}


def drawn_ops(ops: pl.LazyFrame, *more: str) -> pl.LazyFrame:
    """Return ops with the keys of their lanes, the columns `DRAWN`, and `more`."""
    return ops.select(
        *OF_OP, *more, "start", "end", "name", _STAGE, *_way(), number="op",
        hatched=pl.col("kind").is_in(_KINDS),
    )  # fmt: skip


def _way() -> list[pl.Expr]:
    """Return source and destination (GPU or host) of a copy; null for other ops, or if unknown."""
    kind, copied, host = pl.col("kind"), pl.col("copy_kind"), pl.lit(HOST, pl.Int32)
    is_staged, is_direct = kind == "staged", kind == "p2p"
    to_gpu = (kind == "h2d") | (is_staged & (copied == "HtoD"))
    to_host = (kind == "d2h") | (is_staged & (copied == "DtoH"))
    source, destination = pl.when(to_gpu).then(host), pl.when(to_host).then(host)
    return [
        source.when(to_host | is_direct).then("src_device").alias("source"),
        destination.when(to_gpu | is_direct).then("dst_device").alias("destination"),
    ]


def drawn_ranges(trace: Trace, ranges: pl.LazyFrame | None = None) -> pl.LazyFrame:
    """Return the ranges to draw, of threads that launch training steps; columns as in `DRAWN`.

    `ranges` are those to choose from; None for all of the run.
    """
    depth = pl.col("depth").fill_null(0)
    threads = trace.once(step_detail.driving_threads).lazy()
    return (
        (trace["ranges"] if ranges is None else ranges)
        .filter(depth < _DEEPEST)
        .join(threads, on=["process", "thread"], how="semi", maintain_order="left")
        .select(
            "process", "thread", "start", "end", "name", _STAGE,
            depth=depth, number="range", hatched=pl.lit(value=False),
        )
    )  # fmt: skip


def looks_of(rows: pl.DataFrame) -> pl.Series:
    """Return for each row the index in `LOOKS` (style of drawing) that its stage has."""
    return rows["stage"].cast(LOOK).to_physical().cast(pl.Int64)


def spans_of(rows: pl.DataFrame) -> Spans:
    """Return rows as spans, coloured by stage."""
    return Spans(rows["start"].to_numpy(), rows["end"].to_numpy(), looks_of(rows).to_numpy())


def alone(ops: Spans, is_communication: Ints) -> Spans:
    """Return the intervals with only communication; `is_communication`: 1 or 0 per op in `ops`."""
    look = np.where(is_communication, LOOKS.index(COMMUNICATION), 0)
    spans = Spans(ops.start, ops.end, look).exposed()
    kept = spans.look > 0
    return Spans(spans.start[kept], spans.end[kept], spans.look[kept])


def _counted(frame: pl.LazyFrame, by: Sequence[str]) -> pl.DataFrame:
    """Return, per lane, number of spans and of hatched ones, first start and last end, ns."""
    columns = frame.select(*by, "start", "end", "hatched")
    counts = (
        batch.group_by(by).agg(
            pl.len().alias("spans"), pl.col("hatched").sum(),
            first=pl.col("start").min(), last=pl.col("end").max(),
        )
        for batch in at_least_one(columns)
    )  # fmt: skip
    sums = pl.concat(counts).group_by(by).agg(
        pl.col("spans", "hatched").sum(), pl.col("first").min(), pl.col("last").max()
    )  # fmt: skip
    return sums.sort(by, nulls_last=True)


class _DisorderError(Exception):
    """Rows are not ordered by start."""


def _in_order(begin: Callable[[], _Adding], frame: pl.LazyFrame) -> _Adding:
    """Add up all rows in order of start; sort them first if they are not in that order."""
    try:
        return begin().with_all(frame)
    except _DisorderError:  # several reports saw one GPU, and each has its ops by start
        return begin().with_all(frame.sort("start"))


def _stretches(
    frame: pl.LazyFrame, by: Sequence[str]
) -> Iterator[tuple[tuple[Any, ...], pl.DataFrame, int, int]]:
    """Divide rows, sorted by start, into consecutive intervals of time per value of `by`.

    Yields
    ------
    Values of the columns `by`, all rows with these values that overlap an interval, and its start
    and end. The end is excluded; the next interval starts there.
    """
    pending: dict[tuple[Any, ...], tuple[pl.DataFrame, int]] = {}
    for batch in at_least_one(frame):
        for key, new in batch.partition_by(by, as_dict=True, maintain_order=True).items():
            before, begin = pending.get(key, (new.clear(), new["start"][0]))
            until = new["start"][-1]
            if new["start"][0] < begin or not new["start"].is_sorted():
                raise _DisorderError
            rows = pl.concat([before, new])
            yield key, rows, begin, until
            goes_on = (pl.col("end") > until) | (pl.col("start") >= until)
            pending[key] = rows.filter(goes_on), until
    for key, (rows, begin) in pending.items():
        yield key, rows, begin, rows.select(pl.max_horizontal("start", "end").max()).item() + 1


class _Adding:
    """Sums up the lanes of ops, or those of ranges, from rows in order of start.

    Parameters
    ----------
    kind
        Which of the two: ops or ranges.
    counts, ways
        Number of spans on each lane, and of copies in each direction.
    edges
        Begin and end of the run, ns.
    """

    def __init__(
        self, kind: str, counts: pl.DataFrame, ways: pl.DataFrame, edges: tuple[int, int]
    ) -> None:
        self._kind, self._edges = kind, edges
        self._kernels: list[pl.DataFrame] = []
        self._blocks: dict[BlockKey, Summing] = {}
        self.gpus: dict[int, tuple[int, int]] = {}
        self._spans: dict[Key, int] = {}
        if kind == "ops":
            gpus = counts.group_by("device").agg(
                pl.col("spans", "hatched").sum(), pl.col("first").min(), pl.col("last").max()
            )
            for gpu, spans, hatched, first, last in gpus.iter_rows():
                self.gpus[gpu] = first, last
                # Its bins are as short as those of the stages: its spans are made of all ops.
                self._spans["stages", (gpu,)] = spans
                if hatched:
                    self._spans["exposed", (gpu,)] = spans
        for name, each in ((kind, counts), ("way", ways)):
            self._spans |= {(name, tuple(key)): spans for *key, spans, _, _, _ in each.iter_rows()}
        self._sums = {key: Summing(number, *edges) for key, number in self._spans.items()}
        room = sum(counts["spans"]) // _FEW_PARTS
        self._few: dict[Key, list[pl.DataFrame]] = {}
        for lane, number in sorted(self._spans.items(), key=itemgetter(1)):
            if lane[0] in (kind, "way") and number <= min(room, _MOST_FEW):
                self._few[lane] = []
                room -= number

    def with_all(self, frame: pl.LazyFrame) -> _Adding:
        """Add all rows of a frame to the sums; return self."""
        by = _BY["stages"] if self._kind == "ops" else _BY[self._kind]
        for key, rows, begin, until in _stretches(frame, by):
            if self._kind == "ops":
                self._add_kernels(rows, begin, until)
                ops = spans_of(rows)
                exposed = ops.exposed().by_look()
                self._add_blocks(key[0], rows, exposed, begin, until)
                self._sums["stages", key].add(ops, exposed, begin, until)
                if ("exposed", key) in self._sums:
                    busy = alone(ops, rows["hatched"].to_numpy()).by_look()
                    hatched = spans_of(rows.filter("hatched"))
                    self._sums["exposed", key].add(hatched, busy, begin, until)
            lanes = _by_lane(self._kind, rows)
            if self._kind == "ops":
                lanes |= _by_lane("way", rows.drop_nulls(OF_WAY[:2]))
            for lane, each in lanes.items():
                spans = spans_of(each)
                self._sums[lane].add(spans, spans.by_look(), begin, until)
                if (few := self._few.get(lane)) is not None:
                    few.append(each.filter(_starts(begin, until)).select(*DRAWN).cast(DRAWN))
        return self

    def _add_blocks(
        self, gpu: int, rows: pl.DataFrame, exposed: Mapping[str, Covered], begin: int, until: int
    ) -> None:
        """Add ops of a GPU, from time `begin` to `until`, to its sums in bins of equal time."""
        none = Spans(*np.zeros((3, 0), np.int64))
        added = {("exposed", look): (none, covered) for look, covered in exposed.items()}
        for by in ("stage", "kind"):
            for (word,), ops in rows.partition_by(by, as_dict=True).items():
                spans = spans_of(ops)
                added[by, str(word)] = spans, Covered(spans.start, spans.end)
        for (by, word), (spans, covered) in added.items():
            if (gpu, by, word) not in self._blocks:
                width = _block_width(self._edges, len(self.gpus))
                sums = Summing(0, *self._edges, width, adds_lengths=True)
                self._blocks[gpu, by, word] = sums
            self._blocks[gpu, by, word].add(spans, {"": covered}, begin, until)

    def _add_kernels(self, ops: pl.DataFrame, begin: int, until: int) -> None:
        """Add ops of a GPU, ordered by start, to the sums by name and kind."""
        start, end, by = pl.col("start"), pl.col("end"), ["name", "kind", "part"]
        origin, gpus = self._edges[0], len(self.gpus)
        width = _blocks_per_part(self._edges, gpus) * _block_width(self._edges, gpus)
        starting = ops.filter(_starts(begin, until)).group_by(
            *by[:2], part=(start - origin) // width
        )
        reached = end.cum_max().shift(1).over(by[:2])
        split = ops.select(
            *by[:2], pl.max_horizontal(start, reached).clip(begin, until), end.clip(begin, until)
        ).filter(start < end)
        first, last = (start - origin) // width, (end - 1 - origin) // width
        cut = split.with_columns(part=pl.int_ranges(first, last + 1)).explode("part")
        edge = origin + pl.col("part") * width
        inside = pl.min_horizontal(end, edge + width) - pl.max_horizontal(start, edge)
        found = (
            starting.agg(
                ops=pl.len().cast(pl.Int64), total_ns=_LENGTH.sum(), min_ns=_LENGTH.min(),
                max_ns=_LENGTH.max(), longest=pl.col("number").get(_LENGTH.arg_max()),
            ),
            cut.group_by(by).agg(busy_ns=inside.sum()),
        )  # fmt: skip
        self._kernels += [
            each.with_columns(pl.col("name", "kind").cast(pl.String)) for each in found
        ]
        if len(self._kernels) > 2 * _FEW_PARTS:
            self._kernels = [self.kernels()]

    def kernels(self) -> pl.DataFrame:
        """Return the sums by name and kind; see `RunSums.kernels`."""
        none = dict.fromkeys(_KERNELS, pl.Int64) | {"name": pl.String, "kind": pl.String}
        rows = pl.concat([pl.DataFrame(schema=none), *self._kernels], how="diagonal")
        return rows.group_by("name", "kind", "part").agg(
            pl.col("ops", "total_ns", "busy_ns").sum(), pl.col("min_ns").min(),
            pl.col("max_ns").max(), _LONGEST,
        ).sort("part", "kind", "name")  # fmt: skip

    def blocks(self) -> dict[BlockKey, Block]:
        """Return the sums of GPUs; see `RunSums.blocks`."""
        return {key: sums.block() for key, sums in self._blocks.items()}

    def lanes(self) -> dict[Key, tuple[int, Tiles]]:
        """Return for each lane its number of spans, and their sums in bins."""
        return {key: (self._spans[key], sums.tiles()) for key, sums in self._sums.items()}

    def few(self) -> dict[Key, pl.DataFrame]:
        """Return the spans of lanes with few spans, to draw them singly: key of lane -> spans."""
        return {key: pl.concat(parts) for key, parts in self._few.items()}


def _by_lane(kind: str, rows: pl.DataFrame) -> dict[Key, pl.DataFrame]:
    lanes = rows.partition_by(_BY[kind], as_dict=True, maintain_order=True)
    return {(kind, key): value for key, value in lanes.items()}


def _starts(begin: int, until: int) -> pl.Expr:
    return pl.col("start").is_between(begin, until, closed="left")
