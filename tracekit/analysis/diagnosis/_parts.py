"""Ops and idle time of one part of a run (some of its trace files), summed for `diagnose`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray
from polars.selectors import integer

from tracekit.analysis.idle_account import (
    OwnPieces,
    copies_of,
    covered,
    host_activity,
    merged,
    merged_in_batches,
    own_pieces_in,
    plain_name,
)
from tracekit.engine import cut, median_lengths, range_layers, union_length
from tracekit.model import Frames, Trace
from tracekit.support.batches import at_least_one

LENGTH = pl.col("end") - pl.col("start")
MEMBER = ["process", "device"]
CELL = ["device", "iteration"]
"""A step on a GPU."""
LONGEST_LAUNCH_NS = 1_000_000
"""A launch and its Python code take 5 to 100 us; a thread later than this does something else."""
SLOW_LAUNCH_NS = 100_000
"""Between this and `LONGEST_LAUNCH_NS` a thread may launch slowly, or do something else."""
COMPUTES = pl.col("kind").is_in(["compute", "graph"])
TINY_NS = 10_000
"""Kernels up to this length are tiny: to launch one takes about as long."""
RUN = 8
"""Minimum number of consecutive tiny kernels to report."""
_HALF = 0.5
_COUNTED_NS = 1 << 22
"""Values below, mostly lengths of kernels, are counted without sorting or hashing them."""
_IDLE_BY = [
    "process", "device", "iteration", "cause", "rests_on", "detail", "queued", "is_short",
    "is_slow", "is_long", "is_tiny", "is_replayed",
]  # fmt: skip
_REPEATED = r"^(\w+::.*) \d+$"
"""Layer of a program that names no modules: an operator, and which one of its kind."""
_WORK = [
    "op", "process", "device", "start", "end", "name", "kind", "bytes", "host_memory", "range",
    "launch_thread", "launch_start", "launch_end", "launch_size", "stage",
]  # fmt: skip
_TIMES = ["end", "launch_start", "launch_end"]
_NAMED = pl.Schema({"rule": pl.String, "device": pl.Int32, "name": pl.String, "time": pl.Int64})


@dataclass(frozen=True)
class Part:
    """Part of a run that shares no process or GPU with the rest; usual (not cold) steps only."""

    trace: Trace
    steps: pl.DataFrame
    """The part, and the steps on its GPUs that are not cold (usual steps): see `Facts`."""
    ending: pl.DataFrame
    """GPUs that still work at the end of steps while others have no work left (`last_to_work`)."""
    span: pl.DataFrame
    """``first, last``: time of the first and the last usual step of the run, one row."""
    calls: pl.DataFrame
    """Ops of collectives: ``op``, its ``number`` in the run, ``is_send``, and ``meets``, whether
    other participants are recorded."""

    @cached_property
    def ops(self) -> pl.LazyFrame:
        """Ops of usual steps, cut at borders of steps; ``iteration`` is the step in which they ran.

        The frame is in memory (`_held`); it is lazy so that readers copy and widen only needed
        columns.
        """
        schema = self._placed(self.trace["ops"].select(_WORK).clear().collect()).schema
        times, share = pl.col(_TIMES) + pl.col("start"), pl.col("end") / pl.col("duration_ns")
        return self._held.lazy().cast(schema).with_columns(times, share=share)

    @cached_property
    def _held(self) -> pl.DataFrame:
        """The rows of `ops`, as from `_narrow`."""
        batches = at_least_one(self.trace["ops"].select(_WORK))
        some = [_narrow(self._placed(batch)) for batch in batches]
        return pl.concat(some, how="vertical_relaxed")

    def _placed(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Cut ops at the borders of usual steps, drop the rest; add ``iteration`` and others.

        An op that reaches over a border of steps becomes several rows: ``counts`` is true for one
        of these; ``duration_ns`` is the length of the op.
        """
        pieces = cut(rows, self.steps).filter(LENGTH > 0)
        step = self.steps["iteration"].gather(pieces["window"])
        return pieces.select(*rows.columns, "counts", "duration_ns").with_columns(iteration=step)

    @cached_property
    def idle_gaps(self) -> OwnPieces:
        """The idle gaps of GPUs in usual steps, and their intervals (pieces) of one cause each."""
        return own_pieces_in(self.trace, self.steps, self.ending)

    @cached_property
    def idle(self) -> pl.DataFrame:
        """The pieces of `idle_gaps`, with flags for the rules (see the function `idle`)."""
        gaps = self.idle_gaps.gaps.select(
            "gap", queued=pl.col("launch_end") <= pl.col("start"),
            is_tiny=pl.col("ended_by").is_in(self.tiny["op"].implode()).fill_null(value=False),
            is_replayed=self._is_replayed,
        )  # fmt: skip
        pieces = self.idle_gaps.pieces
        late = pl.col("cause") == "host_delay"
        launching = late | (pl.col("cause") == "launch_latency")
        # As long as it had waited before, lateness has another cause: the host is as busy then.
        waited = pl.col("rests_on") == "waits"
        in_all, own = (
            pl.when(of | waited).then(LENGTH).otherwise(0).sum().over("gap")
            for of in (launching, late)
        )
        return pieces.join(gaps, on="gap", how="left", maintain_order="left").with_columns(
            is_short=launching & (in_all <= LONGEST_LAUNCH_NS),
            is_slow=late & (own > SLOW_LAUNCH_NS),
            is_long=late & (own > LONGEST_LAUNCH_NS),
        )

    @cached_property
    def tiny(self) -> pl.DataFrame:
        """Sequences of `RUN` or more kernels of up to `TINY_NS`, not of CUDA graphs: see `runs`."""
        return self.runs((LENGTH <= TINY_NS) & ~self._is_replayed, RUN)

    @cached_property
    def _is_replayed(self) -> pl.Expr:
        """Select ops that were launched as part of a CUDA graph."""
        is_replay = pl.col("name").cast(pl.String).str.contains("GraphLaunch")
        launch = pl.struct(launch_thread="thread", launch_start="start")
        replays = self.trace["calls"].filter(is_replay).select(launch).collect().to_series()
        return pl.struct("launch_thread", "launch_start").is_in(replays.implode())

    def runs(self, own: pl.Expr, least: int) -> pl.DataFrame:
        """Return sequences of kernels that meet the condition `own`.

        A sequence (``run``) is `least` or more consecutive kernels of one step and GPU, launched by
        one thread.

        Returns
        -------
        ``op, device, iteration, start, end, range, run``; ``saved``, ns: lengths of kernels, 0 for
        the longest of each sequence, which fusing does not shorten.
        """
        rows, begins = self._in_turn
        holds = self.ops.select(own.fill_null(value=False)).collect().to_series().to_numpy()
        places = np.flatnonzero(holds[rows])
        run = np.cumsum(begins[places] | (np.diff(places, prepend=-2) > 1))
        long = np.bincount(run)[run] >= least
        run_of = np.zeros(holds.size, np.uint32)
        run_of[rows[places[long]]] = run[long]
        is_in_one = run_of > 0
        rows_in_one = self.ops.filter(is_in_one).select("op", *CELL, "start", "end", "range")
        found = rows_in_one.collect().with_columns(run=run_of[is_in_one])
        longest = LENGTH.max().over("run") == LENGTH
        is_first = pl.int_range(pl.len()).over("run", longest) == 0
        return found.with_columns(saved=pl.when(longest & is_first).then(0).otherwise(LENGTH))

    @cached_property
    def _in_turn(self) -> tuple[NDArray[np.uint32], NDArray[np.bool_]]:
        """Return row numbers in `Part.ops` of kernels by GPU, step, start; flags where runs begin.

        A flag is true for a kernel whose GPU, step or launching thread is not that of the kernel
        before, so that no run (sequence) includes both.
        """
        same = [*CELL, "launch_thread"]
        kernels = self._held.lazy().with_row_index("row").filter(pl.col("kind") == "compute")
        held = kernels.select("row", "start", *same).collect()
        order = np.lexsort([held[name].to_numpy() for name in ("start", *reversed(CELL))])
        ordered = held.select("row", *same)[order]
        anew = pl.any_horizontal(pl.col(same).ne_missing(pl.col(same).shift()))
        return ordered["row"].to_numpy(), ordered.select(anew).to_series().to_numpy()

    def exposed(self, own: pl.Expr) -> pl.DataFrame:
        """Return the copies and collectives that `own` selects, with their exposed time, ns.

        ``exposed`` is the time of an op in which only selected ops run on its GPU; time in which
        several selected ops run at once counts for the earliest op only.
        """
        chosen = self._asked_about.filter(own).collect().sort("start", "op")
        if chosen.is_empty():
            return chosen.with_columns(exposed=LENGTH)
        few = self._asked_about.filter(~own).select("device", "start", "end").collect()
        others = merged(pl.concat([self._rest, few]), ["device"])
        begun, reached = pl.col("start"), pl.col("end").cum_max().shift().over("device")
        alone = chosen.with_columns(
            begun=begun, start=pl.min_horizontal("end", pl.max_horizontal(begun, reached))
        )
        hidden = covered(alone, others, ["device"], "hidden")
        return hidden.select(
            pl.exclude("start", "begun", "hidden"), start="begun", exposed=LENGTH - pl.col("hidden")
        )

    @cached_property
    def _asked_about(self) -> pl.LazyFrame:
        """Copies and collectives: the ops whose exposed time some rule needs."""
        return self.ops.filter(self._is_asked_about).collect().lazy()

    @cached_property
    def _rest(self) -> pl.DataFrame:
        """Merged busy intervals of all but copies and collectives: ``device, start, end`` (ns)."""
        return merged_in_batches(self.ops.filter(~self._is_asked_about), ["device"])

    @property
    def _is_asked_about(self) -> pl.Expr:
        is_copy = pl.col("kind").is_in(["h2d", "d2h"]) | (pl.col("host_memory") == "managed")
        return is_copy.fill_null(value=False) | pl.col("op").is_in(self.calls["op"].implode())

    def launched_in(self, rows: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
        """Return the time of ops by the layer (if unknown: the NVTX range) that launched them.

        Parameters
        ----------
        rows
            Rule -> ``device, range, start, end``.

        Returns
        -------
        ``rule, device, name, time`` (ns).
        """
        times = pl.concat(
            each.drop_nulls("range").group_by("range", "device").agg(time=LENGTH.sum())
            .select(pl.lit(rule).alias("rule"), "device", "range", "time")
            for rule, each in rows.items()
        )  # fmt: skip
        if times.is_empty():
            return _NAMED.to_frame()
        names = self._names(times["range"].unique())
        named = times.join(names, on="range").drop_nulls("name")
        return named.group_by("rule", "device", "name").agg(pl.col("time").sum()).cast(_NAMED)

    def _names(self, numbers: pl.Series) -> pl.DataFrame:
        """Return ``range, name``: the layer of each range or, without one, its own name."""
        found = self.trace.once(range_layers)
        around = self.trace["ranges"].filter(pl.col("range").is_in(numbers.implode())).select(
            "range", around=plain_name(pl.col("name"))
        ).collect()  # fmt: skip
        layers = found.layers.str.replace(_REPEATED, "${1}")
        layer = layers.gather(found.of_range.gather(around["range"]))
        return around.select("range", name=pl.coalesce(layer, "around"))


def _narrow(ops: pl.DataFrame) -> pl.DataFrame:
    """Return ops with times (`_TIMES`) relative to ``start``, in the smallest integer types."""
    rows = ops.with_columns(pl.col(_TIMES) - pl.col("start"))
    ends = pl.concat([rows.select(integer().min()), rows.select(integer().max())])
    types = {each.name: each.shrink_dtype().dtype for each in ends}
    return rows.with_columns(  # whose values fit: to look at each again takes five times as long
        pl.col(name).cast(dtype, wrap_numerical=True) for name, dtype in types.items()
    )


Measure = Callable[..., Frames]
"""Function of a `Part`, and perhaps more frames, that adds up what some rules need of it."""


@dataclass(frozen=True, repr=False)
class Measures:
    """A group of measuring functions that are applied together to each part (files) of a run."""

    measures: tuple[Measure, ...]
    whole: Part | None = None
    """The run if it is one part, so that all groups share what was read of it."""

    def __repr__(self) -> str:
        return f"Measures({', '.join(each.__qualname__ for each in self.measures)})"

    def __call__(
        self,
        trace: Trace,
        steps: pl.DataFrame,
        ending: pl.DataFrame,
        span: pl.DataFrame,
        calls: pl.DataFrame,
        *more: pl.DataFrame,
    ) -> Frames:
        """Return the tables of all functions for a part of a run, by the key ``function.table``."""
        part = self.whole or Part(trace, steps, ending, span, calls)
        found = {
            f"{measure.__name__}.{name}": frame
            for measure in self.measures
            for name, frame in measure(part, *more).items()
        }
        return found if self.whole else {**found, "copies": copies_of(trace)}


# -- what rules share --------------------------------------------------------------------------


def calls(part: Part) -> Frames:
    """Return ``op`` (number in the run), ``step`` and exposed time (ns) of collectives."""
    own = pl.col("op").is_in(part.calls["op"].implode())
    meeting = pl.col("op").is_in(part.calls.filter("meets")["op"].implode())
    exposed = part.exposed(meeting).group_by("op").agg(pl.col("exposed").sum())
    placed = part.ops.filter(own).select("op", step="iteration").collect()
    first = placed.unique("op", keep="first", maintain_order=True)
    numbers = part.calls.select("op", "number").unique()
    known = first.join(exposed, on="op", how="left").join(numbers, on="op")
    return {"rows": known.select("step", "exposed", op="number")}


def work(part: Part) -> Frames:
    """Return ``members`` (process, GPU with ops) and ``busy`` (by stage, no collectives)."""
    rest = part.ops.filter(~pl.col("op").is_in(part.calls["op"].implode()))
    by = [*MEMBER, "stage"]
    return {
        "members": part.ops.select(MEMBER).unique().collect(),
        "busy": union_length(merged_in_batches(rest, by), by),
    }


def exchanges(part: Part) -> Frames:
    """Return collectives other than sends, with their exposed time: see `Facts.exchanges`."""
    own = part.calls.filter(~pl.col("is_send")).select("op", "number").unique("op")
    each = part.exposed(pl.col("op").is_in(own["op"].implode()))
    backward = part.ops.filter(pl.col("stage") == "BP").group_by(CELL).agg(
        passed=pl.col("end").max()
    ).collect()  # fmt: skip
    goes_on = (pl.col("start") < pl.col("passed")) & (pl.col("end") > pl.col("passed"))
    # Where one goes on, the others are late because that one takes so long.
    is_idle = ~goes_on.any().over(CELL)
    is_last = pl.col("start") == pl.col("start").max().over(CELL)
    several = pl.len().over(CELL) > 1
    rows = (
        each.join(own, on="op", how="left", maintain_order="left")
        .join(backward, on=CELL, how="left", maintain_order="left")
        .select(
            *CELL, "exposed", pl.col("kind", "stage").cast(pl.String), op="number", time=LENGTH,
            is_late=((pl.col("start") >= pl.col("passed")) & is_idle).fill_null(value=False),
            ends_step=is_last & several,
        )
    )  # fmt: skip
    return {"rows": rows}


def sends(part: Part) -> Frames:
    """Return per step and GPU the time, ns, in which nothing runs but sends and receives."""
    own = part.calls.filter("is_send")["op"]
    each = part.exposed(pl.col("op").is_in(own.implode()))
    return {"rows": each.group_by(CELL).agg(time=pl.col("exposed").sum())}


def kernels(part: Part) -> Frames:
    """Return busy time of kernels, their lengths, and times between launches, in five tables.

    ``busy``: by step and GPU, ``length`` (busy time), ``backward`` (part in the backward pass) and
    ``sum`` of kernel lengths, ns. ``lengths``: distinct kernel lengths (ns), each with its
    ``number``. ``apart``: distinct times between launches of a thread (ns, up to 1 ms), each with
    its ``number``. ``stages``: ``stage, time`` of all ops. ``paces``: by ``device, name,
    launch_size`` (threads) the median length ``own``, ``number`` and ``total`` length of kernels.
    """
    own = part.ops.filter(COMPUTES)
    computing = part.ops.filter(pl.col("kind") == "compute")

    def busy(rows: pl.LazyFrame) -> pl.DataFrame:
        return union_length(merged_in_batches(rows, CELL), CELL)

    backward = busy(own.filter(pl.col("stage") == "BP")).rename({"length": "backward"})
    sums = computing.group_by(CELL).agg(sum=LENGTH.sum()).collect()
    launches = part.ops.select("launch_thread", "launch_start").drop_nulls("launch_start").collect()
    # They are nearly in order already, for which a stable sort takes little time.
    apart = np.concatenate([np.empty(0, np.int64), *(
        np.diff(np.sort(each["launch_start"].to_numpy(), kind="stable"))
        for each in launches.partition_by("launch_thread")
    )])  # fmt: skip
    apart = apart[apart > 0]  # the ops of a CUDA graph are one launch
    return {
        "busy": busy(own)
        .join(backward, on=CELL, how="left").join(sums, on=CELL, how="left")
        .select(*CELL, pl.col("length", "backward", "sum").fill_null(0)),
        "lengths": counted_values(computing.select(length=LENGTH)),
        "apart": counted_values(pl.LazyFrame({"length": apart[apart <= LONGEST_LAUNCH_NS]})),
        "stages": part.ops.group_by("stage").agg(time=LENGTH.sum())
        .with_columns(pl.col("stage").cast(pl.String)).collect(),
        "paces": median_lengths(computing, ["device", "name", "launch_size"]),
    }  # fmt: skip


def counted_values(rows: pl.LazyFrame) -> pl.DataFrame:
    """Return the distinct values of ``length``, each with its ``number`` of rows."""
    values = rows.collect()["length"].drop_nulls()
    few = np.bincount(values.filter(values < _COUNTED_NS).to_numpy())
    lengths = np.flatnonzero(few)
    short = pl.DataFrame({"length": lengths, "number": few[lengths]})
    long = values.filter(values >= _COUNTED_NS).to_frame().group_by("length").agg(number=pl.len())
    return pl.concat([short.cast(long.schema), long])


def quantile_of(values: pl.DataFrame, share: float) -> float | None:
    """Return the quantile `share` (0.5: median) of `counted_values`, as the nearest value."""
    each = values.drop_nulls("length").group_by("length").agg(pl.col("number").sum())
    if each.is_empty():
        return None
    ordered = each.sort("length").with_columns(until=pl.col("number").cum_sum())
    last = int(ordered["until"][-1]) - 1
    middle = (last // 2, last - last // 2)
    places = middle if share == _HALF else (int(share * last + _HALF),)
    found = [ordered["length"][int(ordered["until"].search_sorted(at, "right"))] for at in places]
    return float(sum(found) / len(found))


def idle(part: Part) -> Frames:
    """Return idle time as sums, and singly the gaps whose cause may lie on GPUs of other parts.

    ``sums``: ``process, device, iteration, cause``; ``rests_on, detail`` (data that show the cause,
    and the host call or activity); ``queued``, whether the op that ends the gap was launched before
    the gap; ``is_tiny``, whether that op belongs to a sequence of tiny kernels; ``is_replayed``,
    whether a launch of a CUDA graph launched it; ``is_short``,
    whether ``cause`` is ``host_delay`` or ``launch_latency``, and both take up to 1 ms of the gap;
    ``is_slow, is_long``, whether ``cause`` is ``host_delay`` and takes more than 100 us (1 ms) of
    the gap; ``time`` (ns). ``gaps``: numbers of gaps, see `Facts.gaps`. ``last, last_pieces,
    blocks``: gaps at the end of a GPU's step in which another GPU still works, their pieces, and
    that GPU's work; see `OwnPieces`.
    """
    own, last = part.idle, part.idle_gaps.last["gap"]
    is_last = pl.col("gap").is_in(last.implode())
    late = own.filter("is_short", ~pl.col("queued").fill_null(value=True))["gap"].n_unique()
    gaps = {"launch_bound": late, "busy_host": own.filter("is_long")["gap"].n_unique()}
    return {
        "sums": idle_added(own.filter(~is_last)),
        "gaps": pl.DataFrame(gaps), "last_pieces": own.filter(is_last),
        "last": part.idle_gaps.last, "blocks": part.idle_gaps.blocks,
    }  # fmt: skip


def idle_added(pieces: pl.DataFrame) -> pl.DataFrame:
    """Sum the lengths of intervals of idle time by step, GPU, cause and other columns of `idle`."""
    return pieces.group_by(_IDLE_BY).agg(time=LENGTH.sum())


def host_calls(part: Part) -> Frames:
    """Return calls of the host during usual steps.

    ``sums``, ns: ``waiting``, time in calls that wait for a GPU; ``waiting_in_loop``, the part of
    it in threads that launch late afterwards; ``copying``, lengths of copies that block their call.
    ``waits, allocations``: ``name, number, time`` (ns) of calls that wait, or allocate or free.
    """
    first, last = part.span.row(0)
    seen = part.trace.once(host_activity, of_all=True)
    waiting, loops = seen["waiting"], part.idle.filter(pl.col("cause") == "waiting_call")
    threads = part.idle_gaps.gaps.join(loops, on="gap", how="semi")["launch_thread"].unique()
    inside = waiting.filter(pl.col("start").is_between(first, last))
    blocks = pl.col("kind").is_in(["h2d", "d2h"]) & (pl.col("launch_end") >= pl.col("end"))
    copying = part.ops.filter(blocks).select(LENGTH.sum()).collect().item()
    sums = inside.select(
        waiting=LENGTH.sum(), copying=copying,
        waiting_in_loop=LENGTH.filter(pl.col("thread").is_in(threads.implode())).sum(),
    )  # fmt: skip

    def by_name(rows: pl.DataFrame) -> pl.DataFrame:
        own = rows.filter(pl.col("start").is_between(first, last, closed="left"))
        return own.group_by("name").agg(number=pl.len(), time=LENGTH.sum())

    return {"sums": sums, "waits": by_name(waiting),
            "allocations": by_name(seen["allocation"])}  # fmt: skip
