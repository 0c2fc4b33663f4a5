"""Sections of the report of a study with several runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from tracekit.model import Answer
from tracekit.present import duration, with_headline
from tracekit.present.pages import answer_table, fragment, joined
from tracekit.report._charts import Bar, Bars, Entry, Part, track
from tracekit.report._section import Section
from tracekit.report._subject import Subject

_PARTS = {
    "fp_bp_ns": ("BP", "FP and BP"),
    "wu_exposed_ns": ("WU", "WU, exposed"),
    "io_exposed_ns": ("IO", "IO, exposed"),
    "me_exposed_ns": ("ME", "ME, exposed"),
    "other_exposed_ns": ("OTHER", "OTHER, exposed"),
    "idle_ns": ("idle", "idle"),
    "between_ns": ("between", "between steps"),
}


def _study(subject: Subject) -> Answer:
    return subject.library.study(subject.runs)


def runs(subject: Subject) -> Markup:
    """Draw the parts of a step of each run."""
    answer = _study(subject)
    known = answer.rows.drop_nulls("step_ns")
    table = answer_table(answer, "study", "Steps of all runs", is_open=True)
    if known.is_empty():
        return joined(fragment("unknown", "Steps of none of the runs are known."), table)
    longest = float(known["step_ns"].max() or 1)  # type: ignore[arg-type]
    bars = [_bar(row, longest) for row in known.sort("step_ns").iter_rows(named=True)]
    legend = [Entry(look, name) for look, name in _PARTS.values()]
    title = "Parts of a step, ms/step/GPU"
    return joined(Bars(title, title, legend, bars).html(), table)


def _bar(row: Mapping[str, Any], longest: float) -> Bar:
    parts = [Part(look, name, row[column] or 0.0) for column, (look, name) in _PARTS.items()]
    return Bar(row["run"], [track(parts, longest)], duration(row["step_ns"]))


def fastest(subject: Subject) -> Markup:
    """Say which run has the shortest and which the longest step."""
    answer = _study(subject)
    known, told = answer.rows.drop_nulls("step_ns"), with_headline(answer).get("headline")
    if told is None:
        return fragment("unknown", "Steps of none of the runs are known.")
    said = [
        f"{told}.",
        "Runs of different networks, batches or numbers of GPUs do not take the same steps.",
    ]
    alike = known.select("network", "batch", "gpus").unique().height == 1
    return fragment("paragraphs", said[:1] if alike else said, "lead")


STUDY_SECTIONS = (
    Section("verdict", "Verdict", "Which runs take the shortest and the longest steps?", fastest),
    Section("runs", "Runs", "Which parts does a step of each run have?", runs),
)
"""In the order of the page."""
