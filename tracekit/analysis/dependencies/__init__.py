"""Dependencies inside a step: its critical path, and its length after a change."""

from typing import TYPE_CHECKING

from tracekit.support.lazily import lazily

if TYPE_CHECKING:
    from tracekit.analysis.dependencies._changes import parse_changes
    from tracekit.analysis.dependencies._critical_path import path_spans
    from tracekit.analysis.dependencies._job import require_one_clock
    from tracekit.analysis.dependencies._whatif import CHANGES, price_of, whatif
    from tracekit.analysis.dependencies.questions import critical_path

__getattr__, __dir__ = lazily(__name__)
