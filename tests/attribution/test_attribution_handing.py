"""Copies between GPUs by which the stages of a pipeline hand activations on."""

from __future__ import annotations

import pytest
from trace_builder import TraceBuilder, stages

EXCHANGED = ("WU", "gradient_exchange")


def _pipeline(micro_batches: int = 2, back: int = 1, size: int = 64, end: str = "") -> TraceBuilder:
    """Two threads, each with a GPU, hand micro-batches on: forward to GPU 1, backward to GPU 0.

    Parameters
    ----------
    micro_batches
        How many a step has.
    back
        The GPU whose thread copies the gradients of activations.
    size
        The bytes of these.
    end
        What thread 1 copies in its weight update, if anything.
    """
    builder = TraceBuilder()
    forward = {"kind": "p2p", "src_device": 0, "dst_device": 1, "bytes": 64}
    backward = {"kind": "p2p", "src_device": 1, "dst_device": 0, "bytes": size}
    for step in (0, 1000):
        for gpu in (0, 1):
            builder.range(step, step + 900, f"step {step // 1000}", thread=gpu)
            for at in range(step, step + 100 * micro_batches, 100):
                for name, begin in (("forward", at), ("backward", at + 400)):
                    builder.range(begin, begin + 50, f"{name}", thread=gpu)
                    builder.op(f"{name} {gpu} {begin}", begin + 10, thread=gpu, device=gpu)
            builder.range(step + 800, step + 880, "optimizer", thread=gpu)
        for at in range(step, step + 100 * micro_batches, 100):
            builder.op(f"on {at}", at + 20, thread=0, device=0, **forward)
            builder.op(f"back {at}", at + 420, thread=back, device=1, **backward)
        if end:
            builder.op(f"{end} {step}", step + 820, thread=1, device=1, **backward)
    return builder


def _copies(builder: TraceBuilder) -> set[tuple[str, tuple[str, str]]]:
    found = stages(builder.attributed())
    words = {name: name.split()[0] for name in found}
    return {(words[name], found[name]) for name in found if words[name] in {"on", "back", "update"}}


@pytest.mark.parametrize("micro_batches", [2, 4])
def test_copies_of_activations_keep_the_stage_of_their_range(micro_batches: int) -> None:
    assert _copies(_pipeline(micro_batches)) == {("on", ("FP", "nvtx")), ("back", ("BP", "nvtx"))}


def test_what_is_copied_once_a_step_may_be_weights() -> None:
    assert _copies(_pipeline(1)) == {("on", EXCHANGED), ("back", EXCHANGED)}


def test_a_worker_that_fetches_weights_also_sends_the_gradients() -> None:
    assert _copies(_pipeline(back=0)) == {("on", EXCHANGED), ("back", EXCHANGED)}


def test_gradients_of_activations_are_as_large_as_these() -> None:
    assert _copies(_pipeline(size=65)) == {("on", EXCHANGED), ("back", EXCHANGED)}


def test_copies_that_go_both_ways_in_a_forward_pass_hand_nothing_on() -> None:
    builder = _pipeline()
    builder.op("on back", 120, thread=0, device=0, kind="p2p", src_device=1, dst_device=0, bytes=64)
    assert _copies(builder) == {("on", EXCHANGED), ("back", EXCHANGED)}


def test_copies_in_a_weight_update_exchange_gradients() -> None:
    expected = {("on", EXCHANGED), ("back", EXCHANGED), ("update", EXCHANGED)}
    assert _copies(_pipeline(end="update")) == expected


def test_one_training_thread_is_no_pipeline() -> None:
    """Replicas that one thread drives get the weights in each forward pass."""
    builder = TraceBuilder()
    for at in (0, 100):
        builder.range(at, at + 40, "forward")
        builder.range(at + 40, at + 80, "backward")
        builder.op("f", at + 5, device=0)
        builder.op("on", at + 10, kind="p2p", src_device=0, dst_device=1, bytes=64)
        builder.op("back", at + 50, kind="p2p", src_device=1, dst_device=0, bytes=64)
    builder.range(200, 220, "optimizer")
    assert _copies(builder) == {("on", EXCHANGED), ("back", EXCHANGED)}
