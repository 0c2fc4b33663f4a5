"""What a program's own clock says of its stages, for programs that know nothing of tracekit."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import sys
import time
from collections import defaultdict
from pathlib import Path

import torch

ENDS_WITH = 3
"""The exit code of the programs."""

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


def write(steps: int, *trained: torch.nn.Module) -> None:
    """Write what was measured, and a digest of the weights, to the file that is named last; end."""
    digest = hashlib.sha256()
    for weight in (each for network in trained for each in network.parameters()):
        whole = weight.full_tensor() if hasattr(weight, "full_tensor") else weight
        digest.update(whole.detach().numpy().tobytes())
    said = {"steps": steps, "spent": _spent, "weights": digest.hexdigest() if trained else None}
    Path(sys.argv[-1]).write_text(json.dumps(said))
    if multiprocessing.parent_process() is None:
        sys.exit(ENDS_WITH)
