"""What is wrong with a run, what it costs and what would help; who comes late."""

from typing import TYPE_CHECKING

from tracekit.support.lazily import lazily

if TYPE_CHECKING:
    from tracekit.analysis.diagnosis._against import NOTICED, WORSE, against
    from tracekit.analysis.diagnosis._diagnose import FINDINGS, diagnose
    from tracekit.analysis.diagnosis._rules import RULES
    from tracekit.analysis.diagnosis.questions import stragglers

__getattr__, __dir__ = lazily(__name__)
