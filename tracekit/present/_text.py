"""Text from a trace, made safe to show and to fit."""

from __future__ import annotations

import re

# Terminal controls (C0, DEL, C1), characters that reorder or hide their neighbours, line breaks
# outside ASCII, and lone surrogates, which no encoding can write.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)

_CUT_PARAMETERS = "(…)"


def printable(text: str) -> str:
    """Replace every control character by a picture of it, or by `�` where there is none."""
    return _UNSAFE.sub(_picture, text)


def _picture(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:  # noqa: PLR2004 - the first printable character
        return chr(0x2400 + code)
    return "\u2421" if match[0] == "\x7f" else "\ufffd"


def cells(text: str) -> int:
    """Return the number of terminal cells that `text` takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def shorten(text: str, width: int) -> str:
    """Cut `text` so that it takes at most `width` cells.

    What tells names apart least goes first: the return type and the parameters of a C++ signature,
    then the middle.
    """
    if cells(text) <= width:
        return text
    text = _without_parameters(text.removeprefix("void "))
    if cells(text) <= width - len(_CUT_PARAMETERS):
        return text + _CUT_PARAMETERS
    tail = _ending(text, (width - 1) // 3)
    return f"{_beginning(text, width - 1 - cells(tail))}…{tail}"


def _without_parameters(text: str) -> str:
    """Leave out the last parentheses of `text`, with what is in them, if it ends with them."""
    depth = 0
    for index in range(len(text) - 1, 0, -1):
        depth += {")": 1, "(": -1}.get(text[index], 0)
        if depth == 0:
            return text[:index] if text.endswith(")") else text
    return text


def _beginning(text: str, width: int) -> str:
    end = min(len(text), width)
    while cells(text[:end]) > width:
        end -= 1
    return text[:end]


def _ending(text: str, width: int) -> str:
    start = max(0, len(text) - width)
    while cells(text[start:]) > width:
        start += 1
    return text[start:]


def pad(text: str, width: int, *, right: bool) -> str:
    """Fill `text` with spaces to `width` cells, on its left side where it is right-aligned."""
    fill = " " * (width - cells(text))
    return fill + text if right else text + fill


def wrap(text: str, width: int) -> list[str]:
    """Break `text` at spaces into lines of at most `width` characters; its own breaks stay."""
    import textwrap

    return [
        line
        for paragraph in text.split("\n")
        for line in textwrap.wrap(paragraph, width, break_on_hyphens=False) or [""]
    ]
