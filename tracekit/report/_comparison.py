"""Sections of the report that compares one run with another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from tracekit.analysis.comparison import carriers
from tracekit.present import MINUS, duration, percent, stage_name
from tracekit.present.pages import fragment, frame_table, joined
from tracekit.report._gantt import aligned_chart
from tracekit.report._run_sections import unknown
from tracekit.report._subject import Close, Section
from tracekit.report._svg_charts import (
    Axis,
    Bar,
    Bars,
    Entry,
    Piece,
    Plot,
    Track,
    curve,
    dots,
    pair,
    step_tag,
    steps_curve,
    time_axis,
)
from tracekit.report._verdict_section import Tile

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from markupsafe import Markup

    from tracekit.analysis.comparison import Comparison
    from tracekit.report._subject import Subject

_MOST_TAGS = 8


def _compared(subject: Subject, by: str) -> Comparison:
    assert subject.against is not None  # noqa: S101 - these sections are of comparisons
    return subject.library.compare(subject.against, subject.run, by)


def _sides(subject: Subject) -> Mapping[str, Close]:
    assert subject.against is not None  # noqa: S101
    return {"A": Close(subject.library, subject.against), "B": subject.close}


def verdict(subject: Subject) -> Markup:
    """State whether and by how much the step time changed, and in which part of a step."""
    answer = _compared(subject, "stage")
    step, reasons = answer.meta.get("step") or {}, answer.meta.get("not_comparable") or ()
    sentences = [f"These runs cannot be compared: {'; '.join(reasons)}."] if reasons else []
    if step.get("a_ns") is None:
        sentences += [str(answer.meta.get("headline") or "No step of both runs is known.")]
        return fragment("paragraphs", sentences, "lead")
    sentences.append(_change_told(step, answer.tables["outliers"]))
    sentences += _carried(answer.contributions, step)
    sentences += _kinds(_sides(subject))
    return joined(fragment("paragraphs", sentences, "lead"), fragment("tiles", list(_tiles(step))))


def _kinds(sides: Mapping[str, Close]) -> list[str]:
    """Return a sentence per run whose steps have several modes of length, with their medians."""
    return [
        f"Steps of {side} are of several kinds: {close.of_kinds} (medians)."
        for side, close in sides.items() if close.of_kinds
    ]  # fmt: skip


_SHOWN = ("faster", "slower")
_PARTS = {
    "FP": "forward propagation, FP", "BP": "backward propagation, BP", "WU": "weight update, WU",
    "IO": "input, IO", "ME": "evaluation, ME", "OTHER": "work of no known stage",
    "idle": "idle time in steps", "between_steps": "time between steps",
}  # fmt: skip
"""Parts of a step in words."""


def _change_told(step: Mapping[str, Any], odd: pl.DataFrame) -> str:
    """Return a sentence: the step time in B, and whether the data show a change."""
    a, b, delta = step["a_ns"], step["b_ns"], step["delta_ns"]
    means = f"{duration(b)} in place of {duration(a)}"
    if not delta:
        return f"A step of B takes as long as one of A: {duration(a)}."
    if step["verdict"] in _SHOWN:
        return (
            f"A step of B takes {means} in the mean, {_less(delta)} ({percent(abs(delta) / a)}); "
            f"the recordings show it ({_interval(step, '')})."
        )
    if step.get("shift_verdict") in _SHOWN:
        far = f"; of its steps {odd.height:,} are far off the others" if odd.height else ""
        return (
            f"A typical step of B takes {_less(step['shift_ns'])} than one of A; the recordings "
            f"show it ({_interval(step, 'shift_')}). The mean of all steps, {means}, shows no "
            f"difference{far}."
        )
    if step["verdict"] is None:
        return f"A step of B takes {means} in the mean, without a verdict."
    if step["verdict"] in ("unknown", "not enough iterations"):
        why = step.get("reason") or "there are too few steps"
        return f"Whether B is faster is unknown ({why}): its step takes {means} in the mean."
    return f"No difference is shown: a step of B takes {means} in the mean ({_interval(step, '')})."


def _less(delta: float) -> str:
    return f"{duration(abs(delta))} {'less' if delta < 0 else 'more'}"


def _interval(step: Mapping[str, Any], prefix: str) -> str:
    low, high = step.get(f"{prefix}low_ns"), step.get(f"{prefix}high_ns")
    if low is None or high is None:
        return "the interval is unknown"
    return f"95 % interval {_signed(low)} to {_signed(high)}"


def _carried(parts: pl.DataFrame, step: Mapping[str, Any]) -> list[str]:
    """Return a sentence on the parts that make up most of a significant change of the mean step."""
    verdicts = (step["verdict"], step.get("shift_verdict"))
    if not step["delta_ns"] or not set(verdicts) & set(_SHOWN):
        return []
    found = carriers(parts, step["delta_ns"])
    how = "is carried by" if found.are_shown else "is mostly that of"
    other = f"; the other way went {_listed(found.against)}" if found.against.height else ""
    return [f"The change of the mean {how} {_listed(found.most)}{other}."]


def _listed(parts: pl.DataFrame) -> str:
    rows = parts.select("part", "delta_ns", pl.col("verdict").fill_null("no verdict")).iter_rows()
    return " and ".join(
        f"{_PARTS[part]} ({_signed(delta)}{'' if verdict in _SHOWN else f', {verdict}'})"
        for part, delta, verdict in rows
    )


def _tiles(step: Mapping[str, Any]) -> Iterator[Tile]:
    yield Tile("a_ns", "Step in A, mean", duration(step["a_ns"]), "the base", step["a_ns"])
    yield Tile("b_ns", "Step in B, mean", duration(step["b_ns"]), "compared with it", step["b_ns"])
    yield _change_tile(step, "", "delta_ns", "Change of the mean")
    if step.get("shift_ns") is not None:
        yield _change_tile(step, "shift_", "shift_ns", "Change of a typical step")


def _change_tile(step: Mapping[str, Any], prefix: str, name: str, label: str) -> Tile:
    text = f"{step.get(f'{prefix}verdict') or 'no verdict'}; {_interval(step, prefix)}"
    return Tile(name, label, _signed(step[name]), text, step[name])


def _signed(length: float) -> str:
    return f"{'+' if length > 0 else MINUS if length < 0 else ''}{duration(abs(length))}"


def waterfall(subject: Subject) -> Markup:
    """Draw how much each part of a step (stage, idle time) adds to the change of its time."""
    answer = _compared(subject, "stage")
    parts = answer.contributions.select(pl.exclude("a_total_ns", "b_total_ns"))
    step = answer.meta.get("step") or {}
    rows = parts.filter((pl.col("a_ns") != 0) | (pl.col("b_ns") != 0)).to_dicts()
    rows += [{**step, "part": "step, mean"}] if step.get("delta_ns") is not None else []
    if step.get("shift_ns") is not None:
        typical = {"delta_ns": step["shift_ns"]}
        typical |= {name: step[f"shift_{name}"] for name in ("low_ns", "high_ns", "verdict")}
        rows.append({**typical, "part": "step, typical"})
    rows = [row for row in rows if row["delta_ns"] is not None]
    ends = [row.get(name) for row in rows for name in ("delta_ns", "low_ns", "high_ns")]
    widest = max((abs(end) for end in ends if end is not None), default=0.0) or 1.0
    legend = [
        Entry("better", "shorter in B, to the left"),
        Entry("worse", "longer in B, to the right"),
        Entry("whisker", "95 % interval"),
    ]
    drawn = Bars("Change of a step by its parts, ms/step/GPU",
                 "Change of the step time by stage, idle and between steps", legend,
                 [_change(row, widest) for row in rows])  # fmt: skip
    return joined(
        drawn.html(),
        _on_gpus(answer),
        frame_table(
            parts, "parts", "Change of a step by its parts", meta=_step(answer), is_open=True
        ),
    )  # fmt: skip


def _on_gpus(answer: Comparison) -> Markup | None:
    """Draw each GPU's change by part of the step, savings to the left; None with one GPU only."""
    rows = answer.on_devices
    if rows["device"].n_unique() < 2:  # noqa: PLR2004 - one GPU is the whole chart above
        return None
    gpus = rows.partition_by("device", maintain_order=True)
    sums = [
        own.group_by(longer=pl.col("delta_ns") > 0).agg(pl.col("delta_ns").sum()) for own in gpus
    ]
    widest = max(abs(delta) for own in sums for delta in own["delta_ns"].to_list()) or 1.0
    bars = [
        Bar(
            f"GPU {own['device'][0]}",
            [Track(_both_ways(own, widest), "signed")],
            _signed(sum(own["delta_ns"].to_list())),
        )
        for own in gpus
    ]
    legend = [Entry(part, stage_name(part)) for part in rows["part"].unique(maintain_order=True)]
    title = "Change of a step on each GPU: shorter in B to the left, longer to the right"
    return Bars(title, title, legend, bars).html()


def _both_ways(own: pl.DataFrame, widest: float) -> list[Piece]:
    """Lay out one GPU's changes as a bar: parts that got shorter to the left, others right."""
    left = right = 50.0
    pieces = []
    for part, delta in own.select("part", "delta_ns").iter_rows():
        width = 50 * abs(delta) / widest
        title = f"{stage_name(part)}: {_signed(delta)}"
        left -= width if delta < 0 else 0
        if width > 0:
            at = left if delta < 0 else right
            pieces.append(Piece(round(at, 3), round(width, 3), part, title))
        right += width if delta > 0 else 0
    return pieces


def _step(answer: Comparison) -> dict[str, Any]:
    """Return the last row of the table of contributions: the whole step, which is their sum."""
    return {key: answer.meta[key] for key in ("step", "per")} if answer.meta.get("step") else {}


def _change(row: Mapping[str, Any], widest: float) -> Bar:
    """Return the bar of one part's change: to the left for a saving, to the right for a loss."""
    delta, low, high = row["delta_ns"], row.get("low_ns"), row.get("high_ns")
    shown = row.get("verdict") or "no verdict"
    part = stage_name(row["part"])
    title = f"{part}: {_signed(delta)}, {shown}"
    pieces = [
        _piece(min(delta, 0), max(delta, 0), widest, "worse" if delta > 0 else "better", title)
    ]
    if low is not None and high is not None:
        pieces.append(_piece(low, high, widest, "whisker", f"{title}; {_interval(row, '')}"))
    return Bar(part, [Track(pieces, "signed")], f"{_signed(delta)}, {shown}")


def _piece(start: float, end: float, widest: float, look: str, title: str) -> Piece:
    """Return a segment of a bar, for the change from `start` to `end`, in a range of ± `widest`."""
    left, width = 50 + 50 * start / widest, 50 * (end - start) / widest
    return Piece(round(left, 3), round(width, 3), look, title)


def distributions(subject: Subject) -> Markup:
    """Draw the steps of both runs over time and as distributions, and explain outliers."""
    answer = _compared(subject, "stage")
    sides = {own["side"][0]: own for own in answer.tables["steps"].partition_by("side")}
    if len(sides) < 2:  # noqa: PLR2004 - A and B
        return fragment("unknown", "Steps of one of the runs are not known.")
    legend = [Entry(side, f"{side}: {own['run'][0]}") for side, own in sides.items()]
    times = answer.tables["steps"]["step_ns"]
    low, high = float(times.min()), float(times.max())  # type: ignore[arg-type]
    up = Axis("share of steps (%)", 0.0, 1.0, 0.01)
    across = time_axis("step", low, high)
    lines = [curve(f"line{side}", steps_curve(own["step_ns"].to_list()), across, up)
             for side, own in sides.items()]  # fmt: skip
    title = "Share of steps that take no longer"
    return joined(
        pair(
            _over_time(sides, low, high, legend),
            Plot(title, title, across, up, lines, legend=legend).html(),
        ),
        _far_off(answer.tables["outliers"]),
    )


def _over_time(
    sides: Mapping[str, pl.DataFrame], low: float, high: float, legend: list[Entry]
) -> Markup:
    y = time_axis("step", low, high, is_tagged=True)
    numbers = [number for own in sides.values() for number in own["iteration"].to_list()]
    x = Axis("step number", min(numbers) - 0.5, max(numbers) + 0.5)
    lines, tags = [], []
    for side, own in sides.items():
        lines.append(curve(f"line{side}", own.select("iteration", "step_ns").rows(), x, y))
        far = own.filter("is_outlier").select("iteration", "step_ns").rows()
        lines.append(dots("odd", far, x, y))
        tags += [step_tag(f"{side}: {number}", x.share(number), y.share(t)) for number, t in far]
    title = "Steps over time; those far off have a number"
    return Plot(title, title, x, y, lines, tags[:_MOST_TAGS], legend).html()


def _far_off(odd: pl.DataFrame) -> Markup:
    if odd.is_empty():
        return fragment("paragraphs", ["No step of either run is far off the others."], "")
    return frame_table(odd, "outliers", "Steps far off the others, and why", is_open=True)


def aligned(subject: Subject) -> Markup:
    """Draw the typical step of each run op by op, aligned at the start."""
    return aligned_chart(_sides(subject), "The {} of A above the {} of B")


def changes(subject: Subject, by: str, key: str, title: str) -> Markup:
    """List the groups (values of the key `by`, such as kernels) whose time changed most."""
    answer = _compared(subject, by)
    rows = answer.readable_rows.sort(pl.col("delta_ns").abs(), descending=True, nulls_last=True)
    return frame_table(rows, key, title, is_open=True)


def _tables(subject: Subject) -> Markup:
    return joined(
        changes(subject, "kernel", "kernels", "Change by kernel"),
        changes(subject, "stage", "stages", "Change by stage"),
    )


def method(subject: Subject) -> Markup:
    """State how the verdict was reached."""
    meta = _compared(subject, "stage").meta
    texts = [f"Method: {meta.get('method', 'none')}", f"In short: {meta.get('headline', '')}"]
    return fragment("notes", [*map(str, meta.get("notes", ())), *texts])


COMPARISON_SECTIONS = (
    Section("verdict", "Verdict", "Is B faster than A, by how much, and is that shown?", verdict),
    Section("parts", "What changed", "Which parts of a step carry the change?", waterfall),
    Section("distributions", "Steps", "Did all steps change, or some?", distributions),
    Section("step", "One step of each", "Where in a step do they part?", aligned),
    Section("changes", "Top changes", "Which kernels and stages changed most?", _tables),
    Section("method", "Method", "What is the verdict based on?", method),
    Section("unknown", "Not known", "What is not in the recording of B?", unknown),
)
"""Sections of the page, in order."""
