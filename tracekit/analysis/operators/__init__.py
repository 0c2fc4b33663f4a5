"""PyTorch operators whose tensor sizes were recorded: the FLOPs and bytes of each.

Several analyses import this package; it imports none of them.
"""

from typing import TYPE_CHECKING

from tracekit.support.lazily import lazily

if TYPE_CHECKING:
    from tracekit.analysis.operators._bounds import memory_bandwidths, with_bounds, with_peaks
    from tracekit.analysis.operators._recorded import (
        has_sizes,
        recorded_operators,
    )
    from tracekit.analysis.operators._work_done import (
        multiplies,
        precision_by_name,
        work_done,
    )

__getattr__, __dir__ = lazily(__name__)
