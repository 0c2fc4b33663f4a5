"""Subject of a report, with answers that several sections ask for, and what a section is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import polars as pl
from markupsafe import Markup

from tracekit.analysis import step_detail
from tracekit.analysis.comparison import modes
from tracekit.present import count, duration

if TYPE_CHECKING:
    from tracekit.analysis.communication import Traffic
    from tracekit.analysis.comparison import Comparison, Skip
    from tracekit.model import Answer, Trace

_SEPARATOR = " · "


class AskedRun(Protocol):
    """Questions of the report to a run: `tracekit.Run` answers them."""

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
        """Warnings about the run."""

    @property
    def trace(self) -> Trace:
        """Its tables."""

    def traffic(self) -> Traffic:
        """Return the traffic between its GPUs."""

    def summary(self) -> Mapping[str, Any]:
        """Return its size."""

    def of_steps(self, iterations: tuple[int, int] | None) -> AskedRun:
        """Return the run limited to some of its steps."""

    def require_memory(self, question: str, *, iterations: tuple[int, int] | None = None) -> None:
        """Raise where a question to it takes more memory than there is."""


class Library(Protocol):
    """Questions of the report to several runs, and their names: the front door answers them."""

    version: str

    def study(self, runs: Sequence[AskedRun], /, *, skip: Skip = "auto") -> Answer:
        """Return the step times of some runs, without a number of steps at the beginning."""

    def compare(self, a: AskedRun, b: AskedRun, by: str, /) -> Comparison:
        """Return the comparison of two runs."""

    def called(self, run: AskedRun, /) -> str:
        """Return the name of a run for titles."""


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
        """Description of the recording, in one line."""
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
        """Row of the run in a study: lengths of its steps and of their parts.

        Of all steps, as idle time and stages on the page are.
        """
        return self.library.study([self.run], skip=0).rows.row(0, named=True)

    @cached_property
    def spans(self) -> pl.DataFrame:
        """Spans of steps on GPUs; see `tracekit.analysis.step_detail.step_spans`."""
        return step_detail.step_spans(self.run.trace)

    @cached_property
    def lengths(self) -> pl.DataFrame:
        """Lengths of steps; on the host where nothing ran on a GPU."""
        if not self.spans.is_empty():
            return step_detail.step_lengths(self.spans)
        length = (pl.col("end") - pl.col("start")).mean()
        steps = self.run.trace.read("iterations").group_by("iteration")
        return steps.agg(step_ns=length).sort("iteration")

    @cached_property
    def traffic(self) -> Traffic:
        """Traffic between its GPUs."""
        return self.run.traffic()

    @cached_property
    def communication(self) -> pl.DataFrame:
        """Exposed communication of steps; see `step_detail.exposed_communication`."""
        return step_detail.exposed_communication(self.run.trace, self.spans)

    @cached_property
    def idle(self) -> Answer:
        """Why nothing runs, by cause."""
        answer: Answer = self.run.idle.answer(by="cause")
        return answer

    @cached_property
    def kinds(self) -> list[pl.DataFrame]:
        """The steps of each kind, the quickest first; all of them where they are of one."""
        ends = [own.max() for own in modes(self.lengths["step_ns"].to_numpy())]
        rest, kinds = self.lengths, []
        for end in ends[:-1]:
            kinds.append(rest.filter(pl.col("step_ns") <= end))
            rest = rest.filter(pl.col("step_ns") > end)
        return [*kinds, rest]

    @property
    def of_kinds(self) -> str:
        """Number and median of the steps of each kind; nothing if all are of one."""
        texts = [f"{own.height:,} of {duration(_median(own))}" for own in self.kinds]
        return f"{', '.join(texts[:-1])} and {texts[-1]}" if len(texts) > 1 else ""

    @property
    def typical(self) -> tuple[int | None, str]:
        """The median step, and what it is called: of several kinds that which takes most time."""
        if len(self.kinds) == 1:
            return step_detail.median_step(self.lengths), "median step"
        most = max(self.kinds, key=lambda own: own["step_ns"].sum())
        text = f"typical step (of {most.height:,} of {duration(_median(most))})"
        return step_detail.median_step(most), text

    @property
    def chosen(self) -> dict[str, int | None]:
        """The steps that are shown, by what they are; one without a number is the whole run."""
        if self.lengths.is_empty():
            return {"Whole run": None}
        typical = [(step_detail.median_step(own), own) for own in self.kinds]
        named = {f"Typical of {own.height:,} steps": step for step, own in typical}
        if len(typical) == 1:
            named = {"Median step": typical[0][0]}
        ordered = self.lengths.sort("step_ns", "iteration", descending=[True, False])["iteration"]
        last = {"Slowest step": 0, "p95 step": round(0.05 * (len(ordered) - 1)), "Fastest step": -1}
        named |= {what: ordered[place] for what, place in last.items()}
        by_step = {step: what for what, step in reversed(named.items())}
        if len(by_step) == 1:
            return {f"Step {step}": step for step in by_step}
        return {f"{what} ({step})": step for step, what in reversed(by_step.items())}

    @property
    def described(self) -> str:
        """Return a description of the recording, in one line."""
        facts = self.run.summary()
        gpus = int(facts.get("devices") or 0)
        parts = [
            f"{count(gpus, 'GPU')} ({facts['gpus']})" if facts.get("gpus") else count(gpus, "GPU"),
            count(int(facts.get("ops") or 0), "op"),
            count(int(facts.get("iterations") or 0), "step"),
        ]
        return _SEPARATOR.join(parts)


def _median(lengths: pl.DataFrame) -> float:
    return float(lengths["step_ns"].median() or 0)  # type: ignore[arg-type]


class Section(NamedTuple):
    """A part of the report.

    Parameters
    ----------
    key
        Its place in the page: what comes after ``#``.
    title
        Its heading.
    question
        What it answers.
    fill
        Returns what it says of a subject, or None where it does not concern it. Where it raises
        that data are missing, the section says so.
    """

    key: str
    title: str
    question: str
    fill: Callable[[Subject], Markup | None]
