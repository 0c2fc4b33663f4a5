"""Reads the words of a command that need no checking, and leaves the others to typer.

typer reads every value with pydantic, which takes a tenth of a second to load: as long as a small
answer takes.
"""

from __future__ import annotations

import enum
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_origin

from typer.core import TyperCommand, TyperGroup

if TYPE_CHECKING:
    _Parsing = TyperCommand
else:
    _Parsing = object


class _TakesPlainWords(_Parsing):
    """Takes what it is given as it is, where a look tells that it is what is wanted."""

    def get_params(self, ctx: Any) -> list[Any]:
        parameters = super().get_params(ctx)
        for each in parameters:
            kind = getattr(getattr(each, "type_descriptor", None), "annotation", None)
            # Other releases of typer have no such thing, and no need of it.
            if kind is not None and "process_value" not in vars(each):
                each.process_value = functools.partial(_read, each, kind, each.process_value)  # type: ignore[method-assign]
        return parameters


class Command(_TakesPlainWords, TyperCommand):
    """A command of the command line."""


class Group(_TakesPlainWords, TyperGroup):
    """A group of commands."""


def _read(parameter: Any, kind: Any, checked: Callable[..., Any], ctx: Any, value: Any) -> Any:
    """Return the value of a parameter, read by `checked` if a look does not tell what it is."""
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
    """Tell whether something is a word that `kind`, called with it, makes a value of."""
    if not isinstance(word, str):
        return False
    if kind is Path:
        # None of a name that is too long, where `Path.exists` raises an error.
        return os.access(word, os.R_OK) or not os.path.exists(word)  # noqa: PTH110
    if isinstance(kind, type) and issubclass(kind, enum.StrEnum):
        return word in list(kind)
    return kind is str
