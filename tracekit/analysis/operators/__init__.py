"""Operators of the network whose sizes were recorded, how much each computes and moves.

Shared: questions read it, and it reads none of them.
"""

from typing import TYPE_CHECKING

from tracekit.support.lazily import lazily

if TYPE_CHECKING:
    from tracekit.analysis.operators._bounds import memory_bandwidths, with_bounds, with_peaks
    from tracekit.analysis.operators._bytes import element_bytes, with_bytes
    from tracekit.analysis.operators._counted import counted_operators
    from tracekit.analysis.operators._formulas import MULTIPLYING_FORMS
    from tracekit.analysis.operators._kernel_names import (
        multiplies,
        of_input,
        of_weight,
        on_tensor_cores,
        precision_by_name,
        precision_by_type,
    )
    from tracekit.analysis.operators._recorded import (
        backward_graphs,
        backward_nodes,
        has_sizes,
        named_operators,
        operand_types,
        recorded_operators,
    )
    from tracekit.analysis.operators._work_done import work_done

__getattr__, __dir__ = lazily(__name__)
