"""A question that a run, or the library, can be asked: its rows, or its whole answer."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from tracekit.support.memory import NEEDS

if TYPE_CHECKING:
    import polars as pl

    from tracekit.model import Answer
    from tracekit.runs._opened import OpenedRun


P = ParamSpec("P")
R = TypeVar("R", bound="OpenedRun")


class Question(Generic[P]):
    """A function that answers, which is called for the rows alone.

    >>> rows = run.breakdown(by="stage")  # doctest: +SKIP
    >>> answer = run.breakdown.answer(by="stage")  # doctest: +SKIP
    >>> answer.figure()  # doctest: +SKIP

    Parameters
    ----------
    answer
        What is asked, which returns an `Answer`.
    """

    def __init__(self, answer: Callable[P, Answer]) -> None:
        self.answer = answer
        functools.update_wrapper(self, answer)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> pl.DataFrame:
        """Return the rows of the answer."""
        return self.answer(*args, **kwargs).rows


class RunQuestion(Generic[R, P]):
    """A `Question` to a run: as an attribute of its class, it is asked of each run.

    Parameters
    ----------
    answer
        What is asked; its first parameter is the run.
    """

    def __init__(self, answer: Callable[Concatenate[R, P], Answer]) -> None:
        name = getattr(answer, "__name__", "").replace("_", "-")

        @functools.wraps(answer)
        def asked(run: R, *args: P.args, **kwargs: P.kwargs) -> Answer:
            options: dict[str, Any] = {**kwargs}
            asks = [f"{name} {flag}" for flag, value in options.items() if value is True]
            for question in (name, *asks):
                if question in NEEDS:
                    run.require_memory(question, iterations=options.get("iterations"))
            return answer(run, *args, **kwargs)

        self._answer = asked
        self.__doc__ = answer.__doc__

    @overload
    def __get__(self, run: None, owner: type[R]) -> RunQuestion[R, P]: ...
    @overload
    def __get__(self, run: R, owner: type[R]) -> Question[P]: ...
    def __get__(self, run: R | None, owner: type[R]) -> RunQuestion[R, P] | Question[P]:
        """Return the question, asked of `run`."""
        if run is None:
            return self
        return Question(functools.partial(self._answer, run))
