"""The page: its sections, filled, and a policy under which it can load and send nothing."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING

from markupsafe import Markup

from tracekit.errors import MissingDataError, UsageError
from tracekit.report._charts import cause_style
from tracekit.report._comparison import COMPARISON_SECTIONS
from tracekit.report._fragments import environment, fragment
from tracekit.report._run import RUN_SECTIONS
from tracekit.report._study import STUDY_SECTIONS
from tracekit.report._subject import Subject

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.report._section import Section
    from tracekit.report._subject import AskedRun, Library


@dataclass(frozen=True)
class _Filled:
    key: str
    title: str
    question: str
    body: Markup


def report_of(
    library: Library, runs: Sequence[AskedRun], *, against: AskedRun | None = None
) -> str:
    """Return the report of one run, of one run against another, or of several as a study.

    Parameters
    ----------
    library
        What answers questions about several runs.
    runs
        The run; or several, which are taken for a study.
    against
        The run that the one is compared with.

    Raises
    ------
    UsageError
        If several runs are to be compared with another.
    """
    if against is not None and len(runs) > 1:
        raise UsageError("--against compares one run with another", "name one run")
    subject = Subject(library, tuple(runs), against)
    sections: Sequence[Section] = STUDY_SECTIONS if len(runs) > 1 else RUN_SECTIONS
    if against is not None:
        sections = COMPARISON_SECTIONS
    return _rendered(subject, [_fill(each, subject) for each in sections])


def _fill(section: Section, subject: Subject) -> _Filled | None:
    try:
        body = section.fill(subject)
    except (MissingDataError, UsageError) as error:
        hint = f"{error.hint[:1].upper()}{error.hint[1:]}." if error.hint else ""
        body = fragment("unknown", f"{error.what[:1].upper()}{error.what[1:]}. {hint}")
    if body is None:
        return None
    return _Filled(section.key, section.title, section.question, body)


def _rendered(subject: Subject, sections: Sequence[_Filled | None]) -> str:
    script, style = _asset("report.js"), _asset("report.css")
    return (
        environment()
        .get_template("page.jinja")
        .render(
            policy=_policy(script),
            title=subject.title,
            subtitle=subject.subtitle,
            version=subject.library.version,
            style=Markup(style + cause_style()),  # noqa: S704 - our own file
            script=Markup(script),  # noqa: S704 - our own file
            sections=[section for section in sections if section is not None],
        )
    )


def _asset(name: str) -> str:
    return (files("tracekit.report") / "page" / name).read_text(encoding="utf-8")


def _policy(script: str) -> str:
    """Return a policy by which the page runs that script alone, and loads nothing."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
