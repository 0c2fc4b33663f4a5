"""Names that mean nothing to a file system, nor to nsys, which replaces %p and such."""

from __future__ import annotations

import hashlib

_HARMLESS = frozenset("-_.=+")
_LONGEST = 120


def file_name(name: str) -> str:
    """Return a name for a folder: `name` itself if it is harmless, else one that no other gets."""
    safe = "".join(each if each.isalnum() or each in _HARMLESS else "_" for each in name)
    if safe == name and not name.startswith(".") and len(name) <= _LONGEST:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{safe.lstrip('.')[:_LONGEST]}-{digest}"
