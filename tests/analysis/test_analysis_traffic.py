"""All that a run moved: copies, messages and collectives together, each byte once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from link_helpers import HERE, machine, on_clocks
from trace_builder import TraceBuilder

from tracekit.analysis.communication import Traffic, collective_calls, collectives
from tracekit.machine import Placed, load_preset, read_nccl_log
from tracekit.model import REPORTS, TABLES

RANKS = 2


class Exchange(TraceBuilder):
    """Process n is rank n, on device n."""

    def __init__(self) -> None:
        super().__init__()
        for rank in range(RANKS):
            self._call(rank, -100, "ncclCommInitRank", {"No. of ranks": RANKS, "Rank": rank})

    def _call(
        self, rank: int, at: int, name: str, more: dict[str, Any] | None, last: int = 4
    ) -> None:
        text = None if more is None else json.dumps({"NCCL communicator ID": 1} | more)
        self.range(at, at + last, name, thread=10 * rank, domain="NCCL", payload=text)

    def all_to_all(self, rank: int, size: int) -> None:
        """As PyTorch does it: each rank sends a part to each, itself too."""
        self.range(0, 100, "nccl:all_to_all", thread=10 * rank)
        self._call(rank, 2, "ncclGroupStart", None, last=1)
        for peer in range(RANKS):
            for turn, name in enumerate(("ncclSend", "ncclRecv")):
                told = {"Message size [bytes]": size, "Peer rank": peer}
                self._call(rank, 4 + 4 * peer + 2 * turn, name, told, last=1)
        self._call(rank, 22, "ncclGroupEnd", None, last=30)
        self.op(
            "ncclDevKernel_SendRecv(args)", 27, thread=10 * rank, start=29, end=62, device=rank,
            kind="collective", collective="send_recv", short_name="ncclDevKernel_SendRecv",
        )  # fmt: skip


@pytest.fixture
def traffic() -> Traffic:
    b = Exchange()
    for rank in range(RANKS):
        b.all_to_all(rank, 50)
    return Traffic(b.attributed(), Placed(machine(), HERE, "number"))


def test_what_was_recorded_is_not_modelled_too(traffic: Traffic) -> None:
    assert traffic.calls.select("collective", "bytes").rows() == [("all_to_all", 100)] * RANKS
    columns = ("src_device", "dst_device", "bytes", "evidence", "source")
    assert sorted(traffic.transfers.select(columns).rows()) == [
        (0, 1, 50, "measured", "payload"), (1, 0, 50, "measured", "payload"),
    ]  # fmt: skip


def test_what_stays_on_a_gpu_crosses_nothing(traffic: Traffic) -> None:
    pairs = traffic.links("pair")
    assert pairs.select("src_device", "dst_device", "bytes").rows() == [(0, 1, 50), (1, 0, 50)]


def test_a_model_is_held_against_counters(b: TraceBuilder) -> None:
    """A ring of two sends 800 bytes each way; 10 % of 50 and of 75 GB/s for 200 ns are 2,500.

    Of these 1,500 are of GPU 1, which has three NVLinks.
    """
    for rank in range(RANKS):
        b.op("ncclDevKernel_AllReduce_Sum", 10, thread=10 * rank, start=100 + 20 * rank, end=200,
             device=rank, kind="collective", collective="all_reduce")  # fmt: skip
    samples = [
        {"report": 0, "device": device, "unit": "percent", "recorded_name": "x",
         "metric": "nvlink_tx", "time": time, "value": 10.0}
        for device in range(RANKS) for time in (50, 250)
    ]  # fmt: skip
    trace = b.attributed().with_tables({"metrics": pl.DataFrame(samples)})
    found = Traffic(trace, Placed(machine(), HERE, "number"), sizes={"all_reduce": 800})
    assert (
        "modelled traffic compared with nvlink_tx of 2 GPUs: 1,600 bytes are attributed, 1,600 of"
        " them by a model, and 2,500 were counted (-36.0 %), most on GPU 1: -46.7 %; samples cover"
        " 100.0 % of the time"
    ) in found.meta()["warnings"]


def test_a_size_without_ranks_gives_a_hint(b: TraceBuilder) -> None:
    """One rank of a job was recorded: without the number of ranks nothing is on a link."""
    b.op("ncclDevKernel_AllReduce_Sum", 10, start=100, end=200, kind="collective",
         collective="all_reduce")  # fmt: skip
    here = Placed(machine(), HERE, "number")
    hint = (
        "1 collective kernels of the size that was given are on no link, since it is not known how "
        "many ranks take part: give --ranks too"
    )
    alone = Traffic(b.attributed(), here, sizes={"all_reduce": 800})
    assert alone.meta()["warnings"] == [hint]
    assert alone.meta()["collectives_on_no_link"] == 1
    told = Traffic(b.attributed(), here, sizes={"all_reduce": 800}, ranks=4)
    assert told.transfers.height
    assert told.meta()["warnings"] == []
    assert told.meta()["collectives_on_no_link"] == 0


def test_reports_on_other_clocks_are_not_on_the_timeline(b: TraceBuilder) -> None:
    for report in range(3):
        b.op("copy", 10 + report, start=100, end=200, kind="p2p", bytes=8, src_device=0,
             dst_device=1, report=report)  # fmt: skip
    reports = on_clocks("host a", "host a", "report 2")
    trace = b.attributed().with_tables({"reports": reports})
    traffic = Traffic(trace, Placed(machine(), HERE, "number"))
    assert traffic.timeline_note() == "1 of 3 reports are left out: their clocks are not aligned"
    one = trace.with_tables({"reports": on_clocks("host a", "host a", "host a")})
    assert Traffic(one, Placed(machine(), HERE, "number")).timeline_note() is None


@pytest.mark.parametrize(
    ("op", "options", "why"),
    [
        ({"kind": "p2p", "bytes": 10**6, "src_device": 0, "dst_device": 1}, {},
         "is not that of this machine"),
        ({"kind": "collective", "collective": "all_reduce"}, {"sizes": {"all_reduce": 10**9}},
         "the model, the sizes or the peak are wrong"),
    ],
)  # fmt: skip
def test_of_links_that_would_be_fuller_than_full_it_is_said_what_may_be_wrong(
    op: dict[str, Any], options: dict[str, Any], why: str, b: TraceBuilder
) -> None:
    for rank in range(RANKS):
        b.op("ncclDevKernel_AllReduce_Sum", 10, thread=10 * rank, start=100 + 20 * rank, end=200,
             device=rank, **op)  # fmt: skip
    found = Traffic(b.attributed(), Placed(machine(), HERE, "number"), **options)
    [said] = [text for text in found.meta()["warnings"] if "fuller than full" in text]
    assert why in said


EIGHT = {gpu: gpu for gpu in range(8)}
RING_LL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
SHOT = "ncclSymkDevKernel_AllReduce_AGxLL_R_sum_f32"


class H100Job(TraceBuilder):
    """Eight processes, each with a GPU at one NVSwitch, which all reduce 800 and 8,000 bytes."""

    def __init__(self, kernel: str = RING_LL, seen: int = 8) -> None:
        super().__init__()
        for rank in range(seen):
            self._call(rank, -100, "ncclCommInitRank", {"No. of ranks": 8, "Rank": rank})
            for turn, size in enumerate((800, 8_000)):
                at = 1_000 * turn
                self._call(rank, at, "ncclAllReduce", {"Message size [bytes]": size})
                self.op(kernel, at + 2, thread=10 * rank, start=at + 100, end=at + 200, device=rank,
                        kind="collective", collective="all_reduce", short_name=kernel)  # fmt: skip

    def _call(self, rank: int, at: int, name: str, more: dict[str, Any]) -> None:
        text = json.dumps({"NCCL communicator ID": 1} | more)
        self.range(at, at + 4, name, thread=10 * rank, domain="NCCL", payload=text)

    def traffic(self, preset: str = "dgx-h100") -> Traffic:
        return Traffic(self.attributed(), Placed(load_preset(preset), EIGHT, "number"))


def sums(table: pl.DataFrame, *keys: str) -> list[tuple[Any, ...]]:
    names = ("evidence", "transfers", "bytes", "least_bytes", "most_bytes")
    return table.select(*keys, *(name for name in names if name in table.columns)).rows()


def test_bounds_where_a_ring_or_nvls_may_have_run() -> None:
    """Of 8,800 bytes 2 x 7 / 8 leave and reach each GPU along a ring, 9 / 8 by NVLS."""
    traffic = H100Job().traffic()
    by_link = traffic.links("link")
    assert sums(by_link) == [("modelled between", 2, None, 9_900, 15_400)] * 16
    assert set(by_link["src"]) == {*(f"GPU{gpu}" for gpu in range(8)), "NVSwitch0"}
    assert set(by_link["busy_ns"]) == {200}
    assert by_link["utilisation"].null_count() == 16
    assert by_link["least_utilisation"][0] == pytest.approx(9_900 / 200 / 450)
    assert by_link["most_utilisation"][0] == pytest.approx(15_400 / 200 / 450)
    # Between neighbours goes half of a ring, or nothing that is of these two alone.
    by_pair = traffic.links("pair")
    assert sums(by_pair) == [("modelled between", 2, None, 0, 7_700)] * 16
    assert by_pair["busy_ns"].null_count() == 16
    assert sums(traffic.links("method"), "method") == [
        ("nccl", "modelled between", 2, None, 79_200, 123_200)
    ]
    [said] = [text for text in traffic.meta()["warnings"] if "which of these is unknown" in text]
    assert said.startswith("2 NCCL collectives ran ring or nvls, which of these is unknown")
    assert traffic.timeline().is_empty()
    assert "on no timeline" in str(traffic.timeline_note())


def test_shares_of_the_bound_need_all_ranks() -> None:
    """9 / 8 of 800 and of 8,000 bytes at 450 bytes per ns, of transfers of 100 ns."""
    traffic = H100Job().traffic()
    rows = collectives(traffic.trace, sent=traffic.sent()).rows.sort("bytes")
    assert rows["bound_ns"].to_list() == [2, 20]
    assert rows["bound_share"].to_list() == [0.02, 0.2]
    traffic = H100Job(seen=7).traffic()
    rows = collectives(traffic.trace, sent=traffic.sent()).rows
    assert rows["transfer_ns"].to_list() == [100, 100]
    assert rows["bound_share"].null_count() == 2


def test_bounds_of_each_rank() -> None:
    trace = H100Job().attributed()
    reports = pl.DataFrame({"report": [0], "host": ["h"]})
    placed = Placed(load_preset("dgx-h100"), EIGHT, "number")
    known = trace.with_tables({"reports": REPORTS.conform(
        reports.with_columns(file=pl.lit(""), format=pl.lit(""), size=0))})  # fmt: skip
    table = Traffic(known, placed).links("rank")
    assert sums(table, "rank") == [
        (rank, "modelled between", 2, None, 9_900, 15_400) for rank in range(8)
    ]


@pytest.mark.parametrize(
    ("kernel", "preset", "each"),
    [
        (RING_LL, "hgx-a100-8", 15_400),  # before Hopper no switch reduces
        (SHOT, "dgx-h100", 7 * 8_800),  # all that each has goes to each other one
        ("ncclSymDevKernel_AllReduce_RSxLDMC_AGxSTMC_sum_f32", "dgx-h100", 9_900),
        ("ncclSymkDevKernel_AllReduce_RSxLD_AGxST_sum_bf16", "dgx-h100", 15_400),
    ],
)
def test_one_number_where_only_one_algorithm_may_have_run(
    kernel: str, preset: str, each: int
) -> None:
    table = H100Job(kernel).traffic(preset).links("link")
    assert "least_bytes" not in table.columns
    assert set(table["evidence"]) == {"modelled"}
    assert table["bytes"].to_list() == [each] * 16


def test_a_symmetric_kernel_that_is_not_known_is_on_no_link() -> None:
    """It runs neither a ring nor NVLS."""
    traffic = H100Job("ncclSymkDevKernel_AllReduce_NewShot_sum_f32").traffic()
    assert traffic.transfers.is_empty()
    assert traffic.meta()["collectives_on_no_link"] == 16
    [said] = traffic.meta()["warnings"]
    assert said.startswith("16 collective kernels ran symmetric, whose traffic is not modelled")


def test_a_log_tells_which_algorithm_ran(tmp_path: Path) -> None:
    """One number for each size: NVLS for 8,000 bytes, a ring for 800."""
    init = (
        "h:{pid}:{pid} [0] NCCL INFO ncclCommInitRank comm 0x{pid} rank {rank} nranks 8 cudaDev 0 "
        "nvmlDev {rank} busId {rank}000 commId 0x1 - Init COMPLETE"
    )
    lines = [init.format(pid=100 + rank, rank=rank) for rank in range(8)]
    lines += [
        f"h:100:100 [0] NCCL INFO AllReduce: {size} Bytes -> Algo {name} proto SIMPLE"
        for size, name in ((800, "RING"), (8_000, "NVLS"))
    ]
    path = tmp_path / "nccl.log"
    path.write_text("\n".join(["NCCL version 2.27.3+cuda12.9", *lines]))
    trace, placed = H100Job().attributed(), Placed(load_preset("dgx-h100"), EIGHT, "number")
    traffic = Traffic(trace, placed, read_nccl_log(path))
    assert sums(traffic.links("link")) == [("modelled", 3, 9_000 + 1_400)] * 16
    assert sums(traffic.links("pair")) == [("modelled", 1, 700)] * 16


def test_gpus_that_the_machine_numbers_otherwise_are_told() -> None:
    """Links name them as the machine does: GPU 0 of the run is the machine's GPU1."""
    devices = [{"device": each, "report": 0, "active": True, "identity": "assumed"}
               for each in (0, 2)]  # fmt: skip
    devices = {"devices": TABLES["devices"].conform(pl.DataFrame(devices))}
    trace, machine = H100Job().attributed().with_tables(devices), load_preset("dgx-h100")
    place = EIGHT | {0: 1, 1: 0}
    told = Traffic(trace, Placed(machine, place, "pci_bus")).meta()["warnings"]
    assert "links name GPUs as the machine numbers them: GPU 0 is GPU1" in told


def test_what_training_exchanges_between_bounds() -> None:
    job = H100Job()
    for rank in range(8):
        job.iteration(0, 0, 500, thread=10 * rank)
        job.iteration(1, 900, 1_500, thread=10 * rank)
    ops = job.trace().read("ops")
    stage = pl.lit("WU").cast(ops.schema["stage"])
    ops = ops.with_columns(stage=stage, iteration=pl.col("start") // 1_000)
    trace = job.trace().with_tables({"ops": ops})
    traffic = Traffic(trace, Placed(load_preset("dgx-h100"), EIGHT, "number"))
    found = traffic.expected(1_100)
    assert found["expected_bytes"] == 2 * 7 * 4_400
    assert (found["observed_bytes"], found["ratio"]) == (None, None)
    assert (found["least_bytes"], found["most_bytes"]) == (39_600, 61_600)
    assert (found["unsized"], found["evidence"]) == (0, "modelled")


def test_what_each_gpu_sends_is_with_the_collectives() -> None:
    """Nothing more is said where only a ring can have run and nothing is told."""
    job = H100Job()
    traffic = job.traffic()
    columns = ("bytes", "algorithm", "least_gpu_bytes", "most_gpu_bytes")
    rows = collectives(traffic.trace, sent=traffic.sent()).rows
    assert rows.select(columns).rows() == [
        (800, "ring or nvls", 900, 1_400), (8_000, "ring or nvls", 9_000, 14_000)
    ]  # fmt: skip
    shot = H100Job(SHOT).traffic()
    rows = collectives(shot.trace, sent=shot.sent()).rows
    assert rows.select(columns).rows() == [
        (800, "one_shot", 5_600, 5_600), (8_000, "one_shot", 56_000, 56_000)
    ]  # fmt: skip
    older = job.traffic("hgx-a100-8")
    assert "algorithm" not in collectives(older.trace, sent=older.sent()).rows.columns


NAMES = [
    (RING_LL, "nccl", None),
    ("ncclDevKernel_AllReduce_Sum_f32_TREE_LL", "nccl", None),
    ("ncclKernel_AllReduce_NVLS_LL_Sum_float", "nccl", None),
    ("ncclDevKernel_Generic_1", "nccl", None),
    (SHOT, "nccl", "one_shot"),
    ("ncclSymkDevKernel_AllReduce_AGxLLMC_R_sum_f32", "nccl", "multicast_one_shot"),
    ("ncclSymDevKernel_AllGather_STMC", "nccl", "nvls"),
    ("ncclSymkDevKernel_AllGather_LL_profile", "nccl", "direct"),
    ("ncclSymkDevKernel_ReduceScatter_LDMC_avg_bf16", "nccl", "nvls"),
    ("ncclSymkDevKernel_ReduceScatter_RailA2A_LsaLD_sum_f32", "nccl", "symmetric"),
    ("cross_device_reduce_1stage", "vllm", "one_shot"),
    ("void vllm::cross_device_reduce_2stage<half, 8>(RankData*)", "vllm", "two_shot"),
    ("allreduce_fusion_kernel_oneshot_lamport", "tensorrt_llm", "one_shot"),
    ("allreduce_fusion_kernel_twoshot_sync", "tensorrt_llm", "two_shot"),
    ("oneShotAllReduceKernel", "tensorrt_llm", "one_shot"),
    ("one_shot_all_reduce_kernel", "pytorch", "one_shot"),
    ("two_shot_all_reduce_kernel_inplace", "pytorch", "two_shot"),
    ("two_shot_all_reduce_kernel", "pytorch", None),
    ("multimem_one_shot_all_reduce_kernel", "pytorch", "reduced_one_shot"),
    ("multimem_all_reduce_kernel", "pytorch", "nvls"),
    ("mscclKernel_Sum_float", "msccl", None),
    ("nvshmemi_transfer_kernel", "nvshmem", None),
    ("deep_ep::internode::dispatch", "deep_ep", None),
    ("dpsk::ep::internode::combine", "deep_ep", None),
    ("hybrid_ep::dispatch_kernel", "hybrid_ep", None),
    ("EpDispatchIntraNodeKernel_bf16", "mori", None),
    ("moeA2ACombineKernel", "tensorrt_llm", None),
    ("twoshot_all_reduce_of_mine", "other", None),
]
"""Kernels, their libraries, and the algorithms of those that are made for one."""


def test_kernels_by_their_names(b: TraceBuilder) -> None:
    """General kernels of NCCL say neither algorithm nor protocol; those made for one say it."""
    for number, (kernel, _, _) in enumerate(NAMES):
        b.op(kernel, 10 + 20 * number, kind="collective", collective="all_reduce",
             short_name=kernel)  # fmt: skip
    columns = ("name", "library", "algorithm", "protocol")
    found = collective_calls(b.attributed()).select(columns)
    assert found.rows() == [(*row, None) for row in NAMES]


EXPERTS = (
    ("dispatch", "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*)", 10),
    ("combine", "void dpsk::ep::internode::combine<8>(int4*)", 20),
    ("wait", "void deep_ep::intranode::notify_dispatch<8>(int const*)", 300),
    ("wait", "void deep_ep::legacy::intranode::cached_notify_combine<2>(void**, int*)", 40),
    ("wait", "void hybrid_ep::device_sync_kernel(int*)", 5),
    ("dispatch", "moeA2ADispatchKernel", 7),
    (None, "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", 1000),
)
"""What kernels of experts do, their names, and how long each runs here."""


def test_experts_wait_apart_from_what_they_move(b: TraceBuilder) -> None:
    """Short names, which lack the namespace, do not say it."""
    for number, (_, kernel, length) in enumerate(EXPERTS):
        at = 2000 * number
        short = kernel.partition("<")[0].rpartition("::")[2]
        b.op(kernel, at, start=at + 9, end=at + 9 + length, kind="collective",
             collective="all_to_all", short_name=short)  # fmt: skip
    rows = collectives(b.attributed(), by="part").rows.select("part", "count", "time_ns").rows()
    assert rows == [("combine", 1, 20), ("dispatch", 2, 17), ("wait", 3, 345), (None, 1, 1000)]


def test_collectives_that_do_not_say_which(b: TraceBuilder) -> None:
    """RCCL's kernel for all of them: neither operation nor bytes, and nothing on a link."""
    for rank in range(8):
        b.op("ncclDevKernel_Generic_1", 10, thread=10 * rank, device=rank, kind="collective",
             collective="unknown", short_name="ncclDevKernel_Generic_1")  # fmt: skip
    traffic = Traffic(
        b.attributed(), Placed(load_preset("dgx-h100"), EIGHT, "number"),
        sizes={"all_reduce": 800}, ranks=8,
    )  # fmt: skip
    assert set(traffic.calls["collective"]) == {"unknown"}
    assert traffic.calls["bytes"].null_count() == 8
    assert traffic.transfers.is_empty()
    [row] = collectives(traffic.trace, sent=traffic.sent()).rows.to_dicts()
    assert (row["collective"], row["bytes"], row["bus_bandwidth_gb_s"]) == ("unknown", None, None)
    [said] = traffic.meta()["warnings"]
    assert said.startswith("8 of 8 collective kernels are of unknown size")


def test_kernels_of_other_libraries_are_not_counted_as_those_of_nccl(b: TraceBuilder) -> None:
    for n in range(3):
        b.op("cross_device_reduce_1stage", 10 + 100 * n, kind="collective", device=0,
             collective="all_reduce", short_name="cross_device_reduce_1stage")  # fmt: skip
    placed = Placed(load_preset("dgx-h100"), EIGHT, "number")
    traffic = Traffic(b.attributed(), placed)
    assert (traffic.meta()["collectives"], traffic.meta()["collectives_of_unknown_size"]) == (0, 0)
    text = (
        "3 collective kernels of vllm are of unknown size, which it does not record: give --bytes"
    )
    assert traffic.meta()["warnings"] == [text]
    found = collectives(traffic.trace)
    assert found.rows["library"].to_list() == ["vllm"]
    assert text in found.meta["missing"]
    sized = Traffic(b.attributed(), placed, sizes={"all_reduce": 800}, ranks=8)
    assert sums(sized.links("method"), "method") == [
        ("collective", "modelled", 3 * 56, 3 * 56 * 800)
    ]
