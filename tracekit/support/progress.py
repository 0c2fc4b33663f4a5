"""Types of functions that report the progress of work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

Progress = Callable[[str, int, int], None]
"""Called with the progress of work: its step, the amount done and the total."""
ReportProgress = Callable[[Path, str, int, int], None]
"""Called with the progress of one of several files: the file, and the same; at its end with an
empty step."""
