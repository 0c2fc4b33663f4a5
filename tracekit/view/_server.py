"""HTTP server of the view: on the loopback address, read-only, and protected by a token."""

from __future__ import annotations

import gzip
import json
import re
import secrets
import select
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl

from tracekit.errors import TracekitError
from tracekit.support.batches import stoppable
from tracekit.view._encoded import encoded

HOST = "127.0.0.1"
HEADER = "X-Tracekit-Token"
_HOSTS = re.compile(r"(?:127\.0\.0\.1|localhost)(?::\d{1,5})?", re.IGNORECASE)
_LONGEST_QUERY = 2_000
_MOST_CONNECTIONS = 128
_SLOWEST = 5.0
"""Seconds that a client may take to send its request, and to receive the response."""
_LONGEST_WAIT = 60.0
"""Longest wait of a request, seconds."""
_JSON = "application/json"
_SMALL = 1_000
"""Size in bytes up to which responses are sent uncompressed."""
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "object-src 'none'; connect-src 'self'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
Query = Mapping[str, str]
"""Parameters of a request."""


class Refused(Exception):  # noqa: N818 - no fault of ours
    """Error for a request that is refused, with its HTTP status."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Turns:
    """Limits the number of requests handled at once; a request whose client has gone is dropped.

    Long work, too, is stopped once its client has gone; this is checked between batches of rows.
    """

    def __init__(self, most: int) -> None:
        self._free = threading.Semaphore(most)

    @contextmanager
    def taken(
        self, connection: socket.socket, progress: dict[str, tuple[int, int]] | None = None,
        path: str = "",
    ) -> Iterator[None]:  # fmt: skip
        """Wait until the request may be handled; handle it within this context.

        Meanwhile, ``progress[path]`` has the number of rows read so far and the number of all rows.

        Raises
        ------
        Refused
            If the wait takes too long, or the client has gone.
        """
        rows = {} if progress is None else progress

        def note(read: int, wanted: int) -> None:
            _check_waits(connection)
            rows[path] = read, wanted

        until = time.monotonic() + _LONGEST_WAIT
        while not self._free.acquire(timeout=0.05):
            _check_waits(connection)
            if time.monotonic() > until:
                raise Refused(503, "too many requests are waiting")
        try:
            with stoppable(note):
                yield
        finally:
            rows.pop(path, None)
            self._free.release()


def _check_waits(connection: socket.socket) -> None:
    readable, _, _ = select.select([connection], [], [], 0)
    try:
        has_gone = bool(readable) and connection.recv(1, socket.MSG_PEEK) == b""
    except OSError:
        has_gone = True
    if has_gone:
        raise Refused(499, "given up")


Endpoint = tuple[Callable[[Query], Any], Turns]
"""Function that returns values for JSON, and the limiter of such requests."""


class ViewServer(ThreadingHTTPServer):
    """HTTP server with fixed paths: the page for anyone, data for requests with the token.

    Parameters
    ----------
    port
        Port to listen on; 0 for any free port.
    page
        HTML of the page, which has no data of a run.
    endpoints
        Functions that answer requests: path -> function.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = _MOST_CONNECTIONS
    timeout = 0.5

    def __init__(self, port: int, page: str, endpoints: Mapping[str, Endpoint]) -> None:
        self.page, self.endpoints = page.encode(), endpoints
        self.token = secrets.token_urlsafe(32)
        self.used = time.monotonic()
        self.progress: dict[str, tuple[int, int]] = {}
        """Rows read, and all of the table being read, of each request being answered."""
        self.is_known = threading.Event()
        """Event set once someone has sent the token."""
        self._connections = threading.Semaphore(_MOST_CONNECTIONS)
        super().__init__((HOST, port), _Handler)

    def server_bind(self) -> None:
        """Bind without a DNS lookup of the host's name."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = HOST, self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Handle a request in a separate thread; connections above the limit are closed at once."""
        if self._connections.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Handle a request, then free its place for another connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._connections.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """Print an error on one line; a client that has gone is no error."""
        error = sys.exception()
        if not isinstance(error, OSError):
            print(f"tracekit view: {type(error).__name__}: {error}", file=sys.stderr)  # noqa: T201


class _Handler(BaseHTTPRequestHandler):
    server: ViewServer
    timeout = _SLOWEST
    server_version, sys_version = "tracekit", ""

    def do_GET(self) -> None:
        self._send(*self._answer())

    def _answer(self) -> tuple[int, str, bytes]:
        """Return status, content type and content of the response."""
        try:
            self._check_sender()
            path, _, query = self.path.partition("?")
            if path == "/":
                return 200, "text/html", self.server.page
            return 200, _JSON, self._data(path, query)
        except Refused as refused:
            return refused.status, "text/plain", str(refused).encode()
        except TracekitError as error:
            return 422, _JSON, json.dumps({"error": error.what, "hint": error.hint}).encode()
        except Exception:
            self.send_error(500, "this is a fault of tracekit; its terminal shows more")
            raise

    def _check_sender(self) -> None:
        """Refuse requests for other host names, which foreign pages may send (DNS rebinding)."""
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1 or not _HOSTS.fullmatch(hosts[0]):
            raise Refused(403, "this host is not served")
        if any(each != f"http://{hosts[0]}" for each in self.headers.get_all("Origin") or []):
            raise Refused(403, "pages of other origins are not served")

    def _data(self, path: str, query: str) -> bytes:
        found = self.server.endpoints.get(path)
        sent = (self.headers.get(HEADER) or "").encode()
        if not secrets.compare_digest(sent, self.server.token.encode()):
            raise Refused(401, "the token is missing: open the address that the command printed")
        self.server.used = time.monotonic()
        self.server.is_known.set()
        progress = self.server.progress
        if path == "/progress":
            return json.dumps({**progress}).encode()
        if found is None:
            raise Refused(404, "there is nothing here")
        answer, turns = found
        with turns.taken(self.connection, progress, self.path):
            return encoded(answer(_parameters(query))).encode()

    def _send(self, status: int, kind: str, content: bytes) -> None:
        is_packed = len(content) > _SMALL and "gzip" in self.headers.get("Accept-Encoding", "")
        if is_packed:
            content = gzip.compress(content, 1)
        self.send_response(status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        if is_packed:
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        self.wfile.write(content)

    def send_error(
        self,
        code: int,
        message: str | None = None,
        explain: str | None = None,  # noqa: ARG002
    ) -> None:
        """Respond in plain text, also to malformed requests and other methods."""
        if not hasattr(self, "headers"):  # of a request that could not be read
            self.headers = self.MessageClass()
        self._send(code, "text/plain", (message or "refused").encode())

    def log_message(self, *_: Any) -> None:
        """Log nothing: a request's line would reveal which parts the user looks at."""


def _parameters(query: str) -> dict[str, str]:
    if len(query) > _LONGEST_QUERY:
        raise Refused(400, "the parameters are too long")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query),
                          max_num_fields=10)  # fmt: skip
    except ValueError:
        raise Refused(400, "the parameters cannot be read") from None
    if len(dict(pairs)) != len(pairs):
        raise Refused(400, "a parameter is given twice")
    return dict(pairs)
