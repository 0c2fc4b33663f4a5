"""Compiled loops over the JSON text of events: find their values, and parse numbers."""

# ruff: noqa: C901, PLR0912, PLR1714, PLR2004, SIM109 - compiled loops over a grammar

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tracekit.support.inner import inner

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]

NONE = -(1 << 63)
"""Value of an absent number."""
EVENT, ARGUMENT, CATEGORY = 0, 1, 2
"""Place of a word: a key of an event, a key of its arguments, or a category."""
TEXT, NUMBER, TIME, ARGUMENTS, DROPPED, BARE = 0, 1, 2, 3, 4, 5
"""Use of a key's value, or of a category's events."""
WHOLE, ODD = 1, 2
"""State of an event: read, or left to another parser."""
_SEED = 8
_MOST_ASCII = 128
_SAMPLED, _MOST_PROBES = 32, 16
_LAST = 62
_MOST_MICROSECONDS = ((1 << 61) - 1) // 1000 - 1
_VALUE, _FIRST_VALUE, _KEY, _FIRST_KEY, _NEXT = 0, 1, 2, 3, 4
_QUOTE, _BACKSLASH, _BLANK, _COMMA, _COLON, _MINUS, _DOT, _ZERO, _NINE = b'"\\ ,:-.09'
_OPEN, _CLOSE, _OPEN_LIST, _CLOSE_LIST, _NEWLINE, _TAB, _RETURN = b"{}[]\n\t\r"
_LETTER_M, _LETTER_N, _LETTER_X = b"MnX"


class Words(NamedTuple):
    """The known words: keys of events, keys of their arguments, and categories."""

    table: Ints
    """Hash table of the words' indices, -1 in free slots."""
    texts: Bytes
    """All words, each behind a code: key of an event, key of its arguments, or category."""
    places: Ints
    """Start of each word in `texts`."""
    roles: Ints
    """How a key's value, or a category's events, are used."""
    slots: Ints
    """Column of a key's value among the values of the same type."""


class Values(NamedTuple):
    """The wanted values of events, one row per event."""

    begins: NDArray[np.int32]
    """Start of each text."""
    sizes: NDArray[np.int32]
    """Length of each text: -1 if absent; for a list of n bytes -n - 2."""
    numbers: Ints
    """Integers, and times in ns; `NONE` if absent."""


@inner
def hashed(text: Any, begin: int, end: int, where: int) -> int:
    """Return the hash slot, 0 to 511, of the word ``text[begin:end]``; `where` is hashed, too.

    `where` is a code: key of an event, key of its arguments, or category.
    """
    value = where + _SEED
    for at in range(begin, end):
        value = (value * 31 + int(text[at])) & 0xFFFFFFF
    place: int = (value ^ (value >> 9)) & 511
    return place


@inner
def word(text: Any, begin: int, end: int, where: int, words: Words) -> int:
    """Return the index of the known word that equals ``text[begin:end]``; -1 if none does.

    `where` is a code: key of an event, key of its arguments, or category.
    """
    at = hashed(text, begin, end, where)
    while words.table[at] >= 0:
        number = int(words.table[at])
        first = words.places[number]
        if words.places[number + 1] - first == end - begin + 1 and words.texts[first] == where:
            same = True
            for offset in range(end - begin):
                if words.texts[first + 1 + offset] != text[begin + offset]:
                    same = False
                    break
            if same:
                return number
        at = (at + 1) & 511
    return -1


@inner
def string_end(text: Any, at: int, size: int) -> tuple[int, bool, bool]:
    """Return the offset of the quote that closes the string at `at` (-1: invalid).

    Also returned: whether the string has escapes, and whether it is ASCII.
    """
    escapes, is_ascii = False, True
    while at < size:
        char = text[at]
        if char == _QUOTE:
            return at, escapes, is_ascii
        if char < _BLANK:
            return -1, escapes, is_ascii
        is_ascii = is_ascii and char < _MOST_ASCII
        if char == _BACKSLASH:
            at += 1
            # Of \uXXXX the parser is another one.
            if at == size or text[at] not in (34, 47, 92, 98, 102, 110, 114, 116):
                return -1, escapes, is_ascii
            escapes = True
        at += 1
    return -1, escapes, is_ascii


@inner
def number_end(text: Any, at: int, size: int) -> tuple[int, bool]:
    """Return the offset after the number at `at` (-1: invalid), and whether it is an integer."""
    begin = at
    if text[at] == _MINUS:
        at += 1
    first = at
    while at < size and _ZERO <= text[at] <= _NINE:
        at += 1
    digits = at - first
    if digits == 0 or digits > 18 or (text[first] == _ZERO and digits > 1):
        return -1, False
    if at < size and text[at] == _DOT:
        point = at
        at += 1
        while at < size and _ZERO <= text[at] <= _NINE:
            at += 1
        if at == point + 1 or at - point > 30:
            return -1, False
        return at, False
    return at, not (text[begin] == _MINUS and text[first] == _ZERO)


@inner
def whole(text: Any, begin: int, end: int) -> int:
    """Parse ``text[begin:end]`` as an integer; `NONE` if it is none or has over 18 characters."""
    at, value = begin, 0
    negative = at < end and text[at] == _MINUS
    if negative:
        at += 1
    if at == end or end - at > 18:
        return NONE
    while at < end:
        if not _ZERO <= text[at] <= _NINE:
            return NONE
        value = value * 10 + (int(text[at]) - _ZERO)
        at += 1
    return -value if negative else value


@inner
def time_of(text: Any, begin: int, end: int) -> int:
    """Convert decimal microseconds in ``text[begin:end]`` to ns; `NONE` in any other notation."""
    at, value, digits = begin, 0, 0
    negative = at < end and text[at] == _MINUS
    if negative:
        at += 1
    while at < end and _ZERO <= text[at] <= _NINE:
        value = value * 10 + (int(text[at]) - _ZERO)
        digits += 1
        if digits > 16:
            return NONE
        at += 1
    if digits == 0 or value > _MOST_MICROSECONDS:
        return NONE
    part, places = 0, 0
    if at < end:
        if text[at] != _DOT:
            return NONE
        at += 1
        while at < end:
            if not _ZERO <= text[at] <= _NINE:
                return NONE
            if places == 3 and digits == 16:  # which is rounded in another way
                return NONE
            if places < 4:
                part = part * 10 + (int(text[at]) - _ZERO)
                places += 1
            at += 1
    while places < 4:
        part *= 10
        places += 1
    value = value * 1000 + (part + 5) // 10
    return -value if negative else value


@inner
def literal_end(text: Any, at: int, size: int) -> int:
    """Return the offset after the ``true``, ``false`` or ``null`` at `at`; -1 for anything else."""
    if at + 4 <= size:
        if text[at] == 116 and text[at + 1] == 114 and text[at + 2] == 117 and text[at + 3] == 101:
            return at + 4
        if text[at] == 110 and text[at + 1] == 117 and text[at + 2] == 108 and text[at + 3] == 108:
            return at + 4
    if (
        at + 5 <= size and text[at] == 102 and text[at + 1] == 97
        and text[at + 2] == 108 and text[at + 3] == 115 and text[at + 4] == 101
    ):  # fmt: skip
        return at + 5
    return -1


@inner
def blank_end(text: Any, at: int, size: int) -> int:
    """Return the offset of the first character from `at` that is no blank."""
    while at < size and text[at] == _BLANK:
        at += 1
    return at


@inner
def scalar_end(text: Any, at: int, size: int, role: int) -> tuple[int, bool]:
    """Return the offset after the string, number or literal at `at` (-1: invalid).

    Also returned: whether it is a string with escapes or beyond ASCII. In a list with the role
    `TEXT`, only strings and integers are valid.
    """
    char = text[at]
    if char == _QUOTE:
        end, escapes, is_ascii = string_end(text, at + 1, size)
        return (end + 1 if end >= 0 else -1), escapes or not is_ascii
    if char == _MINUS or _ZERO <= char <= _NINE:
        end, is_whole = number_end(text, at, size)
        return (end if is_whole or role != TEXT else -1), False
    return (-1 if role == TEXT else literal_end(text, at, size)), False


@inner
def key_end(text: Any, at: int, size: int) -> tuple[int, int, bool]:
    """Return the offsets of the quote that closes the key at `at`, and of its value (-1: invalid).

    Also returned: whether the key has escapes.
    """
    if at >= size or text[at] != _QUOTE:
        return -1, -1, False
    quote, escapes, _ = string_end(text, at + 1, size)
    at = blank_end(text, quote + 1, size)
    if quote < 0 or at == size or text[at] != _COLON:
        return -1, -1, False
    at = blank_end(text, at + 1, size)
    return quote, (at if at < size else -1), escapes


@inner
def container_end(text: Any, at: int, size: int, role: int) -> tuple[int, bool]:
    """Return the offset after the list or object at `at` (-1: invalid), as `scalar_end` does.

    A list with the role `TEXT` has no objects in it.
    """
    depth, lists, state, escapes = 0, 0, _VALUE, False
    while at < size:
        char = text[at]
        if char == _BLANK:
            at += 1
        elif state == _KEY or (state == _FIRST_KEY and char != _CLOSE):
            _, at, _ = key_end(text, at, size)
            if at < 0:
                break
            state = _VALUE
        elif state == _NEXT and char == _COMMA:
            state = _VALUE if (lists >> depth) & 1 else _KEY
            at += 1
        elif (
            state == _NEXT or state == _FIRST_KEY or (state == _FIRST_VALUE and char == _CLOSE_LIST)
        ):
            if char != (_CLOSE_LIST if (lists >> depth) & 1 else _CLOSE):
                break
            depth -= 1
            at += 1
            state = _NEXT
            if depth == 0:
                return at, escapes
        elif char == _OPEN or char == _OPEN_LIST:
            if depth >= _LAST or (role == TEXT and char == _OPEN):
                break
            depth += 1
            is_list = char == _OPEN_LIST
            lists = lists | (1 << depth) if is_list else lists & ~(1 << depth)
            state = _FIRST_VALUE if is_list else _FIRST_KEY
            at += 1
        else:
            at, is_unusual = scalar_end(text, at, size, role)
            if at < 0:
                break
            escapes = escapes or is_unusual
            state = _NEXT
    return -1, False


@inner
def read_text(text: Any, at: int, row: int, slot: int, values: Values) -> tuple[int, bool]:
    """Store where the text at `at` is: a string, an integer, a list, or nothing for null.

    Returns the offset after it (-1: left to another parser), and whether it has escapes.
    """
    char = text[at]
    if char == _OPEN_LIST:
        end, escapes = container_end(text, at, text.size, TEXT)
        values.begins[row, slot], values.sizes[row, slot] = at, -(end - at) - 2
    elif char == _QUOTE:
        quote, escapes, _ = string_end(text, at + 1, text.size)
        end = quote + 1 if quote >= 0 else -1
        values.begins[row, slot], values.sizes[row, slot] = at + 1, quote - at - 1
    elif char == _LETTER_N:
        return literal_end(text, at, text.size), False
    else:
        end, escapes = scalar_end(text, at, text.size, TEXT)
        values.begins[row, slot], values.sizes[row, slot] = at, end - at
    return end, escapes


@inner
def read_number(text: Any, at: int, role: int) -> tuple[int, int]:
    """Return the offset after the number at `at` (-1: left to another parser), and its value.

    A number may be in quotes. With the role `TIME`, microseconds become ns. For null it is `NONE`.
    """
    char, size = text[at], text.size
    if char == _LETTER_N:
        return literal_end(text, at, size), NONE
    begin = at + 1 if char == _QUOTE else at
    if char == _QUOTE:
        end, _, _ = string_end(text, begin, size)
    elif role == TIME:
        end = begin
        while end < size and text[end] not in (_BLANK, _COMMA, _CLOSE, _NEWLINE):
            end += 1
    else:
        end, is_whole = number_end(text, begin, size)
        end = end if is_whole else -1
    if end < 0:
        return -1, NONE
    value = time_of(text, begin, end) if role == TIME else whole(text, begin, end)
    after = end + 1 if char == _QUOTE else end
    return (after if value != NONE else -1), value


@inner
def read_event(text: Any, at: int, row: int, words: Words, values: Values) -> tuple[int, bool]:
    """Store the wanted values of the event at `at`, and of its arguments.

    Returns the offset after the event (-1: left to another parser), and whether its texts have
    escapes.
    """
    size, where, seen, escapes, is_first = text.size, EVENT, 0, False, True
    if text[at] != _OPEN:
        return -1, False
    at = blank_end(text, at + 1, size)
    while 0 <= at < size:
        if text[at] == _CLOSE:
            if where == EVENT:
                return at + 1, escapes
            where, is_first, at = EVENT, False, blank_end(text, at + 1, size)
            continue
        if not is_first:
            if text[at] != _COMMA:
                break
            at = blank_end(text, at + 1, size)
        quote, value_at, has_escapes = key_end(text, at, size)
        if value_at < 0 or has_escapes:  # which may be a key that means something
            break
        number = word(text, at + 1, quote, where, words)
        if number >= 0 and (seen >> number) & 1:
            break
        seen |= 1 << number if number >= 0 else 0
        role = int(words.roles[number]) if number >= 0 else BARE
        at, is_first, char = value_at, False, text[value_at]
        if role == ARGUMENTS:
            if char != _OPEN:
                break
            where, is_first, at = ARGUMENT, True, at + 1
        elif role == TEXT:
            at, has_escapes = read_text(text, at, row, words.slots[number], values)
            escapes = escapes or has_escapes
        elif role == NUMBER or role == TIME:
            at, value = read_number(text, at, role)
            values.numbers[row, words.slots[number]] = value
        elif char == _OPEN or char == _OPEN_LIST:
            at, _ = container_end(text, at, size, role)
        else:
            at, _ = scalar_end(text, at, size, role)
        if at >= 0:
            at = blank_end(text, at, size)
    return -1, False


@inner
def use_of(text: Any, row: int, words: Words, values: Values) -> int:
    """Return the use of an event, by its ``ph`` and ``cat``: `DROPPED`, `BARE`, or `TEXT`."""
    if values.sizes[row, 0] != 1:
        return DROPPED
    phase = text[values.begins[row, 0]]
    if phase != _LETTER_X and phase != _LETTER_M:
        return DROPPED
    begin, size = values.begins[row, 1], values.sizes[row, 1]
    category = word(text, begin, begin + size, CATEGORY, words) if size >= 0 else -1
    return int(words.roles[category]) if category >= 0 else TEXT


@inner
def copy_string(text: Any, at: int, begin: int, lines: Any) -> int:
    """Copy a string from `at` to its closing quote, whose offset is returned (-1: none).

    ``text[begin]`` goes to ``lines[0]``. Line breaks and tabs become blanks.
    """
    size = text.size
    while at < size:
        char = text[at]
        lines[at - begin] = char
        if char == _QUOTE:
            return at
        if char == _BACKSLASH:
            at += 1
            if at == size:
                break
            char = text[at]
            lines[at - begin] = char
        if char < _BLANK and char in (_TAB, _NEWLINE, _RETURN):
            lines[at - begin] = _BLANK
        at += 1
    return -1


def split(text: Bytes, begin: int, most: int, lines: Bytes, found: Ints) -> int:
    """Copy complete events of a JSON array to one line each; return their number.

    Parameters
    ----------
    text, begin
        The text, and where to begin: between two events, or before the first.
    most
        Largest number of events to copy.
    lines
        Output: the lines, as many bytes as in the text, with blanks between events.
    found
        Output: end of the last complete event; offset of the bracket that closes the array (-1 if
        not found); 1 if there is anything else between events.
    """
    found[0], found[1], found[2] = begin, -1, 0
    size, at, depth, commas, count = text.size, begin, 0, 0, 0
    strange = False
    while at < size:
        char = text[at]
        lines[at - begin] = char
        if depth and (char == _BLANK or _COMMA <= char <= _COLON):  # most of what is no string
            at += 1
            continue
        if char == _QUOTE:
            strange = strange or depth == 0
            at = copy_string(text, at + 1, begin, lines)
            if at < 0:
                return count
        elif char in (_TAB, _NEWLINE, _RETURN):
            lines[at - begin] = _BLANK
        elif char == _OPEN or char == _OPEN_LIST:
            if depth == 0:
                strange = strange or commas > 1 or (commas == 0 and count > 0)
            depth += 1
        elif char == _CLOSE or char == _CLOSE_LIST:
            if depth == 0:
                found[1] = at
                return count
            depth -= 1
            if depth == 0:
                if strange:
                    found[2] = 1
                    return count
                if count:
                    lines[found[0] - begin] = _NEWLINE
                found[0] = at + 1
                count += 1
                commas = 0
                if count == most:
                    return count
        elif char == _BACKSLASH:
            strange = True
        elif depth == 0:
            if char == _COMMA:
                commas += 1
                lines[at - begin] = _BLANK
            elif char != _BLANK:
                strange = True
        at += 1
    return count


def scan(text: Bytes, words: Words, values: Values, spans: Ints, kinds: NDArray[np.uint8]) -> int:
    """Extract the wanted values of events, given one event per line; return how many are kept.

    Parameters
    ----------
    text
        The events.
    words
        The known words.
    values
        Output: the values.
    spans
        Output: start and end of each event's line.
    kinds
        Output: `WHOLE` or `ODD` (left to another parser), by row.
    """
    size, at, row = text.size, 0, 0
    while at < size:
        if text[at] == _BLANK or text[at] == _NEWLINE:
            at += 1
            continue
        begin = at
        values.sizes[row, :] = -1
        values.numbers[row, :] = NONE
        end, escapes = read_event(text, begin, row, words, values)
        at = blank_end(text, max(end, begin), size)
        is_read = end >= 0 and (at == size or text[at] == _NEWLINE)
        if is_read:
            use = use_of(text, row, words, values)
            if use == DROPPED:
                continue
            if use == BARE:
                values.sizes[row, 2:] = -1
                values.numbers[row, :] = NONE
            elif escapes:
                is_read = False
        else:
            while at < size and text[at] != _NEWLINE:
                at += 1
        spans[row, 0] = begin
        spans[row, 1] = at
        kinds[row] = WHOLE if is_read else ODD
        row += 1
    return row


def distinct(
    text: Bytes,
    begins: NDArray[np.int32],
    sizes: NDArray[np.int32],
    rows: int,
    table: NDArray[np.int32],
    found: NDArray[np.int32],
    codes: NDArray[np.uint32],
) -> int:
    """Give each distinct text of the scanned events an id, from 1; return how many there are.

    A text may get several ids if its part of the hash table is full.

    Parameters
    ----------
    text, begins, sizes
        As for `scan`: starts and sizes of texts of `rows` rows.
    table
        Hash table, its size any power of two, initially 0.
    found
        Output: start and size of each text.
    codes
        Output: the id of each text, by column and row; 0 if absent.
    """
    mask, count = table.size - 1, 0
    for row in range(rows):
        for slot in range(begins.shape[1]):
            size, begin = sizes[row, slot], begins[row, slot]
            if size == -1:
                codes[slot, row] = 0
                continue
            length = size if size >= 0 else -size - 2
            value_text = text[begin : begin + length]
            value = int(size)
            for at in range(0, length, 1 + length // _SAMPLED):
                value = (value * 31 + int(value_text[at])) & 0xFFFFFFFFFFF
            place = (value ^ (value >> 15)) & mask
            number = 0
            for _ in range(_MOST_PROBES):
                number = int(table[place])
                if number == 0:
                    table[place] = count + 1
                    break
                if found[number - 1, 1] == size:
                    first = found[number - 1, 0]
                    other = text[first : first + length]
                    differ = 0
                    for at in range(length):
                        differ |= value_text[at] ^ other[at]
                    if differ == 0:
                        break
                number = 0
                place = (place + 1) & mask
            if number == 0:
                found[count, 0], found[count, 1] = begin, size
                count += 1
                number = count
            codes[slot, row] = number
    return count
