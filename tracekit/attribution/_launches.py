"""Join ops with launching calls, and nodes of CUDA graphs with the calls that captured them.

Correlation ids repeat across processes, so an op's call is the one with its id in the same process;
of several, the first one.

One call replays all nodes of a graph, so its ranges show little about each node. The calls from
which the nodes were captured show more: these lay inside ranges of the program's code.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import polars as pl

from tracekit.attribution._arrays import Array, Keys, Launched, Launchers, number_type
from tracekit.attribution._chunks import Waiting
from tracekit.attribution._evidence import IN_AUTOGRAD, IN_EVALUATION, RANGE_STAGE, STAGE
from tracekit.attribution._launch_loops import count_launches, index_calls, look_up, span
from tracekit.model import KINDS, Stream, is_migration
from tracekit.support.arrays import Bits
from tracekit.support.compiled import compiled, given
from tracekit.support.spool import Workspace

_FEW = 0.01
"""Share of kernel launches that may lack a kernel without a warning: 0.1 to 0.6 % in real traces of
nsys, queued when it stopped."""
_MANY, _SOME = 0.1, 10
"""Launches of a process after its last recorded kernel that give no warning: share, and number."""
_TRANSFERS = "^(cu(da)?|hip)Mem(cpy|set)"
_LAUNCHES = f"Launch(Cooperative)?Kernel|{_TRANSFERS}"
_CAPTURES = "BeginCapture|GraphLaunch|GraphInstantiate"
_OF_OP = ("process", "correlation", "kind", "device", "start", "end")
_KEPT = 4
"""Number of chunks of calls that stay indexed: ops follow their calls closely."""
_NO_ID = -1
_IS_KERNEL = np.isin(KINDS, ("compute", "collective"))
_LONGEST = np.iinfo(np.int64)
_NODE = ["process", "graph_node"]
_OF_RANGES = STAGE << RANGE_STAGE | IN_EVALUATION | IN_AUTOGRAD
"""Evidence bits that come from ranges of a call's own thread: a stage, evaluation, or an autograd
marker."""


@dataclass(frozen=True)
class Lost:
    """Counts of launches (of kernels, copies and fills) whose op is missing in the recording.

    ``calls`` is the number of launches without an op, from the first to the last launch with a
    recorded op; ``of`` is the number of all launches in that period; ``span`` is the time from the
    first to the last launch in ``calls``, ns. ``late`` is the number of launches after the last
    recorded op. ``dark`` is the number of launches by processes without any recorded op, if other
    processes have some. ``late`` and ``dark`` are 0 if too few for a warning.
    """

    calls: int
    of: int
    span: int
    late: int = 0
    dark: int = 0

    @property
    def matters(self) -> bool:
        """Whether more launches lack an op than recorders lose even in good recordings (1 %)."""
        return self.calls > _FEW * self.of


@dataclass(frozen=True)
class Launches:
    """Launching call of each op (kernel, copy, memset); counts of ops and calls not joined."""

    calls: Waiting
    """Chunks parallel to those of ops: ``call``, the number of the launching call, -1 if
    unknown."""
    launching: Bits
    """Chunks parallel to those of calls: whether the call launched an op."""
    by_thread: Array
    """Number of ops by launching thread."""
    devices: Array
    """Per thread: the device of the kernels it launched; -1 for none, -2 for several."""
    repeated: int
    """Number of calls that repeat the key (process and correlation id) of another call."""
    alone: int
    """Number of ops without a launching call in the recording, except migrations of unified
    memory, which no call launches."""
    earlier: tuple[int, int]
    """Of the ops in `alone`, the number that were launched before the recording began, and their
    total duration, ns. These are ops whose correlation id is lower than those of all calls of their
    process, since correlation ids grow."""
    lost: Lost
    """Launching calls whose kernel is not in the recording."""
    twice: int
    """Number of ops that repeat the op before them: same call, GPU and times."""


def link_launches(
    ops: Stream, calls: Stream, threads: int, processes: int, workspace: Workspace
) -> Launches:
    """Find the launching call of each op: the call of its process with the same correlation id.

    `threads` and `processes` are the largest thread number and the largest process number, plus 1.
    """
    index = _Calls(calls, processes)
    found = Waiting(workspace)
    launching = Bits(calls.heights)
    by_thread = Launchers(np.zeros(threads, np.int64), np.full(threads, -1))
    alone = twice = 0
    for number in range(len(ops)):
        rows = ops.read(number, "process", "correlation", "kind", "device")
        numbers, missing = index.find(_keys(rows))
        if (numbers[1:] == numbers[:-1]).any():
            twice += _repeated(ops.read(number, *_OF_OP))
        kinds, devices = given(rows["kind"].to_physical()), given(rows["device"], null=-1)
        for chunk in chunks_of(numbers, index.first):
            launched = Launched(numbers, kinds, devices, int(index.first[chunk]))
            marked = launching[chunk]
            index.count(launched, chunk, marked, by_thread)
            launching[chunk] = marked
        if missing:
            alone += missing - ops.read(number, "copy_kind").select(is_migration().sum()).item()
        found.append({"call": numbers})
    earlier = _launched_earlier(ops, calls, found) if alone else (0, 0)
    lost = _lost(calls, launching)
    return Launches(found, launching, *by_thread, index.repeated(), alone, earlier, lost, twice)


def _repeated(ops: pl.DataFrame) -> int:
    """Count ops that equal the previous op, as in a recording that lists each op twice."""
    same = [pl.col(name) == pl.col(name).shift() for name in _OF_OP]
    return int(ops.select(pl.all_horizontal(same).sum()).item())


def _may_lack(calls: pl.DataFrame, launching: Array) -> bool:
    """Test whether any call named like a launch (such as cudaLaunchKernel) launched no op."""
    without = calls.filter(~pl.Series(launching))["name"].unique().cast(pl.String)
    return bool(without.str.contains(_LAUNCHES).any())


def _lost(calls: Stream, launching: Bits) -> Lost:
    """Count the calls that launch kernels, copies or fills although none of these was recorded.

    Nested calls (the runtime calls the driver) count once. A call counts if it lies between the
    first and the last call of the same process and name whose op was recorded; for copies and
    fills, if no call of that name has a recorded op, between those of the process under any name.
    Processes that capture CUDA graphs are left out here. Calls after the last recorded op of their
    process are counted separately (``late``).
    """
    if not any(_may_lack(calls.read(n, "name"), launching[n]) for n in range(len(calls))):
        return Lost(0, 0, 0)
    counts, without = [], []
    for number in range(len(calls)):
        rows = calls.read(number, "process", "thread", "name", "start", "end")
        names = rows["name"].unique().cast(pl.String)
        kinds = [names.filter(names.str.contains(each)) for each in (_LAUNCHES, _CAPTURES)]
        launch, capture = (pl.col("name").cast(pl.String).is_in(each.implode()) for each in kinds)
        chunk = rows.with_columns(did=pl.Series(launching[number]), captures=capture)
        before = pl.col("end").cum_max().shift().over("thread")
        is_outer = (pl.col("start") >= before).fill_null(value=True)
        outer = is_outer.cum_sum().over("thread").alias("outer")
        each = chunk.filter(launch | capture).group_by("thread", outer, maintain_order=True).agg(
            pl.col("process", "name", "start").first(), pl.col("did", "captures").any()
        )  # fmt: skip
        start = pl.col("start").filter("did")
        counts.append(
            each.group_by("process", "name").agg(
                pl.col("did").sum(), pl.col("captures").any(), first=start.min(), last=start.max()
            )
        )
        without.append(each.filter(~pl.col("did"), ~pl.col("captures")))
    launched = pl.concat(counts).group_by("process", "name").agg(
        pl.col("did").sum(), pl.col("captures").any(), pl.col("first").min(), pl.col("last").max()
    )  # fmt: skip
    # Kernels of some calls are recorded under calls of other names; copies and fills are not.
    ends_of_any = pl.col("first").min().over("process"), pl.col("last").max().over("process")
    is_transfer = pl.col("name").cast(pl.String).str.contains(_TRANSFERS)
    known = launched.filter(~pl.col("captures").any().over("process")).with_columns(
        pl.when(is_transfer).then(pl.coalesce(pl.col(name), ends)).otherwise(name).alias(name)
        for name, ends in zip(("first", "last"), ends_of_any, strict=True)
    )
    inside = pl.col("start").is_between("first", "last")
    gone = pl.concat(without).join(known, on=["process", "name"]).filter(inside)
    span: int = (gone["start"].max() or 0) - (gone["start"].min() or 0)  # type: ignore[operator, assignment]
    ends = launched.group_by("process").agg(
        pl.col("last").max(), pl.col("did").sum(), captures=pl.col("captures").any()
    )
    after = pl.concat(without).join(ends, on="process").filter(pl.col("start") > pl.col("last"))
    # Launches of a capture run nothing, and that no process runs anything is said elsewhere.
    dark = ends.filter(pl.col("last").is_null(), ~pl.col("captures"), (pl.col("did") > 0).any())
    unseen = pl.concat(without).join(dark, on="process", how="semi").height
    late = after.group_by("process").agg(late=pl.len(), did=pl.col("did").first())
    many = late.filter(
        pl.col("late") > pl.max_horizontal(pl.lit(_SOME), _MANY * (pl.col("late") + pl.col("did")))
    )
    late_ones, of_all = int(many["late"].sum()), gone.height + int(known["did"].sum())
    return Lost(gone.height, of_all, span, late_ones, unseen if unseen > _SOME else 0)


def _launched_earlier(ops: Stream, calls: Stream, found: Waiting) -> tuple[int, int]:
    """Return number and total duration (ns) of ops launched before the recording's first call."""
    count = length = 0
    ids = (calls.read(number, "process", "correlation") for number in range(len(calls)))
    least = [each.group_by("process").agg(least=pl.col("correlation").min()) for each in ids]
    if not least:
        return count, length
    first = pl.concat(least).group_by("process").agg(pl.col("least").min())
    for number in range(len(ops)):
        alone = np.flatnonzero(found.read(number, "call")[0] < 0)
        if alone.size:
            rows = ops.read(number, "process", "correlation", "start", "end")[alone]
            rows = rows.join(first, on="process").filter(pl.col("correlation") < pl.col("least"))
            count += rows.height
            length += int((rows["end"] - rows["start"]).sum())
    return count, length


def _keys(frame: pl.DataFrame) -> Keys:
    """Return the join keys of rows: process, correlation id.

    Rows without a correlation id get the process `_NO_ID`.
    """
    process, correlation = frame["process"], frame["correlation"]
    if correlation.null_count():
        process = process.set(correlation.is_null(), _NO_ID)
    return Keys(given(process, np.int32), given(correlation, np.int64, null=0))


@dataclass(frozen=True)
class _Index:
    """Index of a chunk of calls: hash table by process and correlation id; the ids per process."""

    keys: Keys
    span: tuple[Array, Array]
    slots: Array
    threads: Array
    repeated: int


class _Calls:
    """All calls of a recording, with a hash index of the chunks in use.

    Ops come in about the order of their calls, so a chunk of calls is indexed only when a requested
    key is not found in earlier chunks.
    """

    def __init__(self, calls: Stream, processes: int) -> None:
        self._calls = calls
        self._processes = processes
        self.first = first_numbers(calls)
        rows = calls.height
        self._index, self._look_up = compiled(index_calls, rows), compiled(look_up, rows)
        self._count = compiled(count_launches, rows)
        self._span = compiled(span, rows)
        self._number = number_type(rows)
        self._spans: list[tuple[Array, Array]] = []
        self._of = lru_cache(_KEPT)(self._indexed)
        self._repeated = 0

    def find(self, keys: Keys) -> tuple[Array, int]:
        """Return the first call of each key (-1 if none), and the number of keys without a call.

        A key is a process and a correlation id.
        """
        missing: int = keys.process.size
        found = np.full(missing, -1, self._number)
        ids = self._ids(keys)
        for number in range(len(self._calls)):
            if not missing:
                break
            if number == len(self._spans):
                self._add(number)
            if self._overlap(number, ids):
                missing = self._look(keys, number, found)
        return found, missing

    def count(self, launched: Launched, chunk: int, launching: Array, by: Launchers) -> None:
        """Mark the calls of a chunk that launched ops; count ops by thread (`count_launches`)."""
        self._count(launched, _IS_KERNEL, self._of(chunk).threads, launching, by)

    def repeated(self) -> int:
        """Return the number of calls that share process and correlation id with another call."""
        for number in range(len(self._spans), len(self._calls)):
            self._add(number)
        return self._repeated

    def _add(self, number: int) -> None:
        """Index chunk `number` of the calls; count its keys that earlier chunks have too.

        A key is a process and a correlation id.
        """
        index = self._of(number)
        found = np.full(index.keys.process.size, -1, self._number)
        for earlier in range(number):
            if self._overlap(earlier, index.span):
                self._look(index.keys, earlier, found)
        self._repeated += index.repeated
        if (found >= 0).any():
            distinct = index.slots[index.slots >= 0]
            self._repeated += int((found[distinct] >= 0).sum())
        self._spans.append(index.span)

    def _overlap(self, chunk: int, ids: tuple[Array, Array]) -> bool:
        """Test whether the correlation id ranges of two chunks overlap in any process."""
        least, most = self._spans[chunk]
        return bool(((least <= ids[1]) & (ids[0] <= most)).any())

    def _look(self, keys: Keys, chunk: int, found: Array) -> int:
        """Look up in a chunk the call of each of `keys` that lacks one; return how many remain.

        `found` has the call of each key, -1 for none; it is updated.
        """
        index = self._of(chunk)
        return self._look_up(keys, index.keys, index.slots, int(self.first[chunk]), found)

    def _indexed(self, number: int) -> _Index:
        frame = self._calls.read(number, "process", "thread", "correlation")
        keys, threads = _keys(frame), given(frame["thread"])
        slots = np.full(1 << (2 * frame.height - 1).bit_length(), -1, np.int32)
        return _Index(keys, self._ids(keys), slots, threads, self._index(keys, slots))

    def _ids(self, keys: Keys) -> tuple[Array, Array]:
        """Return the least and the largest correlation id of each process."""
        least = np.full(self._processes, _LONGEST.max)
        most = np.full(self._processes, _LONGEST.min)
        self._span(keys, least, most)
        return least, most


def first_numbers(stream: Stream) -> Array:
    """Return the row number, in the whole table, of each chunk's first row; then the row count."""
    return np.array([*stream.first, stream.height])


def call_column(name: str, launches: Launches, calls: Stream, number: int) -> tuple[Array, Array]:
    """Return the column `name` (a time) of the calls that launched the ops of chunk `number`.

    Also return a mask of the ops whose call is known.
    """
    [of] = launches.calls.read(number, "call")
    first, values = first_numbers(calls), np.zeros(of.size, np.int64)
    for chunk in chunks_of(of, first):
        rows = np.flatnonzero((of >= first[chunk]) & (of < first[chunk + 1]))
        values[rows] = calls.read(chunk, name)[name].to_numpy()[of[rows] - first[chunk]]
    return values, of >= 0


def chunks_of(numbers: Array, first: Array) -> range:
    """Return the range of chunks in which the given rows of a table lie.

    Parameters
    ----------
    numbers
        Row indices in the table; negative ones are ignored.
    first
        The first row number of each chunk, from `first_numbers`.
    """
    most = numbers.max(initial=-1)
    if most < 0:
        return range(0)
    least = numbers.min() if numbers.min() >= 0 else numbers[numbers >= 0].min()
    begin, end = np.searchsorted(first, (least, most), side="right")
    return range(int(begin) - 1, int(end))


class Captured:
    """Maps each node of a CUDA graph to the call that it was captured from.

    Parameters
    ----------
    nodes
        The canonical table ``graph_nodes``.
    """

    def __init__(self, nodes: pl.DataFrame, calls: Stream) -> None:
        self._calls = calls
        found = nodes.select(*_NODE, "thread", "time", call=pl.lit(-1, pl.Int64))
        if found.height:
            found = found.unique(_NODE, keep="first", maintain_order=True).sort("time")
        for number in range(len(calls) if found.height else 0):
            found = _within(found, calls.read(number, "call", "thread", "start", "end"))
        self._found = found.filter(pl.col("call") >= 0).select(*_NODE, "call")

    def mark(self, launching: Bits) -> None:
        """Mark the calls from which graph nodes were captured, in the masks of launching calls."""
        numbers = np.unique(self._found["call"].to_numpy())
        for number, first in enumerate(self._calls.first if numbers.size else ()):
            chunk = launching[number]
            chunk[numbers[(numbers >= first) & (numbers < first + chunk.size)] - first] = True
            launching[number] = chunk

    def of(self, ops: pl.DataFrame) -> Array | None:
        """Return for each op the index of the call that captured it, -1 if it is no graph node.

        None if no op is a node of a known CUDA graph.
        """
        if self._found.is_empty() or ops["graph_node"].null_count() == ops.height:
            return None
        both = ops.select(_NODE).join(self._found, on=_NODE, how="left", maintain_order="left")
        return both["call"].fill_null(-1).to_numpy()


def _within(nodes: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Join each graph node with the call that captured it.

    This is the latest call of its thread that was running when the node was created.
    """
    joined = nodes.join_asof(
        calls.select("thread", "start", "end", later="call"),
        left_on="time", right_on="start", by="thread", check_sortedness=False,
    )  # fmt: skip
    inside = (pl.col("time") <= pl.col("end")).fill_null(value=False)
    return joined.select(
        *_NODE, "thread", "time", call=pl.when(inside).then("later").otherwise("call")
    )


def as_captured(launch: dict[str, Array], capture: dict[str, Array]) -> tuple[Array, Array, Array]:
    """Return for each op the range, evidence bits and thread that decide its stage: three arrays.

    For most ops these are the values of the launching call. A replayed node of a CUDA graph also
    has a capturing call, from which the node was captured. If the capturing call lay in a range,
    its range is returned. If the capturing call lay in ranges with evidence, and the graph is not
    replayed in metric evaluation, its evidence and thread are returned.

    Parameters
    ----------
    launch, capture
        Context of the calls that launched the ops, and of the capturing calls.
    """
    ranged = capture["range"] >= 0
    captured = (capture["evidence"] & _OF_RANGES) != 0
    captured &= (launch["evidence"] & IN_EVALUATION) == 0
    return (
        np.where(ranged, capture["range"], launch["range"]),
        np.where(captured, capture["evidence"], launch["evidence"]),
        np.where(captured, capture["thread"], launch["thread"]),
    )
