"""Messages to the user on stderr, apart from results."""

from __future__ import annotations

import sys


def tell(text: str) -> None:
    """Print a line on stderr."""
    sys.stderr.write(f"workloads: {text}\n")
    sys.stderr.flush()
