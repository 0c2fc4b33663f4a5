"""Studies: a program recorded with each combination of options that the machine can run."""

from __future__ import annotations

import hashlib
import itertools
import math
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tracekit.errors import UsageError
from tracekit.support.files import schemas
from tracekit.support.toml import NotToml, parse_toml

_VERSION = 1
_KEYS = {
    "version", "title", "source", "program", "grid", "fixed", "only_gpus", "only_cpu", "arguments",
    "without", "cpu",
}  # fmt: skip
_GPUS, _METHOD, _PYTHON = "gpus", "method", "python"
_KEY = re.compile(r"[A-Za-z][\w-]*")
_PLACE = re.compile(r"\{([\w-]+)\}")
_FIXED = "fixed"
_RESERVED = frozenset({_PYTHON, "study", "run", "status", _FIXED})
"""Names that cannot be options, since other labels and columns have them."""
_HARMLESS = frozenset("-_.=+")
"""Characters without a special meaning to file systems and to nsys, which replaces %p and
others."""
_LONGEST = 120

Value = str | int | float


@dataclass(frozen=True)
class Configuration:
    """One combination of options of a study, which also are labels of its run: option -> value.

    Options that all combinations share (`fixed`) are labels, too, but not part of the name.
    """

    study: str
    options: Mapping[str, Value]
    fixed: Mapping[str, Value] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of its run, and of the folder with its reports."""
        parts = [self.study, *(f"{key}={value}" for key, value in self.options.items())]
        return file_name("-".join(parts))

    @property
    def labels(self) -> dict[str, str]:
        """Labels under which the run is stored: study, options, and options that all runs share."""
        options = {key: str(value) for key, value in self.options.items()}
        fixed = " ".join(f"{key}={value}" for key, value in sorted(self.fixed.items()))
        return {"study": self.study, **options, **({_FIXED: fixed} if fixed else {})}

    def differs_from(self, labels: Mapping[str, str]) -> str | None:
        """Return the shared options that a run was recorded with, if this study has different ones.

        `labels` are the run's labels. None if the options are equal, or not among the labels.
        """
        recorded = labels.get(_FIXED)
        return recorded if recorded not in {None, self.labels.get(_FIXED)} else None


@dataclass(frozen=True)
class Study:
    """Grid of configurations (combinations of options) with which a program is recorded."""

    name: str
    """Name of the study."""
    title: str
    """Title of the study."""
    program: tuple[str, ...]
    """Command of the program, with ``{option}`` as placeholder for an option's value."""
    grid: Mapping[str, tuple[Value, ...]]
    """Options with their values: option -> values."""
    fixed: Mapping[str, Value]
    """Options with the same value in all configurations: option -> value."""
    only_gpus: frozenset[Value]
    only_cpu: frozenset[Value] = frozenset()
    """Values of the option ``method`` that run only on GPUs, and only on the CPU."""
    arguments: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    """Words that replace an option's value in the command: option -> value -> words."""
    without: tuple[Mapping[str, tuple[Value, ...]], ...] = ()
    """Configurations to leave out. Each entry is option -> values, and leaves out configurations
    that have one of these values for every option of the entry."""
    cpu: tuple[str, ...] = ()
    """Arguments that make the program train on the CPU."""

    @property
    def on_cpu(self) -> bool:
        """True if the program trains on the CPU without extra arguments."""
        return self.fixed.get("device") == "cpu"

    def configurations(self, where: Mapping[str, str] | None = None) -> list[Configuration]:
        """Return the configurations whose options have the values in `where`.

        Raises
        ------
        UsageError
            If an option in `where` is not in the grid, or no configuration matches.
        """
        chosen = where or {}
        for key in chosen.keys() - self.grid.keys():
            raise UsageError(f"study {self.name} has no {key!r}", f"it has {', '.join(self.grid)}")
        found = list(self._all(chosen))
        if not found:
            text = ", ".join(f"{key}={value}" for key, value in chosen.items())
            raise UsageError(f"study {self.name} has no configuration with {text}")
        return found

    def strangers(self, labels: Mapping[str, Mapping[str, str]]) -> list[str]:
        """Return the names of runs that are labelled with this study, but match no configuration.

        Parameters
        ----------
        labels
            Labels of runs: name of the run -> labels.
        """
        names = {configuration.name for configuration in self._all({})}
        return [
            name
            for name, each in labels.items()
            if each.get("study") == self.name and name not in names
        ]

    def _all(self, where: Mapping[str, str]) -> Iterator[Configuration]:
        for values in itertools.product(*self.grid.values()):
            options = dict(zip(self.grid, values, strict=True))
            is_chosen = all(str(options[key]) == value for key, value in where.items())
            if is_chosen and not any(_matches(options, each) for each in self.without):
                yield Configuration(self.name, options, self.fixed)

    def command(self, configuration: Configuration, *, cpu: bool) -> tuple[str, ...]:
        """Return the command of a configuration; with `cpu` it trains on the CPU."""
        known = {_PYTHON: sys.executable, **configuration.options}
        device = self.cpu if cpu and not self.on_cpu else ()
        words = (self._words(part, known) for part in self.program)
        return (*itertools.chain.from_iterable(words), *device)

    def _words(self, part: str, options: Mapping[str, Value]) -> tuple[str, ...]:
        """Return the words for one word of the command; placeholders get the options' values."""
        key = part.strip("{}")
        if key in self.arguments:
            return self.arguments[key][str(options[key])]
        return (_PLACE.sub(lambda found: str(options[found[1]]), part),)

    def obstacle(self, configuration: Configuration, gpus: int, *, cpu: bool) -> str | None:
        """Return the reason why a configuration cannot run on a machine; None if it can.

        Parameters
        ----------
        gpus
            Number of GPUs in the machine.
        cpu
            Whether to train on the CPU.
        """
        options = {**self.fixed, **configuration.options}
        method, needed = options.get(_METHOD), int(options.get(_GPUS, 0))
        if cpu:
            return f"{method} needs GPUs" if method in self.only_gpus else None
        if method in self.only_cpu:
            return f"{method} is recorded with --cpu"
        if needed > gpus:
            return f"needs {needed} GPU{'s' if needed > 1 else ''}, and there are {gpus}"
        return None


def _folder() -> Path:
    return schemas() / "studies"


def study_names() -> list[str]:
    """Return the names of the built-in studies."""
    return sorted(path.name.removesuffix(".toml") for path in _folder().glob("*.toml"))


def load_study(reference: str, settings: Mapping[str, str] = MappingProxyType({})) -> Study:
    """Return a built-in study by name, or the study in a TOML file.

    Parameters
    ----------
    reference
        Name of a built-in study, or path of a file.
    settings
        Options for all configurations: option -> value. They replace fixed ones of the same name.

    Raises
    ------
    UsageError
        If the study does not exist, or the file is invalid.
    """
    path = Path(reference)
    if reference in study_names():
        text = (_folder() / f"{reference}.toml").read_text(encoding="utf-8")
    elif path.is_file():
        text = path.read_text(encoding="utf-8", errors="replace")
    else:
        raise UsageError(
            f"no study {reference!r}", f"there are {', '.join(study_names())}, or name a file"
        )
    try:
        content = parse_toml(text)
        fixed = {**_table(content, _FIXED), **settings}
        return _study(path.name.removesuffix(".toml"), {**content, _FIXED: fixed})
    except (NotToml, ValueError) as error:
        raise UsageError(f"{reference} is not a study ({error})", "see docs/recording.md") from None


def _study(name: str, content: Mapping[str, Any]) -> Study:
    if content.get("version") != _VERSION:
        raise ValueError(f"version is not {_VERSION}")
    if unknown := content.keys() - _KEYS:
        raise ValueError(f"unknown key {min(unknown)!r}")
    grid, fixed = _table(content, "grid"), _table(content, "fixed")
    only = {key: content.get(key, []) for key in ("only_gpus", "only_cpu")}
    for key, values in [*grid.items(), *((key, [value]) for key, value in fixed.items())]:
        _check(key, values)
    if twice := grid.keys() & fixed.keys():
        raise ValueError(f"{min(twice)!r} is in the grid and fixed")
    for key, values in only.items():
        if values:
            _check(key, values)
    declared = _table(content, "arguments")
    arguments = {key: _arguments(key, grid.get(key, []), _table(declared, key)) for key in declared}
    without = content.get("without", [])
    cpu = content.get("cpu", [])
    if not isinstance(cpu, list) or not all(type(each) is str for each in cpu):
        raise ValueError("cpu is not a list of texts")
    if not isinstance(without, list) or not all(isinstance(each, dict) for each in without):
        raise ValueError("without is not a list of tables")
    return Study(
        name,
        str(content.get("title", name)),
        _program(content.get("program"), grid.keys(), fixed, arguments),
        {key: tuple(values) for key, values in grid.items()},
        fixed,
        frozenset(only["only_gpus"]),
        frozenset(only["only_cpu"]),
        arguments,
        tuple(_left_out(each, grid) for each in without),
        tuple(cpu),
    )


def _arguments(
    key: str, values: Sequence[Value], table: Mapping[str, Any]
) -> dict[str, tuple[str, ...]]:
    """Check and return the command-line words for an option's values: value -> words."""
    if {str(value) for value in values} != set(table):
        raise ValueError(f"arguments.{key} does not have the values that {key} has in the grid")
    if not all(isinstance(words, list) and all(type(w) is str for w in words)
               for words in table.values()):  # fmt: skip
        raise ValueError(f"arguments.{key} are not lists of texts")
    return {value: tuple(words) for value, words in table.items()}


def _left_out(
    entry: Mapping[str, Sequence[Value]], grid: Mapping[str, Sequence[Value]]
) -> dict[str, tuple[Value, ...]]:
    """Check an entry of a study's `without` (excluded combinations); return option -> values."""
    for key, values in entry.items():
        if not isinstance(values, list) or not values or not set(values) <= set(grid.get(key, ())):
            raise ValueError(f"without has values of {key!r} that are not in the grid")
    return {key: tuple(values) for key, values in entry.items()}


def _matches(options: Mapping[str, Value], entry: Mapping[str, Sequence[Value]]) -> bool:
    return all(options[key] in values for key, values in entry.items())


def _table(content: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    table = content.get(key, {})
    if not isinstance(table, dict):
        raise ValueError(f"{key} is not a table")  # noqa: TRY004 - of a file, not of a program
    return table


def _check(key: str, values: object) -> None:
    if not _KEY.fullmatch(key) or key in _RESERVED:
        raise ValueError(f"{key!r} cannot be an option")
    fits = isinstance(values, list) and all(
        type(value) in (str, int) or (type(value) is float and math.isfinite(value))
        for value in values
    )
    if not isinstance(values, list) or not fits or not values:
        raise ValueError(f"{key} is not a list of texts and numbers")
    if len(set(map(str, values))) < len(values):
        raise ValueError(f"{key} has a value twice")
    if key == _GPUS and not all(type(value) is int and value > 0 for value in values):
        raise ValueError(f"{key} are not numbers of GPUs")


def _program(
    parts: object,
    options: Collection[str],
    fixed: Mapping[str, Value],
    arguments: Collection[str],
) -> tuple[str, ...]:
    """Return the command with the options `fixed` appended; raise ValueError if it is invalid."""
    if not isinstance(parts, list) or not parts:
        raise ValueError("program is not a list of texts")
    declared = [part for key, value in fixed.items() for part in (f"--{key}", str(value))]
    words = (*map(str, parts), *declared)
    named = {name for part in words for name in _PLACE.findall(part)} - {_PYTHON}
    if unknown := named - set(options):
        raise ValueError(f"program names {min(unknown)!r}, which is not in the grid")
    if unused := set(options) - named:
        raise ValueError(f"program does not name {min(unused)!r}, which is in the grid")
    if within := [key for key in arguments if f"{{{key}}}" not in words]:
        raise ValueError(f"{{{within[0]}}} becomes several arguments, and is a part of a text")
    return words


def file_name(name: str) -> str:
    """Return a folder name for `name`: itself if it is a safe file name, else a unique one."""
    safe = "".join(each if each.isalnum() or each in _HARMLESS else "_" for each in name)
    if safe == name and not name.startswith(".") and len(name) <= _LONGEST:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{safe.lstrip('.')[:_LONGEST]}-{digest}"
