"""Add NVTX ranges to a running PyTorch program: training stages, layers and iterations.

This code runs inside the recorded program, whose Python may be older and without tracekit: modules
here import only the standard library, each other by relative names, and packages that the program
has already imported.
"""

from __future__ import annotations

from ._annotate import Annotation, annotate
from ._attach import ASK, DONE, IS_AT, LATE, RECORD, REQUEST
from ._prepare import copy_hooks, note_steps, prepare, step_time_variables, variables
from ._step_windows import WINDOW

__all__ = [
    "ASK",
    "DONE",
    "IS_AT",
    "LATE",
    "RECORD",
    "REQUEST",
    "WINDOW",
    "Annotation",
    "annotate",
    "copy_hooks",
    "note_steps",
    "prepare",
    "step_time_variables",
    "variables",
]
