from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from trace_builder import TraceBuilder

import tracekit
from tracekit.analysis import step_detail
from tracekit.engine import parse_iterations
from tracekit.errors import MissingDataError, UsageError
from tracekit.export import _export, export
from tracekit.model import Trace

messages = pytest.importorskip(
    "perfetto.protos.perfetto.trace.perfetto_trace_pb2", reason="perfetto is not installed"
)
SAMPLES = Path(__file__).parents[2] / "sample_traces"


@dataclass
class Slice:
    track: str
    start: int
    end: int
    name: str
    depth: int
    categories: list[str]
    flows: list[int]
    ends_flows: list[int]
    args: dict[str, Any]

    @property
    def gpu(self) -> str:
        return self.track.partition("/")[0].partition(" (")[0]


@dataclass
class Read:
    """A trace as a program that reads Perfetto's format understands it."""

    slices: list[Slice] = field(default_factory=list)
    counters: dict[str, list[tuple[int, float]]] = field(default_factory=lambda: defaultdict(list))
    open: list[Slice] = field(default_factory=list)

    def on(self, track: str) -> list[Slice]:
        return [each for each in self.slices if each.track.endswith(f"/{track}")]


def read(path: Path) -> Read:
    trace = messages.Trace()
    trace.ParseFromString(path.read_bytes())
    packets = sorted(trace.packet, key=lambda packet: packet.timestamp)
    names, categories, arguments, texts = _interned(trace)
    tracks, parents = {}, {}
    for packet in trace.packet:
        if packet.HasField("track_descriptor"):
            described = packet.track_descriptor
            tracks[described.uuid], parents[described.uuid] = described.name, described.parent_uuid
    found = Read()
    stacks: dict[int, list[Slice]] = defaultdict(list)
    for packet in packets:
        if not packet.HasField("track_event"):
            continue
        event = packet.track_event
        track = f"{tracks[parents[event.track_uuid]]}/{tracks[event.track_uuid]}"
        if event.type == event.TYPE_COUNTER:
            found.counters[track].append((packet.timestamp, event.double_counter_value))
        elif event.type == event.TYPE_SLICE_END:
            stacks[event.track_uuid].pop().end = packet.timestamp
        else:
            stack = stacks[event.track_uuid]
            told = [categories[iid] for iid in event.category_iids]
            begun = Slice(track, packet.timestamp, -1, names[event.name_iid], len(stack), told,
                          list(event.flow_ids), list(event.terminating_flow_ids),
                          {arguments[each.name_iid]: _value(each, texts)
                           for each in event.debug_annotations})  # fmt: skip
            stack.append(begun)
            found.slices.append(begun)
    found.open = [each for stack in stacks.values() for each in stack]
    return found


def _interned(trace: Any) -> tuple[dict[int, str], ...]:
    names, categories, arguments, texts = {}, {}, {}, {}
    for data in (packet.interned_data for packet in trace.packet):
        names |= {each.iid: each.name for each in data.event_names}
        categories |= {each.iid: each.name for each in data.event_categories}
        arguments |= {each.iid: each.name for each in data.debug_annotation_names}
        texts |= {each.iid: each.str.decode() for each in data.debug_annotation_string_values}
    return names, categories, arguments, texts


def _value(noted: Any, texts: dict[int, str]) -> Any:
    which = noted.WhichOneof("value")
    return texts[noted.string_value_iid] if which == "string_value_iid" else getattr(noted, which)


def _told(run: tracekit.Run) -> dict[int, dict[str, Any]]:
    """Return what the table of ops says of each op, by how its argument is called."""
    paths = dict(run.table("path_texts").collect().iter_rows())
    ranges = dict(run.trace.read("ranges").select("range", "path").iter_rows())
    calls = dict(run.trace.read("calls").select("call", "name").iter_rows())
    gpus = {n: f"GPU {n}" for n in run.trace.read("devices")["device"]}
    return {
        row["op"]: {
            "kind": row["kind"],
            "bytes": row["bytes"],
            "source": "host" if row["copy_kind"] == "HtoD" else gpus.get(row["src_device"]),
            "destination": "host" if row["copy_kind"] == "DtoH" else gpus.get(row["dst_device"]),
            "launch": calls.get(row["call"]),
            "delay_ns": row["start"] - row["launch_start"] if row["call"] is not None else None,
            "range": paths.get(ranges.get(row["range"])),
            "stage": row["stage"],
            "stage_source": row["stage_source"],
            "iteration": row["iteration"],
            "threads": row["launch_size"],
            "correlation": row["correlation"],
        }
        for row in run.trace.read("ops").iter_rows(named=True)
    }


REAL = ("ddp_unet_4xa100_rank0", "sendrecv_2xh100_two_processes", "jacobi_p2p_nvlink_8xv100")
SAMPLE = "ddp_4gpu"


@pytest.fixture(
    scope="module",
    params=[SAMPLE, *(pytest.param(name, marks=pytest.mark.nightly) for name in REAL)],
)
def run(
    samples_read_once: None,
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    real_trace: Callable[[str], Path],
) -> tracekit.Run:
    path = SAMPLES / "ddp_4gpu.sqlite" if request.param == SAMPLE else real_trace(request.param)
    return tracekit.ingest(path, store=tmp_path_factory.mktemp("export") / "store")[0]


@pytest.fixture(scope="module")
def whole(run: tracekit.Run, tmp_path_factory: pytest.TempPathFactory) -> Read:
    path = tmp_path_factory.mktemp("written") / "run.pftrace"
    run.export(path)
    return read(path)


def test_stage_tracks_add_up_to_busy_time(run: tracekit.Run, whole: Read) -> None:
    rows = run.breakdown(by="device,stage")
    for device, stage, busy in rows.select("device", "stage", "busy_ns").iter_rows():
        own = [s for s in whole.on(f"stage {stage}") if s.gpu == f"GPU {device}"]
        assert sum(s.end - s.start for s in own) == busy, (device, stage)


def test_idle_tracks_add_up_to_idle_time(run: tracekit.Run, whole: Read) -> None:
    causes: dict[str, int] = defaultdict(int)
    for each in whole.on("idle, by cause"):
        causes[each.name] += each.end - each.start
    wanted = dict(run.idle(by="cause").select("cause", "idle_ns").iter_rows())
    assert causes == {cause: length for cause, length in wanted.items() if length}


def test_every_op_is_there_once_and_flows_join_it_to_its_launch(
    run: tracekit.Run, whole: Read
) -> None:
    ops = run.trace.read("ops").sort("op")
    on_streams = [s for s in whole.slices if "/stream " in s.track]
    assert sorted((s.start, s.end) for s in on_streams) == sorted(
        ops.select("start", "end").iter_rows()
    )
    begun = {flow: s for s in whole.slices for flow in s.flows}
    ended = {flow: s for s in whole.slices for flow in s.ends_flows}
    assert begun.keys() == ended.keys() == {op + 1 for op in ops.drop_nulls("call")["op"]}
    launches = dict(ops.select("op", "launch_start").iter_rows())
    starts = dict(ops.select("op", "start").iter_rows())
    for flow, launch in begun.items():
        assert launch.start == launches[flow - 1]
        assert ended[flow].start == starts[flow - 1]
        assert launch.categories == ["call"]


def test_every_op_says_all_that_is_known_of_it(run: tracekit.Run, whole: Read) -> None:
    told, seen = _told(run), set()
    for each in whole.slices:
        for flow in each.ends_flows:
            known = {name: value for name, value in told[flow - 1].items() if value is not None}
            assert {name: value for name, value in each.args.items() if name != "layer"} == known
            seen |= known.keys()
    named = {name for each in told.values() for name, value in each.items() if value is not None}
    assert seen == named


def test_an_op_of_a_layer_names_it(tmp_path: Path) -> None:
    path = SAMPLES / "closure_1gpu.sqlite"
    run, _ = tracekit.ingest(path, store=tmp_path / "store")
    run.export(tmp_path / "run.pftrace")
    layers = [s.args.get("layer") for s in read(tmp_path / "run.pftrace").slices]
    counts = dict(run.breakdown("layer").select("layer", "ops").iter_rows())
    for layer, number in counts.items():
        if not layer.startswith("("):
            assert layers.count(layer) == number


def test_slices_nest(run: tracekit.Run, whole: Read) -> None:
    assert whole.open == []
    assert all(s.end >= s.start for s in whole.slices)
    stacks: dict[str, list[Slice]] = defaultdict(list)
    for each in whole.slices:
        stack = stacks[each.track]
        while stack and len(stack) > each.depth:
            stack.pop()
        assert all(outer.start <= each.start <= each.end <= outer.end for outer in stack)
        stack.append(each)
    ranges = run.trace.read("ranges").filter(style="push_pop")
    of_threads = [s for s in whole.slices if s.track.startswith("process")]
    written = [s for s in of_threads if "call" not in s.categories]
    assert len(written) == ranges.height


def test_chosen_steps_hold_their_busy_time(run: tracekit.Run, tmp_path: Path) -> None:
    if run.trace.read("iterations").is_empty():
        pytest.skip("this trace holds no steps")
    run.export(tmp_path / "some.pftrace", iterations=(2, 3))
    some = read(tmp_path / "some.pftrace")
    assert {s.name for s in some.on("steps")} == {"step 2", "step 3"}
    rows = run.breakdown(by="iteration,stage,device").drop_nulls("busy_ns")
    wanted = rows.filter(pl.col("iteration").is_between(2, 3))
    wanted = wanted.group_by("device", "stage").agg(pl.col("busy_ns").sum())
    for device, stage, busy in wanted.iter_rows():
        own = [s for s in some.on(f"stage {stage}") if s.gpu == f"GPU {device}"]
        assert sum(s.end - s.start for s in own) == busy, (device, stage)


@pytest.mark.slow
def test_steps_of_a_long_run_are_written_without_the_rest(
    run: tracekit.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the second run a thread launches input alone in some steps, and other work later."""
    other = tracekit.ingest(SAMPLES / "p2p_2gpu_start_end.sqlite", store=tmp_path / "store")[0]
    for each in (run, other):
        spans = step_detail.step_spans(each.trace).drop_nulls("iteration")
        numbers = spans["iteration"].unique().sort().to_list()
        for steps in {(n, n) for n in (*numbers[:2], *numbers[-1:])} if numbers else ():
            files = tmp_path / "whole.json", tmp_path / "near.json"
            for file, most in zip(files, (1 << 40, 0), strict=True):
                monkeypatch.setattr(_export, "MOST_ROWS", most)
                each.export(file, to="chrome", iterations=steps)
            assert files[0].read_bytes() == files[1].read_bytes(), steps
    near = step_detail.around_steps(other.trace, spans, 1, 1)
    for table in ("ops", "calls", "ranges", "host", "syncs"):
        assert 0 < near.height(table) < other.trace.height(table), table


def test_counters_and_overlapping_ops(tmp_path: Path, b: TraceBuilder) -> None:
    b.op("one", at=0, start=10, end=30)
    b.op("two", at=1, start=20, end=40)
    trace = b.trace()
    sample = {"report": 0, "device": 0, "metric": "nvlink_tx", "recorded_name": "NVLink TX",
              "start": None, "time": 15, "value": 2.5, "unit": "percent"}  # fmt: skip
    known = trace["metrics"].collect_schema()
    values = known["metric"].categories.to_list()  # type: ignore[attr-defined]
    sample["metric"] = values[0]
    metrics = pl.DataFrame([sample], schema_overrides=dict(known))
    trace = trace.with_tables({"metrics": metrics})
    export(trace, tmp_path / "two.pftrace")
    found = read(tmp_path / "two.pftrace")
    assert {s.track.rpartition("/")[2]: s.name for s in found.slices if "stream" in s.track} == {
        "stream 7": "one", "stream 7 +1": "two",
    }  # fmt: skip
    assert [*found.counters.values()] == [[(15, 2.5)]]


def test_what_a_clock_put_before_zero_is_written_from_zero_on(
    tmp_path: Path, b: TraceBuilder
) -> None:
    b.op("early", at=-40, start=-30, end=-10)
    b.op("late", at=5, start=20, end=40)
    export(b.trace(), tmp_path / "early.pftrace")
    found = {s.name: (s.start, s.end) for s in read(tmp_path / "early.pftrace").on("stream 7")}
    assert found["late"][0] - found["early"][0] == 50
    assert found["early"][1] - found["early"][0] == 20
    assert min(s.start for s in read(tmp_path / "early.pftrace").slices) == 0


def test_what_cannot_be_exported(run: tracekit.Run, tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "run.pftrace"
    with pytest.raises(UsageError, match="no step from 9900 to 9901"):
        run.export(path, iterations=(9900, 9901))
    with pytest.raises(UsageError, match="unknown export format"):
        run.export(path, to="svg")
    with pytest.raises(MissingDataError, match="no GPU work"):
        export(Trace.of({}), path)
    monkeypatch.setattr("tracekit.export._export._MOST_OPS", 10)
    with pytest.raises(UsageError, match="too many to write"):
        run.export(path)
    if not run.trace.read("iterations").is_empty():
        run.export(path, iterations=(1, 1))
    assert step_detail.step_spans(run.trace).height


@pytest.mark.parametrize(
    ("text", "wanted"), [("10:12", (10, 12)), ("7", (7, 7)), (" 1 : 2 ", (1, 2))]
)
def test_steps_are_written_so(text: str, wanted: tuple[int, int]) -> None:
    assert parse_iterations(text) == wanted


@pytest.mark.parametrize("text", ["", "a", "3:2", "-1:2", "1:2:3"])
def test_what_names_no_steps(text: str) -> None:
    with pytest.raises(UsageError, match="names no steps"):
        parse_iterations(text)


def test_chrome_holds_the_same(run: tracekit.Run, whole: Read, tmp_path: Path) -> None:
    run.export(tmp_path / "run.json", to="chrome")
    written = json.loads((tmp_path / "run.json").read_text())
    events, names = written["traceEvents"], written["otherData"]["names"]
    slices = [
        (round(e["ts"] * 1000), round((e["ts"] + e["dur"]) * 1000),
         names.get(e["name"], e["name"]),
         {key: names.get(value, value) for key, value in e.get("args", {}).items()})
        for e in events if e["ph"] == "X"
    ]  # fmt: skip
    assert max(len(e.get("args", {}).get("range", "")) for e in events) <= 80
    assert sorted(slices, key=str) == sorted(
        ((s.start, s.end, s.name, s.args) for s in whole.slices), key=str
    )
    flows = {kind: {e["id"] for e in events if e["ph"] == kind} for kind in "sf"}
    assert flows["s"] == flows["f"] == {flow for s in whole.slices for flow in s.flows}


def test_chrome_writes_a_long_name_once(tmp_path: Path) -> None:
    alike = [f"void at::native::{'deeply::' * 20}kernel<{size}>(float*)" for size in (128, 256)]
    b = TraceBuilder()
    for at, name in enumerate(alike * 2):
        b.op(name, at=10 * at, start=10 * at + 1, end=10 * at + 5)
    export(b.trace(), tmp_path / "run.json.gz", to="chrome")
    text = gzip.decompress((tmp_path / "run.json.gz").read_bytes()).decode()
    assert [text.count(json.dumps(name)) for name in alike] == [1, 1]
    written = json.loads(text)
    shown = [e["name"] for e in written["traceEvents"] if e["ph"] == "X" and "kernel" in e["name"]]
    assert [written["otherData"]["names"][name] for name in shown] == alike * 2
    assert max(map(len, shown)) <= 80
