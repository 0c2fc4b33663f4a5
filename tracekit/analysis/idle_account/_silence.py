"""Stretches of idle time in which nothing of any kind was recorded."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import polars as pl

from tracekit.analysis.idle_account._idle_pieces import idle_pieces, idle_windows
from tracekit.analysis.idle_account._timeline import overlapping
from tracekit.engine import cut
from tracekit.support.wording import count, percent, time_text

if TYPE_CHECKING:
    from tracekit.model import Frames, Trace

_TIMES = dict.fromkeys(("ops", "calls", "ranges", "host", "syncs"), ("start", "end")) | {
    "metrics": ("time",), "memory": ("time",),
}  # fmt: skip
"""Tables of what is recorded, with their columns of times."""
_OPEN = ("calls", "host", "syncs")
"""Tables whose rows are recorded as long as they last."""
_LONG_NS = 1_000_000
_EXAMINED = 8
"""Number of longest gaps that are examined."""
_SAID = 0.1
"""Least share of idle time that a warning names."""
_LENGTH = pl.col("end") - pl.col("start")


def doubt_of_silence(trace: Trace) -> list[str]:
    """Return a warning if the longest waits of GPUs for the host may be pauses of the recording.

    In a silent stretch nothing begins or ends, in no table, and no call or host event is open.
    """
    each = trace.parts(with_paths=True)
    parts = trace.sums_of_parts([partial(_of_part, part) for part in each])
    stretches = pl.concat(part["silent"] for part in parts)
    silent = int((stretches["ns"] * stretches["gpus"]).sum())
    idle = int(pl.concat(part["idle"] for part in parts)["ns"].sum())
    if silent <= _SAID * idle:
        return []
    text = (
        f"nothing of any kind was recorded in {count(stretches.height, 'stretch')} of the longest "
        f"waits for the host, {time_text(silent)} in all ({percent(silent / idle)} of idle time): "
        "whether the host was busy or the recording paused there is unknown"
    )
    return [text]


def _of_part(trace: Trace) -> Frames:
    """Return silent stretches (``ns``, and number of ``gpus`` idle in each) and idle time, ns.

    There is none to report, and no table is read, if all long waits are too short for a warning.
    """
    windows = idle_windows(trace, skip=0, per_iteration=False)
    pieces = cut(idle_pieces(trace, windows).pieces, windows)
    of_host = pieces.filter(pl.col("cause").is_in(["host_delay", "between_steps"]))
    waits = of_host.select("start", "end").filter(_LENGTH >= _LONG_NS)
    idle = pieces.select(ns=_LENGTH.sum())
    is_much = waits.select(_LENGTH.sum()).item() > _SAID * idle.item()
    longest = waits.unique().sort(-_LENGTH, "start").head(_EXAMINED if is_much else 0)
    silent = _silent(trace, longest)
    within = (pl.col("start") >= pl.col("start_right")) & (pl.col("end") <= pl.col("end_right"))
    idling = silent.join(waits, how="cross").filter(within)
    return {
        "silent": idling.group_by("start", "end").agg(gpus=pl.len()).select("gpus", ns=_LENGTH),
        "idle": idle,
    }


def _silent(trace: Trace, waits: pl.DataFrame) -> pl.DataFrame:
    """Return ``start, end`` (ns) of silences of 1 ms or more that take half of one of `waits`."""
    if waits.is_empty():
        return waits
    inside = pl.any_horizontal(pl.col("time").is_between(*each) for each in waits.rows())
    marks = pl.concat(
        trace[name].select(time=column).filter(inside)
        for name, columns in _TIMES.items()
        for column in columns
    )
    edges = waits.unpivot(["start", "end"], value_name="time").select("time")
    times = pl.concat([marks.collect(), edges])["time"].unique().sort()
    wait = waits.sort("start").with_columns(half=_LENGTH // 2, until="end").drop("end")
    found = pl.DataFrame({"start": times[:-1], "end": times[1:]}).join_asof(wait, on="start")
    is_in = pl.col("end") <= pl.col("until")
    found = found.filter(_LENGTH >= _LONG_NS, pl.col("half") <= _LENGTH, is_in)
    for name in _OPEN:
        if found.is_empty():
            break
        is_near = pl.col("start") < found["end"].max(), pl.col("end") > found["start"].min()
        lasting = trace[name].filter(_LENGTH >= _LONG_NS, *is_near).select("start", "end").collect()
        found = found.filter(~overlapping(found, lasting))
    return found
