"""Names of ranges that stay the same from step to step."""

from __future__ import annotations

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_builder import TraceBuilder, paths_of

from tracekit.attribution import Rules


def _paths(builder: TraceBuilder, iteration: str | None = None) -> list[str]:
    return [str(path) for path in paths_of(builder.attributed(Rules.load(iteration=iteration)))]


def test_a_path_leads_from_the_outermost_range() -> None:
    builder = TraceBuilder()
    builder.range(0, 90, "epoch")
    builder.range(10, 80, "forward")
    builder.range(20, 30, "aten::mm, seq = 7, op_id = 3")
    builder.range(40, 50, "layer 3")
    builder.range(95, 99, "epoch")
    builder.range(20, 30, "elsewhere", thread=1)
    assert _paths(builder) == [
        "epoch", "epoch > forward", "epoch > forward > aten::mm", "elsewhere",
        "epoch > forward > layer 3", "epoch",
    ]  # fmt: skip


@pytest.mark.parametrize("name", [None, "", ", sizes = [[2, 3]]"])
def test_a_range_without_name(name: str | None) -> None:
    builder = TraceBuilder()
    builder.range(0, 90, "epoch")
    builder.range(10, 80, name)
    assert _paths(builder) == ["epoch", "epoch > (unnamed)"]


def test_a_start_end_range_has_its_own_name_for_path() -> None:
    builder = TraceBuilder()
    builder.range(0, 90, "epoch")
    builder.start_end(10, 80, "upload")
    assert _paths(builder) == ["epoch", "upload"]


def _steps(step: str, *inner: str, first: int = 57) -> TraceBuilder:
    builder = TraceBuilder()
    for count in range(3):
        builder.range(100 * count, 100 * count + 90, step.format(first + count))
        for place, name in enumerate(inner):
            begin = 100 * count + 10 * place + 1
            builder.range(begin, begin + 5, name.format(first + count))
    return builder


@pytest.mark.parametrize(
    ("step", "template"),
    [
        ("step {}", "step N"),
        ("epoch 2, iteration {} begins", "epoch 2, iteration N begins"),
        ("step {}/100", "step N/100"),
        ("iteration {} of epoch 1", "iteration N of epoch 1"),
        ("ProfilerStep#{}", "ProfilerStep#N"),
    ],
)
def test_the_number_of_the_iteration(step: str, template: str) -> None:
    builder = _steps(step, "data copy in {}", "layer 3", "gather {} of 8")
    inner = [f"{template} > {name}" for name in ("data copy in N", "layer 3", "gather N of 8")]
    assert _paths(builder) == [template, *inner] * 3


def test_a_number_that_meets_the_iterations_once_is_kept() -> None:
    builder = _steps("step {}", "layer 1", "layer 2", first=1)
    inner = ["step N > layer 1", "step N > layer 2"]
    assert _paths(builder) == ["step N", *inner] * 3


def test_a_number_that_is_not_always_the_iterations_is_kept() -> None:
    builder = _steps("step {}", "bucket {}", first=0)
    builder.range(250, 255, "bucket 0")
    assert _paths(builder)[1::2][:2] == ["step N > bucket 0", "step N > bucket 1"]


def test_numbers_outside_of_iterations_are_kept() -> None:
    builder = _steps("step {}")
    builder.range(500, 510, "epoch 57")
    builder.range(500, 510, "data copy in 57", thread=1)
    assert _paths(builder) == ["step N", "step N", "step N", "epoch 57", "data copy in 57"]


def test_one_iteration_shows_no_repetition() -> None:
    builder = TraceBuilder()
    builder.range(0, 90, "step 3")
    builder.range(10, 20, "layer 3")
    assert _paths(builder) == ["step 3", "step 3 > layer 3"]


def test_another_threads_ranges_repeat_the_number_too() -> None:
    builder = _steps("step {}")
    for count in range(3):
        builder.range(100 * count + 5, 100 * count + 9, f"prefetch {57 + count}", thread=1)
    assert _paths(builder) == ["step N", "prefetch N"] * 3


def test_iterations_without_numbers() -> None:
    builder = _steps("training step", "layer 3")
    assert _paths(builder) == ["training step", "training step > layer 3"] * 3
    builder = _steps("tick {}", "layer 3")
    assert _paths(builder, "^tick") == ["tick N", "tick N > layer 3"] * 3


_RANGES = st.lists(
    st.tuples(
        st.integers(0, 2), st.integers(0, 60), st.integers(0, 40),
        st.sampled_from(["a", "b", "c > d", "d", "", None, "mm, seq = 4"]), st.integers(0, 5),
    ),
    max_size=30,
)  # fmt: skip


@settings(max_examples=examples(15, thorough=300), deadline=None)
@given(rows=_RANGES)
def test_paths_are_the_names_of_all_ranges_around(
    rows: list[tuple[int, int, int, str, int]],
) -> None:
    builder = TraceBuilder()
    for thread, start, length, name, kind in rows:
        add = builder.start_end if kind == 0 else builder.range
        add(start, start + length, name, thread=thread)  # type: ignore[operator]
    trace = builder.attributed()
    ranges = trace.read("ranges").sort("range").to_dicts()
    expected: list[str] = []
    for number, one in enumerate(ranges):
        around = [
            n for n, other in enumerate(ranges[:number])
            if one["style"] == other["style"] == "push_pop" and one["thread"] == other["thread"]
            and one["start"] < other["end"] and one["end"] <= other["end"]
        ]  # fmt: skip
        label = (one["name"] or "(unnamed)").removesuffix(", seq = 4")
        expected.append(f"{expected[around[-1]]} > {label}" if around else label)
    assert paths_of(trace) == expected
    table = trace.read("paths")
    assert table["path"].to_list() == list(range(table.height))
    assert (table["parent_path"] < table["path"]).all()
    assert table.select("parent_path", "label").is_unique().all()
