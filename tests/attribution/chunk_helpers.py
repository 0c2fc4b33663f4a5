"""Random traces, and their attribution chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import polars as pl
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from trace_builder import TraceBuilder, default_rules

from tracekit.attribution import attribute_recording
from tracekit.model import KEYS, TABLES, Recording, Stream, Trace
from tracekit.support.spool import Workspace

ATTRIBUTED = (
    "ops", "calls", "ranges", "paths", "iterations", "verdicts", "assumptions", "opinions",
)  # fmt: skip
THREADS = (0, 1, 2, 10, 11)


class Cut:
    """A frame as rows in chunks of given heights, of which the last one is repeated."""

    def __init__(self, frame: pl.DataFrame, heights: Sequence[int], *, ties: bool = True) -> None:
        """Cut `frame`; without `ties` rows that start together stay together, as sources do."""
        self._chunks: list[pl.DataFrame] = []
        starts, begin = frame["start"].to_list(), 0
        while begin < frame.height:
            end = min(begin + heights[min(len(self._chunks), len(heights) - 1)], frame.height)
            while not ties and end < frame.height and starts[end] == starts[end - 1]:
                end += 1
            self._chunks.append(frame[begin:end])
            begin = end
        self.heights = [chunk.height for chunk in self._chunks]

    def read(self, number: int, *columns: str) -> pl.DataFrame:
        return self._chunks[number].select(columns or pl.all())


def stream(table: str, frame: pl.DataFrame, heights: Sequence[int]) -> Stream:
    """Make a canonical table a stream of chunks."""
    key = KEYS[table]
    return Stream(table, key, Cut(frame.sort(key), heights, ties=table != "ranges"))


def recording_of(trace: Trace, heights: Sequence[int]) -> Recording:
    """Let the large tables of a trace come in chunks."""
    return Recording(
        {name: trace.read(name) for name in TABLES if name not in KEYS},
        {name: stream(name, trace.read(name), heights) for name in KEYS},
        trace.warnings,
    )


def attributed_in_chunks(
    trace: Trace, heights: Sequence[int], workspace: Workspace | None = None
) -> tuple[dict[str, pl.DataFrame], tuple[str, ...]]:
    """Attribute a trace whose large tables come in chunks; return what is written, and warnings."""
    written: dict[str, list[pl.DataFrame]] = {name: [] for name in ATTRIBUTED}
    warnings = attribute_recording(
        recording_of(trace, heights), default_rules(), workspace or Workspace(),
        lambda table, make: written[table].append(TABLES[table].conform(make())), lambda *_: None,
    )  # fmt: skip
    return (
        {name: pl.concat([TABLES[name].empty(), *parts]) for name, parts in written.items()},
        warnings,
    )


def assert_same_in_chunks(
    trace: Trace, whole: Trace, heights: Sequence[int], workspace: Workspace | None = None
) -> None:
    """Hold the attribution in chunks against `whole`, the one in a single chunk."""
    tables, warnings = attributed_in_chunks(trace, heights, workspace)
    for name, table in tables.items():
        assert_frame_equal(table, whole.read(name), categorical_as_str=True)
    assert warnings == whole.warnings


@dataclass(frozen=True)
class Event:
    """A range or a launch."""

    thread: int
    start: int
    length: int
    name: str | None


@dataclass(frozen=True)
class Plan:
    """What a random trace consists of."""

    ranges: Sequence[Event] = ()
    start_ends: Sequence[Event] = ()
    launches: Sequence[Event] = ()
    calls: Sequence[tuple[int, int, int | None]] = ()
    """Thread, start, correlation: calls that launch nothing, or repeat an id."""
    threads: dict[int, str | None] = field(default_factory=dict)
    domains: Sequence[str | None] = (None,)

    def trace(self) -> Trace:
        """Make the trace, not attributed."""
        builder = TraceBuilder()
        for thread, name in self.threads.items():
            builder.thread(thread, name)
        for number, one in enumerate(self.ranges):
            domain = self.domains[number % len(self.domains)]
            builder.range(
                one.start, one.start + one.length, one.name, thread=one.thread, domain=domain
            )
        for one in self.start_ends:
            builder.start_end(one.start, one.start + one.length, str(one.name), thread=one.thread)
        for number, one in enumerate(self.launches):
            self._op(builder, number, one)
        for thread, start, correlation in self.calls:
            builder.call(start, start + 1, thread=thread, correlation=correlation)
        return builder.trace()

    @staticmethod
    def _op(builder: TraceBuilder, number: int, one: Event) -> None:
        name = one.name or f"op {number}"
        if name == "copy":
            row = {"kind": "h2d", "bytes": one.length << 18}
            builder.op(name, one.start, thread=one.thread, **row)
        elif name == "alone":
            builder.op(name, start=one.start, thread=one.thread)
        else:  # some start before their launch
            builder.op(name, one.start, thread=one.thread, start=one.start + one.length - 1)


MARKER = "autograd::engine::evaluate_function: AddmmBackward0"
NAMES = (
    "step 1", "step 2", "step 3", "forward", "forward", "backward", "backward", "optimizer",
    "validation", "DataLoader", "layer 3", "data for 1", "data for 2", MARKER, "aten::mm, seq = 4",
    "aten::mm, seq = 5", None, "", "train epoch 7",
)  # fmt: skip
LAUNCHES = (
    None, None, None, "gemm", "dgrad", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "copy", "alone",
)  # fmt: skip


def _events(
    names: Iterable[str | None], most: int, latest: int = 120
) -> st.SearchStrategy[list[Event]]:
    one = st.builds(
        Event, st.sampled_from(THREADS), st.integers(0, latest), st.integers(0, 40),
        st.sampled_from(list(names)),
    )  # fmt: skip
    return st.lists(one, max_size=most)


def _steps(process: int, count: int, *, named: bool, backward: bool) -> list[Event]:
    """Training steps of 40 ns each on the first thread of a process."""
    thread = 10 * process
    parts = [(1, 10, "forward"), (25, 10, "optimizer"), (2, 3, "data for {}"), (5, 4, "layer 3")]
    parts += [(12, 12, "backward")] if backward else []
    parts += [(0, 39, "step {}")] if named else []
    return [
        Event(thread, 40 * number + start, length, name.format(number))
        for number in range(count)
        for start, length, name in parts
    ]


def plans(most: int = 12) -> st.SearchStrategy[Plan]:
    """Return random traces: training steps of up to two processes, and anything beside them."""
    steps = st.builds(
        _steps, st.integers(0, 1), st.integers(0, 3), named=st.booleans(), backward=st.booleans()
    )
    names = st.sampled_from((None, "pt_autograd_0", "pt_data_worker", "main"))
    correlations = st.one_of(st.none(), st.integers(1, most))
    call = st.tuples(st.sampled_from(THREADS), st.integers(0, 130), correlations)
    return st.builds(
        lambda one, other, more, *rest: Plan([*one, *other, *more], *rest),
        steps,
        steps,
        _events(NAMES, most),
        _events(("forward", "backward", "validation", "step 1", "thing"), 5),
        _events(LAUNCHES, most),
        st.lists(call, max_size=6),
        st.fixed_dictionaries(dict.fromkeys(THREADS, names)),
        st.sampled_from(((None,), (None, "NCCL"), (None, None, "DALI"))),
    )


HEIGHTS = st.lists(st.integers(1, 7), min_size=1, max_size=4)
