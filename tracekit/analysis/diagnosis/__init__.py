"""Find problems of a run: their cost, the remedy, and late ranks (stragglers)."""

from typing import TYPE_CHECKING

from tracekit.support.lazily import lazily

if TYPE_CHECKING:
    from tracekit.analysis.diagnosis._compute_rules import KERNELS_OF
    from tracekit.analysis.diagnosis._diagnose import (
        FINDINGS,
        NOTICED,
        RULES,
        WORSE,
        against,
        diagnose,
        longest_examples,
    )
    from tracekit.analysis.diagnosis.questions import stragglers

__getattr__, __dir__ = lazily(__name__)
