"""The lanes of a step: NVTX ranges, the critical path, ops by stream, idle time, and links."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from tracekit.analysis import closeup
from tracekit.analysis.dependencies import path_spans
from tracekit.errors import MissingDataError, UsageError
from tracekit.model import STAGES, Trace
from tracekit.present import CAUSE_COLOURS, PATH_COLOURS
from tracekit.report._subject import Close

_COMMUNICATION = ("collective", "p2p", "staged")
_NO_STAGE = "idle"
_PATH_CAUSES = ("host", "latency")
_WORKS = ("gpu", "comm")
LOOKS = (*STAGES, _NO_STAGE, *CAUSE_COLOURS, *_PATH_CAUSES)
"""What the script tells the colours of spans by: stages, causes of idle time and of paths."""
COLOURS = {**CAUSE_COLOURS, **{cause: PATH_COLOURS[cause] for cause in _PATH_CAUSES}}
"""Colours of those that are no stage."""
_DEEPEST = 5
_DEEP_OF_MANY = 2
MOST_OPS = 20_000
"""Maximum number of ops drawn of a step."""
_MOST_RANGES = 5_000
_MOST_LINKS = 16
_NUMBERS = {"delay": "delay_ns", "bytes": "bytes", "threads": "threads"}
"""What of an op the script reads as numbers, by its names of them."""
_UNKNOWN = -1
"""What the script reads as null."""
_FIRST, _LAST = -1, 1 << 31
"""Lanes of no process come before all others, or after them."""


@dataclass
class Names:
    """The names of all ops and ranges, calls and layers, each once."""

    numbers: dict[str, int] = field(default_factory=dict)

    def of(self, names: pl.Series) -> list[int]:
        return [
            _UNKNOWN if name is None else self.numbers.setdefault(name, len(self.numbers))
            for name in names
        ]


def with_zeros(spans: pl.DataFrame) -> pl.DataFrame:
    """Return spans with the time at which the chart begins on their clock."""
    return spans.join(spans.group_by("clock").agg(zero=pl.col("start").min()), on="clock")


def view_of(
    close: Close, step: int | None, spans: pl.DataFrame, names: Names, most: int = MOST_OPS,
    *, is_alone: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """Return the lanes of a step, with times from where it begins on each clock.

    Parameters
    ----------
    close
        The run.
    step, spans
        Its number, and the time that the lanes are of.
    names
        The names of the chart.
    most
        How many ops are shown.
    is_alone
        Whether the critical path and links are wanted, too.
    """
    if spans.is_empty():
        return {"span": 1, "step": step, "ops": 0, "lost": {}, "ranges": 0, "lanes": []}
    trace, placed = close.run.trace, with_zeros(spans)
    found = closeup.ops_inside(trace, spans.drop_nulls("device"), reaching=True)
    ops, is_followed = found.head(most), is_alone and found.height <= MOST_OPS
    span = int(placed.select((pl.col("end") - pl.col("zero")).max()).item())
    gpus = placed.drop_nulls("device")
    zero_of = placed.select("process", "zero").unique("process")
    ranges, lost_ranges = _range_lanes(trace, placed, zero_of, names)
    links, lost_links = _link_lanes(close, placed, names) if is_alone else ([], 0)
    zero_on = gpus.select("device", "zero", "process").unique("device")
    lanes = [
        *(_path_lane(close, step, placed, names) if is_followed else ()),
        *ranges,
        *_op_lanes(trace, ops, zero_of, names),
        *_idle_lanes(trace, zero_on, gpus, names),
        *links,
    ]
    lost = {
        "ops": found.height - ops.height, "ranges": lost_ranges, "links": lost_links,
        "path": found.height if is_alone and not is_followed else 0,
    }  # fmt: skip
    return {
        "span": max(span, 1),
        "step": step,
        "ops": ops.height,
        "lost": lost,
        "ranges": len(ranges),
        "lanes": sorted(lanes, key=lambda lane: lane["process"]),
    }


def _op_lanes(
    trace: Trace, ops: pl.DataFrame, zeros: pl.DataFrame, names: Names
) -> Iterator[dict[str, Any]]:
    way = pl.format("{} → {}", "source", "destination")
    beside = closeup.details(trace, ops).with_columns(way=way)
    named = ops.with_columns(
        pl.col("name").cast(pl.String).fill_null("(no name)"),
        hatched=pl.col("kind").is_in(_COMMUNICATION),
        inside=beside["range"],
        **{name: beside[name] for name in ("launch", "layer", "way", "delay_ns", "threads")},
    ).join(zeros, on="process")
    seen: set[int] = set()
    keys = ["device", "process", "context", "stream"]
    for key, lane in named.sort(*keys, "start", nulls_last=True).group_by(
        keys, maintain_order=True
    ):
        device, _, _, stream = key
        number = "?" if stream is None else stream
        label = f"GPU {device} · stream {number}", f"GPU{device} s{number}"
        yield {
            **_lane(lane, label, names, is_first=device not in seen),
            "device": device,
            "kind": "ops",
            "told": {
                **{key: names.of(lane[key]) for key in ("launch", "inside", "layer", "way")},
                **{key: lane[name].fill_null(_UNKNOWN).to_list()
                   for key, name in _NUMBERS.items()},
            },
        }  # fmt: skip
        seen.add(device)


def _idle_lanes(
    trace: Trace, zeros: pl.DataFrame, spans: pl.DataFrame, names: Names
) -> Iterator[dict[str, Any]]:
    """Yield why nothing runs on each GPU."""
    if spans.is_empty():
        return
    found = closeup.idle_spans(trace, spans).join(zeros, on="device")
    named = found.with_columns(name="cause", stage="cause", hatched=pl.lit(value=False))
    for (device,), lane in named.sort("device", "start").group_by("device", maintain_order=True):
        label = f"GPU {device} · idle, why", f"GPU{device} idle"
        yield {**_lane(lane, label, names, is_first=False), "kind": "idle", "idle": device}


def _path_lane(
    close: Close, step: int | None, placed: pl.DataFrame, names: Names
) -> Iterator[dict[str, Any]]:
    """Yield what the step waited for, from its end back to its begin, where that is known."""
    steps = None if step is None else (step, step)
    try:
        close.run.require_memory("critical-path", iterations=steps)
        found = path_spans(close.run.of_steps(steps).trace, close.traffic, step)
    except (MissingDataError, UsageError):
        return
    zero, until = int(placed["zero"][0]), int(placed["end"].max() or 0)  # type: ignore[arg-type]
    works = pl.col("cause").is_in(_WORKS)
    inside = found.with_columns(
        pl.col("start").clip(zero), pl.col("end").clip(None, until),
        pl.coalesce("name", "cause").alias("name"), zero=pl.lit(zero), process=pl.lit(_FIRST),
        stage=pl.when(works).then(pl.col("stage").fill_null("OTHER")).otherwise("cause"),
        hatched=pl.lit(value=False),
    ).filter(pl.col("end") > pl.col("start"))  # fmt: skip
    if not inside.is_empty():
        label = "critical path", "path"
        yield {**_lane(inside, label, names, is_first=True), "kind": "path"}


def _link_lanes(
    close: Close, placed: pl.DataFrame, names: Names
) -> tuple[list[dict[str, Any]], int]:
    """Return lanes of links with known bytes, and the number of links left out."""
    windows = placed.group_by("process").agg(pl.col("zero").first(), until=pl.col("end").max())
    try:
        crossed = close.traffic.crossings
    except (MissingDataError, UsageError):
        return [], 0
    inside = crossed.drop_nulls("bytes").join(windows, on="process").filter(
        pl.col("start") < pl.col("until"), pl.col("end") > pl.col("zero")
    )  # fmt: skip
    way = ["src", "dst"]
    if inside.height > MOST_OPS:
        return [], inside.select(way).n_unique()
    sums = inside.group_by(way).agg(pl.col("bytes").sum()).sort("bytes", *way, descending=True)
    named = inside.join(sums.head(_MOST_LINKS).select(way), on=way).with_columns(
        name=pl.format("{}, {}", pl.coalesce("collective", pl.col("method").cast(pl.String)),
                       "evidence"),
        process=pl.lit(_LAST), hatched=pl.col("evidence") != "measured",
    )  # fmt: skip
    lanes: list[dict[str, Any]] = []
    for (src, dst), lane in named.sort(*way, "start").group_by(way, maintain_order=True):
        label = f"{src} → {dst}", f"{src}→{dst}"
        drawn = _lane(lane, label, names, is_first=not lanes)
        lanes.append({**drawn, "kind": "link", "bytes": lane["bytes"].to_list()})
    return lanes, max(sums.height - _MOST_LINKS, 0)


def _range_lanes(
    trace: Trace, placed: pl.DataFrame, zeros: pl.DataFrame, names: Names
) -> tuple[list[dict[str, Any]], int]:
    """Return the ranges of the threads that drive steps, a lane for each depth; and how many not.

    Of very many those inside others are left out.
    """
    whole = placed.group_by("process").agg(pl.col("start").min(), pl.col("end").max())
    ranges = closeup.ranges_inside(trace, whole)
    ranges = ranges.join(closeup.driving_threads(trace), on=["process", "thread"], how="semi")
    ranges = ranges.filter(pl.col("depth").fill_null(0) < _DEEPEST).join(
        whole.select("process", begin="start", until="end"), on="process"
    )
    shown = ranges.join(zeros, on="process").with_columns(
        pl.max_horizontal("start", "begin"),
        pl.min_horizontal("end", "until"),
        pl.col("name").fill_null("(no name)"),
        pl.col("depth").fill_null(0),
        hatched=pl.lit(value=False),
    )
    several = shown["process"].n_unique() > 1
    shown = shown.filter(pl.col("depth") < _DEEP_OF_MANY) if several else shown
    outer = shown.group_by("depth").len().sort("depth").with_columns(pl.col("len").cum_sum())
    fitting = outer.filter(pl.col("len") <= _MOST_RANGES).select("depth")
    lost, shown = shown.height, shown.join(fitting, on="depth", how="semi")
    lanes = []
    for (process, _, depth), lane in shown.sort("process", "thread", "depth", "start").group_by(
        ["process", "thread", "depth"], maintain_order=True
    ):
        of = f" of process {process}" if several else ""
        label = f"NVTX{of} · {depth + 1}", f"NVTX {depth + 1}"
        lanes.append({**_lane(lane, label, names, is_first=depth == 0), "kind": "range"})
    return lanes, lost - shown.height


def _lane(
    rows: pl.DataFrame, label: tuple[str, str], names: Names, *, is_first: bool
) -> dict[str, Any]:
    """Return a lane: starts as differences, which pack well, and all else by number."""
    start = rows["start"] - rows["zero"]
    stages = rows["stage"].cast(pl.String).fill_null(_NO_STAGE)
    lane: dict[str, Any] = {
        "process": rows["process"][0],
        "label": label[0],
        "brief": label[1],
        "is_first": is_first,
        "start": start.diff().fill_null(start.first()).to_list(),
        "length": (rows["end"] - rows["start"]).to_list(),
        "name": names.of(rows["name"]),
        "stage": [LOOKS.index(stage) for stage in stages],
    }
    if rows["hatched"].any():
        lane["hatched"] = rows["hatched"].cast(pl.Int8).to_list()
    return lane
