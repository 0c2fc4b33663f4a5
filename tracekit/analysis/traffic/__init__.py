"""Traffic between GPUs: transfers, links, and hardware counters; used by several analyses."""

from typing import TYPE_CHECKING

from tracekit.support.lazily import lazily

if TYPE_CHECKING:
    from tracekit.analysis.traffic._links import links
    from tracekit.analysis.traffic._routes import crossings
    from tracekit.analysis.traffic._traffic import Traffic
    from tracekit.analysis.traffic._transfers import AMONG_GPUS, copy_transfers

__getattr__, __dir__ = lazily(__name__)
