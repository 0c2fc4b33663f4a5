"""The account of idle time: gaps, the host meanwhile, and the cause of each piece.

Shared: questions read it, and it reads none of them.
"""

from typing import TYPE_CHECKING

from tracekit.support.lazily import lazily

if TYPE_CHECKING:
    from tracekit.analysis.idle_account._causes import IdlePieces, idle_causes, pieces_in_windows
    from tracekit.analysis.idle_account._held import BEHIND
    from tracekit.analysis.idle_account._host_states import (
        BLOCKING_COPY,
        ITEM,
        allocations,
        in_ranges,
        pairs_of,
        sampled,
        waits,
    )
    from tracekit.analysis.idle_account._idle_ranges import idle_ranges, plain_name
    from tracekit.analysis.idle_account._pieces import (
        CAUSES,
        OS_CALLS,
        QUEUED_NS,
        SWITCHES,
        idle_pieces,
    )
    from tracekit.analysis.idle_account._timeline import covered, merged, merged_in_batches

_HOMES = {
    "BEHIND": "tracekit.analysis.idle_account._held",
    "BLOCKING_COPY": "tracekit.analysis.idle_account._host_states",
    "CAUSES": "tracekit.analysis.idle_account._pieces",
    "ITEM": "tracekit.analysis.idle_account._host_states",
    "IdlePieces": "tracekit.analysis.idle_account._causes",
    "OS_CALLS": "tracekit.analysis.idle_account._pieces",
    "QUEUED_NS": "tracekit.analysis.idle_account._pieces",
    "SWITCHES": "tracekit.analysis.idle_account._pieces",
    "allocations": "tracekit.analysis.idle_account._host_states",
    "covered": "tracekit.analysis.idle_account._timeline",
    "idle_causes": "tracekit.analysis.idle_account._causes",
    "idle_pieces": "tracekit.analysis.idle_account._pieces",
    "idle_ranges": "tracekit.analysis.idle_account._idle_ranges",
    "in_ranges": "tracekit.analysis.idle_account._host_states",
    "merged": "tracekit.analysis.idle_account._timeline",
    "merged_in_batches": "tracekit.analysis.idle_account._timeline",
    "pairs_of": "tracekit.analysis.idle_account._host_states",
    "pieces_in_windows": "tracekit.analysis.idle_account._causes",
    "plain_name": "tracekit.analysis.idle_account._idle_ranges",
    "sampled": "tracekit.analysis.idle_account._host_states",
    "waits": "tracekit.analysis.idle_account._host_states",
}

__all__ = [
    "BEHIND",
    "BLOCKING_COPY",
    "CAUSES",
    "ITEM",
    "OS_CALLS",
    "QUEUED_NS",
    "SWITCHES",
    "IdlePieces",
    "allocations",
    "covered",
    "idle_causes",
    "idle_pieces",
    "idle_ranges",
    "in_ranges",
    "merged",
    "merged_in_batches",
    "pairs_of",
    "pieces_in_windows",
    "plain_name",
    "sampled",
    "waits",
]

__getattr__, __dir__ = lazily(__name__, _HOMES)
