"""Modules that are loaded while there is other work to do."""

from __future__ import annotations

import threading
from contextlib import suppress
from importlib import import_module


def load_beside(module: str) -> None:
    """Begin to import a module in a thread; whoever imports it meanwhile waits for that."""
    threading.Thread(target=_load, args=(module,), daemon=True).start()


def _load(module: str) -> None:
    with suppress(Exception):  # whoever needs it is told of it
        import_module(module)
