"""The chart of a step by keys alone: what it says of an op and a span is what the run holds."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from browsing import opened

import tracekit
from tracekit.analysis import step_detail

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.slow

AROUND = 400_000


def parts(run: tracekit.Run, between: tuple[int, int]) -> dict[str, tuple[int, int]]:
    """Return the busy and the exposed time of each stage in a time, and idle time."""
    answer = run.breakdown.answer(by="stage", between=between)
    rows = answer.rows.filter(pl.col("busy_ns") > 0).select("stage", "busy_ns", "exposed_ns")
    found = {stage: (busy, exposed) for stage, busy, exposed in rows.iter_rows()}
    return {**found, "idle": (0, answer.meta["idle_ns"])}


def told(page: Any) -> dict[str, tuple[int, int]]:
    rows = page.eval_on_selector_all(
        ".selection tbody tr",
        """rows => rows.map(
            ({cells}) => [cells[0].textContent, cells[1].dataset.ns ?? 0, cells[2].dataset.ns])""",
    )
    return {name: (int(busy), int(exposed)) for name, busy, exposed in rows}


def test_a_finding_and_a_dot_lead_to_their_place(
    browser: Any, page_file: Path, heard: list[str]
) -> None:
    page = opened(browser, page_file, heard, 1280)
    link = page.locator(".findings a").first
    link.click()
    pressed = page.locator(".view[aria-pressed=true]")
    # The address changes first, and the page hears of it after that.
    page.wait_for_function("() => document.querySelectorAll('.selection tbody tr').length > 1")
    assert "Slowest" in pressed.text_content()
    for dot in page.locator("a.dot").all():
        dot.click()
        number = dot.get_attribute("href").partition("=")[2]
        page.wait_for_function(
            """n => document.querySelector('.view[aria-pressed=true]')
                .textContent.includes(`(${n})`)""",
            arg=number,
        )
    assert heard == []


def test_a_selection_has_the_numbers_of_its_time_at_the_ends_of_a_step_too(
    browser: Any, page_file: Path, heard: list[str], hostile_run: tracekit.Run
) -> None:
    """What began in the step before, and what other GPUs do already, is in it."""
    spans = step_detail.step_spans(hostile_run.trace)
    page = opened(browser, page_file, heard, 1280)
    lengths = step_detail.step_lengths(spans)
    for step in (step_detail.slowest_step(lengths), step_detail.median_step(lengths)):
        own = spans.filter(iteration=step)
        page.locator(".view", has_text=f"({step})").click()
        start, end = own["start"].min(), own["end"].max()
        for first, last in ((0, 300_000), (end - start - 300_000, end - start)):
            page.locator(".span").fill(f"{first}ns-{last}ns")
            page.locator(".span").press("Enter")
            found = {n: own for n, own in told(page).items() if not n.startswith("idle: ")}
            assert found == parts(hostile_run, (start + first, start + last))


REAL = ("kineto_ddp_2xa100_rank0", "ddp_unet_4xa100_rank0")


@pytest.fixture(params=["", *(pytest.param(name, marks=pytest.mark.nightly) for name in REAL)])
def asked(
    request: pytest.FixtureRequest, tmp_path: Path, real_trace: Callable[[str], Path]
) -> tuple[Path, tracekit.Run, int]:
    """A page, its run, and how much around an op is selected."""
    if not request.param:
        sample = [request.getfixturevalue(name) for name in ("page_file", "hostile_run")]
        return (*sample, AROUND)
    run = tracekit.ingest(real_trace(request.param), store=tmp_path / "store")[0]
    run.report(tmp_path / "report.html")
    return tmp_path / "report.html", run, 100 * AROUND


def test_keys_alone_find_an_op_and_what_is_around_it(
    browser: Any, heard: list[str], asked: tuple[Path, tracekit.Run, int]
) -> None:
    page_file, run, around = asked
    trace = run.trace
    spans = step_detail.step_spans(trace)
    step = step_detail.slowest_step(step_detail.step_lengths(spans))
    own = spans.filter(iteration=step)
    ops = step_detail.ops_inside(trace, own)
    zero = own["start"].min()
    reduces = ops.filter(pl.col("name").cast(pl.String).str.contains("AllReduce"))
    longest = reduces.sort(pl.col("end") - pl.col("start"), descending=True).head(1)
    wanted = {
        **longest.row(0, named=True),
        **step_detail.details(trace, longest).row(0, named=True),
    }

    page = opened(browser, page_file, heard, 1280)
    keys = page.keyboard
    while "Slowest" not in page.evaluate("document.activeElement.textContent").split("\n")[0]:
        keys.press("Tab")
    keys.press("Enter")
    keys.press("/")
    keys.type("allreduce")
    keys.press("Enter")
    said = page.locator(".picked").text_content()
    length = wanted["end"] - wanted["start"]
    size, unit = (10**6, "ms") if length >= 10**6 else (10**3, "us")
    assert f" · {Decimal(length) / size} {unit}, from" in said
    assert wanted["launch"] in said
    assert wanted["range"] in said
    listed = page.locator(".hits li").all_text_contents()
    assert any(f": {reduces.height}, " in text for text in listed)

    keys.press("v")
    keys.type(f"{around / 1e6}ms")
    keys.press("Enter")
    middle = round((wanted["start"] + wanted["end"]) / 2 - zero + 1e-6)
    start = zero + max(middle - around // 2, 0)
    between = start, min(zero + middle + around // 2, own["end"].max())
    found = told(page)
    causes = {name: found.pop(name)[1] for name in list(found) if name.startswith("idle: ")}
    assert found == parts(run, between)
    sums = run.idle(by="cause", between=between).filter(pl.col("idle_ns") > 0)
    assert causes == {f"idle: {cause}": ns for cause, ns in sums["cause", "idle_ns"].iter_rows()}
    page.wait_for_function(f"() => location.hash.startsWith('#step={step}&')")
    page.wait_for_function("() => location.hash.includes('&select=')")

    again = page.evaluate("location.href")
    fresh = opened(browser, page_file, heard, 800)
    fresh.goto(again)
    fresh.reload()
    fresh.wait_for_function("() => document.querySelectorAll('[data-gantt][data-ready]').length")
    assert told(fresh).keys() == {*found, *causes}
    assert fresh.locator(".picked").text_content() == said
    assert [text for text in heard if not text.startswith("file:")] == []
