"""Movements by copies: what is one and what is none, and all against plain Python."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
import pytest
from effort import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trace_builder import TraceBuilder

from tracekit.analysis.traffic import copy_transfers
from tracekit.analysis.traffic._transfers import traffic_root
from tracekit.machine import Link, Machine
from tracekit.model import TRANSFERS, Trace

FOUND = (
    "op", "second_op", "src_device", "dst_device", "via_device", "bytes", "start", "end",
    "first_end", "second_start", "method", "evidence", "source",
)  # fmt: skip
ATTRIBUTED = (*FOUND, "stage", "iteration")
US, MS = 1_000, 1_000_000
SIZE = 65_536


def machine_of(*pairs: tuple[int, int]) -> Machine:
    """A machine of eight GPUs with NVLinks between some."""
    links = [Link((f"GPU{one}", f"GPU{other}"), "nvlink", 1, 25) for one, other in pairs]
    return Machine.of("m", {f"GPU{gpu}": {"type": "gpu"} for gpu in range(8)}, links)


# GPU 0 and 7 reach each other through 3 or 4 only.
QUAD = machine_of((0, 3), (3, 7), (0, 4), (4, 7), (3, 4))


def to_host(b: TraceBuilder, start: int, end: int, gpu: int = 0, **row: Any) -> None:
    b.op(
        "out", start=start, end=end, device=gpu,
        **({"kind": "d2h", "copy_kind": "DtoH", "src_device": gpu, "bytes": SIZE} | row),
    )  # fmt: skip


def from_host(b: TraceBuilder, start: int, end: int, gpu: int = 7, **row: Any) -> None:
    b.op(
        "in", start=start, end=end, device=gpu,
        **({"kind": "h2d", "copy_kind": "HtoD", "dst_device": gpu, "bytes": SIZE} | row),
    )  # fmt: skip


def peer(
    b: TraceBuilder, start: int, end: int, src: int | None, dst: int | None, **row: Any
) -> None:
    made = {
        "device": src or 0, "kind": "p2p", "copy_kind": "PtoP", "src_device": src,
        "dst_device": dst, "bytes": SIZE,
    }  # fmt: skip
    b.op("peer", start=start, end=end, **(made | row))


def moved(b: TraceBuilder, *args: Any) -> list[tuple[Any, ...]]:
    """``method, src, dst, start, end`` of each transfer."""
    table = copy_transfers(b.trace(), *args)
    return table.select("method", "src_device", "dst_device", "start", "end").rows()


class TestRecorded:
    def test_copies_with_both_ends_or_one(self, b: TraceBuilder) -> None:
        peer(b, 0, 10, 0, 3, stage="WU", iteration=4)
        to_host(b, 20, 30, 1, bytes=4)
        from_host(b, 40, 50, 2, bytes=8)
        table = copy_transfers(b.trace())
        assert table.schema == TRANSFERS.schema
        measured = ("measured", "recorded")
        assert table.select(ATTRIBUTED).rows() == [
            (0, None, 0, 3, None, SIZE, 0, 10, None, None, "p2p", *measured, "WU", 4),
            (1, None, 1, None, None, 4, 20, 30, None, None, "d2h", *measured, "OTHER", None),
            (2, None, None, 2, None, 8, 40, 50, None, None, "h2d", *measured, "OTHER", None),
        ]
        assert table["collective"].null_count() == 3

    def test_the_ends_count_not_the_gpu_that_recorded_the_copy(self, b: TraceBuilder) -> None:
        peer(b, 0, 10, 0, 3, device=3)
        assert moved(b) == [("p2p", 0, 3, 0, 10)]

    def test_unknown_ends_stay_unknown(self, b: TraceBuilder) -> None:
        peer(b, 0, 10, None, None)
        peer(b, 20, 30, 2, None, bytes=None)
        to_host(b, 40, 50, 5, src_device=None)
        assert moved(b) == [
            ("p2p", None, None, 0, 10),
            ("p2p", 2, None, 20, 30),
            ("d2h", 5, None, 40, 50),
        ]
        assert copy_transfers(b.trace())["bytes"].to_list() == [SIZE, None, SIZE]

    def test_what_crosses_no_link_is_no_transfer(self, b: TraceBuilder) -> None:
        for kind in ("compute", "collective", "d2d", "h2h", "memset", "graph", "unknown"):
            b.op(kind, start=0, kind=kind, bytes=SIZE, src_device=0, dst_device=0)
        peer(b, 0, 10, 1, 1)
        assert moved(b) == []
        assert copy_transfers(b.trace()).schema == TRANSFERS.schema

    def test_a_run_without_ops(self) -> None:
        empty = copy_transfers(Trace.of({}), QUAD)
        assert empty.is_empty()
        assert empty.schema == TRANSFERS.schema

    def test_reports_one_after_the_other(self, b: TraceBuilder) -> None:
        to_host(b, 0, 10, report=1, thread=10)
        to_host(b, 5, 10)
        assert copy_transfers(b.trace()).select("report", "start").rows() == [(0, 5), (1, 0)]


@pytest.mark.parametrize("kind", ["staged", None])
class TestStagedByTheDriver:
    """One call launched both halves: whether the source has seen so or not."""

    @staticmethod
    def of(kind: str | None, **row: Any) -> dict[str, Any]:
        return {"correlation": 5} | ({"kind": kind} if kind else {}) | row

    def test_two_halves(self, kind: str | None, b: TraceBuilder) -> None:
        to_host(b, 0, 10, 0, **self.of(kind, stage="WU", iteration=2))
        from_host(b, 12, 20, 7, **self.of(kind, stage="FP", iteration=3))
        assert copy_transfers(b.trace()).select(ATTRIBUTED).rows() == [
            (0, 1, 0, 7, None, SIZE, 0, 20, 10, 12, "staged", "measured", "same_call", "WU", 2)
        ]

    def test_in_pieces_that_overlap(self, kind: str | None, b: TraceBuilder) -> None:
        to_host(b, 0, 10, 2, **self.of(kind, bytes=100))
        from_host(b, 8, 14, 1, **self.of(kind, bytes=60))
        to_host(b, 10, 13, 2, **self.of(kind, bytes=20))
        from_host(b, 14, 30, 1, **self.of(kind, bytes=60))
        [row] = copy_transfers(b.trace()).rows(named=True)
        assert (row["op"], row["second_op"], row["bytes"]) == (0, 1, 120)
        assert (row["src_device"], row["dst_device"]) == (2, 1)
        assert (row["start"], row["first_end"], row["second_start"], row["end"]) == (0, 13, 8, 30)

    def test_the_same_id_in_two_processes(self, kind: str | None, b: TraceBuilder) -> None:
        to_host(b, 0, 10, 0, **self.of(kind))
        from_host(b, 20, 30, 7, thread=10, **self.of(kind))
        assert moved(b) == [("d2h", 0, None, 0, 10), ("h2d", None, 7, 20, 30)]

    def test_two_processes_each_with_a_pair(self, kind: str | None, b: TraceBuilder) -> None:
        for thread, gpu in ((0, 0), (10, 4)):
            to_host(b, gpu, 10, gpu, thread=thread, **self.of(kind))
            from_host(b, 20 + gpu, 30, gpu + 1, thread=thread, **self.of(kind))
        assert moved(b) == [("staged", 0, 1, 0, 30), ("staged", 4, 5, 4, 30)]

    @pytest.mark.parametrize(
        "second",
        [
            {"bytes": SIZE + 1},
            {"bytes": None},
            {"gpu": 0},
            {"correlation": 6, "bytes": 1},
            {"correlation": None, "bytes": 1},
            {"graph_node": 1, "bytes": 1},
        ],
    )
    def test_what_is_no_pair(
        self, kind: str | None, second: dict[str, Any], b: TraceBuilder
    ) -> None:
        to_host(b, 0, 10, 0, **self.of(kind))
        from_host(b, 12, 20, **self.of(kind, **second))
        assert [row[0] for row in moved(b)] == ["d2h", "h2d"]

    def test_from_two_gpus(self, kind: str | None, b: TraceBuilder) -> None:
        to_host(b, 0, 10, 0, **self.of(kind, bytes=1))
        to_host(b, 1, 10, 1, **self.of(kind, bytes=1))
        from_host(b, 12, 20, 7, **self.of(kind, bytes=2))
        assert [row[0] for row in moved(b)] == ["d2h", "d2h", "h2d"]

    @pytest.mark.parametrize("unknown", [to_host, from_host])
    def test_a_piece_of_unknown_size(self, kind: str | None, unknown: Any, b: TraceBuilder) -> None:
        to_host(b, 0, 10, 0, **self.of(kind))
        from_host(b, 12, 20, 7, **self.of(kind))
        unknown(b, 25, 30, **self.of(kind, bytes=None))
        assert copy_transfers(b.trace()).filter(source="same_call").is_empty()

    def test_nodes_of_one_graph_are_told_apart(self, kind: str | None, b: TraceBuilder) -> None:
        for node, gpu in ((11, 1), (12, 2)):
            to_host(b, node, 20, 0, **self.of(kind, graph_node=node))
            from_host(b, node + 20, 40, gpu, **self.of(kind, graph_node=node))
        assert moved(b) == [("staged", 0, 1, 11, 40), ("staged", 0, 2, 12, 40)]

    def test_small_ones_count_too(self, kind: str | None, b: TraceBuilder) -> None:
        to_host(b, 0, 10, 0, **self.of(kind, bytes=4))
        from_host(b, 12, 20, 7, **self.of(kind, bytes=4))
        assert moved(b) == [("staged", 0, 7, 0, 20)]

    def test_a_peer_copy_of_that_id_stays(self, kind: str | None, b: TraceBuilder) -> None:
        to_host(b, 0, 10, 0, **self.of(kind))
        peer(b, 11, 12, 0, 3, correlation=5)
        from_host(b, 12, 20, 7, **self.of(kind))
        assert [row[0] for row in moved(b)] == ["staged", "p2p"]


def test_a_half_of_a_driver_staged_copy_belongs_to_none_of_another_call(b: TraceBuilder) -> None:
    to_host(b, 0, 10, 0, kind="staged")
    from_host(b, 12, 20, 7)
    assert [row[0] for row in moved(b)] == ["d2h", "h2d"]


class TestStagedByTheProgram:
    def test_two_calls(self, b: TraceBuilder) -> None:
        to_host(b, 0, 10, 0, stage="BP", iteration=1)
        from_host(b, 12, 20, 7, stage="FP", iteration=2)
        assert copy_transfers(b.trace()).select(ATTRIBUTED).rows() == [
            (0, 1, 0, 7, None, SIZE, 0, 20, 10, 12, "staged", "modelled", "same_bytes", "BP", 1)
        ]

    def test_no_half_is_used_twice(self, b: TraceBuilder) -> None:
        to_host(b, 0, 10, 0)
        from_host(b, 12, 20, 1)
        from_host(b, 22, 30, 2)
        assert moved(b) == [("staged", 0, 1, 0, 20), ("h2d", None, 2, 22, 30)]

    @pytest.mark.parametrize("takers", [(2, 3), (1, 0)], ids=["onward", "an exchange"])
    def test_first_in_first_out(self, takers: tuple[int, int], b: TraceBuilder) -> None:
        to_host(b, 0, 10, 0)
        to_host(b, 5, 15, 1)
        from_host(b, 20, 30, takers[0])
        from_host(b, 22, 32, takers[1])
        assert moved(b) == [("staged", 0, takers[0], 0, 30), ("staged", 1, takers[1], 5, 32)]

    def test_a_return_to_the_same_gpu_is_none_and_uses_up_both(self, b: TraceBuilder) -> None:
        """As where each GPU's gradients are summed on the host and the sum is sent to each."""
        for gpu in range(3):
            to_host(b, gpu, 10 + gpu, gpu)
        for gpu in range(3):
            from_host(b, 20 + gpu, 30, gpu)
        assert [row[0] for row in moved(b)] == ["d2h"] * 3 + ["h2d"] * 3

    @pytest.mark.parametrize(
        ("out", "back"),
        [
            pytest.param({"bytes": 4}, {"bytes": 4}, id="results that are read"),
            pytest.param({}, {"bytes": SIZE - 1}, id="other bytes"),
            pytest.param({}, {"bytes": None}, id="unknown bytes"),
            pytest.param({}, {"gpu": 0}, id="same GPU"),
            pytest.param({}, {"thread": 10}, id="other process"),
            pytest.param({}, {"copy_kind": "Unified HtoD"}, id="migration of unified memory"),
            pytest.param({"copy_kind": "Unified DtoH"}, {}, id="likewise"),
            pytest.param({}, {"start": 9}, id="overlapping"),
            pytest.param({"start": 40, "end": 50}, {}, id="the other way round"),
        ],
    )
    def test_what_is_no_pair(
        self, out: dict[str, Any], back: dict[str, Any], b: TraceBuilder
    ) -> None:
        to_host(b, **({"start": 0, "end": 10} | out))
        from_host(b, **({"start": 12, "end": 30} | back))
        assert sorted(row[0] for row in moved(b)) == ["d2h", "h2d"]

    @pytest.mark.parametrize(
        ("length", "gap", "found"),
        [
            (1, MS, True), (1, MS + 1, False),
            (MS, 10 * MS, True), (MS, 10 * MS + 1, False),
        ],
    )  # fmt: skip
    def test_how_close(self, length: int, gap: int, found: bool, b: TraceBuilder) -> None:
        to_host(b, 0, length)
        from_host(b, length + gap, length + gap + 1)
        assert len(moved(b)) == (1 if found else 2)

    def test_what_is_too_old_gives_way_to_what_is_not(self, b: TraceBuilder) -> None:
        to_host(b, 0, 10, 0)
        to_host(b, 2 * MS, 2 * MS + 10, 1)
        from_host(b, 2 * MS + 20, 2 * MS + 30, 2)
        assert [row[:3] for row in moved(b)] == [("d2h", 0, None), ("staged", 1, 2)]

    def test_one_thread_launches_both_before_the_first_ends(self, b: TraceBuilder) -> None:
        """However long the second waits, and whatever else there is of that size meanwhile."""
        for gpu, thread in ((1, 1), (2, 2)):
            to_host(b, 10, 90 + gpu, gpu, at=gpu, thread=thread)
        for gpu, thread in ((2, 2), (1, 1)):
            from_host(b, 20 * MS + gpu, 30 * MS + gpu, 7, at=10 + gpu, thread=thread)
        assert copy_transfers(b.trace()).select("op", "second_op", "source").rows() == [
            (0, 2, "same_thread"), (1, 3, "same_thread"),
        ]  # fmt: skip

    @pytest.mark.parametrize(
        "second",
        [
            pytest.param({"at": 100}, id="launched once the first is done"),
            pytest.param({"thread": 1}, id="by another thread"),
            pytest.param({"start": 99}, id="not waiting for the first"),
            pytest.param({"bytes": SIZE - 1}, id="other bytes"),
            pytest.param({"gpu": 0}, id="back to where it came from"),
            pytest.param({"copy_kind": "Unified HtoD"}, id="migration of unified memory"),
        ],
    )
    def test_what_one_thread_launches_that_is_no_pair(
        self, second: dict[str, Any], b: TraceBuilder
    ) -> None:
        to_host(b, 0, 100, at=0)
        from_host(b, **({"start": 2 * MS, "end": 3 * MS, "at": 10} | second))
        assert sorted(row[0] for row in moved(b)) == ["d2h", "h2d"]

    def test_what_does_not_say_how_it_was_made_may_be_a_half(self, b: TraceBuilder) -> None:
        to_host(b, 0, 100, at=0, copy_kind=None)
        from_host(b, 2 * MS, 3 * MS, at=10, copy_kind=None)
        assert moved(b) == [("staged", 0, 7, 0, 3 * MS)]

    def test_a_copy_in_between_parts_them(self, b: TraceBuilder) -> None:
        to_host(b, 0, 100, at=0)
        peer(b, 200, 300, 3, 4, at=5)
        from_host(b, 2 * MS, 3 * MS, at=10)
        assert sorted(row[0] for row in moved(b)) == ["d2h", "h2d", "p2p"]

    @pytest.mark.parametrize(("size", "rows"), [(4095, 2), (4096, 1)])
    def test_results_that_are_read_are_no_halves(
        self, size: int, rows: int, b: TraceBuilder
    ) -> None:
        to_host(b, 0, 10, bytes=size)
        from_host(b, 12, 20, bytes=size)
        assert len(moved(b)) == rows


class TestTwoHop:
    def test_through_a_gpu_that_joins_both(self, b: TraceBuilder) -> None:
        peer(b, 0, 10, 0, 4, stage="WU", iteration=3)
        peer(b, 11, 20, 4, 7)
        assert copy_transfers(b.trace(), QUAD).select(ATTRIBUTED).rows() == [
            (0, 1, 0, 7, 4, SIZE, 0, 20, 10, 11, "two_hop", "modelled", "same_bytes", "WU", 3)
        ]
        assert [row[0] for row in moved(b)] == ["p2p", "p2p"]  # of no machine is it known

    def test_one_thread_launches_both_before_the_first_ends(self, b: TraceBuilder) -> None:
        peer(b, 0, 100, 0, 4, at=0)
        b.op("other", start=200, end=300, device=4)
        peer(b, 20 * MS, 30 * MS, 4, 7, at=10)
        found = copy_transfers(b.trace(), QUAD)
        assert found.select("op", "second_op", "via_device", "source").rows() == [
            (0, 2, 4, "same_thread")
        ]
        assert [row[0] for row in moved(b, machine_of((0, 4), (4, 7), (0, 7)))] == ["p2p"] * 2

    def test_a_star_is_none(self) -> None:
        """All gradients to GPU 0, a sum there, and weights back."""
        machine = machine_of((0, 1), (0, 2), (0, 3))
        b = TraceBuilder()
        for gpu in (1, 2, 3):
            peer(b, 10 * gpu, 10 * gpu + 10, gpu, 0)
        b.op("sum", start=41, end=45, device=0)
        for gpu in (1, 2, 3):
            peer(b, 40 + 10 * gpu, 50 + 10 * gpu, 0, gpu)
        assert [row[0] for row in moved(b, machine)] == ["p2p"] * 6

    def test_a_star_that_sums_after_each_copy_is_none(self) -> None:
        machine = machine_of((0, 1), (0, 2))
        b = TraceBuilder()
        for at, gpu in ((0, 1), (20, 2)):
            peer(b, at, at + 10, gpu, 0)
            b.op("sum", start=at + 10, end=at + 19, device=0)
        peer(b, 40, 50, 0, 1)
        peer(b, 50, 60, 0, 2)
        assert [row[0] for row in moved(b, machine)] == ["p2p"] * 4

    @pytest.mark.parametrize(
        "second",
        [
            pytest.param({"dst": 0}, id="back to where it came from"),
            pytest.param({"dst": 3}, id="to where a link leads"),
            pytest.param({"dst": 6}, id="over no link"),
            pytest.param({"src": 3}, id="from another GPU"),
            pytest.param({"bytes": SIZE // 2}, id="other bytes"),
            pytest.param({"thread": 10}, id="other process"),
            pytest.param({"start": 9}, id="overlapping"),
            pytest.param({"start": 11 + 100 * US}, id="much later"),
            pytest.param({"dst": None}, id="unknown end"),
        ],
    )
    def test_what_is_none(self, second: dict[str, Any], b: TraceBuilder) -> None:
        peer(b, 0, 10, 0, 4)
        peer(b, **({"start": 10, "end": 200 * US, "src": 4, "dst": 7} | second))
        assert [row[0] for row in moved(b, QUAD)] == ["p2p", "p2p"]

    def test_over_a_first_hop_without_a_link(self, b: TraceBuilder) -> None:
        peer(b, 0, 10, 0, 4)
        peer(b, 10, 20, 4, 7)
        assert len(moved(b, machine_of((4, 7)))) == 2

    @pytest.mark.parametrize(("gap_ns", "rows"), [(100_000, 1), (100_001, 2)])
    def test_how_close_hops_are(self, gap_ns: int, rows: int, b: TraceBuilder) -> None:
        peer(b, 0, 10, 0, 4)
        peer(b, 10 + gap_ns, 20 + gap_ns, 4, 7)
        assert len(moved(b, QUAD)) == rows

    @pytest.mark.parametrize(
        ("row", "found"),
        [
            ({"device": 4, "start": 10}, False),
            ({"device": 4, "start": 14}, False),
            ({"device": 4, "start": 14, "thread": 10}, False),
            ({"device": 3, "dst_device": 4, "src_device": 3, "kind": "p2p", "start": 14}, False),
            ({"device": 4, "start": 9}, True),  # it knows nothing of the first copy
            ({"device": 4, "start": 15}, True),
            ({"device": 3, "start": 14}, True),
        ],
    )
    def test_what_starts_in_between(
        self, row: dict[str, Any], found: bool, b: TraceBuilder
    ) -> None:
        peer(b, 0, 10, 0, 4)
        b.op("other", end=30, **row)
        peer(b, 15, 25, 4, 7)
        assert ("two_hop" in [row[0] for row in moved(b, QUAD)]) == found

    def test_each_copy_once(self) -> None:
        """A chain of three hops is one of two and one of one; one arrival leaves once."""
        line = machine_of((0, 1), (1, 2), (2, 3), (1, 4))
        b = TraceBuilder()
        for at, src, dst in ((0, 0, 1), (10, 1, 2), (20, 2, 3)):
            peer(b, at, at + 10, src, dst)
        assert moved(b, line) == [("two_hop", 0, 2, 0, 20), ("p2p", 2, 3, 20, 30)]
        b = TraceBuilder()
        peer(b, 0, 10, 0, 1)
        peer(b, 10, 20, 1, 2)
        peer(b, 10, 20, 1, 4)
        assert moved(b, line) == [("two_hop", 0, 2, 0, 20), ("p2p", 1, 4, 10, 20)]

    def test_gpus_by_their_place_in_the_machine(self, b: TraceBuilder) -> None:
        peer(b, 0, 10, 10, 11)
        peer(b, 10, 20, 11, 12)
        assert len(moved(b, QUAD)) == 2
        assert moved(b, QUAD, {10: 0, 11: 4, 12: 7}) == [("two_hop", 10, 12, 0, 20)]
        assert len(moved(b, QUAD, {10: 0, 11: 4})) == 2


def _mpi(b: TraceBuilder, start: int, end: int, thread: int = 0, library: str = "mpi") -> None:
    b.rows.setdefault("host", []).append(
        {
            "report": 0, "process": thread // 10, "thread": thread, "start": start, "end": end,
            "library": library, "name": "MPI_Send", "group": "p2p",
        }
    )  # fmt: skip


class TestMpi:
    @staticmethod
    def four(b: TraceBuilder) -> None:
        """A copy of each kind, launched by thread 0 at 10, 20, 30 and 40."""
        peer(b, 110, 112, 0, 3, at=10)
        to_host(b, 120, 122, 1, at=20, bytes=4)
        from_host(b, 130, 132, 2, at=30, bytes=4)
        to_host(b, 140, 142, 0, at=40, correlation=99)
        from_host(b, 142, 144, 7, at=40, correlation=99)

    def test_all_kinds_keep_their_ends(self, b: TraceBuilder) -> None:
        self.four(b)
        _mpi(b, 5, 50)
        table = copy_transfers(b.trace())
        columns = ("method", "source", "evidence", "src_device", "dst_device", "second_op")
        assert table.select(columns).rows() == [
            ("mpi", "mpi_call", "measured", 0, 3, None),
            ("mpi", "mpi_call", "measured", 1, None, None),
            ("mpi", "mpi_call", "measured", None, 2, None),
            ("mpi", "mpi_call", "measured", 0, 7, 4),
        ]

    @pytest.mark.parametrize(
        "row",
        [{"name": "MPI_Sendrecv"}, {"name": "Sendrecv", "domain": "MPI"}],
    )
    def test_ranges_will_do(self, row: dict[str, Any], b: TraceBuilder) -> None:
        self.four(b)
        b.range(5, 50, **row)
        assert {each[0] for each in moved(b)} == {"mpi"}

    def test_of_calls_in_calls_the_outer_one_counts(self, b: TraceBuilder) -> None:
        self.four(b)
        _mpi(b, 5, 50)
        _mpi(b, 12, 15)
        b.range(16, 17, "MPI_Wait")
        assert {each[0] for each in moved(b)} == {"mpi"}

    @pytest.mark.parametrize(
        ("start", "end", "methods"),
        [
            (20, 31, ["p2p", "mpi", "mpi", "staged"]),
            (21, 30, ["p2p", "d2h", "h2d", "staged"]),
            (20, 30, ["p2p", "mpi", "h2d", "staged"]),
        ],
    )
    def test_the_whole_launching_call_counts(
        self, start: int, end: int, methods: list[str], b: TraceBuilder
    ) -> None:
        self.four(b)
        _mpi(b, start, end)
        assert [each[0] for each in moved(b)] == methods

    def test_what_is_no_mpi_call_of_the_thread(self, b: TraceBuilder) -> None:
        self.four(b)
        _mpi(b, 5, 50, thread=1)
        _mpi(b, 5, 50, library="other")
        b.range(5, 50, "about MPI_Send")
        b.range(5, 50, "Send", domain="NCCL")
        b.start_end(5, 50, "MPI_Isend")
        assert [each[0] for each in moved(b)] == ["p2p", "d2h", "h2d", "staged"]

    def test_two_calls_one_after_the_other_are_not_one(self, b: TraceBuilder) -> None:
        to_host(b, 100, 110, at=19, launch_end=21)
        _mpi(b, 10, 20)
        _mpi(b, 20, 30)
        assert [each[0] for each in moved(b)] == ["d2h"]

    def test_what_mpi_sends_is_not_what_it_receives(self, b: TraceBuilder) -> None:
        to_host(b, 100, 110, 0, at=10)
        from_host(b, 120, 130, 7, at=20)
        peer(b, 200, 210, 0, 4, at=30)
        peer(b, 210, 220, 4, 7, at=40)
        assert [each[0] for each in moved(b, QUAD)] == ["staged", "two_hop"]
        _mpi(b, 5, 15)
        _mpi(b, 25, 35)
        assert [each[0] for each in moved(b, QUAD)] == ["mpi", "h2d", "mpi", "p2p"]


def _traffic(*rows: tuple[int | None, int | None, int | None], method: str = "p2p") -> pl.DataFrame:
    frame = pl.DataFrame(rows, ["src_device", "dst_device", "bytes"], orient="row")
    absent = dict.fromkeys(("report", "process", "start", "end"), pl.lit(0))
    words = {"method": method, "evidence": "measured", "source": "recorded", "stage": "WU"}
    return TRANSFERS.conform(
        frame.with_columns(**absent, **{name: pl.lit(word) for name, word in words.items()})
    )


class TestTrafficRoot:
    def test_a_star_has_a_root(self) -> None:
        """Of 240 MB on 8 GPUs 2(n-1)S, 3,360 MB; the root receives and sends half of it."""
        size, others = 240_000_000, (0, 1, 2, 3, 4, 6, 7)
        gather = _traffic(*((gpu, 5, size) for gpu in others))
        broadcast = _traffic(*((5, gpu, size) for gpu in others), method="staged")
        half = 1_680_000_000
        assert traffic_root(pl.concat([gather, broadcast])).rows(named=True) == [
            {
                "root": 5, "share": 1.0, "pattern": "single", "gpus": 8, "bytes": 2 * half,
                "in_bytes": half, "out_bytes": half,
            }
        ]  # fmt: skip

    def test_spread_evenly(self) -> None:
        everyone = [(src, dst, 10) for src in range(4) for dst in range(4) if src != dst]
        [row] = traffic_root(_traffic(*everyone)).rows(named=True)
        assert (row["root"], row["share"], row["pattern"]) == (0, 0.5, "spread")

    def test_the_border(self) -> None:
        single = traffic_root(_traffic((1, 0, 45), (0, 2, 45), (1, 2, 10)))
        assert single.select("root", "share", "pattern").rows() == [(0, 0.9, "single")]
        spread = traffic_root(_traffic((1, 0, 44), (0, 2, 45), (1, 2, 11)))
        assert spread["pattern"].to_list() == ["spread"]

    def test_two_gpus_cannot_tell(self) -> None:
        assert traffic_root(_traffic((0, 1, 10), (1, 0, 10))).rows() == [
            (None, None, None, 2, 20, None, None)
        ]

    def test_what_does_not_count(self) -> None:
        among = _traffic((1, 0, 10), (2, 0, 10), (3, None, 90), (None, 3, 90), (3, 2, None))
        nccl = _traffic((3, 2, 90), method="nccl")
        assert traffic_root(pl.concat([among, nccl])).select("root", "gpus", "bytes").rows() == [
            (0, 3, 20)
        ]

    @pytest.mark.parametrize("rows", [[], [(0, 1, 0), (1, 2, 0)]])
    def test_no_bytes(self, rows: list[tuple[int, int, int]]) -> None:
        [row] = traffic_root(_traffic(*rows) if rows else TRANSFERS.empty()).rows(named=True)
        assert (row["root"], row["pattern"], row["bytes"]) == (None, None, 0)


# A second implementation of all rules, copy by copy.


@dataclass(frozen=True)
class Op:
    """An op as the second implementation sees it; `kind` may be ``kernel``."""

    kind: str
    start: int
    length: int
    process: int
    device: int
    other: int
    size: int | None
    correlation: int | None
    node: int | None
    at: int | None

    @property
    def end(self) -> int:
        return self.start + self.length

    @property
    def direction(self) -> str:
        return {"staged_out": "d2h", "staged_in": "h2d"}.get(self.kind, self.kind)

    @property
    def touches(self) -> set[int]:
        return {self.device, self.other} if self.kind == "p2p" else {self.device}


Found = tuple[Any, ...]
"""The columns `FOUND`."""


class Naive:
    """What moves, looked for one copy at a time."""

    def __init__(self, ops: Sequence[Op], calls: Sequence[tuple[int, int, int]]) -> None:
        self.ops, self.calls = ops, calls
        self.left = {n: op for n, op in enumerate(ops) if op.direction in ("p2p", "d2h", "h2d")}
        self.rows: list[Found] = []

    def find(self, machine: Machine) -> list[Found]:
        self.same_call()
        for number, op in [*self.left.items()]:
            if self.in_mpi(op):
                self.alone(number, "mpi", "mpi_call")
        self.same_thread("d2h", "h2d", None)
        self.same_bytes()
        self.same_thread("p2p", "p2p", machine)
        self.two_hop(machine)
        for number, op in [*self.left.items()]:
            self.alone(number, op.direction, "recorded")
        return sorted(self.rows)

    def in_mpi(self, op: Op) -> bool:
        return op.at is not None and any(
            thread == 10 * op.process and start <= op.at and op.at + 1 <= end
            for thread, start, end in self.calls
        )

    def alone(self, number: int, method: str, source: str) -> None:
        op = self.left.pop(number)
        src = op.device if op.direction in ("p2p", "d2h") else None
        dst = {"p2p": op.other, "h2d": op.device, "d2h": None}[op.direction]
        place = (number, None, src, dst, None, op.size, op.start, op.end, None, None)
        self.rows.append((*place, method, "measured", source))

    def pair(
        self, one: int, other: int, method: str, via: int | None, source: str = "same_bytes"
    ) -> None:
        first, second = self.left.pop(one), self.left.pop(other)
        dst = second.other if method == "two_hop" else second.device
        ends = (first.device, dst, via, first.size, first.start, max(first.end, second.end))
        ends += (first.end, second.start)
        self.rows.append((one, other, *ends, method, "modelled", source))

    def same_thread(self, kind: str, then: str, machine: Machine | None) -> None:
        made = [(op.process, op.at, number) for number, op in self.copies() if op.at is not None]
        pairs = []
        for (process, _, one), (same, at, other) in itertools.pairwise(sorted(made)):
            first, second = self.ops[one], self.ops[other]
            if (
                {one, other} <= {*self.left} and process == same
                and (first.kind, second.kind) == (kind, then)
                and first.size is not None and first.size == second.size
                and at < first.end <= second.start
            ):  # fmt: skip
                pairs.append((second.start, other, one))
        for _, other, one in sorted(pairs):
            first, second = self.ops[one], self.ops[other]
            if machine is None:
                if (first.size or 0) >= 4096 and first.device != second.device:
                    self.pair(one, other, "staged", None, "same_thread")
                continue
            src, relay, dst = first.device, first.other, second.other
            is_relay = (
                relay == second.device and src != dst and not machine.bricks(src, dst)
                and machine.bricks(src, relay) and machine.bricks(relay, dst)
            )  # fmt: skip
            if is_relay and {one, other} <= {*self.left}:
                self.pair(one, other, "two_hop", relay, "same_thread")

    def copies(self) -> list[tuple[int, Op]]:
        """Every copy that is no half but the first of a call's, by number."""
        gone = {*range(len(self.ops))} - {*self.left} - {row[0] for row in self.rows}
        return [
            (number, op) for number, op in enumerate(self.ops)
            if op.direction in ("p2p", "d2h", "h2d") and number not in gone
        ]  # fmt: skip

    def same_call(self) -> None:
        for key in {(op.process, op.correlation, op.node) for op in self.ops}:
            own = {
                number: op
                for number, op in self.left.items()
                if (op.process, op.correlation, op.node) == key and op.kind != "p2p"
            }
            out = [number for number, op in own.items() if op.direction == "d2h"]
            back = [number for number, op in own.items() if op.direction == "h2d"]
            src, dst = ({own[number].device for number in half} for half in (out, back))
            sizes = [[own[number].size for number in half] for half in (out, back)]
            known = [[size for size in half if size is not None] for half in sizes]
            if (
                key[1] is None or len(src) != 1 or len(dst) != 1 or src == dst
                or known != sizes or sum(known[0]) != sum(known[1])
            ):  # fmt: skip
                continue
            start, end = min(op.start for op in own.values()), max(op.end for op in own.values())
            how = ("mpi", "measured", "mpi_call")
            if not self.in_mpi(own[out[0]]):
                how = ("staged", "measured", "same_call")
            between = (max(own[n].end for n in out), min(own[n].start for n in back))
            ends = (*src, *dst, None, sum(known[0]), start, end, *between)
            self.rows.append((out[0], back[0], *ends, *how))
            for number in own:
                del self.left[number]

    def same_bytes(self) -> None:
        spent: set[int] = set()
        backs = [n for n, op in self.left.items() if op.kind == "h2d"]
        for back in sorted(backs, key=lambda n: (self.ops[n].start, n)):
            second = self.ops[back]
            fitting = [
                (first.end, number)
                for number, first in self.left.items()
                if number not in spent and first.kind == "d2h"
                and first.process == second.process
                and first.size is not None and first.size == second.size and first.size >= 4096
                and 0 <= second.start - first.end <= max(MS, 10 * first.length)
            ]  # fmt: skip
            if fitting:
                _, oldest = min(fitting)
                spent.add(oldest)
                if self.ops[oldest].device != second.device:
                    self.pair(oldest, back, "staged", None)

    def two_hop(self, machine: Machine) -> None:
        peers = {n: op for n, op in self.left.items() if op.kind == "p2p" and op.size is not None}
        for number in sorted(peers, key=lambda n: (self.ops[n].start, n)):
            second = peers[number]
            relay = second.device
            before = [
                (first.end, other)
                for other, first in peers.items()
                if (first.process, first.other, first.size)
                == (second.process, relay, second.size)
                and first.end <= second.start
            ]  # fmt: skip
            if not before:
                continue
            end, other = max(before)
            src, dst = peers[other].device, second.other
            if (
                number in self.left
                and other in self.left
                and second.start - end <= 100 * US
                and src != dst
                and not machine.bricks(src, dst)
                and machine.bricks(src, relay)
                and machine.bricks(relay, dst)
                and not any(
                    relay in op.touches and end <= op.start < second.start for op in self.ops
                )
            ):
                self.pair(other, number, "two_hop", relay)


def _built(ops: Sequence[Op], calls: Sequence[tuple[int, int, int]]) -> Trace:
    b = TraceBuilder()
    for op in ops:
        kind = {"kernel": "compute", "staged_out": "staged", "staged_in": "staged"}.get(
            op.kind, op.kind
        )
        named = {"d2h": "DtoH", "h2d": "HtoD"}
        ends = {
            "p2p": {"src_device": op.device, "dst_device": op.other},
            "d2h": {"src_device": op.device},
            "h2d": {"dst_device": op.device},
        }.get(op.direction, {})
        b.op(
            op.kind, at=op.at, thread=10 * op.process, start=op.start, end=op.end, kind=kind,
            device=op.device, bytes=op.size, copy_kind=named.get(op.direction),
            correlation=op.correlation, graph_node=op.node, **ends,
        )  # fmt: skip
    for thread, start, end in calls:
        _mpi(b, start, end, thread)
    return b.trace()


def _ops(kinds: Sequence[str], numbers: Sequence[int | None]) -> st.SearchStrategy[list[Op]]:
    tenth = MS // 10
    gpus = st.integers(0, 3)
    op = st.builds(
        lambda kind, start, length, process, device, step, *rest: Op(
            kind, start * tenth, length * tenth, process, device, (device + step) % 4, *rest
        ),
        st.sampled_from(kinds), st.integers(0, 40), st.sampled_from((0, 1, 1, 1, 2)),
        st.sampled_from((0, 0, 0, 1)), gpus, st.integers(1, 3),
        st.sampled_from((4096, 4096, 4096, 4096, 8192, 4095, None)), st.sampled_from(numbers),
        st.sampled_from((None, None, None, 9)), st.sampled_from((None, None, None, 11, 24, 60)),
    )  # fmt: skip
    return st.lists(op, max_size=25).map(lambda ops: sorted(ops, key=lambda op: op.start))


def _hops() -> st.SearchStrategy[list[Op]]:
    """Pairs of copies half around the ring, among others."""
    tenth = MS // 10

    def pair(
        start: int, src: int, way: int, lengths: tuple[int, int], gap: int, at: int | None
    ) -> list[Op]:
        stops = [(src + way * step) % 4 for step in range(3)]
        starts = start, start + lengths[0] + gap
        return [
            Op(
                "p2p", starts[hop] * tenth, lengths[hop] * tenth, 0, stops[hop], stops[hop + 1],
                4096, None, None, None if at is None else at + hop,
            )
            for hop in range(2)
        ]  # fmt: skip

    lengths = st.tuples(st.integers(0, 2), st.integers(0, 2))
    pairs = st.builds(
        pair, st.integers(0, 12), st.integers(0, 3), st.sampled_from((1, 3)), lengths,
        st.sampled_from((0, 0, 0, 1, 1, 2)), st.sampled_from((None, None, 3, 7, 20)),
    )  # fmt: skip
    some = st.tuples(st.lists(pairs, max_size=6), _ops(("p2p", "kernel"), (None,)))
    return some.map(
        lambda both: sorted(
            [op for two in both[0] for op in two] + both[1], key=lambda op: op.start
        )
    )


MPI_CALLS = st.lists(
    st.tuples(
        st.sampled_from((0, 10)),
        st.sampled_from(((0, 40), (10, 12), (12, 20), (24, 25), (24, 40), (50, 60), (60, 61))),
    ).map(lambda call: (call[0], *call[1])),
    max_size=3,
)
MIXES = {
    "calls": _ops(("d2h", "h2d", "staged_out", "staged_in", "p2p"), (1, 2, 3, 4, None)),
    "bytes": _ops(("d2h", "h2d"), (None,)),
    "hops": _hops(),
}
RING = machine_of((0, 1), (1, 2), (2, 3), (3, 0))


@pytest.mark.parametrize("mix", MIXES)
@settings(
    max_examples=examples(20, thorough=500),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_against_plain_python(mode: str, mix: str, data: st.DataObject) -> None:
    ops, calls = data.draw(MIXES[mix]), data.draw(MPI_CALLS)
    expected = Naive(ops, calls).find(RING)
    table = copy_transfers(_built(ops, calls), RING)
    assert table.select(FOUND).sort("op").rows() == expected
    used = [*table["op"], *table["second_op"].drop_nulls()]
    assert len(used) == len(set(used))
