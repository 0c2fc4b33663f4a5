"""Which links the real traces used, how full they were, and what stays unknown."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import polars as pl
import pytest

import tracekit as tk
from tracekit.errors import UsageError

RunOf = Callable[[str], tk.Run]
SIZE = 65_536 * 2_002


def test_peer_copies_cross_the_double_nvlink(real_run: RunOf) -> None:
    """Durations are those of the traces' README: 8.187 and 7.832 ms in all, none overlapping."""
    traffic = real_run("jacobi_p2p_nvlink_8xv100").traffic()
    assert (traffic.placed.machine.name, traffic.placed.machine.origin) == ("dgx1v", "recognised")
    found = traffic.links().filter(type="nvlink").sort("src")
    columns = ("link", "src", "dst", "nvlinks", "transfers", "bytes", "busy_ns", "peak_gb_s")
    assert found.select(columns).rows() == [
        ("GPU0-GPU3", "GPU0", "GPU3", 2, 2_002, SIZE, 8_187_422, 50.0),
        ("GPU0-GPU3", "GPU3", "GPU0", 2, 2_002, SIZE, 7_831_541, 50.0),
    ]
    assert found["utilisation"].to_list() == pytest.approx(
        [SIZE / 8_187_422 / 50, SIZE / 7_831_541 / 50]
    )
    assert set(found["evidence"]) == {"measured"}


def test_staged_copies_go_through_both_sockets(real_run: RunOf) -> None:
    traffic = real_run("jacobi_p2p_staged_8xv100").traffic()
    pairs = traffic.links("pair,method")
    columns = ("src_device", "dst_device", "method", "transfers", "bytes")
    assert sorted(pairs.select(columns).rows()) == [
        (0, 7, "staged", 2_002, SIZE), (7, 0, "staged", 2_002, SIZE),
    ]  # fmt: skip
    way = ("GPU0", "PCIe0", "CPU0", "CPU1", "PCIe3", "GPU7")
    assert set(pairs["route"]) == {">".join(way), ">".join(way[::-1])}
    staged = traffic.links("link,method").filter(method="staged")
    assert set(staged.select("src", "dst").rows()) == {*pairwise(way), *pairwise(way[::-1])}
    assert set(staged["bytes"]) == {SIZE}
    # The copy down to GPU 0 is on its link for as long as the HtoD rows last.
    down = staged.filter(src="PCIe0", dst="GPU0")
    assert down["busy_ns"].item() == 16_995_118


def test_a_topology_from_the_same_kind_of_machine(real_run: RunOf, tmp_path) -> None:
    """What nvprof recorded of another DGX-1 gives the same edge, GPUs taken by number."""
    run = real_run("jacobi_p2p_nvlink_8xv100")
    matrix = tmp_path / "topo.txt"
    rows = ["\t".join(["", *(f"GPU{n}" for n in range(8)), "CPU Affinity"])]
    shown = run.machine()
    for src in range(8):
        cells = [
            "X"
            if src == dst
            else f"NV{shown.bricks(src, dst)}"
            if shown.bricks(src, dst)
            else "SYS"
            for dst in range(8)
        ]
        rows.append("\t".join([f"GPU{src}", *cells, "0-79"]))
    matrix.write_text("\n".join(rows) + "\n")
    found = run.links(topology=matrix).filter(type="nvlink")
    assert set(found["link"]) == {"GPU0-GPU3"}
    # The matrix tells no bandwidth; the product's name does.
    assert set(found["peak_gb_s"]) == {50.0}
    with pytest.raises(UsageError, match="of 2 GPUs"):
        run.links(topology="pcie-2")


@pytest.mark.parametrize("name", ["sendrecv_2xh100_two_processes", "ddp_unet_4xa100_rank0"])
def test_no_size_is_invented(real_run: RunOf, name: str) -> None:
    traffic = real_run(name).traffic()
    nccl = traffic.calls.filter(library="nccl")
    assert nccl.height
    for column in ("message_bytes", "bytes", "sent_bytes", "received_bytes", "communicator"):
        assert nccl[column].null_count() == nccl.height
    assert "nccl" not in set(traffic.transfers["method"])
    assert traffic.meta()["collectives_of_unknown_size"] == nccl.height
    assert traffic.meta()["collectives_on_no_link"] == nccl.height


def test_collectives_with_a_rank_that_was_not_recorded_are_on_no_link(real_run: RunOf) -> None:
    """21 of known size of two ranks, one of which is there: the machine was drawn as unused."""
    answer = real_run("kineto_ddp_2xa100_rank0").links.answer(by="link")
    assert answer.meta["collectives_of_unknown_size"] == 0
    assert answer.meta["collectives_on_no_link"] == 21
    told = "21 collective kernels of known size are on no link, since GPUs that take part"
    assert any(text.startswith(told) for text in answer.meta["warnings"])
    drawn = answer.figure("drawing").to_json()
    assert "dotted: unknown (21 collectives on no link)" in drawn
    assert "no transfers" not in drawn


def test_a_size_that_the_user_gives_is_modelled(real_run: RunOf) -> None:
    """472 all-reduces of 25 MB on 4 GPUs: each GPU sends 2 x 3 / 4 of it."""
    traffic = real_run("ddp_unet_4xa100_rank0").traffic(sizes={"all_reduce": 25_000_000}, ranks=4)
    nvlinks = traffic.links().filter(type="nvlink")
    assert set(nvlinks["evidence"]) == {"modelled"}
    sent = nvlinks.group_by("src").agg(pl.col("bytes").sum())
    assert set(sent["bytes"]) == {472 * 37_500_000}


def test_every_trace_has_its_links(real_run: RunOf) -> None:
    for name in ("mnist_1xa100_phases", "transformer_rtx3070ti"):
        traffic = real_run(name).traffic()
        assert set(traffic.links("method")["method"]) <= {"h2d", "d2h"}
        assert traffic.links("pair").is_empty()
        assert traffic.meta()["routed"] == traffic.transfers.height
