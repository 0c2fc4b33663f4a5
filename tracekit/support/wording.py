"""Texts for sentences and tables: names from a trace made safe to print and cut, and numbers.

Times are in ns and sizes in bytes; each is written in a unit that suits it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

# Terminal controls (C0, DEL, C1), characters that reorder or hide their neighbours, line breaks
# outside ASCII, and lone surrogates, which no encoding can write.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)

F = TypeVar("F", bound=Callable[..., Any])
_CUT_PARAMETERS = "(…)"
_BOUND = "\0"
"""Stands for a space at which lines are not broken."""

_MOST_DECIMALS = 9
NULL = "-"
"""Text for an unknown value."""

SCALES = ((10**10, 10**9, "s"), (10**6, 10**6, "ms"), (10**3, 10**3, "us"), (0, 1, "ns"))
_BINARY_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
Number = int | float


FLOP_UNITS = ((10**12, "TFLOP"), (10**9, "GFLOP"), (10**6, "MFLOP"), (1, "FLOP"))
BYTE_UNITS = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"), (1, "B"))
"""Units of sizes, the largest first."""

TIME_UNITS = ((10**9, "s"), (10**6, "ms"), (10**3, "us"), (1, "ns"))
"""Units of times in ns, the largest first."""


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
    from rich.cells import cell_len  # noqa: PLC0415 - most texts need no width

    return cell_len(text)


def widths(texts: Sequence[str]) -> Iterator[int]:
    """Return the number of terminal cells that each text takes."""
    return map(len if "".join(texts).isascii() else cells, texts)


def shorten(text: str, width: int) -> str:
    """Cut `text` (such as a kernel name) to at most `width` terminal cells.

    The least distinctive parts are cut first: the return type and the parameters of a C++
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
    """Cut texts to `width` terminal cells, so that different texts stay different if there is room.

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
    """Group the texts (keys of `short`) whose shortened forms are equal."""
    groups: dict[str, list[str]] = {}
    for text, form in short.items():
        groups.setdefault(form, []).append(text)
    return [group for group in groups.values() if len(group) > 1]


def _shared(one: str, other: str) -> int:
    """Return the length of the common beginning of two texts."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def _from(text: str, place: int, width: int) -> str:
    """Shorten a text to `width` cells: beginning, ellipsis, and the text from index `place` on."""
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
    """Fill `text` with spaces to `width` terminal cells, on the left if `right`."""
    fill = " " * (width - cells(text))
    return fill + text if right else text + fill


def pad_each(texts: Sequence[str], width: int, *, right: bool) -> list[str]:
    """Fill each text to `width` terminal cells with spaces, on the left if `right`."""
    if not "".join(texts).isascii():
        return [pad(text, width, right=right) for text in texts]
    return [text.rjust(width) if right else text.ljust(width) for text in texts]


def wrap(text: str, width: int) -> list[str]:
    """Break `text` at spaces into lines of at most `width` characters; keep its line breaks.

    Text in backquotes, such as a command, is not broken if it fits on a line.
    """
    import textwrap  # noqa: PLC0415 - few texts are wrapped

    whole = re.compile(rf"`[^`\n]{{0,{max(width - 5, 0)}}}`")
    bound = whole.sub(lambda found: found[0].replace(" ", _BOUND), text)
    return [
        line.replace(_BOUND, " ")
        for paragraph in bound.split("\n")
        for line in textwrap.wrap(paragraph, width, break_on_hyphens=False) or [""]
    ]


def duration(value: Number) -> str:
    """Return a time in ns as text, in a unit that suits it."""
    divisor, unit = next((d, u) for _, d, u in SCALES if abs(value) >= d or d == 1)
    return f"{scaled([value], divisor, decimals(value, divisor))[0]} {unit}"


def percent(fraction: float) -> str:
    """Return a fraction as percent; just below 1 it reads ``>99.9 %``, not ``100.0 %``."""
    if 0.9995 <= fraction < 1:  # noqa: PLR2004 - would round to 100.0
        return ">99.9 %"
    return f"{scaled([fraction], 0.01, 1)[0]} %"


def scaled(
    values: Sequence[Number | None], divisor: float, decimals: int, *, in_full: bool = False
) -> list[str]:
    """Return values, divided by `divisor`, as texts with a number of decimals.

    A nonzero value that rounds to zero is written as a bound: ``<0.01`` for 2 decimals. With
    `in_full` it gets as many decimals as its first digit needs.
    """
    return [
        NULL
        if value is None
        else _decimal(value / divisor, _enough(value / divisor, decimals) if in_full else decimals)
        for value in values
    ]


def _enough(value: float, decimals: int) -> int:
    if not value or abs(value) >= 0.5 * 10.0**-decimals:
        return decimals
    return min(_MOST_DECIMALS, -math.floor(math.log10(abs(value))))


def _decimal(value: float, decimals: int) -> str:
    smallest = 10.0**-decimals
    if 0 < abs(value) < smallest / 2:
        return f"<{smallest:.{decimals}f}" if value > 0 else f">-{smallest:.{decimals}f}"
    return f"{value + 0.0:,.{decimals}f}"


def message_size(size: Number | None) -> str:
    """Return a size in bytes as text, unrounded: in the largest binary unit that divides it."""
    if size is None:
        return NULL
    for unit, name in _BINARY_UNITS:
        if size and size % unit == 0:
            return f"{size // unit:,} {name}"
    return f"{size:,} B"


def decimals(largest: Number, divisor: int) -> int:
    """Return the number of decimals that shows `largest / divisor` with about five digits."""
    if divisor == 1:
        return 0
    shown = abs(largest) / divisor
    return 3 if shown < 100 else 2 if shown < 1000 else 1  # noqa: PLR2004


def text_of(value: object) -> str:
    """Return a value (other than numbers of a column) as text that is safe to print."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return "; ".join(text_of(item) for item in value) or NULL
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="seconds").replace("+00:00", "Z")
    return printable(str(value))


def unit_of(largest: float, units: Sequence[tuple[int, str]]) -> tuple[int, str]:
    """Return divisor and name of the unit that suits the largest value.

    Parameters
    ----------
    largest
        The largest number, in the base unit.
    units
        `BYTE_UNITS` or `TIME_UNITS`.
    """
    return next((unit for unit in units if largest >= unit[0]), units[-1])


def size_text(size: float | None) -> str:
    """Return a number of bytes as text; `an unknown number` without one."""
    if size is None:
        return "an unknown number"
    divisor, unit = unit_of(size, BYTE_UNITS)
    return f"{size / divisor:,.4g} {unit}"


def count(number: int, noun: str) -> str:
    """Return a number with its noun, such as `1 device` or `59 calls of MPI`."""
    head, link, rest = re.split("( (?:of|between) |$)", noun, maxsplit=1)
    plural = f"{head}es" if head.endswith(("s", "ch")) else f"{head}s"
    plural = f"{head[:-1]}ies" if head.endswith(("cy", "py", "ry")) else plural
    return f"{number:,} {head if number == 1 else plural}{link}{rest}"


def time_text(value: float | None) -> str:
    """Return a time in ns as text; `unknown` without one."""
    return "unknown" if value is None else duration(value)


def part_text(number: int, of: int) -> str:
    """Return `number` as text, or ``all`` if it equals the total `of`."""
    return "all" if number == of else f"{number:,}"


def skipped_text(skip: int | None) -> str:
    """Return `` after N skipped``, to append to a number of steps; empty if none was skipped."""
    return f" after {skip:,} skipped" if skip else ""


def shares_text(shares: Mapping[str, float]) -> str:
    """Return shares by name as text, the largest first; `nothing` without any."""
    found = [(source, share) for source, share in shares.items() if share]
    found.sort(key=lambda item: -item[1])
    return ", ".join(f"{text_of(source)} {percent(share)}" for source, share in found) or "nothing"


# -- what questions declare of the words about their answers


FIRST_LINES: dict[str, Callable[[Any, Mapping[str, Any]], str | None]] = {}
"""Functions of rows and meta that return the line above the table, or None: command -> function."""
NOTES: dict[str, Callable[[Any], list[str]]] = {}
"""Functions that word a value of meta below the table: key -> function."""
SUMMARIES: list[tuple[frozenset[str], frozenset[str], Callable[[Any], list[str]]]] = []
"""Keys of meta, optional keys, and the function that words them together where all are there."""


def first_line(command: str) -> Callable[[F], F]:
    """Return a decorator for a function of rows and meta: the line above a command's table."""
    return partial(_declare, FIRST_LINES, (command,))


def note(*keys: str) -> Callable[[F], F]:
    """Return a decorator for a function of values in meta that returns notes below the table.

    Meta is the facts about an answer's table, by name. The function is called with the value of
    each of `keys` in it.
    """
    return partial(_declare, NOTES, keys)


def _declare(among: dict[str, Any], keys: Iterable[str], function: F) -> F:
    among.update(dict.fromkeys(keys, function))
    return function


def unsaid(_: object) -> list[str]:
    """Return no notes, for a value of meta that the first line, rows or warnings already show."""
    return []


def summary(*keys: str, optional: Iterable[str] = ()) -> Callable[[F], F]:
    """Return a decorator for a function of meta that returns notes below the table.

    Meta is the facts about an answer's table, by name. The function is called if meta has all of
    `keys`; it may use those of `optional` too.
    """

    def declare(function: F) -> F:
        SUMMARIES.append((frozenset(keys), frozenset(optional), function))
        return function

    return declare
