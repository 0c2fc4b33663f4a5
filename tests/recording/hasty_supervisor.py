"""The supervisor with shorter times, for tests that wait for them to pass."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from tracekit.recording import _process, _supervisor

_TIMES = {"_LAST_WORDS_S = 5.0": "_LAST_WORDS_S = 0.2", "_IDLE_S = 6.0": "_IDLE_S = 0.5",
          "_LOADING_S = 30.0": "_LOADING_S = 0.0"}  # fmt: skip


def hasten(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have what records in this process use a supervisor that soon loses its patience."""
    text = Path(_supervisor.__file__).read_text()
    for given, shorter in _TIMES.items():
        assert given in text
        text = text.replace(given, shorter)
    hasty = folder / "hasty.py"
    hasty.write_text(text)
    monkeypatch.setattr(_process, "_supervisor", SimpleNamespace(__file__=str(hasty)))
