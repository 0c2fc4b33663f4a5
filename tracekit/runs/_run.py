"""A run, and the questions that it answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tracekit.errors import MissingDataError
from tracekit.runs import _questions
from tracekit.runs._declared import DeclaredQuestions
from tracekit.runs._opened import OpenedRun
from tracekit.runs._question import RunQuestion
from tracekit.support.files import StrPath, write_whole


class Run(OpenedRun, DeclaredQuestions):
    """One run of a store, and the questions that it answers.

    Made by `open` and `ingest`, not by hand.
    """

    diagnose = RunQuestion(_questions.diagnose)
    sql = RunQuestion(_questions.sql)

    def _repr_html_(self) -> str | None:
        try:
            return self.breakdown.answer()._repr_html_()
        except MissingDataError:
            return self.info.answer()._repr_html_()

    def report(
        self, path: StrPath, *, against: Run | None = None, beside: Sequence[Run] = ()
    ) -> None:
        """Write a page about the run, what differs from another, or a study: ``docs/report.md``.

        Parameters
        ----------
        path
            The file to write, one page that loads nothing.
        against
            The run to compare with.
        beside
            The other runs of the study that the page is about.
        """
        from tracekit.runs._reports import report_of

        write_whole(Path(path), report_of([self, *beside], against=against).encode())
