"""tracekit: where each training step's time goes, from GPU traces of DNN training.

>>> import tracekit as tk
>>> run = tk.open("run.sqlite")  # doctest: +SKIP
>>> run.breakdown(by="stage")  # doctest: +SKIP

What is listed in ``__all__`` is public; modules whose names begin with an underscore are not. Names
are loaded when they are first used, so that ``import tracekit`` costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__: str

if TYPE_CHECKING:
    from tracekit._run import Run, ingest, open
    from tracekit._studies import compare, memory_points, select_runs, study
    from tracekit.errors import TracekitError
    from tracekit.store import RunRecord, Store

_HOMES = {
    "Run": "tracekit._run",
    "RunRecord": "tracekit.store",
    "Store": "tracekit.store",
    "TracekitError": "tracekit.errors",
    "compare": "tracekit._studies",
    "ingest": "tracekit._run",
    "memory_points": "tracekit._studies",
    "open": "tracekit._run",
    "select_runs": "tracekit._studies",
    "study": "tracekit._studies",
}

__all__ = [
    "Run",
    "RunRecord",
    "Store",
    "TracekitError",
    "__version__",
    "compare",
    "ingest",
    "memory_points",
    "open",
    "select_runs",
    "study",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _installed_version()
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def _installed_version() -> str:
    """Return the version that git's tags gave when this was installed."""
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - seldom asked for

    try:
        return version("tracekit")
    except PackageNotFoundError:  # run from its source tree
        return "0+unknown"


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
