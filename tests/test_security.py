"""What SECURITY.md says of what tracekit is made of, and of what it opens to others."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from architecture import statements

ROOT = Path(__file__).resolve().parents[1]
SERVING = {"http", "socketserver", "socket", "wsgiref", "xmlrpc", "webbrowser", "flask", "aiohttp"}
FETCHING = {"urllib", "ftplib", "smtplib", "requests", "httpx", "urllib3"}


def imported(path: Path) -> set[str]:
    """Return the packages of what a file imports, if it is any of what serves or fetches."""
    found: set[str] = set()
    text = path.read_text(encoding="utf-8")
    if not re.search(rf"\b({'|'.join(SERVING | FETCHING)})\b", text):
        return found
    for node in statements(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


@pytest.mark.slow
def test_nothing_is_served_or_fetched() -> None:
    """Pages are files, but for the view; that listens on the loopback address alone.

    Its server is tested in `tests/view/test_view_server.py`.
    """
    users = {
        path.relative_to(ROOT).as_posix(): used
        for path in (ROOT / "tracekit").rglob("*.py")
        if (used := imported(path) & (SERVING | FETCHING))
    }
    assert users == {
        # A pair of connected ends, one of them in the process that is watched.
        "tracekit/recording/_perform.py": {"socket"},
        "tracekit/recording/_supervisor.py": {"socket"},
        # Whether the scheduler that the user names answers, and what this machine is called.
        "tracekit/store/_dask.py": {"socket"},
        # The view; of `urllib` what reads the parameters of an address.
        "tracekit/view/_server.py": {"http", "socket", "socketserver", "urllib"},
        "tracekit/view/_view.py": {"webbrowser"},
    }
    for path in users.keys() - {"tracekit/view/_server.py"}:
        text = (ROOT / path).read_text(encoding="utf-8")
        assert not any(word in text for word in (".bind(", ".listen(", ".accept("))


@pytest.mark.slow
def test_no_module_is_taken_from_the_working_directory(tmp_path: Path) -> None:
    """A folder of traces may hold files that are called as modules of Python, or of others."""
    for name in ("json", "signal", "numpy", "polars", "tracekit", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text(
            f"open({str(tmp_path / 'run')!r}, 'a').write({name!r})"
        )
    reports = sorted((ROOT / "sample_traces" / "recorded").glob("lenet_mpi_rank*.sqlite"))
    command = Path(sys.executable).parent / "tracekit"
    for words in (
        ("ingest", *reports, "--run", "ranks", "--processes", "2"),
        ("breakdown", "ranks"),
    ):
        done = subprocess.run(
            [command, *words], capture_output=True, text=True, cwd=tmp_path, check=False,
            env={**os.environ, "TRACEKIT_STORE": str(tmp_path / "store")},
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, ""), words
    assert not (tmp_path / "run").exists()


def script(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / ".ci" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def bill() -> dict[str, Any]:
    made: dict[str, Any] = script("bill_of_materials").bill()
    return made


def test_the_bill_names_what_a_user_gets_and_nothing_else(bill: dict[str, Any]) -> None:
    parts = {part["name"].lower(): part for part in bill["components"]}
    assert (bill["bomFormat"], bill["metadata"]["component"]["name"]) == ("CycloneDX", "tracekit")
    assert parts["polars"]["version"] == version("polars")
    assert parts["polars"]["purl"] == f"pkg:pypi/polars@{version('polars')}"
    assert {"numpy", "sqlalchemy", "llvmlite", "typer"} <= parts.keys()
    assert not {"pytest", "ruff", "torch", "dask", "tracekit"} & parts.keys()


def test_what_a_part_of_the_bill_needs_is_part_of_it(bill: dict[str, Any]) -> None:
    known = {part["bom-ref"] for part in bill["components"]}
    needed = {each for one in bill["dependencies"] for each in one["dependsOn"]}
    assert needed == known


def advisory(name: str, *events: dict[str, str], **more: Any) -> dict[str, Any]:
    package = {"ecosystem": "PyPI", "name": name}
    ranges = [{"type": "ECOSYSTEM", "events": list(events)}]
    return {"id": "X-1", "affected": [{"package": package, "ranges": ranges, **more}]}


class TestAudit:
    """What is known of a bill of one part, `Some_Part` 2.0."""

    @pytest.fixture
    def judged(self, tmp_path: Path) -> Callable[..., int]:
        bill = tmp_path / "bill.json"
        bill.write_text(json.dumps({"components": [{"name": "Some_Part", "version": "2.0"}]}))
        judge = script("weaknesses").main

        def judged(given: dict[str, Any] | list[dict[str, Any]]) -> int:
            path = tmp_path / "given.json"
            if isinstance(given, list):
                path = tmp_path / "database"
                path.mkdir()
                for number, each in enumerate(given):
                    (path / f"{number}.json").write_text(json.dumps(each))
            else:
                path.write_text(json.dumps(given))
            return int(judge([str(bill), str(path)]))

        return judged

    @pytest.mark.parametrize(
        ("given", "code"),
        [
            ([advisory("some-part", {"introduced": "0"})], 1),
            ([advisory("some-part", {"introduced": "0"}, {"fixed": "2.0"})], 0),
            ([advisory("some-part", {"introduced": "0"}, {"fixed": "2.0.1"})], 1),
            ([advisory("some-part", {"introduced": "0"}, {"last_affected": "2.0"})], 1),
            ([advisory("some-part", {"introduced": "0"}, {"last_affected": "1.9"})], 0),
            ([advisory("some-part", {"fixed": "1"}, {"introduced": "0"}, {"introduced": "2"})], 1),
            ([advisory("some-part", versions=["2.0"])], 1),
            ([advisory("some-part", versions=["2.0"]) | {"withdrawn": "2026-01-01"}], 0),
            ([advisory("other", {"introduced": "0"})], 0),
            ([], 3),
            ([{"id": "X-1", "affected": [{"package": {"ecosystem": "npm", "name": "a"}}]}], 3),
            ([advisory("some-part", {"introduced": "soon"})], 3),
        ],
    )
    def test_by_advisories(self, judged: Callable[..., int], given: Any, code: int) -> None:
        assert judged(given) == code

    @pytest.mark.parametrize(
        ("part", "code"),
        [
            ({"name": "some-part", "version": "2.0", "vulns": []}, 0),
            ({"name": "some-part", "version": "2.0", "vulns": [{"id": "X-1"}]}, 1),
            ({"name": "some-part", "version": "1.0", "vulns": []}, 3),
            ({"name": "some-part", "skip_reason": "not found"}, 3),
            ({"name": "other", "version": "2.0", "vulns": []}, 3),
        ],
    )
    def test_by_an_audit(self, judged: Callable[..., int], part: dict[str, Any], code: int) -> None:
        assert judged({"dependencies": [part]}) == code

    def test_what_cannot_be_read_does_not_pass(self, judged: Callable[..., int]) -> None:
        assert judged({}) == 3

    @pytest.mark.nightly
    def test_without_an_index_it_is_skipped_and_says_so(self) -> None:
        unreachable = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0",
                       "PIP_NO_CACHE_DIR": "1"}  # fmt: skip
        done = subprocess.run(
            [ROOT / ".ci" / "audit"], capture_output=True, text=True, check=False,
            env={**os.environ, **unreachable},
        )  # fmt: skip
        assert done.returncode == 3, done.stderr
        assert "audit: skipped, weaknesses are not known: no index is reachable" in done.stderr

    @pytest.mark.slow
    def test_a_database_that_is_given_is_asked(self, tmp_path: Path) -> None:
        (tmp_path / "1.json").write_text(json.dumps(advisory("NumPy", {"introduced": "0"})))
        done = subprocess.run(
            [ROOT / ".ci" / "audit", tmp_path], capture_output=True, text=True, check=False,
            env={**os.environ, "PYTHON": sys.executable},
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (1, f"numpy {version('numpy')}: X-1\n")
