"""Gantt charts of steps op by op, packed for the page's script, which draws them.

There are rows ("lanes") for ops by stream, NVTX ranges, the critical path, idle time and links.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import polars as pl
from markupsafe import Markup

from tracekit.analysis import step_detail
from tracekit.analysis.dependencies import path_spans
from tracekit.analysis.diagnosis import RULES, longest_examples
from tracekit.errors import MissingDataError, UsageError
from tracekit.model import STAGES, Trace
from tracekit.present import CAUSE_COLOURS, printable, readable_names
from tracekit.present.pages import fragment, frame_table, joined
from tracekit.report._subject import Close
from tracekit.report._svg_charts import Entry

_MOST_OPS_IN_ALL = 40_000
_MOST_TEXT = 300
_LONGEST = 20
_LOST = {
    "ops": "{:,} more ops are not shown",
    "ranges": "{:,} inner ranges are not shown",
    "links": "{:,} directions of links are not shown",
    "path": "the critical path of {:,} ops is not shown",
}
"""Notes on what a view leaves out."""
_PASSES = ("FP", "BP", "WU")
"""Stages by which steps of two runs are aligned."""
_NAMED = ("label", "brief", "device")
"""Keys of a lane whose texts get the side of the comparison as a prefix."""


_LEGEND = (
    *(Entry(stage, stage) for stage in STAGES),
    Entry("WU hid", "hatched: collectives and copies between GPUs"),
    Entry("idle", "ranges of no stage"),
)


def _legend(views: Iterable[Mapping[str, Any]]) -> list[Entry]:
    """Return the legend: stages, and the causes of idle time that occur in the views."""
    lanes = (lane for view in views for lane in view["lanes"] if lane["kind"] == "idle")
    shown = {LOOKS[look] for lane in lanes for look in lane["stage"]}
    causes = (cause for cause in CAUSE_COLOURS if cause in shown)
    return [*_LEGEND, *(Entry(cause, f"idle: {cause.replace('_', ' ')}") for cause in causes)]


class View(NamedTuple):
    """One choice of what a chart shows: a step, or two runs aligned at the begin of a stage."""

    text: str
    step: int | str | None


class Chart(NamedTuple):
    """A Gantt chart: values for the template ``page/blocks.jinja``."""

    title: str
    label: str
    views: Sequence[View]
    data: Markup
    notes: Sequence[str]
    legend: Sequence[Entry]


def steps_chart(close: Close, title: str) -> Markup:
    """Return the chart of a run's typical and extreme steps, which shows a single step at a time.

    A table of the longest ops in these steps, which needs no script, is below it.
    """
    names, left = Names(), _MOST_OPS_IN_ALL
    views: dict[str, dict[str, Any]] = {}
    tables = []
    for what, step in close.chosen.items():
        spans = _of_step(close, step)
        views[what] = view_of(close, step, _window(spans), names, min(left, MOST_OPS))
        left -= views[what]["ops"]
        ops = step_detail.ops_inside(close.run.trace, spans.drop_nulls("device"))
        tables.append(_longest(close.run.trace, ops, spans, step))
    notes = [note for what, view in views.items() for note in _notes(what, view)]
    chart = Chart(
        title, "Ops of a step by GPU and stream",
        [View(what, view["step"]) for what, view in views.items()],
        _packed(list(views.values()), names), notes, _legend(views.values()),
    )  # fmt: skip
    drawn = fragment("gantt", chart)
    longest = pl.concat(tables)
    if longest.is_empty():
        return drawn
    return joined(drawn, frame_table(longest, "step-ops", "The longest ops of the chart"))


class Place(NamedTuple):
    """A step and an interval of time that the chart can be scrolled to."""

    target: str
    text: str


def places(close: Close) -> Mapping[str, Place | None]:
    """Return the longest example of each rule of `diagnose` in the slowest step; None if absent."""
    step = step_detail.slowest_step(close.lengths)
    spans = _of_step(close, step)
    ops = step_detail.ops_inside(close.run.trace, spans.drop_nulls("device"))
    found: dict[str, Place | None] = dict.fromkeys(RULES)
    if ops.is_empty():
        return found
    idle = step_detail.idle_spans(close.run.trace, spans)
    zeros = dict(with_zeros(spans).select("device", "zero").unique("device").iter_rows())
    for rule, (device, start, end) in longest_examples(ops, idle).items():
        found[rule] = _place(start - zeros[device], end - zeros[device], step)
    if step is not None and step == close.lengths["iteration"][0]:
        found["cold_steps"] = Place(f"step={step}", "The first step")
    return found


def _place(start: int, end: int, step: int | None) -> Place:
    """Return a link to an interval of a step, with margins of half the interval's length."""
    room = max(end - start, 1_000) // 2
    around = max(start - room, 0), end + room
    shown, chosen = (f"{a / 1e6:.6f}ms-{b / 1e6:.6f}ms" for a, b in (around, (start, end)))
    number, where = ("", "the recording") if step is None else (step, f"step {step}")
    return Place(f"step={number}&t={shown}&select={chosen}", f"The longest of it in {where}")


def _window(spans: pl.DataFrame) -> pl.DataFrame:
    """Return intervals widened to the earliest start and the latest end on their clock.

    A selection in the chart is converted to times of the run by this interval.
    """
    return spans.with_columns(
        pl.col("start").min().over("clock"), pl.col("end").max().over("clock")
    )


def _longest(
    trace: Trace, ops: pl.DataFrame, spans: pl.DataFrame, step: int | None
) -> pl.DataFrame:
    """Return the longest ops of a step, with the calls that launched them."""
    zeros = spans.group_by("process").agg(zero=pl.col("start").min())
    length = pl.col("end") - pl.col("start")
    most = ops.sort(length, descending=True, maintain_order=True).head(_LONGEST)
    beside = step_detail.details(trace, most)
    return most.join(zeros, on="process", how="left", maintain_order="left").select(
        pl.lit(step, pl.Int64).alias("iteration"), pl.col("name").cast(pl.String), "device",
        duration_ns=length, at_ns=pl.col("start") - pl.col("zero"), stage=beside["stage"],
        launch=beside["launch"], delay_ns=beside["delay_ns"], range=beside["range"],
    )  # fmt: skip


def _notes(what: str, view: Mapping[str, Any]) -> Iterator[str]:
    for kind, lost in view["lost"].items():
        if lost:
            yield f"{what}: {_LOST[kind].format(lost)}"
    if view["lanes"] and not view["ranges"]:
        yield f"{what}: no range of the threads that drive steps is open meanwhile"


def aligned_chart(sides: Mapping[str, Close], title: str) -> Markup:
    """Return the chart of the typical steps of two runs, one below the other.

    The steps are aligned at their start, or at the first kernel of a stage: one view for each. The
    title has a placeholder for the name of each run's step.
    """
    names = Names()
    typical = {side: close.typical for side, close in sides.items()}
    steps = {side: step for side, (step, _) in typical.items()}
    title = title.format(*(called for _, called in typical.values()))
    spans = {side: _of_step(close, steps[side]) for side, close in sides.items()}
    drawn = {
        side: view_of(close, steps[side], _window(spans[side]), names, is_alone=False)
        for side, close in sides.items()
    }
    first = {
        "span": max(view["span"] for view in drawn.values()),
        "lost": {"ops": sum(view["lost"].get("ops", 0) for view in drawn.values())},
        "step": "begin",
        "lanes": [_of_side(lane, side) for side, view in drawn.items() for lane in view["lanes"]],
    }
    begins = {side: _begins(close, spans[side]) for side, close in sides.items()}
    views = {"Steps begin together": first}
    for stage in _PASSES:
        at = {side: own[stage] for side, own in begins.items() if stage in own}
        if len(at) == len(sides):
            shift = {side: max(at.values()) - begin for side, begin in at.items()}
            span = max(view["span"] + shift[side] for side, view in drawn.items())
            views[f"{stage} begins together"] = {
                "span": span, "lost": first["lost"], "step": stage, "shift": shift
            }  # fmt: skip
    chart = Chart(title, "Ops of the median step of both runs",
                  [View(text, view["step"]) for text, view in views.items()],
                  _packed(list(views.values()), names), (), _legend([first]))  # fmt: skip
    return fragment("gantt", chart)


def _of_side(lane: Mapping[str, Any], side: str) -> dict[str, Any]:
    return {**lane, "side": side, **{n: f"{side} · {lane[n]}" for n in _NAMED if n in lane}}


def _begins(close: Close, spans: pl.DataFrame) -> dict[str, int]:
    """Return stage -> start of its first compute kernel in the step, ns from the chart's begin."""
    ops = step_detail.ops_inside(close.run.trace, spans.drop_nulls("device"))
    zeros = with_zeros(spans).select("process", "device", "zero")
    begun = ops.filter(pl.col("kind") == "compute").join(zeros, on=["process", "device"])
    first = begun.group_by(pl.col("stage").cast(pl.String)).agg(
        (pl.col("start") - pl.col("zero")).min()
    )
    return dict(first.iter_rows())


def _of_step(close: Close, step: int | None) -> pl.DataFrame:
    """Return the intervals of a step on GPUs; on the host if no GPU was used."""
    if not close.spans.is_empty():
        return close.spans.filter(pl.col("iteration").eq_missing(step))
    steps = close.run.trace.read("iterations").filter(pl.col("iteration").eq_missing(step))
    return steps.select(
        "process", "iteration", "start", "end", device=pl.lit(None, pl.Int32), clock=pl.lit("host")
    )


def _packed(views: Sequence[Mapping[str, Any]], names: Names) -> Markup:
    """Return the data of the chart for the page's script: JSON, compressed, as Base64 letters."""
    full = [printable(name) for name in names.numbers]
    short = readable_names(full)
    content = {
        "names": [short[name] for name in full],
        "full": [name[:_MOST_TEXT] for name in full],
        "stages": LOOKS,
        "order": STAGES,
        "views": views,
    }
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False)
    packed = gzip.compress(text.encode("utf-8", "replace"), 9, mtime=0)
    return Markup(base64.b64encode(packed).decode())  # noqa: S704 - of its 64 letters alone


_COMMUNICATION = ("collective", "p2p", "staged")
_NO_STAGE = "idle"
_PATH_CAUSES = ("host", "latency")
_WORKS = ("gpu", "comm", "copy")
LOOKS = (*STAGES, _NO_STAGE, *CAUSE_COLOURS, *_PATH_CAUSES)
"""Names by which the script colours spans: stages, causes of idle time and of paths."""
_DEEPEST = 5
_DEEP_OF_MANY = 2
MOST_OPS = 20_000
"""Maximum number of ops drawn of a step."""
_MOST_RANGES = 5_000
_MOST_LINKS = 16
_NUMBERS = {"delay": "delay_ns", "bytes": "bytes", "threads": "threads"}
"""Numbers of an op for the script: its name for it -> column."""
_UNKNOWN = -1
"""Number that the script reads as null."""
_FIRST, _LAST = -1, 1 << 31
"""Sort keys of lanes without a process: before all others, or after them."""


@dataclass
class Names:
    """All names in a chart (of ops, ranges, calls, layers), each stored once, with its index."""

    numbers: dict[str, int] = field(default_factory=dict)

    def of(self, names: pl.Series) -> list[int]:
        return [
            _UNKNOWN if name is None else self.numbers.setdefault(name, len(self.numbers))
            for name in names
        ]


def with_zeros(spans: pl.DataFrame) -> pl.DataFrame:
    """Add ``zero`` to intervals: the earliest start of the intervals on the same clock."""
    return spans.join(spans.group_by("clock").agg(zero=pl.col("start").min()), on="clock")


def view_of(
    close: Close, step: int | None, spans: pl.DataFrame, names: Names, most: int = MOST_OPS,
    *, is_alone: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """Return the chart rows of a step, with times since the step's start on each clock.

    Parameters
    ----------
    close
        The run's steps.
    step, spans
        Number of the step (None for the whole run), and the intervals to show.
    names
        Table of the chart's names, to which new ones are added.
    most
        Largest number of ops to show.
    is_alone
        Whether the chart has one run only; it then also shows the critical path and links.
    """
    if spans.is_empty():
        return {"span": 1, "step": step, "ops": 0, "lost": {}, "ranges": 0, "lanes": []}
    trace, placed = close.run.trace, with_zeros(spans)
    found = step_detail.ops_inside(trace, spans.drop_nulls("device"), reaching=True)
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
    beside = step_detail.details(trace, ops).with_columns(way=way)
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
    """Yield for each GPU a chart row with its idle time, by cause."""
    if spans.is_empty():
        return
    found = step_detail.idle_spans(trace, spans).join(zeros, on="device")
    named = found.with_columns(name="cause", stage="cause", hatched=pl.lit(value=False))
    for (device,), lane in named.sort("device", "start").group_by("device", maintain_order=True):
        label = f"GPU {device} · idle, why", f"GPU{device} idle"
        yield {**_lane(lane, label, names, is_first=False), "kind": "idle", "idle": device}


def _path_lane(
    close: Close, step: int | None, placed: pl.DataFrame, names: Names
) -> Iterator[dict[str, Any]]:
    """Yield the chart row of the step's critical path, if known."""
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
    """Return the chart rows of links with known traffic, and the number of links left out."""
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
    """Return chart rows of ranges by driving thread and depth, and the number left out.

    If there are very many ranges, nested ones are left out.
    """
    whole = placed.group_by("process").agg(pl.col("start").min(), pl.col("end").max())
    ranges = step_detail.ranges_inside(trace, whole)
    ranges = ranges.join(step_detail.driving_threads(trace), on=["process", "thread"], how="semi")
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
    """Return a chart row for the script: starts as differences, which compress; name indices."""
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
