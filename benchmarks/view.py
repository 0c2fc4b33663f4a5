"""Measure what the view of a run takes: its tiles, pictures, selections, and details.

    python benchmarks/view.py big --tiles
    python benchmarks/view.py big

`benchmarks/repeat_run.py` makes a run of any size. Tiles are made by the first line and read by the
second, so that a view is told apart from the first one. Each question is asked as the page asks it,
of places drawn by a seed; times are of the answer and its JSON, without HTTP and the browser.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np

import tracekit
from tracekit.present.pages import view_page
from tracekit.support.memory import keep_small
from tracekit.view import keep_tiles
from tracekit.view._asked import AskedRuns

PIXELS = "1200"


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
        size = len(json.dumps(ask(), separators=(",", ":")))
        times.append((time.perf_counter() - wall, time.process_time() - own, size))
    wall, own, sizes = np.array(times).T
    told = [f"{1000 * np.quantile(each, q):8.0f}" for each in (wall, own) for q in (0.5, 0.95)]
    print(f"{what:34}", *told, f"{np.median(sizes) / 1000:8.0f}")


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


if __name__ == "__main__":
    main()
