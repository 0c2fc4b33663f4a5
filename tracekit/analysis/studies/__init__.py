"""Tables over many runs, as studies of training print them.

What many runs are asked is public in `tracekit.analysis`; what was added since is public here.
"""

from typing import TYPE_CHECKING

from tracekit.support.lazily import lazily

if TYPE_CHECKING:
    from tracekit.analysis.studies._crossover import Along, crossovers
    from tracekit.analysis.studies._epochs import of_epochs, study_iterations
    from tracekit.analysis.studies._exchange import exchange
    from tracekit.analysis.studies._memory_use import memory_table
    from tracekit.analysis.studies._study import STEP_TIMES

_HOMES = {
    "Along": "tracekit.analysis.studies._crossover",
    "STEP_TIMES": "tracekit.analysis.studies._study",
    "crossovers": "tracekit.analysis.studies._crossover",
    "exchange": "tracekit.analysis.studies._exchange",
    "memory_table": "tracekit.analysis.studies._memory_use",
    "of_epochs": "tracekit.analysis.studies._epochs",
    "study_iterations": "tracekit.analysis.studies._epochs",
}

__all__ = [
    "STEP_TIMES",
    "Along",
    "crossovers",
    "exchange",
    "memory_table",
    "of_epochs",
    "study_iterations",
]


__getattr__, __dir__ = lazily(__name__, _HOMES)
