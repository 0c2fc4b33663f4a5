"""The view in a browser, by the keyboard alone: what it says is what the run holds."""

from __future__ import annotations

import shlex
import threading
from time import sleep
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from browsing import WIDE, complaints
from hostile import KERNEL

from tracekit.analysis import step_detail
from tracekit.analysis.idle_account import CAUSES
from tracekit.support import batches
from tracekit.view import View
from tracekit.view._lanes import RunLanes

if TYPE_CHECKING:
    from pathlib import Path

    import tracekit

pytestmark = pytest.mark.slow

AROUND = 400_000


def opened(browser: Any, address: str, heard: list[str], theme: str = "light") -> Any:
    page = browser.new_page(viewport={"width": 1280, "height": 800}, color_scheme=theme)
    page.on("console", lambda message: heard.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: heard.append(f"error: {error}"))
    page.on("dialog", lambda dialog: heard.append(f"dialog: {dialog.message}"))
    page.goto(address)
    page.wait_for_selector("[data-ready]")
    return page


def told(page: Any) -> dict[str, tuple[int, int, int]]:
    """Return ops, busy and exposed time by stage, as the page shows them."""
    rows = page.eval_on_selector_all(
        ".selection tbody tr",
        """rows => rows.map((row) => Object.fromEntries([...row.cells].map(
            (cell) => [cell.dataset.column, cell.dataset.ns ?? cell.textContent])))""",
    )
    return {
        row["stage"]: (
            int(row["ops"].replace(",", "")),
            int(row["busy_ns"]),
            int(row["exposed_ns"]),
        )
        for row in rows
    }


def parts(run: tracekit.Run, between: tuple[int, int]) -> dict[str, tuple[int, int, int]]:
    rows = run.breakdown(by="stage", between=between)
    return {
        s: (o, b, e) for s, o, b, e in rows["stage", "ops", "busy_ns", "exposed_ns"].iter_rows()
    }


def test_by_keys_alone(
    browser: Any, served: View, runs: list[tracekit.Run], heard: list[str]
) -> None:
    page = opened(browser, served.address, heard)
    keys = page.keyboard
    assert "token" not in page.url
    # A name that would do harm is found, gone to and told as text.
    keys.press("/")
    keys.type("onerror")
    page.wait_for_function("() => document.querySelector('.found').textContent.includes('found')")
    keys.press("Enter")
    page.wait_for_selector(".picked .facts dd")
    ops = runs[0].trace.read("ops")
    own = ops.filter(ops["name"].cast(str) == KERNEL)
    longest = own[int((own["end"] - own["start"]).arg_max() or 0)].row(0, named=True)
    assert KERNEL in page.locator(".picked .said").text_content()
    facts = page.locator(".picked .facts").text_content()
    assert f"{longest['stage']}, known by" in facts
    assert f"{own.height} in this run" in facts
    page.wait_for_function(
        "() => document.querySelector('.picked .facts')?.textContent.includes('GPU idle before')"
    )
    # A time around it is what `breakdown --between` says of it.
    keys.press("v")
    keys.press("Control+a")
    keys.type(f"{AROUND}ns")
    keys.press("Enter")
    page.wait_for_selector(".selection td")
    middle = round((longest["start"] + longest["end"]) / 2)
    start = middle - AROUND // 2
    begin, end = RunLanes(runs[0].trace).edges
    between = max(start, begin), min(start + AROUND, end)
    assert told(page) == parts(runs[0], between)
    idle = page.locator(".idle-time").get_attribute("data-ns")
    assert int(idle) == runs[0].breakdown.answer(between=between).meta["idle_ns"]
    command = page.locator(".selection code").text_content().split()
    assert (
        runs[0]
        .breakdown(between=command[command.index("--between") + 1])
        .equals(runs[0].breakdown(between=between))
    )
    # The address holds it all.
    page.reload()
    page.wait_for_selector(".selection td")
    assert told(page) == parts(runs[0], between)
    assert page.locator(".search").input_value() == "onerror"
    check_steps(page, runs[0])
    check_marks(page)
    check_launches(page)
    # Lanes, ops and zoom; another run by its button.
    for key in ("Escape", "0", "w", "w", "d", "ArrowDown", "ArrowDown", "n", "p", "s", "a", "f"):
        keys.press(key)
    page.get_by_role("button", name="p2p").focus()
    keys.press("Enter")
    page.wait_for_function("() => location.hash.startsWith('#run=p2p')")
    page.wait_for_function("() => document.querySelectorAll('.sight tbody tr').length > 1")
    assert "GPU 2" not in page.locator(".sight").text_content()
    assert page.locator("img").count() == 0
    assert heard == []


def test_a_run_that_begins_before_zero(
    browser: Any, runs: list[tracekit.Run], heard: list[str]
) -> None:
    """As one of several reports on one clock does, such as that of DLRM on 8 GPUs."""
    trace, times = runs[0].trace, ("start", "end", "launch_start", "launch_end")
    first, _ = RunLanes(trace).edges
    tables = {
        name: trace.read(name).with_columns(
            pl.col(f"^{time}$") - first - 5_000_000 for time in times
        )
        for name in ("ops", "calls", "ranges", "iterations")
    }
    run = runs[0].with_trace(trace.with_tables(tables))
    between = -3_000_000, 1_000_000
    with View([run], opens=False) as view:
        page = opened(browser, view.address, heard)
        for text in ("-3ms", "-3ms-1ms"):
            assert page.locator(".selection td").count() == 0  # no length is below 0
            page.keyboard.press("v")
            page.keyboard.press("Control+a")
            page.keyboard.type(text)
            page.keyboard.press("Enter")
        for _ in range(2):
            page.wait_for_selector(".selection td")
            assert told(page) == parts(run, between)
            command = shlex.split(page.locator(".selection code").text_content())
            asked = command[command.index("--between") + 1]
            assert run.breakdown(between=asked).equals(run.breakdown(between=between))
            page.reload()  # the address holds it
        # So does a mark.
        page.wait_for_selector("[data-ready]")
        page.locator("canvas").focus()
        page.keyboard.press("f")
        page.keyboard.press("k")
        label = page.locator(".marks button").text_content()
        page.wait_for_function("() => location.hash.includes('marks=')")
        page.reload()
        page.wait_for_selector(".marks button")
        assert page.locator(".marks button").text_content() == label == "mark 1: -1 ms"
    assert heard == []


def test_lanes_are_chosen_by_keys(
    browser: Any, served: View, runs: list[tracekit.Run], heard: list[str]
) -> None:
    page = opened(browser, served.address, heard)
    page.wait_for_selector("[data-listed]")
    labels = page.eval_on_selector_all(
        ".sight tbody tr", "rows => rows.map(({ cells }) => cells[0].textContent)"
    )
    streams = [label for label in labels if "stream" in label]
    ranges = next(number for number, label in enumerate(labels) if label.startswith("NVTX"))
    page.locator("canvas").focus()
    for _ in range(ranges):
        page.keyboard.press("ArrowDown")
    page.keyboard.press("Space")
    page.wait_for_function(
        "() => document.getElementById('said').textContent.includes('cannot be chosen')"
    )
    for _ in range(labels.index(streams[0]) - ranges):
        page.keyboard.press("ArrowDown")
    page.keyboard.press("Space")
    told = page.locator(".selection")
    assert told.text_content() == f"{streams[0]} chosen. Select a time: drag, or press V."
    page.keyboard.press("v")
    page.keyboard.type("0ms-1s")
    page.keyboard.press("Enter")
    check_lanes(page, runs[0], streams[:1])
    assert complaints(page) == []
    # A click on a name chooses, too; the address holds it.
    row = labels.index(streams[1])
    page.locator("canvas").click(position={"x": 20, "y": 22 + 17 * row + 8})
    check_lanes(page, runs[0], streams[:2])
    page.wait_for_function("() => location.hash.includes('&lanes=')")
    page.reload()
    check_lanes(page, runs[0], streams[:2])
    page.locator("canvas").focus()
    page.keyboard.press("Escape")
    page.wait_for_function("() => !location.hash.includes('lanes=')")
    assert told.text_content() == ""
    assert heard == []


def check_lanes(page: Any, run: tracekit.Run, labels: list[str]) -> None:
    """Compare what the page shows of streams with a loop over the rows of `breakdown`."""
    page.wait_for_function(
        "labels => document.querySelector('.selection p')?.textContent.endsWith(`, on ${labels}:`)"
        " && document.querySelector('.selection td[data-column=stream]')",
        arg=", ".join(labels),
    )
    keys = [tuple(int(word) for word in label.split() if word.isdigit()) for label in labels]
    rows = run.breakdown(by="stream,stage").iter_rows(named=True)
    expected = [row["busy_ns"] for row in rows if (row["device"], row["stream"]) in keys]
    assert len(expected) >= len(labels)
    shown = page.locator(".selection td[data-column=busy_ns]").all()
    assert [int(cell.get_attribute("data-ns")) for cell in shown] == expected
    words = shlex.split(page.locator(".selection code").text_content())
    chosen = run.breakdown(by="stream,stage", where=words[words.index("--where") + 1])
    assert chosen["busy_ns"].to_list() == expected


def check_launches(page: Any) -> None:
    """Draw launches where few ops are in sight; the address says so."""
    page.get_by_role("button", name="Launches").focus()
    page.keyboard.press("Enter")
    page.wait_for_function(
        "() => / of .* launches/.test(document.querySelector('.launches')?.textContent)"
    )
    page.wait_for_function("() => location.hash.includes('&flows')")
    page.locator("canvas").focus()
    page.keyboard.press("0")
    page.wait_for_function(
        "() => document.querySelector('.launches')?.textContent.includes('zoom in')"
    )
    page.get_by_role("button", name="Launches").focus()
    page.keyboard.press("Enter")


def check_marks(page: Any) -> None:
    """Set a mark by keys, find it in the address, go to it, and take it away."""
    page.keyboard.press("k")
    mark = page.locator(".marks button")
    name = mark.text_content()
    page.wait_for_function("() => location.hash.includes('marks=')")  # written at rest
    before = page.url
    page.reload()
    # What was searched for is told once the time in the address is shown, and moves it no more.
    page.wait_for_function("() => document.querySelector('.found').textContent.includes('found')")
    assert (page.url, mark.text_content()) == (before, name)
    mark.focus()
    page.keyboard.press("Enter")
    page.locator("canvas").focus()
    page.keyboard.press("k")
    assert mark.count() == 0
    page.wait_for_function("() => !location.hash.includes('marks=')")


def check_steps(page: Any, run: tracekit.Run) -> None:
    """Go to the last step by keys."""
    page.locator("canvas").focus()
    page.wait_for_function("() => document.querySelector('.steps').textContent.includes('6 steps')")
    for key in ("Escape", "0", *9 * "]"):
        page.keyboard.press(key)
    last = step_detail.step_spans(run.trace).filter(iteration=5)
    left, length = last["start"].min(), last["end"].max() - last["start"].min()
    begin = min(left - 0.05 * length, RunLanes(run.trace).edges[1] - 1.1 * length)
    # The address is written at rest, and a slow page also rests between keys.
    page.wait_for_function(
        """([begin, length]) => {
            const address = new URLSearchParams(location.hash.slice(1));
            const times = (address.get('t') || '').split('-');
            const [from, to] = times.map((ms) => parseFloat(ms) * 1e6);
            return !address.has('select') && Math.abs(from - begin) <= 2
                && Math.abs(to - from - length) <= 2;
        }""",
        arg=[float(begin), 1.1 * length],
    )


def test_what_is_in_sight_is_a_table(
    browser: Any, served: View, runs: list[tracekit.Run], heard: list[str], client: Any
) -> None:
    page = opened(browser, served.address, heard)
    page.wait_for_selector("[data-explained][data-listed]")
    page.wait_for_function("() => !document.querySelector('.sight').textContent.includes('found')")
    shown = dict(
        page.eval_on_selector_all(
            ".sight tbody tr",
            "rows => rows.map(({cells}) => [cells[0].textContent, Number(cells[2].dataset.ns)])",
        )
    )
    idle = runs[0].idle.answer(between=RunLanes(runs[0].trace).edges).meta["idle_ns"]
    assert sum(ns for label, ns in shown.items() if "idle" in label) == idle
    causes = [CAUSES[cause] for cause in runs[0].idle()["cause"]]
    exposed = (
        runs[0].breakdown(by="device,stage").group_by("device").agg(pl.col("exposed_ns").sum())
    )
    for device, length in exposed.select("device", "exposed_ns").iter_rows():
        assert shown[f"GPU {device}"] == length
    for label, starting in page.eval_on_selector_all(
        ".sight tbody tr",
        "rows => rows.map(({cells}) => [cells[0].textContent, cells[1].textContent])",
    ):
        if "stream" in label:
            device, stream = (int(word) for word in label.split() if word.isdigit())
            ops = runs[0].trace.read("ops")
            own = ops.filter(device=device, stream=stream)
            assert int(starting.replace(",", "")) == own.height
    check_words(page, causes)
    page.locator(".diagnosed summary").click()
    # Findings that take more than a second have a button to give up in their place.
    page.locator(".diagnosed button").filter(has_not_text="Give up").first.click()
    start, end = client.data("findings", run=0)["findings"][0][2]
    assert page.locator(".span").input_value() == f"{start / 1e6:.9g}ms-{end / 1e6:.9g}ms"
    assert heard == []


def check_words(page: Any, causes: list[str]) -> None:
    """Find communication and causes of idle time in the legend, in sight and in a selection."""
    legend = page.locator(".legend li").all_text_contents()
    assert {"communication", *(f"idle: {cause}" for cause in causes)} <= {*legend}
    assert all(cause in page.locator(".sight").text_content() for cause in causes)
    page.keyboard.press("v")
    page.keyboard.type("0ms-1s")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="idle by cause").click()
    page.wait_for_selector(".selection td[data-column=cause]")
    told = page.locator(".selection td[data-column=cause]").all_text_contents()
    assert sorted(told) == sorted(causes)
    assert not [
        word for word in CAUSES if "_" in word and word in page.locator("body").inner_text()
    ]


def test_counters_are_drawn_and_told(browser: Any, counted: tracekit.Run, heard: list[str]) -> None:
    with View([counted], opens=False) as view:
        page = opened(browser, view.address, heard)
        page.wait_for_selector("[data-listed]")
        shown = dict(
            page.eval_on_selector_all(
                ".sight tbody tr",
                "rows => rows.map(({cells: [first, ...rest]}) =>"
                " [first.textContent, rest.at(-1).textContent])",
            )
        )
        value = counted.trace.read("metrics").filter(device=0)["value"]
        assert shown["GPU 0 · PCIe RX <img> (percent)"] == f"0 to 100 %, mean {value.mean():.8g} %"
        assert shown["GPU 0 · memory in use, process 0 (bytes)"] == "4,096 to 12,288 bytes"
        row = [*shown].index("GPU 0 · PCIe RX <img> (percent)")
        page.locator("canvas").hover(position={"x": 700, "y": 22 + 17 * row + 8})
        page.wait_for_function("document.querySelector('.hovered').textContent.includes('samples')")
        page.keyboard.press("v")
        page.keyboard.type("0ms-1s")
        page.keyboard.press("Enter")
        page.get_by_role("button", name="counters").click()
        page.wait_for_selector(".selection td[data-column=mean]")
        assert "SELECT report, device, nic" in page.locator(".selection code").text_content()
        assert page.locator("img").count() == 0
        assert heard == []


CURVES = """window.curves = [];
    const draw = CanvasRenderingContext2D.prototype.bezierCurveTo;
    CanvasRenderingContext2D.prototype.bezierCurveTo = function (...places) {
        window.curves.push(places); draw.apply(this, places); };"""


def test_a_found_op_is_scrolled_to_below_the_axis(
    browser: Any, served: View, heard: list[str]
) -> None:
    page = browser.new_page(viewport={"width": 900, "height": 150})
    page.add_init_script(CURVES)
    page.goto(served.address)
    page.wait_for_selector("[data-listed]")
    lanes = page.eval_on_selector_all(".sight tbody th", "all => all.map((one) => one.textContent)")
    page.keyboard.press("/")
    page.keyboard.type("onerror")
    page.wait_for_function("() => document.querySelector('.found').textContent.includes('found')")
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.querySelector('.picked .facts')?.children.length > 8")
    above, high = page.eval_on_selector(".lanes", "box => [box.scrollTop, box.clientHeight]")
    of_op = page.locator(".picked .said").text_content().rpartition(" · ")
    number = lanes.index(f"{of_op[0].rpartition(' · ')[2]} · {of_op[2]}")
    assert above <= 17 * number <= above + high - 39
    # The launch is drawn from its thread's lane to that of the op.
    _, first, _, second, _, last = page.evaluate("() => window.curves.at(-1)")
    assert (second, last) == (22 + 17 * number + 8.5,) * 2
    assert first < second
    axis = page.eval_on_selector(
        "canvas",
        """(canvas) => {
            const { data } = canvas.getContext('2d').getImageData(200, 0, 600, 12);
            return data.some((value, i) => i % 4 === 0 && value < 200);
        }""",
    )
    assert axis
    assert heard == []


def test_lanes_out_of_sight_are_drawn_once_one_scrolls_or_prints(
    browser: Any, served: View, heard: list[str]
) -> None:
    page = opened(browser, served.address, heard)
    page.wait_for_selector("[data-explained]")
    rows = """async () => {
      for (let i = 0; i < 4; i += 1) await new Promise((done) => requestAnimationFrame(done));
      const canvas = document.querySelector("canvas"), c = canvas.getContext("2d"), rows = [];
      for (let top = 22; top + 17 <= canvas.height; top += 17) {
        const { data } = c.getImageData(180, top, 900, 16);
        rows.push(data.some((red, i) => i % 4 === 0 && Math.abs(red - data[i + 2]) > 60));
      }
      return rows;
    }"""
    page.evaluate("document.querySelector('canvas').blur()")
    page.evaluate("document.querySelector('.lanes').style.maxHeight = 'none'")
    whole = page.evaluate(rows)
    page.evaluate("document.querySelector('.lanes').style.maxHeight = '90px'")
    assert any(whole[5:])
    for first in (0, len(whole) - 4, 5):
        page.evaluate(f"document.querySelector('.lanes').scrollTop = {17 * first}")
        top = page.evaluate(rows)
        assert len(top) == 3
        assert top == whole[first : first + 3]
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate(rows) == whole
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate(rows) == top
    assert not [each for each in heard if "willReadFrequently" not in each]
    page.close()


def test_a_launch_without_a_lane_is_not_drawn(
    browser: Any, runs: list[tracekit.Run], heard: list[str]
) -> None:
    """It was drawn from the topmost lane, a GPU."""
    trace = runs[0].trace
    bare = {name: trace.read(name).clear() for name in ("ranges", "iterations")}
    with View([runs[0].with_trace(trace.with_tables(bare))], opens=False) as view:
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.add_init_script(CURVES)
        page.goto(view.address)
        page.wait_for_selector("[data-ready]")
        page.keyboard.press("/")
        page.keyboard.type("onerror")
        page.wait_for_function(
            "() => document.querySelector('.found').textContent.includes('found')"
        )
        page.keyboard.press("Enter")
        page.wait_for_function(
            "() => document.querySelector('.picked .facts')?.textContent.includes('Launched by')"
        )
        page.wait_for_timeout(200)
        assert page.evaluate("() => window.curves") == []
        assert heard == []


PERFETTO = """<script>addEventListener("message", ({ data, source, origin }) => {
    if (data === "PING") source.postMessage("PONG", origin);
    if (data.perfetto) document.title = `${data.perfetto.title} ${data.perfetto.buffer.byteLength}`;
})</script>"""


def test_steps_are_handed_to_perfetto_on_a_click_alone(
    browser: Any, served: View, runs: list[tracekit.Run], heard: list[str], tmp_path: Path
) -> None:
    page = opened(browser, served.address, heard)
    asked: list[str] = []
    context = page.context
    context.on("request", lambda request: asked.append(request.url))
    context.route("https://**", lambda each: each.fulfill(body=PERFETTO, content_type="text/html"))
    page.wait_for_function("() => document.querySelector('.steps').textContent.includes('6 steps')")
    page.locator("canvas").focus()
    page.keyboard.press("]")
    page.wait_for_function("() => location.hash.includes('t=')")
    asked += page.evaluate("performance.getEntriesByType('resource').map(({ name }) => name)")
    assert all(url.startswith("http://127.0.0.1:") for url in asked)
    page.get_by_role("button", name="Write them to a file").click()
    with page.expect_download() as download:
        page.locator(".timeline a").click()
    written, expected = tmp_path / "steps.json.gz", tmp_path / "own.json.gz"
    download.value.save_as(written)
    file = download.value.suggested_filename
    step = int(file.removesuffix(".json.gz").split("-")[-1])
    assert file == f"hostile-{step}-{step}.json.gz"  # of its neighbours only edges are in sight
    runs[0].export(expected, to="chrome", iterations=(step, step))
    assert written.read_bytes() == expected.read_bytes()
    with context.expect_page() as window:
        page.get_by_role("button", name="Open these steps in Perfetto").click()
    window.value.wait_for_function("() => document.title")
    assert window.value.title() == f"{file} {expected.stat().st_size}"
    assert window.value.url == "https://ui.perfetto.dev/"


def test_two_runs_are_aligned_by_step(
    browser: Any, runs: list[tracekit.Run], heard: list[str]
) -> None:
    from playwright.sync_api import expect

    with View([runs[0], runs[0], runs[1]], opens=False) as view:
        page = opened(browser, view.address, heard)
        page.locator("canvas").focus()
        page.keyboard.press("k")
        expect(page.locator(".marks button")).to_have_count(1)
        page.get_by_role("button", name="Two runs").focus()
        page.keyboard.press("Enter")
        page.wait_for_function("() => document.querySelectorAll('[data-listed]').length === 2")
        # Below there are no buttons of the chart above, which would do nothing there.
        expect(page.locator(".marks button")).to_have_count(1)
        expect(page.locator(".flows")).to_have_count(2)
        page.locator(".flows").last.click()
        expect(page.locator(".launches").last).not_to_be_empty()
        for each in page.locator(".steps").all():
            expect(each).to_contain_text("6 steps")
        page.locator("canvas").first.focus()
        page.keyboard.press("]")
        page.keyboard.press("]")
        # A slow page also rests between keys: then both show the step before for a moment.
        page.wait_for_function(
            "() => { const [upper, lower] = [...document.querySelectorAll('.stretch')].map((one) =>"
            " one.textContent); return upper === lower && !upper.includes('180.727983 ms'); }"
        )
        assert complaints(page) == []
        page.wait_for_function("() => /&t=.*&below=/.test(location.hash)")
        page.get_by_role("button", name="Two runs").focus()
        page.keyboard.press("Enter")
        assert page.locator("canvas").count() == 1
        assert heard == []


def test_a_long_answer_tells_its_rows_and_can_be_given_up(
    browser: Any, served: View, heard: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the keyboard; the work ends, and another question is answered."""
    ended = threading.Event()

    def slow(query: Any) -> Any:
        if query["by"] != "idle":
            return answer(query)
        try:
            for _ in batches.in_batches(pl.LazyFrame({"row": range(1_000)}), 1):
                sleep(0.05)
        finally:
            ended.set()
        return None

    answer, turns = served._server.endpoints["/table"]
    endpoints = {**served._server.endpoints, "/table": (slow, turns)}
    monkeypatch.setattr(served._server, "endpoints", endpoints)
    page = opened(browser, served.address, heard)
    keys = page.keyboard
    keys.press("v")
    keys.type("2ms")
    keys.press("Enter")
    page.wait_for_selector(".selection td")
    page.get_by_role("button", name="idle by cause").focus()
    keys.press("Enter")
    told = page.locator(".selection .told")
    page.wait_for_function(
        "() => /Searching for \\d+ s: \\d+ of 1,000 rows read/.test("
        "document.querySelector('.selection .told')?.textContent)"
    )
    assert complaints(page) == []
    page.get_by_role("button", name="Give up").focus()
    keys.press("Enter")
    page.wait_for_function(
        "() => document.querySelector('.selection .told')?.textContent === 'Given up.'"
    )
    assert ended.wait(20)
    page.wait_for_timeout(1_500)  # no progress is told any more
    assert told.text_content() == "Given up."
    page.get_by_role("button", name="by kind").focus()
    keys.press("Enter")
    page.wait_for_selector(".selection td[data-column=kind]")
    assert heard == []


def test_an_op_is_chosen_where_its_lane_is_drawn_of_bins(
    browser: Any, runs: list[tracekit.Run], heard: list[str]
) -> None:
    """Of a kernel among so many short ones that twenty times its length is drawn of bins."""
    trace = runs[0].trace
    ops = trace.read("ops")
    own = ops.filter(pl.col("name").cast(str) == KERNEL).sort("start").head(1)
    count = pl.lit(100_000)
    short = own.select(pl.all().repeat_by(count).explode()).with_columns(
        name=pl.lit("short").cast(ops.schema["name"]),
        op=ops["op"].max() + 1 + pl.int_range(pl.len()).cast(ops.schema["op"]),
        start=pl.col("start") + 4 * pl.int_range(pl.len()),
    ).with_columns(end=pl.col("start") + 2)  # fmt: skip
    one = own.with_columns(end=pl.col("start") + 100_000)
    run = runs[0].with_trace(trace.with_tables({"ops": pl.concat([one, short]).sort("start")}))
    with View([run], opens=False) as view:
        page = opened(browser, view.address, heard)
        page.keyboard.press("/")
        page.keyboard.type("onerror")
        page.wait_for_function(
            "() => document.querySelector('.found').textContent.includes('1 found')"
        )
        page.keyboard.press("Enter")
        page.wait_for_selector(".picked .facts dd")
        assert KERNEL in page.locator(".picked .said").text_content()
    assert heard == []


def test_a_page_without_token_says_so(browser: Any, served: View, heard: list[str]) -> None:
    page = browser.new_page()
    page.goto(served.address.partition("#")[0])
    page.wait_for_function("() => document.getElementById('state').textContent.includes('token')")
    assert "hostile" not in page.content()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_anyone_can_read_it(browser: Any, served: View, heard: list[str], theme: str) -> None:
    page = opened(browser, served.address, heard, theme)
    page.keyboard.press("v")
    page.keyboard.type("2ms")
    page.keyboard.press("Enter")
    page.wait_for_selector(".selection td")
    assert page.evaluate(WIDE) <= 0
    assert complaints(page) == []
    assert heard == []
