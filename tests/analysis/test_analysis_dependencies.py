"""What waits for what: paths and replays by hand, and against a naive longest path."""

from __future__ import annotations

import itertools
import re
from functools import cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import networkx as nx
import numpy as np
import polars as pl
import pytest
from effort import by_day, examples
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_builder import TraceBuilder

import tracekit
from tracekit.analysis.communication import Traffic
from tracekit.analysis.dependencies import (
    CHANGES,
    _dependency_graph,
    _edges,
    critical_path,
    parse_changes,
    price_of,
    whatif,
)
from tracekit.analysis.dependencies._changes import Bandwidth
from tracekit.analysis.dependencies._dependency_graph import (
    TOGETHER_NS,
    TOLERATED_NS,
    _fitted,
    _listed,
    _pairs,
    _with_further,
    dependencies_of,
)
from tracekit.analysis.dependencies._edges import EDGES, Moments, moments_of
from tracekit.analysis.dependencies._job import TRUSTED, distrust, job_of
from tracekit.analysis.dependencies._sweeps import (
    FITTED,
    LATEST,
    NO_NODE,
    Net,
    late_on_paths,
    latest,
    put_in_order,
    replay,
)
from tracekit.analysis.dependencies._whatif import ALL, UNCHANGED, Price, _ended
from tracekit.analysis.diagnosis import KERNELS_OF, RULES
from tracekit.analysis.idle_time import idle
from tracekit.engine import step_windows
from tracekit.errors import MissingDataError, UndecidedError, UsageError
from tracekit.machine import machine_of
from tracekit.model import TABLES, Answer, Trace
from tracekit.present import with_headline

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tracekit.model import Answer

US = 1_000

# -- the sweeps ------------------------------------------------------------------------------------


@st.composite
def graphs(draw: st.DrawFn) -> tuple[int, list[tuple[int, int, int]], list[int]]:
    """Draw moments with edges from lower to higher ones, numbered anew, and what each carries."""
    count = draw(st.integers(1, 9))
    names = draw(st.permutations(range(count)))
    pairs = [(a, b) for b in range(count) for a in range(b)]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    edges = [(names[a], names[b], draw(st.integers(0, 20))) for a, b in chosen]
    return count, edges, draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))


class _Arrays:
    """A graph as the sweeps take it."""

    def __init__(self, count: int, edges: list[tuple[int, int, int]]) -> None:
        inward = sorted(edges, key=lambda edge: edge[1])
        outward = sorted(edges)
        numbers = np.arange(count + 1)
        first = np.searchsorted([edge[1] for edge in inward], numbers)
        self.edges = inward
        self.into = (
            first,
            np.array([edge[0] for edge in inward], np.int64),
            np.array([edge[2] for edge in inward], np.int64),
        )
        out = (np.searchsorted([edge[0] for edge in outward], numbers),
               np.array([edge[1] for edge in outward], np.int64))  # fmt: skip
        self.order = np.zeros(count, np.int64)
        self.placed = put_in_order(first, out, np.zeros(count, np.int64), self.order)


def _longest(count: int, edges: list[tuple[int, int, int]], carried: list[int]) -> list[int]:
    """Return when each moment comes, as the longest path to it that networkx finds."""
    found = []
    for moment in range(count):
        graph: nx.DiGraph = nx.DiGraph()
        graph.add_nodes_from(range(count))
        graph.add_weighted_edges_from((a, b, length + carried[b]) for a, b, length in edges)
        before = graph.subgraph({moment, *nx.ancestors(graph, moment)})
        found.append(int(nx.dag_longest_path_length(before)))
    return found


@settings(max_examples=examples(50))
@given(graphs())
def test_a_replay_is_the_longest_path_to_each_moment(
    drawn: tuple[int, list[tuple[int, int, int]], list[int]],
) -> None:
    count, edges, carried = drawn
    arrays = _Arrays(count, edges)
    assert arrays.placed == count
    time = np.zeros(count, np.int64)
    replay(arrays.order, arrays.into, np.array(carried), time)
    waited = {b for _, b, _ in edges}
    expected = _longest(count, edges, [carried[m] if m in waited else 0 for m in range(count)])
    assert time.tolist() == expected


@settings(max_examples=examples(50))
@given(graphs())
def test_the_way_back_is_a_longest_path_and_slack_is_what_it_leaves(
    drawn: tuple[int, list[tuple[int, int, int]], list[int]],
) -> None:
    count, edges, _ = drawn
    arrays, none = _Arrays(count, edges), np.zeros(count, np.int64)
    time = np.zeros(count, np.int64)
    replay(arrays.order, arrays.into, none, time)
    end = int(time.argmax())
    ends = np.array([end]), np.array([0])
    assert late_on_paths(ends, arrays.into, time) == 0  # so lengths of edges add up to the end
    allowed = np.full(count, LATEST)
    allowed[end] = time[end]
    latest(arrays.order, arrays.into, none, allowed)
    for moment in range(count):
        graph: nx.DiGraph = nx.DiGraph()
        graph.add_nodes_from(range(count))
        graph.add_weighted_edges_from(edges)
        if not nx.has_path(graph, moment, end):
            assert allowed[moment] == LATEST
            continue
        after = graph.subgraph(({moment} | nx.descendants(graph, moment))
                               & ({end} | nx.ancestors(graph, end)))  # fmt: skip
        assert allowed[moment] == time[end] - nx.dag_longest_path_length(after)


@settings(max_examples=examples(50))
@given(graphs())
def test_what_edges_do_not_explain_on_the_way_back_is_late(
    drawn: tuple[int, list[tuple[int, int, int]], list[int]],
) -> None:
    count, edges, carried = drawn
    arrays, time = _Arrays(count, edges), np.zeros(count, np.int64)
    replay(arrays.order, arrays.into, np.array(carried), time)
    node, late = int(time.argmax()), 0
    ends = np.array([node]), np.array([0])
    while time[node] > 0:
        into = [(time[a] + length, a) for a, b, length in arrays.edges if b == node]
        ready, before = max(into, key=lambda each: each[0])
        late, node = late + time[node] - ready, before
    assert late_on_paths(ends, arrays.into, time) == late


def test_what_waits_for_itself_has_no_place() -> None:
    assert _Arrays(3, [(0, 1, 1), (1, 0, 1)]).placed == 1


# -- paths by hand ---------------------------------------------------------------------------------


class _Run(NamedTuple):
    """A run of which all steps are looked at."""

    trace: Trace

    def of_steps(self, iterations: tuple[int, int] | None) -> _Run:
        assert iterations is None
        return self

    def traffic(self, *, topology: object = None) -> Traffic:
        assert topology is None
        return Traffic(self.trace, machine_of(self.trace.read("devices"), "dgx1v"))


def _ask(question: Callable[..., Answer], trace: Trace, *rest: Any, **options: Any) -> Answer:
    run = _Run(trace)
    return question(*((run,) if question is critical_path else (trace, run.traffic())), *rest,
                    **options)  # fmt: skip


def _path(trace: Trace, by: str = "cause", **options: Any) -> dict[Any, int]:
    rows = _ask(critical_path, trace, by, **options).rows
    columns = rows.columns[: rows.columns.index("segments")]
    return {
        row[: len(columns)] if len(columns) > 1 else row[0]: row[-1]
        for row in rows.select(*columns, "path_ns").rows()
    }


def _said(trace: Trace) -> str:
    return str(with_headline(_ask(critical_path, trace))["headline"])


def _replayed(trace: Trace, **changes: Any) -> dict[str, float]:
    rows = _ask(whatif, trace, parse_changes(**changes)).rows
    return dict(rows.select("change", "step_ns").rows())


def _ends(trace: Trace, **changes: Any) -> dict[str, tuple[float, float]]:
    """Return the ranges of steps, by their change, without what replays are off by."""
    rows = _ask(whatif, trace, parse_changes(**changes)).rows[1:]
    found = rows.select("change", pl.col("low_ns") / 0.99, pl.col("high_ns") / 1.01)
    return {change: (low, high) for change, low, high in found.rows()}


def _call(b: TraceBuilder, name: str, start: int, end: int, thread: int = 0) -> None:
    b.call(start, end, thread=thread, correlation=9_000 + len(b.rows["calls"]))
    b.rows["calls"][-1]["name"] = name


def _op(b: TraceBuilder, name: str, at: int, start: int, end: int, **row: Any) -> None:
    """Add an op, and the call of 4 us at `at` that launches it, all in us."""
    b.op(name, at * US, start=start * US, end=end * US, launch_end=(at + 4) * US, **row)
    b.rows["calls"][-1]["end"] = (at + 4) * US
    b.rows["calls"][-1]["thread"] = row.get("thread", 0)
    b.rows["ops"][-1]["call"] = len(b.rows["calls"]) - 1


def _linked(b: TraceBuilder) -> Trace:
    """Make the trace; calls are numbered by start, and ops name theirs."""
    used = sorted({row["device"] for row in b.rows["ops"]})
    b.rows["devices"] = [
        {"device": device, "report": 0, "active": True, "identity": "ordinal"} for device in used
    ]
    trace = b.trace()
    calls = trace.read("calls").select("call", "correlation", "process")
    ops = trace.read("ops").drop("call").join(
        calls, on=["process", "correlation"], how="left", maintain_order="left"
    )  # fmt: skip
    return trace.with_tables({"ops": ops})


def _late_launch() -> Trace:
    """Return two kernels: the second is launched 40 us after the first has ended."""
    b = TraceBuilder()
    _op(b, "gemm", 0, 7, 100, stage="FP")
    _op(b, "relu", 140, 147, 200, stage="FP")
    return _linked(b)


def test_a_late_launch_is_the_hosts() -> None:
    # Back from 200: relu took 53, its launch 7, and the host came to it 140 after its last call,
    # of which 133 are of the step, which began with gemm at 7.
    trace = _late_launch()
    assert _path(trace) == {"gpu": 53 * US, "latency": 7 * US, "host": 133 * US}
    assert _path(trace, "kernel") == {None: 140 * US, "relu": 53 * US}
    assert _replayed(trace, speed=["gemm=2x"])["speed gemm=2x"] == 193 * US
    assert _replayed(trace, speed=["relu=2x"])["speed relu=2x"] == 193 * US - 26_500


@cache  # what is found of it, is found once
def _behind() -> Trace:
    """Return two kernels of a stream, launched early: the second follows the first by 1 us."""
    b = TraceBuilder()
    _op(b, "gemm", 0, 7, 100, stage="FP")
    _op(b, "relu", 10, 101, 200, stage="BP")
    return _linked(b)


def test_a_stream_is_in_order() -> None:
    trace = _behind()
    assert _path(trace, "stage,cause") == {
        ("BP", "gpu"): 99 * US, ("BP", "latency"): 1 * US, ("FP", "gpu"): 93 * US
    }  # fmt: skip
    found = _replayed(trace, stage=["BP=2x"], speed=["gemm=3x"])
    assert found == {
        "measured": 193 * US,
        "unchanged, replayed": 193 * US,
        "stage BP=2x": 193 * US - 49_500,
        "speed gemm=3x": 193 * US - 62_000,
        "all of these": 193 * US - 49_500 - 62_000,
    }


BATCHES = {"cause": 1, "stage,cause": 3, "kernel,link": 1, "iteration,rank": 3, "device": 1}
"""How many segments are in a batch, of those of a step: 1 and 3 at night, by day three of these."""


@pytest.mark.parametrize(
    ("by", "size"),
    by_day(product(BATCHES, (1, 3)), *[*BATCHES.items()][:3]),
)
def test_paths_are_added_up_alike_in_any_batches(
    by: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    traces = [_behind(), _loading(300), _loading(3_000)]
    whole = [_ask(critical_path, trace, by) for trace in traces]
    monkeypatch.setattr(_dependency_graph, "BATCH", size)
    monkeypatch.setattr(_edges, "ROWS", size)
    for trace, answer in zip(traces, whole, strict=True):
        parts = _ask(critical_path, trace, by)
        assert parts.rows.equals(answer.rows)
        assert parts.meta == answer.meta
        assert parts.source().equals(answer.source())


def test_what_no_op_does_has_a_name_for_people_alone() -> None:
    answer = _ask(critical_path, _behind(), "kernel")
    assert None in answer.rows["name"]
    told = answer.rows["name"].fill_null("(no op: host or waiting)")
    assert answer.readable_rows["name"].to_list() == told.to_list()
    assert answer.readable_rows.drop("name").equals(answer.rows.drop("name"))


def test_a_run_without_steps_is_called_so() -> None:
    b = TraceBuilder()
    _op(b, "gemm", 0, 7, 200)
    answer = _ask(critical_path, _linked(b), "iteration")
    assert answer.rows["iteration"].to_list() == [None]
    assert answer.readable_rows["iteration"].to_list() == ["(whole run)"]
    told = "no steps are known: the whole recording counts as one"
    assert told in answer.warnings
    assert told in _ask(whatif, _linked(b), parse_changes(host="2x")).warnings
    assert told not in _ask(critical_path, _launching()).warnings


def test_steps_of_two_kinds_are_named_beside_their_median() -> None:
    """Twelve steps by turns of 1 and 5 ms: the median of all is that of either."""
    b = TraceBuilder()
    start = 0
    for step in range(12):
        length = (1, 5)[step % 2] * 1_000 * US + step * US
        b.op("gemm", start, start=start + 10, end=start + length, iteration=step)
        b.iteration(step, start, start + length, ops=1, whole=True)
        start += length
    answer = _ask(critical_path, _linked(b))
    (told,) = [text for text in answer.warnings if "kinds" in text]
    assert re.match(r"steps are of 2 kinds: 6 of 1\.0\d ms and 6 of 5\.0\d ms", told)


def test_a_call_that_returns_as_its_copy_begins_waits_for_the_gpu() -> None:
    """By hand: gemm of 10 ms, a copy after it of 1 ms, and relu of 1 ms, launched after that call.

    With gemm in 5 ms the call returns 5 ms earlier: 7 ms of 12.
    """
    b = TraceBuilder()
    ms = 1_000 * US
    b.op("gemm", 0, start=2, end=10 * ms, iteration=0)
    b.op("copy", 10, start=10 * ms + 2, end=11 * ms, launch_end=10 * ms + 1_000, iteration=0,
         kind="h2d", copy_kind="HtoD", bytes=1 << 20)  # fmt: skip
    b.rows["calls"][-1]["end"] = 10 * ms + 1_000
    b.op("relu", 10 * ms + 2_000, start=11 * ms + 2, end=12 * ms, iteration=0)
    for number, row in enumerate(b.rows["ops"]):
        row["call"] = number
    b.iteration(0, 0, 12 * ms, ops=3, whole=True)
    low, high = _ends(_linked(b), speed=["gemm=2x"])["speed gemm=2x"]
    assert (low, high) == pytest.approx((7 * ms, 7 * ms), rel=0.03)


def test_a_range_too_wide_to_tell_is_in_plain_numbers() -> None:
    """The same kernels a hundred thousand times as long: no 1.485e+03 and 2e+04 ms."""
    wanted = r"would be between 1,48\d and [\d,]+ ms: ask for a smaller change$"  # no loader there
    with pytest.raises(UndecidedError, match=wanted):
        _ask(whatif, _launching(early=40, unit=10**8), parse_changes(host="inf"))


@pytest.mark.parametrize("maker", ["cuda", "hip"])
def test_slack_is_what_an_op_could_take_longer(maker: str) -> None:
    b = TraceBuilder()
    _op(b, "gemm", 0, 7, 200, stage="FP")
    _op(b, "copy", 10, 17, 50, stage="FP", stream=8)
    _op(b, "relu", 20, 201, 300, stage="FP")
    _call(b, f"{maker}StreamWaitEvent", 16 * US, 17 * US)
    rows = _ask(critical_path, _linked(b), kernels=5).rows
    assert dict(rows.select("name", "slack_min_ns").rows()) == {
        "gemm": 0, "relu": 0, "copy": 151 * US
    }  # fmt: skip
    assert rows["on_path"].to_list() == [1, 1, 0]
    # Of several of one name the least counts, and the middle one.
    b.rows["ops"][0]["name"] = "copy"
    rows = _ask(critical_path, _linked(b), kernels=5).rows.filter(name="copy")
    assert rows.select("ops", "slack_min_ns", "slack_p50_ns").rows() == [(2, 0, 75.5 * US)]


def _synchronised() -> TraceBuilder:
    """Return a kernel that the host waits for before it launches the next one."""
    b = TraceBuilder()
    _op(b, "gemm", 0, 7, 100, stage="FP")
    _call(b, "cudaDeviceSynchronize", 10 * US, 105 * US)
    _op(b, "relu", 115, 122, 200, stage="FP")
    return b


def test_a_call_that_synchronises_waits_for_the_gpu() -> None:
    trace = _linked(_synchronised())
    # gemm 93, return 5, host 10, launch 7, relu 78
    assert _path(trace) == {"gpu": 171 * US, "latency": 12 * US, "host": 10 * US}
    found = _replayed(trace, speed=["gemm=2x"], no_sync=True)
    assert found["speed gemm=2x"] == 193 * US - 46_500
    # Without it relu is launched 20 us after the begin of the synchronisation, but follows gemm.
    assert found["no synchronisation"] == (93 + 78) * US


@pytest.mark.parametrize("frees", ["cudaFree", "hipFree"])
def test_what_frees_memory_waits_even_without_synchronisation(frees: str) -> None:
    b = TraceBuilder()
    _op(b, "gemm", 0, 7, 100, stage="FP")
    _call(b, frees, 10 * US, 105 * US)
    _op(b, "relu", 115, 122, 200, stage="FP")
    found = _replayed(_linked(b), no_sync=True, speed=["gemm=2x"])
    assert found["no synchronisation"] == found["measured"] == 193 * US
    assert found["speed gemm=2x"] == 193 * US - 46_500


def _copied(rate: int) -> tuple[float, float]:
    """Return a step with PCIe twice as fast, where a copy of as many bytes/ns holds its call."""
    b = TraceBuilder()
    _op(b, "[CUDA memcpy HtoD]", 0, 7, 107, kind="h2d", copy_kind="HtoD", bytes=rate * 100 * US,
        dst_device=0, stage="FP")  # fmt: skip
    b.rows["ops"][-1]["launch_end"] = b.rows["calls"][-1]["end"] = 110 * US
    _op(b, "gemm", 120, 127, 200, stage="FP")
    return _ends(_linked(b), bandwidth=["pcie=2x"])["bandwidth pcie=2x"]


def test_copies_through_the_drivers_buffers_are_not_held_up_by_pcie() -> None:
    # Up to 10 us of a copy are no bandwidth.
    assert _copied(rate=12) == pytest.approx(((193 - 50) * US, (193 - 45) * US))
    assert _copied(rate=3) == pytest.approx((193 * US, 193 * US))


def test_a_launch_waits_for_room_in_the_queue() -> None:
    b = TraceBuilder()
    for number in range(300):
        start = 7 + 100 * number
        _op(b, "gemm", 5 * number, start, start + 99, stage="FP")
    # This call lasts until the 21st op is done, and 279 ops are queued behind it.
    b.op("relu", 1_510 * US, start=30_010 * US, end=30_100 * US, launch_end=2_110 * US, stage="FP")
    b.rows["calls"][-1]["end"] = 2_110 * US
    _call(b, "cudaDeviceSynchronize", 2_120 * US, 2_130 * US)
    trace = _linked(b)
    found = _replayed(trace, stage=["FP=4x"])
    assert found["stage FP=4x"] == pytest.approx(301 * 25_750, rel=0.01)


def test_main_and_backward_thread_hand_over() -> None:
    b = TraceBuilder()
    _op(b, "fprop", 0, 7, 20, stage="FP")
    _op(b, "dgrad", 100, 107, 120, stage="BP", thread=1)
    _op(b, "wgrad", 110, 121, 140, stage="BP", thread=1)
    _op(b, "sgd", 200, 207, 220, stage="WU")
    b.range(0, 230 * US, "step", thread=0)
    trace = _linked(b)
    # sgd's launch follows the last call of the backward thread, 86 us before; that thread's own
    # first call follows the main thread's.
    assert _path(trace, "cause") == {"gpu": 13 * US, "host": 193 * US, "latency": 7 * US}
    rows = _ask(critical_path, trace, "stage,cause").rows
    assert dict(rows.filter(cause="host").select("stage", "path_ns").rows()) == {
        "WU": 86 * US, "BP": (200 - 86 - 7) * US
    }  # fmt: skip


def test_collectives_begin_when_the_last_one_joins() -> None:
    b = TraceBuilder()
    for process, (joined, late) in enumerate(((20, 0), (60, 40))):
        thread = 10 * process
        row: dict[str, Any] = {"thread": thread, "device": process, "stage": "WU"}
        _op(b, "wgrad", 0, 7, joined - 1, **row)
        _op(b, "ncclAllReduce", 10, joined, 100, kind="collective", collective="all_reduce",
            **row | {"stream": 9})  # fmt: skip
        _op(b, "sgd", 12, 101, 120 + late, **row)
        _call(b, "cudaStreamWaitEvent", 9 * US, 9 * US + 500, thread)
        _call(b, "cudaStreamWaitEvent", 11 * US, 11 * US + 500, thread)
    trace = _linked(b)
    assert _path(trace, "device,cause") == {
        (1, "gpu"): (59 - 7 + 59) * US, (1, "comm"): 40 * US, (1, "latency"): 2 * US,
    }  # fmt: skip
    found = _replayed(trace, bandwidth=["collective=2x"], overlap=True)
    # One so short may be all latency.
    ends = _ends(trace, bandwidth=["collective=2x"])["bandwidth collective=2x"]
    assert ends == pytest.approx(((153 - 20) * US, 153 * US))
    # sgd follows wgrad on its stream.
    assert found["perfect overlap"] == (52 + 59) * US


def _job_of(took: dict[int, int], host: dict[int, int], *, more: int = 0) -> Trace:
    """Three steps of ranks that compute for so many us, all-reduce for 100 and update for 10.

    The all-reduce of the second step takes 130.

    Each rank's host makes a call of so many us before it launches the computing. Rank 0 runs `more`
    kernels of its own.
    """
    b = TraceBuilder()
    for step, (rank, length) in itertools.product(range(3), took.items()):
        met = max(host[each] + took[each] for each in took) + (50 if step == 1 else 20)
        at, thread = 1_000 * step, 10 * rank
        row: dict[str, Any] = {"thread": thread, "device": rank, "iteration": step}
        b.iteration(
            step, at * US, (at + met + 120) * US, thread=thread, source="ranges", whole=True
        )
        _call(b, "cudaFuncGetAttributes", at * US, (at + host[rank]) * US, thread)
        begin = at + host[rank] + 7
        _op(b, "wgrad", begin - 7, begin, begin + length, stage="BP", **row)
        for number in range(more if rank == 0 else 0):
            _op(
                b,
                "own",
                begin - 3,
                begin + length + 1,
                begin + length + 2 + number,
                stage="BP",
                **row,
            )
        _op(b, "ncclAllReduce", begin - 2, begin + length + 2, at + met + 100, kind="collective",
            collective="all_reduce", stage="WU", **row)  # fmt: skip
        _op(b, "sgd", begin + 3, at + met + 101, at + met + 111, stage="WU", **row)
        _call(b, "cudaDeviceSynchronize", (begin + 8) * US, (at + met + 112) * US, thread)
    return _linked(b)


def test_steps_of_several_gpus_are_called_so() -> None:
    """A step of eight GPUs lasted 18.9 ms, and 15.1 ms per GPU, and both were called a step."""
    trace = _job_of({0: 100, 1: 100}, {0: 20, 1: 20})
    assert _ask(critical_path, trace).meta["sum_over"].endswith(" steps of 2 GPUs together")
    found = _ask(whatif, trace, parse_changes(host="2x"))
    assert found.meta["per"] == "step of 2 GPUs together"


@pytest.mark.slow
def test_steps_without_stragglers() -> None:
    """By hand: the mean of 100, 100 and 400 us is 200, the median 100.

    The mean of hosts of 20, 20 and 50 us is 30: three steps end 20 earlier each, and the first one
    begins 10 later, with the computing of a rank whose host took 20.
    """
    of_hosts = (3 * 20 + 10) / 3 * US
    trace = _job_of({0: 100, 1: 100, 2: 400}, {0: 20, 1: 20, 2: 50})
    rows = _ask(whatif, trace, parse_changes(without_straggler="rank")).rows
    saved = dict(rows.drop_nulls("saved_ns").select("change", "saved_ns").rows())
    assert saved == {
        UNCHANGED: 0,
        "GPU 2 no slower than the median": pytest.approx(330 * US, abs=2 * US),
    }
    saved = _saved(trace, "part")
    assert saved["computing alike"] == pytest.approx(200 * US, abs=2 * US)
    assert saved["host alike"] == pytest.approx(of_hosts, abs=US)
    assert saved["communication alike"] == pytest.approx(30 / 3 * US, abs=US)
    assert saved[ALL] == pytest.approx(210 * US + of_hosts, abs=2 * US)
    assert _saved(trace, "all") == {
        UNCHANGED: 0, "all ranks alike": pytest.approx(saved[ALL], abs=2 * US),
    }  # fmt: skip
    kinds = _saved(trace, "op")
    assert kinds == {
        UNCHANGED: 0,
        ALL: pytest.approx(saved[ALL], abs=2 * US),
        **{f"{kind} alike": pytest.approx(saved[f"{part} alike"], abs=US) for kind, part in (
            ("BP computing", "computing"), ("host", "host"), ("all_reduce", "communication"),
        )},
    }  # fmt: skip
    # Twice as fast, kernels that take 200 us take 100.
    both = _replayed(trace, without_straggler="all", speed=["wgrad=2x"])
    assert both["all ranks alike"] - both[ALL] == pytest.approx(100 * US, abs=2 * US)
    of_stages = _saved(trace, "stage")
    assert of_stages["BP alike"] == pytest.approx(200 * US + of_hosts, abs=2 * US)
    assert of_stages["WU alike"] == pytest.approx(10 * US, abs=2 * US)


def _saved(trace: Trace, by: str) -> dict[str, float]:
    rows = _ask(whatif, trace, parse_changes(without_straggler=by)).rows
    return dict(rows.drop_nulls("saved_ns").select("change", "saved_ns").rows())


@pytest.mark.slow
def test_a_change_of_nothing_saves_nothing() -> None:
    run = tracekit.open(Path(__file__).parents[2] / "sample_traces" / "closure_1gpu.sqlite")
    rows = run.whatif(bandwidth=["nvlink=2x"])
    (row,) = rows.filter(dependencies=0).drop_nulls("low_ns").tail(1).rows(named=True)
    assert (row["saved_ns"], row["speedup"]) == (0, 1)
    assert row["step_ns"] == rows.filter(change=UNCHANGED)["step_ns"].item()


def test_waits_of_unknown_participants_stay_as_they_are() -> None:
    """Ranks that wait in a call that is not matched hide what a slow one costs."""
    trace = _job_of({0: 100, 1: 300}, {0: 20, 1: 20})
    own = (pl.col("kind") == "collective") & (pl.col("device") == 0)
    ops = trace["ops"].collect()
    renamed = (
        pl.when(own).then(pl.lit("all_gather")).otherwise(pl.col("collective").cast(pl.String))
    )
    ops = ops.with_columns(collective=renamed.cast(ops.schema["collective"]))
    for some, told in ((trace, False), (trace.with_tables({"ops": ops}), True)):
        warnings = _ask(whatif, some, parse_changes(without_straggler="all")).warnings
        assert any("waits in these stay as they are" in text for text in warnings) is told


def test_work_that_no_other_rank_does_stays_as_it_is() -> None:
    trace = _job_of({0: 100, 1: 100}, {0: 20, 1: 20}, more=2)
    found = _ask(whatif, trace, parse_changes(without_straggler="all"))
    assert not any("stays as it is" in each for each in found.meta["warnings"])
    trace = _job_of({0: 10, 1: 10}, {0: 20, 1: 20}, more=9)
    warnings = _ask(whatif, trace, parse_changes(without_straggler="all")).meta["warnings"]
    assert any("of kernels and copies stays as it is" in each for each in warnings)
    with pytest.raises(UndecidedError, match="no work of a step is that of another rank"):
        _saved(_job_of({0: 100}, {0: 20}), "all")
    with pytest.raises(UndecidedError, match="no rank takes longer than the others"):
        _saved(_job_of({0: 100, 1: 100}, {0: 20, 1: 20}), "rank")


def test_overlap_leaves_the_work_of_each_stream() -> None:
    b = TraceBuilder()
    for step in range(4):
        at = 400 * step
        b.iteration(step, at * US, (at + 400) * US, source="ranges", whole=True)
        row: dict[str, Any] = {"iteration": step}
        _op(b, "gemm", at, at + 7, at + 57, stage="FP", **row)
        _call(b, "cudaStreamWaitEvent", (at + 5) * US, (at + 5) * US + 500)
        _op(b, "copy", at + 6, at + 58, at + 358, stage="WU", kind="p2p", stream=9, src_device=0,
            dst_device=1, **row)  # fmt: skip
        _call(b, "cudaStreamWaitEvent", (at + 11) * US, (at + 11) * US + 500)
        _op(b, "relu", at + 12, at + 359, at + 389, stage="FP", **row)
        _call(b, "cudaDeviceSynchronize", (at + 20) * US, (at + 390) * US)
    # Copies of 300 us in each step leave no step shorter, whatever waits for them.
    assert _replayed(_linked(b), overlap=True)["perfect overlap"] == 300 * US


def test_overlap_keeps_the_order_of_other_work_on_a_stream_with_communication() -> None:
    b = TraceBuilder()
    for step in range(4):
        at = 400 * step
        b.iteration(step, at * US, (at + 400) * US, source="ranges", whole=True)
        row: dict[str, Any] = {"iteration": step}
        _op(b, "gemm", at, at + 7, at + 107, stage="FP", **row)
        _op(b, "copy", at + 6, at + 108, at + 208, stage="FP", kind="p2p", src_device=0,
            dst_device=1, **row)  # fmt: skip
        _call(b, "cudaStreamSynchronize", (at + 11) * US, (at + 209) * US)
        _op(b, "relu", at + 300, at + 307, at + 337, stage="FP", **row)
        _call(b, "cudaDeviceSynchronize", (at + 305) * US, (at + 338) * US)
    # The host waits for gemm and not for the copy, and launches relu as late after it as before.
    assert _replayed(_linked(b), overlap=True)["perfect overlap"] == 281_500


def _bucketed(kind: str, size: int = 20_000_000) -> Answer:
    """Return two all-reduces of 10 MB, each awaited by an update, joined to one of a size."""
    b = TraceBuilder()
    b.iteration(0, 0, 300 * US, source="ranges", whole=True)
    row: dict[str, Any] = {"iteration": 0}
    exchange = {**row, "kind": "collective", "collective": kind, "stream": 9, "stage": "WU"}
    _op(b, "wgrad", 0, 7, 20, stage="BP", **row)
    _op(b, "ncclAllReduce", 5, 21, 61, **exchange)
    _op(b, "ncclAllReduce", 10, 62, 102, **exchange)
    _op(b, "sgd", 15, 62, 72, stage="WU", **row)
    _op(b, "sgd", 20, 103, 113, stage="WU", **row)
    _call(b, "cudaStreamWaitEvent", 4 * US + 500, 4 * US + 600)
    _call(b, "cudaStreamWaitEvent", 19 * US + 500, 19 * US + 600)
    trace = _linked(b)
    traffic = Traffic(
        trace, machine_of(trace.read("devices"), "dgx1v"), sizes={"all_reduce": 10_000_000}
    )
    return whatif(trace, traffic, parse_changes(bucket=size))


def _steps_of(found: Answer) -> dict[str, float]:
    return dict(found.rows.select("change", "step_ns").rows())


def test_smaller_buckets_are_refused_with_the_reason() -> None:
    found = _bucketed("all_reduce", 5_000_000)
    steps = _steps_of(found)
    assert steps["bucket 5MB"] == steps["unchanged, replayed"]
    assert any(
        "2 of 2 all-reduces of known size are larger and stay as they are" in text
        for text in found.warnings
    )
    assert not any("are larger" in text for text in _bucketed("all_reduce").warnings)


def test_larger_buckets_are_awaited_as_a_whole() -> None:
    # 80 us of transfer in one, from 20 us on: the second sgd ends at 113 us as before.
    found = _steps_of(_bucketed("all_reduce"))
    assert found["bucket 20MB"] == pytest.approx(found["measured"], abs=2 * US)
    assert _steps_of(_bucketed("all_gather"))["bucket 20MB"] == found["measured"]


@cache
def _loading(waits: int) -> Trace:
    """Return five steps of 100 us of work, before each of which the host waits for input."""
    b = TraceBuilder()
    period = 120 + waits
    for step in range(5):
        at = step * period
        b.iteration(step, at * US, (at + 120) * US, source="ranges")
        _op(b, "gemm", at + 2, at + 9, at + 109, stage="FP", iteration=step)
        _call(b, "cudaDeviceSynchronize", (at + 10) * US, (at + 118) * US)
    return _linked(b)


def test_a_loader_that_is_waited_for_is_a_chain_of_its_own() -> None:
    trace = _loading(300)
    found = _replayed(trace, loader="2x", speed=["gemm=inf"])
    assert found["unchanged, replayed"] == pytest.approx(found["measured"], rel=0.03)
    four = 4 * 420 + 100
    assert found["measured"] == four * US / 5
    # Gaps before the third and later steps follow the one before; half of 420 us each.
    assert found["loader 2x"] < found["measured"] - 100 * US
    # Without the work the loader is waited for as long, or the thread loads itself.
    low, high = _ends(trace, speed=["gemm=inf"])["speed gemm=inf"]
    assert high > found["measured"] - 60 * US
    assert low < found["measured"] - 80 * US


def test_a_pause_without_a_sign_of_a_loader_has_the_name_that_idle_gives_it() -> None:
    path = _path(_loading(3_000))
    assert path["between_steps"] == 4 * 3_000 * US
    assert "input" not in path


@pytest.mark.parametrize("work", [3_000, 600])
def test_who_is_away_while_the_gpu_works_waits_for_no_input_where_there_is_none(work: int) -> None:
    """Steps of 100 us of the host, which waits for the GPU once it has worked without calls."""
    b = TraceBuilder()
    for step in range(5):
        at = (work + 200) * step
        b.iteration(step, at * US, (at + 100) * US, source="ranges")
        _op(b, "gemm", at + 2, at + 9, at + work + 9, stage="FP", iteration=step)
        _call(b, "cudaDeviceSynchronize", (at + work + 105) * US, (at + work + 110) * US)
    assert not _path(_linked(b)).get("input")


@pytest.mark.parametrize("lost", [False, True])
def test_waits_that_are_lost_beside_others_are_told(*, lost: bool) -> None:
    """In the second half of each step the host waits for 2 ms of work, with a record or without."""
    b = TraceBuilder()
    for step in range(5):
        at = 4_000 * step
        b.iteration(step, at * US, (at + 3_990) * US, source="ranges")
        for begin in (at + 10, at + 2_000):
            _op(b, "gemm", begin, begin + 10, begin + 1_900, stage="FP", iteration=step)
            if begin < at + 2_000 or not lost:
                _call(b, "cudaDeviceSynchronize", (begin + 12) * US, (begin + 1_905) * US)
    warnings = _ask(critical_path, _linked(b)).meta.get("warnings", [])
    said = [text for text in warnings if "synchronisations may be lost" in text]
    assert len(said) == lost
    assert not lost or said[0].startswith("38.0 % of these steps, counted as host, may wait")


@cache
def _unmarked(asleep: bool, *pauses: int, source: str = "structure") -> Trace:
    """Return steps of 100 us, each after a pause of the host before its input.

    Where ranges tell steps, the pause lies within.
    """
    b = TraceBuilder()
    b.rows["host"] = []
    at = 0
    for step, pause in enumerate(pauses):
        if asleep:
            b.rows["host"].append(
                {"report": 0, "process": 0, "thread": 0, "start": (at + 5) * US, "library": "os",
                 "end": (at + pause - 5) * US, "name": "poll", "group": "wait"}
            )  # fmt: skip
        begin = at if source == "ranges" else at + pause
        at += pause
        b.iteration(step, begin * US, (at + 108) * US, source=source)
        _op(b, "HtoD", at, at + 7, at + 9, kind="h2d", stage="IO", iteration=step)
        _op(b, "gemm", at + 6, at + 10, at + 100, stage="FP", iteration=step)
        _call(b, "cudaDeviceSynchronize", (at + 12) * US, (at + 105) * US)
        at += 110
    return _linked(b)


def test_who_does_not_sleep_before_input_waits_for_no_loader() -> None:
    """An optimizer on the host takes as long, and so does a program between two trainings."""
    pauses = (300,) * 6
    asleep, awake = (_replayed(_unmarked(each, *pauses), loader="inf") for each in (True, False))
    assert asleep["loader inf"] < asleep["measured"] - 200 * US
    assert awake["loader inf"] == pytest.approx(awake["measured"], rel=0.01)
    said = _ask(whatif, _unmarked(False, *pauses), parse_changes(loader="inf")).warnings
    assert any("no wait for a loader is known" in text for text in said)
    assert not any("nsys profile" in text for text in said)  # a recording may be of AMD's GPUs


@pytest.mark.parametrize(("name", "doubted"), [("save", True), ("epoch", False)])
def test_a_named_pause_between_steps_may_be_no_wait_for_a_loader(name: str, doubted: bool) -> None:
    """The range of a checkpoint, and that of an epoch around the steps."""
    b, end = TraceBuilder(), 0
    for step in range(5):
        begin = 2_000 * step
        b.iteration(step, begin * US, (begin + 1_000) * US, source="ranges")
        _op(b, "HtoD", begin, begin + 5, begin + 10, kind="h2d", stage="IO", iteration=step)
        _op(b, "gemm", begin + 6, begin + 10, begin + 1_000, stage="FP", iteration=step)
        end = begin + 2_000
        if name == "save":
            b.range((end - 990) * US, (end - 10) * US, name)
    if name == "epoch":
        b.range(0, end * US, name)
    warnings = _ask(whatif, _linked(b), parse_changes(loader="inf")).warnings
    assert any("lies in ranges between steps: `save`" in text for text in warnings) is doubted


@pytest.mark.parametrize("recorded", [True, False])
def test_who_does_not_sleep_between_steps_is_no_wait_for_a_loader(*, recorded: bool) -> None:
    """The host reads a result, then writes to a file for 2 ms; the path is the GPU's, not input."""
    b = TraceBuilder()
    for step in range(6):
        at = 4_000 * step
        b.iteration(step, at * US, (at + 2_000) * US, source="ranges")
        _op(b, "HtoD", at, at + 5, at + 10, kind="h2d", stage="IO", iteration=step)
        _op(b, "gemm", at + 6, at + 10, at + 1_990, stage="FP", iteration=step)
        _call(b, "cudaDeviceSynchronize", (at + 12) * US, (at + 1_995) * US)
    contents = {"report": 0, "feature": "OS runtime calls", "source_table": "OSRT_API",
                "present": recorded, "tells": "", "record_with": ""}  # fmt: skip
    trace = _linked(b).with_tables(
        {"contents": TABLES["contents"].conform(pl.DataFrame([contents]))}
    )
    path = _path(trace)
    assert path["between_steps"] == 5 * 2_000 * US
    assert (path["gpu"] > 10_000 * US) is recorded
    beside = _ask(critical_path, trace).meta.get("input_beside_ns", 0)
    assert (beside > 5_000 * US) is not recorded
    warnings = _ask(whatif, trace, parse_changes(loader="inf")).warnings
    sleep = "does not sleep" if recorded else "may be awake"
    assert any(f"the thread {sleep}: it may be something else" in text for text in warnings)


@pytest.mark.parametrize("workers", ["Single", "Multi"])
def test_a_loader_without_workers_does_not_work_beside_the_gpu(workers: str) -> None:
    """Loads for 2 ms, then waits for 2 ms of the GPU's work; PyTorch's range tells who loads."""
    b = TraceBuilder()
    name = f"enumerate(DataLoader)#_{workers}ProcessDataLoaderIter.__next__"
    for step in range(6):
        at = 4_010 * step
        b.iteration(step, at * US, (at + 4_005) * US, source="ranges")
        b.range(at * US, (at + 2_000) * US, name, stage="IO")
        _op(b, "HtoD", at + 2_000, at + 2_005, at + 2_010, kind="h2d", stage="IO", iteration=step)
        _op(b, "gemm", at + 2_006, at + 2_010, at + 4_000, stage="FP", iteration=step)
        _call(b, "cudaDeviceSynchronize", (at + 2_012) * US, (at + 4_003) * US)
    trace = _linked(b)
    path = _path(trace)
    assert (path["gpu"] > 6 * 1_900 * US) is (workers == "Single")
    assert path["input"] > 5 * 1_900 * US
    assert ("input_beside_ns" in _ask(critical_path, trace).meta) is (workers == "Multi")


def test_who_sleeps_before_input_within_a_step_waits_for_the_loader() -> None:
    """Ranges of steps do not say where within these a program waits."""
    trace = _unmarked(True, *(300,) * 6, source="ranges")
    found = _replayed(trace, loader="inf")
    assert found["loader inf"] < found["measured"] - 200 * US
    said = _ask(whatif, trace, parse_changes(loader="inf")).warnings
    assert not any("no wait for a loader is known" in text for text in said)


def test_short_waits_after_each_other_in_a_step_are_one() -> None:
    """Calls part the 1 ms of input of a 12 ms step: none is a tenth of the time between batches."""
    b = TraceBuilder()
    for step in range(8):
        at = 12_000 * step
        b.iteration(step, at * US, (at + 11_990) * US, source="ranges")
        b.range(at * US, (at + 1_050) * US, "batch", stage="IO")
        for call in (2, 114, 236, 1_040):
            _call(b, "cudaEventQuery", (at + call) * US, (at + call + 2) * US)
        _op(b, "gemm", at + 1_060, at + 1_070, at + 11_900, stage="FP", iteration=step)
        _call(b, "cudaDeviceSynchronize", (at + 1_070) * US, (at + 11_905) * US)
    path = _path(_linked(b))
    assert path["gpu"] == 8 * 10_830 * US
    assert path.get("input", 0) <= 8 * 1_050 * US


def test_a_silent_loader_beside_work_of_the_gpu_may_wait_for_room() -> None:
    """A loader's thread launches for 60 us of each step of 2 ms; what it does else is unknown."""
    b = TraceBuilder()
    for step in range(8):
        at = 2_000 * step
        b.iteration(step, at * US, (at + 1_990) * US, source="ranges")
        decoded = {"thread": 1, "stream": 20, "stage": "IO", "iteration": step}
        for call in range(6):
            until = 14 if call < 5 else 250
            _op(b, "decode", at + 10 * call, at + 10 * call + 6, at + 10 * call + until, **decoded)
        _call(b, "cudaStreamWaitEvent", (at + 70) * US, (at + 72) * US)
        _op(b, "gemm", at + 75, at + 301, at + 2_000, stage="FP", iteration=step)
        _call(b, "cudaDeviceSynchronize", (at + 80) * US, (at + 2_003) * US)
    trace = _linked(b)
    silent = _path(trace)["input"]
    assert silent > 10_000 * US
    assert _ask(critical_path, trace).meta["input_beside_ns"] > 0.8 * silent
    assert "in which GPUs work and a loader" in _said(trace)


def test_a_thread_of_the_process_that_loads_may_be_the_loader_that_gets_faster() -> None:
    """It works, or rests, for 180 us before each copy, behind which the stream works on."""
    b = TraceBuilder()
    for step in range(6):
        at = 1_520 * step
        b.iteration(step, at * US, (at + 1_510) * US, source="ranges")
        copy: dict[str, Any] = {"kind": "h2d", "stage": "IO", "thread": 1}
        _op(b, "HtoD", at + 190, at + 195, at + 197, iteration=step, **copy)
        _op(b, "gemm", at + 4, at + 198, at + 1_505, stage="FP", iteration=step)
        _call(b, "cudaDeviceSynchronize", (at + 10) * US, (at + 1_506) * US)
    trace = _linked(b)
    assert _path(trace)["input"] == pytest.approx(5 * 188 * US, rel=0.05)
    low, high = _ends(trace, loader="inf")["loader inf"]
    assert low < 1_350 * US
    assert high == pytest.approx(_replayed(trace, loader="1x")["measured"], rel=0.05)


def test_steps_without_a_known_launch_are_refused_for_that() -> None:
    """Where calls were not recorded, longer recordings have no complete step either."""
    b = TraceBuilder()
    for step in range(3):
        at = 100 * US * step
        b.iteration(step, at, at + 90 * US, source="ranges")
        b.op("gemm", start=at + 10 * US, end=at + 80 * US)
    with pytest.raises(MissingDataError, match="no launch is known"):
        _ask(critical_path, b.trace())


def test_one_wait_that_is_most_of_all_is_told() -> None:
    def said(*pauses: int) -> list[str]:
        found = _ask(whatif, _unmarked(True, *pauses), parse_changes(loader="inf"))
        return [text for text in found.warnings if "counts as waiting for a loader" in text]

    assert said(300, 300, 300, 300, 300) == []
    assert said(300, 300, 300, 9_000, 300, 300)[0].startswith("one wait of 9.0 ms is 8")
    assert said(30, 30, 30, 9_000, 30, 30)[0].startswith("one wait of 9.0 ms is 100 %")
    path = _ask(critical_path, _unmarked(True, 30, 30, 30, 9_000, 30, 30))
    assert any("one wait of 9.0 ms is 100 %" in text for text in path.warnings)
    # In a step that is left out it is no part of the answer.
    late = _unmarked(True, 300, 9_000, 300, 300, 300, 300, 300, source="ranges")
    for asked in (
        _ask(critical_path, late, skip=2),
        _ask(whatif, late, parse_changes(loader="inf"), skip=2),
    ):
        assert not any("one wait of" in text for text in asked.warnings)


def test_ops_that_overlap_by_rounding_still_follow_each_other() -> None:
    """PyTorch's profiler rounds times: an op may begin before the one ahead of it has ended."""
    b = TraceBuilder()
    b.iteration(0, 0, 1_000 * US, source="ranges")
    for turn in range(8):
        at = 100 * turn
        _op(b, "gemm", at, at + 10, at + 110, stage="FP", iteration=0)
        b.rows["ops"][-1]["end"] += 200 * (turn < 7)
    trace = _linked(b)
    assert dependencies_of(trace).contradicted == 0
    low, _ = _ends(trace, host="inf")["host inf"]
    assert low >= 790 * US


def test_workers_are_asked_for_where_waits_have_a_rhythm() -> None:
    # Each batch comes 420 us after the one before; 4 workers make it 105 to 210.
    low, high = _ends(_loading(300), workers=4)["4 workers"]
    last = (4 * 420 + 100) * US / 5
    assert low < high < last - 100 * US
    with pytest.raises(UndecidedError, match="how many workers"):
        _replayed(_late_launch(), workers=4)


@cache
def _forking(workers: int) -> Trace:
    """Return steps of 400 us; a first batch is there 300 us after all workers were forked."""
    b = TraceBuilder()
    b.rows["host"] = []
    _call(b, "cudaMalloc", 0, 10 * US)
    for worker in range(workers):
        begin, end = ((600 + (worker + each) * 200 // workers) * US for each in (0, 1))
        b.rows["host"].append(
            {"report": 0, "process": 0, "thread": 0, "start": begin, "end": end, "library": "os",
             "name": "fork", "group": "child"}
        )  # fmt: skip
    for step in range(8):
        at = 1_100 + step * 400
        b.iteration(step, at * US, (at + 390) * US, source="ranges")
        _op(b, "HtoD", at, at + 7, at + 9, kind="h2d", stage="IO", iteration=step)
        _op(b, "gemm", at + 6, at + 10, at + 380, stage="FP", iteration=step)
        _call(b, "cudaDeviceSynchronize", (at + 12) * US, (at + 388) * US)
    return _linked(b)


@pytest.mark.parametrize(("workers", "pace"), [(1, 375), (2, 187.5), (4, 93.75)])
def test_forks_tell_how_many_workers_make_batches_and_the_first_how_fast(
    workers: int, pace: float
) -> None:
    # A quarter more than 300 us over the workers, at most, whatever took 1,090 us before.
    _, high = _ends(_forking(workers), speed=["gemm=inf"], loader="1x")["speed gemm=inf"]
    assert high == pytest.approx((7 * pace + 24) * US / 8, rel=0.1)


def test_only_forks_tell_of_workers() -> None:
    plain, forking = _forking(0), _forking(2)
    assert _ends(plain, speed=["gemm=inf"], loader="1x")["speed gemm=inf"][1] > 340 * US
    assert "8 workers" in _ends(forking, workers=8)
    said = _ask(whatif, forking, parse_changes(loader="2x")).warnings
    assert any("forked before the first batch" in text for text in said)
    assert not any(
        "forked" in each for each in _ask(whatif, plain, parse_changes(loader="2x")).warnings
    )
    with pytest.raises(UndecidedError, match="how many workers"):
        _replayed(plain, workers=8)


def test_copies_may_meet_what_those_of_other_gpus_met() -> None:
    # GPU 0 copies alone in 10 us; those of the others meet, and take 20.
    b = TraceBuilder()
    for step in range(4):
        at = step * 400
        for gpu, took in ((0, 10), (1, 20), (2, 20)):
            begin, thread = at + 50 * (gpu == 0), 10 * gpu
            b.iteration(step, begin * US, (at + 390) * US, thread=thread, source="ranges")
            _op(b, "HtoD", begin, begin + 7, begin + 7 + took, kind="h2d", stage="IO",
                iteration=step, device=gpu, thread=thread, bytes=4_096)  # fmt: skip
            _op(b, "gemm", begin + 6, begin + 7 + took, at + 380, stage="FP", iteration=step,
                device=gpu, thread=thread)  # fmt: skip
    trace = _linked(b)
    edges = _ended(job_of(trace, _Run(trace).traffic(), 0), [], slowest=True)
    taken = edges.filter(op_kind="h2d", kind="work").select("device", "weight")
    assert taken.unique().sort("device").rows() == [(gpu, 20 * US) for gpu in range(3)]


def test_of_an_iteration_there_is_one_step() -> None:
    rows = _ask(critical_path, _loading(300), "iteration").rows
    assert rows.height == 5
    assert rows["step_ns"].to_list() == rows["path_ns"].to_list()
    whole = _ask(critical_path, _loading(300)).rows
    assert whole["step_ns"].to_list() == [length / 5 for length in whole["path_ns"]]


def test_steps_of_paths_begin_with_their_own_input_as_those_of_breakdowns() -> None:
    b = TraceBuilder()
    for step in range(4):
        at = step * (120 + step)
        b.range(at * US, (at + 110) * US, f"step {step}")
        b.iteration(step, at * US, (at + 110) * US, source="ranges")
        own = {"iteration": step}
        _op(b, "copy", at + 1, at + 8, at + 18, kind="h2d", stage="IO", bytes=4, **own)
        _op(b, "gemm", at + 10, at + 19, at + 100, stage="FP", **own)
    trace = _linked(b)
    rows = _ask(critical_path, trace, "iteration").rows.sort("iteration")
    windows = step_windows(trace).sort("iteration")
    lengths = windows["end"] - windows["start"]
    assert rows["path_ns"].to_list() == lengths.to_list() == [121 * US, 123 * US, 125 * US, 92 * US]


def test_input_that_the_last_step_copies_ahead_is_of_no_step() -> None:
    """A last step was 29.55 ms here and 34.85 ms in `breakdown`."""
    b = TraceBuilder()
    for step in range(3):
        at, own = 200 * step, {"iteration": step}
        b.range(at * US, (at + 110) * US, f"step {step}")
        b.iteration(step, at * US, (at + 110) * US, source="ranges")
        _op(b, "gemm", at + 10, at + 19, at + 100, stage="FP", **own)
        _op(b, "copy", at + 60, at + 110, at + 140, kind="h2d", stage="IO", bytes=4, **own)
    trace = _linked(b)
    found, windows = _ask(critical_path, trace, "iteration"), step_windows(trace)
    assert (windows["end"] - windows["start"]).filter(windows["counts"])[-1] == 81 * US
    assert found.meta["steps_ns"] == (200 + 200 + 81) * US


def test_a_short_time_between_steps_is_the_hosts_own() -> None:
    trace = _loading(10)
    assert "input" not in _path(trace)


# -- what cannot be said ---------------------------------------------------------------------------


def test_what_nothing_explains_is_carried_and_said() -> None:
    b = TraceBuilder()
    _op(b, "gemm", 0, 7, 100, stage="FP")
    _op(b, "relu", 10, 400, 500, stage="FP")
    trace = _linked(b)
    assert _path(trace)["unexplained"] == 300 * US
    found = _ask(whatif, trace, parse_changes(speed=["gemm=2x"]))
    assert found.meta["trusted"] is False
    assert any("do not trust" in text for text in found.warnings)
    assert found.rows["step_ns"].to_list()[:2] == [493 * US, 493 * US]
    # The 300 us are as long as they were, or as much shorter as the step.
    low, high = _ends(trace, speed=["gemm=2x"])["speed gemm=2x"]
    assert high == pytest.approx(493 * US - 46_500)
    assert low == pytest.approx(high - 300 * US * (1 - high / (493 * US)), abs=2)


def _pausing(*, asleep: bool, inside: bool, verdict: str) -> Trace:
    """Return five steps of 120 us, 3 ms apart; or each begins with its pause."""
    b = TraceBuilder()
    b.rows["host"] = []
    for n, at in enumerate(range(0, 16_000, 3_200)):
        b.iteration(n, (at - 3_000 * inside) * US, (at + 120) * US, source="ranges")
        _op(b, "gemm", at + 2, at + 9, at + 109, stage="FP", iteration=n)
        _call(b, "cudaDeviceSynchronize", (at + 10) * US, (at + 118) * US)
        b.rows["host"].append({
            "report": 0, "process": 0, "thread": 0, "start": (at + 125) * US, "library": "os",
            "end": (at + 3_202) * US, "name": "epoll_wait", "group": "wait",
        })  # fmt: skip
    b.rows["host"] *= asleep
    b.rows["verdicts"] = [{"report": 0, "process": 0, "verdict": verdict, "given": True,
                           "evidence": "", "decides": False}]  # fmt: skip
    return _linked(b)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asleep", "inside", "verdict", "cause"),
    [
        (True, False, "inference", "off_cpu"),
        (False, False, "inference", "between_steps"),
        (True, True, "training", "off_cpu"),
        (False, True, "training", "between_steps"),  # within a step it may work: host
    ],
)
def test_pauses_have_the_name_that_idle_gives(
    asleep: bool, inside: bool, verdict: str, cause: str
) -> None:
    trace = _pausing(asleep=asleep, inside=inside, verdict=verdict)
    path = _path(trace)
    named = dict(idle(trace, skip=0).rows.select("cause", "idle_ns").rows())
    assert path[cause] == named[cause]
    assert path.keys() <= {"gpu", "latency", "host", cause}
    assert path["host"] >= 12_000 * US or cause == "off_cpu" or not inside


def test_a_host_that_may_be_waiting_unseen_is_doubted() -> None:
    b = _synchronised()
    assert "may be waiting" not in _said(_linked(b))
    b.rows["calls"].pop(1)  # of gemm's 93 us the host waits for 90 us, unseen
    told = _ask(critical_path, _linked(b))
    assert told.meta["host_or_wait_ns"] == 93 * US
    doubt = (
        "; host includes 48.2 % that may be waiting for the GPU, as no synchronisation was recorded"
    )
    assert _said(_linked(b)).endswith(doubt)


def test_a_host_may_be_waiting_unseen_between_steps() -> None:
    b = TraceBuilder()
    for n, at in enumerate(range(0, 10_000, 2_000)):
        b.iteration(n, at * US, (at + 10) * US, source="ranges")
        _op(b, "gemm", at + 2, at + 9, at + 1_980, stage="FP", iteration=n)
    # Of each of four steps the GPU works for 1,971 us after the only call, until the next one.
    assert _ask(critical_path, _linked(b), skip=0).meta["host_or_wait_ns"] == 4 * 1_971 * US


def test_lost_launches_are_named_beside_the_path() -> None:
    b = TraceBuilder()
    for step in range(4):
        _op(b, "gemm", 100 * step, 100 * step + 7, 100 * step + 60)
    b.rows["calls"] = b.rows["calls"][::2]
    told = _said(_linked(b))
    assert told.endswith("; the launch of 50.0 % of ops is unknown"), told
    assert "unknown" not in _said(_behind())


def test_streams_of_an_unknown_context_are_no_others() -> None:
    b = TraceBuilder()
    for number, context in enumerate((1, None, 1, None)):
        b.op(f"op {number}", 10 * number, context=context)
    ops = moments_of(b.trace()).ops
    assert ops.select("op", "context").rows() == [(1, -1), (3, -1), (0, 1), (2, 1)]


def _lengths(
    moments: Moments, rows: pl.DataFrame, time: NDArray[np.int64]
) -> tuple[list[int], NDArray[np.int64]]:
    """Return the lengths of edges between ops, and what their moments carry."""
    work = 1 + moments.ops["work"].to_physical().to_numpy()
    no, none = np.zeros(work.size, np.bool_), np.empty(0, np.int64)
    unknown = np.full(work.size, NO_NODE, np.uint32)
    net = _with_further(Net(time, none, unknown, no, no, work, none, (none,) * 4), rows)
    table, late = _listed(net, *_fitted(net))
    assert table.select("source", "target").rows() == rows.select("source", "target").rows()
    return table["weight"].to_list(), late


@pytest.mark.parametrize(("beyond", "carried"), [(0, 0), (1, TOLERATED_NS + 1)])
def test_what_comes_late_is_carried_beyond_what_is_tolerated(beyond: int, carried: int) -> None:
    """Of two that a moment waits for, the one that explains most of its time counts."""
    b = TraceBuilder()
    b.op("late", 0)
    rows = pl.DataFrame(
        {"source": [0, 0], "target": [1, 1], "kind": "work", "weight": [50, 10**6]},
        schema_overrides=EDGES,
    )
    time = np.array([0, 10**6 + TOLERATED_NS + beyond])
    weight, late = _lengths(moments_of(b.trace()), rows, time)
    assert weight == [50, 10**6]
    assert late.tolist() == [0, carried]


@pytest.mark.parametrize(
    ("beyond", "usual", "late"), [(0, TOLERATED_NS, 0), (1, 0, TOLERATED_NS + 1)]
)
def test_no_lag_beyond_what_is_tolerated_is_usual(beyond: int, usual: int, late: int) -> None:
    b = TraceBuilder()
    b.op("one", 0)
    b.rows["calls"].clear()
    moments = moments_of(b.trace())
    end = moments.ops["finish"].item()
    rows = pl.DataFrame([(0, end, "launch", None)], schema=EDGES, orient="row")
    time = np.zeros(moments.count, np.int64)
    time[end] = TOLERATED_NS + beyond
    weight, carried = _lengths(moments, rows, time)
    assert (weight, carried[end]) == ([usual], late)


def _usual(lags: list[int]) -> int:
    return round(sum(lags) / len(lags)) if lags else 0


def _fitted_by_hand(
    rows: list[tuple[int, int, str, int | None]], groups: list[str], time: list[int]
) -> tuple[list[int], list[int]]:
    """Return lengths and what is carried, moment by moment and in three rounds, as the docs say."""
    lags = [time[b] - time[a] for a, b, _, _ in rows]
    usual = dict.fromkeys({(row[2], group) for row, group in zip(rows, groups, strict=True)}, 0)

    def lengths() -> list[int]:
        return [
            min(row[3], lag) if row[3] is not None else usual[row[2], group]
            for row, group, lag in zip(rows, groups, lags, strict=True)
        ]

    def late(moment: int) -> int:
        into = [lag - own for row, lag, own in zip(rows, lags, lengths(), strict=True)
                if row[1] == moment]  # fmt: skip
        return min(into, default=0)

    for _ in range(3):
        holding: dict[tuple[str, str], list[int]] = {key: [] for key in usual}
        for row, group, lag, own in zip(rows, groups, lags, lengths(), strict=True):
            if lag - own == late(row[1]) and lag <= TOLERATED_NS:
                holding[row[2], group].append(lag)
        usual = {key: _usual(found) for key, found in holding.items()}
    carried = [late(moment) for moment in range(len(time))]
    return lengths(), [each if each > TOLERATED_NS else 0 for each in carried]


@settings(max_examples=examples(50))
@given(st.data())
def test_lengths_that_were_not_recorded_are_those_of_most_that_hold(data: st.DataObject) -> None:
    b = TraceBuilder()
    kinds = ["compute", "h2d", "memset"]
    for number in range(data.draw(st.integers(1, 5))):
        b.op(f"op {number}", 10 * number, kind=data.draw(st.sampled_from(kinds)))
    b.rows["calls"].clear()
    moments = moments_of(b.trace())
    near = st.sampled_from([0, 5, TOLERATED_NS, TOLERATED_NS + 1, 2 * TOLERATED_NS])
    when = st.one_of(near, st.integers(0, 3 * TOLERATED_NS))
    time = sorted(data.draw(st.lists(when, min_size=moments.count, max_size=moments.count)))
    pairs = [(a, b) for b in range(moments.count) for a in range(b)]
    chosen = data.draw(st.lists(st.sampled_from(pairs), max_size=20))
    told = st.integers(0, 2 * TOLERATED_NS)
    recorded = st.tuples(st.sampled_from(["work", "host"]), told)
    kind = st.one_of(recorded, st.tuples(st.sampled_from(FITTED), st.none()))
    rows = [(*pair, *data.draw(kind)) for pair in sorted(chosen, key=lambda pair: pair[1])]
    ops = moments.ops
    begun, done = (dict(zip(ops[edge], ops["work"], strict=True)) for edge in ("begin", "finish"))
    groups = [begun.get(b, done.get(a, "")) for a, b, _, _ in rows]
    frame = pl.DataFrame(rows, schema=EDGES, orient="row")
    weight, late = _lengths(moments, frame, np.array(time))
    assert (weight, late.tolist()) == _fitted_by_hand(rows, groups, time)


@pytest.mark.parametrize(
    ("apart", "is_pair"), [(0, True), (TOGETHER_NS, True), (TOGETHER_NS + 1, False)]
)
def test_sends_and_receives_that_end_together_are_a_pair(apart: int, is_pair: bool) -> None:
    ends = [10**6, 10**6 + apart]
    rows = pl.DataFrame(
        {"op": [0, 1], "match": None, "clock": "a", "collective": "send_recv", "device": [0, 1],
         "begin": [0, 2], "finish": [1, 3], "start": [0, 10], "end": ends},
        schema_overrides={"match": pl.Int64},
    )  # fmt: skip
    assert _pairs(rows).height == (2 if is_pair else 0)


def test_just_as_much_as_is_trusted_is() -> None:
    assert distrust(TRUSTED) == distrust(None) == []
    assert len(distrust(TRUSTED + 0.001)) == 1


def test_a_link_gets_no_faster_than_the_others_on_its_way_can_carry() -> None:
    """One is used by 0.8 of what it can, one is more than full, and of one nothing is known."""
    edges = pl.DataFrame({"weight": [100, 100, 100], "others_use": [0.8, 1.5, None]})
    change = Bandwidth("bandwidth nvlink=2x", "nvlink", 2.0)
    lengths = edges.select(change.length(slowest=False)).to_series()
    assert lengths.to_list() == [80, 100, 50]


def test_findings_are_priced_by_the_change_that_mends_them() -> None:
    trace = _loading(300)
    price = _priced("input_bound", trace)
    low, high = _ends(trace, loader="inf")["loader inf"]
    assert price is not None
    assert price.options == "--loader inf"
    assert (price.low_ns, price.high_ns) == pytest.approx((0.99 * low, 1.01 * high))
    assert _priced("late_buckets", trace) is None  # nothing is exchanged
    assert _priced("stragglers", trace) is None  # no replay tells it
    assert set(CHANGES) <= set(RULES)


def _priced(rule: str, trace: Trace) -> Price | None:
    return price_of(rule, trace, Traffic(trace, machine_of(trace.read("devices"), "dgx1v")))


def test_prices_of_launches_and_of_kernels_by_their_names() -> None:
    launches = _priced("launch_bound", _launching())
    assert launches == Price("--host 2x", 79_200.0, 80_800.0)
    assert launches.text == "a step of 0.079 to 0.081 ms"
    # No kernel of this run is named as FP32 products are.
    assert _priced("fp32_products", _launching()) is None
    for rule in ("fp32_products", "layout_transposes", "unfused_elementwise"):
        options, changes = CHANGES[rule]
        assert options == f"--speed '{changes['speed'][0]}'"
        parse_changes(**changes)


@pytest.mark.parametrize(
    "name",
    [
        "ampere_sgemm_128x64_tn",
        "fmha_cutlassB_f32_aligned_64x64_k64_sm80(AttentionBackwardKernel<Sm80, float, (bool)1>)",
        "void convolveNd_dgrad_float_engine<float, (int)3, (int)512>(int, int, int)",
        "void gemv2T_kernel_val<int, int, float, float, float, float, 128>(float)",
        "void gemvNSP_kernel<float, float, float, float, 1, 32, 4, 1024>(float)",
        "void gemv2T_kernel_val<int, int, __half, __half, __half, float, 128>(float)",
        "fmha_cutlassF_f16_aligned_64x64_rf_sm80(AttentionKernel<half_t, Sm80, true>)",
        "void at::native::vectorized_elementwise_kernel<4, float>(float)",
    ],
)
def test_the_replay_of_fp32_products_is_of_the_kernels_that_the_finding_counts(name: str) -> None:
    named = pl.Series([name]).to_frame("name")
    counted = named.select(KERNELS_OF["fp32_products"](pl.col("name"))).item()
    (pattern,) = CHANGES["fp32_products"][1]["speed"]
    assert named["name"].str.contains(pattern.removesuffix("=2x")).item() == bool(counted)


def test_a_change_of_nothing_says_so() -> None:
    found = _ask(whatif, _behind(), parse_changes(bandwidth=["nvlink=2x"], loader="2x"))
    assert found.rows["dependencies"].to_list() == [0, 0, 0, 0, 0]
    assert found.rows["step_ns"].n_unique() == 1
    assert len([text for text in found.warnings if "no dependency that is known" in text]) == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"speed": ["gemm"]}, "does not name what gets faster"),
        ({"speed": ["(=2x"]}, "is not a pattern"),
        ({"stage": ["XX=2x"]}, "no stage 'XX'"),
        ({"bandwidth": ["ether=2x"]}, "no type of link 'ether'"),
        ({"loader": "0x"}, "is not a factor"),
        ({"loader": "twice"}, "is not a factor"),
        ({"bucket": 3}, "a bucket of 3 bytes fits no gradient"),
        ({"bucket": 10**6, "without_straggler": "all"}, "merged all-reduces have no peers"),
        ({}, "nothing is changed: name a change"),
    ],
)
def test_changes_that_mean_nothing_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        parse_changes(**changes)


def test_a_speed_is_of_names_as_tables_show_them() -> None:
    """Of AMD's products `gemm tn BBS 16x16x64` is shown, and Cijk_... recorded."""
    b = TraceBuilder()
    _op(b, "Cijk_Alik_Bljk_BBS_BH_Bias_MT16x16x64_MI16x16x1", 0, 7, 107, stage="FP")
    assert _replayed(_linked(b), speed=["gemm=2x"])["speed gemm=2x"] == 50 * US


def test_a_speed_of_no_kernel_is_refused() -> None:
    """A name that no kernel has is refused, also beside one that there is."""
    for speed in (["nothing=2x"], ["gemm=2x", "nothing=2x"]):
        with pytest.raises(
            UsageError, match=r"nothing.*: no kernel of these steps has such a name"
        ):
            _ask(whatif, _behind(), parse_changes(speed=speed))


def test_a_question_needs_work_and_steps() -> None:
    with pytest.raises(MissingDataError, match="no GPU work"):
        critical_path(_Run(TraceBuilder().trace()))
    with pytest.raises(UsageError, match="kernels 0 is too small"):
        _ask(critical_path, _behind(), kernels=0)
    with pytest.raises(UsageError, match="no critical path by"):
        _ask(critical_path, _behind(), "colour")


# -- random traces ---------------------------------------------------------------------------------


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Draw ops of some streams with calls of some threads, in no order that makes sense."""
    b = TraceBuilder()
    for number in range(draw(st.integers(1, 14))):
        at = draw(st.integers(0, 300))
        start = at + draw(st.integers(0, 200))
        _op(b, "gemm", at, start, start + draw(st.integers(0, 90)),
            thread=draw(st.sampled_from([0, 1, 10])), stream=draw(st.integers(7, 8)),
            stage=draw(st.sampled_from(["FP", "BP", "IO"])), iteration=number // 4)  # fmt: skip
    for _ in range(draw(st.integers(0, 3))):
        name = draw(st.sampled_from(["cudaDeviceSynchronize", "cudaStreamWaitEvent", "cudaFree"]))
        at = draw(st.integers(0, 400))
        _call(b, name, at * US, (at + draw(st.integers(0, 300))) * US)
    for step in range(4):
        b.iteration(step, step * 100 * US, (step + 1) * 100 * US, source="ranges", whole=True)
    return _linked(b)


@settings(max_examples=examples(12))
@given(traces())
def test_parts_of_paths_add_up_to_the_steps(trace: Trace) -> None:
    try:
        found = _ask(critical_path, trace, "cause,stage,device")
    except MissingDataError:  # all of it is input
        return
    assert found.rows["path_ns"].sum() == found.meta["steps_ns"]
    drawn = found.source()
    assert drawn["path_ns"].sum() == found.meta["steps_ns"]
    assert not drawn.select("iteration", "part").is_duplicated().any()
    if found.meta["steps_ns"]:
        assert found.rows["share"].sum() == pytest.approx(1)


def test_tables_of_events_are_followed() -> None:
    b = TraceBuilder()
    _op(b, "wgrad", 0, 7, 100, stage="BP")
    _op(b, "copy", 20, 101, 150, stage="WU", stream=9)
    _call(b, "cudaEventRecord", 10 * US, 11 * US)
    _call(b, "cudaStreamWaitEvent", 12 * US, 13 * US)
    record, wait = (row["correlation"] for row in b.rows["calls"][-2:])
    trace = _linked(b)
    place = {"report": 0, "process": 0, "device": 0}
    rows = {
        "event_records": [{**place, "stream": 7, "event": 3, "correlation": record}],
        "syncs": [{**place, "stream": 9, "event": 3, "correlation": wait, "start": 12 * US,
                   "end": 13 * US, "type": "stream_wait_event"}],
    }  # fmt: skip
    told = trace.with_tables({
        name: TABLES[name].conform(pl.DataFrame(some)) for name, some in rows.items()
    })  # fmt: skip
    assert _path(told) == {"gpu": 142 * US, "latency": 1 * US}
    assert _replayed(told, speed=["wgrad=2x"])["speed wgrad=2x"] == 143 * US - 46_500


# -- a host that launches faster -----------------------------------------------------------------


@cache
def _launching(*, early: int = 0, unit: int = US) -> Trace:
    """Three kernels of 10 us, each launched by a call of 100 us, 50 us apart, and begun after it.

    Times in units: calls at 0, 150 and 300; kernels from 100, 250 and 400 on, `early` before that.
    """
    b = TraceBuilder()
    for number in range(3):
        at = 150 * number
        start = at + 100 - early
        b.op("gemm", at * unit, start=start * unit, end=(start + 10) * unit,
             launch_end=(at + 100) * unit, iteration=number // 2)  # fmt: skip
        b.rows["calls"][-1]["end"] = (at + 100) * unit
        b.rows["calls"][-1]["name"] = "cudaLaunchKernel"
        b.rows["ops"][-1]["call"] = number
    for number, (start, end) in enumerate(((0, 300), (300, 420))):
        b.iteration(number, start * unit, end * unit, ops=2 - number, whole=True)
    return _linked(b)


def test_a_host_that_launches_twice_as_fast() -> None:
    """By hand: the first step is two launches of 150 us long, the other the last kernel, 10 us."""
    assert _replayed(_launching(), host="2x")["host 2x"] == (2 * 75 + 10) / 2 * US
    assert _replayed(_launching(), host="0.5x")["host 0.5x"] == (2 * 300 + 10) / 2 * US
    # Then kernels run one after another, 2 us apart.
    assert _ends(_launching(), host="inf")["host inf"] == pytest.approx(
        (15 * US, 15 * US), abs=4 * US
    )


def test_kernels_that_begin_before_their_call_ends_may_not_wait_for_it() -> None:
    """If not, they are as late after the call's begin as they were, whatever that takes."""
    with pytest.raises(UndecidedError, match=r"host inf: a step would be between 0\.01485 and"):
        _ask(whatif, _launching(early=40), parse_changes(host="inf"))


def test_what_a_host_does_for_longer_than_launches_take_may_stay() -> None:
    b = TraceBuilder()
    for number in range(3):
        at = 3_000 * number
        b.op("gemm", at * US, start=(at + 10) * US, end=(at + 20) * US, iteration=number // 2)
        b.rows["calls"][-1]["name"] = "cudaLaunchKernel"
        b.rows["ops"][-1]["call"] = number
    for number, (start, end) in enumerate(((0, 6_000), (6_000, 7_000))):
        b.iteration(number, start * US, end * US, ops=2 - number, whole=True)
    with pytest.raises(UndecidedError, match="host 2x"):
        _ask(whatif, _linked(b), parse_changes(host="2x"))
