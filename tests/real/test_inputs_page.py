"""The evidence on inputs names every table that the known schemas of newer exports have."""

from __future__ import annotations

import re
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NEWER = ("2024_2", "2024_6", "2026_1", "2026_2", "2026_4_doc")


def _read_by_us() -> str:
    sources = (ROOT / "tracekit" / "sources").rglob("*.py")
    return "\n".join(path.read_text() for path in sources)


@pytest.mark.parametrize("version", NEWER)
def test_what_is_not_read_is_named(real_trace: Callable[[str], Path], version: str) -> None:
    path = real_trace("ddp_unet_4xa100_rank0").parents[1] / "formats" / f"ddl_{version}.sql"
    if not path.is_file():
        pytest.skip(f"no {path.name} beside the real traces")
    tables = set(re.findall(r"CREATE TABLE (?:IF NOT EXISTS )?(\w+)", path.read_text()))
    page, code = (ROOT / "docs" / "evidence" / "inputs.md").read_text(), _read_by_us()
    named = set(re.findall(r"`([\w*]+)`", page))
    unnamed = {
        table
        for table in tables
        if not table.startswith("ENUM_")
        and f'"{table}"' not in code
        and not any(fnmatch(table, pattern) for pattern in named)
    }
    assert unnamed == set()
    assert len(tables) > 10
