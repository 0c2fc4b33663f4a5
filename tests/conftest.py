"""Where the real traces and exports lie that some tests read, and what happens without them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# How long an example takes depends on what else the machine does.
settings.register_profile("tracekit", deadline=None)
settings.load_profile("tracekit")

TRACES = Path(
    os.environ.get("TRACEKIT_REAL_TRACES")
    or Path(__file__).resolve().parents[2] / "shared" / "traces"
)
SAMPLES = TRACES.parent / "formats" / "samples"


def _found(folder: Path, name: str) -> Path:
    path = folder / f"{name}.sqlite"
    if not path.is_file():
        pytest.skip(f"no {path.name} in {folder}; TRACEKIT_REAL_TRACES may name the traces' folder")
    return path


@pytest.fixture(scope="session", autouse=True)
def _programs_hear_signals() -> Iterator[None]:
    """Let what tests start hear SIGINT and SIGHUP, wherever the tests themselves are started.

    Under ``nohup``, and in what a shell runs in the background, they are ignored, and what ignores
    them hands that on. What handles them does not, so here they are handled, by doing nothing.
    """
    ignored = [
        each for each in (signal.SIGINT, signal.SIGHUP) if signal.getsignal(each) is signal.SIG_IGN
    ]
    for each in ignored:
        signal.signal(each, lambda *_: None)
    yield
    for each in ignored:
        signal.signal(each, signal.SIG_IGN)


@pytest.fixture(scope="session")
def real_trace() -> Callable[[str], Path]:
    """Give the path of a real trace by its name; the test is skipped where it is absent."""
    return lambda name: _found(TRACES, name)


@pytest.fixture(scope="session")
def real_sample() -> Callable[[str], Path]:
    """Give the path of a small export without GPU work, likewise."""
    return lambda name: _found(SAMPLES, name)
