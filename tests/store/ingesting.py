"""Adds a run, and dies or pauses on its way.

Arguments: the store, the URL of its catalogue or nothing, the digest, what happens (``die`` or
``pause``), where (``make``, ``staged``, ``published`` or ``committed``), and the options. Writes
``paused`` where it pauses, until a line comes in; at the end the run's id and whether it was made.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from tracekit.model import Trace
from tracekit.store import Made, Store
from tracekit.store._staging import Folders


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def happen(event: str) -> None:
    if event == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if event == "pause":
        say("paused")
        sys.stdin.readline()


def let_happen(event: str, owner: type, method: str, *, after: bool) -> None:
    """Let `event` happen whenever `method` is called, before or after what it does."""
    original = getattr(owner, method)

    def patched(*arguments: Any, **options: Any) -> Any:
        happen("" if after else event)
        result = original(*arguments, **options)
        happen(event if after else "")
        return result

    setattr(owner, method, patched)


def main(arguments: list[str]) -> None:
    root, catalog, content, event, point, options = arguments
    if point == "staged":
        let_happen(event, Folders, "publish", after=False)
    if point == "published":
        let_happen(event, Store, "_commit", after=False)
    if point == "committed":
        let_happen(event, Store, "_commit", after=True)

    def make(folder: Path) -> Made:
        happen(event if point == "make" else "")
        Trace.of({}).write(folder / "0")
        return Made(content, (content,), ((),))

    record, made = Store(Path(root), catalog or None).add(
        digest=content,
        options=options,
        files=[content],
        name=None,
        default_name="run",
        labels={},
        make=make,
        summarise=lambda _: {},
    )
    say(record.id, made)


if __name__ == "__main__":
    main(sys.argv[1:])
