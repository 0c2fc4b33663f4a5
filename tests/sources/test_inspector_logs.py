"""Logs of NCCL's inspector: each format, and damaged files."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from tests.nccl_inspector import Call, lines, sample, write_logs
from tracekit.errors import DamagedTraceError, InputError, NotATraceError
from tracekit.sources.nccl_inspector import RECORD_SCHEMA, read_inspector_logs

SAMPLES = Path(__file__).parents[2] / "sample_traces"
CALLS = [
    Call(0, 5, 100, name="dp", algo="RING"),
    Call(0, 7, 120.5, "ReduceScatter", 4096, communicator="0xbb", ranks=4),
    Call(0, 3, 9, "Send", 1 << 30, peer=1),
    Call(0, 6, 100, start=1_700_000_000_000_000),
]


def _rows(path: Path) -> list[tuple[object, ...]]:
    named = ("communicator", "rank", "ranks", "collective", "sequence", "peer", "message_bytes",
             "length", "start", "end")  # fmt: skip
    return read_inspector_logs([path]).records.select(named).sort("length", "start").rows()


@pytest.mark.parametrize("version", ["v4.0", "v4.2", "v4.3"])
def test_each_format_says_the_same(tmp_path: Path, version: str) -> None:
    [path] = write_logs(tmp_path, CALLS, version)
    start = 1_700_000_000_000_000_000
    assert _rows(path) == [
        ("0xaa", 0, 2, "send", 3, 1, 1 << 30, 9_000, None, None),
        ("0xaa", 0, 2, "all_reduce", 5, None, 1 << 20, 100_000, None, None),
        # From the first channel's start to the last one's end, and not when it was enqueued.
        ("0xaa", 0, 2, "all_reduce", 6, None, 1 << 20, 100_000, start, start + 100_000),
        ("0xbb", 0, 4, "reduce_scatter", 7, None, 4096, 120_500, None, None),
    ]
    logs = read_inspector_logs([path])
    assert logs.records.schema == pl.Schema(dict(RECORD_SCHEMA))
    assert logs.warnings == []
    first = logs.records.filter(sequence=5).row(0, named=True)
    assert (first["host"], first["pid"], first["timing"]) == ("node0", 100, "kernel_gpu")
    assert (first["algorithm"], first["protocol"]) == ("ring", "simple")
    assert first["name"] == ("dp" if version != "v4.0" else None)


def test_what_the_ring_lost_is_the_last_total(tmp_path: Path) -> None:
    for number, lost in enumerate((3, 8)):
        write_logs(tmp_path / str(number), CALLS, "v4.3", {("0xaa", 0): lost})
    text = b"".join((tmp_path / each / "node0-pid100.log").read_bytes() for each in "01")
    (tmp_path / "one.log").write_bytes(text)
    dropped = read_inspector_logs([tmp_path / "one.log"]).dropped.sort("communicator")
    assert dropped.rows() == [("0xaa", 0, 8), ("0xbb", 0, 0)]


def test_a_folder_holds_the_logs_of_all_ranks_beside_other_files(tmp_path: Path) -> None:
    write_logs(tmp_path, [Call(rank, 1, 10, ranks=3) for rank in range(3)])
    (tmp_path / "empty.log").write_bytes(b"")
    (tmp_path / "notes.txt").write_text("none")
    (tmp_path / "trace.json").write_text('{"traceEvents": []}')
    packed = gzip.compress((tmp_path / "node0-pid102.log").read_bytes())
    (tmp_path / "node0-pid102.log").write_bytes(packed)
    again = tmp_path / "node0-pid100.log"
    assert read_inspector_logs([tmp_path, again]).records["rank"].to_list() == [0, 1, 2]


def test_the_sample_is_what_it_was_made_as(tmp_path: Path) -> None:
    for path in write_logs(tmp_path, sample(), "v4.3", {("0x7c1f2a90d4e3b", 3): 1}):
        assert (SAMPLES / "nccl_inspector" / path.name).read_text() == path.read_text()


class TestDamage:
    def test_a_cut_last_line_is_said(self, tmp_path: Path) -> None:
        [path] = write_logs(tmp_path, CALLS)
        path.write_bytes(path.read_bytes()[:-30])
        logs = read_inspector_logs([path])
        assert logs.records.height == 3
        assert logs.warnings == ["node0-pid100.log: its last line is cut"]

    def test_a_damaged_line_costs_that_line(self, tmp_path: Path) -> None:
        text = lines(CALLS)
        text[1] = text[1][:50] + "\x00" + text[1][50:]
        (tmp_path / "a.log").write_text("\n".join(text) + "\n\n")
        logs = read_inspector_logs([tmp_path / "a.log"])
        assert logs.records["sequence"].to_list() == [5, 3, 6]
        assert logs.warnings == [
            "a.log: 1 of 4 lines are incomplete and were left out, the first is line 2"
        ]

    @pytest.mark.parametrize(
        "change",
        [
            {"coll_sn": None},
            {"coll_sn": -1},
            {"coll_sn": "x"},
            {"coll_exec_time_us": -1},
            {"coll_exec_time_us": 1e300},
            {"coll_msg_size_bytes": 2**64 - 1},
            {"coll_msg_size_bytes": 2**62},
            {"coll_sn": 2**62},
            {"coll": 5.5e5, "coll_sn": []},
        ],
        ids=str,
    )
    def test_a_record_with_impossible_numbers_is_left_out(
        self, tmp_path: Path, change: dict[str, object]
    ) -> None:
        text = lines(CALLS)
        first = json.loads(text[0])
        first["coll_perf"] |= change
        (tmp_path / "a.log").write_text("\n".join([json.dumps(first), *text[1:]]))
        logs = read_inspector_logs([tmp_path / "a.log"])
        assert logs.records.height == 3
        assert "1 of 4 lines" in logs.warnings[0]

    @pytest.mark.parametrize(("rank", "ranks"), [(2, 2), (-1, 2), (0, 0), (0, 2**40)])
    def test_a_rank_outside_of_its_communicator(
        self, tmp_path: Path, rank: int, ranks: int
    ) -> None:
        text = lines([Call(rank, 1, 5, "Broadcast", ranks=max(ranks, 1)), *CALLS])
        first = json.loads(text[0])
        first["header"]["n_ranks"] = ranks
        (tmp_path / "a.log").write_text("\n".join([json.dumps(first), *text[1:]]))
        assert read_inspector_logs([tmp_path / "a.log"]).records.height == 4

    def test_records_behind_a_lost_marker_are_of_no_communicator(self, tmp_path: Path) -> None:
        # Batches of two and of one; without its marker the second would go on with the first.
        text = lines([Call(0, 1, 5), Call(0, 2, 5), Call(0, 9, 7, communicator="0xbb")], "v4.3")
        text[3] = text[3][:40]
        (tmp_path / "a.log").write_text("\n".join(text) + "\n")
        logs = read_inspector_logs([tmp_path / "a.log"])
        assert logs.records["sequence"].to_list() == [1, 2]
        assert "2 of 5 lines" in logs.warnings[0]
        assert "line 4" in logs.warnings[0]

    def test_a_file_of_damage_alone(self, tmp_path: Path) -> None:
        path = tmp_path / "a.log"
        path.write_text('{"header": {}, "coll_perf": {}}\n' + "{\n" * 500)
        with pytest.raises(DamagedTraceError, match="more than 100 lines are damaged"):
            read_inspector_logs([path])
        path.write_text('{"header": {}, "coll_perf": {')
        with pytest.raises(DamagedTraceError, match="no complete record"):
            read_inspector_logs([path])
        path.write_bytes(gzip.compress("\n".join(lines(CALLS)).encode())[:-20])
        with pytest.raises(DamagedTraceError, match="cut or damaged"):
            read_inspector_logs([path])

    def test_a_line_without_end(self, tmp_path: Path) -> None:
        (tmp_path / "a.log").write_text(lines(CALLS)[0] + " " * (1 << 25))
        with pytest.raises(DamagedTraceError, match="a line is longer"):
            read_inspector_logs([tmp_path / "a.log"])

    @pytest.mark.parametrize(
        ("make", "error", "text"),
        [
            (lambda path: path.write_text("{}"), NotATraceError, "no record of NCCL's inspector"),
            (lambda path: path.write_bytes(b""), NotATraceError, "no record of NCCL's inspector"),
            (lambda path: path.mkdir(), NotATraceError, "no log of NCCL's inspector is in"),
            (lambda _: None, InputError, "no file"),
        ],
    )
    def test_what_is_no_log(
        self, tmp_path: Path, make: Callable[[Path], object], error: type[Exception], text: str
    ) -> None:
        make(tmp_path / "a")
        with pytest.raises(error, match=text):
            read_inspector_logs([tmp_path / "a"])

    @pytest.mark.slow
    @pytest.mark.parametrize("version", ["v4.0", "v4.3"])
    def test_any_bytes_give_records_or_one_error(self, tmp_path: Path, version: str) -> None:
        whole = "\n".join(lines(CALLS * 3, version)).encode()
        kept = 0
        for seed in range(60):
            draw, damaged = random.Random(seed), bytearray(whole)
            for _ in range(draw.choice((1, 3, 30))):
                damaged[draw.randrange(len(damaged))] = draw.randrange(256)
            (tmp_path / "a.log").write_bytes(damaged[: draw.randrange(1, len(damaged))])
            try:
                records = read_inspector_logs([tmp_path / "a.log"]).records
            except InputError:
                continue
            kept += 1
            assert records.schema == pl.Schema(dict(RECORD_SCHEMA))
            assert records.select(pl.col("rank", "length", "message_bytes").min() >= 0).row(0) in (
                (True, True, True),
                (None, None, None),
            )
        assert kept > 20
