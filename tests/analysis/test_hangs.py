"""Faults put into the dumps of a job, one at a time, and what PyTorch's own tool says of them."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import tracekit as tk
from tests.hang_dumps import BEGIN, Dump, Rank, job, without_first, write_dumps
from tests.trace_builder import TraceBuilder
from tracekit.analysis.hangs import find_hang_in_run
from tracekit.analysis.hangs._dump_calls import last_work
from tracekit.cli import app
from tracekit.errors import (
    DamagedTraceError,
    NotATraceError,
    UndecidedError,
    UnsupportedTraceError,
)
from tracekit.model import Answer, Trace
from tracekit.model._tables import ITERATIONS

WAITS = "started"


def _missing(one: Rank) -> None:
    if one.rank != 3:
        one.call("0", "all_reduce", [[4096]], state=WAITS, line=28)


def _missing_in_part(one: Rank) -> None:
    if one.rank == 1:
        return
    if one.rank == 0:
        one.call("1", "broadcast", [[16]], state=WAITS, line=30)
    else:
        one.call("2", "broadcast", [[16]])
        one.call("0", "all_reduce", [[64]], state=WAITS, line=31)


def _other_type(one: Rank) -> None:
    one.call("0", "broadcast" if one.rank == 2 else "all_reduce", [[64]], state=WAITS)


def _other_size(one: Rank) -> None:
    one.call("0", "all_reduce", [[65 if one.rank == 1 else 64]], state=WAITS)


def _other_dtype(one: Rank) -> None:
    one.call("0", "all_reduce", [[64]], dtype="Half" if one.rank == 0 else "Float", state=WAITS)


def _other_order(one: Rank) -> None:
    calls = [("all_reduce", [[64]]), ("broadcast", [[32]])]
    for name, sizes in calls[:: -1 if one.rank == 1 else 1]:
        one.call("0", name, sizes, state=WAITS)


def _circle(one: Rank) -> None:
    if one.rank < 2:
        one.call("0" if one.rank == 0 else "1", "all_reduce", [[64]], state=WAITS)
    else:
        one.call("0", "all_reduce", [[64]], state=WAITS)


def _unstarted(one: Rank) -> None:
    one.call("3", "all_reduce", [[64]], state="scheduled" if one.rank == 1 else WAITS)


def _unfinished(one: Rank) -> None:
    one.call("3", "all_reduce", [[64]], state=WAITS)


def _no_receive(one: Rank) -> None:
    if one.rank == 0:
        one.call("0", "send 0->1", [[64]], state="completed", line=41)
        one.call("0", "send 0->1", [[64]], state=WAITS, line=42)
    if one.rank == 1:
        one.call("0", "recv 1<-0", [[64]], [[64]], state="completed")


def _other_message(one: Rank) -> None:
    if one.rank == 2:
        one.call("2", "send 0->1", [[64]], state=WAITS)
    if one.rank == 3:
        one.call("2", "recv 1<-0", [[32]], [[32]], state=WAITS)


CASES: dict[str, tuple[dict[int, Dump], dict[str, Any]]] = {
    "missing": (
        job(_missing),
        {"problem": "missing", "ranks": [3], "waiting": [0, 1, 2], "group": "0", "sequence": 7,
         "place": "step at train/loop.py:28", "last_place": "step at train/loop.py:13"},
    ),
    "missing in one group": (
        job(_missing_in_part),
        {"problem": "missing", "ranks": [1], "waiting": [2, 3], "group": "0", "sequence": 7},
    ),
    "type": (
        job(_other_type),
        {"problem": "type", "ranks": [2], "usual": "all_reduce", "other": "broadcast"},
    ),
    "size": (
        job(_other_size),
        {"problem": "size", "ranks": [1], "usual": "[[64]]", "other": "[[65]]"},
    ),
    "dtype": (
        job(_other_dtype),
        {"problem": "dtype", "ranks": [0], "usual": "Float", "other": "Half"},
    ),
    "order": (job(_other_order), {"problem": "order", "ranks": [1], "sequence": 7}),
    "no dump": (
        job(_unfinished, ranks=(0, 1, 3)),
        {"problem": "no_dump", "ranks": [2], "waiting": [0, 1, 3]},
    ),
    "circle": (
        job(_circle),
        {"problem": "deadlock", "ranks": [1], "waiting": [0, 2, 3], "group": "0"},
    ),
    "unstarted": (
        job(_unstarted),
        {"problem": "unstarted", "ranks": [1], "waiting": [0, 2, 3], "group": "3"},
    ),
    "no receive": (
        job(_no_receive),
        {"problem": "missing", "ranks": [1], "waiting": [0], "sequence": 2,
         "collective": "message from 0 to 1", "place": "step at train/loop.py:42"},
    ),
    "size of a message": (
        job(_other_message),
        {"problem": "size", "ranks": [2, 3], "usual": "[[64]]", "other": "[[32]]"},
    ),
    "missing after lost entries": (
        without_first(job(_missing), 0, 4),
        {"problem": "missing", "ranks": [3], "waiting": [0, 1, 2], "sequence": 7},
    ),
}  # fmt: skip
"""What is written, and what the cause must say."""


def _asked(dumps: dict[int, Dump], folder: Path) -> Answer:
    return tk.hang.answer([write_dumps(dumps, folder)])


@pytest.mark.parametrize("name", CASES)
def test_a_fault_is_named(name: str, tmp_path: Path) -> None:
    dumps, said = CASES[name]
    answer = _asked(dumps, tmp_path / "dumps")
    first = answer.rows.row(0, named=True)
    assert {key: first[key] for key in said} == said
    assert first["role"] == "cause"
    assert answer.title == first["says"]


def test_who_waits_elsewhere_is_no_cause(tmp_path: Path) -> None:
    rows = _asked(job(_missing_in_part), tmp_path / "dumps").rows
    assert set(rows["group"]) == {"0", "1"}
    assert rows["ranks"].to_list() == [[1], [1]]  # never rank 0, which waits for rank 1


def test_all_joined_and_nothing_tells(tmp_path: Path) -> None:
    row = _asked(job(_unfinished), tmp_path / "dumps").rows.row(0, named=True)
    assert (row["role"], row["problem"], row["ranks"]) == ("unknown", "unfinished", [])
    assert row["waiting"] == [0, 1, 2, 3]


def test_a_dump_that_is_older_than_what_others_completed_leaves_open_who_is_missing(
    tmp_path: Path,
) -> None:
    dumps = job(_unfinished)
    old = Rank(1)
    old.step()
    row = _asked(dumps | {1: old.dump()}, tmp_path / "dumps").rows.row(0, named=True)
    assert (row["role"], row["problem"]) == ("unknown", "no_dump")
    assert (row["ranks"], row["waiting"]) == ([1], [0, 2, 3])
    assert row["says"].startswith("rank 1 wrote a dump before others completed")


def test_two_against_two_do_not_agree(tmp_path: Path) -> None:
    def half(one: Rank) -> None:
        one.call("0", "all_reduce", [[8 if one.rank < 2 else 16]], state=WAITS)

    says = _asked(job(half), tmp_path / "dumps").rows["says"][0]
    assert says.startswith("ranks 0 to 3 do not agree in all_reduce 7 of group 0 (default_pg): [[8")


@pytest.mark.parametrize(
    "program",
    [
        lambda one: None,
        lambda one: one.call("0", "all_to_all", [[one.rank]], [[9]]),
        lambda one: one.call("0", "gather", [[8]], [[8]] * 4 if one.rank == 0 else []),
        lambda one: one.call("0", "all_reduce", [[8]]) if one.rank != 3 else None,  # dumped later
    ],
)
def test_nothing_is_wrong(program: Callable[[Rank], None], tmp_path: Path) -> None:
    assert _asked(job(program), tmp_path / "dumps").rows.is_empty()


def test_lost_entries_are_said(tmp_path: Path) -> None:
    answer = _asked(without_first(job(_missing), 0, 4), tmp_path / "dumps")
    assert answer.meta["lost"] == 1
    assert "have lost" in answer.warnings[0]


def test_a_pickle_that_runs_code_is_refused(tmp_path: Path) -> None:
    written = tmp_path / "written"

    class Planted:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.write_text, (written, "planted")

    dump = tmp_path / "nccl_trace_rank_0"
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        dump.write_bytes(pickle.dumps({"entries": [], "version": Planted()}, protocol=protocol))
        with pytest.raises(UnsupportedTraceError, match="could run code"):
            tk.hang([dump])
    assert not written.exists()


def test_damaged_dumps_are_one_error(tmp_path: Path) -> None:
    dump = write_dumps(job(_missing), tmp_path / "dumps") / "nccl_trace_rank_1"
    whole = dump.read_bytes()
    for length in range(1, len(whole), 97):
        dump.write_bytes(whole[:length])
        with pytest.raises(DamagedTraceError):
            tk.hang([dump])
    dump.write_bytes(b"hello")
    with pytest.raises(NotATraceError):
        tk.hang([dump])
    rows = tk.hang.answer([dump.parent])  # the others are read
    assert rows.meta["without_dump"] == [1]


def test_values_of_other_kinds_are_unknown(tmp_path: Path) -> None:
    dumps = job(_missing)
    for entry, value in zip(dumps[2]["entries"], (2**80, "x", None, [], {}, -1, 1.5), strict=False):
        entry |= {"input_sizes": value, "record_id": value, "frames": value, "state": value}
        entry |= {"process_group": value, "profiling_name": value, "output_dtypes": value}
    answer = _asked(dumps, tmp_path / "dumps")
    assert answer.rows.row(0, named=True)["ranks"] == [3]


def test_json_dumps_say_the_same(tmp_path: Path) -> None:
    for rank, dump in job(_missing).items():
        for entry in dump["entries"]:
            entry["process_group"] = list(entry["process_group"])
            del entry["frames"]
        (tmp_path / f"nccl_trace_rank_{rank}.json").write_text(json.dumps(dump))
    row = tk.hang([tmp_path]).row(0, named=True)
    assert (row["ranks"], row["sequence"], row["place"]) == ([3], 7, None)


def test_exit_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, program, code in (("a", _missing, 1), ("b", _unfinished, 3), ("c", Rank.step, 0)):
        folder = write_dumps(job(program), tmp_path / name)
        with pytest.raises(SystemExit) as stop:
            app(["hang", str(folder)], prog_name="tracekit")
        assert (stop.value.code or 0) == code
    assert "rank 3 did not join all_reduce 7" in capsys.readouterr().out


STATUS = {
    "communicators": [
        {
            "hash": "0xae",
            "size": 3,
            "ranks": [
                {"rank": 0, "host": "a", "pid": 1, "status": {"async_error": 0},
                 "collective_counts": {"AllReduce": 42}},
                {"rank": 1, "host": "a", "pid": 2, "status": {"async_error": 0},
                 "collective_counts": {"AllReduce": 41}},
            ],
            "missing_ranks": [],
        }
    ]
}  # fmt: skip


def test_ras_tells_who_is_behind_by_two_answers(tmp_path: Path) -> None:
    one, moved = tmp_path / "one.json", json.loads(json.dumps(STATUS))
    one.write_text(json.dumps(STATUS))
    assert tk.hang([one]).is_empty()
    row = tk.hang([one, one]).row(0, named=True)
    assert (row["problem"], row["ranks"], row["waiting"]) == ("behind", [1], [0])
    moved["communicators"][0]["ranks"][1]["collective_counts"]["AllReduce"] = 40
    (tmp_path / "before.json").write_text(json.dumps(moved))
    assert tk.hang([tmp_path / "before.json", one]).is_empty()


def test_ras_tells_who_does_not_answer(tmp_path: Path) -> None:
    status = json.loads(json.dumps(STATUS))
    status["communicators"][0]["missing_ranks"] = [
        {
            "rank": 2,
            "host": "b",
            "pid": 3,
            "status": {"unresponsive": True, "considered_dead": False},
        }
    ]
    (tmp_path / "ras.json").write_text(json.dumps(status))
    row = tk.hang([tmp_path / "ras.json"]).row(0, named=True)
    assert (row["problem"], row["ranks"], row["waiting"]) == ("unresponsive", [2], [0, 1])


ORACLE = {
    "missing": "missing ranks: {3}",
    "type": "COLLECTIVE_TYPE_MISMATCH",
    "size": "SIZE_OR_SYNTAX_MISMATCH",
    "dtype": "COLLECTIVE_DTYPE_MISMATCH",
    "unstarted": "COLLECTIVE_STATE_MISMATCH",
}


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("name", ORACLE)
def test_pytorchs_own_tool_names_the_same(name: str, tmp_path: Path) -> None:
    pytest.importorskip("torch.distributed.flight_recorder")
    folder = write_dumps(CASES[name][0], tmp_path / "dumps")
    told = subprocess.run(
        [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(folder),
         "--prefix", "nccl_trace_rank_"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ORACLE[name] in told.stdout + told.stderr


RECORDED = Path(__file__).resolve().parents[2] / "sample_traces/hang"


def test_a_recorded_job_of_gloo(tmp_path: Path) -> None:
    row = tk.hang([RECORDED]).row(0, named=True)
    said = {name: row[name] for name in ("problem", "ranks", "waiting", "collective", "sequence")}
    assert said == {
        "problem": "missing", "ranks": [3], "waiting": [0, 1, 2], "collective": "all_reduce",
        "sequence": 5,
    }  # fmt: skip
    assert row["place"] == "reduce_gradients at train/hang.py:50"


def test_dumps_of_gloo_show_no_more_than_they_hold(tmp_path: Path) -> None:
    """They say neither who belongs to a group nor whether what was enqueued has ended."""
    for rank in (0, 1):  # of four, who wait for rank 3
        name = f"gloo_trace_rank_{rank}"
        (tmp_path / name).write_bytes((RECORDED / name).read_bytes())
    answer = tk.hang.answer([tmp_path])
    assert answer.empty == "the 2 dumps show no collective that some rank did not join or match"
    assert any("whether a collective ended" in text for text in answer.warnings)
    with pytest.raises(UndecidedError, match="one dump shows nothing"):
        tk.hang([tmp_path / "gloo_trace_rank_0"])
    whole = _asked(job(Rank.step), tmp_path / "nccl")
    assert "join, complete or match" in whole.empty
    assert whole.warnings == ()


def _traced(
    rank: int,
    path: Path,
    *,
    first: int = 5,
    size: int = 1024,
    began: int = BEGIN,
    hung: Sequence[dict[str, Any]] = (),
) -> Path:
    """Write a PyTorch trace of a rank's last two steps: all-reduces of group 0, by number.

    Calls `hung` follow, without a kernel; then a thread polls for 5 s.
    """
    events: list[dict[str, Any]] = []
    for step, other in enumerate([{}, {}, *hung]):
        at = began // 1_000 + step * 1_000
        place = {"ph": "X", "pid": 7, "tid": 7, "ts": at, "dur": 5}
        said = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": size,
                "Out msg nelems": size, "Group size": 4, "Process Group Name": "0",
                "Process Group Ranks": "[0, 1, 2, 3]", "Seq": first + 3 * step,
                "Rank": rank, **other}  # fmt: skip
        events += [
            {**place, "cat": "user_annotation", "dur": 900, "ts": at - 2,
             "name": f"ProfilerStep#{step}" if step < 2 else "finish"},
            {**place, "cat": "cpu_op", "name": "record_param_comms", "args": said},
            {**place, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at + 1, "dur": 1,
             "args": {"correlation": step}},
            {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)",
             "pid": 0, "tid": 7, "ts": at + 9, "dur": 20,
             "args": {"device": 0, "context": 1, "stream": 7, "correlation": step}},
        ][: 3 if step >= 2 else 4]  # fmt: skip
    events.append({"ph": "X", "pid": 7, "tid": 8, "ts": began // 1_000 + 5 * 10**6, "dur": 5,
                   "cat": "cuda_runtime", "name": "cudaEventQuery"})  # fmt: skip
    path.write_text(json.dumps({
        "schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA A100"}],
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 4},
        "traceEvents": events,
    }))  # fmt: skip
    return path


def test_json_and_pages_list_the_last_collective_of_each_rank(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for form in ("json", "html"):
        with pytest.raises(SystemExit):
            app(["hang", str(RECORDED), "--format", form], prog_name="tracekit")
        told = capsys.readouterr().out
        if form == "json":
            ranks = json.loads(told)["tables"]["ranks"]
            assert [(row["rank"], row["last_collective"]) for row in ranks] == [
                *((rank, "all_reduce 5 of group 0") for rank in range(3)),
                (3, "barrier 4 of group 0"),
            ]
    assert told.index('data-name="last_collective"') < told.index('data-name="file"')  # in sight
    assert told.count("<td>all_reduce 5 of group 0</td>") == 3
    assert told.count("<td>barrier 4 of group 0</td>") == 1


def _hung_all_reduce(one: Rank) -> None:
    """Rank 3 does not join the second all-reduce: numbers of group 0 are 1 to 6 before."""
    one.call("0", "all_reduce", [[1024]])
    if one.rank != 3:
        one.call("0", "all_reduce", [[1024]], state=WAITS)


@pytest.mark.slow
def test_a_run_of_one_rank_tells_stage_and_step_of_all(tmp_path: Path) -> None:
    """Dumps say who else was in a collective of the run, and who ended it."""
    folder = write_dumps(job(_hung_all_reduce), tmp_path / "dumps")
    trace = _traced(1, tmp_path / "rank1.json")
    answer = tk.hang.answer([folder], run=tk.open(trace, store=tmp_path / "store"))
    assert answer.rows.select("problem", "ranks", "sequence", "iteration").rows() == [
        ("missing", [3], 8, 1)
    ]
    found = answer.tables["collectives"].select(
        "sequence", "collective", "message_bytes", "recorded", "unrecorded", "completed",
        "iteration",
    )  # fmt: skip
    assert found.rows() == [
        (5, "all_reduce", 4096, [1], [0, 2, 3], [0, 1, 2, 3], 0),
        (8, "all_reduce", 4096, [1], [0, 2], [], 1),
    ]
    ranks = answer.tables["ranks"].select("rank", "last_kernel", "earlier_ns")
    assert [name is not None for _, name, _ in ranks.rows()] == [False, True, False, False]
    assert ranks["earlier_ns"].to_list() == [None, 0, None, None]
    assert answer.meta["timeline"] == (
        "2 collectives of the dumps are joined to calls of 1 of 1 recorded ranks, by group and "
        "sequence number: sizes agree in all 2 that have two"
    )


def test_the_last_kernel_is_no_copy_that_runs_later() -> None:
    b = TraceBuilder()
    for rank, ends in enumerate([(40, 90), (70,)]):
        b.range(0, 100, f"tracekit.rank {rank} of 2", thread=10 * rank)
        for turn, end in enumerate(ends):
            kind = "d2h" if turn else "compute"
            b.op(kind, turn, start=end - 9, end=end, thread=10 * rank, device=rank, kind=kind,
                 short_name=f"{kind}_{rank}")  # fmt: skip
    found = last_work(b.trace()).sort("rank").select("rank", "last_kernel", "earlier_ns")
    assert found.rows() == [(0, "compute_0", 50), (1, "compute_1", 20)]


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [{"size": 512}, {"first": 50}, {"began": BEGIN + 5 * 10**9}])
def test_a_run_of_another_job_is_left_out(
    tmp_path: Path, wrong: dict[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_dumps(job(_hung_all_reduce), tmp_path / "dumps")
    trace = _traced(1, tmp_path / "rank1.json", **wrong)
    asked = ["hang", str(folder), "--run", str(trace), "--store", str(tmp_path / "store")]
    with pytest.raises(SystemExit) as ended:
        app(asked, prog_name="tracekit")
    assert ended.value.code == 1  # as without the run
    told = capsys.readouterr().out
    assert "rank 3 did not join all_reduce 8" in told
    assert "the run is left out, no collective of these dumps matches one of this run" in told


GLOO = Path(__file__).with_name("gloo_hang")


@pytest.mark.slow
def test_two_recorders_of_a_job_of_gloo_are_joined(tmp_path: Path) -> None:
    """Recorded: ranks 0 and 1 wait for rank 2 after four steps; PyTorch's profiler ran, too."""
    traces = sorted(GLOO.glob("rank*.json.gz"))
    run, _ = tk.ingest(traces, name="job", store=tmp_path / "store", processes=1)
    answer = tk.hang.answer([GLOO], run=run)
    row = answer.rows.row(0, named=True)
    assert (row["problem"], row["ranks"], row["waiting"]) == ("missing", [2], [0, 1])
    assert answer.meta["timeline"] == (
        "9 collectives of the dumps are joined to calls of 3 of 3 recorded ranks, by group and "
        "order and time"
    )
    found = answer.tables["collectives"].select("sequence", "collective", "recorded", "iteration")
    numbers = zip((4, 5, 9, 10, 12, 13, 15, 16), (0, 0, 1, 1, 2, 2, 3, 3), strict=True)
    assert found.rows() == [
        *((number, "all_reduce", [0, 1, 2], step) for number, step in numbers),
        (18, "all_reduce", [0, 1], None),  # the last one, after the steps
    ]
    with pytest.raises(UndecidedError, match="no work of NCCL"):
        tk.hang(run=run)
    for dump in GLOO.glob("gloo_*"):  # as of another time
        held = pickle.loads(dump.read_bytes())
        for place, entry in enumerate(held["entries"]):
            entry["time_created_ns"] += place * 1_000_000
        (tmp_path / dump.name).write_bytes(pickle.dumps(held, protocol=2))
    told = tk.hang.answer([tmp_path], run=run)
    assert any("the run is left out" in text for text in told.warnings)


Called = tuple[str, int, bool] | tuple[str, int, bool, dict[str, object]]


def _cut(made: dict[int, list[Called]], *, until: int = 20, polls: bool = True) -> Trace:
    """Return the last calls of ranks: name, size, whether its kernel ended, others; 1 s apart.

    A thread polls until the last second, at which the recording ends.
    """
    b, second = TraceBuilder(), 10**9
    for rank, calls in made.items():
        b.range(0, 5, f"tracekit.rank {rank} of {len(made)}", thread=10 * rank)
        said = {"NCCL communicator ID": 7, "No. of ranks": len(made), "Rank": rank}
        b.range(0, 5, "ncclCommInitRank", thread=10 * rank, domain="NCCL",
                payload=json.dumps(said))  # fmt: skip
        for at, (name, size, ended, *others) in enumerate(calls, 1):
            message = {"Peer rank": 1 - rank} if name in ("Send", "Recv") else {}
            payload = json.dumps(
                {"NCCL communicator ID": 7, "Message size [bytes]": size, **message}
                | (others[0] if others else {})
            )
            b.range(at * second, at * second + 9, f"nccl{name}", thread=10 * rank, domain="NCCL",
                    payload=payload)  # fmt: skip
            if ended:
                kind = "SendRecv" if message else name
                b.op(f"ncclDevKernel_{kind}", at * second + 4, thread=10 * rank, device=rank,
                     kind="collective", collective="send_recv" if message else "all_reduce",
                     end=at * second + 200)  # fmt: skip
            else:
                b.call(at * second + 4, at * second + 5, thread=10 * rank, correlation=900 + at)
        if polls:
            b.call(until * second, until * second + 1, thread=10 * rank + 1, correlation=None)
            b.rows["calls"][-1]["name"] = "cudaEventQuery"
    b.rows["reports"].append(
        {"report": 0, "file": "a", "format": "x", "size": 1, "duration": until * second}
    )
    trace = b.trace()
    calls_of_ops = trace.read("calls").select("process", "correlation", "call")
    ops = trace.read("ops").drop("call").join(calls_of_ops, on=["process", "correlation"])
    return trace.with_tables({"ops": ops})


REDUCED, WAITING = ("AllReduce", 8, True), ("AllReduce", 8, False)
ROOTS = [("Broadcast", 8, False, {"Root": root}) for root in (0, 1)]
TYPES = [("AllReduce", 8, False, {"dataType": kind}) for kind in ("ncclFloat", "ncclInt")]
GATHERED = ("AllGather", 8, False)
CUT: dict[str, tuple[dict[int, list[Called]], tuple[object, ...]]] = {
    "missing": (
        {0: [REDUCED, WAITING], 1: [REDUCED], 2: [REDUCED, WAITING]},
        ("cause", "missing", [1], [0, 2], 2),
    ),
    "never any": ({0: [WAITING], 1: []}, ("cause", "missing", [1], [0], 1)),
    "size": (
        {0: [REDUCED, WAITING], 1: [REDUCED, ("AllReduce", 9, False)], 2: [REDUCED, WAITING]},
        ("cause", "size", [1], [0, 2], 2),
    ),
    "type": (
        {0: [REDUCED, WAITING], 1: [REDUCED, GATHERED], 2: [REDUCED, WAITING]},
        ("cause", "type", [1], [0, 2], 2),
    ),
    "root": (
        {0: [REDUCED, ROOTS[0]], 1: [REDUCED, ROOTS[1]], 2: [REDUCED, ROOTS[0]]},
        ("cause", "root", [1], [0, 2], 2),
    ),
    "dtype": (
        {0: [REDUCED, TYPES[0]], 1: [REDUCED, TYPES[0]], 2: [REDUCED, TYPES[1]]},
        ("cause", "dtype", [2], [0, 1], 2),
    ),
    "dtype that one lacks": (
        {0: [REDUCED, TYPES[0]], 1: [REDUCED, WAITING], 2: [REDUCED, TYPES[0]]},
        ("unknown", "unfinished", [], [0, 1, 2], 2),
    ),
    "order": (
        {0: [REDUCED, WAITING, GATHERED], 1: [REDUCED, GATHERED, WAITING],
         2: [REDUCED, WAITING, GATHERED]},
        ("cause", "order", [1], [0, 2], 2),
    ),
    "order of roots": (
        {0: [REDUCED, *ROOTS], 1: [REDUCED, *ROOTS], 2: [REDUCED, *ROOTS[::-1]]},
        ("cause", "order", [2], [0, 1], 2),
    ),
    "other size of what all ended": (
        {0: [REDUCED, REDUCED, WAITING], 1: [REDUCED, ("AllReduce", 9, True)],
         2: [REDUCED, REDUCED, WAITING]},
        ("cause", "missing", [1], [0, 2], 3),
    ),
    "all wait": (
        {0: [REDUCED, WAITING], 1: [REDUCED, WAITING]},
        ("unknown", "unfinished", [], [0, 1], 2),
    ),
    "message": (
        {0: [REDUCED, ("Recv", 4, False)], 1: [REDUCED]},
        ("cause", "missing", [1], [0], None),
    ),
    "waits for a message": (
        {0: [REDUCED, ("Recv", 4, False)], 1: [REDUCED, ("Send", 4, False)], 2: [REDUCED, WAITING]},
        ("unknown", "missing", [0, 1], [2], 2),
    ),
}  # fmt: skip
"""Last calls of ranks, and the first row of what is said."""


@pytest.mark.parametrize("name", CUT)
def test_recordings_that_were_cut_show_who_is_missing(name: str) -> None:
    calls, said = CUT[name]
    rows = find_hang_in_run(_cut(calls)).rows
    assert rows.select("role", "problem", "ranks", "waiting", "sequence").row(0) == said


@pytest.mark.parametrize(("end", "step"), [(3, 4), (2, None)])
def test_what_hangs_after_the_last_step_that_is_known_is_in_none(end: int, step: object) -> None:
    """Recorders that keep no open ranges do not tell the step in which a rank hangs."""
    step_of = {"report": 0, "thread": 0, "iteration": 4, "name": "step 4", "start": 0}
    known = [step_of | {"process": rank, "end": end * 10**9} for rank in range(3)]
    trace = _cut(CUT["missing"][0]).with_tables(
        {"iterations": ITERATIONS.conform(pl.DataFrame(known))}
    )
    assert find_hang_in_run(trace).rows["iteration"].to_list() == [step]


def test_a_launch_that_a_cut_recording_did_not_see_end_is_no_hang() -> None:
    """Nor one whose recorder may have stopped; ranks are told all the same."""
    calls, _ = CUT["missing"]
    soon = find_hang_in_run(_cut(calls, until=2))
    assert soon.rows.is_empty()
    assert "nothing shows a hang" in soon.empty
    silent = find_hang_in_run(_cut(calls, polls=False))
    assert silent.rows.select("role", "ranks", "silent_ns").rows() == [
        ("unknown", [1], 18 * 10**9 - 9)
    ]
    last = silent.tables["ranks"].select("rank", "last_call", "unended", "last_kernel").rows()
    assert last == [
        (0, "cudaLaunchKernel", 1, None), (1, "cudaLaunchKernel", 0, None),
        (2, "cudaLaunchKernel", 1, None),
    ]  # fmt: skip


REDUCES, SUMS_HALF = {}, {"dtype": "Half"}
SENT = [{"Collective name": "broadcast", "Rank": root} for root in (0, 1)]
TRACED: dict[str, tuple[list[list[dict[str, Any]]], tuple[object, ...]]] = {
    "order": (
        [[REDUCES, SENT[0]]] * 3 + [[SENT[0], REDUCES]],
        ("order", [3], [0, 1, 2], "all_reduce", "broadcast"),
    ),
    "root": ([[SENT[0]]] * 3 + [[SENT[1]]], ("root", [3], [0, 1, 2], "0", "1")),
    "missing": ([[REDUCES], [REDUCES], [], [REDUCES]], ("missing", [2], [0, 1, 3], None, None)),
    "type": (
        [[REDUCES], [SENT[0]], [REDUCES], [REDUCES]],
        ("type", [1], [0, 2, 3], "all_reduce", "broadcast"),
    ),
    "dtype": ([[SUMS_HALF]] + [[REDUCES]] * 3, ("dtype", [0], [1, 2, 3], "float", "half")),
}  # fmt: skip
"""Calls of four ranks without end, and what is said."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *list(TRACED)[:1],
        *(pytest.param(each, marks=pytest.mark.nightly) for each in list(TRACED)[1:]),
    ],
)
def test_traces_of_pytorch_of_several_ranks_show_who_differs(name: str, tmp_path: Path) -> None:
    hung, said = TRACED[name]
    traces = [
        _traced(rank, tmp_path / f"rank{rank}.json", hung=calls) for rank, calls in enumerate(hung)
    ]
    run, _ = tk.ingest(traces, name="job", store=tmp_path / "store", processes=1)
    answer = tk.hang.answer(run=run)
    rows = answer.rows.filter(role="cause")
    assert rows.select("problem", "ranks", "waiting", "usual", "other").rows() == [said]
    assert rows["place"].to_list() == ["finish"]
    ranks = answer.tables["ranks"].select("rank", "unended", "last_kernel").rows()
    name_of = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
    assert ranks == [(rank, len(calls), name_of) for rank, calls in enumerate(hung)]


@pytest.mark.slow
def test_without_dumps_the_run_is_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = _traced(1, tmp_path / "rank1.json")
    for asked, said in ((str(trace), "one rank was recorded: rec"), ("nobody", "no run 'nobody'")):
        with pytest.raises(SystemExit) as ended:
            app(["hang", "--run", asked, "--store", str(tmp_path / "store")], prog_name="tracekit")
        assert ended.value.code in (2, 3)
        assert said in capsys.readouterr().err
