"""A run's page in a browser: its server, the file that opens a browser, and their shutdown."""

from __future__ import annotations

import atexit
import html
import os
import tempfile
import threading
import time
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from tracekit._version import __version__
from tracekit.errors import UsageError
from tracekit.present.pages import view_page
from tracekit.view._asked import AskedRun, AskedRuns, SeenRun
from tracekit.view._server import HOST, ViewServer

IDLE_MINUTES = 60


def keep_tiles(run: AskedRun) -> None:
    """Compute and cache what the view needs of a run, so that it opens at once."""
    SeenRun(run).keep()


class View:
    """Runs to scroll through in a browser, served to this machine only, until closed.

    Parameters
    ----------
    runs
        The runs.
    port
        Port on 127.0.0.1; 0 for any free port.
    opens
        Whether to open a browser.
    idle_minutes
        Minutes without a request after which the view closes itself.
    store
        Folder of the store to name in commands; None if commands find it themselves.

    Raises
    ------
    UsageError
        If the port is in use.
    """

    def __init__(
        self,
        runs: Sequence[AskedRun],
        *,
        port: int = 0,
        opens: bool = True,
        idle_minutes: float = IDLE_MINUTES,
        store: Path | None = None,
    ) -> None:
        shown = AskedRuns(runs, store)
        try:
            self._server = ViewServer(port, view_page(__version__), shown.endpoints())
        except (OSError, OverflowError) as error:
            raise UsageError(f"port {port} cannot be used ({error})", "leave out --port") from error
        self._idle = 60 * idle_minutes
        self._closing = threading.Event()
        self._opener = _opener(self.address) if opens else None
        self._serving = threading.Thread(target=self._serve, daemon=True)
        self._serving.start()
        atexit.register(self.close)
        threading.Thread(target=shown.prepare, daemon=True).start()  # who comes first waits for it
        if self._opener is not None:
            webbrowser.open(self._opener.as_uri())

    @property
    def address(self) -> str:
        """Address to open, with the token that grants access."""
        return f"http://{HOST}:{self._server.server_port}/#token={self._server.token}"

    def __repr__(self) -> str:
        return f"<View: {self.address}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait(self) -> None:
        """Wait until the view closes itself."""
        while self._serving.is_alive():
            self._serving.join(0.5)

    def close(self) -> None:
        """Stop the server and remove its files."""
        self._closing.set()
        self._serving.join()
        atexit.unregister(self.close)

    def _serve(self) -> None:
        server = self._server
        try:
            while not self._closing.is_set() and time.monotonic() - server.used < self._idle:
                server.handle_request()
                if server.is_known.is_set():
                    self._forget_opener()
        finally:
            server.server_close()
            self._forget_opener()

    def _forget_opener(self) -> None:
        if self._opener is not None:
            self._opener.unlink(missing_ok=True)
            self._opener = None


def _opener(address: str) -> Path:
    """Write a file, readable for this user only, that redirects to an address.

    The browser gets this file instead of the address, as anyone can read its command line.
    """
    handle, name = tempfile.mkstemp(prefix="tracekit-view-", suffix=".html")  # of mode 0600
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(
            '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" '
            f'content="0;url={html.escape(address)}"><title>tracekit view</title>'
        )
    return Path(name)
