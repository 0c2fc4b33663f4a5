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
from tracekit.model import STAGES
from tracekit.present import printable, readable_names
from tracekit.present.pages import fragment
from tracekit.report._charts import Entry

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tracekit.model import Trace
    from tracekit.report._subject import Close

_COMMUNICATION = ("collective", "p2p", "staged")
_NO_STAGE = "idle"
_STAGES = (*STAGES, _NO_STAGE)
_DEEPEST = 5
_DEEP_OF_MANY = 2
_MOST_OPS = 400_000
_MOST_TEXT = 300


@dataclass(frozen=True)
class Chart:
    """A Gantt chart as ``page/blocks.jinja`` lays it out."""

    title: str
    label: str
    views: Sequence[str]
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
    """The names of all ops and ranges, each once."""

    numbers: dict[str, int] = field(default_factory=dict)

    def of(self, names: pl.Series) -> list[int]:
        return [self.numbers.setdefault(name, len(self.numbers)) for name in names]


def steps_chart(close: Close, title: str) -> Markup:
    """Return the chart of a run's typical and extreme steps, of which one is seen at a time."""
    names = _Names()
    views = {what: {**_view(close.run.trace, _of_step(close, step), names), "step": step}
             for what, step in close.chosen.items()}  # fmt: skip
    notes = [note for what, view in views.items() for note in _notes(what, view)]
    chart = Chart(title, "Ops of a step by GPU and stream", list(views),
                  _packed(list(views.values()), names), notes)  # fmt: skip
    return fragment("gantt", chart)


def _notes(what: str, view: Mapping[str, Any]) -> Iterator[str]:
    if view["lost"]:
        yield f"{what}: {view['lost']:,} more ops are not shown"
    if view["lanes"] and not view["ranges"]:
        yield f"{what}: no NVTX range of the threads that drive steps is open meanwhile"


def aligned_chart(sides: Mapping[str, Close], title: str) -> Markup:
    """Return the chart of the median steps of two runs, one below the other, begun together."""
    names = _Names()
    both: dict[str, Any] = {"span": 1, "lost": 0, "step": None, "lanes": []}
    for side, close in sides.items():
        step = closeup.median_step(close.lengths)
        view = _view(close.run.trace, _of_step(close, step), names)
        lanes = [
            {**lane, **{key: f"{side} · {lane[key]}" for key in ("label", "brief")}}
            for lane in view["lanes"]
        ]
        both = {
            "span": max(both["span"], view["span"]),
            "lost": both["lost"] + view["lost"],
            "lanes": [*both["lanes"], *lanes],
        }
    chart = Chart(title, "Ops of the median step of both runs", ["Median steps"],
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


def _view(trace: Trace, spans: pl.DataFrame, names: _Names) -> dict[str, Any]:
    """Return the lanes of a step, with times from where it begins on each clock."""
    if spans.is_empty():
        return {"span": 1, "lost": 0, "ranges": 0, "lanes": []}
    zeros = spans.group_by("clock").agg(zero=pl.col("start").min())
    placed = spans.join(zeros, on="clock")
    span = int(placed.select((pl.col("end") - pl.col("zero")).max()).item())
    gpus = placed.drop_nulls("device")
    ops = closeup.ops_inside(trace, gpus)
    zero_of = placed.select("process", "zero").unique("process")
    ranges = list(_range_lanes(trace, placed, zero_of, names))
    return {
        "span": max(span, 1),
        "lost": max(ops.height - _MOST_OPS, 0),
        "ranges": len(ranges),
        "lanes": sorted(
            [*ranges, *_op_lanes(ops.head(_MOST_OPS).join(zero_of, on="process"), names)],
            key=lambda lane: lane["process"],
        ),
    }


def _op_lanes(ops: pl.DataFrame, names: _Names) -> Iterator[dict[str, Any]]:
    named = ops.with_columns(
        pl.col("name").cast(pl.String).fill_null("(no name)"),
        hatched=pl.col("kind").is_in(_COMMUNICATION),
    )
    seen: set[int] = set()
    keys = ["device", "process", "context", "stream"]
    for key, lane in named.sort(*keys, "start", nulls_last=True).group_by(
        keys, maintain_order=True
    ):
        device, _, _, stream = key
        number = "?" if stream is None else stream
        label = f"GPU {device} · stream {number}", f"GPU{device} s{number}"
        yield _lane(lane, label, names, is_first=device not in seen)
        seen.add(device)


def _range_lanes(
    trace: Trace, placed: pl.DataFrame, zeros: pl.DataFrame, names: _Names
) -> Iterator[dict[str, Any]]:
    """Yield the ranges of the threads that drive steps, a lane for each depth."""
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
    for (process, _, depth), lane in shown.sort("process", "thread", "depth", "start").group_by(
        ["process", "thread", "depth"], maintain_order=True
    ):
        of = f" of process {process}" if several else ""
        label = f"NVTX{of} · {depth + 1}", f"NVTX {depth + 1}"
        yield _lane(lane, label, names, is_first=depth == 0)


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
        "views": views,
    }
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False)
    packed = gzip.compress(text.encode("utf-8", "replace"), 9, mtime=0)
    return Markup(base64.b64encode(packed).decode())  # noqa: S704 - of its 64 letters alone
