"""Who is served what: nobody but who holds the token, and nothing but answers to the page."""

from __future__ import annotations

import re
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import tracekit
from tracekit.errors import UsageError
from tracekit.support import batches
from tracekit.view import View, _server, _view
from tracekit.view._server import Refused, Turns

DATA = ("/runs", "/run?run=0", "/drawn?run=0&from=0&to=9&pixels=9", "/nothing")


def test_the_page_holds_nothing_of_a_run(client: Any) -> None:
    status, headers, content = client.ask("/", X_Tracekit_Token="")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert b"hostile" not in content
    assert client.token.encode() not in content
    policy = re.findall(rb'Content-Security-Policy" content="([^"]+)"', content)[0].decode()
    assert policy.startswith("default-src &#39;none&#39;; script-src &#39;sha256-")
    assert "connect-src &#39;self&#39;" in policy
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "no-store"
    assert headers["Server"].strip() == "tracekit"
    assert not [name for name in headers if name.startswith(("Access-Control", "Set-Cookie"))]
    assert len(content) < 120_000


def test_data_take_the_token(client: Any) -> None:
    for target in DATA:
        for token in ("", "x", client.token[:-1], client.token + "x", "é", "x" * 9_000):
            status, headers, content = client.ask(target, X_Tracekit_Token=token)
            assert (status, headers["Content-Type"]) == (401, "text/plain; charset=utf-8")
            assert b"hostile" not in content
    assert client.ask(f"/runs?token={client.token}", X_Tracekit_Token="")[0] == 401
    assert client.ask("/runs", X_Tracekit_Token="", Cookie=f"token={client.token}")[0] == 401


@pytest.mark.parametrize(
    "host",
    ["", "example.org", "127.0.0.1.example.org", "localhost.", "0.0.0.0", "[::1]", "a@localhost"],
)
def test_no_other_host_is_served(client: Any, host: str) -> None:
    for target in ("/", "/runs"):
        assert client.ask(target, Host=host)[0] == 403


def test_hosts_that_ssh_forwards_are_served(client: Any) -> None:
    for host in ("localhost:9000", "127.0.0.1:9000", "LOCALHOST"):
        assert client.ask("/runs", Host=host)[0] == 200


def test_no_other_origin_is_served(client: Any) -> None:
    own = f"http://127.0.0.1:{client.port}"
    assert client.ask("/runs", Origin=own)[0] == 200
    for origin in ("http://example.org", "null", f"https://127.0.0.1:{client.port}", own + "0"):
        assert client.ask("/runs", Origin=origin)[0] == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS", "TRACE", "X"])
def test_nothing_but_get_is_answered(client: Any, method: str) -> None:
    status, headers, content = client.ask("/runs", method)
    assert status == 501
    assert "frame-ancestors" in headers["Content-Security-Policy"]
    assert b"hostile" not in content


@pytest.mark.parametrize(
    "target",
    ["/../pyproject.toml", "/..%2f..%2fetc/passwd", "//etc/passwd", "/etc/passwd", "http://a/runs",
     "/runs/", "/run/../runs", "/./runs", "*"],
)  # fmt: skip
def test_no_path_leads_anywhere(client: Any, target: str) -> None:
    status, _, content = client.ask(target)
    assert (status, content) == (404, b"there is nothing here")


@pytest.mark.parametrize(
    "target",
    [
        "/drawn?run=0&from=0&to=9&pixels=1000000000",
        "/drawn?run=0&from=0&to=9&pixels=0",
        "/drawn?run=0&from=0&to=9&pixels=-5",
        "/drawn?run=0&from=9&to=9&pixels=5",
        "/drawn?run=0&from=0&to=99999999999999999999999&pixels=5",
        "/drawn?run=0&from=0&to=1e9&pixels=5",
        "/drawn?run=0&from=0&to=%D9%A3&pixels=5",
        "/drawn?run=0&from=0&to=9&pixels=5&pixels=5",
        "/drawn?run=0&from=0&to=9&pixels=5&limit=1000000000",
        "/drawn?run=0&from=0&to=9",
        "/run?run=2", "/run?run=-1", "/run?run=../store", "/run", "/run?run",
        "/run?run=0;run=1", "/runs?a=1", f"/runs?a={'x' * 3_000}",
        "/table?run=0&from=0&to=9&by=range%20FROM%20ops",
        "/find?run=0&words=", f"/find?run=0&words={'x' * 201}",
        "/hit?run=0&words=x&which=all&time=0",
    ],
)  # fmt: skip
def test_what_is_asked_has_bounds(client: Any, target: str) -> None:
    assert client.ask(target)[0] == 400


def test_an_op_that_is_not_there(client: Any) -> None:
    assert client.ask("/op?run=0&op=1000000000")[0] == 404


def test_an_error_of_ours_is_told(client: Any) -> None:
    status, _, content = client.ask("/table?run=0&from=9000000000000&to=9000000000001&by=stage")
    assert status == 422
    assert b"nothing was recorded between 9000s and 9000.000000001s" in content


def test_what_is_no_request_ends_nothing(client: Any) -> None:
    for sent in (
        b"\x00\xff\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"A" * 70_000,
        b"",
    ):
        with socket.create_connection(("127.0.0.1", client.port)) as one:
            one.sendall(sent)
    assert client.ask("/runs")[0] == 200


def test_fifty_that_send_nothing_hold_up_nobody(client: Any) -> None:
    slow = [socket.create_connection(("127.0.0.1", client.port)) for _ in range(50)]
    for each in slow:
        each.sendall(b"GET /runs HT")
    begun = time.monotonic()
    assert client.ask("/runs")[0] == 200
    assert time.monotonic() - begun < _server._SLOWEST
    for each in slow:
        each.close()


def test_more_connections_than_there_may_be_are_closed(
    runs: list[tracekit.Run], client_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_server, "_MOST_CONNECTIONS", 3)
    monkeypatch.setattr(_server._Handler, "timeout", 1.0)
    with View(runs, opens=False) as view:
        client = client_of(view)
        held = [socket.create_connection(("127.0.0.1", client.port)) for _ in range(20)]
        ends = [each.recv(1) for each in held]  # those that are held time out
        assert ends == [b""] * 20
        assert client.ask("/runs")[0] == 200
        for each in held:
            each.close()


def test_fifty_questions_at_once_take_turns(
    served: View, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No more run at once than may, quick ones are answered, and who leaves loses the turn."""
    running, most, answered = [0], [0], []
    go_on, lock = threading.Event(), threading.Lock()

    def slow(given: Any) -> str:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        go_on.wait(20)
        with lock:
            running[0] -= 1
            answered.append(1)
        return "done"

    turns = served._server.endpoints["/table"][1]
    endpoints = {**served._server.endpoints, "/table": (slow, turns)}
    monkeypatch.setattr(served._server, "endpoints", endpoints)
    request = f"GET /table HTTP/1.0\r\nHost: localhost\r\nX-Tracekit-Token: {client.token}\r\n\r\n"
    asked = [socket.create_connection(("127.0.0.1", client.port)) for _ in range(50)]
    for each in asked:
        each.sendall(request.encode())
    assert client.ask("/runs")[0] == 200
    while running[0] < 2:
        time.sleep(0.01)
    for each in asked[10:]:
        each.close()
    time.sleep(0.5)
    go_on.set()
    texts = [_all_of(each) for each in asked[:10]]
    assert all(b"200 OK" in text or b"503" in text for text in texts)
    assert most[0] <= 2
    assert len(answered) <= 12  # two at most had begun before they were given up


def _all_of(connection: socket.socket) -> bytes:
    with connection, connection.makefile("rb") as file:
        return file.read()


def test_long_answers_tell_how_many_rows_are_read(
    served: View, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_read, go_on = threading.Event(), threading.Event()

    def slow(_: Any) -> int:
        rows = pl.LazyFrame({"row": range(300)})
        for number, _batch in enumerate(batches.in_batches(rows, 100)):
            if number == 1:
                two_read.set()
                go_on.wait(20)
        return number

    turns = served._server.endpoints["/table"][1]
    monkeypatch.setattr(
        served._server, "endpoints", {**served._server.endpoints, "/table": (slow, turns)}
    )
    asking = threading.Thread(target=client.data, args=("table",), kwargs={"run": 0, "by": "x y"})
    asking.start()
    two_read.wait(20)
    assert client.data("progress") == {"/table?run=0&by=x+y": [200, 300]}
    assert client.ask("/progress", X_Tracekit_Token="")[0] == 401
    go_on.set()
    asking.join()
    assert client.data("progress") == {}


def test_who_has_gone_is_not_waited_for() -> None:
    turns = Turns(1)
    ours, theirs = socket.socketpair()
    with turns.taken(ours):
        theirs.close()
        with pytest.raises(Refused) as refused, turns.taken(ours):
            pass
        assert refused.value.status == 499
    ours.close()


@pytest.mark.parametrize("question", ["idle", "breakdown"])
def test_work_that_nobody_waits_for_ends(
    runs: list[tracekit.Run], store: Path, question: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "ROWS", 100)
    ours, theirs = socket.socketpair()
    with Turns(1).taken(ours):
        theirs.close()
        with pytest.raises(Refused) as refused:
            getattr(tracekit.open(runs[0].name, store=store), question)(between="185ms:200ms")
    assert refused.value.status == 499
    ours.close()


def test_who_waits_too_long_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_server, "_LONGEST_WAIT", 0.1)
    turns = Turns(1)
    ours, theirs = socket.socketpair()
    with turns.taken(ours), pytest.raises(Refused) as refused, turns.taken(ours):
        pass
    assert refused.value.status == 503
    for each in (ours, theirs):
        each.close()


def test_it_listens_on_the_loopback_address_alone(served: View) -> None:
    assert served._server.server_address[0] == "127.0.0.1"
    assert len(served._server.token) >= 43


def test_a_browser_is_opened_by_a_file_of_ones_own(
    runs: list[tracekit.Run], client_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:  # fmt: skip
    opened: list[str] = []
    monkeypatch.setattr(_view.webbrowser, "open", opened.append)
    monkeypatch.setattr(_view.tempfile, "tempdir", str(tmp_path))
    with View(runs) as view:
        (file,) = tmp_path.iterdir()
        assert opened == [file.as_uri()]
        assert client_of(view).token not in opened[0]
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert view.address in file.read_text(encoding="utf-8")
        assert client_of(view).ask("/", X_Tracekit_Token="")[0] == 200
        assert file.exists()
        assert client_of(view).ask("/runs")[0] == 200
        until = time.monotonic() + 10
        while file.exists():
            assert time.monotonic() < until
            time.sleep(0.05)
    with View(runs) as view:
        assert list(tmp_path.iterdir())
    assert not list(tmp_path.iterdir())


def test_it_ends_when_nothing_is_asked(
    runs: list[tracekit.Run], client_of: Callable[..., Any]
) -> None:
    view = View(runs, opens=False, idle_minutes=2 / 60)
    client = client_of(view)
    assert client.ask("/runs")[0] == 200
    assert client.ask("/", X_Tracekit_Token="")[0] == 200  # which anyone may: it keeps nothing up
    view.wait()
    with pytest.raises(ConnectionRefusedError):
        client.ask("/runs")
    view.close()


def test_a_port_that_is_taken(served: View, runs: list[tracekit.Run]) -> None:
    with pytest.raises(UsageError, match="cannot be used"):
        View(runs, port=served._server.server_port, opens=False)


@pytest.mark.slow
def test_the_command_ends_with_an_interrupt_and_leaves_nothing(
    runs: list[tracekit.Run], store: Path, tmp_path: Path
) -> None:
    command = Path(sys.executable).parent / "tracekit"
    started = subprocess.Popen(
        [command, "view", "hostile", "--no-open", "--store", store],
        stderr=subprocess.PIPE, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert started.stderr is not None
    line = started.stderr.readline()
    assert re.search(r"http://127\.0\.0\.1:\d+/#token=\S{43}", line)
    started.send_signal(2)
    assert started.wait(20) == 130
    assert "interrupted" in started.stderr.read()
    started.stderr.close()
    assert not list(tmp_path.iterdir())
