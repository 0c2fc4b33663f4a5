"""Prepare the environment that makes a program annotate itself, and start it there."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from types import ModuleType

from ._imports import when_imported
from ._step_times import FOLDER
from ._windows import WINDOWS

LAYERS = "TRACEKIT_ANNOTATE"
"""Variable that says that programs are annotated, and down to which depth of layers."""
_PATH = "PYTHONPATH"
_SITE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "site")


def variables(
    layers: int, environment: Mapping[str, str], windows: tuple[int, int] | None = None
) -> dict[str, str]:
    """Return the variables with which programs in Python annotate themselves under a profiler.

    Parameters
    ----------
    layers
        Down to which depth layers get ranges.
    environment
        The variables that there are, whose path of Python stays.
    windows
        Every how many steps a window begins that has a range around it, and its steps.
    """
    of_windows = {} if windows is None else {WINDOWS: f"{windows[0]}:{windows[1]}"}
    return {**_on_path(environment), LAYERS: str(layers), **of_windows}


def step_time_variables(folder: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with which programs in Python write times of steps into a folder."""
    return {**_on_path(environment), FOLDER: folder}


def _on_path(environment: Mapping[str, str]) -> dict[str, str]:
    path = environment.get(_PATH)
    return {_PATH: _SITE if not path else os.pathsep.join([_SITE, path])}


def prepare(layers: int) -> None:
    """Annotate the program once it imports PyTorch; one that does not pays nothing."""

    def install(torch: ModuleType) -> None:
        del torch
        try:
            from ._annotate import annotate_all  # nothing before it is of use

            annotate_all(layers)
        except Exception as error:  # noqa: BLE001 - the program runs, whatever becomes of this
            sys.stderr.write(f"tracekit: no annotations ({error})\n")

    when_imported({"torch": install})
