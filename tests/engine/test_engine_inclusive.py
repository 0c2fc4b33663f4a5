"""What ranges hold, those inside them included."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np
import polars as pl
import pytest
from effort import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from projections import projected_ranges
from trace_builder import TraceBuilder

from tracekit.analysis import breakdown
from tracekit.engine import range_paths
from tracekit.engine._range_paths import OUTSIDE
from tracekit.errors import UsageError
from tracekit.model import Trace

COLUMNS = [
    "range", "style", "depth", "instances", "launching", "host_ns", "ops", "projected_ns",
    "busy_ns", "self_busy_ns", "share",
]  # fmt: skip


def _step(builder: TraceBuilder, begin: int, number: int) -> None:
    """A step of 100 ns on the host. Its forward pass has two layers, of which one copies ahead."""
    builder.range(begin, begin + 100, f"step {number}")
    builder.range(begin + 10, begin + 60, "forward")
    builder.range(begin + 20, begin + 30, "conv")
    builder.range(begin + 40, begin + 50, "relu")
    builder.range(begin + 70, begin + 75, "log")
    builder.op("gemm", begin + 22, start=begin + 30, end=begin + 50)
    builder.op("copy", begin + 24, start=begin + 40, end=begin + 55, stream=8)
    builder.op("relu", begin + 42, start=begin + 50, end=begin + 60)
    builder.op("loss", begin + 55, start=begin + 65, end=begin + 70)
    builder.op("sgd", begin + 80, start=begin + 85, end=begin + 95)


@pytest.fixture(scope="module")
def training() -> Trace:
    builder = TraceBuilder()
    _step(builder, 0, 0)
    _step(builder, 100, 1)
    builder.op("late", 250, start=255, end=295)
    return builder.attributed()


def test_a_range_holds_what_those_inside_it_launch(training: Trace) -> None:
    table = breakdown(training, "range", inclusive=True).rows
    assert table.columns == COLUMNS
    # From 30 to 295 the window is 265 long. Per step, gemm and copy run for 25 together, copy and
    # relu for 5 at once, and the pass from 30 to 70 with 5 of nothing before its loss.
    assert table.drop("share", "style").rows() == [
        ("step N", 0, 2, 2, 200, 10, 130, 90, 20),
        ("step N > forward", 1, 2, 2, 100, 8, 80, 70, 10),
        ("step N > forward > conv", 2, 2, 2, 20, 4, 50, 50, 50),
        ("step N > forward > relu", 2, 2, 2, 20, 2, 20, 20, 20),
        ("step N > log", 1, 2, 0, 10, 0, 0, 0, 0),
        (OUTSIDE[2], None, None, None, None, 1, None, 40, 40),
    ]
    assert table["style"].to_list() == ["push_pop"] * 5 + [None]
    assert table["share"].to_list() == pytest.approx([x / 265 for x in (90, 70, 50, 20, 0, 40)])


KERNELS = [
    "range", "style", "depth", "name", "kind", "launching", "ops", "total_ns", "mean_ns", "min_ns",
    "max_ns",
]  # fmt: skip


def test_by_kernel_a_range_holds_the_kernels_of_those_inside_it(training: Trace) -> None:
    table = breakdown(training, "range,kernel", inclusive=True).rows
    assert table.columns == KERNELS
    assert table.drop("style", "kind", "mean_ns").rows() == [
        ("step N", 0, "gemm", 2, 2, 40, 20, 20),
        ("step N", 0, "copy", 2, 2, 30, 15, 15),
        ("step N", 0, "relu", 2, 2, 20, 10, 10),
        ("step N", 0, "sgd", 2, 2, 20, 10, 10),
        ("step N", 0, "loss", 2, 2, 10, 5, 5),
        ("step N > forward", 1, "gemm", 2, 2, 40, 20, 20),
        ("step N > forward", 1, "copy", 2, 2, 30, 15, 15),
        ("step N > forward", 1, "relu", 2, 2, 20, 10, 10),
        ("step N > forward", 1, "loss", 2, 2, 10, 5, 5),
        ("step N > forward > conv", 2, "gemm", 2, 2, 40, 20, 20),
        ("step N > forward > conv", 2, "copy", 2, 2, 30, 15, 15),
        ("step N > forward > relu", 2, "relu", 2, 2, 20, 10, 10),
        (OUTSIDE[2], None, "late", None, 1, 40, 40, 40),
    ]
    assert table["mean_ns"].to_list() == [20, 15, 10, 10, 5, 20, 15, 10, 5, 20, 15, 10, 40]
    shallow = breakdown(training, "kernel,range", depth=2).rows
    assert shallow.rows() == table.filter(pl.col("depth").fill_null(0) < 2).rows()


def test_by_kernel_iterations_that_are_skipped_are_in_no_number(training: Trace) -> None:
    table = breakdown(training, "range,kernel", inclusive=True, skip=1).rows
    assert table.filter(depth=2).select("range", "name", "launching", "ops", "total_ns").rows() == [
        ("step N > forward > conv", "gemm", 1, 1, 20),
        ("step N > forward > conv", "copy", 1, 1, 15),
        ("step N > forward > relu", "relu", 1, 1, 10),
    ]


def test_some_levels_are_listed_and_hold_what_is_deeper(training: Trace) -> None:
    whole = breakdown(training, "range", inclusive=True).rows
    answer = breakdown(training, "range", depth=2)
    table, meta = answer.rows, answer.meta
    assert table.rows() == whole.filter((pl.col("depth") < 2) | pl.col("depth").is_null()).rows()
    assert (meta["inclusive"], meta["depth"], meta["window_ns"]) == (True, 2, 265)


def test_iterations_that_are_skipped_are_in_no_number(training: Trace) -> None:
    table = breakdown(training, "range", inclusive=True, skip=1).rows
    # The second step is from 130, when its first op starts, to the end of all.
    assert table.drop("share", "style").rows() == [
        ("step N", 0, 1, 1, 100, 5, 65, 45, 10),
        ("step N > forward", 1, 1, 1, 50, 4, 40, 35, 5),
        ("step N > forward > conv", 2, 1, 1, 10, 2, 25, 25, 25),
        ("step N > forward > relu", 2, 1, 1, 10, 1, 10, 10, 10),
        ("step N > log", 1, 1, 0, 5, 0, 0, 0, 0),
    ]


def test_what_a_skipped_iteration_left_to_run_counts_where_it_runs(builder: TraceBuilder) -> None:
    for number in (0, 1):
        builder.range(100 * number, 100 * number + 100, f"step {number}")
        builder.range(100 * number + 10, 100 * number + 60, "forward")
        builder.op("gemm", 100 * number + 20, start=100 * number + 30, end=100 * number + 60)
    builder.op("slow", 55, start=60, end=140, stream=8)
    table = breakdown(builder.attributed(), "range", inclusive=True, skip=1).rows
    # The window is from 130 to 160. Of what the first step launched, 10 are left in it.
    assert table.drop("share", "style").rows() == [
        ("step N", 0, 1, 2, 100, 1, 40, 30, 0), ("step N > forward", 1, 1, 2, 50, 1, 40, 30, 30)
    ]  # fmt: skip
    # A kernel is listed, whole, where it starts.
    kernels = breakdown(builder.attributed(), "range,kernel", inclusive=True, skip=1).rows
    assert kernels.select("depth", "name", "ops", "total_ns").rows() == [
        (0, "gemm", 1, 30), (1, "gemm", 1, 30)
    ]  # fmt: skip


def test_a_start_end_range_that_was_skipped_is_listed_for_one_op_that_runs_later(
    builder: TraceBuilder,
) -> None:
    for number in (0, 1):
        builder.range(100 * number, 100 * number + 100, f"step {number}")
        builder.op("gemm", 100 * number + 20, start=100 * number + 30, end=100 * number + 60)
    builder.start_end(50, 58, "upload")
    builder.op("copy", 55, start=100, end=140, stream=8)
    table = breakdown(builder.attributed(), "range", inclusive=True, skip=1).rows
    assert table.filter(style="start_end").select(
        "range", "instances", "launching", "ops", "busy_ns"
    ).rows() == [("upload", 0, 1, 0, 10)]  # fmt: skip


def test_by_kernel_what_crosses_from_step_to_step_is_one_op(builder: TraceBuilder) -> None:
    for number in (0, 1, 2):
        builder.range(100 * number, 100 * number + 100, f"step {number}")
        builder.op("gemm", 100 * number + 20, start=100 * number + 30, end=100 * number + 60)
    builder.op("slow", 155, start=160, end=240, stream=8)
    table = breakdown(builder.attributed(), "range,kernel", inclusive=True, skip=1).rows
    assert table.select("range", "name", "ops", "total_ns").rows() == [
        ("step N", "slow", 1, 80), ("step N", "gemm", 2, 60)
    ]  # fmt: skip


def test_projected_ranges(training: Trace) -> None:
    table = projected_ranges(training)
    assert table.columns == [
        "range", "ops", "total_ns", "kernels", "kernel_ns", "gpu_start", "gpu_end"
    ]  # fmt: skip
    assert table.head(4).rows() == [
        (0, 5, 60, 5, 60, 30, 95), (1, 4, 50, 4, 50, 30, 70), (2, 2, 35, 2, 35, 30, 55),
        (3, 1, 10, 1, 10, 50, 60),
    ]  # fmt: skip


def test_a_start_end_range_holds_what_its_process_launches_on_any_thread(
    builder: TraceBuilder,
) -> None:
    builder.start_end(0, 100, "upload")
    builder.start_end(50, 120, "upload")
    builder.start_end(0, 10, "nothing")
    builder.op("a", 20, start=30, end=60, thread=0)
    builder.op("b", 60, start=50, end=80, thread=1, kind="h2d")
    builder.op("c", 110, start=115, end=120)
    builder.op("later", 120, start=125, end=130)
    builder.op("other process", 60, start=62, end=90, thread=10, device=1)
    builder.op("without call", start=140, end=150)
    trace = builder.attributed()
    table = breakdown(trace, "range", inclusive=True).rows
    assert table.drop("share").rows() == [
        ("upload", "start_end", None, 2, 2, 170, 4, 120, 55, None),
        ("nothing", "start_end", None, 1, 0, 10, 0, 0, 0, None),
        (OUTSIDE[2], None, None, None, None, None, 5, None, 88, 88),
        (OUTSIDE[0], None, None, None, None, None, 1, None, 10, 10),
    ]
    assert projected_ranges(trace).rows() == [
        (0, 2, 60, 1, 30, 30, 80), (2, 2, 35, 1, 5, 50, 120)
    ]  # fmt: skip


def test_ranges_on_several_devices_are_busy_on_each(builder: TraceBuilder) -> None:
    builder.range(0, 100, "forward")
    for device in (0, 1):
        builder.op("gemm", 10 + device, start=20, end=40, device=device)
    [row] = breakdown(builder.attributed(), "range", inclusive=True).rows.rows(named=True)
    assert (row["projected_ns"], row["busy_ns"], row["share"]) == (20, 40, 1.0)


def test_what_runs_beside_each_other_counts_once_where_paths_meet(builder: TraceBuilder) -> None:
    builder.range(0, 100, "root")
    for place, name in enumerate(("a", "b", "c")):
        builder.range(10 * place + 1, 10 * place + 9, name)
        builder.range(10 * place + 2, 10 * place + 8, "inner")
        builder.op(name, 10 * place + 4, start=50 + place, end=60 + place, stream=place)
    table = breakdown(builder.attributed(), "range", inclusive=True).rows
    assert dict(table.select("range", "busy_ns").rows()) == {
        "root": 12, "root > a": 10, "root > a > inner": 10, "root > b": 10, "root > b > inner": 10,
        "root > c": 10, "root > c > inner": 10,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("by", "options", "said"),
    [
        ("stage", {"inclusive": True}, "an inclusive breakdown is by range, or by"),
        ("range,device", {"depth": 2}, "an inclusive breakdown is by range, or by"),
        ("range", {"inclusive": True, "per_iteration": True}, "no statistics over iterations"),
        ("range,stage", {"inclusive": True}, "is by range, or by range and kernel"),
        ("range,kernel", {"depth": 1, "per_iteration": True}, "no statistics over iterations"),
        ("range", {"depth": 0}, "depth 0 is too small: give 1 or more"),
        ("layer,stage", {}, "a breakdown by layer is by layer alone"),
        ("layer", {"per_iteration": True}, "a breakdown by layer has no statistics"),
    ],
)
def test_what_cannot_be_asked_together(
    training: Trace, by: str, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        breakdown(training, by, **options)


TIME = st.integers(0, 40)


@st.composite
def _traces(draw: st.DrawFn) -> Trace:
    """Ranges that nest or cross on two threads and in start/end style, and ops on two devices."""
    builder = TraceBuilder()
    builder.op("first", start=0, end=1)
    for _ in range(draw(st.integers(0, 12))):
        begin, length = draw(TIME), draw(st.integers(0, 25))
        style = draw(st.sampled_from(["push_pop", "push_pop", "push_pop", "start_end"]))
        builder.range(
            begin, begin + length, draw(st.sampled_from("abc")), style=style,
            thread=draw(st.sampled_from([0, 1, 10])),
        )  # fmt: skip
    for _ in range(draw(st.integers(0, 14))):
        launch = draw(st.none() | TIME)
        begin, length = (launch or 0) + draw(st.integers(1, 20)), draw(st.integers(0, 15))
        builder.op(
            draw(st.sampled_from("kl")), launch, start=begin, end=begin + length,
            device=draw(st.integers(0, 1)), thread=draw(st.sampled_from([0, 1, 10])),
            kind=draw(st.sampled_from(["compute", "h2d"])),
        )  # fmt: skip
    return builder.attributed()


def _union(intervals: Iterable[tuple[int, int]]) -> int:
    return len({time for begin, end in intervals for time in range(begin, end)})


def _held_by_ranges(trace: Trace) -> tuple[dict[int, list[Any]], dict[int, list[Any]]]:
    """Go up from every op to every range that holds it, and say what each launched itself, too."""
    ranges = {row["range"]: row for row in trace.read("ranges").rows(named=True)}
    held: dict[int, list[dict[str, Any]]] = defaultdict(list)
    own: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for op in trace.read("ops").rows(named=True):
        number = op["range"]
        if number is not None:
            own[number].append(op)
        while number is not None:
            held[number].append(op)
            number = ranges[number]["parent"]
        for row in ranges.values():
            launched = op["launch_start"] is not None and op["process"] == row["process"]
            if (
                launched
                and row["style"] == "start_end"
                and row["start"] <= op["launch_start"] < row["end"]
            ):
                held[row["range"]].append(op)
    return held, own


def _naive(trace: Trace) -> dict[tuple[str, str], tuple[Any, ...]]:
    """Put what the ranges of one path hold together."""
    texts = dict(range_paths(trace).iter_rows())
    ranges = {
        row["range"]: {**row, "path": texts[row["path"]]}
        for row in trace.read("ranges").rows(named=True)
    }
    held, own = _held_by_ranges(trace)
    found = {}
    keys = {(str(row["path"]), row["style"]) for row in ranges.values()}
    for path, style in keys:
        some = [r for r in ranges.values() if (str(r["path"]), r["style"]) == (path, style)]
        numbers = [row["range"] for row in some]
        spans = [held[number] for number in numbers if held[number]]
        found[path, style] = (
            len(some),
            len(spans),
            sum(row["end"] - row["start"] for row in some),
            sum(map(len, spans)),
            sum(max(o["end"] for o in ops) - min(o["start"] for o in ops) for ops in spans),
            _busy([op for number in numbers for op in held[number]], style),
            None if style == "start_end" else _busy([o for n in numbers for o in own[n]], style),
        )
    return found


def _busy(ops: list[dict[str, Any]], style: str) -> int:
    lines = defaultdict(list)
    for op in ops:
        # What start/end ranges hold is added over processes.
        lines[op["device"], op["process"] if style == "start_end" else 0].append(
            (op["start"], op["end"])
        )
    return sum(map(_union, lines.values()))


@settings(max_examples=examples(15, thorough=250))
@given(_traces())
def test_it_is_what_going_up_from_every_op_gives(trace: Trace) -> None:
    table = breakdown(trace, "range", inclusive=True).rows.drop_nulls("style")
    found = {(row[0], row[1]): row[3:-1] for row in table.rows()}
    assert found == _naive(trace)


def _naive_kernels(trace: Trace) -> dict[tuple[Any, ...], tuple[int, ...]]:
    """List the kernels of every range, and put those of one path and name together."""
    durations: dict[tuple[Any, ...], list[tuple[int, int]]] = defaultdict(list)
    texts = dict(range_paths(trace).iter_rows())
    held, own = _held_by_ranges(trace)
    for row in trace.read("ranges").rows(named=True):
        for op in held[row["range"]]:
            key = (texts[row["path"]], row["style"], op["name"], op["kind"])
            durations[key].append((row["range"], op["end"] - op["start"]))
    inside = {op["op"] for ops in own.values() for op in ops}
    for op in trace.read("ops").rows(named=True):
        if op["op"] not in inside:
            why = OUTSIDE[0] if op["launch_start"] is None else OUTSIDE[2]
            durations[why, None, op["name"], op["kind"]].append((-1, op["end"] - op["start"]))
    return {
        (*key, None if key[1] is None else len({number for number, _ in some})): (
            len(some), sum(own := [length for _, length in some]), min(own), max(own)
        )
        for key, some in durations.items()
    }  # fmt: skip


@pytest.mark.parametrize("few_rows", [0, 1 << 30], ids=["compiled", "as they stand"])
@settings(
    max_examples=examples(6, thorough=250),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(trace=_traces())
def test_by_kernel_it_is_what_listing_the_kernels_of_every_range_gives(
    trace: Trace, few_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracekit.support.compiled.FEW_ROWS", few_rows)
    table = breakdown(trace, "range,kernel", inclusive=True).rows
    sums = ("launching", "ops", "total_ns", "min_ns", "max_ns")
    columns = ("range", "style", "name", "kind", *sums)
    found = {row[:5]: row[5:] for row in table.select(columns).rows()}
    assert len(found) == table.height
    assert found == _naive_kernels(trace)


@settings(max_examples=examples(10, thorough=200))
@given(_traces())
def test_a_path_stands_above_those_inside_it(trace: Trace) -> None:
    table = breakdown(trace, "range", inclusive=True).rows.filter(pl.col("style") == "push_pop")
    trail: list[str] = []
    for path, depth in table.select("range", "depth").rows():
        trail = [*trail[:depth], path]
        assert path.rpartition(" > ")[0] == (trail[depth - 1] if depth else "")


@pytest.mark.slow
def test_loops_give_the_same_when_they_are_compiled(
    training: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = breakdown(training, "range", inclusive=True).rows
    monkeypatch.setattr("tracekit.support.compiled.FEW_ROWS", 0)
    assert breakdown(training, "range", inclusive=True).rows.equals(plain)


@pytest.mark.slow
def test_50_000_ranges_inside_each_other_take_no_more_than_their_number() -> None:
    """As of a program that forgets a pop in each step: every range holds all that come after."""
    number, deep = 50_000, 100
    builder = TraceBuilder()
    builder.range(0, 10, "step")
    builder.op("k", 5, start=6, end=9)
    frames = {name: frame.collect() for name, frame in builder.attributed().tables.items()}
    rows = np.arange(number)
    ranges = pl.concat([frames["ranges"]] * number).with_columns(
        range=pl.Series(rows),
        parent=pl.Series(rows - 1).set(pl.Series(rows == 0), None),
        start=pl.Series(10 * rows),
        end=pl.lit(10 * number),
        depth=pl.Series(rows).cast(pl.Int32),
        path=pl.Series(rows, dtype=pl.Int32),
    )
    paths = pl.DataFrame({"path": rows, "label": rows.astype(str), "depth": rows}).with_columns(
        parent_path=pl.Series(rows - 1).set(pl.Series(rows == 0), None)
    )
    ops = pl.concat([frames["ops"]] * number).with_columns(
        op=pl.Series(rows),
        range=pl.Series(rows),
        start=pl.Series(10 * rows + 6),
        end=pl.Series(10 * rows + 19),
    )
    trace = Trace.of({**frames, "ranges": ranges, "paths": paths, "ops": ops})
    table = breakdown(trace, "range", depth=deep).rows
    assert table["ops"].to_list() == list(range(number, number - deep, -1))
    assert table["busy_ns"].to_list() == [10 * (number - row) + 3 for row in range(deep)]
    assert table["self_busy_ns"].to_list() == [13] * deep
