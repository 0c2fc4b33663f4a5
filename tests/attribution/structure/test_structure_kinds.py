"""Programs of kinds: none is told wrong without a word."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import polars as pl
import pytest
import training_outcomes
from trace_builder import TraceBuilder, default_rules
from training_kinds import APART, KINDS, held_apart, simulate
from training_later import LATER
from training_outcomes import TOLERATED, builder_of, outcome_of, trace_of
from training_sim import MAIN, MODES, Simulated
from training_strangers import STRANGERS

from tracekit.attribution import attribute


def test_the_families_that_are_held_apart_are_chosen_by_hash() -> None:
    assert {KINDS[name][0] for name in {*KINDS} - LATER - STRANGERS if held_apart(name)} == APART


@pytest.mark.parametrize("mode", MODES)
def test_a_program_is_the_same_each_time(mode: str) -> None:
    one, other = simulate("gan_fused", mode, 3), simulate("gan_fused", mode, 3)
    assert one == other
    assert simulate("gan_fused", mode, 4).ops != one.ops


def test_modes_leave_out_what_they_say() -> None:
    names = {mode: {name for _, _, name, _ in simulate("cnn", mode).ranges} for mode in MODES}
    assert "backward" in names["ranges"]
    assert "forward" in names["no_backward_range"]
    assert "backward" not in names["no_backward_range"]
    assert names["threads"] == names["one_thread"] == set()
    threads = {mode: {op["thread"] for op in simulate("cnn", mode).ops} for mode in MODES}
    assert [len(threads[mode]) for mode in MODES] == [2, 2, 2, 1]


@pytest.mark.parametrize(
    "name",
    ["muon_adam_first", "muon_resident", "shampoo", "gan_fused", "sam_plain", "accuracy",
     "late_target", "actor_and_learner", "optimizer_in_backward", "data_parallel"],
)  # fmt: skip
@pytest.mark.parametrize("mode", ["threads", "one_thread"])
def test_nothing_is_wrong_without_a_word(name: str, mode: str) -> None:
    found = outcome_of(name, mode, seed=1)
    assert not found.silent, found
    assert not found.steps_silent, found


@pytest.mark.parametrize("name", ["ppo", "data_parallel", "actor_and_learner", "gradient_penalty"])
def test_ranges_make_no_answer_worse(name: str) -> None:
    """Ranges that leave threads or passes out: structure tells these, as it does without ranges."""
    alone, ranged = outcome_of(name, "threads"), outcome_of(name, "ranges")
    assert ranged.wrong + ranged.unknown <= alone.wrong + alone.unknown + TOLERATED, ranged


def test_structure_that_contradicts_ranges_tells_nothing_that_these_leave() -> None:
    """Here ranges call forward what structure calls backward, and most is in neither."""
    simulated = simulate("ppo", "ranges")
    named = {"forward": "backward", "backward": "forward"}
    simulated.ranges[:] = [
        (*edges, named.get(name, name), t) for *edges, name, t in simulated.ranges
    ]
    ops = attribute(trace_of(simulated), default_rules()).read("ops")
    assert ops.filter(ops["stage"] == "OTHER").height > 0
    assert "structure" not in ops["stage_source"].cast(pl.String).unique()


def test_ranges_of_one_thread_that_structure_contradicts_leave_others_to_it() -> None:
    """One of two trainings calls its passes what they are not; the other marks no update."""
    simulated = simulate("two_trainings", "ranges")
    wrong = {"forward": "backward", "backward": "forward"}
    simulated.ranges[:] = [
        (begin, end, name if thread == MAIN else wrong.get(name, name), thread)
        for begin, end, name, thread in simulated.ranges
        if thread != MAIN or name != "optimizer"
    ]
    ops = attribute(trace_of(simulated), default_rules()).read("ops").sort("correlation")
    own = [op["thread"] == MAIN and op["truth"] == {"WU"} for op in simulated.ops]
    updates = ops.filter(pl.Series(own))
    assert set(updates["stage"]) == {"WU"}
    assert "structure" in updates["stage_source"].cast(pl.String).unique()


@pytest.mark.parametrize("mode", ["threads", "one_thread"])
@pytest.mark.parametrize("name", ["maml", "lbfgs_resident", "graph_of_pass"])
def test_steps_of_kinds_that_were_held_apart_are_no_longer_wrong_without_a_word(
    name: str, mode: str
) -> None:
    assert not outcome_of(name, mode).steps_silent


@pytest.mark.parametrize("mode", ["threads", "one_thread"])
def test_a_loss_that_is_fetched_first_hides_no_line_search(mode: str) -> None:
    found = outcome_of("lbfgs", mode)
    assert found.steps_right
    assert found.steps_told == found.steps


@pytest.mark.parametrize("seed", [16, 101])
def test_clearing_gradients_before_a_backward_pass_is_not_of_it(seed: int) -> None:
    """Many fills of one size mirror each other, and only the last one begins the pass."""
    assert outcome_of("resident_named", "one_thread", seed).wrong < TOLERATED


def test_gradients_may_be_exchanged_after_backward_passes() -> None:
    found = outcome_of("experts", "threads", seed=101)
    assert found.wrong + found.unknown < TOLERATED
    assert found.steps_right


def test_the_order_of_one_thread_is_doubted_where_others_launch_layers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Backward's own thread repeats layer by layer, and names do not tell the two threads apart."""

    def renamed(name: str, mode: str, seed: int) -> Simulated:
        simulated = simulate(name, mode, seed)
        for op in filter(lambda op: op["name"], simulated.ops):
            op["name"] = re.sub("(vectorized_layer|softmax_warp_for).*", "backward", op["name"])
        return simulated

    monkeypatch.setattr(training_outcomes, "simulate", renamed)
    found = outcome_of("experts", "threads", seed=101)
    assert not found.steps_right
    assert any("other threads launch" in each for each in found.words)


@pytest.mark.parametrize("mode", ["threads", "one_thread"])
@pytest.mark.parametrize(
    "name", ["evaluates_often", "evaluates_each_step", "evaluates_fetched", "evaluates_unnamed"]
)
def test_evaluation_between_steps_without_input_is_evaluation(name: str, mode: str) -> None:
    """Batches are in memory of the GPU, so that nothing but the layers tells passes apart."""
    found = outcome_of(name, mode, seed=2)
    assert found.wrong < TOLERATED, found
    assert found.steps_right


@pytest.mark.parametrize("name", ["lstm_streams", "lstm_streams_plain", "lstm_mostly_elsewhere"])
def test_passes_on_many_streams_are_told_by_the_threads_that_share_some(name: str) -> None:
    found = outcome_of(name, "threads")
    assert found.wrong + found.unknown < TOLERATED, found
    assert found.steps_right


@pytest.mark.parametrize("name", ["frozen_half", "frozen_half_unnamed", "frozen_half_muon"])
def test_halves_of_one_pass_that_are_alike_are_no_evaluation(name: str) -> None:
    """Only the upper half has a backward pass, so that half of the layers would do for it."""
    assert outcome_of(name, "threads").wrong < TOLERATED


@pytest.mark.parametrize("name", ["lora_merged_for_evaluation", "zero_offload_accumulates"])
def test_weights_that_evaluation_merges_or_the_host_updates_make_no_pass_longer(name: str) -> None:
    found = outcome_of(name, "threads")
    assert found.wrong < TOLERATED, found
    assert not found.steps_silent


def test_input_is_of_no_update_though_what_follows_it_differs() -> None:
    """Every third gap has input and an attack of its own, before the usual forward pass."""
    found = outcome_of("adversarial_free", "threads")
    assert found.wrong < 3 * TOLERATED, found  # it was 43 %
    assert found.steps_right


def test_gradients_that_evaluation_computes_are_doubted() -> None:
    """Forces are gradients: three molecules after every sixth step look like accumulation."""
    found = outcome_of("force_field", "threads")
    assert not found.silent, found
    assert not outcome_of("accum4_fused", "threads").words


@pytest.mark.parametrize("name", ["jax_step", "jax_accumulates"])
def test_a_scalar_that_is_fetched_now_and_then_makes_no_longer_step(name: str) -> None:
    found = outcome_of(name, "one_thread")
    assert (found.steps_told, found.steps_right) == (found.steps, True)


@pytest.mark.nightly
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", sorted({*KINDS} - STRANGERS))
def test_no_stage_is_wrong_without_a_word_by_night(name: str, mode: str) -> None:
    """Each night tries programs of its own; the seed that a failure names repeats it.

    Those of another author are counted in docs/evidence/stages.md.
    """
    for seed in (1, datetime.now(tz=UTC).toordinal()):
        found = outcome_of(name, mode, seed)
        assert not found.silent, (seed, found)


def test_requests_beside_a_training_process_are_no_steps() -> None:
    """Its 49 requests were the steps of a run that trains for 10, whose own counted as none."""
    simulated = simulate("clipping_many", "threads")
    builder = builder_of(simulated)
    for at in range(1_000_000, max(op["end"] for op in simulated.ops), 237_000):
        row = {"thread": 10, "stream": 9, "context": 1}
        builder.op("copy", at, start=at + 6_000, end=at + 7_500, kind="h2d", bytes=4096, **row)
        for n, name in enumerate(("ampere_sgemm_128x64_nn", "relu_kernel") * 3):
            begin = at + 14_000 + 30_000 * n
            builder.op(name, at + 8_000 * (n + 1), start=begin, end=begin + 29_000, **row)
        builder.op("copy", at + 60_000, start=at + 200_000, end=at + 201_500, kind="d2h",
                   bytes=4096, **row)  # fmt: skip
    trace = attribute(builder.trace(), default_rules())
    assert trace.read("verdicts")["verdict"].to_list() == ["training", "unknown"]
    assert trace.read("iterations")["process"].unique().to_list() == [0]


def test_forward_ranges_of_requests_beside_a_training_process_are_no_steps() -> None:
    """Its 49 requests were the steps of a run that trains for 10 steps without ranges."""
    simulated = simulate("clipping_many", "threads")
    builder = builder_of(simulated)
    for at in range(1_000_000, max(op["end"] for op in simulated.ops), 237_000):
        row = {"thread": 10, "stream": 9, "context": 1}
        for n, name in enumerate(("ampere_sgemm_128x64_nn", "relu_kernel") * 3):
            begin = at + 14_000 + 30_000 * n
            builder.op(name, at + 8_000 * (n + 1), start=begin, end=begin + 29_000, **row)
        builder.range(at + 1_000, at + 60_000, "forward", thread=10)
    trace = attribute(builder.trace(), default_rules())
    assert trace.read("verdicts")["verdict"].to_list() == ["training", "inference"]
    assert trace.read("iterations").select("process", "source").unique().rows() == [
        (0, "structure")
    ]
    assert trace.read("ops").filter(process=1)["iteration"].null_count() > 0
    assert any("its forward ranges count as requests" in text for text in trace.warnings)


def test_forward_ranges_of_a_server_alone_are_its_steps() -> None:
    builder = TraceBuilder()
    for at in range(0, 1_000_000, 100_000):
        builder.op("ampere_sgemm_128x64_nn", at + 10, start=at + 5_000, end=at + 60_000)
        builder.range(at, at + 100, "forward")
    assert attribute(builder.trace(), default_rules()).read("iterations").height == 10


def test_processes_whose_steps_structure_finds_on_one_gpu_are_told() -> None:
    """Two trainings without ranges share a GPU: `diagnose` added up their steps without a word."""
    simulated = simulate("clipping_many", "threads")
    builder = builder_of(simulated)
    threads = {thread: n for n, thread in enumerate(sorted({op["thread"] for op in simulated.ops}))}
    for op in simulated.ops:
        builder.op(
            op["name"], op["launch"] + 500, thread=10 + threads[op["thread"]], kind=op["kind"],
            start=op["start"] + 700, end=op["end"] + 700, stream=op["stream"], context=2,
            launch_size=op["size"], bytes=op["bytes"],
        )  # fmt: skip
    said = attribute(builder.trace(), default_rules()).warnings
    assert sum("2 processes run steps on device 0 in the same period" in text for text in said) == 1
