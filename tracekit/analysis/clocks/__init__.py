"""Whose times can be compared: what speaks for the clocks of several reports."""

from typing import TYPE_CHECKING

from tracekit.support.lazily import lazily

if TYPE_CHECKING:
    from tracekit.analysis.clocks._align import align, aligned, clock_evidence

_HOMES = {
    "align": "tracekit.analysis.clocks._align",
    "aligned": "tracekit.analysis.clocks._align",
    "clock_evidence": "tracekit.analysis.clocks._align",
}

__all__ = [
    "align",
    "aligned",
    "clock_evidence",
]

__getattr__, __dir__ = lazily(__name__, _HOMES)
