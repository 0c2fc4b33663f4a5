"""Change one thing in the code at a time, and count which changes no test notices.

    python benchmarks/mutants.py cover FOLDER                # which test runs which line, once
    python benchmarks/mutants.py try FOLDER --sample 500     # a sample, fixed by its --seed
    python benchmarks/mutants.py again FOLDER                # what survived, against all tests

A mutant is a copy of a module of `model/`, `attribution/` or `analysis/` with one operator, number,
condition or method exchanged. It is run in a copy of the repository against those tests of the
rooms that run the changed line, the fastest first, until one fails. Needs the package `coverage`;
everything is written into FOLDER, and `results.json` there says what became of each mutant.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import importlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("model", "attribution", "analysis")
KILLED, SURVIVED, UNCOVERED, HUNG = "killed", "survived", "run by no test", "hung"
MOST_TESTS, MOST_SECONDS = 40, 20.0
"""Of the tests that run a line, the fastest are tried: so many, and for so long as usual."""
PATIENCE_SECONDS = 120
"""What takes longer by the processor's clock hangs, and so is noticed."""

COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.In: "not in", ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is",
}  # fmt: skip
OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "*",
    ast.BitAnd: "|", ast.BitOr: "&", ast.LShift: ">>", ast.RShift: "<<",
}  # fmt: skip
METHODS = {
    "min": "max", "max": "min", "sum": "max", "mean": "max", "median": "max", "first": "last",
    "last": "first", "any": "all", "all": "any", "head": "tail", "tail": "head", "is_null":
    "is_not_null", "is_not_null": "is_null", "cum_max": "cum_min", "cum_min": "cum_max",
    "min_horizontal": "max_horizontal", "max_horizontal": "min_horizontal", "ceil": "floor",
    "floor": "ceil", "any_horizontal": "all_horizontal", "all_horizontal": "any_horizontal",
}  # fmt: skip
WORDS = {
    "left": "inner", "inner": "left", "anti": "semi", "semi": "anti", "backward": "forward",
    "forward": "backward", "both": "none", "right": "left",
}  # fmt: skip
"""Values of the options below that are exchanged."""
WORD_OPTIONS = {"how", "strategy", "closed", "side"}
SMALL = 16


@dataclass(frozen=True)
class Mutant:
    """One change of one module: the text between two places of its source."""

    module: str
    line: int
    begin: int
    end: int
    before: str
    after: str

    def of(self, source: str) -> str:
        """Return the source of the module with the change."""
        return source[: self.begin] + self.after + source[self.end :]


def mutants_of(module: str, source: str) -> list[Mutant]:
    """Return every change that is known, in the order of the source."""
    places = _Places(source)
    found = (
        Mutant(module, places.line(begin), begin, end, source[begin:end], after)
        for node in _code(ast.parse(source))
        for begin, end, after in _changes(node, places)
    )
    return sorted(found, key=lambda each: (each.begin, each.after))


def _code(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield what is executed: neither annotations nor what only a type checker reads."""
    for name, value in ast.iter_fields(tree):
        if name in {"annotation", "returns", "decorator_list"}:
            continue
        for node in value if isinstance(value, list) else [value]:
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                continue
            if isinstance(node, ast.AST):
                yield node
                yield from _code(node)


class _Places:
    """Where in a text what stands that the parser names by line and byte."""

    def __init__(self, source: str) -> None:
        self.source = source
        lines = source.splitlines(keepends=True)
        self._lines = lines
        self._starts = [0]
        for each in lines:
            self._starts.append(self._starts[-1] + len(each))

    def at(self, line: int, column: int) -> int:
        text = self._lines[line - 1].encode()[:column].decode()
        return self._starts[line - 1] + len(text)

    def begin(self, node: Any) -> int:
        return self.at(node.lineno, node.col_offset)

    def end(self, node: Any) -> int:
        return self.at(node.end_lineno, node.end_col_offset)

    def line(self, place: int) -> int:
        return self.source.count("\n", 0, place) + 1

    def between(self, left: ast.AST, right: ast.AST, what: str) -> tuple[int, int] | None:
        """Find an operator between its two sides."""
        begin, end = self.end(left), self.begin(right)
        at = self.source.find(what, begin, end)
        return None if at < 0 else (at, at + len(what))


def _changes(node: ast.AST, places: _Places) -> Iterator[tuple[int, int, str]]:
    match node:
        case ast.Compare(ops=[operator]):
            yield from _exchanged(places, node.left, node.comparators[0], operator, COMPARISONS)
        case ast.BinOp():
            if not isinstance(node.left, ast.Constant) or not isinstance(node.left.value, str):
                yield from _exchanged(places, node.left, node.right, node.op, OPERATORS)
        case ast.BoolOp(values=[left, right, *_]):
            word, other = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
            if place := places.between(left, right, word):
                yield *place, other
        case ast.UnaryOp(op=ast.Not() | ast.Invert() | ast.USub()):
            begin = places.begin(node)
            yield begin, begin + (3 if isinstance(node.op, ast.Not) else 1), ""
        case ast.If() | ast.IfExp():
            begin, end = places.begin(node.test), places.end(node.test)
            yield begin, end, f"(not ({places.source[begin:end]}))"
        case _:
            yield from _other_values(node, places)


def _other_values(node: ast.AST, places: _Places) -> Iterator[tuple[int, int, str]]:
    match node:
        case ast.Constant(value=bool() | int() | float() as value):
            yield places.begin(node), places.end(node), repr(_other(value))
        case ast.keyword(arg=name, value=ast.Constant(value=str() as word)):
            if name in WORD_OPTIONS and word in WORDS:
                yield places.begin(node.value), places.end(node.value), repr(WORDS[word])
        case ast.Call(func=ast.Attribute(attr=name)) if name in METHODS:
            end = places.end(node.func)
            yield end - len(name), end, METHODS[name]


def _exchanged(
    places: _Places, left: ast.AST, right: ast.AST, operator: Any, table: Any
) -> Iterator[tuple[int, int, str]]:
    symbols = {
        ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
        ast.In: "in", ast.NotIn: "not in", ast.Is: "is", ast.IsNot: "is not", ast.Add: "+",
        ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%",
        ast.BitAnd: "&", ast.BitOr: "|", ast.LShift: "<<", ast.RShift: ">>",
    }  # fmt: skip
    if type(operator) in table and (place := places.between(left, right, symbols[type(operator)])):
        yield *place, table[type(operator)]


def _other(value: float) -> float | bool:
    if isinstance(value, bool):
        return not value
    return value + 1 if abs(value) <= SMALL else value * 2


def all_mutants(root: Path = ROOT) -> list[Mutant]:
    """Return all mutants of the rooms."""
    files = [path for room in ROOMS for path in sorted((root / "tracekit" / room).rglob("*.py"))]
    return [
        mutant
        for path in files
        for mutant in mutants_of(path.relative_to(root).as_posix(), path.read_text())
    ]


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


def cover(folder: Path) -> None:
    """Write down which test of the rooms runs which line, and how long it takes."""
    import coverage
    import pytest

    told = Told()
    measured = coverage.Coverage(
        data_file=str(folder / "coverage"), branch=True, source=[str(ROOT / "tracekit")]
    )
    measured.start()
    rooms = [f"tests/{room}" for room in ROOMS]
    options = ["-q", "-n", "0", "-m", "not nightly and not slow", "-p", "no:cacheprovider"]
    failed = pytest.main([*rooms, *options], plugins=[told])
    measured.stop()
    measured.save()
    if failed:
        sys.exit("the tests fail as the code is")
    (folder / "seconds.json").write_text(json.dumps(told.seconds))


class Covering:
    """Which tests to try a mutant with."""

    def __init__(self, folder: Path) -> None:
        import coverage

        self._data = coverage.CoverageData(str(folder / "coverage"))
        self._data.read()
        self._seconds: dict[str, float] = json.loads((folder / "seconds.json").read_text())
        self._names = {Path(each).as_posix(): each for each in self._data.measured_files()}

    def tests(self, mutant: Mutant, most: int = MOST_TESTS) -> list[str]:
        """Return those that run the line, the fastest first.

        Of a line that is run when its module is imported, they are those of the module.
        """
        name = next((full for key, full in self._names.items() if key.endswith(mutant.module)), "")
        found = set(self._data.contexts_by_lineno(name).get(mutant.line, ()) if name else ()) - {""}
        if not found:  # a line of a statement of several, or what runs when it is imported
            near = self._data.contexts_by_lineno(name) if name else {}
            found = {test for tests in near.values() for test in tests} - {""}
        chosen: list[str] = []
        budget = MOST_SECONDS if most == MOST_TESTS else float("inf")
        for test in sorted(found & self._seconds.keys(), key=self._seconds.__getitem__):
            budget -= self._seconds[test]
            if budget < 0 and chosen:
                break
            chosen.append(test)
        return chosen[:most]


def outcome(copy: Path, mutant: Mutant, tests: list[str]) -> tuple[str, str]:
    """Tell what becomes of a mutant in a copy of the repository, and by which test."""
    if not tests:
        return UNCOVERED, ""
    path = copy / mutant.module
    source = path.read_text()
    path.write_text(mutant.of(source))
    try:
        return _tested(copy, tests)
    finally:
        path.write_text(source)


def _tested(copy: Path, tests: list[str]) -> tuple[str, str]:
    """Run tests in a child of this process, which has imported what takes long already."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _run_tests(copy, tests, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as words:
        said = words.read().decode()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return (HUNG if os.WTERMSIG(status) == signal.SIGXCPU else KILLED), ""
    return (SURVIVED if os.waitstatus_to_exitcode(status) == 0 else KILLED), said


def _run_tests(copy: Path, tests: list[str], writing: int) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CPU, (PATIENCE_SECONDS, PATIENCE_SECONDS + 5))
    os.chdir(copy)
    sys.path[:0] = [str(copy)]
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    import pytest

    class First:
        def pytest_runtest_logreport(self, report: Any) -> None:
            if report.failed:
                os.write(writing, report.nodeid.encode())

    options = ["-x", "-q", "-n", "0", "-p", "no:cacheprovider", "--no-header"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # of what is imported already
    code = 9
    with suppress(BaseException):
        code = int(pytest.main([*options, *tests], plugins=[First()]))
    os._exit(code)


def _preload() -> None:
    """Import what tests import of others, so that a child need not; nothing of tracekit."""
    for name in ("hypothesis", "numpy", "polars.testing", "pytest", "scipy.stats", "sqlalchemy"):
        importlib.import_module(name)


def try_sample(folder: Path, count: int, seed: int, minutes: float, named: list[str]) -> None:
    """Try a sample of all mutants, and write what became of each, however far it comes."""
    folder = folder.resolve()
    copy = _copied(folder)
    covering = Covering(folder)
    everything = all_mutants(copy)
    chosen = random.Random(seed).sample(everything, min(count, len(everything)))
    if named:
        chosen = [each for each in everything if f"{each.module}:{each.line}" in named]
    _preload()
    _confirm(copy, covering.tests(chosen[0]))
    deadline = time.monotonic() + 60 * minutes
    results: list[dict[str, Any]] = []
    for number, mutant in enumerate(chosen, 1):
        if time.monotonic() > deadline:
            break
        what, by = outcome(copy, mutant, covering.tests(mutant))
        results.append({**asdict(mutant), "outcome": what, "by": by})
        line = f"{mutant.module}:{mutant.line} {mutant.before!r} -> {mutant.after!r}"
        print(f"{number} of {len(chosen)}: {what}: {line}", flush=True)
        whole = {"all": len(everything), "seed": seed, "asked": len(chosen), "tried": results}
        (folder / "results.json").write_text(json.dumps(whole, indent=1))
    _confirm(copy, [each["by"] for each in results])
    noticed = sum(each["outcome"] in (KILLED, HUNG) for each in results)
    print(f"{noticed} of {len(results)} mutants were noticed, of {len(everything)} that there are")


def try_again(folder: Path, minutes: float) -> None:
    """Try the mutants that survived against all tests that run their lines."""
    folder = folder.resolve()
    whole = json.loads((folder / "results.json").read_text())
    copy = _copied(folder)
    covering = Covering(folder)
    _preload()
    deadline = time.monotonic() + 60 * minutes
    names = {field.name for field in dataclasses.fields(Mutant)}
    left = [each for each in whole["tried"] if each["outcome"] == SURVIVED]
    for each in left:
        mutant = Mutant(**{name: each[name] for name in names})
        tried, every = covering.tests(mutant), covering.tests(mutant, sys.maxsize)
        more = [test for test in every if test not in set(tried)]
        if not more or time.monotonic() > deadline:
            continue
        each["outcome"], each["by"] = outcome(copy, mutant, more)
        print(each["outcome"], f"{mutant.module}:{mutant.line}", len(more), flush=True)
        (folder / "results.json").write_text(json.dumps(whole, indent=1))


def _confirm(copy: Path, tests: list[str]) -> None:
    """See that the tests that noticed mutants pass without them."""
    noticing = sorted({test for test in tests if test})
    what, by = _tested(copy, noticing) if noticing else (SURVIVED, "")
    if what != SURVIVED:
        sys.exit(
            f"without any mutant {by or 'a test'} fails as well: what it noticed counts for nothing"
        )


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
    trying = commands.add_parser("try")
    trying.add_argument("folder", type=Path)
    trying.add_argument("--sample", type=int, default=500)
    trying.add_argument("--seed", type=int, default=22)
    trying.add_argument("--minutes", type=float, default=30)
    trying.add_argument("--named", nargs="*", default=[], metavar="MODULE:LINE")
    again = commands.add_parser("again")
    again.add_argument("folder", type=Path)
    again.add_argument("--minutes", type=float, default=30)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    if given.command == "cover":
        cover(given.folder.resolve())
    elif given.command == "again":
        try_again(given.folder, given.minutes)
    else:
        try_sample(given.folder, given.sample, given.seed, given.minutes, given.named)


if __name__ == "__main__":
    main()
