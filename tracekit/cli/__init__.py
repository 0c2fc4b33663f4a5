"""The command line: parse, call the library, present.

Importing this package imports neither polars nor SQLAlchemy; each command does when it runs.
"""

from tracekit.cli._app import main
from tracekit.cli._command import Judged, app, command

__all__ = ["Judged", "app", "command", "main"]
