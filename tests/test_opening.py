"""What a word means that may be the name of a run, or of a file."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

import tracekit as tk
from tracekit.errors import InputError, NotATraceError, UnknownRunError, UsageError
from tracekit.store import Store

SAMPLES = Path(__file__).parents[1] / "sample_traces"
TRACE, OTHER = SAMPLES / "p2p_2gpu_start_end.sqlite", SAMPLES / "p2p_4gpu_star.sqlite"

pytestmark = pytest.mark.usefixtures("samples_read_once")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a store in which the run `ranks` is."""
    monkeypatch.delenv("TRACEKIT_STORE", raising=False)
    monkeypatch.chdir(tmp_path)
    tk.ingest(TRACE, name="ranks")
    return tmp_path


@pytest.mark.parametrize("is_folder", [True, False])
def test_a_run_comes_before_a_file_and_one_line_says_so(
    is_folder: bool, here: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if is_folder:
        (here / "ranks").mkdir()
    else:
        shutil.copy(OTHER, here / "ranks")
    with caplog.at_level(logging.WARNING, "tracekit"):
        assert tk.open("ranks").name == "ranks"
    (said,) = caplog.messages
    assert "'ranks' is a run and a file" in said
    assert "./ranks" in said


def test_a_slash_or_a_path_means_the_file(here: Path) -> None:
    shutil.copy(OTHER, here / "ranks")
    for reference in ("./ranks", here / "ranks", Path("ranks")):
        assert tk.open(reference).record.files == ("ranks",)
    (here / "other").mkdir()
    with pytest.raises(NotATraceError):
        tk.open("./other")


def test_a_known_ending_means_the_file(here: Path) -> None:
    shutil.copy(OTHER, here / "ranks.sqlite")
    assert tk.open("ranks.sqlite").record.files == ("ranks.sqlite",)
    with pytest.raises(InputError, match=r"no file absent\.json"):
        tk.open("absent.json")


def test_a_word_that_is_no_run_may_be_a_file(here: Path, caplog: pytest.LogCaptureFixture) -> None:
    shutil.copy(OTHER, here / "star")
    with caplog.at_level(logging.WARNING, "tracekit"):
        assert tk.open("star").record.files == ("star",)
    assert caplog.messages == []
    with pytest.raises(UnknownRunError):
        tk.open("nothing")


def test_the_beginning_of_an_id_comes_before_a_file(here: Path) -> None:
    run = Store.discover().find("ranks")
    shutil.copy(OTHER, here / run.id[:4])
    assert tk.open(run.id[:4]).id == run.id


@pytest.mark.parametrize("name", ["a.sqlite", "b.JSON", "c.json.gz", "d.nsys-rep", "e_pqtdir"])
def test_a_name_that_could_only_be_taken_for_a_file_is_refused(name: str, here: Path) -> None:
    with pytest.raises(UsageError, match="for a file"):
        tk.ingest(TRACE, name=name)
    with pytest.raises(UsageError, match="for a file"):
        Store.discover().rename("ranks", name)
    assert [run.name for run in Store.discover().runs()] == ["ranks"]


def test_an_older_run_of_such_a_name_is_found_where_there_is_no_such_file(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracekit.store._store.check_name", lambda _: None)
    Store.discover().rename("ranks", "trace.json")
    assert tk.open("trace.json").name == "trace.json"


def test_a_default_name_is_none_of_a_file(here: Path) -> None:
    shutil.copy(OTHER, here / "star.db.sqlite")
    assert tk.open("star.db.sqlite").name == "star"
