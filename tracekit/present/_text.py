"""Text from a trace: made safe to print, and cut or padded to a width."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

# Terminal controls (C0, DEL, C1), characters that reorder or hide their neighbours, line breaks
# outside ASCII, and lone surrogates, which no encoding can write.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)

_CUT_PARAMETERS = "(…)"


def printable(text: str) -> str:
    """Replace each control character by its picture, or by `�` if it has none."""
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


def widths(texts: Sequence[str]) -> Iterator[int]:
    """Return the number of terminal cells of each text."""
    return map(len if "".join(texts).isascii() else cells, texts)


def shorten(text: str, width: int) -> str:
    """Cut `text` to at most `width` cells.

    What distinguishes names least is cut first: the return type and the parameters of a C++
    signature, then the middle.
    """
    if cells(text) <= width:
        return text
    text = _without_parameters(text.removeprefix("void "))
    if cells(text) <= width - len(_CUT_PARAMETERS):
        return text + _CUT_PARAMETERS
    tail = _ending(text, (width - 1) // 3)
    return f"{_beginning(text, width - 1 - cells(tail))}…{tail}"


def shorten_apart(texts: Sequence[str], width: int) -> list[str]:
    """Cut texts to `width` cells so that different texts stay different, if there is room.

    Texts that `shorten` would make equal lose their common beginning instead; if they still are
    equal, they are numbered.
    """
    if max(widths(texts), default=0) <= width:
        return list(texts)
    short = {text: shorten(text, width) for text in dict.fromkeys(texts)}
    for alike in _alike(short):
        shared = _shared(min(alike), max(alike))
        short |= {text: _from(text, shared, width) for text in alike}
    for alike in _alike(short):
        for mark, text in ((f"~{n}", text) for n, text in enumerate(alike, 1)):
            short[text] = _beginning(short[text], max(0, width - cells(mark))) + mark
    return [short[text] for text in texts]


def _alike(short: Mapping[str, str]) -> list[list[str]]:
    """Group texts whose short forms are equal."""
    groups: dict[str, list[str]] = {}
    for text, form in short.items():
        groups.setdefault(form, []).append(text)
    return [group for group in groups.values() if len(group) > 1]


def _shared(one: str, other: str) -> int:
    """Return the length of the common beginning of two texts."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def _from(text: str, place: int, width: int) -> str:
    """Return the first third of a cut text, followed by the text from position `place`."""
    head = _beginning(text, width // 3)
    start = max(len(head), place)
    rest = text[start:]
    room = width - cells(head) - 1
    if cells(rest) <= room:
        return f"{head}…{_ending(text, room)}"
    return f"{head}…{_beginning(rest, room - 1)}…" if room > 1 else shorten(text, width)


def _without_parameters(text: str) -> str:
    """Remove the last parentheses and their content if `text` ends with them."""
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
    """Fill `text` with spaces to `width` cells, on its left side if right-aligned."""
    fill = " " * (width - cells(text))
    return fill + text if right else text + fill


def pad_each(texts: Sequence[str], width: int, *, right: bool) -> list[str]:
    """Fill each text as `pad` does."""
    if not "".join(texts).isascii():
        return [pad(text, width, right=right) for text in texts]
    return [text.rjust(width) if right else text.ljust(width) for text in texts]


def wrap(text: str, width: int) -> list[str]:
    """Break `text` at spaces into lines of at most `width` characters; keep its line breaks."""
    import textwrap

    return [
        line
        for paragraph in text.split("\n")
        for line in textwrap.wrap(paragraph, width, break_on_hyphens=False) or [""]
    ]
