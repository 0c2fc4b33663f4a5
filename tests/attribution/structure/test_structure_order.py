"""Estimates from the order of launches of one thread: programs of literal launches."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np
import pytest
from structure_programs import Program, check

from tracekit.attribution._thresholds import THRESHOLDS
from tracekit.attribution.structure import Structure, find_structure
from tracekit.attribution.structure._bursts import find_bursts
from tracekit.attribution.structure._by_order import _main_sequence
from tracekit.attribution.structure._kernel_hints import look_at
from tracekit.attribution.structure._step import _candidates, _recomputed
from tracekit.model import STAGES

FORWARD = "m:gemm#100/F m:relu#200/F m:gemm#300/F m:relu#400/F m:softmax#500/F "
BACKWARD = (
    "m:softmax_backward#500/B m:relu_backward#400/B m:gemm_backward#300/B m:relu_backward#200/B "
    "m:gemm_backward#100/B "
)
UPDATE = "m:adam/W m:adam/W "
STEP = "m:h2d/I " + FORWARD + BACKWARD + UPDATE
EVALUATION = "m:h2d/M " + FORWARD.replace("/F", "/M") + "m:d2h/M "


def _layers(name: str, sizes: Iterable[int]) -> str:
    return "".join(f"m:{name}_{size}#{size}/- " for size in sizes)


def found(program: Program) -> Structure:
    return find_structure(program.work())


class TestEstimate:
    def test_a_step_turns_back_in_its_middle(self) -> None:
        program = Program().run(STEP, 6)
        structure = found(program)
        check(structure, program, "order")
        assert structure.training
        assert any("begin at 6 (mirror image 1.00)" in text for text in structure.evidence)
        assert (structure.period, structure.repeats) == (13, 6.0)
        assert np.bincount(structure.step).tolist() == [13] * 6
        assert structure.steps["whole"].all()

    @pytest.mark.parametrize("steps", [3, 4])  # three are too few to go by names alone
    @pytest.mark.parametrize("fill", ["", "m:FillFunctor#1/B "])
    def test_backward_begins_with_the_gradient_of_the_loss(self, fill: str, steps: int) -> None:
        """Sizes of its layers mirror each other, too, which weighs more than those of forward."""
        loss = "m:nll_loss_forward#9/F " + fill + "m:nll_loss_backward#9/B "
        first = _layers("gemm", range(3000, 6000, 300)).replace("/-", "/B")
        rest = _layers("gemm_backward", range(5700, 2700, -300)).replace("/-", "/B")
        forward = FORWARD.replace("softmax", "gelu")
        program = Program().run("m:h2d/I " + forward + loss + first + rest + UPDATE, steps)
        structure = found(program)
        check(structure, program, "order")
        assert any("(gradient of the loss)" in text for text in structure.evidence)
        assert not any("mirror image" in text for text in structure.evidence)
        by_names = find_bursts(look_at(program.work()))
        assert (by_names is None) == (steps < THRESHOLDS.bursts)
        if by_names is not None:
            assert (by_names.backward == (program.stages == STAGES.index("BP"))).all()

    @pytest.mark.parametrize("layers", [3, 6])
    def test_gradients_of_layers_far_apart_are_of_one_pass(self, layers: int) -> None:
        """Attention alone is named after gradients; between two of its kernels are those of layers.

        Every third step logs, so that steps have no period.
        """
        forward = "".join(
            f"m:flash_fwd#{n}7/F m:silu#{n}6/F m:gemm_tn#{n}5/F m:gemm_tn#{n}4/F "
            for n in range(1, layers)
        )
        backward = "".join(
            f"m:gemm_nn#{n}4/B m:gemm_nt#{n}4/B m:gemm_nn#{n}5/B m:gemm_nt#{n}5/B "
            + 12 * "m:mul#6/B "
            + f"m:silu_backward#{n}6/B m:flash_bwd_dq#{n}7/B m:flash_bwd#{n}7/B "
            for n in range(layers - 1, 0, -1)
        )
        loss = "m:nll_loss_forward#9/F m:nll_loss_backward#9/B m:log_softmax_backward#9/B "
        step, update = "m:h2d/I " + forward + loss + backward, "m:sign/W m:lerp/W "
        logs = "m:norm_all/W m:d2h/W "
        program = Program().run((step + update) * 2 + step + logs + update, 4)
        check(found(program), program, "order")

    def test_a_pass_after_forward_without_a_named_loss_is_another_one(self) -> None:
        backward = "m:gemm_backward#300/B m:relu_backward#200/B m:gemm_backward#100/B "
        step = "m:h2d/- " + FORWARD + "m:nll_loss_backward#500/B " + backward + "m:sign/W " * 9
        both = find_bursts(look_at(Program().run((step + FORWARD * 3 + backward) * 6).work()))
        assert both is not None
        assert both.turns == 12

    def test_evaluation_between_steps(self) -> None:
        program = Program().run(STEP, 6).run(EVALUATION, 4).run(STEP, 6).run(EVALUATION, 4)
        structure = found(program)
        check(structure, program, "order")
        assert structure.steps.height == 12

    def test_evaluation_in_every_step(self) -> None:
        program = Program().run(STEP + EVALUATION, 8)
        check(found(program), program, "order")
        assert found(program).steps.height == 8

    def test_cleared_gradients(self) -> None:
        cleared = "m:FillFunctor/W m:FillFunctor/W m:FillFunctor/W "
        program = Program().run("m:h2d/I " + cleared + FORWARD + BACKWARD + UPDATE, 6)
        check(found(program), program, "order")

    def test_cut_steps_are_said(self) -> None:
        tokens = STEP.split()
        program = Program().run(" ".join(tokens[4:])).run(STEP, 5).run(" ".join(tokens[:-3]))
        structure = found(program)
        assert (structure.cut_begin, structure.cut_end) == (1, 1)
        assert structure.steps["whole"].to_list() == [False, *[True] * 5, False]

    def test_epochs_do_not_hide_steps(self) -> None:
        unnamed = STEP.replace("adam", "x")
        program = Program().run((unnamed * 20 + EVALUATION * 3) * 6)
        structure = found(program)
        assert structure.method == "order"
        assert structure.steps.height == 120

    def test_more_kernels_of_gradients_in_forward_are_said(self) -> None:
        """Five of the first kernels are named so, and four after most others."""
        named = {*range(5), *range(21, 25)}
        kernels = "".join(
            f"m:{'gemm_backward' if number in named else 'gemm'}#{size}/- "
            for number, size in enumerate([*range(1, 15), *range(14, 0, -1)])
        )
        structure = found(Program().run("m:h2d/- " + kernels + UPDATE, 8))
        assert "kernels named for gradients: 5 before that place, 4 after" in structure.evidence
        assert any("(names of gradients)" in text for text in structure.evidence)
        assert structure.contradictions == ("more kernels of gradients in forward",)
        assert not found(Program().run(STEP, 8)).contradictions

    @pytest.mark.parametrize(("again", "share"), [("defghijkl", 0.0), ("cdefghijkl", 0.2)])
    def test_layers_are_computed_again_if_ten_of_forward_in_a_row_are(
        self, again: str, share: float
    ) -> None:
        """Of ten in a row that end with backward's first kernel, only nine are of forward."""
        layers = ["gemm_x", *(f"gemm_{name}" for name in again), *["gemm_x"] * (13 - len(again))]
        forward = [f"gemm_{name}" for name in "abcdefghijkl"]
        program = Program().run(" ".join(f"m:{name}/-" for name in (*forward, *layers)))
        lane = look_at(program.work())
        assert _recomputed(lane, len(forward), len(lane)) == share


@pytest.mark.parametrize(
    ("optimizer", "layers", "places"),
    [([3, 4], [0, 1, 6, 7], [5, 6]), ([6, 7], [1, 2], [0, 1]), ([], [1], list(range(8)))],
)
def test_a_step_begins_between_an_update_and_a_layer(
    optimizer: list[int], layers: list[int], places: list[int]
) -> None:
    """Eight ops that repeat, so that what follows the last one is the first one."""
    ring = np.arange(8)
    assert _candidates(np.isin(ring, optimizer), np.isin(ring, layers)).tolist() == places


def test_the_main_sequence_is_one_thread_s_on_one_stream() -> None:
    program = Program().run(
        "m:gemm/- m:gemm@9/- x:gemm/- m:adam/- m:memset/- m:all_reduce/- x:relu@9/- m:d2h/-"
    )
    assert _main_sequence(look_at(program.work())).tolist() == [0, 3, 7]


def test_threads_that_infer_take_turns_on_a_stream() -> None:
    program = Program().run("m:gemm/- m:gemm@9/- x:gemm/- m:relu/- m:d2h/-")
    assert _main_sequence(look_at(program.work())).tolist() == [0, 2, 3, 4]


class TestRefused:
    def test_sizes_of_launches_are_not_known(self) -> None:
        """Names of gradients alone would say that the layers without such names are forward's."""
        work = Program().run(STEP, 6).work()
        work.size[:] = -1
        structure = find_structure(work)
        assert (structure.method, structure.training) == ("refused", None)
        assert (structure.stage == -1).all()
        assert structure.period == 13
        assert any("sizes of launches are not known" in text for text in structure.evidence)

    def test_layers_computed_again_within_backward(self) -> None:
        one, two = (_layers("gemm", range(first, first + 12)) for first in (100, 200))
        undo_one, undo_two = (
            _layers("gemm_backward", range(first + 11, first - 1, -1)) for first in (100, 200)
        )
        step = "m:h2d/- " + one + two + two + undo_two + one + undo_one + "m:adam/- "
        structure = found(Program().run(step, 6))
        assert (structure.method, structure.training) == ("refused", None)
        assert (structure.stage == -1).all()
        assert any("computed again" in text for text in structure.evidence)
        assert structure.period == 74

    def test_too_few_passes(self) -> None:
        long = STEP.removesuffix(UPDATE) + STEP
        assert found(Program().run(long, 1)).method == "refused"


class TestNames:
    """Where no period tells a step, kernels that are named after gradients tell passes."""

    @pytest.mark.parametrize("times", [2, 6])
    def test_several_passes_in_a_step(self, times: int) -> None:
        program = Program().run(STEP.removesuffix(UPDATE) * 3 + UPDATE, times)
        check(found(program), program, "order")
        assert found(program).steps.height == times
        told = f"one thread launches all: names of gradients show {3 * times} backward passes"
        assert found(program).evidence[0] == told

    def test_steps_of_different_sizes(self) -> None:
        program = Program()
        for size in (1, 3, 2, 5, 4, 3, 2, 5, 1):
            program.run(STEP.replace("00", f"{size}0"))
        check(found(program), program, "order")
        assert found(program).steps.height == 9

    def test_two_readings_that_differ_are_said(self) -> None:
        """The last kernels of an update multiply, as those of Muon do."""
        update = "m:adam/W m:adam/W " + "m:orthogonal_gemm#900/W " * 6
        program = Program().run("m:h2d/I " + FORWARD + BACKWARD + update, 6)
        structure = found(program)
        check(structure, program, "order")
        assert any("of other stages" in text for text in structure.contradictions)
        assert structure.doubt_ns >= 6 * 6 * 7


class TestNothing:
    def test_inference_has_iterations_and_no_stages(self) -> None:
        text = "m:h2d/- m:gemm/- m:relu/- m:softmax/- m:gemm/- m:d2h/- "
        structure = found(Program().run(text, 12, pause=100))
        assert (structure.method, structure.training) == ("none", False)
        assert (structure.period, structure.repeats) == (6, 12.0)
        assert structure.step.tolist() == [n for n in range(12) for _ in range(6)]
        assert structure.reading is None

    def test_gpus_that_one_thread_drives_share_its_steps(self) -> None:
        """A solver on one GPU and then on two, so that half of the first one's launches repeat."""
        program = Program().run("m:memset/- m:sweep/- m:d2h/- m:d2d/- m:d2d/-", 60)
        for _ in range(60):
            program.run("m:h2d/- m:h2d/-", device=1, pause=100)
            program.run("m:memset/- m:sweep/-").run("m:memset/- m:sweep/-", device=1)
            program.run("m:d2h@8/- m:h2d/- m:h2d/- b:other/-").run("m:d2h/-", device=1)
        structure = found(program)
        known = program.work().thread == ord("m")
        assert (structure.method, structure.steps.height) == ("none", 60)
        shared = [n for n in range(60) for _ in range(10)]
        assert structure.step[known].tolist() == [-1] * 300 + shared
        assert (structure.step[~known] == -1).all()

    def test_of_a_recording_within_one_pass_steps_may_be_layers(self) -> None:
        layer = " ".join(f"m:{'gemm' if n % 3 else 'relu'}_{n}/-" for n in range(12))
        routed = found(Program().run(f"m:label/- {layer}", 20))  # experts, by indices of the host
        assert (routed.reading or "").startswith("steps may be layers of one pass: 13 launches")
        assert found(Program().run(f"m:h2d/- {layer}", 20)).reading is None
        structure = found(Program().run(layer, 20))
        assert structure.steps.height == 20
        assert (structure.reading or "").startswith("steps may be layers of one pass: 12 launches")

    def test_steps_of_an_engine_within_regular_requests_are_told(self) -> None:
        """A prompt, then six tokens, each fetched: what repeats is the request."""
        prompt = "m:h2d/- m:embed/- m:gemm_large/- m:attention/- m:gemm_large/- m:argmax/- m:d2h/- "
        token = "m:h2d/- m:embed/- m:gemv/- m:attention_split/- m:gemm_small/- m:argmax/- m:d2h/- "
        structure = found(Program().run(prompt + token * 6, 12, pause=100))
        assert (structure.training, structure.steps.height) == (False, 12)
        assert structure.reading == (
            "a step may contain several passes, as requests of a server do: 7.0 results are "
            "fetched in each, after about as many layers"
        )
        silent = (prompt + token * 6).replace("m:d2h/- ", "")  # as JAX trains between evaluations
        assert found(Program().run(silent, 12, pause=100)).reading == (
            "a step may be several: 6.9 batches are copied to the GPU in each, after about as many "
            "layers"
        )
        detector = prompt.replace("m:d2h", "m:gemm_large/- m:d2h/- m:gemm_small/- m:nms/- m:d2h")
        assert found(Program().run(detector, 12, pause=100)).reading is None

    @pytest.mark.parametrize("copies", ["{}", "9", "9{}"])
    @pytest.mark.parametrize("threads", ["m", "mn"])
    def test_results_of_another_stream_are_of_another_replica(
        self, copies: str, threads: str
    ) -> None:
        """Two replicas of a detector, of which each fetches one result a step."""
        program = Program()
        texts = {
            stream: (
                f"{thread}:h2d@{stream}/- {thread}:conv@{stream}/- {thread}:gemm@{stream}/- "
                f"{thread}:nms@{stream}/- {thread}:d2h@{copies.format(stream)}/- "
            ).split()
            for stream, thread in zip((7, 8), (threads[0], threads[-1]), strict=True)
        }
        for _ in range(12):
            if len(threads) == 1:
                program.run(" ".join(texts[7]), pause=100).run(" ".join(texts[8]))
            else:  # by turns
                program.run(" ".join(itertools.chain(*zip(*texts.values(), strict=True))))
        structure = found(program)
        assert (structure.training, structure.reading) == (False, None), structure.evidence

    @pytest.mark.parametrize(("layers", "ops"), [(32, 57), (7, 12), (9, 4), (4, 30)])
    @pytest.mark.parametrize("begin", [0, 1, 9])
    @pytest.mark.parametrize("rests", [0, 35, 100])
    def test_layers_of_a_pass_that_repeats_exactly_are_no_iterations(
        self, layers: int, ops: int, begin: int, rests: int
    ) -> None:
        """Where the host rests within a layer, a pass seems to begin there, and in each layer."""
        layer = [f"m:{'gemm' if n % 3 else 'relu'}_{n}/-" for n in range(ops)]
        every = ["m:embedding/-", "m:arange/-", *layer * layers, "m:norm/-", "m:head_gemm/-"]
        size, program = len(every), Program()
        at = rests % size
        for _ in range(10):
            program.run(" ".join(every[:at])).run(" ".join(every[at:]), pause=100)
        structure = find_structure(program.work().take(np.arange(begin, 10 * size)))
        assert (structure.method, structure.period) == ("none", size)
        whole = int(structure.steps["whole"].sum())
        assert whole == 10 if begin == 0 else whole in (8, 9)
        assert structure.steps.height in (9, 10)
        _, ops_of = np.unique(structure.step[structure.step >= 0], return_counts=True)
        assert set(ops_of[1:-1].tolist()) == {size}
        assert structure.reading is None

    def test_a_kernel_that_repeats_is_no_iteration(self) -> None:
        structure = found(Program().run("m:vectorAdd#1/- ", 100))
        assert structure.method == "none"
        assert structure.steps.is_empty()

    def test_collectives_alone_are_no_training(self) -> None:
        structure = found(Program().run("m:all_reduce/- ", 50))
        assert (structure.method, structure.training) == ("none", False)

    def test_a_step_that_is_one_graph(self) -> None:
        structure = found(Program().run("m:h2d/- m:graph/- m:d2h/- ", 30))
        assert (structure.stage == -1).all()
        assert structure.steps.height == 30
