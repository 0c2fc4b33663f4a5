"""Suggest the word that a misspelt one may have meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a question that names the known words most like `word`, or nothing without any.

    What follows in the message begins behind it.
    """
    near = get_close_matches(word, list(known))
    return f"did you mean {' or '.join(map(repr, near))}? " if near else ""


def choose_among(word: str, known: Iterable[str]) -> str:
    """Return the hint of an error about an unknown word: the likely one, and all known."""
    names = list(known)
    return f"{did_you_mean(word, names)}choose among {', '.join(names)}"
