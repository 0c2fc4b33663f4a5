"""Groups of ranks of which nsys recorded some ranks and PyTorch's profiler others."""

from __future__ import annotations

import json

import polars as pl
import pytest

from tests.trace_builder import TraceBuilder
from tracekit.analysis.calls import same_groups
from tracekit.analysis.communication import collectives


def _members(*rows: tuple[str, int | None, int, int, list[str]]) -> pl.DataFrame:
    return pl.DataFrame(rows, orient="row", schema={
        "communicator": pl.String, "place": pl.Int64, "ranks": pl.Int64, "rank": pl.Int64,
        "sizes": pl.List(pl.String),
    })  # fmt: skip


OURS = ("0xa", 1, 2, 6, ["all_reduce 64", "all_reduce 8"])
PAIR = ("pg 3 [2, 6]", 0, 2, 2, ["all_reduce 64"])


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([OURS, PAIR], [("pg 3 [2, 6]", "0xa")]),
        ([OURS, ("pg 3 [6, 2]", 1, 2, 2, ["all_reduce 64"])], []),  # rank 6 is the first there
        ([OURS, ("pg 3 [2, 6, 9]", 0, 3, 2, ["all_reduce 64"])], []),  # of three ranks
        ([OURS, ("pg 3 [2, 6]", 0, 2, 2, ["all_reduce 32"])], []),  # no size in common
        ([OURS, ("pg 3", 0, 2, 2, ["all_reduce 64"])], []),  # older PyTorch lists no members
        ([OURS, ("pg 3 [2, ...]", 0, 2, 2, ["all_reduce 64"])], []),
        ([("0xa", None, 2, 6, ["all_reduce 64"]), PAIR], []),  # nsys without payloads
        ([OURS, PAIR, ("pg 4 [2, 6]", 0, 2, 2, ["all_reduce 8"])], []),  # two groups fit
        ([OURS, PAIR, ("0xb", 1, 2, 6, ["all_reduce 64"])], []),  # two communicators do
        ([OURS, OURS], []),
    ],
)  # fmt: skip
def test_groups_are_the_same_by_members_and_sizes_alone(
    rows: list[tuple[str, int | None, int, int, list[str]]], expected: list[tuple[str, str]]
) -> None:
    assert same_groups(_members(*rows)).rows() == expected


@pytest.mark.parametrize(("clocks", "matched"), [(("host a", "host a"), 6), (("a", "b"), 0)])
def test_calls_are_matched_on_one_clock_alone(
    clocks: tuple[str, str], matched: int, builder: TraceBuilder
) -> None:
    """On two clocks a warning says so, and each call counts by itself.

    Of the two times that a rank waits, 0 and 100 ns, the larger one is the upper median.
    """
    names = ("0xa", "pg 0 [0, 1]")
    for report, clock in enumerate(clocks):
        builder.rows["reports"].append(
            {"report": report, "file": f"{report}", "format": "", "size": 0, "clock": clock}
        )
        said = {"NCCL communicator ID": names[report], "commRank": report, "No. of ranks": 2,
                "Message size [bytes]": 64}  # fmt: skip
        for turn in range(3):
            at, thread = 1_000 * turn, 10 * report
            builder.range(
                at, at + 50, "ncclAllReduce", thread=thread, report=report, domain="NCCL",
                payload=json.dumps(said | {"seqNumber": turn + 7 * report}),
            )  # fmt: skip
            builder.op(
                "ncclDevKernel_AllReduce_Sum_f32_RING_LL", at + 5, thread=thread, report=report,
                device=report, kind="collective", collective="all_reduce", start=at + 100 * report
                + 200, end=at + 500, short_name="ncclDevKernel_AllReduce_Sum_f32_RING_LL",
            )  # fmt: skip
    answer = collectives(builder.trace())
    assert answer.meta["matched"] == matched
    told = [text for text in answer.meta["warnings"] if "nsys and PyTorch" in text]
    assert len(told) == (matched == 0)
    rows = answer.rows.select("communicator", "count", "participants", "wait_ns").rows()
    assert rows == ([("0xa", 3, 2, 100)] if matched else
                    [("0xa", 3, 1, None), ("pg 0 [0, 1]", 3, 1, None)])  # fmt: skip


def test_numbers_of_one_recorder_stay_where_the_other_has_no_calls(builder: TraceBuilder) -> None:
    """A root leaves a broadcast before the other rank comes: numbers tell that, and order not."""
    for report, name in enumerate(("0xa", "0xa", "pg 0 [0, 1, 2]")):
        thread = 10 * report
        builder.rows["reports"].append(
            {"report": report, "file": f"{report}", "format": "", "size": 0, "clock": "host a"}
        )
        said = {"NCCL communicator ID": name, "commRank": report, "No. of ranks": 3,
                "Message size [bytes]": 64}  # fmt: skip
        calls = [("Broadcast", n, 1_000 * n + 300 * report, 100) for n in range(3)]
        calls = [*(calls if report < 2 else []), ("AllReduce", 9, 9_000, 500)]
        for function, number, at, length in calls:
            kind = {"Broadcast": "broadcast", "AllReduce": "all_reduce"}[function]
            builder.range(
                at, at + 50, f"nccl{function}", thread=thread, report=report, domain="NCCL",
                payload=json.dumps(said | {"seqNumber": number + 100 * (report == 2)}),
            )  # fmt: skip
            kernel = f"ncclDevKernel_{function}_RING_LL"
            builder.op(
                kernel, at + 5, thread=thread, report=report, device=report, kind="collective",
                collective=kind, start=at + 60, end=at + 60 + length, short_name=kernel,
            )  # fmt: skip
    rows = collectives(builder.trace()).rows
    assert rows.select("collective", "communicator", "count", "participants").rows() == [
        ("all_reduce", "0xa", 1, 3), ("broadcast", "0xa", 3, 2),
    ]  # fmt: skip
