"""The declarations of the canonical tables agree with each other; traces survive their files."""

from __future__ import annotations

import shutil
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from tracekit.model import (
    COLLECTIVE,
    DERIVED,
    KIND,
    RANGE_STYLE,
    STAGE,
    STAGE_SOURCE,
    TABLES,
    Trace,
    TraceWriter,
    _trace,
)

TIMES = {"start", "end", "launch_start", "launch_end", "session_start", "duration"}
ENUMS = {
    "kind": KIND,
    "stage": STAGE,
    "stage_source": STAGE_SOURCE,
    "collective": COLLECTIVE,
    "style": RANGE_STYLE,
}


def test_tables_are_those_of_the_design() -> None:
    assert list(TABLES) == [
        "reports", "contents", "processes", "threads", "devices", "ops", "calls", "ranges",
        "paths", "iterations", "verdicts", "assumptions", "opinions", "device_sums", "host",
        "metrics", "memory", "syncs", "event_records", "graph_nodes", "machine",
    ]  # fmt: skip
    assert list(DERIVED) == ["transfers", "collectives", "path_texts"]


@pytest.mark.parametrize("name", [*TABLES, *DERIVED])
def test_declarations(name: str) -> None:
    table = {**TABLES, **DERIVED}[name]
    columns = {column.name: column for column in table.columns}
    assert table.name == name
    assert table.meaning.endswith(".")
    assert len(columns) == len(table.columns)
    if name not in ("paths", "path_texts"):  # which reports share
        assert columns["report"].dtype == pl.Int32
    for column in table.columns:
        assert column.meaning
        assert column.dtype == ENUMS.get(column.name, column.dtype)
        if column.name in TIMES:
            assert (column.dtype, column.unit) == (pl.Int64, "ns"), column.name
        if column.name.endswith("bytes") or column.name == "size":
            assert (column.dtype, column.unit) == (pl.Int64, "bytes"), column.name
    assert list(table.schema.items()) == [(c.name, c.dtype) for c in table.columns]
    assert table.empty().schema == table.schema


def test_a_key_has_one_type_in_all_tables() -> None:
    kinds: dict[str, set[str]] = {}
    for table in TABLES.values():
        for column in table.columns:
            kinds.setdefault(column.name, set()).add(str(column.dtype))
    for key in ("report", "process", "thread", "device", "range", "call", "iteration", "op"):
        assert len(kinds[key]) == 1, key
    assert kinds["launch_thread"] == kinds["end_thread"] == kinds["thread"]
    assert kinds["src_device"] == kinds["dst_device"] == kinds["device"]
    assert kinds["parent"] == kinds["range"]


def test_conform_orders_casts_and_fills() -> None:
    given = pl.DataFrame(
        {
            "surplus": [1.5],
            "end": pl.Series([9], dtype=pl.Int32),
            "start": [4],
            "iteration": [0],
            "thread": [3],
            "process": [2],
            "report": [0],
        }
    )
    expected = pl.DataFrame(
        {
            "report": [0],
            "process": [2],
            "thread": [3],
            "iteration": [0],
            "name": [None],
            "start": [4],
            "end": [9],
            "source": [None],
            "ops": [None],
            "whole": [None],
        },
        schema=TABLES["iterations"].schema,
    )
    assert_frame_equal(TABLES["iterations"].conform(given), expected)


def test_conform_names_what_is_absent() -> None:
    with pytest.raises(ValueError, match="table iterations lacks process, thread, end"):
        TABLES["iterations"].conform(
            pl.DataFrame({"report": [0], "iteration": [0], "start": [0], "name": ["x"]})
        )


def test_conform_refuses_words_that_are_none() -> None:
    ranges = pl.DataFrame(
        {"range": [0], "report": [0], "process": [0], "thread": [0], "start": [0], "end": [1]}
    )
    said = "column style of table ranges cannot be 'sideways': it is push_pop, start_end"
    with pytest.raises(ValueError, match=said):
        TABLES["ranges"].conform(ranges.with_columns(style=pl.lit("sideways")))


def test_a_source_leaves_out_what_it_cannot_know() -> None:
    op = {"op": [0], "process": [0], "start": [0], "end": [1], "kind": ["compute"]}
    ops = TABLES["ops"].conform(pl.DataFrame({**op, "device": [0]}))
    assert ops.select("report", "stage", "stage_source").row(0) == (0, "OTHER", "none")
    with pytest.raises(ValueError, match="table ops lacks device"):
        TABLES["ops"].conform(pl.DataFrame(op))


def test_trace_has_every_table() -> None:
    trace = Trace.of({})
    assert list(trace.tables) == list(TABLES)
    for name, table in TABLES.items():
        assert trace.read(name).schema == table.schema
        assert trace[name].collect_schema() == table.schema
        assert trace.read(name).is_empty()


def test_trace_refuses_other_tables() -> None:
    with pytest.raises(ValueError, match="no canonical table kernels, streams"):
        Trace.of({"streams": pl.DataFrame(), "ops": TABLES["ops"].empty(), "kernels": _ops()})


def _ops() -> pl.DataFrame:
    return pl.DataFrame(
        {
            "op": [0, 1, 2],
            "report": [0, 0, 0],
            "process": [0, 0, 1],
            "device": [0, 0, 1],
            "start": [-5, (1 << 60) + 1, 7],
            "end": [5, (1 << 60) + 2, 9],
            "name": ["gemm<int, 3>", "memcpy <&>", None],
            "kind": ["compute", "h2d", "collective"],
            "collective": [None, None, "all_reduce"],
            "stage": ["FP", "IO", "WU"],
            "stage_source": ["nvtx", "copy_kind", "gradient_exchange"],
            "iteration": [None, 3, 4],
        }
    )


def test_round_trip_through_files(tmp_path: Path) -> None:
    ranges = pl.DataFrame(
        {
            "range": [0], "report": [0], "process": [0], "thread": [0], "start": [0], "end": [9],
            "name": ["vor wärts"], "style": ["push_pop"], "stage": ["FP"], "path": [3],
            "open": [True],
        }
    )  # fmt: skip
    trace = Trace.of({"ops": _ops(), "ranges": ranges}, ("one thing.",))
    trace.write(tmp_path)
    # A table without rows has no file.
    written = {path.name for path in tmp_path.iterdir()}
    assert written == {"parts.json", "checks.json", "ops", "ranges"}
    again = Trace.scan(tmp_path, ("one thing.",))
    assert again.warnings == ("one thing.",)
    for name, table in TABLES.items():
        assert again[name].collect_schema() == table.schema
        assert_frame_equal(again.read(name), trace.read(name))


def test_short_tables_are_read_once_and_long_ones_when_they_are_wanted(tmp_path: Path) -> None:
    processes = pl.DataFrame(
        {"process": [0, 1], "report": [0, 0], "pid": [10, 11], "global_id": [20, 21]}
    )
    threads = pl.DataFrame(
        {"thread": [0], "report": [0], "process": [0], "tid": [7], "global_id": [7]}
    )
    Trace.of({"ops": _ops(), "processes": processes, "threads": threads}).write(tmp_path)
    trace, among_many = Trace.scan(tmp_path), Trace.scan(tmp_path, reports=4_000)
    for each in (trace, among_many):
        assert [*each.tables] == [*TABLES]
        assert len(each.tables) == len(TABLES)
        assert each.read("processes").height == 2
    assert among_many["ops"].select("start").collect().height == 3
    assert trace["ops"].select("start").collect().height == 3
    changed = trace.with_lazy({"processes": pl.LazyFrame({"process": [7]})})
    shutil.rmtree(tmp_path)
    assert trace.read("ops").height == 3
    assert changed.read("ops").equals(trace.read("ops"))
    assert changed.read("processes")["process"].to_list() == [7]
    assert trace.read("processes").height == among_many.read("processes").height == 2
    with pytest.raises(FileNotFoundError):
        among_many.read("ops")
    with pytest.raises(FileNotFoundError):
        changed.read("threads")  # which nobody has asked for before
    assert changed.read("ranges").is_empty()  # as is known without its file


def test_a_folder_whose_name_is_a_pattern_is_read_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "run[1]*"
    Trace.of({"ops": _ops()}).write(folder)
    assert Trace.scan(folder).read("ops").height == 3


def test_with_tables_replaces_and_leaves_the_rest() -> None:
    trace = Trace.of({"ops": _ops()}, ("a.", "b."))
    threads = pl.DataFrame(
        {"thread": [0], "report": [0], "process": [0], "tid": [7], "global_id": [7]}
    )
    changed = trace.with_tables({"threads": threads}, ("b.", "c."))
    assert changed.read("threads").schema == TABLES["threads"].schema
    assert changed.read("threads")["tid"].to_list() == [7]
    assert_frame_equal(changed.read("ops"), trace.read("ops"))
    assert changed.warnings == ("a.", "b.", "c.")
    assert trace.read("threads").is_empty()
    assert trace.warnings == ("a.", "b.")


def test_what_is_worked_out_once_is_that_of_its_own_tables() -> None:
    asked: list[Trace] = []

    def heights(trace: Trace) -> int:
        asked.append(trace)
        return trace.height("paths")

    empty = Trace.of({})
    assert [empty.once(heights), empty.once(heights)] == [0, 0]
    fuller = empty.with_lazy({"paths": pl.LazyFrame({"path": [1]})})
    assert fuller.once(heights) == 1
    assert asked == [empty, fuller]


def test_what_reads_one_table_is_worked_out_once_for_all_traces_with_it() -> None:
    asked: list[Trace] = []

    def heights(trace: Trace) -> int:
        asked.append(trace)
        return trace.height("paths")

    trace = Trace.of({})
    assert trace.once(heights, reads=("paths",)) == 0
    some = trace.with_lazy({"ops": trace["ops"]})
    fuller = some.with_lazy({"paths": pl.LazyFrame({"path": [1]})})
    found = [each.once(heights, reads=("paths",)) for each in (trace, some, fuller)]
    assert found == [0, 0, 1]
    assert asked == [trace, fuller]


@pytest.mark.parametrize("gap", [0, 1], ids=["numbers are rows", "a number is missing"])
def test_rows_by_number_are_read_from_the_files_that_contain_them(
    gap: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = pl.Series([*range(5), *range(5 + gap, 12 + gap)])
    times = {"op": numbers, "start": numbers * 10, "end": numbers * 10 + 5}
    table = TABLES["ops"].conform(
        pl.DataFrame(times).with_columns(process=0, device=0, kind=pl.lit("compute"))
    )
    with TraceWriter(tmp_path / "trace") as writer:
        for part in (table[:4], table[4:4], table[4:9], table[9:]):
            writer.append("ops", part)
    monkeypatch.setattr(_trace, "_SHORT", 3)
    trace = Trace.scan(tmp_path / "trace")
    for first, last in [(0, 0), (3, 4), (5, 7), (8, 11), (11, 12), (12, 20)]:
        ids = pl.Series("op", [last, None, first])
        expected = table.filter(pl.col("op").is_between(first, last)).select("op", "start")
        assert_frame_equal(trace.rows("ops", ids, ["op", "start"]), expected)
        replaced = trace.with_tables({"ops": table[::-1]})
        assert_frame_equal(replaced.rows("ops", ids, ["op", "start"]), expected[::-1])
    assert trace.rows("ops", pl.Series("op", [None], pl.Int64), ["op"]).is_empty()
    for part in (0, 2):
        (tmp_path / "trace" / "ops" / f"{part:05}.parquet").unlink()
    if not gap:
        assert trace.rows("ops", pl.Series([5, 6]), ["op"])["op"].to_list() == [5, 6]
