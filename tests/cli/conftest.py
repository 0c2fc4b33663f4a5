"""A store for each test, and one that holds the sample trace."""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING

import pytest
from cli_helpers import SAMPLE

import tracekit

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty store, the one that commands find; nothing else in the environment matters."""
    for name in ("TRACEKIT_CATALOG", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TRACEKIT_STORE", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "store"


@pytest.fixture(scope="module", autouse=True)
def _asked_of_samples(request: pytest.FixtureRequest) -> None:
    if request.path.stem != "test_cli_ingest":
        request.getfixturevalue("samples_read_once")
    if not re.search("ingest|failures|memory", request.path.name):
        request.getfixturevalue("facts_found_once")


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with one run, `ddp`, made once."""
    folder = tmp_path_factory.mktemp("filled") / "store"
    tracekit.ingest(SAMPLE, name="ddp", labels={"gpus": "4"}, store=folder)
    return folder


@pytest.fixture
def stored(store: Path, filled: Path) -> Path:
    """The store of this test, with the run `ddp`."""
    shutil.copytree(filled, store)
    return store
