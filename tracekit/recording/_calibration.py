"""Measure how much recording slows a program down: short runs, in turn with and without nsys."""

from __future__ import annotations

import itertools
import os
import shlex
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tracekit.annotation import step_time_variables
from tracekit.errors import ProgramError, RecordingError
from tracekit.recording import _stopwatch
from tracekit.recording._perform import perform, run
from tracekit.recording._plan import Plan

PAIRS = 6
"""Number of pairs: the median ratio lies between their least and largest one in 31 of 32 cases, for
any noise."""
_WIDEST = 1.25
"""Largest ratio of the ends of a range that still is informative."""
_FEWEST_STEPS = 6
_STEPS = "steps"
_NS_PER_MS = 1e6


@dataclass(frozen=True)
class _Timing:
    """Seconds that a program took: in total, and per step if known."""

    whole_ns: float
    step_ns: float | None


@dataclass(frozen=True)
class Cost:
    """Slowdown of a program by recording it."""

    ratios: tuple[float, ...]
    """For each pair of runs, the time with nsys divided by the time without."""
    alone_ns: float
    """Median time without nsys, ns."""
    has_steps: bool
    """Whether the times are of training steps; otherwise of the whole program."""

    def __str__(self) -> str:
        """Return the cost in words: a range, or that it cannot be determined."""
        low, high = min(self.ratios), max(self.ratios)
        noun = "steps" if self.has_steps else "the whole program"
        makes = f"makes {noun} {low:.2f} to {high:.2f} times as long"
        if high > _WIDEST * low:
            sentence = (
                f"the cost of recording cannot be measured here: it {makes}; take longer runs"
            )
        elif low <= 1 <= high:
            sentence = f"recording {makes}, which may be no cost at all"
        else:
            sentence = f"recording {makes}"
        alone = f"{self.alone_ns / _NS_PER_MS:,.2f} ms without"
        if not self.has_steps:
            alone += f"; steps are unknown: no optimizer of PyTorch makes {_FEWEST_STEPS} or more"
        return f"{sentence}\n({len(self.ratios)} pairs of runs, without and with nsys; {alone})"


def in_turn(times: int) -> list[bool]:
    """Return the order of `times` pairs of runs of two kinds, A B B A A B etc.; true means B.

    With an even number of pairs, the effect of a steady drift cancels out.
    """
    return [is_second for pair in range(times) for is_second in (pair % 2 == 1, pair % 2 == 0)]


def calibrate(plan: Plan, *, wait: str = "work", started: Callable[[int, int], None]) -> Cost:
    """Measure the cost of recording, by alternating runs with and without nsys.

    No report is kept. A first run without nsys, which may read its files from a slow disk, is not
    counted. The order within pairs changes, so that a steady slowdown cancels out.

    Parameters
    ----------
    plan
        Plan of the recording.
    wait
        Which processes to wait for after the program's end; see `perform`.
    started
        Called with the number of each run, and with the total.

    Raises
    ------
    ProgramError
        If the program fails.
    RecordingError
        If the program cannot be recorded.
    """
    order = [False, *in_turn(PAIRS)]
    timings: dict[bool, list[_Timing]] = {False: [], True: []}
    with tempfile.TemporaryDirectory(prefix="tracekit-", ignore_cleanup_errors=True) as name:
        for number, is_recorded in enumerate(order):
            started(number + 1, len(order))
            folder = Path(name) / str(number)
            (folder / _STEPS).mkdir(parents=True)
            timings[is_recorded].append(_time(plan, folder, wait, is_recorded=is_recorded))
    return _cost(timings[False][1:], timings[True])


def _time(plan: Plan, folder: Path, wait: str, *, is_recorded: bool) -> _Timing:
    """Run a program once, with nsys if `is_recorded`, and return its times."""
    timed, program = _timed(plan, folder), shlex.join(plan.launch.program)
    if is_recorded:
        perform(timed, wait=wait)
    else:
        launch, variables = timed.launch, step_time_variables(str(folder / _STEPS), os.environ)
        command = (*launch.before, *launch.launcher, *timed.recorded)
        if code := run(command, variables, len(timed.recorded), wait, is_launched=True):
            raise ProgramError(f"{program} ended with code {code} without nsys", None, code)
    durations = [float(path.read_text()) for path in folder.glob(f"*{_stopwatch.WHOLE}")]
    if not durations:
        hint = "where it runs on several machines, TMPDIR has to be a folder that all of them see"
        raise RecordingError(f"{program} left no times in {folder}", hint)
    periods = [_period(path.read_text()) for path in (folder / _STEPS).iterdir()]
    steps = [each for each in periods if each is not None]
    return _Timing(max(durations), statistics.median(steps) if steps else None)


def _timed(plan: Plan, folder: Path) -> Plan:
    """Return a plan, with files in `folder`, that also times the program and its steps."""
    watch = (sys.executable, "-I", "-S", _stopwatch.__file__, str(folder))
    at = plan.launch.local_rank_at
    launch = replace(
        plan.launch,
        program=(*watch, *plan.launch.program),
        local_rank_at=None if at is None else at + len(watch),
    )
    variables = step_time_variables(str(folder / _STEPS), {**os.environ, **plan.variables})
    variables = {**plan.variables, **variables}
    return replace(plan, launch=launch, folder=folder / "report", variables=variables)


def _period(lines: str) -> float | None:
    """Return the median time between steps of the first optimizer in `lines`, ns.

    None if there are too few steps.
    """
    steps = [line.split() for line in lines.splitlines()]
    times = [int(at) for at, optimizer in steps if optimizer == steps[0][1]]
    if len(times) < _FEWEST_STEPS:
        return None
    return statistics.median(b - a for a, b in itertools.pairwise(times))


def _cost(alone: Sequence[_Timing], recorded: Sequence[_Timing]) -> Cost:
    """Compute the slowdown from pairs of runs, `alone` and with nsys (`recorded`).

    It is per step if all runs have step times, else of the whole program.
    """
    known = [
        (one.step_ns, other.step_ns)
        for one, other in zip(alone, recorded, strict=True)
        if one.step_ns and other.step_ns
    ]
    has_steps = len(known) == len(alone)
    totals = [(one.whole_ns, other.whole_ns) for one, other in zip(alone, recorded, strict=True)]
    pairs = known if has_steps else totals
    ratios = tuple(with_nsys / without for without, with_nsys in pairs)
    return Cost(ratios, statistics.median(without for without, _ in pairs), has_steps)
