"""Idle time of GPUs by cause, and the longest idle gaps with their evidence."""

from typing import TYPE_CHECKING

from tracekit.support.lazily import lazily

if TYPE_CHECKING:
    from tracekit.analysis.idle_account import idle_ranges
    from tracekit.analysis.idle_time._idle import idle_by
    from tracekit.analysis.idle_time.questions import idle

__getattr__, __dir__ = lazily(__name__)
