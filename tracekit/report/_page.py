"""The page: sections about runs, and notes where data are missing."""

from __future__ import annotations

from collections.abc import Sequence

from tracekit.errors import MissingDataError, UsageError
from tracekit.present.pages import PageSection, fragment, page_of
from tracekit.report._charts import cause_style
from tracekit.report._comparison import COMPARISON_SECTIONS
from tracekit.report._run import RUN_SECTIONS
from tracekit.report._section import Section
from tracekit.report._study import STUDY_SECTIONS
from tracekit.report._subject import AskedRun, Library, Subject


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
    filled = [_fill(each, subject) for each in sections]
    return page_of(
        subject.title,
        subject.subtitle,
        [section for section in filled if section is not None],
        what="report",
        version=library.version,
        style=cause_style(),
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
