"""The command line: parse, call the library, present.

Importing this package imports neither polars nor SQLAlchemy; each command does when it runs.
"""

from tracekit.cli._app import app, main

__all__ = ["app", "main"]
