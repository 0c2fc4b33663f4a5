"""Facts that answers state about their runs: names, verdicts, whether simulated."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tracekit import analysis, present
from tracekit.errors import UsageError

if TYPE_CHECKING:
    from tracekit.model import Answer
    from tracekit.runs._opened import OpenedRun


def of_run(run: OpenedRun, answer: Answer) -> Answer:
    """Return an answer that is one of a run, to be looked at."""
    return replace(
        answer, run=run.name, title=f"{called(run)} · {answer.title}", renderer=present.RENDERER
    )


def called(run: OpenedRun) -> str:
    """Return the name of a run for titles; simulated runs are marked."""
    return f"{run.name} (simulated)" if is_simulated(run) else run.name


def is_simulated(run: OpenedRun) -> bool:
    """Tell whether a run is simulated, by its label."""
    return run.labels.get("simulated") == "yes"


def verdicts_of(run: OpenedRun) -> dict[str, Any]:
    """Return the verdicts on the processes of a run."""
    return analysis.verdict_meta(run.trace)


def facts_of(chosen: Sequence[OpenedRun]) -> dict[str, Any]:
    """Return ``verdicts`` on the processes of each run, and which runs are ``simulated``."""
    verdicts = {run.name: verdicts_of(run) for run in chosen}
    return {"verdicts": verdicts, **simulated_of(chosen)}


def simulated_of(chosen: Sequence[OpenedRun]) -> dict[str, Any]:
    """Return as ``simulated`` the names of runs that no GPU ran; nothing where there is none."""
    names = [run.name for run in chosen if is_simulated(run)]
    return {"simulated": names} if names else {}


def require_known(what: str, subject: str, known: Iterable[str]) -> None:
    """Raise `UsageError` for a question that this subject has no data for."""
    if what not in (names := list(known)):
        raise UsageError(f"{what!r} is not known of {subject}", f"ask for {', '.join(names)}")
