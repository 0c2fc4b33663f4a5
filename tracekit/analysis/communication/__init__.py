"""Traffic between GPUs: transfers, links, collectives, messages and their latency."""

from typing import TYPE_CHECKING

from tracekit.support.lazily import lazily

if TYPE_CHECKING:
    from tracekit.analysis.calls import communicators, read_calls
    from tracekit.analysis.communication._collectives import collective_calls, collectives
    from tracekit.analysis.communication._latency import (
        latency,
        latency_speedup,
        message_histogram,
    )
    from tracekit.analysis.communication._nccl_inspector import nccl_inspector
    from tracekit.analysis.communication._pointer_queries import pointer_queries, staging
    from tracekit.analysis.traffic import Traffic, links

__getattr__, __dir__ = lazily(__name__)
