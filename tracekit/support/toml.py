"""Reads TOML files, with protection against malicious ones."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from tracekit.errors import InputError

NotToml = tomllib.TOMLDecodeError
"""Error that `parse_toml` raises."""
_MOST_BYTES = 4 << 20


def parse_toml(text: str) -> dict[str, Any]:
    """Return the content of a TOML document.

    Raises
    ------
    NotToml
        If the text is invalid, or nested unreasonably deep.
    """
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise NotToml("it is nested too deeply") from None


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file.

    Raises
    ------
    InputError
        If the file is no valid TOML, or is unreasonably large.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise InputError(f"{path} is too large for a file written by hand")
        return parse_toml(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InputError(f"{path} cannot be read", error.strerror) from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not text in UTF-8") from error
    except (NotToml, ValueError) as error:
        raise InputError(f"{path} is not TOML", str(error)) from error
