from __future__ import annotations

from pathlib import Path

import pytest
from cli_helpers import tracekit

import tracekit.cli._pages as commands


@pytest.mark.slow
@pytest.mark.usefixtures("stored")
def test_a_report_is_written_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr(commands.typer, "launch", shown.append)
    path = tmp_path / "ddp.html"
    done = tracekit("report", "ddp", "-o", path, "--open")
    assert done.exit_code == 0
    assert done.stdout == ""
    assert f"wrote {path}" in done.stderr
    assert "<title>ddp · tracekit</title>" in path.read_text(encoding="utf-8")
    assert shown == [path.resolve().as_uri()]
    again = tracekit("report", "ddp", "ddp", "--against", "ddp")
    assert again.exit_code == 2
    assert "name one run" in again.stderr


@pytest.mark.usefixtures("stored")
def test_an_export_is_called_as_its_run(tmp_path: Path) -> None:
    done = tracekit("export", "ddp", "--to", "chrome", "--iterations", "1:2")
    assert done.exit_code == 0
    assert "wrote ddp.json" in done.stderr
    assert (tmp_path / "ddp.json").stat().st_size > 10_000
    assert tracekit("export", "ddp", "--iterations", "2:1").exit_code == 2


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize(
    ("name", "begins"), [("a.json", b"{"), ("a.json.gz", b"\x1f\x8b"), ("a.pftrace", b"\n")]
)
def test_an_export_has_the_format_of_its_ending(tmp_path: Path, name: str, begins: bytes) -> None:
    """A file that ended in .json held Perfetto's protobuf."""
    assert tracekit("export", "ddp", "--iterations", "1:1", "-o", tmp_path / name).exit_code == 0
    assert (tmp_path / name).read_bytes().startswith(begins)


@pytest.mark.usefixtures("stored")
def test_an_export_is_no_table(tmp_path: Path) -> None:
    refused = tracekit("export", "ddp", "-o", tmp_path / "a.csv")
    assert refused.exit_code == 2
    assert "export writes timelines, and no .csv files" in refused.stderr
    assert not (tmp_path / "a.csv").exists()


@pytest.mark.usefixtures("stored")
def test_a_figure_is_named(tmp_path: Path) -> None:
    path = tmp_path / "stages.json"
    done = tracekit("breakdown", "ddp", "--by", "device,stage", "--figure", path)
    assert done.exit_code == 0
    assert f"wrote {path}" in done.stderr
    assert path.is_file()
