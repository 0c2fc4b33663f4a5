"""HTML pages of an answer, and of the view, whose script requests its data."""

from __future__ import annotations

from markupsafe import Markup

from tracekit.model import STAGES, Answer
from tracekit.present._headlines import with_headline
from tracekit.present.pages._figure import figure_block
from tracekit.present.pages._fragments import fragment, joined
from tracekit.present.pages._shell import PageSection, page_of
from tracekit.present.pages._table import frame_table

_SAID = ("question", "headline")
"""Keys of meta that are shown above the table."""


def answer_page(answer: Answer) -> str:
    """Return an answer as an HTML page."""
    parts = answer.parts or {"answer": answer}
    sections = [
        PageSection(name, str(part.meta.get("question") or part.title), "", body)
        for name, part in parts.items()
        for body in [_body(name, part, part.title if answer.parts else "")]
    ]
    return page_of(
        answer.title or f"tracekit {answer.command}",
        str(answer.meta["of_runs"]) if answer.parts else "",
        sections,
        what="answer",
        has_contents=bool(answer.parts),
    )


def _body(name: str, part: Answer, caption: str) -> Markup:
    headline = with_headline(part).get("headline")
    drawings = part.figures if part.rows.height else ()
    return joined(
        fragment("paragraphs", [str(headline)], "lead") if headline else None,
        *(figure_block(part.figure(each), f"{name}-{each}") for each in drawings),
        _table(name, part, caption),
        *(
            frame_table(part.tables[each], each, each.capitalize(), is_open=True)
            for each in part.listed
        ),
    )


def _table(name: str, part: Answer, caption: str) -> Markup | None:
    """Return the rows as a table; without rows a sentence, unless another one says so already."""
    if part.for_people.is_empty():
        told = part.meta.get("headline")
        return (
            None if told or not part.for_people.width else fragment("paragraphs", [part.empty], "")
        )
    meta = {key: value for key, value in part.meta.items() if key not in _SAID}
    return frame_table(part.for_people, name, caption or "Rows", meta=meta, is_open=True)


_LEGEND = {
    **{stage: stage for stage in STAGES},
    "WU hid": "hatched: collectives and copies between GPUs",
    "idle": "ranges of no stage",
}
_CHART = {
    "label": "Ops of the run by GPU and stream",
    "views": (),
    "legend": [{"look": look, "text": text} for look, text in _LEGEND.items()],
}


def view_page(version: str) -> str:
    """Return the page of the view, without data of any run.

    Parameters
    ----------
    version
        Version of the server.
    """
    section = PageSection("run", "", "", fragment("run_chart", _CHART))
    return page_of(
        "View", "", [section], what="view", version=version, has_contents=False, asks=True
    )
