"""One run of several reports: numbers, devices, warnings."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from itertools import accumulate
from typing import Any

import polars as pl
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from trace_builder import TraceBuilder

from tracekit.model import (
    TABLES,
    Trace,
    TraceWriter,
    _combine,
    combine,
    missing_files,
    replace_table,
)
from tracekit.support.batches import in_batches


def report(
    number: int = 0,
    *,
    host: str | None = "node",
    devices: list[dict[str, Any]] | None = None,
    session_start: int | None = None,
    warnings: tuple[str, ...] = (),
    ops: int = 2,
) -> Trace:
    """A report of one process with two threads, a call, a range in a range, and some ops."""
    given = [{"device": 0}] if devices is None else devices
    on = [row["device"] for row in given]
    gpus = [{"report": 0, "active": True, "identity": "device_table"} | row for row in given]
    place = {"report": 0, "process": 0}
    rows: dict[str, list[dict[str, Any]]] = {
        "reports": [
            {
                "report": 0, "file": f"rank{number}.sqlite", "format": "nsys", "size": 1,
                "host": host, "session_start": session_start,
            }
        ],
        "processes": [place | {"pid": 100, "global_id": 1}],
        "threads": [place | {"thread": n, "tid": n, "global_id": n} for n in range(2)],
        "devices": gpus,
        "calls": [
            place | {"call": 0, "thread": 1, "start": 1, "end": 2, "name": f"launch{number}"}
        ],
        "ranges": [
            place
            | {"range": 0, "thread": 0, "start": 0, "end": 9, "style": "push_pop", "name": "outer"},
            place
            | {
                "range": 1, "thread": 0, "start": 0, "end": 5, "style": "push_pop", "name": "in",
                "parent": 0, "end_thread": 1, "path": 1,
            },
        ],
        "paths": [
            {"path": 0, "label": f"p{number}", "depth": 0},
            {"path": 1, "parent_path": 0, "label": "in", "depth": 1},
        ],
        "ops": [
            place
            | {
                "op": n, "device": on[n % len(on)], "start": n, "end": n + 1, "kind": "p2p",
                "name": f"k{number}", "stage": "FP", "stage_source": "nvtx", "call": 0,
                "launch_thread": 1, "range": 1, "src_device": on[0], "correlation": 5,
                "iteration": 3,
            }
            for n in range(ops if on else 0)
        ],
        "iterations": [
            place | {"thread": 0, "iteration": 3, "start": 0, "end": 9, "name": "step 3"}
        ],
    }  # fmt: skip
    frames = {name: pl.DataFrame(some) for name, some in rows.items() if some}
    return Trace.of(frames, warnings)


def column(trace: Trace, table: str, name: str) -> list[Any]:
    return trace.read(table)[name].to_list()


def test_a_single_report_is_returned_as_it_is() -> None:
    trace = report()
    assert combine([trace]) is trace


def test_numbers_continue_from_report_to_report() -> None:
    both = combine([report(0), report(1)])
    assert column(both, "reports", "report") == [0, 1]
    assert column(both, "processes", "process") == [0, 1]
    assert column(both, "threads", "thread") == [0, 1, 2, 3]
    assert column(both, "threads", "process") == [0, 0, 1, 1]
    assert column(both, "calls", "call") == [0, 1]
    assert column(both, "calls", "thread") == [1, 3]
    assert column(both, "ranges", "range") == [0, 1, 2, 3]
    assert column(both, "ranges", "parent") == [None, 0, None, 2]
    assert column(both, "ranges", "end_thread") == [None, 1, None, 3]
    assert column(both, "ops", "op") == [0, 1, 2, 3]
    assert column(both, "ops", "report") == [0, 0, 1, 1]
    assert column(both, "ops", "call") == [0, 0, 1, 1]
    assert column(both, "ops", "range") == [1, 1, 3, 3]
    assert column(both, "ops", "launch_thread") == [1, 1, 3, 3]
    assert column(both, "ops", "dst_device") == [None] * 4
    assert column(both, "iterations", "thread") == [0, 2]
    # What is unique within its process stays, and so do the numbers of iterations.
    assert column(both, "ops", "correlation") == [5] * 4
    assert column(both, "iterations", "iteration") == [3, 3]
    for name, table in TABLES.items():
        assert both[name].collect_schema() == table.schema


def gpu(device: int, uuid: str | None = None, bus: str | None = None, **row: Any) -> dict[str, Any]:
    return {"device": device, "uuid": uuid, "pci_bus": bus} | row


HIDDEN: dict[str, Any] = {"identity": "unknown"}


@pytest.mark.parametrize(
    ("hosts", "devices", "expected"),
    [
        # Ranks that see all GPUs of their machine, each using one: ordinals stay.
        (["a", "a"], [[gpu(0, "u"), gpu(1, "v")], [gpu(0, "u"), gpu(1, "v")]], [[0, 1], [0, 1]]),
        # One GPU shown to each: all call theirs 0; numbered by bus.
        (["a", "a"], [[gpu(0, "u", "0000:2:00.0")], [gpu(0, "v", "0000:1:00.0")]], [[1], [0]]),
        # Two machines.
        (["b", "a"], [[gpu(0, "u"), gpu(1, "v")], [gpu(0, "w"), gpu(1, "x")]], [[0, 1], [2, 3]]),
        # Without UUIDs: host and bus, however its domain is written.
        (["a", "a"], [[gpu(0, None, "0000:3B:00.0")], [gpu(0, None, "3b:00.0")]], [[0], [0]]),
        (["a", "b"], [[gpu(0, None, "3b:00.0")], [gpu(0, None, "3b:00.0")]], [[0], [1]]),
        ([None, None], [[gpu(0, None, "3b:00.0")], [gpu(0, None, "3b:00.0")]], [[0], [1]]),
        # One report knows the UUID, the other does not.
        (["a", "a"], [[gpu(0, "u", "3b:00.0")], [gpu(0, None, "3b:00.0")]], [[0], [0]]),
        # UUIDs contradict each other: two instances of one GPU.
        (["a", "a"], [[gpu(0, "u", "3b:00.0")], [gpu(0, "v", "3b:00.0")]], [[0], [1]]),
        (
            ["a", "a", "a"],
            [[gpu(0, "u", "3b:00.0")], [gpu(0, "v", "3b:00.0")], [gpu(0, None, "3b:00.0")]],
            [[0], [1], [2]],
        ),
        # A UUID holds for all hosts: containers give themselves names.
        (["a", "b"], [[gpu(0, "u", "1")], [gpu(0, "u", "2")]], [[0], [0]]),
        # What stands for an ordinal of a process is no GPU that another report could see.
        (["a", "a"], [[gpu(0, **HIDDEN)], [gpu(0, **HIDDEN)]], [[0], [1]]),
        (["a", "a"], [[gpu(0, None, "1", **HIDDEN)], [gpu(0, None, "1", **HIDDEN)]], [[0], [1]]),
        # Within a report nothing is merged.
        (["a", "a"], [[gpu(0, "u"), gpu(1, "u")], [gpu(0, "u")]], [[0, 1], [2]]),
        # Numbers that reports agree on need not be dense, nor all be in each of them.
        (["a", "a"], [[gpu(3, "u")], [gpu(5, "v")]], [[3], [5]]),
        (["a", "a"], [[gpu(0, "u")], [gpu(1, "u")]], [[0], [0]]),
        (["a", "a"], [[], [gpu(0, "u")]], [[], [0]]),
    ],
)
def test_devices_of_the_run(hosts, devices, expected) -> None:
    traces = [
        report(n, host=host, devices=some)
        for n, (host, some) in enumerate(zip(hosts, devices, strict=True))
    ]
    both = combine(traces)
    ops = both.read("ops")
    for number, trace in enumerate(traces):
        found = ops.filter(pl.col("report") == number)
        old = trace.read("ops")["device"].to_list()
        new = dict(zip([row["device"] for row in devices[number]], expected[number], strict=True))
        assert found["device"].to_list() == [new[each] for each in old]
        assert found["src_device"].to_list() == [
            new[each] for each in trace.read("ops")["src_device"]
        ]
    assert column(both, "devices", "device") == sorted({n for some in expected for n in some})


def test_a_device_is_described_by_whoever_knows_most() -> None:
    listed = gpu(0, "u", "3b:00.0", name=None, active=False, sm_count=80)
    used = gpu(0, "u", None, name="H100", active=True, identity="visible_devices")
    [row] = (
        combine([report(0, devices=[listed]), report(1, devices=[used])])
        .read("devices")
        .rows(named=True)
    )
    assert (row["report"], row["uuid"], row["pci_bus"]) == (0, "u", "3b:00.0")
    assert (row["name"], row["sm_count"]) == ("H100", 80)
    assert (row["active"], row["identity"]) == (True, "visible_devices")


CLOCKS = "the clocks of 2 reports are not aligned"


def test_warnings_name_their_file() -> None:
    both = combine([report(0, warnings=("late.",)), report(1, warnings=("early.", "odd."))])
    assert both.warnings[:3] == (
        "rank0.sqlite: late.", "rank1.sqlite: early.", "rank1.sqlite: odd.",
    )  # fmt: skip
    assert both.warnings[3].startswith(CLOCKS)
    assert len(both.warnings) == 4


def test_one_cause_is_one_warning() -> None:
    """Of five reports, four lost calls, and of two of these a counter was cut."""
    lost = [(f"{n:,} of 9 calls are lost.",) for n in (1, 2_000, 3, 4)]
    made = [*lost, ("odd 1.", "odd 2.")]
    made[1] += ("a counter was cut.",)
    made[3] += ("a counter was cut.",)
    told = combine([report(n, warnings=each) for n, each in enumerate(made)]).warnings
    names = "rank0.sqlite, rank1.sqlite, rank2.sqlite, ..."
    assert told[:-1] == (
        f"4 of 5 reports ({names}); of the first: 1 of 9 calls are lost.",
        "2 of 5 reports (rank1.sqlite, rank3.sqlite): a counter was cut.",
        "rank4.sqlite: odd 1.",
        "rank4.sqlite: odd 2.",
    )


def test_a_report_without_steps_is_told_if_others_have_some() -> None:
    """Not one that launches hardly anything, and none of a run without steps."""
    traces = []
    for number, (steps, ops) in enumerate([(2, 300), (0, 4), (0, 3)]):
        builder = TraceBuilder()
        for step in range(steps):
            builder.iteration(step, 100 * step, 100 * step + 90)
        for op in range(ops):
            builder.op("gemm", 10 * op)
        traces.append(builder.trace().with_tables({"reports": report(number).read("reports")}))
    [said] = [text for text in combine(traces).warnings if "no steps" in text]
    assert said == "rank1.sqlite: no steps are known of its GPU work: tables of steps leave it out"
    assert not [text for text in combine(traces[1:]).warnings if "no steps" in text]


def test_clocks_apart_for_one_reason_are_one_warning() -> None:
    """Every report but the first is set by hand, each by its own offset."""
    reports = [on_clock(report(0), "host a", offset=0)]
    reports += [
        on_clock(report(n), "host a", offset=10 * n, source="given") for n in range(1, 4)
    ]  # fmt: skip
    [said] = combine(reports).warnings
    names = "rank1.sqlite, rank2.sqlite, rank3.sqlite"
    assert said.startswith(f"3 of 4 reports ({names}); of the first: its clock is set +10 ns")


def test_files_of_the_same_name_are_told_apart() -> None:
    both = combine([report(7, warnings=("x.",)), report(7, warnings=("y.",))])
    assert both.warnings[:2] == ("report 0 rank7.sqlite: x.", "report 1 rank7.sqlite: y.")


def on_clock(trace: Trace, name: str, **told: object) -> Trace:
    """A report that says on which clock it is to be put."""
    reports = trace.read("reports").with_columns(
        clock=pl.lit(name), **{f"clock_{key}": pl.lit(value) for key, value in told.items()}
    )
    return trace.with_tables({"reports": reports})


def test_times_are_put_on_the_clocks_that_reports_say() -> None:
    """Time 100 is 130, and 3 ns more as the clock runs fast by 5 % of the 60 ns since time 40."""
    first = on_clock(report(ops=1, session_start=5000), "host a", offset=0)
    other = on_clock(
        report(ops=1, session_start=5030), "host a", offset=30, drift=0.05, since=40,
        source="session_start",
    )  # fmt: skip
    ops = other.read("ops").with_columns(start=pl.lit(100, pl.Int64))
    both = combine([first, other.with_tables({"ops": ops})])
    assert both.read("ops")["start"][1] == 133
    assert both.read("reports")["session_start"].to_list() == [5000, 5000]
    assert both.warnings == ()


def test_lengths_are_the_same_on_every_clock() -> None:
    first = on_clock(report(ops=1), "host a", offset=0)
    length = {
        "report": 0, "process": 0, "stage": "FP", "stage_source": "nvtx", "other_source": "nvtx",
        "other_stage": "FP", "ops": 1, "total_ns": 7,
    }  # fmt: skip
    told = report(ops=1).with_tables({"opinions": pl.DataFrame([length])})
    both = combine([first, on_clock(told, "host a", offset=30, drift=0.05, since=40)])
    assert column(both, "opinions", "total_ns") == [7]


def test_reports_that_say_no_clock_are_on_their_own() -> None:
    both = combine([report(0), report(1)])
    assert both.read("reports")["clock"].to_list() == ["report 0", "report 1"]
    assert both.warnings[0].startswith(CLOCKS)


def test_what_was_combined_can_be_combined() -> None:
    # Devices of unlike UUIDs, so that no ordinal is anyone's.
    one, two, three = (report(n, devices=[gpu(0, f"u{n}")]) for n in range(3))
    nested, flat = combine([combine([one, two]), three]), combine([one, two, three])
    for name in TABLES:
        own = ["clock"] if name == "reports" else []  # which is told once, where all are at hand
        assert_frame_equal(nested.read(name).drop(own), flat.read(name).drop(own))


def test_long_tables_are_not_read(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_combine, "_FEW", 3)
    monkeypatch.setattr(_combine, "_FEW_OF_EACH", 0)
    for number in range(2):
        report(number).write(tmp_path / str(number))
    # As of many, of which not even short tables are kept.
    both = combine([Trace.scan(tmp_path / str(n), reports=1_000_000) for n in range(2)])
    assert both["ops"].explain().count("Parquet SCAN") == 2
    expected = combine([report(0), report(1)])
    for name in TABLES:
        assert_frame_equal(both.read(name), expected.read(name))


WAYS: dict[str, dict[str, int]] = {
    "one by one": {"_FEW": 0},
    "in groups": {"_FEW": 0, "_SCANS": 0, "_READ_TOGETHER": 3},
    "as a whole": {"_FEW": 1_000},
}
"""How a table of several reports is read, by how long it is and how many reports there are."""


def read_in(way: str, patch: pytest.MonkeyPatch) -> None:
    for name, value in {"_FEW_OF_EACH": 0, **WAYS[way]}.items():
        patch.setattr(_combine, name, value)


@pytest.mark.parametrize("stored", [False, True])
def test_of_many_reports_what_is_wanted_is_read_in_groups(
    stored: bool, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = [report(n, devices=[gpu(0, f"u{n}")], ops=n % 4) for n in range(9)]
    if stored:
        for number, each in enumerate(reports):
            each.write(tmp_path / str(number))
        reports = [Trace.scan(tmp_path / str(n), reports=1_000_000) for n in range(9)]
    asked = {
        "some columns": lambda ops: ops.select("device", "start"),
        "the first rows": lambda ops: ops.head(5),
        "some rows": lambda ops: ops.filter(pl.col("device") > 4).select("op"),
        "the first of some rows": lambda ops: ops.filter(pl.col("device") > 4).head(3),
        "all in batches": lambda ops: pl.concat(in_batches(ops.select("op", "device"), 4)).lazy(),
        "how many": lambda ops: ops.select(pl.len()),
        "none": lambda ops: ops.head(0),
    }
    found = {}
    for way in WAYS:
        with monkeypatch.context() as patch:
            read_in(way, patch)
            ops = combine(reports)["ops"]
            found[way] = [ask(ops).collect() for ask in asked.values()]
            assert ("PYTHON SCAN" in ops.explain()) == (way == "in groups")
    for way in WAYS:
        for one, other in zip(found[way], found["one by one"], strict=True):
            assert_frame_equal(one, other)


def naive(traces: list[Trace]) -> dict[str, list[dict[str, Any]]]:
    """The rows of the run, row by row; all devices are different ones."""
    kinds = {
        "process": "processes", "thread": "threads", "op": "ops", "call": "calls",
        "range": "ranges", "report": "reports", "device": "devices",
    }  # fmt: skip
    other = {
        "launch_thread": "thread", "end_thread": "thread", "src_device": "device",
        "dst_device": "device", "parent": "range",
    }  # fmt: skip
    heights = {
        kind: [0, *accumulate(trace.read(table).height for trace in traces)]
        for kind, table in kinds.items()
    }
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in TABLES}
    trees: dict[tuple[str, ...], int] = {}
    for index, trace in enumerate(traces):
        chains: list[tuple[str, ...]] = []
        for row in trace.read("paths").rows(named=True):
            above = row["parent_path"]
            chains.append((*(() if above is None else chains[above]), row["label"]))
            if trees.setdefault(chains[-1], len(trees)) == len(rows["paths"]):
                rows["paths"].append(
                    {
                        "path": trees[chains[-1]], "parent_path": trees.get(chains[-1][:-1]),
                        "label": row["label"], "depth": row["depth"],
                    }
                )  # fmt: skip
        for name in TABLES:
            for row in trace.read(name).rows(named=True) if name != "paths" else ():
                if name == "ranges" and row["path"] is not None:
                    row["path"] = trees[chains[row["path"]]]
                for key, value in row.items():
                    kind = other.get(key, key)
                    if kind in kinds and value is not None:
                        row[key] = value + heights[kind][index]
                if name == "reports":
                    row |= {
                        "clock": f"report {index}", "clock_offset": 0, "clock_drift": 0.0,
                        "clock_since": 0, "clock_calls": 0,
                    }  # fmt: skip
                rows[name].append(row)
    return rows


@settings(deadline=None, max_examples=examples(25, thorough=1000))
@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 5)), min_size=2, max_size=4),
    st.sampled_from(list(WAYS)),
)
def test_as_a_naive_combination_row_by_row(shapes, way: str) -> None:
    traces = [
        report(n, host=f"h{n}", devices=[gpu(d, f"u{n}{d}") for d in range(gpus)], ops=ops)
        for n, (gpus, ops) in enumerate(shapes)
    ]
    expected = naive(traces)
    with pytest.MonkeyPatch.context() as changed:
        read_in(way, changed)
        both = combine(traces)
        for name in TABLES:
            assert both.read(name).rows(named=True) == expected[name], name


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("drift", [0.0, 1e-5, -0.25])
def test_tables_are_alike_however_they_are_read(
    way: str, drift: float, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers of devices that change places, clocks of any kind, and nulls."""
    read_in(way, monkeypatch)
    traces = []
    for number, gpus in enumerate(((0, 1), (1, 0), (7,))):
        given = report(number, devices=[gpu(n, f"u{n if number < 2 else 'x'}{n}") for n in gpus])
        given = on_clock(given, "host", offset=100 * number, drift=drift, since=40)
        given.write(tmp_path / str(number))
        traces.append(Trace.scan(tmp_path / str(number), reports=3))
    both = combine(traces)
    for number, trace in enumerate(traces):
        ops = both.read("ops").filter(report=number)
        own = trace.read("ops")
        later = 100 * number
        assert ops["start"].to_list() == [
            at + later + round((at - 40) * drift) for at in own["start"].to_list()
        ]
        assert ops["launch_start"].null_count() == own["launch_start"].null_count()
        uuids = both.read("devices").select("device", "uuid")
        seen = trace.read("devices").select("device", "uuid")
        there, here = (
            rows.join(names, on="device", maintain_order="left")["uuid"].to_list()
            for rows, names in ((ops, uuids), (own, seen))
        )
        assert there == here


@pytest.mark.parametrize("way", WAYS)
def test_a_device_that_is_not_listed_keeps_its_number(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_in(way, monkeypatch)
    listed, bare = (report(n, devices=[gpu(0, f"u{n}")]) for n in range(2))
    bare = bare.with_tables({"devices": TABLES["devices"].empty()})
    assert column(combine([listed, bare]), "ops", "device") == [0] * 4


@pytest.mark.parametrize("older", [0, 1, 2])
def test_a_report_of_an_earlier_version_among_others(older: int, tmp_path) -> None:
    for number in range(3):
        report(number).write(tmp_path / str(number))
    part = tmp_path / str(older) / "devices" / "00000.parquet"
    pl.read_parquet(part).drop("peak_memory_bandwidth").write_parquet(part)
    both = combine([Trace.scan(tmp_path / str(n), reports=3) for n in range(3)])
    assert column(both, "devices", "peak_memory_bandwidth") == [None] * 3
    assert both["devices"].collect_schema() == TABLES["devices"].schema


def test_rows_of_a_file_with_others_than_were_written_are_not_those_of_the_next(tmp_path) -> None:
    for number in range(3):
        report(number, ops=3).write(tmp_path / str(number))
    part = tmp_path / "0" / "calls" / "00000.parquet"
    rows = pl.read_parquet(part)
    pl.concat([rows, rows]).write_parquet(part)
    both = combine([Trace.scan(tmp_path / str(n), reports=3) for n in range(3)])
    names = both.read("calls").select("report", pl.col("name").cast(pl.String)).rows()
    assert names == [(0, "launch0"), (0, "launch0"), (1, "launch1"), (2, "launch2")]


def test_a_damaged_file_among_many(tmp_path) -> None:
    for number in range(3):
        report(number).write(tmp_path / str(number))
    damaged = tmp_path / "1" / "threads" / "00000.parquet"
    damaged.write_bytes(damaged.read_bytes()[:-20])
    with pytest.raises(pl.exceptions.ComputeError, match="parquet"):
        combine([Trace.scan(tmp_path / str(n), reports=3) for n in range(3)])


def test_a_table_of_one_part_is_replaced(tmp_path) -> None:
    ops = report(ops=5).read("ops")
    for name, parts in (("one", (ops,)), ("two", (ops[:2], ops[2:]))):
        with TraceWriter(tmp_path / name) as writer:
            for part in parts:
                writer.append("ops", part)
    replace_table(tmp_path / "one", "ops", ops[3:])
    assert_frame_equal(Trace.scan(tmp_path / "one").read("ops"), ops[3:])
    with pytest.raises(ValueError, match="table ops has 2 parts"):
        replace_table(tmp_path / "two", "ops", ops)
    replace_table(tmp_path / "one", "calls", TABLES["calls"].empty())
    assert Trace.scan(tmp_path / "one").read("calls").is_empty()


def test_parts_are_read_in_order(tmp_path) -> None:
    ops = report(ops=5).read("ops")
    writer = TraceWriter(tmp_path / "report")
    for part in (ops[:2], ops[:0], ops[2:3], ops[3:]):
        writer.append("ops", part)
    assert missing_files(tmp_path / "report") == ["parts.json"]
    writer.close()
    assert missing_files(tmp_path / "report") == []
    again = Trace.scan(tmp_path / "report")
    assert_frame_equal(again.read("ops"), ops)
    assert again.read("calls").is_empty()
    assert Counter(path.parent.name for path in tmp_path.rglob("*.parquet")) == {"ops": 3}


@pytest.mark.parametrize(
    "known",
    [
        "as written", "of fewer files", "none", "[1]", '{"ops": [[1', "{}",
        '{"ops": [[NaN, 60], [20, 45], [90, 110]]}', '{"ops": [[0, "60"], [20, 45], [90, 110]]}',
    ],
)  # fmt: skip
def test_rows_during_a_time_are_read_from_the_files_that_have_some(tmp_path, known) -> None:
    ops = report(ops=6).read("ops").with_columns(
        start=pl.Series([0, 50, 20, 30, 100, 90]), end=pl.Series([10, 60, 45, 35, 110, 99])
    )  # fmt: skip
    with TraceWriter(tmp_path / "report") as writer:
        for part in (ops[:2], ops[2:4], ops[4:]):
            writer.append("ops", part)
    times = tmp_path / "report" / "times.json"
    assert json.loads(times.read_text()) == {"ops": [[0, 60], [20, 45], [90, 110]]}
    if known == "of fewer files":
        times.write_text('{"ops": [[0, 60]]}')
    elif known == "none":  # an earlier version wrote none
        times.unlink()
    elif known != "as written":
        times.write_text(known)
    trace = Trace.scan(tmp_path / "report", reports=1 << 20)
    edges = [-5, 0, 5, 10, 15, 20, 30, 45, 55, 60, 75, 90, 100, 110, 115]
    for start, end in itertools.product(edges if known == "as written" else edges[::3], repeat=2):
        expected = ops.filter(pl.col("start") <= end, pl.col("end") >= start)
        assert_frame_equal(trace.during("ops", start, end).collect(), expected)
    if known == "as written":
        (tmp_path / "report" / "ops" / "00002.parquet").unlink()
        assert trace.during("ops", 46, 70).select("op").collect().to_series().to_list() == [1]


def test_missing_parts_are_noticed(tmp_path) -> None:
    folder = tmp_path / "report"
    assert missing_files(folder) == ["parts.json"]
    report().write(folder)
    (folder / "calls" / "00000.parquet").unlink()
    assert missing_files(folder) == ["calls/00000.parquet"]
    (folder / "parts.json").write_text('{"ops": [2]}')
    later = {
        "host", "metrics", "memory", "syncs", "event_records", "graph_nodes", "machine", "verdicts",
        "assumptions", "opinions", "device_sums",
    }  # fmt: skip
    expected = set(TABLES) - {"ops"} - later
    assert set(missing_files(folder)) == {f"table {name}" for name in expected}
    (folder / "parts.json").write_text('{"ops": [')
    assert missing_files(folder) == ["parts.json"]


def test_tables_that_came_later_are_empty_in_older_runs(tmp_path) -> None:
    folder = tmp_path / "report"
    report().write(folder)
    rows = json.loads((folder / "parts.json").read_text())
    for name in ("host", "metrics", "memory", "syncs", "event_records", "graph_nodes", "machine"):
        del rows[name]
    (folder / "parts.json").write_text(json.dumps(rows))
    assert missing_files(folder) == []
    again = Trace.scan(folder)
    assert again.read("host").schema == TABLES["host"].schema
    assert again.read("ops").height == report().read("ops").height


def test_runs_whose_paths_were_text_are_incomplete(tmp_path) -> None:
    folder = tmp_path / "report"
    report().write(folder)
    rows = json.loads((folder / "parts.json").read_text())
    del rows["paths"]
    (folder / "parts.json").write_text(json.dumps(rows))
    assert missing_files(folder) == ["table paths"]


def test_columns_that_came_later_are_null_in_older_runs(tmp_path) -> None:
    folder = tmp_path / "report"
    report().write(folder)
    path = folder / "reports" / "00000.parquet"
    pl.read_parquet(path).drop("clock", "rank").write_parquet(path)
    again = Trace.scan(folder)
    found = again.read("reports")
    assert dict(found.schema) == dict(TABLES["reports"].schema)
    assert found["clock"].is_null().all()
    assert combine([again]).read("reports").height == 1


def test_a_writer_that_fails_leaves_nothing_that_counts(tmp_path) -> None:
    def fail() -> None:
        with TraceWriter(tmp_path / "report") as writer:
            writer.append("ops", report().read("ops"))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert missing_files(tmp_path / "report") == ["parts.json"]
