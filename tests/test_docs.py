"""Pages that repeat the code are as it is, and what pages say to do can be done."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import architecture
import gallery
import jsonschema
import notebook
import plotly.graph_objects as go
import pytest
from json_schemas import schema_files
from typer.testing import CliRunner

import tracekit
from tracekit import sources
from tracekit.cli import app
from tracekit.cli._app import register_question
from tracekit.cli._command import WRITTEN
from tracekit.present._drawings import DRAWINGS
from tracekit.runs import DECLARED
from tracekit.runs._question import declared

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")

pytestmark = pytest.mark.usefixtures("samples_read_once", "facts_found_once")


@pytest.fixture(scope="module", autouse=True)
def _imports_are_found_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(architecture, "imports", cache(architecture.imports))
        yield


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    """What the code says now."""
    return dict(runpy.run_path(str(DOCS / "generate.py"))["pages"]())


def test_pages_are_as_generated(pages: dict[str, str]) -> None:
    made = {name: text for name, text in pages.items() if not name.endswith(".schema.json")}
    assert "api.md" in made
    for name, text in made.items():
        assert (DOCS / name).read_text(encoding="utf-8") == text, name


def test_schemas_are_as_generated(pages: dict[str, str]) -> None:
    made = {DOCS / name: text for name, text in pages.items() if name.endswith(".schema.json")}
    there = (ROOT / "schemas" / "json").iterdir()
    assert {path.resolve(): text for path, text in made.items()} == {
        path: path.read_text(encoding="utf-8") for path in there
    }


def _write(package: Path, **files: str) -> None:
    for name, text in files.items():
        path = package / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / "__init__.py").touch()
        path.write_text(text)


def test_arrows_are_imports_that_no_other_imply(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "house"
    _write(
        package,
        roof__tiles="from house.floor import wood\nfrom house import _door\n",
        floor__wood="def lay():\n    import house.cellar\n",
        cellar__stone="from house._tools import hammer\nimport os\n",
        _door="from house.floor import wood\n",
        _tools="import networkx\n",
    )
    monkeypatch.setattr(architecture, "PACKAGE", package)
    known = architecture.imports(package)
    assert sorted(known.edges) == [
        ("floor", "cellar"),
        ("roof", "floor"),
        ("roof", architecture.FRONT),
        (architecture.FRONT, "floor"),
    ]
    drawn = architecture.picture(package)
    assert drawn.count("<rect") == 4
    assert drawn.count('<path d="M360') == 3
    assert re.findall(r">(\w+)</text>", drawn) == ["roof", architecture.FRONT, "floor", "cellar"]


def test_the_architecture_page_names_every_room() -> None:
    page = (DOCS / "architecture.md").read_text(encoding="utf-8")
    for room in architecture.imports():
        assert f"`{room}`" in page, room


def _links(page: Path) -> list[str]:
    found = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))
    return [link for link in found if "://" not in link]


@pytest.mark.parametrize(
    "page", [*DOCS.rglob("*.md"), *ROOT.glob("*.md")], ids=lambda page: str(page.name)
)
def test_links_lead_somewhere(page: Path) -> None:
    for link in _links(page):
        assert (page.parent / link).exists(), link


def test_every_page_is_on_the_site() -> None:
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page in DOCS.rglob("*.md"):
        assert f"- {page.relative_to(DOCS)}\n" in site, page.name


def test_every_page_is_in_the_readme() -> None:
    listed = _links(ROOT / "README.md")
    for page in DOCS.rglob("*.md"):
        assert f"docs/{page.relative_to(DOCS)}" in listed, page.name


# -- figures and the notebook ----------------------------------------------------------------------

ELSEWHERE = {
    "history", "batch effect", "route times", "stage speedup", "sensitivity", "roofline", "network",
}  # fmt: skip
"""Drawings of a history, and of the dgx1 study, which take more runs than the samples are; of
operators whose sizes no sample holds; and of a network, as samples are of one host each."""
MOST_BYTES = 1_000_000
LEAST_ROOM = 40
FEW_SHOWN = 6


def test_every_drawing_is_in_the_gallery_with_a_picture() -> None:
    pictures = [*gallery.every_picture()]
    assert {picture.drawing for picture in pictures} == set(DRAWINGS) - ELSEWHERE
    drawn = {path.stem: path.stat().st_size for path in gallery.PICTURES.iterdir()}
    assert set(drawn) == {picture.name for picture in pictures}
    assert sum(drawn.values()) < MOST_BYTES


@pytest.mark.nightly
def test_commands_of_the_gallery_draw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEKIT_STORE", str(tmp_path / "store"))
    monkeypatch.chdir(ROOT)
    for picture in gallery.every_picture():
        path = tmp_path / f"{picture.name}.json"
        gallery.draw(picture, path)
        layout = json.loads(path.read_text())["layout"]
        room = layout["height"] - layout["margin"]["t"] - layout["margin"]["b"]
        assert room >= LEAST_ROOM, picture.name


@pytest.mark.slow
def test_the_notebook_runs_and_shows_what_it_kept() -> None:
    def seen(value: object) -> dict[str, object]:
        return {notebook.SVG: None} if isinstance(value, go.Figure) else notebook.shown(value)

    kept = notebook.cells()
    for cell, now in zip(kept, notebook.with_outputs(kept, seen), strict=True):
        for output, again in zip(cell.get("outputs", []), now.get("outputs", []), strict=True):
            assert output["data"].keys() == again["data"].keys()
            for kind in output["data"].keys() - {notebook.SVG}:
                assert output["data"][kind] == again["data"][kind]
        assert (cell["cell_type"] == "code") is ("outputs" in cell)
    assert sum(bool(cell.get("outputs")) for cell in kept) > FEW_SHOWN
    assert notebook.NOTEBOOK.stat().st_size < MOST_BYTES / 4
    for name, picture in notebook.pictures().items():
        assert (notebook.PICTURES / f"{name}.svg").read_text(encoding="utf-8") == picture


def test_words_of_the_glossary_are_in_order_and_in_the_code() -> None:
    page = (DOCS / "glossary.md").read_text(encoding="utf-8")
    words = re.findall(r"^\*\*([^*]+)\*\*", page, re.MULTILINE)
    assert words == sorted(words, key=str.lower)
    code = "\n".join(
        file.read_text(encoding="utf-8") for file in (ROOT / "tracekit").rglob("*.py")
    ).lower()
    for word in words:
        assert word.lower() in code, word


# -- CONTRIBUTING.md -------------------------------------------------------------------------------


def _blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", CONTRIBUTING, re.MULTILINE | re.DOTALL)


@pytest.fixture
def followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """A folder with the files that the page shows; run a command there, of a page's block."""
    monkeypatch.setenv("TRACEKIT_STORE", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sample_traces").symlink_to(ROOT / "sample_traces")
    for block in _blocks("toml"):
        name, _, text = block.partition("\n")
        (tmp_path / name.removeprefix("# ")).write_text(text)

    def run(command: str) -> str:
        assert command in CONTRIBUTING
        done = CliRunner().invoke(app, command.split()[1:])
        assert done.exit_code == 0, done.output
        return done.stdout

    return run


def test_a_machine_is_a_file(followed: Callable[[str], str]) -> None:
    assert "GPU0-GPU1" in followed("tracekit topology show pair.toml --what links")
    followed("tracekit topology check pair.toml")


def test_a_rule_is_an_entry(followed: Callable[[str], str]) -> None:
    command = "tracekit breakdown sample_traces/ddp_4gpu.sqlite --rules mine.toml --by stage"
    assert "\n ME " not in followed(command)


def test_files_that_the_page_names_are_there() -> None:
    for name in re.findall(r"`((?:tracekit|schemas|tests|docs|\.ci)/[\w./-]*)`", CONTRIBUTING):
        assert (ROOT / name).exists(), name


def test_the_task_runner_does_what_the_page_says() -> None:
    tasks = (ROOT / "noxfile.py").read_text(encoding="utf-8")
    named = set(re.findall(r"`nox -s (\w+)`", CONTRIBUTING))
    assert named == set(re.findall(r"^def ([a-z]\w*)\(session", tasks, re.MULTILINE))


def _module(path: str) -> ModuleType:
    """Return the module that the page shows as this file."""
    (block,) = (each for each in _blocks("python") if each.startswith(f"# {path}\n"))
    module = ModuleType(path)
    # Annotations of the example are not to be texts, as those of this file are.
    exec(compile(block, path, "exec", dont_inherit=True), vars(module))
    return module


def test_a_command_is_a_question(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "`longest = declared(longest)`" in CONTRIBUTING
    question = declared(_module("tracekit/analysis/longest/questions.py").longest)
    assert question.declaration is not None
    monkeypatch.setattr(tracekit.Run, "longest", question, raising=False)
    monkeypatch.setitem(DECLARED, "longest", question.declaration)
    monkeypatch.setattr(app, "registered_commands", [*app.registered_commands])
    register_question("longest")
    try:
        written = json.loads(schema_files()["longest.schema.json"])
    finally:
        WRITTEN.pop("longest")
    trace = ROOT / "sample_traces" / "closure_1gpu.sqlite"
    words = ["longest", str(trace), "--kind", "h2d", "--store", str(tmp_path), "-f", "json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    jsonschema.validate(document, written)
    assert [row["device"] for row in document["rows"]] == [0]
    assert document["rows"][0]["op_ns"] > 0
    run = tracekit.open(trace, store=tmp_path)
    assert run.longest(kind="h2d", top=1).to_dicts() == document["rows"]  # type: ignore[attr-defined]
    assert "Its longest op; null without any." in run.longest.__doc__  # type: ignore[attr-defined]
    assert "tracekit longest mnist --kind h2d" in CliRunner().invoke(app, ["longest", "-h"]).stdout


@pytest.mark.nightly
def test_the_example_of_a_command_passes_the_tests_that_list_commands(tmp_path: Path) -> None:
    """In a copy of the repository, as a contributor has it."""
    copy = tmp_path / "tracekit"
    skipped = shutil.ignore_patterns(
        ".git", ".venv", ".*_cache", ".tracekit", "site", "__pycache__", "*.egg-info"
    )
    shutil.copytree(ROOT, copy, ignore=skipped)
    folder = copy / "tracekit" / "analysis" / "longest"
    folder.mkdir()
    (folder / "__init__.py").write_text('"""Find the longest op of each GPU."""\n')
    (block,) = (each for each in _blocks("python") if "def longest(" in each)
    (folder / "questions.py").write_text(block)
    registry = copy / "tracekit" / "runs" / "_declared.py"
    line = "    latency = declared(latency, _beside)\n"
    text = registry.read_text().replace(line, f"{line}    longest = declared(longest)\n")
    imported = (
        "from tracekit.analysis.longest.questions import longest\nfrom tracekit.runs._question"
    )
    registry.write_text(text.replace("from tracekit.runs._question", imported, 1))
    here = {**os.environ, "PYTHONPATH": str(copy)}
    for words in (
        ["docs/generate.py"],
        ["-m", "pytest", "-q", "tests/cli/test_cli_formats.py", "tests/cli/test_cli_help.py",
         "tests/store/test_store_hostile.py", "tests/test_public.py", "tests/test_run_object.py",
         "tests/test_docs.py", "tests/benchmarks/test_outputs.py"],
    ):  # fmt: skip
        done = subprocess.run(
            [sys.executable, *words], cwd=copy, env=here, capture_output=True, text=True,
            timeout=900, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-3000:]


def test_a_format_is_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = _module("tracekit/sources/lists/__init__.py")
    sources.FORMATS.append(module.FORMAT)
    try:
        file = tmp_path / "trace.csv"
        file.write_text("start,end,name\n20,30,relu\n0,10,sgemm\n")
        run, _ = tracekit.ingest(file, store=tmp_path / "store")
    finally:
        sources.FORMATS.pop()
    assert run.breakdown("kernel")["ops"].to_list() == [1, 1]
    assert run.trace.read("ops")["stage_source"].is_not_null().all()
