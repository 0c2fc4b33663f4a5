"""Measure the peak of memory of ingests with a limit, and of each question to what they made.

    python benchmarks/memory.py --ingest 2000000 8000000 --ask 1000000 8000000 --docs

Exports are of two shapes that `generate_export.py` writes, whose proportions differ. `--docs`
writes the tables into docs/evidence/performance.md; without it they are printed. How much memory a
question is taken to need (tracekit/support/memory.py) rests on them.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import tempfile
from pathlib import Path

from measures import HERE
from measuring import ROOT, run

BARE = ("--threads", "1", "--noise", "0", "--step")
"""Options of exports whose steps are launches of one thread, but for what they launch."""
GENERATORS = {
    "two processes, three threads": ((), "2"),
    "eight processes in turn, a range a kernel": ((*BARE, "kernels", "--processes", "8"), "8"),
}
"""The options of each, and how many GPUs allocate in the export that `memory` is asked of."""
INGESTS = ("ingest, nothing compiled", "ingest")
"""Of the same export one after the other: the second finds the loops that the first compiled."""
CPU = "CPU seconds"
LIMIT = "512MiB"
LABELS = ("method=p2p", "network=any", "batch=1", "gpus=8")
"""What the questions to runs of several methods choose them by."""
QUESTIONS = {
    "breakdown": ("breakdown", "--by", "stage"),
    "breakdown by kernel": ("breakdown", "--by", "kernel"),
    "breakdown by range": ("breakdown", "--by", "range"),
    "breakdown inclusive": ("breakdown", "--by", "range", "--inclusive"),
    "breakdown by iteration": ("breakdown", "--by", "stage,iteration"),
    "idle": ("idle",),
    "diagnose": ("diagnose",),
    "stragglers": ("stragglers",),
    "critical-path": ("critical-path",),
    "whatif": ("whatif", "--speed", "kernel=2x"),
    "flops": ("flops",),
    "roofline": ("roofline",),
    "links": ("links",),
    "collectives": ("collectives",),
    "latency": ("latency",),
    "info": ("info",),
    "compare": ("compare", "@latest", "@latest"),
    "compare by kernel": ("compare", "@latest", "@latest", "--by", "kernel"),
    "stalls": ("stalls",),
    "bubbles": ("bubbles", "--micro-batches", "8"),
    "study": ("study",),
    "scaling": ("scaling",),
    "overhead": ("overhead",),
    "overhead api": ("overhead", "--api"),
    "memory": ("memory",),
    "report": ("report", "--output", "report.html"),
    "attribution": ("breakdown", "--as", "other"),
    "export": ("export", "--iterations", "10:12", "--to", "chrome", "--output", "trace.json"),
}
"""What is asked, by what the table calls it: the first word is a command."""

PAGE = ROOT / "docs" / "evidence" / "performance.md"
_BEGIN, _END = "<!-- memory: written by benchmarks/memory.py -->", "<!-- end of memory -->"
_MIB = 1 << 20
Peaks = dict[str, dict[str, dict[int, int]]]
"""Bytes by generator, what was done, and number of kernels; of `CPU` seconds."""


def measured(folder: Path, ingested: list[int], asked: list[int]) -> Peaks:
    """Measure all, exports one after the other."""
    peaks: Peaks = {name: {} for name in GENERATORS}
    for name, (options, gpus) in GENERATORS.items():
        for kernels in sorted({*ingested, *asked}):
            own = peaks[name]
            with tempfile.TemporaryDirectory(dir=folder) as place:
                store = _ingested(Path(place), kernels, own, *options)
                for question, words in QUESTIONS.items() if kernels in asked else ():
                    if question == "memory":
                        store = _ingested(
                            Path(tempfile.mkdtemp(dir=place)), kernels, {}, *BARE, "allocations",
                            "--processes", gpus,
                        )  # fmt: skip
                    peak = _asked(words, Path(place), store)
                    if peak is not None:
                        own.setdefault(question, {})[kernels] = peak
            print(name, kernels, own, file=sys.stderr, flush=True)
    return peaks


def _ingested(folder: Path, kernels: int, own: dict[str, dict[int, int]], *options: str) -> Path:
    """Make an export, ingest it and note what that takes; return the store."""
    export = folder / "export.sqlite"
    run([sys.executable, HERE / "generate_export.py", export, "--kernels", str(kernels), *options])
    said = ("--memory", LIMIT, *(word for each in LABELS for word in ("--label", each)))
    for name in INGESTS:
        store = folder / name
        words = _tracekit("ingest", str(export), "--store", str(store), *said)
        cost = run(words, environment={"NUMBA_CACHE_DIR": str(folder / "loops")})
        own.setdefault(name, {})[kernels] = cost.peak_bytes
    own.setdefault(CPU, {})[kernels] = round(cost.cpu_s)
    export.unlink()
    return store


def _asked(words: tuple[str, ...], folder: Path, store: Path) -> int | None:
    """Return the peak of a question, None where a run cannot answer it."""
    placed = [str(folder / word) if word.endswith((".html", ".json")) else word for word in words]
    try:
        return run(_tracekit(*placed, "--store", str(store))).peak_bytes
    except RuntimeError as error:
        print(" ".join(words), error, file=sys.stderr)
        return None


def _tracekit(*words: str) -> list[str]:
    return [sys.executable, "-m", "tracekit", *words]


def tables(peaks: Peaks) -> str:
    """Return what was measured as two tables in Markdown."""
    return "\n\n".join(
        [_table(peaks, [*INGESTS, CPU], f"`ingest --memory {LIMIT}`, MiB"),
         _table(peaks, list(QUESTIONS), "peak of a question, MiB (bytes a kernel)")]
    )  # fmt: skip


def _table(peaks: Peaks, rows: list[str], head: str) -> str:
    columns = sorted(
        {kernels for own in peaks.values() for row in rows for kernels in own.get(row, ())}
    )
    names = [f"{n // 10**6} M, {which}" for which in ("two", "eight") for n in columns]
    lines = [f"| {head} | {' | '.join(names)} |", "| --- |" + " ---: |" * len(names)]
    for row in rows:
        cell, shown = (_seconds, row) if row == CPU else (_cell, f"`{row}`")
        cells = [cell(own.get(row, {}), n) for own in peaks.values() for n in columns]
        lines.append(f"| {shown} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(own: dict[int, int], kernels: int) -> str:
    if kernels not in own:
        return "-"
    least = min(own)
    peak = f"{own[kernels] / _MIB:,.0f}"
    if kernels == least:
        return peak
    return f"{peak} ({(own[kernels] - own[least]) / (kernels - least):,.0f})"


def _seconds(own: dict[int, int], kernels: int) -> str:
    return str(own.get(kernels, "-"))


def with_tables(page: str, text: str) -> str:
    """Return a page with what was measured replaced."""
    return re.sub(f"(?<={_BEGIN}\n).*?(?=\n{_END})", lambda _: f"\n{text}\n", page, flags=re.DOTALL)


def main() -> None:
    """Measure, and print the tables or write them into the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ingest", type=int, nargs="*", default=[2_000_000], metavar="KERNELS")
    parser.add_argument("--ask", type=int, nargs="*", default=[1_000_000], metavar="KERNELS")
    parser.add_argument("--folder", type=Path, help="where exports and stores are made")
    parser.add_argument("--json", type=Path, help="file for every figure")
    parser.add_argument("--docs", action="store_true", help="write the tables into the page")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=given.folder))
    try:
        peaks = measured(folder, given.ingest, given.ask)
    finally:
        shutil.rmtree(folder)
    if given.json:
        given.json.write_text(json.dumps(peaks), encoding="utf-8")
    if given.docs:
        PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8"), tables(peaks)), "utf-8")
    else:
        print(tables(peaks))


if __name__ == "__main__":
    main()
