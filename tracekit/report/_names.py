"""Names of kernels as people read them: short, and no two of a list alike."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

_SPACES = re.compile(r"\s+")
_WORDS = re.compile(r"[A-Za-z0-9.]+")
_GENERIC = {"kernel", "kernel2", "run", "launch", "operator"}
_MOST = 56
_HEAD = 34


def readable(names: Sequence[str]) -> list[str]:
    """Return short names; different ones stay different.

    A name loses its return type, its parameters, the arguments of its templates and its
    namespaces. Where that leaves names alike, they keep the words that not all of them have.
    """
    distinct = list(dict.fromkeys(names))
    alike: dict[str, list[str]] = {}
    for name in distinct:
        alike.setdefault(_short(name), []).append(name)
    short = {
        name: text
        for base, group in alike.items()
        for name, text in zip(group, _told_apart(base, group), strict=True)
    }
    return [short[name] for name in names]


def _short(name: str) -> str:
    text = _SPACES.sub(" ", name.removeprefix("void ").strip())
    parts = [part for part in _without_brackets(text).split("::") if part]
    last = parts[-1] if parts else text
    if last.lower() in _GENERIC and len(parts) > 1:
        last = f"{parts[0]}::{last}" if len(parts) == 2 else f"{parts[0]}::{parts[1]}::{last}"  # noqa: PLR2004
    return _cut(last, _MOST, _HEAD)


def _without_brackets(text: str) -> str:
    """Leave out what stands in angle brackets and parentheses, other than at the beginning."""
    kept, depth = [], 0
    for place, letter in enumerate(text):
        depth += letter in "<(" and place > 0
        if not depth:
            kept.append(letter)
        depth -= letter in ">)" and depth > 0
    return "".join(kept).strip() or text


def _told_apart(base: str, names: Sequence[str]) -> list[str]:
    """Return what names that shorten alike are called: with the words that not all of them have."""
    if len(names) == 1:
        return [base]
    words = [_WORDS.findall(name) for name in names]
    common = set.intersection(*map(set, words))
    own = [" ".join(dict.fromkeys(word for word in each if word not in common)) for each in words]
    told = [f"{base} [{_cut(text, _HEAD, _HEAD - 12)}]" if text else base for text in own]
    counts, seen = Counter(told), Counter[str]()
    for place, text in enumerate(told):
        seen[text] += 1
        if counts[text] > 1:
            told[place] = f"{text} #{seen[text]}"
    return told


def _cut(text: str, most: int, head: int) -> str:
    return text if len(text) <= most else f"{text[:head]}…{text[head + 1 - most :]}"
