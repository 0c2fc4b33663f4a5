"""Streams ops in segments to aggregators, with only the columns they need.

A segment is a run of a device's ops, cut where nothing runs, so no interval crosses its edges.
Busy time (the length of a union of intervals) of any group of ops can therefore be computed per
segment and added up, and a run never has to be in memory as a whole.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Protocol

import polars as pl

from tracekit.engine._launch_groups import groups_of_parts, launch_groups
from tracekit.engine._lines import owners_of
from tracekit.engine._windows import Cutter, chosen_windows, cut, run_windows
from tracekit.errors import MissingDataError
from tracekit.support.batches import at_least_one

if TYPE_CHECKING:
    from tracekit.model import Frames, Trace

_LENGTH = pl.col("end") - pl.col("start")


@dataclass(frozen=True)
class Counting:
    """Expressions that count an op (GPU work) once although window borders split it into rows."""

    is_op: pl.Expr | None
    """Whether a piece is counted for its op; None counts all, if nothing is cut."""
    duration: pl.Expr
    """Expression for the duration of the whole op."""

    def ops(self, where: pl.Expr) -> pl.Expr:
        """Return a row filter: `where`, and only one of the rows into which windows split an op."""
        return where if self.is_op is None else where & self.is_op


WHOLE = Counting(None, _LENGTH)
"""Every piece is an op, and every line is a window."""
CUT = Counting(pl.col("counts"), pl.col("duration_ns"))


class Tally(Protocol):
    """Interface of an aggregator that gets ops cut at the borders of windows, segment by segment.

    A window is an interval of a device's time, such as a step; `feed` explains segments.
    """

    @property
    def columns(self) -> Sequence[str]:
        """Names of the columns of ops that this aggregator reads."""

    def clear(self) -> None:
        """Set all sums to zero."""

    def add(self, rows: pl.DataFrame) -> None:
        """Add up ops of one device or process.

        Each call gets all ops between two times at which that device is idle (see `feed`).
        """


class Sweep(Protocol):
    """Interface of an aggregator that gets whole ops, by start, and sums by window (interval)."""

    @property
    def columns(self) -> Sequence[str]:
        """Names of the columns of ops that this aggregator reads."""

    def begin(self, windows: pl.DataFrame | None) -> None:
        """Zero all sums; set the time windows to sum over (None: one window per device)."""

    def add(self, rows: pl.DataFrame) -> bool:
        """Add up ops; return False if the ops of a device or process are not ordered by start."""

    def windows(self) -> pl.DataFrame:
        """Return the given windows, or else one per device, from its first op to its last."""

    def sums(self) -> Any:
        """Return the sums; their class has a method that merges sums of several parts of a run."""


@dataclass(frozen=True)
class Named:
    """A value to group ops by that another table has, such as the path of their range."""

    columns: tuple[str, ...]
    """Columns of ops that `number` reads."""
    number: pl.Expr
    """Expression, over ops, for the index into `values`."""
    values: pl.Series
    """Values of the key in that table."""


@dataclass
class _Line:
    """Intervals of a device or process not passed on yet, as a later one may overlap them."""

    first: int
    """Start of its first interval."""
    furthest: int
    """The furthest end so far."""
    latest: int
    """The latest start so far."""
    running: list[pl.DataFrame] = field(default_factory=list)
    """Intervals since the last lull (time without intervals); the segment may go on."""
    short: list[pl.DataFrame] = field(default_factory=list)
    """Segments that reach across two batches. They are many and small, and passed on together."""


def feed(
    batches: Iterable[pl.DataFrame], line: str, take: Callable[[pl.DataFrame], None]
) -> pl.DataFrame | None:
    """Pass intervals on in segments cut at times when their device (`line`) is idle.

    Parameters
    ----------
    batches
        Frames with ``start, end``, an integer column `line`, and others; ordered by start on each
        line.
    line
        Name of the column with an interval's line: the id of its device, or process on a device.
    take
        Function that receives one or more complete segments (intervals between two idle times) of a
        line at a time, with a column ``crowded``: false if an interval certainly overlaps no other
        one of its line.

    Returns
    -------
    `line`, ``start, end``: first start and last end of each line, ordered by line; None if the
    intervals of a line are not ordered by start, in which case the segments passed on are invalid.
    """
    lines: dict[int, _Line] = {}
    for batch in batches:
        for rows in batch.partition_by(line, maintain_order=True):
            number, begin = rows[line][0], rows["start"][0]
            known = lines.setdefault(number, _Line(begin, begin, begin))
            if begin < known.latest or not rows["start"].is_sorted():
                return None
            _add(known, rows, take)
        if batch.is_empty():  # so that what adds up knows what it adds up
            take(batch.with_columns(crowded=pl.lit(value=False)))
    for known in lines.values():
        take(pl.concat([*known.short, *known.running]))
    edges = [(number, known.first, known.furthest) for number, known in sorted(lines.items())]
    return pl.DataFrame(edges, [line, "start", "end"], orient="row").cast(pl.Int64)


def _add(line: _Line, rows: pl.DataFrame, take: Callable[[pl.DataFrame], None]) -> None:
    """Pass to `take` the intervals before the latest idle time of `line`; keep the rest in it."""
    begin, furthest = rows["start"][0], line.furthest
    reached = pl.col("end").cum_max().shift(1, fill_value=furthest)
    if begin < furthest:
        reached = pl.max_horizontal(reached, pl.lit(furthest))
    # A lull is before an interval that starts when all earlier ones have ended.
    lull = rows.select(pl.col("start") >= reached).to_series()
    alone = lull & lull.shift(-1, fill_value=False)
    marked = rows.with_columns(crowded=~alone)
    line.furthest = max(furthest, rows["end"].max())  # type: ignore[type-var, assignment]
    line.latest = rows["start"][-1]
    first, last = lull.index_of(element=True), lull.reverse().index_of(element=True)
    if first is None or last is None:
        line.running.append(marked)
        return
    last = rows.height - 1 - last
    line.short += [*line.running, marked[:first]]
    line.running = [marked[last:]]
    if last > first:
        take(marked[first:last])


_OWNER = ["process", "device"]
_AT_ONCE = 2
"""Number of threads that add up."""
_FEW = 10_000
"""Number of ops that are added up before threads are started."""


@dataclass(frozen=True)
class Receivers:
    """Aggregators that ops are streamed to."""

    tallies: Sequence[Tally] = ()
    """Aggregators that get ops cut at the borders of windows (time intervals, such as steps)."""
    sweeps: Sequence[Sweep] = ()
    """Aggregators that get whole ops, and sum them over these windows."""
    whole: Sequence[Sweep] = ()
    """Aggregators that get whole ops, and sum them over one window per device."""


def hand_out(trace: Trace, receivers: Receivers, *, skip: int) -> pl.DataFrame:
    """Stream a run's ops, inside the windows (time intervals) that `skip` leaves, to aggregators.

    Parameters
    ----------
    receivers
        The aggregators.
    skip
        Number of iterations to leave out at the beginning; see `chosen_windows`.

    Returns
    -------
    The windows: ``window, device, iteration, start, end`` (ns).
    """
    windows, whole = _both(trace, skip, run_windows, per_iteration=False)
    found = _in_order(trace, receivers, windows, whole)
    _require_ops(found.height)
    return found


@dataclass(frozen=True)
class Summed:
    """Windows, and sums over a run's ops by time window (`sweeps`) and per device (`whole`)."""

    windows: pl.DataFrame
    sweeps: Sequence[Any]
    whole: Sequence[Any]


class Begin(Protocol):
    """Factory of aggregators (`Sweep`) for one part of a run; its `repr` is the sums' cache key."""

    @property
    def of_sweeps(self) -> Sequence[Any]:
        """Classes of the sums by window; their method `merged` adds up sums of several parts."""

    @property
    def of_whole(self) -> Sequence[Any]:
        """Classes of the sums per device; their method `merged` adds up sums of several parts."""

    def __call__(self, part: Trace) -> Receivers:
        """Return aggregators for a part of a run."""


def sum_up(
    trace: Trace,
    begin: Begin,
    *,
    skip: int,
    per_iteration: bool,
    cutter: Cutter = run_windows,
    with_paths: bool = False,
) -> Summed:
    """Add up the ops of each part of a run, and merge the sums.

    A part is some of the run's trace files, read together. Parts are summed in other processes if
    the run was opened with several processes.

    Parameters
    ----------
    begin
        Factory of the aggregators for a part.
    skip, per_iteration, cutter
        Options of `chosen_windows`.
    with_paths
        Whether sums are grouped by paths of ranges.
    """
    windows, whole = _both(trace, skip, cutter, per_iteration=per_iteration)
    parts = trace.parts(with_paths=with_paths)
    if len(parts) == 1:
        return _summed(trace, begin, windows, whole)
    known = [each for each in (windows, whole) if each is not None]
    groups = groups_of_parts(trace) if known else [pl.DataFrame()] * len(parts)
    work = [
        partial(_SumsOfPart(begin), part, *(_of_devices(each, names) for each in known))
        for part, names in zip(parts, groups, strict=True)
    ]
    found = trace.sums_of_parts(work)
    if windows is None:
        windows = pl.concat([each["windows"] for each in found]).sort("window")
        _require_ops(windows.height)
    return Summed(
        windows,
        _merged(found, "sweeps", begin.of_sweeps),
        _merged(found, "whole", begin.of_whole),
    )


def _of_devices(windows: pl.DataFrame, groups: pl.DataFrame) -> pl.DataFrame:
    return windows.filter(pl.col("device").is_in(groups["device"].unique().implode()))


def _merged(parts: Sequence[Frames], of: str, classes: Sequence[Any]) -> list[Any]:
    """Merge the sums of each aggregator over all parts of a run.

    `of` is ``sweeps`` or ``whole``, the prefix of the frames' names; `classes`, one per aggregator.
    """
    return [
        each.merged([_within(part, f"{of} {place} ") for part in parts])
        for place, each in enumerate(classes)
    ]


def _within(frames: Frames, start: str) -> Frames:
    return {
        name.removeprefix(start): frame for name, frame in frames.items() if name.startswith(start)
    }


def _summed(
    trace: Trace, begin: Begin, windows: pl.DataFrame | None, whole: pl.DataFrame | None
) -> Summed:
    receivers = begin(trace)
    found = _in_order(trace, receivers, windows, whole)
    return Summed(
        found, [each.sums() for each in receivers.sweeps], [each.sums() for each in receivers.whole]
    )


def sum_in(trace: Trace, sweep: Sweep, windows: pl.DataFrame | None) -> Any:
    """Sum ops in `windows` (``window, process, device, start, end``; None: one per device)."""
    _in_order(trace, Receivers(sweeps=[sweep]), windows, None)
    return sweep.sums()


@dataclass(frozen=True)
class _SumsOfPart:
    """Adds up the ops of one part of a run, into frames small enough to send between processes."""

    begin: Begin

    def __call__(
        self,
        part: Trace,
        windows: pl.DataFrame | None = None,
        whole: pl.DataFrame | None = None,
    ) -> Frames:
        found = _summed(part, self.begin, windows, whole)
        return {"windows": found.windows} | {
            f"{of} {place} {name}": frame
            for of, sums in (("sweeps", found.sweeps), ("whole", found.whole))
            for place, each in enumerate(sums)
            for name, frame in each.frames().items()
        }


def _both(
    trace: Trace, skip: int, cutter: Cutter, *, per_iteration: bool
) -> tuple[pl.DataFrame | None, pl.DataFrame | None]:
    """Return the time windows to sum over, and the same not split by iteration.

    None stands for one window per device, over all its ops.
    """
    if not (skip or per_iteration or not trace.stretch.is_all):
        return None, None
    _require_ops(launch_groups(trace).height)
    choose = partial(_chosen, trace, skip, cutter)
    is_part = skip or not trace.stretch.is_all
    return choose(per_iteration=per_iteration), choose(per_iteration=False) if is_part else None


def _chosen(trace: Trace, skip: int, cutter: Cutter, *, per_iteration: bool) -> pl.DataFrame:
    """Return numbered time windows to sum over, from `chosen_windows` with these options.

    ``window`` is the number, ``line`` an id of process and device.
    """
    windows = chosen_windows(trace, skip=skip, per_iteration=per_iteration, cutter=cutter)
    line = pl.struct(_OWNER).rank("dense").cast(pl.Int64)
    return windows.with_row_index("window").with_columns(line=line)


def _in_order(
    trace: Trace, receivers: Receivers, windows: pl.DataFrame | None, whole: pl.DataFrame | None
) -> pl.DataFrame:
    """Pass all ops, by start, to the aggregators; return the windows (intervals) they sum over.

    `whole` is the windows of those aggregators that do not sum by iteration.
    """
    found = _handed_out(trace, receivers, windows, whole)
    if found is None:  # several reports saw one device, and each has its ops by start
        in_order = trace.with_lazy({"ops": trace["ops"].sort("start")})
        found = _handed_out(in_order, receivers, windows, whole)
    if found is None:
        raise AssertionError("ops that were sorted come by start")
    return found


def _handed_out(
    trace: Trace, receivers: Receivers, windows: pl.DataFrame | None, whole: pl.DataFrame | None
) -> pl.DataFrame | None:
    """Stream all ops to the aggregators; return the windows (time intervals) they sum over.

    None if the ops of a device or process are not ordered by start. `whole` is the windows of those
    aggregators that do not sum by iteration.
    """
    for sweep in receivers.sweeps:
        sweep.begin(windows)
    for sweep in receivers.whole:
        sweep.begin(whole)
    sweeps = [*receivers.sweeps, *receivers.whole]
    owner = ["device"] if windows is None else owners_of(windows)
    columns = [name for sweep in sweeps for name in sweep.columns]
    columns += [name for tally in receivers.tallies for name in tally.columns]
    ops = _reaching(trace["ops"], windows, whole)
    ops = ops.select(*dict.fromkeys(["start", "end", *owner, *columns]))
    batches = _swept(at_least_one(ops), sweeps)
    try:
        edges = _fed(batches, receivers.tallies, windows)
    except _DisorderError:
        return None
    if windows is None:
        windows = edges if receivers.tallies else sweeps[0].windows()
    return windows


def _reaching(ops: pl.LazyFrame, *windows: pl.DataFrame | None) -> pl.LazyFrame:
    """Drop ops that end before the first window begins, or start after the last one ends.

    Row groups whose min/max statistics show only such ops are not read.
    """
    known = [each for each in windows if each is not None]
    if not known:
        return ops
    edges = pl.concat(each.select("start", "end") for each in known)
    if edges.is_empty():
        return ops.clear()
    return ops.filter(pl.col("start") <= edges["end"].max(), pl.col("end") >= edges["start"].min())


class _DisorderError(Exception):
    """The ops of a device or process are not ordered by start."""


def _swept(batches: Iterable[pl.DataFrame], sweeps: Sequence[Sweep]) -> Iterator[pl.DataFrame]:
    """Yield batches of ops after passing each to the aggregators `sweeps`.

    With many ops, the aggregators run in threads.
    """
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for batch in batches:
            each = pool.map if len(sweeps) > 1 and batch.height >= _FEW else map
            if not all(each(methodcaller("add", batch), sweeps)):
                raise _DisorderError
            yield batch


def _fed(
    batches: Iterable[pl.DataFrame], tallies: Sequence[Tally], windows: pl.DataFrame | None
) -> pl.DataFrame:
    """Stream ops, cut at windows, to `tallies`; return first start and last end per device.

    With windows, these are per ``line``, a dense id of process and device.
    """
    if not tallies:
        for _ in batches:
            pass
        return pl.DataFrame()
    if windows is None:
        columns = dict.fromkeys(name for tally in tallies for name in tally.columns)
        needed = [pl.col("start", "end", *columns), pl.col("device").alias("window")]
        edges = _feed_all((batch.select(needed) for batch in batches), "window", tallies)
    else:
        edges = _feed_all(_cut_ops(batches, windows), "line", tallies)
    if edges is None:
        raise _DisorderError
    if windows is not None:
        return edges
    edges = edges.cast({"window": pl.Int32})
    return edges.with_columns(device="window", iteration=pl.lit(None, pl.Int64))


def _cut_ops(batches: Iterable[pl.DataFrame], windows: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Yield the pieces into which windows cut ops, ordered by start on each device or process.

    An op's piece in a later window waits until no op with an earlier start can follow.
    """
    spans = windows.drop("window", "line")
    lines = windows.select(*_OWNER, "line").unique()
    latest: dict[int, int] = {}
    pending: list[pl.DataFrame] = []
    for batch in batches:
        reached = batch.group_by(_OWNER).agg(pl.col("start").max()).join(lines, on=_OWNER)
        latest |= dict(reached.select("line", "start").rows())
        cut_up = cut(batch, spans)
        cut_up = cut_up.with_columns(windows["line"].gather(cut_up["window"]))
        pieces = pl.concat([*pending, cut_up])
        is_due = pl.col("start") <= pl.col("line").replace_strict(latest, return_dtype=pl.Int64)
        yield pieces.filter(is_due).sort("start")
        pending = [pieces.filter(~is_due)]
    yield pl.concat(pending).sort("start")


def _feed_all(
    batches: Iterable[pl.DataFrame], line: str, tallies: Sequence[Tally]
) -> pl.DataFrame | None:
    for tally in tallies:
        tally.clear()

    def add(rows: pl.DataFrame) -> None:
        for tally in tallies:
            tally.add(rows)

    # Columns hold no lock on the interpreter: while one thread adds up, others read and add up.
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        begun: deque[Future[None]] = deque()

        def take(rows: pl.DataFrame) -> None:
            if rows.height < _FEW:
                add(rows)
                return
            begun.append(pool.submit(add, rows))
            if len(begun) > _AT_ONCE:  # so that what is read does not pile up
                begun.popleft().result()

        edges = feed(batches, line, take)
        for adding in begun:
            adding.result()
    return edges


def _require_ops(number: int) -> None:
    if not number:
        raise MissingDataError(
            "this run has no GPU work", "record with `nsys profile -t cuda,nvtx`"
        )
