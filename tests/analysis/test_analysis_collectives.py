"""Collectives: rows per participant, their sizes, and what they cost, on literal traces."""

from __future__ import annotations

import json
from typing import Any

import polars as pl
import pytest
from trace_builder import TraceBuilder

from tracekit.analysis.calls import collective_calls, why_unsized
from tracekit.analysis.communication import collectives
from tracekit.analysis.communication._bandwidth import power_below
from tracekit.analysis.communication._collectives import _stragglers, _with_classes
from tracekit.errors import UsageError
from tracekit.machine import NcclLog
from tracekit.model import COLLECTIVE_CALLS, COLLECTIVES, TABLES, Trace

MIB = 1 << 20
ID = 0x1234
NAME = "0x1234"


class Builder(TraceBuilder):
    """Adds NCCL calls with their kernels; process n runs on device n."""

    def init(
        self, rank: int, ranks: int, communicator: int | None = ID, *, process: int | None = None
    ) -> None:
        text = {"No. of ranks": ranks, "Rank": rank, "CUDA device": rank}
        thread = 10 * (rank if process is None else process)
        self.nccl(-100, "ncclCommInitRank", _text(communicator, text), thread)

    def nccl(self, at: int, name: str, text: str | None, thread: int, *, last: int = 4) -> None:
        self.range(at, at + last, name, thread=thread, domain="NCCL", payload=text)

    def kernel(self, collective: str, start: int, end: int, process: int = 0, **row: Any) -> None:
        function = collective.title().replace("_", "")
        self.op(
            f"ncclDevKernel_{function}(args)", row.pop("at", start - 2), thread=10 * process,
            start=start, end=end, device=row.pop("device", process), kind="collective",
            collective=collective, short_name=f"ncclDevKernel_{function}", **row,
        )  # fmt: skip

    def collective(
        self, name: str, collective: str, start: int, end: int, size: int | None = None,
        process: int = 0, communicator: int | None = ID, **more: Any,
    ) -> None:  # fmt: skip
        text = _text(communicator, {"Message size [bytes]": size} | more) if size else None
        self.nccl(start - 4, name, text, 10 * process)
        self.kernel(collective, start, end, process)


@pytest.fixture
def b() -> Builder:
    return Builder()


def _text(communicator: int | None, more: dict[str, Any]) -> str:
    return json.dumps({"NCCL communicator ID": communicator} | more)


def log(version: str | None = "2.20.5", **tables: list[dict[str, Any]]) -> NcclLog:
    schemas: dict[str, dict[str, Any]] = {
        "ranks": {"communicator": pl.String, "host": pl.String, "pid": pl.Int64, "rank": pl.Int64,
                  "ranks": pl.Int64},
        "tuning": {"communicator": pl.String, "collective": pl.String, "bytes": pl.Int64,
                   "algorithm": pl.String, "protocol": pl.String},
        "calls": {"communicator": pl.String, "host": pl.String, "pid": pl.Int64, "order": pl.Int64,
                  "collective": pl.String, "direction": pl.String, "bytes": pl.Int64,
                  "root": pl.Int64},
    }  # fmt: skip
    frames = {
        name: pl.DataFrame(tables.get(name, []), schema=schema) for name, schema in schemas.items()
    }
    other = pl.DataFrame()
    wrote = pl.concat([frames[name].select("host", "pid") for name in ("calls", "ranks")]).unique()
    return NcclLog("nccl.log", version, rings=other, trees=other, connections=other, warnings=(),
                   nvls=other, nics=other, writers=wrote, **frames)  # fmt: skip


def logged(collective: str, size: int, pid: int = 100, **more: Any) -> dict[str, Any]:
    return {
        "communicator": NAME, "host": "h", "pid": pid, "order": 0, "collective": collective,
        "direction": None, "bytes": size, "root": 0,
    } | more  # fmt: skip


def rows(trace: Trace, *columns: str, **options: Any) -> list[Any]:
    found = collective_calls(trace, **options).select(columns)
    return found.to_series().to_list() if len(columns) == 1 else found.rows()


def one(trace: Trace, **options: Any) -> dict[str, Any]:
    found = collectives(trace, **options).rows
    assert found.height == 1
    return found.row(0, named=True)


class TestSizes:
    @pytest.mark.parametrize(
        ("name", "collective", "kernel", "expected"),
        [
            ("ncclAllReduce", "all_reduce", "all_reduce", 100),
            ("ncclBroadcast", "broadcast", "broadcast", 100),
            ("ncclReduce", "reduce", "reduce", 100),
            ("ncclAllGather", "all_gather", "all_gather", 400),
            ("ncclReduceScatter", "reduce_scatter", "reduce_scatter", 400),
            ("ncclAlltoAll", "all_to_all", "send_recv", 400),
            ("ncclGather", "gather", "send_recv", 400),
            ("ncclScatter", "scatter", "send_recv", 400),
            ("ncclAllReduce", "all_reduce", "unknown", 100),
        ],
    )
    def test_a_payload_counts_as_nccl_tests_count(
        self, name: str, collective: str, kernel: str, expected: int, b: Builder
    ) -> None:
        b.init(2, 4, process=0)
        b.collective(name, kernel, 10, 50, 100)
        columns = ("collective", "message_bytes", "bytes", "bytes_source", "communicator", "rank",
                   "ranks", "api_calls")  # fmt: skip
        assert rows(b.trace(), *columns) == [
            (collective, 100, expected, "payload", NAME, 2, 4, 1)
        ]  # fmt: skip

    def test_without_the_number_of_ranks_a_part_is_not_the_whole(self, b: Builder) -> None:
        b.collective("ncclAllGather", "all_gather", 10, 50, 100)
        assert rows(b.trace(), "message_bytes", "bytes", "bytes_source") == [(100, None, None)]

    def test_a_size_that_no_number_holds_is_unknown(self, b: Builder) -> None:
        b.init(2, 4, process=0)
        b.collective("ncclAllGather", "all_gather", 10, 50, 1 << 62)
        assert rows(b.trace(), "bytes") == [None]

    def test_a_communicator_without_id_is_the_only_one_of_its_process(self, b: Builder) -> None:
        b.init(2, 4, None, process=0)
        b.collective("ncclAllGather", "all_gather", 10, 50, 100, communicator=None)
        assert rows(b.trace(), "bytes", "rank", "ranks", "communicator") == [(400, 2, 4, None)]
        b.init(1, 2, None, process=0)
        assert rows(b.trace(), "bytes", "rank", "ranks") == [(None, None, None)]

    def test_a_kernel_of_another_kind_than_its_call_has_no_size(self, b: Builder) -> None:
        b.collective("ncclAllGather", "all_reduce", 10, 50, 100)
        assert rows(b.trace(), "collective", "bytes", "api_calls") == [("all_reduce", None, 1)]

    def test_grouped_calls_add_up(self, b: Builder) -> None:
        b.nccl(0, "ncclGroupStart", None, 0, last=1)
        for at, size in ((2, 100), (8, 20)):
            b.nccl(at, "ncclAllReduce", _text(ID, {"Message size [bytes]": size}), 0)
        b.nccl(20, "ncclGroupEnd", None, 0, last=30)
        b.kernel("all_reduce", 27, 60)
        assert rows(b.trace(), "bytes", "api_calls") == [(120, 2)]

    def test_a_group_of_unlike_calls_has_no_size(self, b: Builder) -> None:
        b.nccl(0, "ncclGroupStart", None, 0, last=1)
        for at, name in ((2, "ncclAllReduce"), (8, "ncclAllGather")):
            b.nccl(at, name, _text(ID, {"Message size [bytes]": 8}), 0)
        b.nccl(20, "ncclGroupEnd", None, 0, last=30)
        b.kernel("unknown", 27, 60)
        assert rows(b.trace(), "collective", "bytes", "api_calls") == [("unknown", None, 2)]

    def test_one_call_without_payload_makes_a_sum_unknown(self, b: Builder) -> None:
        b.nccl(0, "ncclGroupStart", None, 0, last=1)
        b.nccl(2, "ncclAllReduce", _text(ID, {"Message size [bytes]": 8}), 0)
        b.nccl(8, "ncclAllReduce", None, 0)
        b.nccl(20, "ncclGroupEnd", None, 0, last=30)
        b.kernel("all_reduce", 27, 60)
        assert rows(b.trace(), "bytes", "bytes_source") == [(None, None)]

    def messages(self, b: Builder, *calls: tuple[str, int, int], at: int = 0) -> None:
        b.nccl(at, "ncclGroupStart", None, 0, last=1)
        for turn, (name, size, peer) in enumerate(calls):
            text = _text(ID, {"Message size [bytes]": size, "Peer rank": peer})
            b.nccl(at + 2 + 2 * turn, name, text, 0, last=1)
        b.nccl(at + 20, "ncclGroupEnd", None, 0, last=30)
        b.kernel("send_recv", at + 27, at + 60)

    def test_sends_and_receives_count_by_themselves(self, b: Builder) -> None:
        self.messages(b, ("ncclSend", 100, 1), ("ncclSend", 30, 2), ("ncclRecv", 7, 1))
        self.messages(b, ("ncclRecv", 9, 1), at=200)
        columns = ("collective", "sent_bytes", "received_bytes", "bytes", "api_calls")
        assert rows(b.trace(), *columns) == [
            ("send_recv", 130, 7, 130, 3), ("send_recv", 0, 9, 9, 1)
        ]  # fmt: skip

    @pytest.mark.parametrize(
        ("name", "sent", "received"), [("ncclRecv", 0, None), ("ncclSend", None, 0)]
    )
    def test_a_message_of_unknown_size_is_not_one_of_no_bytes(
        self, name: str, sent: int | None, received: int | None, b: Builder
    ) -> None:
        b.nccl(0, "ncclGroupStart", None, 0, last=1)
        b.nccl(2, name, None, 0, last=1)
        b.nccl(20, "ncclGroupEnd", None, 0, last=30)
        b.kernel("send_recv", 27, 60)
        columns = ("sent_bytes", "received_bytes", "message_bytes", "bytes", "bytes_source")
        assert rows(b.trace(), *columns) == [(sent, received, None, None, None)]

    def test_an_all_to_all_of_sends_is_known_by_its_range(self, b: Builder) -> None:
        b.init(0, 2)
        b.range(0, 100, "nccl:all_to_all")
        b.range(200, 300, "nccl:all_to_all")
        pair = (("ncclSend", 50, 0), ("ncclRecv", 50, 0), ("ncclSend", 50, 1), ("ncclRecv", 50, 1))
        self.messages(b, *pair, at=2)
        self.messages(b, *pair[2:], at=202)  # without its own part: the whole is not known
        self.messages(b, *pair[2:], at=402)
        columns = ("collective", "sent_bytes", "received_bytes", "bytes")
        assert rows(b.attributed(), *columns) == [
            ("all_to_all", 100, 100, 100), ("all_to_all", 50, 50, None), ("send_recv", 50, 50, 50),
        ]  # fmt: skip

    def test_sizes_of_the_user_fill_what_is_unknown(self, b: Builder) -> None:
        b.collective("ncclAllReduce", "all_reduce", 10, 50, 100)
        b.collective("ncclAllReduce", "all_reduce", 60, 90)
        b.collective("ncclBroadcast", "broadcast", 100, 120)
        assert rows(b.trace(), "bytes", "bytes_source", sizes={"all_reduce": 7}) == [
            (100, "payload"), (7, "user"), (None, None)
        ]  # fmt: skip

    @pytest.mark.parametrize("sizes", [{"allreduce": 1}, {"all_reduce": -1}])
    def test_wrong_sizes_are_refused(self, sizes: dict[str, int]) -> None:
        with pytest.raises(UsageError):
            collective_calls(Builder().trace(), sizes=sizes)

    def test_names_say_nothing_of_algorithm_and_protocol(self, b: Builder) -> None:
        b.kernel("all_reduce", 10, 50)
        b.rows["ops"][-1]["name"] = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
        assert rows(b.trace(), "bytes", "algorithm", "protocol") == [(None, None, None)]

    def test_an_empty_trace(self) -> None:
        trace = TraceBuilder().trace()
        assert collective_calls(trace).schema == COLLECTIVE_CALLS.schema
        assert collectives(trace).rows.height == 0
        assert collectives(trace).meta == {
            "calls": 0, "sized": {}, "matched": 0, "collectives": 0, "missing": [], "warnings": [],
        }  # fmt: skip


class TestLog:
    def trace(self, *, ranges: bool) -> Trace:
        b = Builder()
        for at in (10, 100):
            if ranges:
                b.collective("ncclAllReduce", "all_reduce", at, at + 20)
            else:
                b.kernel("all_reduce", at, at + 20)
        return b.trace()

    @pytest.mark.parametrize("ranges", [True, False])
    def test_sizes_are_joined_in_order(self, ranges: bool) -> None:
        given = log(calls=[logged("all_reduce", 5), logged("all_reduce", 6, order=1)])
        found = rows(self.trace(ranges=ranges), "bytes", "bytes_source", log=given)
        assert found == [(5, "log"), (6, "log")]

    @pytest.mark.parametrize("ranges", [True, False])
    def test_other_counts_are_left_unknown_with_a_warning(self, ranges: bool) -> None:
        given = log(calls=[logged("all_reduce", 5)])
        trace = self.trace(ranges=ranges)
        assert rows(trace, "bytes", log=given) == [None, None]
        (warning,) = collectives(trace, log=given).meta["warnings"]
        assert warning.startswith("the NCCL log has 1 all_reduce calls of process 0 and the "
                                  "trace 2")  # fmt: skip

    def test_a_payload_comes_before_the_log(self, b: Builder) -> None:
        b.collective("ncclAllReduce", "all_reduce", 10, 50, 100)
        b.collective("ncclAllReduce", "all_reduce", 60, 90)
        given = log(calls=[logged("all_reduce", 1), logged("all_reduce", 2)])
        found = rows(b.trace(), "bytes", "bytes_source", log=given)
        assert found == [(100, "payload"), (2, "log")]

    def test_sends_and_receives_are_told_apart(self, b: Builder) -> None:
        b.nccl(0, "ncclGroupStart", None, 0, last=1)
        b.nccl(2, "ncclSend", None, 0)
        b.nccl(8, "ncclRecv", None, 0)
        b.nccl(20, "ncclGroupEnd", None, 0, last=30)
        b.kernel("send_recv", 27, 60)
        calls = [logged("send_recv", 3, direction="receive"), logged("send_recv", 4,
                                                                     direction="send")]  # fmt: skip
        found = rows(b.trace(), "sent_bytes", "received_bytes", log=log(calls=calls))
        assert found == [(4, 3)]

    def test_ranks_of_the_log_make_parts_whole(self, b: Builder) -> None:
        b.collective("ncclAllGather", "all_gather", 10, 50, 100, communicator=None)
        ranks = [{"communicator": NAME, "host": "h", "pid": 100, "rank": 1, "ranks": 8}]
        found = rows(b.trace(), "bytes", "rank", "ranks", "communicator", log=log(ranks=ranks))
        assert found == [(800, 1, 8, NAME)]

    @pytest.mark.parametrize(
        ("version", "size", "expected"),
        [("2.20.5", 400, "ring"), ("2.24.3", 100, "ring"), ("2.24.3", 400, None),
         ("2.20.5", 100, None), (None, 400, None)],
    )  # fmt: skip
    def test_choices_go_by_the_size_that_the_version_prints(
        self, version: str | None, size: int, expected: str | None, b: Builder
    ) -> None:
        b.init(0, 4)
        b.collective("ncclAllGather", "all_gather", 10, 50, 100)
        ranks = [{"communicator": NAME, "host": "h", "pid": 100, "rank": 0, "ranks": 4}]
        choice = {"communicator": NAME, "collective": "all_gather", "bytes": size,
                  "algorithm": "ring", "protocol": "simple"}  # fmt: skip
        given = log(version, ranks=ranks, tuning=[choice])
        assert rows(b.trace(), "algorithm", log=given) == [expected]

    @pytest.mark.parametrize("named", [True, False])
    def test_an_ambiguous_choice_is_none(self, named: bool, b: Builder) -> None:
        b.collective("ncclAllReduce", "all_reduce", 10, 50, 100)
        b.collective("ncclAllReduce", "all_reduce", 60, 90, 200)
        b.collective("ncclBroadcast", "broadcast", 100, 150, 300)
        b.collective("ncclAllReduce", "all_reduce", 200, 290, 300)
        tuning = [
            {"communicator": None, "collective": "all_reduce" if named else None, "bytes": size,
             "algorithm": algorithm, "protocol": "ll"}
            for size, algorithm in ((100, "ring"), (100, "ring"), (200, "tree"), (200, "ring"),
                                    (300, "nvls"))
        ]  # fmt: skip
        last = "nvls" if named else None  # without its name it may be of either
        given = log(tuning=tuning)
        assert rows(b.trace(), "algorithm", log=given) == ["ring", None, None, last]

    def test_a_log_of_another_run_is_refused(self) -> None:
        given = log(calls=[logged("all_reduce", 5, pid=4711)])
        with pytest.raises(UsageError, match="of another run: it has process 4711, the run"):
            collective_calls(self.trace(ranges=True), log=given)


class TestMpi:
    def host(self, *calls: dict[str, Any]) -> Trace:
        made = [
            {"report": 0, "process": 0, "thread": 0, "library": "mpi", "group": "collective"} | each
            for each in calls
        ]
        return TraceBuilder().trace().with_tables({"host": pl.DataFrame(made)})

    @pytest.mark.parametrize(
        ("call", "expected"),
        [
            ({"name": "MPI_Allreduce", "bytes": 8, "recv_bytes": 8}, ("all_reduce", 8)),
            ({"name": "MPI_Bcast", "bytes": 0, "recv_bytes": 8}, ("broadcast", 8)),
            ({"name": "MPI_Allgather", "bytes": 2, "recv_bytes": 8}, ("all_gather", 8)),
            ({"name": "MPI_Allgather", "bytes": 2, "recv_bytes": 2}, ("all_gather", None)),
            ({"name": "MPI_Gather", "bytes": 2, "recv_bytes": 8, "rank": 1, "root_rank": 1},
             ("gather", 8)),
            ({"name": "MPI_Gather", "bytes": 2, "recv_bytes": 0, "rank": 0, "root_rank": 1},
             ("gather", None)),
            ({"name": "MPI_Barrier", "bytes": None, "recv_bytes": None}, ("barrier", None)),
        ],
    )  # fmt: skip
    def test_a_call_is_a_collective(
        self, call: dict[str, Any], expected: tuple[str, int | None]
    ) -> None:
        trace = self.host({"start": 0, "end": 10} | call)
        assert rows(trace, "collective", "bytes", "device", "op") == [(*expected, None, None)]
        assert one(trace)["basis"] == "one participant's call time, waiting included"

    def of_ranks(self, *ranks: int) -> Trace:
        numbers = range(len(ranks))
        processes = [{"process": n, "report": 0, "pid": n, "global_id": n} for n in numbers]
        trace = self.host(
            *(
                {"name": "MPI_Allreduce", "start": 10 * n, "end": 100, "process": n, "rank": rank,
                 "thread": n, "bytes": 800, "recv_bytes": 800, "communicator": 77 + n}
                for n, rank in enumerate(ranks)
            )
        )  # fmt: skip
        known = TABLES["processes"].conform(pl.DataFrame(processes))
        return trace.with_tables({"processes": known})

    def test_ranks_are_not_taken_as_all_where_one_is_missing_between_others(self) -> None:
        found = one(self.of_ranks(0, 1, 3), by="library,collective")
        assert found["basis"] == "span of 3 participants of an unknown number"
        assert found["bus_bandwidth_gb_s"] is None

    def test_processes_are_matched_whatever_their_handles(self) -> None:
        found = one(self.of_ranks(0, 1, 2), by="library,collective")
        assert found["basis"] == "span of 3 participants, taken as all ranks"
        assert (found["duration_p50_ns"], found["skew_ns"], found["straggler_rank"]) == (100, 20, 2)
        assert found["bus_bandwidth_gb_s"] == pytest.approx(8 * 4 / 3)

    def test_calls_that_do_not_block_are_left_out_and_said(self) -> None:
        trace = self.host(
            {"name": "MPI_Iallreduce", "start": 0, "end": 1},
            {"name": "MPI_Allreduce", "start": 2, "end": 3},
        )
        assert rows(trace, "start") == [2]
        (warning,) = collectives(trace).meta["warnings"]
        assert warning.startswith("1 MPI collectives that do not block are left out")

    def test_ranges_stand_for_calls_where_a_report_keeps_none(self) -> None:
        b = TraceBuilder()
        b.range(0, 10, "MPI_Allreduce", domain="MPI")
        b.range(20, 30, "MPI_Send", domain="MPI")
        b.range(40, 50, "MPI_Bcast")  # as nvprof annotates them
        b.range(60, 70, "MPI step")
        b.range(80, 90, "MPI_Allreduce 4096 bytes", domain="tracekit")  # as our workloads do
        b.range(82, 88, "MPI_Allreduce", domain="MPI")  # by an nsys that knows no sizes
        columns = ("library", "collective", "name", "start", "bytes")
        assert rows(b.trace(), *columns) == [
            ("mpi", "all_reduce", "MPI_Allreduce", 0, None),
            ("mpi", "broadcast", "MPI_Bcast", 40, None),
            ("mpi", "all_reduce", "MPI_Allreduce", 80, 4096),
        ]


class TestCosts:
    def test_bandwidth_as_worked_out_by_hand(self, b: Builder) -> None:
        # 256 MiB reduced by 16 ranks in 0.1 s.
        for rank in range(16):
            b.init(rank, 16)
            b.collective("ncclAllReduce", "all_reduce", 1000 + rank, 100_001_000, 256 * MIB, rank)
        found = one(b.trace())
        assert found["duration_p50_ns"] == 100_000_000
        assert found["algorithm_bandwidth_gb_s"] == pytest.approx(2.684, abs=5e-4)
        assert found["bus_bandwidth_gb_s"] == pytest.approx(5.033, abs=5e-4)
        assert found["basis"] == "span of all 16 ranks"
        assert (found["count"], found["participants"], found["ranks"]) == (1, 16, 16)
        assert (found["communicator"], found["bytes"]) == (NAME, 256 * MIB)
        assert found["evidence"] == "measured"

    def test_waiting_and_skew_as_worked_out_by_hand(self, b: Builder) -> None:
        b.kernel("all_reduce", 100, 180, 0)
        b.kernel("all_reduce", 130, 182, 1)
        found = one(b.trace())
        assert found["duration_p50_ns"] == found["duration_max_ns"] == 82
        assert (found["skew_ns"], found["transfer_ns"]) == (30, 52)
        assert (found["straggler_device"], found["straggler_share"]) == (1, 1.0)
        assert found["basis"] == "span of 2 participants, taken as all ranks"

    def test_waiting_is_the_median_of_participants(self, b: Builder) -> None:
        for device, (start, end) in enumerate(((100, 180), (130, 182), (110, 182))):
            b.kernel("all_reduce", start, end, device)
        assert one(b.trace())["wait_ns"] == 20  # of 28, 0 and 20

    def test_one_participant_says_so(self, b: Builder) -> None:
        b.init(0, 4)
        b.collective("ncclAllReduce", "all_reduce", 10, 110, 1000)
        found = one(b.trace())
        assert found["basis"] == "one participant's kernel time, waiting included"
        assert found["algorithm_bandwidth_gb_s"] == 10.0
        assert found["bus_bandwidth_gb_s"] == 15.0
        for name in ("transfer_ns", "wait_ns", "skew_ns", "straggler_device", "straggler_share"):
            assert found[name] is None

    def test_a_run_of_one_gpu_does_not_tell_how_many_ranks_there_are(self, b: Builder) -> None:
        b.kernel("all_reduce", 10, 110)
        found = collectives(b.trace(), sizes={"all_reduce": 1000}).rows.row(0, named=True)
        assert (found["algorithm_bandwidth_gb_s"], found["bus_bandwidth_gb_s"]) == (10.0, None)

    def test_some_ranks_of_more(self, b: Builder) -> None:
        for rank in range(2):
            b.init(rank, 8)
            b.collective("ncclAllReduce", "all_reduce", 10, 110, 1000, rank)
        found = one(b.trace())
        assert found["basis"] == "span of 2 of 8 ranks"
        assert found["bus_bandwidth_gb_s"] == 10 * 2 * 7 / 8

    def test_a_number_of_ranks_is_not_taken_from_a_part_of_the_run(self, b: Builder) -> None:
        for process in range(2):
            b.kernel("all_reduce", 10 + 20 * process, 110, process)
        b.kernel("all_gather", 10, 110, 2)
        found = collectives(b.trace(), sizes={"all_reduce": 1000}).rows
        reduced = found.filter(pl.col("collective") == "all_reduce").row(0, named=True)
        assert reduced["basis"] == "span of 2 participants of an unknown number"
        assert (reduced["algorithm_bandwidth_gb_s"], reduced["bus_bandwidth_gb_s"]) == (10.0, None)
        assert (reduced["bytes_source"], reduced["evidence"]) == ("user", "modelled")

    def test_unmatched_ones_at_the_edges_do_not_change_times(self, b: Builder) -> None:
        b.kernel("all_reduce", 10, 5000, 0)
        for at in (10_000, 20_000):
            b.kernel("all_reduce", at, at + 100, 0)
            b.kernel("all_reduce", at + 20, at + 100, 1)
        found = one(b.trace())
        assert (found["count"], found["duration_max_ns"], found["participants"]) == (3, 100, 2)

    def test_the_straggler_is_the_one_that_most_often_starts_last_alone(self, b: Builder) -> None:
        for turn, late in enumerate(((1,), (2,), (1,), (0, 2), (0, 2))):
            for process in range(3):
                at = 1000 * turn + 100 + 50 * (process in late)
                b.kernel("all_reduce", at, 1000 * turn + 400, process)
        found = one(b.trace())
        assert (found["straggler_device"], found["straggler_share"]) == (1, 0.4)

    def test_sizes_are_rows_of_their_own(self, b: Builder) -> None:
        for at, size in ((10, 100), (60, 200), (110, 100), (160, None)):
            b.collective("ncclAllReduce", "all_reduce", at, at + 20, size)
        found = collectives(b.trace(), by="collective,bytes").rows.select("bytes", "count").rows()
        assert found == [(100, 2), (200, 1), (None, 1)]

    def test_many_sizes_are_classes(self, b: Builder) -> None:
        for turn in range(20):
            b.collective(
                "ncclAllReduce", "all_reduce", 100 * turn + 10, 100 * turn + 30, 1000 + 2 * turn
            )
        found = collectives(b.trace()).rows.select("bytes", "count").rows()
        assert found == [(1012, 12), (1032, 8)]  # to 1023, and from 1024 on

    @pytest.mark.parametrize("by", ["stage", "iteration", "library", ("collective", "stage")])
    def test_other_keys(self, by: Any, b: Builder) -> None:
        b.kernel("all_reduce", 10, 30, stage="WU", iteration=3)
        b.kernel("all_reduce", 40, 60, stage="WU", iteration=3)
        found = one(b.trace(), by=by)
        assert found["count"] == 2
        assert found.get("stage", "WU") == "WU"
        assert found.get("iteration", 3) == 3

    @pytest.mark.parametrize("by", ["kernel", "", ()])
    def test_unknown_keys_are_refused(self, by: Any) -> None:
        with pytest.raises(UsageError):
            collectives(Builder().trace(), by=by)

    def test_hosts_with_clocks_of_their_own(self, b: Builder) -> None:
        text = {"commHash": NAME, "count": 1000, "dataType": "int8", "seqNumber": 4}
        for rank, (at, length) in enumerate(((100, 50), (9000, 20))):
            b.init(rank, 2)
            b.nccl(at - 4, "AllReduce", json.dumps(text), 10 * rank)
            b.kernel("all_reduce", at, at + length, rank, report=rank)
        b.rows["reports"] = [
            {"report": n, "file": "f", "format": "x", "size": 1, "host": f"h{n}",
             "session_start": 5 + n}
            for n in range(2)
        ]  # fmt: skip
        found = one(b.trace())
        assert found["basis"] == "longest of 2 participants' own times; their clocks differ"
        assert (found["duration_p50_ns"], found["transfer_ns"]) == (50, 20)
        assert (found["skew_ns"], found["straggler_device"]) == (None, None)

    @pytest.mark.parametrize("made", [True, False])
    def test_a_broadcast_that_spans_clocks_is_one_without_skew(
        self, b: Builder, *, made: bool
    ) -> None:
        """The n-th of a communicator that was made while recorded is the n-th on any clock."""
        for rank, first in enumerate((100, 70_000)):
            if made:
                b.init(rank, 2)
            for start in (first, first + 500):
                b.collective("ncclBroadcast", "broadcast", start, start + 60, 64, rank, Root=0)
        b.rows["ops"] = [row | {"report": row["process"]} for row in b.rows["ops"]]
        b.rows["reports"] = [
            {"report": n, "file": "f", "format": "x", "size": 1, "host": f"h{n}"} for n in range(2)
        ]
        found = one(b.trace())
        assert found["count"] == (2 if made else 4)
        assert (found["participants"], found["skew_ns"]) == (2 if made else 1, None)

    def test_a_collective_is_what_the_participant_knows_that_knows_most(self) -> None:
        assert COLLECTIVES.index("all_to_all") < COLLECTIVES.index("send_recv")
        b = Builder()
        b.range(0, 100, "nccl:all_to_all")
        b.kernel("send_recv", 10, 90, 0)
        b.kernel("send_recv", 12, 90, 1, at=None)
        assert rows(b.attributed(), "collective", "match") == [("all_to_all", 0), ("send_recv", 0)]
        assert one(b.attributed())["collective"] == "all_to_all"


def test_what_is_missing_is_said(b: Builder) -> None:
    b.collective("ncclAllReduce", "all_reduce", 10, 50, 100)
    meta = collectives(b.trace()).meta
    assert meta["sized"] == {"payload": 1}
    (missing,) = meta["missing"]
    assert missing.startswith("of all collectives one participant is known, whose time includes")
    bare = Builder()
    bare.kernel("all_reduce", 10, 50)
    assert "no NVTX ranges of NCCL" in collectives(bare.trace()).meta["missing"][0]
    bare.nccl(0, "ncclAllReduce", None, 0)
    assert "--include-blobs=true" in collectives(bare.trace()).meta["missing"][0]
    b.kernel("all_reduce", 100, 110)
    assert "1 of 2 collective kernels" in collectives(b.trace()).meta["missing"][0]
    answer = collectives(b.trace())
    table, both = answer.rows, answer.meta
    assert table.equals(collectives(b.trace()).rows)
    assert both == collectives(b.trace()).meta


def test_classes_of_sizes_beyond_32_bits() -> None:
    """Of more than 16 sizes each counts in the power of two below it, however large."""
    sizes = [1 << power | 1 for power in range(20, 40)]
    each = pl.DataFrame(
        {"library": "nccl", "collective": "all_reduce", "communicator": None, "bytes": sizes}
    )
    assert _with_classes(each)["class"].to_list() == [1 << power for power in range(20, 40)]


def test_the_power_below_a_size() -> None:
    sizes = [0, 1, 2, 3, 4, 1023, 1 << 62, None]
    frame = pl.DataFrame({"size": sizes}, schema={"size": pl.Int64})
    found = frame.select(power_below(pl.col("size"))).to_series().to_list()
    assert found == [0, 1, 2, 2, 4, 512, 1 << 62, None]


class TestProcesses:
    """Collectives by the rank or node of the processes that take part."""

    def _trace(self) -> Trace:
        builder = Builder()
        for rank in range(3):
            builder.init(rank, 3)
        for begin, starts in ((100, (0, 10, 40)), (300, (30, 0, 0))):
            for rank, start in enumerate(starts):
                builder.collective(
                    "ncclAllReduce", "all_reduce", begin + start, begin + 60, 8 * MIB, rank
                )
        trace = builder.trace()
        reports = pl.DataFrame(
            {"report": [0, 1], "file": "f", "format": "nsys SQLite", "size": 1,
             "host": ["n1", "n2"], "clock": "one"}
        )  # fmt: skip
        moved = pl.when(pl.col("process") == 2).then(1).otherwise(0).cast(pl.Int32)
        tables = {
            name: trace.read(name).with_columns(report=moved)
            for name in ("processes", "ops", "ranges", "calls", "threads")
        }
        return trace.with_tables({**tables, "reports": reports})

    def test_each_rank_has_its_own_waiting(self) -> None:
        found = collectives(self._trace(), by="collective,rank").rows
        columns = ("rank", "count", "participants", "duration_max_ns", "wait_ns", "bytes")
        # They wait 40, 30, 0 ns in the first one, and 0, 30, 30 ns in the second one.
        assert found.select(columns).rows() == [
            (0, 2, 3, 60, 40, 8 * MIB), (1, 2, 3, 60, 30, 8 * MIB), (2, 2, 3, 60, 30, 8 * MIB),
        ]  # fmt: skip

    def test_a_collective_counts_once_for_a_node(self) -> None:
        found = collectives(self._trace(), by="node").rows
        assert found.select("node", "count", "participants").rows() == [
            ("n1", 2, 3), ("n2", 2, 3),
        ]  # fmt: skip

    def test_other_keys_are_as_before(self) -> None:
        trace = self._trace()
        whole = collectives(trace, by="collective").rows.drop("straggler_device", "straggler_rank")
        one_rank = collectives(trace, by="collective,rank").rows.filter(rank=1)
        same = [name for name in whole.columns if name != "wait_ns"]
        assert one_rank.select(same).rows() == whole.select(same).rows()


@pytest.mark.parametrize(
    ("late", "told"),
    [([(None, 0), (3, 1), (3, 1)], [(3, 1, 2 / 3)]), ([(None, 0), (3, 1)], []),
     ([(2, 2), (4, 4), (3, 3)], [])],
)  # fmt: skip
def test_of_several_that_are_late_as_often_none_is_the_straggler(
    late: list[tuple[int | None, int]], told: list[tuple[int, int, float]]
) -> None:
    each = pl.DataFrame(late, schema=["late_device", "late_rank"], orient="row").with_columns(
        operation=pl.lit("all_reduce"), participants=2, common=True
    )
    found = _stragglers(each, ["operation"])
    assert found.select("straggler_device", "straggler_rank", "straggler_share").rows() == told


@pytest.mark.parametrize("kind", ["rocprofv3 JSON", "rocprofv3 SQLite", "RPD SQLite"])
def test_sizes_that_a_recorder_has_not_are_not_to_be_traced_by_options_of_nsys(kind: str) -> None:
    report = {"report": 0, "file": "a", "size": 1, "format": kind}
    reports = TABLES["reports"].conform(pl.DataFrame([report]))
    why = why_unsized(TraceBuilder().trace().with_tables({"reports": reports}))
    assert "records no sizes" in why


def test_of_a_pytorch_that_records_sizes_it_is_not_said_that_it_records_none() -> None:
    """It was said of 5 calls before the recording began, where the sizes of 12 are known."""
    report = {"report": 0, "file": "a", "size": 1, "format": "PyTorch Kineto JSON"}
    reports = TABLES["reports"].conform(pl.DataFrame([report]))
    b = TraceBuilder()
    assert "none is with the calls" in why_unsized(b.trace().with_tables({"reports": reports}))
    b.range(0, 9, "ncclAllReduce", domain="NCCL", payload='{"Message size [bytes]": 4}')
    why = why_unsized(b.trace().with_tables({"reports": reports}))
    assert why == "their calls (perhaps before recording began) or number of ranks are not known"
