"""Declare an analysis (question) once; Python API, command and docs are made from that.

    @question("tracekit flops --by layer", writes=Json("flops", rows={"flops": "amount: ..."}))
    def flops(trace: "Trace", *, skip: AutoSkip = "auto", **_: Unpack[ChosenRows]) -> "Answer":
        ...

Its signature declares the options: a type, a default, and an `Option` with the meaning. The column
types, the JSON Schema and the reference pages are made from `writes`. The module of a question
imports the code that answers it only on a call, so that help stays fast.
"""

import functools
import inspect
import re
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from pathlib import Path
from types import UnionType
from typing import (
    Annotated,
    Any,
    Concatenate,
    Literal,
    ParamSpec,
    Protocol,
    TypedDict,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from tracekit.errors import UsageError
from tracekit.support.files import StrPath
from tracekit.support.schemas import Json
from tracekit.support.spelling import choose_among

P = ParamSpec("P")
R = TypeVar("R")
T_contra = TypeVar("T_contra", contravariant=True)
A_co = TypeVar("A_co", bound="Chooses", covariant=True)
_MODULES = re.compile(r"(?:\w+\.)+(?=\w)")
MANY = "Many reports"
"""Heading in help for options of runs with several reports."""
_GIVEN = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True)
class Option:
    """Meaning of an option, in addition to its type and default."""

    meaning: str
    """Description in help and on pages."""
    metavar: str | None = None
    """Placeholder for its value in help."""
    unit: str | None = None
    """Unit by which the command line parses it (one of `support.quantities`, or ``images``,
    ``keys``, ``labels``, ``peaks``, ``percent or none``, ``run``, ``run or ns``, ``runs``,
    ``sizes``, ``skip``, ``steps``)."""
    least: int | None = None
    """Smallest number allowed, in Python and on the command line; None for no limit."""
    flag: str | None = None
    """Name on the command line, if it differs; empty if the command line lacks the option."""
    typed: Any = None
    """Type on the command line, if it does not follow from type and unit."""
    panel: str | None = None
    """Heading that it is listed under in help."""
    keys: tuple[str, ...] = ()
    """Values allowed in a list of names."""
    envvar: str | None = None
    """Environment variable that sets it on the command line."""


def grouped_by(*names: str) -> Option:
    """Return the declaration of the option that groups rows by one or more of these keys."""
    meaning = f"What to group by: {', '.join(names)}, or several joined by commas."
    return Option(meaning, "KEYS", unit="keys", typed=list[str], keys=names)


AutoSkip = Annotated[
    int | Literal["auto"],
    Option(
        "Number of iterations to leave out at the beginning; auto: the cold ones of each run, in "
        "numbers per step.",
        "N|auto",
        unit="skip",
    ),
]
Steps = Annotated[
    str | int | tuple[int, int] | None,
    Option(
        "The steps to look at, both included, such as 10:20. Default: all of the run.",
        "FIRST:LAST",
        unit="steps",
    ),
]
Between = Annotated[
    str | tuple[int, int] | None,
    Option(
        "The time to look at, from the start of the recording, such as 12.3s:12.9s. Default: all "
        "of the run.",
        "TIME:TIME",
        typed=str | None,
    ),
]
Topology = Annotated[
    StrPath | None,
    Option(
        "The machine: output of `nvidia-smi topo -m` or `rocm-smi --showtopo`, NCCL's XML, an "
        "nvprof database, TOML, or a preset (`tracekit topology list`). Default: by the GPUs' "
        "names.",
        "FILE",
        typed=str | None,
    ),
]
NcclLogs = Annotated[
    Sequence[StrPath],
    Option(
        "A log of the run with NCCL_DEBUG=INFO; may be given several times.",
        "FILE",
        flag="--nccl-log",
        typed=list[Path] | None,
    ),
]
Sizes = Annotated[
    Mapping[str, int] | None,
    Option(
        "Size of a collective that was not recorded, such as all_reduce=25MB.",
        "COLLECTIVE=SIZE",
        unit="sizes",
        flag="--bytes",
        typed=list[str] | None,
    ),
]
Where = Annotated[
    str | Sequence[str],
    Option(
        "Rows that meet it, such as stage=BP, share>=5%, name~gemm (a pattern) or 'device=0 and "
        "mean>1ms or device=1'; may be given several times.",
        "CONDITION",
        typed=list[str] | None,
        panel="Rows",
    ),
]
Sort = Annotated[
    str | None,
    Option(
        "Order by a column: largest first, texts by the alphabet; -COLUMN is the reverse.",
        "COLUMN",
        panel="Rows",
    ),
]
Top = Annotated[int | None, Option("The first N rows.", "N", least=1, panel="Rows")]


References = Annotated[
    Sequence[Any],
    Option(
        "Names of runs, starts of their ids, or trace files. Default: all with the labels.",
        "RUN...",
    ),
]
OrLatest = Annotated[
    Sequence[Any],
    Option(
        "Names of runs, starts of their ids, or trace files. Default: all with the labels, else "
        "the one ingested last.",
        "RUN...",
    ),
]


class Traced(Protocol):
    """Interface of a run as far as analyses need it: its canonical tables."""

    @property
    def trace(self) -> Any:
        """Canonical tables of the run."""


OfRanks = Annotated[
    Traced | None,
    Option("A run of some of these ranks, to find stages and steps.", "RUN", unit="run"),
]
Labels = Annotated[
    Mapping[str, str] | None,
    Option(
        "Runs with this label; may be given several times.",
        "KEY=VALUE",
        unit="labels",
        typed=list[str] | None,
    ),
]
Folder = Annotated[
    StrPath | None,
    Option(
        "Folder of the store. The default is the nearest .tracekit upward from here.",
        "DIR",
        typed=Path | None,
        envvar="TRACEKIT_STORE",
    ),
]


class ChosenOrder(TypedDict, total=False):
    """Options of a command that filter the rows of its answer (``where``) and sort them."""

    where: Where
    sort: Sort


class ChosenRows(ChosenOrder, total=False):
    """Options that filter the rows of an answer (a result table); every analysis takes them."""

    top: Top


class ChosenTime(ChosenRows, total=False):
    """Options that limit a run to a time span, and filter the answer; see ``docs/breakdown.md``."""

    between: Between


class ChosenStretch(ChosenTime, total=False):
    """Options that limit a run to a time span or to steps, and filter the rows of the answer."""

    iterations: Steps


PartDask = Annotated[
    str | None,
    Option(
        "Add up the reports on the Dask cluster of this scheduler, such as tcp://host:8786.",
        "ADDRESS",
        panel=MANY,
    ),
]


class ChosenRuns(TypedDict, total=False):
    """Options that choose the runs to analyse, and filter the rows of the answer."""

    where: Labels
    store: Folder
    sort: Sort
    top: Top


class SummedRuns(ChosenRuns, total=False):
    """Options that choose runs, filter the answer, and name a Dask cluster to sum runs up."""

    dask: PartDask


_ROWS = tuple(get_type_hints(ChosenRows))
_RUNS = ("references", "where", "store")


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """Declaration of a question (an analysis): options, columns, figures, examples and formats."""

    name: str
    """Name of the question in Python."""
    meaning: str
    """Description of its answer, in help and on pages."""
    signature: inspect.Signature
    """Its subject and options."""
    examples: Sequence[str]
    """Examples of command lines."""
    writes: Json
    """Columns and `meta` of its answers."""
    also: Sequence[Json] = ()
    """Columns and `meta` of further answers of the command, which name another command."""
    figures: Mapping[str, str] = field(default_factory=dict)
    """Figures of its answers: name of the figure -> description."""
    opened: Sequence[str] = ()
    """Options of `tracekit.open` that its command has too."""
    apart: Sequence[str] = ()
    """Names of the options that are handled before the analysis: the time span or steps that a run
    is cut to, or the choice of runs."""
    is_of_runs: bool = False
    """Whether its subject is several runs, and not one."""
    is_of_latest: bool = False
    """Whether the several runs are by default only the run ingested last, and not all."""
    is_of_files: bool = False
    """Whether its subject is files that are no runs; they are the first parameter."""
    check: Callable[..., object] | None = None
    """Function that raises an error for contradictory options, before any file is read."""
    judge: Callable[..., int] | None = None
    """Function that returns the exit code for an answer; its keyword arguments are options of the
    command, and may include options of the question."""
    formats: Sequence[str] = ()
    """Formats that its answers can be written in, besides those of all questions."""

    @property
    def options(self) -> list[inspect.Parameter]:
        """The question's own options as parameters, each with type, default and `Option`."""
        declared = _options(self.signature)[self.is_of_files :]
        names = _RUNS if self.is_of_runs else ()
        return [
            each
            for each in declared
            if each.name not in names and each.annotation not in (Where, Sort, Top)
        ]

    @property
    def judging(self) -> list[inspect.Parameter]:
        """Options of the function `judge`, which returns the command's exit code for the answer."""
        return [] if self.judge is None else _options(inspect.signature(self.judge))

    def signature_of(self, returns: str, *, of_one: bool = True) -> inspect.Signature:
        """Return the signature of a method of one run (`of_one`), or of a function of several.

        `returns` is the return type, as text.
        """
        known = ("references", *self.apart) if of_one and self.is_of_runs else ()
        parameters = [
            each.replace(annotation=get_args(each.annotation)[0])
            for each in _options(self.signature)
            if each.name not in known
        ]
        return self.signature.replace(parameters=parameters, return_annotation=returns)

    def text(self, returns: str, *, of_one: bool = True) -> str:
        """Return the question's docstring: description, parameters, type `returns`, and columns."""
        taken = self.signature_of(returns, of_one=of_one).parameters.values()
        options = [option_of(self.signature.parameters[each.name]) for each in taken]
        lines = [
            self.meaning, "", *_parameters(taken, options),
            "", "Returns", "-------", returns, f"    {self.writes.of_rows}", "",
            *(f"    {column.name} : {column.description}" for column in self.writes.columns),
        ]  # fmt: skip
        return "\n".join(lines)


def _parameters(taken: Iterable[inspect.Parameter], options: Iterable[Option]) -> list[str]:
    """Return the section of a docstring about parameters."""
    return [
        "Parameters", "----------",
        *(line for each, option in zip(taken, options, strict=True)
          for line in (f"{each.name} : {type_text(each)}", f"    {option.meaning}")),
    ]  # fmt: skip


def optional(function: Callable[P, R]) -> Callable[P, R]:
    """Return `function`, made to check its declared options and to list them in its docstring.

    It is applied to functions of the library that are not analyses (questions). `declared_of`
    returns the options that such a function declares.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def ask(*args: P.args, **kwargs: P.kwargs) -> R:
        require_valid(signature.bind(*args, **kwargs).arguments, signature)
        return function(*args, **kwargs)

    plain = [
        each.replace(annotation=get_args(each.annotation)[0])
        if get_origin(each.annotation) is Annotated
        else each
        for each in signature.parameters.values()
    ]
    shown: Any = ask
    shown.__signature__ = signature.replace(parameters=plain)
    known = {each.name: option_of(each) for each in _options(signature)}
    taken = [each for each in plain if each.name in known]
    meaning, mark, rest = inspect.cleandoc(function.__doc__ or "").partition("\nReturns\n")
    text = "\n".join(_parameters(taken, known.values()))
    shown.__doc__ = f"{meaning.rstrip()}\n\n{text}\n{mark}{rest}"
    return ask


def declared_of(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters of a function that are declared as options of a command."""
    return _options(inspect.signature(inspect.unwrap(function), follow_wrapped=False))


class Chooses(Protocol):
    """Interface of an answer (table) that can filter its rows."""

    @property
    def choosing(self) -> Callable[..., Any]:
        """Method that filters and sorts the rows of the answer."""

    @property
    def typed(self) -> Callable[..., Any]:
        """Function that casts the answer's columns to their declared types."""


class Asked(Protocol[T_contra, P, A_co]):
    """A declared analysis (question): calling it with a run and options returns the answer."""

    declaration: Declaration

    def __call__(self, subject: T_contra, /, *args: P.args, **kwargs: P.kwargs) -> A_co:
        """Answer the question."""


def question(
    *examples: str,
    writes: Json,
    also: Sequence[Json] = (),
    figures: Mapping[str, str] | None = None,
    opened: Sequence[str] = ("rules", "iteration"),
    check: Callable[..., object] | None = None,
    is_of_latest: bool = False,
    files: Any = None,
    judge: Callable[..., int] | None = None,
    formats: Sequence[str] = (),
) -> Callable[[Callable[Concatenate[T_contra, P], A_co]], Asked[T_contra, P, A_co]]:
    """Declare a question, by the function that answers it; see the module for an example.

    The function never gets the shared options in its signature: those of `ChosenRuns` and
    `ChosenStretch` choose and cut runs before it is called; `ChosenRows` is applied to its answer.

    Parameters
    ----------
    examples, writes, also, figures, opened, check, is_of_latest, judge, formats
        See `Declaration`.
    files
        Type of the paths that its command takes, with an `Option`; the function gets the files'
        content. None for a question about runs.
    """

    def declare(function: Callable[Concatenate[T_contra, P], A_co]) -> Asked[T_contra, P, A_co]:
        signature = inspect.signature(function)
        taken = [each for each in signature.parameters.values() if each.kind in _GIVEN]
        shared = _shared(signature)
        is_of_runs = "store" in shared
        rows = [name for name in shared if name in _ROWS and not (is_of_runs and name in _RUNS)]
        chosen_runs = inspect.Parameter(
            "references", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=(),
            annotation=OrLatest if is_of_latest else References,
        )  # fmt: skip
        subject = [chosen_runs] if is_of_runs else taken[:1]
        if files is not None:
            subject = [taken[0].replace(annotation=files)]
        answers = signature.replace(parameters=[*taken, *(shared[name] for name in rows)])

        @functools.wraps(function)
        def ask(*args: Any, **kwargs: Any) -> Any:
            require_valid(answers.bind(*args, **kwargs).arguments, answers)
            chosen = {name: kwargs.pop(name) for name in rows if name in kwargs}
            return function(*args, **kwargs).typed(writes.columns).choosing(**chosen)

        asked: Any = ask
        asked.__signature__ = answers
        asked.declaration = Declaration(
            name=function.__name__, meaning=inspect.cleandoc(function.__doc__ or ""),
            signature=signature.replace(parameters=[*subject, *taken[1:], *shared.values()]),
            examples=examples, is_of_runs=is_of_runs, is_of_latest=is_of_latest,
            writes=writes, also=also, figures=figures or {}, opened=opened,
            apart=[name for name in shared if name not in rows], check=check,
            is_of_files=files is not None, judge=judge, formats=formats,
        )  # fmt: skip
        declared: Asked[T_contra, P, A_co] = asked
        return declared

    return declare


def _options(of: inspect.Signature) -> list[inspect.Parameter]:
    """Return the parameters that are declared as options."""
    return [each for each in of.parameters.values() if get_origin(each.annotation) is Annotated]


def require_valid(values: Mapping[str, Any], signature: inspect.Signature) -> None:
    """Raise `UsageError` for a value that the options in `signature` do not allow.

    A value is not allowed if it has a wrong type, is not a listed choice, or is below the minimum.
    """
    options = {each.name: each for each in _options(signature)}
    for name in values.keys() & options.keys():
        value, least = values[name], option_of(options[name]).least
        kind = get_args(options[name].annotation)[0]
        if not _is_of(value, kind):
            known = choices(kind)
            if known and isinstance(value, str):
                raise UsageError(f"{name} {value!r} is unknown", choose_among(value, known))
            wanted = _MODULES.sub("", str(getattr(kind, "__name__", kind)))
            raise UsageError(f"{name} {reprlib.repr(value)} is of another type", f"give {wanted}")
        if least is not None and value is not None and value < least:
            raise UsageError(f"{name} {value} is too small", f"give {least} or more")


def _is_of(value: Any, kind: Any) -> bool:
    """Test whether a value is of type `kind`; items of lists are not checked."""
    origin = get_origin(kind)
    if origin is Literal:
        return value in get_args(kind)
    if origin in (Union, UnionType):
        return any(_is_of(value, each) for each in get_args(kind))
    if kind in (int, float):
        return isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool)
    if kind is None:
        return value is None
    plain = origin or kind
    if plain in (Sequence, list, tuple) and isinstance(value, str):
        return False
    tells = isinstance(plain, type) and not getattr(plain, "_is_protocol", plain is Any)
    return not tells or isinstance(value, plain)


def _shared(of: inspect.Signature) -> dict[str, inspect.Parameter]:
    """Return the options in the TypedDict of a function's ``**_``.

    Those that filter the rows of the answer come last.
    """
    rest = [each for each in of.parameters.values() if each.kind is inspect.Parameter.VAR_KEYWORD]
    chosen = get_args(rest[0].annotation)[0] if rest else ChosenRows
    kinds = get_type_hints(chosen, include_extras=True)
    return {
        name: inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, annotation=kinds[name],
            default=() if kinds[name] is Where else None,
        )
        for name in sorted(kinds, key=lambda name: name in _ROWS)
        if name not in of.parameters
    }  # fmt: skip


def option_of(parameter: inspect.Parameter) -> Option:
    """Return the `Option` (meaning, unit, limits) that the annotation of a parameter declares."""
    return next(each for each in get_args(parameter.annotation) if isinstance(each, Option))


def type_text(parameter: inspect.Parameter) -> str:
    """Return the type and the default of a parameter, as pages print them."""
    kind = parameter.annotation
    text = _MODULES.sub("", kind.__name__ if isinstance(kind, type) else str(kind))
    default = "" if parameter.default is parameter.empty else f", default {parameter.default!r}"
    return f"{text}{default}"


def choices(kind: Any) -> tuple[str, ...]:
    """Return the texts allowed for an option, if its type lists them; else nothing."""
    parts = [kind, *get_args(kind)]
    return next((get_args(each) for each in parts if get_origin(each) is Literal), ())
