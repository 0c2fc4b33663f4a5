"""Runs: make them from trace files, open them, and answer questions about them.

From the bottom up: an opened run (`_opened`); questions, that is analyses, that take opened runs
(`_declared`, `_question`, `_comparisons`, `_report_page`); `Run`, which has these
questions as methods; making, opening and choosing runs (`_new_runs`, `_foreign`, `_opening`). All
other modules have questions that take several runs, or files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.support.lazily import lazily

if TYPE_CHECKING:
    from tracekit.runs._among import (
        bubbles,
        history,
        memory,
        overhead,
        project,
        scaling,
        stalls,
        study,
    )
    from tracekit.runs._comparisons import compare, gate
    from tracekit.runs._declared import DECLARED
    from tracekit.runs._files import hang, nccl_inspector, straggler_cost
    from tracekit.runs._opened import OpenedRun
    from tracekit.runs._opening import Reference, ingest, open, select_runs
    from tracekit.runs._question import is_simulated, question_of
    from tracekit.runs._report_page import report_of
    from tracekit.runs._run import Run

__getattr__, __dir__ = lazily(__name__)
