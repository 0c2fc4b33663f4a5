"""How a wheel of tracekit is built: by hatchling, with the loops compiled where that is asked for.

    pip install --config-settings loops=yes .

builds a wheel with the machine code of its loops. Without that, or where they cannot be compiled,
each loop is compiled where it is first used. What compiling needs is part of what tracekit itself
needs. Source distributions and editable installations are hatchling's alone.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

from hatchling import build as hatchling
from hatchling.build import *  # noqa: F403 - the other hooks, as they are

ROOT = Path(__file__).resolve().parents[1]
LOOPS = ROOT / "tracekit" / "loops"
LINKED = sys.platform == "linux" and platform.machine() == "x86_64"
"""Whether tracekit links such code here, see `tracekit.support.native`."""
UNUSED = frozenset({"jinja2", "nvtx", "plotly", "rich", "typer"})
"""What tracekit needs, but neither an ingest nor the questions that are asked to compile loops."""

Settings: TypeAlias = Mapping[str, Any] | None
"""What the builder was told, as by pip's ``--config-settings``."""


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """Return what the build of a wheel needs."""
    needs = hatchling.get_requires_for_build_wheel()
    return [*needs, *needed_to_compile()] if _compiles(config_settings) else needs


def build_wheel(
    wheel_directory: str,
    config_settings: Settings = None,
    metadata_directory: str | None = None,
) -> str:
    """Build a wheel, and return what its file is called."""
    compiles = _compiles(config_settings)
    with _alone():
        shutil.rmtree(LOOPS, ignore_errors=True)
        if compiles and not _compile():
            shutil.rmtree(LOOPS, ignore_errors=True)
        return hatchling.build_wheel(wheel_directory, None, metadata_directory)


def needed_to_compile() -> list[str]:
    """Return those of tracekit's own requirements without which no loop is compiled."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return [each for each in project["dependencies"] if name_of(each) not in UNUSED]


def name_of(requirement: str) -> str:
    """Return what a requirement is of."""
    return re.split(r"[^\w.-]", requirement, maxsplit=1)[0]


def _compiles(settings: Settings) -> bool:
    told = (settings or {}).get("loops", "no")
    if told not in ("yes", "no"):
        raise SystemExit(f"--config-settings loops={told}: say loops=yes or loops=no")
    return LINKED and told == "yes"


def _compile() -> bool:
    """Compile the loops; tell whether that was done, and what follows if it was not."""
    script = Path(__file__).with_name("compile_loops.py")
    # What goes to standard output is, for some builders, the answer to something else.
    done = subprocess.run([sys.executable, script, LOOPS], stdout=sys.stderr.fileno(), check=False)
    if done.returncode:
        sys.stderr.write(
            "tracekit: its loops could not be compiled, see above. The wheel is built without, and "
            "the first ingest of a large trace takes seconds longer.\n"
        )
    return done.returncode == 0


@contextmanager
def _alone() -> Iterator[None]:
    """Wait for other builds from the same files, and let none begin meanwhile."""
    if not LINKED:
        yield
        return
    import fcntl  # of Unix alone

    file = os.open(ROOT / "pyproject.toml", os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system that has no locks
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)
