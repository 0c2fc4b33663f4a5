"""Logs of each era of NCCL, written by hand, with what they say worked out."""
# ruff: noqa: E501 - lines are as long as NCCL writes them.

from __future__ import annotations

import random
from pathlib import Path

import polars as pl
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.errors import InputError, TracekitError
from tracekit.machine import NcclLog, read_nccl_log

DOUBLE_LINKS = (0, 3, 2, 1, 5, 6, 7, 4)
SINGLE_LINKS = (0, 1, 3, 7, 5, 4, 6, 2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def _read(folder: Path, *texts: str) -> NcclLog:
    files = []
    for number, text in enumerate(texts):
        files.append(folder / f"nccl{number}.log")
        files[-1].write_text(text, encoding="utf-8")
    return read_nccl_log(*files)


def _rings(log: NcclLog) -> dict[tuple[str, int], tuple[int, ...]]:
    """Return the ranks of each ring in order, by communicator and channel."""
    found: dict[tuple[str, int], tuple[int, ...]] = {}
    for name, channel, position, rank in log.rings.rows():
        assert position == len(found.get((name, channel), ()))
        found[name, channel] = (*found.get((name, channel), ()), rank)
    return found


def _edges(log: NcclLog) -> list[tuple[object, ...]]:
    ends = ("src_nic", "dst_nic", "src_direct", "dst_direct")
    return log.connections.drop("communicator", *ends).rows()


# --- one log of each era -------------------------------------------------------------------------

V24 = """\
amber:510:533 [1] NCCL INFO Setting affinity for GPU 1 to 0fffff
amber:509:532 [0] NCCL INFO Channel 00 :    0   1
amber:509:532 [0] NCCL INFO Channel 01 :    0   1
NCCL version 2.4.8+cuda10.0
epoch 0 starts
amber:510:533 [1] NCCL INFO Ring 00 : 1[1] -> 0[0] via P2P/IPC
amber:509:532 [0] NCCL INFO Ring 00 : 0[0] -> 1[1] via P2P/IPC
amber:509:532 [0] NCCL INFO Trees [0] -1->0->1/-1/-1 [1] -1->0->1/-1/-1
amber:510:533 [1] NCCL INFO Trees [0] 0->1->-1/-1/-1 [1] 0->1->-1/-1/-1
amber:509:532 [0] NCCL INFO comm 0x7F10 rank 0 nranks 2 cudaDev 0 nvmlDev 0 - Init COMPLETE
amber:510:533 [1] NCCL INFO comm 0x7f20 rank 1 nranks 2 cudaDev 1 nvmlDev 1 - Init COMPLETE
"""


def test_nccl_2_4(folder: Path) -> None:
    log = _read(folder, V24)
    name = "amber:509:0x7f10"  # No commId: named after rank 0.
    assert log.version == "2.4.8+cuda10.0"
    assert log.ranks.rows() == [
        (name, "amber", 509, 0, 2, 0, 0, None),
        (name, "amber", 510, 1, 2, 1, 1, None),
    ]
    assert _rings(log) == {(name, 0): (0, 1), (name, 1): (0, 1)}
    assert log.trees.rows() == [(name, 0, 0, None), (name, 0, 1, 0), (name, 1, 0, None),
                                (name, 1, 1, 0)]  # fmt: skip
    assert _edges(log) == [(0, 0, 1, "P2P/IPC", "p2p"), (0, 1, 0, "P2P/IPC", "p2p")]
    assert log.warnings == ()


V27 = """\
NCCL version 2.7.8+cuda11.0
birch:20:40 [0] NCCL INFO Channel 00/02 :    0   2   1
birch:20:40 [0] NCCL INFO Channel 01/02 :    0   1   2
birch:20:40 [0] NCCL INFO threadThresholds 8/8/64 | 24/8/64 | 8/8/64
birch:20:40 [0] NCCL INFO Trees [0] 2/-1/-1->0->-1|-1->0->2/-1/-1 [1] -1/-1/-1->0->1|1->0->-1/-1/-1
birch:21:41 [1] NCCL INFO Trees [0] -1/-1/-1->1->2|2->1->-1/-1/-1 [1] 0/2/-1->1->-1|-1->1->0/2/-1
birch:22:42 [2] NCCL INFO Trees [0] 1/-1/-1->2->0|0->2->1/-1/-1 [1] -1/-1/-1->2->1|1->2->-1/-1/-1
birch:20:40 [0] NCCL INFO Channel 00 : 0[1b000] -> 2[3d000] via direct shared memory
birch:21:41 [1] NCCL INFO Channel 00 : 1[1c000] -> 0[1b000] via P2P/IPC
birch:22:42 [2] NCCL INFO Channel 00 : 2[3d000] -> 1[1c000] via P2P/direct pointer
birch:20:40 [0] NCCL INFO comm 0xa0 rank 0 nranks 3 cudaDev 0 busId 1b000 - Init COMPLETE
birch:22:42 [2] NCCL INFO comm 0xa2 rank 2 nranks 3 cudaDev 2 busId 3d000 - Init COMPLETE
birch:21:41 [1] NCCL INFO comm 0xa1 rank 1 nranks 3 cudaDev 1 busId 1c000 - Init COMPLETE
"""


def test_nccl_2_7(folder: Path) -> None:
    log = _read(folder, V27)
    name = "birch:20:0xa0"
    assert log.ranks["pci_bus"].to_list() == ["0000:1b:00.0", "0000:1c:00.0", "0000:3d:00.0"]
    assert log.ranks["nvml_device"].null_count() == 3
    assert _rings(log) == {(name, 0): (0, 2, 1), (name, 1): (0, 1, 2)}
    assert log.trees.drop("communicator").rows() == [
        (0, 0, None), (0, 1, 2), (0, 2, 0),
        (1, 0, 1), (1, 1, None), (1, 2, 1),
    ]  # fmt: skip
    assert _edges(log) == [
        (0, 0, 2, "direct shared memory", "shm"),
        (0, 1, 0, "P2P/IPC", "p2p"),
        (0, 2, 1, "P2P/direct pointer", "p2p"),
    ]


def _dgx1v(extra: str = "") -> str:
    """Eight ranks in one process (its threads interleave), as NCCL 2.10 prints them."""
    buses = ("6000", "7000", "a000", "b000", "85000", "86000", "89000", "8a000")
    rings = [DOUBLE_LINKS, DOUBLE_LINKS[:1] + DOUBLE_LINKS[:0:-1], SINGLE_LINKS]
    lines = ["NCCL version 2.10.3+cuda11.3"]
    lines += [
        f"dgx:9:10 [0] NCCL INFO Channel {channel:02}/03 : " + "".join(f"{r:4}" for r in ring)
        for channel, ring in enumerate(rings)
    ]
    lines += [
        f"dgx:9:{10 + rank} [{rank}] NCCL INFO Channel {channel:02} : {rank}[{buses[rank]}] -> "
        f"{after}[{buses[after]}] via P2P/direct pointer"
        for channel, ring in enumerate(rings)
        for rank, after in zip(ring, ring[1:] + ring[:1], strict=True)
    ]
    lines += [f"dgx:9:{10 + rank} [{rank}] NCCL INFO Connected all rings" for rank in range(8)]
    lines += [
        f"dgx:9:{10 + rank} [{rank}] NCCL INFO comm 0xc{rank} rank {rank} nranks 8 cudaDev {rank} "
        f"busId {buses[rank]} - Init COMPLETE"
        for rank in range(8)
    ]
    return "\n".join(lines) + "\n" + extra


def test_rings_of_a_dgx_1v(folder: Path) -> None:
    log = _read(folder, _dgx1v())
    name = "dgx:9:0xc0"
    assert _rings(log) == {
        (name, 0): (0, 3, 2, 1, 5, 6, 7, 4),
        (name, 1): (0, 4, 7, 6, 5, 1, 2, 3),
        (name, 2): (0, 1, 3, 7, 5, 4, 6, 2),
    }
    assert log.ranks["communicator"].unique().to_list() == [name]
    assert log.ranks["pci_bus"].to_list()[3:5] == ["0000:0b:00.0", "0000:85:00.0"]
    assert log.connections.height == 24
    assert log.warnings == ()


V218 = """\
\x1b[36m[rank0]: \x1b[0mcedar:100:200 [0] NCCL INFO NCCL version 2.18.3+cuda12.1\r
0: cedar:100:200 [0] NCCL INFO comm 0xaa0 rank 0 nranks 4 cudaDev 0 nvmlDev 0 busId 6000 commId 0xFEED - Init START\r
[1,1]<stdout>:cedar:101:201 [1] NCCL INFO comm 0xaa1 rank 1 nranks 4 cudaDev 1 nvmlDev 1 busId 7000 commId 0xfeed - Init START
(Worker pid=7, ip=10.0.0.2) dogwood:100:200 [0] NCCL INFO comm 0xaa0 rank 2 nranks 4 cudaDev 0 nvmlDev 0 busId 6000 commId 0xfeed - Init START
2024-05-06T07:08:09Z stdout F dogwood:101:201 [1] NCCL INFO comm 0xaa1 rank 3 nranks 4 cudaDev 1 nvmlDev 1 busId 100007000 commId 0xfeed - Init START
cedar:100:200 [0] NCCL INFO Channel 00/02 :    0   1   2   3
cedar:100:200 [0] NCCL INFO Channel 01/02 :    0   1   2   3
cedar:100:200 [0] NCCL INFO Channel 00/0 : 3[1] -> 0[0] [receive] via NET/IB/0/GDRDMA
cedar:100:200 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC/read
cedar:101:201 [1] NCCL INFO Channel 00/0 : 1[1] -> 2[0] [send] via NET/IB/1(0)/GDRDMA
cedar:101:201 [1] NCCL INFO Connected all rings
dogwood:100:200 [0] NCCL INFO Channel 00/0 : 1[1] -> 2[0] [receive] via NET/IB/0/GDRDMA
dogwood:100:200 [0] NCCL INFO Channel 00 : 2[0] -> 3[1] via SHM/direct/direct
dogwood:101:201 [1] NCCL INFO CollNet 00/0 : 3 [send] via COLLNET/SHARP/0/GDRDMA
cedar:100:200 [0] NCCL INFO Trees [0] 1/2/-1->0->-1 [1] 1/-1/-1->0->2
"""


def test_nccl_2_18_on_two_hosts_with_all_kinds_of_prefixes(folder: Path) -> None:
    log = _read(folder, V218)
    assert log.version == "2.18.3+cuda12.1"
    assert log.ranks.rows() == [
        ("0xfeed", "cedar", 100, 0, 4, 0, 0, "0000:06:00.0"),
        ("0xfeed", "cedar", 101, 1, 4, 1, 1, "0000:07:00.0"),
        ("0xfeed", "dogwood", 100, 2, 4, 0, 0, "0000:06:00.0"),
        ("0xfeed", "dogwood", 101, 3, 4, 1, 1, "1000:07:00.0"),
    ]
    assert _rings(log) == {("0xfeed", 0): (0, 1, 2, 3), ("0xfeed", 1): (0, 1, 2, 3)}
    assert _edges(log) == [
        (0, 0, 1, "P2P/IPC/read", "p2p"),
        (0, 1, 2, "NET/IB/1(0)/GDRDMA", "net"),  # As the sender prints it.
        (0, 2, 3, "SHM/direct/direct", "shm"),
        (0, 3, None, "COLLNET/SHARP/0/GDRDMA", "collnet"),
        (0, 3, 0, "NET/IB/0/GDRDMA", "net"),
    ]
    nics = log.connections.filter(kind="net").select("from_rank", "src_nic", "dst_nic").rows()
    assert nics == [(1, 1, 0), (3, None, 0)]  # The sender of the second is in no line.
    staged = _read(folder, V218.replace("[send] via NET/IB/1(0)/GDRDMA", "[send] via NET/IB/1"))
    for each, direct in ((log, True), (staged, False)):
        told = each.connections.filter(kind="net").select("src_direct", "dst_direct").rows()
        assert told == [(direct, True), (None, True)]
    assert log.connections.filter(kind="p2p")["src_direct"].to_list() == [None]
    assert log.trees.rows() == [("0xfeed", 0, 0, None), ("0xfeed", 1, 0, 2)]


def test_names_of_nics(folder: Path) -> None:
    """Of each network by host; several that are one, what a line cuts and what differs are left."""
    log = _read(
        folder,
        """\
elm:7:17 [0] NCCL INFO NET/Socket : Using [0]ib0:10.0.0.1<0>
elm:7:17 [0] NCCL INFO NET/IB : Using [0]mlx5_3:1/IB [1]mlx5_2:1/RoCE [2]mlx5_0:1/IB/SHARP [RO]; OOB ib0:10.0.0.1<0>
elm:8:18 [1] NCCL INFO NET/IB : Using [0]mlx5_3:1/IB [1]mlx5_5:1/RoCE [2]mlx5_0:1/IB ; OOB [9]x:10.0.0.1<0>
fir:7:17 [0] NCCL INFO NET/IB : Using [0]={[0] mlx5_0:1/IB, [1] mlx5_1:1/IB} [2]mlx5_2:1/IB [RO]; OOB ib0:10.0.0.2<0>
oak:7:17 [0] NCCL INFO NET/IB : Using [0]"""
        + "x" * 70
        + ":1/IB [99999]a:1/IB [1]b:1/IB ; OOB ib0:10.0.0.2<0>\n",
    )
    assert log.nics.rows() == [
        ("elm", "IB", 0, "mlx5_3"),
        ("elm", "IB", 2, "mlx5_0"),
        ("elm", "Socket", 0, "ib0"),
        ("oak", "IB", 1, "b"),
    ]


V223 = """\
[2025-02-03 04:05:06] elm:7:17 [0] NCCL INFO NCCL version 2.23.4+cuda12.6
elm:7:17 [0] NCCL INFO ncclCommInitRankConfig comm 0x50 rank 0 nranks 2 cudaDev 0 nvmlDev 4 busId 1b000 commId 0x1 - Init START
elm:8:18 [1] NCCL INFO ncclCommInitRankConfig comm 0x50 rank 1 nranks 2 cudaDev 1 nvmlDev 5 busId 2c000 commId 0x1 - Init START
elm:7:17 [0] NCCL INFO comm 0x50 rank 0 nRanks 2 nNodes 1 localRanks 2 localRank 0 MNNVL 0
elm:7:17 [0] NCCL INFO Channel 00/01 : 0 1
elm:7:17 [0] NCCL INFO 1 coll channels, 1 collnet channels, 1 nvls channels, 2 p2p channels, 2 p2p channels per peer
elm:7:17 [0] NCCL INFO ncclCommInitRankConfig comm 0x50 rank 0 nranks 2 cudaDev 0 nvmlDev 4 busId 1b000 commId 0x1 - Init COMPLETE
elm:8:18 [1] NCCL INFO ncclCommInitRankConfig comm 0x50 rank 1 nranks 2 cudaDev 1 nvmlDev 5 busId 2c000 commId 0x1 - Init COMPLETE
elm:7:17 [0] NCCL INFO ncclCommSplit comm 0x60 rank 0 nranks 2 cudaDev 0 nvmlDev 4 busId 1b000 parent 0x50 splitCount 1 color 9 key 0- Init START
elm:8:18 [1] NCCL INFO ncclCommSplit comm 0x61 rank 1 nranks 2 cudaDev 1 nvmlDev 5 busId 2c000 parent 0x50 splitCount 1 color 9 key 1- Init START
elm:7:17 [0] NCCL INFO Channel 00/01 : 0 1
elm:7:17 [0] NCCL INFO ncclCommSplit comm 0x60 rank 0 nranks 2 cudaDev 0 nvmlDev 4 busId 1b000 parent 0x50 splitCount 1 color 9 key 0 - Init COMPLETE
elm:8:18 [1] NCCL INFO ncclCommSplit comm 0x61 rank 1 nranks 2 cudaDev 1 nvmlDev 5 busId 2c000 parent 0x50 splitCount 1 color 9 key 1 - Init COMPLETE
elm:7:7 [0] NCCL INFO AllReduce: opCount 0 sendbuff 0x1 recvbuff 0x1 count 1024 datatype 9 op 0 root 0 comm 0x60 [nranks=2] stream 0x9
elm:7:7 [0] NCCL INFO Channel 00/0 : 0[4] -> 1[5] via P2P/CUMEM/read
elm:7:7 [0] NCCL INFO Channel 00/1 : 0[4] -> 1[5] via P2P/CUMEM
elm:7:7 [0] NCCL INFO Connected all rings, use ring PXN 0 GDR 1
elm:7:99 [0] NCCL INFO Channel 00/0 : 0[4] -> 1[5] via P2P/CUMEM
"""


def test_nccl_2_23_with_a_split_and_connections_made_late(folder: Path) -> None:
    log = _read(folder, V223)
    split = "elm:7:0x60"  # Splits print no commId.
    assert log.ranks.select("communicator", "pid", "rank", "nvml_device").rows() == [
        ("0x1", 7, 0, 4), ("0x1", 8, 1, 5), (split, 7, 0, 4), (split, 8, 1, 5),
    ]  # fmt: skip
    assert _rings(log) == {("0x1", 0): (0, 1), (split, 0): (0, 1)}
    # The call before tells whose connections these are; nothing tells it of thread 99's.
    assert log.connections.rows() == [(split, 0, 0, 1, "P2P/CUMEM/read", "p2p", *[None] * 4)]
    assert log.warnings == (
        "1 connections cannot be assigned to one of their process's communicators",
    )
    assert log.calls.select("communicator", "rank", "bytes").rows() == [(split, 0, 2048)]


# --- rings ---------------------------------------------------------------------------------------


def _four(body: str, ranks: int = 4, pids: int = 4) -> str:
    """One communicator on one host, one process for each rank, with lines of their threads."""
    inits = [
        f"fir:{rank}:{rank} [{rank}] NCCL INFO comm 0x{rank + 1:x} rank {rank} nranks {ranks} "
        f"cudaDev {rank} nvmlDev {rank} busId {rank + 1:x}000 commId 0x99 - Init "
        for rank in range(pids)
    ]
    return "\n".join(
        [*(each + "START" for each in inits), body, *(each + "COMPLETE" for each in inits), ""]
    )


def _ring_lines(channel: int, ring: tuple[int, ...]) -> list[str]:
    return [
        f"fir:{rank}:{rank} [{rank}] NCCL INFO Channel {channel:02}/0 : {rank}[{rank}] -> "
        f"{after}[{after}] via P2P/IPC"
        for rank, after in zip(ring, ring[1:] + ring[:1], strict=True)
    ]


def test_a_ring_that_is_cut_is_made_up_from_connections(folder: Path) -> None:
    ring = (0, 17, *range(1, 17), *range(18, 30))
    printed = " ".join(map(str, ring[:12]))
    tree = "fir:0:0 [0] NCCL INFO Channel 00/0 : 0[0] -> 5[5] via P2P/IPC"
    rings = [f"fir:{rank}:{rank} [{rank}] NCCL INFO Connected all rings" for rank in ring]
    for end in ("...", " 1...", " ..."):
        # The 1 before the dots is what is left of 11.
        head = f"fir:0:0 [0] NCCL INFO Channel 00/01 : {printed}{end}"
        lines = [head, *_ring_lines(0, ring), *rings, tree]
        log = _read(folder, _four("\n".join(lines), 30, 30))
        assert _rings(log) == {("0x99", 0): ring}
        assert log.warnings == ()


def test_a_ring_of_many_ranks_is_cut_without_a_word(folder: Path) -> None:
    ring = tuple(range(25))
    head = "fir:0:0 [0] NCCL INFO Channel 00/01 : " + "".join(f"{rank:4}" for rank in ring[:20])
    log = _read(folder, _four("\n".join([head, *_ring_lines(0, ring)]), 25, 25))
    assert _rings(log) == {("0x99", 0): ring}
    log = _read(folder, _four(head, 25, 25))
    assert _rings(log) == {}
    assert log.warnings == (
        "communicator 0x99: the ring of channel 0 is printed incompletely, and not known from the connections of all ranks; left out",
    )


def test_neighbours_tell_a_ring(folder: Path) -> None:
    lines = [
        "fir:1:1 [1] NCCL INFO Ring 00 : 2 -> 1 -> 3",  # Rank 0's and rank 2's follow from these.
        "fir:3:3 [3] NCCL INFO Ring 00 : 1 -> 3 -> 0",
        "fir:2:2 [2] NCCL INFO Ring 00 : 0 -> 2 -> 1",
    ]
    assert _rings(_read(folder, _four("\n".join(lines)))) == {("0x99", 0): (0, 2, 1, 3)}
    lines[1] += " comm 0x4 nRanks 04 busId 4000"  # As RCCL has it.
    assert _rings(_read(folder, _four("\n".join(lines)))) == {("0x99", 0): (0, 2, 1, 3)}
    assert _rings(_read(folder, _four("\n".join(lines[:2])))) == {}


def test_trees_of_single_lines(folder: Path) -> None:
    lines = [
        "fir:3:3 [3] NCCL INFO Tree 1 : 1 -> 3 -> 2/-1/-1",
        "fir:1:1 [1] NCCL INFO Tree 1 : -1 -> 1 -> 0/3/-1",
        "fir:1:1 [1] NCCL INFO Trees [1] 0/3/-1->1->-1 [2] -1/-1/-1->1->3",
    ]
    log = _read(folder, _four("\n".join(lines)))
    assert log.trees.drop("communicator").rows() == [(1, 1, None), (1, 3, 1), (2, 1, 3)]
    assert log.warnings == ()


@pytest.mark.parametrize(
    ("printed", "why"),
    [
        ("0 1 2 1", "visits a rank twice"),
        ("0 1 2", "lacks ranks (3 of 4)"),
        ("0 2 ...", "does not go on as it is printed"),
    ],
)
def test_a_contradictory_ring_is_left_out(folder: Path, printed: str, why: str) -> None:
    lines = [
        f"fir:0:0 [0] NCCL INFO Channel 00/02 : {printed}",
        "fir:0:0 [0] NCCL INFO Channel 01/02 : 3 2 1 0",
        *_ring_lines(0, (0, 1, 2, 3)),
    ]
    log = _read(folder, _four("\n".join(lines)))
    assert _rings(log) == {("0x99", 1): (0, 3, 2, 1)}
    assert log.warnings == (f"communicator 0x99: the ring of channel 0 {why}; left out",)


def test_a_ring_printed_in_two_ways_and_a_rank_with_two_parents(folder: Path) -> None:
    lines = [
        "fir:0:0 [0] NCCL INFO Channel 00/01 : 0 1 2 3",
        "fir:0:0 [0] NCCL INFO Channel 00/01 : 0 3 2 1",
        "fir:2:2 [2] NCCL INFO Trees [0] -1/-1/-1->2->1 [1] -1/-1/-1->2->0",
        "fir:2:2 [2] NCCL INFO Tree 0 : 3 -> 2 -> -1/-1/-1",
    ]
    log = _read(folder, _four("\n".join(lines)))
    assert _rings(log) == {}
    assert log.trees.rows() == [("0x99", 1, 2, 0)]
    assert log.warnings == (
        "communicator 0x99: the ring of channel 0 is printed in several ways; left out",
        "communicator 0x99: the tree of channel 0 has a rank with two parents; left out",
    )


def test_the_last_of_a_long_line_of_trees_is_not_trusted(folder: Path) -> None:
    elements = " ".join(f"[{channel}] -1/-1/-1->2->13" for channel in range(60))
    line = "fir:2:2 [2] NCCL INFO Trees " + elements
    cut = line[: line.index("->13", 1000) + 3]
    assert cut.endswith("->1")
    log = _read(folder, _four(cut, 14, 14))
    assert set(log.trees["parent"]) == {13}
    assert log.trees["channel"].to_list() == list(range(cut.count("->13")))


@settings(max_examples=examples(20, thorough=400), deadline=None)
@given(
    rings=st.integers(2, 9).flatmap(
        lambda size: st.lists(st.permutations(range(1, size)), min_size=1, max_size=4)
    ),
    seed=st.integers(0, 1 << 30),
    told=st.booleans(),
)
def test_rings_are_found_again(
    rings: list[list[int]], seed: int, told: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Written as connections, threads in random order, each with tree connections after."""
    wanted = [(0, *ring) for ring in rings]
    size = len(wanted[0])
    shuffle = random.Random(seed)
    threads: list[list[str]] = [[] for _ in range(size)]
    for channel, ring in enumerate(wanted):
        for rank, line in zip(ring, _ring_lines(channel, ring), strict=True):
            threads[rank].append(line)
    for rank, lines in enumerate(threads):
        start = f"fir:{rank}:{rank} [{rank}] NCCL INFO "
        shuffle.shuffle(lines)
        lines.extend([start + "Connected all rings"] * told)
        lines.extend(
            f"{start}Channel {channel:02}/0 : {rank}[0] -> {(rank + 1) % size}[0] via P2P/IPC"
            for channel in range(len(wanted))
        )
    body = []
    while any(threads):
        lines = shuffle.choice([each for each in threads if each])
        body += [lines.pop(0), "loss 0.5"]
    log = _read(tmp_path_factory.mktemp("log"), _four("\n".join(body), size, size))
    assert list(_rings(log).values()) == wanted
    assert log.warnings == ()


# --- several communicators -----------------------------------------------------------------------


def _old_init(pid: int, tid: int, pointer: int, rank: int, bus: int, host: str = "gum") -> str:
    return (
        f"{host}:{pid}:{tid} [0] NCCL INFO comm 0x{pointer:x} rank {rank} nranks 2 cudaDev 0 "
        f"busId {bus:x}000 - Init COMPLETE"
    )


def _old_edge(pid: int, tid: int, line: str, via: str = "P2P/IPC", host: str = "gum") -> str:
    return f"{host}:{pid}:{tid} [0] NCCL INFO Channel 00 : {line} via {via}"


def test_connections_tell_communicators_of_one_size_apart(folder: Path) -> None:
    """Tensor parallel pairs (1, 2), (3, 4), then data parallel pairs (1, 3), (2, 4), no commId."""
    lines = []
    for pairs, first in (([(1, 2), (3, 4)], 0), ([(1, 3), (2, 4)], 1)):
        for a, b in pairs:
            lines += [
                _old_edge(a, a, f"0[{a}000] -> 1[{b}000]"),
                _old_edge(b, b, f"1[{b}000] -> 0[{a}000]"),
            ]
        inits = [
            _old_init(pid, pid, 16 * pid + first, rank, pid)
            for pair in pairs
            for rank, pid in enumerate(pair)
        ]
        lines += inits[::3] + inits[1:3]  # So that their order tells nothing.
    log = _read(folder, "\n".join(lines))
    together = log.ranks.group_by("communicator").agg(pl.col("pid").sort()).sort("communicator")
    assert together.rows() == [
        ("gum:1:0x10", [1, 2]), ("gum:1:0x11", [1, 3]), ("gum:2:0x21", [2, 4]),
        ("gum:3:0x30", [3, 4]),
    ]  # fmt: skip
    assert set(_rings(log).values()) == {(0, 1)}
    assert len(_rings(log)) == 4
    assert log.warnings == ()


def test_communicators_of_the_same_ranks_come_one_after_another(folder: Path) -> None:
    lines = []
    for time in range(3):
        lines += [
            _old_edge(1, 5, "0[1000] -> 1[1000] [send]", "NET/IB/0", "gum"),
            _old_init(1, 5, 0x10 + time, 0, 1, "gum"),
            _old_edge(1, 5, "1[1000] -> 0[1000] [send]", "NET/IB/0", "hazel"),
            _old_init(1, 5, 0x10 + time, 1, 1, "hazel"),
        ]
    log = _read(folder, "\n".join(lines))
    assert log.ranks.select("communicator", "host").rows() == [
        (f"gum:1:0x1{time}", host) for time in range(3) for host in ("gum", "hazel")
    ]
    assert log.connections.height == 6
    assert log.warnings == ()


def test_a_warning_where_only_the_order_tells(folder: Path) -> None:
    log = _read(
        folder,
        "\n".join(
            [_old_init(pid, pid, pid, rank, pid) for pid, rank in ((1, 0), (3, 0), (2, 1), (4, 1))]
        ),
    )
    assert log.ranks.select("communicator", "pid").rows() == [
        ("gum:1:0x1", 1), ("gum:1:0x1", 2), ("gum:3:0x3", 3), ("gum:3:0x3", 4),
    ]  # fmt: skip
    assert log.warnings == (
        "communicators of 2 ranks are distinguished by the order of the log only, for this version of NCCL prints no commId",
    )


def test_a_pointer_that_is_used_again(folder: Path) -> None:
    """A communicator that was destroyed; a commId that a second split of 2.18 repeats."""
    call = (
        "ivy:1:1 [0] NCCL INFO Broadcast: opCount 2 sendbuff 0x1 recvbuff 0x1 count 3 datatype 7 "
        "op 0 root 0 comm 0x5 [nranks=1] stream 0x1"
    )
    init = "ivy:1:1 [0] NCCL INFO comm 0x5 rank 0 nranks 1 cudaDev 0 busId 1000 commId 0x7 - Init "
    log = _read(folder, "\n".join([init + "START", init + "COMPLETE", call] * 2))
    assert log.calls.select("communicator", "order", "bytes", "root").rows() == [
        ("0x7", 0, 12, 0), ("0x7#2", 0, 12, 0),
    ]  # fmt: skip


def test_logs_of_two_runs(folder: Path) -> None:
    other = V218.replace("cedar", "spruce").replace("dogwood", "oak").replace("12.1", "12.2")
    log = _read(folder, V218, other)
    assert log.version == "2.18.3+cuda12.1"
    assert log.warnings[:2] == (
        "several versions of NCCL: 2.18.3+cuda12.1, 2.18.3+cuda12.2",
        "communicator 0xfeed has ranks that two processes claim; are these logs of one run?",
    )


def test_ranks_in_files_of_their_own(folder: Path) -> None:
    lines = V218.splitlines(keepends=True)
    for host in ("cedar", "dogwood"):
        text = "".join(line for line in lines if host in line)
        (folder / f"{host}.txt").write_text(text, encoding="utf-8")
    (folder / "notes.txt").write_text("nothing\n", encoding="utf-8")
    log = read_nccl_log(folder)
    assert log.path == str(folder)
    assert log.warnings == ()
    together = _read(folder, V218)
    twice = read_nccl_log(folder / "cedar.txt", folder / "dogwood.txt", folder / "cedar.txt")
    assert twice.ranks.equals(log.ranks)
    assert twice.warnings == ()
    assert log.ranks.equals(together.ranks)
    assert log.connections.equals(together.connections)
    half = read_nccl_log(folder / "dogwood.txt", folder / "notes.txt")
    assert half.warnings == (
        f"no NCCL INFO lines in {folder / 'notes.txt'}",
        "communicator 0xfeed has 4 ranks, the log has 2: give all ranks' logs",
        "communicator 0xfeed: the ring of channel 0 is printed incompletely, and not known from the connections of all ranks; left out",
    )


# --- tuning and calls ----------------------------------------------------------------------------


def test_tuning_of_three_grammars(folder: Path) -> None:
    start = "fir:0:0 [0] NCCL INFO "
    lines = [
        "8388608 Bytes -> Algo 1 proto 2 time 371.250000",
        "4096 Bytes -> Algo 0 proto 0 time 12.5",
        "AllGather: 65536 Bytes -> Algo 6 proto 1 time 20.0",
        "AllReduce: 268435456 Bytes -> Algo NVLS proto SIMPLE channel{Lo..Hi}={0..15}",
        "ReduceScatter:    1024 Bytes -> Algo Collnet_Chain proto LL128 channel{Lo..Hi}={4..4}",
        "AllReduce [Symmetric]: 512 Bytes -> Kernel AllReduce_AGxLL_R nchannels 8 nthreads 512",
        "AllGather [Symmetric]: 64 Bytes -> Kernel AllGather_STMC nchannels 4 nthreads 512 nWorks 1",
        "AllGather [Symmetric]: 64 Bytes -> Kernel AllGather_NEW nchannels 4 nthreads 512",
        "AllToNone: 1 Bytes -> Algo QUANTUM proto 9 channel{Lo..Hi}={0..0}",
    ]
    log = _read(folder, _four("\n".join(start + line for line in lines)))
    assert log.tuning.rows() == [
        ("0x99", 0, None, 8388608, "ring", "simple", None),
        ("0x99", 1, None, 4096, "tree", "ll", None),
        ("0x99", 2, "all_gather", 65536, "pat", "ll128", None),
        ("0x99", 3, "all_reduce", 268435456, "nvls", "simple", 16),
        ("0x99", 4, "reduce_scatter", 1024, "collnet_chain", "ll128", 1),
        ("0x99", 5, "all_reduce", 512, "one_shot", None, 8),
        ("0x99", 6, "all_gather", 64, "nvls", None, 4),
        ("0x99", 7, "all_gather", 64, "symmetric", None, 4),
        ("0x99", 8, "unknown", 1, None, None, 1),
    ]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("16 coll channels, 0 collnet channels, 24 nvls channels, 32 p2p channels", [("0x99", 24)]),
        ("16 coll channels, 16 collnet channels, 0 nvls channels, 32 p2p channels", [("0x99", 0)]),
        ("16 coll channels, 16 p2p channels, 2 p2p channels per peer", []),
    ],
)
def test_channels_for_nvls(folder: Path, line: str, found: list[tuple[str, int]]) -> None:
    log = _read(folder, _four(f"fir:0:0 [0] NCCL INFO {line}\nfir:0:0 [0] NCCL INFO {line}"))
    assert log.nvls.rows() == found


def test_tuning_belongs_to_the_call_before(folder: Path) -> None:
    def call(pointer: str) -> str:
        return (
            "juniper:1:1 [0] NCCL INFO AllReduce: opCount 0 sendbuff 0x1 recvbuff 0x1 count 2 "
            f"datatype 8 op 0 root 0 comm {pointer} [nranks=1] stream 0x1"
        )

    def init(pointer: str, name: str) -> str:
        return (
            f"juniper:1:1 [0] NCCL INFO comm {pointer} rank 0 nranks 1 cudaDev 0 busId 1000 "
            f"commId {name} - Init COMPLETE"
        )

    tune = "juniper:1:1 [0] NCCL INFO 16 Bytes -> Algo 1 proto 0 time 1.0"
    log = _read(
        folder,
        "\n".join([init("0xa", "0x1"), init("0xb", "0x2"), tune, call("0xa"), tune, tune,
                   call("0xb"), tune, f"{tune} comm 0xa"]),
    )  # fmt: skip
    assert log.tuning.select("communicator", "order").rows() == [
        (None, 0), ("0x1", 0), ("0x1", 1), ("0x2", 0), ("0x1", 2),
    ]  # fmt: skip


def test_calls(folder: Path) -> None:
    def call(name: str, count: int, datatype: int, root: int = 0, extra: str = "") -> str:
        return (
            f"fir:0:7 [0] NCCL INFO {name}: opCount 1f sendbuff (nil) recvbuff 0x7f00 {extra}"
            f"count {count} datatype {datatype} op 0 root {root} comm 0x1 [nranks=4] stream 0x55"
        )

    names = ["AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce", "AlltoAll",
             "Gather", "Scatter", "Send", "Recv", "PutSignal"]  # fmt: skip
    lines = [call(name, 10, 7, root=3) for name in names]
    lines += [call("AllReduce", 3, datatype) for datatype in range(13)]
    lines += [call("AllReduce", 5, 6, extra="acc 0x12 "), call("AllReduce", 10**18 - 1, 8)]
    unknown = "fir:9:9 [0] NCCL INFO " + call("Send", 1, 0).partition("INFO ")[2]
    log = _read(folder, _four("\n".join([*lines, unknown])))
    calls = log.calls
    assert calls["collective"].to_list()[:11] == [
        "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all",
        "gather", "scatter", "send_recv", "send_recv", "unknown",
    ]  # fmt: skip
    assert calls["root"].to_list()[:11] == [None] * 3 + [3, 3, None, 3, 3, 3, 3, None]
    assert calls["direction"].to_list()[8:11] == ["send", "receive", None]
    assert calls["bytes"].to_list()[:11] == [40] * 11
    assert calls["bytes"].to_list()[11:24] == [3, 3, 12, 12, 24, 24, 6, 12, 24, 6, 3, 3, None]
    assert calls["bytes"].to_list()[24:26] == [10, None]  # No size overflows.
    assert calls["datatype"].to_list()[17:21] == ["float16", "float32", "float64", "bfloat16"]
    assert calls["op_count"].to_list()[0] == 0x1F
    assert calls["order"].to_list() == [*range(26), 0]
    assert calls.select("communicator", "host", "pid", "rank", "ranks").rows()[25:] == [
        ("0x99", "fir", 0, 0, 4),
        ("fir:9:0x1", "fir", 9, None, 4),
    ]


# --- what is no log ------------------------------------------------------------------------------


def test_no_log(folder: Path) -> None:
    file = folder / "train.log"
    file.write_text("NCCL WARN something\nNCCL version 2.20.5\n", encoding="utf-8")
    with pytest.raises(
        InputError, match=r"no NCCL INFO lines in .*train\.log: set NCCL_DEBUG=INFO"
    ):
        read_nccl_log(file)
    with pytest.raises(InputError, match="no file"):
        read_nccl_log(folder / "absent.log")
    empty = folder / "empty"
    empty.mkdir()
    with pytest.raises(InputError, match="no files in"):
        read_nccl_log(empty)
    with pytest.raises(InputError, match="no NCCL log is given"):
        read_nccl_log()


def test_a_log_without_any_init(folder: Path) -> None:
    text = "ash:1:1 [0] NCCL INFO Channel 00/01 :    0   1   2\n"
    log = _read(folder, text)
    assert log.ranks.is_empty()
    assert _rings(log) == {("unnamed", 0): (0, 1, 2)}


def test_bytes_that_are_no_text_and_lines_without_end(folder: Path) -> None:
    file = folder / "odd.log"
    file.write_bytes(
        b"\xff\xfe\x00 loss\n" + b"x" * (40 << 20) + b"\n" + b"\xe2\x82"
        b"ash:1:1 [0] NCCL INFO Channel 00/01 :    0   1\r\n" + V24.encode()
    )
    log = read_nccl_log(file)
    assert _rings(log)["amber:509:0x7f10", 0] == (0, 1)
    assert log.version == "2.4.8+cuda10.0"


LINES = [*V24.splitlines(), *V27.splitlines(), *V218.splitlines(), *V223.splitlines(),
         *_dgx1v().splitlines()]  # fmt: skip


@settings(max_examples=examples(20, thorough=600), deadline=None)
@given(
    lines=st.lists(
        st.one_of(
            st.sampled_from(LINES),
            st.tuples(st.sampled_from(LINES), st.integers(0, 200)).map(
                lambda cut: cut[0][: cut[1]]
            ),
            st.tuples(st.sampled_from(LINES), st.text("0123456789x-[]>/ ", max_size=4)).map(
                lambda pair: pair[0].replace("0", pair[1])
            ),
            st.text(max_size=30),
        ),
        max_size=25,
    )
)
def test_garbage_gives_an_error_of_ours(
    lines: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("log") / "garbage.log"
    file.write_text("\n".join(lines), encoding="utf-8", errors="replace")
    try:
        log = read_nccl_log(file)
    except TracekitError:
        return
    for (name, _), ring in _rings(log).items():
        assert sorted(ring) == list(range(len(ring)))
        sizes = log.ranks.filter(pl.col("communicator") == name)["ranks"]
        assert sizes.is_empty() or len(ring) in sizes
