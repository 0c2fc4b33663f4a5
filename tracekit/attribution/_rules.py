"""The rules that give names a meaning: read from TOML, applied to whole columns."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

import polars as pl

from tracekit.attribution.structure import STEP_READINGS
from tracekit.errors import RuleError
from tracekit.model import COLLECTIVES, KINDS, STAGES, UNMATCHED, VERDICTS
from tracekit.support.files import StrPath, schemas
from tracekit.support.toml import NotToml, parse_toml

T = TypeVar("T")

_IGNORED = "-"
"""Value of a rule for names that mean nothing."""

# What each list of a rules file may hold: keys that are patterns, the key that is the outcome and
# the outcomes it may have, and other keys with the type of their values: flags are
# outcomes, too, and marks are not.
_LISTS: dict[str, dict[str, Any]] = {
    "range": {"patterns": ("name", "domain"), "stage": STAGES, "flags": ("ignore",)},
    "autograd": {"patterns": ("name",)},
    "thread": {"patterns": ("name",), "stage": STAGES, "flags": ("autograd",)},
    "collective": {"patterns": ("kernel",), "collective": COLLECTIVES, "flags": ("ignore",)},
    "exchange": {
        "patterns": ("kernel",),
        "stage": STAGES,
        "sets": {"collective": COLLECTIVES, "kind": KINDS},
        "flags": ("ignore",),
    },
    "kernel": {"patterns": ("name",), "stage": STAGES, "flags": ("ignore",)},
    "between": {
        "patterns": ("name",),
        "stage": STAGES,
        "sets": {"kind": KINDS},
        "flags": ("loader", "ignore"),
    },
    "copy": {
        "stage": STAGES,
        "sets": {"kind": KINDS},
        "numbers": ("min_bytes",),
        "flags": ("ignore",),
    },
    "iteration": {"patterns": ("name",), "marks": ("serves", "ignore")},
}
_VERSION = 1
_SAID = tuple(verdict for verdict in VERDICTS if verdict != "unknown")
"""Verdicts that a user may set."""
_REMEMBERED = 10_000
"""Maximum number of names whose meaning is cached."""

Entry = Mapping[str, Any]
_KERNEL = pl.col("kind").cast(pl.String).is_in(["compute", "collective"])


@dataclass(frozen=True)
class Rules:
    """Rules that give names of ranges, threads and kernels a stage or another meaning."""

    lists: Mapping[str, tuple[Entry, ...]] = field(default_factory=dict)
    """Name of a list -> its entries (rules), in the order in which they are tried."""
    verdict: str | None = None
    """Verdict (such as `training`, never `unknown`) that the user sets for every process, or
    None."""
    step: str | None = None
    """What the user takes for a step where steps are inferred from the order of launches:
    ``update`` (each weight update ends a step), ``input`` (new input begins a step) or ``period``
    (a step is a repeating sequence of updates). None: what the run shows."""
    file: str | None = None
    """The user's rules file, or None."""
    given: Mapping[str, int] = field(default_factory=dict)
    """Name of a list -> number of its entries that are from the user's file; these come first."""
    _made: dict[tuple[object, ...], Any] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """Expressions built so far: building takes longer than looking up a few names."""
    _met: dict[str, pl.DataFrame] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """Question -> meanings of the names seen so far: pattern search takes longer than a join."""

    @classmethod
    def load(
        cls,
        extra: StrPath | None = None,
        iteration: str | None = None,
        verdict: str | None = None,
        step: str | None = None,
    ) -> Rules:
        """Read the default rules, with the user's rules before them.

        Parameters
        ----------
        extra
            The user's rules file; with ``replace = true`` in it the default rules are not read.
        iteration
            Pattern for the names of ranges that are iterations; replaces the patterns in the files.
        verdict
            Verdict for all processes (never `unknown`); replaces the verdict that tracekit finds.
        step
            What a step is where steps are inferred from the order of launches: see `Rules`.

        Raises
        ------
        RuleError
            If a file cannot be read, an entry or pattern is invalid, or `verdict` or `step` is
            unknown.
        """
        rules = _default()
        if extra is not None:
            lists, alone = _read(Path(extra))
            given = {name: len(entries) for name, entries in lists.items()}
            all_lists = lists if alone else {n: (*lists[n], *rules.lists[n]) for n in _LISTS}
            rules = cls(all_lists, file=str(Path(extra)), given=given)
        if iteration is not None:
            _check_pattern(iteration, "--iteration")
            entry = {"name": iteration, "any_stage": True}
            lists = {**rules.lists, "iteration": (entry,)}
            rules = replace(rules, lists=lists, given={**rules.given, "iteration": 0})
        if verdict is not None and verdict not in _SAID:
            raise RuleError(f"unknown verdict {verdict!r}", f"there are {', '.join(_SAID)}")
        if step is not None and step not in STEP_READINGS:
            raise RuleError(
                f"unknown definition of a step {step!r}", f"there are {', '.join(STEP_READINGS)}"
            )
        has_choice = verdict is not None or step is not None
        return replace(rules, verdict=verdict, step=step) if has_choice else rules

    def canonical(self) -> str:
        """Return the rules as a text that is equal for equal rules."""
        lists: dict[str, Any] = {name: list(map(dict, self.lists[name])) for name in _LISTS}
        options = {"verdict": self.verdict, "step": self.step}
        chosen = {name: value for name, value in options.items() if value is not None}
        return json.dumps({**lists, **chosen}, sort_keys=True)

    def __getitem__(self, name: str) -> tuple[Entry, ...]:
        return self.lists[name]

    def __getstate__(self) -> dict[str, Any]:
        # Which another process makes as fast as it reads it.
        return {**vars(self), "_made": {}, "_met": {}}

    def outcome(self, name: str, key: str, columns: Mapping[str, str]) -> pl.Expr:
        """Return an expression: per row, the value that the first matching entry of a list sets.

        The value is null if no entry matches.

        Parameters
        ----------
        name
            Name of the list.
        key
            Key of the value that an entry sets, such as ``stage``.
        columns
            Key of a pattern in an entry -> column in which the pattern is searched.
        """
        cases = ((matches(entry, columns), entry) for entry in self.lists[name])
        return self.made((name, key, *columns.items()), lambda: first_outcome(cases, key))

    def any_of(self, name: str, columns: Mapping[str, str], flag: str | None = None) -> pl.Expr:
        """Return an expression: whether any entry of the list `name` matches a row.

        `columns` has the column for each key of a pattern. With `flag`, only entries that set this
        flag count.
        """
        entries = (entry for entry in self.lists[name] if flag is None or entry.get(flag))
        return self.made(
            (name, "any of", flag, *columns.items()),
            lambda: pl.any_horizontal(
                pl.lit(value=False), *(matches(entry, columns) for entry in entries)
            ),
        )

    def made(self, key: tuple[object, ...], make: Callable[[], T]) -> T:
        """Return the result of `make`, cached under `key`; it must depend on these rules only."""
        if key not in self._made:
            self._made[key] = make()
        made: T = self._made[key]
        return made

    def meaning(
        self, of: str, names: pl.DataFrame, look_up: Callable[[pl.DataFrame], pl.DataFrame]
    ) -> pl.DataFrame:
        """Return names with their meanings, classifying only those not in the cache.

        Parameters
        ----------
        of
            Kind of meaning, such as ``step``; each kind has a separate cache.
        names
            The names, in one column or several; a name may occur more than once.
        look_up
            Function that adds columns with the meanings to a frame of names; it may depend on
            nothing else than these rules.
        """
        join = partial(
            names.join, on=names.columns, how="left", nulls_equal=True, maintain_order="left"
        )
        met, new = self._met.get(of), names
        if met is not None:
            *found, is_met = join(met)
            if not is_met.null_count():
                return pl.DataFrame(found)
            new = names.filter(is_met.is_null())
        looked_up = look_up(new.unique(maintain_order=True)).with_columns(met=True)
        met = looked_up if met is None else pl.concat([met, looked_up])
        self._met[of] = met if met.height <= _REMEMBERED else met.head(0)
        *found, _ = join(met)
        return pl.DataFrame(found)


@cache
def _default() -> Rules:
    # A test reads it as the file of a user, of whose entries each is checked.
    content = parse_toml((schemas() / "stages" / "default.toml").read_text(encoding="utf-8"))
    return Rules({name: tuple(content.get(name, ())) for name in _LISTS})


def first_outcome(cases: Iterable[tuple[pl.Expr, Entry]], key: str) -> pl.Expr:
    """Return an expression: value of `key` in the first entry whose condition is true; else null.

    `cases` are pairs of condition and entry. An entry may also set null.
    """
    branches = [
        pl.when(applies).then(pl.lit(_IGNORED if entry.get("ignore") else str(entry[key])))
        for applies, entry in cases
        if key in entry or entry.get("ignore")
    ]
    found = pl.coalesce(*branches, pl.lit(None, pl.String))
    return pl.when(found != _IGNORED).then(found)


def by_distinct(
    frame: pl.DataFrame,
    keys: Sequence[str],
    rules: Rules,
    make: Callable[[], Mapping[str, pl.Expr]],
) -> pl.DataFrame:
    """Add columns that depend on the texts in columns `keys` only, computed once per combination.

    `make` returns the columns: name -> expression, in which ``KEY_text`` is the text of column KEY.
    """
    texts = [frame[key].cast(pl.String).alias(f"{key}_text") for key in keys]
    columns = make()
    found = rules.meaning(
        f"{', '.join(columns)} of {', '.join(keys)}",
        pl.DataFrame(texts),
        lambda names: names.with_columns(**columns),
    )
    return frame.hstack(found.get_columns()[len(texts) :])


def matches(entry: Entry, columns: Mapping[str, str]) -> pl.Expr:
    """Return an expression: whether each pattern of a rule (`entry`) is found in its column.

    `columns` has the column for each key of a pattern.
    """
    patterns = [
        pl.col(column).str.contains(entry[key]).fill_null(value=False)
        for key, column in columns.items()
        if key in entry
    ]
    return pl.all_horizontal(pl.lit(value=True), *patterns)


def _read(path: Path) -> tuple[dict[str, tuple[Entry, ...]], bool]:
    try:
        content = parse_toml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RuleError(f"rules file {path} cannot be read ({error.strerror})") from error
    except (NotToml, UnicodeDecodeError) as error:
        raise RuleError(f"rules file {path} is not TOML ({error})") from error
    version, alone = content.pop("version", None), content.pop("replace", False)
    if version is None:
        raise RuleError(f"rules file {path} has no version", f"begin it with version = {_VERSION}")
    if version != _VERSION:
        raise RuleError(
            f"rules file {path} has version {version}", f"this tracekit reads {_VERSION}"
        )
    _check_flag("replace", alone, f"rules file {path}")
    unknown = sorted(set(content) - set(_LISTS))
    if unknown:
        raise RuleError(
            f"rules file {path} has an unknown list {unknown[0]!r}",
            f"there are {', '.join(_LISTS)}",
        )
    lists = {name: _entries(content.get(name, []), name, path) for name in _LISTS}
    return lists, alone


def _entries(raw: object, name: str, path: Path) -> tuple[Entry, ...]:
    if not isinstance(raw, list) or not all(isinstance(entry, dict) for entry in raw):
        raise RuleError(f"{name!r} in {path} is not a list", f"write [[{name}]] before each entry")
    for number, entry in enumerate(raw, 1):
        _check_entry(entry, name, f"[[{name}]] entry {number} of {path}")
    return tuple(raw)


def _check_entry(entry: Entry, name: str, where: str) -> None:
    allowed = _LISTS[name]
    flags: tuple[str, ...] = allowed.get("flags", ())
    matchers = (*allowed.get("patterns", ()), *allowed.get("sets", {}))
    outcomes = tuple(key for key in ("stage", "collective") if key in allowed)
    known = {*matchers, *flags, *allowed.get("marks", ()), *allowed.get("numbers", ()), *outcomes}
    for key, value in entry.items():
        if key not in known:
            raise RuleError(
                f"{where} has an unknown key {key!r}", f"known are {', '.join(sorted(known))}"
            )
        _check_value(key, value, allowed, where)
    if not set(matchers) & set(entry):
        raise RuleError(f"{where} matches nothing", f"give {' or '.join(matchers)}")
    outcomes_set = [key for key in outcomes if key in entry]
    if outcomes_set and entry.get("ignore"):
        raise RuleError(f"{where} has both {outcomes_set[0]} and ignore", "leave out either")
    means = set(outcomes) & set(entry) or any(entry.get(flag) for flag in flags)
    if (outcomes or flags) and not means:
        raise RuleError(f"{where} has no outcome", f"give {' or '.join((*outcomes, *flags))}")


def _check_value(key: str, value: object, allowed: Mapping[str, Any], where: str) -> None:
    is_wrong = f"{where}: {key} is {value!r}"
    if key in allowed.get("patterns", ()):
        _check_pattern(value, where)
    elif key in (*allowed.get("flags", ()), *allowed.get("marks", ())):
        _check_flag(key, value, where)
    elif key in allowed.get("numbers", ()):
        if type(value) is not int or value < 0:
            raise RuleError(is_wrong, "give a number that is not negative")
    elif key in allowed.get("sets", {}):
        words = allowed["sets"][key]
        if not isinstance(value, list) or not value or not all(each in words for each in value):
            raise RuleError(is_wrong, f"list some of {', '.join(words)}")
    elif value not in allowed[key]:
        raise RuleError(f"{where}: no {key} {value!r}", f"there are {', '.join(allowed[key])}")


def _check_flag(key: str, value: object, where: str) -> None:
    if not isinstance(value, bool):
        raise RuleError(f"{where}: {key} is {value!r}", "write true or false")


def _check_pattern(pattern: object, where: str) -> None:
    if not isinstance(pattern, str):
        raise RuleError(
            f"{where}: {pattern!r} is not a pattern", "give a regular expression as text"
        )
    if not pattern:
        raise RuleError(
            f"{where}: an empty pattern is found in every name", "write the text to find in it"
        )
    try:
        pl.Series([""]).str.contains(pattern)
    except pl.exceptions.ComputeError as error:
        lines = str(error).strip().splitlines()
        reason = next((line for line in lines if line.startswith("error: ")), lines[0])
        reason = reason.removeprefix("regex ").removeprefix("error: ")
        raise RuleError(f"{where}: {pattern!r} is not a regular expression ({reason})") from error


class Unmatched:
    """Entries of the user's rules file that have matched nothing so far.

    An entry counts as matched even where an earlier entry matches too and takes precedence.
    """

    def __init__(self, rules: Rules) -> None:
        self._file = rules.file
        self._left = {
            name: dict(enumerate(rules[name][:count], 1)) for name, count in rules.given.items()
        }

    def see(self, name: str, rows: pl.DataFrame, applies: Callable[[Entry], pl.Expr]) -> None:
        """Record which of the user's entries of the list `name` match any row of `rows`.

        `applies` returns the condition of an entry.
        """
        left = self._left.get(name, {})
        for number, entry in list(left.items()):
            if rows.select(applies(entry).any()).item():
                left.pop(number, None)  # which another thread may have done

    def see_names(self, ranges: pl.DataFrame, threads: pl.DataFrame) -> None:
        """Record which of the user's rules match ranges (``domain, base``) or threads."""
        for name in ("range", "autograd", "iteration"):
            self.see(name, ranges, lambda e: matches(e, {"name": "base", "domain": "domain"}))
        self.see("thread", threads, lambda entry: matches(entry, {"name": "name"}))

    def see_kernels(self, ops: pl.DataFrame) -> None:
        """Record which of the user's rules match kernels, by columns ``name`` and ``kind``."""
        lists = {"kernel": "name", "between": "name", "collective": "kernel", "exchange": "kernel"}
        if not any(map(self._left.get, lists)):
            return
        names = ops.filter(_KERNEL).select(pl.col("name").cast(pl.String))
        for name, key in lists.items():
            self.see(name, names, partial(_names_kernel, key))

    def warnings(self) -> Iterator[str]:
        """Yield warnings on rules in the user's file that have matched nothing."""
        for name, entries in self._left.items():
            for number, entry in entries.items():
                where = f"[[{name}]] entry {number}{_pattern(entry)}"
                yield f"{UNMATCHED}{where} of the rules file {self._file}"


def _names_kernel(key: str, entry: Entry) -> pl.Expr:
    return matches(entry, {key: "name"}) & pl.lit(key in entry)


def _pattern(entry: Entry) -> str:
    """Return the patterns of a rule (`entry`) as text, for messages."""
    patterns = [f"{key} {entry[key]!r}" for key in ("name", "domain", "kernel") if key in entry]
    return f" ({', '.join(patterns)})" if patterns else ""


def without_unmatched(warnings: tuple[str, ...]) -> tuple[str, ...]:
    """Drop the warnings about unmatched rules that an earlier attribution left."""
    return tuple(warning for warning in warnings if not warning.startswith(UNMATCHED))
