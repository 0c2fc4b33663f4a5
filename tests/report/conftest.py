"""Reports that are made once: of a run with hostile names, and of a comparison."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest
from hostile import SAMPLES, hostile_trace

import tracekit
from tracekit.runs._reports import report_of

if TYPE_CHECKING:
    from collections.abc import Iterator
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


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("there is no chromium on the path")
    with playwright.sync_playwright() as running:
        started = running.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def heard() -> list[str]:
    """What a page complains of, asks, or loads beside itself."""
    return []
