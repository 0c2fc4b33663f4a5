"""What `mutants.py` changes: one operator, number, condition or method of a module at a time."""

from __future__ import annotations

import ast
import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

ROOMS = ("model", "attribution", "analysis")

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
    """One change of one module: the text between two places of its source.

    Parameters
    ----------
    code
        The line that it begins in, without the space around it.
    nth
        Which it is of those that change the same in the same line, where the line comes again.
    """

    module: str
    line: int
    begin: int
    end: int
    before: str
    after: str
    code: str
    nth: int = 0

    def of(self, source: str) -> str:
        """Return the source of the module with the change."""
        return source[: self.begin] + self.after + source[self.end :]

    @property
    def change(self) -> str:
        """What becomes of what, in one line."""
        return re.sub(r"\s+", " ", f"{self.before} -> {self.after}").strip()

    @property
    def key(self) -> str:
        """What it is known by, as long as its line is as it is, wherever that stands."""
        return f"{self.module}: {self.code}: {self.change} ({self.nth})"


def mutants_of(module: str, source: str) -> list[Mutant]:
    """Return every change that is known, in the order of the source."""
    places = _Places(source)
    found = sorted(
        (begin, after, end)
        for node in _code(ast.parse(source))
        for begin, end, after in _changes(node, places)
    )
    seen: Counter[tuple[str, str, str]] = Counter()
    made: list[Mutant] = []
    for begin, after, end in found:
        line, before = places.line(begin), source[begin:end]
        code = places.text(line)
        known = (code, before, after)
        made.append(Mutant(module, line, begin, end, before, after, code, seen[known]))
        seen[known] += 1
    return made


def all_mutants(root: Path) -> list[Mutant]:
    """Return all mutants of the rooms."""
    files = [path for room in ROOMS for path in sorted((root / "tracekit" / room).rglob("*.py"))]
    return [
        mutant
        for path in files
        for mutant in mutants_of(path.relative_to(root).as_posix(), path.read_text())
    ]


def drawn(mutants: list[Mutant], count: int, seed: int) -> list[Mutant]:
    """Draw a sample; where code changes, only what is of that code comes and goes."""
    return sorted(mutants, key=lambda each: hashlib.sha256(f"{seed} {each.key}".encode()).digest())[
        :count
    ]


@dataclass(frozen=True)
class Surroundings:
    """What a mutant is part of.

    Parameters
    ----------
    function
        The name and the first line of the outermost function that it is in the body of; None where
        it is run as the module is imported.
    lines
        Those of its statement, but for the statements inside of that.
    names
        What the statement gives a value to, where it is run as the module is imported.
    """

    function: tuple[str, int] | None
    lines: frozenset[int]
    names: tuple[str, ...] = ()


class Module:
    """A module's source, and what is around a place in it."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._places = _Places(source)

    @cached_property
    def _tree(self) -> ast.Module:
        return ast.parse(self.source)

    def around(self, mutant: Mutant) -> Surroundings:
        """Tell what a mutant of this module is part of."""
        statements = [
            node
            for node in ast.walk(self._tree)
            if isinstance(node, ast.stmt) and self._holds(node, mutant)
        ]
        inner = min(statements, key=lambda node: (node.end_lineno or 0) - node.lineno)
        body = getattr(inner, "body", None)
        last = body[0].lineno - 1 if body else inner.end_lineno or inner.lineno
        lines = frozenset(range(inner.lineno, max(last, inner.lineno) + 1)) | {mutant.line}
        if (function := self._outermost(self._tree.body, "", mutant)) is not None:
            return Surroundings(function, lines)
        return Surroundings(None, lines, tuple(_given(inner)))

    def lines_of(self, names: set[str]) -> list[int]:
        """Return the lines that name something."""
        if not names & self._words.keys():
            return []
        return sorted(set().union(*(self._words.get(name, ()) for name in names)))

    @cached_property
    def _words(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for number, line in enumerate(self.source.splitlines(), 1):
            for word in re.findall(r"\w+", line):
                found.setdefault(word, []).append(number)
        return found

    def given_of(self, names: set[str]) -> set[str]:
        """Return what is given a value by statements that name something, on import."""
        if not names & self._words.keys():
            return set()
        lines = set(self.lines_of(names))
        return {
            each
            for node in self._tree.body
            if isinstance(node, ast.Assign | ast.AnnAssign)
            and lines & set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
            for each in _given(node)
        }

    def _holds(self, node: ast.stmt, mutant: Mutant) -> bool:
        return self._places.begin(node) <= mutant.begin and mutant.end <= self._places.end(node)

    def _outermost(
        self, body: list[ast.stmt], prefix: str, mutant: Mutant
    ) -> tuple[str, int] | None:
        for node in body:
            if isinstance(node, ast.ClassDef) and self._holds(node, mutant):
                return self._outermost(node.body, f"{prefix}{node.name}.", mutant)
            if isinstance(node, ast.FunctionDef) and any(
                self._holds(each, mutant) for each in node.body
            ):
                first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
                return f"{prefix}{node.name}", first
        return None


def _given(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement gives a value to."""
    targets = getattr(statement, "targets", [getattr(statement, "target", None)])
    for target in filter(None, targets):
        yield from (node.id for node in ast.walk(target) if isinstance(node, ast.Name))
    if name := getattr(statement, "name", None):
        yield name


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

    def text(self, line: int) -> str:
        return self._lines[line - 1].strip()

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
