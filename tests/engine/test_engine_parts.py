"""A run of several reports that is added up part by part, against one that is not divided."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
from effort import examples
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from trace_builder import TraceBuilder

from tracekit.analysis import breakdown
from tracekit.analysis.idle_time.questions import idle
from tracekit.engine import within
from tracekit.model import TABLES, Clock, Frames, Trace, _combine, combine

OPS = st.lists(
    st.tuples(
        st.integers(0, 1), st.integers(0, 90), st.sampled_from((0, 1, 3, 15)),
        st.sampled_from(("compute", "h2d", "collective", "p2p")),
        st.sampled_from(("FP", "BP", "IO")),
        st.integers(0, 3),
    ),
    min_size=1, max_size=12,
).map(lambda ops: sorted(ops, key=lambda op: op[1]))  # fmt: skip
ASKED: list[tuple[str, dict[str, Any]]] = [
    ("stage", {}), ("device", {"skip": 1}), ("kernel", {}), ("kernel,rank", {"skip": 1}),
    ("range,kind", {}), ("stream", {}), ("node,stage", {"per_iteration": True}),
    ("iteration", {}), ("stage,iteration", {}), ("kernel,iteration", {}),
    ("range", {"per_iteration": True}),
]  # fmt: skip
IDLE: list[tuple[str, dict[str, Any]]] = [
    ("cause", {}), ("device,cause", {"skip": 1}), ("rank,stage", {}), ("range,cause", {}),
    ("iteration,cause", {}), ("cause", {"longest": 7}),
]  # fmt: skip
ALL = range(len(ASKED + IDLE))


def _report(ops: Sequence[tuple[int, int, int, str, str, int]], uuids: Sequence[str]) -> Trace:
    builder = TraceBuilder()
    for step in range(3):
        builder.iteration(step, 30 * step, 30 * step + 25)
    for number in range(4):
        builder.range(
            20 * number, 20 * number + 15, f"layer {number % 3}", path=f"layer {number % 3}"
        )
    for device, start, length, kind, stage, place in ops:
        copied = {"src_device": device, "dst_device": len(uuids) - 1} if kind == "p2p" else {}
        builder.op(
            f"k{place}", start, start=start + 1, end=start + 1 + length, device=device, kind=kind,
            stage=stage, stage_source="nvtx", range=place, **copied,
        )  # fmt: skip
    rows = [
        {
            "report": 0,
            "device": number,
            "uuid": uuid,
            "identity": "device_table",
            "active": number < 2,
        }
        for number, uuid in enumerate(uuids)
    ]
    return builder.trace().with_tables({"devices": pl.DataFrame(rows)})


def _named(trace: Trace, number: int, clock: Clock) -> Trace:
    row = {"report": 0, "file": f"rank{number}.sqlite", "format": "nsys", "size": 1, "host": "a"}
    return trace.with_tables({"reports": clock.applied_to(pl.DataFrame([row]))})


def sent(work: Sequence[Callable[[], Any]]) -> Iterator[tuple[int, Any]]:
    """Do work as if it, and what comes of it, went to other processes and back, the last first."""
    for number, each in reversed([*enumerate(work)]):
        made = pickle.dumps(pickle.loads(pickle.dumps(each))())
        yield number, pickle.loads(made)


def _uuids(gpus: Sequence[int], report: int) -> Sequence[str]:
    """Name the two GPUs that a report uses, and one that it may copy to, which others may use."""
    names = (f"u{gpus[2 * report]}", f"v{gpus[2 * report + 1]}", f"v{gpus[2 * report - 1]}")
    return [*dict.fromkeys(names)]


def _answers(trace: Trace, asked: Sequence[int] = ALL) -> list[str]:
    found = []
    for number in asked:
        by, options = (ASKED + IDLE)[number]
        answer = breakdown if number < len(ASKED) else idle
        found.append(answer(trace, by, **options))
    return [f"{each.rows.write_json()} {each.meta}" for each in found]


@pytest.mark.slow
@settings(max_examples=examples(8), deadline=None, phases=(Phase.generate,))
@given(
    st.lists(OPS, min_size=2, max_size=4),
    st.lists(st.integers(0, 5), min_size=8, max_size=8),
    st.sampled_from((1, 9, 30)),
    st.lists(st.sampled_from(ALL), min_size=3, max_size=3, unique=True),
)
def test_a_run_in_parts_answers_as_one_that_is_not_divided(
    ops: list[list[tuple[int, int, int, str, str, int]]],
    gpus: list[int],
    most: int,
    asked: list[int],
) -> None:
    # Each report sees two GPUs, some of which another one sees too.
    reports = [
        _named(_report(own, _uuids(gpus, n)), n, Clock("c", 7 * n)) for n, own in enumerate(ops)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_combine, "_OF_PART", 1_000)
        whole = combine(reports)
        assert len(whole.parts()) == 1
        expected = _answers(whole, asked)
        patch.setattr(_combine, "_OF_PART", most)
        run = combine(reports)
        assert _answers(replace(run, spread=sent), asked) == expected
        devices = [set(part.read("ops")["device"]) for part in run.parts()]
        assert sum(map(len, devices)) == whole.read("ops")["device"].n_unique()


def _three(monkeypatch: pytest.MonkeyPatch) -> Trace:
    ops = [
        (0, 5, 9, "compute", "FP", 1),
        (1, 40, 3, "h2d", "IO", 2),
        (0, 70, 15, "compute", "BP", 3),
    ]
    monkeypatch.setattr(_combine, "_OF_PART", 3)
    return combine([_named(_report(ops, (f"u{n}", f"v{n}")), n, Clock("c", 0)) for n in range(3)])


def test_what_parts_answered_before_an_interrupt_is_kept(monkeypatch) -> None:
    kept: dict[str, Frames] = {}

    def keep(key: str, frames: Frames) -> bool:
        kept[key] = frames
        return True

    keeper = SimpleNamespace(find=kept.get, keep=keep)
    run = replace(_three(monkeypatch), keeper=keeper)
    asked: list[Trace] = []

    def interrupted(part: Trace) -> Frames:
        asked.append(part)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return {"ops": part.read("ops")}

    work = [partial(interrupted, part) for part in run.parts()]
    with pytest.raises(KeyboardInterrupt):
        run.sums_of_parts(work)
    assert len(kept) == 2
    found = run.sums_of_parts(work)
    assert [each["ops"].height for each in found] == [3, 3, 3]
    assert len(asked) == 4


@pytest.mark.parametrize(("is_kept", "times"), [(False, 1), (True, 2)])
def test_what_parts_answered_is_not_lost_with_the_cache(monkeypatch, is_kept, times) -> None:
    keeper = SimpleNamespace(find=lambda _: None, keep=lambda *_: is_kept)
    run = replace(_three(monkeypatch), keeper=keeper)
    asked: list[str] = []

    def answer(part: Trace) -> Frames:
        asked.append(part.tables.name)
        return {"ops": part.read("ops")}

    found = run.sums_of_parts([partial(answer, part) for part in run.parts()])
    assert [each["ops"].height for each in found] == [3, 3, 3]
    assert len(asked) == times * 3


def test_what_a_part_caches_is_freed(monkeypatch) -> None:
    parts = _three(monkeypatch).parts()
    _three(monkeypatch).sums_of_parts(
        [partial(lambda part: {"ops": part.read("ops")}, part) for part in parts]
    )
    assert not any("ops" in part.tables._opened for part in parts)


def test_parts_are_apart_whoever_works_on_them(monkeypatch) -> None:
    run = _three(monkeypatch)
    assert [part.read("devices")["device"].to_list() for part in run.parts()] == [
        [0, 1], [2, 3], [4, 5]
    ]  # fmt: skip
    for name in ("ops", "iterations", "calls", "ranges"):
        together = pl.concat([part.read(name) for part in run.parts(with_paths=True)])
        own = [column for column in ("op", "call", "range", "parent") if column in together]
        assert together.drop(own).equals(run.read(name).drop(own))
    told = run.read("ops").select("op", "start", number="op", first=pl.lit(-1), device="device")
    for part in run.parts():
        own = part.own_ops(told)
        assert own.select("op", "device").equals(part.read("ops").select("op", "device"))
        assert (
            own["number"].to_list()
            == told.filter(pl.col("device").is_in(own["device"].implode()))["number"].to_list()
        )
    # Of a part what is counted is numbered from 0, as tables of a report are.
    assert [part.read("ops")["op"].to_list() for part in run.parts()] == [[0, 1, 2]] * 3
    assert [part.read("ranges")["range"][0] for part in run.parts(with_paths=True)] == [0] * 3
    with pytest.raises(AssertionError, match="paths only where they were asked for"):
        run.parts()[0].read("ranges")


@pytest.mark.slow
def test_a_stretch_of_a_run_is_asked_of_its_parts(monkeypatch) -> None:
    run = within(_three(monkeypatch), between=(10, 75))
    assert len(run.parts()) == 3
    monkeypatch.setattr(_combine, "_OF_PART", 100)
    whole = within(combine([*_reports(run)]), between=(10, 75))
    assert len(whole.parts()) == 1
    assert _answers(replace(run, spread=sent)) == _answers(whole)


def _reports(run: Trace) -> Sequence[Trace]:
    tables = run.tables
    assert isinstance(tables, _combine._CombinedTables)
    return tables._traces


@pytest.mark.slow
def test_gpus_that_a_report_lists_and_does_not_use_keep_no_reports_together(monkeypatch) -> None:
    run = _three(monkeypatch)
    # As a recorder lists all GPUs of the host.
    reports = [
        report.with_tables(
            {
                "devices": pl.concat(
                    [
                        other.read("devices").with_columns(
                            device=pl.col("device") + 10 * (n != own), active=pl.lit(n == own)
                        )
                        for n, other in enumerate(_reports(run)[:2])
                    ]
                )
            }
        )
        for own, report in enumerate(_reports(run)[:2])
    ]
    both = combine(reports)
    assert both.read("devices").height == 4
    assert len(both.parts()) == 2
    monkeypatch.setattr(_combine, "_OF_PART", 100)
    of_gpus = [n for n, (by, _) in enumerate(ASKED + IDLE) if "device" in by or "rank" in by]
    assert _answers(replace(both, spread=sent), of_gpus) == _answers(combine(reports), of_gpus)


def test_a_run_with_other_ops_is_not_divided(monkeypatch) -> None:
    run = _three(monkeypatch)
    assert len(run.with_tables({"iterations": run.read("iterations")}).parts()) == 3
    for name in TABLES.keys() - {"iterations", "devices", "device_sums"}:
        assert len(run.with_lazy({name: run[name]}).parts()) == 1
