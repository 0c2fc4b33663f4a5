"""What an export says about itself: versions, clocks, filters; and what is never read from it."""

from __future__ import annotations

from pathlib import Path

import pytest
from nsys_builder import NsysBuilder, load_schema
from source_helpers import column, execute, remarks, rows, trace_of, versions_with

from tracekit.model import TABLES, Trace
from tracekit.sources import read

EXPORT, CAPTURE = "META_DATA_EXPORT", "META_DATA_CAPTURE"
EPOCH = 1_700_000_000_123_456_789
GRAPH = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"


def test_the_report_is_described_as_far_as_its_version_goes(nsys):
    nsys.kernel(1, 2)
    nsys.session(EPOCH, 5000)
    nsys.env("Hostname", "node7")
    trace = trace_of(nsys)
    tables = nsys.schema.tables
    described = EXPORT in tables or "EXPORT_META_DATA" in tables
    product = f"NVIDIA Nsight Systems {nsys.schema.products[0]}"
    assert rows(
        trace, "reports", "report", "file", "format", "product", "schema_version", "size",
        "digest", "host", "session_start", "duration",
    ) == [
        (0, "t.sqlite", "nsys SQLite", product if described else None,
         nsys.schema.version if described else None, nsys.path.stat().st_size, None,
         "node7" if "TARGET_INFO_SYSTEM_ENV" in tables else None,
         EPOCH if "TARGET_INFO_SESSION_START_TIME" in tables else None,
         5000 if "ANALYSIS_DETAILS" in tables else None),
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["localhost", "localhost.localdomain", "LOCALHOST"])
def test_a_host_that_any_machine_may_be_has_no_name(one, name):
    """Clocks of two nodes were taken for one by it, and their steps ended with each other's."""
    one.kernel(1, 2)
    one.env("Hostname", name)
    assert rows(trace_of(one), "reports", "host") == [(None,)]


def test_the_name_of_the_file_may_be_no_text(one, tmp_path):
    one.kernel(1, 2)
    one.close()
    path = one.path.rename(tmp_path / b"caf\xe9.sqlite".decode("utf-8", "surrogateescape"))
    assert rows(read(path), "reports", "file") == [("caf\ufffd.sqlite",)]


@pytest.mark.parametrize("name", ["a b.sqlite", "a#b?c%20.sqlite", "it's.sqlite", "漢字.sqlite"])
def test_the_name_of_the_file_is_kept(tmp_path, name):
    with NsysBuilder(tmp_path / name) as nsys:
        nsys.kernel(1, 2)
    assert rows(read(tmp_path / name), "reports", "file") == [(name,)]


class TestClock:
    """All times are counted from the start of the session, however they were exported."""

    def shifted(self, nsys: NsysBuilder, shift: int) -> Trace:
        nsys.meta("EXPORT_CONFIG_TIME_SHIFT", str(shift))
        nsys.session(EPOCH, 500)
        nsys.call(shift + 10, shift + 15, correlation=1)
        nsys.kernel(shift + 20, shift + 30, correlation=1)
        nsys.memcpy(shift + 40, shift + 50)
        nsys.memset(shift + 60, shift + 70)
        nsys.push_pop(shift + 5, shift + 80, "closed")
        nsys.push_pop(shift + 6, None, "open")
        nsys.push_pop(shift + 7, shift + 500, "cut")
        nsys.push_pop(shift - 9, shift - 4, "before")
        return trace_of(nsys)

    @pytest.mark.parametrize("nsys", versions_with(EXPORT), indirect=True)
    def test_normalised_to_the_unix_epoch(self, nsys):
        trace = self.shifted(nsys, EPOCH)
        assert rows(trace, "calls", "start", "end") == [(10, 15)]
        assert rows(trace, "ops", "start", "end") == [(20, 30), (40, 50), (60, 70)]
        assert rows(trace, "ranges", "name", "start", "end", "open") == [
            ("before", -9, -4, False),
            ("closed", 5, 80, False),
            ("open", 6, 500, True),
            ("cut", 7, 500, True),
        ]
        assert rows(trace, "reports", "session_start", "duration") == [(EPOCH, 500)]

    @pytest.mark.parametrize("shift", [0, 1_000, -1_000])
    def test_shifted_by_hand(self, one, shift):
        assert rows(self.shifted(one, shift), "ops", "start", "end") == [
            (20, 30),
            (40, 50),
            (60, 70),
        ]

    @pytest.mark.parametrize(
        "shift", ["", "none", "1e9", "--5", "²", "5 ns", "99999999999999999999"]
    )
    def test_a_shift_that_is_no_number_is_none(self, one, shift):
        one.meta("EXPORT_CONFIG_TIME_SHIFT", shift)
        one.kernel(20, 30)
        assert rows(trace_of(one), "ops", "start", "end") == [(20, 30)]

    @pytest.mark.parametrize("nsys", versions_with(GRAPH)[:1], indirect=True)
    @pytest.mark.parametrize("recorded", [0, EPOCH])
    def test_a_time_that_is_not_known_is_none_before_and_after_the_shift(self, nsys, recorded):
        nsys.meta("EXPORT_CONFIG_TIME_SHIFT", str(EPOCH))
        nsys.graph_trace(recorded, recorded)
        nsys.kernel(EPOCH + 5, EPOCH + 6)
        trace = trace_of(nsys)
        assert rows(trace, "ops", "start", "end") == [(5, 6)]
        assert remarks(trace) == ("1 GPU ops have no valid times and were left out",)


class TestFilters:
    def test_a_filter_by_time_is_told(self, one):
        one.kernel(1, 2)
        one.meta("EXPORT_PARAM_TIMES_TO_EXPORT", "[500000000,1000000000]")
        [warning] = remarks(trace_of(one))
        assert "--times [500000000,1000000000]" in warning
        assert "names are lost" in warning

    def test_a_filter_by_table_is_told(self, one):
        one.kernel(1, 2)
        one.meta("EXPORT_PARAM_TABLES_TO_EXPORT", "CUPTI.*")
        [warning] = remarks(trace_of(one))
        assert "--tables CUPTI.*" in warning

    def test_no_filter_is_not_told(self, one):
        one.kernel(1, 2)
        one.meta("EXPORT_PARAM_TIMES_TO_EXPORT", "")
        one.meta("EXPORT_PARAM_TABLES_TO_EXPORT", "")
        assert remarks(trace_of(one)) == ()


SECRET = "hf_abcdefSECRETtoken"


def _plant(nsys: NsysBuilder) -> None:
    """Put a secret wherever exports are known to hold environments, users and paths."""
    nsys.capture("PROCESS_0:ENVIRONMENT_VARIABLE", f"HF_TOKEN={SECRET}")
    nsys.capture("PROCESS_0:ENVIRONMENT_VARIABLE", f"AXCUDA_VISIBLE_DEVICES={SECRET}")
    nsys.capture("PROCESS_0:ARGUMENT_1", f"--password={SECRET}")
    nsys.capture("PROCESS_0:WORKING_DIR", f"/home/{SECRET}")
    nsys.env("DeviceEnvironment", f"A=1\x00TOKEN={SECRET}\x00B=2", number=3)
    nsys.env("UserName", SECRET)
    nsys.meta("EXPORT_USER", SECRET)
    nsys.meta("EXPORT_PARAM_INPUT_FILE", f"/home/{SECRET}/report.nsys-rep")
    nsys.string(f"PATH=/bin\x00AWS_SECRET_ACCESS_KEY={SECRET}\x00")
    nsys.process(999, f"/home/{SECRET}/tail")
    nsys.thread_name(999, 999, SECRET)


class TestSecrets:
    def test_stay_in_the_file(self, nsys, tmp_path):
        _plant(nsys)
        nsys.launch(10, 20, 30)
        nsys.push_pop(5, 40, "step")
        trace = trace_of(nsys)
        assert SECRET.encode() in nsys.path.read_bytes()
        told = [repr(value) for name in TABLES for row in trace.read(name).rows() for value in row]
        assert not any(SECRET in text for text in (*told, *trace.warnings))
        folder = tmp_path / "run"
        folder.mkdir()
        trace.write(folder)
        files = [path for path in folder.rglob("*") if path.is_file()]
        assert files
        assert not any(SECRET.encode() in path.read_bytes() for path in files)

    def test_stay_in_the_file_when_reading_it_fails(self, one):
        _plant(one)
        one.close()
        with pytest.raises(Exception, match="no GPU work") as caught:
            read(one.path)
        assert SECRET not in str(caught.value)


class TestContents:
    def test_every_feature_is_listed_present_or_not(self, nsys):
        nsys.kernel(1, 2)
        nsys.kernel(3, 4)
        nsys.memcpy(5, 6)
        nsys.call(1, 2)
        nsys.domain(100, 1, "D")
        nsys.push_pop(1, 2, "r")
        trace = trace_of(nsys)
        present = {
            "kernels": ("CUPTI_ACTIVITY_KIND_KERNEL", 2),
            "copies": ("CUPTI_ACTIVITY_KIND_MEMCPY", 1),
            "CUDA calls": ("CUPTI_ACTIVITY_KIND_RUNTIME", 1),
            "NVTX events": ("NVTX_EVENTS", 2),
        }
        told = {
            feature: (table, count)
            for feature, table, there, count in rows(
                trace, "contents", "feature", "source_table", "present", "rows"
            )
            if there
        }
        assert told == present
        absent = trace.read("contents").filter(~trace.read("contents")["present"])
        assert set(absent["rows"]) == {0}
        assert {"memsets", "thread names", "GPU descriptions", "MPI calls"} <= {*absent["feature"]}
        assert absent["record_with"].null_count() == 0

    def test_tables_that_nothing_reads_are_not_counted(self, one):
        one.kernel(1, 2)
        one.insert("OSRT_API", start=1, end=2, globalTid=1, nameId=one.string("poll"))
        trace = trace_of(one)
        told = {row[0]: row[1:] for row in rows(trace, "contents", "feature", "present", "rows")}
        assert told["OS runtime calls"] == (True, None)

    def test_an_empty_table_holds_nothing(self, one):
        one.kernel(1, 2)
        one.close()
        execute(one.path, "CREATE TABLE MPI_RANKS (globalTid INTEGER, rank INTEGER)")
        told = {
            row[0]: row[1:]
            for row in rows(read(one.path), "contents", "feature", "present", "rows")
        }
        assert told["MPI calls"] == (False, 0)
        assert told["kernels"] == (True, 1)


def test_metadata_of_both_names_is_found(tmp_path):
    """What the table is called changed between 2023.2 and 2023.4."""
    for version in ("3.0.0", "3.7.2"):
        path = tmp_path / f"{version}.sqlite"
        with NsysBuilder(path, schema=version) as nsys:
            nsys.kernel(1, 2)
        assert column(read(path), "reports", "schema_version") == [version]
        assert len({"META_DATA_EXPORT", "EXPORT_META_DATA"} & {*load_schema(version).tables}) == 1


@pytest.mark.parametrize("declaration", ["other TEXT", "name TEXT", "value TEXT", "Name, Value"])
@pytest.mark.parametrize("table", [EXPORT, CAPTURE, "TARGET_INFO_SYSTEM_ENV"])
def test_metadata_of_unknown_shape_is_passed_over(tmp_path: Path, declaration, table):
    path = tmp_path / "t.sqlite"
    with NsysBuilder(path, schema="none-2020.4") as nsys:
        nsys.kernel(1, 2)
    execute(path, f"CREATE TABLE {table} ({declaration})")
    trace = read(path)
    assert rows(trace, "reports", "schema_version", "product", "host") == [(None, None, None)]
    assert trace.read("ops").height == 1
