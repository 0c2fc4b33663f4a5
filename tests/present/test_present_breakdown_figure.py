from __future__ import annotations

from pathlib import Path

import pytest

import tracekit

SAMPLES = Path(__file__).parents[2] / "sample_traces"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tracekit.Run:
    store = tmp_path_factory.mktemp("figures") / "store"
    return tracekit.ingest(SAMPLES / "ddp_4gpu.sqlite", name="ddp", store=store)[0]


def test_bars_of_a_gpu_are_its_exposed_and_hidden_times(run: tracekit.Run) -> None:
    answer = run.breakdown.answer(by="device,stage")
    figure = answer.figure()
    drawn = {
        (trace.name, gpu): length
        for trace in figure.data
        for gpu, length in zip(trace.y, trace.x, strict=True)
    }
    for row in answer.rows.iter_rows(named=True):
        for column, ending in (("exposed_ns", ""), ("overlap_ns", " hidden")):
            told = drawn.pop((f"{row['stage']}{ending}", f"GPU {row['device']}"), 0)
            assert told == pytest.approx(row[column] / 1e6)
    assert drawn == {}
    assert figure.layout.yaxis.categoryarray == ("GPU 3", "GPU 2", "GPU 1", "GPU 0")


def test_a_bar_by_stage_ends_with_idle_time(run: tracekit.Run) -> None:
    answer = run.breakdown.answer()
    figure = answer.figure()
    solid = {trace.name: trace.x[0] for trace in figure.data if "hidden" not in trace.name}
    assert solid["idle"] == pytest.approx(answer.meta["idle_ns"] / 1e6)
    assert sum(solid.values()) == pytest.approx(answer.meta["window_ns"] / 1e6)


def test_steps_are_drawn_in_order(run: tracekit.Run) -> None:
    labels = run.breakdown.answer(by="iteration").figure().data[0].y
    assert labels[:2] == ("step 0", "step 1")


def test_kernels_have_labels_that_no_two_share(run: tracekit.Run) -> None:
    answer = run.breakdown.answer(by="kernel")
    (bars,) = answer.figure().data
    assert len(set(bars.y)) == len(bars.y) == min(answer.rows.height, 40)
    assert list(bars.x) == sorted(bars.x, reverse=True)


@pytest.mark.parametrize("by", ["kind", "range", "stream", "rank", "stage,stream", "device,kind"])
def test_every_breakdown_can_be_drawn(run: tracekit.Run, by: str) -> None:
    answer = run.breakdown.answer(by=by)
    assert answer.figure().data
