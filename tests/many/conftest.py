"""Reports of several ranks, and the run that is made of them one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from many_helpers import KERNELS, write_ranks

import tracekit


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty store."""
    monkeypatch.delenv("TRACEKIT_CATALOG", raising=False)
    monkeypatch.setenv("TRACEKIT_STORE", str(tmp_path / "store"))
    return tmp_path / "store"


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory, _read_once: Any) -> list[Path]:
    """Four small reports."""
    _read_once.folders.append(folder := tmp_path_factory.mktemp("ranks"))
    return write_ranks(folder, 4)


@pytest.fixture(scope="session")
def long_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Four reports that take some tenths of a second each."""
    return write_ranks(tmp_path_factory.mktemp("long"), 4, KERNELS)


@pytest.fixture(scope="session")
def serial(long_ranks: list[Path], tmp_path_factory: pytest.TempPathFactory) -> tracekit.Run:
    """The run of the long reports, made in this process."""
    store = tmp_path_factory.mktemp("serial") / "store"
    return tracekit.ingest(long_ranks, name="job", store=store, processes=1)[0]
