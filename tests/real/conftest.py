"""Runs of the real traces, each ingested once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import tracekit as tk

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.real)


@pytest.fixture(scope="session")
def real_run(
    real_trace: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], tk.Run]:
    """Give the run of a real trace by the trace's name; the test is skipped where it is absent."""
    store = tmp_path_factory.mktemp("store")
    runs: dict[str, tk.Run] = {}

    def open_run(name: str) -> tk.Run:
        path = real_trace(name)
        if name not in runs:
            runs[name] = tk.ingest(path, store=store)[0]
        return runs[name]

    return open_run
