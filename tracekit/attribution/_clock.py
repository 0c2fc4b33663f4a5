"""How the clock of a GPU stands to that of the calls: early, late, or in order.

No op starts before the call that launches it, and a kernel that is launched while its GPU has
nothing to do starts a few microseconds later: 4 to 16 us in real traces. Both are seen only where
clocks differ by more than that, so that what is told is a bound.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from tracekit.attribution._loops import Array

_PROMPT = 100_000
"""A clock is told to be late if no launch on an idle GPU takes less, ns."""
_ENOUGH = 100
"""So many launches on an idle GPU must agree."""
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
        pl.col("launches") >= _ENOUGH, pl.col("least") >= _PROMPT
    )
    return tuple(
        f"none of {launches:,} kernels that were launched while device {device} was idle starts "
        f"within {least / _NS_PER_US:,.3f} us of its call, where some microseconds are usual: the "
        "clock of the GPU is late by about so much, or something holds back every launch"
        for device, launches, least in found.sort("device").iter_rows()
    )


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
