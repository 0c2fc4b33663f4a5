"""Exports that are trimmed, extended, half empty, or hold what their columns should not."""

from __future__ import annotations

import pytest
from nsys_builder import NsysBuilder, global_pid, global_tid
from source_helpers import column, execute, remarks, rows, trace_of

from tracekit.errors import MissingDataError
from tracekit.model import TABLES
from tracekit.sources import read

KERNEL, MEMCPY, MEMSET, GRAPH, RUNTIME = (
    f"CUPTI_ACTIVITY_KIND_{kind}"
    for kind in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE", "RUNTIME")
)
NVTX = "NVTX_EVENTS"
NECESSARY = {
    **dict.fromkeys((KERNEL, MEMCPY, MEMSET, GRAPH), ("start", "end", "deviceId", "globalPid")),
    RUNTIME: ("start", "end", "globalTid", "correlationId"),
    NVTX: ("start", "end", "globalTid", "eventType"),
}
LATE = 1500
"""More rows than the driver looks at to find the type of a column."""


def _full(nsys: NsysBuilder) -> NsysBuilder:
    """Fill and finish an export with a little of everything."""
    nsys.gpu(0)
    nsys.process(100, "python3")
    nsys.thread_name(100, 100, "main")
    nsys.domain(100, 1, "NCCL")
    nsys.category(100, 1, "kind", domain=1)
    nsys.session(1_700_000_000_000_000_000, 1000)
    nsys.call(10, 15, correlation=1)
    nsys.kernel(20, 30, correlation=1)
    nsys.memcpy(40, 50, kind=8, correlation=2)
    nsys.memset(60, 70, correlation=3)
    nsys.graph_trace(80, 90, correlation=4)
    nsys.push_pop(5, 95, "r", domain=1, category=1, registered=True)
    nsys.start_end(6, 96, "s", end_tid=101, int64Value=3)
    nsys.close()
    return nsys


def _columns(nsys: NsysBuilder, table: str) -> list[str]:
    return [declaration.split()[0] for declaration in nsys.schema.tables[table]]


def _drop(nsys: NsysBuilder, table: str, *names: str) -> None:
    """Drop columns of a table by making it anew."""
    kept = ", ".join(f'"{name}"' for name in _columns(nsys, table) if name not in names)
    execute(
        nsys.path,
        f"CREATE TABLE kept AS SELECT {kept} FROM {table}",
        f"DROP TABLE {table}",
        f"ALTER TABLE kept RENAME TO {table}",
    )


class TestMissing:
    @pytest.mark.parametrize(
        ("table", "name"), [(table, name) for table, names in NECESSARY.items() for name in names]
    )
    def test_a_necessary_column_is_an_error_that_says_what_to_do(self, one, table, name):
        _full(one)
        _drop(one, table, name)
        with pytest.raises(MissingDataError) as caught:
            read(one.path)
        assert caught.value.what == f"{table} has no column {name} in {one.path} (schema 3.24.14)"
        assert "export the report again" in (caught.value.hint or "")

    def test_all_that_are_missing_are_named(self, one):
        _full(one)
        _drop(one, KERNEL, "end", "globalPid")
        with pytest.raises(MissingDataError, match=f"{KERNEL} has no column end, globalPid in"):
            read(one.path)

    def test_all_other_columns_may_be_missing(self, nsys):
        _full(nsys)
        for table, names in NECESSARY.items():
            if table in nsys.schema.tables:
                _drop(nsys, table, *({*_columns(nsys, table)} - {*names}))
        trace = read(nsys.path)
        graph = [("graph", 80, 90, None)] if GRAPH in nsys.schema.tables else []
        assert rows(trace, "ops", "kind", "start", "end", "stream") == [
            ("compute", 20, 30, None),
            ("unknown", 40, 50, None),
            ("memset", 60, 70, None),
            *graph,
        ]
        assert rows(trace, "calls", "name", "start", "end") == [(None, 10, 15)]
        assert rows(trace, "ranges", "name", "domain", "start", "end") == [
            (None, None, 5, 95),
            (None, None, 6, 96),
        ]

    @pytest.mark.parametrize(
        "table", ["TARGET_INFO_GPU", "ThreadNames", "PROCESSES", RUNTIME, NVTX]
    )
    def test_an_optional_table_costs_no_more_than_what_it_tells(self, one, table):
        _full(one)
        whole = read(one.path)
        execute(one.path, f"DROP TABLE {table}")
        trimmed = read(one.path)
        same = ["op", "device", "start", "end", "name", "kind", "bytes", "correlation"]
        assert rows(trimmed, "ops", *same) == rows(whole, "ops", *same)

    @pytest.mark.parametrize("kept", [KERNEL, MEMCPY, MEMSET, GRAPH, NVTX])
    def test_any_one_table_of_work_or_ranges_is_enough(self, one, kept):
        _full(one)
        others = [table for table in (KERNEL, MEMCPY, MEMSET, GRAPH, NVTX) if table != kept]
        execute(one.path, *(f"DROP TABLE {table}" for table in others))
        trace = read(one.path)
        assert trace.read("ops").height == (kept != NVTX)
        assert trace.read("ranges").height == (2 if kept == NVTX else 0)

    def test_columns_of_devices_and_names_may_be_missing(self, one):
        _full(one)
        for table in ("TARGET_INFO_GPU", "TARGET_INFO_SESSION_START_TIME", "ANALYSIS_DETAILS"):
            execute(one.path, f"DROP TABLE {table}", f"CREATE TABLE {table} (id INTEGER)")
            execute(one.path, f"INSERT INTO {table} VALUES (0)")
        for table in ("ThreadNames", "PROCESSES"):
            execute(one.path, f"DROP TABLE {table}", f"CREATE TABLE {table} (other INTEGER)")
        trace = read(one.path)
        assert rows(trace, "devices", "device", "name", "identity") == [(0, None, "ordinal")]
        assert rows(trace, "processes", "pid", "name") == [(100, None)]
        assert rows(trace, "reports", "session_start", "duration") == [(None, None)]


class TestEmpty:
    def test_empty_tables_are_as_absent_ones(self, nsys):
        nsys.kernel(20, 30, correlation=1)
        bare = trace_of(nsys)
        for table in {*nsys.schema.tables} - {"StringIds", "EXPORT_META_DATA", "META_DATA_EXPORT"}:
            columns = ", ".join(f'"{name}"' for name in _columns(nsys, table))
            execute(nsys.path, f"CREATE TABLE IF NOT EXISTS {table} ({columns})")
        full = read(nsys.path)
        for name in {*TABLES} - {"reports", "contents"}:
            assert full.read(name).equals(bare.read(name)), name
        assert remarks(full) == remarks(bare)

    def test_nothing_but_empty_tables_is_nothing(self, one):
        _full(one)
        execute(one.path, *(f"DELETE FROM {table}" for table in NECESSARY))
        with pytest.raises(MissingDataError, match="no GPU work and no NVTX ranges"):
            read(one.path)

    def test_a_trace_without_calls_knows_its_processes(self, one):
        one.kernel(1, 2, pid=200)
        one.push_pop(1, 2, "r", pid=300)
        trace = trace_of(one)
        assert column(trace, "processes", "pid") == [200, 300]
        assert trace.read("calls").is_empty()


class TestExtra:
    def test_columns_and_tables_that_no_version_has_are_passed_over(self, one):
        whole = read(_full(one).path)
        for table in (KERNEL, MEMCPY, RUNTIME, NVTX, "StringIds", "ThreadNames"):
            execute(
                one.path,
                f"ALTER TABLE {table} ADD COLUMN fromTheFuture TEXT DEFAULT 'x'",
                f'ALTER TABLE {table} ADD COLUMN "a ""quoted"" name" BLOB',
            )
        execute(one.path, "CREATE TABLE NEW_EVENTS (start INTEGER, data BLOB)")
        execute(one.path, "CREATE VIEW KERNELS AS SELECT * FROM CUPTI_ACTIVITY_KIND_KERNEL")
        extended = read(one.path)
        for name in {*TABLES} - {"reports"}:
            assert extended.read(name).equals(whole.read(name)), name

    @pytest.mark.parametrize("kind", ["STORED", "VIRTUAL"])
    def test_columns_that_are_computed_are_read(self, one, kind):
        one.kernel(1, 2, correlation=5)
        one.close()
        names = "start, end, deviceId, streamId, globalPid"
        execute(
            one.path,
            f"ALTER TABLE {KERNEL} RENAME TO kept",
            f"CREATE TABLE {KERNEL} ({names}, correlationId AS (start + 4) {kind})",
            f"INSERT INTO {KERNEL} ({names}) SELECT {names} FROM kept",
        )
        assert rows(read(one.path), "ops", "start", "end", "correlation") == [(1, 2, 5)]

    def test_indexes_that_nvidias_tools_add_change_nothing(self, one):
        for at in range(50, 0, -1):
            one.push_pop(at // 10, 99, f"range {at}")
            one.call(at, at + 1, correlation=at)
            one.kernel(at // 10, 99, correlation=at)
        one.close()
        before = read(one.path)
        execute(
            one.path,
            f"CREATE INDEX a ON {NVTX} (eventType, text)",
            f"CREATE INDEX b ON {RUNTIME} (globalTid, correlationId)",
            f"CREATE INDEX c ON {KERNEL} (start, correlationId)",
            "CREATE INDEX d ON StringIds (value, id)",
            "ANALYZE",
        )
        after = read(one.path)
        for name in {*TABLES} - {"reports"}:
            assert after.read(name).equals(before.read(name)), name

    def test_columns_may_come_in_any_order(self, one):
        whole = read(_full(one).path)
        for table in (KERNEL, RUNTIME, NVTX):
            order = ", ".join(f'"{name}"' for name in reversed(_columns(one, table)))
            execute(
                one.path,
                f"CREATE TABLE other AS SELECT {order} FROM {table}",
                f"DROP TABLE {table}",
                f"ALTER TABLE other RENAME TO {table}",
            )
        turned = read(one.path)
        for name in ("ops", "calls", "ranges"):
            assert turned.read(name).equals(whole.read(name)), name


class TestStrings:
    def test_an_id_that_names_nothing_gives_no_name(self, one):
        _full(one)
        execute(one.path, "DELETE FROM StringIds")
        trace = read(one.path)
        names = [name for (name,) in rows(trace, "ops", "name") if not (name or "").startswith("[")]
        assert names == [None]
        assert column(trace, "calls", "name") == [None]
        assert column(trace, "ranges", "name") == [None, "s"]

    def test_numbers_and_blobs_among_the_strings_are_their_text(self, one):
        one.kernel(1, 2, name="k")
        one.push_pop(1, 2, "r", registered=True)
        one.close()
        execute(
            one.path,
            "CREATE TABLE s (id, value)",
            "INSERT INTO s SELECT id, CASE value WHEN 'k' THEN 5 ELSE x'72FF' END FROM StringIds",
            "DROP TABLE StringIds",
            "ALTER TABLE s RENAME TO StringIds",
        )
        trace = read(one.path)
        assert column(trace, "ops", "name") == ["5"]
        assert column(trace, "ranges", "name") == ["r\ufffd"]


class TestTypes:
    """A file that other tools wrote may hold any type in any column."""

    def _untyped(self, path, table, columns, values):
        names = ", ".join(f'"{name}"' for name in columns)
        marks = ", ".join("?" * len(columns))
        execute(
            path,
            f"DROP TABLE IF EXISTS {table}",
            f"CREATE TABLE {table} ({names})",
            f"INSERT INTO {table} VALUES ({marks})",
            many=values,
        )

    @pytest.mark.parametrize("before", [0, LATE], ids=["first", "late"])
    def test_numbers_stored_as_reals_or_text_are_the_same_numbers(self, one, before):
        one.kernel(1, 2)
        one.close()
        head = ("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid")
        gid = global_pid(100)
        good = [(10 * n, 10 * n + 5, 0, 1, 7, n, gid) for n in range(1, before + 1)]
        at = 10 * (before + 1)
        odd = [
            (float(at), at + 5.0, 0.0, "1", "7", "900001", gid),
            (str(at + 10), at + 15, "0", 1.0, 7, 900_002.0, str(gid)),
        ]
        self._untyped(one.path, KERNEL, head, good + odd)
        trace = read(one.path)
        assert rows(trace, "ops", "start", "end", "device", "context", "stream", "correlation")[
            before:
        ] == [(at, at + 5, 0, 1, 7, 900_001), (at + 10, at + 15, 0, 1, 7, 900_002)]
        assert remarks(trace) == ()

    def test_what_is_no_number_is_left_out_and_counted(self, one):
        one.kernel(1, 2)
        one.close()
        gid = global_pid(100)
        head = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
        self._untyped(
            one.path,
            KERNEL,
            head,
            [
                (10, 15, 0, "seven", 1, gid),
                (20, 25, 0, 7, b"\x01", gid),
                ("late", 35, 0, 7, 3, gid),
                (40, 45.5, 0, 7, 4, gid),
                (50, 55, "?", 7, 5, gid),
            ],
        )
        trace = read(one.path)
        assert rows(trace, "ops", "start", "end", "stream", "correlation") == [
            (10, 15, None, 1),
            (20, 25, 7, None),
        ]
        assert sorted(remarks(trace)) == sorted(
            [
                "2 GPU ops have no valid times and were left out",
                "1 GPU ops have no device or process and were left out",
                *(
                    f"1 values of {KERNEL}.{name} are not of its type and were left out"
                    for name in ("start", "end", "deviceId", "streamId", "correlationId")
                ),
            ]
        )

    @pytest.mark.parametrize("before", [0, LATE], ids=["first", "late"])
    def test_ranges_with_odd_payloads_and_names_are_read(self, one, before):
        one.kernel(1, 2)
        one.close()
        head = ("start", "end", "eventType", "text", "globalTid", "int64Value", "doubleValue")
        gid = global_tid(100)
        good = [(n, n + 1, 59, f"r{n}", gid, n, 0.5) for n in range(before)]
        odd = [
            (5000, 5001.0, 59, 7, gid, "9", None),
            (5002, "5003", 59, 2.5, gid, None, 3),
            (5004, 5005, 59, b"blob", gid, None, "none"),
        ]
        self._untyped(one.path, NVTX, head, good + odd)
        trace = read(one.path)
        assert rows(trace, "ranges", "start", "end", "name", "payload")[before:] == [
            (5000, 5001, "7", "9"),
            (5002, 5003, "2.5", "3.0"),
            (5004, 5005, "blob", None),
        ]
        assert remarks(trace) == (
            f"1 values of {NVTX}.doubleValue are not of its type and were left out",
        )

    def test_integers_beyond_the_precision_of_a_float_survive_a_bad_neighbour(self, one):
        one.kernel(1, 2)
        one.close()
        epoch, gid = 1_700_000_000_123_456_789, global_pid(100)
        head = ("start", "end", "deviceId", "streamId", "globalPid")
        self._untyped(
            one.path,
            KERNEL,
            head,
            [(epoch, epoch + 1, 0, 7, gid), (epoch + 2, epoch + 3, 0.0, 7, gid)],
        )
        assert rows(read(one.path), "ops", "start", "end") == [
            (epoch, epoch + 1),
            (epoch + 2, epoch + 3),
        ]


HINT = "record with `nsys profile -t cuda,nvtx`"
NO_KERNELS = "no kernels were recorded, so GPU time is that of copies and memsets alone"
NO_CALLS = "no API calls were recorded, so no op's launch, range or iteration is known"
NO_RANGES = "no NVTX ranges were recorded, so only structure and names can show stages"


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        ("kernel call range", ()),
        ("copy call range", (NO_KERNELS,)),
        ("kernel range", (NO_CALLS,)),
        ("kernel call", (NO_RANGES,)),
        ("range", ("no GPU work was recorded",)),
    ],
)
def test_what_an_export_lacks_is_said(
    one: NsysBuilder, held: str, expected: tuple[str, ...]
) -> None:
    if "kernel" in held:
        one.kernel(10, 20, correlation=1)
    if "copy" in held:
        one.memcpy(10, 20, correlation=1, kind=1, bytes=8)
    if "call" in held:
        one.call(5, 6, correlation=1)
    if "range" in held:
        one.push_pop(0, 9, "forward")
    assert trace_of(one).warnings == tuple(f"{text}: {HINT}" for text in expected)


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        ("kernel call", f"{NO_RANGES}: NVTX was traced: `tracekit record --annotate` has PyTorch"),
        ("range", "no GPU work was recorded: CUDA was traced: the program used none"),
    ],
)
def test_nobody_is_told_to_do_what_was_done(one: NsysBuilder, held: str, expected: str) -> None:
    for traced in ("Cuda", "NvtxEvents"):
        one.capture("CAPTURE_EVENT_TYPE", traced)
    if "call" in held:
        one.kernel(10, 20, correlation=1)
        one.call(5, 6, correlation=1)
    else:
        one.push_pop(0, 9, "forward")
    (warning,) = trace_of(one).warnings
    assert warning.startswith(expected)
    assert "record with" not in warning


def test_work_without_times_is_not_no_work(nsys):
    """PyProf and others meet kernels that begin and end at 0."""
    for correlation in range(66):
        nsys.kernel(0, 0, correlation=correlation)
    nsys.close()
    with pytest.raises(MissingDataError, match=r"no times of 66 GPU ops and no NVTX ranges"):
        read(nsys.path)


def test_ranges_that_end_before_they_begin_are_counted(nsys):
    nsys.push_pop(100, 50, "back")
    nsys.push_pop(100, 150, "forth")
    nsys.launch(110, 120, 130)
    trace = trace_of(nsys)
    assert sorted(rows(trace, "ranges", "start", "end")) == [(100, 100), (100, 150)]
    assert "1 NVTX ranges end before they begin, and were taken to last 0 ns" in trace.warnings


def test_events_that_were_lost_are_told(tmp_path):
    with NsysBuilder(tmp_path / "a.sqlite", schema="3.17.2") as nsys:
        nsys.launch(110, 120, 130)
        for text in (
            "Number of CUDA events collected: 12.",
            "12 events were dropped.\nTry /x",
            "12 events were dropped.\nTry /x",
            "CUDA buffers overflowed, ran out of memory",
        ):
            nsys.insert("DIAGNOSTIC_EVENT", timestamp=1, timestampType=1, source=1, severity=2,
                        text=text)  # fmt: skip
    told = [text for text in read(nsys.path).warnings if "nsys reports" in text]
    assert told == [
        "nsys reports: 12 events were dropped.",
        "nsys reports: CUDA buffers overflowed, ran out of memory",
    ]
