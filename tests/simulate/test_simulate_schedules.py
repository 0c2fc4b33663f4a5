"""Small schedules of the simulator, worked out by hand."""

from __future__ import annotations

from collections.abc import Iterator

import simpy
from simulate import truth
from simulate.causes import explain
from simulate.collectives import Collective
from simulate.gpu import Moving, Op, Purpose, Stream
from simulate.host import Process, Thread
from simulate.parts import Engine, peer_ops
from simulated import kernel, plain_world, run


def _alone() -> tuple[Process, Thread, Stream]:
    process = plain_world().process()
    return process, process.thread("main"), process.stream(0)


def _times(op: Op) -> tuple[int, int]:
    return op.start, op.end


def test_a_launch_and_one_behind_it() -> None:
    process, main, stream = _alone()
    first, second, third = kernel(20_000), kernel(1_000), kernel(1_000)

    def program() -> Iterator[simpy.Event]:
        for op in (first, second):
            yield from main.launch(op, stream)
        yield from main.spend(50_000)
        yield from main.launch(third, stream)
        yield from main.synchronise([stream], "cudaStreamSynchronize_v3020")

    run(process.world, program())
    # Called at 2,000 and on the GPU 5,000 later; the second is there at 12,000 and has to wait.
    assert _times(first) == (7_000, 27_000)
    assert _times(second) == (27_500, 28_500)
    # 10,000 of launches, 50,000 of work, 2,000 of the framework, 5,000 of latency.
    assert _times(third) == (67_000, 68_000)
    # Called at 66,000; the op ends at 68,000, and the call returns 4,000 later.
    assert [call.end for call in process.world.books.calls] == [5_000, 10_000, 65_000, 72_000]
    late, latency = explain((28_500, 67_000), third)
    assert (late.cause, late.start, late.end) == ("host_delay", 28_500, 62_000)
    assert (latency.cause, latency.start, latency.end) == ("launch_latency", 62_000, 67_000)


def test_a_copy_between_gpus_and_what_waits_for_it() -> None:
    world = plain_world()
    process = world.process()
    main, compute = process.thread("main"), [process.stream(gpu) for gpu in (0, 1)]
    made, used = kernel(10_000, "BP"), kernel(5_000, "WU")
    [(_, sent)] = peer_ops(world, 0, 1, 250_000, Purpose("WU", 0, "gradients"))

    def program() -> Iterator[simpy.Event]:
        yield from main.launch(made, compute[0])
        yield from main.launch(sent, compute[0], "cudaMemcpyPeerAsync_v4000")
        event = yield from main.record(compute[0])
        yield from main.hold(compute[1], event)
        yield from main.launch(used, compute[1])
        for stream in compute:
            yield from main.synchronise([stream], "cudaStreamSynchronize_v3020")

    run(world, program())
    assert _times(made) == (7_000, 17_000)
    # After a gap of 500, 1,000 to start, and 250,000 bytes at 25 per ns.
    assert _times(sent) == (17_500, 28_500)
    assert _times(used) == (29_200, 34_200)
    # Launched at 14,600, there at 19,600, held until 28,500, and 700 from the event on.
    assert used.arrival == 19_600
    causes = [(each.cause, each.start, each.end) for each in explain((0, 29_200), used)][-3:]
    assert causes == [
        ("launch_latency", 14_600, 19_600),
        ("weight_update", 19_600, 28_500),
        ("dispatch", 28_500, 29_200),
    ]
    assert world.links.traffic["GPU0>GPU1"].intervals == [(18_500, 28_500)]


def _each_on_its_stream(
    main: Thread, ops: list[Op], streams: list[Stream]
) -> Iterator[simpy.Event]:
    for op, stream in zip(ops, streams, strict=True):
        yield from main.launch(op, stream)
    for stream in streams:
        yield from main.synchronise([stream], "cudaStreamSynchronize_v3020")


def test_copies_of_two_streams_share_a_link() -> None:
    world = plain_world()
    process = world.process()
    main, streams = process.thread("main"), [process.stream(0) for _ in range(2)]
    ops = [peer_ops(world, 0, 1, 250_000, Purpose("WU", 0))[0][1] for _ in streams]
    run(world, _each_on_its_stream(main, ops, streams))
    # Bytes move from 8,000 and from 13,000. By then 125,000 are over; the rest goes at half speed
    # until 23,000, and what is left of the second at full speed.
    assert [_times(op) for op in ops] == [(7_000, 23_000), (12_000, 28_000)]


def test_one_engine_for_copies_to_the_host() -> None:
    world = plain_world()
    process = world.process()
    main, streams = process.thread("main"), [process.stream(0) for _ in range(2)]
    route = ("GPU0>PCIe0", "PCIe0>CPU0")
    ops = [Op("copy", Purpose("ME", 0), Moving(), "MEMCPY", 157_538, 2, route=route)
           for _ in streams]  # fmt: skip
    run(world, _each_on_its_stream(main, ops, streams))
    # 10,000 ns at 15.7538 bytes per ns, one after the other: the second one starts at once.
    assert [_times(op) for op in ops] == [(7_000, 18_000), (18_000, 29_000)]


def test_an_all_reduce_waits_for_the_last_and_ends_for_all() -> None:
    world = plain_world()
    process = world.process()
    threads = [process.thread(f"replica {gpu}") for gpu in (0, 1)]
    streams = [process.stream(gpu) for gpu in (0, 1)]
    call = Collective(world, "all_reduce", 500_000, (0, 1), root=0)
    parts = [call.part(Purpose("WU", 0, "collective"), recent=True) for _ in streams]

    def program(gpu: int) -> Iterator[simpy.Event]:
        if gpu:
            yield from threads[gpu].spend(30_000)
        yield from threads[gpu].launch(parts[gpu], streams[gpu])
        yield from threads[gpu].synchronise([streams[gpu]], "cudaStreamSynchronize_v3020")

    run(world, program(0), program(1))
    # Both are there at 37,000. 10,000 to start, two hops of 1,000, and 2 * 1/2 of the bytes over
    # the one brick, both ways at once, at 25 per ns.
    assert [_times(part) for part in parts] == [(7_000, 69_000), (37_000, 69_000)]
    assert [part.met for part in parts] == [37_000, 37_000]
    assert {way: each.size for way, each in world.links.traffic.items()} == {
        "GPU0>GPU1": 500_000,
        "GPU1>GPU0": 500_000,
    }


def test_a_full_queue_blocks_the_call() -> None:
    world = plain_world(queue_capacity=1)
    process = world.process()
    main, stream = process.thread("main"), process.stream(0)

    def program() -> Iterator[simpy.Event]:
        for _ in range(3):
            yield from main.launch(kernel(100_000), stream)
        yield from main.synchronise([stream], "cudaStreamSynchronize_v3020")

    run(world, program())
    # One runs, one is queued, and the third call returns when the first one is over.
    assert [call.end for call in world.books.calls[:3]] == [5_000, 10_000, 107_000]


def test_windows_and_times_of_stages() -> None:
    world = plain_world()
    process = world.process()
    main, streams = process.thread("main"), [process.stream(0) for _ in range(2)]

    def program() -> Iterator[simpy.Event]:
        for step in (0, 1):
            yield from main.launch(kernel(10_000, "FP", step), streams[0])
            yield from main.launch(kernel(20_000, "WU", step), streams[1])
            yield from main.synchronise(streams, "cudaDeviceSynchronize_v3020")

    run(world, program())
    ops = world.books.ops
    assert [_times(op) for op in ops] == [
        (7_000, 17_000), (12_000, 32_000), (43_000, 53_000), (48_000, 68_000),
    ]  # fmt: skip
    windows = truth.step_windows(ops)
    assert windows == {(0, 0): (7_000, 43_000), (0, 1): (43_000, 68_000)}
    rows = [tuple(row.values()) for row in truth.stage_times(ops, windows)]
    assert rows == [
        (0, 0, "FP", 10_000, 10_000, 0),
        (0, 0, "WU", 20_000, 15_000, 5_000),
        (0, 1, "FP", 10_000, 10_000, 0),
        (0, 1, "WU", 20_000, 15_000, 5_000),
    ]
    [(device, step, found)] = truth.idle_gaps(ops, windows)
    assert (device, step) == (0, 0)
    assert [(each.cause, each.start, each.end) for each in found] == [
        ("waiting_call", 32_000, 36_000),
        ("host_delay", 36_000, 38_000),
        ("launch_latency", 38_000, 43_000),
    ]
    assert truth.step_times(ops) == [36_000, 25_000]


def test_a_thread_that_waits_is_explained_by_the_one_it_waits_for() -> None:
    world = plain_world()
    process = world.process()
    main = process.thread("main")
    engine, stream = Engine(world, process.thread("pt_autograd_0")), process.stream(0)
    op = kernel(1_000, "BP")

    def program() -> Iterator[simpy.Event]:
        yield from main.spend(40_000, "between_steps")
        yield from engine.run(main, lambda thread: thread.launch(op, stream))
        yield from main.synchronise([stream], "cudaStreamSynchronize_v3020")

    run(world, program())
    causes = [(each.cause, each.start, each.end) for each in explain((0, op.start), op)]
    assert causes == [
        ("between_steps", 0, 40_000),
        ("host_delay", 40_000, 46_000),  # waking up
        ("host_delay", 46_000, 48_000),
        ("launch_latency", 48_000, 53_000),
    ]
