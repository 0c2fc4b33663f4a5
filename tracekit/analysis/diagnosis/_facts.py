"""Measurements of a run's steps, on which the rules of `diagnose` are based; class of findings."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Literal, NamedTuple

import polars as pl

from tracekit.analysis.calls import collective_calls, unseen_participants
from tracekit.analysis.diagnosis._parts import (
    CELL,
    LENGTH,
    MEMBER,
    Measure,
    Measures,
    Part,
    calls,
    exchanges,
    host_calls,
    idle,
    idle_added,
    kernels,
)
from tracekit.analysis.facts import is_message
from tracekit.analysis.idle_account import (
    idle_sums,
    last_to_work,
    of_part,
    of_parts,
    with_last_gaps,
)
from tracekit.analysis.statistics import before_a_short_end
from tracekit.analysis.step_sums import cold_of
from tracekit.engine import numbered_alike, step_windows
from tracekit.model import Frames, Trace, with_clocks
from tracekit.support.wording import TIME_UNITS, shorten, unit_of

if TYPE_CHECKING:
    from tracekit.analysis.traffic import Traffic


_FEW = 2
"""Number of usual steps of which the last counts, however it ends."""
WORTH = 0.02
"""Least share of a step that makes a finding."""
_MANY = 100
_MOST_PLACES = 3
_LONGEST = 100
"""Most characters of the name of a place: names with arguments have hundreds."""
_MOSTLY = 0.8
"""Least share of time in equal kernels for GPUs to be compared."""
PAIR = 2
"""Number of GPUs without a median GPU: the faster one is the reference."""
_STEP = pl.Schema(
    {"process": pl.Int32(), "device": pl.Int32(), "iteration": pl.Int64(), "start": pl.Int64(),
     "end": pl.Int64()}
)  # fmt: skip


def waits_in_collectives(calls: pl.DataFrame) -> pl.DataFrame:
    """Return how long each participant of a collective waits for the last one to arrive.

    A participant's wait is the time by which its call is longer than the shortest call, which needs
    no common clock. The last participant is the one that begins last or, without a common clock,
    the one with the shortest call. If several participants tie, none is the last.

    Parameters
    ----------
    calls
        Participants of collectives, from `collective_calls`, with ``clock`` and ``step``.

    Returns
    -------
    ``match, op, step, process, device, collective, wait_ns``; ``is_last``; ``chance``, one over the
    number of participants; ``late_ns``, how much later than the first participant it begins (null
    without a common clock). One row per participant of collectives with several participants.
    """
    number = pl.struct(MEMBER).n_unique().over("match")
    matched = calls.drop_nulls("match").filter(number > 1)
    is_common = pl.col("clock").n_unique().over("match") == 1
    turn = pl.when(is_common).then(-pl.col("start")).otherwise(LENGTH)
    return matched.with_columns(turn=turn).sort("match", "turn", *MEMBER).select(
        "match", "op", pl.col("step").max().over("match"), *MEMBER, "collective",
        wait_ns=LENGTH - LENGTH.min().over("match"),
        is_last=(pl.int_range(pl.len()).over("match") == 0)
        & (pl.col("turn").shift(-1).over("match") != pl.col("turn")),
        chance=1 / number,
        late_ns=pl.when(is_common).then(
            pl.col("start") - pl.col("start").min().over("match")
        ),
    )  # fmt: skip


def exposed_waits(calls: pl.DataFrame, exposed: pl.DataFrame) -> pl.DataFrame:
    """Return waits in collectives of usual (not cold) steps, limited to each op's exposed time.

    ``caused_ns``: for the last participant, the mean of the other participants' waits; else 0.

    Parameters
    ----------
    calls
        As for `waits_in_collectives`.
    exposed
        ``op, exposed``: how long nothing but collectives runs on the op's GPU during the op, ns.
    """
    waits = waits_in_collectives(calls).drop_nulls(["step", "op"])
    known = waits.join(exposed, on="op", how="left", maintain_order="left")
    alone = pl.min_horizontal("wait_ns", pl.col("exposed").fill_null(0))
    others = (pl.len().over("match") - 1).clip(1, None)
    caused = (pl.col("wait_ns").sum().over("match") - pl.col("wait_ns")) / others
    return (
        known.with_columns(wait_ns=alone)
        .with_columns(caused_ns=pl.when("is_last").then(caused).otherwise(0.0))
        .drop("exposed")
    )


@dataclass(frozen=True)
class Lost:
    """Time lost per step, ns: least, mean and most over GPUs (means over steps)."""

    least: float
    mean: float
    most: float


class Win(NamedTuple):
    """Time by which a step would get shorter, ns."""

    estimate: float
    low: float
    high: float


@dataclass(frozen=True)
class Facts:
    """Measurements of the steps of a run, computed on first use."""

    trace: Trace
    """The run."""
    steps: pl.DataFrame
    """``process, device, iteration, start, end`` of each usual step on each GPU. A usual step is
    complete and not cold (`cold_of`). For a run without steps: one row per GPU from its first to
    its last op, with iteration 0 and a null process."""
    cold: pl.DataFrame
    """``iteration, start, length`` of each cold step at the beginning: mean over GPUs, ns."""
    has_steps: bool
    """Whether the run has steps."""
    traffic: Traffic | None = None
    """Traffic of the run, if needed; else None."""
    worth: float = WORTH
    """Least share of a step's time that a problem must take to become a finding."""
    last_ns: float | None = None
    """Length of the last step if it is left out, since it lacks the work that ends other steps."""
    measures: tuple[tuple[Measure, ...], ...] = ()
    """Groups of measuring functions that are computed together, in one pass over the run."""
    _known: dict[Measure, Frames] = field(default_factory=dict, init=False, repr=False,
                                          compare=False)  # fmt: skip

    @cached_property
    def step_ns(self) -> float:
        """Mean length of a usual (not cold) step, ns, over all steps and GPUs."""
        return float(self.steps.select(LENGTH.sum()).item() / max(self.cells.height, 1))

    @cached_property
    def median_ns(self) -> float:
        """Median of the lengths of usual (not cold) steps (means over GPUs), as in `study`, ns."""
        each = self.steps.group_by(CELL).agg(length=LENGTH.sum())
        of_steps = each.group_by("iteration").agg(pl.col("length").mean())
        return float(of_steps["length"].quantile(0.5, "nearest") or 0)

    @cached_property
    def cells(self) -> pl.DataFrame:
        """``device, iteration`` of each usual (not cold) step on each GPU, one row each."""
        return self.steps.select(CELL).unique(maintain_order=True)

    @cached_property
    def number(self) -> int:
        """Number of the run's usual (not cold) steps."""
        return self.steps["iteration"].n_unique()

    # -- sums of parts

    @cached_property
    def _whole(self) -> Part | None:
        """The whole run as one `Part`; None if its files split into parts that share no GPU."""
        parts = self.trace.parts(with_paths=True)
        return None if len(parts) > 1 else Part(parts[0], *self._of(parts[0]))

    def _of(self, part: Trace) -> tuple[pl.DataFrame, ...]:
        """Return the tables, such as steps and collectives, from which a `Part` is made."""
        span = self.steps.select(first=pl.col("start").min(), last=pl.col("end").max())
        return (of_part(self.trace, part, self.steps), self._ending, span,
                part.own_ops(self._ops_of_calls))  # fmt: skip

    @cached_property
    def _ending(self) -> pl.DataFrame:
        return last_to_work(self.trace, self.steps)

    @cached_property
    def _calls(self) -> pl.DataFrame:
        return with_clocks(collective_calls(self.trace), self.trace.read("reports"))

    @cached_property
    def _ops_of_calls(self) -> pl.DataFrame:
        several = pl.col("match").is_not_null() & (pl.struct(MEMBER).n_unique().over("match") > 1)
        return self._calls.select(
            "op", number="op", meets=several, is_send=is_message()
        ).drop_nulls("op")  # fmt: skip

    def found(self, measure: Measure, *more: pl.DataFrame) -> Frames:
        """Return a measuring function's tables, summed over all parts (some files each) of the run.

        A part is read once for all functions of a group (see the field `measures`); if tables
        `more` are passed on to the function, it is read again.
        """
        if more or measure not in self._known:
            whole = self._whole
            groups = self.measures if whole is None else ()
            group = next((each for each in groups if measure in each), (measure,))
            asked = Measures(group, whole)
            if whole is not None:
                made_of = whole.steps, whole.ending, whole.span, whole.calls
                work = partial(asked, whole.trace, *made_of, *more)
                (found,) = self.trace.sums_of_parts([work])
            else:

                def work_on(part: Trace) -> partial[Frames]:
                    return partial(asked, part, *self._of(part), *more)

                found = of_parts(self.trace, work_on)
            for each in asked.measures:
                of_it = f"{each.__name__}."
                self._known[each] = {name.removeprefix(of_it): frame for name, frame in
                                     found.items() if name.startswith(of_it)}  # fmt: skip
        return self._known[measure]

    @cached_property
    def idle(self) -> pl.DataFrame:
        """Sums of idle time in usual steps by step, GPU, cause and evidence; ``time`` is in ns.

        The columns are those of the table ``sums`` of the function `idle`.
        """
        found = self.found(idle)
        last = with_last_gaps(found["last_pieces"], found["last"], found["blocks"])
        both = pl.concat([found["sums"], idle_added(last)])
        return both.cast({"cause": pl.String, "rests_on": pl.String})

    def gaps(self, rule: str) -> int:
        """Return the number of idle gaps that a rule (`launch_bound` or `busy_host`) is about."""
        return int(self.found(idle)["gaps"][rule].sum())

    def cold_idle(self) -> tuple[str | None, float]:
        """Return the main cause of idle time in cold steps, and its time per GPU, ns."""
        windows = step_windows(self.trace).join(self.cold, on="iteration", how="semi")
        if windows.is_empty():
            return None, 0.0
        pieces = idle_sums(self.trace, windows, []).pieces
        own = pieces.group_by(pl.col("cause").cast(pl.String)).agg(time=pl.col("idle_ns").sum())
        if own.is_empty():
            return None, 0.0
        cause, time = own.sort("time", "cause", descending=[True, False]).row(0)
        return cause, time / windows["device"].n_unique()

    def of_rule(self, measure: Measure, name: str, rule: str) -> pl.DataFrame:
        """Return the rows of `rule` from the table `name` of a measuring function."""
        return self.found(measure)[name].filter(rule=rule)

    def where(
        self, measure: Measure, rule: str, devices: Collection[int] | None = None
    ) -> tuple[str, ...]:
        """Return as texts the layers or ranges where a rule's kernels or idle time are longest.

        The times are in the table ``where`` of `measure`. Only GPUs in `devices` count, if given.
        """
        rows = self.of_rule(measure, "where", rule)
        own = rows if devices is None else rows.filter(pl.col("device").is_in(devices))
        by_name = own.group_by("name").agg(pl.col("time").sum()).sort(
            "time", "name", descending=[True, False]
        )  # fmt: skip
        return tuple(
            f"{duration(time / self.cells.height)} {self.per_gpu} in `{shorten(name, _LONGEST)}`"
            for name, time in by_name.head(_MOST_PLACES).rows()
        )

    @cached_property
    def collectives(self) -> pl.DataFrame:
        """Participants of collectives, with ``clock`` and ``step`` (null unless a usual step)."""
        steps = self.found(calls)["rows"].select("op", "step")
        return self._calls.join(steps, on="op", how="left", maintain_order="left")

    @cached_property
    def unseen(self) -> str | None:
        """Unrecorded ranks of collectives in usual steps, as text; None if all are recorded."""
        return unseen_participants(self.trace, self.collectives.drop_nulls("step"))

    @cached_property
    def waits(self) -> pl.DataFrame:
        """Exposed waits in collectives for the last participant, from `exposed_waits`."""
        exposed = self.found(calls)["rows"].select("op", "exposed").drop_nulls()
        return exposed_waits(self.collectives, exposed)

    def lost(self, rows: pl.DataFrame, length: str = "time") -> Lost:
        """Return the time that the ops or gaps `rows` take per step: least, mean, most of any GPU.

        `rows` has ``device, iteration`` and times; `length` is the name of the column to add up,
        ns.
        """
        if rows.is_empty():
            return Lost(0.0, 0.0, 0.0)
        sums = rows.lazy().group_by(CELL).agg(lost=pl.col(length).sum())
        each, lost = self.cells.lazy().join(sums, on=CELL, how="left"), pl.col("lost").fill_null(0)
        steps = each.group_by("iteration").agg(least=lost.min(), mean=lost.mean(), most=lost.max())
        means = steps.select(pl.col("least", "mean", "most").mean()).collect(engine="in-memory")
        return Lost(*(float(mean or 0) for mean in means.row(0)))

    def won(self, lost: Lost) -> float:
        """Return by how much a step could get shorter, ns, if GPUs did not lose the time `lost`.

        If GPUs wait for each other in collectives, the gain is the loss of the GPU that loses
        least: other GPUs that gain more would wait for that GPU. Else the gain is the mean loss.
        """
        return lost.mean if self.waits.is_empty() else lost.least

    def idle_of(self, *causes: str) -> pl.DataFrame:
        """Return the rows of `Facts.idle` with one of the causes `causes`."""
        return self.idle.filter(pl.col("cause").is_in(causes))

    @cached_property
    def exchanges(self) -> pl.DataFrame:
        """Return collectives of usual (not cold) steps, and the exposed time that could be hidden.

        Columns: ``op, device, iteration, kind, stage``; ``time``, the duration of the op, ns;
        ``exposed``, the part of it in which only collectives run on the GPU; ``wait_ns``, how long
        the op waits for its last participant; ``is_late``, whether the op begins after the backward
        pass and no other collective ran when the pass ended; ``ends_step``, whether the op is the
        last of several in a step; ``avoidable``, the smaller of ``exposed`` and ``time - wait_ns``,
        but 0 if ``ends_step``, since the next ops need the result.
        """
        own = self.collectives.filter(~is_message()).drop_nulls("op")
        waits = own.filter(pl.len().over("match") > 1).drop_nulls("match").select(
            "op", wait_ns=LENGTH - LENGTH.min().over("match")
        ).unique("op", keep="first")  # fmt: skip
        each = self.found(exchanges)["rows"]
        known = each.join(waits, on="op", how="left", maintain_order="left")
        working = pl.min_horizontal("exposed", pl.col("time") - pl.col("wait_ns"))
        return known.with_columns(pl.col("wait_ns").fill_null(0)).with_columns(
            avoidable=pl.when("ends_step").then(0).otherwise(working.clip(0, None))
        )

    @cached_property
    def paces(self) -> pl.DataFrame:
        """How slowly each GPU runs the kernels that all GPUs run, compared with the median GPU.

        ``device``; ``pace``, the time of these kernels over their time at the median GPU's lengths
        (with two GPUs: the faster GPU's); ``kernels``, their number; ``least``, the lower quartile
        of the ratio over kernels. No rows if GPUs do not run the same kernels equally often for
        most of their time, as in a pipeline.
        """
        same = ["name", "launch_size"]
        each, devices = self.found(kernels)["paces"], self.steps["device"].n_unique()
        middle = pl.col("own").min() if devices <= PAIR else pl.col("own").median()
        is_shared = (pl.len() == devices) & (pl.col("number").n_unique() == 1)
        known = each.group_by(same).agg(usual=middle, is_shared=is_shared)
        shared = each.join(known.filter("is_shared"), on=same, nulls_equal=True)
        total = pl.col("total").sum()
        of_shared = shared.group_by("device").agg(shared=total)
        told = each.group_by("device").agg(total).join(of_shared, on="device", how="left")
        if not (told["shared"].fill_null(0) / told["total"] >= _MOSTLY).all():
            shared = shared.clear()
        expected = (pl.col("total") / pl.col("own") * pl.col("usual")).sum()
        return shared.sort("device", *same).group_by("device").agg(
            pace=total / expected, kernels=pl.col("number").sum(),
            least=(pl.col("own") / pl.col("usual")).quantile(0.25),
        )  # fmt: skip

    @cached_property
    def winnable_ns(self) -> float:
        """Upper bound of a finding's win: time per step in which no compute kernel runs, ns."""
        busy = self.found(kernels)["busy"].select(*CELL, busy="length")
        most = self.steps.group_by(CELL).agg(length=LENGTH.sum()).join(
            busy, on=CELL, how="left"
        )  # fmt: skip
        rest = most.with_columns(rest=pl.col("length") - pl.col("busy").fill_null(0))
        return min(self.lost(rest, "rest").most, self.step_ns)

    def shortened(self, gain: float) -> float:
        """Return by how much a step gets shorter if its GPUs have `gain` ns less work.

        A GPU that waits for input then waits longer, since batches do not come sooner. A GPU that
        waits for launches also waits longer, unless the host waits for the GPU and so resumes
        earlier.
        """
        if not self.has_steps:
            return gain
        host = self.lost(self.idle_of("launch_latency", "host_delay", "between_steps", "off_cpu"))
        late = min(host.least, max(gain - self.waited_for("waiting"), 0.0))
        return max(gain - self.lost(self.idle_of("input")).least - late, 0.0)

    def waited_for(self, calls: str) -> float:
        """Return the time per step in which calls wait for a GPU busy with earlier work, ns.

        The copy of a blocking copy call itself is not earlier work.

        Parameters
        ----------
        calls
            ``waiting``: all calls that wait for a GPU; ``waiting_in_loop``: those of threads that
            launch late afterwards.
        """
        whole, copying = (
            self.found(host_calls)["sums"].select(pl.col(calls, "copying").sum()).row(0)
        )
        mean = float(whole - copying) / max(self.cells.height, 1)
        return max(mean - self.lost(self.idle_of("waiting_call")).mean, 0.0)

    @cached_property
    def is_of_networks(self) -> bool:
        """True if any process may train or run a network: its verdict is not `other`."""
        verdicts = self.trace.read("verdicts")["verdict"].cast(pl.String)
        return verdicts.is_empty() or bool((verdicts != "other").any())

    @property
    def per(self) -> str:
        """Words for the denominator of mean times: per step, or per GPU if there are no steps."""
        if self.has_steps:
            return "per step"
        return "in all" if self.cells["device"].n_unique() == 1 else "per GPU"

    @property
    def per_gpu(self) -> str:
        """Words for the denominator of counts on one GPU: per step and GPU, or per GPU."""
        return "per step and GPU" if self.has_steps else "per GPU"

    def is_worth(self, length: float) -> bool:
        """Test whether a time per step, ns, is long enough for a finding."""
        return length >= self.worth * self.step_ns and length > 0

    def is_usual(self, rows: pl.DataFrame) -> bool:
        """Test if `rows` come from at least half of the steps; without steps: if any exist."""
        return 2 * rows["iteration"].n_unique() >= self.number

    def share(self, length: float) -> str:
        """Return a time as a share of a step, in words."""
        of = "the step" if self.has_steps else "the recording"
        return f"{100 * length / self.step_ns:.3g} % of {of}" if self.step_ns else "nothing"


def counted(number: float, noun: str, plural: str = "") -> str:
    """Return a number with its noun in singular or plural, such as ``2.5 kernels``."""
    return f"{rounded(number)} {noun if number == 1 else plural or noun + 's'}"


def rounded(number: float, digits: int = 3) -> str:
    """Round to `digits` significant digits, but keep all digits before the decimal point."""
    whole = f"{number:,.0f}"
    return whole if abs(number) >= 10**digits - 0.5 else f"{number:,.{digits}g}"


def duration(length: float) -> str:
    """Return a time, ns, as text in a suitable unit."""
    divisor, unit = unit_of(abs(length), TIME_UNITS)
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
    """Return the measurements of a run for the rules of `diagnose`; each is computed when read.

    Cold steps and a short last step are left out; without steps each GPU's whole run counts.

    Parameters
    ----------
    trace, traffic, worth
        The run, its traffic if needed, and the least share of a step that is reported.
    without
        Numbers of steps to leave out, such as outliers.
    """
    trace = numbered_alike(trace)
    windows = step_windows(trace).drop_nulls("iteration").select(*_STEP)
    if windows.is_empty():
        edges = trace["ops"].group_by("device").agg(pl.col("start").min(), pl.col("end").max())
        whole = edges.sort("device").collect().with_columns(
            process=pl.lit(None, pl.Int32), iteration=pl.lit(0, pl.Int64)
        )  # fmt: skip
        return Facts(trace, whole.select(*_STEP), _by_step(windows), has_steps=False,
                     traffic=traffic, worth=worth)  # fmt: skip
    is_cold = pl.col("iteration") <= cold_of(trace).last
    usual = windows.filter(~is_cold)
    last_ns, each = None, _by_step(usual)
    if each.height > _FEW and before_a_short_end(each["length"].to_list()) is not None:
        last, _, last_ns = each.row(-1)
        usual = usual.filter(pl.col("iteration") != last)
    kept = usual.filter(~pl.col("iteration").is_in(list(without)))
    cold = _by_step(windows.filter(is_cold))
    return Facts(trace, usual if kept.is_empty() else kept, cold, has_steps=True, traffic=traffic,
                 worth=worth, last_ns=last_ns)  # fmt: skip


def _by_step(windows: pl.DataFrame) -> pl.DataFrame:
    """Return ``iteration, start, length`` (ns, mean over GPUs) of each step, in order of time."""
    of_members = windows.group_by("iteration", *MEMBER).agg(
        pl.col("start").min(), length=LENGTH.sum()
    )
    steps = of_members.group_by("iteration").agg(pl.col("start").min(), pl.col("length").mean())
    return steps.sort("start")


# -- what rules return -------------------------------------------------------------------------


Confidence = Literal["measured", "likely", "hint", "perhaps"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A problem that takes time of a step, and its remedy."""

    finding: str
    """The problem in one sentence, with measured values."""
    confidence: Confidence
    """``measured`` (the trace shows it), ``likely`` (it follows from the trace under an
    assumption), or ``hint`` (other causes are possible). ``perhaps`` is for rules that were wrong
    too often, or were never tested."""
    evidence: tuple[str, ...]
    """The measured values that support the finding."""
    advice: str
    """What to do."""
    win: Win | None = None
    """Time by which a step would get shorter; None if unknown."""
    unknown: str | None = None
    """Why the win is unknown."""
    outside: bool = False
    """Whether the win is time outside of steps, and so not bounded by the idle time of steps."""
    of_gpu: bool = False
    """Whether GPUs would have less work; longer waits for host and input may cancel such a win."""
    of_compute: bool = False
    """Whether the remedy shortens compute kernels; other wins are at most the rest of the step."""
