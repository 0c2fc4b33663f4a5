"""Memory of GPUs, measured and predicted.

Shared: questions read it, and it reads none of them.
"""

from typing import TYPE_CHECKING

from tracekit.support.lazily import lazily

if TYPE_CHECKING:
    from tracekit.analysis.memory._memory_use import (
        largest_batch,
        memory_extra,
        memory_growth,
        memory_table,
        memory_use,
    )

__getattr__, __dir__ = lazily(__name__)
