"""The command line with all its commands."""

from tracekit.cli._app import register_all
from tracekit.cli._command import app

__all__ = ["app"]

register_all()
