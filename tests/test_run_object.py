"""A run as it shows itself."""

from __future__ import annotations

import gc
import inspect
import json
import pydoc
import sys
import weakref
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import tracekit
from tracekit.cli import app
from tracekit.engine import StageTally
from tracekit.errors import UsageError
from tracekit.machine import load_preset, machine_toml
from tracekit.model import STEPS_UNMARKED
from tracekit.present import html
from tracekit.runs import _opened

SAMPLE = Path(__file__).resolve().parents[1] / "sample_traces" / "ddp_4gpu.sqlite"

pytestmark = pytest.mark.usefixtures("samples_read_once")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run") / "store"


@pytest.fixture(scope="module")
def run(store: Path) -> tracekit.Run:
    return tracekit.ingest(SAMPLE, name="ddp", store=store)[0]


@pytest.mark.slow
def test_in_a_notebook_it_is_its_breakdown(
    run: tracekit.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = html(run.breakdown(), run.breakdown.answer().meta, "ddp · time by stage")
    assert "share: exposed_ns / window_ns" in expected
    times: list[object] = []
    monkeypatch.setattr(StageTally, "add", lambda _, rows: times.append(rows))
    assert run._repr_html_() == expected
    assert not times  # what ops add up to is kept with the run


def test_without_gpu_work_and_ranges_it_is_what_the_run_holds(
    run: tracekit.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = {name: run.trace.read(name).clear() for name in ("ops", "ranges")}
    empty = run.trace.with_tables(absent)
    monkeypatch.setitem(vars(run), "trace", empty)
    told = run.info.answer()
    assert run._repr_html_() == html(told.rows, told.meta, "ddp · contents")


def test_traffic_is_worked_out_once(run: tracekit.Run, tmp_path: Path) -> None:
    """For the same options, of which a file may be another one by the next time."""
    held = run.traffic()
    assert run.traffic() is held
    assert run.links().height
    assert run.traffic() is held
    topology = tmp_path / "machine.toml"
    topology.write_text(machine_toml(load_preset("dgx1v")))
    for options in ({"topology": topology}, {"sizes": {"all_reduce": 4}}, {"ranks": 4}):
        assert (other := run.traffic(**options)) is not held
        assert run.traffic(**options) is other
    before = run.traffic(topology=topology)
    topology.write_text(f"{topology.read_text()}\n")
    assert run.traffic(topology=topology) is not before
    assert run.of_steps((1, 1)).traffic() is not held
    assert run.traffic() is held


def test_traffic_of_a_long_run_is_kept_while_it_is_held(
    run: tracekit.Run, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_opened, "_SHORT", 0)
    held = weakref.ref(tracekit.open("ddp", store=store).traffic())
    gc.collect()
    assert held() is None


def test_tables_that_are_worked_out(run: tracekit.Run) -> None:
    transfers = run.table("transfers").collect()
    assert transfers.equals(run.traffic().transfers)
    assert run.sql("SELECT count(*) AS n FROM transfers").item() == transfers.height
    assert run.table("collectives").collect().height == 80
    assert run.sql("SELECT max(match) AS n FROM collectives").item() == 19
    texts = run.table("path_texts").collect()
    assert texts.height == run.table("paths").collect().height > 0
    assert run.sql("SELECT path, text FROM path_texts ORDER BY path").equals(texts)
    with pytest.raises(tracekit.TracekitError, match=r"'copies': .*memory, .*machine, transfers"):
        run.table("copies")
    assert run.links("pair").is_empty()
    assert run.links("method", topology="pcie-4").height == 2
    assert run.collectives("collective")["count"].sum() == 20


def test_every_question_has_its_rows_and_its_answer(run: tracekit.Run) -> None:
    for name, options in {
        "breakdown": {"by": "kernel"},
        "links": {"by": "pair"},
        "collectives": {"by": "collective"},
        "latency": {"buckets": "class"},
        "memory": {"what": "use"},
        "overhead": {"api": True},
        "info": {"stages": True},
        "sql": {"query": "SELECT count(*) AS n FROM ops"},
    }.items():
        question = getattr(run, name)
        answer = question.answer(**options)
        assert isinstance(answer, tracekit.Answer)
        assert question(**options).equals(answer.rows)
        assert answer.command == name
        assert "<table" in (answer._repr_html_() or "")
        assert question.__doc__


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"by": "kernel", "where": "mean>10us", "sort": "ops", "top": 5},
            ["--by", "kernel", "--where", "mean>10us", "--sort", "ops", "--top", "5"],
        ),
        (
            {"by": ["stage", "device"], "where": ["stage=BP", "device!=0"], "sort": "-busy"},
            [
                "--by",
                "stage,device",
                "--where",
                "stage=BP",
                "--where",
                "device!=0",
                "--sort",
                "-busy",
            ],
        ),
    ],
)
def test_rows_are_chosen_as_on_the_command_line(
    run: tracekit.Run, store: Path, options: dict[str, Any], words: list[str]
) -> None:
    done = CliRunner().invoke(app, ["breakdown", "ddp", "--store", str(store), *words,
                                    "--format", "json"])  # fmt: skip
    rows = json.loads(done.stdout)["rows"]
    assert rows == run.breakdown(**options).to_dicts()
    assert 0 < len(rows) < run.breakdown(by=options["by"]).height
    assert run.breakdown.answer(**options).title.startswith("ddp · time by")


ASKED: dict[str, list[dict[str, Any]]] = {
    "breakdown": [
        *({"by": key} for key in ("range", "layer", "stream", "rank", "node", "iteration")),
        *({"by": key, "per_iteration": x} for key in ("stage", "kernel") for x in (True, False)),
    ],
    "idle": [{}, {"by": "stage,range"}, {"by": "iteration"}, {"longest": 3}],
    "stragglers": [{}, {"by": "iteration"}],
    "critical_path": [{}, {"by": "stage,link"}, {"by": "kernel"}, {"kernels": 3}],
    "whatif": [{"speed": ["gemm=2x"]}],
    "flops": [{}, {"by": "layer,stage"}, {"by": "iteration"}],
    "roofline": [{}, {"by": "layer,stage"}],
    "links": [{}, {"by": "stage,method"}, {"by": "pair"}, {"by": "iteration"}],
    "collectives": [{}, {"by": "collective,stage,rank"}],
    "latency": [{}, {"what": "histogram"}, {"what": "pointer-queries"}, {"what": "staging"}],
    "info": [{}, {"stages": True}],
    "memory": [{"what": what} for what in ("use", "extra", "growth", "table")],
    "study": [{}, {"what": "exchange"}],
    "overhead": [{"baseline": "nccl"}, {"api": True}, {"profiler": True}],
    "bubbles": [{"micro_batches": 2}, {"micro_batches": 2, "per_step": True}],
}  # fmt: skip
"""What the forms of declared questions are asked by; the others are asked without options."""


@pytest.mark.slow
def test_columns_have_the_types_that_are_declared_of_them(run: tracekit.Run) -> None:
    assert set(ASKED) <= set(tracekit.runs.DECLARED)
    for name, asked in tracekit.runs.DECLARED.items():
        if asked.is_of_files:
            continue
        declared = {each.name: each for each in asked.writes.columns}
        for options in ASKED.get(name, [{}]):
            ask = getattr(run, name, None) or partial(getattr(tracekit, name), [run])
            schema = ask(**options).schema
            for column, kind in schema.items():
                told = declared[column].type
                found = "Int64" if kind.is_integer() else str(kind)
                fault = f"{name} {options}: {column} is {kind}, declared {told}"
                assert found in told.split(" or "), fault


def test_rows_that_cannot_be_chosen_are_refused(run: tracekit.Run) -> None:
    with pytest.raises(UsageError, match="unknown column 'colour'"):
        run.idle(sort="colour")
    with pytest.raises(UsageError, match="top 0 is too small: give 1 or more"):
        run.idle(top=0)


def test_a_frame_of_pandas_takes_an_extra(
    run: tracekit.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = run.breakdown.answer()
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match=r"pip install 'tracekit\[pandas\]'"):
        answer.to_pandas()
    monkeypatch.undo()
    pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    assert answer.to_pandas().to_dict("records") == answer.rows.to_dicts()


def test_help_says_what_a_question_takes_and_returns(run: tracekit.Run) -> None:
    told = pydoc.render_doc(run.breakdown, renderer=pydoc.plaintext)  # type: ignore[attr-defined]
    head = told.splitlines()[2]
    assert head.startswith("breakdown(by: str | collections.abc.Sequence[str] = 'stage', *, skip:")
    assert head.endswith("-> 'polars.DataFrame'")
    for part in ("where", "exposed_ns : Int64", "null of idle and between"):
        assert part in told
    answer = inspect.signature(run.breakdown.answer)
    assert answer.return_annotation == "tracekit.Answer"
    assert [*answer.parameters] == [*inspect.signature(run.breakdown).parameters]
    for name, told_of in tracekit.runs.DECLARED.items():
        own = inspect.signature(getattr(run, name, None) or getattr(tracekit, name)).parameters
        assert {each.name for each in told_of.options} <= {*own, *told_of.apart}, name


@pytest.mark.slow
def test_questions_to_several_runs(run: tracekit.Run) -> None:
    for question in (tracekit.study, tracekit.scaling, tracekit.memory):
        assert question([run]).equals(question.answer([run]).rows)
    with pytest.raises(tracekit.TracekitError, match="no run of the method 'p2p'"):
        tracekit.overhead([run])
    with pytest.raises(tracekit.TracekitError, match="what 'speed' is unknown: choose among use"):
        tracekit.memory([run], what="speed")


def test_a_comparison_is_an_answer(run: tracekit.Run) -> None:
    found = tracekit.compare(run, run, by="step")
    assert found.rows.equals(found.contributions)
    assert found.table is found.rows
    html_of = found._repr_html_() or ""
    assert "ddp → ddp · by step" in html_of
    assert found.figure().data
    assert found.figure("changes").data


def test_a_warning_that_runs_share_is_told_once(
    run: tracekit.Run, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tracekit.ingest(SAMPLE, name="again", store=store)[0]
    monkeypatch.setattr(type(run), "warnings", ("a clock was reset",))
    for second, names in ((run, "ddp"), (other, f"ddp, {other.name}")):
        said = tracekit.compare(run, second).warnings
        assert list(said) == [f"{names}: a clock was reset"]


def test_studies_say_what_steps_of_a_run_rest_on(
    run: tracekit.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    doubts = [f"{STEPS_UNMARKED}: 9 of 20 ops", "stages found from structure are contradicted"]
    monkeypatch.setattr(type(run), "warnings", doubts)
    for question in (tracekit.study, tracekit.scaling, tracekit.stalls):
        said = question.answer([run]).warnings
        assert [*said][-2:] == [f"{run.name}: {doubt}" for doubt in doubts]


def test_doubts_of_stages_are_not_told_where_no_stage_matters(
    run: tracekit.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They took 18 lines below tables of traffic and memory."""
    needed = {"verdicts", "opinions", "processes", "iterations"}
    doubt, other = "2 of 4 reports (a, b); of the first: sources disagree", "a clock was reset"
    monkeypatch.setattr(
        "tracekit.attribution.stored_findings",
        lambda tables: ("sources disagree",) if tables.keys() == needed else (),
    )
    monkeypatch.setattr(type(run), "warnings", (doubt, other))
    for answer in (run.links.answer(), run.collectives.answer(), tracekit.memory.answer([run])):
        assert any(text.endswith(other) for text in answer.warnings)
        assert not any(text.endswith(doubt) for text in answer.warnings)
    for answer in (run.links.answer("pair,iteration"), run.links.answer(parameters=1)):
        assert answer.warnings[:2] == (doubt, other)


@pytest.mark.slow
def test_figures_of_answers(run: tracekit.Run) -> None:
    links = run.links.answer(sizes={"all_reduce": 25_000_000})
    for name in ("matrix", "drawing", "timeline"):
        assert links.figure(name).layout.title.text
    assert tracekit.study.answer([run]).figure().data
    with pytest.raises(
        tracekit.TracekitError, match=r"no figure 'map' of .*: there is matrix, draw"
    ):
        links.figure("map")
    with pytest.raises(tracekit.TracekitError, match="leave it out"):
        run.latency.answer(what="staging").figure()


@pytest.mark.slow
def test_a_simulated_run_is_called_so(tmp_path: Path) -> None:
    sample = SAMPLE.parent / "simulated" / "clean.sqlite"
    simulated = tracekit.ingest(sample, store=tmp_path / "store")[0]
    assert simulated.breakdown.answer().title == "clean (simulated) · time by stage"
    assert "clean (simulated) → clean (simulated)" in tracekit.compare(simulated, simulated).title
    assert tracekit.stalls.answer([simulated]).title == "clean (simulated) · data stalls"
    for question in (tracekit.study, tracekit.scaling, tracekit.memory):
        assert question.answer([simulated]).meta["simulated"] == ["clean"]
    assert tracekit.study.answer([simulated]).source.endswith("some of it simulated")
    recorded = tracekit.ingest(SAMPLE, store=tmp_path / "store")[0]
    both = tracekit.stalls.answer([simulated, recorded])
    assert both.meta["simulated"] == ["clean"]
    assert "simulated" not in tracekit.study.answer([recorded]).meta


def test_what_is_not_known_is_said_before_any_run_is_opened(tmp_path: Path) -> None:
    for ask in (tracekit.memory, tracekit.study):
        with pytest.raises(UsageError, match="what 'most' is unknown"):
            ask(["no such run"], what="most", store=tmp_path)
