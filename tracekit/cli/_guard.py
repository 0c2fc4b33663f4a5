"""What every command does when something goes wrong: one message, an exit code, no traceback."""

import os
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from tracekit.errors import TracekitError

_INTERRUPTED = 130  # 128 + SIGINT, as shells report it
_BROKEN_PIPE = 141  # 128 + SIGPIPE
_BAD_INPUT = 2


class GuardedGroup(TyperGroup):
    """A group of commands that turns what goes wrong in them into a message and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except TracekitError as error:
            complain(str(error))
            raise typer.Exit(error.exit_code) from error
        except KeyboardInterrupt:
            complain("interrupted")
            raise typer.Exit(_INTERRUPTED) from None
        except BrokenPipeError:
            _forget_stdout()
            raise typer.Exit(_BROKEN_PIPE) from None
        except OSError as error:
            complain(_described(error))
            raise typer.Exit(_BAD_INPUT) from error
        return result


def complain(message: str) -> None:
    """Print a message on stderr, safe for a terminal whatever a trace put into it."""
    from tracekit.present import printable

    lines = [printable(line) for line in message.splitlines()]
    typer.echo("tracekit: " + "\n".join(lines), err=True)


def _described(error: OSError) -> str:
    reason = error.strerror or str(error)
    return reason if error.filename is None else f"{error.filename}: {reason}"


def _forget_stdout() -> None:
    """Let what is still to be written go nowhere, or Python complains about it when it exits."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
