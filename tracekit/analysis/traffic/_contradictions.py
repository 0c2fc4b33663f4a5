"""Contradictions between measured traffic and the machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import polars as pl

from tracekit.analysis.traffic._routes import with_routes

if TYPE_CHECKING:
    from tracekit.machine import Machine

_OVER = 1.05
"""Clocks of GPUs and peaks are known no better than to some percent."""
_ALIKE = ["src_device", "dst_device", "route", "route_bandwidth"]


def contradictions(
    transfers: pl.DataFrame, machine: Machine, place: Mapping[int, int]
) -> tuple[str, ...]:
    """Return copies that this machine cannot have made, one sentence a pair of GPUs.

    That is: copies between two GPUs that are faster than the narrowest link of their route by more
    than 5 %, and copies from GPU to GPU where the machine has no way between these.

    Parameters
    ----------
    transfers
        As in the table `TRANSFERS`.
    machine
        The machine.
    place
        Which GPU of the machine each device of the run is.
    """
    copies = transfers.filter(
        pl.col("method").is_in(["p2p", "two_hop"]), pl.col("evidence") == "measured"
    ).drop_nulls(["src_device", "dst_device"])
    routed = with_routes(copies, machine, place)
    return (*_too_fast(routed), *_nowhere(routed, machine))


def _too_fast(routed: pl.DataFrame) -> list[str]:
    """Bytes per ns are GB/s."""
    speed = pl.col("bytes") / (pl.col("end") - pl.col("start"))
    peak = pl.col("route_bandwidth") / 1e9
    direct = routed.filter(pl.col("method") == "p2p", pl.col("end") > pl.col("start"))
    timed = direct.with_columns(speed=speed, peak=peak).drop_nulls(["speed", "peak"])
    pairs = (
        timed.group_by(_ALIKE)
        .agg(
            pl.len(), pl.col("peak").first(),
            over=(pl.col("speed") > pl.col("peak") * _OVER).sum(), fastest=pl.col("speed").max(),
        )
        .filter(pl.col("over") > 0)
        .sort(_ALIKE)
    )  # fmt: skip
    return [
        f"{row['over']:,} of {row['len']:,} copies from device {row['src_device']} to"
        f" {row['dst_device']} are faster than {row['route']} can be ({row['fastest']:.1f} GB/s of"
        f" {row['peak']:.1f} GB/s): they took another way, or the machine is another one"
        for row in pairs.to_dicts()
    ]


def _nowhere(routed: pl.DataFrame, machine: Machine) -> list[str]:
    if not machine.tells_peers:
        return []
    pairs = routed.filter(pl.col("route").is_null()).group_by("src_device", "dst_device").len()
    return [
        f"{number:,} copies went from device {src} to {dst}, between which the machine has no way"
        for src, dst, number in pairs.sort("src_device", "dst_device").iter_rows()
    ]
