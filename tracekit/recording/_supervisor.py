"""Runs a command and sees to it that nothing of it is left behind.

This is a program of its own, which imports nothing of tracekit. Orphans of the command become its
children, wherever they have hidden (`PR_SET_CHILD_SUBREAPER`), so that it can end them; and it
holds one end of a socket, which closes when the process that started it ends, be that by SIGKILL:
the signal that a dead parent can send its children reaches none of theirs.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress

_SUBREAPER = 36
_PAUSE_S = 0.02
_FORWARDED = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


class _Signals:
    """What has been sent to us. An interrupt reaches the command by itself, others do not."""

    def __init__(self) -> None:
        self.came = False
        self.command: subprocess.Popen[bytes] | None = None

    def take(self, sent: int, _: object) -> None:
        """Take a signal."""
        self.came = True
        if sent in _FORWARDED and self.command is not None:
            self.command.send_signal(signal.SIGINT)


def main(words: list[str]) -> int:
    """Run ``SOCKET SECONDS COMMAND...`` and return the command's code, or 128 and its signal.

    The seconds are what is left behind has to end by itself. What keeps it from
    running is told through the socket, as the number of the error.
    """
    starter = socket.socket(fileno=int(words[0]))
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    signals = _Signals()
    for each in (signal.SIGINT, *_FORWARDED):
        if signal.getsignal(each) is not signal.SIG_IGN:
            signal.signal(each, signals.take)
    try:
        signals.command = subprocess.Popen(words[2:])  # noqa: S603 - what the user asked for
    except OSError as error:
        starter.sendall(str(error.errno).encode())
        return 1
    code = _wait(signals.command, starter)
    if code is None:
        _end_all(signal.SIGKILL if signals.came else signal.SIGINT, float(words[1]))
        return 1
    _end_all(signal.SIGTERM, float(words[1]))
    return code if code >= 0 else 128 - code


def _wait(command: subprocess.Popen[bytes], starter: socket.socket) -> int | None:
    """Wait for the command's end and return its code; None if who started us ended before."""
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    starter.setblocking(False)  # noqa: FBT003
    while (code := command.poll()) is None:
        if _is_closed(starter, wake):
            return None
    return code


def _is_closed(starter: socket.socket, wake: int) -> bool:
    """Wait until something happens, and tell whether it is that who started us has ended."""
    ready, _, _ = select.select([starter.fileno(), wake], [], [], 1.0)
    if wake in ready:
        os.read(wake, 4096)
    return starter.fileno() in ready and not starter.recv(1)


def _end_all(first: int, last_words_s: float) -> None:
    """End all that came of the command: by one signal, and after some time by force."""
    end = time.monotonic() + last_words_s
    for each in _descendants():
        _send(each, first)
    while _has_children():
        if first == signal.SIGKILL or time.monotonic() > end:
            for each in _descendants():
                _send(each, signal.SIGKILL)
        time.sleep(_PAUSE_S)


def _has_children() -> bool:
    """Tell whether there are children, of which those that have ended are let go."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _descendants() -> list[int]:
    """Return the processes that descend from this one."""
    names = filter(str.isdigit, os.listdir("/proc"))  # noqa: PTH208 - pathlib takes time to load
    parents = {pid: _parent(pid) for pid in map(int, names)}
    found = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return sorted(found - {os.getpid()})


def _parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - the name may hold spaces
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, IndexError):
        return 0


def _send(pid: int, sent: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, sent)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
