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
    from tracekit._comparisons import compare, history
    from tracekit._memories import memory, memory_points
    from tracekit._projections import project
    from tracekit._run import Run, ingest, open
    from tracekit._studies import overhead, scaling, select_runs, study
    from tracekit._version import __version__
    from tracekit._waits import bubble_model, bubbles, input_cost, stalls
    from tracekit.annotation import annotate
    from tracekit.errors import TracekitError
    from tracekit.model import Answer
    from tracekit.store import RunRecord, Store

_HOMES = {
    "__version__": "tracekit._version",
    "Answer": "tracekit.model",
    "Run": "tracekit._run",
    "RunRecord": "tracekit.store",
    "Store": "tracekit.store",
    "TracekitError": "tracekit.errors",
    "annotate": "tracekit.annotation",
    "bubble_model": "tracekit._waits",
    "bubbles": "tracekit._waits",
    "compare": "tracekit._comparisons",
    "history": "tracekit._comparisons",
    "ingest": "tracekit._run",
    "input_cost": "tracekit._waits",
    "memory": "tracekit._memories",
    "memory_points": "tracekit._memories",
    "open": "tracekit._run",
    "overhead": "tracekit._studies",
    "project": "tracekit._projections",
    "scaling": "tracekit._studies",
    "select_runs": "tracekit._studies",
    "stalls": "tracekit._waits",
    "study": "tracekit._studies",
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
    "study",
]


__getattr__, __dir__ = lazily(__name__, _HOMES)
