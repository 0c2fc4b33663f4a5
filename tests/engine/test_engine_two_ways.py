"""The two ways of finding busy time, held to each other; and sums of reports, in any order."""

from __future__ import annotations

from random import Random

import polars as pl
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from tracekit.engine import GroupTally, StageTally, layered_lengths, union_length
from tracekit.model import KIND, STAGE, STAGE_SOURCE, STAGES

Op = tuple[int, int, int, str, str, str]
"""Device, start, end, stage, source and kind."""
SOURCES = ("nvtx", "gradient_exchange", "none")
OPS = st.lists(
    st.builds(
        lambda device, start, length, *rest: (device, start, start + length, *rest),
        st.integers(0, 5), st.integers(0, 200), st.sampled_from((0, 1, 3, 15, 80)),
        st.sampled_from(STAGES), st.sampled_from(SOURCES), st.sampled_from(("compute", "h2d")),
    ),
    min_size=1, max_size=40,
)  # fmt: skip


def _frame(ops: list[Op]) -> pl.DataFrame:
    schema = {
        "device": pl.Int32, "start": pl.Int64, "end": pl.Int64, "stage": STAGE,
        "stage_source": STAGE_SOURCE, "kind": KIND,
    }  # fmt: skip
    thread = pl.lit(None, pl.Int32)
    return pl.DataFrame(ops, schema, orient="row").with_columns(launch_thread=thread).sort("start")


def _sums(ops: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """Return what compiled loops add up: by stage, by source, of all, and by kind."""
    stages, kinds = StageTally(), GroupTally(["kind"], {})
    assert stages.add(ops)
    assert kinds.add(ops)
    return {
        "stages": stages.stages(), "sources": stages.sources(), "all": stages.groups(),
        "kinds": kinds.groups().group_by("window", "kind").sum(),
    }  # fmt: skip


@settings(max_examples=examples(60), deadline=None)
@given(ops=OPS)
def test_loops_and_expressions_find_the_same_busy_time(ops: list[Op]) -> None:
    frame = _frame(ops)
    swept = {name: table.rename({"window": "device"}) for name, table in _sums(frame).items()}
    # A sweep lists also what occurs without taking time; so do lengths of unions.
    layered = layered_lengths(frame, "stage", STAGES, ["device"])
    columns = ["device", "stage", "busy_ns", "exposed_ns"]
    assert_frame_equal(
        swept["stages"].select(columns), layered.select(columns), check_row_order=False
    )
    by = {"sources": ["device", "stage_source"], "all": ["device"], "kinds": ["device", "kind"]}
    for name, keys in by.items():
        lengths = union_length(frame, keys).rename({"length": "busy_ns"})
        assert_frame_equal(
            swept[name].select(*keys, "busy_ns"), lengths.select(*keys, "busy_ns"),
            check_row_order=False,
        )  # fmt: skip


def _over_devices(table: pl.DataFrame) -> pl.DataFrame:
    """Add up what a report's devices sum to."""
    keys = [name for name in ("stage", "stage_source", "kind") if name in table.columns]
    key = pl.col(keys[0]).cast(pl.String) if keys else pl.lit("all")
    return _added(table.select(pl.exclude("window", *keys), key=key))


def _added(table: pl.DataFrame) -> pl.DataFrame:
    return table.group_by("key").sum()


@settings(max_examples=examples(60), deadline=None)
@given(ops=OPS, report_of=st.lists(st.integers(0, 3), min_size=6, max_size=6), order=st.randoms())
def test_sums_of_reports_merge_in_any_order(
    ops: list[Op], report_of: list[int], order: Random
) -> None:
    frame = _frame(ops)
    whole = _sums(frame)
    own = {report: [d for d in range(6) if report_of[d] == report] for report in set(report_of)}
    parts = [frame.filter(pl.col("device").is_in(devices)) for devices in own.values()]
    sums = [_sums(part) for part in parts if part.height]
    order.shuffle(sums)
    for name in whole:
        parts_of_run = [_over_devices(each[name]) for each in sums]
        merged = _added(pl.concat(parts_of_run))
        assert all(dtype.is_integer() for dtype in merged.drop("key").dtypes)
        assert_frame_equal(merged, _over_devices(whole[name]), check_row_order=False)
