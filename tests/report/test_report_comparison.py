"""The page of a comparison: its first sentence, and bars with intervals and verdicts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from tracekit.present import MINUS
from tracekit.present.pages import frame_table
from tracekit.report._comparison import _carried, _change, _change_told, _kinds
from tracekit.report._svg_charts import Piece

NONE = pl.DataFrame(schema={"side": pl.String, "iteration": pl.Int64})
STEP: dict[str, Any] = {
    "a_ns": 10e6, "b_ns": 8e6, "delta_ns": -2e6, "low_ns": -3e6, "high_ns": -1e6,
    "verdict": "faster", "shift_ns": -2e6, "shift_low_ns": -3e6, "shift_high_ns": -1e6,
    "shift_verdict": "faster",
}  # fmt: skip
UNSURE = {**STEP, "low_ns": -5e6, "high_ns": 1e6, "verdict": "no difference shown"}


@pytest.mark.parametrize(
    ("step", "odd", "said"),
    [(STEP, 0, ("A step of B takes 8.000 ms in place of 10.000 ms in the mean, 2.000 ms less "
      "(20.0 %); the recordings show it (95 % interval -3.000 ms to -1.000 ms).")),
     (UNSURE, 1, ("A typical step of B takes 2.000 ms less than one of A; the recordings show it "
      "(95 % interval -3.000 ms to -1.000 ms). The mean of all steps, 8.000 ms in place of "
      "10.000 ms, shows no difference; of its steps 1 are far off the others.")),
     ({**UNSURE, "shift_verdict": None}, 0, ("No difference is shown: a step of B takes 8.000 ms "
      "in place of 10.000 ms in the mean (95 % interval -5.000 ms to +1.000 ms).")),
     ({**UNSURE, "verdict": "unknown", "shift_verdict": None, "reason": "steps drift"}, 0,
      ("Whether B is faster is unknown (steps drift): its step takes 8.000 ms in place of "
      "10.000 ms in the mean.")),
     ({**STEP, "verdict": None, "shift_verdict": None}, 0,
      "A step of B takes 8.000 ms in place of 10.000 ms in the mean, without a verdict."),
     ({**STEP, "delta_ns": 0.0, "b_ns": 10e6}, 0, ("A step of B takes as long as one of A: "
      "10.000 ms."))],
)  # fmt: skip
def test_the_first_sentence_says_no_more_than_is_shown(
    step: dict[str, Any], odd: int, said: str
) -> None:
    steps = pl.DataFrame({"side": ["B"] * odd, "iteration": [7] * odd}, NONE.schema)
    assert _change_told(step, steps).replace(MINUS, "-") == said


def test_the_part_that_carries_a_change_is_named_and_the_one_against_it() -> None:
    parts = pl.DataFrame({
        "part": ["FP", "BP", "IO", "between_steps"], "delta_ns": [-1e6, -3e6, 2e6, 0.5e6],
        "verdict": ["faster", "faster", "no difference shown", "slower"],
    })  # fmt: skip
    step = {"delta_ns": -1.5e6, "verdict": "faster", "shift_verdict": None}
    (said,) = _carried(parts, step)
    assert said.replace(MINUS, "-") == (
        "The change of the mean is carried by backward propagation, BP (-3.000 ms); the other way "
        "went input, IO (+2.000 ms, no difference shown)."
    )
    assert _carried(parts, {**step, "delta_ns": 0.0}) == []
    assert _carried(parts, {**step, "verdict": "no difference shown"}) == []
    # What is not shown carries nothing; it is named all the same where a typical step changed.
    (said,) = _carried(
        parts.with_columns(verdict=pl.lit("unknown")),
        {**step, "verdict": "no difference shown", "shift_verdict": "faster"},
    )
    assert said.replace(MINUS, "-").startswith(
        "The change of the mean is mostly that of backward propagation, BP (-3.000 ms, unknown); "
    )


def test_kinds_of_steps_stand_beside_their_mean() -> None:
    sides: Any = {"A": SimpleNamespace(of_kinds="31 of 132.29 ms and 28 of 1.410 s"),
                  "B": SimpleNamespace(of_kinds="")}  # fmt: skip
    assert _kinds(sides) == [
        "Steps of A are of several kinds: 31 of 132.29 ms and 28 of 1.410 s (medians)."
    ]


def test_a_bar_has_its_interval_and_its_verdict() -> None:
    row = {"part": "BP", "delta_ns": -2e6, "low_ns": -4e6, "high_ns": 1e6, "verdict": "unknown"}
    bar = _change(row, 4e6)
    own, whisker = bar.tracks[0].pieces
    assert own == Piece(25.0, 25.0, "better", f"BP: {MINUS}2.000 ms, unknown")
    assert (whisker.left, whisker.width, whisker.look) == (0.0, 62.5, "whisker")
    assert bar.amount == f"{MINUS}2.000 ms, unknown"
    assert len(_change({**row, "low_ns": None, "high_ns": None}, 4e6).tracks[0].pieces) == 1


def test_columns_that_tell_most_come_before_the_edge_of_a_page() -> None:
    names = [f"a kernel of which the name is rather long, number {each}" for each in range(3)]
    told = (
        "a_ns", "b_ns", "delta_ns", "low_ns", "high_ns", "p_value", "ratio", "a_count", "b_count",
        "a_outside_steps_ns", "b_outside_steps_ns", "a_outside_steps_count",
        "b_outside_steps_count",
    )  # fmt: skip
    numbers = {name: [float(place), 2.0, 3.0] for place, name in enumerate(told)}
    rows = pl.DataFrame({"name": names, **numbers, "verdict": ["faster"] * 3})
    page = str(frame_table(rows, "kernels", "Kernels"))
    order = [part.partition('"')[0] for part in page.split('data-name="')[1:]]
    assert set(order) == set(rows.columns)
    assert order.index("verdict") < 10
    assert order.index("b_outside_steps_count") > order.index("verdict")
