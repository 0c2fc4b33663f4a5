"""tracekit loads where an operating system lacks what POSIX and Linux have."""

from __future__ import annotations

import subprocess
import sys

import pytest

_HIDDEN = """
import warnings; warnings.simplefilter("ignore")  # filelock says what it lacks
import os, pkgutil, signal, sys
for name in ("fcntl", "resource", "pwd", "grp", "termios", "pty", "tty", "syslog"):
    sys.modules[name] = None
for name in ("sched_getaffinity", "process_cpu_count", "fork", "killpg", "setsid", "getuid"):
    vars(os).pop(name, None)
for name in ("SIGHUP", "SIGKILL", "SIGQUIT", "SIGUSR1", "SIGALRM", "pthread_sigmask"):
    vars(signal).pop(name, None)
import tracekit
for module in pkgutil.walk_packages(tracekit.__path__, "tracekit."):
    if module.name not in {optional!r} and not module.name.endswith("__main__"):
        __import__(module.name)
from tracekit.support.ahead import cores
assert cores() == os.cpu_count()
"""
_OPTIONAL = ("tracekit.store._dask",)
"""Modules of extras."""


@pytest.mark.slow
def test_nothing_that_windows_or_macos_lack_is_needed_at_load() -> None:
    code = _HIDDEN.replace("{optional!r}", repr(_OPTIONAL))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_cores_are_those_that_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    from tracekit.support.ahead import cores

    monkeypatch.setattr(os, "process_cpu_count", lambda: 3, raising=False)
    assert cores() == 3
    monkeypatch.delattr(os, "process_cpu_count")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 5}, raising=False)
    assert cores() == 2
