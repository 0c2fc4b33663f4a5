"""What all commands share: an error becomes one message and an exit code."""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import typer

from workloads._errors import MissingError, WorkloadError
from workloads._tell import tell

_INTERRUPTED = 130  # 128 + SIGINT, as shells report it
_BAD_INPUT = 2


def command(function: Callable[..., int | None], epilog: str) -> typer.Typer:
    """Return the command line program for a function, whose result is the exit code."""
    app = typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    app.command(epilog=epilog)(_guarded(function))
    return app


def require_torch() -> None:
    """Raise an error if PyTorch is not installed.

    Raises
    ------
    MissingError
        If PyTorch is not installed.
    """
    if find_spec("torch") is None:
        raise MissingError("PyTorch is not installed", "pip install 'tracekit[workloads]'")


def _guarded(function: Callable[..., int | None]) -> Callable[..., None]:
    @functools.wraps(function)
    def run(*arguments: Any, **options: Any) -> None:
        try:
            require_torch()
            code = function(*arguments, **options)
        except WorkloadError as error:
            tell(str(error))
            raise typer.Exit(error.exit_code) from error
        except KeyboardInterrupt:
            tell("interrupted")
            raise typer.Exit(_INTERRUPTED) from None
        except OSError as error:
            where = "" if error.filename is None else f"{error.filename}: "
            tell(f"{where}{error.strerror or error}")
            raise typer.Exit(_BAD_INPUT) from error
        raise typer.Exit(code or 0)

    return run
