"""Contents of a run: verdicts such as training, data it has and lacks, keys to group times by.

Several analyses import this package; it imports none of them.
"""

from typing import TYPE_CHECKING

from tracekit.support.lazily import lazily

if TYPE_CHECKING:
    from tracekit.analysis.facts._first_lines import (
        LEAST,
        MOST_NAMED,
        WIDEST,
        largest,
        leading_keys,
        most_by_share,
        unseen,
    )
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
    from tracekit.analysis.facts._phases import OUTSIDE_STEPS, step_phases, with_phases, with_words
    from tracekit.analysis.facts._requirements import (
        DEGREES,
        HOST,
        RECORDERS,
        REQUIREMENTS,
        Evidence,
        Facts,
        how_to_record,
        how_to_see_waits,
        require_ops,
        work_of,
    )
    from tracekit.analysis.facts._verdicts import (
        WAITING,
        confusion,
        counted_micro_batches,
        identify,
        is_message,
        is_pipeline,
        summarise,
        unknown_passes,
        verdict_evidence,
        verdict_meta,
        verdicts_note,
    )

__getattr__, __dir__ = lazily(__name__)
