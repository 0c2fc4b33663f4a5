"""Facts that rules read (usual steps of a run, their ops, idle time), and findings they return."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import polars as pl

from tracekit.analysis.calls import collective_calls
from tracekit.analysis.idle_account import (
    covered,
    idle_pieces,
    in_ranges,
    merged_in_batches,
    pairs_of,
    plain_name,
    sampled,
    waits,
)
from tracekit.engine import (
    chosen_windows,
    counted_steps,
    cut,
    launch_groups,
    range_layers,
    union_length,
    with_steps,
)
from tracekit.model import Trace, with_clocks
from tracekit.support.batches import in_batches

if TYPE_CHECKING:
    from tracekit.analysis.traffic import Traffic


MEMBER = ["process", "device"]
LENGTH = pl.col("end") - pl.col("start")
CELL = ["device", "iteration"]
"""A step on a GPU."""
_COLD = 1.5
"""A step at the beginning that takes so many times as long as a usual one is cold."""
WORTH = 0.02
"""What takes a smaller part of a step is not spoken of."""
_UNITS = (("s", 10**9), ("ms", 10**6), ("us", 10**3), ("ns", 1))
_MANY = 100
_MOST_PLACES = 3
_REPEATED = r"^(\w+::.*) \d+$"
"""Layer of a program that names no modules: an operator, and which one of its kind."""
_STEP = pl.Schema(
    {"process": pl.Int32(), "device": pl.Int32(), "iteration": pl.Int64(), "start": pl.Int64(),
     "end": pl.Int64()}
)  # fmt: skip
_WORK = [
    "op", "process", "device", "start", "end", "name", "kind", "bytes", "host_memory",
    "launch_thread", "launch_start", "launch_end", "launch_size", "stage",
]  # fmt: skip


def waits_in_collectives(calls: pl.DataFrame) -> pl.DataFrame:
    """Return the wait of each participant of a matched collective, and the last one.

    A participant waits for as long as its own time exceeds the shortest one's, who is the last to
    come: that takes no common clock. Where several are as short, nobody is last.

    Parameters
    ----------
    calls
        As `collective_calls` gives them, with ``clock`` and ``step``.

    Returns
    -------
    ``match, op, step, process, device, collective, wait_ns``; ``is_last``; ``late_ns``,
    by how much it begins after the first one, null without one clock. A row per participant of
    collectives of several.
    """
    number = pl.struct(MEMBER).n_unique().over("match")
    matched = calls.drop_nulls("match").filter(number > 1)
    is_common = pl.col("clock").n_unique().over("match") == 1
    return matched.sort("match", LENGTH, *MEMBER).select(
        "match", "op", pl.col("step").max().over("match"), *MEMBER, "collective",
        wait_ns=LENGTH - LENGTH.min().over("match"),
        is_last=(pl.int_range(pl.len()).over("match") == 0)
        & (LENGTH.shift(-1).over("match") != LENGTH),
        late_ns=pl.when(is_common).then(
            pl.col("start") - pl.col("start").min().over("match")
        ),
    )  # fmt: skip


def exposed_waits(
    calls: pl.DataFrame, exposed_of: Callable[[pl.Expr], pl.DataFrame]
) -> pl.DataFrame:
    """Return waits in collectives of usual steps, their exposed part alone.

    ``caused_ns`` is what the others wait in collectives in which one is last, their mean.

    Parameters
    ----------
    calls
        As `waits_in_collectives` takes them.
    exposed_of
        Returns ``op, exposed`` of the ops for which an expression holds.
    """
    waits = waits_in_collectives(calls).drop_nulls(["step", "op"])
    own = pl.col("op").is_in(waits["op"].unique().implode())
    alone = exposed_of(own).group_by("op").agg(pl.col("exposed").sum())
    known = waits.join(alone, on="op", how="left", maintain_order="left")
    exposed = pl.min_horizontal("wait_ns", pl.col("exposed").fill_null(0))
    others = (pl.len().over("match") - 1).clip(1, None)
    caused = pl.col("wait_ns").sum().over("match") / others
    return (
        known.with_columns(wait_ns=exposed)
        .with_columns(caused_ns=pl.when("is_last").then(caused).otherwise(0.0))
        .drop("exposed")
    )


@dataclass(frozen=True)
class Lost:
    """Time of a step that something takes, ns: of the GPU that loses least, of all, of most."""

    least: float
    mean: float
    most: float


@dataclass(frozen=True)
class Facts:
    """Facts about the steps of a run, computed on first use.

    Parameters
    ----------
    trace
        The run.
    steps
        ``process, device, iteration, start, end`` of each usual step on each GPU: one that counts,
        and is not a cold one at the beginning. Of a run without steps, what each GPU did from its
        first op to its last one, as iteration 0 of no process.
    cold
        ``iteration, length``, the mean over GPUs, of each cold step at the beginning.
    has_steps
        Whether these are steps.
    traffic
        What moved over which links, where that was asked for.
    worth
        What takes a smaller part of a step is not spoken of.
    cold_windows
        The cold steps on each GPU, as `steps`.
    """

    trace: Trace
    steps: pl.DataFrame
    cold: pl.DataFrame
    has_steps: bool
    traffic: Traffic | None = None
    worth: float = WORTH
    cold_windows: pl.DataFrame | None = None

    @cached_property
    def step_ns(self) -> float:
        """Mean length of a usual step on a GPU."""
        return float(self.steps.select(LENGTH.sum()).item() / max(self.cells.height, 1))

    @cached_property
    def median_ns(self) -> float:
        """Median length of a usual step, in the mean over GPUs."""
        each = self.steps.group_by(CELL).agg(length=LENGTH.sum())
        of_steps = each.group_by("iteration").agg(pl.col("length").mean())
        return float(of_steps["length"].median() or 0)  # type: ignore[arg-type]

    @cached_property
    def cells(self) -> pl.DataFrame:
        """Each usual step on each GPU."""
        return self.steps.select(CELL).unique(maintain_order=True)

    @cached_property
    def number(self) -> int:
        """Number of usual steps."""
        return self.steps["iteration"].n_unique()

    @cached_property
    def idle(self) -> pl.DataFrame:
        """Pieces of gaps in these steps: ``gap, pair, process, device, start, end, cause, ...``.

        ``queued`` tells whether the op that ends the gap was launched before the gap began.
        """
        gaps, pieces = self._account
        queued = gaps.select("gap", queued=pl.col("launch_end") <= pl.col("start"))
        found = self._placed(pieces)
        return found.join(queued, on="gap", how="left", maintain_order="left").cast(
            {"cause": pl.String, "rests_on": pl.String}
        )

    @property
    def gaps(self) -> pl.DataFrame:
        """The gaps of these pieces, with the late op of each."""
        return self._account[0]

    @cached_property
    def _account(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        return idle_pieces(self.trace, self.steps)

    def cold_idle(self) -> tuple[str | None, float]:
        """Return the cause of most idle time in cold steps, and how long that is on a GPU."""
        windows = self.cold_windows
        if windows is None or windows.is_empty():
            return None, 0.0
        _, pieces = idle_pieces(self.trace, windows)
        own = cut(pieces, windows).group_by(pl.col("cause").cast(pl.String)).agg(time=LENGTH.sum())
        if own.is_empty():
            return None, 0.0
        cause, time = own.sort("time", "cause", descending=[True, False]).row(0)
        return cause, time / windows["device"].n_unique()

    def places(self, pieces: pl.DataFrame) -> tuple[str, ...]:
        """Name the ranges in which the host was during some pieces of gaps."""
        pairs = pairs_of(self.trace, self.gaps)
        named = in_ranges(self.trace, pieces, pairs, "name").drop_nulls("name")
        return self._named(named.with_columns(name=plain_name(pl.col("name"))))

    def launched_in(self, rows: pl.DataFrame) -> tuple[str, ...]:
        """Name the layers of ops, and of ops without a layer the ranges that launched them."""
        work = self.trace["ops"].select("op", "range").drop_nulls().collect()
        own = rows.select("op", "start", "end").join(work, on="op")
        if own.is_empty():
            return ()
        found = range_layers(self.trace)
        ranges = self.trace["ranges"].select("range", around=plain_name(pl.col("name"))).collect()
        by_range = pl.DataFrame({"range": pl.int_range(found.of_range.len(), eager=True),
                                 "layer": found.layers.gather(found.of_range)})  # fmt: skip
        placed = own.join(by_range.cast({"range": own.schema["range"]}), on="range", how="left")
        layer = pl.col("layer").str.replace(_REPEATED, "${1}")
        named = placed.join(ranges, on="range", how="left").select(
            "start", "end", name=pl.coalesce(layer, "around")
        )
        return self._named(named.drop_nulls())

    def _named(self, rows: pl.DataFrame) -> tuple[str, ...]:
        """Say how much of some rows has which name, the most of it first."""
        by_name = rows.group_by("name").agg(time=LENGTH.sum()).sort(
            "time", "name", descending=[True, False]
        )  # fmt: skip
        return tuple(
            f"{duration(time / self.cells.height)} {self.per_gpu} in `{name}`"
            for name, time in by_name.head(_MOST_PLACES).rows()
        )

    def executed(self, pieces: pl.DataFrame) -> tuple[str, ...]:
        """Name the functions that the host executed in pieces of gaps, from sampled call stacks."""
        met = sampled(self.trace, pieces, pairs_of(self.trace, self.gaps))
        each = met.group_by("name").len().sort("len", "name", descending=[True, False])
        functions = each.head(_MOST_PLACES).rows()
        return tuple(f"{number} of {met.height} samples in {name}" for name, number in functions)

    @cached_property
    def ops(self) -> pl.LazyFrame:
        """Ops of these steps, cut at their edges; ``iteration`` is the step that they ran in.

        It is in memory, and lazy so that of large runs nobody copies more than is looked at.
        """
        work = in_batches(self.trace["ops"].select(_WORK))
        return pl.concat([self._placed(batch) for batch in work]).lazy()

    @cached_property
    def collectives(self) -> pl.DataFrame:
        """The participants of collectives, with ``clock``; ``step``, the usual step they are of."""
        calls = with_clocks(collective_calls(self.trace), self.trace.read("reports"))
        own = self.ops.filter(pl.col("op").is_in(calls["op"].drop_nulls().implode()))
        steps = own.select("op", step="iteration").collect()
        known = steps.unique("op", keep="first", maintain_order=True)
        return calls.join(known, on="op", how="left", maintain_order="left")

    @cached_property
    def waits(self) -> pl.DataFrame:
        """Exposed waits of participants of collectives for the last one; see `exposed_waits`."""
        return exposed_waits(self.collectives, self.exposed)

    @cached_property
    def members(self) -> pl.DataFrame:
        """The GPUs of processes that work in these steps: ``process, device``."""
        return self.ops.select(MEMBER).unique().collect()

    @cached_property
    def busy(self) -> pl.DataFrame:
        """Time in which ops of a stage run, but collectives: ``process, device, stage, length``."""
        return self.busy_without(self.collectives["op"].drop_nulls())

    def busy_without(self, exchange: pl.Series) -> pl.DataFrame:
        """Return the same without some ops."""
        work, by = self.ops.filter(~pl.col("op").is_in(exchange.implode())), [*MEMBER, "stage"]
        return union_length(merged_in_batches(work, by), by)

    def _placed(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return what of some rows lies in these steps, with ``iteration``."""
        pieces = cut(rows, self.steps).filter(LENGTH > 0)
        step = self.steps["iteration"].gather(pieces["window"])
        return pieces.select(rows.columns).with_columns(iteration=step)

    def lost(self, rows: pl.DataFrame, length: str | None = None) -> Lost:
        """Return the time of a step that some rows take.

        Parameters
        ----------
        rows
            ``device, iteration, start, end``.
        length
            The column to add up, instead of their lengths.
        """
        if rows.is_empty():
            return Lost(0.0, 0.0, 0.0)
        value = LENGTH if length is None else pl.col(length)
        sums = rows.group_by(CELL).agg(lost=value.sum())
        each, lost = self.cells.join(sums, on=CELL, how="left"), pl.col("lost").fill_null(0)
        steps = each.group_by("iteration").agg(least=lost.min(), mean=lost.mean(), most=lost.max())
        means = steps.select(pl.col("least", "mean", "most").mean()).row(0)
        return Lost(*(float(mean or 0) for mean in means))

    def won(self, lost: Lost) -> float:
        """Return how much of what GPUs lose counts for a step.

        Where they wait for each other in collectives a step ends with the one that loses least:
        the others would wait there for what they win.
        """
        return lost.mean if self.waits.is_empty() else lost.least

    def idle_of(self, *causes: str) -> pl.DataFrame:
        """Return the pieces of gaps that have one of these causes."""
        return self.idle.filter(pl.col("cause").is_in(causes))

    def exposed(self, own: pl.Expr) -> pl.DataFrame:
        """Return the ops that meet a condition, with ``exposed``: how long nothing else runs."""
        chosen = self.ops.filter(own).collect()
        if chosen.is_empty():
            return chosen.with_columns(exposed=LENGTH)
        others = merged_in_batches(self.ops.filter(~own), ["device"])
        hidden = covered(chosen, others, ["device"], "hidden")
        return hidden.with_columns(exposed=LENGTH - pl.col("hidden")).drop("hidden")

    @cached_property
    def exchanges(self) -> pl.DataFrame:
        """Collectives of usual steps with what of each could be hidden.

        Columns of ops, and ``exposed``; ``wait_ns``, of that the part in which it waits for the
        last participant; ``is_late``, whether it begins after the backward pass, and no other one
        was going on when that ended; ``avoidable``, what is exposed of it but waiting; of the last
        one of a step nothing, where there are several: what follows needs it.
        """
        own = self.collectives.filter(pl.col("collective") != "send_recv").drop_nulls("op")
        names = own["op"].unique()
        each = self.exposed(pl.col("op").is_in(names.implode()))
        waits = own.filter(pl.len().over("match") > 1).drop_nulls("match").select(
            "op", wait_ns=LENGTH - LENGTH.min().over("match")
        ).unique("op", keep="first")  # fmt: skip
        backward = self.ops.filter(pl.col("stage") == "BP").group_by(CELL).agg(
            passed=pl.col("end").max()
        ).collect()  # fmt: skip
        goes_on = (pl.col("start") < pl.col("passed")) & (pl.col("end") > pl.col("passed"))
        # Where one goes on, the others are late because that one takes so long.
        is_idle = ~goes_on.any().over(CELL)
        is_last = pl.col("start") == pl.col("start").max().over(CELL)
        several = pl.len().over(CELL) > 1
        working = pl.min_horizontal("exposed", LENGTH - pl.col("wait_ns"))
        return (
            each.join(waits, on="op", how="left", maintain_order="left")
            .join(backward, on=CELL, how="left", maintain_order="left")
            .with_columns(pl.col("wait_ns").fill_null(0))
            .with_columns(
                is_late=((pl.col("start") >= pl.col("passed")) & is_idle).fill_null(value=False),
                avoidable=pl.when(is_last & several).then(0).otherwise(working.clip(0, None)),
            )
        )

    @cached_property
    def winnable_ns(self) -> float:
        """Upper bound of a win: time of a step without kernels that compute."""
        busy = self._busy(pl.lit(value=True))
        most = self.steps.group_by(CELL).agg(length=LENGTH.sum()).join(
            busy, on=CELL, how="left"
        )  # fmt: skip
        rest = most.with_columns(rest=pl.col("length") - pl.col("busy").fill_null(0))
        return min(self.lost(rest, "rest").most, self.step_ns)

    def busy_in(self, stage: str) -> Lost:
        """Return how long kernels of a stage run that compute."""
        return self.lost(self._busy(pl.col("stage") == stage), "busy")

    def _busy(self, chosen: pl.Expr) -> pl.DataFrame:
        kernels = self.ops.filter(pl.col("kind").is_in(["compute", "graph"]), chosen)
        return union_length(merged_in_batches(kernels, CELL), CELL).rename({"length": "busy"})

    def shortened(self, gain: float) -> float:
        """Return by how much a step is shorter if its GPUs have so much less to do, ns.

        A GPU that waits for input waits longer then, as batches come no sooner. A GPU that waits
        for launches does as well, unless the host waits for that GPU and is sooner back.
        """
        if not self.has_steps:
            return gain
        late = min(self._host_waits.least, max(gain - self._waited_for, 0.0))
        return max(gain - self.lost(self.idle_of("input")).least - late, 0.0)

    @cached_property
    def _host_waits(self) -> Lost:
        return self.lost(self.idle_of("launch", "late_launch", "between_steps", "off_cpu"))

    @cached_property
    def _waited_for(self) -> float:
        return self.waited_for(waits(self.trace))

    def waited_for(self, calls: pl.DataFrame) -> float:
        """Return for how long calls of a mean step wait for a GPU that is busy with earlier work.

        A call that copies and blocks waits for the copy as well, which is no earlier work.
        """
        spans = self.steps.select(pl.col("start").min(), pl.col("end").max()).row(0)
        inside = calls.filter(pl.col("start").is_between(*spans))
        blocks = pl.col("kind").is_in(["h2d", "d2h"]) & (pl.col("launch_end") >= pl.col("end"))
        copying = self.ops.filter(blocks).select(LENGTH.sum()).collect().item()
        whole = inside.select(LENGTH.sum()).item() - copying
        mean = float(whole) / max(self.cells.height, 1)
        return max(mean - self.lost(self.idle_of("waiting_call")).mean, 0.0)

    @cached_property
    def is_of_networks(self) -> bool:
        """True if any process may train or run a network: its verdict is not `other`."""
        verdicts = self.trace.read("verdicts")["verdict"].cast(pl.String)
        return verdicts.is_empty() or bool((verdicts != "other").any())

    @property
    def per(self) -> str:
        """Unit of times, in words: they are means over GPUs."""
        if self.has_steps:
            return "per step"
        return "in all" if self.cells["device"].n_unique() == 1 else "per GPU"

    @property
    def per_gpu(self) -> str:
        """Unit of numbers of one GPU, in words."""
        return "per step and GPU" if self.has_steps else "per GPU"

    def is_worth(self, length: float) -> bool:
        """Tell whether a time of a step is long enough to speak of."""
        return length >= self.worth * self.step_ns and length > 0

    def is_usual(self, rows: pl.DataFrame) -> bool:
        """Tell whether some rows are in at least half of the steps; without steps, if any are."""
        return 2 * rows["iteration"].n_unique() >= self.number

    def share(self, length: float) -> str:
        """Return a time as a share of a step, in words."""
        of = "the step" if self.has_steps else "the recording"
        return f"{100 * length / self.step_ns:.3g} % of {of}" if self.step_ns else "nothing"


def counted(number: float, noun: str, plural: str = "") -> str:
    """Return a number, which may be a mean, with its noun."""
    return f"{rounded(number)} {noun if number == 1 else plural or noun + 's'}"


def rounded(number: float, digits: int = 3) -> str:
    """Round a number to a number of significant digits, at most to a whole number."""
    whole = f"{number:,.0f}"
    return whole if abs(number) >= 10**digits - 0.5 else f"{number:,.{digits}g}"


def duration(length: float) -> str:
    """Return a time in words."""
    unit, divisor = next((u, d) for u, d in _UNITS if abs(length) >= d or d == 1)
    return f"{length / divisor:,.3g} {unit}" if length < _MANY * divisor else (
        f"{length / divisor:,.0f} {unit}"
    )  # fmt: skip


def facts_of(
    trace: Trace,
    traffic: Traffic | None = None,
    *,
    worth: float = WORTH,
    without: Collection[int] = (),
) -> Facts:
    """Return facts about the steps of a run that holds GPU work.

    Parameters
    ----------
    trace, traffic, worth
        As in `Facts`.
    without
        Numbers of steps that are not usual ones, such as outliers.
    """
    iterations = trace.read("iterations")
    windows = pl.DataFrame(schema=_STEP)
    if iterations.height:
        groups = launch_groups(trace)
        cut_up = with_steps(chosen_windows(trace, groups, skip=0, per_iteration=True))
        counted = counted_steps(cut_up, iterations, 0).windows
        windows = counted.drop_nulls("iteration").select(*_STEP)
    if windows.is_empty():
        edges = trace["ops"].group_by("device").agg(pl.col("start").min(), pl.col("end").max())
        whole = edges.sort("device").collect().with_columns(
            process=pl.lit(None, pl.Int32), iteration=pl.lit(0, pl.Int64)
        )  # fmt: skip
        cold = pl.DataFrame(schema={"iteration": pl.Int64, "length": pl.Float64})
        return Facts(trace, whole.select(*_STEP), cold, has_steps=False, traffic=traffic,
                     worth=worth)  # fmt: skip
    cold = _cold(windows)
    usual = windows.join(cold, on="iteration", how="anti", maintain_order="left")
    kept = usual.filter(~pl.col("iteration").is_in(list(without)))
    first = windows.join(cold, on="iteration", how="semi")
    return Facts(trace, usual if kept.is_empty() else kept, cold, has_steps=True, traffic=traffic,
                 worth=worth, cold_windows=first)  # fmt: skip


def _cold(windows: pl.DataFrame) -> pl.DataFrame:
    """Return the steps before the first one that is no longer than most, at most half of all."""
    each = (
        windows.group_by("iteration", *MEMBER).agg(pl.col("start").min(), length=LENGTH.sum())
        .group_by("iteration").agg(pl.col("start").min(), pl.col("length").mean()).sort("start")
    )  # fmt: skip
    usual = each["length"].tail((each.height + 1) // 2).median()
    is_usual = each["length"] <= _COLD * float(usual if isinstance(usual, int | float) else 0)
    first = min((is_usual.arg_max() if is_usual.any() else 0) or 0, each.height // 2)
    others = each.tail(each.height - first)
    # What comes again is no cold step but a rhythm, as of a loader that hands out several batches.
    again = _COLD * others["length"].top_k(2).min()  # type: ignore[operator]
    is_cold = pl.col("length") > max(again, others["length"].mean())  # type: ignore[type-var]
    return each.head(first).filter(is_cold).select("iteration", "length")


# -- what rules return -------------------------------------------------------------------------


Sure = Literal["measured", "likely", "hint", "perhaps"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A problem that takes time of a step, and its remedy.

    Parameters
    ----------
    finding
        The problem in one sentence, with numbers.
    win, low, high
        By how much a step would be shorter, ns, at best and at worst; None where it is not known.
    unknown
        Why that is not known.
    sure
        Whether it is ``measured`` (the trace says so), ``likely`` (it follows from what the trace
        says if something holds that it does not say), or a ``hint`` (other causes are possible).
        ``perhaps`` is said of rules that were wrong too often, and by a rule that nothing judged.
    evidence
        The numbers that say so.
    advice
        What to do.
    outside
        Whether it is time outside of steps, which no step's idle time bounds.
    of_compute
        Whether kernels that compute would take less, which bounds the wins of all other findings.
    of_gpu
        Whether GPUs would have less to do: a win that their waits for host and input may take up.
    """

    finding: str
    sure: Sure
    evidence: tuple[str, ...]
    advice: str
    win: float | None = None
    low: float | None = None
    high: float | None = None
    unknown: str | None = None
    outside: bool = False
    of_gpu: bool = False
    of_compute: bool = False
