"""Pictures of the report and of the view of a sample.

    python docs/screens.py

takes them anew; this takes the package playwright and a Chromium.
"""

from __future__ import annotations

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


def _take(report: Path, view: View) -> None:
    with sync_playwright() as running:
        browser = running.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": WIDTH, "height": 900}, color_scheme="light")
        page.goto(report.as_uri())
        page.wait_for_selector("[data-gantt][data-ready]")
        for name, first, last in (
            ("report", "header", "#findings .findings"),
            ("step", "#step-title", "#stages .chart"),
        ):
            page.screenshot(
                path=PICTURES / f"{name}.png", full_page=True, clip=_clip(page, first, last)
            )
        page.goto(f"{view.address}&select=204ms-208ms")
        page.wait_for_selector(".selection code")
        page.wait_for_selector(".sight td")
        page.screenshot(path=PICTURES / "view.png", clip=_clip(page, ".top", ".selection"),
                        full_page=True)  # fmt: skip
        browser.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        trace = ROOT / "sample_traces" / "ddp_4gpu.sqlite"
        run = tracekit.ingest(trace, store=Path(folder) / "store")[0]
        run.report(Path(folder) / "report.html")
        with run.view(opens=False) as view:
            _take(Path(folder) / "report.html", view)
