"""Infer stages and steps of a process without ranges, from threads and order of launches.

If separate threads launch the backward passes, forward and backward threads alternate (`_pair`):
each uninterrupted run of launches of the backward threads is a backward pass (a burst), and the ops
between two bursts are a gap. The most frequent kind of gap (the usual one) is cut into weight
update, input and forward pass (`_gaps`, `_cut`), the other gaps are compared to it (`_by_threads`),
and passes are grouped into steps (`_step_table`).

If one thread launches everything, stages are estimated from the period of the launch sequence, and
from the mirror symmetry of launch sizes in forward and backward pass (`_by_order`, `_period`,
`_step`).

Work of other threads comes last (`_find`). A process with more ops than fit in memory is examined
piece by piece (`Pieces`). The assumptions behind these methods are tested on the same ops
(`_assumptions`). The patterns of kernel names that count as hints (`_kernel_hints`) are in
``schemas/stages/structure.toml``. No NVTX range is used.
"""

from tracekit.attribution.structure._find import Pieces, find_structure
from tracekit.attribution.structure._step_table import STEP_READINGS
from tracekit.attribution.structure._work import Doubt, Structure, Work

__all__ = ["STEP_READINGS", "Doubt", "Pieces", "Structure", "Work", "find_structure"]
