"""What of the model only faults and pages meet: lists of checks, figures, parts, labels."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from tracekit.errors import UsageError
from tracekit.model import Answer, damaged_files, traits
from tracekit.model._answer import TRAITS
from tracekit.model._checks import Check, read_checks, write_checks

ONE, TWO = "ops/0.parquet", "ops/1.parquet"


class TestChecks:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        (tmp_path / "ops").mkdir()
        for name in (ONE, TWO):
            (tmp_path / name).write_bytes(name.encode())
        write_checks(tmp_path, {name: Check.of(tmp_path / name) for name in (ONE, TWO)})
        return tmp_path

    def test_what_was_written_is_whole(self, folder: Path) -> None:
        assert set(read_checks(folder)) == {ONE, TWO}
        assert damaged_files(folder) == damaged_files(folder, thorough=True) == []

    def test_a_file_that_changed_is_damaged_and_one_that_is_gone_is_not(self, folder: Path) -> None:
        (folder / ONE).write_bytes(TWO.encode())
        (folder / TWO).unlink()
        assert damaged_files(folder, thorough=True) == [ONE]

    def test_a_path_that_leads_elsewhere_is_damage(self, folder: Path) -> None:
        write_checks(folder, {"../ops/0.parquet": Check.of(folder / ONE)})
        with pytest.raises(ValueError, match="is damaged"):
            read_checks(folder)

    @pytest.mark.parametrize("change", [lambda text: text[:-9], lambda text: '{"files": {}}'])
    def test_a_damaged_list_is_told(self, folder: Path, change: object) -> None:
        [listed] = set(folder.iterdir()) - {folder / "ops"}
        listed.write_text(change(listed.read_text()))
        assert damaged_files(folder) == [listed.name]
        with pytest.raises(ValueError, match=r"is damaged|char"):
            read_checks(folder)

    def test_a_list_whose_numbers_were_changed_is_damaged(self, folder: Path) -> None:
        [listed] = set(folder.iterdir()) - {folder / "ops"}
        content = json.loads(listed.read_bytes())
        content["files"][ONE][0] += 1
        listed.write_text(json.dumps(content))
        with pytest.raises(ValueError, match="is damaged"):
            read_checks(folder)

    def test_a_folder_without_a_list_is_damaged(self, tmp_path: Path) -> None:
        assert damaged_files(tmp_path) == ["checks.json"]


def test_an_answer_without_figures_says_so() -> None:
    answer = Answer(rows=pl.DataFrame({"a": [1]}), title="run · breakdown")
    assert answer._repr_html_() is None
    with pytest.raises(UsageError, match="no figure shows breakdown"):
        answer.figure("steps")


@pytest.mark.parametrize(
    ("column", "like"), [("other_rank", "rank"), ("rank", "rank"), ("coverage", "coverage")]
)
def test_a_column_is_named_as_its_last_word(column: str, like: str) -> None:
    assert traits(column) == TRAITS[like]
    assert traits("nothing_known") not in TRAITS.values()
