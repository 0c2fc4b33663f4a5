"""What is kept of each device, against what is added up when it is asked."""

from __future__ import annotations

import polars as pl
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from trace_builder import TraceBuilder

from tracekit.analysis import breakdown, summarise
from tracekit.analysis.step_sums import _key_sums as _sums
from tracekit.engine import DeviceSums, kept_sums
from tracekit.model import KERNEL_KINDS, KINDS, STAGES, Clock, Trace, combine

KINDS_OF_OPS = st.sampled_from(KINDS)
OPS = st.lists(
    st.tuples(
        st.integers(0, 2), st.integers(0, 30), st.sampled_from((0, 1, 3, 15)), KINDS_OF_OPS,
        st.sampled_from(STAGES), st.sampled_from(("nvtx", "backward_thread", "none")),
        st.booleans(),
    ),
    min_size=1, max_size=20,
).map(lambda ops: sorted(ops, key=lambda op: op[1]))  # fmt: skip


def _kept(trace: Trace, rows: int = 3) -> Trace:
    """Return a run with what is kept of it, added up so many ops at a time."""
    sums, ops = DeviceSums(), trace.read("ops")
    for part in ops.iter_slices(rows):
        sums.add(part)
    return trace.with_tables({"device_sums": sums.table()})


def _two_steps() -> Trace:
    builder = TraceBuilder()
    for step in range(2):
        builder.iteration(step, 100 * step, 100 * step + 90)
        at = 100 * step + 5
        forward = {"stage": "FP", "stage_source": "nvtx"}
        builder.op("gemm", at, start=at, end=at + 40, call=3 * step, **forward)
        builder.op("copy", at + 1, start=at + 20, end=at + 60, kind="h2d", device=1, call=3 * step)
        builder.op("gemm", at + 2, start=at + 30, end=at + 50, call=3 * step, **forward)
    builder.op("gemm", start=250, end=260, stage="BP", stage_source="backward_thread")
    return builder.trace()


@settings(max_examples=examples(60), deadline=None)
@given(ops=OPS, rows=st.integers(1, 20))
def test_sums_against_every_nanosecond(
    ops: list[tuple[int, int, int, str, str, str, bool]], rows: int
) -> None:
    builder = TraceBuilder()
    for device, start, length, kind, stage, source, known in ops:
        builder.op(
            "k", start if known else None, start=start, end=start + length, device=device,
            kind=kind, stage=stage, stage_source=source,
        )  # fmt: skip
    sums = _kept(builder.trace(), rows).read("device_sums")
    of_all = {}
    parts = {}
    for device in {op[0] for op in ops}:
        own = [op for op in ops if op[0] == device]
        busy = {t for op in own for t in range(op[1], op[1] + op[2])}
        of_all[device] = (
            len(own), sum(op[3] in KERNEL_KINDS for op in own), sum(op[6] for op in own),
            min(op[1] for op in own), max(op[1] + op[2] for op in own), sum(op[2] for op in own),
            len(busy),
        )  # fmt: skip
        above: set[int] = set()
        for place, names in ((4, STAGES), (5, ("nvtx", "backward_thread", "none"))):
            for name in names:
                some = [op for op in own if op[place] == name]
                time = {t for op in some for t in range(op[1], op[1] + op[2])}
                exposed = len(time - above) if place == 4 else None
                if some:
                    parts[device, name] = (len(some), len(time), exposed)
                above |= time if place == 4 else set()
    whole = sums.filter(pl.col("stage").is_null(), pl.col("stage_source").is_null())
    assert {row[0]: row[1:] for row in whole.select(
        "device", "ops", "kernels", "launched", "start", "end", "total_ns", "busy_ns"
    ).iter_rows()} == of_all  # fmt: skip
    names = pl.coalesce(pl.col("stage").cast(pl.String), pl.col("stage_source").cast(pl.String))
    told = sums.with_columns(what=names).drop_nulls("what")
    found = told.select("device", "what", "ops", "busy_ns", "exposed_ns").rows()
    assert {row[:2]: row[2:] for row in found} == parts


@pytest.mark.parametrize(
    ("by", "options"),
    [
        ("stage", {}), ("device", {}), ("stage,device", {}), ("kernel", {}), ("iteration", {}),
        ("stage,iteration", {}), ("stage", {"per_iteration": True}), ("kind", {"skip": 1}),
        ("stage", {"skip": 1}),
    ],
)  # fmt: skip
def test_answers_are_those_of_a_run_of_which_nothing_is_kept(by, options) -> None:
    trace = _two_steps()
    own, kept = (breakdown(each, by, **options) for each in (trace, _kept(trace)))
    assert_frame_equal(kept.rows, own.rows)
    assert kept.meta == own.meta


def test_a_summary_is_that_of_a_run_of_which_nothing_is_kept() -> None:
    assert summarise(_kept(_two_steps())) == summarise(_two_steps())


def test_what_is_kept_is_what_is_told() -> None:
    trace = _kept(_two_steps())
    sums = trace.read("device_sums")
    of_stage = pl.col("stage").is_not_null()
    more = sums.with_columns(pl.when(of_stage).then(pl.col("busy_ns") + 1).otherwise("busy_ns"))
    told = breakdown(trace.with_tables({"device_sums": more}), "stage").rows
    more_ns = told["busy_ns"] - breakdown(trace, "stage").rows["busy_ns"]
    assert more_ns.drop_nulls().to_list() == [1, 1, 1]


def test_other_ops_have_other_sums() -> None:
    trace = _kept(_two_steps())
    later = trace.with_lazy({"ops": trace["ops"].with_columns(pl.col("end") + 5)})
    assert kept_sums(trace) is not None
    assert kept_sums(later) is None
    assert kept_sums(trace.with_tables({"ops": trace.read("ops")[:2]})) is None


def _of_gpus(*uuids: str) -> Trace:
    """Return a report of two GPUs, and what is kept of it."""
    rows = [
        {"report": 0, "device": number, "uuid": uuid, "identity": "device_table", "active": True}
        for number, uuid in enumerate(uuids)
    ]
    return _kept(_two_steps().with_tables({"devices": pl.DataFrame(rows)}))


def _on_clock(trace: Trace, clock: Clock) -> Trace:
    reports = {"report": 0, "file": "rank1.sqlite", "format": "nsys", "size": 1}
    return trace.with_tables({"reports": clock.applied_to(pl.DataFrame([reports]))})


@pytest.mark.parametrize("by", ["stage", "device", "stage,device"])
def test_what_several_reports_keep_is_that_of_their_run(by: str, monkeypatch) -> None:
    reports = [_of_gpus("a", "b"), _of_gpus("c", "d")]
    reports[1] = _on_clock(reports[1], Clock("host", 7, source="given"))
    run = combine(reports)
    read = combine([each.with_lazy({"ops": each["ops"]}) for each in reports])
    assert kept_sums(read) is None
    own = breakdown(read, by)
    with monkeypatch.context() as patch:
        patch.delattr(_sums, "sum_up")  # whatever reads all ops
        kept = breakdown(run, by)
    assert_frame_equal(kept.rows, own.rows)
    assert kept.meta == own.meta
    assert summarise(run) == summarise(read)
    # Windows are on the clock of the run.
    starts = dict(run.read("device_sums").drop_nulls("start").select("device", "start").iter_rows())
    assert starts == {0: 5, 1: 25, 2: 12, 3: 32}


def test_several_reports_keep_nothing_where_it_is_no_sum() -> None:
    one, other = _of_gpus("a", "b"), _of_gpus("c", "d")
    assert kept_sums(combine([one, other])) is not None
    assert kept_sums(combine([one, _of_gpus("c", "b")])) is None  # both saw one GPU
    bare = other.with_lazy({"ops": other["ops"]})
    assert kept_sums(combine([one, bare])) is None
    empty = other.with_tables({"ops": other.read("ops")[:0]})
    assert kept_sums(combine([one, empty])) is not None
    for clock in (Clock("host", drift=1e-3), Clock("host", steps=((50, 9),))):
        assert kept_sums(combine([one, _on_clock(other, clock)])) is None


def test_ops_out_of_order_have_none() -> None:
    sums = DeviceSums()
    for ops in (_two_steps().read("ops"),) * 2:
        sums.add(ops)
    assert sums.table().is_empty()
    assert DeviceSums().table().is_empty()
