"""Stores over both kinds of catalogue, and ingests in processes of their own."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from store_helpers import Child

from tracekit.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SCHEMA_NUMBERS = itertools.count()


def _binaries() -> Path | None:
    found = shutil.which("initdb")
    if found and shutil.which("postgres"):
        return Path(found).parent
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return installed[-1].parent if installed else None


def _server_user() -> str | None:
    """PostgreSQL refuses to run as root, so there it is another user's."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    users = [user for user in ("postgres", "nobody") if user in known]
    if not users:
        pytest.skip("PostgreSQL does not run as root, and there is no other user to run it as")
    return users[0]


class Server:
    """A real PostgreSQL server on a Unix socket, whose data lies in a folder of its own."""

    def __init__(self, folder: Path, binaries: Path, user: str | None) -> None:
        self.url = f"postgresql://tracekit@/postgres?host={folder}"
        self._folder, self._binaries = folder, binaries
        environment = {"LC_ALL": "C", "PATH": os.environ["PATH"]}
        self._options: dict[str, Any] = {"user": user, "cwd": folder, "env": environment}
        words = ["-D", folder / "data", "-U", "tracekit", "-A", "trust", "-N", "-E", "UTF8"]
        made = [binaries / "initdb", *words]
        subprocess.run(made, check=True, capture_output=True, **self._options)

    def start(self) -> None:
        """Start it, and wait until it answers."""
        words = ["-D", self._folder / "data", "-k", self._folder, "-c", "fsync=off"]
        with (self._folder / "log").open("wb") as output:
            self._running = subprocess.Popen(
                [self._binaries / "postgres", *words, "-c", "listen_addresses="],
                stdout=output, stderr=output, **self._options,
            )  # fmt: skip
        deadline = time.monotonic() + 20
        while not self._answers():
            if self._running.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"PostgreSQL does not start: {(self._folder / 'log').read_text()}")
            time.sleep(0.05)

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url).close()
        except psycopg.OperationalError:
            return False
        return True

    def stop(self) -> None:
        """End it at once, with all its connections."""
        self._running.send_signal(signal.SIGINT)
        self._running.wait(timeout=20)


@contextmanager
def _serving() -> Iterator[Server]:
    binaries = _binaries()
    if binaries is None:
        pytest.skip("no PostgreSQL server is installed")
    user = _server_user()
    # Not below pytest's folders, which another user may not enter.
    folder = Path(tempfile.mkdtemp(prefix="tracekit-pg-"))
    if user is not None:
        shutil.chown(folder, user)
    try:
        server = Server(folder, binaries, user)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """URL of a real PostgreSQL server, started for these tests."""
    with _serving() as server:
        yield server.url


@pytest.fixture
def stoppable() -> Iterator[Server]:
    """A server that a test may stop, and must start again."""
    with _serving() as server:
        yield server


@pytest.fixture
def postgres_catalog(postgres: str) -> str:
    """URL of an empty catalogue: a schema of its own on the server."""
    schema = f"catalogue_{next(SCHEMA_NUMBERS)}"
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
    return f"{postgres}&options=-csearch_path%3D{schema}"


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def catalog(request: pytest.FixtureRequest) -> str | None:
    """What says where the catalogue is: nothing, or the URL of a PostgreSQL server."""
    if request.param == "sqlite":
        return None
    return str(request.getfixturevalue("postgres_catalog"))


@pytest.fixture
def store(tmp_path: Path, catalog: str | None) -> Store:
    return Store(tmp_path / "store", catalog)


@pytest.fixture
def child(store: Store, catalog: str | None) -> Iterator[Callable[..., Child]]:
    """Start `ingesting.py` on the store, with a content and what happens where."""
    children: list[Child] = []

    def start(content: str, event: str = "", point: str = "", options: str = "{}") -> Child:
        children.append(Child(store, catalog, content, event, point, options))
        return children[-1]

    yield start
    for each in children:
        each.kill()
