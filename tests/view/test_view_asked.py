"""What the page is answered is what the command line answers, and what plain loops find."""

from __future__ import annotations

import hashlib
import itertools
import math
import random
import shlex
import urllib.parse
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from time import sleep
from typing import Any

import polars as pl
import pytest
from effort import by_day, examples
from hostile import KERNEL
from nsys_builder import NsysBuilder

import tracekit
from tracekit.analysis import step_detail
from tracekit.analysis.calls import collective_calls
from tracekit.analysis.idle_account import CAUSES
from tracekit.engine import _launch_groups
from tracekit.errors import UsageError
from tracekit.model import _trace
from tracekit.support import batches
from tracekit.view import _asked, _blocks, _lanes
from tracekit.view._asked import AskedRuns
from tracekit.view._blocks import broken_down
from tracekit.view._counter_lanes import IN_USE, Counter, counters_of
from tracekit.view._lanes import RunLanes
from tracekit.view._sums import RunSums, drawn_ops, drawn_ranges
from tracekit.view._tiles import LOOKS

BY = ("stage", "kind", "kernel", "device")


@pytest.fixture(scope="module")
def asked(runs: list[tracekit.Run]) -> AskedRuns:
    return AskedRuns(runs)


@cache
def edges_of(run: tracekit.Run) -> tuple[int, int]:
    return RunLanes(run.trace).edges


def stretches(run: tracekit.Run, count: int) -> list[tuple[int, int]]:
    first, last = edges_of(run)
    chance = random.Random(7)
    found = [sorted(chance.sample(range(first, last), 2)) for _ in range(count)]
    return [(a, b) for a, b in found]


@pytest.mark.parametrize("work", ["kernel", "memcpy", None])
def test_missing_kernels_are_said_with_the_lanes(tmp_path: Path, work: str | None) -> None:
    with NsysBuilder(path := tmp_path / "some.sqlite") as nsys:
        nsys.push_pop(0, 900, "step 1")
        nsys.call(100, 105, correlation=1)
        if work:
            getattr(nsys, work)(110, 120, correlation=1)
    told = AskedRuns([tracekit.open(path)]).run({"run": "0"})["missing"]
    starts = {"kernel": [], "memcpy": ["no kernels"], None: ["no GPU"]}[work]
    assert [" ".join(text.split()[:2]) for text in told] == starts


@pytest.mark.slow
def test_tables_are_those_of_the_command_line(
    asked: AskedRuns, runs: list[tracekit.Run], client: Any
) -> None:
    for number, run in enumerate(runs):
        for place, (start, end) in enumerate(stretches(run, examples(4 * len(BY)))):
            by = BY[place % len(BY)]
            told = client.data("table", run=number, from_=start, to=end, by=by)
            answer = run.breakdown.answer(by=by, between=(start, end))
            assert told["rows"] == answer.rows.to_dicts()
            assert told["meta"]["window_ns"] == answer.meta["window_ns"]
            assert told["meta"]["idle_ns"] == answer.meta["idle_ns"]
            assert told["lost"] == 0
            shown = run.breakdown(by=by, between=told["shell"].split()[-1])
            assert shown.to_dicts() == told["rows"]
            assert told["shell"].startswith(f"tracekit breakdown {run.name} --by {by} --between ")


def test_tables_of_lanes_hold_their_rows_alone(runs: list[tracekit.Run], client: Any) -> None:
    """As `--where` tells them, and a loop over the rows of all lanes."""
    run = runs[0]
    known = [lane["where"] for lane in client.data("run", run=0)["lanes"] if lane["where"]]
    streams, gpus = (list(filter(own, dict.fromkeys(known))) for own in (_is_of_stream, _is_of_gpu))
    for place, (start, end) in enumerate(stretches(run, 2 * len(BY))):
        by, chosen = BY[place % len(BY)], streams[:2] if place % 2 else gpus[1:]
        lanes = " or ".join(chosen)
        told = client.data("table", run=0, from_=start, to=end, by=by, lanes=lanes)
        words = shlex.split(told["shell"])
        assert words[-2:] == ["--where", lanes]
        keys, between = (words[words.index(name) + 1] for name in ("--by", "--between"))
        assert told["rows"] == run.breakdown(by=keys, between=between, where=lanes).to_dicts()
        every = run.breakdown(by=keys, between=(start, end)).to_dicts()
        assert told["rows"] == [
            row for row in every
            if {f"device={row['device']}", f"device={row['device']} and stream={row.get('stream')}"}
            & {*chosen}
        ]  # fmt: skip
        assert told["meta"] == {}
    idle = client.data("table", run=0, from_=start, to=end, by="idle", lanes=streams[0])
    every = run.idle(by="device,cause", between=(start, end)).to_dicts()
    assert idle["rows"] == [row for row in every if f"device={row['device']} " in streams[0]]
    for wrong in ("device=99", "device=0 and stream=7 or", f"{streams[0]} or name~x", "x"):
        given = {"run": 0, "from": start, "to": end, "by": "stage", "lanes": wrong}
        assert client.ask(f"/table?{urllib.parse.urlencode(given)}")[0] == 400


def _is_of_stream(condition: str) -> bool:
    return "stream" in condition


def _is_of_gpu(condition: str) -> bool:
    return not _is_of_stream(condition)


def test_streams_of_one_number_are_told_apart_by_process(runs: list[tracekit.Run]) -> None:
    trace = runs[0].trace
    one = trace.read("ops").with_columns(device=pl.lit(0, pl.Int32), stream=pl.lit(7, pl.Int64))
    run = runs[0].with_trace(trace.with_tables({"ops": one.sort("start")}))
    asked = AskedRuns([run])
    known = [lane["where"] for lane in asked.run({"run": "0"})["lanes"]]
    pids = trace.read("processes")["pid"].to_list()
    assert {f"device=0 and pid={pid} and stream=7" for pid in pids} <= {*known}
    first, last = RunLanes(run.trace).edges
    for pid in pids:
        where = f"device=0 and pid={pid} and stream=7"
        given = {"run": "0", "from": str(first), "to": str(last), "by": "device", "lanes": where}
        assert [row["pid"] for row in asked.table(given)["rows"]] == [pid]


def test_what_is_drawn_is_read_in_batches(runs: list[tracekit.Run]) -> None:
    """Polars collects all rows for an expression that it cannot stream."""
    for frame in (drawn_ops(runs[0].trace["ops"], "kind"), drawn_ranges(runs[0].trace)):
        plan = frame.show_graph(plan_stage="physical", raw_output=True, show=False)
        assert "in-memory engine fallback" in plan  # told by a colour
        assert not [line for line in plan.splitlines() if 'fillcolor="0.0 0.3 1.0"' in line]


def test_launches_of_a_long_run_are_read_once(
    runs: list[tracekit.Run], store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_trace, "_LONG", 0)
    told = AskedRuns([tracekit.open(runs[1].name, store=store)]).steps({"run": "0"})
    monkeypatch.setattr(_launch_groups, "thinned", None)
    assert AskedRuns([tracekit.open(runs[1].name, store=store)]).steps({"run": "0"}) == told


@pytest.mark.slow
def test_causes_of_idle_time_are_those_of_the_command_line(
    runs: list[tracekit.Run], client: Any
) -> None:
    for number, run in enumerate(runs):
        for start, end in stretches(run, 1):
            told = client.data("table", run=number, from_=start, to=end, by="idle")
            answer = run.idle.answer(between=(start, end))
            assert told["rows"] == answer.rows.to_dicts()
            assert sum(row["idle_ns"] for row in told["rows"]) == told["meta"]["idle_ns"]
            assert told["shell"].startswith(f"tracekit idle {run.name} --by cause --between ")


@pytest.mark.slow
def test_findings_lead_to_their_longest_place(runs: list[tracekit.Run], client: Any) -> None:
    run = runs[0]
    told = client.data("findings", run=0)
    rows = run.diagnose().select("rule", "finding").rows()
    assert [text for text, _, _ in told["findings"]] == [finding for _, finding in rows]
    spans = step_detail.step_spans(run.trace).drop_nulls("iteration")
    slowest = step_detail.slowest_step(step_detail.step_lengths(spans))
    longest = f"The longest of it in step {slowest}"
    assert [where for _, where, _ in told["findings"]] == [longest, "The first step"]
    inside = {gpu: (a, b) for gpu, i, a, b in
              spans["device", "iteration", "start", "end"].iter_rows() if i == slowest}  # fmt: skip
    copies = [
        (b - a, [a, b]) for gpu, kind, a, b in
        run.trace.read("ops")["device", "kind", "start", "end"].iter_rows()
        if kind in ("h2d", "d2h") and inside[gpu][0] <= a < inside[gpu][1]
    ]  # fmt: skip
    places = dict(
        zip((rule for rule, _ in rows), (at for _, _, at in told["findings"]), strict=True)
    )
    start, end = places["unhidden_copies"]
    assert [start, end] in [at for length, at in copies if length == max(copies)[0]]
    assert places["cold_steps"] == [min(a for a, _ in inside.values()), max(
        b for _, b in inside.values())]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("pixels", [1, 4_000])
def test_lanes_of_idle_time_are_what_idle_says(
    runs: list[tracekit.Run], client: Any, pixels: int
) -> None:
    for number, run in enumerate(runs):
        lanes = RunLanes(run.trace)
        for start, end in [lanes.edges, *stretches(run, 1)]:
            told = client.data("idle", run=number, from_=start, to=end, pixels=pixels)
            sums: dict[str, int] = {}
            for shown in told["lanes"].values():
                for cause, length in exposed_ns(shown).items():
                    sums[cause] = sums.get(cause, 0) + length
            rows = run.idle.answer(between=(start, end)).rows.filter(pl.col("idle_ns") > 0)
            said = {CAUSES[cause]: ns for cause, ns in rows.select("cause", "idle_ns").iter_rows()}
            assert sums == said
            labels = [lanes.lanes[int(each)].label for each in told["lanes"]]
            gpus = sorted(run.trace.read("ops")["device"].unique())
            assert labels == [f"GPU {gpu} · idle, why" for gpu in gpus]


def spans_of(lane: dict[str, Any]) -> list[tuple[int, int, str, int]]:
    found, at = [], lane["begin"]
    for step, wide, stage, number in zip(
        lane["start"], lane["length"], lane["stage"], lane["number"], strict=True
    ):
        at += step
        found.append((at, at + wide, LOOKS[stage], number))
    return found


def keys_of(run: tracekit.Run) -> dict[tuple[Any, ...], list[tuple[int, int, str, int]]]:
    ops = run.trace.read("ops")
    found: dict[tuple[Any, ...], list[tuple[int, int, str, int]]] = {}
    for row in ops.iter_rows(named=True):
        told = row["start"], row["end"], row["stage"], row["op"]
        own = found.setdefault((row["device"], row["process"], row["context"], row["stream"]), [])
        own.append(told)
        ways = {
            "h2d": (-1, row["dst_device"]), "d2h": (row["src_device"], -1),
            "p2p": (row["src_device"], row["dst_device"]),
        }  # fmt: skip
        halves = {"HtoD": "h2d", "DtoH": "d2h"}
        kind = halves.get(row["copy_kind"]) if row["kind"] == "staged" else row["kind"]
        if kind in ways:
            found.setdefault((*ways[kind], row["device"]), []).append(told)
    return found


@pytest.fixture(
    params=by_day(["made at once", "made in many batches", "kept"], "made in many batches", "kept"),
    scope="module",
)
def lanes_of(request: pytest.FixtureRequest) -> Callable[[tracekit.Run], RunLanes]:
    """Lanes of a run, whose sums are made in different ways, or read."""
    known: dict[int, RunLanes] = {}

    def find(run: tracekit.Run) -> RunLanes:
        if id(run) not in known:
            known[id(run)] = lanes = RunLanes(run.trace)
            with pytest.MonkeyPatch.context() as patch:
                if request.param == "made in many batches":
                    patch.setattr(batches, "ROWS", 200)
                made = lanes.sums
            if request.param == "kept":
                read = RunSums.unpacked(made.packed(), run.trace)
                assert read.names.equals(made.names)
                assert read.few.keys() == made.few.keys()
                assert all(own.equals(made.few[key]) for key, own in read.few.items())
                known[id(run)] = RunLanes(run.trace, Kept(made.packed()))
        return known[id(run)]

    return find


@cache
def _said(run: tracekit.Run, by: str, between: tuple[int, int]) -> tracekit.Answer:
    return run.breakdown.answer(by=by, between=between)


@pytest.mark.slow
def test_long_stretches_are_broken_down_without_their_ops(
    runs: list[tracekit.Run],
    lanes_of: Callable[[tracekit.Run], RunLanes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_blocks, "MANY", 0)
    for run in runs:
        sums = lanes_of(run).sums
        width, (first, last) = sums.block_width, sums.edges
        aligned = first + 20 * width, first + 400 * width
        for place, (a, b) in enumerate([sums.edges, aligned, *stretches(run, 4)]):
            asked: list[tuple[int, int]] = []
            by = BY[:2][place % 2] if place else "device"
            expected = _said(run, by, (a, b))
            answer = broken_down(Watched(run, asked), sums, by, a, b)
            assert answer.rows.to_dicts() == expected.rows.to_dicts()
            for name in ("window_ns", "idle_ns", "sum_over", "warnings"):
                assert answer.meta.get(name) == expected.meta.get(name)
            assert sum(end - start for start, end in asked) < max(2 * width, last - first >> 8)
            kernels = broken_down(Watched(run, asked), sums, "kernel", a, b)
            expected = _said(run, "kernel", (a, b))
            assert expected.rows.drop("median_ns").equals(kernels.rows.drop("median_ns"))
            if not place:
                assert kernels.rows["median_ns"].is_null().all()
                assert "medians" in kernels.meta["warnings"][-1]


class Watched:
    """A run that notes what is asked of its ops."""

    def __init__(self, run: tracekit.Run, asked: list[tuple[int, int]]) -> None:
        self.breakdown, self._run, self._asked = self, run, asked

    def answer(self, by: str, between: tuple[int, int]) -> Any:
        self._asked.append(between)
        return self._run.breakdown.answer(by=by, between=between)


class Kept:
    """A file beside the tables, in memory."""

    def __init__(self, content: bytes | None) -> None:
        self.content, self.writes = content, 0

    def read(self, _key: str) -> bytes | None:
        return self.content

    def write(self, _key: str, content: bytes) -> None:
        self.content, self.writes = content, self.writes + 1


@pytest.mark.parametrize("pixels", [1, 60, 2_000])
def test_what_is_drawn_is_what_a_plain_loop_finds(
    runs: list[tracekit.Run], lanes_of: Callable[[tracekit.Run], RunLanes], pixels: int
) -> None:
    for run in runs:
        lanes, ops = lanes_of(run), keys_of(run)
        forms = set()
        first, last = lanes.edges
        outside = (last + 5, last + 9), (first - 10**15, first - 3), (first - 9, last + 9)
        for start, end in [lanes.edges, *stretches(run, 2), *outside]:
            drawn = lanes.drawn(start, end, pixels)["lanes"]
            for lane, shown in zip(lanes.lanes, drawn, strict=True):
                own = ops[lane.key] if lane.kind in ("ops", "way") else []
                forms.add("width" in shown)
                if lane.kind not in ("ops", "way"):
                    continue
                if "width" not in shown:
                    inside = [each for each in own if each[0] < end and each[1] > start]
                    assert spans_of(shown) == sorted(inside)
                    continue
                check_bins(shown, own, start, end)
        assert (pixels == 1) in forms


def check_bins(
    shown: dict[str, Any], own: list[tuple[int, int, str, int]], start: int, end: int
) -> None:
    width, at = shown["width"], 0
    begins = []
    for step in shown["bin"]:
        at += step
        begins.append(shown["begin"] + at * width)
    assert all(begin < end and begin + width > start for begin in begins)
    for place, begin in enumerate(begins[:40]):
        inside = [each for each in own if begin <= each[0] < begin + width]
        assert shown["count"][place] == len(inside)
        assert shown["longest"][place] == max([0, *(b - a for a, b, _, _ in inside)])
        for stage, busy in shown["busy"].items():
            pieces = [(max(a, begin), min(b, begin + width)) for a, b, s, _ in own if s == stage]
            assert busy[place] == union(pieces)
    in_sight = {each[3] for each in own if start <= each[0] < end}
    assert sum(shown["count"]) >= len(in_sight)


def union(pieces: list[tuple[int, int]]) -> int:
    found, reach = 0, None
    for start, end in sorted(each for each in pieces if each[0] < each[1]):
        begin = start if reach is None else max(start, reach)
        found += max(end - begin, 0)
        reach = end if reach is None else max(reach, end)
    return found


def test_exposed_time_of_gpus_is_that_of_breakdown(
    runs: list[tracekit.Run], lanes_of: Callable[[tracekit.Run], RunLanes]
) -> None:
    for run in runs:
        lanes = lanes_of(run)
        table = run.breakdown(by="device,stage")
        spans = step_detail.whole_spans(run.trace).with_columns(iteration=pl.lit(None, pl.Int64))
        alone = step_detail.work_in_steps(run.trace, spans).communication
        for pixels in (1, 100_000):
            drawn = lanes.drawn(*lanes.edges, pixels)["lanes"]
            for lane, shown in zip(lanes.lanes, drawn, strict=True):
                if lane.kind == "exposed":
                    expected = alone.filter(device=lane.key[0])["exposed_ns"].sum()
                    assert exposed_ns(shown) == {"communication": expected}
                if lane.kind != "stages":
                    continue
                own = table.filter(pl.col("device") == lane.key[0], pl.col("exposed_ns") > 0)
                assert exposed_ns(shown) == dict(own.select("stage", "exposed_ns").iter_rows())
                if "width" in shown:
                    assert sum(shown["count"]) == own["ops"].sum()


def exposed_ns(shown: dict[str, Any]) -> dict[str, int]:
    if "width" in shown:
        return {look: sum(each) for look, each in shown["busy"].items()}
    sums: dict[str, int] = {}
    for start, end, look, _ in spans_of(shown):
        sums[look] = sums.get(look, 0) + end - start
    return sums


@pytest.mark.slow
@pytest.mark.parametrize("pixels", [1, 8_000])
def test_counters_are_what_a_plain_loop_finds(
    counted: tracekit.Run, lanes_of: Callable[[tracekit.Run], RunLanes], pixels: int
) -> None:
    lanes, samples = lanes_of(counted), samples_by_name(counted)
    widths = set()
    for start, end in [lanes.edges, *stretches(counted, 2)]:
        drawn = lanes.drawn(start, end, pixels)["lanes"]
        for lane, shown in zip(lanes.lanes, drawn, strict=True):
            if isinstance(lane.tiles, Counter):
                widths.add(shown["width"] > 0)
                check_counter(shown, samples[lane.tiles.key[4]], start, end)
    assert (False in widths) == (pixels > 1)


@pytest.mark.slow
def test_tables_of_counters_are_what_sql_finds(counted: tracekit.Run) -> None:
    asked = AskedRuns([counted])
    for start, end in [edges_of(counted), *stretches(counted, 2)]:
        for by in ("metrics", "memory"):
            told = asked.table({"run": "0", "from": str(start), "to": str(end), "by": by})
            *command, query = shlex.split(told["shell"])
            assert command == ["tracekit", "sql", counted.name]
            assert told["rows"] == counted.sql(query).to_dicts()
            given = {"run": "0", "from": str(start), "to": str(end), "by": by}
            own = asked.table({**given, "lanes": "device=0"})
            assert own["rows"] == [row for row in told["rows"] if row["device"] == 0]
            assert own["rows"] == counted.sql(shlex.split(own["shell"])[-1]).to_dicts()


def samples_by_name(run: tracekit.Run) -> dict[str, list[tuple[int, float]]]:
    used = run.trace.read("memory")
    found = {IN_USE: [*used["time", "in_use"].iter_rows()]}
    for name, *sample in run.trace.read("metrics")["recorded_name", "time", "value"].iter_rows():
        found.setdefault(name, []).append((sample[0], sample[1]))
    return found


def check_counter(
    shown: dict[str, Any], samples: list[tuple[int, float]], start: int, end: int
) -> None:
    length, places = shown["width"] or 1, list(itertools.accumulate(shown["bin"]))
    inside: dict[int, list[float]] = {}
    for time, value in samples:
        inside.setdefault((time - shown["begin"]) // length, []).append(value)
    names = ("count", "low", "mean", "high", "last")
    for place, *told in zip(places, *(shown[each] for each in names), strict=True):
        values = inside.get(place, [])
        if not told[0]:  # what was in use before
            assert place == places[0]
            values = [[value for time, value in samples if time < start][-1]]
        mean = sum(values) / len(values)
        expected = [told[0] and len(values), min(values), mean, max(values), values[-1]]
        near = (math.isclose(*each, rel_tol=1e-12) for each in zip(told, expected, strict=True))
        assert all(near), (told, expected)
    in_sight = {(time - shown["begin"]) // length for time, _ in samples if start <= time < end}
    assert in_sight <= {*places}


@pytest.mark.slow
def test_damaged_sums_are_made_again(
    runs: list[tracekit.Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (RunLanes(runs[0].trace, few := Kept(None)).sums.spans, few.writes) == (1_768, 0)
    monkeypatch.setattr(_lanes, "_WORTH_KEEPING", 1_000)
    run, kept = runs[0], Kept(None)
    whole = RunLanes(run.trace, kept).sums
    good, chance = kept.content or b"", random.Random(43)
    assert kept.writes == 1
    wrong = [b"", good[:-1], good + b"x"]
    for _ in range(6):
        at = chance.randrange(len(good))
        wrong.append(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
    for content in wrong:
        kept.content = content
        assert RunLanes(run.trace, kept).sums.names.equals(whole.names)
        assert kept.content == good
    kept.writes = 0
    assert RunLanes(run.trace, kept).sums.edges == whole.edges
    assert kept.writes == 0


@pytest.fixture(scope="module")
def good(runs: list[tracekit.Run]) -> bytes:
    return RunLanes(runs[0].trace).sums.packed()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"edges": [', '"edges": [-9223372036854775807, '),
        ('["ops", [', '["gone", ['),
        ('["stages", [0], ', '["stages", [0], 9'),
        ('["stages", [0], ', '["stages", [0], -'),
        ('["stages", [0], ', '["stages", [0], 1e300, '),
        ('"FP"', '"<img>"'),
        ('"few": ', '"few": 9'),
        ('"blocks": [[0, ', '"blocks": [[77, '),
        ('"blocks": [[0, "', '"blocks": [[0, "<img>'),
        ('"gpus": [[0, ', '"gpus": [["0", '),
        ('"names": [', '"names": ["more", '),
        ('"names": [', '"names": [7, '),
        ('"kernels": ', '"kernels": 9'),
        ('"<u4", ', '"<u4", 9'),
        ('"<u4"', '"|O"'),
        ('"arrays": [[', '"arrays": [[['),
        ('{"told"', '[' * 100_000 + '{"told"'),
    ],
)  # fmt: skip
def test_sums_that_someone_has_made_up_are_not_believed(
    runs: list[tracekit.Run], good: bytes, old: str, new: str
) -> None:
    """With a digest that is right."""
    trace = runs[0].trace
    changed = good[64:].replace(old.encode(), new.encode(), 1)
    assert changed != good[64:]
    with pytest.raises(ValueError, match=r"\w"):
        RunSums.unpacked(hashlib.sha256(changed).hexdigest().encode() + changed, trace)


def test_ranges_are_those_of_the_threads_that_drive_steps(runs: list[tracekit.Run]) -> None:
    lanes = RunLanes(runs[0].trace)
    drawn = lanes.drawn(*lanes.edges, 8_000)
    found = sum(
        len(shown["start"])
        for lane, shown in zip(lanes.lanes, drawn["lanes"], strict=True)
        if lane.kind == "range"
    )
    drivers = runs[0].trace.read("iterations").select("process", "thread").unique()
    ranges = runs[0].trace.read("ranges").join(drivers, on=["process", "thread"], how="semi")
    assert found == ranges.filter(pl.col("depth").fill_null(0) < 5).height > 0


def test_steps_are_those_of_the_gpus(client: Any, runs: list[tracekit.Run]) -> None:
    for number, run in enumerate(runs):
        told, of_step = client.data("steps", run=number), {}
        for row in step_detail.step_spans(run.trace).iter_rows(named=True):
            first, last = of_step.get(row["iteration"], (row["start"], row["end"]))
            of_step[row["iteration"]] = min(first, row["start"]), max(last, row["end"])
        assert dict(zip(told["iteration"], zip(told["start"], told["end"], strict=True),
                        strict=True)) == of_step  # fmt: skip
        assert (told["lost"], told["start"]) == (0, sorted(told["start"]))


def test_who_asks_first_at_once_has_lanes_made_once(
    counted: tracekit.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    def slowly(*given: Any) -> list[Counter]:
        made.append(1)
        sleep(0.2)
        return counters_of(*given)

    monkeypatch.setattr(_lanes, "counters_of", slowly)
    lanes = RunLanes(counted.trace)
    with ThreadPoolExecutor(4) as threads:
        found = [*threads.map(lambda _: lanes.lanes, range(4))]
    assert made == [1]
    assert all(each is found[0] for each in found)


def test_counters_are_the_first_lanes_that_are_left_out(
    counted: tracekit.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = RunLanes(counted.trace)
    others = [lane for lane in every.lanes if lane.kind != "counter"]
    monkeypatch.setattr(_lanes, "_MOST_LANES", len(others))
    few = RunLanes(counted.trace)
    assert [lane.key for lane in few.lanes] == [lane.key for lane in others]
    assert few.lost == len(every.lanes) - len(others) > 0


def test_all_gpus_come_before_threads_and_streams(client: Any) -> None:
    kinds = [lane["kind"] for lane in client.data("run", run=1)["lanes"]]
    short = [at for at, kind in enumerate(kinds) if kind in ("stages", "exposed", "idle")]
    assert kinds.count("stages") == 2
    assert short == list(range(len(short)))
    assert {"range", "ops"} <= {*kinds[len(short) :]}


def test_what_perfetto_would_take_too_long_to_load_is_refused(
    asked: AskedRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = {"run": "1", "from": "0", "to": str(10**12)}
    assert asked.timeline(whole)["content"]
    with pytest.raises(UsageError, match="no step in sight"):
        asked.timeline({**whole, "from": str(10**12 - 1)})
    monkeypatch.setattr(_asked, "_MOST_EXPORTED", 1)
    with pytest.raises(UsageError, match="more than 1 ops in sight: zoom to some steps"):
        asked.timeline(whole)


def test_a_step_that_is_unlike_the_others_is_a_place_to_go_to(
    asked: AskedRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [(0, 0, n, 100 * n, 100 * n + (90 if n != 7 else 30), 0) for n in range(20)]
    names = ("process", "device", "iteration", "start", "end", "clock")
    spans = pl.DataFrame(rows, names, orient="row")
    monkeypatch.setattr(step_detail, "step_spans", lambda _: spans)
    told = asked.steps({"run": "0"})
    assert told["unlike"] == [
        {"iteration": 7, "start": 700, "end": 730, "step_ns": 30.0, "share": 1 / 3}
    ]


def test_names_are_found_and_gone_through(
    asked: AskedRuns, runs: list[tracekit.Run], client: Any
) -> None:
    ops = runs[0].trace.read("ops").with_columns(pl.col("name").cast(pl.String))
    for words in ("onerror", "ONERROR", "<img src=x", "img.*alert"):
        told = client.data("find", run=0, words=words)
        own = ops.filter(pl.col("name") == KERNEL)
        assert (told["names"], told["ops"]) == (1, own.height)
        assert told["full"] == [KERNEL]
        assert told["most"][0]["total"] == (own["end"] - own["start"]).sum()
    hits, time = [], -1
    while hit := client.data("hit", run=0, words="onerror", which="next", time=time)["hit"]:
        hits.append(hit["op"])
        time = hit["start"]
    assert (
        hits == own.sort("start").unique("start", keep="first", maintain_order=True)["op"].to_list()
    )
    hit = client.data("hit", run=0, words="onerror", which="previous", time=time)["hit"]
    assert hit["op"] == own.filter(pl.col("start") < time).sort("start")["op"][-1]
    longest = client.data("hit", run=0, words="onerror", which="longest", time=0)["hit"]
    assert longest["end"] - longest["start"] == (own["end"] - own["start"]).max()
    for which in ("next", "longest"):
        nothing = client.data("hit", run=0, words="no such name", which=which, time=0)
        assert nothing == {"hit": None}
    assert client.data("find", run=0, words="(")["names"] > 0  # no regular expression, but a text


def test_an_op_is_told_with_what_launched_it(client: Any, runs: list[tracekit.Run]) -> None:
    ops = runs[0].trace.read("ops")
    row = ops.filter(pl.col("name").cast(pl.String) == KERNEL).row(0, named=True)
    told = client.data("op", run=0, op=row["op"])
    assert told["name"] == KERNEL
    assert told["delay_ns"] == row["start"] - row["launch_start"]
    assert (told["stage"], told["iteration"]) == (row["stage"], row["iteration"])
    assert told["launch_start"] == row["launch_start"]
    launching = RunLanes(runs[0].trace).lanes[told["launch_lane"]]
    assert launching.key == (row["process"], row["launch_thread"], 0)
    assert client.data("run", run=0)["lanes"][told["lane"]]["label"].endswith(
        f"stream {row['stream']}"
    )


@pytest.mark.slow
def test_an_op_is_told_with_what_it_waited_for(client: Any, runs: list[tracekit.Run]) -> None:
    seen = set()
    for number, run in enumerate(runs):
        ops, calls = run.trace.read("ops").sort("start"), collective_calls(run.trace).to_dicts()
        reached = pl.col("end").cum_max().shift(1).over("device")
        ops = ops.with_columns(idle=pl.max_horizontal(pl.col("start") - reached, 0).fill_null(0))
        collectives = ops.filter(kind="collective")
        for op in pl.concat(
            [
                ops.top_k(8, by="idle"),
                ops.gather_every(max(ops.height // examples(80), 1)),
                collectives.tail(3),
            ]
        ).to_dicts():
            told = client.data("waited", run=number, op=op["op"])
            waited = {each["cause"]: 0 for each in told["idle"]}
            for each in told["idle"]:
                waited[each["cause"]] += each["idle_ns"]
            assert sum(waited.values()) == op["idle"]
            if not seen >= {*waited}:
                between = op["start"] - op["idle"], op["start"]
                rows = run.idle(between=between, by="device,cause").filter(device=op["device"])
                sums = rows.filter(pl.col("idle_ns") > 0).select("cause", "idle_ns").rows()
                assert waited == {CAUSES[cause]: length for cause, length in sums}
            seen |= {*waited}
            match = [row["match"] for row in calls if row["op"] == op["op"]]
            same = {row["op"] for row in calls if row["match"] in match}
            assert {each["op"] for each in told["members"]} == same
            for each in told["members"]:
                row = ops.filter(op=each["op"]).row(0, named=True)
                assert all(each[name] == row[name] for name in ("device", "start", "end"))
    assert len(seen) > 6


def test_steps_are_found_once_and_not_at_each_click(
    runs: list[tracekit.Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, find = [], step_detail.step_spans
    monkeypatch.setattr(step_detail, "step_spans", lambda trace: found.append(1) or find(trace))
    asked = AskedRuns(runs[:1])
    for op in ("0", "9"):
        asked.waited({"run": "0", "op": op})
    asked.steps({"run": "0"})
    assert len(found) == 1


def test_launches_are_those_of_the_ops_in_sight(
    runs: list[tracekit.Run], client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, (start, end) = runs[0], stretches(runs[0], 1)[0]
    monkeypatch.setattr(_lanes, "_MOST_FLOWS", 10_000)
    told = client.data("flows", run=0, from_=start, to=end)
    labels = [lane["label"] for lane in client.data("run", run=0)["lanes"]]
    drivers = {*run.trace.read("iterations")["process", "thread"].iter_rows()}
    expected = []
    for op in run.trace.read("ops").iter_rows(named=True):
        if op["start"] < end and op["end"] > start and op["launch_start"] is not None:
            is_drawn = (op["process"], op["launch_thread"]) in drivers
            expected.append((f"GPU {op['device']} · stream {op['stream']}", op["start"], is_drawn,
                             op["launch_start"]))  # fmt: skip
    shown = [
        (labels[to], at, thread is not None, launch) for to, at, thread, launch in told["flows"]
    ]
    assert sorted(shown) == sorted(expected)
    assert all(labels[thread].startswith("NVTX") for _, _, thread, _ in told["flows"] if thread)
    monkeypatch.setattr(_lanes, "_MOST_FLOWS", len(expected) - 1)
    assert client.data("flows", run=0, from_=start, to=end)["flows"] is None


def test_details_in_long_runs_are_told_by_the_step_of_the_op(
    asked: AskedRuns, runs: list[tracekit.Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, run in enumerate(runs):
        ops = random.Random(43).sample(range(run.trace.height("ops")), 12)
        given = [{"run": str(number), "op": str(op)} for op in ops]
        whole = [asked.op(each) for each in given]
        with monkeypatch.context() as patch:
            patch.setattr(_asked, "_LONG_RUN", 0)
            assert [asked.op(each) for each in given] == whole
