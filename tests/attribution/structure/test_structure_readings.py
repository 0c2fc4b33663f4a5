"""What is taken to be a step, where several readings are right."""

from __future__ import annotations

from functools import cache

import polars as pl
import pytest
from training_kinds import simulate
from training_outcomes import trace_of

from tracekit.attribution import Rules, attribute
from tracekit.errors import RuleError
from tracekit.model import Trace


def _told(name: str, mode: str, step: str | None) -> Trace:
    return attribute(_made(name, mode), Rules.load(step=step))


@cache
def _made(name: str, mode: str) -> Trace:
    return trace_of(simulate(name, mode))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "mode", "counts"),
    [
        ("cnn", "one_thread", {"update": 12, "input": 12}),
        ("gan_fused", "one_thread", {"update": 22, "input": 11, "period": 11}),
        # Five critics, each with input.
        ("wgan5", "threads", {"update": 66, "input": 55, "period": 11}),
        # A line search is many updates.
        ("lbfgs", "threads", {"update": 64, "input": 13}),
    ],
)
def test_each_reading_counts_its_steps(name: str, mode: str, counts: dict[str, int]) -> None:
    untold = _told(name, mode, None)
    for step in ("update", "input", "period"):
        trace = _told(name, mode, step)
        [said] = trace.read("verdicts")["steps_by"]
        assert said in trace.warnings
        if step in counts:
            assert trace.read("iterations").height == counts[step]
            assert ("as asked" in said) == (len({*counts.values()}) == 1)
        else:
            assert trace.read("iterations").height == untold.read("iterations").height
            assert said.endswith(f"`--step {step}` finds none here")
        assert trace.read("ops")["stage"].equals(untold.read("ops")["stage"])


def test_an_answer_says_which_reading_it_took_where_others_differ() -> None:
    [said] = _told("wgan5", "threads", None).read("verdicts")["steps_by"]
    assert said == (
        "steps are counted so that updates that repeat together are a step; other steps result if"
        " an update ends a step (`--step update`), new input begins a step (`--step input`)"
    )
    assert _told("cnn", "threads", None).read("verdicts")["steps_by"].to_list() == [None]


def test_steps_that_ranges_name_stay_theirs_and_say_so() -> None:
    trace = _told("gan_fused", "ranges", "update")
    steps = trace.read("iterations").filter(pl.col("source") == "ranges")
    assert steps.height == trace.read("iterations").height == 11
    assert any(text.startswith("`--step` finds none") for text in trace.warnings)


def test_a_reading_that_there_is_not_is_refused() -> None:
    with pytest.raises(RuleError, match="unknown definition of a step 'epoch'"):
        Rules.load(step="epoch")
    assert Rules.load(step="input").canonical() != Rules.load().canonical()
