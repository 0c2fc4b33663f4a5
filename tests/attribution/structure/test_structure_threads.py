"""Stages where backward has threads of its own: programs of literal launches."""

from __future__ import annotations

import numpy as np
import pytest
from structure_programs import COPIES, Program, check, letters

from tracekit.attribution.structure import Structure, find_structure
from tracekit.attribution.structure._find import _without_call
from tracekit.attribution.structure._gaps import _same_pass
from tracekit.attribution.structure._kernel_hints import look_at
from tracekit.attribution.structure._pair import _votes, find_pair, take_turns
from tracekit.attribution.structure._work import ME, NOTHING

FORWARD = "m:h2d/I m:gemm/F m:relu/F m:softmax/F "
BACKWARD = "b:softmax_backward/B b:relu_backward/B b:gemm_backward/B "
UPDATE = "m:adam/W m:adam/W m:adam/W "
STEP = FORWARD + BACKWARD + UPDATE
EVALUATION = "m:h2d/M m:gemm/M m:relu/M m:softmax/M m:d2h/M "
CLEARED = "m:FillFunctor/W m:FillFunctor/W m:FillFunctor/W "


def found(program: Program) -> Structure:
    return find_structure(program.work())


def steps_of(structure: Structure) -> list[int]:
    """How many ops each step has."""
    return np.bincount(structure.step[structure.step >= 0]).tolist()


class TestTurns:
    def test_two_threads_take_turns(self) -> None:
        program = Program().run(STEP, 4)
        structure = found(program)
        check(structure, program)
        assert structure.training
        assert steps_of(structure) == [10, 10, 10, 10]
        assert structure.steps.rows() == [
            (0, 10, 110, True), (1, 110, 210, True), (2, 210, 310, True), (3, 310, 401, True)
        ]  # fmt: skip
        assert (structure.usual_gaps, structure.gaps) == (3, 3)
        assert (structure.cut_begin, structure.cut_end) == (0, 0)
        assert not structure.contradictions

    def test_the_doubt_is_what_lies_between_the_bounds_of_the_cut(self) -> None:
        structure = found(Program().run(STEP, 4))
        # The copy of input, 7 ns in each of three gaps, lies before the first layer.
        doubts = [(doubt.cut, doubt.before_ns, doubt.after_ns) for doubt in structure.doubts]
        assert doubts == [
            ("update | input", 0, 21), ("forward | backward", 0, 0), ("backward | update", 0, 0)
        ]  # fmt: skip

    def test_evidence_is_told_with_numbers(self) -> None:
        text = " ".join(found(Program().run(STEP, 4)).evidence)
        assert "4 turns" in text
        assert "3 of 3 gaps" in text
        assert "optimizer kernels" in text
        assert "device" not in text

    def test_a_value_that_is_fetched_during_backward_is_no_turn(self) -> None:
        fetched = "b:softmax_backward/B m:d2h/B b:relu_backward/B b:gemm_backward/B "
        program = Program().run((FORWARD + fetched + UPDATE) * 4)
        check(found(program), program)
        assert found(program).steps.height == 4

    def test_names_of_forward_on_the_backward_thread_are_backward(self) -> None:
        backward = "b:softmax_backward/B b:cudnn_fprop/B b:gemm_backward/B "
        program = Program().run(FORWARD + backward + UPDATE, 4)
        check(found(program), program)

    def test_names_of_backward_on_the_main_thread_are_forward(self) -> None:
        transposed = "m:h2d/I m:conv_dgrad/F m:relu/F m:softmax/F "
        program = Program().run(transposed + BACKWARD + UPDATE, 4)
        check(found(program), program)

    def test_passes_within_passes_may_have_a_thread_of_their_own(self) -> None:
        nested = "b:softmax_backward/B c:gemm/B c:relu_backward/B c:gemm_backward/B "
        program = Program().run(FORWARD + nested + UPDATE, 5)
        check(found(program), program)

    def test_gradients_may_be_exchanged_after_the_passes_by_the_thread_that_updates(self) -> None:
        exchange = "m:reduce_scatter@20/W m:reduce_scatter@20/W "
        program = Program().run(FORWARD + BACKWARD + exchange + UPDATE + "m:all_gather@20/W ", 5)
        check(found(program), program)

    def test_a_new_thread_may_run_every_forward_pass(self) -> None:
        program = Program()
        for thread in "pqrstu":
            program.run(FORWARD.replace("m:", f"{thread}:") + BACKWARD + UPDATE)
        check(found(program), program)

    def test_graphs_recorded_as_a_whole_are_passes(self) -> None:
        program = Program().run("m:h2d/I m:graph/F b:graph/B m:adam/W m:adam/W ", 6)
        check(found(program), program)

    def test_lambda_is_no_optimizer(self) -> None:
        plain = FORWARD.replace("relu", "kernel_lambda_relu")
        assert found(Program().run((plain + UPDATE).replace("m:adam/W", "m:x/-"), 5)).method == (
            "none"
        )


def test_every_sign_has_one_vote() -> None:
    program = Program().run("m:h2d/I m:gemm/F b:gemm_backward/B b:all_reduce@20/W m:adam/W m:d2h/-")
    work = program.work()
    main, backward = (work.thread == ord(thread) for thread in "mb")
    votes = _votes(look_at(work), main, backward)
    assert votes == dict.fromkeys(votes, 1)
    assert len(votes) == 7
    # The other way round every sign speaks against it.
    assert set(_votes(look_at(work), backward, main).values()) == {-1}


class TestGaps:
    def test_cleared_gradients_are_of_the_update_and_of_the_step_they_begin(self) -> None:
        for lead in (CLEARED + "m:h2d/I ", "m:h2d/I " + CLEARED):
            program = Program().run(lead + STEP.removeprefix("m:h2d/I "), 5)
            check(found(program), program)
            assert steps_of(found(program)) == [13] * 5

    @pytest.mark.parametrize(
        ("update", "tiles"),
        [(UPDATE, ("", "")), ("m:plain/W m:times/W m:minus/W ", ("", "")), (UPDATE, ("", "64x64"))],
    )
    def test_input_made_on_the_gpu_with_results_fetched_between_is_no_update(
        self, update: str, tiles: tuple[str, str]
    ) -> None:
        """Its size differs from step to step, and with it the kernels that libraries choose."""
        sampled = "m:sample/F m:unique/F m:d2h/F " * 2 + "m:gather_rows/F "
        program = Program()
        for number in range(7):
            layers = FORWARD.replace("softmax", f"softmax{tiles[number % 3 == 0]}")
            program.run(sampled + layers.removeprefix("m:h2d/I ") + BACKWARD + update)
        check(found(program), program)
        assert found(program).cut_end == 0

    @pytest.mark.parametrize(("lost", "said"), [(9, 1), (0, 0)])
    @pytest.mark.parametrize(
        "forward",
        [
            "m:sample/F m:unique/F m:d2h/F " * 2 + FORWARD.removeprefix("m:h2d/I "),
            "m:project/F m:d2h/F m:sort/F m:render/F m:blend/F " + FORWARD,
        ],
        ids=("input made on the GPU", "input copied within the pass"),
    )
    def test_kernels_beside_results_that_the_host_fetches_may_be_of_no_update(
        self, forward: str, lost: int, said: int
    ) -> None:
        """A recording that begins within a step does not show where its forward pass does."""
        program = Program().run(forward + BACKWARD + UPDATE, 7)
        if not lost:
            check(found(program), program)
        del program.rows[:lost]
        told = [text for text in found(program).contradictions if "fetches results" in text]
        assert len(told) == said

    def test_a_fill_or_two_is_a_new_tensor(self) -> None:
        program = Program().run("m:h2d/I m:FillFunctor/F m:gemm/F m:relu/F " + BACKWARD + UPDATE, 5)
        check(found(program), program)

    def test_forward_without_backward_is_evaluation_with_its_input(self) -> None:
        program = Program().run(STEP, 5).run(EVALUATION, 3).run(STEP, 5).run(EVALUATION, 2)
        structure = found(program)
        check(structure, program)
        assert steps_of(structure) == [10] * 10
        assert (structure.usual_gaps, structure.gaps) == (8, 9)

    def test_passes_that_send_to_experts_may_be_evaluation(self) -> None:
        """A pipeline sends as well; but of its forward passes each has a backward pass."""
        forward = FORWARD.replace("m:relu/F ", "m:send_recv@20/F m:relu/F ")
        backward = BACKWARD.replace("b:relu", "b:send_recv@20/B b:relu")
        step = forward + backward + UPDATE
        evaluation = 2 * (forward.replace("/F", "/M").replace("/I", "/M") + "m:d2h/M ")
        program = Program().run((3 * step + evaluation) * 3)
        check(found(program), program)

    def test_input_that_is_copied_and_not_used_is_input(self) -> None:
        program = Program().run(STEP, 3).run("m:h2d/I m:h2d/I ").run(STEP, 3)
        check(found(program), program)

    def test_a_gap_may_end_with_nothing_of_the_usual_forward_pass(self) -> None:
        """Where the usual gap holds no forward pass, none of another gap's ops are like it."""
        program = Program().run(STEP, 3).run(EVALUATION).run(STEP, 3)
        lane = look_at(program.work())
        pair = find_pair(lane)
        assert pair is not None
        turns, _ = take_turns(lane, pair)
        longer = int((turns.stop - turns.first)[1:-1].argmax()) + 1
        assert turns.passes[longer] == turns.passes[1]
        assert longer != 1
        assert _same_pass(turns, longer, 1, len(FORWARD.split()))
        assert not _same_pass(turns, longer, 1, 0)

    def test_passes_alone_before_each_step_are_none_of_its_update_at_the_start_either(self) -> None:
        """A recording that begins with generation, as each gap after an update does."""
        layers = ("gemm_a", "gemm_b", "attention", "gemm_c")
        forward = "m:h2d/I " + "".join(f"m:{each}/F " for each in layers) + "m:softmax/F "
        backward = "b:softmax_backward/B " + "".join(
            f"b:{each}_dx/B b:{each}_dw/B " for each in reversed(layers)
        )
        generated = "m:h2d/M " + "m:gemv/M m:paged/M m:argmax/M m:d2h/M " * 9
        scored = forward.replace("/I", "/M").replace("/F", "/M") + "m:d2h/M "
        step = generated + scored + (forward + backward) * 3 + UPDATE
        program = Program().run(step, 5)
        structure = found(program)
        check(structure, program)
        assert structure.cut_begin == 0

    def test_evaluation_before_training(self) -> None:
        program = Program().run(EVALUATION, 2).run(STEP, 5)
        check(found(program), program)

    def test_a_longer_update_is_one(self) -> None:
        first = FORWARD + BACKWARD + "m:made/W m:made/W " + UPDATE
        program = Program().run(STEP).run(first).run(STEP, 4)
        check(found(program), program)

    @pytest.mark.parametrize("torn", ["", CLEARED])
    def test_accumulated_gradients_make_one_step(self, torn: str) -> None:
        micro = FORWARD + BACKWARD
        program = Program().run(torn + micro * 3 + UPDATE, 4)
        structure = found(program)
        check(structure, program)
        assert structure.steps.height == 4
        assert (
            "gradients are accumulated: 8 gaps contain no update,"
            " and 12 backward passes make 4 steps"
        ) in structure.evidence

    @pytest.mark.parametrize("passes", [19, 20, 40, 100])
    def test_gradients_may_be_accumulated_for_long(self, passes: int) -> None:
        program = Program().run((FORWARD + BACKWARD) * passes + UPDATE, 4)
        check(found(program), program)
        assert found(program).steps.height == 4

    def test_passes_that_accumulate_for_the_only_update_are_one_step(self) -> None:
        """A recording of one step: each of its four backward passes was a step."""
        program = Program().run((FORWARD + BACKWARD) * 4 + UPDATE)
        assert found(program).steps["whole"].to_list() == [False]
        assert found(Program().run((FORWARD + BACKWARD) * 4)).steps.height == 4
        own = "m:my_fused/W m:my_fused/W "
        assert found(Program().run((FORWARD + BACKWARD + own) * 20 + UPDATE)).steps.height == 20

    def test_gradients_cleared_between_passes_of_a_step_are_no_update(self) -> None:
        micro = FORWARD + BACKWARD
        program = Program().run(micro + CLEARED + micro * 2 + UPDATE, 5)
        check(found(program), program)
        assert steps_of(found(program)) == [27] * 5

    def test_two_networks_that_take_turns_make_one_step(self) -> None:
        one = "m:conv_d/F m:softmax/F b:softmax_backward/B b:conv_d_wgrad/B m:adam/W m:adam/W "
        other = (
            "m:conv_g/F m:conv_d/F m:softmax/F b:softmax_backward/B b:conv_d_wgrad/B "
            "b:conv_g_wgrad/B m:adam/W m:adam/W m:adam/W "
        )
        for text in ("m:h2d/I " + one + other, one + other):
            program = Program().run(text, 6, pause=500)
            check(found(program), program)
            assert steps_of(found(program)) == [len(text.split())] * 6

    def test_a_closure_that_is_called_again_makes_one_step(self) -> None:
        closure = "m:gemm/F m:relu/F m:softmax/F " + BACKWARD + "m:dot/W m:dot/W m:addcdiv/W "
        program = Program().run("m:h2d/I " + closure * 4, 6)
        structure = found(program)
        # The very first input is not told from what comes before training.
        assert letters(structure.stage[1:]) == letters(program.stages[1:])
        assert structure.steps.height == 6

    @pytest.mark.parametrize(("fed_twice", "steps"), [(1, 41), (2, 80)])
    def test_a_closure_whose_input_keeps_no_rhythm_is_a_step_each_time(
        self, fed_twice: int, steps: int
    ) -> None:
        """Of 79 gaps between passes every second one has input; one more or less is the edge."""
        closure = "m:gemm/F m:relu/F m:softmax/F " + BACKWARD + "m:dot/W m:dot/W m:addcdiv/W "
        program = Program()
        for number in range(40):
            again = "m:h2d/I " if number in (10, 20)[:fed_twice] else ""
            program.run("m:h2d/I " + closure + again + closure)
        assert found(program).steps.height == steps

    def test_a_line_search_makes_one_step_of_as_many_passes_as_it_takes(self) -> None:
        program = _searching("m:dot/W m:d2h/W ")
        structure = found(program)
        assert np.bincount(structure.step[structure.step >= 0]).tolist() == [
            len(_closure("m:dot/W m:d2h/W ").split()) * calls + 1 for calls in CALLS
        ]
        assert any("host decides by results" in text for text in structure.evidence)
        assert structure.contradictions == ()
        assert structure.steps["whole"].to_list() == [True] * 6

    def test_a_line_search_that_was_cut(self) -> None:
        first = len(_closure("m:dot/W m:d2h/W ").split()) + 1
        work = _searching("m:dot/W m:d2h/W ").work()
        begun_late = find_structure(work.take(np.arange(first, len(work))))
        assert begun_late.steps["whole"].to_list() == [False, *[True] * 5]
        ended_early = find_structure(work.take(np.arange(len(work) - 30)))
        assert ended_early.steps["whole"].to_list() == [*[True] * 5, False]
        # Without its last pass a step of 5 has as many as one of 4: it may have been cut.
        one_less = find_structure(work.take(np.arange(len(work) - first + 1)))
        assert one_less.steps["whole"].to_list() == [*[True] * 5, False]

    @pytest.mark.parametrize("update", ["m:dot/W m:adam/W m:d2h/W ", "m:dot/W m:dot/W "])
    def test_passes_that_may_be_of_one_step_are_said(self, update: str) -> None:
        """An optimizer that is known takes a step each time; without results none is decided by."""
        structure = found(_searching(update))
        assert structure.steps.height == sum(CALLS)
        assert any("follows 5 of 26 updates" in text for text in structure.contradictions)

    def test_small_batches_are_input_too(self) -> None:
        program = _searching("m:dot/W m:d2h/W ", again="m:label/- ")
        assert found(program).steps.height == sum(CALLS)
        assert found(program).contradictions == ()

    @pytest.mark.parametrize(("length", "after"), [(7, "-"), (12, "B")])
    def test_forward_passes_that_fill_a_pipeline_are_no_evaluation(
        self, length: int, after: str
    ) -> None:
        """What starts before the pass ends sends none of its results: a backward pass waits.

        Other messages next to a backward pass are of it or of the forward pass beside it. Those
        between backward passes are of these, which counted as one.
        """
        forward = "m:send_recv@9/F m:gemm/F m:relu/F m:softmax/F "
        turn = forward.replace("recv@9/F", "recv@9/-") + f"m:send_recv@8/{after} " + BACKWARD
        drained = ("m:send_recv@9/B " + BACKWARD) * 2
        program = Program(length=length).run(
            forward * 3 + BACKWARD + turn * 2 + drained + UPDATE, 5
        )
        structure = found(program)
        check(structure, program)
        assert structure.steps.height == 5
        assert structure.gaps == 24

    @pytest.mark.parametrize("tests", [1, 2, 5])
    def test_a_pipeline_evaluates_by_passes_that_its_steps_do_not_need(self, tests: int) -> None:
        """As many forward passes as backward passes are of the next step; those before are not."""
        forward = "m:send_recv@9/F m:gemm/F m:relu/F m:softmax/F "
        evaluation = forward.replace("/F", "/M")
        back = "m:zero/F " * 3 + BACKWARD
        step = forward * 3 + back + (forward + back) * 2 + back * 2 + UPDATE
        more = forward * 4 + back + (forward + back) * 2 + back * 3 + UPDATE
        program = Program().run((step * 3 + evaluation * tests) * 2 + step + more + step * 3)
        structure = found(program)
        tested = program.stages == ME
        assert ((structure.stage == ME) == tested).all()
        assert (structure.step[tested] == NOTHING).all()
        assert structure.steps.height == 11

    @pytest.mark.parametrize(("tests", "told"), [(2, "F"), (3, "M"), (5, "M")])
    def test_a_pipeline_evaluates_at_its_end_by_more_passes_than_fill_it(
        self, tests: int, told: str
    ) -> None:
        """Fewer may as well be of a step that the recording cuts."""
        forward = "m:send_recv@9/F m:gemm/F m:relu/F m:softmax/F "
        back = "m:zero/F " * 3 + BACKWARD
        step = forward * 2 + back + (forward + back) * 2 + back + UPDATE
        program = Program().run(step, 5).run(forward.replace("/F", f"/{told}"), tests)
        structure = found(program)
        told_last = letters(structure.stage[-4 * tests :])
        assert told_last == letters(program.stages[-4 * tests :])
        assert (structure.step[-4 * tests :] == NOTHING).all()
        assert structure.steps.height == 5
        # An evaluation like one before is no step that is cut.
        evaluation = forward.replace("/F", "/M") * 2
        program = Program().run(step * 3 + evaluation, 2).run(step * 3).run(evaluation)
        assert letters(found(program).stage[-8:]) == "MMMMMMMM"

    @pytest.mark.parametrize(("length", "early"), [(7, "M"), (30, "I")])
    def test_evaluation_waits_for_the_input_that_a_loader_brings(
        self, length: int, early: str
    ) -> None:
        """But not where the loader copies while kernels run: that may be for what comes later."""
        step = "l:h2d@9/I " + STEP.removeprefix("m:h2d/I ")
        evaluation = EVALUATION.removeprefix("m:h2d/M ")
        program = Program(length=length).run(step, 5)
        program.run(f"l:h2d@9/{early} {evaluation}", 2).run(step, 3)
        structure = found(program)
        assert letters(structure.stage) == letters(program.stages)

    @pytest.mark.parametrize("size", [1 << 20, 48_000, 4_096])
    def test_small_batches_show_where_a_forward_pass_begins(self, size: int) -> None:
        """If there are no large ones; a result of the step before is fetched and measured."""
        measured = "m:d2h/W m:norm/W m:d2h/W m:norm/W "
        step = FORWARD + BACKWARD + UPDATE + measured
        program = Program().run(measured).run(step, 6)
        for row in program.rows:
            row["bytes"] = min(row["bytes"], size)
        check(found(program), program)

    @pytest.mark.parametrize(("size", "stage"), [(48_000, "I"), (4_096, "I"), (1_024, "F")])
    def test_small_copies_in_forward_passes_are_input(self, size: int, stage: str) -> None:
        """But not a few numbers, of which the forward pass makes something."""
        forward = f"m:h2d/I m:gemm/F m:relu/F m:label/{stage} m:softmax/F "
        program = Program().run(forward + BACKWARD + UPDATE, 6)
        for row in program.rows:
            row["bytes"] = size if row["bytes"] == COPIES["label"][1] else row["bytes"]
        check(found(program), program)

    def test_what_prepares_the_next_batch_on_a_stream_of_its_own_is_input(self) -> None:
        """As a prefetcher does, whose kernels run beside the passes of the step before."""
        fetch = "m:h2d@9/I m:half@9/I m:sub@9/I m:div@9/I "
        forward = "m:gemm/F m:relu/F m:gemm/F m:softmax/F "
        program = Program().run(fetch).run(fetch + forward + BACKWARD + UPDATE, 6)
        structure = found(program)
        assert letters(structure.stage[4:]) == letters(program.stages[4:])

    @pytest.mark.parametrize(
        ("length", "message", "sent"),
        [(7, "F", "m:send_recv@8/F "), (30, "I", "m:send_recv@8/F "), (30, "F", "")],
    )
    def test_what_other_gpus_send_of_the_next_batch_is_input(
        self, length: int, message: str, sent: str
    ) -> None:
        """It begins beside the update, of whose weights it knows nothing.

        The last stage of a pipeline receives as early, but its forward pass sends nothing.
        """
        forward = f"m:h2d@9/I m:send_recv@8/{message} m:gemm/F {sent}m:gemm/F m:relu/F "
        program = Program(length=length).run(forward + BACKWARD + UPDATE, 6)
        assert letters(found(program).stage[20:]) == letters(program.stages[20:])

    def test_the_longest_pause_of_the_host_tells_where_a_step_begins(self) -> None:
        """Where neither names nor input do, nor what the recording begins and ends with."""
        program = Program(length=600).run("m:gemm_other/F " + BACKWARD)
        for _ in range(6):
            program.run("m:made/W m:made/W m:made/W ")
            forward = "m:convertToHalf/F m:convertToHalf/F m:gemm/F m:relu/F m:softmax/F "
            program.run(forward + BACKWARD, pause=500)
        structure = found(program)
        assert letters(structure.stage[1:]) == letters(program.stages[1:])
        assert any("longest pause of the host before 3" in text for text in structure.evidence)

    def test_no_update_at_all(self) -> None:
        program = Program().run(FORWARD + BACKWARD, 5)
        check(found(program), program)
        assert found(program).steps.height == 5

    @pytest.mark.parametrize(
        ("begin", "pause", "why"),
        [
            # What a network begins with is no layer by name.
            ("m:index_elementwise_kernel/F m:arange/F m:pow/F m:mean/F ", 0, "look-up at 0"),
            ("m:arange/F m:pow/F m:mean/F m:rsqrt/F ", 500, "drained before 0"),
            ("m:arange/F m:pow/F ", 0, "too few for an update"),
        ],
    )
    def test_what_the_next_step_begins_with_is_no_update(
        self, begin: str, pause: int, why: str
    ) -> None:
        """A benchmark without an optimizer, whose host waits for the GPU or does not."""
        program = Program().run("m:made/O " * 3)
        program.expected[:] = [-1] * 3
        forward = begin + "m:gemm/F m:relu/F m:softmax/F "
        for _ in range(5):
            program.run(forward + BACKWARD, pause=pause)
        structure = found(program)
        assert letters(structure.stage[3:]) == letters(program.stages[3:])
        assert structure.steps.height == 5
        assert any(why in text for text in structure.evidence), structure.evidence

    def test_a_host_that_waits_for_backward_may_update_then(self) -> None:
        program = Program()
        for _ in range(6):
            program.run("m:half/F m:half/F m:gemm/F m:softmax/F " + BACKWARD)
            program.run("m:made/W m:made/W m:made/W ", pause=500)
        program.run("m:half/F m:half/F m:gemm/F ")
        structure = found(program)
        assert not any("drained" in text for text in structure.evidence)

    def test_a_drained_gpu_tells_where_a_step_begins(self) -> None:
        program = Program().run("m:gemm_other/F " + BACKWARD)
        for _ in range(6):
            program.run("m:made/W m:made/W m:made/W ")
            program.run("m:half/F m:half/F m:gemm/F m:softmax/F " + BACKWARD, pause=50)
        structure = found(program)
        assert letters(structure.stage[1:]) == letters(program.stages[1:])
        assert any("drained before 3" in text for text in structure.evidence)

    def test_a_host_that_is_always_late_drains_nothing(self) -> None:
        program = Program(length=1).run("m:gemm_other/F " + BACKWARD)
        for _ in range(6):
            program.run("m:made/W m:made/W m:made/W ")
            program.run("m:half/F m:half/F m:gemm/F m:softmax/F " + BACKWARD, pause=500)
        structure = found(program)
        assert letters(structure.stage[1:]) == letters(program.stages[1:])
        assert any("longest pause of the host before 3" in text for text in structure.evidence)


CALLS = (4, 5, 4, 5, 4, 5)


def _closure(update: str) -> str:
    return "m:gemm/F m:relu/F m:softmax/F " + BACKWARD + "m:axpy/W " + update


def _searching(update: str, again: str = "") -> Program:
    """Steps that call their closure some times each; `again` is copied before all but the first."""
    program = Program()
    for calls in CALLS:
        program.run("m:h2d/I " + _closure(update)).run(again + _closure(update), calls - 1)
    return program


class TestEdges:
    def test_a_recording_that_begins_in_an_update(self) -> None:
        program = Program().run(UPDATE).run(STEP, 4)
        structure = found(program)
        check(structure, program)
        assert structure.step[:3].tolist() == [-1, -1, -1]
        assert (structure.cut_begin, structure.cut_end) == (1, 0)
        assert structure.steps["whole"].all()

    def test_a_recording_that_begins_in_a_forward_pass(self) -> None:
        program = Program().run("m:relu/F m:softmax/F " + BACKWARD + UPDATE).run(STEP, 4)
        structure = found(program)
        check(structure, program)
        assert structure.steps["whole"].to_list() == [False, True, True, True, True]
        assert structure.cut_begin == 1

    @pytest.mark.parametrize(
        ("first", "is_cut"),
        [
            ("h2d try try embed norm gemm relu", False),
            ("h2d embed gemm relu", False),
            ("h2d embed other_norm gemm relu", False),
            ("h2d FillFunctor embed norm gemm relu", False),
            ("embed norm gemm relu", False),
            ("norm gemm relu", True),
            ("gemm h2d relu", True),
            ("h2d relu", True),
        ],
    )
    def test_a_first_step_that_differs_is_whole_if_it_begins_with_input(
        self, first: str, *, is_cut: bool
    ) -> None:
        """Others may lack what was launched before the recording."""
        texts = (first, "h2d embed norm gemm relu gemm relu")
        begin, forward = (" ".join(f"m:{op}/F" for op in text.split()) for text in texts)
        program = Program().run(f"{begin} m:gemm/F m:relu/F {BACKWARD}{UPDATE}")
        structure = found(program.run(f"{forward} {BACKWARD}{UPDATE}", 6))
        assert structure.cut_begin == is_cut
        assert structure.steps["whole"][0] is not is_cut

    def test_the_last_update_of_a_step_may_be_the_shorter_one(self) -> None:
        """As with sharpness-aware minimisation: weights are moved up, and after a pass updated."""
        second = FORWARD.removeprefix("m:h2d/I ") + BACKWARD + "m:adam/W m:adam/W "
        program = Program().run(STEP.replace(UPDATE, 2 * UPDATE) + second, 5)
        structure = found(program)
        check(structure, program)
        assert structure.steps["whole"].to_list() == [True] * 5
        assert structure.cut_end == 0

    def test_a_recording_that_ends_in_a_forward_pass(self) -> None:
        program = Program().run(STEP, 4).run("m:h2d/I m:gemm/F ")
        structure = found(program)
        check(structure, program)
        assert structure.steps.height == 4
        assert structure.steps["whole"].all()
        assert structure.cut_end == 1

    def test_a_recording_that_ends_in_a_backward_pass(self) -> None:
        program = Program().run(STEP, 4).run(FORWARD + "b:softmax_backward/B ")
        structure = found(program)
        check(structure, program)
        assert structure.steps["whole"].to_list() == [True] * 4 + [False]
        assert structure.cut_end == 1


class TestBeside:
    """What the two sides do not launch."""

    def test_collectives_of_gradients_are_of_the_update(self) -> None:
        backward = "b:softmax_backward/B b:relu_backward/B b:all_reduce@20/W b:gemm_backward/B "
        program = Program().run(FORWARD + backward + UPDATE, 4)
        check(found(program), program)

    def test_a_thread_with_a_stream_of_its_own_that_is_fed_is_input(self) -> None:
        step = STEP.replace("m:gemm/F", "m:gemm/F d:h2d@17/I d:decode@17/I")
        program = Program().run(step, 4)
        structure = found(program)
        check(structure, program)
        assert steps_of(structure) == [12] * 4

    def test_two_devices_of_a_process_count_the_same_steps(self) -> None:
        program = Program()
        for _ in range(5):
            program.run(FORWARD, device=0).run(FORWARD, device=1)
            program.run(BACKWARD, device=0).run(BACKWARD.replace("b:", "c:"), device=1)
            program.run(UPDATE, device=0).run(UPDATE, device=1)
        structure = found(program)
        check(structure, program)
        assert steps_of(structure) == [20] * 5
        assert {text[: len("device n: ")] for text in structure.evidence} == {
            "device 0: ", "device 1: "
        }  # fmt: skip


def test_ops_without_a_call_are_of_the_stage_that_is_alone_on_their_stream() -> None:
    program = Program().run("m:gemm@3/F m:gemm@4/F m:gemm@4/B m:lost@3/F m:lost@4/- m:lost@5/-")
    work = program.work()
    work.thread[3:] = -1
    told = np.where(work.thread < 0, NOTHING, program.stages)
    _without_call(look_at(work), told)
    assert letters(told) == letters(program.stages)


class TestRefused:
    def test_a_single_backward_pass(self) -> None:
        structure = found(Program().run(STEP * 1))
        assert (structure.method, structure.training) == ("refused", None)
        assert (structure.stage == -1).all()
        assert structure.steps.height == 0

    def test_inference_and_its_input_take_turns_as_well(self) -> None:
        text = "m:h2d/- m:gemm/- m:relu/- m:softmax/- b:gemm/- b:softmax/- m:d2h/- "
        structure = found(Program().run(text, 12))
        assert (structure.method, structure.training) == ("none", False)
        assert (structure.stage == -1).all()

    def test_no_work(self) -> None:
        structure = found(Program())
        assert (structure.method, structure.training) == ("none", False)
        assert structure.steps.is_empty()
