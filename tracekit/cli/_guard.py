"""Parses words of commands and handles errors: one message, an exit code, no traceback.

Plain words are parsed here, since typer parses every value with pydantic, which takes a tenth of a
second to import: as long as a small answer takes.
"""

from __future__ import annotations

import enum
import functools
import inspect
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup

import tracekit
from tracekit import present
from tracekit.cli._interrupted import INTERRUPTED, is_an_interrupt
from tracekit.errors import TracekitError

if TYPE_CHECKING:
    _Parsing = TyperCommand
else:
    _Parsing = object


class _TakesPlainWords(_Parsing):
    """Command or group that takes values as they are if they need no conversion."""

    def get_params(self, ctx: Any) -> list[Any]:
        parameters = super().get_params(ctx)
        for each in parameters:
            kind = getattr(getattr(each, "type_descriptor", None), "annotation", None)
            # Other releases of typer have no such thing, and no need of it.
            if kind is not None and "process_value" not in vars(each):
                each.process_value = functools.partial(_read, each, kind, each.process_value)  # type: ignore[method-assign]
        return parameters


class Command(_TakesPlainWords, TyperCommand):
    """A command; text and numbers that are valid as given skip the conversion by pydantic."""

    def __init__(self, name: str, *, help: str | None = None, **settings: Any) -> None:  # noqa: A002
        # typer keeps line breaks within all paragraphs but the first, whatever the terminal's width
        text = re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.cleandoc(help or ""))
        super().__init__(name, help=text, **settings)


class Group(_TakesPlainWords, TyperGroup):
    """A group of commands; text and numbers that are valid as given skip conversion by pydantic."""


def _read(parameter: Any, kind: Any, checked: Callable[..., Any], ctx: Any, value: Any) -> Any:
    """Return a parameter's value; `checked` (conversion by pydantic) is called only if needed."""
    found: Any
    several = bool(parameter.multiple or parameter.nargs != 1)
    one = get_args(kind)[0] if get_origin(kind) is list else kind
    if value is None and not parameter.required:
        found = () if several else None
    elif several and value and all(_is_plain(word, one) for word in value):
        found = [one(word) for word in value]
    elif not several and _is_plain(value, one):
        found = one(value)
    elif value is not None and value is parameter.default:
        found = value
    else:
        return checked(ctx, value)
    return parameter.callback(ctx, parameter, found) if parameter.callback else found


def _is_plain(word: object, kind: Any) -> bool:
    """Test whether calling `kind` (such as `str` or `Path`) on a word converts it correctly."""
    if not isinstance(word, str):
        return False
    if kind is Path:
        # None of a name that is too long, where `Path.exists` raises an error.
        return os.access(word, os.R_OK) or not os.path.exists(word)  # noqa: PTH110
    if isinstance(kind, type) and issubclass(kind, enum.StrEnum):
        return word in list(kind)
    return kind is str


_BROKEN_PIPE = 141  # 128 + SIGPIPE
_BAD_INPUT = 2
# What the parser raises and prints; releases of typer have it in other places.
_WRONG_USE: type[Exception] = next(
    each for each in typer.BadParameter.__mro__ if each.__name__ == "ClickException"
)
_FAULT = 70  # as sysexits.h calls it: an error in the program


class ForgivingGroup(Group):
    """Group that recognises the names of other programs' commands, and suggests tracekit's."""

    meant: Mapping[str, str] = {}
    """Commands of other programs: word -> the command here with this purpose."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command by the first word."""
        try:
            return super().resolve_command(ctx, args)
        except _WRONG_USE as error:
            if args and args[0] in self.meant:
                wanted = self.meant[args[0]]
                error.message = f"No such command {args[0]!r}. Did you mean {wanted!r}?"  # type: ignore[attr-defined]
            raise


class GuardedGroup(ForgivingGroup):
    """A group of commands that turns errors into a message and an exit code."""

    meant: Mapping[str, str] = {
        "add": "ingest", "import": "ingest", "load": "ingest",
        "diff": "compare", "stats": "breakdown", "summary": "breakdown", "query": "sql",
        "list": "runs list", "ls": "runs list", "rm": "runs remove", "remove": "runs remove",
        "profile": "record", "run": "record",
    }  # fmt: skip

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find a command by its name of one or two words."""
        two = " ".join(args[:2])
        if len(args) > 1 and two in self.commands:
            return two, self.commands[two], args[2:]
        return super().resolve_command(ctx, args)

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        """Parse the words (options) that precede the command; turn an interrupt into a message."""
        try:
            return super().make_context(*arguments, **options)
        except KeyboardInterrupt:  # which typer would end without a word
            raise _interrupted() from None

    def invoke(self, ctx: Any) -> Any:
        """Run the command, and turn an error into a message and an exit code."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except TracekitError as error:
            complain(str(error))
            raise typer.Exit(error.exit_code) from error
        except BrokenPipeError:
            _forget_stdout()
            raise typer.Exit(_BROKEN_PIPE) from None
        except OSError as error:
            complain(_described(error))
            raise typer.Exit(_BAD_INPUT) from error
        except (_WRONG_USE, typer.Exit, typer.Abort, SystemExit):
            raise
        except BaseException as error:  # a panic of polars is no Exception
            if is_an_interrupt(error):
                raise _interrupted() from None
            text, code = _unexpected(error)
            complain(text)
            raise typer.Exit(code) from error
        return result


def _interrupted() -> typer.Exit:
    complain("interrupted")
    return typer.Exit(INTERRUPTED)


def complain(message: str) -> None:
    """Print a message on stderr, with control characters from a trace made harmless."""
    lines = [present.printable(line) for line in message.splitlines()]
    typer.echo("tracekit: " + "\n".join(lines), err=True)


def _described(error: OSError) -> str:
    reason = error.strerror or str(error)
    return reason if error.filename is None else f"{error.filename}: {reason}"


_OF_A_PART = ("parquet: ", "unable to decode the encoded schema")
"""Begins of polars' messages about damaged Parquet files."""


def _unexpected(error: BaseException) -> tuple[str, int]:
    """Return message and exit code for an unexpected error."""
    if type(error).__module__.startswith("polars") and str(error).startswith(_OF_A_PART):
        # Its size and time are as they were, or its checksum would have been looked at.
        return f"a part of the store is damaged ({error}): `tracekit runs check` lists it", 2
    return _fault(error), _FAULT


def _fault(error: BaseException) -> str:
    """Return a message that blames tracekit, with the file that has details for a bug report."""
    text = "".join(traceback.format_exception(error))
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="tracekit-fault-", suffix=".txt", delete=False, encoding="utf-8"
        ) as file:
            file.write(f"tracekit {tracekit.__version__}, Python {sys.version}\n{text}")
        where = f"details are in {file.name}: please report it with them"
    except OSError:
        where = f"please report it with this:\n{text}"
    return f"this is a fault of tracekit ({type(error).__name__}: {error}); {where}"


def _forget_stdout() -> None:
    """Redirect remaining output to nowhere, so that Python does not complain at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
