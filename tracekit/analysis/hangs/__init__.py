"""Explain why a job hangs, from dumps of its ranks or from traces that end during the hang."""

from typing import TYPE_CHECKING

from tracekit.support.lazily import lazily

if TYPE_CHECKING:
    from tracekit.analysis.hangs._hang import find_hang
    from tracekit.analysis.hangs._recorded_waits import find_hang_in_run

__getattr__, __dir__ = lazily(__name__)
