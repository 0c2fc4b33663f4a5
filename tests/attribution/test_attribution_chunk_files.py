"""Numbers that wait between the steps of attribution, in memory and in files."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from tracekit.attribution._chunks import Waiting
from tracekit.support.spool import _LIBRARIES, _SHARE, Workspace

_OF_20 = _LIBRARIES + _SHARE * 20 * 13
"""What 20 rows take that wait in memory."""


@pytest.fixture(autouse=True)
def _without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has been loaded by other tests takes no room here."""
    monkeypatch.delitem(sys.modules, "numba", raising=False)


def _chunk(rows: int, first: int) -> dict[str, np.ndarray]:
    return {
        "call": np.arange(first, first + rows, dtype=np.int32),
        "at": np.arange(rows) * -(1 << 40) - first,
        "flags": np.full(rows, first % 7, np.uint8)[::-1],
    }


@pytest.mark.parametrize("memory", [1, _OF_20, 1 << 30], ids=["files", "both", "memory"])
def test_columns_are_as_they_were_given(tmp_path: Path, memory: int) -> None:
    waiting = Waiting(Workspace(tmp_path, memory))
    chunks = [_chunk(rows, 10 * rows) for rows in (20, 0, 3)]
    for chunk in chunks:
        waiting.append(chunk)
    in_files = {1: 2, _OF_20: 1, 1 << 30: 0}  # no rows take no memory
    assert len(list(tmp_path.iterdir())) == in_files[memory]
    assert len(waiting) == len(chunks)
    for _ in range(2):
        for number, chunk in enumerate(chunks):
            for names in (("call", "at", "flags"), ("flags", "call"), ("at",)):
                for name, column in zip(names, waiting.read(number, *names), strict=True):
                    assert column.dtype == chunk[name].dtype
                    assert column.tolist() == chunk[name].tolist()


def test_what_is_dropped_leaves_its_room(tmp_path: Path) -> None:
    chunk = _chunk(20, 0)
    waiting = Waiting(Workspace(tmp_path, _OF_20))
    for _ in range(2):
        waiting.append(chunk)
    assert len(list(tmp_path.iterdir())) == 1
    waiting.drop(1)
    assert not list(tmp_path.iterdir())
    waiting.drop(0)
    waiting.append(chunk)
    assert not list(tmp_path.iterdir())


def test_a_compiler_takes_the_room_of_what_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = Waiting(Workspace(tmp_path, 1 << 30))
    waiting.append(_chunk(20, 0))
    monkeypatch.setitem(sys.modules, "numba", sys)
    waiting.append(_chunk(20, 0))
    assert len(list(tmp_path.iterdir())) == 1
