"""`tracekit diagnose` in continuous integration: exit codes, SARIF and JUnit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree as ET

import polars as pl
import pytest
from cli_helpers import ROOT
from trace_builder import TraceBuilder
from typer.testing import CliRunner

from tracekit.analysis.diagnosis import RULES
from tracekit.cli import app
from tracekit.model import TABLES, Answer
from tracekit.runs._diagnosis import _replays, _with_commands, judged

SIMULATED = ROOT / "sample_traces" / "simulated"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("diagnose") / "store"
    for name in ("clean", "launch_bound"):
        path = str(SIMULATED / f"{name}.sqlite")
        assert CliRunner().invoke(app, ["ingest", path, "--store", str(folder)]).exit_code == 0
    return folder


def _asked(store: Path, *words: str) -> Any:
    return CliRunner().invoke(app, ["diagnose", *words, "--store", str(store)])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "code"),
    [("any", 1), ("launch_bound", 1), ("sync_in_loop", 0), ("20%", 1), ("60%", 0),
     ("nonsense", 2)],
)  # fmt: skip
def test_what_fails(store: Path, what: str, code: int) -> None:
    some = ("--only", "input_bound,launch_bound,sync_in_loop")
    asked = () if what == "any" else some
    assert _asked(store, "launch_bound", *asked, "--fail-on", what).exit_code == code
    if code < 2:
        assert _asked(store, "clean", *some, "--fail-on", what).exit_code == 0


def test_without_steps_it_cannot_be_told() -> None:
    rows = pl.DataFrame({"rule": ["launch_bound"], "share": [0.3], "confidence": ["likely"]})
    found = Answer(rows=rows, tables={"findings": rows}, meta={"steps": 0})
    assert [judged(found, fail_on=what) for what in ("10%", "40%", "any")] == [3, 0, 1]
    doubtful = rows.with_columns(confidence=pl.lit("perhaps"))
    found = Answer(rows=doubtful, tables={"findings": doubtful}, meta={"steps": 4})
    assert [judged(found, fail_on=what) for what in ("10%", "any", "launch_bound")] == [0, 0, 1]


@pytest.mark.slow
def test_sarif_holds_all_findings(store: Path) -> None:
    found = _asked(store, "launch_bound", "--top", "1", "--format", "sarif")
    run = json.loads(found.stdout)["runs"][0]
    rows = json.loads(_asked(store, "launch_bound", "--all", "--format", "json").stdout)["rows"]
    assert [each["ruleId"] for each in run["results"]] == [row["rule"] for row in rows]
    assert len(rows) > 1
    names = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert names == list(RULES)
    for each, row in zip(run["results"], rows, strict=True):
        assert names[each["ruleIndex"]] == each["ruleId"]
        assert each["message"]["text"].startswith(row["finding"])
        assert each["properties"]["win_ns"] == row["win_ns"]
        assert each["level"] == ("note" if row["confidence"] == "hint" else "warning")


def test_junit_has_a_case_per_rule(store: Path, tmp_path: Path) -> None:
    path = tmp_path / "findings.xml"
    assert _asked(store, "launch_bound", "--output", str(path)).exit_code == 0
    suite = ET.parse(path).getroot()[0]
    assert suite.get("name") == "launch_bound"
    assert [case.get("name") for case in suite] == list(RULES)
    failed = {case.get("name") for case in suite if len(case)}
    assert "launch_bound" in failed
    assert suite.get("failures") == str(len(failed))
    clean = _asked(store, "clean", "--only", "launch_bound", "--format", "junit").stdout
    assert 'failures="0"' in clean


def test_only_findings_are_written_so(store: Path) -> None:
    found = CliRunner().invoke(app, ["idle", "clean", "--format", "sarif", "--store", str(store)])
    assert found.exit_code == 2
    assert "cannot write this answer as sarif" in found.output


def test_a_replay_is_named_with_its_limit() -> None:
    """A replay was named that then refused to say anything, as its range was too wide."""
    rows = pl.DataFrame({"rule": ["launch_bound", "cold_steps"], "advice": ["Launch less.", "-"]})
    answer = Answer(rows=rows, meta={}, title="", readable=rows)
    for text, said in (
        ("`tracekit whatif --host 2x`", "By replay, if its range allows it: "),
        ("`tracekit whatif --host 2x`: a step of 1 to 2 ms", "By replay: "),
    ):
        found = _with_commands(answer, "mnist", {"launch_bound": text})
        assert found.readable_rows["advice"].to_list() == [f"Launch less. {said}{text}.", "-"]
        assert found.rows["whatif"].to_list() == [text, None]


def test_commands_of_advice_name_the_run() -> None:
    """`tracekit idle --longest 10` was about the latest run, whichever was diagnosed."""
    advice = ["See `tracekit idle --longest 10` or `tracekit links`; `nsys profile` records them."]
    rows = pl.DataFrame({"rule": ["busy_host"], "advice": advice})
    answer = Answer(rows=rows, tables={"findings": rows})
    found = _with_commands(answer, "my $1 run", {})
    named = (
        "See `tracekit idle 'my $1 run' --longest 10` or `tracekit links 'my $1 run'`; "
        "`nsys profile` records them."
    )
    for table in (found.rows, found.readable_rows, found.tables["findings"]):
        assert table["advice"].to_list() == [named]


@pytest.mark.parametrize("clocks", [1, 2])
def test_no_replay_is_named_of_several_clocks(clocks: int) -> None:
    """`whatif` refuses these."""
    b = TraceBuilder()
    for process in range(2):
        b.op("gemm", 10, process=process, thread=10 * process)
        b.rows["ops"][-1]["report"] = b.rows["calls"][-1]["report"] = process
    trace = b.trace()
    own = trace.read("processes").with_columns(report=pl.col("process").cast(pl.Int32))
    told = {"report": [0, 1], "clock": ["0", str(clocks - 1)], "file": "", "format": "", "size": 0}
    reports = TABLES["reports"].conform(pl.DataFrame(told))
    tables = trace.with_tables({"processes": own, "reports": reports})
    run: Any = SimpleNamespace(trace=tables, name="two nodes")
    named = _replays(run, ["launch_bound"], run, price=False)
    told = {"launch_bound": "`tracekit whatif 'two nodes' --host 2x`"}
    assert named == (told if clocks == 1 else {})


@pytest.mark.slow
def test_a_finding_names_the_replay_that_prices_it(store: Path) -> None:
    path = str(SIMULATED / "input_bound.sqlite")
    assert CliRunner().invoke(app, ["ingest", path, "--store", str(store)]).exit_code == 0
    asked = ("input_bound", "--format", "json", "--only", "input_bound,launch_bound")
    named = {row["rule"]: row["whatif"] for row in json.loads(_asked(store, *asked).stdout)["rows"]}
    assert named["input_bound"] == "`tracekit whatif input_bound --loader inf`"
    (row,) = json.loads(_asked(store, *asked[:-1], "input_bound", "--price").stdout)["rows"]
    words = ["whatif", "input_bound", "--loader", "inf", "--format", "json", "--store", str(store)]
    replayed = json.loads(CliRunner().invoke(app, words).stdout)["rows"][-1]
    low, high = (f"{replayed[end] / 1e6:,.3f}" for end in ("low_ns", "high_ns"))
    assert row["whatif"] == (
        f"`tracekit whatif input_bound --loader inf`: a step of {low} to {high} ms"
    )
