"""The page about runs, with what it asks of the library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracekit._version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit import Run
    from tracekit.analysis.comparison import Comparison
    from tracekit.model import Answer


class _Library:
    """What `tracekit.report.Library` asks for."""

    version = __version__

    def study(self, runs: Sequence[Any], /) -> Answer:
        """Return what steps of some runs take."""
        from tracekit._studies import study

        return study.answer(list(runs))

    def compare(self, a: Any, b: Any, by: str, /) -> Comparison:
        """Return what differs between two runs."""
        from tracekit._comparisons import compare

        return compare(a, b, by)

    def called(self, run: Any, /) -> str:
        """Return what titles call a run."""
        from tracekit._questions import called

        return called(run)


def report_of(runs: Sequence[Run], *, against: Run | None = None) -> str:
    """Return the page about a run, what changed in it, or a study; see `tracekit.report`."""
    from tracekit import report

    return report.report_of(_Library(), runs, against=against)
