"""What SECURITY.md says of what tracekit is made of, and of what it opens to others."""

from __future__ import annotations

import ast
import importlib.util
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
SERVING = {"http", "socketserver", "socket", "wsgiref", "xmlrpc", "webbrowser", "flask", "aiohttp"}
FETCHING = {"urllib", "ftplib", "smtplib", "requests", "httpx", "urllib3"}


def imported(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


def test_nothing_is_served_or_fetched() -> None:
    """Pages are files: a server for them would have to listen on the loopback address alone."""
    users = {
        path.relative_to(ROOT).as_posix(): used
        for path in (ROOT / "tracekit").rglob("*.py")
        if (used := imported(path) & (SERVING | FETCHING))
    }
    assert users == {
        # A pair of connected ends, one of them in the process that is watched.
        "tracekit/recording/_process.py": {"socket"},
        "tracekit/recording/_supervisor.py": {"socket"},
        # Whether the scheduler that the user names answers, and what this machine is called.
        "tracekit/store/_dask.py": {"socket"},
    }
    for path in users:
        text = (ROOT / path).read_text(encoding="utf-8")
        assert not any(word in text for word in (".bind(", ".listen(", ".accept("))


@pytest.fixture(scope="module")
def bill() -> dict[str, Any]:
    path = ROOT / ".ci" / "bill_of_materials.py"
    spec = importlib.util.spec_from_file_location("bill_of_materials", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made: dict[str, Any] = module.bill()
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
