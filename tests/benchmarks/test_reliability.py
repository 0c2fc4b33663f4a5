"""The page of what was tried is written of what was found, and of nothing else."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
EVIDENCE = ROOT / "docs" / "evidence"


@pytest.fixture
def writer(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("reliability_page")


def test_the_page_is_of_what_was_found(writer: Any) -> None:
    found = json.loads((EVIDENCE / "reliability.json").read_text(encoding="utf-8"))
    assert (EVIDENCE / "reliability.md").read_text(encoding="utf-8") == writer.page(found)


def test_what_was_not_run_has_no_section(writer: Any) -> None:
    assert "## " not in writer.page({})
    groups = [{"of": "relations", "passed": 3}]
    page = writer.page({"tests": {"date": "2026-11-22", "groups": groups}})
    assert page.count("## ") == 1
    assert "| relations | 3 |" in page


def test_a_score_is_of_all_that_were_tried_and_change_something(writer: Any) -> None:
    rooms = {
        "model": {"killed": 6, "hung": 1, "survived": 1, "equivalent": 2},
        "analysis": {"survived": 9, "run by no test": 1},
    }
    page = writer.page(
        {"mutants": {"date": "d", "all": 99, "seed": 1, "rooms": rooms, "left": ["a.py:1 < -> >"]}}
    )
    assert "| model | 10 | 7 | 2 | 1 | 88% |" in page
    assert "| **all** | 20 | 7 | 2 | 11 | 39% |" in page
    assert "- `a.py:1 < -> >`" in page


def test_interrupts_are_listed_by_command(writer: Any) -> None:
    moments = [{"command": "ingest", "ended": "done before", "times": 3}]
    page = writer.page({"interrupts": {"date": "d", "moments": moments}})
    assert "| ingest | done before | 3 |" in page


@pytest.mark.nightly
def test_commands_end_with_one_line_wherever_they_are_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    found = importlib.import_module("reliability").interrupts(20)
    assert sum(each["times"] for each in found["moments"]) == 20
