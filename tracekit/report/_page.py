"""Writes the report page of a run, a comparison or a study, with notes on missing data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from tracekit.errors import MissingDataError, UsageError
from tracekit.model import Answer
from tracekit.present import duration, with_headline
from tracekit.present.pages import PageSection, answer_table, fragment, joined, page_of
from tracekit.report._comparison import COMPARISON_SECTIONS
from tracekit.report._run_sections import RUN_SECTIONS
from tracekit.report._subject import AskedRun, Library, Section, Subject
from tracekit.report._svg_charts import Bar, Bars, Entry, Part, track


def report_of(
    library: Library, runs: Sequence[AskedRun], *, against: AskedRun | None = None
) -> str:
    """Return the report page of one run, of one run compared with another, or of a study.

    Parameters
    ----------
    library
        Interface that answers questions about several runs.
    runs
        The run; or several runs, which form a study.
    against
        The run to compare with; None for no comparison.

    Raises
    ------
    UsageError
        If `against` is given with several runs.
    """
    if against is not None and len(runs) > 1:
        raise UsageError("--against compares one run with another", "name one run")
    subject = Subject(library, tuple(runs), against)
    sections: Sequence[Section] = STUDY_SECTIONS if len(runs) > 1 else RUN_SECTIONS
    if against is not None:
        sections = COMPARISON_SECTIONS
    filled = [_fill(each, subject) for each in sections]
    return page_of(
        subject.title,
        subject.subtitle,
        [section for section in filled if section is not None],
        what="report",
        version=library.version,
    )


def _fill(section: Section, subject: Subject) -> PageSection | None:
    try:
        body = section.fill(subject)
    except (MissingDataError, UsageError) as error:
        hint = f"{error.hint[:1].upper()}{error.hint[1:]}." if error.hint else ""
        body = fragment("unknown", f"{error.what[:1].upper()}{error.what[1:]}. {hint}")
    if body is None:
        return None
    return PageSection(section.key, section.title, section.question, body)


_PARTS = {
    "fp_bp_ns": ("BP", "FP and BP"),
    "wu_exposed_ns": ("WU", "WU, exposed"),
    "io_exposed_ns": ("IO", "IO, exposed"),
    "me_exposed_ns": ("ME", "ME, exposed"),
    "other_exposed_ns": ("OTHER", "OTHER, exposed"),
    "idle_ns": ("idle", "idle"),
    "between_steps_ns": ("between_steps", "between steps"),
}


def _study(subject: Subject) -> Answer:
    return subject.library.study(subject.runs)


def runs(subject: Subject) -> Markup:
    """Draw the parts of the step of each run."""
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
    """State which runs have the shortest and the longest step."""
    answer = _study(subject)
    known, headline = answer.rows.drop_nulls("step_ns"), with_headline(answer).get("headline")
    if headline is None:
        return fragment("unknown", "Steps of none of the runs are known.")
    texts = [
        f"{headline}.",
        "Runs of different networks, batches or numbers of GPUs do not take the same steps.",
    ]
    alike = known.select("network", "batch", "gpus").unique().height == 1
    return fragment("paragraphs", texts[:1] if alike else texts, "lead")


STUDY_SECTIONS = (
    Section("verdict", "Verdict", "Which runs take the shortest and the longest steps?", fastest),
    Section("runs", "Runs", "Which parts does a step of each run have?", runs),
)
"""Sections of the page, in order."""
