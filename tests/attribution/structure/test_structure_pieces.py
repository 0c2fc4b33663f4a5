"""The pieces: sequences, the period and the mirror, held against plain second implementations."""

from __future__ import annotations

import numpy as np
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tracekit.attribution.structure._kernel_hints import look_at
from tracekit.attribution.structure._period import find_period, period_between
from tracekit.attribution.structure._sequences import (
    common_prefix,
    common_suffix,
    kinds_of,
    places_of,
    ranges_of,
    total_in,
)
from tracekit.attribution.structure._step import find_turn
from tracekit.attribution.structure._step_table import table_of

symbols = st.lists(st.integers(0, 4), max_size=40)


class TestSequences:
    @given(symbols, st.lists(st.integers(0, 4), max_size=4))
    def test_places_of_a_piece(self, sequence: list[int], piece: list[int]) -> None:
        size = len(piece)
        places = [
            n for n in range(len(sequence) - size + 1) if size and sequence[n : n + size] == piece
        ]
        assert places_of(np.array(piece, np.int64), np.array(sequence, np.int64)).tolist() == places

    @given(symbols, symbols)
    def test_common_ends(self, one: list[int], other: list[int]) -> None:
        same = [a == b for a, b in zip(one, other, strict=False)]
        prefix = next((n for n, each in enumerate(same) if not each), len(same))
        assert common_prefix(np.array(one), np.array(other)) == prefix
        assert common_suffix(np.array(one[::-1]), np.array(other[::-1])) == prefix

    @given(symbols, st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=20))
    def test_ranges(self, values: list[int], pairs: list[tuple[int, int]]) -> None:
        cut = [sorted((min(a, len(values)), min(b, len(values)))) for a, b in pairs]
        first = np.array([a for a, _ in cut], np.int64)
        stop = np.array([b for _, b in cut], np.int64)
        column = np.array(values, np.int64)
        places, owner = ranges_of(first, stop)
        assert places.tolist() == [place for a, b in cut for place in range(a, b)]
        assert owner.tolist() == [n for n, (a, b) in enumerate(cut) for _ in range(a, b)]
        assert total_in(column, first, stop).tolist() == [sum(values[a:b]) for a, b in cut]
        kinds = kinds_of(column, first, stop).tolist()
        texts = [tuple(values[a:b]) for a, b in cut]
        for one, same in zip(kinds, texts, strict=True):
            assert [kind == one for kind in kinds] == [text == same for text in texts]


class TestPeriod:
    def test_a_sequence_that_repeats(self) -> None:
        found = find_period(np.tile(np.arange(20), 10))
        assert (found.size, found.share) == (20, 1.0)

    def test_repeated_layers_are_no_step(self) -> None:
        step = [1, *([2, 3, 4] * 12), 5, *([6, 7, 8, 9] * 12), 10]
        assert find_period(np.tile(step, 12)).size == len(step)

    def test_the_middle_of_a_long_sequence_tells(self) -> None:
        begin, end = np.random.default_rng(1).integers(0, 1 << 40, (2, 80_000))
        found = find_period(np.concatenate((begin, np.tile(np.arange(20), 8_000), end)))
        assert (found.size, found.share) == (20, 1.0)

    def test_none(self) -> None:
        assert find_period(np.random.default_rng(1).integers(0, 50, 500)).size == 0
        assert find_period(np.zeros(3, np.int64)).size == 0

    def test_something_else_now_and_then(self) -> None:
        steps = np.tile(np.arange(30), 20)
        assert find_period(np.concatenate((steps, np.arange(60, 80), steps))).size == 30

    def test_between_known_places_what_is_unusual_does_not_count(self) -> None:
        usual, other = list(range(10)), list(range(20, 40))
        sequence = np.array(usual * 4 + other + usual * 4)
        starts = np.flatnonzero(sequence == 0)
        found = period_between(sequence, starts)
        assert found is not None
        period, first = found
        assert (period.size, period.share) == (10, 6 / 7)
        assert sequence[first : first + 20].tolist() == usual * 2

    def test_places_between_which_nothing_repeats(self) -> None:
        sequence = np.arange(40)
        assert period_between(sequence, np.array([0, 10, 20, 30])) is None


class TestMirror:
    @pytest.mark.parametrize("layers", [3, 10, 200])
    def test_the_middle_of_what_comes_back_in_reverse(self, layers: int) -> None:
        forward = np.arange(layers) + 100
        inner, outer, share = find_turn(np.concatenate((forward, forward[::-1])))
        assert (inner, outer) == (layers - 1, layers)
        assert share == pytest.approx(1)

    def test_backward_launches_more(self) -> None:
        forward = np.arange(100, 110)
        backward = np.repeat(forward[::-1], 2)
        inner, outer, _ = find_turn(np.concatenate((forward, backward)))
        assert 9 <= inner < outer <= 11

    def test_one_size_says_nothing(self) -> None:
        assert find_turn(np.full(100, 128)) == (0, 0, 0.0)
        assert find_turn(np.full(100, -1)) == (0, 0, 0.0)

    def test_of_very_many_launches_the_rarest_sizes_say_it(self) -> None:
        forward = np.column_stack((np.arange(2000) + 100, np.zeros(2000, np.int64))).reshape(-1)
        inner, outer, _ = find_turn(np.concatenate((forward, forward[::-1])))
        assert inner < 4000 <= outer
        assert outer - inner < 40

    @settings(max_examples=examples(60))
    @given(st.lists(st.integers(1, 6), min_size=6, max_size=24))
    def test_the_share_is_that_of_the_heaviest_nest(self, sizes: list[int]) -> None:
        _, _, share = find_turn(np.array(sizes))
        paired = [size for size in sizes if sizes.count(size) > 1]
        if len(paired) < 6 or len(set(paired)) < 3:
            assert share == 0
            return
        weight = {size: 1 / sizes.count(size) for size in sizes}
        heaviest = _heaviest_nest(paired, weight)
        assert share == pytest.approx(2 * heaviest / len(set(sizes)), rel=1e-4)


def _heaviest_nest(sizes: list[int], weight: dict[int, float]) -> float:
    """Try every pair from the outside in; sizes in order."""
    best: dict[tuple[int, int], float] = {}
    for width in range(2, len(sizes) + 1):
        for first in range(len(sizes) - width + 1):
            last = first + width - 1
            without = max(best.get((first + 1, last), 0), best.get((first, last - 1), 0))
            pair = weight[sizes[first]] if sizes[first] == sizes[last] else 0
            best[first, last] = max(without, best.get((first + 1, last - 1), 0) + pair)
    return best[0, len(sizes) - 1]


def _signs(*names: str) -> dict[str, NDArray[np.bool_]]:
    from structure_programs import Program

    program = Program().run(" ".join(f"m:{name}/-" for name in names))
    lane = look_at(program.work())
    return {name: getattr(lane, name) for name in ("layer", "optimizer", "backward", "fill")}


class TestNames:
    @pytest.mark.parametrize(
        ("name", "signs"),
        [
            ("ampere_sgemm_128x64_nn", {"layer"}),
            ("sm80_xmma_fprop_implicit_gemm", {"layer"}),
            ("sm80_xmma_dgrad_implicit_gemm", {"layer"}),
            ("sm80_xmma_wgrad_implicit_gemm", {"layer", "backward"}),
            ("cudnn::bn_bw_1C11_kernel_new", {"layer", "backward"}),
            ("vectorized_layer_norm_kernel", {"layer"}),
            ("multi_tensor_apply_kernel", {"optimizer"}),
            ("amp_update_scale_cuda_kernel", {"optimizer"}),
            ("fused_lamb_stage1", {"optimizer"}),
            ("gpu_kernel_impl<lambda(float)>", set()),
            ("convertToHalf", set()),
            ("vectorized_elementwise_kernel<4,FillFunctor<float>>", {"fill"}),
            ("elementwise_kernel", set()),
        ],
    )
    def test_what_a_name_says(self, name: str, signs: set[str]) -> None:
        assert {sign for sign, known in _signs(name).items() if known[0]} == signs


def test_a_step_begins_no_earlier_than_the_one_before() -> None:
    """One of two devices was ahead: what it launched first is of the second step."""
    step, launch = np.array([1, 0, -1, 1, 0]), np.array([0, 10, 15, 20, 30])
    table = table_of(step, launch, np.array([True, False]))
    assert table.rows() == [(0, 10, 10, True), (1, 10, 31, False)]
