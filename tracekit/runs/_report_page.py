"""Write the report page (HTML) of runs; supply the analyses of several runs that it shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracekit import report
from tracekit._version import __version__
from tracekit.analysis.studies.questions import study
from tracekit.runs._comparisons import compare
from tracekit.runs._declared import shown
from tracekit.runs._question import Selection, called

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.analysis.comparison import Comparison
    from tracekit.model import Answer
    from tracekit.report import AskedRun


class _Library:
    """Implementation of `tracekit.report.Library`."""

    version = __version__

    def study(self, runs: Sequence[Any], /) -> Answer:
        """Return an answer (table) with the step times of each run."""
        chosen = Selection(runs)
        return shown(chosen, study(chosen))

    def compare(self, a: Any, b: Any, by: str, /) -> Comparison:
        """Compare the step time of two runs; `by` is what it is split by, such as ``stage``."""
        return compare(a, b, by)

    def called(self, run: Any, /) -> str:
        """Return the display name of a run."""
        return called(run)


def report_of(runs: Sequence[AskedRun], *, against: AskedRun | None = None) -> str:
    """Return an HTML page on runs, or on a run's change since `against`; see `tracekit.report`."""
    for run in runs if against is None else (*runs, against):
        run.require_memory("report")
    return report.report_of(_Library(), runs, against=against)
