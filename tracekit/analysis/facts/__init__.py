"""Facts about a run: its contents, verdicts, and keys to group by.

Shared: questions read it, and it reads none of them.
"""

from typing import TYPE_CHECKING

from tracekit.support.lazily import lazily

if TYPE_CHECKING:
    from tracekit.analysis.facts._keys import (
        KEYS,
        OF_PROCESSES,
        OF_WINDOWS,
        chosen_keys,
        columns_of,
        dividing,
        is_by_stage,
        is_by_steps,
        parse_keys,
        share_meaning,
    )
    from tracekit.analysis.facts._needs import (
        DEGREES,
        NEEDS,
        RECORDERS,
        Evidence,
        Facts,
        how_to_record,
        how_to_see_waits,
    )
    from tracekit.analysis.facts._phases import step_phases, with_phases
    from tracekit.analysis.facts._summary import identify, summarise
    from tracekit.analysis.facts._verdicts import (
        WAITING,
        confusion,
        counted_micro_batches,
        is_pipeline,
        unknown_passes,
        verdict_evidence,
        verdict_meta,
    )
    from tracekit.analysis.facts._words import OUTSIDE_STEPS, with_words
    from tracekit.analysis.facts._work import HOST, work_of

__getattr__, __dir__ = lazily(__name__)
