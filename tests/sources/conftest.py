"""The same trace in the schema of every version."""

from __future__ import annotations

import os
import pwd
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from zlib import crc32

import pytest
from nsys_builder import NsysBuilder, schema_versions
from nvprof_builder import VERSIONS, NvprofBuilder

HERE = Path(__file__).parent
OF_EACH_VERSION = ("test_nsys_whole.py",)
"""Tests of all that a schema has a place for, which read every version by day, too."""


def _by_age(version: str) -> tuple[bool, list[int]]:
    """Order versions of schemas; that of 2020 has no number, and is the oldest."""
    return version[0].isdecimal(), [*map(int, re.findall(r"\d+", version))]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave to the night all but three versions of nsys: the first, the last and one in between.

    Tests differ in which one this is, so that every version is read by a fifth of them or more.
    """
    versions = sorted(schema_versions(), key=_by_age)
    tests: dict[str, dict[str, pytest.Item]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and item.path.parent == HERE:
            version = item.callspec.params.get("nsys") if hasattr(item, "callspec") else None
            if version in versions and item.path.name not in OF_EACH_VERSION:
                tests.setdefault(item.nodeid.replace(version, ""), {})[version] = item
    for test, cases in tests.items():
        asked = [each for each in versions if each in cases]
        if between := asked[1:-1]:
            kept = {asked[0], asked[-1], between[crc32(test.encode()) % len(between)]}
            for version in cases.keys() - kept:
                cases[version].add_marker(pytest.mark.nightly)


@pytest.fixture(params=sorted(schema_versions()))
def nsys(request: pytest.FixtureRequest, tmp_path: Path) -> NsysBuilder:
    """An export to fill, in the schema of each version in turn (or of those a test asks for)."""
    return NsysBuilder(tmp_path / "t.sqlite", schema=request.param)


@pytest.fixture
def one(tmp_path: Path) -> NsysBuilder:
    """An export to fill, where all versions are alike."""
    return NsysBuilder(tmp_path / "t.sqlite", schema="3.24.14")


@pytest.fixture(params=VERSIONS)
def nvprof(request: pytest.FixtureRequest, tmp_path: Path) -> NvprofBuilder:
    """A database of nvprof to fill, in the schema of each version in turn."""
    return NvprofBuilder(tmp_path / "t.nvvp", schema=request.param)


@pytest.fixture
def other_user_folder() -> Iterator[Path]:
    """A folder that any user of the machine can reach, unlike those that pytest makes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
        folder.chmod(0o755)


@pytest.fixture
def as_other() -> Callable[[], AbstractContextManager[None]]:
    """Act as a user whom the rights of files bind, which they do not bind root to."""
    if os.geteuid() != 0:
        return nullcontext

    @contextmanager
    def nobody() -> Iterator[None]:
        os.seteuid(pwd.getpwnam("nobody").pw_uid)
        try:
            yield
        finally:
            os.seteuid(0)

    return nobody
