"""What is known of a run: what it holds, what its processes do, what it can be asked by.

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
    )
    from tracekit.analysis.facts._pipeline import WAITING, counted_micro_batches, is_pipeline
    from tracekit.analysis.facts._summary import identify, summarise
    from tracekit.analysis.facts._verdicts import (
        confusion,
        unknown_passes,
        verdict_evidence,
        verdict_meta,
    )
    from tracekit.analysis.facts._words import OUTSIDE_STEPS, with_words
    from tracekit.analysis.facts._work import HOST, work_of

_HOMES = {
    "DEGREES": "tracekit.analysis.facts._needs",
    "Evidence": "tracekit.analysis.facts._needs",
    "Facts": "tracekit.analysis.facts._needs",
    "HOST": "tracekit.analysis.facts._work",
    "NEEDS": "tracekit.analysis.facts._needs",
    "KEYS": "tracekit.analysis.facts._keys",
    "OF_PROCESSES": "tracekit.analysis.facts._keys",
    "OF_WINDOWS": "tracekit.analysis.facts._keys",
    "OUTSIDE_STEPS": "tracekit.analysis.facts._words",
    "RECORDERS": "tracekit.analysis.facts._needs",
    "WAITING": "tracekit.analysis.facts._pipeline",
    "chosen_keys": "tracekit.analysis.facts._keys",
    "columns_of": "tracekit.analysis.facts._keys",
    "confusion": "tracekit.analysis.facts._verdicts",
    "counted_micro_batches": "tracekit.analysis.facts._pipeline",
    "dividing": "tracekit.analysis.facts._keys",
    "how_to_record": "tracekit.analysis.facts._needs",
    "identify": "tracekit.analysis.facts._summary",
    "is_by_stage": "tracekit.analysis.facts._keys",
    "is_pipeline": "tracekit.analysis.facts._pipeline",
    "parse_keys": "tracekit.analysis.facts._keys",
    "share_meaning": "tracekit.analysis.facts._keys",
    "summarise": "tracekit.analysis.facts._summary",
    "unknown_passes": "tracekit.analysis.facts._verdicts",
    "verdict_evidence": "tracekit.analysis.facts._verdicts",
    "verdict_meta": "tracekit.analysis.facts._verdicts",
    "with_words": "tracekit.analysis.facts._words",
    "work_of": "tracekit.analysis.facts._work",
}

__all__ = [
    "DEGREES",
    "HOST",
    "KEYS",
    "NEEDS",
    "OF_PROCESSES",
    "OF_WINDOWS",
    "OUTSIDE_STEPS",
    "RECORDERS",
    "WAITING",
    "Evidence",
    "Facts",
    "chosen_keys",
    "columns_of",
    "confusion",
    "counted_micro_batches",
    "dividing",
    "how_to_record",
    "identify",
    "is_by_stage",
    "is_pipeline",
    "parse_keys",
    "share_meaning",
    "summarise",
    "unknown_passes",
    "verdict_evidence",
    "verdict_meta",
    "with_words",
    "work_of",
]

__getattr__, __dir__ = lazily(__name__, _HOMES)
