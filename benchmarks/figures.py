"""From what processes cost, round by round, to figures. Ratios are taken within a round."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from measures import Round

COMPARISONS = {
    "nvtx_kern_sum / (ingest + by range)": (("nsys nvtx_kern_sum",), ("ingest", "by range")),
    "nvtx_gpu_proj_sum / (ingest + by stage)": (
        ("nsys nvtx_gpu_proj_sum",),
        ("ingest", "by stage"),
    ),
    "cuda_gpu_kern_sum / by kernel": (("nsys cuda_gpu_kern_sum",), ("by kernel",)),
}
"""Measures whose times are added up and divided, by name."""

BEYOND = "by stage beyond start"
"""What a query takes beyond what the same query takes of a run of a few kernels."""


def measured(first: Round, rounds: Sequence[Round]) -> dict[str, dict[str, Any]]:
    """Return figures by measure: of those of the first round, which ran once, and of the others."""
    names = list(dict.fromkeys(name for costs in rounds for name in costs))
    after = {name: summary(name, rounds, "sql_max") for name in names}
    once = {name: summary(name, [first], "sql_max") for name in first if name not in after}
    beyond = _beyond(rounds, "by stage", "by stage, small run")
    nsys = {name: after.pop(name) for name in names if name.startswith("nsys")}
    return {**after, BEYOND: beyond, **once, **nsys}


def summary(name: str, rounds: Sequence[Round], yardstick: str) -> dict[str, Any]:
    """Return the medians of a measure over the rounds that have it."""
    pairs = [(costs[name], costs[yardstick]) for costs in rounds if name in costs]
    walls = [cost.wall_s for cost, _ in pairs]
    return {
        "wall_s": median(walls),
        "cpu_s": median(cost.cpu_s for cost, _ in pairs),
        "peak_bytes": max(cost.peak_bytes for cost, _ in pairs),
        "ratio": median(cost.wall_s / yard.wall_s for cost, yard in pairs),
        "ended": all(cost.ended for cost, _ in pairs),
        "all_wall_s": walls,
    }


def _beyond(rounds: Sequence[Round], name: str, start: str) -> dict[str, Any]:
    walls = [costs[name].wall_s - costs[start].wall_s for costs in rounds]
    yards = [costs["sql_max"].wall_s for costs in rounds]
    return {
        "wall_s": median(walls),
        "peak_bytes": None,
        "ratio": median(wall / yard for wall, yard in zip(walls, yards, strict=True)),
        "ended": True,
        "all_wall_s": walls,
    }


def compared(
    rounds: Sequence[Round], comparisons: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield how many times faster one thing is than another, by the name of the comparison.

    Where the other one did not come to its end it is at least so many times.
    """
    for name, (over, under) in comparisons.items():
        having = [costs for costs in rounds if {*over, *under} <= set(costs)]
        if having:
            times = median(_seconds(costs, over) / _seconds(costs, under) for costs in having)
            ended = all(costs[each].ended for costs in having for each in over)
            yield name, {"times": times, "ended": ended}


def _seconds(costs: Round, names: tuple[str, ...]) -> float:
    return sum(costs[name].wall_s for name in names)
