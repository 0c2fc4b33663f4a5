"""Steps op by op: lanes of ops and of ranges, packed for the script of the page that draws them."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl
from markupsafe import Markup

from tracekit.analysis import closeup
from tracekit.analysis.diagnosis import KERNELS_OF, RULES
from tracekit.model import STAGES, Trace
from tracekit.present import printable, readable_names
from tracekit.present.pages import fragment, frame_table, joined
from tracekit.report._charts import Entry
from tracekit.report._lanes import COLOURS, LOOKS, MOST_OPS, Names, view_of, with_zeros
from tracekit.report._subject import Close

_MOST_OPS_IN_ALL = 40_000
_MOST_TEXT = 300
_LONGEST = 20
_LOST = {
    "ops": "{:,} more ops are not shown",
    "ranges": "{:,} inner NVTX ranges are not shown",
    "links": "{:,} directions of links are not shown",
    "path": "the critical path of {:,} ops is not shown",
}
"""What is said of what a view leaves out."""
_PASSES = ("FP", "BP", "WU")
"""Stages by which steps of two runs are aligned."""
_NAMED = ("label", "brief", "device")
"""What of a lane is told apart by the side of a comparison."""


@dataclass(frozen=True)
class View:
    """A step that the chart can show, and its number; or the stage by which two are aligned."""

    text: str
    step: int | str | None


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


def steps_chart(close: Close, title: str) -> Markup:
    """Return the chart of a run's typical and extreme steps, showing one at a time.

    Their longest ops are below it as a table, which needs no script.
    """
    names, left = Names(), _MOST_OPS_IN_ALL
    views: dict[str, dict[str, Any]] = {}
    tables = []
    for what, step in close.chosen.items():
        spans = _of_step(close, step)
        views[what] = view_of(close, step, _window(spans), names, min(left, MOST_OPS))
        left -= views[what]["ops"]
        ops = closeup.ops_inside(close.run.trace, spans.drop_nulls("device"))
        tables.append(_longest(close.run.trace, ops, spans, step))
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
    "launch_bound": ("late_launch", "launch"), "tiny_kernels": ("late_launch", "launch"),
    "busy_host": ("late_launch",),
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
    """A place in the chart."""

    target: str
    text: str


def places(close: Close) -> Mapping[str, Place | None]:
    """Return, by rule, the longest example of its finding in the slowest step."""
    step = closeup.slowest_step(close.lengths)
    spans = _of_step(close, step)
    ops = closeup.ops_inside(close.run.trace, spans.drop_nulls("device"))
    found: dict[str, Place | None] = dict.fromkeys(RULES)
    if ops.is_empty():
        return found
    idle = closeup.idle_spans(close.run.trace, spans)
    zeros = with_zeros(spans).select("device", "zero").unique("device")
    cause, kind, name = (pl.col(column).cast(pl.String) for column in ("cause", "kind", "name"))
    about = [
        *((rule, idle, cause.is_in(values)) for rule, values in _CAUSES_OF.items()),
        *((rule, ops, kind.is_in(values)) for rule, values in _KINDS_OF.items()),
        *((rule, ops, (kind == "compute") & holds(name)) for rule, holds in KERNELS_OF.items()),
    ]
    for rule, rows, holds in about:
        found[rule] = _place(rows.filter(holds).join(zeros, on="device"), step)
    if step is not None and step == close.lengths["iteration"][0]:
        found["cold_steps"] = Place(f"step={step}", "The first step")
    return found


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


def _window(spans: pl.DataFrame) -> pl.DataFrame:
    """Return the time that the chart of a step is of: one time of all GPUs on a clock.

    What is selected in it has the numbers of that time of the run.
    """
    return spans.with_columns(
        pl.col("start").min().over("clock"), pl.col("end").max().over("clock")
    )


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
    for kind, lost in view["lost"].items():
        if lost:
            yield f"{what}: {_LOST[kind].format(lost)}"
    if view["lanes"] and not view["ranges"]:
        yield f"{what}: no NVTX range of the threads that drive steps is open meanwhile"


def aligned_chart(sides: Mapping[str, Close], title: str) -> Markup:
    """Return the chart of the typical steps of two runs, one below the other.

    They begin together, or what each computes in a stage does: so many views there are. The title
    has a place for what the step of each is called.
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
        "step": None,
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
                  _packed(list(views.values()), names), ())  # fmt: skip
    return fragment("gantt", chart)


def _of_side(lane: Mapping[str, Any], side: str) -> dict[str, Any]:
    return {**lane, "side": side, **{n: f"{side} · {lane[n]}" for n in _NAMED if n in lane}}


def _begins(close: Close, spans: pl.DataFrame) -> dict[str, int]:
    """Return by stage when the first kernel that computes for it begins, in times of the chart."""
    ops = closeup.ops_inside(close.run.trace, spans.drop_nulls("device"))
    zeros = with_zeros(spans).select("process", "device", "zero")
    begun = ops.filter(pl.col("kind") == "compute").join(zeros, on=["process", "device"])
    first = begun.group_by(pl.col("stage").cast(pl.String)).agg(
        (pl.col("start") - pl.col("zero")).min()
    )
    return dict(first.iter_rows())


def _of_step(close: Close, step: int | None) -> pl.DataFrame:
    """Return where a step lies: on GPUs, or on the host where nothing ran on one."""
    if not close.spans.is_empty():
        return close.spans.filter(pl.col("iteration").eq_missing(step))
    steps = close.run.trace.read("iterations").filter(pl.col("iteration").eq_missing(step))
    return steps.select(
        "process", "iteration", "start", "end", device=pl.lit(None, pl.Int32), clock=pl.lit("host")
    )


def _packed(views: Sequence[Mapping[str, Any]], names: Names) -> Markup:
    """Return what the script reads, small: JSON, compressed, in letters that need no escaping."""
    full = [printable(name) for name in names.numbers]
    short = readable_names(full)
    content = {
        "names": [short[name] for name in full],
        "full": [name[:_MOST_TEXT] for name in full],
        "stages": LOOKS,
        "order": STAGES,
        "colours": COLOURS,
        "views": views,
    }
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False)
    packed = gzip.compress(text.encode("utf-8", "replace"), 9, mtime=0)
    return Markup(base64.b64encode(packed).decode())  # noqa: S704 - of its 64 letters alone
