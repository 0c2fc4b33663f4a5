"""Sums of GPU ops' counts and times by key (such as stage or kernel) and by step.

Several analyses import this package; it imports none of them.
"""

from typing import TYPE_CHECKING

from tracekit.support.lazily import lazily

if TYPE_CHECKING:
    from tracekit.analysis.step_sums._key_sums import (
        KeySums,
        group_lengths,
        grouped_sums,
        stages_of,
        step_times,
        sums_by_keys,
    )
    from tracekit.analysis.step_sums._per_iteration import (
        PARTS,
        Cold,
        Measured,
        cold_meta,
        cold_of,
        in_one_account,
        numbering_meta,
        parse_compare_keys,
        peak_memory,
        per_iteration,
        skipped_of,
        steps_by_phase,
        steps_of,
        with_hosts_matched,
    )

__getattr__, __dir__ = lazily(__name__)
