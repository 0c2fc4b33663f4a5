"""The version is that of git's tags, and there is one without them."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import tracekit

pytest.importorskip("hatch_vcs")

from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager

ROOT = Path(__file__).resolve().parents[1]


def _version(folder: Path) -> str:
    shutil.copy(ROOT / "pyproject.toml", folder)
    return str(ProjectMetadata(str(folder), PluginManager()).version)


@pytest.fixture
def git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a commit, and the variables that git needs without a user's settings."""
    if shutil.which("git") is None:
        pytest.skip("no git")
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "nobody")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "nobody@localhost")
    folder = tmp_path / "whole"
    folder.mkdir()
    shutil.copy(ROOT / "pyproject.toml", folder)
    _git(folder, "init", "--quiet")
    _git(folder, "add", "pyproject.toml")
    for message in ("one", "two"):
        _git(folder, "commit", "--quiet", "--allow-empty", "--message", message)
    return folder


def _git(folder: Path, *words: str) -> None:
    subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True)


def test_a_tag_is_the_version(git: Path) -> None:
    _git(git, "tag", "v1.2.3")
    assert _version(git) == "1.2.3"
    _git(git, "commit", "--quiet", "--allow-empty", "--message", "three")
    assert re.fullmatch(r"1\.2\.4\.dev1\+g[0-9a-f]+(\.d\d+)?", _version(git))


@pytest.mark.filterwarnings("ignore:.*is shallow:UserWarning")
def test_a_shallow_clone_without_tags_has_one(git: Path, tmp_path: Path) -> None:
    _git(git, "tag", "v1.2.3")
    _git(tmp_path, "clone", "--depth=1", "--no-tags", git.as_uri(), "shallow")
    assert re.fullmatch(r"0\.2\.1\.dev1\+g[0-9a-f]+(\.d\d+)?", _version(tmp_path / "shallow"))


def test_a_tree_without_git_has_one(tmp_path: Path) -> None:
    assert _version(tmp_path) == "0.2.0"


def test_what_is_not_installed_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import metadata

    def absent(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    module = importlib.import_module("tracekit._version")
    monkeypatch.setattr(metadata, "version", absent)
    assert importlib.reload(module).__version__ == "0+unknown"
    monkeypatch.undo()
    assert importlib.reload(module).__version__ == tracekit.__version__
