"""What collectives put on links: literal calls on literal machines, and logs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from trace_builder import TraceBuilder

from tracekit.analysis.calls import find_collectives
from tracekit.analysis.traffic._collective_transfers import (
    Modelled,
    Ranks,
    link_bounds,
    message_transfers,
    rank_devices,
    unmodelled,
)
from tracekit.errors import UsageError
from tracekit.machine import NcclLog, load_preset, read_nccl_log
from tracekit.machine._choose import side_by_side
from tracekit.model import COLLECTIVE_CALLS, DEVICES
from tracekit.model._tables import PROCESSES

EIGHT = {gpu: gpu for gpu in range(8)}
NO_DEVICES = pl.DataFrame(schema={"communicator": pl.String, "rank": pl.Int32, "device": pl.Int32})


def call(device: int, **row: Any) -> dict[str, Any]:
    return {
        "report": 0, "process": device, "device": device, "op": device, "library": "nccl",
        "collective": "all_reduce", "start": 100 + device, "end": 200, "bytes": 800, "match": 0,
        "stage": "WU",
    } | row  # fmt: skip


def calls(*rows: dict[str, Any]) -> pl.DataFrame:
    if not rows:
        return COLLECTIVE_CALLS.empty()
    return COLLECTIVE_CALLS.conform(pl.DataFrame(rows, infer_schema_length=None))


def ranks(**options: Any) -> Ranks:
    known = {"machine": load_preset("dgx1v"), "place": EIGHT, "devices": NO_DEVICES}
    return Ranks(**(known | options))


def modelled_transfers(some: pl.DataFrame, known: Ranks) -> pl.DataFrame:
    return Modelled(some, known).transfers()


def edges(transfers: pl.DataFrame) -> dict[tuple[int | None, int | None], int]:
    return {
        (src, dst): size
        for src, dst, size in transfers.select("src_device", "dst_device", "bytes").rows()
    }


def test_all_reduce_on_a_dgx1() -> None:
    """The double ring carries two thirds, the single ring one, half in each direction."""
    found = modelled_transfers(calls(*(call(d, bytes=4_800) for d in range(8))), ranks())
    sent = edges(found)
    each = 2 * 7 * 4800 // 8
    assert sent[0, 3] == sent[3, 0] == each // 3
    assert sent[0, 1] == sent[1, 0] == each // 6
    assert len(sent) == 32
    for gpu in range(8):
        assert sum(size for (src, _), size in sent.items() if src == gpu) == each
    assert set(found["evidence"]) == {"modelled"}
    assert set(found["source"]) == {"topology"}
    assert set(found["method"]) == {"nccl"}
    # An edge is busy while the GPU runs its kernel that sends.
    assert found.filter(src_device=3)["start"].unique().to_list() == [103]


def test_an_edge_is_of_the_process_at_its_source() -> None:
    """With its report, stage and iteration: ranks of a run may be in reports of their own."""
    rows = calls(
        *(
            call(
                d,
                process=d // 2,
                report=d // 4,
                iteration=d,
                bytes=4_800,
                stage="BP" if d else "WU",
            )
            for d in range(8)
        )
    )
    found = modelled_transfers(rows, ranks())
    columns = ("src_device", "process", "report", "iteration", "stage")
    assert found.select(columns).unique().sort("src_device").rows() == [
        (d, d // 2, d // 4, d, "BP" if d else "WU") for d in range(8)
    ]
    by_process = found.group_by("process").agg(pl.sum("bytes"))
    assert set(by_process["bytes"]) == {2 * 2 * 7 * 4_800 // 8}


def test_of_a_source_that_took_no_part_the_process_may_be_known() -> None:
    """As the one process that its GPU ran collectives for; else it is unknown, as is its stage."""
    others = [call(3, match=None, ranks=None, bytes=None, process=30), call(4, match=5, process=40)]
    shared = [call(5, match=6, process=50), call(5, match=7, process=51, op=15)]
    rows = calls(call(0, match=None, ranks=8, bytes=4_800, op=99), *others, *shared)
    found = modelled_transfers(rows, ranks()).filter(op=99)
    owner = dict(found.select("src_device", "process").unique().rows())
    assert owner == {0: 0, 3: 30, 4: 40, **dict.fromkeys((1, 2, 5, 6, 7))}


def test_two_of_eight_gpus_are_a_ring_of_both_directions() -> None:
    found = modelled_transfers(calls(call(0, ranks=2), call(3, ranks=2)), ranks())
    assert edges(found) == {(0, 3): 800, (3, 0): 800}


def test_a_broadcast_from_its_root() -> None:
    machine = load_preset("hgx-a100-4")
    place = {gpu: gpu for gpu in range(4)}
    rows = calls(*(call(d, collective="broadcast", root=0, bytes=600) for d in range(4)))
    found = edges(modelled_transfers(rows, ranks(machine=machine, place=place)))
    assert sum(found.values()) == 3 * 600
    assert sum(size for (_, dst), size in found.items() if dst == 0) == 0


def test_one_participant_of_eight_ranks_stands_for_all_gpus_of_the_machine() -> None:
    alone = call(0, match=None, ranks=8, bytes=4_800)
    assert len(edges(modelled_transfers(calls(alone), ranks()))) == 32
    unknown = call(0, match=None, ranks=None)
    assert modelled_transfers(calls(unknown), ranks()).is_empty()
    assert len(edges(modelled_transfers(calls(unknown | {"bytes": 4800}), ranks(size=8)))) == 32
    # Four of the eight GPUs: which ones does not show.
    assert modelled_transfers(calls(call(0, match=None, ranks=4)), ranks()).is_empty()


def test_known_ranks_are_taken_in_their_order() -> None:
    known = pl.DataFrame(
        {"communicator": ["0xa"] * 4, "rank": [0, 1, 2, 3], "device": [4, 5, 6, 7]},
        schema=NO_DEVICES.schema,
    )
    alone = call(4, match=None, ranks=4, communicator="0xa")
    found = modelled_transfers(calls(alone), ranks(devices=known))
    assert {device for edge in edges(found) for device in edge} == {4, 5, 6, 7}


def test_unknown_sizes_and_other_libraries_are_on_no_link() -> None:
    rows = calls(
        call(0, bytes=None), call(1, bytes=None), call(2, library="mpi", op=None, match=1),
        call(3, collective="send_recv", match=2),
    )  # fmt: skip
    assert modelled_transfers(rows, ranks()).is_empty()


def test_several_collectives_and_their_times() -> None:
    rows = calls(
        *(call(d, match=0) for d in (0, 3)),
        *(call(d, match=1, op=10 + d, start=300, end=400, iteration=1, stage="BP") for d in (0, 3)),
    )
    found = modelled_transfers(rows, ranks())
    assert found.select("start", "end", "iteration", "stage").unique().sort("start").rows() == [
        (100, 200, None, "WU"), (103, 200, None, "WU"), (300, 400, 1, "BP"),
    ]  # fmt: skip


def message(direction: str, op: int, peer: int, size: int | None = 1000) -> dict[str, Any]:
    return {
        "report": 0, "process": 0, "direction": direction, "op": op, "peer": peer,
        "communicator": "0xa", "message_bytes": size, "bytes_source": "payload",
    }  # fmt: skip


MESSAGE = {
    "report": pl.Int32, "process": pl.Int32, "direction": pl.String, "op": pl.Int64,
    "peer": pl.Int32, "communicator": pl.String, "message_bytes": pl.Int64,
    "bytes_source": pl.String,
}  # fmt: skip


def test_messages_between_known_ranks() -> None:
    known = pl.DataFrame(
        {"communicator": ["0xa", "0xa", "0xa"], "rank": [0, 1, 2], "device": [2, 6, 7]},
        schema=NO_DEVICES.schema,
    )
    messages = pl.DataFrame(
        [
            message("send", 0, 1), message("receive", 0, 1), message("send", 1, 0),
            message("receive", 1, 0),
            # Rank 2 is not in the run, but where it is is known.
            message("receive", 0, 2, 50), message("send", 0, 2, None),
        ],
        schema=MESSAGE,
    )  # fmt: skip
    kernels = calls(
        call(2, op=0, rank=0, collective="send_recv", bytes=None),
        call(6, op=1, rank=1, collective="send_recv", bytes=None),
    )
    found = message_transfers(messages, kernels, ranks(devices=known))
    assert edges(found) == {(2, 6): 1000, (6, 2): 1000, (7, 2): 50}
    assert set(found["evidence"]) == {"measured"}
    assert set(found["source"]) == {"payload"}


LOG = """\
node1:100:100 [0] NCCL INFO comm 0x7f01 rank 0 nranks 4 cudaDev 0 nvmlDev 0 busId 6000 commId 0x11 - Init START
node1:101:101 [1] NCCL INFO comm 0x7f02 rank 1 nranks 4 cudaDev 1 nvmlDev 1 busId 7000 commId 0x11 - Init START
node1:102:102 [2] NCCL INFO comm 0x7f03 rank 2 nranks 4 cudaDev 2 nvmlDev 2 busId a000 commId 0x11 - Init START
node1:103:103 [3] NCCL INFO comm 0x7f04 rank 3 nranks 4 cudaDev 3 nvmlDev 3 busId b000 commId 0x11 - Init START
node1:100:100 [0] NCCL INFO Channel 00/02 :    0   2   1   3
node1:100:100 [0] NCCL INFO Channel 01/02 :    0   3   1   2
node1:100:100 [0] NCCL INFO comm 0x7f01 rank 0 nranks 4 cudaDev 0 nvmlDev 0 busId 6000 commId 0x11 - Init COMPLETE
node1:101:101 [1] NCCL INFO comm 0x7f02 rank 1 nranks 4 cudaDev 1 nvmlDev 1 busId 7000 commId 0x11 - Init COMPLETE
node1:102:102 [2] NCCL INFO comm 0x7f03 rank 2 nranks 4 cudaDev 2 nvmlDev 2 busId a000 commId 0x11 - Init COMPLETE
node1:103:103 [3] NCCL INFO comm 0x7f04 rank 3 nranks 4 cudaDev 3 nvmlDev 3 busId b000 commId 0x11 - Init COMPLETE
"""  # noqa: E501


def a_log(tmp_path: Path) -> NcclLog:
    file = tmp_path / "nccl.log"
    file.write_text(LOG)
    return read_nccl_log(file)


def processes(*pids: int, host: str | None = "node1.cluster") -> pl.DataFrame:
    rows = {"process": range(len(pids)), "report": 0, "pid": pids, "global_id": pids}
    return PROCESSES.conform(pl.DataFrame(rows)).with_columns(host=pl.lit(host, pl.String))


def devices(host: str | None = "node1.cluster", report: int = 0) -> pl.DataFrame:
    buses = ("0000:06:00.0", "0000:07:00.0", "0000:0A:00.0", "0000:0B:00.0")
    rows = {
        "device": range(4 * report, 4 * report + 4),
        "report": report,
        "pci_bus": buses,
        "active": True,
        "identity": "ordinal",
    }
    return DEVICES.conform(pl.DataFrame(rows)).with_columns(host=pl.lit(host, pl.String))


def test_rings_of_a_log(tmp_path: Path) -> None:
    """Its channels are directed, and each carries half."""
    log = a_log(tmp_path)
    rows = calls(call(0, match=None, ranks=None, bytes=400))
    known = rank_devices(rows, log, processes(100), devices())
    assert dict(known.select("rank", "device").rows()) == {0: 0, 1: 1, 2: 2, 3: 3}
    found = modelled_transfers(rows, ranks(devices=known, log=log))
    each = 2 * 3 * 400 // 4 // 2
    assert edges(found) == {
        (0, 2): each, (2, 1): each, (1, 3): each, (3, 0): each,
        (0, 3): each, (3, 1): each, (1, 2): each, (2, 0): each,
    }  # fmt: skip
    assert set(found["source"]) == {"log"}
    assert set(found["evidence"]) == {"modelled"}


def test_a_log_of_another_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nccl.log is of another run.*100, 101.*4711"):
        rank_devices(calls(call(0)), a_log(tmp_path), processes(4711), devices())
    # Containers call their host by other names than the log does.
    inside = processes(100, host="pod-7"), devices("pod-7")
    assert rank_devices(calls(call(0)), a_log(tmp_path), *inside).height == 4
    # And some traces do not name theirs.
    unnamed = processes(100, host=None), devices(None)
    assert rank_devices(calls(call(0)), a_log(tmp_path), *unnamed).height == 4


def test_a_log_of_channels_alone_says_whose_it_is(tmp_path: Path) -> None:
    """Without any line of a communicator, host and process still stand before every line."""
    file = tmp_path / "nccl.log"
    file.write_text("\n".join(line for line in LOG.splitlines() if "commId" not in line))
    log = read_nccl_log(file)
    assert log.ranks.is_empty()
    assert log.rings.height
    with pytest.raises(UsageError, match=r"nccl.log is of another run.*100"):
        rank_devices(calls(call(0)), log, processes(4711), devices())
    with pytest.raises(UsageError, match=r"nccl.log is of another run"):
        find_collectives(TraceBuilder().trace(), log)
    assert rank_devices(calls(call(0)), log, processes(100), devices()).is_empty()


@pytest.mark.parametrize("algorithm", ["nvls", "nvls_tree", "collnet_direct", "collnet_chain"])
def test_other_algorithms_are_on_no_link(algorithm: str) -> None:
    """What CollNet moves is not a ring's, nor is what NVLS would where there is an NVSwitch."""
    rows = calls(*(call(n, algorithm=algorithm) for n in range(4)))
    assert modelled_transfers(rows, ranks()).is_empty()
    assert modelled_transfers(calls(*(call(n, algorithm="ring") for n in range(4))), ranks()).height
    [text] = unmodelled(rows, load_preset("dgx1v"))
    assert text == (
        f"4 collective kernels ran {algorithm}, whose traffic is not modelled: their bytes are "
        "on no link"
    )
    assert unmodelled(calls(call(0, algorithm="tree")), load_preset("dgx1v")) == []
    is_nvls = algorithm.startswith("nvls")
    assert bool(unmodelled(rows, load_preset("dgx-h100"))) != is_nvls


H100 = {"machine": load_preset("dgx-h100"), "reducing": frozenset(range(8))}
"""8 GPUs at an NVSwitch that reduces."""


def alternatives(transfers: pl.DataFrame) -> dict[str, dict[tuple[int | None, int | None], int]]:
    """Return what is moved if an algorithm ran, by algorithm and ends."""
    found: dict[str, dict[tuple[int | None, int | None], int]] = {}
    for name, src, dst, size in transfers.select(
        "algorithm", "src_device", "dst_device", "bytes_if"
    ).rows():
        found.setdefault(name, {})[src, dst] = size
    return found


def test_a_ring_or_nvls_where_a_switch_reduces() -> None:
    """Of 800 bytes 1,400 leave each GPU along a ring, and 900 by NVLS, which needs three GPUs."""
    found = modelled_transfers(calls(*(call(d) for d in range(8))), ranks(**H100))
    assert set(found["evidence"]) == {"modelled between"}
    assert found["bytes"].null_count() == found.height
    assert found["choice"].unique().to_list() == [0]
    either = alternatives(found)
    assert set(either) == {"ring", "nvls"}
    for gpu in range(8):
        assert sum(size for (src, _), size in either["ring"].items() if src == gpu) == 1_400
        assert either["nvls"][gpu, None] == either["nvls"][None, gpu] == 900
    # Each is of the process whose kernel sends or gets it.
    assert found.filter(process=3)["start"].unique().to_list() == [103]
    assert found.select("process").unique().height == 8
    two = modelled_transfers(calls(call(0, ranks=2), call(3, ranks=2)), ranks(**H100))
    assert set(two["evidence"]) == {"modelled"}
    older = modelled_transfers(calls(*(call(d) for d in range(8))), ranks(machine=H100["machine"]))
    assert set(older["evidence"]) == {"modelled"}
    assert set(older["algorithm"]) == {"ring"}


@pytest.mark.parametrize(
    ("collective", "up", "down"), [("all_gather", 100, 800), ("reduce_scatter", 800, 100)]
)
def test_parts_by_nvls(collective: str, up: int, down: int) -> None:
    rows = calls(*(call(d, collective=collective) for d in range(8)))
    either = alternatives(modelled_transfers(rows, ranks(**H100)))
    assert either["nvls"][5, None] == up
    assert either["nvls"][None, 5] == down
    broadcast = calls(*(call(d, collective="broadcast", root=0) for d in range(8)))
    assert set(modelled_transfers(broadcast, ranks(**H100))["evidence"]) == {"modelled"}


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        ("nvls", {(2, None): 900, (None, 2): 900}),
        ("multicast_one_shot", {(2, None): 800, (None, 2): 6_400}),
        ("one_shot", {(2, 5): 800, (5, 2): 800}),
        ("two_shot", {(2, 5): 200, (5, 2): 200}),
    ],
)
def test_an_algorithm_that_is_known(
    algorithm: str, expected: dict[tuple[int | None, int | None], int]
) -> None:
    rows = calls(*(call(d, algorithm=algorithm) for d in range(8)))
    found = modelled_transfers(rows, ranks(**H100))
    assert {**edges(found), **expected} == edges(found)
    assert set(found["evidence"]) == {"modelled"}
    assert set(found["algorithm"]) == {algorithm}
    assert found["choice"].null_count() == found.height


def test_a_ring_or_a_tree_of_switches_over_two_nodes() -> None:
    """Of 800 bytes that NVLSTree reduces, 900 go between each GPU of 8 in a node and its switch.

    What each of them stands for, 100, goes to the other node and comes from there.
    """
    two, _ = side_by_side([load_preset("hgx-h100-8")] * 2, "")
    place = {gpu: gpu for gpu in range(16)}
    options: dict[str, Any] = {"machine": two, "place": place, "reducing": frozenset(range(16))}
    either = alternatives(modelled_transfers(calls(*map(call, range(16))), ranks(**options)))
    assert set(either) == {"ring", "nvls_tree"}
    assert either["nvls_tree"] == {
        **{(gpu, None): 900 for gpu in range(16)}, **{(None, gpu): 900 for gpu in range(16)},
        **{(gpu, (gpu + 8) % 16): 100 for gpu in range(16)},
    }  # fmt: skip
    gathered = calls(*(call(gpu, collective="all_gather") for gpu in range(16)))
    assert set(modelled_transfers(gathered, ranks(**options))["algorithm"]) == {"ring"}


def test_of_ranks_on_unknown_gpus_bounds_are_known_too(tmp_path: Path) -> None:
    """A log of one rank of four: they are no more than its switch has GPUs."""
    log = a_log(tmp_path)
    name = log.rings["communicator"][0]
    known = pl.DataFrame({"communicator": [name], "rank": [2], "device": [5]},
                         schema=NO_DEVICES.schema)  # fmt: skip
    rows = calls(call(5, match=None, ranks=None, bytes=400))
    found = modelled_transfers(rows, ranks(**H100, devices=known, log=log))
    assert set(found["evidence"]) == {"modelled between"}
    assert alternatives(found)["nvls"][5, None] == 500
    assert found.filter(algorithm="ring", src_device=5)["bytes_if"].sum() == 600


def test_kernels_of_other_libraries() -> None:
    """Theirs are modelled if they are made for one algorithm; what others run is not known."""
    vllm = calls(*(call(d, library="vllm", algorithm="one_shot") for d in range(8)))
    found = modelled_transfers(vllm, ranks(**H100))
    assert set(found["method"]) == {"collective"}
    assert edges(found)[0, 7] == 800
    assert modelled_transfers(vllm.with_columns(algorithm=None), ranks(**H100)).is_empty()


def test_a_log_may_say_that_there_is_no_nvls(tmp_path: Path) -> None:
    """Its line of channels does, and what it says of the algorithm decides."""
    log = replace(a_log(tmp_path), nvls=pl.DataFrame({"communicator": ["0xfeed"], "channels": [0]}))
    rows = calls(call(0, match=None, ranks=None, bytes=400))
    known = rank_devices(rows, log, processes(100), devices())
    options = {**H100, "devices": known, "log": log}
    name = log.rings["communicator"][0]
    either = modelled_transfers(rows, ranks(**options))
    assert set(either["evidence"]) == {"modelled between"}
    assert alternatives(either)["nvls"][2, None] == 500
    without = replace(log, nvls=pl.DataFrame({"communicator": [name], "channels": [0]}))
    found = modelled_transfers(rows, ranks(**{**options, "log": without}))
    assert set(found["evidence"]) == {"modelled"}
    told = modelled_transfers(rows.with_columns(algorithm=pl.lit("nvls")), ranks(**options))
    assert edges(told)[2, None] == 500


def bounds(rows: pl.DataFrame, **options: Any) -> list[int]:
    return link_bounds(rows, ranks(**options)).sort("op")["bound_ns"].to_list()


@pytest.mark.parametrize("size", [4_800, 4_800_000, 480_000_000])
def test_the_bound_of_a_ring_is_that_of_its_fullest_link(size: int) -> None:
    """On a DGX-1 two of 2 (n - 1) / n S / 3 cross 50 GB/s, and half of one 25 GB/s, alike."""
    rows = calls(*(call(d, bytes=size) for d in range(8)))
    assert bounds(rows) == [round(2 * 7 / 8 * size / 3 / 50)] * 8
    two = calls(call(0, ranks=2, bytes=size), call(3, ranks=2, bytes=size))
    assert bounds(two) == [round(size / 50)] * 2


@pytest.mark.parametrize("size", [8_000, 800_000, 800_000_000])
def test_the_bound_of_what_may_be_a_ring_or_nvls_is_the_lower_one(size: int) -> None:
    """By NVLS 9 / 8 S cross each link of 450 GB/s, and 14 / 8 S along a ring."""
    rows = calls(*(call(d, bytes=size) for d in range(8)))
    assert bounds(rows, **H100) == [round(9 / 8 * size / 450)] * 8
    ring = rows.with_columns(algorithm=pl.lit("ring"))
    assert bounds(ring, **H100) == [round(14 / 8 * size / 450)] * 8


@pytest.mark.parametrize("size", [4_000, 4_000_000, 400_000_000])
def test_the_bound_of_a_tree_of_a_log(size: int, tmp_path: Path) -> None:
    """All bytes go up and down each edge; GPU 0 and 1 of a DGX-1 are joined by 25 GB/s."""
    log = a_log(tmp_path)
    name = log.rings["communicator"][0]
    tree = {"communicator": name, "channel": 0, "rank": [0, 1, 2, 3], "parent": [None, 0, 1, 2]}
    log = replace(log, trees=pl.DataFrame(tree).cast(log.trees.schema))
    known = rank_devices(calls(), log, processes(100), devices())
    rows = calls(call(0, match=None, ranks=None, bytes=size, algorithm="tree"))
    assert bounds(rows, devices=known, log=log) == [round(size / 25)]


def test_without_peaks_or_participants_there_is_no_bound() -> None:
    assert bounds(calls(call(0, match=None, ranks=4))) == []
    graph = load_preset("dgx1v").graph.copy()
    for src, dst, link in graph.edges(data="link"):
        graph[src][dst]["link"] = replace(link, bandwidth=None)
    machine = replace(load_preset("dgx1v"), graph=graph)
    assert bounds(calls(*map(call, range(8))), machine=machine) == []


def test_buses_repeat_on_other_hosts(tmp_path: Path) -> None:
    """Machines of a cluster have their GPUs at the same places: whose they are, the host says."""
    run = pl.concat([processes(999, host="node0"), processes(100, 101, host="node1")])
    gpus = pl.concat([devices("node0"), devices("node1", report=1)])
    known = rank_devices(calls(), a_log(tmp_path), run, gpus)
    assert dict(known.select("rank", "device").rows()) == {0: 4, 1: 5, 2: 6, 3: 7}


def test_a_rank_is_on_the_one_device_of_its_process(tmp_path: Path) -> None:
    """Some traces say of no GPU where it is."""
    rows = calls(call(3, process=0), call(2, process=1), call(1, process=1))
    nowhere = devices().with_columns(pci_bus=pl.lit(None, pl.String))
    known = rank_devices(rows, a_log(tmp_path), processes(100, 101), nowhere)
    assert dict(known.select("rank", "device").rows()) == {0: 3}


def test_what_contradicts_itself_is_on_no_link() -> None:
    outside = [call(d, collective="broadcast", root=5) for d in (0, 1)]
    assert modelled_transfers(calls(*outside), ranks()).is_empty()
    shared = pl.DataFrame(
        {"communicator": ["0xa"] * 2, "rank": [0, 1], "device": [3, 3]}, schema=NO_DEVICES.schema
    )
    alone = call(3, match=None, ranks=2, communicator="0xa")
    assert modelled_transfers(calls(alone), ranks(devices=shared)).is_empty()
