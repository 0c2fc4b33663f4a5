"""Environment variables that make a program annotate itself, and the code at its start."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from ._attach import ATTACH
from ._imports import when_imported
from ._step_windows import WINDOWS

LAYERS = "TRACEKIT_ANNOTATE"
"""Environment variable that switches annotations on, with the depth of layers."""
RING = "TRACEKIT_RING"
"""Environment variable with the ring file of the latest ranges, with or without a profiler."""
EVENTS = "TRACEKIT_RING_CUDA_EVENTS"
"""Environment variable for a second ring file, with stages timed by CUDA events."""
_PATH = "PYTHONPATH"
_HERE = os.path.dirname(os.path.abspath(__file__))


def variables(
    layers: int,
    environment: Mapping[str, str],
    windows: tuple[int, int] | None = None,
    ring: str | None = None,
    folder: str = _HERE,
    attach: str | None = None,
    *,
    cuda_events: bool = False,
) -> dict[str, str]:
    """Return environment variables that make Python programs annotate themselves: name -> value.

    Parameters
    ----------
    layers
        Depth of layers that get ranges.
    environment
        Current environment, whose PYTHONPATH is kept: name -> value.
    windows
        Distance between the starts of windows, and length of a window, in steps; None records all.
    ring
        Ring file that keeps the latest ranges, with or without a profiler; or None.
    folder
        Folder of the hooks, or of a copy by `copy_hooks`.
    attach
        Shared folder through which steps to record are requested; None records all.
    cuda_events
        Whether to keep stages timed by CUDA events in a second ring file.
    """
    of_windows = {} if windows is None else {WINDOWS: f"{windows[0]}:{windows[1]}"}
    options = ((RING, ring), (ATTACH, attach), (EVENTS, "1" if cuda_events else None))
    more = {name: text for name, text in options if text is not None}
    return {**_on_path(environment, folder), LAYERS: str(layers), **of_windows, **more}


def copy_hooks(folder: str) -> str:
    """Copy the hooks into `folder`, for programs that cannot read tracekit; return the path."""
    copy = os.path.join(folder, os.path.basename(_HERE))
    shutil.copytree(_HERE, copy, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    return copy


def step_time_variables(folder: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables that make Python programs write step times into a folder."""
    return {**_on_path(environment), FOLDER: folder}


def _on_path(environment: Mapping[str, str], folder: str = _HERE) -> dict[str, str]:
    site, path = os.path.join(folder, "site"), environment.get(_PATH)
    return {_PATH: os.pathsep.join([site, path]) if path else site}


def prepare(layers: int) -> None:
    """Annotate this program once it imports PyTorch; programs without PyTorch are not slowed down.

    `layers` is the depth of layers that get ranges.
    """

    def install(torch: ModuleType) -> None:
        del torch
        try:
            from ._annotate import annotate_all  # nothing before it is of use

            annotate_all(layers)
        except Exception as error:  # noqa: BLE001 - the program runs, whatever becomes of this
            sys.stderr.write(f"tracekit: no annotations ({error})\n")

    when_imported({"torch": install})


FOLDER = "TRACEKIT_STEP_TIMES"
"""Environment variable with the folder of files of step times, named by process id."""


def note_steps(folder: str) -> None:
    """Write time and optimizer of each training step into `folder`, one file per process.

    Hooks are installed once the program has imported PyTorch's optimizers.
    """

    def install(module: ModuleType) -> None:
        files: dict[int, int] = {}  # a process that is forked has one of its own

        def note(optimizer: Any, *_: Any) -> None:
            if is_compiling():
                return
            now, pid = time.perf_counter_ns(), os.getpid()
            if pid not in files:
                path = os.path.join(folder, str(pid))
                files[pid] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.write(files[pid], b"%d %d\n" % (now, id(optimizer)))

        compiler = getattr(getattr(module, "torch", None), "compiler", None)
        is_compiling = getattr(compiler, "is_compiling", bool)
        module.register_optimizer_step_post_hook(note)

    when_imported({"torch.optim.optimizer": install})
