"""Explain a hang of a job from the dumps of its ranks."""

from tracekit.analysis.hangs._answer import find_hang

__all__ = ["find_hang"]
