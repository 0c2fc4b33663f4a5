"""The simulator's books agree with each other, and with a naive account of the same ops."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from functools import cache
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulate import intervals, pipeline, truth
from simulate.causes import CAUSES
from simulate.grid import scenarios
from simulate.job import Job
from simulate.network import Kernel, Layer, Network
from simulate.run import few_changes, simulate, usual_changes
from simulate.world import World

SMALL = {
    "one GPU": Job(network="lenet", batch=16, steps=3),
    "star": Job(network="lenet", batch=16, gpus=4, method="p2p", steps=3),
    "one driver": Job(network="lenet", batch=16, gpus=4, method="p2p", drivers="one", steps=3),
    "two hops": Job(network="lenet", gpus=8, method="p2p", unlinked="two_hop", steps=2),
    "staged": Job(network="lenet", gpus=8, method="p2p", unlinked="staged", steps=2),
    "spread": Job(network="lenet", gpus=8, method="p2p", pattern="spread", steps=2),
    "mxnet": Job(network="lenet", gpus=4, steps=3),
    "ddp": Job(network="lenet", gpus=4, pattern="all_reduce", processes="per_gpu", steps=3),
    "late": Job(network="lenet", gpus=2, pattern="all_reduce", overlap=False, steps=3),
    "gpipe": Job(network="lenet", batch=32, gpus=4, method="pipeline", steps=3),
    "1f1b": Job(network="lenet", batch=32, gpus=4, method="pipeline", schedule="1f1b", steps=3),
    "1f1b by NCCL": Job(
        network="lenet",
        batch=32,
        gpus=4,
        method="pipeline",
        schedule="1f1b",
        processes="per_gpu",
        steps=3,
    ),
    "pageable": Job(network="lenet", pageable=True, steps=3),
    "allocating": Job(network="lenet", allocate=True, synchronise="layer", steps=3),
    "stages": Job(network="lenet", gpus=2, synchronise="stage", ranges="stages", steps=3),
}


@cache
def _world(name: str) -> World:
    return simulate(SMALL[name])


def _content(world: World) -> str:
    return json.dumps(truth.truth(world, {}, {}))


@pytest.mark.parametrize("name", ["star", "ddp", "1f1b"])
def test_the_same_seed_gives_the_same(name: str) -> None:
    again = simulate(SMALL[name])
    assert _content(again) == _content(_world(name))
    times = [(op.start, op.end, op.call.correlation) for op in again.books.ops]
    assert times == [(op.start, op.end, op.call.correlation) for op in _world(name).books.ops]
    other = simulate(replace(SMALL[name], seed=1))
    assert _content(other) != _content(again)


@pytest.mark.parametrize("name", SMALL)
def test_bytes_over_links_are_those_of_the_ops(name: str) -> None:
    world = _world(name)
    known = truth.truth(world, {}, {})
    carried: Counter[str] = Counter()
    for table in ("ops", "collectives"):
        columns = known[table]
        for number, size in zip(columns.get("route", ()), columns.get("bytes", ()), strict=True):
            for way in () if number is None else known["routes"][number]:
                carried[way] += size
    assert carried == {way: each.size for way, each in world.links.traffic.items()}
    assert carried == dict(zip(known["links"]["link"], known["links"]["bytes"], strict=True))


@pytest.mark.parametrize("name", SMALL)
def test_exposed_hidden_and_idle_time_are_all_the_time(name: str) -> None:
    world = _world(name)
    windows = truth.step_windows(world.books.ops)
    parts = dict.fromkeys(windows, 0)
    for row in truth.stage_times(world.books.ops, windows):
        parts[row["device"], row["step"]] += row["exposed_ns"]
        assert row["exposed_ns"] + row["hidden_ns"] == row["busy_ns"] > 0
    for device, step, found in truth.idle_gaps(world.books.ops, windows):
        assert all(each.start < each.end for each in found)
        parts[device, step] += sum(each.end - each.start for each in found)
    assert parts == {key: end - start for key, (start, end) in windows.items()}
    assert len(windows) == world.job.gpus * world.job.steps


@pytest.mark.parametrize("name", SMALL)
def test_ops_obey_their_stream_their_launch_and_what_they_wait_for(name: str) -> None:
    p, free = _world(name).parameters, dict[object, int]()
    for op in _world(name).books.ops:
        before = free.get(op.stream, 0)
        waited = max((other.end + p.event_gap_ns for other in op.waits), default=0)
        least = max(before + p.stream_gap_ns, waited, op.call.start + p.launch_latency_ns)
        assert least <= op.start < op.end
        free[op.stream] = op.end


@pytest.mark.parametrize("name", SMALL)
def test_what_was_launched_is_done(name: str) -> None:
    world = _world(name)
    launching = ("cudaLaunchKernel", "cudaMemcpy")
    calls = [call for call in world.books.calls if call.name.startswith(launching)]
    assert len(calls) == len(world.books.ops) == len({op.call for op in world.books.ops})
    assert all(call.end >= call.start for call in world.books.calls)


@pytest.mark.parametrize("name", ["star", "spread", "two hops", "staged"])
def test_all_gradients_reach_a_root_and_all_weights_come_back(name: str) -> None:
    world, gpus = _world(name), SMALL[name].gpus
    size = 4 * 61_706 * (gpus - 1) * SMALL[name].steps
    for role in ("gradients", "weights"):
        moved = {
            op.transfer: op.size for op in world.books.ops if op.purpose.role == role
        }  # of a transfer in several parts, each has all of the bytes
        assert sum(moved.values()) == size


def test_pairs_without_an_nvlink_take_the_way_they_are_told() -> None:
    def kinds(name: str) -> Counter[int]:
        moved = [op for op in _world(name).books.ops if op.purpose.role in ("gradients", "weights")]
        return Counter(op.copy_kind for op in moved)

    layers, steps = 5, 2
    # GPU 0 shares no NVLink with GPUs 5, 6 and 7.
    near, far = 2 * layers * steps * 4, 2 * layers * steps * 3
    assert kinds("staged") == {10: near, 1: far, 2: far}
    assert kinds("two hops") == {10: near + 2 * far}


intervals_of = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), max_size=8).map(
    lambda drawn: [(start, start + length) for start, length in drawn]
)


@given(intervals_of, intervals_of, intervals_of)
def test_stage_times_are_those_counted_ns_by_ns(
    forward: list[tuple[int, int]], update: list[tuple[int, int]], load: list[tuple[int, int]]
) -> None:
    window = (5, 45)
    named = {"FP": forward, "WU": update, "IO": load}
    exposed = dict.fromkeys(named, 0)
    for stages, ns in intervals.sweep(named, window):
        for stage in stages:
            exposed[stage] += ns * truth.is_exposed(stage, stages)
    counted = dict.fromkeys(named, 0)
    for moment in range(*window):
        busy = [name for name, held in named.items() if any(a <= moment < b for a, b in held)]
        if busy:
            counted[busy[0]] += 1  # they are named in the order of precedence
    assert exposed == counted
    idle = sum(end - start for start, end in intervals.gaps(forward + update + load, window))
    assert idle + sum(counted.values()) == window[1] - window[0]


@pytest.mark.parametrize(
    ("stage", "busy", "exposed"),
    [
        ("FP", {"FP", "BP", "WU"}, True),
        ("BP", {"FP", "BP"}, False),
        ("BP", {"BP", "WU", "IO"}, True),
        ("WU", {"BP", "WU"}, False),
        ("IO", {"IO", "ME"}, True),
        ("ME", {"IO", "ME"}, False),
        ("OTHER", {"OTHER"}, True),
    ],
)
def test_which_stage_hides_which(stage: str, busy: set[str], exposed: bool) -> None:
    assert truth.is_exposed(stage, busy) is exposed


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_equal_stages_have_the_bubble_of_theory(
    schedule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """4 stages of 1 ms forward and 2 ms back, 8 micro-batches: 3 of 11 parts are bubble."""
    layer = Layer("layer", (Kernel("f", 10**9, 0),), (Kernel("b", 2 * 10**9, 0),), (), 1, 1)
    network = Network("equal", (1,), (layer,) * 4)
    monkeypatch.setattr(pipeline, "load_network", lambda _: network)
    exact = {
        "peak_flops": 10**12, "compute_efficiency": 1.0, "half_flops": 0, "kernel_jitter": 0.0,
    }  # fmt: skip
    job = Job(
        batch=8, gpus=4, method="pipeline", schedule=schedule, micro_batches=8, steps=2,
        evaluate=0, synchronise="never", parameters=exact,
    )  # fmt: skip
    ops = [op for op in simulate(job).books.ops if op.purpose.step == 1]
    passes = [op for op in ops if op.purpose.role == "compute"]
    assert sum(op.end - op.start for op in passes) == 4 * 8 * 3_000_000
    lasted = max(op.end for op in passes) - min(op.start for op in passes)
    assert lasted == pytest.approx(33_000_000, rel=0.01)
    bubble = 1 - 4 * 8 * 3_000_000 / (4 * lasted)
    assert bubble == pytest.approx(3 / 11, abs=0.01)


@pytest.mark.parametrize("name", SMALL)
def test_sums_of_idle_time_are_those_of_its_stretches(name: str) -> None:
    known = truth.truth(_world(name), {}, {})
    idle, gaps = known["idle"], known["gaps"]
    sums: Counter[tuple[int, int, str]] = Counter()
    for *key, start, end in zip(
        *(gaps[column] for column in ("device", "step", "cause", "start", "end")), strict=True
    ):
        sums[tuple(key)] += end - start
    keys = zip(idle["device"], idle["step"], idle["cause"], strict=True)
    assert sums == dict(zip(keys, idle["ns"], strict=True))
    assert set(idle["cause"]) <= set(CAUSES)


def _step_ns(job: Job) -> float:
    return median(truth.step_times(simulate(job).books.ops)[1:])


def test_a_change_that_matters_shows_and_one_that_does_not_does_not() -> None:
    job = scenarios()["input_bound"].job
    before, changes = _step_ns(job), usual_changes(job)
    assert _step_ns(changes["loader takes no time"]) < 0.7 * before
    assert _step_ns(changes["nvlink twice as fast"]) == before


DDP = Job(
    network="alexnet", batch=16, gpus=4, pattern="all_reduce", processes="per_gpu", steps=2,
    evaluate=0,
)  # fmt: skip


def test_changes_build_on_what_a_job_already_is() -> None:
    job = Job(kernel_factors={"WU": 3.0}, link_factors={"nvlink": 0.1}, gpu_pace={0: 2.0})
    changes = usual_changes(job)
    assert changes["kernels of WU twice as fast"].kernel_factors == {"WU": 1.5}
    assert changes["nvlink twice as fast"].link_factors == {"nvlink": 0.2}
    assert changes["all links as described"].link_factors == {}
    assert changes["all GPUs alike"].gpu_pace == {}
    assert set(few_changes(job)) < set(changes)
    assert all(changed != job for changed in changes.values())


def test_others_wait_for_a_slow_gpu_inside_of_collectives() -> None:
    waited: Counter[int] = Counter()
    for op in simulate(replace(DDP, gpu_pace={2: 1.5})).books.ops:
        if op.collective is not None:
            assert op.met >= op.start
            waited[op.stream.device] += op.met - op.start
    assert all(waited[gpu] > 20 * waited[2] for gpu in (0, 1, 3))


def test_a_slow_link_slows_the_rings_over_it() -> None:
    slow = replace(DDP, link_factors={"GPU0-GPU3": 0.1})
    assert _step_ns(slow) > 3 * _step_ns(DDP)


def test_memory_grows_with_the_batch_and_at_the_root() -> None:
    star = simulate(Job(network="alexnet", batch=16, gpus=4, method="p2p", steps=1, evaluate=0))
    root, *others = [row["peak_bytes"] for row in truth.memory_peaks(star)]
    assert root - others[0] == 3 * 4 * 60_965_224
    assert others == others[:1] * 3
    larger = simulate(Job(network="alexnet", batch=32, steps=1, evaluate=0))
    [peak] = [row["peak_bytes"] for row in truth.memory_peaks(larger)]
    assert peak > others[0]


QUICK = ("input_bound", "launch_bound", "pipeline_1f1b", "star_8")


@pytest.mark.parametrize(
    "name",
    [
        name if name in QUICK else pytest.param(name, marks=pytest.mark.nightly)
        for name, scenario in scenarios().items()
        if scenario.causes
    ],
)
def test_scenarios_show_what_they_say(name: str) -> None:
    scenario = scenarios()[name]
    ops = simulate(scenario.job).books.ops
    sums: Counter[str] = Counter()
    for _, step, found in truth.idle_gaps(ops, truth.step_windows(ops)):
        for each in found if step else ():
            sums[each.cause] += each.end - each.start
    assert sum(sums[cause] for cause in scenario.causes) > 0.6 * sums.total()
