"""How evenly experts' ranks compute between dispatch and combine."""

from __future__ import annotations

import pytest

from tests.trace_builder import TraceBuilder
from tracekit.analysis.communication import collectives
from tracekit.model import Answer

_NAME = "deep_ep::intranode::{}<8>(x)"


def _asked(*ranks: list[tuple[str, int, int]]) -> Answer:
    """Ask of ranks that each run ops of a kind, from some time to another, in layer `moe`."""
    b = TraceBuilder()
    for rank, ops in enumerate(ranks):
        b.range(0, 10_000, "moe", thread=10 * rank, path="moe")
        b.range(1, 1, f"tracekit.rank {rank} of {len(ranks)}", thread=10 * rank, path=None)
        for turn, (name, start, end) in enumerate(ops):
            is_part = name in ("dispatch", "combine")
            what = {"kind": "collective", "collective": "all_to_all"} if is_part else {}
            full = _NAME.format(name) if is_part else name
            b.op(full, turn, thread=10 * rank, device=rank, start=start, end=end, iteration=0,
                 stream=7 if is_part else 9, short_name=full, range=rank, **what)  # fmt: skip
    return collectives(b.trace(), by="part")


def test_the_busiest_rank_is_held_against_the_mean() -> None:
    """By hand: first 60, 20 and 40 ns (1.5 times 40), then 24, 36 and 0 (1.8 times 20).

    Kernels at once count once (0 to 60), and what lies outside of the window does not.
    """
    first = [("dispatch", 0, 100), ("gemm", 90, 150), ("gemm", 140, 160), ("combine", 200, 300)]
    answer = _asked(
        [*first, ("norm", 310, 390), ("dispatch", 400, 500), ("gemm", 500, 524),
         ("combine", 600, 700)],
        [("dispatch", 0, 100), ("gemm", 100, 120), ("combine", 200, 300),
         ("dispatch", 400, 500), ("gemm", 584, 640), ("gemm", 510, 530), ("combine", 600, 700)],
        [("dispatch", 0, 100), ("gemm", 120, 160), ("combine", 200, 300),
         ("dispatch", 400, 500), ("combine", 600, 700)],
    )  # fmt: skip
    assert answer.listed == ["experts"]  # in JSON and on pages
    assert answer.tables["experts"].rows() == [
        ("moe", 2, 3, pytest.approx(30), pytest.approx(1.65), 0, 0.5)
    ]
    assert answer.meta["experts"] == (
        "between dispatch and combine the busiest of 3 ranks computes 1.65 times as long as the "
        "mean in moe"
    )


@pytest.mark.parametrize(
    ("ranks", "why"),
    [
        ([[("dispatch", 0, 100), ("combine", 200, 300)]], "record several of them"),
        (
            [[("dispatch", 0, 9), ("dispatch", 10, 20), ("combine", 30, 40), ("combine", 50, 60)],
             [("dispatch", 0, 9), ("combine", 30, 40)]],
            "their combines cannot be assigned",
        ),
        (
            [[("combine", 0, 9), ("dispatch", 10, 20)], [("dispatch", 0, 9), ("combine", 30, 40)]],
            "no step has as many on each",
        ),
    ],
    ids=["one rank", "two at once", "cut"],
)  # fmt: skip
def test_no_number_where_nothing_tells_it(
    ranks: list[list[tuple[str, int, int]]], why: str
) -> None:
    answer = _asked(*ranks)
    assert "experts" not in answer.meta
    assert any(why in text for text in answer.meta["missing"])
    assert answer.tables["experts"].is_empty()


def test_no_part_is_told_of_collectives_that_are_not_of_experts() -> None:
    b = TraceBuilder()
    b.op("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 1, kind="collective", collective="all_reduce")
    answer = collectives(b.trace(), by="part")
    assert answer.rows["part"].to_list() == [None]
    assert "part: no kernel is named after experts' dispatch or combine" in answer.meta["missing"]
