"""Sections on GPU time: by stage, over steps, by range and kernel, and idle time."""

from __future__ import annotations

from typing import Any

import polars as pl
from markupsafe import Markup

from tracekit.analysis.comparison import outliers
from tracekit.model import STAGES
from tracekit.present import CAUSE_COLOURS, duration, percent
from tracekit.present.pages import answer_table, fragment, frame_table, joined
from tracekit.report._gantt import places, steps_chart
from tracekit.report._subject import Close, Subject
from tracekit.report._svg_charts import (
    Axis,
    Bar,
    Bars,
    Entry,
    Heat,
    HeatCell,
    HeatRow,
    Icicle,
    Link,
    Part,
    Plot,
    curve,
    dots,
    heat_level,
    icicle_nodes,
    pair,
    step_tag,
    steps_curve,
    time_axis,
    track,
)

_MOST_DEVICES = 64
_SEVERAL = 2
_NAMED = 5
_SEPARATOR = " > "
_MOST_COLUMNS = 60
_MOST_CELLS = 200
_MOST_GAPS = 20
_MOST_RANGES = 200
_MOST_KERNELS = 300


def step_chart(subject: Subject) -> Markup:
    """Draw the median and the slowest step op by op."""
    title = "Ops by GPU and stream, below the ranges of the threads that drive steps"
    if subject.close.spans.is_empty():
        title = "Ranges of the threads that drive steps"
    return steps_chart(subject.close, title)


def stages(subject: Subject) -> Markup:
    """Draw each GPU's time by stage."""
    whole = subject.run.breakdown.answer(by="stage")
    table = answer_table(whole, "stages", "Time by stage", is_open=True)
    if "ops" not in whole.rows.columns:
        idle_ns, window_ns = whole.meta["idle_ns"], float(whole.meta["window_ns"])
        bar = _stage_bar("Host", whole.rows, idle_ns, window_ns)
        return joined(_stages_drawn([bar], "Time by stage on the host"), table)
    own = subject.run.breakdown.answer(by="device,stage")
    windows = subject.run.breakdown(by="device").select("device", "window_ns", "idle_ns")
    of_each = answer_table(own, "stages-by-gpu", "Time by GPU and stage")
    return joined(_stage_bars(own.rows, windows), table, of_each)


def _stage_bars(rows: pl.DataFrame, windows: pl.DataFrame) -> Markup:
    longest = windows["window_ns"].max()
    bars = []
    for window in windows.sort("device").head(_MOST_DEVICES).iter_rows(named=True):
        parts = rows.filter(device=window["device"])
        bars.append(
            _stage_bar(f"GPU {window['device']}", parts, window["idle_ns"], float(longest or 1))  # type: ignore[arg-type]
        )
    return _stages_drawn(bars, "Time by stage of each GPU")


def _stage_bar(name: str, rows: pl.DataFrame, idle: int, whole: float) -> Bar:
    ordered = rows.sort("stage")
    exposed = [Part(s, s, e) for s, e in ordered.select("stage", "exposed_ns").iter_rows()]
    hidden = [
        Part(f"{stage} hid", f"{stage}, hidden behind other stages", overlap)
        for stage, overlap in ordered.select("stage", "overlap_ns").iter_rows()
    ]
    tracks = [track([*exposed, Part("idle", "idle", idle)], whole)]
    if any(part.length for part in hidden):
        tracks.append(track(hidden, whole, "thin"))
    busy = sum(part.length for part in exposed)
    return Bar(name, tracks, f"{percent(busy / (busy + idle or 1))} busy")


def _stages_drawn(bars: list[Bar], title: str) -> Markup:
    legend = [
        *(Entry(stage, stage) for stage in STAGES),
        Entry("WU hid", "hatched, below: hidden behind other stages"),
        Entry("idle", "idle"),
    ]
    return Bars(title, f"{title}: exposed, hidden and idle time", legend, bars).html()


def steps(subject: Subject) -> Markup:
    """Draw the lengths of steps over time and as a distribution, and name outliers."""
    lengths = subject.close.lengths
    if lengths.height < _SEVERAL:
        return fragment("unknown", "Fewer than two steps are known.")
    numbers, times = lengths["iteration"].to_list(), lengths["step_ns"].to_list()
    odd = _outliers(lengths)
    low, high = min(times), max(times)
    y = time_axis("step", low, high, is_tagged=bool(odd.height))
    x = Axis("step number", numbers[0] - 0.5, numbers[-1] + 0.5)
    points = list(zip(numbers, times, strict=True))
    far = [(row["iteration"], row["step_ns"]) for row in odd.iter_rows(named=True)]
    tags = [step_tag(f"step {n}", x.share(n), y.share(t)) for n, t in far]
    close = subject.close
    medians = [float(own["step_ns"].quantile(0.5, "nearest") or 0) for own in close.kinds]
    text = close.of_kinds or f"median {duration(medians[0])}"
    over_time = Plot(
        "Steps over time", f"Length of {lengths.height} steps, {text}", x, y,
        [*(curve("guide", [(x.low, each), (x.high, each)], x, y) for each in medians),
         dots("dots", points, x, y), dots("odd", far, x, y)],
        tags[:_NAMED], links=_links(subject.close, x, y),
    )  # fmt: skip
    across = time_axis("step", low, high)
    up = Axis("share of steps (%)", 0.0, 1.0, 0.01)
    spread = Plot(
        "Distribution of steps", "Share of steps that take no longer", across, up,
        [curve("line", steps_curve(times), across, up)],
    )  # fmt: skip
    by_iteration = subject.run.breakdown.answer(by="iteration")
    return joined(
        fragment("paragraphs", [_told(odd, medians[0], close.of_kinds)], ""),
        pair(over_time.html(), spread.html()),
        answer_table(by_iteration, "steps", "Time by step"),
    )


def _links(close: Close, x: Axis, y: Axis) -> list[Link]:
    """Return rings around the steps that the op-by-op chart contains, as links to it."""
    length = dict(close.lengths.select("iteration", "step_ns").iter_rows())
    return [
        Link(
            round(100 * x.share(step), 2), round(100 * y.share(length[step]), 2), f"step={step}",
            f"Show {what[:1].lower()}{what[1:]}: {duration(length[step])}",
        )
        for what, step in close.chosen.items()
        if step is not None
    ]  # fmt: skip


def _outliers(lengths: pl.DataFrame) -> pl.DataFrame:
    """Return the steps that take far longer than most steps, longest first."""
    unlike = lengths[outliers(lengths["step_ns"].to_numpy())]
    longer = unlike.filter(pl.col("step_ns") > lengths["step_ns"].median())
    return longer.sort("step_ns", "iteration", descending=[True, False])


def _told(odd: pl.DataFrame, typical: float, kinds: str) -> str:
    if kinds:
        return f"Steps are of several kinds: {kinds} (medians)."
    if odd.is_empty():
        return "No step takes far longer than the others."
    named = [
        f"step {row['iteration']} ({row['step_ns'] / typical:.2f} times the median)"
        for row in odd.head(_NAMED).iter_rows(named=True)
    ]
    more = f", and {odd.height - _NAMED} more" if odd.height > _NAMED else ""
    return f"Far longer than most: {', '.join(named)}{more}."


def ranges(subject: Subject) -> Markup:
    """Draw NVTX ranges as a tree by GPU time, and list the kernels that take most time."""
    run = subject.run
    pieces: list[Markup | None] = []
    if not run.trace["ranges"].head(1).collect().is_empty():
        answer = run.breakdown.answer(by="range", inclusive=True)
        longest = answer.rows["busy_ns"].top_k(_MOST_RANGES)
        least: Any = longest.min() if longest.len() == _MOST_RANGES else 0
        most = answer.rows.filter(pl.col("busy_ns") >= max(1, least or 0))
        pieces += [_icicle(answer.rows), answer_table(answer, "ranges", "Time by range", rows=most)]
    if not run.trace["ops"].head(1).collect().is_empty():
        kernels = run.breakdown.answer(by="kernel")
        most = kernels.rows.head(_MOST_KERNELS)
        pieces.append(answer_table(kernels, "kernels", "Time by kernel", rows=most, is_open=True))
    return joined(*pieces)


def _icicle(rows: pl.DataFrame) -> Markup | None:
    known = rows.filter(pl.col("busy_ns") > 0).unique("range", keep="first", maintain_order=True)
    times = dict(known.select("range", "busy_ns").iter_rows())
    nodes = icicle_nodes(list(times), times, _SEPARATOR)
    if not nodes:
        return None
    title = "GPU time by range: each is inside the one above it"
    return Icicle(title, title, nodes).html()


def idle(subject: Subject) -> Markup:
    """Draw each GPU's idle time by cause."""
    run = subject.run
    causes = subject.close.idle
    gaps = run.idle.answer(longest=_MOST_GAPS)
    return joined(
        _cause_bars(causes.source),
        answer_table(causes, "idle", "Idle time by cause", is_open=True),
        answer_table(gaps, "gaps", "The longest gaps, with evidence for their causes"),
    )


def _cause_bars(rows: pl.DataFrame) -> Markup | None:
    if rows.is_empty():
        return None
    order = {
        cause: cause.replace("_", " ") for cause in CAUSE_COLOURS if cause in set(rows["cause"])
    }
    sums = rows.group_by("device").agg(pl.col("idle_ns").sum())
    longest = float(sums["idle_ns"].max() or 1)  # type: ignore[arg-type]
    bars = []
    for device, total in sums.sort("device").head(_MOST_DEVICES).iter_rows():
        times = dict(rows.filter(device=device).select("cause", "idle_ns").iter_rows())
        parts = [Part(cause, words, times.get(cause, 0)) for cause, words in order.items()]
        bars.append(Bar(f"GPU {device}", [track(parts, longest)], duration(total)))
    legend = [Entry(cause, words) for cause, words in order.items()]
    return Bars("Idle time by cause", "Idle time of each GPU by cause", legend, bars).html()


def ranks(subject: Subject) -> Markup | None:
    """Draw the busy time of each GPU in each step, if there are several GPUs."""
    run = subject.run
    if subject.close.spans["device"].n_unique() < _SEVERAL or subject.close.lengths.is_empty():
        return None
    answer = run.breakdown.answer(by="device,iteration")
    rows = answer.rows.drop_nulls("iteration")
    shown = answer.readable_rows.drop_nulls("iteration").head(_MOST_CELLS)
    table = answer_table(answer, "gpus-by-step", "Time by GPU and step", rows=shown)
    return joined(_busy_map(rows), table)


def _busy_map(rows: pl.DataFrame) -> Markup:
    steps = rows["iteration"].unique().sort()
    shown = steps.gather_every(max(1, -(-steps.len() // _MOST_COLUMNS))).to_list()
    kept = rows.filter(pl.col("iteration").is_in(shown))
    times = kept.group_by("device", "iteration").agg(pl.col("busy_ns").sum())
    low, high = float(times["busy_ns"].min() or 0), float(times["busy_ns"].max() or 0)  # type: ignore[arg-type]
    known = {(device, step): busy for device, step, busy in times.iter_rows()}
    heat_rows = [
        HeatRow(
            f"GPU {device}",
            [_heat_cell(device, step, known.get((device, step)), low, high) for step in shown],
        )
        for device in sorted(set(kept["device"]))[:_MOST_DEVICES]
    ]
    every = f", every {steps.len() // len(shown)}th step" if len(shown) < steps.len() else ""
    note = f"Darker is longer: from {duration(low)} to {duration(high)}{every}."
    return Heat(
        "Busy time of each GPU in each step", [f"{s}" for s in shown], heat_rows, note
    ).html()


def _heat_cell(device: int, step: int, busy: int | None, low: float, high: float) -> HeatCell:
    text = "-" if busy is None else f"{busy / 1e6:.1f}"
    length = "unknown" if busy is None else duration(busy)
    return HeatCell(heat_level(busy, low, high), text, f"GPU {device}, step {step}: busy {length}")


def findings(subject: Subject) -> Markup | None:
    """List the findings of `diagnose`, or say why there are none."""
    _ = subject.close.traffic  # kept for later sections, and so shared with `diagnose`
    answer = subject.run.diagnose.answer()
    if answer.rows.is_empty():
        return fragment("paragraphs", [f"{answer.empty[:1].upper()}{answer.empty[1:]}."], "")
    return joined(
        fragment("findings", answer.readable_rows.to_dicts(), places(subject.close)),
        frame_table(answer.readable_rows, "findings", "The same as a table", meta=answer.meta),
    )
