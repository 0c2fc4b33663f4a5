"""Measure what the view of a run takes: its tiles, pictures, selections, and details.

    python benchmarks/view.py big --tiles
    python benchmarks/view.py big

`benchmarks/repeat_run.py` makes a run of any size. Tiles are made by the first line and read by the
second, so that a view is told apart from the first one. Each question is asked as the page asks it,
of places drawn by a seed; times are of the answer and its JSON, without HTTP and the browser. Where
Playwright and Chromium are, the page is zoomed and panned in a browser, too.
"""

from __future__ import annotations

import argparse
import random
import resource
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

import tracekit
from tracekit.present.pages import view_page
from tracekit.support.batches import stoppable
from tracekit.support.memory import keep_small
from tracekit.view import View, keep_tiles
from tracekit.view._asked import AskedRuns
from tracekit.view._encoded import encoded

PIXELS = "1200"
FRAMES = """() => {
  globalThis.drawn = [];
  const canvas = document.querySelector("canvas");
  const note = () => {
    if (canvas.dataset.ms) drawn.push(Number(canvas.dataset.ms));
    canvas.dataset.ms = "";
    requestAnimationFrame(note);
  };
  note();
}"""
"""Notes what each picture takes to draw: the page writes it on the canvas."""


def places(begin: int, span: int, parts: int, number: int) -> Iterator[dict[str, str]]:
    """Yield stretches of a part of the run each."""
    chance = random.Random(43)
    for _ in range(number):
        start = begin + round(chance.random() * span * (1 - 1 / parts))
        yield {"run": "0", "from": str(start), "to": str(start + max(span // parts, 1))}


def measure(what: str, asks: list[Callable[[], object]]) -> None:
    """Print the median and the 95th percentile of what some questions take, wall and processor."""
    times = []
    for ask in asks:
        wall, own = time.perf_counter(), time.process_time()
        size = len(encoded(ask()))
        times.append((time.perf_counter() - wall, time.process_time() - own, size))
    wall, own, sizes = np.array(times).T
    told = [f"{1000 * np.quantile(each, q):8.0f}" for each in (wall, own) for q in (0.5, 0.95)]
    print(f"{what:34}", *told, f"{np.median(sizes) / 1000:8.0f}")


def idle_causes(asked: AskedRuns, place: dict[str, str]) -> None:
    """Print what causes of idle time of a selection take, and how often it can be given up."""
    times = [time.perf_counter()]
    with stoppable(lambda *_: times.append(time.perf_counter())):
        measure("idle by cause, a million ops", [lambda: asked.table({**place, "by": "idle"})])
    gaps = np.diff([*times, time.perf_counter()])
    print(f"progress is told {gaps.size - 1} times, {1000 * gaps.max():,.0f} ms apart at most")


def in_browser(run: tracekit.Run) -> None:
    """Zoom and pan in Chromium; print what drawing takes, and the memory of the tab."""
    try:
        from playwright.sync_api import sync_playwright  # noqa: PLC0415 - may be missing
    except ImportError:
        return
    with View([run], opens=False) as view, sync_playwright() as play:
        browser = play.chromium.launch(executable_path=shutil.which("chromium"))
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        began = time.perf_counter()
        page.goto(view.address)
        page.wait_for_selector("[data-ready]")
        print(f"page with its first picture: {1000 * (time.perf_counter() - began):,.0f} ms")
        page.evaluate(FRAMES)
        tab = page.context.new_cdp_session(page)
        tab.send("Performance.enable", {"timeDomain": "threadTicks"})

        def told() -> dict[str, float]:
            metrics = tab.send("Performance.getMetrics")["metrics"]
            return {each["name"]: each["value"] for each in metrics}

        spent = [told()["TaskDuration"]]
        for key in 8 * "wwwwdddaaassss" + 24 * "w" + 20 * "d":
            page.keyboard.press(key)
            page.wait_for_timeout(50)
            spent.append(told()["TaskDuration"])
        drawn = page.evaluate("drawn")
        system = browser.new_browser_cdp_session().send("SystemInfo.getProcessInfo")
        own = [each["id"] for each in system["processInfo"] if each["type"] == "renderer"]
        pss = max(  # the others are a spare one, and one of the browser's own
            int(line.split()[1]) / 1000
            for number in own
            for line in Path(f"/proc/{number}/smaps_rollup").read_text().splitlines()
            if line.startswith("Pss:")
        )
        for what, times in (
            (f"{len(drawn)} pictures drawn, ms (wall)", drawn),
            ("CPU of the tab's thread after a key, ms", 1000 * np.diff(spent)),
        ):
            half, most = np.quantile(times, [0.5, 0.95])
            print(f"{what}: median {half:.1f}, 95 % {most:.1f}, {max(times):.1f}")
        heap = told()["JSHeapUsedSize"] / 1e6
        print(f"tab: {heap:,.0f} MB of scripts, {pss:,.0f} MB in all")
        browser.close()


def first_picture(asked: AskedRuns) -> object:
    """Return what the page asks for until it shows all of a run."""
    whole = asked.run({"run": "0"})
    stretch = {"from": str(whole["begin"]), "to": str(whole["begin"] + whole["span"])}
    return whole, asked.drawn({"run": "0", **stretch, "pixels": PIXELS})


def memory() -> float:
    """Return the most memory that this process has taken, MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


def main() -> None:
    """Ask, and print a line for each kind of question."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("run", help="a run, or a trace")
    parser.add_argument("--number", type=int, default=20, help="questions of each kind")
    parser.add_argument("--tiles", action="store_true", help="only make the tiles")
    given = parser.parse_args()
    keep_small()  # as `tracekit view` does
    run = tracekit.open(given.run)
    asked = AskedRuns([run])
    print(f"{'ms: wall, wall 95 %, CPU, CPU 95 %':34}", " " * 35, "kB")
    print(f"{memory():,.0f} MB before anything is asked")
    if given.tiles:
        measure("tiles", [lambda: keep_tiles(run)])
        print(f"{memory():,.0f} MB at most")
        return
    ask = {"run": "0"}
    measure("lanes and first picture", [lambda: first_picture(asked)])
    print(f"{memory():,.0f} MB at most")
    whole = asked.run(ask)
    begin, span = whole["begin"], whole["span"]
    for parts in (1, 3, 10, 100, 1_000, 10_000):
        asks = [
            lambda place=place: asked.drawn({**place, "pixels": PIXELS})  # type: ignore[misc]
            for place in places(begin, span, parts, given.number)
        ]
        measure(f"picture of 1/{parts}", asks)
    place = next(places(begin, span, 1_000, 1))
    start, length = int(place["from"]), span // 1_000
    near = [str(start + round(length * part / 40)) for part in range(given.number)]
    near_by = [{**place, "from": each, "to": str(int(each) + length // 2)} for each in near]
    measure("picture near the last one", [
        lambda own=own: asked.drawn({**own, "pixels": PIXELS})  # type: ignore[misc]
        for own in near_by
    ])  # fmt: skip
    for by in ("stage", "kind", "kernel"):
        for parts in (1, 3, 100):
            asks = [
                lambda place=place, by=by: asked.table({**place, "by": by})  # type: ignore[misc]
                for place in places(begin, span, parts, given.number)
            ]
            measure(f"breakdown by {by} of 1/{parts}", asks)
    idle_causes(asked, next(places(begin, span, max(run.trace.height("ops") // 1_000_000, 1), 1)))
    print(f"{memory():,.0f} MB at most")
    find = {"run": "0", "words": "gemm"}
    measure("first search", [lambda: asked.find(find)])
    measure("search", [lambda: asked.find(find)] * given.number)
    chance = random.Random(43)
    ops = [str(chance.randrange(run.trace.height("ops"))) for _ in range(given.number)]
    measure("first op", [lambda: asked.op({"run": "0", "op": ops[0]})])
    measure("op", [lambda op=op: asked.op({"run": "0", "op": op}) for op in ops])  # type: ignore[misc]
    hits = [{**find, "which": "next", "time": str(begin + chance.randrange(span))} for _ in ops]
    measure("next hit", [lambda hit=hit: asked.hit(hit) for hit in hits])  # type: ignore[misc]
    measure("table of steps", [lambda: asked.steps(ask)])
    waits = [lambda op=op: asked.waited({**ask, "op": op}) for op in ops]  # type: ignore[misc]
    measure("what an op waited for", waits)
    compilers = ", ".join(each for each in ("numba", "llvmlite") if each in sys.modules) or "none"
    print(f"{run.trace.height('ops'):,} ops; {memory():,.0f} MB at most; compilers: {compilers}")
    print(f"page with its script: {len(view_page('')) / 1000:,.0f} kB")
    in_browser(run)


if __name__ == "__main__":
    main()
