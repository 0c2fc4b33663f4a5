"""Try what goes wrong, and write down what came of it.

    python benchmarks/reliability.py inputs --cases 1000    # so many more damaged files a format
    python benchmarks/reliability.py kills --cases 500      # commands that are killed at any moment
    python benchmarks/reliability.py interrupts --cases 100 # commands ended with Ctrl-C
    python benchmarks/reliability.py memory --cases 500000  # peak memory against --memory
    python benchmarks/reliability.py memory FILE            # of an export that is there
    python benchmarks/reliability.py long --cases 1000      # many runs in a store, many analyses
    python benchmarks/reliability.py tests                  # relations, faults, others at work
    python benchmarks/reliability.py coverage FOLDER        # of `mutants.py cover FOLDER`
    python benchmarks/reliability.py mutants FILE           # of benchmarks/mutants.py
    python benchmarks/reliability.py page                   # docs/evidence/reliability.md, of all

Each part is kept in ``docs/evidence/reliability.json`` until it is run again; the page repeats
them. A wrong number, a traceback, a hang or something left behind ends a part with an error:
nothing is written.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "evidence" / "reliability.json"
PAGE = ROOT / "docs" / "evidence" / "reliability.md"
EQUIVALENT = ROOT / "benchmarks" / "equivalent_mutants.toml"
sys.path[:0] = [str(ROOT / each) for each in (".", "tests", "tests/sources", "sample_traces")]

import reliability_page  # noqa: E402 - which lies beside this script, as do the next two
from interrupts import interrupt  # noqa: E402
from kills import apart, kill, preload  # noqa: E402

Part = dict[str, Any]
TRACE = ROOT / "sample_traces" / "p2p_2gpu_start_end.sqlite"


def inputs(cases: int) -> Part:
    """Damage small files of each format, and hold what is read against a plain reader."""
    import hostile_files

    known = json.loads(RESULTS.read_text()).get("inputs", {}) if RESULTS.exists() else {}
    found = {each["format"]: each for each in known.get("formats", ())}
    with tempfile.TemporaryDirectory() as name:
        for kind in hostile_files.KINDS.values():
            before = Counter(found.get(kind.name, {}))
            first = before["cases"]  # those before are counted, and not tried again
            folder = Path(name) / kind.name.replace(" ", "-")
            folder.mkdir()
            good = kind.make(folder)
            outcomes = hostile_files.tried(
                kind, good, folder / "copy", range(first, first + cases), apart=good.is_dir()
            )
            del before["format"]
            whole = before + Counter({"cases": cases}) + Counter(outcomes)
            found[kind.name] = {"format": kind.name, **whole}
    formats = [found[name] for name in hostile_files.KINDS]
    return {"formats": formats, **({} if known else {"peak_bytes": _peak()})}


def kills(cases: int) -> Part:
    """Kill commands at any moment; those killed before are counted, and not tried again."""
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    found: Counter[tuple[str, str]] = Counter()
    moments = known.get("kills", {}).get("moments", [])
    with tempfile.TemporaryDirectory() as name:
        before = sum(each["times"] for each in moments)
        for each in (*moments, *kill(Path(name), cases, seed=22 + before)):
            found[each["command"], each["ended"]] += each["times"]
    return {"moments": [{"command": command, "ended": ended, "times": times}
                        for (command, ended), times in sorted(found.items())]}  # fmt: skip


def _forget(root: Path) -> None:
    from tracekit.store import Store

    store = Store(root)
    for record in store.runs():
        if record.name != "kept":
            store.remove(record.id)


def _assert_whole(root: Path) -> None:
    """See that all runs that are listed can be read, and that the first is there."""
    from tracekit.store import Store

    runs = Store(root).runs()
    assert [run.name for run in runs][:1] == ["kept"], runs
    for run in runs:
        trace = Store(root).open(run)
        for table in trace.tables:
            trace.read(table)


def interrupts(cases: int) -> Part:
    """Interrupt commands at any moment; each ends with one line and leaves nothing over."""
    with tempfile.TemporaryDirectory() as name:
        preload()

        def done_apart(do: Callable[[Path], object]) -> Callable[[Path], object]:
            return lambda root: apart(lambda: do(root))

        forget, whole = done_apart(_forget), done_apart(_assert_whole)
        return {"moments": interrupt(Path(name), cases, forget, whole)}


LIMITS = ("512MiB", "1GiB", "2GiB")


def memory(of: int | Path) -> Part:
    """Measure the most memory that an ingest of a large export takes, against what it may.

    The export is one that is there, or one of so many kernels that is generated.
    """
    with tempfile.TemporaryDirectory() as name:
        export = of if isinstance(of, Path) else Path(name) / "large.sqlite"
        if not isinstance(of, Path):
            script = ROOT / "benchmarks" / "generate_export.py"
            subprocess.run([sys.executable, script, export, "--kernels", str(of)], check=True)
        with closing(sqlite3.connect(export)) as db:
            [kernels] = db.execute("SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchone()
        found = [_ingest_peak(export, limit, Path(name) / limit) for limit in LIMITS]
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    others = [e for e in known.get("memory", {}).get("ingests", ()) if e["kernels"] != kernels]
    rows = [*others, *({"kernels": kernels, **each} for each in found)]
    return {"ingests": sorted(rows, key=lambda each: each["kernels"])}


def _ingest_peak(export: Path, limit: str, store: Path) -> Part:
    words = ["ingest", export, "--store", store, "--memory", limit]
    command = [sys.executable, "-m", "tracekit", *map(str, words)]
    child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    assert status == 0
    shutil.rmtree(store)
    return {"limit": limit, "peak_bytes": used.ru_maxrss * 1024}


def long(runs: int) -> Part:
    """Measure a store of many runs, and many analyses in one process."""
    import tracekit
    from tracekit.store import Made, Store

    os.fsync = lambda _: None  # what is safe on disk takes long, and is not what is measured
    with tempfile.TemporaryDirectory() as name:
        root = Path(name) / "store"
        first = tracekit.ingest(TRACE, name="first", store=root)[0]
        store = Store(root)
        times = {"1": _timed(root)}
        [folder] = (root / "runs").iterdir()

        def copied(place: Path, digest: str) -> Made:
            shutil.copytree(folder / "0", place / "0", copy_function=os.link)
            return Made(digest, (TRACE.name,), ((),))

        for number in range(1, runs):
            digest = f"{number:064x}"
            store.add(
                digest=digest, options=first.record.options, name=None,
                default_name="copy", labels={"number": str(number)}, summarise=lambda _: {},
                make=lambda place, digest=digest: copied(place, digest),
            )  # fmt: skip
        times[str(runs)] = _timed(root)
        return {"runs": runs, "seconds": times, "analyses": _leak(root, 200)}


def _timed(root: Path) -> dict[str, float]:
    import tracekit
    from tracekit.store import Store

    def compare() -> object:
        names = ("@latest", "first")
        return tracekit.compare(*(tracekit.open(name, store=root) for name in names), anyway=True)

    asked: dict[str, Callable[[], object]] = {
        "list": lambda: Store(root).runs(),
        "choose by label": lambda: Store(root).runs({"number": "7"}),
        "open and break down": lambda: tracekit.open("first", store=root).breakdown(),
        "compare two": compare,
    }
    return {what: min(_seconds(do) for _ in range(3)) for what, do in asked.items()}


def _seconds(do: Callable[[], object]) -> float:
    begin = time.process_time()
    do()
    return round(time.process_time() - begin, 4)


def _leak(root: Path, number: int) -> Part:
    """Return the memory that is held after some analyses, and after many more."""
    import tracekit

    held = []
    for done in range(number + 1):
        run = tracekit.open("first", store=root)
        run.breakdown(by="stage,device")
        run.idle()
        run.sql("SELECT name, count(*) AS n FROM ops GROUP BY name")
        if done in (number // 4, number):
            held.append(_held())
    return {"number": number, "held_bytes": held}


def _held() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


GROUPS = {
    "relations that change no number": (
        "tests/sources/test_hostile_files.py::TestRelations", "tests/sources/test_shuffled_rows.py",
        "tests/sources/test_split_reports.py", "tests/sources/test_odd_databases.py",
        "tests/sources/test_odd_texts.py",
    ),
    "faults of disks, locks and clocks, files that change": (
        "tests/store/test_store_faults.py", "tests/store/test_store_full_disk.py",
        "tests/store/test_store_apart.py",
    ),
    "every command on stores that are hostile, and among files of others": (
        "tests/store/test_store_hostile.py",
    ),
    "others that ingest, remove or are killed at the same time": (
        "tests/store/test_store_crash.py", "tests/store/test_store_staging.py",
        "tests/sources/test_hostile_files.py::TestOthersAtTheSameFile",
    ),
    "files of a store, damaged in five ways, found and mended": (
        "tests/store/test_store_check.py",
    ),
    "stores of earlier versions": ("tests/store/test_store_formats.py",),
}  # fmt: skip


def tests(_: object) -> Part:
    """Run the tests of what is told in words, and count them."""
    import pytest

    class Counting:
        def __init__(self) -> None:
            self.passed = 0

        def pytest_runtest_logreport(self, report: Any) -> None:
            self.passed += report.when == "call" and report.passed

    rows = []
    for name, files in GROUPS.items():
        counting = Counting()
        options = ["-q", "-n", "0", "-p", "no:cacheprovider"]
        failed = pytest.main([*options, *files], plugins=[counting])
        assert not failed, name
        rows.append({"of": name, "passed": counting.passed})
    return {"groups": rows}


def coverage(folder: Path) -> Part:
    """Take the shares of branches and lines that tests ran, and what they started."""
    from coverage import Coverage

    with tempfile.TemporaryDirectory() as name:
        measured = Coverage(data_file=f"{name}/all", config_file=str(ROOT / "pyproject.toml"))
        files = (folder / "covered").glob("*.coverage*")
        measured.combine([str(each) for each in files], strict=True, keep=True)
        measured.json_report(outfile=f"{name}/all.json")
        told = json.loads(Path(name, "all.json").read_text())
    rooms: dict[str, Counter[str]] = {}
    for name, file in told["files"].items():
        parts = Path(name.partition("tracekit/tracekit/")[2] or name).parts
        inside = parts[parts.index("tracekit") + 1 :] if "tracekit" in parts else parts
        room = inside[0] if len(inside) > 1 else "(its door)"
        counts = {key: value for key, value in file["summary"].items() if isinstance(value, int)}
        rooms.setdefault(room, Counter()).update(counts)
    return {"rooms": {room: _shares(counts) for room, counts in sorted(rooms.items())},
            "all": _shares(sum(rooms.values(), Counter()))}  # fmt: skip


def _shares(counts: Counter[str]) -> dict[str, float]:
    def share(done: str, of: str) -> float:
        return round(counts[done] / counts[of], 4) if counts[of] else 1.0

    return {"branches": share("covered_branches", "num_branches"),
            "lines": share("covered_lines", "num_statements")}  # fmt: skip


def mutants(path: Path) -> Part:
    """Take what became of mutants, and of which it was judged that they change nothing."""
    told = json.loads(path.read_text())
    judged = tomllib.loads(EQUIVALENT.read_text())["equivalent"]
    reasons = {(each["module"], each["code"], each["change"]): each["reason"] for each in judged}
    rooms: dict[str, Counter[str]] = {}
    left, equal = [], Counter[str]()
    for each in told["tried"]:
        change = " ".join(f"{each['before']} -> {each['after']}".split())
        reason = reasons.get((each["module"], each["code"], change))
        noticed = each["outcome"] in ("killed", "hung")
        if reason and not noticed:
            equal[reason] += 1
        elif not noticed:
            left.append(f"{each['module']}:{each['line']} {change}")
        outcome = "equivalent" if reason and not noticed else each["outcome"]
        rooms.setdefault(each["module"].split("/")[1], Counter())[outcome] += 1
    return {"all": told["all"], "seed": told["seed"], "asked": told["asked"], "rooms": rooms,
            "left": left, "equivalent": equal}  # fmt: skip


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    """Run the command line of this script."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=[*PARTS, "page"])
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--cases", type=int, default=200)
    given = parser.parse_args()
    if given.part != "page":
        done = PARTS[given.part](given.file or given.cases)
        known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        known[given.part] = {"date": f"{datetime.now(UTC):%Y-%m-%d}", **done}
        RESULTS.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
    PAGE.write_text(reliability_page.page(json.loads(RESULTS.read_text())))


PARTS: dict[str, Callable[[Any], Part]] = {
    "inputs": inputs, "kills": kills, "interrupts": interrupts, "memory": memory, "long": long,
    "tests": tests, "coverage": coverage, "mutants": mutants,
}  # fmt: skip


if __name__ == "__main__":
    main()
