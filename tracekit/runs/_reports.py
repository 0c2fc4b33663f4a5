"""The page about runs, with what it asks of the library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracekit import report
from tracekit._version import __version__
from tracekit.analysis.studies.questions import study
from tracekit.runs._comparisons import compare
from tracekit.runs._declared import shown
from tracekit.runs._facts import called
from tracekit.runs._selection import Selection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.analysis.comparison import Comparison, Skip
    from tracekit.model import Answer
    from tracekit.report import AskedRun


class _Library:
    """Implementation of `tracekit.report.Library`."""

    version = __version__

    def study(self, runs: Sequence[Any], /, *, skip: Skip = "auto") -> Answer:
        """Return what steps of some runs take, without so many at the beginning of each."""
        chosen = Selection(runs)
        return shown(chosen, study(chosen, skip=skip))

    def compare(self, a: Any, b: Any, by: str, /) -> Comparison:
        """Return what differs between two runs."""
        return compare(a, b, by)

    def called(self, run: Any, /) -> str:
        """Return what titles call a run."""
        return called(run)


def report_of(runs: Sequence[AskedRun], *, against: AskedRun | None = None) -> str:
    """Return the page about a run, what changed in it, or a study; see `tracekit.report`."""
    for run in runs if against is None else (*runs, against):
        run.require_memory("report")
    return report.report_of(_Library(), runs, against=against)
