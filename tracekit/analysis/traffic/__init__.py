"""Traffic: what moved between GPUs, over which links, and what counters say of it.

Shared: questions read it, and it reads none of them.
"""

from typing import TYPE_CHECKING

from tracekit.support.lazily import lazily

if TYPE_CHECKING:
    from tracekit.analysis.traffic._links import links
    from tracekit.analysis.traffic._routes import crossings
    from tracekit.analysis.traffic._traffic import Traffic
    from tracekit.analysis.traffic._transfers import AMONG_GPUS, copy_transfers

_HOMES = {
    "AMONG_GPUS": "tracekit.analysis.traffic._transfers",
    "Traffic": "tracekit.analysis.traffic._traffic",
    "copy_transfers": "tracekit.analysis.traffic._transfers",
    "crossings": "tracekit.analysis.traffic._routes",
    "links": "tracekit.analysis.traffic._links",
}

__all__ = [
    "AMONG_GPUS",
    "Traffic",
    "copy_transfers",
    "crossings",
    "links",
]

__getattr__, __dir__ = lazily(__name__, _HOMES)
