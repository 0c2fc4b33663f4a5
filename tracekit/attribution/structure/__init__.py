"""Infer stages and steps of a process without ranges, from threads and order of launches.

If separate threads launch the backward passes, the two sides alternate (`_pair`): each turn of the
backward threads is a backward pass (a burst), and between two bursts lies a gap. The most frequent
kind of gap (the usual one) is cut into weight update, input and forward pass (`_gaps`, `_cut`), the
others are compared to it (`_by_threads`), and passes are grouped into steps (`_step_table`).

If one thread launches all, the period of the launch sequence, and the mirror image between forward
and backward pass, give an estimate (`_by_order`, `_period`, `_mirror`).

Work of other threads comes last (`_find`). A process with more ops than fit in memory is examined
piece by piece (`_pieces`). The assumptions behind all this are tested on the same work
(`_assumptions`). The kernel names that count as hints are data (`_kernel_hints`):
``schemas/stages/structure.toml``. Nothing here reads a range.
"""

from tracekit.attribution.structure._find import find_structure
from tracekit.attribution.structure._pieces import Pieces
from tracekit.attribution.structure._step_table import STEP_READINGS
from tracekit.attribution.structure._work import Doubt, Structure, Work

__all__ = ["STEP_READINGS", "Doubt", "Pieces", "Structure", "Work", "find_structure"]
