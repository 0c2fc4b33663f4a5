"""What each iteration of a run took, by any of the keys that runs are compared by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from tracekit.analysis._breakdown import IterationTimes, iteration_times
from tracekit.analysis._keys import chosen_keys
from tracekit.analysis._memory import memory_use
from tracekit.analysis._mpi_calls import mpi_calls
from tracekit.analysis._traffic import Traffic
from tracekit.errors import UsageError
from tracekit.model import STAGES, Trace

_ALONE = {
    "collective": "collective operation: NCCL kernels by operation, MPI calls by name",
    "api": "CUDA call, by name",
    "link": "link and direction",
    "memory": "GPU memory: peak of what was in use",
}
COMPARE_KEYS = {
    "stage": "why an op runs",
    "kind": "what an op does",
    "kernel": "name of a kernel",
    "range": "path of the innermost NVTX range around the launch",
    "device": "GPU",
    "rank": "rank of the process in its job",
    "node": "host that the process ran on",
    **_ALONE,
}
"""What two runs can be compared by; the last four stand alone."""

PARTS = (*STAGES, "idle", "between")
"""What the time of a step is made of: exposed time of each stage, time of the iteration in which
nothing runs, and time from its end to the next iteration's begin."""

_LENGTH = pl.col("end") - pl.col("start")
_OWNER = ["process", "device"]


@dataclass(frozen=True)
class Measured:
    """What iterations of a run took.

    Parameters
    ----------
    columns
        The columns that form a group.
    values
        These, ``iteration, length_ns, count`` and for links ``bytes``. A group that an iteration
        lacks is not listed. Without iterations there is one row per group, of the whole run.
    parts
        ``part, iteration, length_ns``: what steps are made of (`PARTS`), added over devices.
    iterations
        Numbers of the iterations; empty if the run has none.
    left_out
        How many iterations are left out because not every process has them.
    devices
        Number of devices that iterations ran on.
    """

    columns: tuple[str, ...]
    values: pl.DataFrame
    parts: pl.DataFrame
    iterations: tuple[int, ...]
    left_out: int
    devices: int


def parse_compare_keys(by: str | Sequence[str]) -> tuple[str, ...]:
    """Return the keys in ``"stage,device"`` or a sequence of them.

    Raises
    ------
    UsageError
        If one is unknown, is given twice, or cannot be combined; or if none is given.
    """
    keys = chosen_keys(by, COMPARE_KEYS, "comparison")
    alone = next((key for key in keys if key in _ALONE), None)
    if alone is not None and len(keys) > 1:
        raise UsageError(f"{alone} cannot be combined with other keys", f"give {alone} alone")
    return keys


def per_iteration(
    trace: Trace,
    by: Sequence[str],
    *,
    skip: int = 0,
    whole: bool = False,
    traffic: Traffic | None = None,
) -> Measured:
    """Measure each iteration of a run.

    Lengths of ops are exposed time by stage and busy time otherwise, of an iteration's windows as
    in ``docs/breakdown.md``, added over devices. Calls count in the iteration in which they begin
    on the host; their lengths are sums of durations, over all threads. Traffic counts in the
    iteration that launched it.

    Parameters
    ----------
    trace
        The run.
    by
        Keys as `parse_compare_keys` returns them, but not ``memory``.
    skip
        How many iterations to leave out at the beginning of each process.
    whole
        Whether the whole run counts as one iteration.
    traffic
        What the run moved, for the key ``link``.

    Raises
    ------
    UsageError
        If the run has no iterations, or too few to skip; or if traffic is needed and not given.
    MissingDataError
        If the run has neither GPU work nor NVTX ranges that are stages.
    """
    named = _by_collective(trace) if by == ("collective",) else trace
    keys = _keys_of_ops(by)
    times = iteration_times(named, keys, skip=skip, per_iteration=not whole)
    numbers, left_out = _common(times.windows)
    is_kept = pl.lit(value=True) if whole else pl.col("iteration").is_in(numbers)
    values = _values(trace, by, times, whole=whole, traffic=traffic).filter(is_kept)
    parts, devices = _parts(times, whole=whole)
    columns = tuple(name for name in values.columns if name not in _MEASURES)
    return Measured(columns, values, parts.filter(is_kept), tuple(numbers), left_out, devices)


_MEASURES = ("iteration", "length_ns", "count", "bytes")


def _keys_of_ops(by: Sequence[str]) -> tuple[str, ...]:
    if by == ("collective",):
        return ("kernel",)
    return ("stage",) if by[0] in _ALONE else tuple(by)


def _common(windows: pl.DataFrame) -> tuple[list[int], int]:
    """Return the iterations that all processes have, and the number of the others.

    A process with less than half of them is a bystander, such as one that validates now and then;
    where processes count differently, so that none is common, each iteration stands.
    """
    seen = windows.drop_nulls("iteration").select("process", "iteration").unique()
    of_each = seen.group_by("process").len()
    takes_part = of_each.filter(2 * pl.col("len") >= pl.col("len").max()).select("process")
    holders = seen.join(takes_part, on="process", how="semi").group_by("iteration").len()
    common = holders.filter(pl.col("len") == takes_part.height)
    kept = common if common.height else holders
    return kept["iteration"].sort().to_list(), seen["iteration"].n_unique() - kept.height


# -- groups ------------------------------------------------------------------------------------


def _values(
    trace: Trace, by: Sequence[str], times: IterationTimes, *, whole: bool, traffic: Traffic | None
) -> pl.DataFrame:
    if by == ("api",):
        return _api(trace, whole=whole)
    if by == ("link",):
        return _link(traffic, whole=whole)
    values = times.groups.rename({"ops": "count"})
    if not whole:
        values = values.drop_nulls("iteration")
    if by == ("collective",):
        kernels = values.filter(pl.col("kind") == "collective").drop("kind")
        named = _as_text(kernels.rename({"name": "collective"}))
        mpi = _mpi(trace, whole=whole)
        return pl.concat([named.select(mpi.columns), mpi])
    return _as_text(values)


def _as_text(values: pl.DataFrame) -> pl.DataFrame:
    return values.with_columns(pl.col(pl.Categorical).cast(pl.String))


def _by_collective(trace: Trace) -> Trace:
    """Return a run in which kernels of collectives are named by their operation."""
    name = pl.when(pl.col("kind") == "collective").then(
        pl.col("collective").cast(pl.String).fill_null("unknown")
    )
    ops = trace["ops"].with_columns(name=name.otherwise(pl.lit("")).cast(pl.Categorical()))
    return Trace({**trace.tables, "ops": ops}, trace.warnings)


def _api(trace: Trace, *, whole: bool) -> pl.DataFrame:
    calls = trace["calls"].select("process", "start", "end", api=pl.col("name").cast(pl.String))
    return _of_host(trace, calls.collect(), "api", whole=whole)


def _mpi(trace: Trace, *, whole: bool) -> pl.DataFrame:
    does = pl.col("does").is_in(["collective", "starts_collective"])
    calls = mpi_calls(trace).filter(does).select("process", "start", "end", collective="name")
    return _of_host(trace, calls, "collective", whole=whole)


def _of_host(trace: Trace, calls: pl.DataFrame, key: str, *, whole: bool) -> pl.DataFrame:
    """Add up the calls of each iteration: those that begin while it lasts on the host."""
    if whole:
        found = calls.with_columns(iteration=pl.lit(None, pl.Int64))
    else:
        iterations = trace.read("iterations").sort("start")
        found = calls.sort("start").join_asof(
            iterations.select("process", "iteration", begin="start", until="end"),
            left_on="start", right_on="begin", by="process", check_sortedness=False,
        ).filter(pl.col("start") < pl.col("until"))  # fmt: skip
    return found.group_by(key, "iteration").agg(
        pl.len().cast(pl.Int64).alias("count"), _LENGTH.sum().alias("length_ns")
    ).select(key, "iteration", "count", "length_ns")  # fmt: skip


def _link(traffic: Traffic | None, *, whole: bool) -> pl.DataFrame:
    if traffic is None:
        raise UsageError("a comparison by link needs what each run moved", "give both `traffic`")
    rows = traffic.links("link" if whole else "link,iteration")
    iteration = pl.lit(None, pl.Int64) if whole else pl.col("iteration")
    return rows.select(
        "link", "src", "dst", "type", "evidence", iteration.alias("iteration"),
        count=pl.col("transfers").cast(pl.Int64), length_ns=pl.col("busy_ns").cast(pl.Int64),
        bytes="bytes",
    )  # fmt: skip


def peak_memory(trace: Trace) -> pl.DataFrame:
    """Return ``device, bytes``: the most in use at once of what was allocated; see `memory_use`."""
    allocated = memory_use(trace).filter(source="allocator")
    return allocated.select("device", bytes="peak_bytes")


# -- what steps are made of --------------------------------------------------------------------


def _parts(times: IterationTimes, *, whole: bool) -> tuple[pl.DataFrame, int]:
    windows = _as_one_step(times.windows) if whole else _of_steps(times.windows)
    inside = windows.filter(~pl.col("is_between"))
    exposed = times.stages.join(inside.select("window", "step"), on="window")
    stages = exposed.group_by("step", part=pl.col("stage").cast(pl.String)).agg(
        length_ns=pl.col("exposed_ns").sum()
    )
    busy = exposed.group_by("step").agg(busy=pl.col("exposed_ns").sum())
    lengths = windows.group_by("step").agg(
        inside=_LENGTH.filter(~pl.col("is_between")).sum(),
        between=_LENGTH.filter("is_between").sum(),
    )
    rest = (
        lengths.join(busy, on="step", how="left", nulls_equal=True)
        .select("step", "between", idle=pl.col("inside") - pl.col("busy").fill_null(0))
        .unpivot(index="step", variable_name="part", value_name="length_ns")
    )
    parts = pl.concat([stages, rest]).rename({"step": "iteration"})
    return parts, windows["device"].n_unique()


def _as_one_step(windows: pl.DataFrame) -> pl.DataFrame:
    return windows.with_columns(step=pl.lit(None, pl.Int64), is_between=False)


def _of_steps(windows: pl.DataFrame) -> pl.DataFrame:
    """Give each window the step it belongs to, and tell those that lie between iterations.

    A step takes until the next one begins, so the time after an iteration is its own; what lies
    before the first iteration and after the last one is no step's. A device that a process used in
    less than half of its iterations has no steps of its own: a stray context makes none.
    """
    number = pl.col("iteration")
    ordered = windows.sort(*_OWNER, "window").with_columns(
        step=number.forward_fill().over(_OWNER),
        later=number.backward_fill().over(_OWNER),
        used=number.count().over(_OWNER),
    )
    most = pl.col("used").max().over("process")
    return ordered.filter(
        pl.col("step").is_not_null() & pl.col("later").is_not_null() & (2 * pl.col("used") >= most)
    ).with_columns(is_between=number.is_null())
