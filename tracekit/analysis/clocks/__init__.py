"""Put the clocks of several trace files on one time base, with the evidence for it."""

from typing import TYPE_CHECKING

from tracekit.support.lazily import lazily

if TYPE_CHECKING:
    from tracekit.analysis.clocks._align import align, aligned, clock_evidence
    from tracekit.analysis.clocks._matches import Calls, clock_calls

__getattr__, __dir__ = lazily(__name__)
