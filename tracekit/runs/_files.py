"""Questions (analyses) about files that are no runs: hang dumps, NCCL inspector logs, timelines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, cast

from tracekit import present
from tracekit.analysis.communication import inspector_questions
from tracekit.analysis.hangs import questions as of_dumps
from tracekit.analysis.straggler_cost import questions as of_timelines
from tracekit.runs._question import Question, asking
from tracekit.support.questions import require_valid

if TYPE_CHECKING:
    from tracekit.model import Answer
    from tracekit.support.questions import Asked

P = ParamSpec("P")


def of_files(
    declared_question: Asked[Any, P, Answer], read: Callable[[Any], Any]
) -> Question[Concatenate[Any, P]]:
    """Turn a declared question about files into the library function that answers it.

    Parameters
    ----------
    declared_question
        The question.
    read
        Function that reads the files; its result is passed to the question.
    """
    spec: Any = declared_question.declaration
    signature, text = spec.signature_of("tracekit.Answer"), spec.text("polars.DataFrame")

    def answer(*args: Any, **options: Any) -> Answer:
        arguments = signature.bind(*args, **options).arguments
        require_valid(arguments, spec.signature)
        files = next(iter(signature.parameters.values()))
        paths, ask = arguments.pop(files.name, ()), cast("Any", declared_question)
        is_without = not paths and files.default is not files.empty
        found: Answer = ask(() if is_without else read(paths), **arguments)
        return replace(found, renderer=present.RENDERER)

    question: Question[Concatenate[Any, P]] = asking(answer, spec.name, signature, text)
    return question


def _dumps(paths: Any) -> Any:
    from tracekit.sources.hang_dumps import read_dumps

    return read_dumps(paths)


def _logs(paths: Any) -> Any:
    from tracekit.sources.nccl_inspector import read_inspector_logs

    return read_inspector_logs(paths)


def _timeline(path: Any) -> Any:
    from tracekit.sources.job_timelines import read_job_timeline

    return read_job_timeline(path)


hang = of_files(of_dumps.hang, _dumps)
nccl_inspector = of_files(inspector_questions.nccl_inspector, _logs)
straggler_cost = of_files(of_timelines.straggler_cost, _timeline)
