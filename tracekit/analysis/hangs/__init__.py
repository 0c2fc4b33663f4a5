"""Why a job hangs, from what each rank said it was in."""

from tracekit.analysis.hangs._answer import find_hang

__all__ = ["find_hang"]
