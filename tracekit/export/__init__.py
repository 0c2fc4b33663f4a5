"""Export of runs in the trace formats of other programs: Perfetto and Chrome."""

from tracekit.export._export import FORMATS, export

__all__ = ["FORMATS", "export"]
