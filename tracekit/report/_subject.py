"""What a report is of, and what several of its sections ask for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import polars as pl

from tracekit.analysis import closeup
from tracekit.present import count

if TYPE_CHECKING:
    from tracekit.analysis.communication import Traffic
    from tracekit.analysis.comparison import Comparison, Skip
    from tracekit.model import Answer, Trace

_SEPARATOR = " · "


class AskedRun(Protocol):
    """What the report asks of a run: `tracekit.Run` answers it."""

    breakdown: Any
    diagnose: Any
    idle: Any
    links: Any
    collectives: Any
    memory: Any
    info: Any

    @property
    def id(self) -> str:
        """Its id."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def labels(self) -> Mapping[str, str]:
        """Its labels."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What to know about it."""

    @property
    def trace(self) -> Trace:
        """Its tables."""

    def traffic(self) -> Traffic:
        """Return what it moved between GPUs."""

    def summary(self) -> Mapping[str, Any]:
        """Return its size."""

    def require_memory(self, question: str) -> None:
        """Raise where a question to it takes more memory than there is."""


class Library(Protocol):
    """What the report asks of several runs, and how runs are called: the front door answers it."""

    version: str

    def study(self, runs: Sequence[AskedRun], /, *, skip: Skip = "auto") -> Answer:
        """Return what steps of some runs take, without so many at the beginning of each."""

    def compare(self, a: AskedRun, b: AskedRun, by: str, /) -> Comparison:
        """Return what differs between two runs."""

    def called(self, run: AskedRun, /) -> str:
        """Return what titles call a run."""


@dataclass(frozen=True)
class Subject:
    """One run; one, and the one that it is compared with; or the runs of a study."""

    library: Library
    runs: tuple[AskedRun, ...]
    against: AskedRun | None = None

    @property
    def run(self) -> AskedRun:
        """The run that the report is of."""
        return self.runs[0]

    @cached_property
    def close(self) -> Close:
        """The steps of the run, looked at closely."""
        return Close(self.library, self.run)

    @property
    def title(self) -> str:
        """Heading of the report."""
        called = self.library.called
        names = [called(run) for run in self.runs]
        if self.against is not None:
            return f"{called(self.against)} → {names[0]}"
        return names[0] if len(names) == 1 else f"Study of {count(len(names), 'run')}"

    @property
    def subtitle(self) -> str:
        """What was recorded, in one line."""
        if len(self.runs) > 1:
            return ", ".join(run.name for run in self.runs)
        own = self.close.described
        if self.against is None:
            return own
        return f"base: {Close(self.library, self.against).described} — compared: {own}"


@dataclass(frozen=True)
class Close:
    """A run's steps: how long, where on which GPU, and which ones are shown."""

    library: Library
    run: AskedRun

    @cached_property
    def facts(self) -> dict[str, Any]:
        """The row of the run in a study: lengths of its steps, and of what they are made of.

        Of all steps, as idle time and stages on the page are.
        """
        return self.library.study([self.run], skip=0).rows.row(0, named=True)

    @cached_property
    def spans(self) -> pl.DataFrame:
        """Where steps lie on GPUs; see `tracekit.analysis.closeup.step_spans`."""
        return closeup.step_spans(self.run.trace)

    @cached_property
    def lengths(self) -> pl.DataFrame:
        """How long steps take; on the host where nothing ran on a GPU."""
        if not self.spans.is_empty():
            return closeup.step_lengths(self.spans)
        length = (pl.col("end") - pl.col("start")).mean()
        steps = self.run.trace.read("iterations").group_by("iteration")
        return steps.agg(step_ns=length).sort("iteration")

    @cached_property
    def communication(self) -> pl.DataFrame:
        """What communication adds to steps; see `closeup.exposed_communication`."""
        return closeup.exposed_communication(self.run.trace, self.spans)

    @cached_property
    def idle(self) -> Answer:
        """Why nothing runs, by cause."""
        answer: Answer = self.run.idle.answer(by="cause")
        return answer

    @property
    def chosen(self) -> dict[str, int | None]:
        """The steps that are shown, by what they are; one without a number is the whole run."""
        median, slowest = closeup.median_step(self.lengths), closeup.slowest_step(self.lengths)
        if median is None:
            return {"Whole run": None}
        if median == slowest:
            return {f"Step {median}": median}
        return {f"Median step ({median})": median, f"Slowest step ({slowest})": slowest}

    @property
    def described(self) -> str:
        """What was recorded, in one line."""
        facts = self.run.summary()
        gpus = int(facts.get("devices") or 0)
        parts = [
            f"{count(gpus, 'GPU')} ({facts['gpus']})" if facts.get("gpus") else count(gpus, "GPU"),
            count(int(facts.get("ops") or 0), "op"),
            count(int(facts.get("iterations") or 0), "step"),
        ]
        return _SEPARATOR.join(parts)
