"""Reports that are made once: of a run with hostile names, and of a comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hostile import SAMPLES, hostile_trace

import tracekit
from tracekit.runs._report_page import report_of

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def hostile_run(tmp_path_factory: pytest.TempPathFactory) -> tracekit.Run:
    folder = tmp_path_factory.mktemp("report")
    labels = {"batch": "16", "network": "toy"}
    store = folder / "store"
    return tracekit.ingest(hostile_trace(folder), name="hostile", labels=labels, store=store)[0]


@pytest.fixture(scope="session")
def base_run(hostile_run: tracekit.Run, tmp_path_factory: pytest.TempPathFactory) -> tracekit.Run:
    store = tmp_path_factory.mktemp("base") / "store"
    return tracekit.ingest(SAMPLES / "ddp_4gpu.sqlite", name="base", store=store)[0]


@pytest.fixture(scope="session")
def page(hostile_run: tracekit.Run) -> str:
    return report_of([hostile_run])


@pytest.fixture(scope="session")
def page_file(page: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(page, encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def change_page(hostile_run: tracekit.Run, base_run: tracekit.Run) -> str:
    return report_of([hostile_run], against=base_run)


@pytest.fixture(scope="module", autouse=True)
def _asked_of_samples(samples_read_once: None) -> None:
    """Let reports be what is made here, not runs."""
