"""Pieces of the page. All that is put into one is escaped: names of a trace are never markup."""

from __future__ import annotations

from functools import cache
from typing import Any

from jinja2 import Environment, Template
from markupsafe import Markup, escape

from tracekit.present._text import printable


@cache
def environment() -> Environment:
    """Return the template environment: it escapes text, and shows unprintable characters."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("tracekit.present.pages", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_safe,
    )
    made.filters["with_code"] = with_code
    return made


def _safe(value: Any) -> Any:
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def with_code(text: str) -> Markup:
    """Return a text in which what stands between backticks is a command or an option."""
    parts = printable(text).split("`")
    if len(parts) % 2 == 0:  # one has no partner
        return escape(printable(text))
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if place % 2 else escape(part)
        for place, part in enumerate(parts)
    )


def fragment(name: str, *values: Any) -> Markup:
    """Return a piece of the page.

    Parameters
    ----------
    name
        The macro of ``assets/blocks.jinja`` that makes it.
    values
        What it is made of.
    """
    made: Markup = getattr(_blocks().module, name)(*values)
    return made


@cache
def _blocks() -> Template:
    return environment().get_template("blocks.jinja")


def joined(*pieces: Markup | None) -> Markup:
    """Return pieces of the page one below the other; those that are None are left out."""
    return Markup("\n").join(piece for piece in pieces if piece is not None)
