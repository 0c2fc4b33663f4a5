"""Idle gaps of GPUs: what the host did during each, and the causes of idle time.

Several analyses import this package; it imports none of them.
"""

from typing import TYPE_CHECKING

from tracekit.support.lazily import lazily

if TYPE_CHECKING:
    from tracekit.analysis.idle_account._host_states import (
        BLOCKING_COPY,
        ITEM,
        in_ranges,
        pairs_of,
        sampled,
    )
    from tracekit.analysis.idle_account._idle_gaps import BEHIND, last_to_work, loading_threads
    from tracekit.analysis.idle_account._idle_pieces import (
        CAUSES,
        OS_CALLS,
        QUEUED_NS,
        SWITCHES,
        OwnPieces,
        host_activity,
        idle_pieces,
        idle_windows,
        own_pieces_in,
        with_idle_causes,
        with_last_gaps,
    )
    from tracekit.analysis.idle_account._idle_ranges import idle_ranges, plain_name
    from tracekit.analysis.idle_account._idle_sums import (
        IdleSums,
        copies_of,
        doubt_of_waiting,
        idle_sums,
        longest_gaps,
        of_part,
        of_parts,
    )
    from tracekit.analysis.idle_account._silence import doubt_of_silence
    from tracekit.analysis.idle_account._timeline import covered, merged, merged_in_batches

__getattr__, __dir__ = lazily(__name__)
