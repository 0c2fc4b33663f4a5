"""What two versions print is held against each other for every command that prints."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import typer

from tracekit.cli import app

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
CHANGING = {
    "ingest", "record", "runs rename", "runs remove", "runs gc", "runs share",
    "topology import", "export", "view",
}  # fmt: skip
"""What changes a store, writes a file or serves: of these the help alone."""


@pytest.fixture
def outputs(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("outputs")


def _commands(group: Any, path: str = "") -> list[str]:
    found = []
    for name, each in group.commands.items():
        below = _commands(each, f"{path}{name} ") if hasattr(each, "commands") else []
        found += below or [f"{path}{name}"]
    return found


def test_every_command_that_prints_is_written(outputs: Any) -> None:
    lines = [*outputs.OF_RUN, *outputs.OF_PAIR, *outputs.OF_STORE, "runs list"]
    asked = [line for line in lines if "--help" not in line]
    for name in set(_commands(typer.main.get_command(app))) - CHANGING:
        assert any(f"{line} ".startswith(f"{name} ") for line in asked), name


def test_every_format_but_parquet_is_written(outputs: Any) -> None:
    assert set(outputs.FORMATS) == {"table", "json", "csv", "markdown"}


def test_two_folders_that_differ_are_told(outputs: Any, tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    for folder, text in ((before, "a"), (after, "b")):
        folder.mkdir()
        (folder / "same").write_text("x")
        (folder / "other").write_text(text)
    assert outputs.compare(before, before) == 0
    assert outputs.compare(before, after) == 1
