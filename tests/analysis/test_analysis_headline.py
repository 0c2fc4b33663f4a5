"""What the first line of a comparison says: outliers with their cause, one run, nothing much."""

from __future__ import annotations

from textwrap import wrap

import polars as pl
import pytest
from compared_traces import compare
from trace_builder import TraceBuilder

from tracekit.model import Trace

US = 1_000
STEP = 2_000 * US


def _run(
    forward: list[int],
    *,
    collective: dict[int, int] | None = None,
    late: dict[int, int] | None = None,
    tested: dict[int, int] | None = None,
) -> Trace:
    """Steps of a forward pass and an all-reduce; `late`, how much later a step's kernels begin.

    `tested` is how long evaluation takes after a step.
    """
    b, at = TraceBuilder(), 0
    for number, length in enumerate(forward):
        wait, exchange = (late or {}).get(number, 0), (collective or {}).get(number, 100)
        b.iteration(number, at, at + 200 * US)
        begin = at + wait * US
        b.op("first", at=at, start=at, end=at + US, stage="FP")
        b.op("fw", at=at + 1, start=begin + US, end=begin + length * US, stage="FP")
        begin += length * US
        b.op("nccl", at=at + 2, start=begin, end=begin + exchange * US, kind="collective",
             collective="all_reduce", stage="WU")  # fmt: skip
        at = begin + exchange * US
        if metric := (tested or {}).get(number):
            b.op("metric", at=at, start=at, end=at + metric * US, stage="ME")
            at += metric * US
    return b.trace()


STEADY = [500, 502, 498, 501, 499, 500, 501, 499]
QUICK = [length - 20 for length in STEADY]


def test_an_outlier_is_named_with_its_cause() -> None:
    found = compare(_run(STEADY), _run(QUICK, collective={5: 39_900}))
    told = found.meta["headline"]
    assert "slower by" in told
    assert "without step 5 of B (an all_reduce of 39.90 ms) B is faster by 20.00 us" in told
    odd = found.tables["outliers"].select("side", "iteration", "cause")
    assert odd.rows() == [("B", 5, "an all_reduce of 39.90 ms")]
    other = compare(_run(STEADY, late={5: 7_000}), _run(QUICK)).meta["headline"]
    assert "without step 5 of A (7.00 ms more idle) B is faster by 20.00 us" in other
    longer = compare(_run(STEADY), _run([*QUICK[:5], 5_000, *QUICK[6:]])).meta["headline"]
    tested = {1: 5_000, 5: 6_000}
    causes = compare(_run(STEADY), _run(QUICK, tested=tested)).tables["outliers"]["cause"]
    assert causes.to_list() == ["metric of 5.00 ms", "metric of 6.00 ms"]
    assert "without step 5 of B (fw of 5.00 ms) B is faster by 20.00 us" in longer


def test_the_first_line_takes_two_lines_of_120_columns() -> None:
    """Four stalls hide that a kernel is quicker, an exchange slower, and all steps quicker."""
    stalls, exchange = {2: 9_000, 4: 7_000, 5: 30_000, 17: 8_000}, dict.fromkeys(range(32), 250)
    a, b = STEADY * 4, [length - 220 for length in STEADY * 4]
    found = compare(_run(a), _run(b, collective=exchange, late=stalls))
    told = found.meta["headline"]
    assert len(wrap(told, 118)) <= 2
    assert "not shown, 95 % interval -" in told
    assert told.endswith(
        "without step 5 of B (30.00 ms more idle) and 3 more B is faster by 69.96 us"
    )
    assert found.meta["step"]["shift_verdict"] == "faster"
    assert "median step" not in told
    other = compare(_run(a), _run(b, collective=exchange, late=stalls), metric="median")
    assert "; median step -70.00 us (" in other.meta["headline"]
    assert "without" not in other.meta["headline"]


def test_idle_time_is_said_to_lie_in_steps_only_where_that_is_known() -> None:
    a, b = _run(STEADY), _run(STEADY, late=dict.fromkeys(range(8), 300))
    assert "carried by idle time inside steps (+199" in compare(a, b).meta["headline"]
    found = b.read("iterations").with_columns(source=pl.lit("structure"))
    of_work = b.with_tables({"iterations": found})
    assert "carried by idle time (+300.00 us)" in compare(a, of_work).meta["headline"]


def test_without_outliers_nothing_is_said_of_them() -> None:
    assert "without" not in compare(_run(STEADY), _run(QUICK)).meta["headline"]


def test_outliers_that_change_no_verdict_are_left_to_the_notes() -> None:
    noisy = [500, 560, 440, 530, 470, 500, 545, 455]
    told = compare(_run(noisy), _run([length + 2 for length in noisy], collective={5: 39_900}))
    assert "without" not in told.meta["headline"]
    [note] = [each for each in told.meta["notes"] if each.startswith("step 5 of B: ")]
    assert note.endswith("times the median (an all_reduce of 39.90 ms)")


def test_of_a_short_step_what_is_shorter_is_named() -> None:
    told = compare(_run(STEADY), _run([*QUICK[:5], 100, *QUICK[6:]]))
    assert "step 5 of B: 0.35 times the median (379.50 us less of FP)" in told.meta["notes"]


def test_what_is_not_shown_to_change_carries_nothing() -> None:
    labels = ({"batch": "16"}, {"batch": "32"})
    found = compare(_run(STEADY), _run(QUICK), labels=labels)
    assert "no verdict; most of it is FP (-20.00 us)" in found.meta["headline"]
    assert "; carried by FP (-20.00 us)" in compare(_run(STEADY), _run(QUICK)).meta["headline"]


def test_what_changed_as_much_the_other_way_is_named() -> None:
    b = _run([length + 90 for length in STEADY], collective=dict.fromkeys(range(8), 50))
    line = compare(_run(STEADY), b).meta["headline"]
    assert line.endswith("carried by FP (+90.00 us), against WU (-50.00 us)")


def test_a_run_beside_itself_is_one_run() -> None:
    run = _run(STEADY)
    assert compare(run, run, one_run=True).meta["headline"].startswith("A and B are one run; step:")


@pytest.mark.parametrize(
    ("more", "least", "said"),
    [(0.1, None, "no difference that matters (within 0.1 % of the step)"), (5, None, "not shown"),
     (5, 5.0, "no difference that matters (within 5 % of the step)")],
)  # fmt: skip
def test_only_what_lies_within_the_least_change_does_not_matter(
    more: float, least: float | None, said: str
) -> None:
    """A step is 600 us: 0.1 % of it are 0.6 us."""
    a = [500, 500.1, 499.9, 500, 500.1, 499.9, 500.1, 499.9]
    b = [499.9, 500.1, 500.1, 500, 499.9, 500, 500.1, 500]
    spread = 1 if more < 1 else 60
    run = [[500 + spread * (length - 500) for length in side] for side in (a, b)]
    found = compare(*(_run([int(x * 10) / 10 for x in side]) for side in run), least=least)  # type: ignore[misc]
    assert said in found.meta["headline"], found.meta["headline"]
