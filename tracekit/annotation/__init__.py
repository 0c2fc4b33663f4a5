"""Add ranges to a PyTorch program's trace: stages, layers and iterations.

This runs inside the program that is recorded, whose Python may be another one, older and without
tracekit: no module here imports anything but the standard library, modules of this package by
their relative names, and what the program has imported itself.
"""

from __future__ import annotations

from ._annotate import Annotation, annotate
from ._attach import ASK, DONE, IS_AT, LATE, RECORD, REQUEST
from ._prepare import copy_hooks, note_steps, prepare, step_time_variables, variables
from ._windows import WINDOW

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
