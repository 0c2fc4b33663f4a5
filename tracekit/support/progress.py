"""Types of functions that report the progress of work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

Progress = Callable[[str, int, int], None]
"""Told what is being done, how much of it is done, and how much there is."""
ReportProgress = Callable[[Path, str, int, int], None]
"""Told of each of several files; at its end, an empty step."""
