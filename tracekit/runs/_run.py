"""A run with all questions as methods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit import analysis, model, present
from tracekit.errors import MissingDataError
from tracekit.runs._declared import DeclaredQuestions
from tracekit.runs._opened import OpenedRun
from tracekit.runs._question import RunQuestion, of_run
from tracekit.support.files import StrPath, write_whole

if TYPE_CHECKING:
    from tracekit.view import View


def sql(run: OpenedRun, /, query: str) -> model.Answer:
    """Run a read-only SQL statement over the canonical tables.

    Raises
    ------
    UsageError
        If the statement is invalid, or is not read-only.
    """
    rows = analysis.query(run.trace, query, run.derived())
    answer = model.Answer(
        rows=rows, meta={"query": query}, command="sql",
        headline=lambda rows, _: present.count(rows.height, "row"),
    )  # fmt: skip
    found = of_run(run, answer)
    return replace(found, title="")


class Run(OpenedRun, DeclaredQuestions):
    """A run of a store, with all questions as methods; create it with `open` or `ingest`."""

    sql = RunQuestion(sql)

    def _repr_html_(self) -> str | None:
        try:
            return self.breakdown.answer()._repr_html_()
        except MissingDataError:
            return self.info.answer()._repr_html_()

    def report(
        self, path: StrPath, *, against: Run | None = None, beside: Sequence[Run] = ()
    ) -> None:
        """Write an HTML page about the run, a comparison or a study (``docs/report.md``).

        Parameters
        ----------
        path
            The file to write, one self-contained page.
        against
            The run to compare with; None for no comparison.
        beside
            Further runs of the study that the page is about.
        """
        from tracekit.runs._report_page import report_of

        write_whole(Path(path), report_of([self, *beside], against=against).encode())

    def view(self, *, beside: Sequence[Run] = (), port: int = 0, opens: bool = True) -> View:
        """Serve the run as a page to scroll through, until it is closed: ``docs/view.md``.

        Parameters
        ----------
        beside
            Further runs to show.
        port
            Port on 127.0.0.1; 0 for any free port.
        opens
            Whether to open a browser; otherwise open `View.address`.
        """
        from tracekit.view import View

        return View([self, *beside], port=port, opens=opens)
