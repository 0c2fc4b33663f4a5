"""A section of the report, and the tables that list them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from markupsafe import Markup

from tracekit.report._subject import Subject


class Section(NamedTuple):
    """A part of the report.

    Parameters
    ----------
    key
        Its place in the page: what comes after ``#``.
    title
        Its heading.
    question
        What it answers.
    fill
        Returns what it says of a subject, or None where it does not concern it. Where it raises
        that data are missing, the section says so.
    """

    key: str
    title: str
    question: str
    fill: Callable[[Subject], Markup | None]
