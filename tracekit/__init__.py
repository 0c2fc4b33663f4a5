"""tracekit: where each training step's time goes, from GPU traces of DNN training.

>>> import tracekit as tk
>>> run = tk.open("run.sqlite")  # doctest: +SKIP
>>> run.breakdown(by="stage")  # doctest: +SKIP

What is listed in ``__all__`` is public; modules whose names begin with an underscore are not. Names
are loaded when they are first used, so that ``import tracekit`` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.support.lazily import lazily

if TYPE_CHECKING:
    from tracekit._version import __version__
    from tracekit.analysis.studies import memory_points
    from tracekit.annotation import annotate
    from tracekit.errors import TracekitError
    from tracekit.model import Answer
    from tracekit.runs import (
        Run,
        bubbles,
        compare,
        gate,
        hang,
        history,
        ingest,
        memory,
        nccl_inspector,
        open,
        overhead,
        project,
        scaling,
        select_runs,
        stalls,
        straggler_cost,
        study,
    )
    from tracekit.store import RunRecord, Store

__all__ = [
    "Answer",
    "Run",
    "RunRecord",
    "Store",
    "TracekitError",
    "__version__",
    "annotate",
    "bubbles",
    "compare",
    "gate",
    "hang",
    "history",
    "ingest",
    "memory",
    "memory_points",
    "nccl_inspector",
    "open",
    "overhead",
    "project",
    "scaling",
    "select_runs",
    "stalls",
    "straggler_cost",
    "study",
]


__getattr__, __dir__ = lazily(__name__)
