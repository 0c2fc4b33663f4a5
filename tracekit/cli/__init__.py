"""The command line: parse, call the library, present.

Importing this package imports neither polars nor SQLAlchemy; each command does when it runs.
"""

from typing import TYPE_CHECKING

from tracekit.support.lazily import lazily

if TYPE_CHECKING:
    from tracekit.cli._all import app
    from tracekit.cli._command import Judged, command
    from tracekit.cli._main import main
    from tracekit.cli._options import RunsArgument
    from tracekit.support.schemas import Json

__all__ = ["Json", "Judged", "RunsArgument", "app", "command", "main"]

__getattr__, __dir__ = lazily(__name__)
