"""Operators of the network whose sizes were recorded, how much each computes and moves.

Shared: questions read it, and it reads none of them.
"""

from typing import TYPE_CHECKING

from tracekit.support.lazily import lazily

if TYPE_CHECKING:
    from tracekit.analysis.operators._bounds import (
        element_bytes,
        memory_bandwidths,
        with_bounds,
        with_bytes,
        with_peaks,
    )
    from tracekit.analysis.operators._formulas import MULTIPLYING_FORMS
    from tracekit.analysis.operators._recorded import (
        backward_graphs,
        backward_nodes,
        counted_operators,
        has_sizes,
        named_operators,
        operand_types,
        recorded_operators,
    )
    from tracekit.analysis.operators._work_done import (
        multiplies,
        of_input,
        of_weight,
        on_tensor_cores,
        precision_by_name,
        precision_by_type,
        work_done,
    )

__getattr__, __dir__ = lazily(__name__)
