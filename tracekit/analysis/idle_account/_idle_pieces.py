"""Split idle gaps into intervals with one cause each, by what the host did meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import polars as pl

from tracekit.analysis.idle_account._host_states import (
    QUEUED_NS,
    allocations,
    builds,
    compilations,
    host_rows,
    in_ranges,
    is_locked,
    loads,
    name_states,
    of_both,
    of_pairs,
    off_cpu,
    pairs_of,
    step_states,
    threads_of,
    waited_before,
    waits,
)
from tracekit.analysis.idle_account._idle_gaps import (
    behind_blocks,
    busy_blocks,
    gaps_of,
    holders,
    last_to_work,
    named_behind,
    near,
    waiting_for_end,
    with_passed_on,
)
from tracekit.analysis.idle_account._idle_ranges import plain_name
from tracekit.analysis.idle_account._timeline import split_at, states
from tracekit.engine import chosen_windows, cut, with_steps
from tracekit.model import Stretch

if TYPE_CHECKING:
    from tracekit.model import Frames, Trace

CAUSES = {
    "input": "the host waited for input",
    "between_steps": "the host was outside of its steps",
    "host_delay": "the host launched late",
    "allocation": "the host allocated or freed memory",
    "loading": "the driver loaded code",
    "compiling": "code was compiled",
    "off_cpu": "the thread that launches was off the CPU",
    "waiting_call": "the host waited for the GPU",
    "launch_latency": "launch call, queue and start",
    "behind_weight_update": "waiting for another GPU's weight update",
    "behind_collective": "waiting for a collective",
    "behind_stage": "waiting for other work of another GPU",
    "profiler": "overhead of the profiler",
    "unexplained": "not explained",
}
"""Cause of idle time -> description in words."""
_CAUSE = pl.Enum(list(CAUSES))
_RESTS_ON = {
    "input": "ranges", "between_steps": "ranges", "host_delay": "API calls",
    "allocation": "API calls", "loading": "API calls", "compiling": "API calls",
    "off_cpu": "OS calls", "waiting_call": "API calls", "launch_latency": "API calls",
    "behind_weight_update": "work of other GPUs", "behind_collective": "work of other GPUs",
    "behind_stage": "work of other GPUs", "profiler": "profiler overhead",
}  # fmt: skip
SWITCHES, OS_CALLS, _LOADERS = "context switches", "OS calls", "loader threads"
_BEFORE = "waits"
"""Evidence of launches that are late by an earlier wait; that it made them late is inferred."""
_SOURCE = pl.Enum(
    [*dict.fromkeys(_RESTS_ON.values()), SWITCHES, _LOADERS, "MPI calls", _BEFORE, "structure"]
)
"""Recorded evidence of each cause; that of input, sleep and steps depends on the piece."""
FEW_GAPS = 50_000
"""Number of gaps up to which all GPUs are processed together, which is faster."""
_SHORT = 5
_SHORT_NS = 1_000_000
"""Least ratio of a wait to time between steps that it hides, and longest such time, ns."""
_PROMPT_NS = 10_000
"""Idle time above which an op that was launched long before waits for something else, ns: in 17 of
27 real traces 999 of 1,000 such ops start within 4 us of the op before."""
_PASSES = ("FP", "BP", "WU")
_SLEEPS = ("sleep", "off_cpu")
_LENGTH = pl.col("end") - pl.col("start")
_HELD = ("launch_latency", "host_delay", "waiting_call", "between_steps", "off_cpu")
_NO_RANGE, _UNKNOWN_RANGE = "(outside push/pop ranges)", "(no launching call)"
_BLOCKS = pl.Schema(
    {"held_by": pl.Int32(), "what": pl.String(), "start": pl.Int64(), "end": pl.Int64()}
)


@dataclass(frozen=True)
class OwnPieces:
    """Idle time by cause, as far as one part (some trace files) of a run shows it."""

    gaps: pl.DataFrame
    pieces: pl.DataFrame
    """As from `idle_pieces`; the gaps in `last` are not explained yet."""
    last: pl.DataFrame
    """Gaps until another GPU (maybe of another part) ends its step: ``gap, start, end, held_by``
    (times in ns)."""
    blocks: pl.DataFrame
    """Busy intervals of those GPUs of this part that end steps: ``held_by`` (GPU), ``what``
    (activity), ``start, end``."""

    def with_ranges(self, trace: Trace) -> OwnPieces:
        """Split idle intervals by the NVTX range in which the host is; add the range's name."""
        pairs = pairs_of(trace, self.gaps)
        unknown = pairs.filter(pl.col("driver").is_null())["pair"].implode()
        named = in_ranges(trace, self.pieces, pairs, "name")
        none = pl.when(pl.col("pair").is_in(unknown)).then(pl.lit(_UNKNOWN_RANGE))
        cut_too = named.with_columns(
            range=pl.coalesce(plain_name(pl.col("name")), none, pl.lit(_NO_RANGE))
        )
        return replace(self, pieces=cut_too.drop("name"))


def own_pieces(trace: Trace, windows: pl.DataFrame, ending: pl.DataFrame) -> OwnPieces:
    """Return idle time by cause in one part (some files) of a run, as far as known from these.

    Parameters
    ----------
    trace
        The part.
    windows
        As for `gaps_of`.
    ending
        The GPUs of the run that end steps, from `last_to_work`.
    """
    trace.once(host_activity, of_all=True)
    trace = near(trace, windows, ending)
    gaps, kept = gaps_of(trace, windows), trace.once(_kept)
    for of, found in kept:  # mostly windows of the same gaps, such as the steps of the run
        if of.equals(ending) and found.gaps.drop("pair").equals(gaps):
            return found
    explained = _explained_gaps(trace, gaps, ending)
    kept[:] = [(ending, explained)]
    return explained


def _kept(_: Trace) -> list[tuple[pl.DataFrame, OwnPieces]]:
    """Return a list, empty at first, in which `own_pieces` caches its last arguments and result."""
    return []


def _explained_gaps(trace: Trace, gaps: pl.DataFrame, ending: pl.DataFrame) -> OwnPieces:
    pairs = pairs_of(trace, gaps)
    gaps = with_pairs(gaps, pairs)
    last = waiting_for_end(gaps, ending)
    holding = holders(trace, gaps).join(last, on="gap", how="anti")
    pieces = _by_hosts(trace, gaps, pairs)
    launched = gaps.select("gap", launched=pl.max_horizontal("launch_start", "launch_end"))
    known = pieces.join(launched, on="gap", how="left", maintain_order="left").join(
        holding, on="gap", how="left", maintain_order="left"
    )
    until = pl.min_horizontal("held_until", "end")
    waits = known.filter(_is_held()).with_columns(end=until)
    start = pl.when(_is_held()).then(until).otherwise("start")
    rest = _explained(known.with_columns(start=start).filter(_LENGTH > 0))
    named = waits.with_columns(behind=None) if waits.is_empty() else named_behind(trace, waits)
    found = pl.concat([rest, _explained(_behind(named))]).sort("gap", "start")
    return OwnPieces(gaps, found, last, _ending_blocks(trace, named, ending))


def _by_hosts(trace: Trace, gaps: pl.DataFrame, pairs: pl.DataFrame) -> pl.DataFrame:
    """Split gaps into intervals with one cause each, as far as their own hosts show it.

    The host explains gaps between ops alone, so that they are explained once for all windows.
    """
    is_between, kept = pl.col("after").is_not_null(), trace.once(_kept_between)
    numbers = gaps.filter(is_between).select("gap", "pair")
    between = gaps.filter(is_between).drop("gap", "pair")
    pieces = next((found for of, found in kept if of.equals(between)), None)
    if pieces is None:
        numbered = gaps.filter(is_between).drop("gap").with_row_index("gap")
        waiting = of_pairs(trace.once(host_activity, of_all=True)["waiting"], threads_of(pairs))
        hosts = _of_hosts(trace, numbered, pairs)
        pieces = pl.concat(
            _credited(_by_host(trace, group, pairs, hosts), waited_before(group, waiting))
            for group in _apart(numbered)
        )
        kept[:] = [(between, pieces)]
    known = pieces.with_columns(numbers[pieces["gap"]])
    behind = _without_host(_phases(gaps.filter(~is_between)))
    return pl.concat([known, behind.select(known.columns)]).sort("gap", "start")


def _kept_between(_: Trace) -> list[tuple[pl.DataFrame, pl.DataFrame]]:
    """Return a list, empty at first, in which `_by_hosts` caches gaps and their intervals."""
    return []


def idle_pieces(trace: Trace, windows: pl.DataFrame) -> OwnPieces:
    """Return the idle gaps of a run, split into intervals (pieces) with one cause each.

    Parameters
    ----------
    windows
        As for `gaps_of`; pieces are not cut at the ends of windows, and not all beyond are there.

    Returns
    -------
    The gaps of `gaps_of` with ``pair`` (see `pairs_of`); and the pieces: ``gap, pair, process,
    device, start, end, cause, rests_on`` (evidence), times in ns, ``detail``. The pieces of a gap
    are consecutive and cover it.
    """
    found = own_pieces(trace, windows, last_to_work(trace, windows))
    return replace(found, pieces=with_last_gaps(found.pieces, found.last, found.blocks))


def with_idle_causes(trace: Trace, spans: pl.DataFrame) -> pl.DataFrame:
    """Split `spans` where the idle cause of their process's GPU changes; add the cause as ``idle``.

    ``idle`` is null while the GPU works; of a process's GPUs the one with the lowest number counts.
    """
    whole = trace.limited_to(Stretch())
    pieces = idle_pieces(whole, idle_windows(whole, skip=0, per_iteration=False)).pieces
    first = pieces.filter(pl.col("device") == pl.col("device").min().over("process"))
    causes = first.select("process", "start", "end", idle=pl.col("cause").cast(pl.String))
    return split_at(spans, states(causes, "process", "idle"), "process", "idle")


def with_pairs(gaps: pl.DataFrame, pairs: pl.DataFrame) -> pl.DataFrame:
    """Add ``pair``, the id of the two host threads that explain each gap: see `pairs_of`."""
    keys = ["process", "launch_thread"]
    pairs = pairs.select(*keys, "pair")
    return gaps.join(pairs, on=keys, how="left", nulls_equal=True, maintain_order="left")


def _ending_blocks(trace: Trace, named: pl.DataFrame, ending: pl.DataFrame) -> pl.DataFrame:
    """Return busy intervals of GPUs that end steps (`ending`), from when other GPUs are done."""
    if ending.is_empty():
        return pl.DataFrame(schema=_BLOCKS)
    since = int(ending.select(pl.col("since").min()).item())
    blocks = busy_blocks(trace, ending["held_by"].unique(), since)
    passed_on = named.drop_nulls("behind").filter(
        pl.col("device").is_in(ending["held_by"].implode()), pl.col("end") > since
    )
    return with_passed_on(blocks, passed_on).select(_BLOCKS.names()).cast(_BLOCKS)


def with_last_gaps(pieces: pl.DataFrame, last: pl.DataFrame, blocks: pl.DataFrame) -> pl.DataFrame:
    """Set the cause of gaps `last`, in which another GPU ends the step, to what that GPU does.

    `blocks` are the busy intervals of these other GPUs, by activity.
    """
    activity = behind_blocks(last, blocks).select("gap", "held_by", "behind")
    known = pieces.join(activity, on="gap", how="left", maintain_order="left")
    return _behind(known).select(pieces.columns)


def _apart(gaps: pl.DataFrame) -> list[pl.DataFrame]:
    """Split gaps into groups that share no GPU and no thread, if there are more than `FEW_GAPS`."""
    if gaps.height <= FEW_GAPS:
        return [gaps]
    met = gaps.select("device", "pair").unique().with_columns(group="device")
    while True:  # until devices of one host, and hosts of one device, are in one group
        joined = met
        for key in ("pair", "device"):
            joined = joined.with_columns(pl.col("group").min().over(key))
        if joined.equals(met):
            break
        met = joined
    groups = met.select("device", "group").unique()
    placed = gaps.join(groups, on="device", nulls_equal=True, maintain_order="left")
    return placed.partition_by("group", maintain_order=True, include_key=False) or [gaps]


def _phases(gaps: pl.DataFrame) -> pl.DataFrame:
    """Split each gap into time before, during and after the call that launched its late op.

    The late op is the one whose late launch explains the gap.
    """
    start, end = pl.col("start"), pl.col("end")
    begun = pl.col("launch_start").clip(start, end)
    done = pl.max_horizontal("launch_start", "launch_end").clip(start, end)
    known = gaps.filter(pl.col("launch_start").is_not_null())
    columns = ["gap", "pair", "process", "device", "by_loader", "brings_input"]
    edges = {"host": (start, begun), "call": (begun, done), "queued": (done, end)}
    phases = [
        known.select(*columns, start=first, end=last, phase=pl.lit(phase))
        for phase, (first, last) in edges.items()
    ]
    rest = gaps.filter(pl.col("launch_start").is_null())
    unknown = rest.select(*columns, "start", "end", phase=pl.lit("unknown"))
    return pl.concat([*phases, unknown]).filter(_LENGTH > 0)


def host_activity(trace: Trace) -> dict[str, pl.DataFrame]:
    """Return kind of host activity -> ``thread, start, end`` (ns), ``name`` of each occurrence.

    ``building``, calls that link or load GPU code, has ``process`` in place of ``thread``.
    """
    whole = trace.limited_to(Stretch())
    return whole.sums_of_parts([partial(_seen_of_threads, whole)])[0]


def _seen_of_threads(trace: Trace) -> Frames:
    return {
        "profiler": host_rows(trace, "profiler"),
        "allocation": allocations(trace),
        "loading": loads(trace),
        "building": builds(trace),
        "waiting": waits(trace),
        "collective": host_rows(trace, "mpi", pl.col("group") == "collective"),
        "message": host_rows(trace, "mpi", pl.col("group") != "collective"),
        "sleep": host_rows(trace, "os", pl.col("group") == "wait"),
        "off_cpu": off_cpu(trace),
    }


def _of_hosts(trace: Trace, gaps: pl.DataFrame, pairs: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """Return kind of host activity -> ``pair`` (of threads), ``start, end`` (ns), ``name``."""
    threads = threads_of(pairs)
    known = {**trace.once(host_activity, of_all=True)}
    built = known.pop("building")
    asleep = pl.concat([known[state] for state in _SLEEPS])
    found = {
        state: of_both(intervals, asleep, pairs)
        if state in _SLEEPS
        else of_pairs(intervals, threads)
        for state, intervals in known.items()
    }
    return found | {"compiling": compilations(trace, gaps, built, asleep)}


def _by_host(
    trace: Trace, gaps: pl.DataFrame, pairs: pl.DataFrame, hosts: Mapping[str, pl.DataFrame]
) -> pl.DataFrame:
    """Split gaps into intervals with one cause each, by host activity before the launch."""
    phases = _phases(gaps)
    of_host = pl.col("phase").is_in(["host", "call"])
    pieces = phases.filter(of_host)
    pairs = pairs.join(gaps, on="pair", how="semi")
    seen = {state: rows for state, rows in hosts.items() if not rows.is_empty()}
    pieces = pieces.with_columns(pl.lit(None, pl.String).alias(n) for n in hosts if n not in seen)
    for state, of_state in seen.items():
        intervals = of_state.join(pairs, on="pair", how="semi", maintain_order="left")
        pieces = split_at(pieces, name_states(intervals, state), "pair", state)
    pieces = in_ranges(trace, pieces, pairs, "stage")
    pieces = split_at(pieces, step_states(trace), "process", "in_step")
    source = pl.col("source").first().fill_null(_RESTS_ON["between_steps"])
    steps_by = trace["iterations"].group_by("process").agg(steps_by=source).collect()
    pieces = pieces.join(steps_by, on="process", how="left", maintain_order="left")
    named = pieces.with_columns(cause=_cause()).select(
        *phases.columns, "cause", rests_on=_rests_on(), detail=_detail()
    )
    return pl.concat([named, _without_host(phases.filter(~of_host))]).sort("gap", "start")


def _without_host(phases: pl.DataFrame) -> pl.DataFrame:
    """Add the cause of idle time after the launching call, or without one (`unexplained`)."""
    is_queued = pl.col("phase") == "queued"
    cause = pl.when(is_queued).then(pl.lit("launch_latency")).otherwise(pl.lit("unexplained"))
    return phases.with_columns(
        cause=cause.cast(_CAUSE),
        rests_on=pl.when(is_queued).then(pl.lit("API calls")).cast(_SOURCE),
        detail=pl.lit(None, pl.String),
    )


_IS_ASLEEP = pl.col("off_cpu").is_not_null() | pl.col("sleep").is_not_null()
_IS_IN_PASS = pl.col("stage").cast(pl.String).is_in(_PASSES).fill_null(value=False)
_IS_IN_INPUT = (pl.col("stage") == "IO").fill_null(value=False)


def _detail() -> pl.Expr:
    """Return an expression for the name of the host call, or sleep, that shows a cause."""
    asleep = pl.coalesce(
        pl.when(is_locked()).then("off_cpu"), pl.format("asleep in {}", "sleep"),
        pl.when(pl.col("cause") != "off_cpu").then("off_cpu"),
    )  # fmt: skip
    is_sleep = pl.col("cause").is_in(["input", "off_cpu"])
    until = pl.when((pl.col("cause") == "input") & ~_IS_IN_INPUT & pl.col("by_loader")).then(
        pl.lit("until a loader's thread launched")
    )
    names = ("profiler", "allocation", "waiting", "loading", "collective", "message")
    compiling = pl.when(pl.col("cause") == "compiling").then("compiling")
    return pl.coalesce(*names, compiling, pl.when(is_sleep).then(asleep), until)


def _rests_on() -> pl.Expr:
    """Return an expression for the kind of data that shows a cause, such as ``MPI calls``."""
    asleep = pl.when(pl.col("off_cpu").is_not_null()).then(pl.lit(SWITCHES)).otherwise(
        pl.lit(OS_CALLS)
    )  # fmt: skip
    cause = pl.col("cause")
    return (
        pl.when((cause == "input") & ~_IS_IN_INPUT & ~_IS_IN_PASS & pl.col("by_loader"))
        .then(pl.lit(_LOADERS))
        .when((cause == "off_cpu") | ((cause == "input") & ~_IS_IN_INPUT)).then(asleep)
        .when(cause.is_in(["behind_collective", "behind_stage"])).then(pl.lit("MPI calls"))
        .when(cause == "between_steps").then(pl.col("steps_by"))
        .otherwise(cause.replace_strict(_RESTS_ON, default=None, return_dtype=pl.String))
        .cast(_SOURCE)
    )  # fmt: skip


def _cause() -> pl.Expr:
    """Return an expression for the cause of idle time until the next op is launched."""
    outside = pl.col("steps_by").is_not_null() & ~pl.col("in_step").fill_null(value=False)
    between = outside & ~_IS_IN_PASS
    locked = pl.when(is_locked()).then(_LENGTH).otherwise(0).sum().over("gap")
    asleep = pl.when(_IS_ASLEEP).then(_LENGTH).otherwise(0).sum().over("gap")
    is_kept_out = _IS_ASLEEP & ((2 * locked >= asleep) | (pl.col("phase") == "call"))
    return (
        pl.when(pl.col("profiler").is_not_null()).then(pl.lit("profiler"))
        .when(pl.col("allocation").is_not_null()).then(pl.lit("allocation"))
        .when(pl.col("waiting").is_not_null()).then(pl.lit("waiting_call"))
        .when(pl.col("loading").is_not_null()).then(pl.lit("loading"))
        .when(pl.col("collective").is_not_null()).then(pl.lit("behind_collective"))
        .when(pl.col("message").is_not_null()).then(pl.lit("behind_stage"))
        .when(pl.col("compiling").is_not_null() & ~_IS_IN_INPUT).then(pl.lit("compiling"))
        .when(is_kept_out).then(pl.lit("off_cpu"))
        .when(pl.col("phase") == "call").then(pl.lit("launch_latency"))
        .when(_IS_IN_INPUT).then(pl.lit("input"))
        .when(between & pl.col("by_loader")).then(pl.lit("input"))
        .when(_IS_ASLEEP & pl.col("brings_input") & ~_IS_IN_PASS).then(pl.lit("input"))
        .when(_IS_ASLEEP).then(pl.lit("off_cpu"))
        .when(between).then(pl.lit("between_steps"))
        .otherwise(pl.lit("host_delay")).cast(_CAUSE)
    )  # fmt: skip


def _credited(pieces: pl.DataFrame, credits_: pl.DataFrame) -> pl.DataFrame:
    """Set the cause of idle time by late launches to an earlier wait of the host for the GPU.

    It applies to as much of that time as the wait took (``credit`` of `waited_before`), since the
    host would have been earlier by that. The same is done for short host work between steps.
    """
    outside = pl.col("cause").is_in(["between_steps", "input"])
    away = pl.when(outside).then(_LENGTH).otherwise(0).sum().over("gap")
    hidden = outside & (away * _SHORT <= pl.col("credit")) & (away <= _SHORT_NS)
    late = (pl.col("cause") == "host_delay") | hidden.fill_null(value=False)
    known = pieces.join(credits_, on="gap", how="left", maintain_order="left")
    length = pl.when(late).then(_LENGTH).otherwise(0)
    waited = pl.when(pl.col("cause") == "waiting_call").then(_LENGTH).otherwise(0).cum_sum()
    # A wait while nothing runs puts the host behind by nothing; of its own gap none counts.
    stretch = ["device", "ahead"]
    spent = length.cum_sum().over(stretch) - length
    spent += waited.over(stretch) - waited.over("gap")
    due = pl.when(late).then((pl.col("credit") - spent).clip(0, length)).fill_null(0)
    counted = known.with_columns(due=due)
    after_wait = counted.filter(pl.col("due") > 0).with_columns(
        end=pl.col("start") + pl.col("due"),
        cause=pl.lit("waiting_call").cast(_CAUSE), rests_on=pl.lit(_BEFORE).cast(_SOURCE),
        detail=pl.lit("late, as it had waited for the GPU before"),
    )  # fmt: skip
    rest = counted.with_columns(start=pl.col("start") + pl.col("due")).filter(_LENGTH > 0)
    return pl.concat([after_wait, rest]).select(pieces.columns).sort("gap", "start")


def _is_held() -> pl.Expr:
    """Return an expression, true for idle time that begins while its late op awaits another GPU.

    The late op is the one whose late launch explains the idle time.
    """
    eligible = pl.col("cause").is_in(list(_HELD)) | (pl.col("phase") == "unknown")
    return (eligible & (pl.col("held_until") > pl.col("start"))).fill_null(value=False)


def _behind(rows: pl.DataFrame) -> pl.DataFrame:
    """Replace the cause "waits for another GPU" by that GPU's activity, if known."""
    is_known = pl.col("behind").is_not_null()
    return rows.with_columns(
        cause=pl.coalesce(pl.col("behind").cast(_CAUSE), "cause"),
        rests_on=pl.when(is_known)
        .then(pl.lit("work of other GPUs").cast(_SOURCE))
        .otherwise("rests_on"),
        detail=pl.when(is_known).then(pl.format("GPU {}", "held_by")).otherwise("detail"),
    )


def _explained(pieces: pl.DataFrame) -> pl.DataFrame:
    """Return the columns of `idle_pieces`; call idle time unexplained if a launch queues too long.

    Too long: nothing runs for more than `_PROMPT_NS` before an op that was launched more than
    `QUEUED_NS` earlier.
    """
    queued = (pl.col("phase") == "queued") & (pl.col("cause") == "launch_latency")
    since_launch = pl.col("end") - pl.col("launched")
    too_long = queued & (_LENGTH > _PROMPT_NS) & (since_launch > QUEUED_NS)
    cause = pl.when(too_long).then(pl.lit("unexplained")).otherwise("cause").cast(_CAUSE)
    return pieces.select(
        "gap", "pair", "process", "device", "start", "end", cause=cause,
        rests_on=pl.when(~too_long).then("rests_on"),
        detail=pl.when(too_long).then(pl.lit("launched, and not started")).otherwise("detail"),
    )  # fmt: skip


def own_pieces_in(trace: Trace, windows: pl.DataFrame, ending: pl.DataFrame) -> OwnPieces:
    """Return `own_pieces` of one part (some files) of a run, cut at the ends of `windows`."""
    found = own_pieces(trace, windows, ending)
    inside = cut(found.pieces, windows).filter(_LENGTH > 0)
    step = windows["iteration"].gather(inside["window"])
    known = inside.select(*found.pieces.columns, iteration=step)
    placed = known.join(found.gaps.select("gap", "stage"), on="gap", how="left")
    return replace(found, pieces=placed.sort("gap", "start"))


def idle_windows(trace: Trace, *, skip: int, per_iteration: bool) -> pl.DataFrame:
    """Return the intervals per GPU in which idle time counts.

    With `per_iteration`, these are the steps after the first `skip`, else one interval per GPU.
    """
    windows = chosen_windows(trace, skip=skip, per_iteration=per_iteration)
    return with_steps(windows) if per_iteration else windows
