"""The same trace in the schema of every version."""

from __future__ import annotations

import os
import pwd
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import pytest
from nsys_builder import NsysBuilder, schema_versions
from nvprof_builder import VERSIONS, NvprofBuilder


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
