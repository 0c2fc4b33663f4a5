"""The report: one HTML page that answers first questions about a run, two runs, or a study."""

from tracekit.report._page import report_of
from tracekit.report._subject import AskedRun, Library, Section

__all__ = ["AskedRun", "Library", "Section", "report_of"]
