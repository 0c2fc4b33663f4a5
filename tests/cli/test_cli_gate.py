"""`tracekit gate`: exit codes, what it says, and the formats that continuous integration reads."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from cli_helpers import SAMPLES
from simulate.export import write_export
from simulate.job import Job
from simulate.run import simulate
from typer.testing import CliRunner

import tracekit as tk
from benchmarks.gates import with_outlier
from tracekit.cli import app

STATES = {"new", "unchanged", "updated", "absent"}
KINDS = {"pass", "open", "informational", "notApplicable", "review", "fail"}
LEVELS = {"none", "note", "warning", "error"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store: ``clean``, ``slow`` (its input in pageable memory, the host stopped in one step)."""
    files = tmp_path_factory.mktemp("gate")
    folder = files / "store"
    jobs = {
        "clean": Job(batch=64, steps=12, ranges="stages", link_factors={"pcie": 100.0}),
        "slow": Job(batch=64, steps=12, ranges="stages", pageable=True, seed=2),
    }
    for name, job in jobs.items():
        path = files / f"{name}.sqlite"
        write_export(simulate(job), path)
        if name == "slow":
            with_outlier(path, 5)
        tk.ingest(path, name=name, store=folder)
    tk.ingest(SAMPLES / "ddp_4gpu.sqlite", name="ddp", store=folder)
    return folder


def _asked(folder: Path, *words: str) -> Any:
    return CliRunner().invoke(app, [*words, "--store", str(folder)])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("clean", "clean"), 0, "pass: within 5 %.*steps known by ranges in A, by ranges in B"),
        (("clean", "clean", "--new-findings"), 0, "no new finding"),
        (("clean", "slow"), 1, "fail: above 5 %"),
        (("slow", "clean", "--new-findings"), 0, "state    gone"),
        (("clean", "slow", "--step", "none", "--new-findings"), 1,
         "fail: new pageable_copies"),
        (("clean", "ddp", "--new-findings"), 3, "undecided: cannot decide"),
        (("clean", "ddp", "--unknown", "pass"), 0, "undecided: cannot decide"),
        (("clean", "clean", "--step", "none"), 2, "nothing is to be checked"),
        (("clean",), 2, "a gate is for two runs, and there are 1"),
    ],
)  # fmt: skip
def test_what_passes(folder: Path, words: tuple[str, ...], code: int, said: str) -> None:
    done = _asked(folder, "gate", *words)
    assert done.exit_code == code, done.output
    assert re.search(said, done.output, re.DOTALL)


@pytest.mark.slow
def test_an_outlier_is_left_out_and_named(folder: Path) -> None:
    """The mean of 12 steps of which one takes seven times as long shows nothing."""
    done = _asked(folder, "gate", "slow", "slow", "--new-findings")
    assert done.exit_code == 0, done.output
    assert "outliers left out: step" in _asked(
        folder, "diagnose", "slow", "--against", "clean").output  # fmt: skip
    assert " without step " in _asked(folder, "gate", "clean", "slow").output


@pytest.mark.slow
def test_a_cold_step_is_no_outlier(folder: Path) -> None:
    done = _asked(folder, "diagnose", "ddp", "--against", "ddp")
    assert done.exit_code == 0
    assert "outliers left out" not in done.output


def test_a_quiet_gate_says_nothing_unless_it_fails(folder: Path, tmp_path: Path) -> None:
    kept = tmp_path / "gate.json"
    passed = _asked(folder, "gate", "clean", "clean", "-q", "--output", str(kept))
    assert (passed.exit_code, passed.output) == (0, "")
    assert json.loads(kept.read_text("utf-8"))["meta"]["outcome"] == "pass"
    failed = _asked(folder, "gate", "clean", "slow", "-q")
    assert (failed.exit_code, failed.stdout) == (1, "")
    assert failed.stderr.startswith("tracekit: fail: above 5 %")
    assert failed.stderr.count("\n") == 1


def _check_sarif(content: dict[str, Any]) -> list[dict[str, Any]]:
    """Check what the schema of SARIF 2.1.0 requires, and what its prose does; return results."""
    assert content["version"] == "2.1.0"
    assert content["$schema"].startswith("https://")
    (run,) = content["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"] == "tracekit"
    names = [rule["id"] for rule in driver["rules"]]
    assert len(set(names)) == len(names)
    for each in run["results"]:
        assert each["message"]["text"]
        assert names[each["ruleIndex"]] == each["ruleId"]
        assert each["kind"] in KINDS
        assert each["level"] in LEVELS
        assert (each["kind"] == "fail") or each["level"] == "none"  # 3.27.10
        assert each.get("baselineState", "new") in STATES
        marks = each["partialFingerprints"]
        assert all(isinstance(mark, str) and mark for mark in marks.values())
        for place in each["locations"]:
            assert all(logical["name"] for logical in place["logicalLocations"])
    results: list[dict[str, Any]] = run["results"]
    return results


@pytest.mark.slow
def test_sarif_says_what_became_of_findings(folder: Path) -> None:
    words = ("--anyway", "--new-findings", "--format", "sarif")
    worse = _check_sarif(json.loads(_asked(folder, "gate", "clean", "slow", *words).stdout))
    by_rule = {each["ruleId"]: each for each in worse}
    assert (by_rule["step"]["kind"], by_rule["step"]["level"]) == ("fail", "error")
    assert by_rule["pageable_copies"]["baselineState"] == "new"
    back = _check_sarif(json.loads(_asked(folder, "gate", "slow", "clean", *words).stdout))
    gone = {each["ruleId"]: each for each in back}["pageable_copies"]
    assert gone["baselineState"] == "absent"
    # A finding has one name in any run, by which a viewer knows it again.
    assert gone["partialFingerprints"] == by_rule["pageable_copies"]["partialFingerprints"]
    told = _check_sarif(json.loads(_asked(folder, "diagnose", "slow", *words[2:]).stdout))
    same = {each["ruleId"]: each for each in told}["pageable_copies"]
    assert same["partialFingerprints"] == gone["partialFingerprints"]
    assert "baselineState" not in same


@pytest.mark.slow
def test_junit_is_read_back(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "gate.xml"
    _asked(folder, "gate", "clean", "slow", "--new-findings", "-o", str(path))
    suite = ET.parse(path).getroot()[0]
    assert suite.get("tests") == str(len(suite))
    failed = {case.get("name") for case in suite if case.find("failure") is not None}
    assert {"step", "pageable_copies"} <= failed
    assert suite.get("failures") == str(len(failed))
    for unknown, tag in (("fail", "error"), ("pass", "skipped")):
        _asked(folder, "gate", "clean", "ddp", "--unknown", unknown, "-o", str(path))
        (case,) = ET.parse(path).getroot()[0]
        assert case.find(tag) is not None
        assert case.get("classname") == "tracekit.gate"


@pytest.mark.slow
def test_what_is_new_since_a_base(folder: Path) -> None:
    asked = ("diagnose", "slow", "--against", "clean", "--fail-on", "any", "--format", "json")
    worse = _asked(folder, *asked)
    assert worse.exit_code == 1
    content = json.loads(worse.stdout)
    states = {row["rule"]: row["state"] for row in content["rows"]}
    assert states["pageable_copies"] == "new"
    assert content["meta"]["against"] == "clean"
    back = json.loads(_asked(folder, "diagnose", "clean", "--against", "slow",
                             "--format", "json").stdout)  # fmt: skip
    row = next(row for row in back["rows"] if row["rule"] == "pageable_copies")
    assert row["state"] == "gone"
    assert row["base_win_ns"] == row["win_ns"] > 0
    same = _asked(folder, "diagnose", "slow", "--against", "slow",
                  "--fail-on", "any")  # fmt: skip
    assert same.exit_code == 0, same.output
    assert "unchanged" in same.output
