"""Which tests run which line, as `mutants.py` asks: it tries a change with those that run it."""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from mutations import ROOMS, Module, Mutant

ROOT = Path(__file__).resolve().parents[1]
OPTIONS = ["-q", "-n", "0", "-m", "not nightly", "-p", "no:cacheprovider"]


class Told:
    """A plugin of pytest that tells `coverage` which test runs, and writes how long each takes."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Say that a test begins."""
        import coverage

        if measured := coverage.Coverage.current():
            measured.switch_context(nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Add what a part of a test took."""
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration


def cover(folder: Path, tests: list[str]) -> None:
    """Write down which of some tests runs which line, and how long it takes.

    What tests start is measured too, but which of them it was is not known.
    """
    import coverage
    import pytest

    tests = tests or [f"tests/{room}" for room in ROOMS]
    name = "-".join(re.sub(r"\W+", "_", each) for each in tests)[-100:]
    (folder / "covered").mkdir(exist_ok=True)
    told = Told()
    measured = coverage.Coverage(
        data_file=str(folder / "covered" / f"{name}.coverage"),
        config_file=str(ROOT / "pyproject.toml"),
        source=[str(ROOT / "tracekit")],
    )
    measured.erase()
    measured.start()
    failed = pytest.main([*tests, *OPTIONS], plugins=[told])
    measured.stop()
    measured.save()
    # What tests started has written files of its own beside, whose names go on.
    Path(measured.get_data().data_filename()).replace(folder / "covered" / f"{name}.coverage")
    (folder / "covered" / f"{name}.json").write_text(json.dumps(told.seconds))
    if failed:
        sys.exit("the tests fail as the code is")


class Covering:
    """Which tests to try a mutant with."""

    def __init__(self, folder: Path, copy: Path) -> None:
        import coverage

        self._copy = copy
        self._data = []
        self._seconds: dict[str, float] = {}
        for path in sorted((folder / "covered").glob("*.coverage"), key=os.path.getmtime):
            data = coverage.CoverageData(str(path))
            data.read()
            names = {each.rpartition("/tracekit/")[2]: each for each in data.measured_files()}
            self._data.append((data, names))
            self._seconds |= json.loads(path.with_suffix(".json").read_text())
        self.module = cache(lambda name: Module((copy / name).read_text()))
        self._runs = cache(self._read_runs)

    @property
    def files(self) -> list[str]:
        """Where the tests stand."""
        return sorted({test.partition("::")[0] for test in self._seconds})

    def _read_runs(self, module: str) -> dict[int, set[str]]:
        """Return which tests run each line of a module."""
        found: dict[int, set[str]] = {}
        for data, names in self._data:
            if full := names.get(module.removeprefix("tracekit/")):
                for line, tests in data.contexts_by_lineno(full).items():
                    found.setdefault(line, set()).update(tests)
        return found

    def runs_before_tests(self, mutant: Mutant) -> bool:
        """Tell whether what is changed is run as modules are imported."""
        around = self.module(mutant.module).around(mutant)
        runs = self._runs(mutant.module)
        return around.function is None or any("" in runs.get(each, ()) for each in around.lines)

    def tests(self, mutant: Mutant, most_seconds: float) -> list[str]:
        """Return what to try: the tests that run the statement, then those beside them.

        The fastest few come first, then all of a file that is called as the module is. Tests beside
        count because those of one file share what is worked out once for all of them, by whichever
        is first. What is given a value on import is tried by what runs the lines that name it.
        """
        around = self.module(mutant.module).around(mutant)
        if around.function:
            found = self._running(mutant.module, around.lines)
        else:
            found = self._naming(around.names) - {""} or self._running(mutant.module, None)
        found &= self._seconds.keys()
        files = {test.partition("::")[0] for test in found}
        beside = {test for test in self._seconds if test.partition("::")[0] in files} - found
        named = Path(mutant.module).stem.strip("_")
        own = {test for test in found if named in Path(test.partition("::")[0]).stem}
        quick, chosen = self._fastest(found)[:3], []
        order = (quick, self._fastest(own), self._fastest(found), self._fastest(beside))
        for test in dict.fromkeys(itertools.chain(*order)):
            most_seconds -= 0 if test in own else self._seconds[test]
            if most_seconds < 0 and chosen:
                break
            chosen.append(test)
        return chosen

    def _fastest(self, tests: Iterable[str]) -> list[str]:
        return sorted(tests, key=lambda test: (self._seconds[test], test))

    def _running(self, module: str, lines: Iterable[int] | None) -> set[str]:
        runs = self._runs(module)
        return set().union(*(runs.get(each, set()) for each in (runs if lines is None else lines)))

    def _naming(self, names: Iterable[str]) -> set[str]:
        """Return what runs lines that name something, or what is worked out of it on import."""
        modules = {name: self.module(name) for name in sources(self._copy)}
        known: set[str] = set()
        while new := set(names) - known:
            known |= new
            names = {each for module in modules.values() for each in module.given_of(known)}
        found: set[str] = set()
        for name, module in modules.items():
            if lines := module.lines_of(known):
                found |= self._running(name, lines)
        return found


def sources(copy: Path) -> list[str]:
    """Return the modules of a copy of the repository."""
    return [path.relative_to(copy).as_posix() for path in (copy / "tracekit").rglob("*.py")]
