"""Latency by message size, speedups, and histograms, on literal calls."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_builder import TraceBuilder

from tracekit.analysis.communication import latency, latency_speedup, message_histogram
from tracekit.errors import UsageError
from tracekit.model import COLLECTIVE_CALLS, Trace

KIB, MIB = 1 << 10, 1 << 20
US, MS = 1000, 1_000_000


def call(start: int, end: int, size: int | None, rank: int = 0, **row: Any) -> dict[str, Any]:
    return {
        "report": 0, "process": rank, "library": "mpi", "collective": "all_reduce", "start": start,
        "end": end, "message_bytes": size, "bytes": size,
    } | row  # fmt: skip


def calls(*rows: dict[str, Any]) -> pl.DataFrame:
    frame = pl.DataFrame(list(rows), infer_schema_length=None)
    return COLLECTIVE_CALLS.conform(frame if rows else COLLECTIVE_CALLS.empty())


def one_size(duration: int, size: int = 64 * KIB, **row: Any) -> pl.DataFrame:
    """The latency of one all-reduce."""
    return latency(calls(call(0, duration, size, **row))).rows


PAIR = (call(100, 180, 1024, 0, match=0), call(130, 182, 1024, 1, match=0))
"""Two ranks of one collective, ns."""


class TestLatency:
    def test_two_ranks(self) -> None:
        """The durations are 80 and 52; the span is that from 100 to 182; 30 apart at the start."""
        row = latency(calls(*PAIR)).rows.row(0, named=True)
        assert row["p50_ns"] == 66
        assert (row["span_ns"], row["skew_ns"], row["active_ns"]) == (82, 30, 52)
        assert (row["count"], row["participants"]) == (1, 2)
        assert latency(calls(*PAIR), measure="span").rows["p50_ns"].item() == 82
        assert latency(calls(*PAIR), measure="active").rows["p50_ns"].item() == 52

    def test_bandwidths_are_those_of_nccl_tests(self) -> None:
        """256 MiB over 16 ranks in 0.1 s: 2.6844 GB/s, on the bus 15/8 of that."""
        rows = [call(0, 100 * MS, 256 * MIB, rank, match=0) for rank in range(16)]
        row = latency(calls(*rows)).rows.row(0, named=True)
        assert row["algorithm_bandwidth_gb_s"] == pytest.approx(2.6844, abs=0.00005)
        assert row["bus_bandwidth_gb_s"] == pytest.approx(5.0332, abs=0.00005)

    def test_the_number_of_ranks_is_that_of_the_communicator_first(self) -> None:
        rows = [call(0, 100 * MS, 256 * MIB, rank, match=0, ranks=16) for rank in range(2)]
        bus = latency(calls(*rows)).rows["bus_bandwidth_gb_s"].item()
        assert bus == pytest.approx(5.0332, abs=0.00005)

    def test_a_collective_of_some_of_unknown_ranks_has_no_bus_bandwidth(self) -> None:
        rows = [*PAIR, call(0, 10, 1, 2, collective="barrier")]
        row = latency(calls(*rows)).rows.filter(pl.col("operation") == "all_reduce")
        assert row["bus_bandwidth_gb_s"].item() is None

    def test_a_sweep_has_27_sizes(self) -> None:
        sweep = [4 << step for step in range(27)]
        assert sweep[-1] == 256 * MIB
        rows = calls(*(call(n * 100, n * 100 + 50, size) for n, size in enumerate(sweep)))
        for buckets in ("exact", "power2"):
            table = latency(rows, buckets=buckets).rows  # type: ignore[arg-type]
            assert table["size_bytes"].to_list() == sweep
        classes = latency(rows, buckets="class").rows
        assert classes.select("class", "count").rows() == [
            ("small", 12), ("medium", 6), ("large", 9)
        ]  # fmt: skip

    @pytest.mark.parametrize(
        ("size", "bucket", "name"),
        [
            (0, 0, "small"), (1, 1, "small"), (3, 2, "small"), (8 * KIB, 8 * KIB, "small"),
            (8 * KIB + 1, 8 * KIB, "medium"), (512 * KIB, 512 * KIB, "medium"),
            (512 * KIB + 1, 512 * KIB, "large"), ((1 << 53) - 1, 1 << 52, "large"),
            (None, None, None),
        ],
    )  # fmt: skip
    def test_edges_of_buckets(self, size: int | None, bucket: int | None, name: str | None) -> None:
        row = one_size(10, size).row(0, named=True)  # type: ignore[arg-type]
        assert (row["size_bytes"], row["class"]) == (bucket, name)

    def test_a_power_of_two_that_two_classes_share(self) -> None:
        rows = calls(call(0, 10, 8 * KIB), call(20, 30, 8 * KIB + 4))
        assert latency(rows).rows.select("size_bytes", "class", "count").rows() == [
            (8 * KIB, "mixed", 2)
        ]
        assert latency(rows, buckets="exact").rows["class"].to_list() == ["small", "medium"]

    def test_unknown_sizes_are_a_row_of_their_own(self) -> None:
        table = latency(calls(call(0, 10, None), call(20, 50, 64))).rows
        assert table.select("size_bytes", "p50_ns").rows() == [(64, 30), (None, 10)]

    def test_statistics(self) -> None:
        durations = [30, 10, 20, 40, 100]
        rows = calls(*(call(n * 1000, n * 1000 + d, 64) for n, d in enumerate(durations)))
        row = latency(rows).rows.row(0, named=True)
        names = ("count", "min_ns", "p50_ns", "mean_ns", "p95_ns", "max_ns")
        assert [row[name] for name in names] == [5, 10, 30, 40, 100, 100]

    def test_one_participant_has_its_own_time_and_no_skew(self) -> None:
        row = one_size(80).row(0, named=True)
        assert row["p50_ns"] == 80
        assert (row["span_ns"], row["skew_ns"], row["active_ns"]) == (None, None, None)
        assert latency(calls(call(0, 80, 4)), measure="span").rows.is_empty()

    def test_with_matched_collectives_the_others_are_left_out(self) -> None:
        row = latency(calls(*PAIR, call(500, 900, 1024))).rows.row(0, named=True)
        assert (row["count"], row["max_ns"]) == (1, 66)

    def test_the_size_of_an_all_gather_is_one_ranks_part(self) -> None:
        row = call(0, 10, 64, collective="all_gather", bytes=256, ranks=4)
        assert latency(calls(row)).rows["size_bytes"].to_list() == [64]
        row["message_bytes"] = None
        assert latency(calls(row)).rows["size_bytes"].to_list() == [64]

    def test_libraries(self) -> None:
        rows = calls(call(0, 10, 64), call(0, 10, 64, library="nccl", device=0))
        assert latency(rows).rows["library"].to_list() == ["mpi", "nccl"]
        assert latency(rows, library="nccl").rows["library"].to_list() == ["nccl"]

    def test_no_calls(self) -> None:
        table = latency(calls()).rows
        assert table.is_empty()
        assert table.schema == latency(calls(*PAIR)).rows.schema

    def test_options(self) -> None:
        for option in ({"buckets": "log"}, {"measure": "mean"}, {"library": "gloo"}):
            with pytest.raises(UsageError, match=r"is unknown: .*choose among"):
                latency(calls(), **option)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="lacks start"):
            latency(calls(*PAIR).drop("start"))


class TestTraces:
    def host(self, *rows: dict[str, Any], **tables: pl.DataFrame) -> Trace:
        base = {"report": 0, "library": "mpi", "group": "collective"}
        frame = pl.DataFrame([base | row for row in rows], infer_schema_length=None)
        return Trace.of({"host": frame, **tables})

    def mpi(
        self, name: str, start: int, end: int, size: int | None, rank: int = 0, **row: Any
    ) -> dict[str, Any]:
        return {
            "process": rank, "thread": rank, "rank": rank, "start": start, "end": end, "name": name,
            "bytes": size,
        } | row  # fmt: skip

    def test_ranks_are_matched(self) -> None:
        trace = self.host(
            self.mpi("MPI_Allreduce", 100, 180, 1024), self.mpi("MPI_Allreduce", 130, 182, 1024, 1)
        )
        row = latency(trace).rows.row(0, named=True)
        assert (row["library"], row["operation"], row["size_bytes"]) == ("mpi", "all_reduce", 1024)
        assert (row["p50_ns"], row["span_ns"], row["skew_ns"], row["active_ns"]) == (66, 82, 30, 52)
        assert latency(trace).meta["missing"] == []

    def test_ranks_of_hosts_whose_clocks_differ(self) -> None:
        reports = pl.DataFrame(
            {
                "report": [0, 1], "file": "f", "format": "nsys", "size": 1, "host": ["a", "b"],
                "session_start": [0, 50],
            }
        )  # fmt: skip
        communicator = {"communicator": 7}
        trace = self.host(
            self.mpi("MPI_Allreduce", 100, 180, 1024, **communicator),
            self.mpi("MPI_Allreduce", 130, 182, 1024, 1, report=1, **communicator),
            reports=reports,
        )
        row = latency(trace).rows.row(0, named=True)
        assert row["span_ns"] is row["skew_ns"] is row["active_ns"] is None

    def test_messages_between_two_ranks(self) -> None:
        p2p = {"group": "p2p"}
        trace = self.host(
            self.mpi("MPI_Send", 0, 10, 100, **p2p),
            self.mpi("MPI_Ssend", 10, 30, 100, **p2p),
            self.mpi("PMPI_Recv", 0, 50, 100, 1, **p2p),
            self.mpi("MPI_Sendrecv_replace", 60, 90, 100, 1, **p2p),
            self.mpi("MPI_Isend", 95, 96, 100, **p2p),
            self.mpi("MPI_Waitall", 100, 201, None, group="start_wait"),
        )
        table = latency(trace).rows
        assert table.select("operation", "size_bytes", "count", "mean_ns").rows() == [
            ("send", 64, 2, 15),
            ("recv", 64, 1, 50),
            ("sendrecv", 64, 1, 30),
        ]
        meta = latency(trace).meta
        assert (meta["operations"], meta["unmatched"], meta["not_blocking"]) == (4, 0, 1)

    def test_a_call_within_a_call_counts_once(self) -> None:
        trace = self.host(
            self.mpi("MPI_Send", 0, 10, 100, group="p2p"),
            self.mpi("PMPI_Send", 1, 9, 100, group="p2p"),
        )
        assert latency(trace).rows["count"].to_list() == [1]

    def test_calls_that_are_ranges(self, b: TraceBuilder) -> None:
        """nsys before 2023.4 keeps MPI's calls as ranges, without sizes."""
        b.range(0, 10, "MPI_Send", domain="MPI")
        b.range(20, 50, "MPI_Allreduce", domain="MPI")
        trace = b.trace()
        assert latency(trace).rows.select("operation", "size_bytes", "p50_ns").rows() == [
            ("all_reduce", None, 30),
            ("send", None, 10),
        ]
        meta = latency(trace).meta
        assert (meta["unsized"], meta["unmatched"]) == (2, 1)
        assert len(meta["missing"]) == 2

    def test_nccl_kernels(self, b: TraceBuilder) -> None:
        b.op("nccl", start=0, end=100, kind="collective", collective="all_reduce")
        b.op("nccl", start=10, end=100, thread=10, device=1, kind="collective",
             collective="all_reduce")  # fmt: skip
        row = latency(b.trace(), sizes={"all_reduce": MIB}).rows.row(0, named=True)
        assert (row["library"], row["size_bytes"], row["p50_ns"], row["span_ns"]) == (
            "nccl", MIB, 95, 100
        )  # fmt: skip
        # Two ranks of two: the bus carries as much as the algorithm.
        assert row["bus_bandwidth_gb_s"] == pytest.approx(MIB / 100)

    def test_a_run_without_any(self) -> None:
        trace = Trace.of({})
        assert latency(trace).rows.is_empty()
        assert "nsys profile" in latency(trace).meta["missing"][0]


class TestSpeedup:
    @pytest.mark.parametrize(
        ("before", "after", "speedup", "reduction"),
        [(170 * US, 10 * US, 17.0, 94.1176), (100 * MS, 71 * MS, 1.408, 29.0)],
    )
    def test_worked(self, before: int, after: int, speedup: float, reduction: float) -> None:
        row = latency_speedup(one_size(before), one_size(after)).row(0, named=True)
        assert row["speedup"] == pytest.approx(speedup, abs=0.0005)
        assert row["reduction_percent"] == pytest.approx(reduction, abs=0.0001)
        assert (row["base_ns"], row["new_ns"]) == (before, after)

    def test_across_libraries(self) -> None:
        nccl = one_size(170, library="nccl", device=0)
        row = latency_speedup(nccl, one_size(10)).row(0, named=True)
        assert (row["base_library"], row["new_library"], row["speedup"]) == ("nccl", "mpi", 17)

    def test_within_a_library_where_both_have_it(self) -> None:
        both = latency(calls(call(0, 10, 64), call(0, 40, 64, library="nccl", device=0))).rows
        table = latency_speedup(both, both)
        assert table.select("base_library", "new_library", "speedup").rows() == [
            ("mpi", "mpi", 1.0), ("nccl", "nccl", 1.0)
        ]  # fmt: skip

    def test_what_only_one_has_is_shown(self) -> None:
        table = latency_speedup(one_size(10, 64), one_size(10, 128))
        assert table.select("size_bytes", "class", "base_ns", "new_ns", "speedup").rows() == [
            (64, "small", 10, None, None),
            (128, "small", None, 10, None),
        ]

    def test_unknown_sizes_are_not_compared_but_barriers_are(self) -> None:
        rows = calls(call(0, 10, None), call(20, 30, None, collective="barrier"))
        table = latency_speedup(latency(rows).rows, latency(rows).rows)
        assert table.select("operation", "speedup").rows() == [("all_reduce", None), ("barrier", 1)]

    def test_tables_of_classes(self) -> None:
        tables = [latency(calls(call(0, d, 64)), buckets="class").rows for d in (30, 10)]
        row = latency_speedup(*tables).row(0, named=True)
        assert (row["class"], row["speedup"]) == ("small", 3)

    def test_different_buckets_are_refused(self) -> None:
        with pytest.raises(UsageError, match="different buckets"):
            latency_speedup(latency(calls(*PAIR)).rows, latency(calls(*PAIR), buckets="class").rows)


class TestHistogram:
    def test_counts_and_bytes(self) -> None:
        rows = [*PAIR, call(200, 210, 1500), call(300, 310, 600), call(400, 410, None)]
        columns = ("size_bytes", "class", "count", "calls", "bytes")
        table = message_histogram(calls(*rows)).rows
        assert table.select(columns).rows() == [
            (512, "small", 1, 1, 600),
            (1024, "small", 2, 3, 2524),
            (None, None, 1, 1, None),
        ]
        assert table["share"].to_list() == [600 / 3124, 2524 / 3124, None]

    def test_messages_of_a_trace(self) -> None:
        row = {
            "report": 0, "process": 0, "thread": 0, "start": 0, "end": 5, "library": "mpi",
            "group": "p2p", "name": "MPI_Send", "bytes": 3,
        }  # fmt: skip
        table = message_histogram(Trace.of({"host": pl.DataFrame([row])})).rows
        assert table.select("operation", "size_bytes", "count", "bytes").rows() == [
            ("send", 2, 1, 3)
        ]


Collective = tuple[int, list[tuple[int, int]]]


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([1, 2, 3, 1000, 8 * KIB, MIB]),
            st.lists(st.tuples(st.integers(0, 100), st.integers(1, 100)), min_size=2, max_size=4),
        ),
        min_size=1,
        max_size=10,
    )
)
def test_matched_collectives_by_brute_force(collectives: Sequence[Collective]) -> None:
    rows = [
        call(start, start + duration, size, rank, match=number)
        for number, (size, ranks) in enumerate(collectives)
        for rank, (start, duration) in enumerate(ranks)
    ]
    naive: dict[int, list[tuple[float, int]]] = {}
    for size, ranks in collectives:
        ends = [start + duration for start, duration in ranks]
        value = fmean(duration for _, duration in ranks)
        span = max(ends) - min(start for start, _ in ranks)
        naive.setdefault(1 << (size.bit_length() - 1), []).append((value, span))
    table = latency(calls(*rows)).rows
    assert table["size_bytes"].to_list() == sorted(naive)
    for row in table.rows(named=True):
        values = [value for value, _ in naive[row["size_bytes"]]]
        assert row["count"] == len(values)
        assert row["min_ns"] == pytest.approx(min(values), abs=0.5)
        assert row["max_ns"] == pytest.approx(max(values), abs=0.5)
        assert row["mean_ns"] == pytest.approx(fmean(values), abs=1)
        assert row["span_ns"] in [span for _, span in naive[row["size_bytes"]]]
