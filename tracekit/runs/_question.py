"""Questions (analyses) as functions that return rows, with a method `answer` for all the rest."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Protocol,
    TypeVar,
    overload,
)

from tracekit import analysis, engine, present
from tracekit.support.files import StrPath
from tracekit.support.memory import NEEDS
from tracekit.support.questions import option_of

if TYPE_CHECKING:
    import polars as pl

    from tracekit.model import Answer
    from tracekit.runs._opened import OpenedRun
    from tracekit.support.questions import Asked, Declaration

P = ParamSpec("P")
R = TypeVar("R", bound="OpenedRun")
R_contra = TypeVar("R_contra", bound="OpenedRun", contravariant=True)
_FEW = 3
"""Maximum number of runs that a line names one by one."""


class Question(Protocol[P]):
    """An analysis: a call returns its rows; `answer` returns rows, title, meta and figures.

    >>> rows = run.breakdown(by="stage")  # doctest: +SKIP
    >>> answer = run.breakdown.answer(by="stage")  # doctest: +SKIP
    >>> answer.figure()  # doctest: +SKIP
    """

    answer: Callable[P, Answer]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> pl.DataFrame:
        """Return the rows of the answer."""


class RunsQuestion(Protocol[P]):
    """A `Question` about several runs; the first argument of a call is the list of runs."""

    def answer(
        self, references: Sequence[Any] = (), /, *args: P.args, **kwargs: P.kwargs
    ) -> Answer:
        """Return the answer (rows, title, meta and figures) about these runs."""

    def __call__(
        self, references: Sequence[Any] = (), /, *args: P.args, **kwargs: P.kwargs
    ) -> pl.DataFrame:
        """Return the rows of the answer."""


def question_of(answer: Callable[P, Answer]) -> Question[P]:
    """Return a function that calls `answer` and returns only the rows of its result.

    The function has the attribute ``answer``, which is the argument `answer`.
    """
    text = inspect.getdoc(answer) or ""
    question: Question[P] = asking(answer, answer.__name__, inspect.signature(answer), text)
    return question


def asking(answer: Any, name: str, signature: inspect.Signature, text: str) -> Any:
    """Return a function that calls `answer` and returns only the rows of its result.

    Both functions get the name `name`, the signature `signature` and the docstring `text`.
    """

    def ask(*args: Any, **kwargs: Any) -> pl.DataFrame:
        rows: pl.DataFrame = answer(*args, **kwargs).rows
        return rows

    answer.__name__, answer.__doc__, answer.__signature__ = name, text, signature
    function: Any = ask
    function.answer = answer
    function.__name__ = function.__qualname__ = name
    function.__module__ = "tracekit"
    function.__doc__ = text
    function.__signature__ = signature.replace(return_annotation="polars.DataFrame")
    return function


Finish = Callable[..., "Answer"]
"""Function that answers a question for a run: its arguments are the run, the question with its
options bound, and the runs among these options. For several runs: these, and their answer."""


class RunQuestion(Generic[R_contra, P]):
    """A `Question` as a method of runs: `run.x(...)` answers the question `x` about the run.

    Parameters
    ----------
    answer
        Function that answers the question; its first parameter is the run.
    declaration
        Declaration of the question (name, parameters, columns); None without one.
    """

    def __init__(
        self,
        answer: Callable[Concatenate[R_contra, P], Answer],
        declaration: Declaration | None = None,
    ) -> None:
        self._answer, self.declaration = answer, declaration
        self.__doc__ = answer.__doc__

    @overload
    def __get__(self, run: None, owner: type[Any]) -> RunQuestion[R_contra, P]: ...
    @overload
    def __get__(self, run: R, owner: type[Any]) -> Question[P]: ...
    def __get__(self, run: R | None, owner: type[Any]) -> RunQuestion[R_contra, P] | Question[P]:
        """Return the question (analysis) bound to `run`; on the class, the unbound question."""
        if run is None:
            return self
        name, signature, text = self._shown
        answer = functools.partial(self._require_and_answer, run)
        question: Question[P] = asking(answer, name, signature, text)
        return question

    def _require_and_answer(self, run: Any, *args: Any, **options: Any) -> Answer:
        if options.get("iterations") is not None:
            options["iterations"] = engine.parse_iterations(options["iterations"])
        for question in needed(self._answer.__name__, options):
            run.require_memory(question, iterations=options.get("iterations"))
        return self._answer(run, *args, **options)

    @functools.cached_property
    def _shown(self) -> tuple[str, inspect.Signature, str]:
        """Name, signature and docstring of the method."""
        spec = self.declaration
        if spec is not None:
            return spec.name, spec.signature_of("tracekit.Answer"), spec.text("polars.DataFrame")
        signature = inspect.signature(self._answer)
        options = [*signature.parameters.values()][1:]
        text = inspect.getdoc(self._answer) or ""
        return self._answer.__name__, signature.replace(parameters=options), text


def declared(
    declared_question: Asked[Any, P, Answer], finish: Finish | None = None
) -> RunQuestion[OpenedRun, P]:
    """Turn a declared question into a method of runs.

    Parameters
    ----------
    declared_question
        The question.
    finish
        Function that answers the question about a run and adds facts about the run; by default the
        question is called with the run's tables.
    """
    spec = declared_question.declaration
    runs = [each.name for each in spec.options if option_of(each).unit == "run"]

    @functools.wraps(declared_question)
    def answer(run: OpenedRun, /, *args: P.args, **options: P.kwargs) -> Answer:
        stretch: Any = {name: options.pop(name) for name in spec.apart if name in options}

        def ask(subject: Any) -> Answer:
            return declared_question(subject, *args, **options)

        arguments = inspect.signature(declared_question).bind(run, *args, **options).arguments
        others = [arguments[name] for name in runs if arguments.get(name) is not None]
        return (finish or _of_tables)(run.within(**stretch), ask, *others)

    return RunQuestion(answer, spec)


def _of_tables(run: OpenedRun, ask: Callable[..., Answer]) -> Answer:
    return of_run(run, ask(run.trace)).warning(run.warnings)


def needed(name: str, options: Mapping[str, Any]) -> list[str]:
    """Return the keys of the table `NEEDS` (memory per analysis) that apply to these options."""
    command = name.replace("_", "-")
    asks = [f"{command} {flag}" for flag, value in options.items() if value is True]
    return [each for each in (command, *asks) if each in NEEDS]


def of_one(asks: Asked[Selection, P, Answer], finish: Finish) -> RunQuestion[OpenedRun, P]:
    """Turn a question (analysis) about several runs into a method that asks it about one run."""

    @functools.wraps(asks)
    def answer(run: OpenedRun, /, *args: P.args, **options: P.kwargs) -> Answer:

        runs = Selection([run])
        found: Answer = finish(runs, asks(runs, *args, **options))
        return found

    return RunQuestion(answer, asks.declaration)


class Selection:
    """Opened runs that an analysis (question) is about."""

    is_apart = is_chosen = True

    def __init__(self, runs: Sequence[OpenedRun] = ()) -> None:
        self.opened = [*runs]

    def __iter__(self) -> Iterator[OpenedRun]:
        return iter(self.opened)

    def facts(self) -> dict[str, Any]:
        """Return whether the processes of each run train or infer, and which runs are simulated."""
        return facts_of([*self])

    def named(self, reference: Any) -> OpenedRun:
        """Return the run `reference`, which here is given as an opened run already."""
        run: OpenedRun = reference
        return run

    def read_smi(self, path: StrPath) -> pl.DataFrame:
        """Read samples that nvidia-smi logged to a file."""
        from tracekit.sources import read_smi

        return read_smi(Path(path))


def of_run(run: OpenedRun, answer: Answer) -> Answer:
    """Put a run's name into the title of an answer, and add the renderer that displays it."""
    return replace(
        answer, run=run.name, title=f"{called(run)} · {answer.title}", renderer=present.RENDERER,
        lacking=partial(_lacking, run, answer.command),
    )  # fmt: skip


def _lacking(run: OpenedRun, command: str) -> str | None:
    """Return how to record the data that a command needs and a run lacks; None if it has them."""
    import polars as pl

    features = analysis.features(run.trace)
    rows = features.filter(pl.col("command").str.split(", ").list.contains(command))
    return "; ".join(rows["record_with"].drop_nulls().unique(maintain_order=True)) or None


def called(run: OpenedRun) -> str:
    """Return the display name of a run; simulated runs are marked."""
    return f"{run.name} (simulated)" if is_simulated(run) else run.name


def is_simulated(run: OpenedRun) -> bool:
    """Test whether a run has the label ``simulated=yes``."""
    return run.labels.get("simulated") == "yes"


def verdicts_of(run: OpenedRun) -> dict[str, Any]:
    """Return entries for an answer's meta: what each process of a run does, such as training."""
    return analysis.verdict_meta(run.trace)


def facts_of(chosen: Sequence[OpenedRun]) -> dict[str, Any]:
    """Return entries for meta: what processes of each run do (``verdicts``), ``simulated`` runs."""
    verdicts = {run.name: verdicts_of(run) for run in chosen}
    return {"verdicts": verdicts, **simulated_of(chosen)}


def warnings_of(chosen: Sequence[OpenedRun], *, of_stages: bool = True) -> list[str]:
    """Return the warnings of runs; a warning shared by several runs is listed once, with names."""
    warned: dict[str, dict[str, None]] = {}
    for run in chosen:
        for text in run.warnings if of_stages else run.warnings_beside_stages:
            warned.setdefault(text, {})[run.name] = None
    return [f"{listed([*names])}: {text}" for text, names in warned.items()]


def listed(names: Sequence[str]) -> str:
    """Join names of runs into a text; for many, the first name and the number of others."""
    return ", ".join(names) if len(names) <= _FEW else f"{names[0]} and {len(names) - 1} more"


def simulated_of(chosen: Sequence[OpenedRun]) -> dict[str, Any]:
    """Return the names of simulated runs under the key ``simulated``; empty if there are none."""
    names = [run.name for run in chosen if is_simulated(run)]
    return {"simulated": names} if names else {}
