"""Comparisons of runs: differences of their steps, and which differences are significant."""

from typing import TYPE_CHECKING

from tracekit.support.lazily import lazily

if TYPE_CHECKING:
    from tracekit.analysis.comparison._compare_runs import compare
    from tracekit.analysis.comparison._headline import Metric, carriers
    from tracekit.analysis.comparison._history import change_points, history, typical_step, unlike
    from tracekit.analysis.comparison._limit import check_limit
    from tracekit.analysis.comparison._outliers import steps_of_run
    from tracekit.analysis.comparison._prepared import Comparison, Recorded, apart
    from tracekit.analysis.comparison._recordings import compare_recordings
    from tracekit.analysis.statistics import Skip, modes, outliers

__getattr__, __dir__ = lazily(__name__)
