"""The report: one page that says of a run, of two, or of a study what people ask first."""

from tracekit.report._page import report_of
from tracekit.report._section import Section
from tracekit.report._subject import AskedRun, Library

__all__ = ["AskedRun", "Library", "Section", "report_of"]
