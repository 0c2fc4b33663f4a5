"""The page in a browser: it draws, sorts and filters, and nothing that a trace says runs."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from browsing import WIDE, complaints, opened, rows
from hostile import KERNEL

from tracekit.machine import load_preset
from tracekit.model import traits
from tracekit.present import Heading, heat_figure, machine_figure, readable_names, save_figure
from tracekit.present._stage_figures import breakdown_figure

if TYPE_CHECKING:
    from pathlib import Path

    import tracekit

pytestmark = pytest.mark.slow


def test_the_page_works(browser: Any, page_file: Path, heard: list[str]) -> None:
    page = opened(browser, page_file, heard, 1280)
    assert heard == []
    table = page.locator("details:has(table[data-key=kernels])")
    before = rows(page, "kernels")
    table.get_by_role("button", name="ops", exact=True).click()
    numbers = page.eval_on_selector_all(
        "table[data-key=kernels] tbody tr td:nth-child(3)", "c => c.map(e => Number(e.dataset.v))"
    )
    assert numbers == sorted(numbers, reverse=True)
    table.get_by_role("searchbox").fill("onerror")
    (name,) = rows(page, "kernels")
    assert name == readable_names([KERNEL])[KERNEL]
    table.get_by_role("searchbox").fill("")
    assert len(rows(page, "kernels")) == len(before) > 1
    _keys_move_the_chart(page)
    page.set_viewport_size({"width": 360, "height": 800})
    assert page.evaluate(WIDE) <= 0
    assert page.locator("img").count() == 0
    assert heard == []


BEHIND = """() => [...document.querySelectorAll("table[data-key]")].flatMap((table) => {
  const edge = (table.closest(".scroll") ?? table.parentElement).getBoundingClientRect().right;
  return [...table.querySelectorAll("thead th")]
    .filter((each) => each.getBoundingClientRect().right > edge + 1)
    .map((each) => each.dataset.name);
})"""
"""The columns of tables that one scrolls to."""


def test_what_a_table_is_about_is_in_sight(browser: Any, page_file: Path, heard: list[str]) -> None:
    page = opened(browser, page_file, heard, 1280)
    page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    behind = page.evaluate(BEHIND)
    assert "after" in behind  # of the longest gaps
    assert [name for name in behind if traits(name).essential] == []


def _keys_move_the_chart(page: Any) -> None:
    canvas = page.locator("canvas")
    canvas.focus()
    for key in ("+", "ArrowRight", "n", "n"):
        page.keyboard.press(key)
    assert "of the step" in page.locator(".picked").text_content()
    page.get_by_role("button", name="Slowest").click()
    pressed = page.locator(".view[aria-pressed=true]").all_text_contents()
    assert [text[:7] for text in pressed] == ["Slowest"]


@pytest.fixture(scope="module")
def figure_file(hostile_run: tracekit.Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("figure") / "stages.html"
    save_figure(hostile_run.breakdown.answer(by="device,stage").figure(), path)
    return path


def test_a_figure_fits_its_page_and_its_legend_hides_parts(
    browser: Any, figure_file: Path, heard: list[str]
) -> None:
    page = opened(browser, figure_file, heard, 1280)
    drawn = page.locator(".drawn .main-svg").first
    wide = drawn.bounding_box()["width"]
    assert 1100 < wide <= 1280
    page.set_viewport_size({"width": 360, "height": 800})
    page.wait_for_function("() => document.querySelector('.main-svg').clientWidth < 700")
    assert page.evaluate(WIDE) <= 0
    page.locator(".drawn").hover()
    buttons, bars = (
        page.locator(".modebar").bounding_box(),
        page.locator(".bars").first.bounding_box(),
    )
    assert buttons["y"] + buttons["height"] <= bars["y"]
    entries = page.locator(".legend button")
    assert entries.count() > 3
    for entry in entries.all():
        entry.click()
    page.wait_for_function("() => document.querySelectorAll('.drawn .bars path').length === 0")
    assert page.locator("img").count() == 0
    assert heard == []


TICKS = """() => [...document.querySelectorAll('.xtick text')].map((each) => {
  const { left, right } = each.getBoundingClientRect(); return [left, right];
})"""


def test_steps_of_a_narrow_figure_are_named_apart(
    browser: Any, heard: list[str], tmp_path: Path
) -> None:
    steps = pl.DataFrame({"iteration": range(59), "busy_ns": [10**6] * 59})
    save_figure(breakdown_figure(steps, {}, heading=Heading("", "")), tmp_path / "steps.html")
    page = opened(browser, tmp_path / "steps.html", heard, 360)
    named = page.evaluate(TICKS)
    assert len(named) > 4
    assert all(end < begin for (_, end), (begin, _) in pairwise(named))
    assert (
        page.evaluate("(b => b.scrollWidth - b.clientWidth)(document.querySelector('.scroll'))")
        <= 0
    )


def test_figures_fit_a_narrow_page_and_no_number_crosses_another(
    browser: Any, heard: list[str], tmp_path: Path
) -> None:
    cells = [(0, step, -13.25) for step in range(30)]
    ranks = pl.DataFrame(cells, ["rank", "iteration", "v"], orient="row")
    figures = {
        "map": heat_figure(ranks, "rank", "iteration", "v", heading=Heading("", "")),
        "machine": machine_figure(load_preset("dgx1v"), heading=Heading("", "")),
    }
    numbers = []
    for name, figure in figures.items():
        save_figure(figure, tmp_path / f"{name}.html")
        page = opened(browser, tmp_path / f"{name}.html", heard, 1100)
        over = "(b => b.scrollWidth - b.clientWidth)(document.querySelector('.scroll'))"
        assert page.evaluate(over) <= 0
        numbers.append(page.locator(".heatmap-label").count())
        page.set_viewport_size({"width": 1920, "height": 800})
        page.wait_for_function("() => document.querySelector('.main-svg').clientWidth > 1100")
        numbers.append(page.locator(".heatmap-label").count())
    assert numbers == [0, 30, 0, 0]
    assert heard == []


NAMES = "() => [...document.querySelectorAll('.ytick text')].map((each) => each.textContent)"


def test_names_that_a_phone_cuts_are_told_apart(
    browser: Any, heard: list[str], tmp_path: Path
) -> None:
    """Cut in the middle, four names of five were alike."""
    begin, end = "autograd::engine::evaluate_function: ", "Backward0 > aten::convolution_backward"
    names = [f"{begin}{layer}{end}" for layer in ("Conv", "Norm", "Relu", "A<b>")]
    ranges = pl.DataFrame({"range": [*names, "step"], "busy_ns": [5, 4, 3, 2, 1]})
    save_figure(breakdown_figure(ranges, {}, heading=Heading("", "")), tmp_path / "ranges.html")
    page = opened(browser, tmp_path / "ranges.html", heard, 375)
    shown = page.evaluate(NAMES)
    assert len(set(shown)) == len(shown) == 5
    for layer in ("Conv", "Norm", "Relu", "A<b>"):
        assert sum(layer in name for name in shown) == 1
    assert heard == []


@pytest.mark.nightly
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_a_figure_is_read_in_any_theme(
    browser: Any, figure_file: Path, heard: list[str], width: int, theme: str
) -> None:
    page = opened(browser, figure_file, heard, width, theme)
    assert complaints(page) == []
    assert heard == []


@pytest.mark.nightly
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280, 2560])
def test_no_theme_and_no_width_breaks_it(
    browser: Any, page_file: Path, heard: list[str], width: int, theme: str
) -> None:
    page = opened(browser, page_file, heard, width, theme)
    assert page.evaluate(WIDE) <= 0
    page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    assert complaints(page) == []
    assert heard == []
