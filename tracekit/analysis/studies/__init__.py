"""Tables over many runs, as studies of training print them.

What many runs are asked is public in `tracekit.analysis`; what was added since is public here.
"""

from typing import TYPE_CHECKING

from tracekit.support.lazily import lazily

if TYPE_CHECKING:
    from tracekit.analysis.studies._crossover import Along, crossovers
    from tracekit.analysis.studies._dgx1 import QUESTIONS, Measured, dgx1_questions
    from tracekit.analysis.studies._epochs import of_epochs, study_iterations
    from tracekit.analysis.studies._exchange import exchange
    from tracekit.analysis.studies._memory_use import memory_table
    from tracekit.analysis.studies._published import Published, load_published
    from tracekit.analysis.studies._study import STEP_TIMES

_HOMES = {
    "Along": "tracekit.analysis.studies._crossover",
    "Measured": "tracekit.analysis.studies._dgx1",
    "Published": "tracekit.analysis.studies._published",
    "QUESTIONS": "tracekit.analysis.studies._dgx1",
    "STEP_TIMES": "tracekit.analysis.studies._study",
    "crossovers": "tracekit.analysis.studies._crossover",
    "dgx1_questions": "tracekit.analysis.studies._dgx1",
    "exchange": "tracekit.analysis.studies._exchange",
    "load_published": "tracekit.analysis.studies._published",
    "memory_table": "tracekit.analysis.studies._memory_use",
    "of_epochs": "tracekit.analysis.studies._epochs",
    "study_iterations": "tracekit.analysis.studies._epochs",
}

__all__ = [
    "QUESTIONS",
    "STEP_TIMES",
    "Along",
    "Measured",
    "Published",
    "crossovers",
    "dgx1_questions",
    "exchange",
    "load_published",
    "memory_table",
    "of_epochs",
    "study_iterations",
]


__getattr__, __dir__ = lazily(__name__, _HOMES)
