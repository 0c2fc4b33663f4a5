"""Stages and steps of a process without ranges, from threads and order of launches.

Where backward has launching threads of its own, two sides take turns (`_pair`). The turns of one
are backward passes; the gaps between (`_pair`) are taken apart at the usual one (`_gaps`, `_cut`)
into updates, input and forward passes (`_by_threads`), and made into steps (`_steps`). With one
thread only, the period of the sequence and the mirror image that a backward pass is of its forward
pass give an estimate (`_by_order`, `_period`, `_mirror`). What else runs is told last (`_find`).
A process of more ops than are held at once is looked at piece by piece (`_pieces`).
What all this assumes is held against the same work (`_assumptions`).
What names say is data (`_kernel_hints`): ``schemas/stages/structure.toml``. Nothing here reads a
range.
"""

from tracekit.attribution.structure._find import find_structure
from tracekit.attribution.structure._pieces import Pieces
from tracekit.attribution.structure._steps import STEP_READINGS
from tracekit.attribution.structure._work import Doubt, Structure, Work

__all__ = ["STEP_READINGS", "Doubt", "Pieces", "Structure", "Work", "find_structure"]
