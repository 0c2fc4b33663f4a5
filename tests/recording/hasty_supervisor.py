"""The supervisor with shorter times, for tests that wait for them to pass."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from tracekit.recording import _perform, _supervisor

_TIMES = {"_LAST_WORDS_S": 0.2, "_IDLE_S": 0.5, "_LOADING_S": 0.0, "_LOOK_S": 0.2}


def hasten(folder: Path, monkeypatch: pytest.MonkeyPatch, **changes: float) -> None:
    """Have what records in this process use a supervisor that soon loses its patience."""
    text = Path(_supervisor.__file__).read_text()
    for name, value in (_TIMES | changes).items():
        text, found = re.subn(rf"^{name} = .*$", f"{name} = {value}", text, flags=re.MULTILINE)
        assert found == 1
    hasty = folder / "hasty.py"
    hasty.write_text(text)
    monkeypatch.setattr(_perform, "_supervisor", SimpleNamespace(__file__=str(hasty)))
