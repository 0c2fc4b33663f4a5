"""Times in each step of a run, by any key that runs can be compared by, such as kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracekit.analysis.calls import mpi_calls, with_devices
from tracekit.analysis.facts import chosen_keys, step_phases, work_of
from tracekit.analysis.idle_account import idle_sums, idle_windows
from tracekit.analysis.memory import memory_use
from tracekit.analysis.statistics import Skip, cold_steps
from tracekit.analysis.step_sums._key_sums import StepTimes, step_times
from tracekit.engine import Counted, numbered_alike, step_windows
from tracekit.errors import UsageError
from tracekit.model import STAGES, Trace
from tracekit.support.wording import note

if TYPE_CHECKING:
    from tracekit.analysis.traffic import Traffic

_ALONE = ("cause", "collective", "api", "link", "memory", "phase")
COMPARE_KEYS = ("stage", "step", "kind", "kernel", "range", "device", "rank", "node", *_ALONE)
"""Keys of comparisons; the last six cannot be combined with others."""

PARTS = (*STAGES, "idle", "between_steps")
"""Parts of the time of a step: exposed time of each stage, and time in which nothing runs:
while the host is inside an iteration (idle), and while it is in none (between)."""

_LENGTH = pl.col("end") - pl.col("start")
_OWNER = ["process", "device"]
_MEASURES = ("iteration", "length_ns", "count", "bytes", "per")


@dataclass(frozen=True)
class Measured:
    """Times of the steps of a run."""

    columns: tuple[str, ...]
    """The columns that form a group."""
    values: pl.DataFrame
    """The columns `columns` and ``iteration, length_ns, count, per``, for links also ``bytes``. A
    group that does not occur in a step has no row for it; `iteration` is null outside of the
    windows `counted`. ``per`` is the number of devices (or processes) whose times were added.
    Without steps there is one row per group for the whole run."""
    parts: pl.DataFrame
    """``part, iteration, length_ns, busy_ns``: the parts of steps (`PARTS`), added over devices;
    `busy_ns` is null for parts that are not stages."""
    on_devices: pl.DataFrame
    """``device, part, mean_ns``: `parts` by GPU, averaged over steps and over the processes of a
    GPU."""
    iterations: tuple[int, ...]
    """Numbers of the steps; empty if the run has none."""
    counted: Counted
    """The windows of steps that are neither skipped nor incomplete, and how many others were left
    out, by reason."""
    devices: int
    """Number of devices that steps ran on; a GPU that two processes use counts for each."""
    skipped: int = 0
    cold: int = 0
    """Number of iterations left out at the beginning, and number of cold ones among the others."""
    windows: pl.DataFrame = field(default_factory=pl.DataFrame)
    """Steps and times between them: ``process, device, iteration, start, end`` (ns), ``on_host``
    (whether the host is in an iteration)."""


def parse_compare_keys(by: str | Sequence[str]) -> tuple[str, ...]:
    """Split and check the keys of a comparison, given as ``"stage,device"`` or as a sequence.

    Raises
    ------
    UsageError
        If a key is unknown, is given twice or cannot be combined, or if no key is given.
    """
    keys = chosen_keys(by, COMPARE_KEYS, "comparison")
    alone = next((key for key in keys if key in (*_ALONE, "step")), None)
    if alone is not None and len(keys) > 1:
        raise UsageError(f"{alone} cannot be combined with other keys", f"give {alone} alone")
    return keys


def per_iteration(
    trace: Trace,
    by: Sequence[str],
    *,
    skip: Skip = 0,
    as_one: bool = False,
    traffic: Traffic | None = None,
) -> Measured:
    """Measure the time in each step of a run by the keys `by`.

    By stage, the time of ops is exposed time, else busy time. It is added over devices;
    ``docs/breakdown.md`` defines where a step begins and ends. API calls count in the iteration in
    which they begin on the host; their lengths are sums of durations over all threads. Traffic
    counts in the iteration that launched it.

    Parameters
    ----------
    by
        Keys from `parse_compare_keys`, except ``memory``.
    skip
        Number of first iterations to leave out in each process; ``auto``: as many as are cold.
    as_one
        Whether the run as a whole counts as one iteration.
    traffic
        Traffic of the run, for the key ``link``.

    Raises
    ------
    UsageError
        If the run has no iterations, or too few to skip; or if traffic is needed and not given.
    MissingDataError
        If the run has neither GPU work nor NVTX ranges that are stages.
    """
    paired = numbered_alike(trace)
    if traffic is not None and paired is not trace:
        traffic = replace(traffic, trace=numbered_alike(traffic.trace))
    named = _by_collective(paired) if by == ("collective",) else paired
    skipped = 0 if as_one else skipped_of(trace, skip)
    times = step_times(named, _keys_of_ops(by), skip=skipped, as_one=as_one)
    found = _measured(paired, by, times, as_one=as_one, traffic=traffic)
    cold = cold_steps(steps_of(found)) if found.iterations and skip != "auto" else 0
    return replace(found, skipped=skipped, cold=cold)


class Cold(NamedTuple):
    """Cold steps of a run: count, number of the last one, total length over devices (`window_ns`).

    `skip` is the number of first iterations to leave out: cold and cut-off iterations.
    """

    steps: int = 0
    last: int = -1
    window_ns: int = 0
    skip: int = 0


def cold_of(trace: Trace, skip: Skip = "auto") -> Cold:
    """Return a run's cold steps; none if `skip` is a number, or only a part of the run is read."""
    is_all = skip == "auto" and trace.stretch.is_all
    return trace.once(_cold, of_all=True) if is_all else Cold()


def _cold(trace: Trace) -> Cold:
    paired = numbered_alike(trace)
    iterations = paired.read("iterations")
    if iterations.is_empty():
        return Cold()
    work = work_of(paired)
    windows = step_windows(work.trace, cutter=work.cutter).filter("counts")
    steps = windows.group_by("iteration").agg(length=_LENGTH.sum()).sort("iteration")
    numbers, lengths = steps.head(cold_steps(steps["length"].to_numpy()))
    if numbers.is_empty():
        return Cold()
    before = iterations.filter(pl.col("iteration") <= numbers[-1]).group_by("process").len()
    return Cold(len(numbers), numbers[-1], int(lengths.sum()), max(before["len"]))


def skipped_of(trace: Trace, skip: Skip) -> int:
    """Return the number of first iterations to leave out: `skip`, or the cold ones if ``auto``."""
    return cold_of(trace).skip if skip == "auto" else skip


def cold_meta(trace: Trace, skip: Skip) -> dict[str, dict[str, int | None]]:
    """Return metadata ``cold`` on the cold steps that are left out of all values per step.

    The entry has the fields of `Cold`, but ``last`` is null if the processes' step numbers differ.
    """
    cold = cold_of(trace, skip)
    last = cold.last if numbered_alike(trace) is trace else None
    return {"cold": {**cold._asdict(), "last": last}} if cold.steps else {}


def numbering_meta(trace: Trace, keys: Sequence[str]) -> dict[str, bool]:
    """Return a metadata flag if, in a table by iteration, processes number steps differently."""
    is_apart = "iteration" in keys and numbered_alike(trace) is not trace
    return {"numbered_apart": True} if is_apart else {}


_APART = (
    "processes number their steps differently: one step may have several rows; --iterations and "
    "means per step count the steps of each process from 0"
)
note("numbered_apart")(lambda _: [_APART])


def _measured(
    trace: Trace, by: Sequence[str], times: StepTimes, *, as_one: bool, traffic: Traffic | None
) -> Measured:
    values = _values(trace, by, times, as_one=as_one, traffic=traffic)
    values = values.with_columns(pl.col("per").fill_null(1))
    columns = tuple(name for name in values.columns if name not in _MEASURES)
    numbers = times.windows["iteration"].drop_nulls().unique().sort().to_list()
    owners = owners_of(times, as_one=as_one)
    return Measured(
        columns, values, step_parts(times, as_one=as_one),
        _on_devices(times, owners, len(numbers), as_one=as_one), tuple(numbers), times.counted,
        owners.height, windows=times.windows.drop("window"),
    )  # fmt: skip


def steps_by_phase(trace: Trace) -> pl.DataFrame:
    """Return ``iteration, phase, tokens`` of steps; iterations are numbered as by `per_iteration`.

    The phase (prefill, decode or mixed) is null if it is unknown or differs between processes;
    tokens are the mean over processes, null if unknown for any.
    """
    steps = step_phases(numbered_alike(trace))
    is_one = (pl.col("phase").n_unique() == 1) & (pl.col("phase").null_count() == 0)
    return steps.group_by("iteration").agg(
        phase=pl.when(is_one).then(pl.col("phase").first()),
        tokens=pl.when(pl.col("tokens").null_count() == 0).then(pl.col("tokens").mean()),
    )


def owners_of(times: StepTimes, *, as_one: bool) -> pl.DataFrame:
    """Return the pairs ``process, device`` on which the measured steps ran.

    With `as_one` the run is one step: the pairs of the whole run.
    """
    windows = times.windows if as_one else times.windows.drop_nulls("iteration")
    return windows.select(_OWNER).unique()


def _keys_of_ops(by: Sequence[str]) -> tuple[str, ...]:
    if by == ("collective",):
        return ("kernel",)
    return ("stage",) if by[0] in _ALONE else tuple(by)


# -- groups ------------------------------------------------------------------------------------


def _values(
    trace: Trace, by: Sequence[str], times: StepTimes, *, as_one: bool, traffic: Traffic | None
) -> pl.DataFrame:
    steps = times.windows["iteration"].drop_nulls().unique()
    if by == ("cause",):
        idle = _idle(trace, steps, as_one=as_one)
        return idle.with_columns(per=pl.lit(owners_of(times, as_one=as_one).height))
    if by == ("link",):
        return _link(traffic, steps, as_one=as_one).with_columns(per=pl.lit(1))
    owners = owners_of(times, as_one=as_one)
    processes = pl.lit(owners["process"].n_unique()).alias("per")
    if by == ("api",):
        return _api(trace, steps, as_one=as_one).with_columns(processes)
    values = times.groups.rename({"ops": "count"})
    if by == ("collective",):
        kernels = values.filter(pl.col("kind") == "collective").drop("kind")
        named = kernels.select(pl.exclude("name"), collective=pl.col("name").cast(pl.String))
        mpi = _mpi(trace, steps, as_one=as_one).with_columns(processes)
        on_devices = named.with_columns(per=pl.lit(owners.height))
        return pl.concat([on_devices.select(mpi.columns), mpi])
    return with_devices(trace, values, by, owners).rename({"devices": "per"})


def _idle(trace: Trace, steps: pl.Series, *, as_one: bool) -> pl.DataFrame:
    """Sum idle time by cause and step of `steps`, or overall (`as_one`); ``count``: gaps."""
    cut, by = idle_windows(trace, skip=0, per_iteration=not as_one), ["cause", "iteration"]
    found = idle_sums(trace, cut.with_columns(_counted(pl.col("iteration"), steps)), by)
    gaps = found.gaps.group_by(by).agg(count=pl.col("gaps").sum())
    lengths = found.pieces.group_by(by).agg(length_ns=pl.col("idle_ns").sum())
    known = gaps.join(lengths, on=by, nulls_equal=True)
    return known.cast({"cause": pl.String}).select(*by, "count", "length_ns")


def _by_collective(trace: Trace) -> Trace:
    """Rename a run's ops for grouping: a collective to its operation, any other op to ""."""
    name = pl.when(pl.col("kind") == "collective").then(
        pl.col("collective").cast(pl.String).fill_null("unknown")
    )
    ops = trace["ops"].with_columns(name=name.otherwise(pl.lit("")).cast(pl.Categorical()))
    return trace.with_lazy({"ops": ops})


def _api(trace: Trace, steps: pl.Series, *, as_one: bool) -> pl.DataFrame:
    calls = trace["calls"].select("process", "start", "end", api=pl.col("name").cast(pl.String))
    return _of_host(trace, calls.collect(), "api", steps, as_one=as_one)


def _mpi(trace: Trace, steps: pl.Series, *, as_one: bool) -> pl.DataFrame:
    does = pl.col("does").is_in(["collective", "starts_collective"])
    calls = mpi_calls(trace).filter(does).select("process", "start", "end", collective="name")
    return _of_host(trace, calls, "collective", steps, as_one=as_one)


def _of_host(
    trace: Trace, calls: pl.DataFrame, key: str, steps: pl.Series, *, as_one: bool
) -> pl.DataFrame:
    """Sum up host calls by `key` and the iteration (of `steps`) in which they begin.

    Returned are their number and total duration. The iteration is null outside of `steps`, and of
    all calls with `as_one`.
    """
    iteration = pl.when(pl.col("start") < pl.col("until")).then("iteration")
    if as_one:
        found = calls.with_columns(iteration=pl.lit(None, pl.Int64))
    else:
        iterations = trace.read("iterations").sort("start")
        found = calls.sort("start").join_asof(
            iterations.select("process", "iteration", begin="start", until="end"),
            left_on="start", right_on="begin", by="process", check_sortedness=False,
        ).with_columns(_counted(iteration, steps))  # fmt: skip
    return found.group_by(key, "iteration").agg(
        pl.len().cast(pl.Int64).alias("count"), _LENGTH.sum().alias("length_ns")
    ).select(key, "iteration", "count", "length_ns")  # fmt: skip


def _counted(iteration: pl.Expr, steps: pl.Series) -> pl.Expr:
    """Return an expression: the iteration's number if it is in `steps`, else null."""
    return pl.when(iteration.is_in(steps.implode())).then(iteration).alias("iteration")


def _link(traffic: Traffic | None, steps: pl.Series, *, as_one: bool) -> pl.DataFrame:
    if traffic is None:
        raise UsageError(
            "a comparison by link needs the traffic of each run", "give both `traffic`"
        )
    rows = traffic.links("link" if as_one else "link,iteration")
    iteration = pl.lit(None, pl.Int64) if as_one else _counted(pl.col("iteration"), steps)
    keys = ("link", "src", "dst", "type", "evidence")
    found = rows.select(
        *keys, iteration.alias("iteration"), "bytes",
        count=pl.col("transfers").cast(pl.Int64), length_ns=pl.col("busy_ns").cast(pl.Int64),
    )  # fmt: skip
    size = pl.when(pl.col("bytes").count() > 0).then(pl.col("bytes").sum())
    return found.group_by(*keys, "iteration").agg(pl.col("length_ns", "count").sum(), size)


def peak_memory(trace: Trace) -> pl.DataFrame:
    """Return ``device, bytes``: peak allocated memory; see `memory_use`."""
    allocated = memory_use(trace).rows.filter(source="allocator")
    return allocated.select("device", bytes="peak_bytes")


# -- what steps are made of --------------------------------------------------------------------


def step_parts(
    times: StepTimes, *, as_one: bool, by: Sequence[str] = ("iteration",)
) -> pl.DataFrame:
    """Divide steps into parts, stages and idle time: ``part``, `by`, ``length_ns, busy_ns``.

    With `as_one` the whole run counts as one step; otherwise time outside of steps is left out.
    """
    windows = times.windows if as_one else times.windows.drop_nulls("iteration")
    inside = times.stages.join(
        windows.select("window", "on_host", "start", "end", *by), on="window"
    )
    stages = inside.group_by(*by, part=pl.col("stage").cast(pl.String)).agg(
        length_ns=pl.col("exposed_ns").sum(), busy_ns=pl.col("busy_ns").sum()
    )
    busy = inside.group_by("window").agg(busy=pl.col("exposed_ns").sum())
    idle = _LENGTH - pl.col("busy").fill_null(0)
    part = pl.when("on_host").then(pl.lit("idle")).otherwise(pl.lit("between_steps"))
    rest = (
        windows.join(busy, on="window", how="left")
        .group_by(*by, part=part)
        .agg(length_ns=idle.sum(), busy_ns=pl.lit(None, pl.Int64))
    )
    columns = ["part", *by, "length_ns", "busy_ns"]
    return pl.concat([stages.select(columns), rest.select(columns)])


def _on_devices(
    times: StepTimes, owners: pl.DataFrame, steps: int, *, as_one: bool
) -> pl.DataFrame:
    users = owners.group_by("device").agg(users=pl.len())
    parts = step_parts(times, as_one=as_one, by=("device",)).join(users, on="device")
    mean = pl.col("length_ns") / (pl.col("users") * max(1, steps))
    return parts.select("device", "part", mean_ns=mean)


def steps_of(run: Measured) -> NDArray[np.int64]:
    """Return the length of each step of a run, summed over devices, in order of steps, ns."""
    each = run.parts.drop_nulls("iteration") if run.iterations else run.parts
    steps = each.group_by("iteration").agg(pl.col("length_ns").sum()).sort("iteration")
    found: NDArray[np.int64] = steps["length_ns"].to_numpy()
    return found


def in_one_account(
    runs: Sequence[Measured], traces: Sequence[Trace]
) -> tuple[list[Measured], tuple[str, ...]]:
    """Make runs comparable by splitting idle time into the same parts; also return these parts.

    If a run's iterations were inferred from its GPU work, it is unknown when its host was in an
    iteration. Then ``between_steps`` counts as ``idle`` in all runs.
    """
    inferred = pl.col("source") == "structure"
    if all(each["iterations"].filter(inferred).head(1).collect().is_empty() for each in traces):
        return list(runs), PARTS
    part = pl.col("part").replace({"between_steps": "idle"})
    found = [
        replace(
            run,
            parts=run.parts.group_by(part, "iteration", maintain_order=True).agg(
                pl.col("length_ns").sum(),
                pl.when(pl.col("busy_ns").count() > 0).then(pl.col("busy_ns").sum()),
            ),
            on_devices=run.on_devices.group_by("device", part, maintain_order=True).agg(
                pl.col("mean_ns").sum()
            ),
        )
        for run in runs
    ]
    return found, tuple(name for name in PARTS if name != "between_steps")


def with_hosts_matched(runs: Sequence[Measured]) -> tuple[list[Measured], list[str]]:
    """Rename the hosts (machines) of runs to those of the first run; return notes on the matches.

    Hosts are matched in the order of their names if all runs have equally many hosts, and no host
    of the first run occurs in another run; else runs stay as they are.
    """
    if not all("node" in run.columns for run in runs):
        return list(runs), []
    hosts = [run.values["node"].drop_nulls().unique().sort().to_list() for run in runs]
    first = hosts[0]
    if any(set(names) & set(first) for names in hosts[1:]) or len(set(map(len, hosts))) > 1:
        return list(runs), []
    found = [
        replace(
            run,
            values=run.values.with_columns(
                pl.col("node").replace_strict(names, first, default=None, return_dtype=pl.String)
            ),
        )
        for run, names in zip(runs, hosts, strict=True)
    ]
    named = "; ".join(" is ".join(dict.fromkeys(each)) for each in zip(*hosts, strict=True))
    return found, [f"hosts are matched in the order of their names: {named}"]
