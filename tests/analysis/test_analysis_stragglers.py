"""Who comes late: by hand, with one clock and without, and against the simulator's books."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl
import pytest
from trace_builder import TraceBuilder

from tracekit.analysis.calls import unrecorded_ranks
from tracekit.analysis.communication import collectives
from tracekit.analysis.diagnosis import stragglers
from tracekit.analysis.diagnosis._exchange_rules import _waited
from tracekit.analysis.diagnosis._facts import exposed_waits, facts_of, waits_in_collectives
from tracekit.analysis.diagnosis._parts import calls, exchanges, work
from tracekit.analysis.diagnosis._stragglers import _by_rank, _held_behind, _times
from tracekit.analysis.idle_time import idle
from tracekit.errors import MissingDataError, UsageError
from tracekit.model import TABLES, Trace

US = 1000
STEP = 1000 * US
PASSES = {0: (600, 600, 600, 600), 1: (700, 900, 700, 500), 2: (500, 600, 650, 600)}
"""How long each rank's backward pass is in each step, in us; then all exchange until the end."""

NO_SIZE = (
    "how many ranks there are: those seen are taken as all ranks; one that was not recorded may be"
    " the last, waits for it are not counted"
)


def _of(
    passes: dict[int, tuple[int, ...]],
    *,
    hidden: bool = False,
    alone: int = 0,
    job: int = 0,
    marks: bool = False,
) -> Trace:
    b = TraceBuilder()
    for rank, lengths in passes.items():
        if marks:
            b.range(-9, -9, f"tracekit.rank {rank}", thread=10 * rank)
        if job:
            told = f'{{"No. of ranks": {job}, "Rank": {rank}, "NCCL communicator ID": 9}}'
            b.range(-9, -5, "ncclCommInitRank", thread=10 * rank, domain="NCCL", payload=told)
        for step in range(len(lengths), len(lengths) + alone):  # steps without an exchange
            begin = step * STEP
            b.iteration(step, begin, begin + STEP, thread=10 * rank, ops=1, whole=True)
            _op(b, begin, begin + 10, begin + STEP, rank, stage="BP")
        for step, length in enumerate(lengths):
            begin = step * STEP
            b.iteration(step, begin, begin + STEP, thread=10 * rank, ops=2, whole=True)
            _op(b, begin, begin + 10, begin + length * US, rank, stage="BP")
            exchange = {"kind": "collective", "collective": "all_reduce", "name": "ncclAllReduce"}
            _op(b, begin + 20, begin + length * US, begin + STEP, rank, stage="WU", stream=20,
                **exchange)  # fmt: skip
            if hidden:
                _op(b, begin + 30, begin + length * US, begin + STEP, rank, stage="WU")
    devices = [{"device": each, "report": 0, "active": True, "identity": "assumed",
                "uuid": str(each)} for each in passes]  # fmt: skip
    return b.trace().with_tables({"devices": TABLES["devices"].conform(pl.DataFrame(devices))})


def _op(b: TraceBuilder, at: int, start: int, end: int, rank: int, **row: Any) -> None:
    b.op(row.pop("name", "gemm"), at, start=start, end=end, thread=10 * rank, device=rank, **row)


def _by_device(trace: Trace) -> dict[int, dict[str, Any]]:
    return {row["device"]: row for row in stragglers(trace).rows.to_dicts()}


def test_who_is_last_and_what_it_costs() -> None:
    found = _by_device(_of(PASSES))
    # Last is rank 1 in three steps; in the last step ranks 0 and 2 are both, so nobody.
    assert [found[rank]["last"] for rank in (0, 1, 2)] == [0, 3, 0]
    assert found[1]["last_share"] == 0.75
    # Waited for rank 1: (100 + 200), (300 + 300), (100 + 50) us of two others in four steps.
    assert found[1]["caused_ns"] == pytest.approx((150 + 300 + 75) * US / 4)
    assert found[0]["caused_ns"] == found[2]["caused_ns"] == 0
    assert found[0]["waited_ns"] == pytest.approx((100 + 300 + 100) * US / 4)
    assert found[1]["waited_ns"] == pytest.approx(100 * US / 4)
    assert found[0]["local_ns"] == pytest.approx(STEP - 125 * US, rel=1e-4)
    assert found[1]["excess_in"] == "BP"
    assert found[1]["excess_ns"] == pytest.approx((2800 - 2400) * US / 4, rel=1e-3)
    assert found[1]["late_ns"] == 200 * US  # of 200, 300, 100, 0


@pytest.mark.parametrize(("clocks", "last"), [(("a", "a"), [False, True]),
                                              (("a", "b"), [True, False])])  # fmt: skip
def test_on_one_clock_who_comes_last_is_last_also_where_ends_differ(
    clocks: tuple[str, str], last: list[bool]
) -> None:
    """The root of a broadcast may leave before the others: its kernel was called the last one."""
    calls = pl.DataFrame({
        "match": 0, "op": [0, 1], "step": 0, "process": 0, "device": [0, 1], "clock": clocks,
        "collective": "broadcast", "start": [0, 10], "end": [100, 120],
    })  # fmt: skip
    found = exposed_waits(calls, pl.DataFrame({"op": [0, 1], "exposed": [99, 99]})).sort("device")
    assert found["is_last"].to_list() == last
    assert found["wait_ns"].to_list() == [0, 10]
    assert found["caused_ns"].to_list() == ([0, 0] if last[1] else [10, 0])


def test_who_holds_others_costs_them_all_of_it_by_step_and_by_other() -> None:
    facts = facts_of(_of(PASSES))
    waits = facts.waits
    idle = pl.DataFrame(
        {"process": [0, 1], "device": [0, 1], "iteration": [0, 2], "cause": ["behind_stage"] * 2,
         "detail": ["GPU 2"] * 2, "idle_ns": [100 * US, 300 * US]},
        schema_overrides=dict.fromkeys(("process", "device"), pl.Int32),
    )  # fmt: skip
    times = _times(facts, waits, _held_behind(idle)).with_columns(rank=pl.col("device"))
    found = {row["device"]: row for row in _by_rank(facts, times, waits, idle).to_dicts()}
    # Nobody waited for GPU 2 in a collective: 400 us of two others in four steps.
    assert found[2]["caused_ns"] == pytest.approx(400 * US / 4 / 2)
    assert found[0]["waited_ns"] == pytest.approx((100 + 300 + 100 + 100) * US / 4)


def test_a_rank_is_last_by_chance_as_often_as_its_collectives_are_small() -> None:
    """Two of three calls are of ranks 0 and 1 alone: rank 0 is last in 1 / 2 + 1 / 2 + 1 / 3."""
    calls = pl.DataFrame(
        [(match, rank, 100 - rank, f"{match}:{rank}") for match, ranks in enumerate((2, 2, 3))
         for rank in range(ranks)],
        schema=["match", "device", "length", "op"], orient="row",
    ).with_columns(
        process=pl.col("device"), step=0, clock=0, collective=pl.lit("all_reduce"), start=0,
        end="length", op=pl.int_range(pl.len()),
    )  # fmt: skip
    of_rank = waits_in_collectives(calls).group_by("device").agg(pl.col("chance").sum())
    found = dict(of_rank.rows())
    assert found == {0: pytest.approx(4 / 3), 1: pytest.approx(4 / 3), 2: pytest.approx(1 / 3)}
    assert [row["chance_share"] for row in _by_device(_of(PASSES)).values()] == [1 / 3] * 3


def test_ranks_far_apart_are_not_listed_one_by_one() -> None:
    """A file named rank999999999 beside rank0 took all memory."""
    trace = _of({0: (600, 600), 30_000: (700, 700)}, marks=True)
    assert unrecorded_ranks(trace) == [*range(1, 10)]
    (missing,) = (text for text in stragglers(trace).meta["missing"] if text.startswith("rank"))
    assert missing.startswith("rank 1, 2, 3, 4, 5, 6, 7, 8, ...: ")


def test_collectives_of_unknown_participants_are_told() -> None:
    trace = _of({rank: PASSES[rank] for rank in (0, 1)})
    last = (pl.col("kind") == "collective") & (pl.col("start") > 3 * STEP) & (pl.col("device") == 1)
    lost = trace.with_tables({"ops": trace["ops"].filter(~last).collect()})
    assert stragglers(trace).meta["missing"] == [NO_SIZE]
    assert stragglers(lost).meta["missing"] == [
        "the participants of 1 of 7 calls of collectives: waits in these are not counted", NO_SIZE
    ]  # fmt: skip
    assert "missing" not in stragglers(_of(PASSES, job=3)).meta


def test_a_missing_first_or_last_rank_is_told() -> None:
    """Ranks 1 to 6 of 8: no number between them is missing."""
    some = {rank: (600 + rank, 700 - rank) for rank in range(1, 7)}
    assert unrecorded_ranks(_of(some, job=8)) == [0, 7]
    trace = _of(some, marks=True)
    assert unrecorded_ranks(trace) == [0]  # no size is told
    report = {"report": 0, "file": "a", "format": "nsys SQLite", "size": 1, "ranks": 8}
    sized = trace.with_tables({"reports": TABLES["reports"].conform(pl.DataFrame([report]))})
    assert unrecorded_ranks(sized) == [0, 7]
    told = stragglers(trace).meta["missing"]
    assert any(text.startswith("rank 0: one that was not") for text in told)


def test_the_one_that_costs_most_comes_first() -> None:
    assert stragglers(_of(PASSES)).rows["device"].to_list() == [1, 0, 2]


def test_waiting_that_other_work_hides_costs_nothing() -> None:
    found = _by_device(_of(PASSES, hidden=True))
    assert {row["caused_ns"] for row in found.values()} == {0}
    assert found[1]["last"] == 3


def test_idle_time_says_beside_it_what_all_collectives_waited() -> None:
    meta = idle(_of(PASSES)).meta
    assert meta["collective_wait_ns"] == ((100 + 200) + (300 + 300) + (100 + 50) + 100) * US


def test_by_iteration() -> None:
    rows = stragglers(_of(PASSES), "iteration").rows
    second = rows.filter(iteration=1).sort("device")
    assert second["waited_ns"].to_list() == [300 * US, 0, 300 * US]
    assert second["last"].to_list() == [0, 1, 0]
    own = [each - wait for each, wait in zip(second["step_ns"], second["waited_ns"], strict=True)]
    assert second["local_ns"].to_list() == own
    usual = sorted(own)[1]
    assert second["excess_percent"][1] == pytest.approx(100 * (own[1] / usual - 1))


def test_a_step_without_any_collective_counts_as_the_others_do() -> None:
    rows = stragglers(_of(PASSES, alone=1), "iteration").rows
    last = rows.filter(iteration=4)
    assert last["device"].sort().to_list() == [0, 1, 2]
    assert last.select("waited_ns", "last").unique().rows() == [(0, 0)]
    assert last["local_ns"].to_list() == last["step_ns"].to_list()


def test_without_one_clock_only_the_delay_is_unknown() -> None:
    rows = [(0, 0, 0, 0, 400, "a"), (0, 1, 1, 5_000, 5_100, "b"),
            (1, 2, 0, 500, 600, "a"), (1, 3, 1, 550, 600, "a"), (2, 4, 0, 7, 8, "a")]  # fmt: skip
    names = ["match", "op", "process", "start", "end", "clock"]
    calls = pl.DataFrame(rows, schema=names, orient="row").with_columns(
        device="process", step=0, collective=pl.lit("all_reduce")
    )
    found = waits_in_collectives(calls.sample(fraction=1, shuffle=True, seed=1)).sort("op")
    assert found["op"].to_list() == [0, 1, 2, 3]  # the last one is alone
    assert found["wait_ns"].to_list() == [300, 0, 50, 0]
    assert found["is_last"].to_list() == [False, True, False, True]
    assert found["late_ns"].to_list() == [None, None, 0, 50]


def test_ranks_that_were_not_recorded_may_come_later() -> None:
    trace = _of(PASSES, job=4)
    unseen = "ranks of 4 of 4 collectives: "
    last = "one that was not recorded may be the last, waits for it are not counted"
    for answer in (stragglers(trace), idle(trace)):
        assert answer.meta["missing"] == [f"{unseen}{last}"]
    assert any(text.startswith(unseen) for text in collectives(trace).meta["missing"])
    facts = replace(facts_of(trace), measures=((calls, work, exchanges),))
    assert _waited(facts, facts.exchanges).endswith("us per step is waiting for other ranks; "
                                                    f"{unseen}waits for one that was not recorded "
                                                    "are not known")  # fmt: skip
    assert "missing" not in stragglers(_of(PASSES, job=3)).meta
    between = {rank: PASSES[min(rank, 2)] for rank in (0, 1, 3)}
    assert stragglers(_of(between, marks=True)).meta["missing"] == [f"rank 2: {last}"]


def test_what_is_refused() -> None:
    with pytest.raises(MissingDataError, match=r"^no collectives were recorded$"):
        stragglers(_of({0: ()}, alone=2))
    with pytest.raises(
        MissingDataError, match="no collective of GPUs was recorded on more than one"
    ):
        stragglers(_of({0: (600, 600)}))
    with pytest.raises(UsageError, match="leave out the other keys"):
        stragglers(_of(PASSES), "rank,iteration")
    of_mpi = {"report": 0, "library": "mpi", "group": "collective", "name": "MPI_Barrier",
              "start": 5, "end": 9}  # fmt: skip
    calls = [of_mpi | {"process": rank, "thread": rank, "rank": rank} for rank in (0, 1)]
    one = _of({0: (600, 600)}).with_tables({"host": TABLES["host"].conform(pl.DataFrame(calls))})
    with pytest.raises(MissingDataError, match="as of MPI, are in `tracekit collectives`"):
        stragglers(one)


def test_calls_that_are_not_matched_are_no_missing_ranks() -> None:
    """All ranks were recorded, and the advice was to record them."""
    with pytest.raises(MissingDataError, match="of one of 2 ranks is matched with another's"):
        stragglers(_of({0: (600, 600), 1: (600, 600)}))


def _with_steps_of(trace: Trace, *processes: int) -> Trace:
    """Return the trace with the steps of some processes alone."""
    known = trace.read("iterations").filter(pl.col("process").is_in(processes))
    ops = trace.read("ops").with_columns(
        iteration=pl.when(pl.col("process").is_in(processes)).then("iteration")
    )
    return trace.with_tables({"iterations": known, "ops": ops})


def test_gpus_without_known_steps_are_told() -> None:
    """What they wait for, and who waits for them, is in no step."""
    found = stragglers(_with_steps_of(_of(PASSES), 0, 1))
    assert found.meta["missing"] == [
        "the steps of 1 of 3 GPUs: waits of and for these are not counted", NO_SIZE
    ]  # fmt: skip
    assert "missing" not in stragglers(_of(PASSES, job=3)).meta
    with pytest.raises(MissingDataError, match="steps are known of 1 of 3 GPUs"):
        stragglers(_with_steps_of(_of(PASSES), 1))
