"""Reports of each kind of run, in a browser, held against what the commands print as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from browsing import READY, WIDE, complaints, opened
from hostile import SAMPLES

import tracekit as tk
from tracekit.present import to_json
from tracekit.runs._report_page import report_of

pytestmark = pytest.mark.nightly
MOST_BYTES = 700_000
MILLION = 1_000_000
ASKED: dict[str, Callable[[tk.Run], Any]] = {
    "stages": lambda run: run.breakdown.answer(by="stage"),
    "steps": lambda run: run.breakdown.answer(by="iteration"),
    "kernels": lambda run: run.breakdown.answer(by="kernel"),
    "idle": lambda run: run.idle.answer(by="cause"),
}
"""What tables of a page are, by their names."""


def _real(folder: Path, real_trace: Callable[[str], Path]) -> Path:
    return real_trace("ddp_unet_4xa100_rank0")


def _eight(folder: Path, real_trace: Callable[[str], Path]) -> Path:
    return SAMPLES / "simulated" / "exposed_nccl.sqlite"


def _host(folder: Path, real_trace: Callable[[str], Path]) -> Path:
    return SAMPLES / "recorded" / "pipeline_1f1b.sqlite"


def _million(folder: Path, real_trace: Callable[[str], Path]) -> Path:
    sys.path.append(str(SAMPLES.parent / "benchmarks"))
    from generate_export import Job, generate

    path = folder / "million.sqlite"
    generate(path, Job(kernels=MILLION, noise=0.0))
    return path


KINDS = {"real": _real, "eight": _eight, "host": _host, "million": _million}


@pytest.fixture(scope="module", params=[*KINDS, "change"])
def kind(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    real_trace: Callable[[str], Path],
) -> tuple[Path, tk.Run | None]:
    """A page, and the run that its tables are of."""
    folder = tmp_path_factory.mktemp("kinds")
    if request.param == "change":
        text, run = request.getfixturevalue("change_page"), None
    else:
        trace = KINDS[request.param](folder, real_trace)
        run = tk.ingest(trace, store=folder / "store")[0]
        text = report_of([run])
    page = folder / f"{request.param}.html"
    page.write_text(text, encoding="utf-8")
    assert page.stat().st_size < MOST_BYTES
    return page, run


def test_it_loads_nothing_and_all_tables_work(
    browser: Any, kind: tuple[Path, tk.Run | None], heard: list[str]
) -> None:
    page = opened(browser, kind[0], heard, 375)
    assert page.evaluate(WIDE) <= 0
    page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    for width in (768, 1280, 1920, 375):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate(WIDE) <= 0
    assert page.evaluate(UNSORTED) == []
    assert page.evaluate(UNFILTERED) == []
    assert heard == []


UNSORTED = """() => [...document.querySelectorAll("table[data-key]")].flatMap((table) =>
  [...table.tHead.rows[0].cells].flatMap((head, place) => {
    if (!head.classList.contains("number")) return [];
    head.querySelector("button").click();
    const all = [...table.tBodies[0].rows].map((row) => row.cells[place].dataset.v);
    const known = all.filter((value) => value !== undefined).map(Number);
    const isLast = all.slice(0, known.length).every((value) => value !== undefined);
    const falls = known.every((value, at) => !at || known[at - 1] >= value);
    return isLast && falls ? [] : [`${table.dataset.key} ${head.textContent}`];
  }))"""
"""Names of the columns that a click does not sort, the largest first and unknown ones last."""

UNFILTERED = """() => [...document.querySelectorAll("details.table")].flatMap((box) => {
    const filter = box.querySelector(".filter");
    const type = (text) => { filter.value = text; filter.dispatchEvent(new Event("input")); };
    const rows = [...box.querySelectorAll("tbody tr")];
    const left = () => rows.filter((row) => !row.classList.contains("out")).length;
    type("no row says this"); const none = left();
    type(""); const all = left();
    return none === 0 && all === rows.length ? [] : [box.querySelector("table").dataset.key];
  })"""
"""Names of the tables that a filter does not empty and fill again."""

NUMBERS = """(key) => {
  const table = document.querySelector(`table[data-key=${key}]`);
  if (!table) return null;
  const names = [...table.tHead.rows[0].cells].map((cell) => cell.dataset.name);
  const rows = [...table.tBodies[0].rows];
  const isKnown = (cell) => cell.dataset.v !== undefined;
  return rows.map((row) => Object.fromEntries([...row.cells].flatMap((cell, place) =>
    isKnown(cell) ? [[names[place], Number(cell.dataset.v)]] : [])));
}"""


def test_numbers_are_those_of_json(
    browser: Any, kind: tuple[Path, tk.Run | None], heard: list[str]
) -> None:
    file, run = kind
    if run is None:
        pytest.skip("the tables of a comparison are held against JSON in test_report_page.py")
    page = opened(browser, file, heard, 1280)
    compared = 0
    for key, ask in ASKED.items():
        shown = page.evaluate(NUMBERS, key)
        if shown is None:
            continue
        rows = json.loads(to_json("", "", {}, ask(run).readable_rows))["rows"]
        for one, row in zip(shown, rows, strict=False):
            assert one == {name: row[name] for name in one}
            compared += len(one)
    assert compared > 0


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_all_can_read_it(
    browser: Any, kind: tuple[Path, tk.Run | None], heard: list[str], theme: str
) -> None:
    page = opened(browser, kind[0], heard, 1280, theme)
    assert complaints(page) == []
    assert heard == []


PAN = """(key) => new Promise((done) => {
  const chart = document.querySelector("[data-gantt] canvas");
  chart.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 0)));
})"""
MOST_S, MOST_FRAME_S = 1.5, 0.016
"""How long a page may take to open, and a frame while one pans it, of its thread's own time."""


def test_it_opens_and_pans_at_once(browser: Any, kind: tuple[Path, tk.Run | None]) -> None:
    """Other programs may run, and pixels are drawn without a GPU: both take no time of its own."""
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    told = page.context.new_cdp_session(page)
    told.send("Performance.enable", {"timeDomain": "threadTicks"})

    def spent() -> float:
        metrics = told.send("Performance.getMetrics")["metrics"]
        return float(next(each["value"] for each in metrics if each["name"] == "TaskDuration"))

    page.goto(kind[0].as_uri())
    page.wait_for_function(READY)
    assert 0.01 < spent() < MOST_S  # a reload counts from zero anew
    page.evaluate("document.querySelector('[data-gantt] canvas').focus()")
    for _ in range(3):
        page.keyboard.press("+")
    times = [spent()]
    for number in range(60):
        page.evaluate(PAN, "a" if number % 40 < 20 else "d")
        times.append(spent())
    frames = sorted(end - start for start, end in pairwise(times))
    assert frames[int(0.95 * len(frames))] < MOST_FRAME_S
