"""Compiled loops over the JSON text of events: find their values, and parse numbers."""

# ruff: noqa: C901, PLR0912, PLR0915, PLR1714, PLR2004, SIM109 - compiled loops over a grammar

from __future__ import annotations

from typing import Any

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
def word(text: Any, begin: int, end: int, where: int, table: Any, words: Any, places: Any) -> int:
    """Return the index of the known word that equals ``text[begin:end]``; -1 if none does.

    `where` is a code: key of an event, key of its arguments, or category. `table` is a hash table
    of the indices, -1 in free slots. `words` has all known words, each behind its code, and
    `places` the start of each in `words`.
    """
    at = hashed(text, begin, end, where)
    while table[at] >= 0:
        number = int(table[at])
        first = places[number]
        if places[number + 1] - first == end - begin + 1 and words[first] == where:
            same = True
            for offset in range(end - begin):
                if words[first + 1 + offset] != text[begin + offset]:
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
            at += 1
            while at < size and text[at] != _QUOTE:
                char = text[at]
                if char == _BACKSLASH:
                    lines[at - begin] = char
                    at += 1
                    if at == size:
                        return count
                    char = text[at]
                if char < _BLANK and char in (_TAB, _NEWLINE, _RETURN):
                    char = _BLANK
                lines[at - begin] = char
                at += 1
            if at == size:
                return count
            lines[at - begin] = _QUOTE
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


def scan(
    text: Bytes,
    table: Ints,
    words: Bytes,
    places: Ints,
    roles: Ints,
    slots: Ints,
    begins: NDArray[np.int32],
    sizes: NDArray[np.int32],
    numbers: Ints,
    spans: Ints,
    kinds: NDArray[np.uint8],
) -> int:
    """Extract the wanted values of events, given one event per line; return how many are kept.

    Parameters
    ----------
    text
        The events.
    table, words, places
        Hash table of the known words, see `word`.
    roles, slots
        By known word: how its value is used, and its column among those of the same type.
    begins, sizes
        Output: begin and length of texts, by row and column. The length is -1 if absent; for a list
        of n bytes it is -n - 2.
    numbers
        Output: integers, and times in ns; `NONE` if absent.
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
        sizes[row, :] = -1
        numbers[row, :] = NONE
        ok, escapes, drop, bare, is_counted = True, False, False, False, False
        depth, lists, state, seen = 0, 0, _VALUE, 0
        number, value_begin, value_depth, args_depth = -1, 0, -1, -1
        while ok and at < size:
            char = text[at]
            if char == _BLANK:
                at += 1
                continue
            if state == _KEY or state == _FIRST_KEY:
                if char == _CLOSE and state == _FIRST_KEY:
                    state = _NEXT
                    continue
                if char != _QUOTE:
                    ok = False
                    break
                end, has_escapes, is_ascii = string_end(text, at + 1, size)
                if end < 0:
                    ok = False
                    break
                if depth == 1 or depth == args_depth:
                    if has_escapes:  # which may be a key that means something
                        ok = False
                        break
                    where = EVENT if depth == 1 else ARGUMENT
                    number = word(text, at + 1, end, where, table, words, places)
                    if number >= 0:
                        bit = 1 << number
                        ok = (seen & bit) == 0
                        seen |= bit
                at = end + 1
                while at < size and text[at] == _BLANK:
                    at += 1
                if at == size or text[at] != _COLON:
                    ok = False
                    break
                at += 1
                state = _VALUE
                continue
            if state == _NEXT:
                is_list = (lists >> depth) & 1
                if char == _COMMA:
                    state = _VALUE if is_list else _KEY
                    at += 1
                    continue
                if (char != _CLOSE_LIST) if is_list else (char != _CLOSE):
                    ok = False
                    break
                at += 1
                if depth == args_depth:
                    args_depth = -2
                depth -= 1
                if value_depth == depth:  # a list that is wanted as text
                    slot = slots[number]
                    begins[row, slot] = value_begin
                    sizes[row, slot] = -(at - value_begin) - 2
                    number, value_depth = -1, -1
                if depth == 0:
                    break
                continue
            # A value, or the end of an empty list.
            role = roles[number] if number >= 0 and value_depth < 0 else -1
            if depth == 0 and char != _OPEN:
                ok = False
                break
            if char == _QUOTE:
                end, has_escapes, is_ascii = string_end(text, at + 1, size)
                if end < 0:
                    ok = False
                    break
                if role >= 0:
                    slot = slots[number]
                    if role == TEXT:
                        escapes = escapes or has_escapes
                        begins[row, slot] = at + 1
                        sizes[row, slot] = end - at - 1
                        if slot == 0:
                            is_counted = end - at == 2 and (
                                text[at + 1] == 88 or text[at + 1] == 77
                            )
                        elif slot == 1:
                            category = word(text, at + 1, end, CATEGORY, table, words, places)
                            if category >= 0:
                                drop = roles[category] == DROPPED
                                bare = roles[category] == BARE
                    elif role == ARGUMENTS:
                        ok = False
                        break
                    else:
                        value = (
                            whole(text, at + 1, end) if role == NUMBER
                            else time_of(text, at + 1, end)
                        )  # fmt: skip
                        if value == NONE:
                            ok = False
                            break
                        numbers[row, slot] = value
                    number = -1
                elif value_depth >= 0 and (has_escapes or not is_ascii):
                    escapes = True
                at = end + 1
                state = _NEXT
            elif char == _OPEN or char == _OPEN_LIST:
                if depth >= _LAST:
                    ok = False
                    break
                if role == ARGUMENTS:
                    if char == _OPEN_LIST or args_depth != -1:
                        ok = False
                        break
                    args_depth = depth + 1
                    number = -1
                elif role >= 0:
                    if char == _OPEN or role != TEXT:
                        ok = False
                        break
                    value_begin, value_depth = at, depth
                elif value_depth >= 0 and char == _OPEN:
                    ok = False
                    break
                depth += 1
                if char == _OPEN:
                    lists &= ~(1 << depth)
                    state = _FIRST_KEY
                else:
                    lists |= 1 << depth
                    state = _FIRST_VALUE
                at += 1
            elif char == _CLOSE_LIST and state == _FIRST_VALUE:
                state = _NEXT
            elif char == _MINUS or _ZERO <= char <= _NINE:
                if role == TIME:
                    end = at
                    while end < size and text[end] not in (_BLANK, _COMMA, _CLOSE, _NEWLINE):
                        end += 1
                    value = time_of(text, at, end)
                    if value == NONE:
                        ok = False
                        break
                    numbers[row, slots[number]] = value
                else:
                    end, is_whole = number_end(text, at, size)
                    if end < 0 or (not is_whole and (role >= 0 or value_depth >= 0)):
                        ok = False
                        break
                    if role == NUMBER:
                        numbers[row, slots[number]] = whole(text, at, end)
                    elif role == TEXT:
                        begins[row, slots[number]] = at
                        sizes[row, slots[number]] = end - at
                    elif role == ARGUMENTS:
                        ok = False
                        break
                if value_depth < 0:
                    number = -1
                at = end
                state = _NEXT
            else:
                end = literal_end(text, at, size)
                if end < 0 or value_depth >= 0 or (role >= 0 and char != 110) or role == ARGUMENTS:
                    ok = False
                    break
                number = -1
                at = end
                state = _NEXT
        if ok and depth == 0:
            while at < size and text[at] == _BLANK:
                at += 1
            ok = at == size or text[at] == _NEWLINE
        else:
            ok = False
        if not ok:
            while at < size and text[at] != _NEWLINE:
                at += 1
        elif not is_counted or drop:
            continue
        elif bare:
            sizes[row, 2:] = -1
            numbers[row, :] = NONE
        elif escapes:
            ok = False
        spans[row, 0] = begin
        spans[row, 1] = at
        kinds[row] = WHOLE if ok else ODD
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
