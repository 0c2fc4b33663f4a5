"""How the clock of a GPU stands to that of the calls: early, late, or in order.

No op starts before the call that launches it, and a kernel that is launched while its GPU has
nothing to do starts a few microseconds later: 4 to 16 us in real traces. Both are seen only where
clocks differ by more than that, so that what is told is a bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from tracekit.attribution._chosen import CHOSEN
from tracekit.attribution._launches import Launches, chunks_of, first_numbers
from tracekit.attribution._loops import Array
from tracekit.model import Stream

_NS_PER_US = 1000
_WAITS = {"device": pl.Int32, "launches": pl.Int64, "least": pl.Int64}


def waits(ops: pl.DataFrame, launched: Array) -> pl.DataFrame:
    """Return of each device how many kernels were launched while it was idle, and the least wait.

    Parameters
    ----------
    ops
        ``device, kind, start, end`` of some ops, in order of start. The first one of a device is
        left out, for what ran before it is not known.
    launched
        When the calls began that launched them; long before all where that is not known.

    Returns
    -------
    ``device, launches, least``, the last in ns.
    """
    device, start, end = (ops[name].to_numpy() for name in ("device", "start", "end"))
    kernel = (ops["kind"] == "compute").to_numpy()
    rows = []
    for each in ops["device"].unique().to_list():
        own = np.flatnonzero(device == each)
        until = np.maximum.accumulate(end[own])[:-1]
        own = own[1:]
        own = own[(launched[own] > until) & kernel[own]]
        if own.size:
            rows.append((each, own.size, int((start[own] - launched[own]).min())))
    return pl.DataFrame(rows, schema=_WAITS, orient="row")


def late(parts: Sequence[pl.DataFrame]) -> tuple[str, ...]:
    """Say which GPUs' clocks are late, from what `waits` returned of all ops."""
    together = pl.concat([pl.DataFrame(schema=_WAITS), *parts]).group_by("device")
    found = together.agg(pl.col("launches").sum(), pl.col("least").min()).filter(
        pl.col("launches") >= CHOSEN.idle_launches, pl.col("least") >= CHOSEN.prompt_ns
    )
    return tuple(
        f"none of {launches:,} kernels that were launched while device {device} was idle starts "
        f"within {least / _NS_PER_US:,.3f} us of its call, where some microseconds are usual: the "
        "clock of the GPU is late by about so much, or something holds back every launch"
        for device, launches, least in found.sort("device").iter_rows()
    )


@dataclass(frozen=True)
class Lead:
    """By how much all GPUs of a report are early for the whole of it; 0 where that is not so.

    Parameters
    ----------
    by
        What sets their times right, ns.
    """

    by: int = 0

    def warning(self) -> tuple[str, ...]:
        """Say what was set right."""
        if not self.by:
            return ()
        told = (
            "ops start before the call that launched them, by as much throughout the recording:"
            f" {self.by / _NS_PER_US:,.1f} us were added to all times of GPU work, which are then"
            f" right to about {CHOSEN.lead_steady_ns / _NS_PER_US:,.0f} us"
        )
        return (told,)


def steady_lead(ops: Stream, calls: Stream, launches: Launches) -> Lead:
    """Tell whether the clock of all GPUs is early by one and the same time throughout.

    An op that the GPU is ready for starts some microseconds after its call. So where clocks differ
    by one offset, the largest lead of an op over its call is the same at any time and on any GPU.
    Parts of the time in which no GPU was ready for anything say nothing; if half of them do, or one
    GPU differs from another, nothing is concluded.
    """
    if not len(ops) or not _is_early(ops, calls, launches, 0):
        return Lead()
    chunks = [_leads(ops, calls, launches, number) for number in range(len(ops))]
    leads = pl.concat(chunks)
    first, last = leads.select(pl.col("start").min(), last=pl.col("start").max()).row(0)
    part = ((pl.col("start") - first) * CHOSEN.lead_parts // max(last - first + 1, 1)).alias("part")
    most = int(leads["lead"].max())  # type: ignore[arg-type]
    near = pl.col("lead") > most - CHOSEN.lead_steady_ns
    by_part = leads.group_by(part).agg(pl.col("lead").max())
    steady = by_part.filter(near)["part"]
    by_device = leads.group_by("device").agg(pl.col("lead").max())
    is_steady = (
        most > CHOSEN.lead_steady_ns
        and 2 * len(steady) >= CHOSEN.lead_parts
        and (steady < CHOSEN.lead_edge).any()
        and (steady >= CHOSEN.lead_parts - CHOSEN.lead_edge).any()
        and by_device.select(near.all()).item()
    )
    return Lead(most + CHOSEN.quickest_start_ns) if is_steady else Lead()


def _is_early(ops: Stream, calls: Stream, launches: Launches, number: int) -> bool:
    return bool((_leads(ops, calls, launches, number)["lead"] > 0).any())


def _leads(ops: Stream, calls: Stream, launches: Launches, number: int) -> pl.DataFrame:
    """Return ``device, start, lead`` of a chunk of ops whose calls are known."""
    of = launches.calls.read(number)["call"].to_numpy()
    first, begun = first_numbers(calls), np.zeros(of.size, np.int64)
    for chunk in chunks_of(of, first):
        own = np.flatnonzero((of >= first[chunk]) & (of < first[chunk + 1]))
        begun[own] = calls.read(chunk, "start")["start"].to_numpy()[of[own] - first[chunk]]
    rows = ops.read(number, "device", "start")
    leads = pl.Series(begun) - rows["start"]
    return rows.with_columns(lead=leads).filter(pl.Series(of >= 0))


def early(leads: Array) -> str:
    """Say how many ops start before their call, and by how much: by so much clocks differ."""
    if not leads.size:
        return ""
    low, middle, high = np.percentile(leads, (5, 50, 95)) / _NS_PER_US
    return (
        f"{leads.size:,} ops start before the call that launched them, by a median of "
        f"{middle:,.3f} us (5 to 95 %: {low:,.3f} to {high:,.3f} us): the clock of the GPU is at "
        "least so much early"
    )
