"""The sections of the report of one run against another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from tracekit.present import MINUS, duration
from tracekit.present.pages import answer_table, fragment, frame_table, joined
from tracekit.report._charts import (
    Axis,
    Bar,
    Bars,
    Entry,
    Piece,
    Plot,
    Track,
    curve,
    steps_curve,
    time_axis,
)
from tracekit.report._gantt import aligned_chart
from tracekit.report._run import unknown
from tracekit.report._section import Section
from tracekit.report._subject import Close
from tracekit.report._verdict import Tile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from markupsafe import Markup

    from tracekit.analysis.comparison import Comparison
    from tracekit.report._subject import Subject


def _compared(subject: Subject, by: str) -> Comparison:
    assert subject.against is not None  # noqa: S101 - these sections are of comparisons
    return subject.library.compare(subject.against, subject.run, by)


def _sides(subject: Subject) -> Mapping[str, Close]:
    assert subject.against is not None  # noqa: S101
    return {"A": Close(subject.library, subject.against), "B": subject.close}


def verdict(subject: Subject) -> Markup:
    """Say whether the step changed, and how sure that is."""
    answer = _compared(subject, "stage")
    step = answer.meta.get("step") or {}
    said = [str(answer.meta["headline"])] if answer.meta.get("headline") else []
    said += [str(text) for text in answer.meta.get("not_comparable") or ()]
    notes = [str(text) for text in answer.meta.get("notes", ())]
    return joined(
        fragment("paragraphs", said, "lead"),
        fragment("tiles", _tiles(step)) if step.get("a_ns") is not None else None,
        fragment("notes", [*notes, f"Method: {answer.meta.get('method', 'none')}"]),
    )


def _tiles(step: Mapping[str, Any]) -> list[Tile]:
    interval = (
        f"95 % interval {_signed(step['low_ns'])} to {_signed(step['high_ns'])}"
        if step.get("low_ns") is not None
        else "no interval can be told"
    )
    return [
        Tile("a_ns", "Step in A, mean", duration(step["a_ns"]), "the base", step["a_ns"]),
        Tile("b_ns", "Step in B, mean", duration(step["b_ns"]), "compared with it", step["b_ns"]),
        Tile("delta_ns", "Change", _signed(step["delta_ns"]), interval, step["delta_ns"]),
        Tile("verdict", "Verdict", str(step.get("verdict") or "unknown"), "of the step"),
    ]


def _signed(length: float) -> str:
    return f"{'+' if length > 0 else MINUS if length < 0 else ''}{duration(abs(length))}"


def waterfall(subject: Subject) -> Markup:
    """Draw which parts of a step changed it, and by how much."""
    answer = _compared(subject, "stage")
    parts = answer.contributions
    widest = float(parts["delta_ns"].abs().max() or 1)  # type: ignore[arg-type]
    bars = [_change(row["part"], row["delta_ns"], row["verdict"], widest)
            for row in parts.iter_rows(named=True)]  # fmt: skip
    legend = [
        Entry("better", "shorter in B, to the left"),
        Entry("worse", "longer in B, to the right"),
    ]
    drawn = Bars("Change of a step by its parts, ms/step/GPU",
                 "Change of the step time by stage, idle and between", legend,
                 [bar for bar in bars if bar is not None])  # fmt: skip
    return joined(
        drawn.html(),
        _on_gpus(answer),
        frame_table(
            parts, "parts", "What the change of a step is made of", meta=_step(answer), is_open=True
        ),
    )  # fmt: skip


def _on_gpus(answer: Comparison) -> Markup | None:
    """Draw the change on each GPU: what got shorter left of the middle, what longer right of it."""
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
    legend = [Entry(part, part) for part in rows["part"].unique(maintain_order=True)]
    title = "Change of a step on each GPU: shorter in B to the left, longer to the right"
    return Bars(title, title, legend, bars).html()


def _both_ways(own: pl.DataFrame, widest: float) -> list[Piece]:
    """Lay the parts of a change away from the middle, each on its side."""
    left = right = 50.0
    pieces = []
    for part, delta in own.select("part", "delta_ns").iter_rows():
        width = 50 * abs(delta) / widest
        title = f"{part}: {_signed(delta)}"
        left -= width if delta < 0 else 0
        if width > 0:
            at = left if delta < 0 else right
            pieces.append(Piece(round(at, 3), round(width, 3), part, title))
        right += width if delta > 0 else 0
    return pieces


def _step(answer: Comparison) -> dict[str, Any]:
    """Return what closes the table of parts: the step that they add up to."""
    return {"step": answer.meta["step"]} if answer.meta.get("step") else {}


def _change(name: object, delta: float | None, verdict: object, widest: float | None) -> Bar | None:
    """Return a bar that goes left of the middle where something got shorter, right where longer."""
    if delta is None:
        return None
    width = 50 * abs(delta) / (widest or abs(delta) or 1)
    left = 50.0 if delta > 0 else 50 - width
    look = "worse" if delta > 0 else "better"
    title = f"{name}: {_signed(delta)}, {verdict or 'unknown'}"
    piece = Piece(round(left, 3), round(width, 3), look, title)
    return Bar(str(name), [Track([piece], "signed")], _signed(delta))


def distributions(subject: Subject) -> Markup:
    """Draw both distributions of steps over each other."""
    sides = _sides(subject)
    times = {side: close.lengths["step_ns"].to_list() for side, close in sides.items()}
    known = [time for own in times.values() for time in own]
    if not all(times.values()):
        return fragment("unknown", "Steps of one of the runs are not known.")
    x = time_axis("step", min(known), max(known))
    y = Axis("share of steps (%)", 0.0, 1.0, 0.01)
    lines = [curve(f"line{side}", steps_curve(own), x, y) for side, own in times.items()]
    legend = [Entry(side, f"{side}: {close.run.name}") for side, close in sides.items()]
    title = "Share of steps that take no longer"
    return Plot(title, title, x, y, lines, legend=legend).html()


def aligned(subject: Subject) -> Markup:
    """Draw the median steps of both runs from one beginning."""
    return aligned_chart(_sides(subject), "The median step of A above that of B")


def changes(subject: Subject, by: str, key: str, title: str) -> Markup:
    """List what changed most."""
    answer = _compared(subject, by)
    rows = answer.rows.sort(pl.col("delta_ns").abs(), descending=True, nulls_last=True)
    return frame_table(rows, key, title, is_open=True)


def _tables(subject: Subject) -> Markup:
    return joined(
        changes(subject, "kernel", "kernels", "Change by kernel"),
        answer_table(_compared(subject, "stage"), "stages", "Change by stage"),
    )


COMPARISON_SECTIONS = (
    Section("verdict", "Verdict", "Is B faster than A, by how much, and is that shown?", verdict),
    Section("parts", "What changed", "Which parts of a step carry the change?", waterfall),
    Section("distributions", "Steps", "Did all steps change, or some?", distributions),
    Section("step", "One step of each", "Where in a step do they part?", aligned),
    Section("changes", "Top changes", "Which kernels and stages changed most?", _tables),
    Section("unknown", "Not known", "What can the recording of B not say?", unknown),
)
"""In the order of the page."""
