"""Processes that number the same steps differently."""

from __future__ import annotations

import pytest
from step_recordings import write_recording

import tracekit

LENGTHS_US = [900.0, 400.0, 500.0, 450.0, 480.0, 460.0]


@pytest.fixture(scope="module", params=[0, 100], ids=["alike", "apart"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tracekit.Run:
    folder = tmp_path_factory.mktemp("numbering")
    files = [
        write_recording(
            folder / f"{rank}.sqlite", LENGTHS_US, first=rank * request.param, update_us=20 + rank
        )
        for rank in range(2)
    ]
    return tracekit.ingest(files, name="two", store=folder / "store")[0]


def test_steps_count_once(run: tracekit.Run) -> None:
    number = len(LENGTHS_US)
    assert run.summary()["iterations"] == number
    assert run.breakdown.answer().meta["iterations"] == number


def test_a_table_by_step_says_that_a_step_has_several_rows(run: tracekit.Run) -> None:
    is_apart = run.trace.read("iterations")["iteration"].max() > 100
    for answer in (run.breakdown.answer(by="iteration"), run.idle.answer(by="iteration")):
        assert answer.meta.get("numbered_apart", False) is is_apart
    notes = tracekit.present.notes(answer.meta)
    assert any("number their steps differently" in note for note in notes) is is_apart


def test_findings_are_per_step(run: tracekit.Run) -> None:
    answer = run.diagnose.answer(top=None)
    assert answer.meta["steps"] == tracekit.study([run])["iterations"].item() == len(LENGTHS_US) - 2
    assert "no steps are known" not in answer.rows["win_unknown"].to_list()
