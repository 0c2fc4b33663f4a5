"""Op to launching call, and what is said when that does not come out even."""

from __future__ import annotations

import polars as pl
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_builder import TraceBuilder

from tracekit.attribution import Rules, attribute
from tracekit.attribution._clock import waits
from tracekit.model import KIND, Trace

COLUMNS = ("name", "call", "launch_thread", "launch_start", "launch_end")


def _launches(trace: Trace) -> list[tuple[object, ...]]:
    return trace.read("ops").select(COLUMNS).rows()


def test_a_correlation_id_counts_in_its_own_process() -> None:
    builder = TraceBuilder()
    for thread, at in ((0, 10), (10, 20), (11, 30)):
        builder.call(at, at + 3, thread=thread, correlation=7 if thread < 11 else 8)
    builder.op("of 1", start=25, process=1, correlation=7)
    builder.op("of 0", start=26, process=0, correlation=7)
    builder.op("another of 1", start=40, process=1, correlation=8)
    builder.op("of nobody", start=41, process=0, correlation=8)
    trace = builder.attributed()
    assert _launches(trace) == [
        ("of 1", 1, 10, 20, 23),
        ("of 0", 0, 0, 10, 13),
        ("another of 1", 2, 11, 30, 33),
        ("of nobody", None, None, None, None),
    ]
    assert trace.warnings == (
        "1 of 4 ops have no launching call: no range is known of these",
    )  # fmt: skip


def test_what_was_launched_before_the_recording_began() -> None:
    builder = TraceBuilder()
    builder.call(100, 101, correlation=7)
    builder.call(102, 103, thread=10, correlation=2)
    builder.op("earlier", start=0, correlation=5)
    builder.op("also earlier", start=10, correlation=6)
    builder.op("first", start=104, correlation=7)
    builder.op("lost", start=120, correlation=9)
    builder.op("of another process", start=121, process=1, correlation=5)
    earlier, lost = builder.attributed().warnings
    assert earlier.startswith("2 of 5 ops (0.000 ms) were launched before recording began")
    assert lost == "2 of 5 ops have no launching call: no range is known of these"


def test_kernels_that_are_missing_are_told_unless_they_were_queued_last() -> None:
    builder = TraceBuilder()
    for turn in range(100):
        builder.call(10 * turn, 10 * turn + 1, correlation=turn)
        if turn not in (40, 41, 98, 99):
            builder.op("kernel", start=10 * turn + 2, correlation=turn)
    (missing,) = builder.attributed().warnings
    assert missing.startswith("GPU work is missing: 2 of 98 calls that launch kernels, ")
    for name in ("cudaStreamBeginCapture", "cudaGraphLaunch"):  # those are recorded, not run
        builder.rows["calls"][0]["name"] = name
        assert builder.attributed().warnings == ()


def test_launches_after_the_last_recorded_kernel_are_told_where_they_are_many() -> None:
    """Also of a process that captures graphs, whose other launches without a kernel are none."""
    builder = TraceBuilder()
    for turn in range(100):
        builder.call(10 * turn, 10 * turn + 1, correlation=turn)
        if turn < 60:
            builder.op("kernel", start=10 * turn + 2, correlation=turn)
    builder.rows["calls"][0]["name"] = "hipStreamBeginCapture"
    for turn in range(1_000):  # another process, of which all is recorded
        builder.call(10 * turn, 10 * turn + 1, thread=10, correlation=turn)
        builder.op("kernel", start=10 * turn + 2, thread=10, device=1, correlation=turn)
    (told,) = builder.attributed().warnings
    assert told == (
        "the recording of GPU work ends early: no op is recorded of its last 40 launches"
    )


def test_a_process_without_any_recorded_kernel_is_told() -> None:
    builder = TraceBuilder()
    for turn in range(100):
        builder.op("kernel", 10 * turn)
        builder.call(10 * turn, 10 * turn + 1, thread=10, correlation=turn)
    (told,) = builder.attributed().warnings
    assert told == "no op is recorded of processes with 100 launches"
    builder.rows["calls"][-1]["name"] = "cudaStreamBeginCapture"  # what is captured runs later
    assert builder.attributed().warnings == ()


def test_more_kernels_are_missing_than_were_recorded() -> None:
    """No name of a call says that it launches nothing itself."""
    builder = TraceBuilder()
    for turn in range(100):
        builder.call(10 * turn, 10 * turn + 1, correlation=turn)
        if turn % 3 == 0:
            builder.op("kernel", start=10 * turn + 2, correlation=turn)
    (missing,) = builder.attributed().warnings
    assert missing.startswith("GPU work is missing: 66 of 100 calls that launch kernels, ")


@pytest.mark.parametrize("name", ["cudaMemsetAsync_v3020", "cuMemcpyHtoDAsync_v2", "hipMemset"])
def test_copies_and_fills_that_are_missing_are_told(name: str) -> None:
    """A recording that had lost all of its fills was taken for a complete one."""
    builder = TraceBuilder()
    for turn in range(100):
        builder.op("kernel", 10 * turn)
        builder.call(10 * turn + 5, 10 * turn + 6, correlation=1_000 + turn)
        builder.rows["calls"][-1]["name"] = name
    (missing,) = builder.attributed().warnings
    assert missing == (
        "GPU work is missing: 99 of 199 calls that launch kernels, copies or fills, over 0.001 ms, "
        "have no op in the recording; GPUs seem idle meanwhile"
    )


@pytest.mark.parametrize("recorded", [0, 1])
def test_of_calls_that_lie_in_each_other_one_launches(recorded: int) -> None:
    """A call of the runtime makes one of the driver, which a program may make by itself, too."""
    builder = TraceBuilder()
    for turn in range(100):
        builder.call(10 * turn, 10 * turn + 4, correlation=2 * turn)
        builder.call(10 * turn + 1, 10 * turn + 3, correlation=2 * turn + 1)
        builder.op("kernel", start=10 * turn + 4, correlation=2 * turn + recorded)
    builder.call(1000, 1004, correlation=200)
    builder.op("by itself", start=1004, correlation=200)
    assert builder.attributed().warnings == ()


@pytest.mark.parametrize("missing", ["dark", "late", "inside"])
def test_missing_kernels_of_nested_calls_count_once(missing: str) -> None:
    """None was counted where a call of the runtime makes one of the driver."""
    builder, thread = TraceBuilder(), 10 if missing == "dark" else 0
    without = {"dark": range(100), "late": range(60, 100), "inside": range(50, 60)}[missing]
    for turn in range(100):
        builder.call(10 * turn, 10 * turn + 4, thread=thread, correlation=2 * turn)
        builder.call(10 * turn + 1, 10 * turn + 3, thread=thread, correlation=2 * turn + 1)
        builder.rows["calls"][-1]["name"] = "cuLaunchKernel"
        if turn not in without:
            builder.op("kernel", start=10 * turn + 4, thread=thread, correlation=2 * turn + 1)
    if missing == "dark":
        builder.op("kernel", 0)
    (told,) = builder.attributed().warnings
    assert told.startswith({
        "dark": "no op is recorded of processes with 100 launches",
        "late": "the recording of GPU work ends early: no op is recorded of its last 40",
        "inside": "GPU work is missing: 10 of 100 calls that launch kernels",
    }[missing])  # fmt: skip


def test_ops_that_were_recorded_twice_are_told() -> None:
    builder = TraceBuilder()
    builder.call(0, 1, correlation=7)
    for start in (10, 10, 20, 30):
        builder.op("kernel", start=start, correlation=7)
    (twice,) = builder.attributed().warnings
    assert twice == "1 of 4 ops are in the recording twice: they count twice"


@pytest.mark.parametrize("calls", [0, 1])
def test_work_of_a_process_without_calls(calls: int) -> None:
    """nvprof records none with --profile-api-trace none."""
    builder = TraceBuilder()
    for _ in range(calls):
        builder.call(0, 5, correlation=3)
    for process in range(3):
        builder.op(f"of {process}", start=10 + process, process=process, correlation=3)
    found = [call for _, call, *_ in _launches(builder.attributed())]
    assert found == ([0] if calls else [None]) + [None, None]


def test_one_call_may_launch_several_ops() -> None:
    builder = TraceBuilder()
    builder.call(0, 5, correlation=3)
    builder.op("first node", start=10, correlation=3)
    builder.op("second node", start=20, correlation=3)
    trace = builder.attributed()
    assert _launches(trace) == [("first node", 0, 0, 0, 5), ("second node", 0, 0, 0, 5)]
    assert trace.warnings == ()


def test_a_repeated_key_warns_and_makes_no_second_op() -> None:
    builder = TraceBuilder()
    builder.call(4, 6, correlation=3)
    builder.call(0, 2, correlation=3)
    builder.call(7, 8, correlation=3)
    builder.op("gemm", start=10, correlation=3)
    trace = builder.attributed()
    assert _launches(trace) == [("gemm", 0, 0, 0, 2)]
    assert trace.warnings == ("2 API calls repeat the correlation id of another one",)


def test_a_launch_after_its_op_warns() -> None:
    builder = TraceBuilder()
    builder.op("early", 10, start=9)
    builder.op("just so", 20, start=20)
    trace = builder.attributed()
    [warning] = trace.warnings
    assert warning == (
        "1 ops start before the call that launched them, by a median of 0.001 us (5 to 95 %: 0.001 "
        "to 0.001 us): the clock of the GPU is behind by at least so much"
    )


def _launched_when_idle(count: int, wait: int, *, device: int = 0, kind: str = "compute") -> Trace:
    builder = TraceBuilder()
    for number in range(count):
        at = number * 1_000_000
        builder.op("gemm", at, start=at + wait + number % 7, device=device, kind=kind)
    return builder.attributed()


@pytest.mark.parametrize(
    ("count", "wait", "is_late"),
    [(101, 100_000, True), (100, 100_000, False), (200, 99_999, False), (200, 7_000, False)],
)
def test_a_gpu_that_never_starts_at_once_warns(count: int, wait: int, *, is_late: bool) -> None:
    """What ran before the first op is not known: it does not count."""
    sentence = (
        f"none of {count - 1:,} kernels that were launched while device 3 was idle starts within "
        f"{wait / 1000:,.3f} us of its call, where some microseconds are usual: the clock of the "
        "GPU is ahead by about so much, or something delays every launch"
    )
    found = _launched_when_idle(count, wait, device=3).warnings
    assert found == ((sentence,) if is_late else ())


def test_a_copy_that_starts_late_says_nothing_of_a_clock() -> None:
    """It may wait for the host to read its memory."""
    assert _launched_when_idle(200, 500_000, kind="h2d").warnings == ()


def test_a_gpu_that_has_work_waiting_says_nothing_of_a_clock() -> None:
    builder = TraceBuilder()
    for number in range(200):
        builder.op("gemm", number, start=500_000 * (number + 1), end=500_000 * (number + 2))
    assert builder.attributed().warnings == ()


# A trace may number its devices as it likes.
DEVICES = st.sampled_from([0, 1, 7, 2_000_000_000])


@settings(max_examples=examples(50))
@given(st.lists(st.tuples(DEVICES, *[st.integers(0, 3)] * 3), max_size=30))
def test_waits_are_those_that_a_loop_finds(rows: list[tuple[int, int, int, int]]) -> None:
    start, expected = 0, dict[int, list[int]]()
    ends: dict[int, int] = {}
    made: list[tuple[int, int, int, int]] = []
    for device, gap, length, lead in rows:
        start += gap
        made.append((device, start, start + length, start - lead))
        if device in ends and start - lead > ends[device]:
            expected.setdefault(device, []).append(lead)
        ends[device] = max(ends.get(device, 0), start + length)
    names = {"device": pl.Int32, "start": pl.Int64, "end": pl.Int64, "launch": pl.Int64}
    ops = pl.DataFrame(made, schema=names, orient="row").with_columns(kind=pl.lit("compute", KIND))
    found = waits(ops, ops["launch"].to_numpy())
    assert {row[0]: row[1:] for row in found.rows()} == {
        device: (len(leads), min(leads)) for device, leads in expected.items()
    }


def test_calls_and_ops_without_id() -> None:
    builder = TraceBuilder()
    builder.call(0, 2, correlation=None)
    builder.call(3, 4, correlation=None)
    builder.op("gemm", start=10, correlation=None)
    trace = builder.attributed()
    assert _launches(trace) == [("gemm", None, None, None, None)]
    assert trace.warnings == ("1 of 1 ops have no launching call: no range is known of these",)


def test_an_op_without_call_finds_no_range() -> None:
    builder = TraceBuilder()
    builder.range(-100, 100, "forward")
    builder.start_end(-100, 100, "backward")
    builder.op("gemm", start=10)
    ops = builder.attributed().read("ops")
    assert ops.select("range", "stage", "stage_source", "iteration").rows() == [
        (None, "OTHER", "none", None)
    ]


def _everything() -> TraceBuilder:
    builder = TraceBuilder()
    for number in range(3):
        begin = 100 * number
        builder.range(begin, begin + 90, f"step {number}")
        builder.range(begin + 10, begin + 30, "forward")
        builder.range(begin + 30, begin + 60, "backward")
        builder.range(begin + 60, begin + 80, "optimizer")
        builder.op(f"f{number}", begin + 15)
        builder.op(f"b{number}", begin + 35, thread=1)
        builder.op("ncclDevKernel_AllReduce_Sum_f32_RING_LL", begin + 50, thread=1)
        builder.op(f"w{number}", begin + 65)
    builder.thread(1, "pt_autograd_0")
    return builder


def test_attributing_again_changes_nothing() -> None:
    rules = Rules.load()
    once = attribute(_everything().trace(), rules)
    twice = attribute(once, rules)
    assert twice.warnings == once.warnings
    for name in once.tables:
        assert twice.read(name).equals(once.read(name)), name


def test_attributing_again_by_other_rules_forgets_the_first() -> None:
    empty = Rules(dict.fromkeys(Rules.load().lists, ()))
    raw = _everything().trace()
    again = attribute(attribute(raw, Rules.load()), empty)
    fresh = attribute(raw, empty)
    for name in fresh.tables:
        assert again.read(name).equals(fresh.read(name)), name
    assert set(fresh.read("ops")["stage"]) == {"OTHER"}
    assert set(fresh.read("ops")["kind"]) == {"compute"}
    assert fresh.read("iterations").is_empty()


@pytest.mark.parametrize("absent", ["ranges", "calls", "ops", "threads"])
def test_a_trace_that_lacks_a_table(absent: str) -> None:
    raw = _everything().trace()
    trace = raw.with_tables({absent: raw.read(absent).clear()})
    attributed = attribute(trace, Rules.load())
    ops = attributed.read("ops")
    assert ops.height == (0 if absent == "ops" else 12)
    if absent in {"ranges", "calls"}:
        assert ops.filter(pl.col("stage") == "WU").height == 3
        assert ops["range"].null_count() == 12


def test_progress_is_told() -> None:
    told: list[tuple[str, int, int]] = []
    attribute(_everything().trace(), Rules.load(), lambda *step: told.append(step))
    assert [done for _, done, _ in told] == list(range(len(told)))
    assert {total for _, _, total in told} == {len(told)}
