"""Subject of a report (its runs), with cached answers, and the definition of a section."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import polars as pl
from markupsafe import Markup

from tracekit.analysis import step_detail
from tracekit.analysis.comparison import modes
from tracekit.analysis.step_sums import Cold, cold_of
from tracekit.model import Run
from tracekit.present import count, duration

if TYPE_CHECKING:
    from tracekit.analysis.communication import Traffic
    from tracekit.analysis.comparison import Comparison
    from tracekit.model import Answer

_SEPARATOR = " · "


class AskedRun(Run, Protocol):
    """Interface of the report to a run; `tracekit.Run` implements it."""

    breakdown: Any
    diagnose: Any
    idle: Any
    links: Any
    collectives: Any
    memory: Any
    info: Any

    def traffic(self) -> Traffic:
        """Return the traffic between the run's GPUs."""

    def summary(self) -> Mapping[str, Any]:
        """Return the run's summary: name -> number or word."""

    def of_steps(self, iterations: tuple[int, int] | None) -> AskedRun:
        """Return the run limited to steps, first and last included; None for all."""

    def require_memory(self, question: str, *, iterations: tuple[int, int] | None = None) -> None:
        """Raise an error if the question (command) needs more memory than the machine has free."""


class Library(Protocol):
    """What a report asks of `tracekit.Run` and `compare`: comparisons, study tables, run names."""

    version: str

    def study(self, runs: Sequence[AskedRun], /) -> Answer:
        """Return a table with the step times of runs, one row per run."""

    def compare(self, a: AskedRun, b: AskedRun, by: str, /) -> Comparison:
        """Return the comparison of run `b` with `a`, by the key `by` (such as ``stage``)."""

    def called(self, run: AskedRun, /) -> str:
        """Return the display name of a run."""


@dataclass(frozen=True)
class Subject:
    """Subject of a report: one run, a run and its base of comparison, or the runs of a study."""

    library: Library
    runs: tuple[AskedRun, ...]
    against: AskedRun | None = None

    @property
    def run(self) -> AskedRun:
        """The run that the report is about; for a study, its first run."""
        return self.runs[0]

    @cached_property
    def close(self) -> Close:
        """The steps of the run, in detail."""
        return Close(self.library, self.run)

    @property
    def title(self) -> str:
        """Heading of the report: names of the runs, or the size of the study."""
        called = self.library.called
        names = [called(run) for run in self.runs]
        if self.against is not None:
            return f"{called(self.against)} → {names[0]}"
        return names[0] if len(names) == 1 else f"Study of {count(len(names), 'run')}"

    @property
    def subtitle(self) -> str:
        """One line below the heading: description of the recordings, or a study's run names."""
        if len(self.runs) > 1:
            return ", ".join(run.name for run in self.runs)
        own = self.close.described
        if self.against is None:
            return own
        return f"base: {Close(self.library, self.against).described} — compared: {own}"


@dataclass(frozen=True)
class Close:
    """A run's steps in detail: their lengths, intervals on GPUs, and which steps to show."""

    library: Library
    run: AskedRun

    @cached_property
    def facts(self) -> dict[str, Any]:
        """The run's row in a study table: mean times of steps without cold ones, and of parts."""
        return self.library.study([self.run]).rows.row(0, named=True)

    @cached_property
    def spans(self) -> pl.DataFrame:
        """Intervals of steps on GPUs; see `tracekit.analysis.step_detail.step_spans`."""
        return step_detail.step_spans(self.run.trace)

    @property
    def cold(self) -> Cold:
        """The cold (slow first) steps, which all values per step leave out."""
        return cold_of(self.run.trace)

    @cached_property
    def usual(self) -> pl.DataFrame:
        """The rows of `spans` (steps on GPUs) whose steps are not cold."""
        is_usual = pl.col("iteration") > self.cold.last
        return self.spans.filter(is_usual.fill_null(value=True))

    @cached_property
    def lengths(self) -> pl.DataFrame:
        """Lengths of steps, ns; those of host iterations if no GPU was used."""
        if not self.spans.is_empty():
            return step_detail.step_lengths(self.spans)
        length = (pl.col("end") - pl.col("start")).mean()
        steps = self.run.trace.read("iterations").group_by("iteration")
        return steps.agg(step_ns=length).sort("iteration")

    @cached_property
    def traffic(self) -> Traffic:
        """Traffic between the run's GPUs."""
        return self.run.traffic()

    @cached_property
    def work(self) -> step_detail.StepWork:
        """Time of ops in steps by kind, and exposed communication: `step_detail.work_in_steps`."""
        return step_detail.work_in_steps(self.run.trace, self.usual)

    @cached_property
    def idle(self) -> Answer:
        """The answer of `idle`, grouped by cause."""
        answer: Answer = self.run.idle.answer(by="cause")
        return answer

    @cached_property
    def info(self) -> pl.DataFrame:
        """The answer of `info`: what the run's data can tell, and how to record what is missing."""
        rows: pl.DataFrame = self.run.info.answer().rows
        return rows

    @cached_property
    def kinds(self) -> list[pl.DataFrame]:
        """The steps in groups of similar length (modes), the shortest first; usually one group."""
        ends = [own.max() for own in modes(self.lengths["step_ns"].to_numpy())]
        rest, kinds = self.lengths, []
        for end in ends[:-1]:
            kinds.append(rest.filter(pl.col("step_ns") <= end))
            rest = rest.filter(pl.col("step_ns") > end)
        return [*kinds, rest]

    @property
    def of_kinds(self) -> str:
        """Number and median length of the steps in each group of `kinds`; empty for one group."""
        texts = [f"{own.height:,} of {duration(_median(own))}" for own in self.kinds]
        return f"{', '.join(texts[:-1])} and {texts[-1]}" if len(texts) > 1 else ""

    @property
    def typical(self) -> tuple[int | None, str]:
        """Number of the run's typical step, and a text that names it.

        The typical step is the median step. If step lengths have several modes, it is the median
        step of the mode with the largest total time.
        """
        if len(self.kinds) == 1:
            return step_detail.median_step(self.lengths), "median step"
        most = max(self.kinds, key=lambda own: own["step_ns"].sum())
        text = f"typical step (of {most.height:,} of {duration(_median(most))})"
        return step_detail.median_step(most), text

    @property
    def chosen(self) -> dict[str, int | None]:
        """The steps to show: description -> number; without steps ``Whole run`` -> None."""
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
        """Return one line that describes the recording."""
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
    """A section of the report."""

    key: str
    """Id of the section: the part of the address after ``#``."""
    title: str
    """Heading."""
    question: str
    """Question that the section answers."""
    fill: Callable[[Subject], Markup | None]
    """Function of the subject that returns the content, or None if the section does not apply. If
    it raises an error for missing data, the section shows the error."""
