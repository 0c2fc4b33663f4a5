"""NVTX ranges: names and domains scoped by process, ends that are missing, and payloads."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl
import pytest
from nsys_builder import global_tid
from source_helpers import column, execute, rows, trace_of, versions_with

from tracekit.sources import open_report, read
from tracekit.sources.nsys import _host_events as _host
from tracekit.support import spool as _spool
from tracekit.support.spool import Workspace

_EPOCH = 1_700_000_000_000_000_000


def test_every_column_of_a_range_comes_from_its_row(nsys):
    nsys.domain(100, 3, "NCCL")
    nsys.category(100, 8, "loader", domain=3)
    nsys.push_pop(10, 40, "outer", tid=101)
    nsys.start_end(20, 60, "inner", domain=3, category=8, tid=102, end_tid=103, int64Value=-4)
    trace = trace_of(nsys)
    assert rows(
        trace, "ranges", "range", "report", "process", "thread", "domain", "name", "category",
        "start", "end", "open", "style", "end_thread", "payload", "parent", "depth", "stage",
        "path",
    ) == [
        (0, 0, 0, 0, None, "outer", None, 10, 40, False, "push_pop", None, None, None, None, None,
         None),
        (1, 0, 0, 1, "NCCL", "inner", "loader", 20, 60, False, "start_end", 2, "-4", None, None,
         None, None),
    ]  # fmt: skip
    assert rows(trace, "threads", "thread", "tid") == [(0, 101), (1, 102), (2, 103)]


def test_a_trace_of_ranges_alone_is_read(one):
    one.push_pop(10, 40, "step")
    trace = trace_of(one)
    assert rows(trace, "ranges", "name", "start", "end") == [("step", 10, 40)]
    assert trace.read("ops").is_empty()
    assert trace.read("devices").is_empty()


class TestNames:
    @pytest.mark.parametrize("most", [0, 2, 1 << 16])
    @pytest.mark.parametrize("own", [0, 1, 2, 12])
    def test_are_the_same_however_many_are_not_registered(self, one, own, most, monkeypatch):
        monkeypatch.setattr(_host, "_MOST_OWN", most)
        for row in range(12):
            of_row = f"of row {row % 5}"
            one.push_pop(10 * row, 10 * row + 5, of_row, registered=row >= own)
        one.start_end(200, 300, None)
        names = [name for (name,) in rows(trace_of(one), "ranges", "name")]
        assert names == [*(f"of row {row % 5}" for row in range(12)), None]

    def test_are_told_apart_batch_by_batch(self, one, monkeypatch):
        """Of which some have names as categories, and others as texts."""
        monkeypatch.setattr(_host, "_MOST_OWN", 2)
        monkeypatch.setattr(_spool, "_FEWEST_ROWS", 8)
        for row in range(64):
            one.push_pop(10 * row, 10 * row + 5, f"name {row // 4}", registered=row % 8 > 0)
        one.close()
        for memory in (1, 1 << 30):
            with TemporaryDirectory() as folder:
                recording = open_report(one.path, Workspace(Path(folder), memory))
                found = recording.streams["ranges"].read
                chunks = range(len(recording.streams["ranges"]))
                names = pl.concat([found(chunk, "name") for chunk in chunks])["name"]
            assert names.to_list() == [f"name {row // 4}" for row in range(64)]

    def test_lie_in_the_row_or_among_the_registered_strings(self, nsys):
        nsys.push_pop(1, 2, "plain")
        nsys.push_pop(3, 4, "registered", registered=True)
        nsys.push_pop(5, 6, None)
        nsys.push_pop(7, 8, "")
        nsys.push_pop(9, 10, "row", textId=nsys.string("string"))
        nsys.push_pop(11, 12, None, textId=999_999)
        assert column(trace_of(nsys), "ranges", "name") == [
            "plain", "registered", None, "", "row", None,
        ]  # fmt: skip

    @pytest.mark.parametrize("registered", [False, True])
    def test_are_kept_whatever_is_in_them(self, one, registered):
        names = [
            'it\'s "quoted"; DROP TABLE NVTX_EVENTS; --',
            "<img src=x onerror=alert(1)>",
            "{'mod': __import__('os').system('true')}",
            "Schritt 7: vorwärts 前進 🚀",
            "two\nlines\tand a tab",
            "a\x00b",
            "long " * 200_000,
            "aten::mm, seq = 45440, op_id = 990760, sizes = [[4096, 1024], []]",
        ]
        for at, name in enumerate(names):
            one.push_pop(at, at + 1, name, registered=registered)
        assert column(trace_of(one), "ranges", "name") == names

    @pytest.mark.parametrize("registered", [False, True])
    def test_that_are_no_utf8_are_kept_as_far_as_they_are(self, one, registered):
        one.push_pop(1, 2, "to be spoiled", registered=registered)
        one.push_pop(3, 4, "fine", registered=registered)
        one.close()
        table, name = ("StringIds", "value") if registered else ("NVTX_EVENTS", "text")
        spoil = f"UPDATE {table} SET {name} = CAST(x'636166E9' AS TEXT)"
        execute(one.path, f"{spoil} WHERE {name} = 'to be spoiled'")
        assert column(read(one.path), "ranges", "name") == ["caf\ufffd", "fine"]

    def test_the_first_of_two_strings_of_one_id_counts(self, one):
        one.push_pop(1, 2, "first", registered=True)
        one.kernel(3, 4)
        one.close()
        execute(
            one.path,
            "CREATE TABLE s AS SELECT id, value FROM StringIds",
            "INSERT INTO s SELECT id, 'second' FROM s",
            "DROP TABLE StringIds",
            "ALTER TABLE s RENAME TO StringIds",
        )
        trace = read(one.path)
        assert rows(trace, "ranges", "name") == [("first",)]
        assert column(trace, "ops", "short_name") == ["foo"]


class TestKindsOfEvents:
    def test_ranges_of_both_styles_also_from_text_files(self, nsys):
        for at, kind in enumerate((59, 60, 70, 71)):
            nsys.nvtx(kind, at, at + 10, f"type {kind}")
        assert rows(trace_of(nsys), "ranges", "name", "style") == [
            ("type 59", "push_pop"),
            ("type 60", "start_end"),
            ("type 70", "push_pop"),
            ("type 71", "start_end"),
        ]

    def test_nothing_else_is_a_range(self, one):
        one.push_pop(5, 6, "range")
        one.mark(1, "mark")
        for kind in (33, 35, 36, 37, 38, 39, 43, 64, 69, 72, 75, 76, 97, 98, 99):
            one.nvtx(kind, 1, 9, f"type {kind}")
        assert column(trace_of(one), "ranges", "name") == ["range"]

    def test_a_range_of_no_thread_is_passed_over(self, one):
        one.push_pop(5, 6, "range")
        one.insert("NVTX_EVENTS", start=1, end=2, eventType=59, text="ghost", globalTid=None)
        assert column(trace_of(one), "ranges", "name") == ["range"]


class TestOrder:
    def test_by_start_and_the_longer_first(self, one):
        one.push_pop(20, 30, "second inner")
        one.push_pop(10, 15, "first inner")
        one.push_pop(10, 40, "outer")
        trace = trace_of(one)
        assert rows(trace, "ranges", "range", "name") == [
            (0, "outer"),
            (1, "first inner"),
            (2, "second inner"),
        ]

    def test_identical_intervals_keep_the_order_of_the_file(self, one):
        names = [f"{7 * number % 1009}" for number in range(1009)]
        for name in names:
            one.push_pop(10, 40, name)
        assert column(trace_of(one), "ranges", "name") == names

    def test_ranges_of_no_length_stay(self, one):
        one.push_pop(10, 10, "empty")
        assert rows(trace_of(one), "ranges", "name", "start", "end", "open") == [
            ("empty", 10, 10, False)
        ]


class TestEnds:
    def test_a_range_without_end_ends_with_the_last_thing_that_happened(self, nsys):
        nsys.push_pop(10, None, "open")
        nsys.start_end(20, None, "open too")
        nsys.push_pop(30, 40, "closed")
        nsys.call(50, 60)
        nsys.kernel(70, 99)
        assert rows(trace_of(nsys), "ranges", "name", "end", "open") == [
            ("open", 99, True),
            ("open too", 99, True),
            ("closed", 40, False),
        ]

    @pytest.mark.parametrize("nsys", versions_with("ANALYSIS_DETAILS"), indirect=True)
    def test_or_with_the_session(self, nsys):
        nsys.session(1_700_000_000_000_000_000, 500)
        nsys.push_pop(10, None, "open")
        nsys.kernel(70, 99)
        assert rows(trace_of(nsys), "ranges", "end", "open") == [(500, True)]

    def test_when_all_ranges_are_open_they_end_with_the_last_start(self, one):
        one.push_pop(10, None, "outer")
        one.push_pop(30, None, "inner")
        assert rows(trace_of(one), "ranges", "start", "end", "open") == [
            (10, 30, True),
            (30, 30, True),
        ]

    @pytest.mark.parametrize("nsys", versions_with("ANALYSIS_DETAILS"), indirect=True)
    def test_a_range_that_lasts_to_the_end_of_the_session_was_cut_there(self, nsys):
        nsys.session(1_700_000_000_000_000_000, 100)
        nsys.push_pop(10, 99, "closed")
        nsys.push_pop(11, 100, "cut")
        nsys.push_pop(12, 130, "beyond")
        assert rows(trace_of(nsys), "ranges", "name", "end", "open") == [
            ("closed", 99, False),
            ("cut", 100, True),
            ("beyond", 130, True),
        ]

    @pytest.mark.parametrize("nsys", versions_with("ANALYSIS_DETAILS"), indirect=True)
    def test_none_was_cut_by_a_session_on_another_clock(self, nsys):
        """All ranges of an export with times since 1970 were open: its session lasts seconds."""
        nsys.session(_EPOCH, 100)
        nsys.push_pop(_EPOCH + 10, _EPOCH + 20, "closed")
        nsys.push_pop(_EPOCH + 11, None, "open")
        nsys.kernel(_EPOCH + 12, _EPOCH + 19)
        trace = trace_of(nsys)
        assert rows(trace, "ranges", "name", "end", "open") == [
            ("closed", _EPOCH + 20, False), ("open", _EPOCH + 20, True)
        ]  # fmt: skip
        assert rows(trace, "reports", "session_start", "duration") == [(None, None)]
        assert any("do not count from the start of the session" in w for w in trace.warnings)

    def test_an_end_before_the_start_makes_the_range_empty(self, one):
        one.push_pop(50, 40, "backwards")
        assert rows(trace_of(one), "ranges", "start", "end", "open") == [(50, 50, False)]

    def test_ranges_from_before_the_recording_have_negative_times(self, one):
        one.push_pop(-2_107_884_059, -5, "before")
        one.push_pop(-10, 20, "across")
        assert rows(trace_of(one), "ranges", "start", "end") == [
            (-2_107_884_059, -5),
            (-10, 20),
        ]

    @pytest.mark.parametrize("end_thread", [0, global_tid(999), None, 1 << 62])
    def test_an_end_on_a_thread_of_no_known_process_is_unknown(self, one, end_thread):
        one.start_end(1, 2, "r", endGlobalTid=end_thread)
        trace = trace_of(one)
        assert column(trace, "ranges", "end_thread") == [None]
        assert rows(trace, "threads", "thread", "process") == [(0, 0)]


class TestDomains:
    def test_are_numbered_by_each_process_for_itself(self, nsys):
        nsys.domain(100, 1, "NCCL")
        nsys.domain(100, 2, "DALI")
        nsys.domain(200, 1, "DALI")
        nsys.domain(200, 2, "NCCL")
        at = 0
        for pid in (100, 200):
            for domain in (0, 1, 2):
                nsys.push_pop(at, at + 1, f"{pid} in {domain}", pid=pid, domain=domain)
                at += 1
        assert rows(trace_of(nsys), "ranges", "name", "domain") == [
            ("100 in 0", None),
            ("100 in 1", "NCCL"),
            ("100 in 2", "DALI"),
            ("200 in 0", None),
            ("200 in 1", "DALI"),
            ("200 in 2", "NCCL"),
        ]

    def test_one_that_is_announced_twice_doubles_no_range(self, nsys):
        nsys.domain(100, 1, "NCCL", start=5)
        nsys.domain(100, 1, "NCCL", start=9, tid=101)
        nsys.push_pop(10, 20, "ncclAllReduce", domain=1)
        assert rows(trace_of(nsys), "ranges", "name", "domain") == [("ncclAllReduce", "NCCL")]

    def test_one_that_is_announced_before_the_recording_has_its_name(self, one):
        one.domain(100, 1, "LateDom", start=-2_107_884_059)
        one.push_pop(10, 20, "r", domain=1)
        assert column(trace_of(one), "ranges", "domain") == ["LateDom"]

    def test_one_may_be_announced_after_its_ranges_and_by_a_registered_string(self, one):
        one.push_pop(10, 20, "r", domain=1)
        one.nvtx(75, 30, None, "Late", domain=1, registered=True)
        assert column(trace_of(one), "ranges", "domain") == ["Late"]

    @pytest.mark.parametrize(
        ("names", "domain"),
        [
            (["ncclAllReduce", "ncclGroupStart"], "NCCL"),
            (["Thunk:#hlo_op=fusion#", "XlaModule:#hlo_module=jit#"], "TSL"),
            (["MPI_Send", "MPI_Recv"], "MPI"),
            (["ncclAllReduce", "something"], "domain 4"),
            (["ncclAllReduce", None], "domain 4"),
            (["xncclAllReduce"], "domain 4"),
            ([None], "domain 4"),
        ],
    )
    def test_one_without_announcement_is_named_by_what_is_in_it(self, one, names, domain):
        for at, name in enumerate(names):
            one.push_pop(at, at + 1, name, domain=4, registered=True)
        assert set(column(trace_of(one), "ranges", "domain")) == {domain}

    def test_one_without_announcement_borrows_no_name_from_another_process(self, nsys):
        nsys.domain(100, 1, "NCCL")
        nsys.push_pop(10, 20, "ncclAllReduce", domain=1, pid=100)
        nsys.push_pop(11, 21, "read batch", domain=1, pid=200)
        nsys.push_pop(12, 22, "MPI_Send", domain=1, pid=300)
        nsys.push_pop(13, 23, "MPI_Send", domain=2, pid=200)
        assert column(trace_of(nsys), "ranges", "domain") == ["NCCL", "domain 1", "MPI", "MPI"]

    def test_an_announced_name_is_not_overruled_by_what_is_in_it(self, one):
        one.domain(100, 1, "mine")
        one.push_pop(10, 20, "ncclAllReduce", domain=1)
        assert column(trace_of(one), "ranges", "domain") == ["mine"]

    def test_none_is_the_default_domain(self, one):
        one.category(100, 7, "seven", domain=0)
        one.push_pop(10, 20, "r", domain=None, category=7)
        assert rows(trace_of(one), "ranges", "domain", "category") == [(None, "seven")]


def test_categories_are_numbered_by_each_domain_of_each_process(nsys):
    nsys.domain(100, 1, "D")
    nsys.category(100, 7, "default seven")
    nsys.category(100, 7, "domain seven", domain=1)
    nsys.category(200, 7, "other seven")
    nsys.category(200, 7, "announced again")
    nsys.push_pop(1, 2, "a", category=7)
    nsys.push_pop(3, 4, "b", category=7, domain=1)
    nsys.push_pop(5, 6, "c", category=7, pid=200)
    nsys.push_pop(7, 8, "d", category=8)
    nsys.push_pop(9, 10, "e")
    assert rows(trace_of(nsys), "ranges", "name", "category") == [
        ("a", "default seven"), ("b", "domain seven"), ("c", "other seven"), ("d", None),
        ("e", None),
    ]  # fmt: skip


class TestPayloads:
    @pytest.mark.parametrize(
        ("values", "payload"),
        [
            ({}, None),
            ({"uint64Value": 5}, "5"),
            ({"uint64Value": -1}, "18446744073709551615"),
            ({"uint64Value": -(2**63)}, "9223372036854775808"),
            ({"int64Value": -(2**63)}, "-9223372036854775808"),
            ({"uint32Value": 4294967295}, "4294967295"),
            ({"int32Value": -7}, "-7"),
            ({"int32Value": 0}, "0"),
            ({"doubleValue": 0.25}, "0.25"),
            ({"doubleValue": 3}, "3.0"),
            ({"floatValue": -1.5}, "-1.5"),
            ({"jsonText": '{"bytes": 4096}'}, '{"bytes": 4096}'),
        ],
    )
    def test_are_text(self, one, values, payload):
        one.push_pop(1, 2, "r", **values)
        assert column(trace_of(one), "ranges", "payload") == [payload]

    def test_do_not_spoil_those_of_other_ranges(self, nsys):
        """SQLite takes any value in any column, and the driver a column's type from the first."""
        nsys.push_pop(0, 1, "first", int64Value=3, doubleValue=None)
        nsys.push_pop(2, 3, "second", doubleValue=7)
        nsys.push_pop(4, 5, "third", doubleValue=0.5)
        assert column(trace_of(nsys), "ranges", "payload") == ["3", "7.0", "0.5"]
