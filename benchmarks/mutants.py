"""Change one thing in the code at a time, and count which changes no test notices.

    python benchmarks/mutants.py cover FOLDER [TESTS...]     # which test runs which line, once
    python benchmarks/mutants.py try FOLDER --sample 500     # a sample, fixed by its --seed
    python benchmarks/mutants.py again FOLDER                # what survived, for longer

A mutant is a module of `model/`, `attribution/` or `analysis/` with one operator, number, condition
or method exchanged (`mutations.py`). It is tried in a copy of the repository with the tests that
run the changed line, the fastest first, until one fails; a test counts that passes, after the same
tests as before, without the change. Needs the package `coverage`. Everything is written into
FOLDER: `results.json` there says what became of each mutant, and a second `try` goes on with those
of which that is not known, or whose module has changed since.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import importlib.abc
import importlib.util
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "benchmarks")]

from covering import OPTIONS, Covering, cover, sources  # noqa: E402 - beside this script
from mutations import ROOMS, Module, Mutant, all_mutants, drawn  # noqa: E402 - likewise

KILLED, SURVIVED, UNCOVERED, HUNG = "killed", "survived", "run by no test", "hung"
MOST_SECONDS = 20.0
"""Tests are tried until they took so long as they were covered, which is longer than usual."""
PATIENCE_SECONDS = 30
"""What takes longer by the processor's clock hangs, and so is noticed."""
MOST_BYTES = 6 << 30
"""What takes more memory is noticed as well."""
IMPORTED_ALREADY = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]


Child = Callable[[Callable[[str], object]], bool]
"""What a child of this process does: it says who fails first, and returns whether none did."""


def _apart(do: Child) -> tuple[str, str]:
    """Do something in a child of this process, which has imported what takes long already."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _end_with(do, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as words:
        said = words.read().decode()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        stopped = os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGALRM)
        return (HUNG if stopped else KILLED), said
    return (SURVIVED if os.waitstatus_to_exitcode(status) == 0 else KILLED), said


def _end_with(do: Child, writing: int) -> NoReturn:
    resource.setrlimit(resource.RLIMIT_CPU, (PATIENCE_SECONDS, PATIENCE_SECONDS + 5))
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
    signal.alarm(20 * PATIENCE_SECONDS)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    code = 9
    with suppress(BaseException):
        code = 0 if do(lambda test: os.write(writing, test.encode())) else 1
    os._exit(code)


class First:
    """A plugin of pytest that tells which test fails first."""

    def __init__(self, tell: Callable[[str], object]) -> None:
        self._tell = tell
        self.failed = False

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Tell of the first that fails."""
        if report.failed and not self.failed:
            self.failed = True
            self._tell(report.nodeid)


def _changed(copy: Path, mutant: Mutant, folder: Path) -> Path:
    """Write the module that a mutant is of, with its change, into a folder."""
    path = folder / Path(mutant.module).name
    path.write_text(mutant.of((copy / mutant.module).read_text()))
    return path


class _Instead(importlib.abc.MetaPathFinder):
    """Finds one module in another file than its own.

    Compiled loops are kept by the text of the file that they say they are of, so none of what was
    compiled of the module as it is stands for one with a change.
    """

    def __init__(self, module: str, path: Path) -> None:
        self._name = module.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        self._path = path

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> Any:
        del path, target
        if name != self._name:
            return None
        inside = [str(self._path.parent)] if self._path.name == "__init__.py" else None
        return importlib.util.spec_from_file_location(
            name, self._path, submodule_search_locations=inside
        )


class Afresh:
    """Tries mutants in processes that import the code with its change: for whatever is changed."""

    def __init__(self, copy: Path) -> None:
        self._copy = copy
        for name in ("hypothesis", "jinja2", "networkx", "numba", "numpy", "polars.testing",
                     "pytest", "rich.console", "scipy.stats", "sqlalchemy", "typer"):  # fmt: skip
            importlib.import_module(name)  # what tests import of others, so that no child need to

    def known(self, tests: list[str]) -> list[str]:
        """Return the tests that can be run: all."""
        return tests

    def run(self, mutant: Mutant, tests: list[str], *, changed: bool = True) -> tuple[str, str]:
        """Tell what becomes of tests, the first few of them before all others are looked for."""
        for some in (tests[:8], tests[8:]):
            with tempfile.TemporaryDirectory() as name:
                found = _apart(
                    lambda tell, s=some, n=name: self._run(
                        mutant if changed else None, s, Path(n), tell
                    )
                )
            if found[0] != SURVIVED or not tests[8:]:
                break
        return found

    def _run(
        self, mutant: Mutant | None, tests: list[str], folder: Path, tell: Callable[[str], object]
    ) -> bool:
        import pytest

        os.chdir(self._copy)
        sys.path[:0] = [str(self._copy)]
        if mutant:
            sys.meta_path.insert(0, _Instead(mutant.module, _changed(self._copy, mutant, folder)))
        options = [*OPTIONS, *IMPORTED_ALREADY, "-x", f"--basetemp={folder / 'tmp'}"]
        return pytest.main([*options, *tests], plugins=[First(tell)]) == 0


class InPlace:
    """A plugin of pytest that tries mutants where all tests are collected, which is much faster.

    A change inside a function is put into that function as it is in memory, in a child.
    """

    def __init__(self, copy: Path, work: Callable[[InPlace], None]) -> None:
        self._copy = copy
        self._loops = _loop_modules(copy)
        self._work = work
        self._items: dict[str, Any] = {}
        self._functions: dict[tuple[str, str, int], list[FunctionType]] = {}

    def pytest_runtestloop(self, session: Any) -> bool:
        """Try mutants instead of running the tests."""
        import gc

        self._items = {item.nodeid: item for item in session.items}
        gc.unfreeze()
        for module in sources(self._copy):
            if module.split("/")[1] in ROOMS:
                name = module.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
                importlib.import_module(name)
        for each in gc.get_objects():
            if isinstance(each, FunctionType):
                code = each.__code__
                known = (code.co_filename, code.co_qualname, code.co_firstlineno)
                self._functions.setdefault(known, []).append(each)
        gc.collect()
        gc.freeze()
        self._work(self)
        return True

    def can(self, mutant: Mutant, module: Module) -> bool:
        """Tell whether the function that is changed is in memory."""
        function = module.around(mutant).function
        return bool(function) and self._known(mutant, function) in self._functions

    def _known(self, mutant: Mutant, function: tuple[str, int]) -> tuple[str, str, int]:
        return str(self._copy / mutant.module), *function

    def known(self, tests: list[str]) -> list[str]:
        """Return the tests that can be run: those that are collected."""
        return [each for each in tests if each in self._items]

    def run(self, mutant: Mutant, tests: list[str], *, changed: bool = True) -> tuple[str, str]:
        """Tell what becomes of tests."""
        if not tests:
            return SURVIVED, ""
        return _apart(lambda tell: self._run(mutant, tests, tell, changed=changed))

    def _run(
        self, mutant: Mutant, tests: list[str], tell: Callable[[str], object], *, changed: bool
    ) -> bool:
        if mutant.module in self._loops:
            _forget_what_was_compiled()
        if changed:
            self._put_in(mutant)
        items = [self._items[test] for test in tests]
        first = First(tell)
        items[0].config.pluginmanager.register(first)
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if first.failed:
                break
        with suppress(BaseException):
            items[0].session._setupstate.teardown_exact(None)  # noqa: SLF001 - as pytest does at its end
        return not first.failed

    def _put_in(self, mutant: Mutant) -> None:
        source = mutant.of((self._copy / mutant.module).read_text())
        function = Module((self._copy / mutant.module).read_text()).around(mutant).function
        path = str(self._copy / mutant.module)
        made = {(code.co_qualname, code.co_firstlineno): code
                for code in _codes(compile(source, path, "exec", dont_inherit=True))}  # fmt: skip
        for each in self._functions[self._known(mutant, function)]:
            each.__code__ = made[function]


def _codes(code: CodeType) -> Iterable[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes(each)


Way = Afresh | InPlace


class Trying:
    """A sample of mutants, and what became of each, which is written down as it is found."""

    def __init__(self, folder: Path, count: int, seed: int) -> None:
        self.copy = _copied(folder)
        self.covering = Covering(folder, self.copy)
        self._path = folder / "results.json"
        everything = all_mutants(self.copy)
        self.chosen = drawn(everything, count, seed)
        self._head = {"all": len(everything), "seed": seed, "asked": len(self.chosen)}
        self.known: dict[str, dict[str, Any]] = {}
        self._unfit: set[str] = set()
        self.read()

    def read(self) -> None:
        """Take what is written down."""
        told = json.loads(self._path.read_text())["tried"] if self._path.exists() else []
        self.known = {each["key"]: each for each in told}

    def is_since(self, mutant: Mutant, begin: float) -> bool:
        """Tell whether a mutant was tried since some time."""
        return self.known.get(mutant.key, {}).get("at", 0.0) >= begin

    def of(self, outcomes: set[str | None], named: list[str]) -> list[Mutant]:
        """Return those of which such an outcome is known, or of which none is."""
        return [
            each
            for each in self.chosen
            if (self._outcome(each) in outcomes if not named else _is_named(each, named))
        ]

    def _outcome(self, mutant: Mutant) -> str | None:
        known = self.known.get(mutant.key)
        return known["outcome"] if known and known["module_is"] == self._digest(mutant) else None

    def _digest(self, mutant: Mutant) -> str:
        source = self.covering.module(mutant.module).source
        return hashlib.sha256(source.encode()).hexdigest()[:12]

    def is_quick(self, mutant: Mutant) -> bool:
        """Tell whether a change is seen by what has imported the code before."""
        return not self.covering.runs_before_tests(mutant)

    def attempt(self, way: Way, mutant: Mutant, most_seconds: float) -> None:
        """Try a mutant, and write down what becomes of it."""
        begin = time.monotonic()
        what, by, tests = UNCOVERED, "", self.covering.tests(mutant, most_seconds)
        while tests := [each for each in tests if each not in self._unfit]:
            what, by = way.run(mutant, way.known(tests))
            if what == SURVIVED or not by:
                break
            before = way.known(tests)
            before = before[: before.index(by) + 1] if by in before else before
            wrong, who = way.run(mutant, before, changed=False)
            if wrong == SURVIVED:
                break
            print(f"fails without any change as well: {who or before}", file=sys.stderr)
            self._unfit.update([who] if who else before)
            what, by = UNCOVERED, ""
        if what == SURVIVED and len(way.known(tests)) < len(tests):
            return  # there are others to try, in another way
        took = round(time.monotonic() - begin, 1)
        self._write(mutant, {"outcome": what, "by": by, "seconds": took, "at": time.time()})
        where = f"{mutant.module}:{mutant.line} {mutant.change}"
        print(f"{len(self.known)}: {what} ({took} s): {where}", file=sys.stderr, flush=True)

    def _write(self, mutant: Mutant, found: dict[str, Any]) -> None:
        row = {"key": mutant.key, "module_is": self._digest(mutant), **asdict(mutant), **found}
        self.known[mutant.key] = row
        tried = [self.known[each.key] for each in self.chosen if each.key in self.known]
        whole = self._path.with_suffix(".new")
        whole.write_text(json.dumps({**self._head, "tried": tried}, indent=1))
        whole.replace(self._path)


def _is_named(mutant: Mutant, named: list[str]) -> bool:
    return f"{mutant.module}:{mutant.line}" in named


def _forget_what_was_compiled() -> None:
    """Compile loops anew, for what is kept of them is known by the text that is changed here."""
    import numba

    from tracekit.support import compiler, native

    native.find = lambda *_: None
    native.keep = lambda *_: None
    compiler.kept = numba.njit(nogil=True)


def _loop_modules(copy: Path) -> set[str]:
    """Return the modules of which something is compiled."""
    texts = {name: (copy / name).read_text() for name in sources(copy)}
    loops = {name for text in texts.values() for name in re.findall(r"compiled\(\s*(\w+),", text)}
    defines = re.compile(rf"^def ({'|'.join(loops)})\(|support\.compiled", re.MULTILINE)
    return {name for name, text in texts.items() if defines.search(text)}


def try_all(trying: Trying, mutants: list[Mutant], minutes: float, most_seconds: float) -> None:
    """Try mutants for so many minutes, first those that are tried quickly."""
    begin = time.time()
    afresh = Afresh(trying.copy)

    def attempt(way: Way, some: list[Mutant]) -> None:
        for each in some:
            if time.time() < begin + 60 * minutes:
                trying.attempt(way, each, most_seconds)

    def in_place(way: InPlace) -> None:
        module = trying.covering.module
        attempt(way, [each for each in quick if way.can(each, module(each.module))])

    if quick := [each for each in mutants if trying.is_quick(each)]:
        _collected(trying, in_place)
        trying.read()
    attempt(afresh, [each for each in mutants if not trying.is_since(each, begin)])
    outcomes = [each["outcome"] for each in trying.known.values()]
    noticed = sum(each in (KILLED, HUNG) for each in outcomes)
    print(f"{noticed} of {len(outcomes)} mutants were noticed")


def _collected(trying: Trying, work: Callable[[InPlace], None]) -> None:
    """Do something in a child of this process that has collected all tests."""
    import pytest

    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    os.chdir(trying.copy)
    sys.path[:0] = [str(trying.copy)]
    with tempfile.TemporaryDirectory() as name:
        options = [*OPTIONS, *IMPORTED_ALREADY, "--capture=sys", f"--basetemp={name}/tmp"]
        files = _apart(_quiet(trying.covering.files))[1].split()
        pytest.main([*options, *files], plugins=[InPlace(trying.copy, work)])
    os._exit(0)


def _quiet(files: list[str]) -> Child:
    """Return what tells the test files after whose import polars works in forks.

    It does until its threads run, which some files start as they make the cases of their tests.
    """

    def starts_nothing(file: str) -> bool:
        sys.path[:0] = [str(Path(file).parent)]
        importlib.import_module(Path(file).stem)
        threads = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
        return not any(re.match(r"polars-\d|tokio", each) for each in threads)

    def do(tell: Callable[[str], object]) -> bool:
        sys.path[:0] = ["tests", "sample_traces", "docs"]
        for file in files:
            if _apart(lambda _, each=file: starts_nothing(each))[0] == SURVIVED:
                starts_nothing(file)  # here too, so that the next one need not import as much
                tell(f"{file} ")
        return True

    return do


def _copied(folder: Path) -> Path:
    """Copy what git knows of the repository as it is now, where mutants are made."""
    copy = folder / "copy" / "tracekit"
    shutil.rmtree(copy, ignore_errors=True)
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
    return copy


def main() -> None:
    """Run the command line of this script."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    covering = commands.add_parser("cover")
    covering.add_argument("folder", type=Path)
    covering.add_argument("tests", nargs="*")
    for name, seconds in (("try", MOST_SECONDS), ("again", 3 * MOST_SECONDS)):
        trying = commands.add_parser(name)
        trying.add_argument("folder", type=Path)
        trying.add_argument("--sample", type=int, default=500)
        trying.add_argument("--seed", type=int, default=22)
        trying.add_argument("--minutes", type=float, default=60)
        trying.add_argument("--most-seconds", type=float, default=seconds)
        trying.add_argument("--named", nargs="*", default=[], metavar="MODULE:LINE")
    given = parser.parse_args()
    folder = given.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if given.command == "cover":
        cover(folder, given.tests)
        return
    trying = Trying(folder, given.sample, given.seed)
    outcomes = {None} if given.command == "try" else {SURVIVED, UNCOVERED}
    mutants = trying.of(outcomes, given.named)
    try_all(trying, mutants, given.minutes, given.most_seconds)


if __name__ == "__main__":
    main()
