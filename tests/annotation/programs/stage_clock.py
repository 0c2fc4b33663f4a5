"""What a program's own clock says of its stages, for programs that know nothing of tracekit."""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from pathlib import Path

_spent: defaultdict[str, int] = defaultdict(int)
_open: list[str] = []
_since = 0


class clock:  # noqa: N801 - reads as what it does
    """Measures a stage; one within another is no part of it."""

    def __init__(self, stage: str) -> None:
        self._stage = stage

    def __enter__(self) -> None:
        _turn()
        _open.append(self._stage)

    def __exit__(self, *_: object) -> None:
        _turn()
        _open.pop()


def _turn() -> None:
    global _since  # noqa: PLW0603
    now = time.perf_counter_ns()
    if _open:
        _spent[_open[-1]] += now - _since
    _since = now


def write(steps: int) -> None:
    """Write what was measured to the file that the command line names last."""
    Path(sys.argv[-1]).write_text(json.dumps({"steps": steps, "spent": _spent}))
