"""How much memory each GPU holds, measured and predicted.

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

_HOMES = {
    "largest_batch": "tracekit.analysis.memory._memory_use",
    "memory_extra": "tracekit.analysis.memory._memory_use",
    "memory_growth": "tracekit.analysis.memory._memory_use",
    "memory_table": "tracekit.analysis.memory._memory_use",
    "memory_use": "tracekit.analysis.memory._memory_use",
}

__all__ = [
    "largest_batch",
    "memory_extra",
    "memory_growth",
    "memory_table",
    "memory_use",
]

__getattr__, __dir__ = lazily(__name__, _HOMES)
