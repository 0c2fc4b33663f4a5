"""The view: whole runs to scroll through in a browser, served on the loopback address."""

from tracekit.view._view import View, keep_tiles

__all__ = ["View", "keep_tiles"]
