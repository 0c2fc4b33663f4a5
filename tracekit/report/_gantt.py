"""Steps op by op: lanes of ops and of ranges, packed for the script of the page that draws them."""

from __future__ import annotations

import base64
import gzip
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import polars as pl
from markupsafe import Markup

from tracekit.analysis import closeup
from tracekit.analysis.diagnosis import RULES
from tracekit.model import STAGES
from tracekit.present import CAUSE_COLOURS, printable, readable_names
from tracekit.present.pages import fragment, frame_table, joined
from tracekit.report._charts import Entry

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tracekit.model import Trace
    from tracekit.report._subject import Close

_COMMUNICATION = ("collective", "p2p", "staged")
_NO_STAGE = "idle"
_STAGES = (*STAGES, _NO_STAGE, *CAUSE_COLOURS)
_DEEPEST = 5
_DEEP_OF_MANY = 2
_MOST_OPS = 20_000
_MOST_OPS_IN_ALL = 40_000
_MOST_RANGES = 5_000
_MOST_TEXT = 300
_LONGEST = 20
_NAMED = ("label", "brief", "device")
"""What of a lane is told apart by the side of a comparison."""
_NUMBERS = {"delay": "delay_ns", "bytes": "bytes", "threads": "threads"}
"""What of an op the script reads as numbers, by its names of them."""
_UNKNOWN = -1
"""What the script reads as null."""


@dataclass(frozen=True)
class View:
    """A step that the chart can show, and its number."""

    text: str
    step: int | None


@dataclass(frozen=True)
class Chart:
    """A Gantt chart as ``page/blocks.jinja`` lays it out."""

    title: str
    label: str
    views: Sequence[View]
    data: Markup
    notes: Sequence[str]
    legend: Sequence[Entry] = field(
        default=(
            *(Entry(stage, stage) for stage in STAGES),
            Entry("WU hid", "hatched: collectives and copies between GPUs"),
            Entry("idle", "ranges of no stage"),
        )
    )


@dataclass
class _Names:
    """The names of all ops and ranges, calls and layers, each once."""

    numbers: dict[str, int] = field(default_factory=dict)

    def of(self, names: pl.Series) -> list[int]:
        return [
            _UNKNOWN if name is None else self.numbers.setdefault(name, len(self.numbers))
            for name in names
        ]


def steps_chart(close: Close, title: str) -> Markup:
    """Return the chart of a run's typical and extreme steps, of which one is seen at a time.

    Their longest ops are below it as a table, which needs no script.
    """
    names, left = _Names(), _MOST_OPS_IN_ALL
    views: dict[str, dict[str, Any]] = {}
    tables = []
    for what, step in close.chosen.items():
        ops, spans, window = _ops(close, step)
        shown = ops.head(min(left, _MOST_OPS))
        left -= shown.height
        view = _view(close.run.trace, window, shown, names)
        views[what] = {**view, "step": step, "lost": ops.height - shown.height}
        tables.append(_longest(close.run.trace, _starting(ops, spans), spans, step))
    notes = [note for what, view in views.items() for note in _notes(what, view)]
    chart = Chart(
        title, "Ops of a step by GPU and stream",
        [View(what, view["step"]) for what, view in views.items()],
        _packed(list(views.values()), names), notes,
    )  # fmt: skip
    drawn = fragment("gantt", chart)
    longest = pl.concat(tables)
    if longest.is_empty():
        return drawn
    return joined(drawn, frame_table(longest, "step-ops", "The longest ops of these steps"))


_CAUSES_OF = {
    "input_bound": ("input", "between_steps"), "sync_in_loop": ("waiting_call",),
    "launch_bound": ("late_launch", "launch"), "busy_host": ("late_launch",),
    "off_cpu": ("off_cpu",), "compilation": ("compiling", "loading"),
    "allocation_in_loop": ("allocation",), "profiler_overhead": ("profiler",),
    "pipeline_bubbles": ("behind_stage",), "stragglers": ("behind_collective",),
    "central_update": ("behind_weight_update",),
}  # fmt: skip
"""Causes of idle time that a rule is about."""
_KINDS_OF = {
    "exposed_collectives": ("collective",), "late_buckets": ("collective",),
    "small_buckets": ("collective",), "pageable_copies": ("h2d", "d2h"),
    "unhidden_copies": ("h2d", "d2h"), "slow_links": ("p2p", "staged", "collective"),
}  # fmt: skip
"""Kinds of ops that a rule is about."""


@dataclass(frozen=True)
class Place:
    """Where in the chart something is seen."""

    target: str
    text: str


def places(close: Close) -> Mapping[str, Place | None]:
    """Return, by rule, the longest of what it is about in the slowest step."""
    step = closeup.slowest_step(close.lengths)
    ops, spans, _ = _ops(close, step)
    ops = _starting(ops, spans)
    found: dict[str, Place | None] = dict.fromkeys(RULES)
    if ops.is_empty():
        return found
    idle = closeup.idle_spans(close.run.trace, spans)
    zeros = _with_zeros(spans).select("device", "zero").unique("device")
    for rules, rows, column in ((_CAUSES_OF, idle, "cause"), (_KINDS_OF, ops, "kind")):
        placed = rows.with_columns(pl.col(column).cast(pl.String)).join(zeros, on="device")
        for rule, values in rules.items():
            found[rule] = _place(placed.filter(pl.col(column).is_in(values)), step)
    return found


def _with_zeros(spans: pl.DataFrame) -> pl.DataFrame:
    """Return spans with the time at which the chart begins on their clock."""
    return spans.join(spans.group_by("clock").agg(zero=pl.col("start").min()), on="clock")


def _place(rows: pl.DataFrame, step: int | None) -> Place | None:
    """Return where the longest of some spans lies, with as much again around it."""
    if rows.is_empty():
        return None
    longest = rows.sort(pl.col("end") - pl.col("start"), descending=True, maintain_order=True)
    start, end = (int((longest[name] - longest["zero"])[0]) for name in ("start", "end"))
    room = max(end - start, 1_000) // 2
    around = max(start - room, 0), end + room
    shown, chosen = (f"{a / 1e6:.6f}ms-{b / 1e6:.6f}ms" for a, b in (around, (start, end)))
    number, where = ("", "the recording") if step is None else (step, f"step {step}")
    return Place(f"step={number}&t={shown}&select={chosen}", f"The longest of it in {where}")


def _ops(close: Close, step: int | None) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Return what runs during a step, where the step lies, and the time that the chart is of.

    The chart is of one time of all GPUs on a clock, and holds what reaches into it: so that what is
    selected in it has the numbers of that time of the run.
    """
    spans = _of_step(close, step)
    window = spans.with_columns(
        pl.col("start").min().over("clock"), pl.col("end").max().over("clock")
    )
    ops = closeup.ops_inside(close.run.trace, window.drop_nulls("device"), reaching=True)
    return ops, spans, window


def _starting(ops: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    """Return the ops that start in the span of their GPU and process."""
    own = spans.select("process", "device", begin="start", until="end")
    inside = pl.col("start").is_between("begin", "until", closed="left")
    found = ops.join(own, on=["process", "device"], maintain_order="left").filter(inside)
    return found.drop("begin", "until")


def _longest(
    trace: Trace, ops: pl.DataFrame, spans: pl.DataFrame, step: int | None
) -> pl.DataFrame:
    """Return the ops of a step that take longest, with what launched them."""
    zeros = spans.group_by("process").agg(zero=pl.col("start").min())
    length = pl.col("end") - pl.col("start")
    most = ops.sort(length, descending=True, maintain_order=True).head(_LONGEST)
    beside = closeup.details(trace, most)
    return most.join(zeros, on="process", how="left", maintain_order="left").select(
        pl.lit(step, pl.Int64).alias("iteration"), pl.col("name").cast(pl.String), "device",
        duration_ns=length, at_ns=pl.col("start") - pl.col("zero"), stage=beside["stage"],
        launch=beside["launch"], delay_ns=beside["delay_ns"], range=beside["range"],
    )  # fmt: skip


def _notes(what: str, view: Mapping[str, Any]) -> Iterator[str]:
    if view["lost"]:
        yield f"{what}: {view['lost']:,} more ops are not shown"
    if view["lost_ranges"]:
        yield f"{what}: {view['lost_ranges']:,} inner NVTX ranges are not shown"
    if view["lanes"] and not view["ranges"]:
        yield f"{what}: no NVTX range of the threads that drive steps is open meanwhile"


def aligned_chart(sides: Mapping[str, Close], title: str) -> Markup:
    """Return the chart of the median steps of two runs, one below the other, begun together."""
    names = _Names()
    both: dict[str, Any] = {"span": 1, "lost": 0, "step": None, "lanes": []}
    for side, close in sides.items():
        ops, _, window = _ops(close, closeup.median_step(close.lengths))
        view = _view(close.run.trace, window, ops.head(_MOST_OPS), names)
        lanes = [
            {**lane, **{key: f"{side} · {lane[key]}" for key in _NAMED if key in lane}}
            for lane in view["lanes"]
        ]
        both = {
            "span": max(both["span"], view["span"]),
            "lost": both["lost"] + max(ops.height - _MOST_OPS, 0),
            "lanes": [*both["lanes"], *lanes],
        }
    chart = Chart(title, "Ops of the median step of both runs", [View("Median steps", None)],
                  _packed([both], names), ())  # fmt: skip
    return fragment("gantt", chart)


def _of_step(close: Close, step: int | None) -> pl.DataFrame:
    """Return where a step lies: on GPUs, or on the host where nothing ran on one."""
    if not close.spans.is_empty():
        return close.spans.filter(pl.col("iteration").eq_missing(step))
    steps = close.run.trace.read("iterations").filter(pl.col("iteration").eq_missing(step))
    return steps.select(
        "process", "iteration", "start", "end", device=pl.lit(None, pl.Int32), clock=pl.lit("host")
    )


def _view(trace: Trace, spans: pl.DataFrame, ops: pl.DataFrame, names: _Names) -> dict[str, Any]:
    """Return the lanes of a step, with times from where it begins on each clock."""
    if spans.is_empty():
        return {"span": 1, "lost_ranges": 0, "ranges": 0, "lanes": []}
    placed = _with_zeros(spans)
    span = int(placed.select((pl.col("end") - pl.col("zero")).max()).item())
    gpus = placed.drop_nulls("device")
    zero_of = placed.select("process", "zero").unique("process")
    ranges, lost = _range_lanes(trace, placed, zero_of, names)
    zero_on = gpus.select("device", "zero", "process").unique("device")
    lanes = [
        *ranges,
        *_op_lanes(trace, ops, zero_of, names),
        *_idle_lanes(trace, zero_on, gpus, names),
    ]
    return {
        "span": max(span, 1),
        "lost_ranges": lost,
        "ranges": len(ranges),
        "lanes": sorted(lanes, key=lambda lane: lane["process"]),
    }


def _op_lanes(
    trace: Trace, ops: pl.DataFrame, zeros: pl.DataFrame, names: _Names
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
            "told": {
                **{key: names.of(lane[key]) for key in ("launch", "inside", "layer", "way")},
                **{key: lane[name].fill_null(_UNKNOWN).to_list()
                   for key, name in _NUMBERS.items()},
            },
        }  # fmt: skip
        seen.add(device)


def _idle_lanes(
    trace: Trace, zeros: pl.DataFrame, spans: pl.DataFrame, names: _Names
) -> Iterator[dict[str, Any]]:
    """Yield why nothing runs on each GPU."""
    if spans.is_empty():
        return
    found = closeup.idle_spans(trace, spans).join(zeros, on="device")
    named = found.with_columns(name="cause", stage="cause", hatched=pl.lit(value=False))
    for (device,), lane in named.sort("device", "start").group_by("device", maintain_order=True):
        label = f"GPU {device} · idle, why", f"GPU{device} idle"
        yield {**_lane(lane, label, names, is_first=False), "idle": device}


def _range_lanes(
    trace: Trace, placed: pl.DataFrame, zeros: pl.DataFrame, names: _Names
) -> tuple[list[dict[str, Any]], int]:
    """Return the ranges of the threads that drive steps, a lane for each depth; and how many not.

    Of very many those inside others are left out.
    """
    whole = placed.group_by("process").agg(pl.col("start").min(), pl.col("end").max())
    ranges = closeup.ranges_inside(trace, whole)
    ranges = ranges.join(_drivers(trace), on=["process", "thread"], how="semi")
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
        lanes.append(_lane(lane, label, names, is_first=depth == 0))
    return lanes, lost - shown.height


def _drivers(trace: Trace) -> pl.DataFrame:
    """Return the threads that drive steps; without any, those that launch most."""
    known = trace.read("iterations").select("process", "thread").unique()
    if not known.is_empty():
        return known
    launched = trace["ops"].drop_nulls("launch_thread").group_by("process", "launch_thread").len()
    most = launched.sort("process", "len", descending=[False, True]).collect()
    return most.unique("process", keep="first").select("process", thread="launch_thread")


def _lane(
    rows: pl.DataFrame, label: tuple[str, str], names: _Names, *, is_first: bool
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
        "stage": [_STAGES.index(stage) for stage in stages],
    }
    if rows["hatched"].any():
        lane["hatched"] = rows["hatched"].cast(pl.Int8).to_list()
    return lane


def _packed(views: Sequence[Mapping[str, Any]], names: _Names) -> Markup:
    """Return what the script reads, small: JSON, compressed, in letters that need no escaping."""
    full = [printable(name) for name in names.numbers]
    short = readable_names(full)
    content = {
        "names": [short[name] for name in full],
        "full": [name[:_MOST_TEXT] for name in full],
        "stages": _STAGES,
        "order": STAGES,
        "colours": CAUSE_COLOURS,
        "views": views,
    }
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False)
    packed = gzip.compress(text.encode("utf-8", "replace"), 9, mtime=0)
    return Markup(base64.b64encode(packed).decode())  # noqa: S704 - of its 64 letters alone
