"""The schema files agree with themselves, and files written from them are what they say."""

from __future__ import annotations

import csv
import re
import sqlite3
import tomllib
from pathlib import Path
from typing import Any

import generate
import pytest
from nsys_builder import NsysBuilder, global_pid, global_tid, load_schema, schema_versions

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "schemas" / "nsys"
SAMPLES = {
    "ddp_4gpu": "3.11.1",
    "ddp_4gpu_no_backward_range": "3.0.0",
    "p2p_2gpu_start_end": "none-2020.4",
    "closure_1gpu": "3.17.2",
}
VERSIONS = sorted(schema_versions())
COLUMN = re.compile(r"\w+ (INTEGER|TEXT|REAL)( NOT NULL)?( PRIMARY KEY)?")
GPU_WORK = {"start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid"}
MPI_CALL = {"start", "end", "globalTid", "textId"}
REQUIRED = {
    "StringIds": {"id", "value"},
    "ThreadNames": {"nameId", "globalTid"},
    "CUPTI_ACTIVITY_KIND_KERNEL": GPU_WORK | {"demangledName", "shortName", "graphNodeId"},
    "CUPTI_ACTIVITY_KIND_MEMCPY": GPU_WORK | {"bytes", "copyKind", "srcDeviceId", "dstDeviceId"},
    "CUPTI_ACTIVITY_KIND_MEMSET": GPU_WORK | {"bytes"},
    "CUPTI_ACTIVITY_KIND_RUNTIME": {"start", "end", "globalTid", "correlationId", "nameId"},
    "NVTX_EVENTS": {"start", "end", "eventType", "text", "textId", "domainId", "globalTid"},
}

REQUIRED_WHERE_THERE = {
    "CUPTI_ACTIVITY_KIND_MEMCPY": {"srcKind", "dstKind", "srcContextId", "dstContextId"},
    "TARGET_INFO_CUDA_CONTEXT_INFO": {"processId", "contextId", "deviceId"},
    "TARGET_INFO_CUDA_NULL_STREAM": {"processId", "contextId", "deviceId"},
    "NVTX_PAYLOAD_SCHEMAS": {"domainId", "schemaId", "type", "numEntries", "payloadSize"},
    "NVTX_PAYLOAD_SCHEMA_ENTRIES": {"domainId", "schemaId", "idx", "flags", "type", "offset"},
    "NVTX_PAYLOAD_ENUMS": {"domainId", "schemaId", "numEntries", "size"},
    "NVTX_PAYLOAD_ENUM_ENTRIES": {"domainId", "schemaId", "idx", "name", "value"},
    "MPI_RANKS": {"globalTid", "rank"},
    "MPI_P2P_EVENTS": MPI_CALL | {"commHandle", "tag", "remoteRank", "size"},
    "MPI_COLLECTIVES_EVENTS": MPI_CALL | {"commHandle", "rootRank", "size", "recvSize"},
    "MPI_START_WAIT_EVENTS": MPI_CALL,
    "MPI_OTHER_EVENTS": MPI_CALL,
    "GPU_METRICS": {"timestamp", "typeId", "metricId", "value"},
    "TARGET_INFO_GPU_METRICS": {"typeId", "metricId", "metricName"},
    "GENERIC_EVENTS": {"timestamp", "rawTimestamp", "typeId", "data"},
    "NET_NIC_METRIC": {"start", "end", "globalId", "metricsListId", "metricsIdx", "value"},
    "TARGET_INFO_NETWORK_METRICS": {"metricsListId", "metricsIdx", "name", "unit"},
    "NIC_ID_MAP": {"nicId", "globalId"},
    "TARGET_INFO_NIC_INFO": {"nicId", "name"},
    "CUDA_GPU_MEMORY_USAGE_EVENTS": {
        "start", "globalPid", "deviceId", "address", "bytes", "memKind", "memoryOperationType",
    },
    "PROFILER_OVERHEAD": {"start", "end", "globalTid", "nameId"},
    "CUPTI_ACTIVITY_KIND_OVERHEAD": {"start", "end", "globalTid", "nameId", "overheadType"},
}  # fmt: skip


def _toml(name: str) -> dict[str, Any]:
    with (FOLDER / f"{name}.toml").open("rb") as file:
        return tomllib.load(file)


def _columns(version: str, table: str) -> list[str]:
    return [column.split()[0] for column in load_schema(version).tables[table]]


def _rows(path: Path, query: str) -> list[tuple[Any, ...]]:
    file = sqlite3.connect(path)
    try:
        return file.execute(query).fetchall()
    finally:
        file.close()


def _dump(path: Path) -> list[str]:
    file = sqlite3.connect(path)
    try:
        return list(file.iterdump())
    finally:
        file.close()


@pytest.mark.parametrize("version", VERSIONS)
class TestVersionFiles:
    def test_says_what_it_describes(self, version: str) -> None:
        content = _toml(version)
        assert content["schema"] == version
        assert content["products"]
        assert all(re.fullmatch(r"20\d\d\.\d(\.\d)?", p) for p in content["products"])
        assert set(content) <= {"schema", "products", "evidence", "unlisted", "tables"}

    def test_columns_are_well_formed_and_named_once(self, version: str) -> None:
        for table, columns in _toml(version)["tables"].items():
            assert all(COLUMN.fullmatch(column) for column in columns), table
            names = [column.split()[0].lower() for column in columns]
            assert len(names) == len(set(names)), table

    def test_has_what_a_reader_needs(self, version: str) -> None:
        for table, needed in REQUIRED.items():
            assert needed <= set(_columns(version, table)), table

    def test_has_all_columns_of_what_may_be_missing(self, version: str) -> None:
        for table, needed in REQUIRED_WHERE_THERE.items():
            if table in load_schema(version).tables:
                assert needed <= set(_columns(version, table)), table

    def test_times_of_gpu_work_are_never_null(self, version: str) -> None:
        for kind in ("KERNEL", "MEMCPY", "MEMSET"):
            columns = load_schema(version).tables[f"CUPTI_ACTIVITY_KIND_{kind}"]
            assert {"start INTEGER NOT NULL", "end INTEGER NOT NULL"} <= set(columns)

    def test_every_table_and_no_unknown_column_is_described(self, version: str) -> None:
        meanings = _toml("tables")
        for table in load_schema(version).tables:
            assert meanings[table]["meaning"].endswith("."), table

    def test_sqlite_accepts_every_table(self, version: str, tmp_path: Path) -> None:
        tables = load_schema(version).tables
        with NsysBuilder(tmp_path / "t.sqlite", schema=version) as nsys:
            for table in tables:
                nsys.insert(table)
        for table, columns in tables.items():
            written = _rows(tmp_path / "t.sqlite", f"PRAGMA table_info({table})")
            assert [(name, kind) for _, name, kind, *_ in written] == [
                tuple(column.split()[:2]) for column in columns
            ]


def test_descriptions_name_only_columns_that_some_version_has() -> None:
    known: dict[str, set[str]] = {}
    for version in VERSIONS:
        for table in load_schema(version).tables:
            known.setdefault(table, set()).update(_columns(version, table))
    meanings = _toml("tables")
    common = meanings.pop("common")
    assert set(meanings) == set(known)
    assert set(common) <= set().union(*known.values())
    for table, meaning in meanings.items():
        assert set(meaning) <= {"meaning", "columns"}, table
        assert set(meaning.get("columns", {})) <= known[table], table


def test_metadata_table_was_renamed() -> None:
    old, new = "EXPORT_META_DATA", "META_DATA_EXPORT"
    has = {v: {t for t in (old, new) if t in load_schema(v).tables} for v in VERSIONS}
    assert has.pop("none-2020.4") == set()
    assert has.pop("3.0.0") == {old}
    assert all(tables == {new} for tables in has.values())


def test_unlisted_tables_come_from_the_version_named() -> None:
    listed = _toml("3.25.0")["tables"]
    assert "TARGET_INFO_GPU" not in listed
    assert load_schema("3.25.0").tables["TARGET_INFO_GPU"] == tuple(
        _toml("3.24.14")["tables"]["TARGET_INFO_GPU"]
    )


class TestBuilder:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / "t.sqlite"

    def test_tables_exist_only_with_rows(self, path: Path) -> None:
        with NsysBuilder(path) as nsys:
            nsys.memset(1, 2)
        tables = _rows(path, "SELECT name FROM sqlite_master ORDER BY name")
        assert tables == [("CUPTI_ACTIVITY_KIND_MEMSET",), ("META_DATA_EXPORT",), ("StringIds",)]

    def test_schema_version_is_written_where_there_is_a_place(self, path: Path) -> None:
        query = "SELECT value FROM {} WHERE name = 'EXPORT_SCHEMA_VERSION'"
        NsysBuilder(path, schema="3.0.0").close()
        assert _rows(path, query.format("EXPORT_META_DATA")) == [("3.0.0",)]
        NsysBuilder(path, schema="none-2020.4").close()
        assert _rows(path, "SELECT name FROM sqlite_master") == [("StringIds",)]

    def test_leaves_out_what_the_version_lacks(self, path: Path) -> None:
        with NsysBuilder(path, schema="none-2020.4") as nsys:
            nsys.call(10, 20, correlation=7, event_class=1)
            nsys.graph_trace(30, 40)
        assert _rows(path, "SELECT start, end, correlationId FROM CUPTI_ACTIVITY_KIND_RUNTIME") == [
            (10, 20, 7)
        ]
        assert ("CUPTI_ACTIVITY_KIND_GRAPH_TRACE",) not in _rows(
            path, "SELECT name FROM sqlite_master"
        )

    @pytest.mark.parametrize(("table", "column"), [("NO_TABLE", "start"), ("OSRT_API", "strat")])
    def test_refuses_names_that_no_version_has(self, path: Path, table: str, column: str) -> None:
        with (
            NsysBuilder(path, schema="none-2020.4") as nsys,
            pytest.raises(ValueError, match=rf"{table}\({column}\)"),
        ):
            nsys.insert(table, **{column: 1})

    def test_names_go_to_string_ids_once(self, path: Path) -> None:
        name = "void at::native::<unnamed>::reduce_kernel<(int)512, at::Op<float>>(T3)"
        with NsysBuilder(path) as nsys:
            nsys.kernel(1, 2, name=name)
            nsys.kernel(3, 4, name=name)
        assert (
            _rows(
                path,
                "SELECT d.value, s.value FROM CUPTI_ACTIVITY_KIND_KERNEL"
                " JOIN StringIds d ON d.id = demangledName JOIN StringIds s ON s.id = shortName",
            )
            == [(name, "reduce_kernel")] * 2
        )
        assert _rows(path, "SELECT count(*) FROM StringIds") == [(2,)]

    def test_registered_names_leave_the_text_null(self, path: Path) -> None:
        with NsysBuilder(path) as nsys:
            nsys.push_pop(1, 2, "ncclAllReduce", registered=True, domain=1)
            nsys.start_end(3, 4, "BP", tid=5, end_tid=6)
        assert _rows(
            path,
            "SELECT eventType, text, value, globalTid, endGlobalTid, domainId FROM NVTX_EVENTS"
            " LEFT JOIN StringIds ON id = textId ORDER BY start",
        ) == [
            (59, None, "ncclAllReduce", global_tid(100), None, 1),
            (60, "BP", None, global_tid(100, 5), global_tid(100, 6), 0),
        ]

    def test_ids_are_packed_as_nsys_does(self) -> None:
        assert global_pid(79184) == 282803463782400
        assert global_tid(79184) == 282803463861584
        assert global_tid(79184, 79321) & 0xFFFFFFFFFF000000 == global_pid(79184)

    def test_launch_ties_a_kernel_to_its_call(self, path: Path) -> None:
        with NsysBuilder(path) as nsys:
            ids = [nsys.launch(10, 20, 30, pid=1, tid=2), nsys.launch(11, 30, 40, pid=1, stream=8)]
        assert ids[0] != ids[1]
        assert _rows(
            path,
            "SELECT k.correlationId, c.start, c.globalTid, k.start, k.streamId"
            " FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN CUPTI_ACTIVITY_KIND_RUNTIME c"
            " USING (correlationId) ORDER BY k.start",
        ) == [(ids[0], 10, global_tid(1, 2), 20, 7), (ids[1], 11, global_tid(1), 30, 8)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("samples")
    generate.generate(folder)
    return folder


class TestSampleTraces:
    """The traces in the repository are what their generator makes, and keep its promises."""

    @pytest.mark.slow
    @pytest.mark.parametrize("name", SAMPLES)
    def test_committed_files_are_those_generated(self, made: Path, name: str) -> None:
        committed = ROOT / "sample_traces"
        assert _dump(made / f"{name}.sqlite") == _dump(committed / f"{name}.sqlite")
        truth = f"{name}.truth.csv"
        assert (made / truth).read_bytes() == (committed / truth).read_bytes()

    @pytest.mark.parametrize(("name", "version"), SAMPLES.items())
    def test_tables_have_the_columns_of_their_schema(
        self, made: Path, name: str, version: str
    ) -> None:
        path = made / f"{name}.sqlite"
        for (table,) in _rows(path, "SELECT name FROM sqlite_master"):
            written = [row[1] for row in _rows(path, f"PRAGMA table_info({table})")]
            assert written == _columns(version, table)

    @pytest.mark.parametrize("name", SAMPLES)
    def test_every_op_has_one_launch_no_later_than_itself_and_one_truth(
        self, made: Path, name: str
    ) -> None:
        kinds = ("KERNEL", "MEMCPY", "MEMSET")
        launched = " UNION ALL ".join(
            f"SELECT (o.globalPid >> 24) & 0xFFFFFF AS pid, o.correlationId AS correlation,"
            f" 'CUPTI_ACTIVITY_KIND_{kind}' AS kind, c.start <= o.start AND o.start < o.end AS ok"
            f" FROM CUPTI_ACTIVITY_KIND_{kind} o LEFT JOIN CUPTI_ACTIVITY_KIND_RUNTIME c"
            " ON c.correlationId = o.correlationId AND c.globalTid & -16777216 = o.globalPid"
            for kind in kinds
        )
        rows = _rows(made / f"{name}.sqlite", launched)
        assert all(ok for *_, ok in rows)
        with (made / f"{name}.truth.csv").open(newline="") as file:
            truth = [
                (int(r["pid"]), int(r["correlation"]), r["table"]) for r in csv.DictReader(file)
            ]
        assert sorted(tuple(key) for *key, _ in rows) == sorted(truth)
        assert len(set(truth)) == len(truth)

    @pytest.mark.parametrize("name", SAMPLES)
    def test_streams_run_in_order(self, made: Path, name: str) -> None:
        ops = " UNION ALL ".join(
            "SELECT globalPid, deviceId, contextId, streamId, start, end"
            f" FROM CUPTI_ACTIVITY_KIND_{kind}"
            for kind in ("KERNEL", "MEMCPY", "MEMSET")
        )
        query = (
            "SELECT count(*) FROM (SELECT start, lag(end) OVER (PARTITION BY globalPid, deviceId,"
            f" contextId, streamId ORDER BY start) AS before FROM ({ops})) WHERE before > start"
        )
        assert _rows(made / f"{name}.sqlite", query) == [(0,)]

    def test_correlation_ids_repeat_across_processes(self, made: Path) -> None:
        query = (
            "SELECT count(*), count(DISTINCT correlationId), count(DISTINCT globalPid)"
            " FROM CUPTI_ACTIVITY_KIND_KERNEL"
        )
        [(rows, ids, processes)] = _rows(made / "ddp_4gpu.sqlite", query)
        assert processes == 4
        assert rows > 3 * ids
