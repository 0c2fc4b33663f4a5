"""A folder for the temporary files of one process of the tests."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "tracekit-tests-"


@contextmanager
def own_folder() -> Iterator[Path]:
    """Make a folder that only its owner lists, and lock it, so that nobody takes it for left over.

    Who removes it is who made it: what the tests started may write there to the end.
    """
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    folder.chmod(0o711)
    with (folder / "new").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (folder / "new").rename(folder / "lock")  # before, nobody looks at it
        yield folder


def remove_leftovers(place: Path) -> None:
    """Remove the folders of processes that were killed: of these the locks are free."""
    for path in place.glob(f"{PREFIX}*/lock"):
        with suppress(OSError), path.open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path.parent, ignore_errors=True)
