"""Views that are served while a module's tests ask them."""

from __future__ import annotations

import http.client
import json
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hostile import SAMPLES, hostile_trace

import tracekit
from tracekit.view import View


@pytest.fixture(scope="module", autouse=True)
def _asked_of_samples(samples_read_once: None) -> None:
    """Let views be what is made here, not runs."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("view") / "store"


@pytest.fixture(scope="module")
def runs(store: Path) -> list[tracekit.Run]:
    folder = store.parent
    traces = {"hostile": hostile_trace(folder), "p2p": SAMPLES / "p2p_2gpu_start_end.sqlite"}
    return [tracekit.ingest(path, name=name, store=store)[0] for name, path in traces.items()]


@pytest.fixture(scope="module")
def served(runs: list[tracekit.Run]) -> Iterator[View]:
    with View(runs, opens=False) as view:
        yield view


class Client:
    """Asks a view as its page does, and as others would."""

    def __init__(self, view: View) -> None:
        address = urllib.parse.urlsplit(view.address)
        self.port = int(address.port or 0)
        self.token = address.fragment.removeprefix("token=")

    def ask(
        self, target: str, method: str = "GET", **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and content; a header of no text is left out."""
        own = {"Host": f"127.0.0.1:{self.port}", "X-Tracekit-Token": self.token}
        own |= {name.replace("_", "-"): text for name, text in headers.items()}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
        for name, text in own.items():
            if text:
                connection.putheader(name, text)
        connection.endheaders()
        answer = connection.getresponse()
        found = answer.status, dict(answer.getheaders()), answer.read()
        connection.close()
        return found

    def data(self, path: str, **given: object) -> Any:
        """Return what is answered."""
        query = urllib.parse.urlencode({name.strip("_"): text for name, text in given.items()})
        status, _, content = self.ask(f"/{path}?{query}" if query else f"/{path}")
        assert status == 200, content
        return json.loads(content)


@pytest.fixture(scope="module")
def client(served: View) -> Client:
    return Client(served)


@pytest.fixture
def client_of() -> Callable[[View], Client]:
    return Client
