"""Adds a run, and dies or pauses on its way.

What happens is ``die`` or ``pause``; where: ``make``, ``staged``, ``published`` or ``committed``.
Says ``paused`` where it pauses, until it hears something; at the end the run's id and whether it
was made.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tracekit.model import Trace
from tracekit.store import Made, Store
from tracekit.store._staging import Folders


def let_happen(happen: Callable[[], object], owner: type, method: str, *, after: bool) -> None:
    """Let something happen whenever `method` is called, before or after what it does."""
    original = getattr(owner, method)

    def patched(*arguments: Any, **options: Any) -> Any:
        if not after:
            happen()
        result = original(*arguments, **options)
        if after:
            happen()
        return result

    setattr(owner, method, patched)


def main(
    parent: Connection, root: Path, catalog: str | None,
    content: str, event: str, point: str, options: str,
) -> None:  # fmt: skip
    """Add a run to a store over a catalogue, with a digest and options."""

    def happen() -> None:
        if event == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        parent.send(["paused"])
        parent.recv()

    if point == "staged":
        let_happen(happen, Folders, "publish", after=False)
    if point == "published":
        let_happen(happen, Store, "_commit", after=False)
    if point == "committed":
        let_happen(happen, Store, "_commit", after=True)

    def make(folder: Path) -> Made:
        if point == "make":
            happen()
        Trace.of({}).write(folder / "0")
        return Made(content, (content,), ((),))

    record, made = Store(root, catalog).add(
        digest=content,
        options=options,
        name=None,
        default_name="run",
        labels={},
        make=make,
        summarise=lambda _: {},
    )
    parent.send([record.id, str(made)])
