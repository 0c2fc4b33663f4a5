"""Fragments of HTML pages. All values are escaped: names from a trace are never markup."""

from __future__ import annotations

from functools import cache
from typing import Any

from jinja2 import Environment, Template
from markupsafe import Markup, escape

from tracekit.support.wording import printable


@cache
def environment() -> Environment:
    """Return the template environment, which escapes text and shows unprintable characters."""
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
    """Return a text whose parts in backticks are set as code (commands, options)."""
    parts = printable(text).split("`")
    if len(parts) % 2 == 0:  # one has no partner
        return escape(printable(text))
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if place % 2 else escape(part)
        for place, part in enumerate(parts)
    )


def fragment(name: str, *values: Any) -> Markup:
    """Return a fragment of the page, made by a macro.

    `name` is the macro's name in ``assets/blocks.jinja``; `values` are its arguments.
    """
    made: Markup = getattr(_blocks().module, name)(*values)
    return made


@cache
def _blocks() -> Template:
    return environment().get_template("blocks.jinja")


def joined(*fragments: Markup | None) -> Markup:
    """Return fragments of the page one below the other, without those that are None."""
    return Markup("\n").join(piece for piece in fragments if piece is not None)
