"""Where GPU time goes, by any of several keys."""

from typing import TYPE_CHECKING

from tracekit.support.lazily import lazily

if TYPE_CHECKING:
    from tracekit.analysis.breakdowns._breakdown import StepTimes, breakdown, step_times

_HOMES = {
    "StepTimes": "tracekit.analysis.breakdowns._breakdown",
    "breakdown": "tracekit.analysis.breakdowns._breakdown",
    "step_times": "tracekit.analysis.breakdowns._breakdown",
}

__all__ = [
    "StepTimes",
    "breakdown",
    "step_times",
]

__getattr__, __dir__ = lazily(__name__, _HOMES)
