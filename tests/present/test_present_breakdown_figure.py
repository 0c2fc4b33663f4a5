from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from trace_builder import TraceBuilder

import tracekit
from tracekit import analysis as library
from tracekit.present import KIND_COLOURS, Heading
from tracekit.present._stage_figures import breakdown_figure

SAMPLES = Path(__file__).parents[2] / "sample_traces"


@pytest.fixture(scope="module")
def run(samples_read_once: None, tmp_path_factory: pytest.TempPathFactory) -> tracekit.Run:
    store = tmp_path_factory.mktemp("figures") / "store"
    return tracekit.ingest(SAMPLES / "ddp_4gpu.sqlite", name="ddp", store=store)[0]


def test_bars_of_a_gpu_are_its_exposed_and_hidden_times(run: tracekit.Run) -> None:
    answer = run.breakdown.answer(by="device,stage")
    figure = answer.figure()
    names = dict(zip(figure.layout.yaxis.tickvals, figure.layout.yaxis.ticktext, strict=True))
    drawn = {
        (trace.name, names[place]): length
        for trace in figure.data
        for place, length in zip(trace.y, trace.x, strict=True)
    }
    for row in answer.rows.iter_rows(named=True):
        for column, ending in (("exposed_ns", ""), ("overlap_ns", " hidden")):
            told = drawn.pop((f"{row['stage']}{ending}", f"GPU {row['device']}"), 0)
            assert told == pytest.approx(row[column] / 1e6)
    assert drawn == {}
    assert list(names.values()) == ["GPU 0", "GPU 1", "GPU 2", "GPU 3"]
    low, high = figure.layout.yaxis.range
    assert low > high  # the first is on top


def test_a_bar_by_stage_ends_with_idle_time(run: tracekit.Run) -> None:
    answer = run.breakdown.answer()
    figure = answer.figure()
    solid = {trace.name: trace.x[0] for trace in figure.data if "hidden" not in trace.name}
    assert solid["idle"] == pytest.approx(answer.meta["idle_ns"] / 1e6)
    assert sum(solid.values()) == pytest.approx(answer.meta["window_ns"] / 1e6)


def test_steps_are_drawn_in_order(run: tracekit.Run) -> None:
    figure = run.breakdown.answer(by="iteration").figure()
    assert figure.data[0].x[:2] == (0, 1)
    assert figure.layout.xaxis.ticktext == (*map(str, range(6)),)
    assert any("outside of steps" in each.text for each in figure.layout.annotations)


def test_what_is_not_zero_is_not_written_as_zero() -> None:
    rows = pl.DataFrame({"range": ["a", "b", "c"], "busy_ns": [668 * 10**6, 400_000, 0]})
    figure = breakdown_figure(rows, {}, heading=Heading("", ""))
    assert [each.text for each in figure.layout.annotations][-3:] == ["668", "&lt;1", "0"]


def test_a_step_that_waits_is_a_longer_bar() -> None:
    """Of busy time alone, steps of 100 and of 1,000 ns were equal bars."""
    builder = TraceBuilder()
    for number, (start, end) in enumerate([(0, 100), (100, 1_100), (1_100, 1_200)]):
        builder.range(start, end, f"step {number}")
        builder.op("gemm", at=start + 1, start=start + 10, end=start + 70)
    answer = library.breakdown(builder.attributed(), "iteration")
    figure = breakdown_figure(answer.rows, answer.meta, heading=Heading("", ""))
    sums = [0.0, 0.0, 0.0]
    for bars in figure.data:
        for place, length in zip(bars.x, bars.y, strict=True):
            sums[int(place)] += 1_000 * length  # from us
    assert sums == pytest.approx(answer.rows["window_ns"].to_list())
    assert max(sums) > 5 * min(sums)


def test_kernels_have_labels_that_no_two_share(run: tracekit.Run) -> None:
    answer = run.breakdown.answer(by="kernel")
    figure = answer.figure()
    lengths = {place: length for bars in figure.data
               for place, length in zip(bars.y, bars.x, strict=True)}  # fmt: skip
    assert len(lengths) == sum(len(bars.y) for bars in figure.data) == min(answer.rows.height, 40)
    assert len(set(figure.layout.yaxis.ticktext)) == len(lengths)
    ordered = [lengths[place] for place in sorted(lengths)]
    assert ordered == sorted(ordered, reverse=True)


def test_colours_of_kernels_have_a_legend_and_their_bars_one_length(run: tracekit.Run) -> None:
    figure = run.breakdown.answer(by="kernel").figure()
    assert {bars.name: bars.marker.color for bars in figure.data} == {
        kind: KIND_COLOURS[kind] for kind in ("compute", "collective", "h2d", "d2h", "memset")
    }
    assert all(bars.showlegend and bars.text is None for bars in figure.data)
    assert not any(bars.showlegend for bars in run.breakdown.answer(by="kind").figure().data)


@pytest.mark.parametrize("by", ["range", "range,stage", "range,device"])
def test_ranges_that_are_cut_alike_are_bars_of_their_own(by: str) -> None:
    builder, lengths = TraceBuilder(), {"one": 229, "two": 209}
    for place, (name, length) in enumerate(lengths.items()):
        start = 1000 * place
        builder.range(start, start + 500, f"{'a' * 60} {name} {'z' * 60}")
        builder.op("gemm", at=start + 1, start=start + 2, end=start + 2 + length)
    answer = library.breakdown(builder.attributed(), by)
    figure = breakdown_figure(answer.rows, answer.meta, heading=Heading("", ""))
    assert [list(bars.x) for bars in figure.data] == [[229, 209]]
    assert [list(bars.y) for bars in figure.data] == [[0, 1]]
    assert len(set(figure.layout.yaxis.ticktext)) == 2


@pytest.mark.parametrize("by", ["kind", "range", "stream", "rank", "stage,stream", "device,kind"])
def test_every_breakdown_can_be_drawn(run: tracekit.Run, by: str) -> None:
    answer = run.breakdown.answer(by=by)
    assert answer.figure().data


@pytest.mark.parametrize("by", ["range", "range,kernel"])
def test_bars_of_inclusive_ranges_have_their_names_alone(run: tracekit.Run, by: str) -> None:
    """Numbers of instances and launches were part of the labels; by kernel nothing was drawn."""
    answer = run.breakdown.answer(by=by, inclusive=True)
    figure = answer.figure()
    labels = [text for text in figure.layout.yaxis.ticktext if "iteration N" in text]
    assert labels
    assert not any("push_pop" in text or "24" in text for text in labels)
    measure = "busy_ns" if by == "range" else "total_ns"
    longest = answer.rows[measure].max()
    drawn = max(length for trace in figure.data for length in trace.x)
    assert drawn in (pytest.approx(longest / 1e6), pytest.approx(longest / 1e9))


def test_rows_without_layers_are_not_taken_for_no_work() -> None:
    rows = pl.DataFrame(schema={"layer": pl.String, "ops": pl.Int64, "busy_ns": pl.Int64})
    figure = breakdown_figure(rows, {}, heading=Heading("time by layer", ""))
    assert any("no layers are known" in each.text for each in figure.layout.annotations)
