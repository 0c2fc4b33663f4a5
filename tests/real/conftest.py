"""Runs of the real traces, each ingested once, whichever process of the tests asks first."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import tracekit as tk

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == HERE:
            item.add_marker(pytest.mark.real)


@pytest.fixture(scope="session")
def real_run(
    real_trace: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], tk.Run]:
    """Give the run of a real trace by the trace's name; the test is skipped where it is absent."""
    own = tmp_path_factory.getbasetemp()
    folder = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    runs: dict[str, tk.Run] = {}

    def open_run(name: str) -> tk.Run:
        path = real_trace(name)
        if name not in runs:
            with (folder / f"{name.replace('/', '-')}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # the others find what one has ingested
                runs[name] = tk.ingest(path, store=folder / "real")[0]
        return runs[name]

    return open_run
