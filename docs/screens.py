"""Pictures of reports of two real traces, and of the view of a sample.

    TRACEKIT_REAL_TRACES=FOLDER python docs/screens.py

takes them anew; this takes the package playwright and a Chromium. The two are of
`facebookresearch/HolisticTraceAnalysis` and of an assignment of Stanford's CS336, whose licences
(MIT) allow to show them.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

import tracekit
from tracekit.view import View

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
WIDTH = 1180
GAP = 20


def _clip(page: Any, first: str, last: str) -> dict[str, float]:
    """Return the part of a page from the top of one thing to the bottom of another."""
    top, bottom = (page.locator(each).first.bounding_box() for each in (first, last))
    end = bottom["y"] + bottom["height"]
    left = max(top["x"] - GAP, 0)
    return {"x": left, "y": top["y"], "width": WIDTH - left, "height": end - top["y"] + GAP}


REPORTS = (
    ("report", "kineto_ddp_2xa100_rank0.json.gz", "header", "#findings .findings > li"),
    ("step", "transformer_rtx3070ti.sqlite", "#step-title", "#stages .chart"),
)
"""By picture the trace, and between what of its report it is taken."""


def _take(folder: Path, view: View) -> None:
    with sync_playwright() as running:
        browser = running.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": WIDTH, "height": 900}, color_scheme="light")
        for name, _, first, last in REPORTS:
            page.goto((folder / f"{name}.html").as_uri())
            page.wait_for_selector("[data-gantt][data-ready]")
            page.screenshot(
                path=PICTURES / f"{name}.png", full_page=True, clip=_clip(page, first, last)
            )
        page.goto(f"{view.address}&select=204ms-208ms")
        page.wait_for_selector(".selection code")
        page.wait_for_selector("[data-explained]")
        page.screenshot(path=PICTURES / "view.png", clip=_clip(page, ".top", ".selection"),
                        full_page=True)  # fmt: skip
        browser.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        for picture, recorded, *_ in REPORTS:
            recorded_in = Path(os.environ["TRACEKIT_REAL_TRACES"])
            run = tracekit.ingest(recorded_in / recorded, store=store)[0]
            run.report(Path(folder) / f"{picture}.html")
        sample = tracekit.ingest(ROOT / "sample_traces" / "ddp_4gpu.sqlite", store=store)[0]
        with sample.view(opens=False) as view:
            _take(Path(folder), view)
