"""Rules for labels of a run, given by users or recorded by programs."""

from __future__ import annotations

import unicodedata

MOST = 100
"""Largest number of labels that a run takes from its traces."""
RANK_MARK = "tracekit.rank "
"""Begin of the mark by which a process states its rank; ``1 of 4`` follows."""
_LONGEST = 200
# Control characters, surrogates (which no encoding takes), and separators of lines and paragraphs.
_FORBIDDEN_CATEGORIES = frozenset({"Cc", "Cs", "Zl", "Zp"})


def label_fault(key: str, value: str) -> str | None:
    """Return why a label is invalid, as a predicate ("has ..."); None if it is valid."""
    both = key + value
    faults = {
        "has no key": not key.strip(),
        "has an equals sign in its key": "=" in key,
        f"has more than {_LONGEST} characters": max(len(key), len(value)) > _LONGEST,
        "has a character that cannot be printed": any(map(is_forbidden, both)),
    }
    return next((fault for fault, there in faults.items() if there), None)


def is_forbidden(character: str) -> bool:
    """Test whether a character is forbidden in names and labels."""
    return unicodedata.category(character) in _FORBIDDEN_CATEGORIES
