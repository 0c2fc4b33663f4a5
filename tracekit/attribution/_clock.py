"""Detect a GPU clock that is ahead of, or behind, the clock of API calls.

No op starts before the call that launches it, and a kernel launched on an idle GPU starts 4 to 16
us after its call in real traces. A wait of the host returns after the work it waits for has ended.
Where a recording violates one of these rules, the amount gives the clock offset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from tracekit.attribution._arrays import Array, Idle, OpRows
from tracekit.attribution._launch_loops import NEVER, note_idle
from tracekit.attribution._launches import Launches, call_column
from tracekit.attribution._thresholds import THRESHOLDS
from tracekit.model import KINDS, Stream
from tracekit.support.compiled import compiled, given

_NS_PER_US = 1000
_WAITS = {"device": pl.Int32, "launches": pl.Int64, "least": pl.Int64}


def waits(ops: pl.DataFrame, launched: Array) -> pl.DataFrame:
    """Count, per device, kernels launched while the device was idle; return their least delay.

    Parameters
    ----------
    ops
        ``device, kind, start, end`` of ops in order of start. The first op of each device is left
        out, since it is not known what ran before.
    launched
        Start of the launching call of each op, ns; a very early time if it is not known.

    Returns
    -------
    ``device, launches, least``; `least` is the shortest time from call to kernel start, ns.
    """
    device, start, end = (given(ops[name]) for name in ("device", "start", "end"))
    kernel = given(ops["kind"].to_physical()) == KINDS.index("compute")
    devices, place = _placed(device)
    idle = Idle(np.zeros(devices.size, np.int64), *np.full((2, devices.size), NEVER))
    compiled(note_idle, device.size)(OpRows(place, start, end, kernel, launched), idle)
    found = np.flatnonzero(idle.launches)
    return pl.DataFrame(
        {"device": devices[found], "launches": idle.launches[found], "least": idle.least[found]},
        _WAITS,
    )


def _placed(device: Array) -> tuple[Array, Array]:
    """Return the distinct devices, and for each op the index of its device in that list."""
    most = int(device.max(initial=0))
    if most < _FEW and device.min(initial=0) >= 0:
        return np.arange(most + 1), device
    devices = np.unique(device)  # a trace may number its devices as it likes
    return devices, np.searchsorted(devices, device).astype(np.int32)


_FEW = 1 << 10
"""Numbers of devices below this make a short table."""


def late(parts: Sequence[pl.DataFrame], slack: Mapping[int, int]) -> tuple[str, ...]:
    """Return warnings on GPUs where even kernels launched while idle start late after their calls.

    Either the GPU's clock is ahead (its times are too large), or something delays every launch.

    Parameters
    ----------
    parts
        The tables that `waits` returned for all chunks of ops.
    slack
        Device -> least time, ns, from the end of GPU work to the return of the host call that
        waited for this work; negative if waits seem to return too early, so that the GPU clock is
        ahead. Devices without such waits are absent.
    """
    together = pl.concat([pl.DataFrame(schema=_WAITS), *parts])
    if together["launches"].sum() < THRESHOLDS.idle_launches:
        return ()
    by_device = together.group_by("device")
    found = by_device.agg(pl.col("launches").sum(), pl.col("least").min()).filter(
        pl.col("launches") >= THRESHOLDS.idle_launches, pl.col("least") >= THRESHOLDS.prompt_ns
    )
    return tuple(
        f"none of {launches:,} kernels that were launched while device {device} was idle starts "
        f"within {least / _NS_PER_US:,.3f} us of its call, where some microseconds are usual: "
        f"{_held_or_late(slack.get(device))}"
        for device, launches, least in found.sort("device").iter_rows()
    )


def _held_or_late(slack: int | None) -> str:
    """Return a clause: whether the GPU's clock is ahead, or its launches are delayed.

    `slack` is the least time, ns, from the end of GPU work to the return of the host call that
    waited for it; None if unknown.
    """
    if slack is None:
        return "the clock of the GPU is ahead by about so much, or something delays every launch"
    if slack < -THRESHOLDS.lead_steady_ns:
        return (
            f"the clock of the GPU is ahead by {-slack / _NS_PER_US:,.3f} us at least, for a wait "
            "for its work returns so long before that ends"
        )
    return (
        "something delays every launch, for the clock of the GPU is ahead by no more than "
        f"{max(slack, 0) / _NS_PER_US:,.3f} us: a wait for its work returns so soon after that ends"
    )


@dataclass(frozen=True)
class Offset:
    """Constant offset of a recording's GPU clocks against the clock of calls; 0 if none."""

    by: int = 0
    """Correction to add to GPU times, ns; positive if the GPU clock is behind."""
    slack: Mapping[int, int] = field(default_factory=dict)
    """Device -> least time, ns, from the end of GPU work to the return of the host call that waited
    for it, after the correction; only devices whose clock may be ahead."""

    def warning(self) -> tuple[str, ...]:
        """Describe the correction in a sentence; empty if there is none."""
        if not self.by:
            return ()
        seen, done = (
            ("ops start before the call that launched them", "added to")
            if self.by > 0
            else ("waits return before the GPU work that they wait for has ended", "taken off")
        )
        sentence = (
            f"{seen}, by as much throughout the recording:"
            f" {abs(self.by) / _NS_PER_US:,.1f} us were {done} all times of GPU work, which are"
            f" then right to about {THRESHOLDS.lead_steady_ns / _NS_PER_US:,.0f} us"
        )
        return (sentence,)


def steady_offset(
    ops: Stream, calls: Stream, launches: Launches, syncs: Iterable[pl.DataFrame]
) -> Offset:
    """Return the constant offset of all GPU clocks against the clock of calls; 0 if there is none.

    An op launched on an idle GPU starts some microseconds after its call. If the clocks differ by a
    constant, the largest lead (start of the call minus start of the op) is therefore the same at
    any time and on any GPU: above 0 if the GPU clock is behind (its times are too small), far below
    0 if it is ahead. The recording is cut into parts; parts without an op launched on an idle GPU
    are ignored. If half of the parts are ignored, or GPUs differ, no offset is assumed.

    Something that delays every launch also makes the lead negative, but then host waits still
    return after the GPU work has ended. So the clock counts as ahead only if on each GPU, near both
    the start and the end of the recording, waits return before the work ends, by about the size of
    the lead.

    Parameters
    ----------
    ops, calls, launches
        The ops, the calls, and the launching call of each op.
    syncs
        Chunks of the canonical table ``syncs``; read only if the GPU clock may be ahead.
    """
    most = _leads(ops, calls, launches, 0)["lead"].max() if len(ops) else None
    # What the first chunk shows is asked of all of them only where it shows something.
    if not isinstance(most, int) or -THRESHOLDS.least_lag_ns <= most <= 0:
        return Offset()
    leads = pl.concat([_leads(ops, calls, launches, number) for number in range(len(ops))])
    lead = _steady_lead(leads)
    if most > 0:
        is_early = lead > THRESHOLDS.lead_steady_ns
        return Offset(lead + THRESHOLDS.quickest_start_ns) if is_early else Offset()
    returns = find_returns(ops, calls, launches, syncs)
    is_late = lead < -THRESHOLDS.least_lag_ns and _return_early(returns, leads, -lead)
    by = lead + THRESHOLDS.quickest_start_ns if is_late else 0
    return Offset(by, {device: slack - by for device, slack in least_slack(returns).items()})


def _steady_lead(leads: pl.DataFrame) -> int:
    """Return the largest lead (call start minus op start), ns; 0 if it is not steady.

    It is steady if at least half of the parts of the recording, and each GPU, have an op with
    nearly this lead.
    """
    part = _parts(leads["start"], leads)
    most = int(leads["lead"].max())  # type: ignore[arg-type]
    near = pl.col("lead") > most - THRESHOLDS.lead_steady_ns
    steady = np.unique(part[leads.select(near).to_series().to_numpy()])
    by_device = leads.group_by("device").agg(pl.col("lead").max())
    holds = 2 * steady.size >= THRESHOLDS.lead_parts and _at_both_ends(steady)
    return most if holds and by_device.select(near.all()).item() else 0


def _return_early(returns: pl.DataFrame, leads: pl.DataFrame, lag: int) -> bool:
    """Test whether host waits return as long before their GPU work ends as ops start late.

    `lag` is the time, ns, by which the GPU clock is ahead. Waits have times of the host clock, and
    `leads` of the GPU clock, so `lag` is added to find the part of the recording in which a wait
    lies.
    """
    early = returns.filter(pl.col("slack") < -THRESHOLDS.lead_steady_ns)
    least = least_slack(early)
    devices = leads["device"].unique().to_list()
    part = _parts(early["start"] + lag, leads)
    return (
        early.height >= THRESHOLDS.early_returns
        and _at_both_ends(part)
        and set(devices) <= least.keys()
        and all(abs(lag + least[device]) < THRESHOLDS.bounds_apart_ns for device in devices)
    )


def _parts(times: pl.Series, leads: pl.DataFrame) -> Array:
    """Return for each time (ns) in which part of the recording it lies.

    The parts, numbered from 0, divide the time from the first to the last op of `leads` equally.
    """
    first, last = leads.select(pl.col("start").min(), last=pl.col("start").max()).row(0)
    part = (times.to_numpy() - first) * THRESHOLDS.lead_parts // max(last - first + 1, 1)
    return np.asarray(np.clip(part, 0, THRESHOLDS.lead_parts - 1))


def _at_both_ends(parts: Array) -> bool:
    """Test whether `parts` (numbers of equal divisions) has some near each end of the recording."""
    edge = THRESHOLDS.lead_edge
    return bool((parts < edge).any() and (parts >= THRESHOLDS.lead_parts - edge).any())


def _leads(ops: Stream, calls: Stream, launches: Launches, number: int) -> pl.DataFrame:
    """Return ``device, start, lead`` of chunk `number` of ops: call start minus op start, ns."""
    begun, known = call_column("start", launches, calls, number)
    rows = ops.read(number, "device", "start")
    leads = pl.Series(begun) - rows["start"]
    return rows.with_columns(lead=leads).filter(pl.Series(known))


def early(leads: Array) -> str:
    """Return a warning with the number of ops that start before their launching call.

    The warning also has the median and the 5th and 95th percentile of these times. It is empty if
    there are no such ops.

    Parameters
    ----------
    leads
        Time by which each op starts before its call, ns.
    """
    if not leads.size:
        return ""
    low, middle, high = np.percentile(leads, (5, 50, 95)) / _NS_PER_US
    return (
        f"{leads.size:,} ops start before the call that launched them, by a median of "
        f"{middle:,.3f} us (5 to 95 %: {low:,.3f} to {high:,.3f} us): the clock of the GPU is "
        "behind by at least so much"
    )


_OF = {"context": ("process", "context"), "stream": ("process", "context", "stream")}
"""Type of a wait -> the columns that identify the work it waits for."""
_SCHEMA = {"device": pl.Int32, "start": pl.Int64, "end": pl.Int64, "slack": pl.Int64}


def find_returns(
    ops: Stream, calls: Stream, launches: Launches, syncs: Iterable[pl.DataFrame]
) -> pl.DataFrame:
    """Return for each host wait the time from the end of its GPU work to its return.

    A wait for a stream or a context returns after the end of all ops there whose launching calls
    had returned when the wait began. If the clocks agree, the result is never negative.

    Parameters
    ----------
    ops, calls, launches
        The ops, the calls, and the launching call of each op.
    syncs
        Chunks of the canonical table ``syncs``.

    Returns
    -------
    ``device, start, end, slack``, one row per wait that had work to wait for: start and end of the
    wait, and time from the end of the work to the return of the wait, ns.
    """
    numbers = range(len(ops))
    return _slacks(
        _of_host(syncs), lambda: (_ended(ops, number, calls, launches) for number in numbers)
    )


def _slacks(waits: pl.DataFrame, ended: Callable[[], Iterable[pl.DataFrame]]) -> pl.DataFrame:
    """Return ``device, start, end, slack`` of host waits.

    ``slack`` is the time, ns, from the end of the GPU work that a wait waits for to its return.
    `ended` yields chunks of ops with the ends of their launching calls. If `waits` has a column
    ``device``, only work of that GPU counts.
    """
    of_gpu = [name for name in waits.columns if name == "device"]
    found = [pl.DataFrame(schema=_SCHEMA)]
    for name, by in _OF.items() if waits.height else ():
        of_type = waits.filter(pl.col("type") == name).with_row_index("wait")
        keys = (*by, *of_gpu)
        parts = [_last_ends(of_type, rows, keys) for rows in ended()] if of_type.height else []
        if parts:
            # Of several chunks the last end of all counts, and the device of it.
            last = pl.concat(parts).sort("until").unique("wait", keep="last")
            slack = (pl.col("end") - pl.col("until")).alias("slack")
            found.append(of_type.join(last, on="wait").select("device", "start", "end", slack))
    return pl.concat(found).sort("start")


def _of_host(syncs: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """Return the host's waits for a stream or a context, ordered by start."""
    kind = pl.col("type").cast(pl.String)
    columns = ("process", "context", "stream", "start", "end")
    return pl.concat(
        [pl.DataFrame(schema={"type": pl.String, **dict.fromkeys(columns, pl.Int64)})]
        + [part.filter(kind.is_in(list(_OF))).select(kind, *_integers(columns)) for part in syncs]
    ).sort("start")


def _integers(columns: Iterable[str]) -> list[pl.Expr]:
    return [pl.col(name).cast(pl.Int64) for name in columns]


def _ended(ops: Stream, number: int, calls: Stream, launches: Launches) -> pl.DataFrame:
    """Return the ops of chunk `number`, with the ends of their launching calls."""
    returned, known = call_column("end", launches, calls, number)
    rows = ops.read(number, "process", "context", "stream", "device", "end")
    keys = _integers(("process", "context", "stream"))
    return (
        rows.select("device", *keys, until="end")
        .with_columns(returned=pl.Series(returned))
        .filter(pl.Series(known))
        .sort("returned")
    )


def _last_ends(waits: pl.DataFrame, ended: pl.DataFrame, by: tuple[str, ...]) -> pl.DataFrame:
    """Return ``wait, device, until``: end, ns, of the last op of a chunk that each wait waits for.

    `ended` has the chunk's ops with the ends of their launching calls; `by` names the columns
    that identify what is waited for: a stream, or a context.
    """
    last = ended.drop_nulls(by).with_columns(pl.col("until").cum_max().over(by))
    return (
        waits.join_asof(
            last, left_on="start", right_on="returned", by=list(by), check_sortedness=False
        )
        .filter(pl.col("until").is_not_null())
        .select("wait", pl.col("device").cast(pl.Int32), "until")
    )


def least_slack(returns: pl.DataFrame) -> dict[int, int]:
    """Return per device the least time, ns, from the end of GPU work to a wait's return."""
    least = returns.group_by("device").agg(pl.col("slack").min())
    return dict(least.iter_rows())


_LONG = 1 << 62
_PART = 32
"""Number of ops of a device of which the least delay is noted, which limits memory: 16 or 64 tell
the same jumps in real traces."""


class Jumps:
    """Finds GPU clocks that jump ahead within the recording: the jump looks like idle time.

    After the jump all GPU times are too large. Host waits and synchronous copies then seem to
    return before their GPU work has ended, and every op seems to start at least that much later
    than its launch. Before the jump, waits and ops show neither.
    """

    def __init__(self, syncs: Iterable[pl.DataFrame]) -> None:
        self._waits = _of_host(syncs)
        self._least = [pl.DataFrame(schema=_LEAST)]
        self._quickest: dict[int, int] = {}
        self._early = pl.DataFrame(schema=_SCHEMA)

    def add(self, ops: pl.DataFrame) -> None:
        """Note least launch delays, and waits that seem to end early, in a chunk of ops.

        The ops are ordered by start.
        """
        delay = pl.col("start") - pl.col("launch_start")
        delays = ops.select("device", "start", delay=delay).drop_nulls()
        since = {}
        for (device,), gpu in delays.partition_by("device", as_dict=True).items():
            least = _least_of(gpu)
            self._least.append(least)
            quickest = min(self._quickest.get(device, _LONG), int(gpu["delay"].to_numpy().min()))
            self._quickest[device] = quickest
            prompt = least["since"].filter(least["delay"] <= quickest + THRESHOLDS.prompt_ns)
            since[device] = int(prompt.to_numpy().max(initial=-_LONG))
        # No clock has jumped before the last op that starts promptly.
        again = [device for device, start in since.items() if start > -_LONG]
        after = pl.col("device").replace_strict(since, default=None, return_dtype=pl.Int64)
        late = ops.filter(pl.col("start") > after).drop_nulls("launch_end")
        before = self._early.filter(~pl.col("device").is_in(again))
        self._early = pl.concat([before, *(self._early_returns(late) if late.height else ())])

    def warnings(self, _: pl.DataFrame) -> Iterator[str]:
        """Yield warnings on devices whose clock has jumped ahead, with bounds of the jump."""
        early = self._early
        if early.is_empty():
            return
        begins = early.group_by("device").agg(
            pl.min("end"), at=pl.min("start"), least=-pl.min("slack"), waits=pl.len()
        )
        delay, is_after = pl.col("delay"), pl.col("since") > pl.col("at") + pl.col("least")
        found = pl.concat(self._least).join(begins, on="device").group_by("device").agg(
            (pl.col("end").first() - pl.col("since").min()).alias("after"),
            pl.col("least", "waits").first(),
            before=delay.filter(~is_after).min(),
            most=delay.filter(is_after).min(),
        )  # fmt: skip
        jumped = found.filter(
            pl.col("waits") >= THRESHOLDS.jump_returns, 2 * pl.col("before") < pl.col("least"),
            pl.col("most") + THRESHOLDS.lead_steady_ns > pl.col("least"),
        )  # fmt: skip
        for device, after, least, waits, _, most in jumped.sort("device").iter_rows():
            yield (
                f"the clock of device {device} seems to jump ahead {after / 1e6:,.3f} ms after "
                f"its first op at the latest: {waits:,} waits from then on return up to "
                f"{least / 1e6:,.3f} ms before the end of their work, and all ops start "
                f"{most / 1e6:,.3f} ms or more after their calls; the jump counts as idle time"
            )

    def _early_returns(self, ops: pl.DataFrame) -> Iterator[pl.DataFrame]:
        """Yield ``device, start, end, slack`` of waits that return before their GPU work ends.

        ``slack`` is the time from the end of the work to the return, ns. Copies to pageable memory
        count as waits.
        """
        waits = pl.col("host_memory").cast(pl.String) == "pageable"
        copies = ops.filter(pl.col("kind").cast(pl.String) == "d2h", waits).select(
            "device", start="launch_start", end="launch_end",
            slack=pl.col("launch_end") - pl.col("end"),
        )  # fmt: skip
        is_early = pl.col("slack") < -THRESHOLDS.prompt_ns // 2
        yield copies.filter(is_early)
        if self._waits.height:
            keys = _integers(("process", "context", "stream"))
            launched = ops.sort("launch_end")
            rows = launched.select("device", *keys, until="end", returned="launch_end")
            worked = rows.group_by("device").agg(pl.min("returned"), pl.max("until"))
            start = pl.col("start")
            within = (start >= pl.col("returned")) & (start <= pl.col("until"))
            waits_of = self._waits.join_where(worked, within).drop("returned", "until")
            yield _slacks(waits_of.sort("start"), lambda: [rows]).filter(is_early)


_LEAST = {"device": pl.Int32, "since": pl.Int64, "delay": pl.Int64}


def _least_of(delays: pl.DataFrame) -> pl.DataFrame:
    """Return ``device, since, delay``: the least delay from call to op, ns, in each block of ops.

    `delays` has ``device, start, delay`` of one device's ops by start; a block is a fixed number of
    successive ops, and ``since`` the start of its first op.
    """
    begins = np.arange(0, delays.height, _PART)
    least = np.minimum.reduceat(delays["delay"].to_numpy(), begins) if begins.size else begins
    return delays[begins].select("device", since="start", delay=pl.Series(least))
