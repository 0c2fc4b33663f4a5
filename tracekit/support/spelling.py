"""Suggests known words for a misspelt one."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the question whether a similar known word was meant; empty if none is similar.

    Further text of the message can follow it.
    """
    near = get_close_matches(word, list(known))
    return f"did you mean {' or '.join(map(repr, near))}? " if near else ""


def choose_among(word: str, known: Iterable[str]) -> str:
    """Return the hint for an unknown word: the most similar known word, and all known words."""
    names = list(known)
    return f"{did_you_mean(word, names)}choose among {', '.join(names)}"
