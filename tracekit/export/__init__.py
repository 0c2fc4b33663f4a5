"""Runs as traces that other programs open: Perfetto's, and Chrome's."""

from tracekit.export._export import FORMATS, export

__all__ = ["FORMATS", "export"]
