"""Sampled counters of GPUs and NICs: known by name, placed by the numbers of their sources."""

from __future__ import annotations

import json

import pytest
from nsys_builder import NsysBuilder
from source_helpers import column, execute, remarks, rows, trace_of, versions_with

import tracekit
from tracekit.sources import read
from tracekit.sources.nsys import read as read_nsys
from tracekit.sources.sqlite import SqliteFile
from tracekit.support.spool import GIB, Workspace

GPU = versions_with("GPU_METRICS")
NIC = versions_with("NET_NIC_METRIC")
TYPE = 1 << 48 | 5 << 32 | 0x700
"""Number of a type of samples, without that of the GPU in its lowest bits."""
SAMPLE = ("device", "metric", "recorded_name", "time", "value", "unit")
GENERATIONS = {
    # as recorded on GA100 and GH100, and by versions of before
    "NVLink RX Requests Protocol Data [Throughput %]": None,
    "NVLink RX Requests User Data [Throughput %]": "nvlink_rx",
    "NVLink RX Responses User Data [Throughput %]": "nvlink_rx",
    "NVLink TX Requests User Data [Throughput %]": "nvlink_tx",
    "NVLink TX Responses Protocol Data [Throughput %]": None,
    "PCIe RX Throughput [Throughput %]": "pcie_rx",
    "PCIe TX Throughput [Throughput %]": "pcie_tx",
    "SMs Active [Throughput %]": "sm_active",
    "SMs Active [Avg]": None,
    "SM Issue [Throughput %]": None,
    "GR Active [Throughput %]": None,
    "Unallocated Warps in Active SMs [Throughput %]": None,
    "PCIe Read Requests to BAR1 [Requests]": None,
    "DRAM Read Bandwidth [Throughput %]": None,
    "GPC Clock Frequency [MHz]": None,
}
OLD = {
    "NVLink bytes received": "nvlink_rx",
    "NVLink bytes transmitted": "nvlink_tx",
    "PCIe Rx Throughput": "pcie_rx",
    "PCIe Tx Throughput": "pcie_tx",
    "SM Active": "sm_active",
    "DRAM Read Throughput": None,
}


@pytest.mark.parametrize("nsys", GPU, indirect=True)
class TestOfGpus:
    def test_samples_of_two_gpus(self, nsys):
        nsys.kernel(1, 2, device=0)
        nsys.gpu(0)
        nsys.gpu(3, cu_device=1)
        for gpu in (0, 3):
            nsys.gpu_metrics(TYPE | gpu, *GENERATIONS)
        names = list(GENERATIONS)
        nsys.gpu_sample(100, TYPE, *range(len(names)))
        nsys.gpu_sample(200, TYPE | 3, *(90 - n for n in range(len(names))))
        trace = trace_of(nsys)
        known = [(n, name) for n, name in enumerate(names) if GENERATIONS[name]]
        assert rows(trace, "metrics", "report", "nic", "start", *SAMPLE) == [
            (0, None, None, device, GENERATIONS[name], name, at, value(n), "percent")
            for device, at, value in ((0, 100, float), (1, 200, lambda n: 90.0 - n))
            for n, name in known
        ]
        assert remarks(trace) == ()

    def test_names_of_before(self, nsys):
        nsys.kernel(1, 2)
        nsys.gpu_metrics(TYPE, *OLD)
        nsys.gpu_sample(5, TYPE, *range(len(OLD)))
        found = rows(trace_of(nsys), "metrics", "recorded_name", "metric")
        assert dict(found) == {name: metric for name, metric in OLD.items() if metric}

    def test_what_the_protocol_adds_counts_where_there_is_nothing_else(self, nsys):
        nsys.kernel(1, 2)
        name = "NVLink RX Requests Protocol Data [Throughput %]"
        nsys.gpu_metrics(TYPE, name)
        nsys.gpu_metrics(TYPE | 1, name, "NVLink RX Requests User Data [Throughput %]")
        nsys.gpu_sample(5, TYPE, 40)
        nsys.gpu_sample(5, TYPE | 1, 30, 20)
        trace = trace_of(nsys)
        assert sorted(rows(trace, "metrics", "recorded_name", "value")) == [
            (name, 40.0),
            ("NVLink RX Requests User Data [Throughput %]", 20.0),
        ]

    def test_numbers_mean_something_else_for_another_type(self, nsys):
        nsys.kernel(1, 2)
        nsys.gpu_metrics(TYPE, "SMs Active [Throughput %]", "GR Active [Throughput %]")
        nsys.gpu_metrics(TYPE | 1, "GR Active [Throughput %]", "SMs Active [Throughput %]")
        nsys.gpu_sample(5, TYPE, 11, 12)
        nsys.gpu_sample(5, TYPE | 1, 21, 22)
        assert column(trace_of(nsys), "metrics", "value") == [11.0, 22.0]

    def test_metrics_that_are_declared_twice_are_sampled_once(self, nsys):
        nsys.kernel(1, 2)
        nsys.gpu_metrics(TYPE, "SMs Active [Throughput %]")
        nsys.gpu_metrics(TYPE, "SMs Active [Throughput %]")
        nsys.gpu_sample(5, TYPE, 11)
        assert column(trace_of(nsys), "metrics", "value") == [11.0]

    def test_a_gpu_that_is_not_described_is_unknown(self, nsys):
        nsys.kernel(1, 2)
        nsys.gpu(0)
        for gpu in (0, 6, 7):
            nsys.gpu_metrics(TYPE | gpu, "SMs Active [Throughput %]")
            nsys.gpu_sample(5, TYPE | gpu, 50)
        trace = trace_of(nsys)
        assert column(trace, "metrics", "device") == [0, None, None]
        assert remarks(trace) == (
            "2 GPUs were sampled that the export does not describe, so their device is not known",
        )

    def test_devices_go_by_the_gpu_and_not_by_the_ordinal(self, nsys):
        """Each process has been shown one GPU, which it calls 0."""
        for gpu in (2, 5):
            nsys.gpu(gpu, cu_device=0 if gpu == 2 else 1)
            nsys.gpu_metrics(TYPE | gpu, "SMs Active [Throughput %]")
        nsys.kernel(1, 2, device=0)
        nsys.kernel(3, 4, device=1)
        nsys.gpu_sample(5, TYPE | 5, 10)
        nsys.gpu_sample(6, TYPE | 2, 20)
        trace = trace_of(nsys)
        assert rows(trace, "metrics", "device", "value") == [(1, 10.0), (0, 20.0)]

    def test_a_type_whose_number_is_negative(self, nsys):
        nsys.kernel(1, 2)
        nsys.gpu(3, cu_device=0)
        nsys.gpu_metrics(TYPE - (1 << 63) | 3, "SMs Active [Throughput %]")
        nsys.gpu_sample(5, TYPE - (1 << 63) | 3, 10)
        assert rows(trace_of(nsys), "metrics", "device", "value") == [(0, 10.0)]

    def test_times_are_counted_from_the_start_of_the_session(self, nsys):
        nsys.meta("EXPORT_CONFIG_TIME_SHIFT", "1000")
        nsys.kernel(1001, 1002)
        nsys.gpu_metrics(TYPE, "SMs Active [Throughput %]")
        nsys.gpu_sample(1010, TYPE, 1)
        nsys.gpu_sample(990, TYPE, 2)
        assert rows(trace_of(nsys), "metrics", "time", "value") == [(10, 1.0), (-10, 2.0)]

    def test_batch_by_batch(self, nsys):
        nsys.kernel(1, 2)
        nsys.gpu_metrics(TYPE, "SMs Active [Throughput %]", "GR Active [Throughput %]")
        for at in range(10):
            nsys.gpu_sample(at, TYPE, at, 99)
        nsys.close()
        workspace = Workspace(memory=GIB)
        workspace.rows = 6
        batches = list(read_nsys(SqliteFile(nsys.path), workspace).passing["metrics"]())
        assert [batch["value"].to_list() for batch in batches] == [
            [0.0, 1.0, 2.0], [3.0, 4.0, 5.0], [6.0, 7.0, 8.0], [9.0]
        ]  # fmt: skip


def test_samples_without_a_time_or_a_name(tmp_path):
    with NsysBuilder(tmp_path / "t.sqlite", schema="3.11.1") as nsys:
        nsys.kernel(1, 2)
        nsys.gpu_metrics(TYPE, "SMs Active [Throughput %]")
        nsys.gpu_sample(5, TYPE, 1, 2)  # the second has no name
        nsys.gpu_sample(6, TYPE | 1, 3)
        nsys.insert("GPU_METRICS", timestamp=None, typeId=TYPE, metricId=0, value=4)
    assert column(read(nsys.path), "metrics", "value") == [1.0]


class TestInJson:
    """Until 2022 all metrics of a GPU and a time were one text."""

    def _sample(self, nsys: NsysBuilder, at: int, type_id: int, data: object, **time: int) -> None:
        text = data if isinstance(data, str) else json.dumps(data)
        nsys.insert("GENERIC_EVENTS", typeId=type_id, data=text, **{"rawTimestamp": at, **time})

    @pytest.mark.parametrize("nsys", versions_with("GENERIC_EVENTS"), indirect=True)
    def test_is_read_where_there_is_no_table(self, nsys):
        nsys.kernel(1, 2)
        nsys.gpu(0)
        nsys.gpu(1)
        self._sample(nsys, 0, 9, {"comm": "python", "SM Active but not a metric": 1}, timestamp=1)
        for at in (10, 20):
            values = {name: str(at + n) for n, name in enumerate(OLD)}
            self._sample(nsys, 7, TYPE | 1, {"Timestamp": "3", **values}, timestamp=at)
        trace = trace_of(nsys)
        assert sorted(rows(trace, "metrics", *SAMPLE)) == sorted(
            (1, metric, name, at, float(at + n), "percent")
            for at in (10, 20)
            for n, (name, metric) in enumerate(OLD.items())
            if metric
        )

    def test_takes_the_raw_time_where_there_is_no_other(self, tmp_path):
        with NsysBuilder(tmp_path / "t.sqlite", schema="3.11.1") as nsys:
            nsys.kernel(1, 2)
            self._sample(nsys, 70, TYPE, {"SM Active": "5"})
        assert rows(read(nsys.path), "metrics", "time", "value") == [(70, 5.0)]

    def test_does_not_take_a_raw_time_for_one_that_was_shifted(self, tmp_path):
        with NsysBuilder(tmp_path / "t.sqlite", schema="3.11.1") as nsys:
            nsys.meta("EXPORT_CONFIG_TIME_SHIFT", "1000")
            nsys.kernel(1001, 1002)
            self._sample(nsys, 70, TYPE, {"SM Active": "5"})
        assert read(nsys.path).read("metrics").is_empty()

    def test_passes_over_what_is_no_sample(self, tmp_path):
        with NsysBuilder(tmp_path / "t.sqlite", schema="3.11.1") as nsys:
            nsys.kernel(1, 2)
            self._sample(nsys, 1, TYPE, {"SM Active": "5", 'say "SM" Active': "6"})
            for at, data in enumerate(
                ("", "{", "[1]", "null", {"SM Active": "x"}, {"SM Active": {}},
                 {"SM Active": "NaN"}, {"other": "1"}, {"SM Active": 8})
            ):  # fmt: skip
                self._sample(nsys, 10 + at, TYPE, data)
            for kind, data in enumerate(("", "[" * 100_000, '"SM Active"', "17")):
                self._sample(nsys, 1, 1000 + kind, data)
        assert rows(read(nsys.path), "metrics", "time", "value") == [(1, 5.0), (18, 8.0)]

    def test_is_not_read_beside_the_table(self, tmp_path):
        with NsysBuilder(tmp_path / "t.sqlite", schema="3.11.1") as nsys:
            nsys.kernel(1, 2)
            self._sample(nsys, 70, TYPE, {"SM Active": "5"}, timestamp=5)
            nsys.gpu_metrics(TYPE, "SMs Active [Throughput %]")
            nsys.gpu_sample(5, TYPE, 6)
        assert column(read(nsys.path), "metrics", "value") == [6.0]


@pytest.mark.parametrize("nsys", NIC, indirect=True)
class TestOfNics:
    COUNTERS = (
        ("IB: Bytes sent", "bytes"),
        ("IB: Packets sent", "packets"),
        ("IB: Bytes received", "bytes"),
        ("IB: Send waits", "ticks/ms"),
    )

    def test_every_column_of_a_sample_comes_from_its_row(self, nsys):
        nsys.kernel(1, 2)
        nsys.nic(77, 1, "mlx5_0")
        nsys.nic_metrics(4, *self.COUNTERS)
        nsys.nic_sample(100, 200, 77, 4, 1000, 9, 2**62, 3)
        trace = trace_of(nsys)
        assert rows(
            trace, "metrics", "report", "device", "nic", "metric", "recorded_name", "start",
            "time", "value", "unit",
        ) == [
            (0, None, "mlx5_0", "nic_tx", "IB: Bytes sent", 100, 200, 1000.0, "bytes"),
            (0, None, "mlx5_0", "nic_rx", "IB: Bytes received", 100, 200, 2.0**62, "bytes"),
            (0, None, "mlx5_0", "nic_wait", "IB: Send waits", 100, 200, 3.0, "ticks/ms"),
        ]  # fmt: skip

    def test_positions_mean_something_else_in_another_list(self, nsys):
        nsys.kernel(1, 2)
        nsys.nic(77, 1, "mlx5_0")
        nsys.nic_metrics(4, *self.COUNTERS)
        nsys.nic_metrics(5, *reversed(self.COUNTERS))
        nsys.nic_sample(1, 2, 77, 4, 10)
        nsys.nic_sample(3, 4, 77, 5, 20)
        nsys.nic_sample(5, 6, 77, 6, 30)
        assert rows(trace_of(nsys), "metrics", "metric", "value") == [
            ("nic_tx", 10.0),
            ("nic_wait", 20.0),
        ]

    def test_an_adapter_without_a_name_is_known_by_its_number(self, nsys):
        nsys.kernel(1, 2)
        nsys.nic_metrics(4, *self.COUNTERS)
        nsys.nic_sample(1, 2, 77, 4, 10)
        assert column(trace_of(nsys), "metrics", "nic") == ["NIC 77"]

    @pytest.mark.slow
    def test_damaged_samples_cost_no_others(self, nsys):
        """And nothing of them is held against what was moved."""
        nsys.kernel(1, 900)
        nsys.nic(77, 1, "mlx5_0")
        nsys.nic_metrics(4, *self.COUNTERS)
        nsys.nic_sample(100, 200, 77, 4, 7)
        for start, end, value in (
            (300, 200, 5), (400, 400, 5), (500, 600, -5), (-(1 << 63), (1 << 63) - 1, 5),
            (600, 700, "many"), (700, 800, b"\x00"), (800, 900, 1 << 62),
        ):  # fmt: skip
            nsys.nic_sample(start, end, 77, 4, value)
        nsys.nic_sample(100, 200, -1, 1 << 62, 5)
        nsys.close()
        execute(nsys.path, "UPDATE NIC_ID_MAP SET nicId = 'one' WHERE 0")
        run = tracekit.open(nsys.path)
        assert [7.0, float(1 << 62)] == [
            value for value in column(run.trace, "metrics", "value") if value in {7.0, 2.0**62}
        ]
        [row] = run.links(counters=True).to_dicts()
        assert (row["nic"], row["metric"], row["measured_bytes"]) == ("mlx5_0", "nic_tx", None)

    def test_times_are_counted_from_the_start_of_the_session(self, nsys):
        nsys.meta("EXPORT_CONFIG_TIME_SHIFT", "-500")
        nsys.kernel(1, 2)
        nsys.nic_metrics(4, *self.COUNTERS)
        nsys.nic_sample(-400, -300, 77, 4, 10)
        assert rows(trace_of(nsys), "metrics", "start", "time") == [(100, 200)]


def test_an_export_without_samples_has_none(nsys):
    nsys.kernel(1, 2)
    trace = trace_of(nsys)
    assert trace.read("metrics").is_empty()
    assert trace.read("host").is_empty()


def test_a_table_of_samples_without_its_columns_is_passed_over(one):
    one.kernel(1, 2)
    one.close()
    execute(
        one.path,
        "CREATE TABLE GENERIC_EVENTS (x INTEGER)",
        "INSERT INTO GENERIC_EVENTS VALUES (1)",
        "CREATE TABLE NET_NIC_METRIC (x INTEGER)",
        "INSERT INTO NET_NIC_METRIC VALUES (1)",
    )
    assert read(one.path).read("metrics").is_empty()
