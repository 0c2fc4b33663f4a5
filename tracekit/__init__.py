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
    from tracekit.annotation import annotate
    from tracekit.errors import TracekitError
    from tracekit.model import Answer
    from tracekit.runs import (
        Run,
        bubble_model,
        bubbles,
        compare,
        gate,
        hang,
        history,
        ingest,
        input_cost,
        memory,
        memory_points,
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

_HOMES = {
    "__version__": "tracekit._version",
    "Answer": "tracekit.model",
    "Run": "tracekit.runs",
    "RunRecord": "tracekit.store",
    "Store": "tracekit.store",
    "TracekitError": "tracekit.errors",
    "annotate": "tracekit.annotation",
    "bubble_model": "tracekit.runs",
    "bubbles": "tracekit.runs",
    "compare": "tracekit.runs",
    "gate": "tracekit.runs",
    "hang": "tracekit.runs",
    "history": "tracekit.runs",
    "ingest": "tracekit.runs",
    "input_cost": "tracekit.runs",
    "memory": "tracekit.runs",
    "memory_points": "tracekit.runs",
    "open": "tracekit.runs",
    "overhead": "tracekit.runs",
    "project": "tracekit.runs",
    "scaling": "tracekit.runs",
    "select_runs": "tracekit.runs",
    "stalls": "tracekit.runs",
    "straggler_cost": "tracekit.runs",
    "study": "tracekit.runs",
}

__all__ = [
    "Answer",
    "Run",
    "RunRecord",
    "Store",
    "TracekitError",
    "__version__",
    "annotate",
    "bubble_model",
    "bubbles",
    "compare",
    "gate",
    "hang",
    "history",
    "ingest",
    "input_cost",
    "memory",
    "memory_points",
    "open",
    "overhead",
    "project",
    "scaling",
    "select_runs",
    "stalls",
    "straggler_cost",
    "study",
]


__getattr__, __dir__ = lazily(__name__, _HOMES)
