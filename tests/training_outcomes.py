"""What tracekit tells of simulated programs, held against what is true of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from trace_builder import TraceBuilder, default_rules
from training_kinds import simulate
from training_sim import Simulated

from tracekit.attribution import attribute
from tracekit.model import Trace

TOLERATED = 0.01
"""Share of the time of ops that may have a wrong stage without a word."""
_NO_WORD = (
    "ranges do not name all stages",
    "no range names a stage",
    "the recording of GPU work is cut",
    "the recording of GPU work may be cut",
    "iterations have",
    "steps are counted",
)
"""How findings begin, or what they hold, that say nothing against stages."""


@dataclass(frozen=True)
class Outcome:
    """What is told of one program: shares of the time of ops whose stage is known."""

    wrong: float
    unknown: float
    said: bool
    """Whether a contradiction, or a doubt of as much time, speaks against the stages."""
    steps: int
    steps_told: int
    steps_right: bool
    steps_said: bool
    words: tuple[str, ...]

    @property
    def silent(self) -> bool:
        """Whether more than a hundredth is wrong, and nothing says so."""
        return self.wrong > TOLERATED and not self.said

    @property
    def steps_silent(self) -> bool:
        """Whether steps are told wrong, and nothing says so."""
        return bool(self.steps_told) and not self.steps_right and not self.steps_said


def trace_of(simulated: Simulated) -> Trace:
    """Return what was recorded."""
    return builder_of(simulated).trace()


def builder_of(simulated: Simulated) -> TraceBuilder:
    """Return what was recorded, to which a test may add."""
    builder = TraceBuilder()
    builder.pids[0] = 1000  # so thread 0 is the one that the process began with
    threads = {thread: n for n, thread in enumerate(sorted({op["thread"] for op in simulated.ops}))}
    assert len(threads) <= 10, threads
    for op in simulated.ops:
        builder.op(
            op["name"], op["launch"], thread=threads[op["thread"]], start=op["start"],
            end=op["end"], kind=op["kind"], device=op["device"], stream=op["stream"], context=1,
            launch_size=op["size"], bytes=op["bytes"], collective=op.get("collective"),
        )  # fmt: skip
    for begin, end, name, thread in simulated.ranges:
        builder.range(begin, end, name, thread=threads[thread])
    return builder


def outcome_of(name: str, mode: str, seed: int = 1) -> Outcome:
    """Simulate a program, attribute it, and compare."""
    simulated = simulate(name, mode, seed)
    trace = attribute(trace_of(simulated), default_rules())
    ops = trace.read("ops").sort("correlation")
    stage = ops["stage"].cast(pl.String).to_list()
    spent = (ops["end"] - ops["start"]).to_numpy()
    known = np.array([bool(op["truth"]) for op in simulated.ops])
    unknown = np.array([each == "OTHER" for each in stage])
    right = np.array([each in op["truth"] for each, op in zip(stage, simulated.ops, strict=True)])
    total = spent[known].sum()
    wrong_ns = spent[known & ~right & ~unknown].sum()
    verdict = trace.read("verdicts").row(0, named=True)
    words = tuple(text for text in trace.warnings if not any(each in text for each in _NO_WORD))
    steps, told, agree = _steps(simulated, ops)
    return Outcome(
        wrong=float(wrong_ns / total),
        unknown=float(spent[known & unknown & ~right].sum() / total),
        said=bool(words) or (verdict["doubt_ns"] or 0) * bool(verdict["decides"]) >= wrong_ns > 0,
        steps=steps,
        steps_told=told,
        steps_right=agree,
        steps_said=bool(words),
        words=words,
    )


def _steps(simulated: Simulated, ops: pl.DataFrame) -> tuple[int, int, bool]:
    """Return how many steps there are, how many are told, and whether these are the same ones."""
    step = np.array([op["step"] for op in simulated.ops])
    found = ops["iteration"].fill_null(-1).to_numpy()
    passes = np.array(
        [bool(op["truth"]) and op["truth"] <= {"FP", "BP"} for op in simulated.ops]
    ) & (step >= 0)
    both = passes & (found >= 0)
    pairs = np.unique(np.stack([step[both], found[both]]), axis=1)
    true, told = np.unique(step[passes]).size, np.unique(found[found >= 0]).size
    mostly = both.sum() >= 0.98 * passes.sum()
    same = pairs.shape[1] == true == np.unique(found[both]).size and bool(mostly)
    finer = simulated.finer and pairs.shape[1] == np.unique(found[both]).size
    return true, told, same or finer
